package plane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
)

// The slow truth about what the programs do with one packet. It works on whole packets, searches all mappings in turn and
// knows nothing of checksums' arithmetic: what a checksum covers has to add up after the translation to what it added up
// to before (check).

// network is what the model knows of the host: its interfaces, and what its routes and neighbours lead to.
type network struct {
	interfaces []*iface
	routes     []route
	neighbours map[netip.Addr][6]byte
}

// iface is an interface of the host. The programs know it where known is set.
type iface struct {
	Interface
	name     string
	known    bool
	forwards bool // packets that come in by it
	mtu      int
	mac      [6]byte
}

type routeKind int

const (
	unicast     routeKind = iota
	local                 // also broadcast: what is not forwarded
	unreachable           // also blackhole and prohibit
)

// route leads to a link, by a gateway or, where there is none, to neighbours on it.
type route struct {
	to   netip.Prefix
	kind routeKind
	link *iface
	via  netip.Addr
}

func (n *network) route(a netip.Addr) *route {
	var best *route
	for i := range n.routes {
		if r := &n.routes[i]; r.to.Contains(a) && (best == nil || r.to.Bits() > best.to.Bits()) {
			best = r
		}
	}
	return best
}

// model is a host with programs that carry tables out, and what these remember and count.
type model struct {
	Tables
	network
	marks   Marks
	ports   map[fragmentID]seen // fragments, by the interface by which they came
	egress  map[fragmentID]seen // … those that were left half done
	rules   map[uint32]planeCount
	reasons map[planeReason]planeCount
}

// seen is what is known of a packet by its fragments.
type seen struct {
	ports [2]uint16
	way   planeWay
}

type fragmentID struct {
	src, dst netip.Addr
	id       uint32
	protocol uint8
	link     string
}

// header is an IP header as the RFCs 791 and 8200 have it, and where what it carries begins. at and l4 count from the
// beginning of the frame.
type header struct {
	v6              bool
	at, l4, end     int
	src, dst        netip.Addr
	ttl, protocol   uint8
	options         bool
	fragment, later bool
	id              uint32
	ports           *[2]uint16 // as they are in the packet
}

const (
	tcp, udp, dccp, sctp, udplite = 6, 17, 33, 132, 136
	icmp4, icmp6                  = 1, 58
	hopByHop, routing, fragmented = 0, 43, 44
	destinationOptions, mobility  = 60, 135
)

var withPorts = []uint8{tcp, udp, dccp, sctp, udplite}

// checksumOf is where a transport has a checksum that covers addresses.
var checksumOf = map[uint8]int{tcp: 16, udp: 6, udplite: 6, dccp: 6, icmp6: 2}

func (h *header) checksum() (at int, ok bool) {
	at, ok = checksumOf[h.protocol]
	return at, ok && (h.v6 || h.protocol != icmp6)
}

var extensions = []uint8{hopByHop, routing, fragmented, destinationOptions, mobility}

const mostExtensions = 5

// readHeader reads the header of a packet; a quoted one may be cut off anywhere behind it, one on the way (length) is
// complete.
func readHeader(frame []byte, at int, v6, quoted bool) (h header, ok bool) {
	b := frame[min(at, len(frame)):]
	h.v6, h.at = v6, at
	var length int
	if v6 {
		if len(b) < 40 || b[0]>>4 != 6 {
			return h, false
		}
		h.src, h.dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		h.protocol, h.ttl, h.l4 = b[6], b[7], at+40
		length = 40 + int(binary.BigEndian.Uint16(b[4:]))
	} else {
		if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 || len(b) < 4*int(b[0]&15) {
			return h, false
		}
		h.src, h.dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		h.protocol, h.ttl, h.l4 = b[9], b[8], at+4*int(b[0]&15)
		h.options = b[0]&15 > 5
		h.id = uint32(binary.BigEndian.Uint16(b[4:]))
		offset := binary.BigEndian.Uint16(b[6:])
		h.fragment, h.later = offset&0x3fff != 0, offset&0x1fff != 0
		length = int(binary.BigEndian.Uint16(b[2:]))
	}
	h.end = at + length
	if quoted {
		h.end = len(frame)
	} else if h.end > len(frame) || h.end < h.l4 {
		return h, false
	}
	if v6 && !h.skipExtensions(frame) {
		return h, false
	}
	if slices.Contains(withPorts, h.protocol) && !h.later && h.l4+4 <= h.end {
		h.ports = &[2]uint16{binary.BigEndian.Uint16(frame[h.l4:]), binary.BigEndian.Uint16(frame[h.l4+2:])}
	}
	return h, true
}

