package behaviour

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

// twiceGateway translates both ends of what passes: A has another address outside, and a network outside another one inside.
const twiceGateway = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - static: {inside: 192.168.0.2, outside: 203.0.113.9, stateless: true}
  - netmap: {inside: 198.18.0.0/24, outside: 10.77.0.0/24, out: lan, stateless: true}
`

// fixedOfHost are cases of what is set on the gateway beside its file, and of more than one rule for a packet.
func fixedOfHost() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "fixed-forwarding-off", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{"only while it is on"}, Gateway: fixedGateway,
			Asks: "nothing is forwarded while the gateway's forwarding is off"}, forwardingOff),
		bothFamilies(Case{ID: "fixed-neighbour", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{Passes}, Gateway: fixedGateway,
			Asks: "a packet for which the gateway has to ask for the next hop's link-layer address first arrives once that is known"}, unresolved),
		bothFamilies(Case{ID: "fixed-changed-waiting", Requirement: "apply", Level: Natkit, Want: []Outcome{Translated, Dropped}, Gateway: fixedGateway,
			Asks: "an answer that waits for its next hop's link-layer address while its rule is removed is not sent with its inside address"}, changedWhileWaiting),
		[]Case{{
			ID: "fixed-rp-filter", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{Dropped}, Gateway: fixedGateway,
			Asks: "with a strict reverse path filter packets from addresses that are elsewhere are dropped, others pass", Run: spoofed,
		}, {
			ID: "fixed-hairpin", Requirement: "static", Level: Natkit, Want: []Outcome{"under its own external address"}, Gateway: basicNAT,
			Asks: "a host with a static address reaches another one by that one's, and is seen under its own", Run: hairpinnedStatic,
		}, {
			ID: "twice-nat", Requirement: "static, netmap", Level: Natkit, Want: []Outcome{bothWays}, Gateway: twiceGateway,
			Asks: "both ends of a packet are translated (twice NAT): a network outside has other addresses inside", Run: twiceNAT,
		}})
}

func forwardingOff(p *Play, e endsOf) (Outcome, error) {
	name := "net.ipv4.ip_forward"
	if e.v6 {
		name = "net.ipv6.conf.all.forwarding"
	}
	if err := p.Sysctl(name, "0"); err != nil {
		return "", err
	}
	for _, at := range places(e.v6) {
		for _, w := range []way{at.inbound(e.x), at.outbound(e.x)} {
			arrivals, err := p.Send(w.from.host, w.long(at.kinds[0], []byte("data")).bytes())
			if err != nil || len(arrivals.At(w.to.host)) > 0 {
				return "though it is off", err
			}
		}
	}
	if err := p.Sysctl(name, "1"); err != nil {
		return "", err
	}
	return visited(p, e, "only while it is on", func(place, flowKind, flow) (Outcome, error) { return "only while it is on", nil })
}

// unresolved has each packet meet a next hop that the gateway does not know: the host inside, and X's router.
func unresolved(p *Play, e endsOf) (Outcome, error) {
	var all each
	x := e.x
	for _, at := range places(e.v6) {
		for _, k := range at.kinds {
			x = end{x.host, netip.AddrPortFrom(x.Addr().Next(), x.Port())} // none that is known yet
			for _, w := range []way{at.inbound(x), at.outbound(x)} {
				got, err := w.waits(p, k)
				if err != nil || !all.note(at.name+", "+k.name, got, Passes) {
					return all.outcome(), err
				}
			}
		}
	}
	return all.outcome(), nil
}

func (w way) waits(p *Play, k flowKind) (Outcome, error) {
	arrivals, err := w.waiting(p, k, func() error { return nil })
	if err != nil || len(arrivals) == 0 {
		return Dropped, err
	}
	return w.judge(k, arrivals, someData(1)[:100]), nil
}

// waiting sends a packet whose next hop is not known, does something, and gives what arrives once it is.
func (w way) waiting(p *Play, k flowKind, meanwhile func() error) (Arrivals, error) {
	next := w.to.Addr()
	if at, _ := deviceOf(w.to.host); w.to.host == X {
		next = at.next[slices.IndexFunc(at.next, func(a netip.Addr) bool { return a.Is6() == next.Is6() })]
	}
	if _, err := p.Neighbour(w.to.host, next, false); err != nil {
		return nil, err
	}
	arrivals, err := p.Send(w.from.host, w.long(k, someData(1)[:100]).bytes())
	if err == nil && len(arrivals) > 0 {
		err = fmt.Errorf("it does not wait: %s", arrivals)
	}
	if err == nil {
		err = meanwhile()
	}
	if err != nil {
		return nil, err
	}
	return p.Neighbour(w.to.host, next, true)
}

// changedWhileWaiting leaves a rule of each family in force.
func changedWhileWaiting(p *Play, e endsOf) (Outcome, error) {
	at := places(e.v6)[0]
	if _, err := at.visit(p, flowUDP, e.x); err != nil {
		return "", err
	}
	w := at.outbound(end{X, netip.AddrPortFrom(e.x.Addr().Next(), 5000)})
	if _, err := p.Send(w.to.host, at.inbound(w.to).long(flowUDP, []byte("request")).bytes()); err != nil {
		return "", err
	}
	arrivals, err := w.waiting(p, flowUDP, func() error {
		return p.change(rules("  - static: {inside: 192.168.0.60, outside: 203.0.113.60}\nipv6:\n  - static: {inside: \"fd00:1::3c\", outside: \"2001:db8:1::60\"}\n"))
	})
	switch {
	case err != nil:
		return "", err
	case len(arrivals) == 0:
		return Dropped, nil
	case arrivals[0].Frame.Tuple() == w.seen:
		return Translated, nil
	}
	return leavesUntranslated, nil
}

// spoofed has X send from an address that is inside, and C from one of another network inside.
func spoofed(p *Play) (Outcome, error) {
	for _, dev := range devices {
		if err := p.Sysctl("net.ipv4.conf."+dev+".rp_filter", "1"); err != nil {
			return "", err
		}
	}
	if err := p.Apply(p.Plan); err != nil {
		return "", err
	}
	e, elsewhere := endsIn(false), at(X, "192.168.0.44:5000")
	return visited(p, e, Dropped, func(at place, k flowKind, _ flow) (Outcome, error) {
		in, out := at.inbound(elsewhere), at.outbound(e.x)
		for host, w := range map[Host]way{X: in, C: out} {
			arrivals, err := p.Send(host, w.long(k, []byte("data")).bytes())
			if err != nil || len(arrivals) > 0 {
				return Outcome("arrived: " + arrivals.brief()), err
			}
		}
		return Dropped, nil
	})
}

func hairpinnedStatic(p *Play) (Outcome, error) {
	asked, err := carry(p, insideB, insideA, udpData(insideB.AddrPort, publicStatic))
	if err != nil {
		return "", err
	}
	seen := asked.got.Frame.Tuple()
	answer, err := carry(p, insideA, insideB, udpData(ap("192.168.0.2:5000"), seen.Src))
	if err != nil {
		return "", err
	}
	if t := answer.got.Frame.Tuple(); t != (frame.Tuple{Src: publicStatic, Dst: insideB.AddrPort}) {
		return Outcome("the answer came as " + line(&answer.got.Frame)), nil
	}
	switch seen.Src.Addr() {
	case staticB:
		return "under its own external address", nil
	case staticA:
		return "under the address that it asked", nil
	}
	return Outcome("as " + seen.Src.String()), nil
}

func twiceNAT(p *Play) (Outcome, error) {
	x := ap("10.77.0.10:5000") // as A has it
	for _, k := range flows {
		out, err := carry(p, insideA, outsideX, k.ask(insideA.AddrPort, x))
		if err != nil {
			return lostOr("lost on its way out", err)
		}
		in, err := carry(p, outsideX, insideA, k.say(outsideX.AddrPort, netip.AddrPortFrom(staticA, insideA.Port())))
		if err != nil {
			return lostOr("lost on its way in", err)
		}
		f, g := &out.got.Frame, &in.got.Frame
		if f.Source != staticA || f.Destination != outsideX.Addr() || g.Source != x.Addr() || g.Destination != insideA.Addr() {
			return Outcome("out as " + line(f) + ", in as " + line(g)), nil
		}
	}
	return untracked(p)
}
