package ebpf

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

// manyPairs is a plan of one rule with that many pairs.
func manyPairs(t testing.TB, n int) *gateway.Plan {
	t.Helper()
	all := make([]nat.AddrPair, n)
	for i := range all {
		j := i * 7919 % n
		all[i] = nat.AddrPair{Outside: netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), Inside: netip.AddrFrom4([4]byte{10, byte(j >> 16), byte(j >> 8), byte(j)})}
	}
	set, twice := nat.NewPairs("p", all)
	if twice != nil {
		t.Fatal(twice)
	}
	p := planOf(t, "gateway:\n  engine: ebpf\n  interfaces: {wan: wan0, lan: lan0}\n  sets: {p: {pairs: 192.0.2.1 192.0.2.2}}\n  nat: [{static: {pairs: $p}}]\n", testHost())
	for e := range p.Entries() {
		for i := range e.Members {
			e.Members[i].Set = set
		}
	}
	p.Sets = []*nat.Set{set}
	return p
}

// BenchmarkPairs is what an apply of a million pairs does beside reading them.
func BenchmarkPairs(b *testing.B) {
	p := manyPairs(b, 1_000_000)
	b.Run("claim", func(b *testing.B) {
		for b.Loop() {
			if mine, _, _ := (Engine{}).Claim(p, testHost()); mine == nil {
				b.Fatal("not claimed")
			}
		}
	})
	b.Run("compile", func(b *testing.B) {
		for b.Loop() {
			compile(p)
		}
	})
	b.Run("load", func(b *testing.B) {
		testutil.NeedRoot(b)
		for b.Loop() {
			programs, err := plane.Load(plane.Config{Tables: compile(p).Tables, Marks: plane.MarksOf(p.Bypass)})
			if err != nil {
				b.Fatal(err)
			}
			programs.Close()
		}
	})
}
