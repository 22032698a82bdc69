package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

func newGateway(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "every kind of NAT from one file: check, plan, apply, status, undo",
		Long: `Every kind of NAT as one file, the same for every engine: checked, planned, applied in
one transaction, confirmed or rolled back, explained packet by packet. natkit keeps its
rules in a table of its own, "inet natkit", and does not change other tables.`,
		Example: `  natkit gateway check gateway.yaml
  sudo natkit gateway plan gateway.yaml
  sudo natkit gateway apply gateway.yaml --confirm 60s`,
	}
	cmd.AddCommand(newGatewayCheck(env), newGatewayApply(env), newGatewayConfirm(env), newGatewayUndo(env), newGatewayRun(env),
		newGatewayImport(env), newGatewayStatus(env), newGatewayWho(env), newGatewayLog(env), newGatewayPlan(env), newGatewayExplain(env), newGatewaySet(env), newGatewayEdit(env), newGatewaySchema(env))
	return cmd
}

// arrows writes an arrow that is an argument of its own, explain tcp A '->' B, as one that
// is not taken for flags.
func arrows(args []string) []string {
	if len(args) < 2 || args[0] != "gateway" || !slices.Contains(args, "explain") {
		return args
	}
	args = slices.Clone(args)
	for i, a := range args {
		if a == "->" {
			args[i] = "→"
		}
	}
	return args
}

// completeYAML offers configuration files, for the shell.
func completeYAML(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

const gatewayCheckSchema = "natkit.gateway-check/1"

func newGatewayCheck(env *Env) *cobra.Command {
	var where target
	var offline bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "find mistakes in a gateway file, on this host or offline",
		Long: `Read a gateway file and report, with line and column, which rules overlap, can never
match, give more than they have, or would cut your own session; and what this host
lacks for them or has that conflicts. Nothing is changed. FILE may be - for the standard
input; docs/gateway.md has its language. Other programs' rules can be read with
CAP_NET_ADMIN only; without, the result is INCOMPLETE.

'natkit gateway apply' refuses a file with a refused finding, not with a warning.

Exit codes: 0 no findings, 1 the file cannot be read, 2 it does not parse, 3 findings,
4 no findings, but INCOMPLETE.`,
		Example: `  natkit gateway check gateway.yaml
  natkit gateway check --offline - < gateway.yaml
  sudo natkit gateway check gateway.yaml --netns gw --json`,
		ValidArgsFunction: completeYAML,
	}
	where.runs(cmd, func(ctx context.Context, ns *netns.Handle, args []string) error {
		return checkGateway(ctx, env, ns, args[0], offline)
	})
	cmd.Flags().BoolVar(&offline, "offline", false, "check the file alone, without reading this host")
	cmd.MarkFlagsMutuallyExclusive("offline", "netns", "pid")
	env.addJSON(cmd, gatewayCheckSchema)
	return cmd
}

func checkGateway(ctx context.Context, env *Env, ns *netns.Handle, name string, offline bool) error {
	collectSeldom()
	file, err := readGateway(ctx, env, name)
	if err != nil {
		return err
	}
	offline = offline || !onLinux
	var facts gateway.Facts
	if !offline {
		if facts, err = gatewayFacts(ctx, ns, &file.Config); err != nil {
			return fmt.Errorf("read this host: %w; --offline checks the file alone", err)
		}
	}
	findings, err := gateway.UnlessEnded(ctx, func() ([]gateway.Finding, error) { return gatewayFindings(file, &facts), nil })
	if err != nil {
		return err
	}
	doc := report.GatewayCheck{Schema: gatewayCheckSchema, File: file.Name, Rules: len(file.Config.NAT) + len(file.Config.IPv6),
		Offline: offline, Unknown: list(facts.Unknown), Findings: list(findings)}
	for _, found := range findings {
		switch found.Severity {
		case gateway.Refuse:
			doc.Refused++
		case gateway.Warn:
			doc.Warned++
		default:
			doc.Noticed++
		}
	}
	switch err := env.print(doc); {
	case err != nil:
		return err
	case doc.Refused+doc.Warned > 0:
		return errFindings
	case len(doc.Unknown) > 0:
		return errIncomplete
	}
	return nil
}

