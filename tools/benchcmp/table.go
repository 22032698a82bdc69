package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// manyEntries is a table that is large, and that hosts have.
const manyEntries = 1_000_000

// table is the connection table of a namespace of its own, with room for
// manyEntries.
type table struct {
	ns      *netns.Handle
	putBack func() error
}

// newTable raises the host's limit where it is too small, until close, as a lab
// does.
func newTable(ctx context.Context) (*table, error) { return newTableFor(ctx, manyEntries) }

// newTableFor is newTable with room for the given number of entries.
func newTableFor(ctx context.Context, entries int64) (*table, error) {
	putBack, err := allow(ctx, entries+entries/2)
	if err != nil {
		return nil, err
	}
	ns, err := netns.New("benchcmp")
	if err != nil {
		return nil, errors.Join(err, putBack())
	}
	return &table{ns, putBack}, nil
}

// close empties the table first: the kernel would do so later, beside whatever
// runs then.
func (t *table) close() error {
	return errors.Join(t.empty(context.Background()), t.ns.Close(), t.putBack())
}

// fill makes manyEntries entries.
func (t *table) fill(ctx context.Context) error { return t.add(ctx, 0, manyEntries) }

// add makes entries of the usual mix, starting with number first, until the table has entries.
func (t *table) add(ctx context.Context, first, entries int64) error {
	return t.addMix(ctx, lab.DefaultMix, first, entries)
}

func (t *table) addMix(ctx context.Context, name string, first, entries int64) error {
	mix, err := lab.FindMix(name)
	if err == nil {
		_, err = build.InsertFill(ctx, t.ns, mix.Filler(0, lab.FillMark), first, entries, nil)
	}
	if err != nil {
		return fmt.Errorf("fill a table with %d entries: %w", entries, err)
	}
	return nil
}

// empty removes what fill made, and what has no mark.
func (t *table) empty(ctx context.Context) error {
	for _, mark := range []uint32{lab.FillMark, 0} {
		if _, err := dump.Delete(ctx, t.ns, &conntrack.Filter{Mark: mark, MarkMask: ^uint32(0)}); err != nil {
			return err
		}
	}
	return nil
}

// allow raises nf_conntrack_max to n where it is below, until putBack; 0 is no limit.
func allow(ctx context.Context, n int64) (putBack func() error, err error) {
	return raise(ctx, snapshot.ConntrackMax, n)
}

// raise makes a value of the host n where it is below, until putBack; 0 is no limit.
func raise(ctx context.Context, sysctl string, n int64) (putBack func() error, err error) {
	now, err := apply.ReadSysctlInt("/proc", sysctl)
	if err != nil {
		return nil, err
	}
	if now >= n || now == 0 {
		return func() error { return nil }, nil
	}
	j, err := journal.At(journal.Dir(os.Getenv))
	if err != nil {
		return nil, err
	}
	applied, err := apply.Apply(ctx, tune.Plan{Origin: "benchmark", Changes: []tune.Change{{
		Kind: tune.Sysctl, Target: sysctl, Before: strconv.FormatInt(now, 10), After: strconv.FormatInt(n, 10),
		Why: "room for the benchmark's table",
	}}}, apply.Options{Journal: j, Lifeline: true})
	if err != nil {
		return nil, err
	}
	return func() error {
		_, err := applied.Undo()
		return err
	}, nil
}
