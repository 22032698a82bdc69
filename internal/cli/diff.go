package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/diff"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// differ is the verb diff.
type differ struct {
	env    *Env
	target target
	window time.Duration
	// memory is what a bundle may take, in MiB.
	memory uint32
}

func newDiff(env *Env) *cobra.Command {
	d := &differ{env: env}
	cmd := &cobra.Command{
		Use:   "diff A [B]",
		Short: "what changed between two bundles, or hosts, that matters to NAT",
		Long: `Compare two bundles of 'natkit snapshot', of two times or two hosts, or a bundle with this
host as it is now: kernel, memory, the sysctls that natkit reads, NAT rules, rules that
refuse, programs of a gateway, interfaces, queues, routes behind routers, IPVS, IPsec
policies, counters that count at least twice as fast and by more than chance, and
doctor's findings that came and went. What is new at each boot or each reading (counters
as such, connections, ids) is no difference.

In the text - is of A and + of B. Of bundles with several network namespaces those of the
same name are compared. The bundles of one anonymization key can be compared.

Exit codes: 0 no difference, 1 error, 2 usage, 3 differences (where diff(1) has 1),
4 no difference, but one side lacks what the other has.`,
		Example: `  natkit diff before.tar.gz after.tar.gz
  natkit diff good-host.tar.gz bad-host.tar.gz -o json
  sudo natkit diff yesterday.tar.gz   # with this host now`,
	}
	d.target.runs(cmd, d.run)
	addWindow(cmd, &d.window, usualWindow, minWindow)
	cmd.Flags().Lookup("for").Usage += "; of this host"
	cmd.Flags().Uint32Var(&d.memory, "max-memory", snapshot.DefaultBudget>>20, "`MiB` of memory that a bundle may take")
	env.addJSON(cmd, diff.Schema)
	return cmd
}

func (d *differ) run(ctx context.Context, ns *netns.Handle, args []string) error {
	if len(args) == 2 && (ns != nil || args[0] == "-" && args[1] == "-") {
		if ns != nil {
			return usagef("two bundles are compared: --netns and --pid are for this host")
		}
		return usagef("standard input is one bundle, not two")
	}
	a, err := d.bundle(ctx, args[0])
	if err != nil {
		return err
	}
	var b []diff.Input
	if len(args) == 2 {
		b, err = d.bundle(ctx, args[1])
	} else {
		b, err = d.live(ctx, ns)
	}
	if err != nil {
		return err
	}
	doc := diff.Of(a, b)
	if err := d.env.print(report.Diff{Document: doc}); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return errCutShort
	case doc.Differs():
		return errFindings
	case !doc.Complete():
		return errIncomplete
	}
	return nil
}

func (d *differ) bundle(ctx context.Context, name string) (all []diff.Input, err error) {
	err = d.env.eachRecorded(ctx, recorded{name: name, memory: int64(d.memory) << 20}, func(rec *snapshot.Recording) error {
		d.env.noteCompared(rec.Compared)
		all = append(all, inputOf(name, rec))
		return nil
	})
	return all, err
}

func inputOf(source string, rec *snapshot.Recording) diff.Input {
	r := diagnose.Run(rec, diagnose.Rules())
	return diff.Input{Source: source, Recording: rec, Report: &r}
}

func (d *differ) live(ctx context.Context, ns *netns.Handle) ([]diff.Input, error) {
	progress := d.env.progress()
	rec, err := collect.Record(ctx, collect.RecordOptions{Options: collect.Options{Netns: ns}, For: d.window, Progress: progress.Show})
	progress.Clear()
	if err != nil {
		return nil, err
	}
	return []diff.Input{inputOf(d.target.name(), rec)}, nil
}
