package read

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// GatewayFamily and GatewayTable name the table that natkit keeps for a gateway. Its
// rules are changed by the gateway's file, and by nothing else.
const (
	GatewayFamily = "inet"
	GatewayTable  = "natkit"
)

func (t tableKey) isGateway() bool { return t == tableKey{familyInet, GatewayTable} }

// mapUse is a translation of sources by what a map gives.
type mapUse struct {
	set string
	// Offsets of addresses and ports in an element's data; -1 where they are not of
	// the map.
	addrMin, addrMax, portMin, portMax int
	// key is what is looked up, where that is a source address of size bytes, whole or
	// its first bits; size is 0 where it is something else.
	size, bits int
	// partial is what the rule was before it asked the map.
	partial bool
}

// maxExpanded is how many elements of a map are told as rules of their own.
const maxExpanded = 256

// mapped loads the registers that a map's data go to.
func (m *machine) mapped(register uint32, set string, key content, partial bool) {
	m.load(register, content{}, 64)
	start := slot(register)
	for i := range uint32(16) {
		m.regs[start+i] = content{from: mapData, offset: 4 * i}
	}
	u := &mapUse{set: set, partial: partial}
	size, at := 4, uint32(12)
	if m.ipVersion() == 6 {
		size, at = 16, 8
	}
	if key.from == payload && key.base == payloadNetwork && key.offset == at && int(key.length) <= size && m.ipVersion() != 0 {
		u.size, u.bits = size, 8*int(key.length)
		if key.mask != nil {
			p := padded(make([]byte, size), key.mask, size)
			if u.bits = p.Bits(); !p.IsValid() {
				u.size = 0
			}
		}
	}
	m.asked = u
}

// byMap notes which parts of a translation of sources are of the map that was asked
// last.
func (m *machine) byMap(a attrs, n natAttrs) {
	if m.asked == nil || m.step.rule.Kind != snapshot.NATSource || m.step.prefix {
		return
	}
	u := *m.asked
	at := func(kind, otherwise uint16) int {
		if !a.has(kind) {
			kind = otherwise
		}
		if c := m.held(a.u32(kind)); a.has(kind) && c.from == mapData {
			return int(c.offset)
		}
		return -1
	}
	u.addrMin, u.addrMax = at(n.addrMin, n.addrMin), at(n.addrMax, n.addrMin)
	u.portMin, u.portMax = at(n.portMin, n.portMin), at(n.portMax, n.portMin)
	halves := u.addrMin >= 0 != (u.addrMax >= 0) || u.portMin >= 0 != (u.portMax >= 0)
	if !halves && (u.addrMin >= 0 || u.portMin >= 0) {
		m.step.byMap = &u
	}
}

// mapElement is an element of a map.
type mapElement struct {
	key, data []byte
	comment   string
}

// sourceMaps reads the maps by which rules of the table translate sources.
func (c conn) sourceMaps(t *kernelTable) error {
	m := machine{family: familyNames[t.key.family], verdicts: func(string) []string { return nil }}
	for _, r := range t.rules {
		u := m.readStep(r).byMap
		if u == nil || t.maps[u.set] != nil {
			continue
		}
		lists, err := c.copyElements(t.key, u.set)
		if err != nil {
			return err
		}
		t.maps[u.set] = mapElements(lists)
	}
	return nil
}

func mapElements(lists [][]byte) []mapElement {
	all := []mapElement{}
	for _, list := range lists {
		elems, _ := parseAttrs(list)
		for _, elem := range elems {
			a, _ := parseAttrs(elem.data)
			e := mapElement{a.nested(nftSetElemKey).get(nftDataValue), a.nested(nftSetElemData).get(nftDataValue), commentOf(a.get(nftElemUserdata))}
			if e.data != nil { // else the end of an interval
				all = append(all, e)
			}
		}
	}
	return all
}

// expand puts, in the place of each rule that translates by a map, one for each of
// the map's elements; or one for all of them, where they are too many.
func (t *kernelTable) expand(table *ruleTable, ways *budget) {
	for _, chain := range table.order {
		var steps []step
		for _, s := range chain.steps {
			steps = append(steps, t.elements(s, ways)...)
		}
		if chain.steps = steps; t.key.isGateway() {
			ofGateway(steps)
		}
	}
}

