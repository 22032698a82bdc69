package read

import (
	"bytes"
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
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
	// ways bounds how many steps they make, where they are known.
	ways *budget
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
		m.connection(a)
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

// connection loads something of the packet's connection, or sets it.
func (m *machine) connection(a attrs) {
	r, key, loads := &m.step.rule, a.u32(unix.NFTA_CT_KEY), a.u32(unix.NFTA_CT_DREG) != 0
	r.Partial, m.step.cause = true, ctText(key)
	m.load(a.u32(unix.NFTA_CT_DREG), content{}, 16)
	r.Marked = r.Marked || loads && key == unix.NFT_CT_MARK
	r.OriginalDestination = r.OriginalDestination || asksOriginalDestination(a)
}

func ctText(key uint32) string {
	if word := ctKeys[key]; word != "" {
		return "ct " + word
	}
	return "ct"
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
	if elements := m.sets[a.text(nftLookupSet)]; len(elements) > 0 && a.u32(nftLookupFlags) != 0 && m.ways.takes(len(elements)) {
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

// translate is nat, masq or redir: registers traced back to constants.
func (m *machine) translate(e kernelExpr) {
	s, n := &m.step, natAttrsOf[e.name]
	s.translates = true
	flags := e.data.u32(n.flags)
	s.rule.Kind = map[string]string{"masq": snapshot.NATMasquerade, "redir": snapshot.NATRedirect, "nat": snapshot.NATSource}[e.name]
	if e.name == "nat" && e.data.u32(1) == 1 { // NFTA_NAT_TYPE = NFT_NAT_DNAT
		s.rule.Kind = snapshot.NATDest
	}
	setFlags(&s.rule, flags)
	s.prefix, s.shifts = flags&rangeNetmap != 0, flags&rangeOffset != 0
	inner := ""
	if addresses, ports := m.addresses(e.data, n), m.ports(e.data, n); !addresses || !ports {
		s.rule.Partial, s.rule.PortsFromMap, inner = true, !ports, "…"
	}
	s.rule.Text = words(&s.rule, m.family, flags&rangeNetmap != 0, inner)
	m.byMap(e.data, n)
}

// natAttrs are the attributes of an expression that translates, 0 where it has
// none of a sort.
type natAttrs struct{ addrMin, addrMax, portMin, portMax, flags uint16 }

var natAttrsOf = map[string]natAttrs{
	"nat":   {3, 4, 5, 6, 7}, // enum nft_nat_attributes
	"masq":  {0, 0, 2, 3, 1}, // enum nft_masq_attributes
	"redir": {0, 0, 1, 2, 3}, // enum nft_redir_attributes
}

// natFamily is NFTA_NAT_FAMILY.
const natFamily = 2

// addressBytes are how long a family's addresses are.
var addressBytes = map[uint32]int{familyIP4: 4, familyIP6: 16}

// upTo is the part of a map's value that is one address.
func upTo(data []byte, size int) []byte { return data[:min(len(data), size)] }

func (m *machine) addresses(a attrs, n natAttrs) bool {
	if n.addrMin == 0 || !a.has(n.addrMin) {
		return true
	}
	first := m.held(a.u32(n.addrMin))
	last := first
	if a.has(n.addrMax) {
		last = m.held(a.u32(n.addrMax))
	}
	size := addressBytes[a.u32(natFamily)]
	x, ok := netip.AddrFromSlice(upTo(first.data, size))
	y, ok2 := netip.AddrFromSlice(upTo(last.data, size))
	if first.from != constant || last.from != constant || !ok || !ok2 {
		return false
	}
	m.step.rule.First, m.step.rule.Last = x, y
	return true
}

func (m *machine) ports(a attrs, n natAttrs) bool {
	if !a.has(n.portMin) {
		return true
	}
	first := m.held(a.u32(n.portMin))
	last := first
	if a.has(n.portMax) {
		last = m.held(a.u32(n.portMax))
	}
	if first.from != constant || last.from != constant || len(first.data) < 2 || len(last.data) < 2 {
		return false
	}
	if m.step.rule.Kind == snapshot.NATMasquerade && a.u32(n.flags)&rangePorts == 0 {
		return true // nft_masq_eval then passes ports on that nobody looks at
	}
	m.step.rule.FirstPort, m.step.rule.LastPort = beUint16(first.data), beUint16(last.data)
	return true
}

func (m *machine) xtTarget(a attrs) {
	m.step.target(a.text(nftXtName), a.u32(nftXtRevision), a.get(nftXtInfo), m.family)
	if m.step.translates {
		m.step.rule.Source = "iptables-nft"
	}
}
