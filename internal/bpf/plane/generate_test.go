package plane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// generator draws tables and packets for them, out of a seed.
type generator struct {
	*rand.Rand
	m      *model
	recent []ends
	queue  []drawn // fragments that are still to come
	last   drawn
}

// drawn is a packet and the interface by which it comes.
type drawn struct {
	in    *iface
	frame []byte
	gso   offload
}

// ends are what packets of one flow have in common.
type ends struct {
	in           *iface
	src, dst     netip.Addr
	protocol     uint8
	sport, dport uint16
	tos          uint8
	mac          [6]byte
	quoted       uint8 // an ICMP error about a packet of this protocol
}

func oneOf[T any](r *generator, all ...T) T { return all[r.IntN(len(all))] }

// in reports true in so many of a hundred cases.
func (g *generator) in(percent int) bool { return g.IntN(100) < percent }

// Addresses by what there is of them in the test's network.
func (g *generator) inside(v6 bool) netip.Addr {
	if v6 {
		if g.in(70) {
			return oneOf(g, g.host("fd00:0:0:1::", 22), g.host("fd00:0:0:2::", 22), g.host("fd00:0:0:77::", 9))
		}
		return oneOf(g, g.host("fd00:0:0:1::", 30), g.host("fd04::", 5), g.host("fd09::", 5), g.host("fd66::", 3), g.host("fd67::", 3), g.host("fd68::", 3), g.host("fd03::", 5))
	}
	if g.in(70) {
		return oneOf(g, g.host("10.0.0.0", 22), g.host("10.1.0.0", 22), g.host("10.0.128.0", 9))
	}
	return oneOf(g, g.host("10.0.0.0", 30), g.host("10.4.0.0", 5), g.host("10.9.0.0", 5), g.host("10.66.0.0", 3), g.host("10.67.0.0", 3), g.host("10.68.0.0", 3), g.host("10.3.0.0", 5))
}

func (g *generator) outside(v6 bool) netip.Addr {
	if v6 {
		return oneOf(g, g.host("2001:db8:99::", 20), g.host("2001:db8:99::", 20), g.host("2001:db8:64::", 9), g.host("2001:db8:65::", 9), g.host("2001:db8:1::", 9))
	}
	return oneOf(g, g.host("192.0.2.0", 20), g.host("192.0.2.0", 20), g.host("100.64.0.0", 9), g.host("100.65.0.0", 9), g.host("198.51.100.0", 9))
}

func (g *generator) external(v6 bool) netip.Addr {
	if v6 {
		return g.host("2001:db8:50::", 30)
	}
	return g.host("203.0.113.0", 30)
}

func (g *generator) martian(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(oneOf(g, "::1", "::", "ff02::1", "ff0e::5", "::ffff:203.0.113.5", "::ffff:10.0.0.2", "::ffff:192.0.2.3", "fe80::1", "fe80::22", "2001:db8:1::1"))
	}
	return netip.MustParseAddr(oneOf(g, "127.0.0.1", "0.0.0.0", "0.0.0.9", "224.0.0.5", "255.255.255.255", "240.0.0.1", "10.0.255.255", "10.0.0.1", "198.51.100.1"))
}

// host is one of the first n hosts of a network.
func (g *generator) host(network string, n int) netip.Addr {
	a := netip.MustParseAddr(network).AsSlice()
	a[len(a)-1] = byte(1 + g.IntN(n))
	addr, _ := netip.AddrFromSlice(a)
	return addr
}

// within is an address of a prefix, mostly one with few bits.
func (g *generator) within(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(a); i++ {
		if few := i < 8*len(a)-5 && p.Bits() < 64; (few && g.in(4)) || (!few && g.in(50)) {
			a[i/8] |= 0x80 >> (i % 8)
		}
	}
	if len(a) == 16 && g.in(10) { // words that cannot take up a difference
		for word := 3; word < 8 && g.in(70); word++ {
			if p.Bits() <= 16*word {
				a[2*word], a[2*word+1] = 0xff, 0xff
			}
		}
	}
	addr, _ := netip.AddrFromSlice(a)
	return addr
}

var drawnPorts = []uint16{80, 443, 53, 8080, 8443, 1000, 1001, 0xffff, 1}

