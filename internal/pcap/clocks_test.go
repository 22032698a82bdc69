package pcap

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
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

// TestMovedTwice: all attempts with the SYN have the last port, those that ended before too.
func TestMovedTwice(t *testing.T) {
	port := func(n uint16) netip.AddrPort { return netip.AddrPortFrom(clientA.Addr(), n) }
	rejected := func(client netip.AddrPort, ms int, more string) []line1 {
		return parseScript(t, client, serverA, serverFirst+fmt.Sprintf(`
			%d > S   5000 0   0  4000 0
			%d < A   922  112 0  37000 5002
			%d > R   112  0   0`, ms, ms+1, ms+2)+more)
	}
	lines := rejected(clientA, 30005, "\n 30900 > S 9000 0 0 9000 0\n 30901 < SA 7 9001 0 9000 9000")
	lines = append(lines, rejected(port(40001), 31005, "")...)
	lines = append(lines, parseScript(t, port(40002), serverA, `
		33005 > S   5000 0   0  5000 0
		33006 < SA  77   5001 0 38000 5000`)...)
	r := reportOf(t, scripted(t, lines), Options{})
	moved := 0
	for _, i := range r.Incidents {
		if i.Outcome != Moved {
			continue
		}
		moved++
		if c := i.Continued; c.Client != port(40002) || !c.Connected || math.Abs(i.ConnectSeconds+i.Time.Sub(start).Seconds()-33.006) > 1e-6 {
			t.Errorf("%s, continued %+v", gistOf(&i), c)
		}
	}
	if moved != 2 {
		t.Errorf("%d attempts moved of %d incidents", moved, len(r.Incidents))
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