// skipExtensions goes behind the extension headers: not those that the programs leave to the stack.
func (h *header) skipExtensions(frame []byte) bool {
	for n := 0; slices.Contains(extensions, h.protocol) && !h.later; n++ {
		if n == mostExtensions || h.l4+8 > h.end {
			return false
		}
		b := frame[h.l4:h.end]
		length := 8 + 8*int(b[1])
		switch h.protocol {
		case hopByHop:
			h.options = true
		case routing:
			if b[3] != 0 {
				return false // the destination is one of several
			}
		case fragmented:
			length = 8
			offset := binary.BigEndian.Uint16(b[2:])
			h.fragment, h.later = offset&0xfff9 != 0, offset&0xfff8 != 0
			h.id = binary.BigEndian.Uint32(b[4:])
		}
		if length > len(b) {
			return false
		}
		h.protocol, h.l4 = b[0], h.l4+length
	}
	return true
}

// icmp is the type, where it is a packet of ICMP with its header.
func (h *header) icmp(frame []byte) (kind uint8, is bool) {
	if (h.v6 && h.protocol != icmp6) || (!h.v6 && h.protocol != icmp4) || h.later || h.l4 >= h.end {
		return 0, false
	}
	return frame[h.l4], true
}

func isError(v6 bool, kind uint8) bool {
	if v6 {
		return kind >= 1 && kind <= 4
	}
	return kind == 3 || kind == 11 || kind == 12
}

// staysOnLink are types that routers do not forward, or that nothing may be made of: neighbour discovery and redirects
// of RFC 4861, source quench (RFC 6633) and redirects of RFC 792.
func staysOnLink(v6 bool, kind uint8) bool {
	if v6 {
		return kind >= 133 && kind <= 137
	}
	return kind == 4 || kind == 5
}

// flow is what mappings are asked about: of an ICMP error the inverse of what it quotes.
type flow struct {
	src, dst     netip.Addr
	sport, dport uint16
	protocol     uint8
	unknownPorts bool
}

func (h *header) flow() flow {
	f := flow{src: h.src, dst: h.dst, protocol: h.protocol}
	if h.ports != nil {
		f.sport, f.dport = h.ports[0], h.ports[1]
	}
	f.unknownPorts = h.later && (slices.Contains(withPorts, h.protocol) || (h.v6 && slices.Contains(extensions, h.protocol)))
	return f
}

func (f flow) inverse() flow {
	f.src, f.dst, f.sport, f.dport = f.dst, f.src, f.dport, f.sport
	return f
}

// packet is one that was understood.
type packet struct {
	frame  []byte
	outer  header
	quoted *header
	flow   flow
	plain  bool // of those that XDP forwards
	length int  // of the IP packet, or of one segment
	pieces int
	bytes  int
}

// offload is what a socket buffer says of itself beside its data.
type offload struct{ size, segments int }

