package ports

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// search is what the kernel does, step by step (nf_nat_l4proto_unique_tuple), with
// a connection that is past the sequence numbers of all evictable ones.
func search(used, evictable *Set, r nat.Ports, random *rand.Rand) bool {
	off := uint16(random.Uint32())
	attempts := min(r.Len(), 128)
	for {
		for i := range attempts {
			p := r.First + uint16(int(off)%r.Len())
			off++
			if !used.Has(p) || attempts-i <= 32 && evictable != nil && evictable.Has(p) {
				return true
			}
		}
		if attempts >= r.Len() || attempts < 16 {
			return false
		}
		attempts /= 2
		off = uint16(random.Uint32())
	}
}

// layouts of used ports: blocks, scattered ones, and both.
func layout(r nat.Ports, share float64, block int, random *rand.Rand) *Set {
	s := &Set{}
	for placed := 0; placed < int(share*float64(r.Len())); {
		at := random.IntN(r.Len())
		for i := range min(block, r.Len()) {
			if p := r.First + uint16((at+i)%r.Len()); !s.Has(p) {
				s.Add(p)
				placed++
			}
		}
	}
	return s
}

func TestFailChanceAgainstSearch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, r := range []nat.Ports{{First: 1024, Last: 65535}, {First: 0, Last: 65535}, {First: 1, Last: 511}, {First: 600, Last: 1023}, {First: 20000, Last: 20999}, {First: 5000, Last: 5127}, {First: 5000, Last: 5128}, {First: 7000, Last: 7063}, {First: 9, Last: 9}} {
		for _, share := range []float64{0.5, 0.9, 0.97, 1} {
			for _, block := range []int{1, 40, 300, 1 << 15} {
				for _, ended := range []float64{0, 0.02, 0.5} {
					name := fmt.Sprintf("%v/%v/%d/%v", r, share, block, ended)
					used := layout(r, share, block, random)
					evictable := layout(r, ended, block/2+1, random)
					compareSearch(t, name, used, evictable, r, random)
				}
			}
		}
	}
}

func compareSearch(t *testing.T, name string, used, evictable *Set, r nat.Ports, random *rand.Rand) {
	t.Helper()
	const tries = 4000
	failed := 0
	for range tries {
		if !search(used, evictable, r, random) {
			failed++
		}
	}
	want := FailChance(used, evictable, r, snapshot.PortProbeRandom)
	got := float64(failed) / tries
	if want < 0 || want > 1 {
		t.Fatalf("%s: chance %v", name, want)
	}
	// Five standard deviations, in some 400 cases, and one try.
	if bound := 5*math.Sqrt(want*(1-want)/tries) + 1.0/tries; math.Abs(got-want) > bound {
		t.Errorf("%s: computed %.4f, the search fails in %.4f (± %.4f)", name, want, got, bound)
	}
}

// One block of used ports, as measured on a kernel: 70 % at 93 %, 3 % at half.
func TestFailChanceOfOneBlock(t *testing.T) {
	r := nat.Ports{First: 1024, Last: 65535}
	for _, tt := range []struct {
		ports      int
		low, high  float64
		fullyTaken bool
	}{{60000, 0.66, 0.72, false}, {32256, 0.028, 0.034, false}, {64512, 1, 1, true}, {0, 0, 0, false}} {
		used := &Set{}
		for i := range tt.ports {
			used.Add(uint16(1024 + i))
		}
		if got := FailChance(used, nil, r, snapshot.PortProbeRandom); got < tt.low || got > tt.high {
			t.Errorf("%d ports in one block: %.4f, want %v to %v", tt.ports, got, tt.low, tt.high)
		}
		whole := 0.0
		if tt.fullyTaken {
			whole = 1
		}
		if got := FailChance(used, nil, r, snapshot.PortProbeAll); got != whole {
			t.Errorf("%d ports, a kernel that looks at all: %v, want %v", tt.ports, got, whole)
		}
	}
}

// The mean over scattered layouts is the closed form.
func TestScatteredChance(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	r := nat.Ports{First: 20000, Last: 20999}
	for _, share := range []float64{0.95, 0.98, 0.99} {
		mean, many := 0.0, 300
		for range many {
			mean += FailChance(layout(r, share, 1, random), nil, r, snapshot.PortProbeRandom) / float64(many)
		}
		want := ScatteredChance(int(share*1000), 1000, snapshot.PortProbeRandom)
		if math.Abs(mean-want) > 0.02 {
			t.Errorf("%v in use: mean of layouts %.4f, closed form %.4f", share, mean, want)
		}
	}
	if got := ScatteredChance(60000, 64512, snapshot.PortProbeRandom); got > 1e-6 {
		t.Errorf("93 %% scattered: %v", got)
	}
	if got := ScatteredChance(10, 10, snapshot.PortProbeAll); got != 1 {
		t.Errorf("full: %v", got)
	}
}

