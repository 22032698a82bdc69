package report

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/testutil"
)

var captureBegan = time.Date(2021, 3, 1, 10, 0, 0, 0, time.UTC)

func number(n uint32) *uint32 { return &n }

// rejectedAttempt is the case of a port that came back after 111.5 s with another
// machine's clock.
func rejectedAttempt(client string) pcap.Incident {
	step := func(frame int64, after time.Duration, fromClient bool, flags frame.TCPFlags, seq, ack uint32, role pcap.Role) pcap.Step {
		return pcap.Step{Frame: frame, Time: captureBegan.Add(after), FromClient: fromClient, Flags: flags, Seq: seq, Ack: ack, Role: role, Window: 501}
	}
	const ms, reuse = time.Millisecond, 111500 * time.Millisecond
	steps := []pcap.Step{
		step(808, 0, true, frame.ACK|frame.PSH, 1001, 500001, pcap.RoleFormer),
		step(809, ms, false, frame.ACK|frame.PSH, 500001, 1011, pcap.RoleFormer),
		step(810, 2*ms, false, frame.FIN|frame.ACK, 500021, 1011, pcap.RoleFormer),
		step(812, 3*ms, true, frame.FIN|frame.ACK, 1011, 500022, pcap.RoleFormer),
		step(813, 4*ms, false, frame.ACK, 500022, 1012, pcap.RoleFormer),
		step(9120, reuse, true, frame.SYN, 900000, 0, pcap.RoleSYN),
		step(9121, reuse+ms, false, frame.ACK, 500022, 1012, pcap.RoleOldACK),
		step(9122, reuse+2*ms, true, frame.RST, 1012, 0, pcap.RoleReset),
	}
	steps[0].Length, steps[1].Length = 10, 20
	for i := range steps[:7] {
		steps[i].TSVal, steps[i].TSEcr = number(2149756050+uint32(i)), number(77000+uint32(i))
	}
	steps[3].TSVal, steps[5].TSVal, steps[6].TSEcr = number(2149756058), number(2149514922), number(2149756058)
	return pcap.Incident{Kind: pcap.SYNRejectedPAWS, Client: netip.MustParseAddrPort(client), Server: netip.MustParseAddrPort("203.0.113.1:443"),
		Frame: 9120, Time: steps[5].Time, Outcome: pcap.Failed,
		Former: &pcap.Former{LastFrame: 813, LastTime: steps[4].Time, After: 111.496, Closed: pcap.ClosedByServer, LastTSVal: number(2149756058), RcvNxt: 1012, SndNxt: 500022},
		SYNs: []pcap.SYN{{Frame: 9120, Time: steps[5].Time, Verdict: pcap.RejectedPAWS, Answer: 9121, Reset: 9122,
			TSVal: number(2149514922), TSRecent: number(2149756058), Seq: 900000, RcvNxt: number(1012)}},
		Ladder: steps}
}

