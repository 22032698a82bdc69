package ports

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

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
		t.Error("nobody asked for alternatives")
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
