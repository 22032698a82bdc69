package nat

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func addrPair(outside, inside string) AddrPair {
	return AddrPair{netip.MustParseAddr(outside), netip.MustParseAddr(inside)}
}

// Each address leads to the other one of its pair, and no other address to any.
func TestPairs(t *testing.T) {
	given := []AddrPair{addrPair("2001:db8::7", "fd00::1"), addrPair("203.0.113.9", "10.0.0.1"), addrPair("203.0.113.8", "10.0.0.2"), addrPair("2001:db8::1", "fd00::2")}
	s, twice := NewPairs("floating", given)
	if twice != nil {
		t.Fatal(twice)
	}
	for _, p := range given {
		if s.Inward(p.Outside) != p.Inside || s.Outward(p.Inside) != p.Outside {
			t.Errorf("%s: in %s, out %s", p, s.Inward(p.Outside), s.Outward(p.Inside))
		}
		if s.Inward(p.Inside).IsValid() || s.Outward(p.Outside).IsValid() {
			t.Errorf("%s is on one side only", p)
		}
		if !s.Side(To).HasAddr(p.Outside) || !s.Side(From).HasAddr(p.Inside) || s.Side(To).HasAddr(p.Inside) {
			t.Errorf("%s: its sides", p)
		}
	}
	if s.Len() != 4 || s.LenOf(32) != 2 || s.LenOf(128) != 2 || !s.HasPairs() {
		t.Errorf("%d, %d and %d pairs", s.Len(), s.LenOf(32), s.LenOf(128))
	}
	if got, want := s.Side(To).Of(32).String(), "203.0.113.8-203.0.113.9"; got != want {
		t.Errorf("outside %s, want %s", got, want)
	}
	again, err := ParseSet("floating", s.Text())
	if err != nil || again.Digest() != s.Digest() || again.Outward(given[0].Inside) != given[0].Outside {
		t.Errorf("read again: %v\n%s", err, again.Text())
	}
	less, _ := NewPairs("floating", append([]AddrPair{addrPair("203.0.113.8", "10.0.0.3")}, given[:2]...))
	if added, removed := SetChange(s, less); added != 1 || removed != 2 {
		t.Errorf("+%d -%d", added, removed)
	}
}

func TestPairsTwice(t *testing.T) {
	for _, tt := range []struct {
		first, second AddrPair
		want          Twice
	}{
		{addrPair("203.0.113.9", "10.0.0.9"), addrPair("203.0.113.9", "10.0.0.8"), Twice{netip.MustParseAddr("203.0.113.9"), true, 1, 3}},
		{addrPair("203.0.113.9", "10.0.0.9"), addrPair("203.0.113.7", "10.0.0.9"), Twice{netip.MustParseAddr("10.0.0.9"), false, 1, 3}},
		{addrPair("2001:db8::9", "fd00::9"), addrPair("2001:db8::9", "fd00::9"), Twice{netip.MustParseAddr("2001:db8::9"), true, 1, 3}},
	} {
		s, twice := NewPairs("a", []AddrPair{addrPair("203.0.113.200", "10.0.0.200"), tt.first, addrPair("203.0.113.1", "10.0.0.100"), tt.second})
		if s != nil || twice == nil || *twice != tt.want {
			t.Errorf("%v, want %v", twice, tt.want)
		}
	}
}

// Matches that ask for one side of pairs are compared by the addresses there.
func TestPairsMatch(t *testing.T) {
	s, _ := NewPairs("s", []AddrPair{addrPair("203.0.113.9", "10.0.0.1"), addrPair("203.0.113.12", "10.0.0.2")})
	o, _ := NewPairs("o", []AddrPair{addrPair("203.0.113.13", "10.0.0.2")})
	of := func(set *Set, c Condition) *Match {
		return &Match{Members: []Member{{Of: c, Name: set.Name, Set: set}}}
	}
	to := func(text string) *Match { return &Match{To: []netip.Prefix{netip.MustParsePrefix(text)}} }
	for _, tt := range []struct {
		a, b           *Match
		overlap, cover bool
	}{
		{of(s, To), to("203.0.113.9/32"), true, true},
		{of(s, To), to("203.0.113.10/32"), false, false},
		{of(s, To), to("203.0.113.8/29"), true, false},
		{of(s, To), to("10.0.0.1/32"), false, false},
		{of(s, To), of(o, To), false, false},
		{of(s, From), of(o, From), true, true},
		{of(o, From), of(s, From), true, false},
	} {
		if got := tt.a.Overlaps(tt.b); got != tt.overlap || tt.b.Overlaps(tt.a) != tt.overlap {
			t.Errorf("%s and %s: overlap %v", tt.a, tt.b, got)
		}
		if got := tt.a.Covers(tt.b); got != tt.cover {
			t.Errorf("%s covers %s: %v", tt.a, tt.b, got)
		}
	}
	if m := of(s, To); !m.Matches(&Packet{Dst: netip.MustParseAddr("203.0.113.9")}) || m.Matches(&Packet{Dst: netip.MustParseAddr("10.0.0.1")}) {
		t.Error("the match of packets")
	}
}

func TestRangesWithin(t *testing.T) {
	var all AddrRanges
	for _, p := range []string{"10.0.0.0/30", "10.0.0.8/32", "10.0.0.16/28"} {
		all = append(all, RangeOf(netip.MustParsePrefix(p)))
	}
	for first := range 40 {
		for last := first; last < 40; last++ {
			r := AddrRange{netip.AddrFrom4([4]byte{10, 0, 0, byte(first)}), netip.AddrFrom4([4]byte{10, 0, 0, byte(last)})}
			var want AddrRanges
			for _, one := range all {
				if one.Overlaps(r) {
					want = append(want, one)
				}
			}
			if got := all.Within(r); got.String() != want.String() {
				t.Fatalf("%s: %s, want %s", r, got, want)
			}
		}
	}
}

func BenchmarkNewPairs(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"in order", "random"} {
		all := make([]AddrPair, 1_000_000)
		for i := range all {
			all[i] = AddrPair{netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}), netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
		}
		if name == "random" {
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		b.Run(fmt.Sprintf("%s/%d", name, len(all)), func(b *testing.B) {
			for b.Loop() {
				if _, twice := NewPairs("a", all); twice != nil {
					b.Fatal(twice)
				}
			}
		})
	}
}
