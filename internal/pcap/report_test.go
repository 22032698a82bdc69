package pcap

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// tick is the timestamp of a machine some milliseconds after the capture's start.
type tick func(ms float64) uint32

func machine(hz float64, offset uint32) tick {
	return func(ms float64) uint32 { return offset + uint32(int64(ms*hz/1000)) }
}

// clocked is a connection of 3 ms by a machine.
func clocked(t *testing.T, i int, ms float64, clock tick) []line1 {
	return parseScript(t, netip.AddrPortFrom(clientA.Addr(), uint16(10000+i)), serverA, fmt.Sprintf(`
		%f > S  100 0   0 %d 0
		%f < SA 900 101 0 %d 0
		%f > FA 101 901 9 %d 0`, ms, clock(ms), ms+1, uint32(7000+int64(ms)), ms+3, clock(ms+3)))
}

func TestClocks(t *testing.T) {
	for _, tt := range []struct {
		name     string
		machines []tick
		hz       []float64
		offset   []uint32
		per      bool
	}{
		{"one", []tick{machine(1000, 5)}, []float64{1000}, []uint32{5}, false},
		{"two, one wraps", []tick{machine(1000, 5), machine(1000, math.MaxUint32-20_000)}, []float64{1000, 1000}, []uint32{5, math.MaxUint32 - 20_000}, false},
		{"of 250 Hz and 100 Hz", []tick{machine(250, 9000), machine(100, 1e9)}, []float64{250, 100}, []uint32{9000, 1e9}, false},
		{"microseconds", []tick{machine(1e6, 77)}, []float64{1e6}, []uint32{77}, false},
		{"a little slow", []tick{machine(999.9, 1e6)}, []float64{999.9}, []uint32{1e6}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var lines []line1
			for i := range 400 {
				lines = append(lines, clocked(t, i, float64(i)*97, tt.machines[i%len(tt.machines)])...)
			}
			clocks := reportOf(t, scripted(t, lines), Options{}).Clocks
			var got *PairClocks
			for i := range clocks {
				if clocks[i].Source == clientA.Addr() {
					got = &clocks[i]
				}
			}
			if got == nil || got.Count != int64(len(tt.machines)) || got.Connections != 400 || got.PerConnection || got.More {
				t.Fatalf("%+v", clocks)
			}
			for i, c := range got.Clocks {
				off := math.Abs(float64(int32(c.Offset - tt.offset[i])))
				if math.Abs(c.Hz/tt.hz[i]-1) > 1e-3 || !c.Exact || off > tt.hz[i]/50 || c.Connections != int64(400/len(tt.machines)) {
					t.Errorf("%+v, want %g Hz and %d at the start", c, tt.hz[i], tt.offset[i])
				}
			}
		})
	}
}

// TestClockOfEachTuple has an offset for each port, as kernels of 2026.
func TestClockOfEachTuple(t *testing.T) {
	var lines []line1
	for i := range 300 { // 100 ports, three times
		lines = append(lines, clocked(t, i%100, float64(i)*50, machine(1000, uint32(i%100)*40_000_003))...)
	}
	for _, c := range reportOf(t, scripted(t, lines), Options{}).Clocks {
		if c.Source == clientA.Addr() && (!c.PerConnection || c.Count < 64 || len(c.Clocks) != 0) {
			t.Errorf("%+v", c)
		}
	}
}

func TestBackoff(t *testing.T) {
	r := reportOf(t, scripted(t, parseScript(t, clientA, serverA, `
		0    > S 100 0 0 5000 0
		1000 > S 100 0 0 6000 0
		3000 > S 100 0 0 8000 0
		7000 > S 100 0 0 12000 0
		9000 > A 1 1 0`)), Options{})
	if r.Retransmissions.SYN != 3 || len(r.Retransmissions.Backoffs) != 3 {
		t.Fatalf("%+v", r.Retransmissions)
	}
	for i, want := range []float64{1, 2, 4} {
		b := r.Retransmissions.Backoffs[i]
		if b.Nth != i+1 || b.Count != 1 || math.Abs(b.Median-want) > 0.01 || b.Min != b.Max {
			t.Errorf("%+v, want %g", b, want)
		}
		if got := r.Incidents[0].Intervals[i]; math.Abs(got-want) > 1e-9 {
			t.Errorf("interval %g, want %g", got, want)
		}
	}
}