// tables draws what the programs are to carry out.
func (g *generator) tables() Tables {
	d := &tablesDraft{g: g, seen: map[Mapping]bool{}}
	for range g.IntN(12) {
		v6 := g.in(40)
		d.pair(netip.PrefixFrom(g.external(v6), g.bits(v6)), netip.PrefixFrom(g.inside(v6), g.bits(v6)), 0, 0, 0, false)
	}
	if g.in(70) {
		for range g.IntN(12) {
			d.service()
		}
	}
	if g.in(60) {
		d.prefixes()
	}
	if i := slices.IndexFunc(d.Destinations, func(m Mapping) bool { return m.ToPort != 0 }); i >= 0 { // both ports change, and their sum does not
		m := d.Destinations[i]
		from := g.outside(m.Match.Addr().Is6())
		same := netip.PrefixFrom(from, from.BitLen())
		d.add(&d.Sources, Mapping{Match: same, Protocol: m.Protocol, Port: m.ToPort, To: same, ToPort: m.Port}, "s")
	}
	for range g.IntN(3) { // the other end: hosts outside get addresses inside
		v6 := g.in(40)
		d.pair(netip.PrefixFrom(g.inside(v6), g.bits(v6)), netip.PrefixFrom(g.outside(v6), g.bits(v6)), 0, 0, 0, false)
	}
	for range g.IntN(3) { // what something else translates
		v6 := g.in(40)
		d.Elsewhere = append(d.Elsewhere, netip.PrefixFrom(oneOf(g, g.external(v6), g.outside(v6)), g.bits(v6)))
	}
	if g.in(20) {
		d.Elsewhere = append(d.Elsewhere, netip.MustParsePrefix("192.0.2.0/29"))
	}
	d.Rules = uint32(len(d.Destinations) + len(d.Sources) + 1)
	return d.Tables
}

func (g *generator) bits(v6 bool) int {
	if v6 {
		return 128
	}
	return 32
}

func (g *generator) roles() Roles {
	if g.in(75) {
		return AnyRole
	}
	return oneOf[Roles](g, 1, 3, 3, 1|4|8, 4|8, 2|16, Inside, 3|Inside)
}

type tablesDraft struct {
	Tables
	g    *generator
	seen map[Mapping]bool
}

// pair adds a mapping and its inverse, mostly.
func (d *tablesDraft) pair(from, to netip.Prefix, protocol uint8, port, toPort uint16, neutral bool) {
	if d.g.in(95) {
		d.add(&d.Destinations, Mapping{Match: from, To: to, Protocol: protocol, Port: port, ToPort: toPort, Neutral: neutral}, "d")
	}
	back := Mapping{Match: to, To: from, Protocol: protocol, Port: port, Neutral: neutral}
	if toPort != 0 {
		back.Port, back.ToPort = toPort, port
	}
	if d.g.in(95) {
		d.add(&d.Sources, back, "s")
	}
}

func (d *tablesDraft) add(to *[]Mapping, m Mapping, list string) {
	key := Mapping{Match: m.Match.Masked(), Protocol: m.Protocol, Port: m.Port, Rule: uint32(list[0])}
	if d.seen[key] {
		return
	}
	d.seen[key] = true
	m.Match, m.Roles = m.Match.Masked(), d.g.roles()
	m.Rule = uint32(len(d.Destinations) + len(d.Sources) + 1)
	*to = append(*to, m)
}

func (d *tablesDraft) service() {
	g := d.g
	v6 := g.in(30)
	e, b := netip.PrefixFrom(g.external(v6), g.bits(v6)), netip.PrefixFrom(g.inside(v6), g.bits(v6))
	switch g.IntN(5) {
	case 0: // all of a protocol
		d.pair(e, b, oneOf[uint8](g, tcp, udp, sctp, icmp4, icmp6, 47, udplite, dccp), 0, 0, false)
	case 1:
		d.pair(e, b, sctp, oneOf(g, drawnPorts...), 0, false)
	case 2:
		d.pair(e, b, oneOf[uint8](g, tcp, udp), oneOf(g, drawnPorts...), 0, false)
	default:
		d.pair(e, b, oneOf[uint8](g, tcp, udp), oneOf(g, drawnPorts...), oneOf(g, drawnPorts...), false)
	}
}

func (d *tablesDraft) prefixes() {
	pair := func(from, to string, neutral bool) {
		if d.g.in(60) {
			d.pair(netip.MustParsePrefix(from), netip.MustParsePrefix(to), 0, 0, 0, neutral)
		}
	}
	pair("203.0.114.0/24", "10.0.1.0/24", false)
	pair("203.0.114.16/28", "10.1.0.16/28", false)
	pair("203.0.115.0/29", "10.0.0.0/29", false)
	pair("10.77.0.0/16", "192.0.0.0/16", false)
	pair("2001:db8:200::/48", "fd00::/48", true)
	pair("2001:db8:300::/56", "fd00::/56", true)
	pair("2001:db8:400::/64", "fd00:0:0:1::/64", true)
	pair("2001:db8:500::/64", "fd00:0:0:2::/64", false)
	pair("2001:db8:510::/44", "fd00::/44", d.g.in(50))
}

