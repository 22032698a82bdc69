package observe

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// ways are the routes of router: to itself, to its networks, all else by eth0.
func ways(asked *int) Router {
	return func(l Lookup) (Hop, error) {
		*asked++
		if router.Has(l.Destination) {
			return Hop{Local: true, Out: "lo"}, nil
		}
		for _, i := range router.Interfaces {
			if slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Contains(l.Destination) }) {
				return Hop{Out: i.Name}, nil
			}
		}
		if netip.MustParsePrefix("198.19.0.0/16").Contains(l.Destination) {
			return Hop{Unreachable: "there is no route"}, nil
		}
		return Hop{Out: "eth0", Gateway: netip.MustParseAddr("203.0.113.254")}, nil
	}
}

// TestUntranslatedIsWhatExplainTranslates: of connections that nothing translated those are
// found that the plan would make others, with the rule that does.
func TestUntranslatedIsWhatExplainTranslates(t *testing.T) {
	plan, asked := compile(t, manyKinds, router), 0
	u := Attribute(plan).Untranslated(&router, ways(&asked), 1<<20)
	r := rand.New(rand.NewPCG(5, 16))
	addresses := []string{"192.168.0.2", "192.168.0.3", "192.168.0.9", "192.168.0.1", "10.0.7.7", "10.1.0.5", "172.17.0.2", "203.0.113.1", "203.0.113.2",
		"203.0.113.7", "203.0.113.9", "203.0.113.50", "198.51.100.1", "198.18.0.1", "198.19.0.1", "10.9.0.1"}
	found := map[string]int{}
	for range 5000 {
		src, dst := netip.MustParseAddr(addresses[r.IntN(len(addresses))]), netip.MustParseAddr(addresses[r.IntN(len(addresses))])
		proto, port := []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[r.IntN(2)], []uint16{80, 8080, 5000, 5550, 5601}[r.IntN(5)]
		if src == dst {
			continue
		}
		orig := conntrack.Tuple{Src: src, Dst: dst, Proto: proto, SrcPort: 4000, DstPort: port}
		e := &conntrack.Entry{Orig: orig, Reply: conntrack.Tuple{Src: dst, Dst: src, Proto: proto, SrcPort: port, DstPort: 4000}}
		got, err := u.Of(e)
		if err != nil {
			t.Fatal(err)
		}
		want := translates(t, plan, nat.Packet{Protocol: proto, Src: src, Dst: dst, SrcPort: 4000, DstPort: port})
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Fatalf("%v: %v, explain says %v", orig, got, want)
		}
		if got != nil {
			found[got.Kind]++
		}
	}
	for _, kind := range []string{"masquerade", "snat", "dnat", "static", "netmap"} {
		if found[kind] < 20 {
			t.Errorf("the sample says little: %v", found)
		}
	}
}

// translates is the rule that explain names for a packet that it makes another.
func translates(t *testing.T, plan *gateway.Plan, p nat.Packet) *gateway.Ref {
	t.Helper()
	asked := 0
	route := ways(&asked)
	in, err := route(Lookup{Destination: p.Src})
	if err != nil || in.Unreachable != "" {
		return nil
	}
	if !in.Local {
		p.In = in.Out
	}
	w, err := Follow(plan, router, route, p)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case w.Destination.Rule != nil && !w.Destination.Allows(p.Dst, p.DstPort):
		return w.Destination.Rule
	case w.Fate == Forwarded && w.Source.Rule != nil && !w.Source.Allows(p.Src, p.SrcPort):
		return w.Source.Rule
	}
	return nil
}

// TestUntranslatedAsksWithinBounds: for no more routes than it may, and for none of what is
// translated or of no rule.
func TestUntranslatedAsksWithinBounds(t *testing.T) {
	asked := 0
	u := Attribute(compile(t, manyKinds, router)).Untranslated(&router, ways(&asked), 6)
	of := func(proto, orig, reply string) *gateway.Ref {
		ref, err := u.Of(entry(t, proto, orig, reply))
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	for _, text := range [][2]string{
		{"192.168.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 203.0.113.1:4000"},
		{"172.18.0.9:4000 > 198.18.0.1:80", "198.18.0.1:80 > 172.18.0.9:4000"},
		{"192.168.0.9:4000 > 192.168.0.1:53", "192.168.0.1:53 > 192.168.0.9:4000"},
		{"192.168.0.9:4000 > 224.0.0.251:5353", "224.0.0.251:5353 > 192.168.0.9:4000"},
	} {
		if ref := of("udp", text[0], text[1]); ref != nil || asked != 0 {
			t.Errorf("%s: %v, asked %d times", text[0], ref, asked)
		}
	}
	hosts := []string{"198.18.0.1", "198.18.0.2", "198.18.0.3", "198.18.0.4", "198.18.0.5", "198.18.0.6", "198.18.0.7"}
	n := 0
	for _, host := range hosts {
		if of("udp", "192.168.0.9:4000 > "+host+":80", host+":80 > 192.168.0.9:4000") != nil {
			n++
		}
	}
	if n != 5 || asked != 6 || !u.Exhausted() { // one of them is the way to 192.168.0.9
		t.Errorf("found %d, asked %d times, exhausted %v", n, asked, u.Exhausted())
	}
}