func TestICMPErrors(t *testing.T) {
	r := reportOf(t, scripted(t, parseScript(t, clientA, serverA, `
		0 > S 100 0 0 5000 0
		1 < icmp 3 13 100
		2 < icmp 3 13 100
		3 < icmp 11 0 100`)), Options{})
	want := []ICMPError{
		{From: serverA.Addr(), Version: 4, Type: 3, Code: 13, Name: "communication prohibited", Count: 2, Flows: 1, First: 2},
		{From: serverA.Addr(), Version: 4, Type: 11, Name: "time to live exceeded", Count: 1, First: 4},
	}
	if len(r.ICMPErrors) != 2 || r.ICMPErrors[0] != want[0] || r.ICMPErrors[1] != want[1] {
		t.Errorf("%+v, want %+v", r.ICMPErrors, want)
	}
	if i := r.Incidents[0]; i.ICMP == nil || i.Client != clientA || len(i.Ladder) != 1 {
		t.Errorf("%+v", i)
	}
}

// TestTotals counts what is not looked into.
func TestTotals(t *testing.T) {
	fragment := func(flags, offset byte) []byte {
		b := udpFrame(100)
		b[14+6], b[14+7] = flags, offset
		return b
	}
	protocol := func(p byte) []byte {
		b := udpFrame(100)
		b[14+9] = p
		return b
	}
	vxlan := udpFrame(100)
	vxlan[36], vxlan[37] = 4789>>8, 4789&0xff
	file := classicFile(t, layers.LinkTypeEthernet, udpFrame(9), fragment(0x20, 0), fragment(0, 9), protocol(47), protocol(4), vxlan, udpFrame(9)[:30])
	_, stats := gists(t, bytes.NewReader(file))
	if stats.Fragments != 2 || stats.LaterFragments != 1 || stats.Packets != 7 || stats.Duration() != 6*time.Second {
		t.Errorf("stats %+v", stats)
	}
	if len(stats.Tunnels) != 3 || len(stats.Undecoded) != 1 || stats.Undecoded[0] != (ReasonCount{CutHeader, 1, 7}) {
		t.Errorf("tunnels %+v, undecoded %+v", stats.Tunnels, stats.Undecoded)
	}
}

// TestOneDirection: SYNs that clients continue after were answered; for the others it is
// not known.
func TestOneDirection(t *testing.T) {
	other := netip.AddrPortFrom(clientA.Addr(), 40001)
	lines := parseScript(t, clientA, serverA, "0 > S 100 0 0 5000 0\n 1000 > S 100 0 0 6000 0\n 9000 > A 1 1 0")
	none := reportOf(t, scripted(t, append(lines, parseScript(t, other, serverA, "9001 > S 100 0 0 5000 0")...)), Options{})
	if len(none.Kinds) != 1 || none.Kinds[0].Kind != SYNUnanswered || len(none.Notes) != 1 {
		t.Errorf("no answer at all: kinds %+v, notes %q", none.Kinds, none.Notes)
	}
	one := reportOf(t, scripted(t, append(lines, parseScript(t, other, serverA, "9001 > S 100 0 0 5000 0\n 9002 > A 101 901 10 5001 7000")...)), Options{})
	if len(one.Kinds)+len(one.Incidents) != 0 || len(one.Notes) != 1 || one.Connections.Unanswered != 1 {
		t.Errorf("one direction: kinds %+v, notes %q, connections %+v", one.Kinds, one.Notes, one.Connections)
	}
}

// TestUnordered: packets that are near their places are put there, and of others the
// report warns.
func TestUnordered(t *testing.T) {
	near := reportOf(t, scripted(t, parseScript(t, clientA, serverA, "1 < SA 900 101 0 7000 5000\n 0 > S 100 0 0 5000 0")), Options{})
	if near.OutOfOrder != 1 || near.Connections.Established != 1 || len(near.Notes) != 0 {
		t.Errorf("near: %d packets, connections %+v, notes %q", near.OutOfOrder, near.Connections, near.Notes)
	}
	far := reportOf(t, scripted(t, parseScript(t, clientA, serverA, "2000 < SA 900 101 0 7000 5000\n 0 > S 100 0 0 5000 0")), Options{})
	if far.OutOfOrder != 1 || len(far.Notes) != 1 || !strings.Contains(far.Notes[0], "reordercap") {
		t.Errorf("far: %d packets, notes %q", far.OutOfOrder, far.Notes)
	}
}

// TestIncomplete warns of captures that lost packets.
func TestIncomplete(t *testing.T) {
	tr := newTracker(Options{Memory: MinMemory})
	tr.incomplete(&Stats{Interfaces: []Interface{{Dropped: 0}}})
	if len(tr.report.Notes) != 0 {
		t.Errorf("none lost: %q", tr.report.Notes)
	}
	tr.incomplete(&Stats{Interfaces: []Interface{{Dropped: 5}, {Dropped: 2}}})
	if len(tr.report.Notes) != 1 || !strings.Contains(tr.report.Notes[0], "lost 7 packets") {
		t.Errorf("7 lost: %q", tr.report.Notes)
	}
}
