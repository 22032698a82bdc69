package nft

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/testutil"
)

const large = 10_000

// address is the i-th of a network.
func address(first string, i int) netip.Addr {
	b := netip.MustParseAddr(first).As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+uint32(i))))
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func largePlan(kind string, n int) *gateway.Plan {
	p := &gateway.Plan{IPv4: true, WAN: []string{"wan"}}
	for i := range n {
		ref := gateway.Ref{List: "nat", Index: i, Kind: kind}
		in, out := address("10.0.0.0", i), address("198.18.0.0", i)
		switch kind {
		case "scattered": // no two hosts are neighbours
			in = address("10.0.0.0", 2*i)
			p.Sources = append(p.Sources, gateway.Source{Rule: ref, From: []netip.Prefix{single(in)}, Out: p.WAN, To: []gateway.Range{{First: out, Last: out}}})
		case "hairpin":
			p.Sources = append(p.Sources, gateway.Source{Rule: ref, To: []gateway.Range{{First: out, Last: out}},
				Hairpin: gateway.HairpinOf{Prefix: single(out), Port: gateway.Port{Protocol: "tcp", First: 80, Last: 80}}})
			p.Destinations = append(p.Destinations, gateway.Destination{Rule: ref, On: single(out), Local: true,
				Port: gateway.Port{Protocol: "tcp", First: 80, Last: 80}, To: gateway.Endpoint{Address: in, Port: 8080}})
		case "ports":
			first := uint16(1024 + i%60*1000)
			p.Sources = append(p.Sources, gateway.Source{Rule: ref, From: []netip.Prefix{single(in)}, Out: p.WAN,
				To: []gateway.Range{{First: out, Last: out}}, Ports: gateway.Ports{First: first, Last: first + 999}})
		case "notrack":
			p.Untracked = append(p.Untracked, gateway.Untracked{Rule: ref, On: out})
		case "stateless":
			p.Stateless = append(p.Stateless, gateway.Pair{Rule: ref, Inside: single(in), Outside: single(out), Out: p.WAN})
		case "dnat":
			p.Destinations = append(p.Destinations, gateway.Destination{
				Rule: ref, On: single(netip.MustParseAddr("203.0.113.7")), In: p.WAN,
				Port: gateway.Port{Protocol: "tcp", First: uint16(1000 + i), Last: uint16(1000 + i)},
				To:   gateway.Endpoint{Address: in, Port: 80}})
		case "static":
			p.Destinations = append(p.Destinations, gateway.Destination{Rule: ref, On: single(out), To: gateway.Endpoint{Address: in}})
			fallthrough
		case "snat":
			p.Sources = append(p.Sources, gateway.Source{Rule: ref, From: []netip.Prefix{single(in)}, Out: p.WAN, To: []gateway.Range{{First: out, Last: out}}})
		}
	}
	return p
}

// TestLarge: ten thousand rules are one lookup, written in less than two seconds,
// also in the place of as many.
func TestLarge(t *testing.T) {
	testutil.NeedRoot(t)
	emulated, large := testutil.Patience(1) > 1, large
	if emulated {
		large /= 10
	}
	for _, kind := range []string{"dnat", "static", "snat", "scattered", "hairpin", "ports", "notrack", "stateless"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "hairpin" {
				testutil.NeedFeature(t, testutil.Hairpin)
			}
			ns, plan := testutil.Namespace(t), largePlan(kind, large)
			if few, many := build(largePlan(kind, 2), host{}), build(plan, host{}); len(few.rules) != len(many.rules) {
				t.Errorf("%d rules for 2, %d for %d: packets pay for their number", len(few.rules), len(many.rules), large)
			}
			for _, what := range []string{"first", "again"} {
				start, used := time.Now(), testutil.CPUTime(t)
				if err := Apply(ns, plan); err != nil {
					t.Fatal(err)
				}
				used = testutil.CPUTime(t) - used
				t.Logf("%s %s: %v, %v of processors", kind, what, time.Since(start), used)
				if used > 2*time.Second && !emulated {
					t.Errorf("%s, %s: %v of processors", kind, what, used)
				}
			}
			start := time.Now()
			if err := Remove(ns); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s removed: %v", kind, time.Since(start))
		})
	}
}

// TestSharedSets: thousands of rules that cannot share a map share the sets of their
// conditions, are written in less than two seconds, and are found as they were written.
func TestSharedSets(t *testing.T) {
	testutil.NeedRoot(t)
	n := 4000
	if testutil.Patience(1) > 1 {
		n /= 10
	}
	p := &gateway.Plan{IPv4: true, WAN: []string{"wan0", "wan1"}}
	for i := range n {
		p.Sources = append(p.Sources, gateway.Source{Rule: gateway.Ref{List: "nat", Index: i, Kind: "masquerade"}, Masquerade: true,
			From: []netip.Prefix{single(address("10.0.0.0", i))}, Out: p.WAN, NotTo: []netip.Prefix{single(address("198.18.0.0", i))},
			Ports: gateway.Ports{First: uint16(1024 + i), Last: uint16(2024 + i)}})
	}
	ns := testutil.Namespace(t)
	for range 2 {
		used := testutil.CPUTime(t)
		if err := Apply(ns, p); err != nil {
			t.Fatal(err)
		}
		if used = testutil.CPUTime(t) - used; used > 2*time.Second && n > 1000 {
			t.Errorf("%v of processors", used)
		}
	}
	if s, err := Read(ns); err != nil || !s.Intact {
		t.Errorf("read: %+v, %v", s, err)
	}
}