// madeUpCapture has an incident of every kind. Its figures are made up.
func madeUpCapture() *pcap.Report {
	second := rejectedAttempt("198.18.0.1:40000")
	second.Outcome, second.ConnectSeconds, second.Frame = pcap.Connected, 1.02, 9200
	third := rejectedAttempt("[2001:db8:ffff:ffff:ffff:ffff:ffff:fff1]:40001")
	third.Server, third.Outcome, third.Ladder, third.LadderMore = netip.MustParseAddrPort("[2001:db8:ffff:ffff:ffff:ffff:ffff:fff2]:443"), pcap.OutcomeOpen, third.Ladder[5:], 12
	third.SYNs[0].Inferred = true
	r := &pcap.Report{Schema: pcap.Schema, RejectedByPAWS: 512, RejectedBySequence: 3,
		Stats: pcap.Stats{Format: "pcapng", Compression: "gzip", FileBytes: 8 << 20, Packets: 123456, Bytes: 17 << 20, CapturedBytes: 8 << 20,
			First: captureBegan, Last: captureBegan.Add(125300 * time.Millisecond), Cut: 100, LaterFragments: 3,
			Interfaces: []pcap.Interface{{Name: "eth0", LinkType: 1, LinkName: "Ethernet", Packets: 123450, Dropped: 7}, {Name: "tun\x1b[2J", LinkType: 101, LinkName: "raw IP", Packets: 6}},
			Undecoded:  []pcap.ReasonCount{{Reason: pcap.NotIP, Packets: 44, First: 3}, {Reason: pcap.CutHeader, Packets: 1, First: 99}},
			Tunnels:    []pcap.NamedCount{{Name: "GRE", Packets: 5}},
			Protocols:  []pcap.NamedCount{{Name: "TCP", Packets: 123000}, {Name: "UDP", Packets: 400}, {Name: "ICMP", Packets: 12}},
			Damage:     []pcap.Damage{{Offset: 123456, After: 99, What: "record of 3 GiB\x07", Skipped: 512}, {Offset: 8 << 20, After: 123456, What: "the file ends within a packet", Ended: true}}, DamageMore: 2},
		Connections: pcap.Connections{Total: 20000, Begun: 19990, Established: 19400, Refused: 2, Unanswered: 5, Pending: 1, ServerClosedFirst: 19000, ClientClosedFirst: 12, Reset: 600},
		Reuse: pcap.Reuse{Tuples: 1200, TimestampsBack: 530, SequenceBack: 601, Rejected: 515,
			After: &pcap.Distribution{Count: 1200, Min: 12.3, P1: 15, Median: 61, P90: 100, P99: 111.2, Max: 112, Buckets: []pcap.Bucket{{Below: 30, Count: 500}, {Below: 60, Count: 90}, {Below: 112.5, Count: 610}, {}}}},
		Incidents: []pcap.Incident{rejectedAttempt("198.18.0.1:33735"), second, third},
		Clocks: []pcap.PairClocks{{Source: netip.MustParseAddr("198.18.0.1"), Destination: netip.MustParseAddr("203.0.113.1"), Connections: 20000, Count: 2,
			Clocks: []pcap.Clock{{Hz: 1000.02, Exact: true, Offset: 2149644558, Connections: 12000}, {Hz: 1000, Offset: 2149403422, Connections: 8000}}},
			{Source: netip.MustParseAddr("198.18.0.9"), Destination: netip.MustParseAddr("203.0.113.1"), Connections: 3012, Count: 2980, PerConnection: true},
			{Source: netip.MustParseAddr("2001:db8:ffff:ffff:ffff:ffff:ffff:fff1"), Destination: netip.MustParseAddr("2001:db8::1"), Count: 9, PerConnection: true},
			{Source: netip.MustParseAddr("203.0.113.1"), Destination: netip.MustParseAddr("198.18.0.1"), Connections: 20000, Count: 1, Clocks: []pcap.Clock{{Hz: 1000, Exact: true}}}},
		Retransmissions: pcap.Retransmissions{SYN: 530, SYNACK: 2, Data: 10, OutOfOrder: 1, Backoffs: []pcap.Backoff{{Nth: 1, Count: 500, Median: 1.01}, {Nth: 2, Count: 30, Median: 2.02}}},
		ICMPErrors:      []pcap.ICMPError{{From: netip.MustParseAddr("198.18.0.254"), Version: 4, Type: 3, Code: 4, Name: "fragmentation needed", MTU: 1400, Count: 12, Flows: 3, First: 500}},
		Limits:          pcap.Limits{Memory: 256 << 20, Forgotten: 10, Youngest: 90},
		Notes:           []string{"only one direction of 3 connections was captured\x1b]0;x\a"}}
	for i, kind := range pcap.Kinds {
		if i > 0 {
			in := rejectedAttempt(fmt.Sprintf("198.18.0.%d:33735", i))
			syns := in.SYNs
			in.Kind, in.SYNs = kind, nil
			switch kind {
			case pcap.SYNOnOpen:
				syns[0].Verdict, syns[0].AnswerID = pcap.Challenged, new(uint16(4711))
				in.SYNs = syns
			case pcap.SYNOnFormer:
				syns[0].Verdict = pcap.Undecided
				in.SYNs = syns
			case pcap.SYNNotAccepted:
				syns[0].Verdict, syns[0].Answer, syns[0].Reset = pcap.NotAccepted, 0, 0
				in.SYNs = syns
			case pcap.RSTOutOfWindow:
				in.Window, in.Frame = &[2]uint32{500, 1000}, 9122
			case pcap.RetransmissionBackoff:
				in.Intervals = []float64{0.2, 0.4, 0.8, 1.6, 3.2, 6.4}
			case pcap.ICMPErrorKind:
				in.ICMP = &r.ICMPErrors[0]
			}
			r.Incidents = append(r.Incidents, in)
		}
		r.Kinds = append(r.Kinds, pcap.KindCount{Kind: kind, Count: int64(600 - 50*i), Kept: 1})
	}
	return r
}

