package lab

import (
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
)

// TestSNATPortsLieAsDescribed looks at the ports of one address towards one server.
func TestSNATPortsLieAsDescribed(t *testing.T) {
	const n = 500
	ports := func(order string) (list []uint16) {
		m := small(t, `- {name: a, share: 1, protocol: udp, sources: {prefix: 198.18.128.0/24}, source_ports: 1024-65535, destinations: ["203.0.113.1:53"], nat: {snat: {to: [203.0.113.2], ports: 1024-65535, order: `+order+`}}}`)
		var e conntrack.Entry
		for i := range int64(n) {
			m.Filler(3, 0).Entry(i, &e)
			if (e.Reply.DstPort == e.Orig.SrcPort) != (order == Preserve) {
				if order == Preserve || i == 0 {
					t.Fatalf("%s: port %d became %d", order, e.Orig.SrcPort, e.Reply.DstPort)
				}
			}
			list = append(list, e.Reply.DstPort)
		}
		return list
	}
	for i, port := range ports(Sequential) {
		if port != 1024+uint16(i) {
			t.Fatalf("sequential: port %d is %d", i, port)
		}
	}
	for _, order := range []string{Random, Preserve} {
		var quarters [4]int
		for _, port := range ports(order) {
			quarters[(int(port)-1024)/((65536-1024)/4)]++
		}
		for _, q := range quarters { // 125 ± 5 standard deviations
			if q < 75 || q > 175 {
				t.Errorf("%s: quarters of the range have %v of %d ports", order, quarters, n)
			}
		}
	}
}

func TestTimeoutsAreSpread(t *testing.T) {
	m := small(t, `- {name: a, share: 1, protocol: udp, timeout: 11s-20s, sources: {prefix: 198.18.128.0/24}, destinations: ["203.0.113.1:53"]}`)
	counts := map[uint32]int{}
	var e conntrack.Entry
	for i := range int64(1000) {
		m.Filler(1, 0).Entry(i, &e)
		counts[e.Timeout]++
	}
	for timeout := uint32(11); timeout <= 20; timeout++ {
		if counts[timeout] < 97 || counts[timeout] > 103 {
			t.Errorf("timeout %d s is there %d times in 1000, want 100", timeout, counts[timeout])
		}
	}
}

func TestEntryAllocatesNothing(t *testing.T) {
	for _, m := range Mixes() {
		f, i := m.Filler(1, 1), int64(0)
		var e conntrack.Entry
		if n := testing.AllocsPerRun(1000, func() { f.Entry(i, &e); i++ }); n > 0 {
			t.Errorf("mix %s: %v allocations for each entry", m.Name, n)
		}
	}
}

func TestShuffleIsAPermutation(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 5, 10, 99, 100, 101, 1000, 4095, 4097, 65521} {
		s := newShuffle(n)
		seen := make([]bool, n)
		for k := range n {
			v := s.at(k, 42)
			if v >= n || seen[v] {
				t.Fatalf("of %d: %d becomes %d, which is outside or there twice", n, k, v)
			}
			seen[v] = true
		}
	}
	for _, n := range []uint64{1<<62 - 1, 1 << 62, 1 << 33, 1<<33 + 1} {
		if s := newShuffle(n); s.a*s.b < n || s.a*s.b-n > s.a || s.at(n-1, 1) >= n {
			t.Errorf("of %d: %+v", n, s)
		}
	}
}

func BenchmarkEntry(b *testing.B) {
	for _, m := range Mixes() {
		b.Run(m.Name, func(b *testing.B) {
			f, i := m.Filler(1, 1), int64(0)
			var e conntrack.Entry
			b.ReportAllocs()
			for b.Loop() {
				f.Entry(i%(1<<20), &e)
				i++
			}
		})
	}
}
