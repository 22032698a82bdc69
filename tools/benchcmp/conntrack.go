package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// The sizes of tables: a time per entry must be about the same in each.
const (
	fewEntries  = 100_000
	mostEntries = 4_000_000
)

// Quantities of the suite besides those of others.
const (
	perEntry    = "microseconds_per_entry"
	linesPerCPU = "lines_per_cpu_second"
)

// mostBuckets are what a host with mostEntries needs at least: with the usual quarter of
// that the kernel refuses entries as their hash chains become too long (max_chainlen,
// __nf_conntrack_confirm).
const mostBuckets = 1 << 20

// pipeline is what people type to count entries by state and source.
const pipeline = `conntrack -L -o extended 2>/dev/null | awk '{
  state = $3 == "tcp" ? $6 : "-"
  for (i = 5; i <= NF; i++) if ($i ~ /^src=/) { print state, substr($i, 5); break }
}' | sort | uniq -c`

// conntrackSuite measures natkit conntrack on tables of three sizes, and on a text.
func conntrackSuite(natkit string) bench.Suite {
	const by, floor = "--by state,src", "read, not decoded"
	const piped, plainPiped = "conntrack -L, awk, sort, uniq -c", "the same with LC_ALL=C"
	const list, peerList, from = "list > /dev/null", "conntrack -L > /dev/null", "--from a text, one CPU"
	c := &conntrackBench{natkit: natkit}
	few, most := by+", "+units.Count(fewEntries), by+", "+units.Count(mostEntries)
	mostFloor := floor + ", " + units.Count(mostEntries)
	return bench.Suite{
		Name: "conntrack", Title: "Reading a connection table",
		About: "What `natkit conntrack` takes for a table of " + units.Count(manyEntries) + " entries, beside conntrack-tools,\n" +
			"beside a program that reads the same dump and decodes nothing of it, and for a text\n" +
			"of as many lines.",
		Method: "the whole of a table, of " + units.Count(manyEntries) + " entries where nothing else is said, or of a text of as many lines",
		Quantities: []bench.Quantity{takes, peaks,
			{Name: perEntry, Label: "µs per entry", Better: bench.Lower, Text: func(v float64) string { return units.Fixed(v, 3) }},
			{Name: linesPerCPU, Label: "lines/s", Better: bench.Higher, Text: units.Rate}},
		Subjects: []bench.Subject{
			{Name: few, Run: c.by(fewEntries)},
			{Name: by, Run: c.by(manyEntries)},
			{Name: floor, Run: c.floor(manyEntries)},
			{Name: piped, Run: c.piped("C.UTF-8")},
			{Name: plainPiped, Run: c.piped("C")},
			{Name: list, Run: c.toNull(natkit, "conntrack", "list")},
			{Name: peerList, Run: c.toNull("conntrack", "-L", "-o", "extended")},
			{Name: from, Run: c.fromText},
			{Name: most, Run: c.by(mostEntries)},
			{Name: mostFloor, Run: c.floor(mostEntries)},
		},
		Claims: []bench.Claim{
			{Subject: by, Quantity: took, Than: floor, Bound: 1.2},
			{Subject: most, Quantity: took, Than: mostFloor, Bound: 1.2},
			{Subject: by, Quantity: took, Than: piped, Bound: 0.3},
			{Subject: by, Quantity: took, Than: plainPiped, Bound: 0.3},
			{Subject: by, Quantity: peakMemory, Bound: 64 << 20},
			{Subject: most, Quantity: peakMemory, Bound: 64 << 20},
			{Subject: few, Quantity: perEntry, Than: by, Bound: 1.15},
			{Subject: most, Quantity: perEntry, Than: by, Bound: 1.15},
			{Subject: list, Quantity: took, Than: peerList, Bound: 0.5},
			{Subject: from, Quantity: linesPerCPU, Bound: 2e6},
		},
		Rounds: 15, WarmUp: 1,
		Parameters: map[string]any{"entries": []int64{fewEntries, manyEntries, mostEntries}, "pipeline": pipeline, "buckets_of_largest": mostBuckets},
		Programs:   [][]string{{natkit, "--version"}, {"conntrack", "--version"}},
		Setup:      c.setUp,
	}
}

// conntrackBench has a table that is as large as the run needs it, alone on the host:
// the kernel walks through the entries of all namespaces.
type conntrackBench struct {
	natkit string
	table  *table
	made   int64
	// fewBuckets puts the host's number of buckets back; nil where it is not changed.
	fewBuckets func() error
	dir        string // with a text of manyEntries lines
}

func (c *conntrackBench) setUp(ctx context.Context) (func(context.Context) error, error) {
	var err error
	if c.table, err = newTableFor(ctx, mostEntries); err != nil {
		return nil, err
	}
	if err := c.write(ctx); err != nil {
		return nil, errors.Join(err, c.tearDown(ctx))
	}
	return c.tearDown, nil
}

func (c *conntrackBench) tearDown(context.Context) error {
	return errors.Join(os.RemoveAll(c.dir), c.table.close(), c.usualBuckets())
}