// readGateway reads and parses a gateway file, or the standard input for "-".
func readGateway(ctx context.Context, env *Env, name string) (*gateway.File, error) {
	name, text, err := gatewayText(ctx, env, name)
	if err != nil {
		return nil, err
	}
	return gateway.UnlessEnded(ctx, func() (*gateway.File, error) { return gateway.ParseWith(disk.Files{}, name, text) })
}

// gatewayText reads a gateway file, or the standard input for "-", and names it.
func gatewayText(ctx context.Context, env *Env, name string) (string, []byte, error) {
	text, err := env.read(ctx, "gateway file", name, gateway.MaxSource, "a gateway file into it, such as 'natkit gateway check - <gateway.yaml'")
	if name == "-" {
		name = "stdin"
	}
	return filepath.ToSlash(name), text, err // it includes others by names with slashes
}

func newGatewaySchema(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "print the JSON Schema of gateway files, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of gateway files, as this natkit reads them, with
which editors complete words, show what values may be, and mark mistakes.
yaml-language-server takes it from a comment in the file:

  # yaml-language-server: $schema=gateway.schema.json

Whether rules make sense together 'natkit gateway check' finds.`,
		Example: "  natkit gateway schema > gateway.schema.json",
		RunE: func(*cobra.Command, []string) error {
			return report.JSON(env.Stdout, gateway.Schema())
		},
	}
}

const gatewayImportSchema = "natkit.gateway-import/1"

// maxImport bounds a text of rules: 16 MiB are some 150,000 of them.
const maxImport = 16 << 20

// gatewayImport is the verb gateway import.
type gatewayImport struct {
	env    *Env
	target target
	ipv6   bool
}

func newGatewayImport(env *Env) *cobra.Command {
	g := &gatewayImport{env: env}
	cmd := &cobra.Command{
		Use:   "import [FILE|-]",
		Short: "convert existing NAT rules into a gateway file",
		Long: `Print a gateway file that does the same as the NAT rules of a text or of a network
namespace, and on stderr which rules were not translated, and why. Without FILE the
rules are read from the kernel (nftables, iptables-nft and iptables-legacy), which needs
CAP_NET_ADMIN. FILE may be a directory or an archive of texts (a sosreport), or what iptables-save, ip6tables-save or 'nft list ruleset' prints,
a script of nft, commands of iptables that append a rule, one in each line, OpenWrt's /etc/config/firewall with
/etc/config/network (or what 'uci show' prints of both), or VyOS' configuration (commands or
config.boot). Nothing is changed.

Only what a gateway file expresses exactly is translated. Rules of Docker, Kubernetes,
firewalld, libvirt, LXD, Incus and others are left to them.

