package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
	"github.com/natkit/natkit/internal/testutil"
)

// small is a fleet whose rows fit into a test: two days, every part played.
func small(seed uint64) Fleet {
	return Fleet{Seed: seed, Nodes: 12, Start: time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC), Days: 2, Connections: 400,
		TableEntries: 120, Readings: 6, SampleEvery: 15 * time.Minute, ServiceEvery: 30 * time.Minute}
}

func (f Fleet) tables() (t Tables) {
	for n := range f.Nodes {
		t.Log = slices.AppendSeq(t.Log, f.NATLog(n))
		t.Entries = slices.AppendSeq(t.Entries, f.Entries(n))
		t.Samples = slices.AppendSeq(t.Samples, f.Samples(n))
		t.Services = slices.AppendSeq(t.Services, f.Services(n))
	}
	t.Log = append(t.Log, f.Planted()...)
	return t
}

// asked is a question, and the slow answer to it.
type asked struct {
	question   string
	parameters map[string]any
	want       []row
}

func whoAt(t Tables, address string, port int, protocol, at string, slack int64) asked {
	return asked{"who", map[string]any{"address": address, "port": port, "protocol": protocol, "time": at, "slack_s": slack}, t.who(address, int32(port), protocol, at, slack)}
}

const (
	dayBegins = "2026-11-30 00:00:00"
	dayEnds   = "2026-12-01 00:00:00"
	before    = "2026-11-29 00:00:00"
)

func within(from, to string, more ...any) map[string]any {
	p := map[string]any{"from": from, "to": to}
	for i := 0; i < len(more); i += 2 {
		p[more[i].(string)] = more[i+1]
	}
	return p
}

func cases(t Tables) []asked {
	all := []asked{
		{"answered", map[string]any{"time": "2026-11-30 12:00:00", "window_s": 7200}, t.answered("2026-11-30 12:00:00", 7200, 0.05, 20)},
		{"answered", map[string]any{"time": "2026-11-30 12:00:00", "window_s": 43200, "fell": 0, "least": 1}, t.answered("2026-11-30 12:00:00", 43200, 0, 1)},
		{"answered", map[string]any{"time": "2026-11-29 12:00:00", "fell": -1, "least": 0}, t.answered("2026-11-29 12:00:00", 3600, -1, 0)},
		{"losing", within(dayBegins, dayEnds), t.losing(dayBegins, dayEnds)},
		{"losing", within(before, dayEnds), t.losing(before, dayEnds)},
		{"losing", within("2026-11-30 09:40:00", "2026-11-30 10:40:00"), t.losing("2026-11-30 09:40:00", "2026-11-30 10:40:00")},
		{"reused", within(before, dayEnds), t.reused(before, dayEnds, 60)},
		{"reused", within(dayBegins, "2026-11-30 01:00:30", "time_wait_s", 100000), t.reused(dayBegins, "2026-11-30 01:00:30", 100000)},
		{"reused", within(before, dayEnds, "time_wait_s", 200000), t.reused(before, dayEnds, 200000)},
		{"exhausted", within(before, dayEnds, "ports", poolPorts), t.exhausted(before, dayEnds, poolPorts, 0.5)},
		{"exhausted", within(before, dayEnds, "ports", poolPorts, "share", 0.01), t.exhausted(before, dayEnds, poolPorts, 0.01)},
		{"growth", within(dayBegins, dayEnds), t.growth(dayBegins, dayEnds, 168)},
		{"growth", within(before, dayEnds, "hours", 1000000), t.growth(before, dayEnds, 1000000)},
		{"idle", within(dayBegins, dayEnds), t.idle(dayBegins, dayEnds, 20)},
		{"idle", within(before, dayEnds, "top", 100000), t.idle(before, dayEnds, 100000)},
		{"talkers", within(dayBegins, dayEnds), t.talkers(dayBegins, dayEnds, 20)},
		{"talkers", within(before, dayEnds, "top", 100000), t.talkers(before, dayEnds, 100000)},
		{"handshake", within(dayBegins, dayEnds), t.handshake(dayBegins, dayEnds, 20, 0, 50)},
		{"handshake", within(before, dayEnds, "slower", 1.5, "least", 1), t.handshake(before, dayEnds, 1, 1.5, 50)},
		{"upgrade", within(dayBegins, dayEnds), t.upgrades(dayBegins, dayEnds, 43200)},
		{"upgrade", within(before, dayEnds, "window_s", 7200), t.upgrades(before, dayEnds, 7200)},
	}
	for _, at := range []string{"2026-11-30 00:00:10", "2026-11-29 23:59:29", "2026-11-30 00:25:00", "2026-11-30 00:30:01", "2026-11-30 01:00:01", "2026-11-30 01:00:16", "2026-11-30 01:00:49",
		"2026-11-30 02:10:00", "2026-11-30 03:30:00", "2026-11-30 04:00:01", "2026-11-30 12:00:00"} {
		all = append(all, whoAt(t, plantedAddress, 40001, "", at, 2))
	}
	for _, at := range []string{"2026-11-30 05:30:00", "2026-11-30 06:30:00", "2026-11-30 07:30:00", "2026-11-30 09:00:00"} {
		all = append(all, whoAt(t, plantedAddress, 40010, "", at, 2))
	}
	all = append(all, whoAt(t, plantedAddress, 40001, "udp", "2026-11-30 01:00:16", 0), whoAt(t, plantedAddress, 40001, "tcp", "2026-11-30 01:00:49", 0),
		whoAt(t, plantedSixth, 5000, "", "2026-11-30 01:00:00", 0), whoAt(t, plantedAddress, 40063, "tcp", "2026-11-30 06:00:00", 2))
	some := t.Log[len(t.Log)/3] // any connection that was not planted
	return append(all, whoAt(t, some.NATAddress, int(some.NATPort), "", some.Started.Time().Format(time.DateTime), 100000))
}

