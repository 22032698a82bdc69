package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/table"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, to string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{To: to, Node: "gw-1", Version: "1.2.3", Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Abort)
	return s
}

// findings are rows at intervals, from noon on.
func findings(n int, every time.Duration) (all []table.Finding) {
	for i := range n {
		at := table.TimeOf(noon.Add(time.Duration(i) * every))
		all = append(all, table.Finding{Head: table.Head{Node: "gw-1", Time: at}, ID: fmt.Sprint("id-", i%7), Severity: "warning", Title: fmt.Sprint("title ", i), FirstSeen: at})
	}
	return all
}

func add[T table.Row](t *testing.T, s *Store, rows []T) {
	t.Helper()
	sink := Of[T](s)
	for _, row := range rows {
		if err := sink.Add(row); err != nil {
			t.Fatal(err)
		}
	}
}

// files are all below a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, name); err == nil && rel != "." {
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var run = regexp.MustCompile(`part-20261130T120000Z-[0-9a-f]{8}-`)

// Each day of each node has its partition, and rows are visible after Commit alone.
func TestPartitions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := open(t, dir)
	rows := findings(40, time.Hour)
	add(t, s, rows)
	add(t, s, []table.Sample{{Head: table.Head{Node: "gw-1", Time: table.TimeOf(noon)}}, {Head: table.Head{Node: "gw-2", Time: table.TimeOf(noon)}}})
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	var names []string
	var back []table.Finding
	for _, name := range files(t, dir) {
		if !strings.HasSuffix(name, ".parquet") {
			continue
		}
		names = append(names, run.ReplaceAllString(name, "part-"))
		if strings.HasPrefix(name, "findings") {
			got, err := parquet.ReadFile[table.Finding](filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			back = append(back, got...)
		}
	}
	for i := range names {
		names[i] = regexp.MustCompile(`part-\d+`).ReplaceAllString(names[i], "part")
	}
	if d := cmp.Diff([]string{"findings/day=2026-11-30/node=gw-1/part.parquet", "findings/day=2026-12-01/node=gw-1/part.parquet",
		"findings/day=2026-12-02/node=gw-1/part.parquet", "samples/day=2026-11-30/node=gw-1/part.parquet", "samples/day=2026-11-30/node=gw-2/part.parquet"}, names); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(rows, back); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]int64{table.Findings: 40, table.Samples: 2}, s.Rows()); d != "" {
		t.Error(d)
	}
}

// Rows that jump between many days are all written, with a bounded number of files open.
func TestManyDays(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	rows := findings(50, 24*time.Hour)
	rows = append(rows, findings(50, 24*time.Hour)...)
	add(t, s, rows)
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range files(t, dir) {
		if strings.HasSuffix(name, ".parquet") {
			got, err := parquet.ReadFile[table.Finding](filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range got {
				if !strings.Contains(name, "day="+row.Time.Day()) {
					t.Errorf("%s has a row of %s", name, row.Time.Day())
				}
			}
			n += len(got)
		}
	}
	if n != 100 {
		t.Errorf("%d rows, want 100", n)
	}
}

// What is not committed leaves neither files nor directories.
func TestAbort(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "new", "tables")
	s := open(t, dir)
	sink := Of[table.Finding](s)
	for _, row := range findings(3*batchRows, time.Second) {
		if err := sink.Add(row); err != nil {
			t.Fatal(err)
		}
	}
	s.Abort()
	s.Abort()
	if left := files(t, root); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	kept := filepath.Join(root, "kept")
	s = open(t, kept)
	add(t, s, findings(1, 0))
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	before := files(t, kept)
	s = open(t, kept)
	add(t, s, findings(100, time.Hour))
	s.Abort()
	if after := files(t, kept); !slices.Equal(before, after) {
		t.Errorf("an aborted run changed %v to %v", before, after)
	}
}

// One file has the rows of all days; it replaces the one before when it is whole.
func TestOneFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.parquet")
	for _, n := range []int{60, 0} {
		s := open(t, name)
		add(t, s, findings(n, time.Hour))
		if err := s.Commit(); err != nil {
			t.Fatal(err)
		}
		got, err := parquet.ReadFile[table.Finding](name)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != n {
			t.Errorf("%d rows, want %d", len(got), n)
		}
	}
	s := open(t, name)
	add(t, s, findings(1, 0))
	add(t, s, []table.Sample{{}})
	if err := s.Commit(); err == nil || !strings.Contains(err.Error(), "several tables") {
		t.Errorf("two tables in a file: %v", err)
	}
	if got, err := parquet.ReadFile[table.Finding](name); err != nil || len(got) != 0 {
		t.Errorf("a failed run changed the file: %d rows, %v", len(got), err)
	}
	if left := files(t, filepath.Dir(name)); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestStdout(t *testing.T) {
	var out bytes.Buffer
	s, err := Open(t.Context(), Options{To: "-", Node: "n", Now: noon, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	add(t, s, findings(3, 0))
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	if got, err := parquet.Read[table.Finding](bytes.NewReader(out.Bytes()), int64(out.Len())); err != nil || len(got) != 3 {
		t.Errorf("%d rows, %v", len(got), err)
	}
}

// A place that cannot be written to is known before rows are made.
func TestNotWritable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{file, filepath.Join(file, "below"), filepath.Join(dir, "none", "x.parquet")} {
		_, err := Open(t.Context(), Options{To: to, Node: "n", Now: noon})
		if err == nil || !strings.Contains(err.Error(), to) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), ".tmp") {
			t.Errorf("write to %s: %v", to, err)
		}
	}
	if left := files(t, dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// fullDisk is a file that has no room.
func fullDisk(t *testing.T) string {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full here")
	}
	name := filepath.Join(t.TempDir(), "x.parquet")
	if err := os.Symlink("/dev/full", name); err != nil {
		t.Fatal(err)
	}
	return name
}

