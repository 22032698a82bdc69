package table

import (
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

var addr = netip.MustParseAddr

var at = time.Date(2026, 11, 30, 10, 15, 0, 0, time.UTC)

func TestEntryRow(t *testing.T) {
	rows := EntryRows{Head: Head{Node: "n", Kernel: "6.18.0", Netns: "gw", Time: TimeOf(at)},
		Idle: func(*conntrack.Entry) (int64, bool) { return 0, true }}
	e := &conntrack.Entry{Family: unix.AF_INET, Status: conntrack.SeenReply | conntrack.Assured, TCPState: conntrack.TCPEstablished, Fields: conntrack.HasCounters,
		Timeout: 432000, Start: uint64(at.Add(-time.Minute).UnixNano()), Zone: 3, Sent: conntrack.Counters{Packets: 5, Bytes: math.MaxUint64},
		Orig:  conntrack.Tuple{Src: addr("10.0.0.5"), Dst: addr("203.0.113.1"), Proto: unix.IPPROTO_TCP, SrcPort: 40000, DstPort: 443},
		Reply: conntrack.Tuple{Src: addr("10.9.9.9"), Dst: addr("198.51.100.1"), Proto: unix.IPPROTO_TCP, SrcPort: 8443, DstPort: 1024}}
	want := Entry{Head: rows.Head, Family: "ipv4", Protocol: "tcp", State: "ESTABLISHED", Zone: 3, Mark: new(int64(0)), Src: "10.0.0.5", Sport: 40000, Dst: "203.0.113.1", Dport: 443,
		ReplySrc: "10.9.9.9", ReplySport: 8443, ReplyDst: "198.51.100.1", ReplyDport: 1024, SNAT: true, DNAT: true, NATAddress: "198.51.100.1", NATPort: 1024,
		Server: "10.9.9.9", ServerPort: 8443, OrigPackets: new(int64(5)), OrigBytes: new(int64(math.MaxInt64)), ReplyPackets: new(int64(0)), ReplyBytes: new(int64(0)),
		TimeoutS: new(int64(432000)), IdleS: new(int64(0)), Assured: true, Replied: true, Started: TimeOf(at.Add(-time.Minute))}
	if d := cmp.Diff(want, rows.Row(e)); d != "" {
		t.Error(d)
	}

	// What is not known is null: no accounting, no timeout, no mark, no translation, no state, no port.
	e = &conntrack.Entry{Family: unix.AF_INET6, Fields: conntrack.NoTimeout | conntrack.NoMark,
		Orig:  conntrack.Tuple{Src: addr("2001:db8:0:0::5"), Dst: addr("2001:db8::1"), Proto: unix.IPPROTO_ICMPV6, ICMPID: 77, ICMPType: 128},
		Reply: conntrack.Tuple{Src: addr("2001:db8::1"), Dst: addr("2001:db8::5"), Proto: unix.IPPROTO_ICMPV6, ICMPID: 77, ICMPType: 129}}
	want = Entry{Head: rows.Head, Family: "ipv6", Protocol: "icmpv6", Src: "2001:db8::5", Sport: 77, Dst: "2001:db8::1", ReplySrc: "2001:db8::1", ReplyDst: "2001:db8::5", ReplyDport: 77, Server: "2001:db8::1"}
	if d := cmp.Diff(want, rows.Row(e)); d != "" {
		t.Error(d)
	}
	if got := rows.Row(&conntrack.Entry{}); got.Src != "" { // an entry without tuples does not panic
		t.Errorf("no source became %q", got.Src)
	}
}

// Rows keep what they point to when many others have been made.
func TestNumbersOfRowsStay(t *testing.T) {
	var rows EntryRows
	var all []Entry
	for i := range 3 * numbersAtOnce {
		all = append(all, rows.Row(&conntrack.Entry{Mark: uint32(i), Orig: conntrack.Tuple{Src: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}}))
	}
	for i, row := range all {
		if *row.Mark != int64(i) {
			t.Fatalf("row %d has mark %d", i, *row.Mark)
		}
	}
	for i := range 2 * mostAddresses {
		rows.address(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if len(rows.addresses) > mostAddresses {
		t.Errorf("%d addresses are kept", len(rows.addresses))
	}
}

// Each step of a connection has its column, and they add up.
func TestFlowRows(t *testing.T) {
	steps := map[snapshot.Step]uint64{}
	all := []snapshot.Step{snapshot.StepAnswered, snapshot.StepWaiting, snapshot.StepOneWay, snapshot.StepLostHere, snapshot.StepRefusedHere, snapshot.StepUnreachableHere,
		snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable, snapshot.StepOtherSource, snapshot.StepAnswerLost, snapshot.StepAnswerUntranslated,
		snapshot.StepClientSilent, snapshot.StepDataLost, snapshot.StepDataUnanswered, snapshot.StepResetHere, snapshot.StepReset, snapshot.StepDataMissing, snapshot.StepPartLost}
	for i, s := range all {
		steps[s] = 1 << i
	}
	rows := FlowRows(Head{Node: "n"}, &snapshot.Followed{Seconds: 2.5, Sample: 4, Services: []snapshot.FollowedService{{Protocol: "tcp",
		Service: netip.MustParseAddrPort("203.0.113.1:443"), Steps: steps, HereSeconds: 0.0001, BeyondSeconds: 0.002}}})
	if len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	r := rows[0]
	if sum := r.Answered + r.Waiting + r.OneWay + r.Failed; sum != r.Connections || r.Connections != 1<<len(all)-1 {
		t.Errorf("%d connections, their sum is %d", r.Connections, sum)
	}
	seen := int64(0)
	v := reflect.ValueOf(r)
	for _, c := range reflect.VisibleFields(v.Type()) {
		if _, of := c.Tag.Lookup("unit"); of && c.Tag.Get("unit") == "connections" && c.Name != "Connections" && c.Name != "Failed" {
			seen += v.FieldByIndex(c.Index).Int()
		}
	}
	if seen != r.Connections {
		t.Errorf("the columns have %b of %b", seen, r.Connections)
	}
	if r.HereUS == nil || *r.HereUS != 100 || r.ServerUS == nil || *r.ServerUS != 2000 || r.BackUS != nil || r.Target != "" || r.TargetPort != 0 {
		t.Errorf("row is %+v", r)
	}
}

func TestFindingRows(t *testing.T) {
	rows := FindingRows("n", &diagnose.Report{TakenAt: at, Kernel: "6.1", NetnsInode: 4026531840, Seconds: 5, Findings: []diagnose.Finding{
		{ID: "ct-table-full", Severity: diagnose.Critical, Confidence: "certain", Title: "full", SinceSeconds: 60,
			About: []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:53"), netip.AddrPortFrom(addr("10.0.0.1"), 0), {}}, Remedies: []diagnose.Remedy{{Title: "raise"}}},
		{ID: "x", Severity: diagnose.Notice},
	}})
	want := []Finding{{Head: Head{Node: "n", Kernel: "6.1", Netns: "4026531840", Time: TimeOf(at)}, ID: "ct-table-full", Severity: "critical", Certainty: "certain", Title: "full",
		Subject: "[2001:db8::1]:53 10.0.0.1 port 0", Remedy: "raise", FirstSeen: TimeOf(at.Add(-time.Minute)), IntervalS: 5}}
	if d := cmp.Diff(want, rows[:1]); d != "" || len(rows) != 2 {
		t.Errorf("%d rows: %s", len(rows), d)
	}
}

func sampleAt(second int, boot string, counters ...uint64) *snapshot.Recording {
	stat := &snapshot.ConntrackStat{}
	for _, n := range counters {
		stat.PerCPU = append(stat.PerCPU, map[string]uint64{"drop": n})
	}
	s := &snapshot.Snapshot{TakenAt: at.Add(time.Duration(second) * time.Second), UptimeSeconds: 1000 + float64(second), Kernel: snapshot.Kernel{Release: "6.18", BootID: boot},
		Sysctls: snapshot.Sysctls{snapshot.ConntrackCount: "7", snapshot.ConntrackMax: "100"}, ConntrackStat: stat}
	return &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s}}
}

// Counters go on where the kernel's of 32 bits wrap, and begin again with a boot.
func TestSampleRows(t *testing.T) {
	rows := SampleRows{Node: "n"}
	for _, c := range []struct {
		rec  *snapshot.Recording
		drop int64
		gap  float64
	}{
		{sampleAt(0, "a", math.MaxUint32, 5), math.MaxUint32 + 5, 0},
		{sampleAt(10, "a", 2, 6), math.MaxUint32 + 5 + 3 + 1, 10},
		{sampleAt(20, "b", 1, 0), 1, 0},
	} {
		row := rows.Row(c.rec, nil)
		if row.Drop == nil || *row.Drop != c.drop {
			t.Errorf("drop is %v, want %d", row.Drop, c.drop)
		}
		if (c.gap == 0) != (row.IntervalS == nil) || c.gap > 0 && *row.IntervalS != c.gap {
			t.Errorf("interval is %v, want %v", row.IntervalS, c.gap)
		}
		if *row.Entries != 7 || *row.EntriesMax != 100 || row.EarlyDrop != nil || row.SYNs != nil || row.DroppedPackets != nil {
			t.Errorf("row is %+v", row)
		}
	}
}

func TestServiceRows(t *testing.T) {
	web, target := netip.MustParseAddrPort("203.0.113.1:443"), netip.MustParseAddrPort("10.0.0.2:8443")
	rec := sampleAt(0, "a")
	rec.Flows = &snapshot.Flows{Services: &snapshot.Services{Seconds: 30, Complete: true, All: []snapshot.Service{
		{Kind: snapshot.ServiceDNAT, Protocol: "tcp", Service: web, Target: target, Answered: 10, Unanswered: 2, HalfOpen: 1},
		{Kind: snapshot.ServiceSNAT, Protocol: "tcp", Given: addr("198.51.100.1"), Answered: 4},
	}}}
	rec.Followed = &snapshot.Followed{Services: []snapshot.FollowedService{
		{Protocol: "tcp", Service: web, Target: target, Steps: map[snapshot.Step]uint64{snapshot.StepAnswered: 3, snapshot.StepRefused: 2}, HereSeconds: 0.001, BeyondSeconds: 0.002},
		{Protocol: "tcp", Service: web, Steps: map[snapshot.Step]uint64{snapshot.StepAnswered: 1}, BeyondSeconds: 0.007},
		{Protocol: "udp", Service: web, Steps: map[snapshot.Step]uint64{snapshot.StepRefused: 9}},
	}}
	rows := ServiceRows("n", rec)
	if len(rows) != 2 {
		t.Fatalf("%d rows", len(rows))
	}
	r := rows[0]
	if r.Attempts != 13 || r.Answered != 10 || r.Unanswered != 3 || *r.Refused != 2 || *r.HandshakeUS != 4000 || r.New != nil || !r.Complete || r.Port != 443 || r.Target != "10.0.0.2" {
		t.Errorf("row is %+v", r)
	}
	if r := rows[1]; r.Refused != nil || r.HandshakeUS != nil || r.Address != "" || r.NATAddress != "198.51.100.1" || r.Attempts != 4 {
		t.Errorf("row is %+v", r)
	}
}

func TestCapturedRows(t *testing.T) {
	c := &pcap.Connection{Client: netip.MustParseAddrPort("10.0.0.5:40000"), Server: netip.MustParseAddrPort("203.0.113.1:80"), Begun: true, First: at, Last: at.Add(time.Second),
		Outcome: "connected", Closed: pcap.ClosedByServer, Handshake: 1500 * time.Microsecond, SYNs: 2, FromClient: pcap.Sent{Packets: 4, Bytes: 100}}
	row := ConnectionRow("n", c)
	if row.Started != TimeOf(at) || row.Ended != TimeOf(at.Add(time.Second)) || *row.HandshakeUS != 1500 || row.SYNs != 2 || row.ClientBytes != 100 || row.Closed != "server-first" {
		t.Errorf("row is %+v", row)
	}
	c.Begun, c.Handshake = false, 0
	if row := ConnectionRow("n", c); row.Started != 0 || row.HandshakeUS != nil || row.Time != TimeOf(at) {
		t.Errorf("row is %+v", row)
	}
	i := IncidentRow("n", &pcap.Incident{Kind: pcap.SYNUnanswered, Client: c.Client, Server: c.Server, Time: at, Frame: 9, Outcome: pcap.Failed, SYNs: []pcap.SYN{{}, {Verdict: pcap.Unanswered}}})
	if i.Kind != "syn-unanswered" || !i.Fault || i.Text == "" || i.Verdict != "unanswered" || i.SYNs != 2 || i.ConnectUS != nil || i.Frame != 9 {
		t.Errorf("row is %+v", i)
	}
}