// write lets conntrack write the text.
func (c *conntrackBench) write(ctx context.Context) (err error) {
	if c.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return err
	}
	if err := c.hold(ctx, manyEntries); err != nil {
		return err
	}
	_, _, err = bench.Program{Netns: c.table.ns,
		Args: []string{"sh", "-c", `exec conntrack -L -o extended >"$1"`, "sh", c.text()}}.Run(ctx)
	return err
}

func (c *conntrackBench) text() string { return filepath.Join(c.dir, "entries.txt") }

// hold makes the table as large as it is to be.
func (c *conntrackBench) hold(ctx context.Context, entries int64) error {
	if c.made > entries {
		if err := c.table.empty(ctx); err != nil {
			return err
		}
		c.made = 0
	}
	if err := c.buckets(ctx, entries); err != nil {
		return err
	}
	err := c.table.add(ctx, c.made, entries)
	c.made = entries
	return err
}

// buckets sizes the hash as on a host with the given number of entries. The kernel's dump
// reads every bucket, so smaller tables keep the usual number.
func (c *conntrackBench) buckets(ctx context.Context, entries int64) (err error) {
	if entries < mostEntries {
		return c.usualBuckets()
	}
	if c.fewBuckets == nil {
		c.fewBuckets, err = raise(ctx, snapshot.ConntrackBuckets, mostBuckets)
	}
	return err
}

func (c *conntrackBench) usualBuckets() error {
	if c.fewBuckets == nil {
		return nil
	}
	err := c.fewBuckets()
	c.fewBuckets = nil
	return err
}

// by measures natkit, which must have seen all entries.
func (c *conntrackBench) by(entries int64) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := c.hold(ctx, entries); err != nil {
			return bench.Sample{}, err
		}
		return c.natkitRun(ctx, entries, bench.Program{Netns: c.table.ns, Args: []string{c.natkit, "conntrack", "--by", "state,src", "--json"}})
	}
}

func (c *conntrackBench) natkitRun(ctx context.Context, entries int64, p bench.Program) (bench.Sample, error) {
	out, u, err := p.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	var doc struct {
		Read struct{ Entries int64 }
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return bench.Sample{}, fmt.Errorf("read natkit's document: %w", err)
	}
	return bench.Sample{Failures: max(entries-doc.Read.Entries, doc.Read.Entries-entries),
		Values: bench.Values{took: u.Seconds, peakMemory: float64(u.PeakBytes), perEntry: u.Seconds * 1e6 / float64(entries)}}, nil
}

// floor measures the reading alone.
func (c *conntrackBench) floor(entries int64) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := c.hold(ctx, entries); err != nil {
			return bench.Sample{}, err
		}
		start := time.Now()
		n, err := readUndecoded(c.table.ns)
		seconds := time.Since(start).Seconds()
		return bench.Sample{Values: bench.Values{took: seconds, perEntry: seconds * 1e6 / float64(entries)},
			Failures: max(entries-n, n-entries)}, err
	}
}

// piped measures the pipeline in a locale: sort is slower in one of UTF-8, which shells of
// a usual host have.
func (c *conntrackBench) piped(locale string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := c.hold(ctx, manyEntries); err != nil {
			return bench.Sample{}, err
		}
		out, u, err := bench.Program{Netns: c.table.ns, Args: []string{"env", "LC_ALL=" + locale, "bash", "-o", "pipefail", "-c", pipeline}}.Run(ctx)
		if err != nil {
			return bench.Sample{}, err
		}
		n, err := total(out)
		return bench.Sample{Values: bench.Values{took: u.Seconds, peakMemory: float64(u.PeakBytes)},
			Failures: max(manyEntries-n, n-manyEntries)}, err
	}
}

// total adds up the counts of the pipeline's lines.
func total(out []byte) (n int64, err error) {
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return 0, fmt.Errorf("the pipeline printed %q", line)
		}
		count, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the pipeline printed %q: %w", line, err)
		}
		n += count
	}
	return n, nil
}

// toNull measures a program that lists the table.
func (c *conntrackBench) toNull(args ...string) func(context.Context) (bench.Sample, error) {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := c.hold(ctx, manyEntries); err != nil {
			return bench.Sample{}, err
		}
		return used(ctx, bench.Program{Netns: c.table.ns, Args: append([]string{"sh", "-c", `exec "$@" >/dev/null`, "sh"}, args...)})
	}
}

// fromText measures natkit on one CPU, so that seconds are those of one core.
func (c *conntrackBench) fromText(ctx context.Context) (bench.Sample, error) {
	s, err := c.natkitRun(ctx, manyEntries, bench.Program{
		Args: []string{"taskset", "-c", "0", c.natkit, "conntrack", "--from", c.text(), "--by", "state,src", "--json"}})
	if err != nil {
		return s, err
	}
	delete(s.Values, perEntry)
	s.Values[linesPerCPU] = manyEntries / s.Values[took]
	return s, nil
}
