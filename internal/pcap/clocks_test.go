package pcap

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

func TestClockSet(t *testing.T) {
	const second = int64(1e9)
	random := rand.New(rand.NewPCG(1, 2))
	machine := func(hz, offset uint32) func(at int64) uint32 {
		return func(at int64) uint32 { return offset + uint32(at*int64(hz)/second) }
	}
	for _, tc := range []struct {
		name    string
		clocks  []func(int64) uint32
		jitter  int64 // of the reader
		want    int
		perConn bool
	}{
		{"one machine", []func(int64) uint32{machine(1000, 7)}, 5e6, 1, false},
		{"one machine that wraps", []func(int64) uint32{machine(1000, 0xfffffff0)}, 5e6, 1, false},
		{"one machine of 250 Hz", []func(int64) uint32{machine(250, 4e9)}, 5e6, 1, false},
		{"one machine and a reader that is late", []func(int64) uint32{machine(1000, 7)}, 400e6, 1, false},
		{"two machines", []func(int64) uint32{machine(1000, 7), machine(1000, 4e9)}, 5e6, 2, false},
		{"machines that were started 3 s apart", []func(int64) uint32{machine(1000, 7), machine(1000, 3007)}, 5e6, 2, false},
		{"five of two kinds", []func(int64) uint32{machine(1000, 7), machine(1000, 1e9), machine(100, 2e9), machine(1000, 3e9), machine(250, 4e9)}, 5e6, 5, false},
		{"an offset for each connection", []func(int64) uint32{func(int64) uint32 { return random.Uint32() }}, 5e6, MaxClocks, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c ClockSet
			for i := range 500 {
				at := int64(i) * 10e6
				c.Add(at+random.Int64N(tc.jitter), tc.clocks[random.IntN(len(tc.clocks))](at))
			}
			if got := c.Count(); got != tc.want || c.PerConnection() != tc.perConn {
				t.Errorf("%d clocks, one per connection: %v; want %d, %v", got, c.PerConnection(), tc.want, tc.perConn)
			}
		})
	}
	var none ClockSet
	if none.Count() != 0 || none.PerConnection() {
		t.Errorf("nothing has %d clocks", none.Count())
	}
}

// TestFollowMoves: an attempt that went over three ports has the end of the last one.
func TestFollowMoves(t *testing.T) {
	at := time.Unix(1000, 0)
	client := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("198.19.0.77"), port)
	}
	leg := func(frame int64, seconds int, port uint16, outcome Outcome, on *Continued) Incident {
		begun := at.Add(time.Duration(seconds) * time.Second)
		return Incident{Client: client(port), Frame: frame, Time: begun, Outcome: outcome, SYNs: []SYN{{Frame: frame, Time: begun}}, Continued: on}
	}
	list := []Incident{
		leg(10, 0, 1, Moved, &Continued{Client: client(2), Frame: 20}),
		leg(20, 1, 2, Moved, &Continued{Client: client(3), Frame: 30}),
		leg(30, 3, 3, Moved, &Continued{Client: client(4), Frame: 40, Connected: true}),
		leg(50, 0, 5, Moved, &Continued{Client: client(6), Frame: 60}),
		leg(60, 1, 6, Connected, nil),
		leg(70, 0, 7, Moved, &Continued{Client: client(8), Frame: 80}),
		leg(80, 1, 8, Failed, nil),
		leg(90, 0, 9, Moved, &Continued{Client: client(10), Frame: 91}), // 91 was not kept
		leg(95, 0, 11, Moved, &Continued{Client: client(11), Frame: 95}),
	}
	list[2].ConnectSeconds, list[4].ConnectSeconds = 0.5, 0.25
	followMoves(list)
	for i, want := range []struct {
		port      uint16
		frame     int64
		connected bool
		seconds   float64
	}{{4, 40, true, 3.5}, {4, 40, true, 2.5}, {4, 40, true, 0.5}, {6, 60, true, 1.25}, {}, {8, 80, false, 0}, {}, {10, 91, false, 0}, {11, 95, false, 0}} {
		in := list[i]
		if in.Continued == nil {
			if want.port != 0 {
				t.Errorf("attempt %d goes nowhere", i)
			}
			continue
		}
		if c := in.Continued; c.Client != client(want.port) || c.Frame != want.frame || c.Connected != want.connected || in.ConnectSeconds != want.seconds {
			t.Errorf("attempt %d went on as %+v, connected after %g s; want %+v", i, *c, in.ConnectSeconds, want)
		}
	}
}

// TestMoved follows a SYN that the NAT gives another port when it is sent again.
func TestMoved(t *testing.T) {
	other := netip.AddrPortFrom(clientA.Addr(), 40001)
	lines := parseScript(t, clientA, serverA, serverFirst+`
		30005 > S   5000 0   0  4000 0
		30006 < A   922  112 0  37000 5002
		30007 > R   112  0   0`)
	lines = append(lines, parseScript(t, other, serverA, `
		31005 > S   5000 0   0  5000 0
		31006 < SA  77   5001 0 38000 5000`)...)
	lines = append(lines, parseScript(t, clientA, serverA, "50000 > S 9000 0 0 9000 0\n 50001 < SA 7 9001 0 9000 9000")...)
	i := reportOf(t, scripted(t, lines), Options{}).Incidents[0]
	want := Continued{Client: other, Frame: 10, Connected: true}
	if i.Outcome != Moved || i.Continued == nil || *i.Continued != want || math.Abs(i.ConnectSeconds-1.001) > 1e-9 {
		t.Errorf("%s, continued %+v", gistOf(&i), i.Continued)
	}
}
