package state

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// counted is a snapshot whose CPUs have counted so much, so many seconds after the start.
func counted(uptime float64, insertFailed ...uint64) *snapshot.Snapshot {
	s := &snapshot.Snapshot{TakenAt: began.Add(time.Duration(uptime * float64(time.Second))), UptimeSeconds: uptime, ConntrackStat: &snapshot.ConntrackStat{},
		Sysctls: snapshot.Sysctls{snapshot.ConntrackCount: "7", snapshot.ConntrackMax: "10", snapshot.ConntrackBuckets: "4"}}
	for _, n := range insertFailed {
		s.ConntrackStat.PerCPU = append(s.ConntrackStat.PerCPU, map[string]uint64{"insert_failed": n})
	}
	return s
}

// TestCountersDoNotWrap: a counter of one CPU that begins at 0 again, at 32 bits, is a growth, and not a new start.
func TestCountersDoNotWrap(t *testing.T) {
	const most = math.MaxUint32
	var before *snapshot.Snapshot
	c := &Counters{}
	for i, step := range []struct {
		perCPU []uint64
		total  uint64
		rate   float64
	}{
		{[]uint64{most - 1, 3000}, most + 2999, 0},
		{[]uint64{most, 3001}, most + 3001, 1},
		{[]uint64{9, 3001}, most + 3011, 5},     // 10 more
		{[]uint64{9, 3001, 5}, most + 3011, 0},  // a CPU came: what it counted is not known
		{[]uint64{10, 3001, 6}, most + 3013, 1}, // and then goes on
		{[]uint64{10, 3001, most}, 2*most + 3007, 0.5 * (most - 6)},
	} {
		now := counted(float64(10+2*i), step.perCPU...)
		c = CountersOf(now, before, c.Conntrack)
		if got := c.Conntrack["insert_failed"]; got != step.total {
			t.Errorf("step %d: %d, want %d", i, got, step.total)
		}
		if got := c.PerSecond["insert_failed"]; got != step.rate {
			t.Errorf("step %d: %g/s, want %g", i, got, step.rate)
		}
		before = now
	}
	missing := counted(30)
	missing.ConntrackStat = nil
	if m := CountersOf(missing, before, c.Conntrack); len(m.Conntrack) != 0 || m.Entries != 7 {
		t.Errorf("counters that could not be read: %+v", m)
	}
	if later := CountersOf(counted(32, 10, 3001, 5), before, c.Conntrack); later.Conntrack["insert_failed"] != 2*most+3013 {
		t.Errorf("after these: %d", later.Conntrack["insert_failed"])
	}
	if c.Entries != 7 || c.Limit != 10 || c.Buckets != 4 {
		t.Errorf("%+v", c)
	}
	if used, known := c.Used(); used != 0.7 || !known {
		t.Errorf("%g of the table are in use, %v", used, known)
	}
}

func TestCountersUnknown(t *testing.T) {
	if c := CountersOf(&snapshot.Snapshot{}, nil, nil); c != nil {
		t.Errorf("%+v of nothing", c)
	}
	if _, known := (*Counters)(nil).Used(); known {
		t.Error("how much of nothing is in use is known")
	}
}

// sample is one of 100 entries of 1,000.
func sample() *snapshot.Sample {
	s := counted(60, 1)
	s.Sysctls[snapshot.ConntrackCount] = "1000"
	s.Table = nil
	return &snapshot.Sample{Snapshot: s, TableAt: began}
}

