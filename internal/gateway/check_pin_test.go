package gateway

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// pinnedConfig has many rules about the same addresses, of which most ask for a set, a user or a mark of their own.
func pinnedConfig(r *rand.Rand, n int) *Config {
	c := &Config{Sets: Sets{}}
	block := func(i, first, last int) nat.AddrRange {
		return nat.AddrRange{First: netip.AddrFrom4([4]byte{10, 0, byte(i), byte(first)}), Last: netip.AddrFrom4([4]byte{10, 0, byte(i), byte(last)})}
	}
	for i := range n {
		elements := nat.AddrRanges{block(i, 0, 3), block(i, 5, 5+r.IntN(3))}
		if r.IntN(20) == 0 {
			elements = append(elements, block(r.IntN(n), pick(r, 0, 0, 7), 9))
		}
		name := fmt.Sprintf("s%d", i)
		c.Sets[name] = SetSource{set: nat.NewSet(name, elements, nil)}
	}
	for i := range n {
		c.NAT = append(c.NAT, pinnedRule(r, i, 0))
		for range r.IntN(3) {
			c.NAT = append(c.NAT, pinnedRule(r, i, 1+r.IntN(10_000)))
		}
	}
	return c
}

// pinnedRule is one about what has the number i; with another preference, it overlaps none that is as specific.
func pinnedRule(r *rand.Rand, i, prefer int) Rule {
	if prefer > 0 && r.IntN(2) == 0 {
		i %= 5 // of these there are many
	}
	set := Prefixes{{Set: fmt.Sprintf("s%d", i)}}
	one := Prefixes{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(r.IntN(6))}), pick(r, 32, 32, 31))}}
	user := IDs{{nat.IDs{First: uint32(i), Last: uint32(i)}}}
	mark := Mark{nat.Mark{Value: uint32(i + 1), Mask: math.MaxUint32}}
	s := &SNAT{To: Ranges{nat.OneAddr(netip.MustParseAddr("203.0.113.7"))}}
	switch r.IntN(9) {
	case 0:
		s.From = set
	case 1:
		s.User = user
	case 2:
		s.Mark = mark
	case 3:
		s.From, s.Mark = set, mark
	case 4:
		s.From, s.OnlyTo = pick(r, set, one), pick(r, set, one)
	case 5:
		s.From, s.User = pick(r, one, set), pick(r, user, IDs{{nat.IDs{First: 1, Last: uint32(i + 1)}}})
		if prefer > 0 && r.IntN(4) == 0 { // which leaves one of them
			next := nat.IDs{First: uint32(i + 1), Last: uint32(i + 9)}
			s.From, s.User, s.ExceptUser = nil, pick(r, user, append(slices.Clone(user), struct{ nat.IDs }{nat.IDs{First: next.First, Last: next.First}})), IDs{{next}}
		}
	case 6:
		s.OnlyTo = pick(r, set, one)
		s.ExceptUser = pick(r, user, nil)
	default:
		d := &DNAT{On: On{Address: netip.MustParseAddr("203.0.113.1")}, Port: pick(r, Services{{"tcp", 80, 80}}, Services{{"tcp", 81, 81}}, Services{{"tcp", 80, 81}}, nil), From: pick(r, set, set, one),
			To: Backends{{Address: netip.MustParseAddr("10.9.9.9")}}}
		d.Mark = pick(r, Mark{}, Mark{}, mark)
		return Rule{Prefer: Prefer(prefer), DNAT: d}
	}
	return Rule{Prefer: Prefer(prefer), SNAT: s}
}

// TestPinsAgainstAllPairs: what is not compared, as it differs in a pin, neither overlaps nor shadows.
func TestPinsAgainstAllPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 13))
	seen, overlapped := map[bool]int{}, map[bool]int{}
	for range 50 {
		p, err := Compile(pinnedConfig(r, 2*fewSets+40), Facts{})
		if err != nil {
			t.Fatal(err)
		}
		x := pinsOf(p)
		if len(x.numbers) <= fewSets {
			t.Fatalf("%d sets have numbers", len(x.numbers))
		}
		s := &shadows{plan: p, pins: x}
		s.index()
		for _, list := range [][]Entry{p.Sources, p.Destinations} {
			overlaps := false
			x.overlapping(list, func(a, b Ref, side, what string) { overlaps = true })
			if want := anyOverlap(list); overlaps != want {
				t.Fatalf("overlap %v, by all pairs %v", overlaps, want)
			}
			overlapped[overlaps]++
			for i := range list {
				by, of := s.overSource, sourceDimensions
				if !list[i].Action.Kind.TranslatesSource() {
					by, of = s.overDestination, destinationDimensions
				}
				u := union{of: &list[i], dimensions: of}
				for j := range i {
					if list[j].Rule != list[i].Rule && !list[j].apart(&list[i]) {
						u.add(&list[j])
					}
				}
				got, want := len(by(i)) > 0, len(u.covering()) > 0
				if got != want {
					t.Fatalf("%s: shadowed %v, by all pairs %v", list[i].String(), got, want)
				}
				seen[want]++
			}
		}
	}
	if seen[true] < 20 || seen[false] < 20 || overlapped[true] < 20 || overlapped[false] < 20 {
		t.Errorf("shadowed or not: %v, overlapping or not: %v", seen, overlapped)
	}
}

func anyOverlap(list []Entry) bool {
	for i := range list {
		for j := range i {
			if a, b := &list[j], &list[i]; a.Rule != b.Rule && !a.apart(b) && compareEntries(a, b) == 0 && a.Overlaps(&b.Match) {
				return true
			}
		}
	}
	return false
}