// read understands a packet, unless it is none that could be translated.
func read(frame []byte, l3 int, v6 bool, gso offload) (*packet, bool) {
	h, ok := readHeader(frame, l3, v6, false)
	if !ok {
		return nil, false
	}
	p := &packet{frame: frame, outer: h, flow: h.flow(), length: h.end - l3, bytes: h.end - l3, pieces: 1}
	p.plain = h.l4 == l3+map[bool]int{false: 20, true: 40}[v6] && !h.fragment && h.l4+4 <= len(frame)
	if gso.size != 0 {
		p.pieces = max(1, gso.segments)
		p.length = h.l4 - l3 + 8 + gso.size
		if h.protocol == tcp {
			if h.l4+20 > h.end {
				return nil, false
			}
			p.length = h.l4 - l3 + 4*int(frame[h.l4+12]>>4) + gso.size
		}
	}
	if h.later {
		return p, true
	}
	if at, ok := h.checksum(); (ok && h.l4+at+2 > h.end) || (h.ports == nil && slices.Contains(withPorts, h.protocol)) {
		return nil, false // what has to be changed is not in here
	}
	if (h.v6 && h.protocol == icmp6 || !h.v6 && h.protocol == icmp4) && h.l4+4 > h.end {
		return nil, false
	}
	kind, is := h.icmp(frame)
	if is && staysOnLink(v6, kind) {
		return nil, false
	}
	if !is || !isError(v6, kind) {
		return p, true
	}
	p.plain = false
	q, ok := readHeader(frame[:h.end], h.l4+8, v6, true)
	if !ok || q.src != h.dst {
		return nil, false
	}
	p.quoted, p.flow = &q, q.flow().inverse()
	return p, true
}

// remember keeps or finds ports of fragments of one packet, and returns which way others went.
func (p *packet) remember(memory map[fragmentID]seen, link string, services bool) planeWay {
	h := &p.outer
	if !h.fragment {
		return forwardedAlone
	}
	id := h.of(link)
	before, known := memory[id]
	switch {
	case !services || before.way == planeWayLEFT:
	case h.ports != nil:
		memory[id] = seen{*h.ports, before.way}
	case known && slices.Contains(withPorts, h.protocol):
		p.flow.sport, p.flow.dport, p.flow.unknownPorts = before.ports[0], before.ports[1], false
	}
	return before.way
}

const forwardedAlone = planeWayFORWARDED_ALONE

// of is what fragments of one packet have in common, that come by one interface.
func (h *header) of(link string) fragmentID {
	return fragmentID{h.src, h.dst, h.id, h.protocol, link}
}

// together has a fragment go the way of the others.
func (m *model) together(d *decision, in *iface, p *packet, way planeWay) {
	id := p.outer.of(in.name)
	switch {
	case !p.outer.fragment:
	case d.reason == planeReasonPASSED_FRAGMENT:
		m.ports[id] = seen{way: planeWayLEFT}
	case d.verdict == pass:
	case way == planeWayLEFT && d.ruleIn != 0:
		d.verdict, d.reason = pass, planeReasonPASSED_FRAGMENT
	default:
		if d.verdict == redirected && (way != forwardedAlone || in.mtu > d.mtu()) {
			d.verdict, d.reason = stack, planeReasonTO_STACK_FRAGMENT
		}
		if d.verdict == stack && way == forwardedAlone {
			one := m.ports[id]
			if one.way = planeWayHALVED; p.outer.ports != nil {
				one.ports = *p.outer.ports
			}
			m.ports[id] = one
		}
	}
}

// search returns the most specific mapping of an address; unknown where that depends on ports that are not known.
func search(all []Mapping, a netip.Addr, protocol uint8, port uint16, roles Roles, unknown bool) (best *Mapping, dontKnow bool) {
	rank := func(m *Mapping) int {
		return m.Match.Bits() + map[bool]int{true: 1000}[m.Protocol != 0] + map[bool]int{true: 1000}[m.Port != 0]
	}
	for i := range all {
		m := &all[i]
		if !m.Match.Contains(a) {
			continue
		}
		if m.Protocol != 0 && unknown {
			return nil, true
		}
		if (m.Protocol != 0 && m.Protocol != protocol) || (m.Port != 0 && m.Port != port) {
			continue
		}
		if m.Match.IsSingleIP() && m.Roles&roles == 0 {
			continue
		}
		if best == nil || rank(m) > rank(best) {
			best = m
		}
	}
	if best != nil && best.Roles&roles == 0 {
		return nil, false // of prefixes the longest one alone is asked
	}
	return best, false
}

