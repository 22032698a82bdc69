//go:build linux

package cli

import (
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
	"github.com/spf13/cobra"
)

// conntrackDeleter is conntrack delete.
type conntrackDeleter struct {
	tableVerb
	all, yes, dryRun bool
}

func newConntrackDelete(env *Env) *cobra.Command {
	d := &conntrackDeleter{tableVerb: tableVerb{env: env}}
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "delete connections from the table, after showing how many and which",
		Long: `Find the connections that match the filters (as in conntrack(8)), show how many
and which they are, ask, and delete exactly those. That cannot be undone: the next packet
of a deleted connection traverses the rules again, and may get another translation or
none, which breaks the connection.

On a terminal it asks; elsewhere --yes is required. Requires CAP_NET_ADMIN.`,
		Example: `  sudo natkit conntrack delete -p udp --dport 53 --dst-nat=198.18.0.9 --dry-run
  sudo natkit conntrack delete --netns gateway -s 198.18.4.0/24
  sudo natkit conntrack delete --all --yes`,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	d.addFlags(cmd, false)
	cmd.Flags().BoolVar(&d.all, "all", false, "delete every connection; required without a filter")
	addYes(cmd, &d.yes, "")
	cmd.Flags().BoolVar(&d.dryRun, "dry-run", false, "only show what would be deleted")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	d.env.addJSON(cmd, report.DeletionSchema)
	return cmd
}

func (d *conntrackDeleter) check() error {
	empty := d.filter.filter.Empty()
	asks := !d.dryRun && !d.yes
	switch {
	case empty && !d.all:
		return usagef("a filter is required, or --all to delete every connection")
	case !empty && d.all:
		return usagef("--all and filters (%s) are mutually exclusive", d.filter.String())
	case asks && d.env.asJSON:
		return errJSONAsks
	case asks && !d.env.StdinTerminal:
		return errNoTerminal
	}
	return nil
}

func (d *conntrackDeleter) run(cmd *cobra.Command) error {
	if err := d.check(); err != nil {
		return err
	}
	ns, err := d.entries.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	doc := &report.Deletion{Schema: report.DeletionSchema, Filter: d.filter.String(), DryRun: d.dryRun}
	keys, err := d.find(cmd, ns, doc)
	if err != nil {
		return err
	}
	if doc.Interruption != "" && !d.env.asJSON {
		d.env.note("%s", doc.Interruption)
	}
	if d.dryRun || len(keys) == 0 {
		return d.env.print(doc)
	}
	if agreed, err := d.env.agreeTo(cmd.Context(), doc, d.yes, "delete?", "nothing was deleted"); err != nil || !agreed {
		return err
	}
	done, err := dump.DeleteKeys(cmd.Context(), ns, keys)
	doc.Deleted, doc.Gone, doc.Offloaded = done.Deleted, done.Gone, done.Busy
	if err == nil && done.Busy > 0 {
		err = fmt.Errorf("%d are offloaded to a flow table: the kernel does not delete them until they return to the slow path", done.Busy)
	}
	if d.env.asJSON {
		return errors.Join(d.env.print(doc), err)
	}
	return errors.Join(doc.Result(d.env.Stdout, d.env.style()), err)
}

// find collects what is to be deleted, and its summary.
func (d *conntrackDeleter) find(cmd *cobra.Command, ns *netns.Handle, doc *report.Deletion) ([]conntrack.Key, error) {
	progress := d.env.progress()
	defer progress.Clear()
	var keys []conntrack.Key
	sampler := aggregate.NewSampler()
	restart := func() {
		keys, sampler = keys[:0], aggregate.NewSampler()
		progress.Update("the table was resized meanwhile: reading it again")
	}
	r, err := dump.EachWhole(cmd.Context(), ns, &d.filter.filter, restart, func(e *conntrack.Entry) error {
		keys = append(keys, e.Key())
		sampler.Add(e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	doc.Found, doc.Interruption, doc.Summary = int64(len(keys)), r.Interruption(), sampler.Table(r.Complete)
	return keys, nil
}
