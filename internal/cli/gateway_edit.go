package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/report"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
)

const gatewaySetSchema = "natkit.gateway-set/1"

// gatewaySet are the flags of `natkit gateway set`.
type gatewaySet struct {
	env                   *Env
	dryRun, force, backup bool
}

func newGatewaySet(env *Env) *cobra.Command {
	s := gatewaySet{env: env}
	cmd := &cobra.Command{
		Use:   "set FILE EDIT…",
		Short: "change values in a gateway file, and nothing else in it",
		Long: `Change single values in a gateway file; its comments, order and layout stay. EDIT is

  PATH=VALUE    set a value; the word may be new
  PATH=         remove a word
  PATH+=ITEM    append an item to a list; a single value becomes a list
  PATH-=ITEM    remove an item from a list

PATH is words with dots between them. A rule is named by its place in its list, counted
from 0, or by its name: nat[2] or nat[web], in quotes as shells take brackets for
themselves, or nat.2 and nat.web. A list or a mapping is written in brackets as in the
file: 'interfaces.lan=[eth1, br0]', 'nat+={masquerade: {from: 10.0.0.0/8}}'.

The result is parsed and checked before it is written, in one step; owner and mode stay.
Where it would not parse, or has a refused finding that the file did not have, nothing is
written. Nothing is applied: 'natkit gateway apply' does that.

Exit codes: 0 ok, 1 error, 2 usage, or the result does not parse, 3 refused.`,
		Example: `  natkit gateway set gateway.yaml 'nat[web].to=10.0.0.4:80' interfaces.wan=eth1
  natkit gateway set gateway.yaml nat.2.enabled=off --dry-run
  natkit gateway set gateway.yaml 'nat[proxy].except-from+=192.168.0.2'
  natkit gateway set gateway.yaml nat-=web`,
		RunE:              func(cmd *cobra.Command, args []string) error { return s.run(cmd.Context(), args[0], args[1:]) },
		ValidArgsFunction: completeYAML,
	}
	f := cmd.Flags()
	f.BoolVar(&s.dryRun, "dry-run", false, "print the difference and write nothing")
	f.BoolVar(&s.force, "force", false, "write it even if 'natkit gateway check' refuses the result")
	f.BoolVar(&s.backup, "backup", false, "keep the former file as FILE~")
	env.addJSON(cmd, gatewaySetSchema)
	return cmd
}

// setDocument is what an edit does to a file.
type setDocument struct {
	Schema string `json:"schema"`
	File   string `json:"file"`
	// Diff is the difference in the unified format; empty where there is none.
	Diff string `json:"diff"`
	// Written: the file has the edits now.
	Written  bool              `json:"written"`
	Findings []gateway.Finding `json:"findings"`
	text     string
}

// Text writes the difference, or what became of it.
func (d setDocument) Text(w io.Writer, _ report.Style) error {
	_, err := io.WriteString(w, d.text)
	return err
}

func (s *gatewaySet) run(ctx context.Context, name string, args []string) error {
	var edits []gateway.Edit
	for _, arg := range args {
		e, err := gateway.ParseEdit(arg)
		if err != nil {
			return usage(err)
		}
		edits = append(edits, e)
	}
	if name == "-" {
		return usagef("set edits a file in place, and - is none")
	}
	_, text, err := gatewayText(ctx, s.env, name)
	if err != nil {
		return err
	}
	edited, file, err := gateway.Edited(host.Files{}, name, text, edits)
	if err != nil {
		return fmt.Errorf("set: %w", err)
	}
	doc := setDocument{Schema: gatewaySetSchema, File: name, Findings: list(gateway.Check(file, gateway.Facts{}))}
	doc.Diff = string(diff.Diff(name, text, name, edited))
	if news := newlyRefused(name, text, doc.Findings); len(news) > 0 && !s.force {
		_ = report.GatewayFindings(s.env.Stderr, report.Style{}, name, news)
		return refusal{fmt.Errorf("set: %s is not written: 'natkit gateway check' would refuse it; --force writes it", name)}
	}
	switch {
	case doc.Diff == "":
		doc.text = fmt.Sprintf("%s: nothing to change\n", name)
	case s.dryRun:
		doc.text = doc.Diff
	default:
		if err := s.write(name, text, edited); err != nil {
			return err
		}
		doc.Written, doc.text = true, fmt.Sprintf("%s: written; 'natkit gateway apply %[1]s' puts it in force\n", name)
	}
	return s.env.print(doc)
}

func (s *gatewaySet) write(name string, former, text []byte) error {
	if s.backup {
		if err := writeWhole(name+"~", 0o600, disk.Text(former)); err != nil {
			return err
		}
	}
	return writing(name, disk.Update(name, former, text))
}

// newlyRefused are the refused findings of a kind of which a file had fewer before.
func newlyRefused(name string, former []byte, now []gateway.Finding) (news []gateway.Finding) {
	more := map[string]int{}
	count := func(all []gateway.Finding, n int) {
		for _, f := range all {
			if f.Severity == gateway.Refuse {
				more[f.ID] += n
			}
		}
	}
	if file, err := gateway.ParseWith(host.Files{}, name, former); err == nil {
		count(gateway.Check(file, gateway.Facts{}), -1)
	}
	count(now, 1)
	for _, f := range now {
		if f.Severity == gateway.Refuse && more[f.ID] > 0 {
			news = append(news, f)
		}
	}
	return news
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
