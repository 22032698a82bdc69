package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/gateway/convert"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/units"
)

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
rules are read from the kernel: of nftables, iptables-nft and iptables-legacy. That
needs CAP_NET_ADMIN. Nothing is changed.

FILE is what iptables-save, ip6tables-save or 'nft list ruleset' prints, or commands of
iptables that append a rule, one in each line: no scripts. Maps of nftables are read
from the kernel only.

Only what a gateway file expresses exactly is translated. iptables takes the first rule
that matches, a gateway file the most specific one: where these differ, natkit reports
it and leaves out the rule with all those that depend on it. Rules of Docker,
Kubernetes, firewalld, libvirt, LXD, Incus and others are recognised and left to them:
natkit's rules come after theirs and leave them alone.

Exit codes: 0 all translated, 1 error, 2 usage, or a text without rules, 3 something was
not translated, or with a difference.`,
		Example: `  sudo natkit gateway import > gateway.yaml
  sudo iptables-save | natkit gateway import -
  natkit gateway import ruleset.nft    # of 'nft list ruleset > ruleset.nft'
  sudo natkit gateway import --netns router --json
  natkit gateway check gateway.yaml`,
		Args: argsUnless(cobra.MaximumNArgs(1), "netns", "pid"),
		RunE: g.run,
	}
	g.target.addFlags(cmd)
	cmd.Flags().BoolVarP(&g.ipv6, "ipv6", "6", false, "the text is of ip6tables, where it does not say so")
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
	result, err := gwapply.UnlessEnded(cmd.Context(), func() (*convert.Result, error) { return convert.Import(set) })
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
			set, err = read.Tables(ns)
			return err
		})
		return set, err
	}
	text, err := g.text(cmd.Context(), args[0])
	if err != nil {
		return nil, err
	}
	version := 4
	if g.ipv6 {
		version = 6
	}
	set, err = gwapply.UnlessEnded(cmd.Context(), func() (*ruleset.Ruleset, error) { return ruleset.Parse(string(text), version), nil })
	if err == nil && set.Foreign {
		return nil, malformed(notRules(args[0], text))
	}
	return set, err
}

// notRules is the error of a text without rules; it names what it is where natkit knows that.
func notRules(name string, text []byte) error {
	if what, verb := otherInput(plain(text[:min(len(text), bundleHead)])); verb != "" && verb != "gateway import" {
		return fmt.Errorf("import rules: %s is %s: natkit %s %[1]s reads it", name, what, verb)
	}
	return fmt.Errorf("import rules: none of the lines of %s is a rule: give what iptables-save, ip6tables-save or 'nft list ruleset' prints", name)
}

// text is all of a file, or of standard input for "-".
func (g *gatewayImport) text(ctx context.Context, name string) ([]byte, error) {
	text, err := g.env.input(ctx, name, maxImport, "rules into it, such as 'iptables-save | natkit gateway import -'")
	if err == nil && len(text) > maxImport {
		err = fmt.Errorf("read %s: larger than %s, which is more than natkit reads", name, units.Bytes(int64(maxImport)))
	}
	if err != nil {
		return nil, fmt.Errorf("import rules: %w", err)
	}
	return text, nil
}

// importDocument is a gateway file made of existing rules.
type importDocument struct {
	Schema string         `json:"schema"`
	Config gateway.Config `json:"gateway"`
	// YAML is the file, with the original rules beside those of the file.
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
