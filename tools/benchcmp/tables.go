package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/tools/bench"
)

// fileSize is that of what was written.
const fileSize = "file_bytes"

// enginesPython has DuckDB; scripts/setup bench brings it.
const enginesPython = ".cache/sql/bin/python"

// A table is copied by DuckDB: what natkit wrote as CSV, and the CSV as Parquet with the same columns, types and codec.
const (
	copyToCSV   = `import duckdb, sys; duckdb.execute(f"COPY (FROM '{sys.argv[1]}') TO '{sys.argv[2]}' (HEADER)")`
	copyFromCSV = `
import duckdb, sys
table, text, out = sys.argv[1:]
columns = {name: kind for name, kind, *_ in duckdb.execute(f"DESCRIBE FROM '{table}'").fetchall()}
duckdb.execute(f"COPY (FROM read_csv('{text}', header = true, columns = {columns})) TO '{out}' (FORMAT parquet, COMPRESSION zstd)")`
	// The rows of a table in whatever order: how many, and the sum of their hashes.
	rowsOf = `import duckdb, sys; print(*duckdb.execute(f"SELECT count(*), sum(hash(t)::HUGEINT) FROM '{sys.argv[1]}' t").fetchone())`
)

// tablesSuite measures how connections become a table in Parquet.
func tablesSuite(natkit string) bench.Suite {
	const floor, live, text, gateway, peer = "the table read, not decoded", "natkit, of a table", "natkit, of a text", "natkit, of a gateway's text", "DuckDB, of a gateway's CSV"
	t := &tablesBench{natkit: natkit}
	return bench.Suite{
		Name: "tables", Title: "Connections as Parquet",
		About: "What `natkit conntrack list -o parquet` takes for " + units.Count(manyEntries) + " entries: of a namespace's table, of its text by\n" +
			"`conntrack -L`, and of a text with the mix of a gateway (many ports, states and timeouts). The peer is\n" +
			"DuckDB, which writes the same rows, compressed by the same codec, from the CSV of that table. Its Python\n" +
			"takes some 0.1 s and 50 MiB before it begins.",
		Method: units.Count(manyEntries) + " entries; texts are read from the page cache",
		Quantities: []bench.Quantity{takes, {Name: cpuSeconds, Label: "CPU time", Better: bench.Lower,
			Text: func(v float64) string { return units.Fixed(v, 3) + " s" }}, peaks,
			{Name: fileSize, Label: "file", Better: bench.Lower, Text: func(v float64) string { return units.Bytes(v) }}},
		Subjects: []bench.Subject{
			{Name: floor, Run: t.floor},
			{Name: live, Run: t.live},
			{Name: text, Run: func(ctx context.Context) (bench.Sample, error) {
				return t.ofText(ctx, t.path("established.txt"), manyEntries)
			}},
			{Name: gateway, Run: func(ctx context.Context) (bench.Sample, error) { return t.ofText(ctx, t.path("gateway.txt"), t.lines) }},
			{Name: peer, Run: t.duckdb},
		},
		Claims: []bench.Claim{
			{Subject: live, Quantity: took, Bound: 2}, {Subject: live, Quantity: took, Than: floor, Bound: 1.5}, {Subject: text, Quantity: took, Bound: 2}, {Subject: gateway, Quantity: took, Bound: 2},
			{Subject: live, Quantity: peakMemory, Bound: 128 << 20}, {Subject: text, Quantity: peakMemory, Bound: 128 << 20},
			{Subject: gateway, Quantity: peakMemory, Bound: 128 << 20},
			{Subject: gateway, Quantity: cpuSeconds, Than: peer, Bound: 1},
			{Subject: gateway, Quantity: fileSize, Than: peer, Bound: 1},
		},
		Rounds: 15, WarmUp: 1,
		Parameters: map[string]any{"entries": manyEntries},
		Programs:   [][]string{{natkit, "--version"}, {enginesPython, "-c", "import duckdb; print('DuckDB', duckdb.__version__)"}},
		Setup:      t.setUp,
	}
}

type tablesBench struct {
	natkit, dir string
	table       *table
	// lines are those of the gateway's text: some entries of that mix expire while it is filled.
	lines int64
}

func (t *tablesBench) path(name string) string { return filepath.Join(t.dir, name) }

