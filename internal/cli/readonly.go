package cli

import (
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/permit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// readOnlyEnv is the environment's word for --read-only.
const readOnlyEnv = "NATKIT_READ_ONLY"

// reading are the verbs that change nothing on a host: they read it, by eBPF programs too, and write files that the
// user names, or those of a recording. The port of the exporter shows what was read. A verb that is neither here nor in changing is refused where natkit is read-only, and fails a test.
var reading = strings.Fields(`
	completion help version
	diff exporter pcap plan ports simulate snapshot sysctl top
	record record/export record/list record/mark record/show
	drops flows path profile
	conntrack conntrack/count conntrack/events conntrack/list
	gateway gateway/check gateway/explain gateway/import gateway/log gateway/plan gateway/schema gateway/status gateway/who
	lab lab/list
	bench tune tune/list`)

// changing are the verbs that change something. Load is a change too: it fills the connection tables and takes the ports
// of this host, of the one that it is sent to, and of every NAT between them; and a server opens a port.
var changing = map[string]changes{
	"bench/connect": {}, "bench/hold": {}, "bench/http": {}, "bench/packets": {}, "bench/rfc9693": {}, "bench/serve": {}, "bench/udp": {},
	"conntrack/delete": {unless: "dry-run"},
	// What a command of the user does is not known.
	"doctor":        {with: []string{"fix", "exec"}},
	"gateway/apply": {}, "gateway/confirm": {}, "gateway/edit": {}, "gateway/run": {}, "gateway/undo": {},
	"gateway/set": {unless: "dry-run"},
	"lab/clean":   {}, "lab/down": {}, "lab/exec": {}, "lab/run": {}, "lab/up": {},
	"lab/fill":   {with: []string{"entries", "share", "free", "remove"}},
	"tune/apply": {unless: "dry-run"},
	"tune/undo":  {}, "tune/confirm": {},
}

// changes is when a verb changes something: with one of some flags, or always, unless a flag is given.
type changes struct {
	with   []string
	unless string
}

// by returns what changes something in a command line, in its words; empty where nothing does.
func (c changes) by(cmd *cobra.Command) string {
	words := commandWords(cmd)
	if len(c.with) > 0 {
		for _, name := range c.with {
			if f := cmd.Flags().Lookup(name); f != nil && isSet(f) {
				return words + " --" + name
			}
		}
		return ""
	}
	if f := cmd.Flags().Lookup(c.unless); f != nil && isSet(f) {
		return ""
	}
	return words
}

// isSet reports whether a flag is given, and a switch is on.
func isSet(f *pflag.Flag) bool {
	on, err := strconv.ParseBool(f.Value.String())
	return f.Changed && (!isSwitch(f) || err == nil && on)
}

// commandWords is the path of a command without natkit itself.
func commandWords(cmd *cobra.Command) string {
	_, words, _ := strings.Cut(cmd.CommandPath(), " ")
	return words
}

// changedBy returns what would change the host, empty where nothing would.
func changedBy(cmd *cobra.Command) string {
	path := strings.ReplaceAll(commandWords(cmd), " ", "/")
	first, _, _ := strings.Cut(path, "/")
	if path == "" || first == "completion" || slices.Contains(reading, path) || strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd) {
		return ""
	}
	return changing[path].by(cmd)
}

// addReadOnly adds --read-only, which is given before or after the verb.
func (e *Env) addReadOnly(root *cobra.Command) {
	root.PersistentFlags().BoolVar(&e.readOnly, "read-only", false, "refuse whatever would change the host, as with "+readOnlyEnv+"=1")
}

// afterReadOnly turns what follows --read-only, where that comes before the verb.
func afterReadOnly(args []string, turn func([]string) []string) []string {
	if len(args) > 0 && (args[0] == "--read-only" || strings.HasPrefix(args[0], "--read-only=")) {
		return append([]string{args[0]}, turn(args[1:])...)
	}
	return turn(args)
}

// checkReadOnly refuses a command that would change the host, before it does anything. From then on what writes refuses
// as well (package permit).
func (e *Env) checkReadOnly(cmd *cobra.Command) error {
	text := ""
	if e.Getenv != nil {
		text = e.Getenv(readOnlyEnv)
	}
	if text != "" {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return usagef("%s=%s: must be 1 or 0", readOnlyEnv, text)
		}
		e.readOnly = e.readOnly || on
	}
	if e.readOnly {
		permit.ReadOnly()
	}
	if words := changedBy(cmd); words != "" {
		return permit.Change(words)
	}
	return nil
}
