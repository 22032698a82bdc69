package behaviour

import (
	"bytes"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// fixedGateway has rules that give the same packet the same ends each time: a port, ports in another range, an address.
const fixedGateway = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - dnat: {on: 203.0.113.7, port: [udp/8080, tcp/8080], to: "192.168.0.2:80"}
  - dnat: {on: 203.0.113.7, port: [udp/5000-5009], to: "192.168.0.2:6000-6009"}
  - static: {inside: 192.168.0.3, outside: 203.0.113.9}
ipv6:
  - dnat: {on: "2001:db8:1::7", port: [udp/8080, tcp/8080], to: "[fd00:1::2]:80"}
  - dnat: {on: "2001:db8:1::7", port: [udp/5000-5009], to: "[fd00:1::2]:6000-6009"}
  - static: {inside: "fd00:1::3", outside: "2001:db8:1::9"}
`

// place is what an end inside is outside, by a rule of fixedGateway.
type place struct {
	name    string
	inside  end
	outside netip.AddrPort
	kinds   []flowKind
}

func places(v6 bool) []place {
	if v6 {
		return []place{
			{"port", at(A, "[fd00:1::2]:80"), ap("[2001:db8:1::7]:8080"), []flowKind{flowUDP, flowTCP}},
			{"port of a range", at(A, "[fd00:1::2]:6007"), ap("[2001:db8:1::7]:5007"), []flowKind{flowUDP}},
			{"address", at(B, "[fd00:1::3]:77"), ap("[2001:db8:1::9]:77"), []flowKind{flowUDP, flowTCP, flowEcho}},
		}
	}
	return []place{
		{"port", at(A, "192.168.0.2:80"), ap("203.0.113.7:8080"), []flowKind{flowUDP, flowZero, flowTCP}},
		{"port of a range", at(A, "192.168.0.2:6007"), ap("203.0.113.7:5007"), []flowKind{flowUDP, flowZero}},
		{"address", at(B, "192.168.0.3:77"), ap("203.0.113.9:77"), flows},
	}
}

// request is what comes to the place from outside, answer what it says to that.
func (w place) request(k flowKind, x end) datagram { return k.ask(x.AddrPort, w.outside) }
func (w place) answer(k flowKind, x end) datagram  { return k.say(w.inside.AddrPort, x.AddrPort) }

// visit makes a session that begins outside.
func (w place) visit(p *Play, k flowKind, x end) (f flow, err error) {
	if f.in, err = carry(p, x, w.inside, w.request(k, x)); err != nil {
		return f, err
	}
	f.out, err = carry(p, w.inside, x, w.answer(k, x))
	return f, err
}

// visited does something with a session at each place, of each kind, and wants the same of all.
func visited(p *Play, e endsOf, want Outcome, do func(place, flowKind, flow) (Outcome, error)) (Outcome, error) {
	var all each
	for _, w := range places(e.v6) {
		for _, k := range w.kinds {
			f, err := w.visit(p, k, e.x)
			if err != nil {
				return "", err
			}
			if got, err := do(w, k, f); err != nil || !all.note(w.name+", "+k.name, got, want) {
				return all.outcome(), err
			}
		}
	}
	return all.outcome(), nil
}

// fixed are cases of rules whose mapping is fixed, which need no tracker.
func fixed() []Case {
	at := func(id, asks string, want Outcome, run func(*Play, endsOf) (Outcome, error)) []Case {
		return bothFamilies(Case{ID: "fixed-" + id, Requirement: "dnat, static", Level: Natkit, Asks: asks, Want: []Outcome{want}, Gateway: fixedGateway}, run)
	}
	inParts := at("error-in-fragments", "an error about an answer that comes in fragments, the last one first, comes to the host that answered", Passes, fixedErrorInFragments)
	for i := range inParts {
		inParts[i].Expect = map[string]Expectation{EBPF: {Outcome: "port, udp: not all parts arrive",
			Reason: "fragments behind the first one do not say whose they are, and netfilter, which puts them together, does not know the flow. No router quotes so much (RFC 1812, section 4.3.2.3; RFC 4443, section 2.4 c)"}}
	}
	return slices.Concat(
		at("sessions", "sessions that begin outside go both ways, header fields stay as they are, the TTL goes down by one", Untouched, fixedFields),
		at("errors-inbound", "errors of hosts and routers outside about answers, of every type and code, come to the host that answered, about the packet as it sent it", Translated, fixedErrorsInbound),
		at("errors-outbound", "errors of the host inside about requests come to the one that asked, from the address that it asked", Translated, fixedErrorsOutbound),
		at("expired-inbound", "the gateway says Time Exceeded about a request from its external address, and quotes it as it was sent", Translated, fixedExpiredInbound),
		at("expired-outbound", "it says so about an answer from its inside address", Translated, fixedExpiredOutbound),
		at("too-big-inbound", "it says that a request is too big for the inside's network, with its MTU, and quotes it as it was sent", Translated, fixedTooBig(LAN, place.inbound)),
		at("too-big-outbound", "it says so of an answer that is too big for the outside's", Translated, fixedTooBig(WAN, place.outbound)),
		[]Case{{ID: "fixed-cut-inbound", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{Passes}, Gateway: fixedGateway,
			Asks: "a request that is too big for the inside's network, without DF, comes in parts", Run: fixedCut(LAN, place.inbound)},
			{ID: "fixed-cut-outbound", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{Passes}, Gateway: fixedGateway,
				Asks: "so does an answer that is too big for the outside's", Run: fixedCut(WAN, place.outbound)}},
		at("fragments-inbound", "fragments of requests come to the host inside", Passes, fixedFragments(slices.Concat[[]datagram], place.inbound)),
		at("fragments-outbound", "fragments of answers come to the one that asked", Passes, fixedFragments(slices.Concat[[]datagram], place.outbound)),
		at("fragments-mixed-inbound", "so do those of requests that come in turn, the last ones first", Passes, fixedFragments(mixed, place.inbound)),
		at("fragments-mixed-outbound", "so do those of answers", Passes, fixedFragments(mixed, place.outbound)),
		[]Case{{ID: "fixed-fragments-cut-inbound", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{Passes}, Gateway: fixedGateway,
			Asks: "fragments that are too big for the inside's network come in smaller ones", Run: fixedFragmentsCut(LAN, place.inbound)},
			{ID: "fixed-fragments-cut-outbound", Requirement: "dnat, static", Level: Natkit, Want: []Outcome{Passes}, Gateway: fixedGateway,
				Asks: "so do those that are too big for the outside's", Run: fixedFragmentsCut(WAN, place.outbound)}},
		inParts,
		at("options", "options of IPv4 and extension headers of IPv6 are kept both ways", Untouched, fixedOptions),
		at("last-hop", "a packet with a TTL of 2 passes with 1", Passes, fixedLastHop),
	)
}

func fixedFields(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Untouched, func(w place, k flowKind, _ flow) (Outcome, error) {
		request, answer := w.request(k, e.x), w.answer(k, e.x)
		for _, way := range []struct {
			from, to end
			datagram
		}{{e.x, w.inside, request}, {w.inside, e.x, answer}} {
			way.DSCP, way.TTL, way.Identification = 46, 17, 0xbeef
			got, err := carry(p, way.from, way.to, way.datagram)
			if err != nil {
				return "", err
			}
			if !bytes.Equal(fields(got.sent, 1), fields(got.got.Packet, 0)) {
				return "changed", nil
			}
			if t := got.got.Frame.Tuple(); way.from.host == X && t.Src != e.x.AddrPort && k.name != flowEcho.name {
				return Outcome("its source changes: " + t.Src.String()), nil
			}
		}
		return Untouched, nil
	})
}

func fixedErrorsInbound(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Translated, func(_ place, k flowKind, f flow) (Outcome, error) {
		var all each
		for _, by := range []end{e.x, e.router} {
			for _, kind := range allErrors(e.v6) {
				got, err := report{by: by, kind: kind}.seen(p, f.out, by.Addr())
				if err != nil || !all.note(errorName(k, kind), got, Translated) {
					return all.outcome(), err
				}
			}
		}
		return all.outcome(), nil
	})
}

func fixedErrorsOutbound(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Translated, func(w place, k flowKind, f flow) (Outcome, error) {
		var all each
		for _, kind := range allErrors(e.v6) {
			got, err := report{by: w.inside, kind: kind}.seen(p, f.in, w.outside.Addr())
			if err != nil || !all.note(errorName(k, kind), got, Translated) {
				return all.outcome(), err
			}
		}
		return all.outcome(), nil
	})
}

func fixedExpiredInbound(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Translated, func(w place, k flowKind, _ flow) (Outcome, error) {
		d := w.request(k, e.x)
		d.TTL = 1
		return ownReportOf(p, e.x, d.bytes(), report{kind: e.expired(), quote: len(d.bytes())}, e.wan, w.outside.Addr())
	})
}

func fixedExpiredOutbound(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Translated, func(w place, k flowKind, _ flow) (Outcome, error) {
		d := w.answer(k, e.x)
		d.TTL = 1
		return ownReportOf(p, w.inside, d.bytes(), report{kind: e.expired(), quote: len(d.bytes())}, e.lan)
	})
}

// ownReportOf judges an error of the gateway itself, which is to come from one of its addresses.
func ownReportOf(p *Play, from end, sent []byte, want report, sources ...netip.Addr) (Outcome, error) {
	arrivals, err := p.Send(from.host, sent)
	if err != nil {
		return "", err
	}
	source := sources[0]
	if len(arrivals) == 1 && slices.Contains(sources, arrivals[0].Frame.Source) {
		source = arrivals[0].Frame.Source
	}
	return want.judge(exchanged{from: from, sent: sent}, source, arrivals), nil
}

// tooBig is what a router says of a packet for a narrow network, and how much it quotes of one: 548 bytes of IPv4
// (RFC 1812, section 4.3.2.3), of IPv6 what fits 1280 (RFC 4443, section 2.4 c).
func (e endsOf) tooBig() report {
	if e.v6 {
		return report{kind: frame.ICMP{Type: packetTooBig6, Rest: narrow}, quote: 1280 - 48}
	}
	return report{kind: frame.ICMP{Type: unreachable, Code: fragNeeded, Rest: narrow}, quote: 576 - 28}
}

// long is a packet of a session with data: what asks, or what answers.
func (k flowKind) long(from, to netip.AddrPort, data []byte, answers bool) datagram {
	switch k.name {
	case flowTCP.name:
		h := frame.TCP{SequenceNumber: 101, AcknowledgmentNumber: 901, Flags: frame.ACK}
		if answers {
			h.SequenceNumber, h.AcknowledgmentNumber = h.AcknowledgmentNumber, h.SequenceNumber
		}
		return tcp(from, to, h, data)
	case flowZero.name:
		return udpWithout(from, to, data)
	case flowEcho.name:
		if answers {
			return carrierEcho.answer(end{AddrPort: from}, to, data)
		}
		return carrierEcho.ask(end{AddrPort: from}, to, data)
	}
	return udp(from, to, data)
}

// way is one direction of a session at a place: both ends as the one that sends sees them, and as the other one does.
type way struct {
	from, to         end
	sent, seen       frame.Tuple
	inbound, answers bool
}

func (w place) inbound(x end) way {
	return way{from: x, to: w.inside, sent: frame.Tuple{Src: x.AddrPort, Dst: w.outside}, seen: frame.Tuple{Src: x.AddrPort, Dst: w.inside.AddrPort}, inbound: true}
}

func (w place) outbound(x end) way {
	return way{from: w.inside, to: x, sent: frame.Tuple{Src: w.inside.AddrPort, Dst: x.AddrPort}, seen: frame.Tuple{Src: w.outside, Dst: x.AddrPort}, answers: true}
}

// long is a packet with data on its way.
func (w way) long(k flowKind, data []byte) datagram {
	return k.long(w.sent.Src, w.sent.Dst, data, w.answers)
}

// judge wants packets with each of the data to have come, whole or in parts.
func (w way) judge(k flowKind, arrivals Arrivals, data ...[]byte) Outcome {
	return carrier{name: k.name}.judge(arrivals, w.to.host, w.seen.Src.Addr(), w.seen.Dst.Addr(), data)
}

// direction is inbound or outbound of a place.
type direction func(place, end) way

func fixedTooBig(narrowed string, to direction) func(*Play, endsOf) (Outcome, error) {
	return func(p *Play, e endsOf) (Outcome, error) {
		if err := p.MTU(narrowed, narrow); err != nil {
			return "", err
		}
		return visited(p, e, Translated, func(at place, k flowKind, _ flow) (Outcome, error) {
			w, sources := to(at, e.x), []netip.Addr{e.lan}
			if w.inbound {
				sources = []netip.Addr{e.wan, at.outside.Addr()}
			}
			d := w.long(k, make([]byte, 1400))
			d.DontFragment = true
			return ownReportOf(p, w.from, d.bytes(), e.tooBig(), sources...)
		})
	}
}

// fixedCut sends packets that the gateway has to cut.
func fixedCut(narrowed string, to direction) func(*Play) (Outcome, error) {
	return func(p *Play) (Outcome, error) {
		e := endsIn(false)
		if err := p.MTU(narrowed, narrow); err != nil {
			return "", err
		}
		return visited(p, e, Passes, func(at place, k flowKind, _ flow) (Outcome, error) {
			w := to(at, e.x)
			arrivals, err := p.Send(w.from.host, w.long(k, someData(1)).bytes())
			if err == nil && len(arrivals) != 2 {
				return "it comes in one", nil
			}
			return w.judge(k, arrivals, someData(1)), err
		})
	}
}

// fixedFragments sends two packets in parts.
func fixedFragments(send order, to direction) func(*Play, endsOf) (Outcome, error) {
	return func(p *Play, e endsOf) (Outcome, error) {
		id := uint32(0x1000)
		return visited(p, e, Passes, func(at place, k flowKind, _ flow) (Outcome, error) {
			w := to(at, e.x)
			one, two := w.long(k, someData(1)), w.long(k, someData(2))
			id += 2
			arrivals, err := p.Send(w.from.host, packets(send(one.fragments(id, 400, 800), two.fragments(id+1, 400, 800)))...)
			return w.judge(k, arrivals, someData(1), someData(2)), err
		})
	}
}

// fixedLastHop lets packets arrive with their last hop, on which the host may take them.
func fixedLastHop(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Passes, func(at place, k flowKind, _ flow) (Outcome, error) {
		for _, w := range []way{at.inbound(e.x), at.outbound(e.x)} {
			d := w.long(k, []byte("data"))
			d.TTL = 2
			got, err := carry(p, w.from, w.to, d)
			if err != nil || !bytes.Equal(fields(got.sent, 1), fields(got.got.Packet, 0)) {
				return "changed", err
			}
		}
		return Passes, nil
	})
}

// fixedFragmentsCut sends a packet in two parts, of which the gateway has to cut one, in order and the last one first.
func fixedFragmentsCut(narrowed string, to direction) func(*Play) (Outcome, error) {
	return func(p *Play) (Outcome, error) {
		e, id := endsIn(false), uint32(0x2000)
		if err := p.MTU(narrowed, narrow); err != nil {
			return "", err
		}
		return visited(p, e, Passes, func(at place, k flowKind, _ flow) (Outcome, error) {
			var all each
			for name, send := range map[string]order{"in order": slices.Concat[[]datagram], "reversed": reversed} {
				w := to(at, e.x)
				id++
				arrivals, err := p.Send(w.from.host, packets(send(w.long(k, someData(1)).fragments(id, 1344)))...)
				if err != nil || !all.note(name, w.judge(k, arrivals, someData(1)), Passes) {
					return all.outcome(), err
				}
			}
			return Passes, nil
		})
	}
}

func fixedErrorInFragments(p *Play, e endsOf) (Outcome, error) {
	id := uint32(0x3000)
	return visited(p, e, Passes, func(at place, k flowKind, _ flow) (Outcome, error) {
		w := at.outbound(e.x)
		sent, err := carry(p, w.from, w.to, w.long(k, someData(1)))
		if err != nil {
			return "", err
		}
		id++
		return errorComes(p, report{by: e.x, kind: e.portUnreachableKind}, sent, id)
	})
}

// fixedOptions sends packets with options that routers look at, and with some that they do not.
func fixedOptions(p *Play, e endsOf) (Outcome, error) {
	return visited(p, e, Untouched, func(at place, k flowKind, _ flow) (Outcome, error) {
		for _, w := range []way{at.inbound(e.x), at.outbound(e.x)} {
			for _, withHop := range []bool{true, false} {
				d, headers := w.long(k, []byte("data")), someOptions()
				if !e.v6 {
					d.Options = headers
				} else {
					headers = d.extend(withHop)
				}
				got, err := carry(p, w.from, w.to, d)
				if err != nil {
					return "", err
				}
				f := &got.got.Frame
				if !bytes.Equal(slices.Concat(f.IPv4.Options, f.IPv6.Extensions), headers) {
					return "changed", nil
				}
				if t := f.Tuple(); k.name != flowEcho.name && t != w.seen {
					return "translated otherwise", nil
				}
			}
		}
		return Untouched, nil
	})
}

// extend puts extension headers before what a packet of IPv6 carries: for its destination, and for each hop before that.
func (d *datagram) extend(withHop bool) []byte {
	header := func(next uint8) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} } // PadN; RFC 8200, section 4.2
	headers := header(d.Protocol)
	if d.Protocol = unix.IPPROTO_DSTOPTS; withHop {
		headers = append(header(unix.IPPROTO_DSTOPTS), headers...)
		d.Protocol = unix.IPPROTO_HOPOPTS
	}
	d.Payload = append(headers[:len(headers):len(headers)], d.Payload...)
	return headers
}