Exit codes: 0 all translated, 1 error, 2 usage, or a text that is empty or something else, 3 something was
not translated, or with a difference.`,
		Example: `  sudo natkit gateway import > gateway.yaml
  sudo iptables-save | natkit gateway import -
  natkit gateway import ruleset.nft    # of 'nft list ruleset > ruleset.nft'
  cat /etc/config/network /etc/config/firewall | natkit gateway import -
  sudo natkit gateway import --netns router --json
  natkit gateway check gateway.yaml`,
		Args: argsUnless(takes, "netns", "pid"),
		RunE: g.run,
	}
	g.target.addFlags(cmd)
	cmd.Flags().BoolVarP(&g.ipv6, "ipv6", "6", false, "read the text as ip6tables rules if it names no family")
	env.addJSON(cmd, gatewayImportSchema)
	return cmd
}

func (g *gatewayImport) run(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && g.ipv6 {
		return usagef("--ipv6 requires FILE; the kernel's rules have their family")
	}
	set, err := g.read(cmd, args)
	if err != nil {
		return err
	}
	result, err := gateway.UnlessEnded(cmd.Context(), func() (*convert.Result, error) { return convert.Import(set) })
	if err != nil {
		return err
	}
	doc := importDocument{gatewayImportSchema, result.Config, result.YAML(), list(result.Notes)}
	if err := g.env.print(doc); err != nil {
		return err
	}
	if !g.env.asJSON {
		for _, n := range doc.Notes {
			fmt.Fprintln(g.env.Stderr, noteLine(n))
		}
	}
	if !result.Exact() {
		return errFindings
	}
	return nil
}

func (g *gatewayImport) read(cmd *cobra.Command, args []string) (set *ruleset.Ruleset, err error) {
	if len(args) == 0 {
		err = g.target.with(cmd, func(ns *netns.Handle) error {
			set, err = kernelRules(ns)
			return err
		})
		return set, err
	}
	version := 4
	if g.ipv6 {
		version = 6
	}
	if walk, err := severalTexts(cmd.Context(), args[0]); walk != nil && args[0] != "-" {
		return g.readTexts(walk, args[0], version)
	} else if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	text, err := g.env.read(cmd.Context(), "rules", args[0], maxImport, "rules into it, such as 'iptables-save | natkit gateway import -'")
	if err == nil && len(text) > maxImport {
		err = fmt.Errorf("read rules: %s is larger than %s", args[0], units.Bytes(int64(maxImport)))
	}
	if err != nil {
		return nil, err
	}
	text = document.Unmarked(text)
	set, err = gateway.UnlessEnded(cmd.Context(), func() (*ruleset.Ruleset, error) { return ruleset.ParseFile(args[0], string(text), version), nil })
	if err == nil && set.Foreign {
		return nil, malformed(notRules(args[0], text))
	}
	return set, err
}

// readTexts takes the rules out of a directory or an archive.
func (g *gatewayImport) readTexts(walk loose.Walk, name string, version int) (*ruleset.Ruleset, error) {
	host, err := loose.Read(walk, "", loose.Options{Budget: snapshot.NewBudget(snapshot.DefaultBudget)})
	if err != nil {
		return nil, malformed(fmt.Errorf("import rules: read %s: %w", name, err))
	}
	for _, lost := range host.Lost {
		g.env.note("%s", lost)
	}
	set := host.Ruleset(version)
	if set.Foreign {
		return nil, malformed(fmt.Errorf("import rules: %s has no text of rules: 'iptables-save' or 'nft list ruleset' prints them", name))
	}
	return set, nil
}

// notRules is the error of a text without rules; it names what it is where natkit knows that.
func notRules(name string, text []byte) error {
	if what, verb := otherInput(text); verb != "" && verb != "gateway import" {
		return fmt.Errorf("import rules: %s is %s: natkit %s %[1]s reads it", name, what, verb)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return fmt.Errorf("import rules: %s is empty: give what iptables-save, ip6tables-save or 'nft list ruleset' prints, or the configuration of OpenWrt or VyOS", name)
	}
	return fmt.Errorf("import rules: none of the lines of %s is a rule: give what iptables-save, ip6tables-save or 'nft list ruleset' prints, or the configuration of OpenWrt or VyOS", name)
}

// importDocument is a gateway file made of existing rules.
type importDocument struct {
	Schema string         `json:"schema"`
	Config gateway.Config `json:"gateway"`
	// YAML is the file, with each original rule in a comment at its own.
	YAML string `json:"yaml"`
	// Notes are about rules that are not in the file.
	Notes []ruleset.Note `json:"notes"`
}

// Text writes the file.
func (d importDocument) Text(w io.Writer, _ report.Style) error {
	_, err := io.WriteString(w, d.YAML)
	return err
}

var noteNames = map[string]string{
	ruleset.Untranslated: "not translated", ruleset.Differs: "translated, with a difference", ruleset.LeftAlone: "left alone",
	ruleset.Redundant: "left out, another rule does the same", ruleset.Unreachable: "left out, no packet reaches it",
}

// maxNoted is how many columns of a rule a note shows: enough for each that a person wrote.
const maxNoted = 500

// noteLine is one line: what, which rule, why.
func noteLine(n ruleset.Note) string {
	line := noteNames[n.Kind] + ": "
	switch {
	case n.Rules > 1:
		line += fmt.Sprintf("%d rules: each ", n.Rules)
	case n.Line > 0:
		line += fmt.Sprintf("line %d, ", n.Line)
	}
	if n.Rules == 1 && n.Text != "" {
		line += report.Truncate(n.Text, maxNoted) + ": "
	}
	return report.Clean(line + report.Truncate(n.Reason, maxNoted))
}
