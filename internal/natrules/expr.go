package natrules

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// origin says where the content of a register comes from.
type origin int

const (
	unknown origin = iota
	constant
	metaData
	payload
	mapData
	destinationType // of the destination's route: RTN_LOCAL and others
	routeMSS        // what the route's MTU takes (NFT_RT_TCPMSS)
)

// content is what a register holds.
type content struct {
	from origin
	data []byte // of a constant
	// key is of metaData; base, offset and length of payload. mask is what a
	// bitwise expression left of it, nil for all. Of mapData, offset is the place in
	// an element's data.
	key                  uint32
	base, offset, length uint32
	mask                 []byte
}

// machine runs a rule's expressions over what registers mean instead of a packet.
type machine struct {
	family string
	regs   map[uint32]content
	step   step
	// verdicts are where a verdict map leads, by its name; links are the names of
	// interfaces by index.
	verdicts func(set string) []string
	links    map[uint32]string
	// sets are those of which the elements are known; picked is the element that an
	// expression, by its place, is to find, at the place of the one that runs.
	sets   map[string][]element
	picked map[int]element
	at     int
	// asked is the map that the rule took values from last.
	asked *mapUse
}

// slot is a register's place in units of 32 bits: NFT_REG_1 to NFT_REG_4 are
// four of them each and lie over NFT_REG32_00 to NFT_REG32_15, which begin at 8.
func slot(register uint32) uint32 {
	if register < 8 {
		return register*4 - 4
	}
	return register - 8
}

func (m *machine) load(register uint32, c content, size int) {
	start := slot(register)
	for i := range uint32(max(size+3, 4) / 4) {
		delete(m.regs, start+i)
	}
	m.regs[start] = c
}

func (m *machine) held(register uint32) content { return m.regs[slot(register)] }

// readStep tells what a rule of nf_tables means.
func (m *machine) readStep(r *kernelRule) step {
	m.regs, m.step, m.asked = map[uint32]content{}, step{}, nil
	m.step.rule.Source, m.step.rule.Handle = "nftables", r.handle
	m.step.comment = commentOf(r.attrs.get(nftRuleUserdata))
	for i, e := range r.exprs {
		m.at = i
		m.run(e)
	}
	m.step.settle(m.family)
	return m.step
}

// run is one expression. What is not known here is a condition for all that is
// known of it.
func (m *machine) run(e kernelExpr) {
	switch a := e.data; e.name {
	case "immediate":
		m.immediate(a)
	case "meta":
		if dreg := a.u32(nftMetaDreg); dreg != 0 { // else it sets a mark or the like
			m.load(dreg, content{from: metaData, key: a.u32(nftMetaKey)}, 16)
		}
	case "payload":
		if dreg := a.u32(nftPayloadDreg); dreg != 0 {
			m.load(dreg, content{from: payload, base: a.u32(nftPayloadBase),
				offset: a.u32(nftPayloadOffset), length: a.u32(nftPayloadLen)}, int(min(a.u32(nftPayloadLen), 64)))
		}
	case "reject":
		m.step.refuse("reject")
	case "fib":
		m.fib(a)
	case "bitwise":
		m.bitwise(a)
	case "cmp":
		m.compare(a)
	case "range":
		m.between(a)
	case "lookup":
		m.lookup(a)
	case "nat", "masq", "redir":
		m.translate(e)
	case "match":
		m.step.match(a.text(nftXtName), a.u32(nftXtRevision), a.get(nftXtInfo))
	case "target":
		m.xtTarget(a)
	case "ct":
		m.step.rule.Partial, m.step.cause = true, "ct "+ctKeys[a.u32(unix.NFTA_CT_KEY)]
		m.load(a.u32(unix.NFTA_CT_DREG), content{}, 16)
		if asksOriginalDestination(a) {
			m.step.rule.OriginalDestination = true
		}
	case "counter", "log", "last":
	case "notrack":
		m.step.other, m.step.notrack = e.name, true
	case "rt", "byteorder", "exthdr":
		m.segments(e)
	default:
		m.unknown(e.name)
	}
}

// unknown is an expression that may be a condition, and may have loaded any register.
func (m *machine) unknown(name string) {
	m.step.rule.Partial, m.step.cause = true, name
	clear(m.regs)
}

// ctKeys are nft's words for enum nft_ct_keys, as far as rules of NAT ask for them.
var ctKeys = map[uint32]string{
	unix.NFT_CT_STATE: "state", unix.NFT_CT_DIRECTION: "direction", unix.NFT_CT_STATUS: "status", unix.NFT_CT_MARK: "mark",
	unix.NFT_CT_LABELS: "label", unix.NFT_CT_ZONE: "zone",
}

// asksOriginalDestination: the destination that the connection's first packet had
// (IP_CT_DIR_ORIGINAL), by the key that takes either family or by those of one.
func asksOriginalDestination(a attrs) bool {
	if !a.has(unix.NFTA_CT_DIRECTION) || !bytes.Equal(a.get(unix.NFTA_CT_DIRECTION), []byte{0}) {
		return false
	}
	switch a.u32(unix.NFTA_CT_KEY) {
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		return a.u32(unix.NFTA_CT_DREG) != 0
	}
	return false
}

