package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/record"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/spf13/cobra"
)

// ringTables writes what is in a recording as tables.
type ringTables struct {
	tableFlags
	// from and until are the time that is written; zero for all.
	from, until time.Time
	// only are the tables, every is the time between two snapshots that are written.
	only  []string
	every time.Duration
}

// ringTableNames are the tables that a recording has; the entries, of which each snapshot has thousands, are written when
// they are asked for.
var ringTableNames = []string{table.Samples, table.Services, table.Flows, table.Findings, table.Entries}

func (t *ringTables) addFlags(env *Env, cmd *cobra.Command) {
	t.tableFlags.addFlags(env, cmd)
	t.only, t.every = ringTableNames[:4], time.Minute
	only := into(&t.only, func(text string) (names []string, err error) {
		for name := range strings.SplitSeq(text, ",") {
			if !slices.Contains(ringTableNames, name) {
				return nil, fmt.Errorf("must be of %s", strings.Join(ringTableNames, ", "))
			}
			names = append(names, name)
		}
		return names, nil
	})
	only.text = strings.Join(t.only, ",")
	cmd.Flags().Var(only, "tables", "with --output parquet: write these `TABLES`, separated by commas: "+strings.Join(ringTableNames, ", "))
	cmd.Flags().Var(period(&t.every, 0, 24*time.Hour), "every", "with --output parquet: time from one snapshot that is written to the next, 0 for all; those with which connections were followed are always written")
	requires(cmd, "tables", "to")
	requires(cmd, "every", "to")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"tables": completeList(func() []string { return ringTableNames })})
}

// hostOf is the host that a recording is of; empty where it does not say.
func hostOf(r *ring.Ring) string {
	for _, s := range r.Segments {
		if s.Host != "" {
			return s.Host
		}
	}
	return ""
}

// write writes them.
func (t *ringTables) write(ctx context.Context, r *ring.Ring, dir string) error {
	if len(t.only) > 1 {
		if err := t.several(); err != nil {
			return err
		}
	}
	node, err := t.named(hostOf(r), true)
	if err != nil {
		return err
	}
	s, err := t.open(ctx, node)
	if err != nil {
		return err
	}
	defer s.Abort()
	w := &ringWriter{tables: t, node: node, samples: table.SampleRows{Node: node}}
	w.begin(s)
	progress := t.env.progress()
	defer progress.Clear()
	pairs := t.chosen(r)
	for i, pair := range pairs {
		if err := ctx.Err(); err != nil {
			return err
		}
		progress.Update("%d of %d snapshots written", i, len(pairs))
		rec, err := record.RecordingOf(r, snapshot.NewBudget(snapshot.DefaultBudget), pair[0], pair[1])
		if err != nil {
			return malformed(fmt.Errorf("read the recording in %s: %w", dir, err))
		}
		rec.Elsewhere = true
		if err := w.add(r, pair[1], rec); err != nil {
			return err
		}
	}
	progress.Clear()
	return t.commit(s)
}

// chosen are the pairs of snapshots of which the later one is written.
func (t *ringTables) chosen(r *ring.Ring) (pairs [][2]*ring.Frame) {
	var last time.Time
	for _, pair := range r.Pairs() {
		at := pair[1].Wall
		if !t.from.IsZero() && (at.Before(t.from) || at.After(t.until)) {
			continue
		}
		soon := !last.IsZero() && !at.Before(last) && at.Sub(last) < t.every // a clock that was set back begins anew
		if soon && !pair[1].Traced() {
			continue
		}
		if !soon {
			last = at
		}
		pairs = append(pairs, pair)
	}
	return pairs
}

// ringWriter writes the rows of one snapshot after the other. Sinks of tables that are not wanted are nil.
type ringWriter struct {
	tables   *ringTables
	node     string
	samples  table.SampleRows
	entries  table.EntryRows
	toSample *store.Sink[table.Sample]
	services *store.Sink[table.Service]
	flows    *store.Sink[table.Flow]
	findings *store.Sink[table.Finding]
	toEntry  *store.Sink[table.Entry]
}

func (w *ringWriter) begin(s *store.Store) {
	for _, name := range w.tables.only {
		switch name {
		case table.Samples:
			w.toSample = store.Of[table.Sample](s)
		case table.Services:
			w.services = store.Of[table.Service](s)
		case table.Flows:
			w.flows = store.Of[table.Flow](s)
		case table.Findings:
			w.findings = store.Of[table.Finding](s)
		case table.Entries:
			w.toEntry = store.Of[table.Entry](s)
		}
	}
}

// add writes what the later snapshot of a recording has.
func (w *ringWriter) add(r *ring.Ring, f *ring.Frame, rec *snapshot.Recording) error {
	drops, err := r.DropsUntil(f)
	if err != nil {
		return err
	}
	if sample := w.samples.Row(rec, drops); w.toSample != nil {
		if err := w.toSample.Add(sample); err != nil {
			return err
		}
	}
	if w.services != nil {
		if err := addAll(w.services, table.ServiceRows(w.node, rec)); err != nil {
			return err
		}
	}
	if w.flows != nil && rec.Followed != nil {
		if err := addAll(w.flows, table.FlowRows(table.HeadOf(w.node, rec.Last()), rec.Followed)); err != nil {
			return err
		}
	}
	if w.findings != nil {
		report := diagnose.Run(rec, diagnose.Rules())
		if err := addAll(w.findings, table.FindingRows(w.node, &report)); err != nil {
			return err
		}
	}
	if w.toEntry != nil {
		return w.addEntries(r, f, rec.Last())
	}
	return nil
}

func (w *ringWriter) addEntries(r *ring.Ring, f *ring.Frame, s *snapshot.Snapshot) error {
	members, err := r.Members(f)
	if err != nil {
		return err
	}
	w.entries.Head, w.entries.Idle = table.HeadOf(w.node, s), aggregate.IdleTime(s.Sysctls)
	return collect.Entries(members, func(e *conntrack.Entry) error { return w.toEntry.Add(w.entries.Row(e)) })
}

// addAll adds rows to a table.
func addAll[T table.Row](to *store.Sink[T], rows []T) error {
	for _, row := range rows {
		if err := to.Add(row); err != nil {
			return err
		}
	}
	return nil
}