func TestSetCount(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	s, o := layout(nat.AllPorts, 0.3, 7, random), layout(nat.AllPorts, 0.3, 7, random)
	for range 300 {
		a, b := uint16(random.Uint32()), uint16(random.Uint32())
		r := nat.Ports{First: min(a, b), Last: max(a, b)}
		count, without := 0, 0
		for p := int(r.First); p <= int(r.Last); p++ {
			if s.Has(uint16(p)) {
				count++
				if !o.Has(uint16(p)) {
					without++
				}
			}
		}
		if got := s.Count(r); got != count {
			t.Fatalf("Count(%v) = %d, want %d", r, got, count)
		}
		if got := s.without(o, r); got != without {
			t.Fatalf("without(%v) = %d, want %d", r, got, without)
		}
	}
}

func BenchmarkFailChance(b *testing.B) {
	used := layout(nat.Ports{First: 1024, Last: 65535}, 0.9, 1000, rand.New(rand.NewPCG(7, 8)))
	for b.Loop() {
		FailChance(used, used, nat.Ports{First: 1024, Last: 65535}, snapshot.PortProbeRandom)
	}
}

func alternativesOf(p *snapshot.PortPool) map[string]snapshot.PortAlternative {
	m := map[string]snapshot.PortAlternative{}
	for _, a := range p.Alternatives {
		m[a.What] = a
	}
	return m
}

// One block of 93 %, of a client that keeps its ports: fully-random is worse at once,
// and the cure later.
func TestAlternativesOfOneBlock(t *testing.T) {
	c := NewCollector(Options{})
	for p := 1024; p < 61024; p++ {
		c.Add(flow(client, uint16(p), uint16(p)))
	}
	p := c.Ports(Query{Complete: true, Alternatives: true}).Pools[0]
	got := alternativesOf(&p)
	if r := got[snapshot.PortsFullyRandom]; r.FailsNow < 0.65 || r.FailsNow <= p.Fails || r.FailsLater > 1e-6 {
		t.Errorf("fully-random: %+v", r)
	}
	if a := got[snapshot.PortsAnotherAddress]; a.FailsNow != p.Fails/2 || a.FailsLater > 1e-12 {
		t.Errorf("another address: %+v", a)
	}
	if _, ok := got[snapshot.PortsLongerRange]; ok {
		t.Error("a longer range than the whole")
	}
	if p := c.Ports(Query{Complete: true}).Pools[0]; p.Alternatives != nil {
		t.Error("alternatives were not requested")
	}
}

// A short range that is nearly full: the whole one has place.
func TestAlternativesOfShortRange(t *testing.T) {
	rules := &snapshot.NATRules{Rules: []snapshot.NATRule{{Kind: snapshot.NATMasquerade, Family: "ip", FirstPort: 20000, LastPort: 20999, FullyRandom: true}}}
	c := NewCollector(Options{})
	for p := uint16(20000); p < 20950; p++ {
		c.Add(flow(client, 1, p))
	}
	p := c.Ports(Query{Complete: true, Alternatives: true, Rules: rules}).Pools[0]
	got := alternativesOf(&p)
	if _, ok := got[snapshot.PortsFullyRandom]; ok {
		t.Error("the rule is fully-random already")
	}
	if l := got[snapshot.PortsLongerRange]; p.Fails < 0.3 || l.FailsNow > 0.001 || l.FailsLater > 1e-12 {
		t.Errorf("longer range: %+v instead of %v", l, p.Fails)
	}
}

func TestSharedWith(t *testing.T) {
	at := netip.MustParseAddrPort
	none := netip.AddrPort{}
	pools := []snapshot.PortPool{{Address: "203.0.113.1", Protocol: "tcp"}, {Address: "203.0.113.1", Protocol: "tcp"}, {Address: "203.0.113.2", Protocol: "udp"}}
	got := SharedWith(pools, []Socket{
		{unix.IPPROTO_TCP, at("203.0.113.1:22"), none},
		{unix.IPPROTO_TCP, at("[::ffff:203.0.113.1]:40000"), at("198.19.0.1:80")},
		{unix.IPPROTO_TCP, at("203.0.113.1:40001"), at("198.19.0.1:80")},
		{unix.IPPROTO_TCP, at("[::]:80"), none},
		{unix.IPPROTO_TCP, at("203.0.113.9:80"), at("198.19.0.1:80")},
		{unix.IPPROTO_UDP, at("203.0.113.1:53"), none},
	})
	want := []snapshot.SharedAddress{{Address: "203.0.113.1", Protocol: "tcp", Listening: 1, Wildcard: 1, Connected: 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := SharedWith(pools, nil); got != nil {
		t.Errorf("without sockets: %+v", got)
	}
}
