package behaviour

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/frame"
)

// singlePort has one port for all.
const singlePort = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.1, ports: 5000-5000}
`

// icmpHairpin are messages between hosts inside that know each other by external
// addresses.
func icmpHairpin() []Case {
	return []Case{{
		ID: "rfc5508-req-7", RFC: 5508, Requirement: "REQ-7", Level: Must, Want: []Outcome{Passes}, Gateway: basicNAT,
		Asks: "with static addresses (Basic NAT) a host inside gets echoes answered by another's external address",
		Run:  hairpinnedEcho,
	}, {
		ID: "rfc5508-req-7-a", RFC: 5508, Requirement: "REQ-7 a", Level: Must, Want: []Outcome{Translated}, Gateway: publishedA,
		Asks: "an error of the host that was reached by hairpinning comes to the host that asked, from the external address",
		Run:  hairpinnedErrorBack,
	}, {
		ID: "rfc5508-req-7-a-forward", RFC: 5508, Requirement: "REQ-7 a", Level: Must, Want: []Outcome{Translated}, Gateway: publishedA,
		Asks: "an error of the host that asked comes to the one that answered",
		Run:  hairpinnedErrorOn,
	}}
}

func hairpinnedEcho(p *Play) (Outcome, error) {
	asked, err := carry(p, insideC, insideA, ping(insideC.Addr(), staticA, 7, 1))
	if err != nil {
		return "", err
	}
	seen := &asked.got.Frame
	if strings.HasPrefix(seen.Source.String(), "172.17.") {
		return "seen under the inside address", nil
	}
	answer, err := carry(p, insideA, insideC, pong(insideA.Addr(), seen.Source, seen.ICMP.Identifier(), 1))
	if err != nil {
		return "", err
	}
	f := &answer.got.Frame
	return yes(f.Source == staticA && f.ICMP.Identifier() == 7, Passes, "answered otherwise"), nil
}

// hairpinnedFlow is a session of C with A by the forwarded port.
func hairpinnedFlow(p *Play) (f flow, err error) {
	if f.out, err = carry(p, insideC, serverA, flowTCP.ask(insideC.AddrPort, publicA)); err != nil {
		return f, err
	}
	f.in, err = carry(p, serverA, insideC, flowTCP.say(serverA.AddrPort, f.mapped()))
	return f, err
}

func hairpinnedErrorBack(p *Play) (Outcome, error) {
	f, err := hairpinnedFlow(p)
	if err != nil {
		return "", err
	}
	return report{by: serverA, kind: frame.ICMP{Type: unreachable, Code: portUnreachable}}.seen(p, f.out, publicA.Addr())
}

func hairpinnedErrorOn(p *Play) (Outcome, error) {
	f, err := hairpinnedFlow(p)
	if err != nil {
		return "", err
	}
	return report{by: insideC, kind: frame.ICMP{Type: unreachable, Code: 1}}.seen(p, f.in, f.mapped().Addr())
}

// icmpOwn are the cases of ICMP errors that the gateway itself sends.
func icmpOwn() []Case {
	return slices.Concat([]Case{{
		ID: "rfc5508-req-8", RFC: 5508, Requirement: "REQ-8", Level: Should, Want: []Outcome{"ICMP 3/13"}, Gateway: singlePort,
		Asks:   "a packet for which there is no mapping left is answered by ICMP, administratively prohibited",
		Run:    exhausted,
		Expect: onNetfilter("nothing", "a connection that cannot be entered in the table is dropped and counted, never answered"),
	}, {
		ID: "rfc5508-req-9", RFC: 5508, Requirement: "REQ-9", Level: May,
		Asks:       "the gateway may be kept from sending ICMP to some interfaces",
		Untestable: "a matter of the firewall's rules, of which a gateway file has none",
	}, {
		ID: "rfc5508-req-10-a1", RFC: 5508, Requirement: "REQ-10 a 1", Level: Must, Want: []Outcome{"ICMP 3/0", "ICMP 3/1"},
		Asks: "the gateway says Destination Unreachable of what it has no route to",
		Run:  noRoute,
	}},
		bothFamilies(Case{ID: "rfc5508-req-10-a2", RFC: 5508, Requirement: "REQ-10 a 2", Level: Must, Want: []Outcome{Translated},
			Asks: "the gateway says Time Exceeded to a host inside, from its inside address, about the packet as it was sent"}, expiredOutbound),
		bothFamilies(Case{ID: "rfc5508-req-10-a2-inbound", RFC: 5508, Requirement: "REQ-10 a 2", Level: Must, Want: []Outcome{Translated},
			Asks: "it says so to a host outside, from its external address, and does not show inside addresses"}, expiredInbound),
		bothFamilies(Case{ID: "icmp-too-big-inbound", Level: Natkit, Want: []Outcome{Translated},
			Asks: "the gateway says to a host outside that a packet is too big for the inside's network, with its MTU, about the packet as it was sent"}, tooBigInbound),
		bothFamilies(Case{ID: "rfc5508-req-10-a3", RFC: 5508, Requirement: "REQ-10 a 3", Level: Must, Want: []Outcome{"answered"},
			Asks: "the gateway answers echoes, from inside and from outside"}, gatewayEcho),
		[]Case{{
			ID: "rfc5508-req-10-b", RFC: 5508, Requirement: "REQ-10 b", Level: May,
			Asks:       "the gateway may send Redirect, Timestamp Reply, Address Mask, Parameter Problem, and heed source routes",
			Untestable: "it allows either; Timestamp and Parameter Problem of others are translated (REQ-1, REQ-4), source routes refused (ip-source-route)",
		}, {
			ID: "rfc5508-req-10-c", RFC: 5508, Requirement: "REQ-10 c", Level: Should, Want: []Outcome{"not answered"},
			Asks: "the gateway does not support Information Request",
			Run:  informationRequest,
		}, {
			ID: "rfc5508-req-11", RFC: 5508, Requirement: "REQ-11", Level: May,
			Asks:       "other ICMP messages may be dropped",
			Untestable: "it allows either; that of which a host could be harmed, Redirect, is measured (icmp-redirect)",
		}})
}

func exhausted(p *Play) (Outcome, error) {
	if _, err := carry(p, insideA, outsideX, udpData(insideA.AddrPort, outsideX.AddrPort)); err != nil {
		return "", err
	}
	arrivals, err := p.Send(B, udpData(insideB.AddrPort, outsideX.AddrPort).bytes())
	return Outcome(arrivals.kinds()), err
}

func noRoute(p *Play) (Outcome, error) {
	arrivals, err := p.Send(A, udpData(insideA.AddrPort, ap("192.0.2.1:53")).bytes())
	return Outcome(arrivals.kinds()), err
}

// expired is Time Exceeded in transit.
func (e endsOf) expired() frame.ICMP {
	if e.v6 {
		return frame.ICMP{Type: timeExceeded6}
	}
	return frame.ICMP{Type: timeExceeded}
}

// ownReport judges an error of the gateway itself about a packet: from source, to the
// sender, with all that was sent quoted as far as the gateway quotes.
func ownReport(p *Play, from end, sent []byte, kind frame.ICMP, source netip.Addr) (Outcome, error) {
	arrivals, err := p.Send(from.host, sent)
	if err != nil {
		return "", err
	}
	return report{kind: kind, quote: len(sent)}.judge(exchanged{from: from, sent: sent}, source, arrivals), nil
}

func expiredOutbound(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		d := k.ask(e.a.AddrPort, e.x.AddrPort)
		d.TTL = 1
		got, err := ownReport(p, e.a, d.bytes(), e.expired(), e.lan)
		if err != nil || !all.note(k.name, got, Translated) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

func expiredInbound(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, k := range flowsOf(e.v6) {
		f, err := k.start(p, e.a, e.x)
		if err != nil {
			return "", err
		}
		d := k.say(e.x.AddrPort, f.mapped())
		d.TTL = 1
		got, err := ownReport(p, e.x, d.bytes(), e.expired(), e.wan)
		if err != nil || !all.note(k.name, got, Translated) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

// tooBigInbound makes the inside's network narrow. The gateway quotes 548 bytes of IPv4
// (RFC 1812, section 4.3.2.3), and of IPv6 what fits 1280 (RFC 4443, section 2.4 c).
func tooBigInbound(p *Play, e endsOf) (Outcome, error) {
	if err := p.MTU(LAN, narrow); err != nil {
		return "", err
	}
	f, err := flowUDP.start(p, e.a, e.x)
	if err != nil {
		return "", err
	}
	d := udp(e.x.AddrPort, f.mapped(), make([]byte, 1400))
	d.DontFragment = true
	kind, quote := frame.ICMP{Type: unreachable, Code: fragNeeded, Rest: narrow}, 576-28
	if e.v6 {
		kind, quote = frame.ICMP{Type: packetTooBig6, Rest: narrow}, 1280-48
	}
	sent := d.bytes()
	arrivals, err := p.Send(X, sent)
	if err != nil {
		return "", err
	}
	return report{kind: kind, quote: quote}.judge(exchanged{from: e.x, sent: sent}, e.wan, arrivals), nil
}

func gatewayEcho(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, of := range []struct {
		from end
		to   netip.Addr
	}{{e.a, e.lan}, {e.a, e.wan}, {e.x, e.wan}} {
		arrivals, err := p.Send(of.from.host, ping(of.from.Addr(), of.to, 7, 1).bytes())
		if err != nil {
			return "", err
		}
		want := Outcome("ICMP 0/0")
		if e.v6 {
			want = "ICMP 129/0"
		}
		if !all.note(of.from.Addr().String()+" to "+of.to.String(), Outcome(arrivals.kinds()), want) {
			return all.outcome(), nil
		}
	}
	return "answered", nil
}

func informationRequest(p *Play) (Outcome, error) {
	const information = 15
	arrivals, err := p.Send(A, icmp(insideA.Addr(), LANAddress.Addr(), frame.ICMP{Type: information}, nil).bytes())
	return yes(len(arrivals) == 0, "not answered", "answered"), err
}