// next is a packet.
func (g *generator) next() drawn {
	if len(g.queue) > 0 && g.in(60) {
		d := g.queue[0]
		g.queue = g.queue[1:]
		return d
	}
	e := g.ends()
	ip := g.packet(&e)
	if g.in(15) {
		if pieces := g.fragments(ip); len(pieces) > 0 {
			for _, piece := range pieces {
				g.queue = append(g.queue, drawn{in: e.in, frame: g.ethernet(&e, piece)})
			}
			g.queue = g.queue[max(0, len(g.queue)-40):]
			return g.next()
		}
	}
	out := drawn{in: e.in, frame: g.ethernet(&e, ip)}
	if (e.protocol == tcp || e.protocol == udp) && g.in(3) {
		out.frame = append(out.frame[:12:12], map[bool][]byte{false: {8, 0}, true: {0x86, 0xdd}}[e.src.Is6()]...)
		out.frame = append(out.frame, ip...)
		out.gso = offload{oneOf(g, 500, 1200, 1300, 1360, 1380, 1448, 1460, 1472), g.IntN(5)}
	}
	return out
}

// ends draws a flow, or takes one again.
func (g *generator) ends() ends {
	if len(g.recent) > 0 && g.in(60) {
		e := oneOf(g, g.recent...)
		if g.in(10) {
			e.tos = uint8(g.IntN(256))
		}
		if g.in(10) {
			e.quoted, e.protocol = e.protocol, icmpOf(e.src.Is6())
		}
		return e
	}
	e := g.newEnds()
	if g.recent = append(g.recent, e); len(g.recent) > 64 {
		g.recent = g.recent[1:]
	}
	return e
}

// link is one whose frames have an Ethernet header.
func (g *generator) link() *iface {
	for {
		if l := oneOf(g, g.m.interfaces...); !l.NoEthernet {
			return l
		}
	}
}

func icmpOf(v6 bool) uint8 {
	if v6 {
		return icmp6
	}
	return icmp4
}

func (g *generator) newEnds() ends {
	v6 := g.in(40)
	e := ends{in: g.link(), sport: oneOf(g, drawnPorts...), dport: oneOf(g, drawnPorts...), mac: [6]byte{}}
	if g.in(5) {
		e.sport, e.dport = uint16(g.IntN(65536)), uint16(g.IntN(65536))
	}
	switch g.IntN(3) {
	case 0:
		e.src, e.dst = g.outside(v6), g.external(v6)
	case 1:
		e.src, e.dst = g.inside(v6), g.outside(v6)
	default:
		e.src, e.dst = g.inside(v6), g.external(v6)
	}
	if all := g.m.Destinations; len(all) > 0 && g.in(60) {
		m := oneOf(g, all...)
		if e.dst = g.within(m.Match); m.Port != 0 && g.in(80) {
			e.dport, e.protocol = m.Port, m.Protocol
		}
		v6 = e.dst.Is6()
		e.src = oneOf(g, g.outside(v6), g.inside(v6))
	}
	if all := g.m.Sources; len(all) > 0 && g.in(60) {
		m := oneOf(g, all...)
		if e.src = g.within(m.Match); m.Port != 0 && g.in(80) {
			e.sport, e.protocol = m.Port, m.Protocol
		}
		if v6 = e.src.Is6(); e.dst.Is6() != v6 {
			e.dst = oneOf(g, g.outside(v6), g.external(v6))
		}
	}
	if g.in(10) {
		g.balance(&e)
	}
	if g.in(3) {
		e.src = g.martian(v6)
	}
	if g.in(3) {
		e.dst = g.martian(v6)
	}
	if r := g.m.route(e.src); r != nil && r.link != nil && !r.link.NoEthernet && g.in(90) {
		e.in = r.link // where it would come from
	}
	if e.protocol == 0 || g.in(20) {
		e.protocol = oneOf[uint8](g, tcp, tcp, tcp, udp, udp, udp, udplite, dccp, sctp, 47, 50, 59, 200, icmp4, icmp4, icmp6, icmp6)
		if (e.protocol == icmp4 || e.protocol == icmp6) && g.in(95) {
			e.protocol = icmpOf(v6)
		}
	}
	e.mac = e.in.mac
	if g.in(2) {
		e.mac = oneOf(g, [6]byte{255, 255, 255, 255, 255, 255}, [6]byte{1, 0, 0x5e, 0, 0, 5}, [6]byte{2, 1, 1, 1, 1, 1})
	}
	return e
}

