package behaviour

import (
	"slices"
)

// fragmented are packets that come in parts. RFC 4787, REQ-14, is about UDP; the
// demand holds for what else is translated.
func fragmented() []Case {
	must := func(id, asks string) Case {
		return Case{ID: id, RFC: 4787, Requirement: "REQ-14", Level: Must, Asks: asks, Want: []Outcome{Passes}}
	}
	return slices.Concat(
		bothFamilies(must("fragments-in-order", "fragments that come in order reach the other side, of UDP with and without checksum, TCP and ICMP"), inOrderOf(slices.Concat[[]datagram])),
		bothFamilies(must("fragments-reversed", "so do fragments that come in reverse order"), inOrderOf(reversed)),
		bothFamilies(must("fragments-mixed", "so do fragments of two packets that come in turn, the last ones first"), inOrderOf(mixed)),
		bothFamilies(must("fragments-twice", "a fragment that comes twice, the same, does no harm"), inOrderOf(twice)),
		bothFamilies(must("fragments-inbound", "fragments of an answer come to the host inside, in reverse order, too"), fragmentsInbound),
		bothFamilies(Case{ID: "fragments-overlap", Level: Natkit, Want: []Outcome{Dropped},
			Asks: "a packet whose fragments overlap is dropped (RFC 5722, RFC 1858)"},
			func(p *Play, e endsOf) (Outcome, error) { return overlapping(p, e, 408, 808) }),
		bothFamilies(Case{ID: "fragments-overlap-within", Level: Natkit, Want: []Outcome{Dropped, Passes},
			Asks: "a fragment with other data of what has come already changes nothing of it"},
			func(p *Play, e endsOf) (Outcome, error) { return overlapping(p, e, 392, 800) }),
		bothFamilies(Case{ID: "fragments-incomplete", RFC: 4787, Requirement: "REQ-14 a", Level: Must, Want: []Outcome{Passes},
			Asks: "fragments of 200 packets that never become whole do not keep others, whole or in parts, from passing"}, incomplete),
		fragmentedHeaders(), fragmentsAndErrors(),
	)
}

// order is a way to send the fragments of two packets.
type order func(...[]datagram) []datagram

func reversed(packets ...[]datagram) []datagram {
	all := slices.Concat(packets...)
	slices.Reverse(all)
	return all
}

func mixed(packets ...[]datagram) []datagram {
	var all []datagram
	for i := len(packets[0]) - 1; i >= 0; i-- {
		for _, p := range packets {
			all = append(all, p[i])
		}
	}
	return all
}

func twice(packets ...[]datagram) []datagram {
	var all []datagram
	for _, d := range mixed(packets...) {
		all = append(all, d, d)
	}
	return all
}

// inOrderOf sends two packets of a session in parts, for each protocol.
func inOrderOf(send order) func(*Play, endsOf) (Outcome, error) {
	return func(p *Play, e endsOf) (Outcome, error) {
		var all each
		for _, c := range carriers(e.v6) {
			got, err := c.inParts(p, e, send)
			if err != nil || !all.note(c.name, got, Passes) {
				return all.outcome(), err
			}
		}
		return all.outcome(), nil
	}
}

func (c carrier) inParts(p *Play, e endsOf, send order) (Outcome, error) {
	data := [][]byte{someData(1), someData(2)}
	one, two := c.ask(e.a, e.x.AddrPort, data[0]), c.ask(e.a, e.x.AddrPort, data[1])
	parts := send(one.fragments(c.id, 400, 800), two.fragments(c.id+1, 400, 800))
	arrivals, err := p.Send(A, packets(parts)...)
	if err != nil {
		return "", err
	}
	return c.judge(arrivals, e.x.host, e.wan, e.x.Addr(), data), nil
}

// fragmentsInbound answers a session with big packets.
func fragmentsInbound(p *Play, e endsOf) (Outcome, error) {
	var all each
	for _, c := range carriers(e.v6) {
		if c.answer == nil {
			continue
		}
		f, err := c.small.start(p, e.a, e.x)
		if err != nil {
			return "", err
		}
		data := [][]byte{someData(3), someData(4)}
		one, two := c.answer(e.x, f.mapped(), data[0]), c.answer(e.x, f.mapped(), data[1])
		parts := mixed(one.fragments(c.id, 400, 800), two.fragments(c.id+1, 400, 800))
		arrivals, err := p.Send(X, packets(parts)...)
		if err != nil || !all.note(c.name, c.judge(arrivals, A, e.x.Addr(), e.a.Addr(), data), Passes) {
			return all.outcome(), err
		}
	}
	return all.outcome(), nil
}

// overlapping sends a part of a packet once more, from other bytes on and with other
// data, before the packet is whole.
func overlapping(p *Play, e endsOf, from, to int) (Outcome, error) {
	data := someData(1)
	whole := carrierUDP.ask(e.a, e.x.AddrPort, data)
	other := whole
	other.Payload = slices.Clone(whole.Payload)
	for i := range other.Payload {
		other.Payload[i] ^= 0xff
	}
	parts := whole.fragments(0x3333, 400, 800)
	parts = []datagram{parts[0], parts[1], other.part(0x3333, from, to), parts[2]}
	arrivals, err := p.Send(A, packets(parts)...)
	if err != nil {
		return "", err
	}
	return carrierUDP.judge(arrivals, X, e.wan, e.x.Addr(), [][]byte{data}), nil
}

func incomplete(p *Play, e endsOf) (Outcome, error) {
	var never []datagram
	for i := range 200 {
		parts := carrierUDP.ask(e.b, e.x.AddrPort, someData(i)).fragments(uint32(0x4000+i), 400, 800)
		never = append(never, parts[1+i%2])
	}
	for some := range slices.Chunk(packets(never), 20) { // what a socket takes at once
		if _, err := p.Send(B, some...); err != nil {
			return "", err
		}
	}
	if _, err := flowUDP.start(p, e.a, e.x); err != nil {
		return "", err
	}
	return carrierUDP.inParts(p, e, reversed)
}