func (t *kernelTable) elements(s step, ways *budget) []step {
	if s.byMap == nil {
		return []step{s}
	}
	elements := t.maps[s.byMap.set]
	if len(elements) == 0 || len(elements) > maxExpanded || !ways.takes(len(elements)) {
		return []step{s.byMap.span(s, elements, familyNames[t.key.family])}
	}
	var all []step
	for _, e := range elements {
		one := s
		if !s.byMap.give(&one, e, familyNames[t.key.family]) {
			return []step{s}
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b step) int { // the kernel tells them as they lie in its hash
		return cmp.Or(a.rule.FromSource.Addr().Compare(b.rule.FromSource.Addr()), a.rule.First.Compare(b.rule.First))
	})
	return all
}

// give makes the step what it is for one element; false where that is garbled.
func (u *mapUse) give(s *step, e mapElement, family string) bool {
	r := &s.rule
	if u.addrMin >= 0 {
		size := 4
		if s.version == 6 || family == "ip6" {
			size = 16
		}
		if max(u.addrMin, u.addrMax)+size > len(e.data) {
			return false
		}
		r.First, _ = netip.AddrFromSlice(e.data[u.addrMin : u.addrMin+size])
		r.Last, _ = netip.AddrFromSlice(e.data[u.addrMax : u.addrMax+size])
	}
	if u.portMin >= 0 {
		if max(u.portMin, u.portMax)+2 > len(e.data) {
			return false
		}
		r.FirstPort, r.LastPort, r.PortsFromMap = beUint16(e.data[u.portMin:]), beUint16(e.data[u.portMax:]), false
	}
	if u.size > 0 && u.size == len(e.key) {
		if from, clash := bothPrefixes(netip.PrefixFrom(addressOf(e.key), u.bits), r.FromSource, false); !clash {
			r.FromSource, r.Partial = from, u.partial
		}
	}
	if e.comment != "" {
		s.comment = e.comment
	}
	inner := ""
	if r.PortsFromMap {
		inner = "…"
	}
	r.Text = words(r, family, false, inner)
	return true
}

func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// span makes the step one that gives any address between those of the elements.
func (u *mapUse) span(s step, elements []mapElement, family string) step {
	if u.addrMin < 0 {
		return s
	}
	r := s.rule
	for _, e := range elements {
		one := s
		if !u.give(&one, e, family) {
			return s
		}
		if !r.First.IsValid() || one.rule.First.Less(r.First) {
			r.First = one.rule.First
		}
		if !r.Last.IsValid() || r.Last.Less(one.rule.Last) {
			r.Last = one.rule.Last
		}
	}
	r.PortsFromMap = r.PortsFromMap || u.portMin >= 0
	s.rule = r
	return s
}

// isRef reports whether a comment names a rule of the file.
func isRef(comment string) bool {
	_, ok := gateway.ParseRef(comment)
	return ok
}

// ofGateway completes rules of natkit's own table: which rule of the file they are of,
// and which of two alike is for what the other is not for. The writer puts a rule
// without ports behind the one with ports, for protocols that have none.
func ofGateway(steps []step) {
	type place struct {
		gateway, out, in string
		from, to         netip.Prefix
		first, last      netip.Addr
	}
	withPorts := map[place]bool{}
	for i := range steps {
		r := &steps[i].rule
		if r.Target = ""; isRef(steps[i].comment) {
			r.Gateway = steps[i].comment
		}
		where := place{r.Gateway, r.OutInterface, r.InInterface, r.FromSource, r.ToDestination, r.First, r.Last}
		switch {
		case !steps[i].translates || !r.TranslatesSource():
		case r.FirstPort != 0 || r.PortsFromMap:
			withPorts[where] = true
		case r.Protocol == "" && withPorts[where]:
			r.Protocol = snapshot.OtherProtocols
		}
	}
}

// mostPicked is how many steps the elements of its sets make of one rule.
const mostPicked = 16 << 10