func TestTableIsScaled(t *testing.T) {
	s := sample()
	if TableOf(s, Limits{Top: 1}) != nil {
		t.Error("a table that was not read")
	}
	s.Table = &snapshot.ConntrackTable{Sampled: 100, ByProtocol: map[string]int64{"tcp": 75, "udp": 25}, ByTCPState: map[string]int64{"ESTABLISHED": 50},
		SNAT: 10, TopSources: []snapshot.Talker{{Who: "198.18.0.1", Entries: 20}, {Who: "198.18.0.2", Entries: 10}}}
	s.Flows = &snapshot.Flows{TotalPerSecond: 5, StandardErrorPerSecond: 1, PerSecond: map[string]float64{"tcp/SYN_SENT": 5}}
	got := TableOf(s, Limits{Top: 1})
	want := &Table{Reading: Reading{At: began}, Sampled: 100, Entries: 1000, Protocols: map[string]int64{"tcp": 750, "udp": 250}, TCPStates: map[string]int64{"ESTABLISHED": 500},
		SNAT: 100, IdleLong: -1, TopSources: []Talker{{"198.18.0.1", 200, 0.2}}, TopServices: []Talker{},
		Flows:  &Flows{NewPerSecond: 5, StandardErrorPerSecond: 1, ByClass: map[string]float64{"tcp/SYN_SENT": 5}},
		Memory: &TableMemory{EntriesBytes: 256_000, ExtensionsBytes: 128_000, BucketsBytes: 32, LimitEntriesBytes: 2560, LimitExtensionsBytes: 1280, Source: "assumed"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s.Table.Complete = true // what was read is then all
	if got := TableOf(s, Limits{}); got.Entries != 100 || got.Protocols["tcp"] != 75 || len(got.TopSources) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestServices(t *testing.T) {
	s := sample()
	if ServicesOf(s, Limits{}) != nil {
		t.Error("services that are not known")
	}
	s.Flows = &snapshot.Flows{Seconds: 10, Services: &snapshot.Services{Seconds: 30, NewKnown: true, All: []snapshot.Service{
		{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Answered: 90, New: 20, SilentSeconds: -1},
		{Kind: snapshot.ServiceSNAT, Protocol: "udp", Answered: 1, Unanswered: 2, HalfOpen: 1},
		{Kind: snapshot.ServiceDestination, Protocol: "udp", Unanswered: 2},
		{Kind: snapshot.ServiceUntranslated, Protocol: "udp", Unanswered: 9},
		{Kind: snapshot.ServiceSNAT, Protocol: "icmp"},
	}}}
	got := ServicesOf(s, Limits{Top: 2})
	if got.Total != 3 || len(got.All) != 2 || got.Answered != 91 || got.Failed != 3 {
		t.Fatalf("%+v", got)
	}
	worst, other := got.All[0], got.All[1]
	if worst.Protocol != "udp" || worst.AnsweredShare != 0.25 || worst.NewPerSecond != -1 {
		t.Errorf("the worst is %+v", worst)
	}
	if other.Protocol != "tcp" || other.AnsweredShare != 1 || other.NewPerSecond != 2 {
		t.Errorf("the other one is %+v", other)
	}
}

func TestPortsByAddress(t *testing.T) {
	s := sample()
	s.Ports = &snapshot.Ports{Total: 4, Pools: []snapshot.PortPool{
		{Address: "198.19.0.1", Protocol: "tcp", Destination: "203.0.113.1:443", FirstPort: 1024, LastPort: 2047, Used: 1000, Share: 0.977, Known: true, Fails: 0.5, RateKnown: true, SecondsLeft: 3, NewPerSecond: 8},
		{Address: "198.19.0.1", Protocol: "tcp", Destination: "203.0.113.2:443", FirstPort: 1024, LastPort: 2047, Used: 10, Share: 0.01},
		{Address: "198.19.0.1", Protocol: "udp", Destination: "203.0.113.2:53", FirstPort: 1024, LastPort: 65535, Used: 10},
		{Address: "198.19.0.1", Protocol: "tcp", Destination: "203.0.113.1:443", FirstPort: 4000, LastPort: 4009, Used: 9, Share: 0.9},
	}}
	got := PortsOf(s, Limits{Top: 5})
	want := []Address{
		{Address: "198.19.0.1", Protocol: "tcp", Range: nat.Ports{First: 1024, Last: 2047}, Destination: "203.0.113.1:443", Used: 1000, Ports: 1024, UsedShare: 0.977, Fails: 0.5, SecondsLeft: 3, NewPerSecond: 8},
		{Address: "198.19.0.1", Protocol: "udp", Range: nat.Ports{First: 1024, Last: 65535}, Destination: "203.0.113.2:53", Used: 10, Ports: 64512, Fails: -1, SecondsLeft: -1, NewPerSecond: -1},
		{Address: "198.19.0.1", Protocol: "tcp", Range: nat.Ports{First: 4000, Last: 4009}, Destination: "203.0.113.1:443", Used: 9, Ports: 10, UsedShare: 0.9, Fails: -1, SecondsLeft: -1, NewPerSecond: -1},
	}
	if diff := cmp.Diff(want, got.Addresses); diff != "" || got.Pools != 4 || got.Addresses[0].IsMapping() || !got.Addresses[2].IsMapping() {
		t.Errorf("%d pools; %s", got.Pools, diff)
	}
	if got := PortsOf(s, Limits{Top: 1}); len(got.Addresses) != 1 {
		t.Errorf("%d addresses", len(got.Addresses))
	}
}

// TestDropsOfOneNamespace: reasons are summed over places, and those of other namespaces are not in it.
func TestDropsOfOneNamespace(t *testing.T) {
	read := &snapshot.Drops{Sites: []snapshot.DropSite{
		{Function: "nf_hook_slow", Reason: "NETFILTER_DROP", Netns: 7, Packets: 30},
		{Function: "nft_do_chain", Reason: "NETFILTER_DROP", Netns: 7, Packets: 10},
		{Function: "ip_rcv", Reason: "IP_CSUM", Netns: 7, Packets: 5},
		{Function: "ip_rcv", Reason: "IP_CSUM", Netns: 8, Packets: 1000},
	}}
	first := DropsOf(read, nil, 7, began, began, Limits{Top: 1})
	if first.Packets != 45 || first.PerSecond != 0 || len(first.Places) != 1 || len(first.Reasons) != 2 || first.Reasons[0].Packets != 40 {
		t.Errorf("first %+v", first)
	}
	read.Sites[1].Packets = 30
	second := DropsOf(read, first, 7, began, began.Add(10*time.Second), Limits{Top: 1})
	if second.PerSecond != 2 || second.Reasons[0].PerSecond != 2 || second.Reasons[1].PerSecond != 0 {
		t.Errorf("second %+v", second)
	}
}

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, v := range []float64{0.0005, 0.0006, 0.7, 3} {
		h.Add(v)
	}
	kept := h.Clone()
	h.Add(3)
	if kept.Counts[0] != 1 || kept.Counts[1] != 1 || kept.Counts[len(h.Bounds)-1] != 1 || kept.Counts[len(h.Bounds)] != 1 || h.Counts[len(h.Bounds)] != 2 || kept.Sum != 3.7011 {
		t.Errorf("%+v, then %+v", kept, h)
	}
}

func TestStack(t *testing.T) {
	if StackOf(&snapshot.Snapshot{}) != nil {
		t.Error("what was not read")
	}
	s := &snapshot.Snapshot{TakenAt: began, TCP: &snapshot.TCP{Counters: snapshot.Counters{"TcpRetransSegs": 5, "TcpRtoMin": 200}, Sockets: &snapshot.TCPSockets{InUse: 1, InUse6: 2, TimeWait: 3, Orphans: 4}}}
	want := &Stack{Reading: Reading{At: began}, Counters: map[string]uint64{"TcpRetransSegs": 5}, Sockets: map[string]int64{"in_use": 3, "time_wait": 3, "orphan": 4}}
	if diff := cmp.Diff(want, StackOf(s)); diff != "" {
		t.Error(diff)
	}
}

// TestFindingsKeepTheirEvidence: one that stands though the last report is without it has what was known of it.
func TestFindingsKeepTheirEvidence(t *testing.T) {
	full := diagnose.Finding{ID: "ct-table-full", Severity: diagnose.Critical, Title: "full"}
	standing := []diagnose.Standing{{ID: full.ID, Severity: full.Severity}}
	checks := []diagnose.Check{{ID: full.ID, State: diagnose.Found}, {ID: "a", State: diagnose.OK}, {ID: "b", State: diagnose.NotChecked, NotAsked: true}}
	first := FindingsOf(&diagnose.Report{TakenAt: began, Findings: []diagnose.Finding{full}, Checks: checks}, standing, nil)
	second := FindingsOf(&diagnose.Report{TakenAt: began, Checks: checks[1:]}, standing, first)
	if len(second.All) != 1 || second.All[0].Finding == nil || second.All[0].Finding.Title != "full" || second.Reports != 2 {
		t.Errorf("%+v", second)
	}
	if diff := cmp.Diff(map[diagnose.State]int{diagnose.Found: 1, diagnose.OK: 1}, first.Checks); diff != "" {
		t.Error(diff)
	}
	if third := FindingsOf(&diagnose.Report{TakenAt: began}, nil, second); len(third.All) != 0 {
		t.Errorf("%+v", third)
	}
}

// TestHistory: bounded, with null for what is not known or old.
func TestHistory(t *testing.T) {
	n := &Namespace{Counters: &Counters{Reading: Reading{At: began}, Entries: 5}}
	var h History
	h.Add(n, began, time.Minute)
	kept := h.Clone()
	h.Add(n, began.Add(2*time.Minute), time.Minute) // nothing was read meanwhile
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"entries":[5,null]`) || !strings.Contains(string(text), `"limit_entries":[null,null]`) {
		t.Errorf("%s", text)
	}
	var back History
	if err := json.Unmarshal(text, &back); err != nil || len(back.Times) != 2 || !math.IsNaN(float64(back.Series[SeriesEntries][1])) {
		t.Errorf("read back %v, %v", back, err)
	}
	for i := range 2 * HistoryPoints {
		at := began.Add(time.Duration(i) * time.Second)
		n.Counters = &Counters{Reading: Reading{At: at}, Entries: int64(i)}
		h.Add(n, at, time.Minute)
	}
	entries := h.Series[SeriesEntries]
	if len(h.Times) != HistoryPoints || len(entries) != HistoryPoints || entries[0] != HistoryPoints || entries[HistoryPoints-1] != 2*HistoryPoints-1 {
		t.Errorf("%d times, %d points from %v to %v", len(h.Times), len(entries), entries[0], entries[len(entries)-1])
	}
	if len(kept.Times) != 1 || kept.Series[SeriesEntries][0] != 5 {
		t.Errorf("the copy changed: %+v", kept)
	}
}

// TestAged: ages are of the time that is asked for, and those of a copy alone.
func TestAged(t *testing.T) {
	n := &Namespace{Counters: &Counters{Reading: Reading{At: began}}, Findings: &Findings{Reading: Reading{At: began.Add(-time.Minute)}}}
	aged := n.Aged(began.Add(10 * time.Second))
	if diff := cmp.Diff(map[string]float64{PartCounters: 10, PartFindings: 70}, aged.Ages()); diff != "" {
		t.Error(diff)
	}
	if n.Counters.AgeSeconds != 0 || aged.Unread == nil {
		t.Errorf("the original has %g s; unread %v", n.Counters.AgeSeconds, aged.Unread)
	}
	for part := range aged.Ages() {
		if !strings.Contains(strings.Join(Parts, " "), part) {
			t.Errorf("part %s is not in Parts", part)
		}
	}
}

// TestTableMemory: what entries, their extensions and the buckets take, by the sizes of the kernel.
func TestTableMemory(t *testing.T) {
	s := counted(1)
	s.Table = &snapshot.ConntrackTable{Sampled: 7, Complete: true}
	s.ConntrackSize = &snapshot.ConntrackSize{EntryBytes: 256, ExtensionBytes: 128, BucketBytes: 8, SlabBytes: 8192, Source: "/proc/slabinfo"}
	want := &TableMemory{EntriesBytes: 7 * 256, ExtensionsBytes: 7 * 128, BucketsBytes: 4 * 8, LimitEntriesBytes: 10 * 256, LimitExtensionsBytes: 10 * 128,
		SlabBytes: 8192, Source: "/proc/slabinfo"}
	if diff := cmp.Diff(want, TableOf(&snapshot.Sample{Snapshot: s}, Limits{}).Memory); diff != "" {
		t.Error(diff)
	}
	s.ConntrackSize = nil
	if m := TableOf(&snapshot.Sample{Snapshot: s}, Limits{}).Memory; m.Source != "assumed" || m.SlabBytes != 0 || m.EntriesBytes != 7*256 {
		t.Errorf("%+v", m)
	}
	s.Sysctls = nil
	if m := TableOf(&snapshot.Sample{Snapshot: s}, Limits{}).Memory; m != nil {
		t.Errorf("of a table whose size is not known: %+v", m)
	}
}