func TestPcap(t *testing.T) {
	view := PcapView{Source: "server.pcapng.gz", Max: 2}
	for name, tt := range map[string]struct {
		view  func(*PcapView)
		style Style
		r     *pcap.Report
	}{
		"pcap.txt": {func(*PcapView) {}, Style{}, madeUpCapture()},
		"pcap-all.txt": {func(v *PcapView) {
			v.Steps, v.Clock, v.Kinds = true, true, []pcap.Kind{pcap.SYNRejectedPAWS}
			v.Max = 0
		}, Style{Columns: 120}, madeUpCapture()},
		"pcap-narrow.txt":  {func(v *PcapView) { v.Interrupted = true; v.Max = 3 }, Style{Columns: 80}, madeUpCapture()},
		"pcap-healthy.txt": {func(*PcapView) {}, Style{}, &pcap.Report{Stats: pcap.Stats{Format: "pcap", Packets: 2, Bytes: 100, First: captureBegan, Last: captureBegan.Add(time.Second)}}},
		"pcap-empty.txt":   {func(*PcapView) {}, Style{}, &pcap.Report{Stats: pcap.Stats{Format: "pcap"}}},
	} {
		t.Run(name, func(t *testing.T) {
			v, out := view, bytes.Buffer{}
			tt.view(&v)
			if err := Pcap(&out, tt.style, v, tt.r); err != nil {
				t.Fatal(err)
			}
			golden(t, name, out.Bytes())
			checkLines(t, out.String(), tt.style.columns())
		})
	}
}

// TestNoIncidents says "none" no more surely than the packets allow.
func TestNoIncidents(t *testing.T) {
	for want, unread := range map[string]pcap.ReasonCount{
		"No incidents.": {Reason: pcap.CutHeader, Packets: 40},
		"No incidents in the packets that could be read, which are the minority.": {Reason: pcap.CutHeader, Packets: 60},
		"No incidents: no packet is IP, or none could be read.":                   {Reason: pcap.NotIP, Packets: 100},
	} {
		var out bytes.Buffer
		r := &pcap.Report{Stats: pcap.Stats{Format: "pcap", Packets: 100, Undecoded: []pcap.ReasonCount{unread}}}
		if err := Pcap(&out, Style{}, PcapView{}, r); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "\n"+want+"\n") {
			t.Errorf("%+v: want %q in\n%s", unread, want, out.String())
		}
	}
}

func TestPcapList(t *testing.T) {
	var out bytes.Buffer
	if err := PcapList(&out, Style{}, PcapView{}, madeUpCapture()); err != nil {
		t.Fatal(err)
	}
	golden(t, "pcap-list.txt", out.Bytes())
}

// checkLines holds that no line is too long, and that nothing acts on a terminal.
func checkLines(t *testing.T, text string, columns int) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := textWidth(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.ContainsAny(line, "\x1b\x07\u009b") {
			t.Errorf("control characters: %q", line)
		}
	}
}

// FuzzPcap writes what there is to say of files: it ends, and nothing acts on a terminal.
func FuzzPcap(f *testing.F) {
	file, err := os.ReadFile("testdata/paws.pcap")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Fuzz(func(t *testing.T, file []byte) {
		defer testutil.Bounded(t, len(file))()
		r, err := pcap.Read(bytes.NewReader(file), pcap.Options{Memory: pcap.MinMemory})
		if err != nil {
			return
		}
		var out bytes.Buffer
		for _, v := range []PcapView{{}, {Steps: true, Clock: true}} {
			if err := Pcap(&out, Style{Columns: 80}, v, r); err != nil {
				t.Fatal(err)
			}
		}
		checkLines(t, out.String(), 80)
		if err := PcapList(&out, Style{}, PcapView{}, r); err != nil {
			t.Fatal(err)
		}
		if err := JSON(io.Discard, r); err != nil {
			t.Fatal(err)
		}
	})
}
