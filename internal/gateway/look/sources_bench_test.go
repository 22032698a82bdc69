package look

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/snapshot"
)

// BenchmarkManySources is what the ports of 10,000 rules take, each with an address of
// its own, of 100,000 connections to as many places.
func BenchmarkManySources(b *testing.B) {
	const rules, connections = 10_000, 100_000
	p := &gateway.Plan{Schema: gateway.PlanSchema, Engine: gateway.EngineNetfilter, IPv4: true}
	inside := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	outside := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }
	for i := range rules {
		p.Sources = append(p.Sources, gateway.Source{
			Rule: gateway.Ref{List: "nat", Index: i, Kind: "snat"}, From: []netip.Prefix{netip.PrefixFrom(inside(i), 32)},
			To: []gateway.Range{{First: outside(i), Last: outside(i)}},
		})
	}
	for b.Loop() {
		v := &view{Status: &observe.Status{}, settings: &snapshot.Snapshot{}, o: &Options{Top: 20}, plan: p}
		v.Rules = observe.RulesOf(p)
		r := &reader{plan: p}
		r.begin()
		for i := range connections {
			remote := netip.AddrFrom4([4]byte{203, byte(i >> 16), byte(i >> 8), byte(i)})
			r.add(&conntrack.Entry{Family: unix.AF_INET,
				Orig:  conntrack.Tuple{Src: inside(i % rules), Dst: remote, Proto: unix.IPPROTO_TCP, SrcPort: 4000, DstPort: 443},
				Reply: conntrack.Tuple{Src: remote, Dst: outside(i % rules), Proto: unix.IPPROTO_TCP, SrcPort: 443, DstPort: 4000}})
		}
		v.flows(r, true)
		v.pools(r, true)
	}
}