// translate maps an address: false where RFC 6296 has nothing for it.
func (m *Mapping) translate(a netip.Addr) (netip.Addr, bool) {
	from, to := a.As16(), m.To.Addr().As16()
	bits := m.Match.Bits() + 128 - m.Match.Addr().BitLen()
	out := from
	for i := range bits {
		mask := byte(0x80) >> (i % 8)
		out[i/8] = out[i/8]&^mask | to[i/8]&mask
	}
	if m.Neutral && !neutralize(&out, from, m.Match.Bits()) {
		return a, false
	}
	if a.Is4() {
		return netip.AddrFrom16(out).Unmap(), true
	}
	return netip.AddrFrom16(out), true
}

// neutralize has one word of an address take up what its sum changed by (RFC 6296, 3.4 and 3.5).
func neutralize(a *[16]byte, from [16]byte, bits int) bool {
	word := 3
	if bits > 48 {
		for word = 4; word < 8 && a[2*word] == 0xff && a[2*word+1] == 0xff; word++ {
		}
	}
	if word == 8 {
		return false
	}
	want := ones(from[:]) % 0xffff
	binary.BigEndian.PutUint16(a[2*word:], 0)
	have := ones(a[:]) % 0xffff
	binary.BigEndian.PutUint16(a[2*word:], uint16((want+0xffff-have)%0xffff))
	return true
}

// ones is the sum of 16-bit words, of which checksums are the complement modulo 0xffff (RFC 1071).
func ones(b []byte) (sum uint64) {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint64(b[i])<<8 | uint64(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint64(b[len(b)-1]) << 8
	}
	return sum
}

// decision is what the model has decided about a packet.
type decision struct {
	verdict         verdict
	reason          planeReason
	src, dst        netip.Addr
	sport, dport    uint16
	ruleIn, ruleOut uint32
	link            *iface
	mac             [6]byte
	hairpin         bool
	unresolved      bool
}

type verdict int

const (
	pass verdict = iota
	stack
	redirected
	dropped
)

func unroutable(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] == 0 || b[0] == 127 || b[0] >= 224
	}
	return a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback() || a.IsUnspecified() || a.Is4In6()
}

func (m *model) decide(in *iface, p *packet) (d decision) {
	f := p.flow
	d = decision{src: f.src, dst: f.dst, sport: f.sport, dport: f.dport}
	if unroutable(p.outer.src) || unroutable(f.src) || unroutable(f.dst) {
		return d
	}
	to, unknown := search(m.Destinations, f.dst, f.protocol, f.dport, in.Roles, f.unknownPorts)
	if unknown {
		d.reason = planeReasonPASSED_FRAGMENT
		return d
	}
	if to != nil {
		if !d.toward(to) {
			return d
		}
		if d.dst == f.src {
			d.reason = planeReasonPASSED_HAIRPIN
			return d
		}
	} else if nat.InAny(m.Elsewhere, f.dst) || slices.ContainsFunc(m.Destinations, func(o Mapping) bool { return o.Match.Contains(f.dst) }) {
		d.reason = planeReasonPASSED_HAIRPIN
		return d
	} else if from, unknown := search(m.Sources, f.src, f.protocol, f.sport, AnyRole, f.unknownPorts); from == nil && !unknown {
		return d
	}
	if !m.backwards(in, p.outer.src) {
		d.reason = planeReasonPASSED_RP_FILTER
		return d
	}
	return m.routed(d, in, p, to != nil)
}