// What the slow answers find is what was planted: they could be wrong in the same way as the SQL.
func TestPlanted(t *testing.T) {
	all := small(1).tables()
	whoHad := func(port int32, at string, slack int64) (found []string) {
		for _, r := range all.who(plantedAddress, port, "", at, slack) {
			found = append(found, fmt.Sprintf("%v %v %v", r["node"], r["src"], r["sure"]))
		}
		return found
	}
	who := func(at string, slack int64) []string { return whoHad(40001, at, slack) }
	for _, c := range []struct {
		name string
		got  []string
		want []string
	}{
		{"across midnight, and one without a start", who("2026-11-30 00:00:10", 0), []string{"edge-1 10.0.0.13 no start", "edge-1 10.0.0.7 log"}},
		{"on two nodes at once", who("2026-11-30 01:00:49", 0), []string{"edge-1 10.0.0.10 log", "edge-1 10.0.0.7 log", "edge-2 10.9.0.1 log", "edge-1 10.0.0.9 log"}},
		{"by a wrong clock", who("2026-11-30 00:00:22", 2), []string{"edge-1 10.0.0.13 no start", "edge-1 10.0.0.7 clock"}},
		{"by a clock that is further off", who("2026-11-30 00:00:23", 2), []string{"edge-1 10.0.0.13 no start"}},
		{"without an end, until it was given again", who("2026-11-30 03:30:00", 0), []string{"edge-1 10.0.0.11 no end"}},
		{"there before the log, not yet seen", whoHad(40010, "2026-11-30 05:30:00", 0), []string{"edge-1 10.0.0.21 no end", "edge-1 10.0.0.23 log", "edge-2 10.9.0.2 no end", "edge-1 10.0.0.20 no start", "edge-1 10.0.0.22 no start", "edge-1 10.0.0.20 no start"}},
		{"there before the log", whoHad(40010, "2026-11-30 06:30:00", 0), []string{"edge-1 10.0.0.23 log", "edge-2 10.9.0.2 no end", "edge-1 10.0.0.20 log", "edge-1 10.0.0.22 no end", "edge-1 10.0.0.20 no start"}},
		{"block", who("2026-11-30 12:00:00", 0), []string{"edge-1 10.0.0.12 no end", "edge-2 10.9.0.2 no end"}},
		{"answered share fell", column(all.answered("2026-11-30 12:00:00", 7200, 0.05, 20), "address", "port", "nodes_fell"), []string{"203.0.113.80 443 3"}},
		{"loses", column(all.losing(dayBegins, dayEnds)[:1], "node", "since", "now"), []string{"nat-001 2026-11-30 10:00:00.000000 yes"}},
		{"given again", column(all.reused(before, dayEnds, 60), "nat_address", "node_before", "netns_before", "node", "netns", "least_gap_s"), []string{
			"2001:db8:64::9 edge-1 <nil> edge-1 <nil> 60", "203.0.113.9 edge-1 <nil> edge-1 blue -5", "203.0.113.9 edge-1 <nil> edge-2 <nil> 3",
			"203.0.113.9 edge-1 blue edge-1 <nil> 12", "203.0.113.9 edge-2 <nil> edge-1 <nil> -1"}},
		{"exhausted", column(all.exhausted(before, dayEnds, poolPorts, 0.5)[:1], "node", "server", "ports", "time_wait"), []string{"nat-000 198.19.9.9 80 60"}},
		{"full soon", column(all.growth(before, dayEnds, 24), "node", "netns", "entries_max"), []string{"nat-005 blue 262144", "nat-003 <nil> 262144"}},
		{"slow handshake", column(all.handshake(before, dayEnds, 1, 1.5, 50), "node", "address", "port"), []string{"nat-003 203.0.113.80 443", "nat-003 203.0.113.80 80"}},
		{"upgrade", column(all.upgrades(dayBegins, dayEnds, 43200), "measure", "nodes", "worse")[2:], []string{"handshake_us 3 0", "lost_per_hour 3 0"}},
		{"in two zones", zoned(all), []string{"0", "7"}},
	} {
		if d := gocmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// zoned are the zones of the entries that are as the one in the planted zone.
func zoned(all Tables) []string {
	rows := all.idle(before, dayEnds, 100000)
	i := slices.IndexFunc(rows, func(r row) bool { return r["zone"] == float64(plantedZone) })
	if i < 0 {
		return nil
	}
	same := func(r row) string {
		return column([]row{r}, "node", "netns", "protocol", "src", "sport", "dst", "dport")[0]
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return same(r) != same(rows[i]) })
	return column(rows, "zone")
}

func column(rows []row, names ...string) (all []string) {
	for _, r := range rows {
		var s []string
		for _, n := range names {
			s = append(s, fmt.Sprint(r[n]))
		}
		all = append(all, strings.Join(s, " "))
	}
	return all
}

// The same fleet has the same rows; another seed has others.
func TestSeed(t *testing.T) {
	if d := gocmp.Diff(small(1).tables(), small(1).tables()); d != "" {
		t.Errorf("not the same:\n%s", d)
	}
	if gocmp.Equal(small(1).tables().Log, small(2).tables().Log) {
		t.Error("two seeds give the same log")
	}
}

// No two connections of a node have the same translated address, port and destination at once.
func TestLogPossible(t *testing.T) {
	f := small(1)
	f.Connections = 20000
	type tuple struct {
		protocol, address, dst string
		port                   int32
	}
	open := map[tuple]bool{}
	var last table.Time
	for r := range f.NATLog(1) {
		k := tuple{r.Protocol, r.NATAddress, r.Dst, r.NATPort}
		if open[k] == (r.Event == "start") {
			t.Fatalf("%s of %v, which is open: %t", r.Event, k, open[k])
		}
		if r.Time < last {
			t.Fatalf("row at %d after one at %d", r.Time, last)
		}
		last, open[k] = r.Time, r.Event == "start"
	}
}

const ask = "../../deploy/sql/ask"

// needEngines skips a test where scripts/setup sql has not put the engines; nightly has them.
func needEngines(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("../../.cache/sql/bin/python"); err == nil {
		return
	}
	if os.Getenv("NATKIT_NIGHTLY") != "" {
		t.Fatal("needs the engines of scripts/setup sql, and NATKIT_NIGHTLY is set")
	}
	t.Skip("needs the engines of scripts/setup sql, which 'make nightly PART=sql' installs")
}

func answers(t *testing.T, engine, dir string, all []asked) [][]row {
	t.Helper()
	var in, out, errors bytes.Buffer
	for _, a := range all {
		if err := json.NewEncoder(&in).Encode(map[string]any{"question": a.question, "parameters": a.parameters}); err != nil {
			t.Fatal(err)
		}
	}
	name, load := strings.CutSuffix(engine, " --load")
	c := exec.Command(ask, "-", dir, "--engine", name, "--format", "json")
	if load {
		c.Args = append(c.Args, "--load")
	}
	// Java begins sooner if it compiles less.
	c.Env = append(os.Environ(), "JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
	c.Stdin, c.Stdout, c.Stderr = &in, &out, &errors
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, errors.String())
	}
	var found [][]row
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		if r["question"] != nil {
			found = append(found, nil)
			continue
		}
		found[len(found)-1] = append(found[len(found)-1], r)
	}
	return found
}