// balance takes two mappings that change both ports and leave their sum as it is, if there are such.
func (g *generator) balance(e *ends) {
	for _, to := range g.m.Destinations {
		for _, from := range g.m.Sources {
			if to.ToPort != 0 && from.Port == to.ToPort && from.ToPort == to.Port && from.Protocol == to.Protocol && from.Match != to.To {
				e.src, e.dst, e.protocol = from.Match.Addr(), to.Match.Addr(), to.Protocol
				e.sport, e.dport = from.Port, to.Port
				return
			}
		}
	}
}

// packet is one of IP, whole.
func (g *generator) packet(e *ends) []byte {
	payload := g.transport(e)
	if e.src.Is6() {
		return g.ipv6(e, payload)
	}
	return g.ipv4(e.src, e.dst, e.protocol, e.tos, g.ttl(), payload)
}

func (g *generator) ttl() uint8 {
	return oneOf[uint8](g, 64, 64, 64, 255, 3, 2, 128, uint8(g.IntN(4)))
}

func (g *generator) ipv4(src, dst netip.Addr, protocol, tos, ttl uint8, payload []byte) []byte {
	var options []byte
	if g.in(4) {
		options = slices.Repeat([]byte{1}, 4*(1+g.IntN(10)))
	}
	b := make([]byte, 20, 20+len(options)+len(payload))
	b[0] = 0x45 + byte(len(options)/4)
	b[1] = tos
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(options)+len(payload)))
	binary.BigEndian.PutUint16(b[4:], uint16(g.IntN(200)))
	binary.BigEndian.PutUint16(b[6:], oneOf[uint16](g, 0, 0x4000, 0x4000, 0x8000))
	b[8], b[9] = ttl, protocol
	copy(b[12:], src.AsSlice())
	copy(b[16:], dst.AsSlice())
	b = append(b, options...)
	g.seal4(b)
	return append(b, payload...)
}

// seal4 gives an IPv4 header its checksum, or a wrong one.
func (g *generator) seal4(b []byte) {
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], complement(ones(b[:4*int(b[0]&15)])))
	if g.in(2) {
		b[10] ^= 0x40
	}
}