// toward translates the destination.
func (d *decision) toward(m *Mapping) (ok bool) {
	if d.dst, ok = m.translate(d.dst); !ok {
		d.reason = planeReasonPASSED_UNMAPPABLE
		return false
	}
	if m.ToPort != 0 {
		d.dport = m.ToPort
	}
	d.ruleIn = m.Rule
	return true
}

// from translates the source.
func (d *decision) from(m *Mapping) (ok bool) {
	if d.src, ok = m.translate(d.src); !ok {
		d.reason = planeReasonPASSED_UNMAPPABLE
		return false
	}
	if m.ToPort != 0 {
		d.sport = m.ToPort
	}
	d.ruleOut = m.Rule
	return true
}

// backwards is rp_filter (ip-sysctl.rst), which is IPv4's.
func (m *model) backwards(in *iface, src netip.Addr) bool {
	if src.Is6() || !in.forwards {
		return true
	}
	r := m.route(src)
	if in.RPFilter == 0 { // but none of the host's own, or from nowhere
		return r != nil && r.kind != local
	}
	return r != nil && r.kind == unicast && (in.RPFilter == 2 || r.link == in)
}

func (m *model) routed(d decision, in *iface, p *packet, translated bool) decision {
	r := m.route(d.dst)
	if unroutable(d.dst) || !in.forwards || r == nil || r.kind == local {
		if translated {
			d.reason = planeReasonPASSED_LOCAL
		}
		return d
	}
	if r.kind == unreachable {
		if translated {
			d.verdict, d.reason = stack, planeReasonTO_STACK_ROUTE
		}
		return d
	}
	if d.link = r.link; !d.link.known {
		d.reason = planeReasonPASSED_INTERFACE
		return d
	}
	d.hairpin = translated && in.Roles&d.link.Roles&Inside != 0
	from, unknown := search(m.Sources, d.src, p.flow.protocol, d.sport, sourceRoles(d.hairpin, d.link.Roles), p.flow.unknownPorts)
	switch {
	case unknown:
		d.reason = planeReasonPASSED_FRAGMENT
		return d
	case from == nil && d.hairpin:
		d.reason = planeReasonPASSED_HAIRPIN
		return d
	case from == nil && !translated:
		return d
	case from != nil && !d.from(from):
		return d
	}
	d.verdict, d.reason = m.sent(&d, in, r, p)
	return d
}

// sent is what becomes of a packet that is forwarded: the stack has to do it where something is the stack's.
func (m *model) sent(d *decision, in *iface, r *route, p *packet) (verdict, planeReason) {
	next := d.dst
	if r.via.IsValid() {
		next = r.via
	}
	var known bool
	d.mac, known = m.neighbours[next]
	d.unresolved = !known
	switch {
	case !known && (p.length > d.mtu() || in.NoEthernet):
		return stack, planeReasonTO_STACK_NEIGHBOUR
	case p.outer.options:
		return stack, planeReasonTO_STACK_OPTIONS
	case p.outer.ttl <= 1:
		return stack, planeReasonTO_STACK_TTL
	case p.length > d.mtu():
		return stack, planeReasonTO_STACK_MTU
	}
	if d.unresolved {
		return redirected, planeReasonNEIGHBOUR_ASKED
	}
	return redirected, planeReasonNO_REASON
}

// check is a checksum: what it covers has to add up to what it did before.
type check struct {
	at      int
	from    int // what it covers, beside the addresses: of these the header
	end     int
	pseudo  bool
	v6      bool
	header  int
	nonzero bool // 0 says that there is none
}

func (c *check) sum(frame []byte) uint64 {
	sum := ones(frame[c.from:c.end])
	if c.pseudo && c.v6 {
		sum += ones(frame[c.header+8 : c.header+40])
	} else if c.pseudo {
		sum += ones(frame[c.header+12 : c.header+20])
	}
	return sum % 0xffff
}

// outcome is what the programs are to make of a packet.
type outcome struct {
	verdict verdict
	frame   []byte
	checks  []check
	mark    uint32
	link    *iface // where it is redirected to
	d       decision
}

