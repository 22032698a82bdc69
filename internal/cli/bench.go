package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	loadrun "github.com/natkit/natkit/internal/load/run"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newBench(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "generate load and measure the result; a server to aim it at",
	}
	cmd.AddCommand(newBenchHTTP(env), newBenchUDP(env), newBenchPackets(env), newBenchServe(env))
	return cmd
}

// benchVerb is what the verbs that make load have in common.
type benchVerb struct {
	env *Env
	target
	schema string
}

// loadFlags are the fields of a run's configuration that all kinds of load have.
type loadFlags struct {
	duration *time.Duration
	rate     *float64
	sources  *[]netip.Addr
	ports    *nat.Ports
	seed     *uint64
	workers  *int
}

// addFlags adds the flags of all kinds of load, which sends what; ports describes
// --source-port further.
func (b *benchVerb) addFlags(cmd *cobra.Command, l loadFlags, what, ports string) {
	f := cmd.Flags()
	f.VarP((*seconds)(l.duration), "time", "t", "end after this time: seconds or 500ms, 2m, …")
	f.Float64Var(l.rate, "rate", 0, "send this many "+what+" per second on a schedule (0: as fast as replies come)")
	f.Var(addressList(l.sources), "source", "send from this address, range or prefix (`ADDR[-ADDR]`, ADDR/BITS), in turn; may be repeated")
	f.Var(into(l.ports, nat.ParsePorts), "source-port", "choose source ports of `FIRST-LAST` in an order that --seed determines"+ports)
	f.Uint64Var(l.seed, "seed", 0, "makes the order of the source addresses and of --source-port repeatable")
	f.IntVar(l.workers, "workers", *l.workers, "threads (0: one per CPU)")
	b.addJSON(cmd)
}

// addJSON adds --json, --netns and --pid.
func (b *benchVerb) addJSON(cmd *cobra.Command) {
	b.env.addJSON(cmd, b.schema)
	b.target.addFlags(cmd)
}

// repeated is the value of a flag that may be repeated.
type repeated struct {
	texts []string
	add   func(string) error
}

func (v *repeated) String() string { return strings.Join(v.texts, ",") }
func (v *repeated) Type() string   { return "stringArray" }
func (v *repeated) Set(text string) error {
	v.texts = append(v.texts, text)
	return v.add(text)
}

// addressList reads addresses, ranges and prefixes.
func addressList(to *[]netip.Addr) pflag.Value {
	return &repeated{add: func(text string) error {
		more, err := load.ParseSources(text)
		*to = append(*to, more...)
		return err
	}}
}

// addSize adds --size, which packets.ParseSizes reads.
func addSize(cmd *cobra.Command, size *string) {
	cmd.Flags().StringVar(size, "size", "", "frame sizes in bytes, FCS included: `SIZE[,SIZE]` in turn, or imix (64, or the least possible)")
}

// addOwnNetwork adds the flag without which no load goes to public addresses.
func addOwnNetwork(cmd *cobra.Command, own *bool) {
	cmd.Flags().BoolVar(own, "i-own-this-network", false, "allow public addresses: they and all on the way there are yours")
}

func exactlyOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("expected one %s, found %d arguments", what, len(args))
		}
		return nil
	}
}

// parseAddrPort reads what a flag or an argument of that name must be.
func parseAddrPort(name, text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return at, usagef("%s%q: must be ADDR:PORT, such as 198.18.0.2:9000 or [2001:db8::2]:9000", name, text)
	}
	return at, nil
}

// benchRun is a run of load by sockets, and what is done with its result.
type benchRun[R any] struct {
	run func(loadrun.Options) (*R, error)
	// empty is why a result is a failure.
	empty func(*R) error
	// chosen are the flags that repeat it.
	chosen func(*R) map[string]string
	text   func(io.Writer, report.Style, *R) error
}

// runLoad makes load from the chosen namespace and prints what came of it.
func runLoad[R any](b *benchVerb, cmd *cobra.Command, to string, r benchRun[R]) error {
	ns, err := b.target.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	at := ns
	if at == nil { // entering it would need a privilege
		if at, err = netns.Current(); err != nil {
			return err
		}
		defer at.Close()
	}
	progress := b.env.progress()
	result, err := r.run(loadrun.Options{Netns: ns, WatchOthers: true, Progress: func(p load.Progress) { progress.Update("%v", p) }})
	progress.Clear()
	if result == nil {
		return err
	}
	head := report.LoadHead{Command: commandLine(cmd, r.chosen(result), to), Netns: snapshot.Netns{Name: at.Name(), Inode: at.Inode()}}
	return b.print(cmp.Or(err, r.empty(result)), head, result, func(w io.Writer, style report.Style) error { return r.text(w, style, result) })
}

// print writes the result of a run, which failed if err is not nil: that has a document, too.
func (b *benchVerb) print(err error, head report.LoadHead, result any, text func(io.Writer, report.Style) error) error {
	head.Schema, head.Version = b.schema, b.env.Version
	switch {
	case b.env.asJSON:
		return errors.Join(err, report.JSON(b.env.Stdout, head, result))
	case err != nil:
		return err
	}
	return text(b.env.Stdout, b.env.style())
}

// notRepeated are flags that a command line to repeat a run does without.
var notRepeated = []string{"json", "output", "quiet", "verbose", "numeric"}

// commandLine is a command line as a shell takes it: with the flags that were given
// but for those of output, and the values of those that were chosen, given or not.
func commandLine(cmd *cobra.Command, chosen map[string]string, to string) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if value, known := chosen[f.Name]; known {
			values[0] = value
		} else if !f.Changed || slices.Contains(notRepeated, f.Name) {
			return
		}
		if list, is := f.Value.(*repeated); is && f.Changed {
			values = list.texts
		}
		for _, value := range values {
			separator := " "
			if isSwitch(f) {
				separator = "="
			}
			words = append(words, "--"+f.Name+separator+shellQuote(value))
		}
	})
	return strings.Join(append(words, shellQuote(to)), " ")
}

// numbers are flags that natkit chose a value for; 0 is none.
func numbers(chosen map[string]int64) map[string]string {
	texts := map[string]string{}
	for name, n := range chosen {
		if n > 0 {
			texts[name] = fmt.Sprint(n)
		}
	}
	return texts
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellQuote makes one word of text for a POSIX shell.
func shellQuote(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
