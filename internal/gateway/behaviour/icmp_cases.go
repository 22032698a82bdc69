package behaviour

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

// rfc5508 is NAT Behavioral Requirements for ICMP.
func rfc5508() []Case {
	return slices.Concat(icmpQueries(), icmpChecks(), icmpInbound(), icmpOutbound(), icmpHairpin(), icmpOwn())
}

// leavesUntranslated is an outcome that no case wants.
const leavesUntranslated Outcome = "leaves untranslated"

// basicNAT gives A and B addresses of their own.
const basicNAT = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {}
  - static: {inside: 192.168.0.2, outside: 203.0.113.9, hairpin: true}
  - static: {inside: 192.168.0.3, outside: 203.0.113.10, hairpin: true}
`

var (
	staticA = netip.MustParseAddr("203.0.113.9")
	staticB = netip.MustParseAddr("203.0.113.10")
)

// allErrors are the ICMP errors that a NAT passes on, of every code that is assigned
// (RFC 792, 1122, 1812), and those of ICMPv6 (RFC 4443).
func allErrors(v6 bool) []frame.ICMP {
	if v6 {
		return slices.Concat(codes(unreachable6, 7, 0), codes(packetTooBig6, 0, 1300), codes(timeExceeded6, 1, 0), codes(parameterProblem6, 2, 40))
	}
	return slices.Concat(codes(unreachable, 15, 0), []frame.ICMP{{Type: unreachable, Code: fragNeeded, Rest: 1300}},
		codes(timeExceeded, 1, 0), codes(parameterProblem, 2, 9<<24))
}

func codes(kind, last uint8, rest uint32) []frame.ICMP {
	var all []frame.ICMP
	for code := range last + 1 {
		all = append(all, frame.ICMP{Type: kind, Code: code, Rest: rest})
	}
	return all
}

func errorName(k flowKind, h frame.ICMP) string {
	return fmt.Sprintf("%s, type %d code %d", k.name, h.Type, h.Code)
}

// routerX is a router between the gateway and X.
var (
	routerX  = at(Y, "198.18.1.254:0")
	routerX6 = at(Y, "[2001:db8:f:2::fe]:0")
)

// endsOf are the ends and the gateway's addresses of a case in one family, and its port
// unreachable.
type endsOf struct {
	v6                  bool
	a, b, x, router     end
	wan, lan            netip.Addr
	portUnreachableKind frame.ICMP
}

func endsIn(v6 bool) endsOf {
	if v6 {
		return endsOf{true, insideA6, insideB6, outsideX6, routerX6, WANAddress6.Addr(), LANAddress6.Addr(), frame.ICMP{Type: unreachable6, Code: 4}}
	}
	return endsOf{false, insideA, insideB, outsideX, routerX, WANAddress.Addr(), LANAddress.Addr(), frame.ICMP{Type: unreachable, Code: portUnreachable}}
}

// bothFamilies makes a case of IPv4 and one of IPv6, which the RFC does not name.
func bothFamilies(c Case, run func(*Play, endsOf) (Outcome, error)) []Case {
	six := c
	six.ID += "-ipv6"
	six.Asks += " (IPv6)"
	c.Run = func(p *Play) (Outcome, error) { return run(p, endsIn(false)) }
	six.Run = func(p *Play) (Outcome, error) { return run(p, endsIn(true)) }
	return []Case{c, six}
}

func icmpInbound() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "rfc5508-req-4", RFC: 5508, Requirement: "REQ-4", Level: Must, Want: []Outcome{Translated},
			Asks: "errors from outside of every type and code come to the host inside as they are, about the packet as it sent it"}, inboundErrors),
		bothFamilies(Case{ID: "rfc5508-req-4-router", RFC: 5508, Requirement: "REQ-4", Level: Must, Want: []Outcome{Translated},
			Asks: "so do those of routers on the way, which keep their address"}, inboundFromRouter),
		bothFamilies(Case{ID: "rfc5508-req-4-cut", RFC: 5508, Requirement: "REQ-4 a", Level: Must, Want: []Outcome{Translated},
			Asks: "the quoted packet may end eight bytes behind its IP header"}, inboundCut),
		bothFamilies(Case{ID: "rfc5508-req-4-unmatched", RFC: 5508, Requirement: "REQ-4", Level: Should, Want: []Outcome{Dropped},
			Asks: "errors from outside about nothing that was sent are dropped"}, inboundUnmatched),
		[]Case{{
			ID: "rfc5508-req-4-forwarded", RFC: 5508, Requirement: "REQ-4", Level: Must, Want: []Outcome{Translated}, Gateway: publishedA,
			Asks: "errors about the answers of a forwarded port come to the host that answered", Run: inboundForwarded,
		}, {
			ID: "icmp-source-quench", Level: Natkit, Want: []Outcome{Translated, Dropped},
			Asks: "Source Quench, obsolete (RFC 6633), is translated or dropped, and does no harm", Run: inboundQuench,
		}, {
			ID: "icmp-redirect", Level: Natkit, Want: []Outcome{Dropped},
			Asks: "a Redirect from outside does not reach a host inside", Run: inboundRedirect,
		}},
	)
}

func inboundErrors(p *Play, e endsOf) (Outcome, error) {
	return everyError(p, e, report{by: e.x}, sentOut, e.x.Addr())
}

func inboundFromRouter(p *Play, e endsOf) (Outcome, error) {
	return everyError(p, e, report{by: e.router}, sentOut, e.router.Addr())
}

// sentOut and cameIn are the packets of a session that errors are about.
func sentOut(f flow) exchanged { return f.out }
func cameIn(f flow) exchanged  { return f.in }

// everyError makes every error about every kind of session, and wants each to come from
// the source.
func everyError(p *Play, e endsOf, r report, about func(flow) exchanged, source netip.Addr) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		f, err := k.start(p, e.a, e.x)
		if err != nil {
			return "", err
		}
		for _, r.kind = range allErrors(e.v6) {
			got, err := r.seen(p, about(f), source)
			if err != nil || !all.note(errorName(k, r.kind), got, Translated) {
				return all.outcome(), err
			}
		}
	}
	return all.outcome(), nil
}

// flowsOf leaves out what IPv6 has not: a UDP checksum of 0.
func flowsOf(v6 bool) []flowKind {
	if v6 {
		return []flowKind{flowUDP, flowTCP, flowEcho}
	}
	return flows
}

func inboundCut(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		f, err := k.start(p, e.a, e.x)
		if err != nil {
			return "", err
		}
		got, err := report{by: e.router, kind: e.portUnreachableKind, quote: headerLength(f.out.sent) + 8}.seen(p, f.out, e.router.Addr())
		if err != nil || !all.note(k.name, got, Translated) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

// inboundUnmatched reports about packets that no host sent, as if they had the mapping
// of a session but another port.
func inboundUnmatched(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		sent := k.ask(netip.AddrPortFrom(e.wan, 3999), e.x.AddrPort).bytes()
		never := exchanged{from: e.a, to: e.x, sent: sent, got: &Arrival{Packet: sent}}
		never.got.Frame.Source = e.wan
		got, err := report{by: e.x, kind: e.portUnreachableKind}.seen(p, never, e.x.Addr())
		if err != nil || !all.note(k.name, got, Dropped) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

func inboundForwarded(p *Play) (Outcome, error) {
	ask, err := carry(p, outsideX, serverA, flowTCP.ask(outsideX.AddrPort, publicA))
	if err != nil {
		return "", err
	}
	answer, err := carry(p, serverA, outsideX, flowTCP.say(serverA.AddrPort, ask.got.Frame.Tuple().Src))
	if err != nil {
		return "", err
	}
	return report{by: outsideX, kind: frame.ICMP{Type: unreachable, Code: 1}}.seen(p, answer, outsideX.Addr())
}

func inboundQuench(p *Play) (Outcome, error) {
	f, err := flowUDP.start(p, insideA, outsideX)
	if err != nil {
		return "", err
	}
	return report{by: outsideX, kind: frame.ICMP{Type: sourceQuench}}.seen(p, f.out, outsideX.Addr())
}

func inboundRedirect(p *Play) (Outcome, error) {
	f, err := flowUDP.start(p, insideA, outsideX)
	if err != nil {
		return "", err
	}
	other := frame.ICMP{Type: redirect, Code: 1, Rest: 198<<24 | 18<<16 | 77}
	return report{by: routerX, kind: other}.seen(p, f.out, routerX.Addr())
}
