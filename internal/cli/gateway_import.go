package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/gateway/convert"
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
	asJSON bool
}

// importDocument is the JSON form.
type importDocument struct {
	Schema string         `json:"schema"`
	Config gateway.Config `json:"gateway"`
	// YAML is the file, with the original rules beside those of the file.
	YAML string `json:"yaml"`
	// Notes are about rules that are not in the file.
	Notes []ruleset.Note `json:"notes"`
}

func newGatewayImport(env *Env) *cobra.Command {
	g := &gatewayImport{env: env}
	cmd := &cobra.Command{
		Use:   "import [FILE|-]",
		Short: "make a gateway file of rules that are there",
		Long: `Prints a gateway file that does the same as the NAT rules of a text or of a network
namespace, and on standard error which rules it did not translate, and why. Without
FILE the rules are read from the kernel: of nftables, iptables-nft and
iptables-legacy. That needs CAP_NET_ADMIN. Nothing is changed.

FILE is what iptables-save, ip6tables-save or 'nft list ruleset' prints, or commands of
iptables as people write them. Maps of nftables are read from the kernel only.

Only what a gateway file says exactly is translated. iptables takes the first rule that
matches, a gateway file the most specific one: where these differ, natkit says so, and
leaves the rule out with all those whose meaning hangs on it. Rules of Docker,
Kubernetes, firewalld, libvirt, LXD, Incus and others are recognised and left to them: natkit's
rules come after theirs and leave them alone.

Exit code: 0 all was translated, 3 something was not, or with a difference, 1 it failed,
2 wrong usage, or a text that is none of rules.`,
		Example: `  sudo natkit gateway import > gateway.yaml
  sudo iptables-save | natkit gateway import -
  natkit gateway import ruleset.nft    # of 'nft list ruleset > ruleset.nft'
  sudo natkit gateway import --netns router --json
  natkit gateway check gateway.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: g.run,
	}
	g.target.addFlags(cmd)
	cmd.Flags().BoolVarP(&g.ipv6, "ipv6", "6", false, "the text is of ip6tables, where it does not say so")
	addJSON(cmd, &g.asJSON, gatewayImportSchema)
	return cmd
}

func (g *gatewayImport) run(cmd *cobra.Command, args []string) error {
	live := cmd.Flags().Changed("netns") || cmd.Flags().Changed("pid")
	switch {
	case len(args) > 0 && live:
		return usagef("%s and a network namespace: rules come from one of them", args[0])
	case len(args) == 0 && g.ipv6:
		return usagef("--ipv6 is for a text; the kernel's rules tell their family")
	}
	set, err := g.read(cmd, args)
	if err != nil {
		return err
	}
	result, err := gwapply.UnlessEnded(cmd.Context(), func() (*convert.Result, error) { return convert.Import(set) })
	if err != nil {
		return err
	}
	if err := g.print(cmd.OutOrStdout(), cmd.ErrOrStderr(), result); err != nil {
		return err
	}
	if !result.Exact() {
		return errFindings
	}
	return nil
}

func (g *gatewayImport) read(cmd *cobra.Command, args []string) (*ruleset.Ruleset, error) {
	if len(args) == 0 {
		ns, err := g.target.open(cmd)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		return read.Tables(ns)
	}
	text, err := g.text(cmd.Context(), args[0])
	if err != nil {
		return nil, err
	}
	version := 4
	if g.ipv6 {
		version = 6
	}
	set, err := gwapply.UnlessEnded(cmd.Context(), func() (*ruleset.Ruleset, error) { return ruleset.Parse(string(text), version), nil })
	if err == nil && set.Foreign {
		return nil, malformed(notRules(args[0], text))
	}
	return set, err
}

// notRules says what a text is that has no rules, where natkit knows it.
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

func (g *gatewayImport) print(out, notes io.Writer, r *convert.Result) error {
	if g.asJSON {
		doc := importDocument{gatewayImportSchema, r.Config, r.YAML(), append([]ruleset.Note{}, r.Notes...)}
		return report.JSON(out, doc)
	}
	if _, err := io.WriteString(out, r.YAML()); err != nil {
		return err
	}
	for _, n := range r.Notes {
		if _, err := fmt.Fprintln(notes, noteLine(n)); err != nil {
			return err
		}
	}
	return nil
}

var noteWords = map[string]string{
	ruleset.Untranslated: "not translated", ruleset.Differs: "translated, with a difference", ruleset.LeftAlone: "left alone", ruleset.Redundant: "left out, another rule does the same",
	ruleset.Unreachable: "left out, no packet comes to it",
}

// maxNoted is how many columns of a rule a note shows: enough for each that a person wrote.
const maxNoted = 500

// noteLine is one line: what, which rule, why.
func noteLine(n ruleset.Note) string {
	line := noteWords[n.Kind] + ": "
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