// complement is a checksum.
func complement(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// ipv6 has extension headers, sometimes.
func (g *generator) ipv6(e *ends, payload []byte) []byte {
	protocol := e.protocol
	if g.in(12) {
		for range 1 + g.IntN(oneOf(g, 2, 2, 7)) {
			protocol, payload = g.extension(protocol, payload)
		}
	}
	b := make([]byte, 40, 40+len(payload))
	binary.BigEndian.PutUint32(b, 6<<28|uint32(e.tos)<<20|uint32(g.IntN(1<<20)))
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = protocol, g.ttl()
	copy(b[8:], e.src.AsSlice())
	copy(b[24:], e.dst.AsSlice())
	return append(b, payload...)
}

// extension puts a header before a payload.
func (g *generator) extension(next uint8, payload []byte) (uint8, []byte) {
	kind := oneOf[uint8](g, hopByHop, destinationOptions, destinationOptions, routing, fragmented, fragmented, mobility)
	b := make([]byte, 8, 8+len(payload))
	b[0] = next
	switch kind {
	case routing:
		b[2], b[3] = 4, uint8(max(0, g.IntN(4)-2))
	case fragmented:
		b[3] = oneOf[uint8](g, 0, 0, 0, 2, 6, 1)
		b[7] = byte(g.IntN(50))
		return kind, append(b, payload...)
	}
	if g.in(30) {
		b[1] = byte(1 + g.IntN(3))
		b = append(b, make([]byte, 8*int(b[1]))...)
	}
	return kind, append(b, payload...)
}

// bytes are some, mostly few.
func (g *generator) bytes() []byte {
	n := g.IntN(60)
	switch g.IntN(40) {
	case 0:
		n = 1200 + g.IntN(400)
	case 1, 2:
		n = g.IntN(600)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

// transport is what an IP packet carries.
func (g *generator) transport(e *ends) []byte {
	payload := g.bytes()
	if (e.protocol == icmp4 && e.src.Is4()) || (e.protocol == icmp6 && e.src.Is6()) {
		return g.icmp(e, payload)
	}
	return g.segment(e.src, e.dst, e.protocol, e.sport, e.dport, payload)
}

func (g *generator) segment(src, dst netip.Addr, protocol uint8, sport, dport uint16, payload []byte) []byte {
	header := map[uint8]int{tcp: 20, udp: 8, udplite: 8, dccp: 16, sctp: 12}[protocol]
	if header == 0 {
		return payload
	}
	b := append(make([]byte, header), payload...)
	binary.BigEndian.PutUint16(b, sport)
	binary.BigEndian.PutUint16(b[2:], dport)
	switch protocol {
	case tcp:
		binary.BigEndian.PutUint32(b[4:], g.Uint32())
		b[12], b[13] = byte(5+min(len(payload)/4, g.IntN(11)))<<4, 0x10 // options
	case udp, udplite:
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	case sctp:
		binary.BigEndian.PutUint32(b[8:], g.Uint32())
		return b
	}
	g.seal(b, src, dst, protocol)
	return b
}

// seal gives a transport its checksum, or a wrong one, or none; or changes what it covers so that this has a value at the
// edge.
func (g *generator) seal(b []byte, src, dst netip.Addr, protocol uint8) {
	at := checksumOf[protocol]
	b[at], b[at+1] = 0, 0
	pseudo := func() uint64 {
		return ones(src.AsSlice()) + ones(dst.AsSlice()) + uint64(protocol) + uint64(len(b))
	}
	if g.in(5) && len(b) >= at+4 && len(b)%2 == 0 {
		last := b[len(b)-2:]
		last[0], last[1] = 0, 0
		want := g.edge()
		binary.BigEndian.PutUint16(last, complement(pseudo()+ones(b)+uint64(want)))
	}
	sum := complement(pseudo() + ones(b))
	if sum == 0 && protocol != tcp {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], sum)
	switch {
	case protocol == udp && g.in(10):
		b[at], b[at+1] = 0, 0
	case g.in(3):
		b[at] ^= byte(g.Uint32())
	}
}

// edge is a checksum that is about 0 after some translation.
func (g *generator) edge() uint16 {
	all := append(slices.Clone(g.m.Destinations), g.m.Sources...)
	if len(all) == 0 || g.in(10) {
		return oneOf[uint16](g, 0, 0xffff)
	}
	m := oneOf(g, all...)
	from, to := ones(m.Match.Addr().AsSlice()), ones(m.To.Addr().AsSlice())
	if m.ToPort != 0 {
		from, to = from+uint64(m.Port), to+uint64(m.ToPort)
	}
	// check + from = 0xffff + to: with to in the place of from it is 0xffff, or 0.
	return ^complement(to + uint64(^uint16(^complement(from))))
}

func (g *generator) icmp(e *ends, payload []byte) []byte {
	v6 := e.src.Is6()
	kind := map[bool]uint8{false: 8, true: 128}[v6]
	if g.in(10) {
		kind = oneOf[uint8](g, 0, 4, 5, 9, 13, 129, 133, 135, 137, 143)
	}
	b := append([]byte{kind, 0, 0, 0, 1, 2, 0, 7}, payload...)
	if g.in(50) || e.quoted != 0 {
		b = g.icmpError(e)
	}
	if v6 {
		g.seal(b, e.src, e.dst, icmp6)
		return b
	}
	binary.BigEndian.PutUint16(b[2:], complement(ones(b)))
	if g.in(3) {
		b[2] ^= 0x11
	}
	return b
}

// icmpError quotes a packet that went the other way. It may be of a router on the way of that.
func (g *generator) icmpError(e *ends) []byte {
	q := *e
	q.src, q.dst, q.sport, q.dport = e.dst, e.src, e.dport, e.sport
	if q.protocol = e.quoted; q.protocol == 0 {
		q.protocol = oneOf[uint8](g, tcp, udp, udp, tcp, sctp, udplite, 47, icmpOf(e.src.Is6()))
	}
	kind := oneOf[uint8](g, 3, 3, 11, 12)
	if e.src.Is6() {
		kind = oneOf[uint8](g, 1, 2, 3, 4)
	}
	var quoted []byte
	if q.protocol == icmp4 || q.protocol == icmp6 {
		echo := g.segment(q.src, q.dst, 0, 0, 0, append([]byte{128, 0, 1, 2, 3, 4, 5, 6}, g.bytes()...))
		echo[0] = map[bool]byte{false: 8, true: 128}[e.src.Is6()]
		quoted = g.around(&q, echo)
	} else {
		quoted = g.around(&q, g.segment(q.src, q.dst, q.protocol, q.sport, q.dport, g.bytes()))
	}
	if g.in(8) {
		if pieces := g.fragments(quoted); len(pieces) > 0 {
			quoted = oneOf(g, pieces...)
		}
	}
	header := 40
	if e.src.Is4() {
		header = 4 * int(quoted[0]&15)
	}
	switch {
	case g.in(30):
		quoted = quoted[:min(len(quoted), header+8)]
	case g.in(10):
		quoted = quoted[:g.IntN(len(quoted)+1)]
	case g.in(5): // RFC 4884
		quoted = append(quoted[:min(len(quoted), 128)], make([]byte, 128-min(len(quoted), 128))...)
		quoted = append(quoted, 0x20, 0, 0, 0)
	}
	quoted = quoted[:min(len(quoted), 1232)]
	if g.in(20) {
		e.src = oneOf(g, g.outside(e.src.Is6()), g.inside(e.src.Is6()))
	}
	if g.in(3) {
		e.dst = g.external(e.src.Is6())
	}
	return append([]byte{kind, byte(g.IntN(5)), 0, 0, 0, 0, 5, byte(g.IntN(256))}, quoted...)
}

func (g *generator) around(e *ends, payload []byte) []byte {
	if e.src.Is6() {
		return g.ipv6(e, payload)
	}
	return g.ipv4(e.src, e.dst, e.protocol, e.tos, g.ttl(), payload)
}

// fragments splits a packet, if it has something to split: in order or not, and not all of them.
func (g *generator) fragments(ip []byte) (out [][]byte) {
	v6 := ip[0]>>4 == 6
	header := 40
	if !v6 {
		header = 4 * int(ip[0]&15)
	}
	rest := ip[header:]
	id := uint32(g.IntN(300))
	for at := 0; at < len(rest); {
		n := 8 * (1 + g.IntN(oneOf(g, 1, 2, 4, 40)))
		more := at+n < len(rest)
		if !more {
			n = len(rest) - at
		}
		out = append(out, fragmentOf(ip, header, at, rest[at:at+n], id, more))
		at += n
		if len(out) > 6 {
			break
		}
	}
	if len(out) < 2 {
		return nil
	}
	if g.in(30) {
		g.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	}
	for i := range out {
		if !v6 {
			g.seal4(out[i])
		}
	}
	return out[:min(len(out), 2+g.IntN(4))]
}

func fragmentOf(ip []byte, header, at int, payload []byte, id uint32, more bool) []byte {
	b := slices.Clone(ip[:header])
	flag := uint16(0)
	if ip[0]>>4 == 6 {
		if more {
			flag = 1
		}
		b[6] = fragmented
		binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
		b = append(b, ip[6], 0)
		b = binary.BigEndian.AppendUint16(b, uint16(at)|flag)
		b = binary.BigEndian.AppendUint32(b, id)
	} else {
		if more {
			flag = 0x2000
		}
		binary.BigEndian.PutUint16(b[2:], uint16(header+len(payload)))
		binary.BigEndian.PutUint16(b[4:], uint16(id))
		binary.BigEndian.PutUint16(b[6:], uint16(at/8)|flag)
	}
	return append(b, payload...)
}

// ethernet is the frame of a packet, and what may be wrong with it.
func (g *generator) ethernet(e *ends, ip []byte) []byte {
	b := append(append([]byte{}, e.mac[:]...), 2, 9, 9, 9, 9, 9)
	kind := []byte{8, 0}
	if e.src.Is6() {
		kind = []byte{0x86, 0xdd}
	}
	switch g.IntN(100) {
	case 0:
		b = append(b, 0x81, 0, 0, 5)
	case 1:
		kind = oneOf(g, []byte{8, 6}, []byte{0x86, 0xdd}, []byte{8, 0}, []byte{0x88, 0xa8})
	}
	b = append(append(b, kind...), ip...)
	switch g.IntN(25) {
	case 0:
		b = b[:14+g.IntN(len(b)-13)]
	case 1:
		b = append(b, g.bytes()...)
	case 2:
		b[14+g.IntN(len(b)-14)] ^= 1 << g.IntN(8)
	case 3:
		b = append(b, make([]byte, max(0, 60-len(b)))...)
	}
	return b
}