func (m *machine) immediate(a attrs) {
	data := a.nested(nftImmediateData)
	if dreg := a.u32(nftImmediateDreg); dreg != 0 {
		value := data.get(nftDataValue)
		m.load(dreg, content{from: constant, data: value}, len(value))
		return
	}
	m.decide(data)
}

// decide is a verdict.
func (m *machine) decide(data attrs) {
	switch code, chain := verdict(data); code {
	case verdictJump:
		m.step.to = append(m.step.to, chain)
	case verdictGoto:
		m.step.to, m.step.leaves = append(m.step.to, chain), true
	case verdictAccept:
		m.step.leaves, m.step.ends = true, true
	case verdictDrop:
		m.step.refuse("drop")
	case verdictReturn:
		m.step.leaves = true
	}
}

// bitwise keeps what a mask leaves of the packet.
func (m *machine) bitwise(a attrs) {
	c := m.held(a.u32(nftBitwiseSreg))
	mask, xor := a.nested(nftBitwiseMask).get(nftDataValue), a.nested(nftBitwiseXor).get(nftDataValue)
	if a.u32(nftBitwiseOp) != 0 || c.from == constant || c.mask != nil || len(bytes.Trim(xor, "\x00")) > 0 {
		c = content{}
	}
	c.mask = mask
	m.load(a.u32(nftBitwiseDreg), c, len(mask))
}

// lookup leads on by a verdict map, takes a value from a map, or is a condition;
// in every case a packet without an element does not match.
func (m *machine) lookup(a attrs) {
	if e, ok := m.picked[m.at]; ok {
		m.pick(a, e)
		return
	}
	if elements := m.sets[a.text(nftLookupSet)]; len(elements) > 0 && a.u32(nftLookupFlags) != 0 {
		m.noneOf(a, elements)
		return
	}
	before := m.step.rule.Partial
	m.step.rule.Partial, m.step.cause = true, "lookup in a set or map"
	switch dreg := a.u32(nftLookupDreg); {
	case !a.has(nftLookupDreg):
		if c := m.held(a.u32(nftLookupSreg)); c.from == metaData && c.key == metaL4proto && a.u32(nftLookupFlags) == 0 {
			m.step.protocols = a.text(nftLookupSet)
		}
	case dreg == 0:
		// Its elements may be jumps, gotos and verdicts.
		m.step.to, m.step.leaves = append(m.step.to, m.verdicts(a.text(nftLookupSet))...), true
		m.step.ends = true
	default:
		m.mapped(dreg, a.text(nftLookupSet), m.held(a.u32(nftLookupSreg)), before)
	}
}

func (m *machine) compare(a attrs) {
	c := m.held(a.u32(nftCmpSreg))
	data := a.nested(nftCmpData).get(nftDataValue)
	if c.from == metaData && c.key == metaL4proto && len(data) > 0 {
		m.step.proto, m.step.protoNot = data[0], a.u32(nftCmpOp) == 1 // NFT_CMP_NEQ
	}
	if c.isFlags() && m.step.syn(c, a.u32(nftCmpOp), data) {
		return
	}
	switch op := a.u32(nftCmpOp); {
	case len(data) == 0:
		m.step.rule.Partial = true
	case op == 0: // NFT_CMP_EQ
		m.equal(c, data)
	case op == 1:
		m.notEqual(c, data)
	case c.isDestinationPort() && len(data) == 2 && (op == 3 || op == 5): // NFT_CMP_LTE, NFT_CMP_GTE
		bound(&m.step.further.Ports, beUint16(data), op == 3)
	case c.isSourcePort() && len(data) == 2 && (op == 3 || op == 5):
		bound(&m.step.further.SourcePorts, beUint16(data), op == 3)
	default:
		m.step.rule.Partial, m.step.cause = true, "a range"
	}
}

func (c content) isDestinationPort() bool {
	return c.from == payload && c.base == payloadTransport && c.offset == 2 && c.length == 2 && c.mask == nil
}

func (c content) isSourcePort() bool {
	return c.from == payload && c.base == payloadTransport && c.offset == 0 && c.length == 2 && c.mask == nil
}

// isBothPorts: iptables-nft compares them at once where a rule has both.
func (c content) isBothPorts() bool {
	return c.from == payload && c.base == payloadTransport && c.offset == 0 && c.length == 4 && c.mask == nil
}

