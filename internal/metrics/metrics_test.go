package metrics

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	request "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	otlp "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/state"
)

// full is a state in which every metric has a series.
func full() state.State {
	counters := map[string]uint64{}
	for i, c := range conntrackCounters {
		counters[c.name] = uint64(i + 1)
	}
	n := state.Namespace{
		Counters: &state.Counters{Entries: 7, Limit: 10, Buckets: 4, Conntrack: counters},
		Table: &state.Table{Memory: &state.TableMemory{EntriesBytes: 7}, Sampled: 7, Complete: true, Entries: 7, Protocols: map[string]int64{"tcp": 7}, TCPStates: map[string]int64{"ESTABLISHED": 7},
			TopSources: []state.Talker{{Who: "198.18.0.1", Entries: 7}}, TopServices: []state.Talker{{Who: "tcp 203.0.113.1:443", Entries: 7}},
			Flows: &state.Flows{NewPerSecond: 3, StandardErrorPerSecond: 1, ByClass: map[string]float64{"tcp/ESTABLISHED": 3}}},
		Services: &state.Services{Total: 2, Answered: 1, AnsweredShare: 0.5, All: []state.Service{
			{Kind: "dnat", Protocol: "tcp", Service: "203.0.113.1:80", Target: "10.0.0.1:80", Answered: 1, Unanswered: 1, AnsweredShare: 0.5, NewPerSecond: 2},
			{Kind: "dnat", Protocol: "tcp", Service: "203.0.113.1:80", Target: "10.0.0.1:80", AnsweredShare: -1, NewPerSecond: -1}, // in another zone
		}},
		Ports: &state.Ports{Pools: 1, Addresses: []state.Address{
			{Address: "203.0.113.1", Protocol: "tcp", Range: nat.Ports{First: 4000, Last: 4009}, Used: 5, Ports: 10, UsedShare: 0.5, Fails: 0.1, SecondsLeft: 60},
			{Address: "203.0.113.2", Protocol: "tcp", Used: 5, Ports: 10, UsedShare: 0.5, Fails: -1, SecondsLeft: -1}}},
		Drops: &state.Drops{Reasons: []state.DropReason{{Reason: "NETFILTER_DROP", Packets: 9}, {Packets: 1}}},
		Stack: &state.Stack{Counters: map[string]uint64{"TcpRetransSegs": 5}, Sockets: map[string]int64{"time_wait": 2}},
		Findings: &state.Findings{Reports: 3, Checks: map[diagnose.State]int{diagnose.OK: 60},
			All: []state.Finding{{Standing: diagnose.Standing{ID: "ct-table-full", Severity: diagnose.Critical}}}},
		Unread: []state.Unread{{Part: "kernel_log", Unavailable: true}, {Part: "table"}},
	}
	other := n
	other.Name = "gw\xff"
	var readings state.Histogram
	for _, v := range []float64{0.0004, 0.003, 0.004, 7} {
		readings.Add(v)
	}
	return state.State{Version: "v1", Self: state.Self{Readings: map[string]state.Histogram{"counters": readings}}, Namespaces: []state.Namespace{n, other}}
}

// TestUnread: a part that cannot be read here at all is in another metric than one that failed this time.
func TestUnread(t *testing.T) {
	const want = `# HELP natkit_read_failed 1 for each part of the kernel's data that could not be read at the last attempt, and can be read here.
# TYPE natkit_read_failed gauge
natkit_read_failed{netns="",part="table"} 1
natkit_read_failed{netns="gw\ufffd",part="table"} 1
# HELP natkit_unavailable 1 for each part of the kernel's data that cannot be read here at all: a privilege is missing, or in a container /dev/kmsg.
# TYPE natkit_unavailable gauge
natkit_unavailable{netns="",part="kernel_log"} 1
natkit_unavailable{netns="gw\ufffd",part="kernel_log"} 1
`
	if err := testutil.GatherAndCompare(NewRegistry(full), strings.NewReader(strings.ReplaceAll(want, `\ufffd`, "\ufffd")), "natkit_read_failed", "natkit_unavailable"); err != nil {
		t.Error(err)
	}
}

// TestLint: names, types and help are as Prometheus' own linter wants them, and every metric has a series.
func TestLint(t *testing.T) {
	r := NewRegistry(full)
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, f := range families {
		have[f.GetName()] = true
	}
	for _, m := range All {
		if !have[m.Name] {
			t.Errorf("%s has no series of a state that has all", m.Name)
		}
	}
}

