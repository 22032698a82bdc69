package netfilter

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/testutil"
)

const large = 10_000

// address is the i-th of a network.
func address(first string, i int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+uint32(i))))
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

var http = []nat.Ports{{First: 80, Last: 80}}

func dnat(to netip.Addr, port uint16) nat.Action {
	return nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{{Address: to, Port: port}}}
}

func largePlan(kind string, n int) *gateway.Plan {
	p := &gateway.Plan{IPv4: true, WAN: []string{"wan"}}
	for i := range n {
		ref := gateway.Ref{List: "nat", Index: i, Kind: kind}
		in, out := address("10.0.0.0", i), address("198.18.0.0", i)
		snat := func(m nat.Match, ports nat.Ports) gateway.Entry {
			return gateway.Entry{Rule: ref, Match: m, Action: nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{nat.OneAddr(out)}, Ports: ports}}
		}
		switch kind {
		case "scattered": // no two hosts are neighbours
			in = address("10.0.0.0", 2*i)
			p.Sources = append(p.Sources, snat(nat.Match{From: []netip.Prefix{single(in)}, Out: p.WAN}, nat.Ports{}))
		case "hairpin":
			p.Sources = append(p.Sources, snat(nat.Match{Original: []netip.Prefix{single(out)}, Protocol: 6, OriginalPorts: http}, nat.Ports{}))
			p.Destinations = append(p.Destinations, gateway.Entry{Rule: ref, Match: nat.Match{To: []netip.Prefix{single(out)}, Protocol: 6, Ports: http}, Local: true, Action: dnat(in, 8080)})
		case "ports":
			first := uint16(1024 + i%60*1000)
			p.Sources = append(p.Sources, snat(nat.Match{From: []netip.Prefix{single(in)}, Out: p.WAN}, nat.Ports{First: first, Last: first + 999}))
		case "notrack":
			p.Untracked = append(p.Untracked, gateway.Entry{Rule: ref, Match: nat.Match{To: []netip.Prefix{single(out)}}, Action: nat.Action{Kind: nat.Notrack}})
		case "stateless":
			p.Stateless = append(p.Stateless, gateway.Entry{Rule: ref, Match: nat.Match{From: []netip.Prefix{single(in)}, Out: p.WAN}, Action: nat.Action{Kind: nat.Pair, Prefix: single(out)}})
		case "dnat":
			p.Destinations = append(p.Destinations, gateway.Entry{Rule: ref, Action: dnat(in, 80), Match: nat.Match{To: []netip.Prefix{single(netip.MustParseAddr("203.0.113.7"))}, In: p.WAN,
				Protocol: 6, Ports: []nat.Ports{{First: uint16(1000 + i), Last: uint16(1000 + i)}}}})
		case "static":
			p.Destinations = append(p.Destinations, gateway.Entry{Rule: ref, Match: nat.Match{To: []netip.Prefix{single(out)}}, Action: dnat(in, 0)})
			fallthrough
		case "snat":
			p.Sources = append(p.Sources, snat(nat.Match{From: []netip.Prefix{single(in)}, Out: p.WAN}, nat.Ports{}))
		}
	}
	return p
}

var largeKinds = []string{"dnat", "static", "snat", "scattered", "hairpin", "ports", "notrack", "stateless"}

// TestLarge: ten thousand rules are one lookup, and can be written in the place of as
// many.
func TestLarge(t *testing.T) {
	testutil.NeedRoot(t)
	large := large
	if testutil.Patience(1) > 1 { // an emulated processor
		large /= 10
	}
	for _, kind := range largeKinds {
		t.Run(kind, func(t *testing.T) {
			if kind == "hairpin" {
				testutil.NeedFeature(t, testutil.Hairpin)
			}
			ns, plan := testutil.Namespace(t), largePlan(kind, large)
			if few, many := build(largePlan(kind, 2), host{}), build(plan, host{}); len(few.rules) != len(many.rules) {
				t.Errorf("%d rules for 2, %d for %d: packets pay for their number", len(few.rules), len(many.rules), large)
			}
			for range 2 {
				if err := Apply(ns, plan); err != nil {
					t.Fatal(err)
				}
			}
			if err := Remove(ns); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// BenchmarkLarge writes ten thousand rules in the place of as many: two seconds of the
// processors are too many.
func BenchmarkLarge(b *testing.B) {
	for _, kind := range largeKinds {
		b.Run(kind, func(b *testing.B) { benchmarkApply(b, largePlan(kind, large)) })
	}
	b.Run("shared sets", func(b *testing.B) { benchmarkApply(b, sharedSets(4000)) })
}

func benchmarkApply(b *testing.B, p *gateway.Plan) {
	ns, used := testutil.Namespace(b), testutil.CPUTime(b)
	for b.Loop() {
		if err := Apply(ns, p); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric((testutil.CPUTime(b)-used).Seconds()/float64(b.N), "cpu-s/op")
}

// sharedSets are rules that cannot share a map.
func sharedSets(n int) *gateway.Plan {
	p := &gateway.Plan{IPv4: true, WAN: []string{"wan0", "wan1"}}
	for i := range n {
		p.Sources = append(p.Sources, gateway.Entry{Rule: gateway.Ref{List: "nat", Index: i, Kind: "masquerade"},
			Match:  nat.Match{From: []netip.Prefix{single(address("10.0.0.0", i))}, Out: p.WAN, NotTo: []netip.Prefix{single(address("198.18.0.0", i))}},
			Action: nat.Action{Kind: nat.Masquerade, Ports: nat.Ports{First: uint16(1024 + i), Last: uint16(2024 + i)}}})
	}
	return p
}

// TestSharedSets: thousands of rules that cannot share a map share the sets of their
// conditions, and are found as they were written.
func TestSharedSets(t *testing.T) {
	testutil.NeedRoot(t)
	n := 4000
	if testutil.Patience(1) > 1 {
		n /= 10
	}
	ns, p := testutil.Namespace(t), sharedSets(n)
	for range 2 {
		if err := Apply(ns, p); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := Read(ns); err != nil || s.Integrity != gateway.RulesIntact {
		t.Errorf("read: %+v, %v", s, err)
	}
}

// TestManyMaps: of rules that choose among hosts each has a map of its own, and there is nothing to share.
func TestManyMaps(t *testing.T) {
	p := &gateway.Plan{IPv4: true, WAN: []string{"wan0", "wan1"}}
	for i := range manySets + 1 {
		to := []nat.Backend{{Address: address("10.0.0.0", i)}, {Address: address("10.1.0.0", i)}}
		p.Destinations = append(p.Destinations, gateway.Entry{Rule: gateway.Ref{List: "nat", Index: i, Kind: "dnat"},
			Match:  nat.Match{To: []netip.Prefix{single(address("198.18.0.0", i))}},
			Action: nat.Action{Kind: nat.DNAT, Backends: to, Balance: nat.BalanceRoundRobin}})
	}
	if made := build(p, host{}); made.shared != nil || len(made.sets) <= manySets {
		t.Errorf("%d sets, shared: %v", len(made.sets), made.shared)
	}
	if made := build(sharedSets(manySets+1), host{}); len(made.shared) == 0 {
		t.Error("sets that many rules have are not shared")
	}
}
