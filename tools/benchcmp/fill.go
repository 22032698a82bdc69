package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// fillSuite measures how long it takes to fill a table. The peer is conntrack -R,
// which restores entries from a file, where the installed version can.
func fillSuite(natkit string) bench.Suite {
	const restore = "conntrack -R"
	f := &filler{peer: canRestore()}
	s := bench.Suite{
		Name: "fill", Title: "Filling a connection table",
		About: "Connections are put into the table of a namespace by ctnetlink, by natkit and\n" +
			"by `conntrack -R`, which reads the same ones from a file.",
		Method:     units.Count(manyEntries) + " established TCP connections into an empty table",
		Quantities: []bench.Quantity{takes},
		Subjects:   []bench.Subject{{Name: "natkit", Run: f.measured(f.insert)}},
		Claims:     []bench.Claim{{Subject: "natkit", Quantity: took, Bound: 6}},
		Rounds:     5, WarmUp: 1,
		Parameters: map[string]any{"entries": manyEntries},
		Programs:   [][]string{{natkit, "--version"}},
		Setup:      f.setUp,
	}
	if f.peer {
		s.Subjects = append(s.Subjects, bench.Subject{Name: restore, Run: f.measured(f.restore)})
		s.Claims = append(s.Claims, bench.Claim{Subject: "natkit", Quantity: took, Than: restore, Bound: 1})
		s.Programs = append(s.Programs, []string{"conntrack", "--version"})
	}
	return s
}

// canRestore: conntrack has -R since version 1.4.7.
func canRestore() bool { return exec.Command("conntrack", "-R", os.DevNull).Run() == nil }

// filler fills one table again and again.
type filler struct {
	peer  bool
	table *table
	dir   string // with a file of the entries, for the peer
}

func (f *filler) setUp(ctx context.Context) (func(context.Context) error, error) {
	var err error
	if f.table, err = newTable(ctx); err != nil {
		return nil, err
	}
	if f.peer {
		if err := f.save(ctx); err != nil {
			return nil, errors.Join(err, f.tearDown(ctx))
		}
	}
	return f.tearDown, nil
}

func (f *filler) tearDown(context.Context) error {
	return errors.Join(os.RemoveAll(f.dir), f.table.close())
}

// save lets conntrack write the file that it restores.
func (f *filler) save(ctx context.Context) (err error) {
	if f.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return err
	}
	if err := f.table.fill(ctx); err != nil {
		return err
	}
	_, _, err = bench.Program{Netns: f.table.ns,
		Args: []string{"sh", "-c", `exec conntrack -L -o save >"$1"`, "sh", f.file()}}.Run(ctx)
	return err
}

func (f *filler) file() string { return filepath.Join(f.dir, "entries") }

func (f *filler) insert(ctx context.Context) (seconds float64, err error) {
	start := time.Now()
	err = f.table.fill(ctx)
	return time.Since(start).Seconds(), err
}

func (f *filler) restore(ctx context.Context) (seconds float64, err error) {
	_, u, err := bench.Program{Netns: f.table.ns, Args: []string{"conntrack", "-R", f.file()}}.Run(ctx)
	return u.Seconds, err
}

// measured empties the table, fills it, and counts the entries that are not there.
func (f *filler) measured(fill func(context.Context) (float64, error)) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := f.table.empty(ctx); err != nil {
			return bench.Sample{}, err
		}
		seconds, err := fill(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		there, err := dump.Count(f.table.ns)
		if err != nil {
			return bench.Sample{}, fmt.Errorf("count the entries made: %w", err)
		}
		return bench.Sample{Values: bench.Values{took: seconds}, Failures: manyEntries - there.Entries}, nil
	}
}