// readSteps tells what a rule means, with a step for each element of the sets and maps
// that it looks into: as if it compared with that one, and had its value.
func (m *machine) readSteps(r *kernelRule) []step {
	ways := []map[int]element{nil}
	for i := range r.exprs {
		elements := m.elements(r.exprs[i:])
		if len(elements) == 0 || len(elements)*len(ways) > mostPicked || !m.ways.takes(len(elements)*len(ways)) {
			continue
		}
		var next []map[int]element
		for _, way := range ways {
			for _, x := range elements {
				picked := maps.Clone(way)
				if picked == nil {
					picked = map[int]element{}
				}
				picked[i] = x
				if r.exprs[i].name == "cmp" {
					picked[i+1] = element{} // the range's other end, which says nothing more
				}
				next = append(next, picked)
			}
		}
		ways = next
	}
	steps := make([]step, len(ways))
	for i, way := range ways {
		m.picked = way
		steps[i] = m.readStep(r)
	}
	m.picked = nil
	return steps
}

// elements are those of the set that the first of these expressions looks into; of a
// range, which is two comparisons, the prefixes that it consists of.
func (m *machine) elements(rest []kernelExpr) []element {
	a := rest[0].data
	if rest[0].name == "lookup" && a.u32(nftLookupFlags) == 0 {
		return m.sets[a.text(nftLookupSet)]
	}
	if len(rest) < 2 || rest[0].name != "cmp" || rest[1].name != "cmp" {
		return nil
	}
	b := rest[1].data
	if a.u32(nftCmpOp) != unix.NFT_CMP_GTE || b.u32(nftCmpOp) != unix.NFT_CMP_LTE || a.u32(nftCmpSreg) != b.u32(nftCmpSreg) {
		return nil
	}
	return addresses(a.nested(nftCmpData).get(nftDataValue), b.nested(nftCmpData).get(nftDataValue), nil)
}

// pick is a lookup that finds this element.
func (m *machine) pick(a attrs, e element) {
	m.isBetween(slot(a.u32(nftLookupSreg)), e)
	switch register := a.u32(nftLookupDreg); {
	case !a.has(nftLookupDreg):
	case register == 0:
		m.decide(e.value)
	default:
		m.fill(register, e.value.get(nftDataValue))
	}
}

// fill loads a map's value, of which a rule takes parts out of the registers.
func (m *machine) fill(register uint32, value []byte) {
	start := slot(register)
	m.load(register, content{}, len(value))
	for i := 0; i < len(value); i += 4 {
		m.regs[start+uint32(i/4)] = content{from: constant, data: value[i:]}
	}
}

// isBetween compares registers with a key, field by field.
func (m *machine) isBetween(start uint32, e element) {
	for at := 0; at < len(e.first); {
		c := m.regs[start+uint32(at/4)]
		size := c.size()
		if size == 0 || at+size > len(e.first) {
			m.step.rule.Partial = true
			return
		}
		m.within(c, e.first[at:at+size], e.last[at:at+size])
		at += (size + 3) &^ 3
	}
}

// within is the condition that a content is one of first to last.
func (m *machine) within(c content, first, last []byte) {
	switch {
	case bytes.Equal(first, last):
		m.equal(c, first)
	case c.isDestinationPort():
		bound(&m.step.further.Ports, beUint16(first), false)
		bound(&m.step.further.Ports, beUint16(last), true)
	case c.isSourcePort():
		bound(&m.step.further.SourcePorts, beUint16(first), false)
		bound(&m.step.further.SourcePorts, beUint16(last), true)
	default:
		a, ok := netip.AddrFromSlice(first)
		z, ok2 := netip.AddrFromSlice(last)
		p := nat.AddrRange{First: a, Last: z}.Prefix()
		if !ok || !ok2 || !p.IsValid() || c.mask != nil {
			m.step.rule.Partial, m.step.cause = true, "a range"
			return
		}
		c.mask = netmask(p)
		m.equal(c, first)
	}
}

func netmask(p netip.Prefix) []byte {
	all, _ := netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, p.Addr().BitLen()/8)) // as long as an address
	return netip.PrefixFrom(all, p.Bits()).Masked().Addr().AsSlice()
}