// checks are the checksums of a packet.
func (p *packet) checks() (out []check) {
	h := &p.outer
	add := func(h *header) {
		if !h.v6 {
			out = append(out, check{at: h.at + 10, from: h.at, end: h.at + 4*int(p.frame[h.at]&15)})
		}
		at, has := h.checksum()
		if !has || h.later || h.l4+at+2 > h.end {
			return
		}
		c := check{at: h.l4 + at, from: h.l4, end: h.end, pseudo: true, v6: h.v6, header: h.at, nonzero: h.protocol == udp || h.protocol == udplite}
		if h.protocol == udp && p.frame[c.at] == 0 && p.frame[c.at+1] == 0 {
			return // there is none
		}
		out = append(out, c)
	}
	add(h)
	if p.quoted != nil {
		add(p.quoted)
		if !h.v6 {
			out = append(out, check{at: h.l4 + 2, from: h.l4, end: h.end})
		}
	}
	return out
}

// rewrite gives a packet other ends.
func (p *packet) rewrite(src, dst netip.Addr, sport, dport uint16, keepSource bool) []byte {
	out := bytes.Clone(p.frame)
	h := &p.outer
	if q := p.quoted; q != nil {
		if !keepSource && src != p.flow.src {
			putAddresses(out, h, src, dst)
		} else {
			putAddresses(out, h, h.src, dst)
		}
		putAddresses(out, q, dst, src)
		putPorts(out, q, dport, sport)
		return out
	}
	putAddresses(out, h, src, dst)
	putPorts(out, h, sport, dport)
	return out
}

func putAddresses(b []byte, h *header, src, dst netip.Addr) {
	if h.v6 {
		copy(b[h.at+8:], src.AsSlice())
		copy(b[h.at+24:], dst.AsSlice())
	} else {
		copy(b[h.at+12:], src.AsSlice())
		copy(b[h.at+16:], dst.AsSlice())
	}
}

func putPorts(b []byte, h *header, sport, dport uint16) {
	if h.ports != nil {
		binary.BigEndian.PutUint16(b[h.l4:], sport)
		binary.BigEndian.PutUint16(b[h.l4+2:], dport)
	}
}

// understand finds the packet of a frame that came in for this host.
func (m *model) understand(in *iface, frame []byte, gso offload) (*packet, bool) {
	if len(frame) < 14 || [6]byte(frame[:6]) != in.mac {
		return nil, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return read(frame, 14, false, gso)
	case 0x86dd:
		return read(frame, 14, true, gso)
	}
	return nil, false
}

// forward is the program at XDP.
func (m *model) forward(in *iface, frame []byte) outcome {
	p, ok := m.understand(in, frame, offload{})
	if !ok || !p.plain || !in.known {
		return outcome{frame: frame}
	}
	d := m.decide(in, p)
	if d.verdict != redirected || d.unresolved || !d.link.Redirect || d.link.NoEthernet {
		return outcome{frame: frame}
	}
	return m.redirect(p, d)
}

// mtu is that of the way out, as far as it is known.
func (d *decision) mtu() int {
	if d.unresolved {
		return 1280 // RFC 8200
	}
	return d.link.mtu
}

func (m *model) redirect(p *packet, d decision) outcome {
	out := p.rewrite(d.src, d.dst, d.sport, d.dport, false)
	if p.outer.v6 {
		out[p.outer.at+7]--
	} else {
		out[p.outer.at+8]--
	}
	if !d.link.NoEthernet && !d.unresolved {
		copy(out, d.mac[:])
		copy(out[6:], d.link.mac[:])
	}
	m.account(d.ruleIn, p)
	m.account(d.ruleOut, p)
	return outcome{verdict: redirected, frame: out, checks: p.checks(), link: d.link, d: d}
}

func (m *model) account(rule uint32, p *packet) {
	if rule != 0 {
		c := m.rules[rule]
		c.Packets += uint64(p.pieces)
		c.Bytes += uint64(p.bytes)
		m.rules[rule] = c
	}
}