func (m *machine) equal(c content, data []byte) {
	switch {
	case c.from == metaData && c.mask == nil:
		m.compareMeta(c.key, data)
	case c.from == payload && c.base == payloadNetwork:
		m.compareNetwork(c, data)
	case c.isDestinationPort() && len(data) == 2:
		m.step.setPort(beUint16(data))
	case c.isBothPorts() && len(data) == 4:
		m.step.further.sourcePort(beUint16(data))
		m.step.setPort(beUint16(data[2:]))
	case c.isSourcePort() && len(data) == 2:
		m.step.further.sourcePort(beUint16(data))
	case c.from == destinationType && isLocal(data):
		m.step.rule.LocalDestination, m.step.cause = true, "fib"
	default:
		m.step.rule.Partial = true
	}
}

// fib asks the routing table (enum nft_fib_attributes): here only what type the
// destination has.
func (m *machine) fib(a attrs) {
	if a.u32(unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE && a.u32(unix.NFTA_FIB_FLAGS) == unix.NFTA_FIB_F_DADDR {
		m.load(a.u32(unix.NFTA_FIB_DREG), content{from: destinationType}, 4)
		return
	}
	m.step.rule.Partial, m.step.cause = true, "fib"
}

func isLocal(data []byte) bool {
	return len(data) == 4 && binary.NativeEndian.Uint32(data) == unix.RTN_LOCAL
}

func (m *machine) compareMeta(key uint32, data []byte) {
	s := &m.step
	switch key {
	case metaIifname:
		s.setText(&s.rule.InInterface, interfaceName(data))
	case metaOifname:
		s.setText(&s.rule.OutInterface, interfaceName(data))
	case metaIif:
		s.setText(&s.rule.InInterface, m.link(data))
	case metaOif:
		s.setText(&s.rule.OutInterface, m.link(data))
	case metaL4proto:
		s.setText(&s.rule.Protocol, conntrack.ProtocolName(data[0]))
	case metaNfproto:
		s.version = map[byte]uint8{familyIP4: 4, familyIP6: 6}[data[0]]
		s.rule.Partial = s.rule.Partial || s.version == 0
	default:
		s.rule.Partial, s.cause = true, "meta "+metaKeys[key]
	}
}

// metaKeys are nft's words for enum nft_meta_keys, as far as rules of NAT ask for them
// and natkit has no field.
var metaKeys = map[uint32]string{
	unix.NFT_META_MARK: "mark", unix.NFT_META_SKUID: "skuid", unix.NFT_META_SKGID: "skgid", unix.NFT_META_PKTTYPE: "pkttype",
	unix.NFT_META_CGROUP: "cgroup", unix.NFT_META_IIFGROUP: "iifgroup", unix.NFT_META_OIFGROUP: "oifgroup",
	unix.NFT_META_IIFTYPE: "iiftype", unix.NFT_META_OIFTYPE: "oiftype", unix.NFT_META_RTCLASSID: "rtclassid",
}

// interfaceName is a name that nft compares with all its bytes, or, where no NUL
// ends it, with what it begins with.
func interfaceName(data []byte) string {
	name, _, exact := bytes.Cut(data, []byte{0})
	if exact || len(data) >= 16 { // IFNAMSIZ
		return string(name)
	}
	return string(name) + "*"
}

// ipVersion is what a rule's offsets into the network header are about; 0 where
// it does not say.
func (m *machine) ipVersion() uint8 {
	switch m.family {
	case "ip":
		return 4
	case "ip6":
		return 6
	}
	return m.step.version
}

// compareNetwork knows source, destination and protocol of both versions of IP.
func (m *machine) compareNetwork(c content, data []byte) {
	s := &m.step
	if c.mask == nil {
		c.mask = bytes.Repeat([]byte{0xff}, len(data))
	}
	if int(c.length) != len(data) || len(c.mask) != len(data) {
		s.rule.Partial = true
		return
	}
	type field struct {
		version uint8
		offset  uint32
	}
	switch (field{m.ipVersion(), c.offset}) {
	case field{4, 12}:
		s.setPrefix(&s.rule.FromSource, padded(data, c.mask, 4))
	case field{4, 16}:
		s.setPrefix(&s.rule.ToDestination, padded(data, c.mask, 4))
	case field{6, 8}:
		s.setPrefix(&s.rule.FromSource, padded(data, c.mask, 16))
	case field{6, 24}:
		s.setPrefix(&s.rule.ToDestination, padded(data, c.mask, 16))
	case field{4, 9}, field{6, 6}:
		if len(data) == 1 && c.mask[0] == 0xff {
			s.setText(&s.rule.Protocol, conntrack.ProtocolName(data[0]))
			return
		}
		s.rule.Partial = true
	default:
		s.rule.Partial = true
	}
}

// padded is a prefix of which only the bytes that count were compared.
func padded(addr, mask []byte, size int) netip.Prefix {
	if len(addr) > size {
		return netip.Prefix{}
	}
	a, m := make([]byte, size), make([]byte, size)
	copy(a, addr)
	copy(m, mask)
	return prefixOf(a, m)
}

// link is the name of the interface of an index, which is in the machine's byte
// order; empty where it is gone.
func (m *machine) link(data []byte) string {
	if len(data) < 4 {
		return ""
	}
	return m.links[binary.NativeEndian.Uint32(data)]
}
