package pcap

import (
	"math/rand/v2"
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