// TestValues: some of each kind, with their labels; what is not known has no series.
func TestValues(t *testing.T) {
	var text bytes.Buffer
	if err := NewRegistry(full).Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`natkit_conntrack_entries{netns=""} 7`, `natkit_conntrack_entries{netns="gw�"} 7`, `natkit_conntrack_insert_failed_total{netns=""} 1`,
		`natkit_service_answered_ratio{given="",kind="dnat",netns="",protocol="tcp",service="203.0.113.1:80",target="10.0.0.1:80"} 0.5`,
		`natkit_drops_total{netns="",reason="none"} 1`, `natkit_finding{id="ct-table-full",netns="",severity="critical"} 1`,
		`natkit_snat_exhaustion_seconds{address="203.0.113.1",netns="",ports="4000-4009",protocol="tcp",zone=""} 60`, `# TYPE natkit_drops_total counter`,
		`natkit_reading_cpu_seconds_bucket{reading="counters",le="0.002"} 1`, `natkit_reading_cpu_seconds_bucket{reading="counters",le="0.005"} 3`,
		`natkit_reading_cpu_seconds_bucket{reading="counters",le="1"} 3`, `natkit_reading_cpu_seconds_count{reading="counters"} 4`,
	} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	for _, unwanted := range []string{`natkit_snat_exhaustion_seconds{address="203.0.113.2"`, `natkit_snat_connection_failure_ratio{address="203.0.113.2"`} {
		if strings.Contains(text.String(), unwanted) {
			t.Errorf("what is not known: %s", unwanted)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

// TestNothingKnown: a host of which nothing could be read yet has metrics all the same.
func TestNothingKnown(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(Collector(func() state.State { return state.State{Namespaces: []state.Namespace{{}}} }))
	families, err := r.Gather()
	if err != nil || len(families) == 0 {
		t.Fatalf("%d families, %v", len(families), err)
	}
	for _, f := range families {
		if !slices.ContainsFunc(All, func(m Metric) bool { return m.Name == f.GetName() && m.IsHost() }) {
			t.Errorf("%s, of nothing", f.GetName())
		}
	}
}

// TestOTLP: what is pushed has the series and values of what is scraped.
func TestOTLP(t *testing.T) {
	r := NewRegistry(full)
	seconds := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "some_seconds", Help: "A histogram.", Buckets: []float64{1, 2}})
	r.MustRegister(seconds)
	for _, v := range []float64{0.5, 1.5, 1.6, 9} {
		seconds.Observe(v)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text, err := OTLP(families, time.Unix(1000, 0), Origin{Version: "v1", Host: "gw1"})
	if err != nil {
		t.Fatal(err)
	}
	var sent request.ExportMetricsServiceRequest
	if err := proto.Unmarshal(text, &sent); err != nil {
		t.Fatal(err)
	}
	got, want := map[string]float64{}, map[string]float64{}
	for _, m := range sent.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		for _, p := range append(m.GetGauge().GetDataPoints(), m.GetSum().GetDataPoints()...) {
			key := m.Name
			for _, a := range p.Attributes {
				key += " " + a.Key + "=" + a.Value.GetStringValue()
			}
			got[key] = p.GetAsDouble()
			if p.TimeUnixNano != 1000e9 {
				t.Errorf("%s is of %d", key, p.TimeUnixNano)
			}
		}
		if s := m.GetSum(); s != nil && (!s.IsMonotonic || s.AggregationTemporality != otlp.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE) {
			t.Errorf("%s: %v", m.Name, s)
		}
		if h := m.GetHistogram(); h != nil {
			if p := h.DataPoints[0]; m.Name == "some_seconds" && (m.Unit != "s" || p.Count != 4 || p.GetSum() != 12.6 || !slices.Equal(p.BucketCounts, []uint64{1, 2, 1}) || !slices.Equal(p.ExplicitBounds, []float64{1, 2})) {
				t.Errorf("histogram %s: %v", m.Name, p)
			}
		}
	}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			key := f.GetName()
			for _, l := range s.GetLabel() {
				if l.GetValue() != "" {
					key += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			if s.GetHistogram() == nil {
				want[key] = s.GetGauge().GetValue() + s.GetCounter().GetValue()
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestMixin: alerts and the dashboard ask for metrics and labels that there are.
func TestMixin(t *testing.T) {
	labels := map[string][]string{}
	for _, m := range All {
		labels[m.Name] = append(m.AllLabels(), "instance", "job", "node", "pod") // the scrape adds these
	}
	series := regexp.MustCompile(`\b(natkit_[a-z0-9_]+)(\{[^{}]*\})?`)
	label := regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	for _, name := range []string{"alerts.yaml", "alerts_test.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../deploy/mixin/" + name)
		if err != nil {
			t.Fatal(err)
		}
		found := series.FindAllStringSubmatch(strings.ReplaceAll(string(text), `\"`, `"`), -1)
		if len(found) < 10 {
			t.Fatalf("%s asks for %d metrics: the search is broken", name, len(found))
		}
		for _, f := range found {
			known, ok := labels[f[1]]
			if !ok {
				t.Errorf("%s asks for %s, which is not exported", name, f[1])
				continue
			}
			for _, l := range label.FindAllStringSubmatch(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(f[2], `""`), -1) {
				if !slices.Contains(known, l[1]) {
					t.Errorf("%s asks for %s by %s, which it does not have", name, f[1], l[1])
				}
			}
		}
	}
}

// TestDashboard: Grafana can read it, and places no two panels at one place.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("../../deploy/mixin/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Panels     []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil || d.UID == "" || len(d.Panels) < 10 {
		t.Fatalf("%s with %d panels, %v", d.UID, len(d.Panels), err)
	}
	taken, ids := map[string]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := fmt.Sprint(p.GridPos.X+x, " ", p.GridPos.Y+y)
				if taken[at] != "" || p.GridPos.X+x > 23 {
					t.Fatalf("%s and %s are both at %s", p.Title, taken[at], at)
				}
				taken[at] = p.Title
			}
		}
	}
}

//go:generate go test -count=1 -run ^TestDocsHaveEveryMetric$ . -args -update-docs

var updateDocs = flag.Bool("update-docs", false, "rewrite the table of docs/exporter.md instead of comparing it")

// TestDocsHaveEveryMetric compares the table of docs/exporter.md with the metrics; `make generate` rewrites it.
func TestDocsHaveEveryMetric(t *testing.T) {
	const page, begin, end = "../../docs/exporter.md", "<!-- metrics: make generate -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the metrics", page)
	}
	var table strings.Builder
	table.WriteString("| metric | type | labels | |\n|---|---|---|---|\n")
	for _, m := range All {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, labels, m.Help)
	}
	want := before + begin + table.String() + end + after
	if *updateDocs {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), want); diff != "" {
		t.Errorf("%s has other metrics; `make generate` rewrites it:\n%s", page, diff)
	}
}