// Every engine gives the answers of the slow Go code, row by row, to fleets of several seeds.
func TestEngines(t *testing.T) {
	needEngines(t)
	engines, seeds := []string{"duckdb"}, uint64(1)
	if os.Getenv("NATKIT_NIGHTLY") != "" {
		seeds = 2
		engines = append(engines, "clickhouse", "clickhouse --load", "spark")
	}
	if one := os.Getenv("NATKIT_ENGINE"); one != "" {
		engines = []string{one}
	}
	for seed := range seeds {
		f := small(seed + 1)
		dir := t.TempDir()
		if _, err := f.Write(dir, []string{table.NATLogs, table.Entries, table.Samples, table.Services}, 2); err != nil {
			t.Fatal(err)
		}
		all := cases(f.tables())
		for _, engine := range engines {
			t.Run(fmt.Sprintf("%s seed %d", engine, f.Seed), func(t *testing.T) {
				compare(t, all, answers(t, engine, dir, all))
			})
		}
	}
}

// What nodes write twice, in files of other names, changes no answer.
func TestWrittenTwice(t *testing.T) {
	needEngines(t)
	f, dir := small(1), t.TempDir()
	for range 2 {
		if _, err := f.Write(dir, []string{table.NATLogs, table.Entries, table.Samples, table.Services}, 2); err != nil {
			t.Fatal(err)
		}
	}
	all := cases(f.tables())
	compare(t, all, answers(t, "duckdb", dir, all))
}