// A full disk is an error once rows come, and leaves nothing that seems whole.
func TestFullDisk(t *testing.T) {
	s := open(t, fullDisk(t))
	add(t, s, findings(10, 0))
	err := s.Commit()
	if err == nil || !strings.Contains(err.Error(), "no space left") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a full disk: %v", err)
	}
}

// Rows after an error return it, at the latest when those that wait have been handed on.
func TestErrorComesBack(t *testing.T) {
	s := open(t, fullDisk(t))
	sink := Of[table.Finding](s)
	var err error
	row := findings(1, 0)[0]
	for i := 0; err == nil && i < 10_000_000; i++ {
		row.Title = fmt.Sprintf("%x %x", i*i, i*i*i)
		err = sink.Add(row)
	}
	if err == nil {
		t.Fatal("ten million rows were taken")
	}
	if again := s.Commit(); !errors.Is(again, err) {
		t.Errorf("Commit returns %v, Add %v", again, err)
	}
}

func TestKindOf(t *testing.T) {
	for to, want := range map[string]Kind{
		"dir": ToDirectory, "/a/b/": ToDirectory, ".": ToDirectory, "x.parquet": ToFile, "-": ToFile, "s3://b": ToS3, "s3://b/p/q": ToS3, "s3://b/x.parquet": ToS3,
		"": 0, "s3://": 0, "s3:///p": 0, "http://x/y": 0, "gs://b": 0,
	} {
		if got, err := KindOf(to); got != want || (err == nil) != (want != 0) {
			t.Errorf("KindOf(%q) is %d, %v; want %d", to, got, err, want)
		}
	}
}

func TestCheckNode(t *testing.T) {
	for _, node := range []string{"gw-1.example.net", "a", "10.0.0.1", "x_y", strings.Repeat("a", 253)} {
		if err := CheckNode(node); err != nil {
			t.Errorf("%q: %v", node, err)
		}
	}
	for _, node := range []string{"", ".", "..", "a/b", "a=b", "a b", "ü", "a\x00", "a\n", "../x", "a:b", "%41", strings.Repeat("a", 254)} {
		if CheckNode(node) == nil {
			t.Errorf("%q is taken", node)
		}
	}
}

// TestPartitionNames: each name has a partition of its own, which is one element of a path that every file system takes; what
// decodes escapes gets the name back, but for one that is too long.
func TestPartitionNames(t *testing.T) {
	long := strings.Repeat("/", 100)
	seen := map[string]string{}
	for node, want := range map[string]string{
		"gw-1.example.net": "gw-1.example.net", "gw_1": "gw_1", "gw/1": "gw%2F1", "gw%2F1": "gw%252F1", "gw 1": "gw%201", "a=b": "a%3Db",
		"..": "..", "../x": "..%2Fx", "a\x00\n\x7f": "a%00%0A%7F", "tor-ü": "tor-ü", "东": "东", "a\u202eb": "a%E2%80%AEb", "\xff": "%FF", "a~b": "a%7Eb",
		strings.Repeat("x", 250): strings.Repeat("x", 250), strings.Repeat("x", 251): "", strings.Repeat("x", 252): "", strings.Repeat("é", 126): "",
		long: "", long + "a": "", "x" + long: "", "xx" + long: "",
	} {
		got := partition(node)
		if other, is := seen[got]; is {
			t.Errorf("%q and %q are both %s", other, node, got)
		}
		seen[got] = node
		back, err := url.PathUnescape(got)
		switch {
		case want != "" && got != want:
			t.Errorf("%q is %s, want %s", node, got, want)
		case len(got) > mostPartition || strings.ContainsAny(got, "/\x00") || err != nil || !utf8.ValidString(got):
			t.Errorf("%q is %q: %v", node, got, err)
		case want != "" && back != node:
			t.Errorf("%q is %s, which is %q", node, got, back)
		}
	}
}

// TestMixedNodes: rows of nodes whose names are alike do not come into one file.
func TestMixedNodes(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	var rows []table.Finding
	for i := range 12 {
		row := findings(1, 0)[0]
		row.Node = []string{"gw/1", "gw_1", "gw%2F1", "../gw_1"}[i%4]
		rows = append(rows, row)
	}
	add(t, s, rows)
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, name := range files(t, dir) {
		if !strings.HasSuffix(name, ".parquet") {
			continue
		}
		got, err := parquet.ReadFile[table.Finding](filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range got {
			count[filepath.Base(filepath.Dir(name))+" "+row.Node]++
		}
	}
	if d := cmp.Diff(map[string]int{"node=gw%2F1 gw/1": 3, "node=gw_1 gw_1": 3, "node=gw%252F1 gw%2F1": 3, "node=..%2Fgw_1 ../gw_1": 3}, count); d != "" {
		t.Error(d)
	}
}