func (m *model) services() bool {
	has := func(m Mapping) bool { return m.Protocol != 0 }
	return slices.ContainsFunc(m.Destinations, has) || slices.ContainsFunc(m.Sources, has)
}

// ingress is the program at tc, at the way in.
func (m *model) ingress(in *iface, frame []byte, mark uint32, gso offload) outcome {
	as := outcome{frame: frame, mark: mark}
	p, ok := m.understand(in, frame, gso)
	if !ok || !in.known {
		return as
	}
	way := p.remember(m.ports, in.name, m.services())
	d := m.decide(in, p)
	m.together(&d, in, p, way)
	if d.reason != planeReasonNO_REASON {
		m.count(d.reason, p)
	}
	as.d = d
	switch d.verdict {
	case redirected:
		out := m.redirect(p, d)
		out.mark = mark
		return out
	case stack:
		return m.half(p, d, mark)
	}
	return as
}

func (m *model) count(reason planeReason, p *packet) {
	c := m.reasons[reason]
	c.Packets++
	c.Bytes += uint64(p.bytes)
	m.reasons[reason] = c
}

// half translates the destination alone.
func (m *model) half(p *packet, d decision, mark uint32) outcome {
	f := p.flow
	out := p.rewrite(f.src, d.dst, f.sport, d.dport, false)
	if h := &p.outer; h.fragment && m.services() && !f.unknownPorts && p.quoted == nil && slices.Contains(withPorts, h.protocol) {
		m.egress[fragmentID{h.src, d.dst, h.id, h.protocol, ""}] = seen{ports: [2]uint16{f.sport, d.dport}}
	}
	m.account(d.ruleIn, p)
	mark &^= m.marks.Mask
	switch {
	case d.hairpin:
		mark |= m.marks.Hairpin
	case d.ruleOut != 0:
		mark |= m.marks.Mask
	default:
		mark |= m.marks.Owned
	}
	return outcome{verdict: stack, frame: out, checks: p.checks(), mark: mark, d: d}
}

// sourceRoles are what a mapping of sources has to have one of: of hairpins that of interfaces inside.
func sourceRoles(hairpin bool, out Roles) Roles {
	if hairpin {
		return Inside
	}
	return out &^ Inside
}

// goOut is the program at tc, at the way out. own are packets of the host itself.
func (m *model) goOut(out *iface, frame []byte, mark uint32, own bool) outcome {
	as := outcome{frame: frame, mark: mark &^ m.marks.Mask}
	mark &= m.marks.Mask
	if mark == 0 && !own {
		return as
	}
	p, ok := read(frame, 14, binary.BigEndian.Uint16(frame[12:]) == 0x86dd, offload{})
	if !ok || !out.known || (mark == 0 && p.quoted == nil) {
		return as
	}
	p.remember(m.egress, "", m.services())
	from, unknown := search(m.Sources, p.flow.src, p.flow.protocol, p.flow.sport, sourceRoles(mark == m.marks.Hairpin, out.Roles), p.flow.unknownPorts)
	d := decision{src: p.flow.src, dst: p.flow.dst, sport: p.flow.sport, dport: p.flow.dport}
	switch {
	case mark != 0 && (unknown || from == nil && mark != m.marks.Owned):
		m.count(planeReasonDROPPED_UNMAPPED, p)
		as.verdict = dropped // rather than with an address that is the inside's
		return as
	case mark != 0 && from != nil && !d.from(from):
		m.count(planeReasonDROPPED_UNMAPPABLE, p)
		as.verdict = dropped
		return as
	case from == nil || (mark == 0 && !d.from(from)):
		return as
	}
	m.account(d.ruleOut, p)
	as.frame = p.rewrite(d.src, d.dst, d.sport, d.dport, mark == 0 && p.outer.src != p.flow.src)
	as.checks = p.checks()
	return as
}