// size is how many bytes a content has, 0 where nobody knows what it is.
func (c content) size() int {
	switch c.from {
	case payload:
		return int(c.length)
	case destinationType:
		return 4
	case metaData:
		switch c.key {
		case metaL4proto, metaNfproto:
			return 1
		case metaIifname, metaOifname:
			return nameBytes
		}
		return 4
	}
	return 0
}

// segments runs the expressions of rules that bound TCP's segments: what the route
// takes, in the byte order of the header, is written into an option of the header.
func (m *machine) segments(e kernelExpr) {
	switch a := e.data; {
	case e.name == "rt" && a.u32(unix.NFTA_RT_KEY) == unix.NFT_RT_TCPMSS:
		m.load(a.u32(unix.NFTA_RT_DREG), content{from: routeMSS}, 2)
	case e.name == "byteorder" && m.held(a.u32(unix.NFTA_BYTEORDER_SREG)).from == routeMSS:
		m.load(a.u32(unix.NFTA_BYTEORDER_DREG), content{from: routeMSS}, 2)
	case e.name == "exthdr" && writesMSS(a):
		m.step.bounds(m.held(a.u32(unix.NFTA_EXTHDR_SREG)))
	default:
		m.unknown(e.name)
	}
}

// writesMSS: the maximum segment size, which follows kind and length of the option
// (RFC 9293, section 3.2). The kernel lowers it only (nft_exthdr_tcp_set_eval).
func writesMSS(a attrs) bool {
	const maxSegment = 2 // TCPOPT_MAXSEG
	return a.has(unix.NFTA_EXTHDR_SREG) && a.u32(unix.NFTA_EXTHDR_OP) == unix.NFT_EXTHDR_OP_TCPOPT &&
		bytes.Equal(a.get(unix.NFTA_EXTHDR_TYPE), []byte{maxSegment}) &&
		a.u32(unix.NFTA_EXTHDR_OFFSET) == 2 && a.u32(unix.NFTA_EXTHDR_LEN) == 2
}

// bounds notes what segments are bounded to.
func (s *step) bounds(c content) {
	switch {
	case c.from == routeMSS:
		s.other, s.clampMSS = "tcp option maxseg size set rt mtu", true
	case c.from == constant && len(c.data) >= 2:
		s.mss = beUint16(c.data)
		s.other = fmt.Sprintf("tcp option maxseg size set %d", s.mss)
	default:
		s.rule.Partial, s.cause = true, "exthdr"
	}
}

// isFlags: TCP's flags, of which a mask keeps some.
func (c content) isFlags() bool {
	return c.from == payload && c.base == payloadTransport && c.offset == 13 && c.length == 1 && len(c.mask) == 1
}

// TCP's flags as the header has them.
const tcpSYN, tcpRST = 0x02, 0x04

// syn notes that a rule is for the SYNs of both hosts: tcp flags & (syn|rst) == syn, or,
// as people write it, tcp flags syn. A SYN with a RST nobody sends.
func (s *step) syn(c content, op uint32, data []byte) bool {
	if len(data) != 1 {
		return false
	}
	is, not := op == 0, op == 1 // NFT_CMP_EQ, NFT_CMP_NEQ
	switch mask := c.mask[0]; {
	case is && mask == tcpSYN|tcpRST && data[0] == tcpSYN, is && mask == tcpSYN && data[0] == tcpSYN, not && mask == tcpSYN && data[0] == 0:
		s.further.SYN = true
		return true
	}
	return false
}

// besides are the targets of x_tables that do something else than NAT and that a
// gateway has words for. struct xt_ct_target_info and its later forms begin with flags
// of 16 bits (xt_CT.h), struct xt_tcpmss_info with the number, of which the largest is
// that of the route (XT_TCPMSS_CLAMP_PMTU).
func (s *step) besides(name string, data []byte) {
	const notrack, clamp = 1, 0xffff // XT_CT_NOTRACK
	number := uint16(0)
	if len(data) >= 2 {
		number = binary.NativeEndian.Uint16(data)
	}
	switch name {
	case "NOTRACK":
		s.notrack = true
	case "CT":
		s.notrack = number&notrack != 0
	case "TCPMSS":
		if s.clampMSS = number == clamp; !s.clampMSS {
			s.mss = number
		}
	}
}