func (t *tablesBench) setUp(ctx context.Context) (func(context.Context) error, error) {
	if _, err := os.Stat(enginesPython); err != nil {
		return nil, fmt.Errorf("DuckDB is missing (%w): scripts/setup sql", err)
	}
	var err error
	if t.dir, err = os.MkdirTemp("", "benchcmp-"); err != nil {
		return nil, err
	}
	tearDown := func(context.Context) error {
		err := os.RemoveAll(t.dir)
		if t.table != nil {
			err = errors.Join(err, t.table.close())
		}
		return err
	}
	if err := t.write(ctx); err != nil {
		return nil, errors.Join(err, tearDown(ctx))
	}
	return tearDown, nil
}

// write makes the texts, and the table of a gateway as CSV.
func (t *tablesBench) write(ctx context.Context) (err error) {
	for _, mix := range []string{"gateway", "established"} { // the last one stays
		if t.table != nil {
			err = t.table.close()
		}
		if err == nil {
			t.table, err = newTable(ctx)
		}
		if err == nil {
			err = t.table.addMix(ctx, mix, 0, manyEntries)
		}
		if err == nil {
			_, _, err = bench.Program{Netns: t.table.ns,
				Args: []string{"sh", "-c", `exec conntrack -L -o extended >"$0" 2>/dev/null`, t.path(mix + ".txt")}}.Run(ctx)
		}
		if err != nil {
			return err
		}
	}
	if t.lines, err = linesOf(t.path("gateway.txt")); err != nil {
		return err
	}
	if _, err = t.ofText(ctx, t.path("gateway.txt"), t.lines); err == nil {
		err = os.Rename(t.out(), t.path("gateway.parquet"))
	}
	if err == nil {
		_, _, err = bench.Program{Args: []string{enginesPython, "-c", copyToCSV, t.path("gateway.parquet"), t.path("gateway.csv")}}.Run(ctx)
	}
	return err
}

func linesOf(path string) (n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		n++
	}
	return n, lines.Err()
}

// out is the file that each run writes.
func (t *tablesBench) out() string { return t.path("out.parquet") }

// floor is what the kernel takes to hand the table over.
func (t *tablesBench) floor(context.Context) (bench.Sample, error) {
	start := time.Now()
	n, err := readUndecoded(t.table.ns)
	return bench.Sample{Values: bench.Values{took: time.Since(start).Seconds()}, Failures: max(manyEntries-n, n-manyEntries)}, err
}

func (t *tablesBench) live(ctx context.Context) (bench.Sample, error) {
	return t.run(ctx, manyEntries, bench.Program{Netns: t.table.ns, Args: []string{t.natkit, "conntrack", "list", "--quiet", "-o", "parquet", "--to", t.out()}})
}

func (t *tablesBench) ofText(ctx context.Context, text string, entries int64) (bench.Sample, error) {
	return t.run(ctx, entries, bench.Program{Args: []string{t.natkit, "conntrack", "list", "--quiet", "--from", text, "--node", "gw", "-o", "parquet", "--to", t.out()}})
}

// duckdb must write the rows that natkit wrote.
func (t *tablesBench) duckdb(ctx context.Context) (bench.Sample, error) {
	s, err := t.run(ctx, t.lines, bench.Program{Args: []string{enginesPython, "-c", copyFromCSV, t.path("gateway.parquet"), t.path("gateway.csv"), t.out()}})
	if err != nil {
		return s, err
	}
	rows := map[string]bool{}
	for _, table := range []string{t.path("gateway.parquet"), t.out()} {
		out, _, err := bench.Program{Args: []string{enginesPython, "-c", rowsOf, table}}.Run(ctx)
		if err != nil {
			return s, err
		}
		rows[string(out)] = true
	}
	if len(rows) != 1 {
		return s, fmt.Errorf("DuckDB wrote other rows than natkit: %v (their number and the sum of their hashes)", slices.Collect(maps.Keys(rows)))
	}
	return s, nil
}

// run measures a program that writes all rows.
func (t *tablesBench) run(ctx context.Context, entries int64, p bench.Program) (bench.Sample, error) {
	_, u, err := p.Run(ctx)
	if err != nil {
		return bench.Sample{}, err
	}
	f, err := os.Open(t.out())
	if err != nil {
		return bench.Sample{}, err
	}
	defer f.Close()
	about, err := f.Stat()
	if err != nil {
		return bench.Sample{}, err
	}
	written, err := parquet.OpenFile(f, about.Size())
	if err != nil {
		return bench.Sample{}, fmt.Errorf("read what %s wrote: %w", p.Args[0], err)
	}
	return bench.Sample{Failures: max(entries-written.NumRows(), written.NumRows()-entries),
		Values: bench.Values{took: u.Seconds, cpuSeconds: u.OwnSeconds, peakMemory: float64(u.PeakBytes), fileSize: float64(about.Size())}}, nil
}