func compare(t *testing.T, all []asked, got [][]row) {
	t.Helper()
	if len(got) != len(all) {
		t.Fatalf("%d answers to %d questions", len(got), len(all))
	}
	for i, a := range all {
		if d := gocmp.Diff(a.want, got[i]); d != "" {
			t.Errorf("%s %v (-want +got):\n%s", a.question, a.parameters, d)
		}
		if len(a.want) == 0 {
			t.Errorf("%s %v has no answer: nothing was compared", a.question, a.parameters)
		}
	}
}

// A table of another version is refused before an engine reads it, among others of this one.
func TestAskOtherSchema(t *testing.T) {
	testutil.NeedNightlyProgram(t, "python3")
	dir := t.TempDir()
	for version, want := range map[string]string{table.Schema: "", "27": "part-27.parquet: it is of version '27' of the tables, and these questions are for version " + table.Schema} {
		name := filepath.Join(dir, "nat_log", "day=2026-11-30", "node=a", "part-"+version+".parquet")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := parquet.NewGenericWriter[table.NATLog](&b, parquet.KeyValueMetadata(table.MetaSchema, version), parquet.KeyValueMetadata(table.MetaTable, table.NATLogs))
		if _, err := w.Write([]table.NATLog{{Src: table.MetaSchema}}); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(ask, "reused", dir, "--print")
		out, err := c.CombinedOutput()
		if want == "" && err != nil || want != "" && (c.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), want)) {
			t.Errorf("version %s: %v: %s", version, err, out)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// What ask is given wrong it says in a line, with the code of a mistake.
func TestAskMistakes(t *testing.T) {
	testutil.NeedNightlyProgram(t, "python3")
	dir := t.TempDir()
	empty := filepath.Join(dir, "nat_log", "day=2026-11-30", "node=a")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"whom", dir}, "there is no question 'whom'"},
		{[]string{"../ask", dir}, "there is no question"},
		{[]string{"who", dir}, "there is no file"},
		{[]string{"who", dir + "/none"}, "there is no file"},
		{[]string{"who", dir + "/*"}, "take a character of its path for a pattern"},
		{[]string{"who", dir, "-p", "port=1; DROP TABLE x"}, "is not a number"},
		{[]string{"who", dir, "-p", "address=x' OR 'a'='a"}, "is not plain text"},
		{[]string{"who", dir, "-p", `address=\`}, "is not plain text"},
		{[]string{"who", dir, "-p", "port"}, "written as name=value"},
		{[]string{"who", dir, "-p", "ports=1"}, "has no parameter ports"},
		{[]string{"who", dir, "-p", "address=203.0.113"}, "is not an address"},
		{[]string{"who", dir, "-p", "time=noon"}, "is not a time"},
		{[]string{"growth", dir, "-p", "hours=-1"}, "is below 0"},
		{[]string{"reused", dir, "-p", "from=2026-12-02", "-p", "to=2026-12-01"}, "is not before 2026-12-01 00:00:00"},
		{[]string{"who", dir, "-d", "today"}, "a day is written as"},
		{[]string{"who", dir, "--memory", "4"}, "written as 4GB"},
	} {
		c2 := exec.Command(ask, c.args...)
		out, err := c2.CombinedOutput()
		if c2.ProcessState == nil || c2.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), c.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v: %v: %s", c.args, err, out)
		}
	}
}

// write writes rows as a node does.
func write[T table.Row](t *testing.T, dir string, rows ...T) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{To: dir, Node: "gw", Version: "1", Now: rows[0].When().Time()})
	if err != nil {
		t.Fatal(err)
	}
	sink := store.Of[T](s)
	for i := range rows {
		if err := sink.Add(rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
}

// readPartitions prints the nodes of samples as the page on tables has engines read them, and where these decode the path those of one
// node that is asked for by its name.
var readPartitions = map[string]string{
	"duckdb": `
import duckdb, json, sys
files = f"read_parquet('{sys.argv[1]}/samples/*/*/*.parquet', hive_partitioning = true, union_by_name = true)"
for where in "true", "node = 'gw/1'":
    print(json.dumps(sorted(row[0] for row in duckdb.execute(f"SELECT node FROM {files} WHERE {where}").fetchall())))`,
	"clickhouse": `
import json, sys
from chdb import session
for where in "true", "node = 'gw/1'":
    sql = f"SELECT node FROM file('{sys.argv[1]}/samples/*/*/*.parquet') WHERE {where} SETTINGS use_hive_partitioning = 0"
    print(json.dumps(sorted(json.loads(line)[0] for line in str(session.Session().query(sql, "JSONCompactEachRow")).splitlines())))`,
	"spark": `
import json, os, sys
os.environ["SPARK_LOCAL_IP"], os.environ["SPARK_LOCAL_HOSTNAME"] = "127.0.0.1", "localhost"
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate())
for path, where in (("/*/*/*.parquet", "true"), ("", "node = 'gw/1'")):
    print(json.dumps(sorted(row[0] for row in spark.read.option("mergeSchema", True).parquet(sys.argv[1] + "/samples" + path).where(where).select("node").collect())))`,
}

// TestPartitions: engines read the names of nodes that no directory can have, each of its own.
func TestPartitions(t *testing.T) {
	needEngines(t)
	dir := t.TempDir()
	nodes := []string{"../x", "007", "a\n\x1bb", "gw 1", "gw%2F1", "gw/1", "gw=1", "gw_1", "tor-ü"}
	var rows []table.Sample
	for _, node := range nodes {
		rows = append(rows, table.Sample{Head: table.Head{Node: node, Time: moment(dayBegins)}})
	}
	write(t, dir, rows...)
	engines := []string{"duckdb"}
	if os.Getenv("NATKIT_NIGHTLY") != "" {
		engines = append(engines, "clickhouse", "spark")
	}
	if one := os.Getenv("NATKIT_ENGINE"); one != "" {
		engines = []string{one}
	}
	for _, engine := range engines {
		var errors bytes.Buffer
		c := exec.Command("../../.cache/sql/bin/python", "-c", readPartitions[engine], dir)
		c.Stderr = &errors
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", engine, err, errors.String())
		}
		var all, one []string
		lines := strings.Split(string(out), "\n")
		if err := cmp.Or(json.Unmarshal([]byte(lines[0]), &all), json.Unmarshal([]byte(lines[1]), &one)); err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(nodes, all); d != "" {
			t.Errorf("%s (-written +read): %s", engine, d)
		}
		if !slices.Equal(one, []string{"gw/1"}) {
			t.Errorf("%s finds %q as gw/1", engine, one)
		}
	}
}

// TestAnswersOfALog: an end before its start is possible around both, an address is found in any of its forms, and without a time
// the last day with files is meant.
func TestAnswersOfALog(t *testing.T) {
	needEngines(t)
	at := func(second int) table.Time {
		return table.TimeOf(time.Date(2026, 3, 1, 10, 0, second, 0, time.UTC))
	}
	session := func(event, src, given string, protocol string, started, ended table.Time) table.NATLog {
		return table.NATLog{Head: table.Head{Node: "gw", Kernel: "6.1", Time: max(started, ended)}, Event: event, Protocol: protocol, Src: src, Sport: 1, NATAddress: given, NATPort: 4000,
			NATPortLast: 4000, Dst: "198.51.100.1", Dport: 53, Started: started, Ended: ended}
	}
	dir := t.TempDir()
	ended := session("end", "10.0.0.1", "203.0.113.9", "udp", at(10), at(-40))
	ended.Time = at(-40)
	write(t, dir, session("start", "10.0.0.1", "203.0.113.9", "udp", at(10), 0), ended, session("start", "10.0.0.2", "203.0.113.9", "udp", at(-30), 0),
		session("start", "fd00::1", "2001:db8::9", "udp", at(0), 0),
		session("end", "10.0.0.3", "203.0.113.9", "tcp", at(0), at(5)), session("end", "10.0.0.4", "203.0.113.9", "tcp", at(8), at(9)))
	if out, err := exec.Command(ask, "reused", dir).CombinedOutput(); err != nil || strings.Count(string(out), "the last day that has files is 2026-03-01") != 1 {
		t.Errorf("%v: %s", err, out)
	}
	who := func(address, time string) asked {
		return asked{question: "who", parameters: map[string]any{"address": address, "port": 4000, "protocol": "udp", "time": time}}
	}
	all := []asked{who("203.0.113.9", "2026-03-01T10:00:12Z"), who("203.0.113.9", "2026-03-01 09:59:15"), who("203.0.113.9", "2026-03-01 10:00:00"), who("203.0.113.9", "2026-03-03 10:00:00"),
		who("2001:DB8:0:0::9", "2026-03-01 10:00:12"), {question: "reused", parameters: map[string]any{}}}
	engines := []string{"duckdb"}
	if os.Getenv("NATKIT_NIGHTLY") != "" {
		engines = append(engines, "clickhouse", "clickhouse --load", "spark")
	}
	for _, engine := range engines {
		var got []string
		for _, rows := range answers(t, engine, dir, all) {
			got = append(got, strings.Join(append(column(rows, "src", "sure"), column(rows, "times", "least_gap_s")...), ", "))
		}
		const nothing = "<nil> <nil>"
		if d := gocmp.Diff([]string{
			"10.0.0.2 no end, 10.0.0.1 stepped, " + nothing + ", " + nothing,
			"10.0.0.1 stepped, " + nothing,
			"10.0.0.2 no end, " + nothing,
			"10.0.0.2 no end, " + nothing,
			"fd00::1 no end, " + nothing,
			nothing + ", 1 3",
		}, got); d != "" {
			t.Errorf("%s: %s", engine, d)
		}
	}
}
