package cli

import (
	"context"
	"errors"
	"sync"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/fleet"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/spf13/cobra"
)

// findingTable is where the findings of reports go.
type findingTable struct {
	*store.Store
	sink *store.Sink[table.Finding]
	node string
	// note says whose the rows are, where that is not known; it is called with the first report.
	note func()
	// of are the rows of each of several nodes, which have their names when all are read.
	mutex sync.Mutex
	of    map[*fleet.Node][]table.Finding
}

// keep keeps the findings of one of several nodes.
func (t *findingTable) keep(n *fleet.Node, r *diagnose.Report) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.of[n] = append(t.of[n], table.FindingRows("", r)...)
}

// addNodes adds the findings of several nodes, each by its name.
func (t *findingTable) addNodes(nodes []*fleet.Node) error {
	for _, n := range nodes {
		for _, row := range t.of[n] {
			row.Node = n.Name
			if err := t.sink.Add(row); err != nil {
				return err
			}
		}
	}
	return nil
}

// add adds the findings of a report.
func (t *findingTable) add(r *diagnose.Report) error {
	t.note()
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
	of := d.recordedHost()
	node, err := d.tables.named(of, false)
	if err != nil {
		return err
	}
	note := sync.OnceFunc(func() {
		if node != d.tables.node && node != of && len(d.from) > 0 {
			d.tables.noteHost(node)
		}
	})
	s, err := d.tables.open(ctx, node)
	if err != nil {
		return err
	}
	defer s.Abort()
	d.table = &findingTable{Store: s, sink: store.Of[table.Finding](s), node: node, note: note, of: map[*fleet.Node][]table.Finding{}}
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
