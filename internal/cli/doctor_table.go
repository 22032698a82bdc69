package cli

import (
	"context"
	"errors"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/spf13/cobra"
)

// findingTable is where the findings of reports go.
type findingTable struct {
	*store.Store
	sink *store.Sink[table.Finding]
	node string
}

// add adds the findings of a report.
func (t *findingTable) add(r *diagnose.Report) error {
	return addAll(t.sink, table.FindingRows(t.node, r))
}

// withTable calls run with a table to add findings to, where one is asked for, and makes it visible unless run failed.
func (d *doctorVerb) withTable(ctx context.Context, cmd *cobra.Command, run func() error) error {
	chosen, err := d.tables.chosen(cmd)
	if err != nil {
		return err
	}
	if !chosen {
		return run()
	}
	for _, name := range []string{"watch", "rules", "fix"} {
		if cmd.Flags().Changed(name) {
			return usagef("--output parquet and --%s are mutually exclusive", name)
		}
	}
	node, err := d.tables.named(d.recordedHost(), len(d.from) > 0)
	if err != nil {
		return err
	}
	s, err := d.tables.open(ctx, node)
	if err != nil {
		return err
	}
	defer s.Abort()
	d.table = &findingTable{s, store.Of[table.Finding](s), node}
	err = run()
	if err == nil || errors.Is(err, errFindings) || errors.Is(err, errIncomplete) {
		if failed := d.tables.commit(s); failed != nil {
			return failed
		}
	}
	return err
}

// recordedHost is the host that a recording of 'natkit record' is of; empty of anything else.
func (d *doctorVerb) recordedHost() string {
	if len(d.from) != 1 || d.from[0] == "-" || !isRing(d.from[0]) {
		return ""
	}
	r, err := openRing(d.from[0])
	if err != nil {
		return "" // reading it reports that
	}
	return hostOf(r)
}
