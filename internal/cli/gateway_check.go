package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/gateway"
	gwapply "github.com/natkit/natkit/internal/gateway/apply"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

const gatewayCheckSchema = "natkit.gateway-check/1"

// gatewayCheck are the flags of `natkit gateway check`.
type gatewayCheck struct {
	target
	offline, asJSON bool
}

func newGatewayCheck(env *Env) *cobra.Command {
	var f gatewayCheck
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "say what is wrong with a gateway file, here and by itself",
		Long: `Read a gateway file and say, with line and column, which rules overlap, can never
match, give more than they have, or would cut your own session; and what this host
lacks for them, or has that is in their way: addresses, interfaces, flowtables, rules
of Docker and others. Nothing is changed.

FILE is a file in the language of docs/gateway.md, or - for the standard input. With
--offline the host is not looked at: for a file that is meant for another one, or to
check it where nobody is root. Other programs' rules can be read by root only
(CAP_NET_ADMIN); without, the rest is checked, and the look is INCOMPLETE.

Findings are of two kinds: what is refused, 'natkit gateway apply' does not do; of
what is warned of it does what can be done.

Exit code: 0 nothing found, 3 there are findings, 4 nothing found, but the look was
INCOMPLETE, 2 the file does not parse, 1 it cannot be read.`,
		Example: `  natkit gateway check gateway.yaml
  natkit gateway check --offline - < gateway.yaml
  sudo natkit gateway check gateway.yaml --netns gw --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := f.open(cmd)
			if err != nil {
				return err
			}
			defer ns.Close()
			return f.run(cmd.Context(), env, ns, args[0])
		},
	}
	f.target.addFlags(cmd)
	cmd.Flags().BoolVar(&f.offline, "offline", false, "check the file by itself, without looking at this host")
	cmd.MarkFlagsMutuallyExclusive("offline", "netns", "pid")
	addJSON(cmd, &f.asJSON, gatewayCheckSchema)
	return cmd
}

// gatewayCheckDocument is what check reports.
type gatewayCheckDocument struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	// Rules is how many there are.
	Rules int `json:"rules"`
	// Offline is true where the host was not looked at; Unknown what could not be read
	// of it.
	Offline  bool              `json:"offline"`
	Unknown  []string          `json:"unknown"`
	Refused  int               `json:"refused"`
	Warned   int               `json:"warned"`
	Findings []gateway.Finding `json:"findings"`
}

func (f *gatewayCheck) run(ctx context.Context, env *Env, ns *netns.Handle, name string) error {
	file, err := readGateway(ctx, env, name)
	if err != nil {
		return err
	}
	var facts gateway.Facts
	if !f.offline {
		facts, err = host.Read(ctx, ns, host.Options{PID: os.Getpid(), Targets: file.Config.Targets()})
		if err != nil {
			return fmt.Errorf("look at this host: %w; --offline checks the file alone", err)
		}
		engine.Standard.Facts(ns, &file.Config, &facts)
	}
	findings, err := gwapply.UnlessEnded(ctx, func() ([]gateway.Finding, error) { return engine.Standard.Check(file, facts), nil })
	if err != nil {
		return err
	}
	doc := gatewayCheckDocument{Schema: gatewayCheckSchema, File: file.Name, Rules: len(file.Config.NAT) + len(file.Config.IPv6),
		Offline: f.offline, Unknown: append([]string{}, facts.Unknown...), Findings: append([]gateway.Finding{}, findings...)}
	for _, found := range doc.Findings {
		if found.Severity == gateway.Refuse {
			doc.Refused++
		} else {
			doc.Warned++
		}
	}
	if err := f.print(env, doc); err != nil {
		return err
	}
	switch {
	case len(doc.Findings) > 0:
		return errFindings
	case len(doc.Unknown) > 0:
		return errIncomplete
	}
	return nil
}

// readGateway reads and parses a gateway file, or the standard input for "-".
func readGateway(ctx context.Context, env *Env, name string) (*gateway.File, error) {
	text, err := gatewayText(ctx, env, name)
	if err != nil {
		return nil, err
	}
	return gwapply.UnlessEnded(ctx, func() (*gateway.File, error) { return gateway.Parse(gatewayName(name), text) })
}

func (f *gatewayCheck) print(env *Env, doc gatewayCheckDocument) error {
	if f.asJSON {
		return report.JSON(env.Stdout, doc)
	}
	if len(doc.Unknown) > 0 {
		const text = "not all of this host could be looked at (--offline checks the file alone)"
		if err := report.Incomplete(env.Stdout, env.style(), text, doc.Unknown); err != nil {
			return err
		}
	}
	if err := writeFindings(env.Stdout, env.style(), doc.File, doc.Findings); err != nil {
		return err
	}
	return doc.summary(env.Stdout)
}

// summary is the last words.
func (d *gatewayCheckDocument) summary(w io.Writer) error {
	where := "here"
	if d.Offline {
		where = "by itself; this host was not looked at"
	}
	if len(d.Findings) == 0 {
		_, err := fmt.Fprintf(w, "%s: %s, nothing to say against %s\n", report.Clean(d.File), units.Plural(d.Rules, "rule", "rules"), where)
		return err
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s refused, %s\n", report.Clean(d.File), units.Plural(d.Rules, "rule", "rules"), units.Count(d.Refused), units.Plural(d.Warned, "warning", "warnings"))
	return err
}

// manyFindings is how many of one kind are written; a file of thousands of rules can
// have as many.
const manyFindings = 20

// writeFindings writes findings with their places in the file, what stands there, and
// what to do about them.
func writeFindings(w io.Writer, style report.Style, file string, all []gateway.Finding) error {
	written := map[string]int{}
	for _, f := range all {
		if written[f.ID]++; written[f.ID] > manyFindings {
			continue
		}
		if err := writeFinding(w, style, report.Clean(file), f); err != nil {
			return err
		}
	}
	for _, f := range all {
		more := written[f.ID] - manyFindings
		if written[f.ID] = 0; more <= 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s: %s more are not shown; --json has them [%s]\n", report.Clean(file), units.Count(more), f.ID); err != nil {
			return err
		}
	}
	return nil
}

func writeFinding(w io.Writer, style report.Style, place string, f gateway.Finding) error {
	if f.Line > 0 {
		place = fmt.Sprintf("%s:%d:%d", place, f.Line, f.Column)
	}
	tone := report.Warn
	if f.Severity == gateway.Refuse {
		tone = report.Bad
	}
	text := style.Fit(fmt.Sprintf("%s: %s: %s [%s]\n", place, style.Paint(tone, string(f.Severity)), report.Clean(f.Message), f.ID))
	if f.Excerpt != "" {
		text += f.Excerpt + "\n"
	}
	for line := range strings.Lines(f.Advice) {
		text += style.Fit("        " + report.Clean(strings.TrimSuffix(line, "\n")) + "\n")
	}
	_, err := io.WriteString(w, text)
	return err
}
