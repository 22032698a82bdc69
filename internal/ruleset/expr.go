package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// origin is the source of the content of a register.
type origin int

const (
	unknown origin = iota
	constant
	metaData
	payload
	mapData
	destinationType // of the destination's route: RTN_LOCAL and others
	routeMSS        // of the route's MTU (NFT_RT_TCPMSS)
	connState       // NF_CT_STATE_BIT
	connStatus      // enum ip_conntrack_status
	connMark
	connDirection // IP_CT_DIR_ORIGINAL, or of answers
	chance        // a number that is drawn, or counted
	connOriginal  // of the first packet: the address or, with a length of 2, the port of its destination
)

// content is what a register holds.
type content struct {
	from origin
	data []byte // of a constant
	// key is of metaData; base, offset and length of payload. mask is what a bitwise
	// expression left of it, nil for all. Of mapData, offset is the place in a value.
	key                  uint32
	base, offset, length uint32
	mask                 []byte
	lookup               *lookup // of mapData
	// draws is how many numbers there are of what numgen and hash give, from 0 or an offset on; 0 of others.
	draws, start uint32
}

// lookup is an expression that takes values from a map.
type lookup struct {
	set string
	at  int
	// address is true if an address is looked up.
	address bool
	// first and last are where the addresses of a translation begin in a value, size is
	// their length; 0 if they are not of this map.
	first, last, size int
}

// machine runs a rule's expressions over what registers mean instead of over a packet.
type machine struct {
	family string
	// verdicts are where verdict maps lead, by name; links are the names of interfaces by
	// index.
	verdicts map[string][]string
	links    map[uint32]string
	// sets are those whose elements are known, budget bounds the rules made of them.
	sets   map[string][]interval
	budget *Budget
	// judged is true for a table that Judge is asked about, drawing for one whose destinations that are drawn are known.
	judged, drawing bool

	rule Rule
	regs map[uint32]content
	// proto is the protocol that the rule compares with, which an x_tables match may ask
	// for; protoNot means that it is for all others, protoSet is the set of a lookup.
	proto    uint8
	protoNot bool
	protoSet string
	// picked is the element that an expression, by its place, is to find; at is the place
	// of the one that runs.
	picked map[int]interval
	at     int
	kernel *KernelRule
	// fromMap is where the translation of sources takes values from.
	fromMap *lookup
}

// slot is a register's place in units of 32 bits: NFT_REG_1 to NFT_REG_4 are four of them
// each and overlay NFT_REG32_00 to NFT_REG32_15, which begin at 8.
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

// read returns what a rule means.
func (m *machine) read(r *KernelRule) *Rule {
	m.regs, m.fromMap, m.kernel = map[uint32]content{}, nil, r
	m.proto, m.protoNot, m.protoSet = 0, false, ""
	m.rule = Rule{Handle: r.Handle, Comment: CommentOf(r.Attrs.Get(unix.NFTA_RULE_USERDATA)), Target: Target{Kind: Pass}}
	for i, e := range r.Exprs {
		m.at = i
		m.run(e)
	}
	m.rule.Match.settle()
	rule := m.rule
	return &rule
}

// settle completes a match: ports mean nothing without the protocol, which Judge knows of its packets.
func (m *Match) settle() {
	if len(m.Ports)+len(m.SourcePorts) > 0 && m.Protocol == 0 {
		m.Unknown = slices.Insert(m.Unknown, 0, "ports of several protocols")
	}
}

// unknown notes a condition that there is no field for.
func (m *Match) unknown(what string) {
	m.Opaque = true
	m.note(what)
}

// note is unknown without a doubt for Judge: the condition is among Conn or Sets.
func (m *Match) note(what string) {
	const some = "(one that natkit does not know)"
	text := "(" + what + ")"
	switch {
	case what == "" && len(m.Unknown) == 0:
		m.Unknown = []string{some}
	case what == "" || slices.Contains(m.Unknown, text):
	case slices.Equal(m.Unknown, []string{some}):
		m.Unknown = []string{text}
	default:
		m.Unknown = append(m.Unknown, text)
	}
}

func (m *machine) unknown(what string) { m.rule.Match.unknown(what) }

// run is one expression. One that is not known may be a condition. A counter before a
// condition counts more than the rule's packets.
func (m *machine) run(e KernelExpr) {
	switch e.Name {
	case "cmp", "range", "lookup", "match", "limit", "quota", "connlimit", "objref", "dynset":
		if e.Name == "objref" && objectOf(e.Data) == "counter" || e.Name == "lookup" && m.held(e.Data.U32(unix.NFTA_LOOKUP_SREG)).draws > 0 && e.Data.Has(unix.NFTA_LOOKUP_DREG) {
			break // a map of numbers that are drawn is no condition
		}
		m.rule.Counted, m.rule.Packets = false, 0
		m.rule.Match.Limits = m.rule.Match.Limits || limits(e)
	}
	switch a := e.Data; e.Name {
	case "immediate":
		m.immediate(a)
	case "meta":
		if dreg := a.U32(unix.NFTA_META_DREG); dreg != 0 {
			m.load(dreg, content{from: metaData, key: a.U32(unix.NFTA_META_KEY)}, 16)
		} else if key := a.U32(unix.NFTA_META_KEY); key == unix.NFT_META_MARK {
			m.setsMark(false, m.held(a.U32(unix.NFTA_META_SREG)))
		} else if key != unix.NFT_META_NFTRACE {
			m.rule.Target.Unknown = append(m.rule.Target.Unknown, "a statement that sets what the kernel knows of a packet (meta)")
		}
	case "payload":
		if dreg := a.U32(unix.NFTA_PAYLOAD_DREG); dreg != 0 {
			length := a.U32(unix.NFTA_PAYLOAD_LEN)
			m.load(dreg, content{from: payload, base: a.U32(unix.NFTA_PAYLOAD_BASE), offset: a.U32(unix.NFTA_PAYLOAD_OFFSET), length: length}, int(min(length, 64)))
		} else {
			m.rule.Target.Unknown = append(m.rule.Target.Unknown, "a statement that changes the packet beside its addresses")
		}
	case "reject":
		m.rule.Target.does(Drop)
		m.rule.Target.Rejects = true
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
		m.rule.XT = true
		m.rule.match(a.Text(unix.NFTA_MATCH_NAME), a.U32(unix.NFTA_MATCH_REV), a.Get(unix.NFTA_MATCH_INFO), m.family == "ip6")
	case "target":
		m.rule.XT = true
		m.rule.target(a.Text(unix.NFTA_TARGET_NAME), a.U32(unix.NFTA_TARGET_REV), a.Get(unix.NFTA_TARGET_INFO), m.family == "ip6")
	case "ct":
		m.connection(a)
	case "counter":
		m.rule.Counted, m.rule.Packets = true, a.U64(unix.NFTA_COUNTER_PACKETS)
	case "log":
		m.rule.Log = logOf(a)
	case "last":
	case "objref":
		m.object(objectOf(a))
	case "notrack":
		m.rule.Target.does(Notrack)
		m.rule.Target.Name = e.Name
	case "limit", "quota", "connlimit":
		m.rule.Match.parts(e.Name)
	case "queue":
		m.queue(e.Data)
	case "numgen", "hash":
		if !m.drawing || !m.draws(m.kernel, m.at+1) && !m.draws(m.kernel, m.at+2) {
			m.draw(e)
		}
	case "byteorder":
		if !m.drawing || !m.draws(m.kernel, m.at+1) {
			m.segments(e)
		}
	case "rt", "exthdr":
		m.segments(e)
	default:
		m.expression(e.Name)
	}
}

// drawAttrs are the register, the modulus and the offset of what draws a number.
var drawAttrs = map[string][3]uint16{
	"numgen": {unix.NFTA_NG_DREG, unix.NFTA_NG_MODULUS, unix.NFTA_NG_OFFSET},
	"hash":   {unix.NFTA_HASH_DREG, unix.NFTA_HASH_MODULUS, unix.NFTA_HASH_OFFSET},
}

// draws reports whether an expression looks up a number that is drawn, of which all have a destination.
func (m *machine) draws(r *KernelRule, at int) bool {
	from := drawnBy(r, at)
	if from == nil {
		return false
	}
	n := drawAttrs[from.Name]
	list := m.sets[r.Exprs[at].Data.Text(unix.NFTA_LOOKUP_SET)]
	numbers := content{draws: from.Data.U32(n[1]), start: from.Data.U32(n[2])}
	if r.Exprs[at-1].Name != "byteorder" {
		return numbers.draws <= maxExpanded && len(drawn(list, false)) > 0 && numbers.missing(list) == ""
	}
	total := uint64(0) // of a map of ranges, which do not overlap
	for _, d := range drawn(list, true) {
		total += uint64(d.Numbers)
	}
	return total == uint64(numbers.draws) && numbers.start == 0 && !slices.ContainsFunc(list, func(e interval) bool { return binary.BigEndian.Uint32(e.last) >= numbers.draws })
}

// drawnBy is the expression that draws the number that the one at a place looks up, in network byte order for a map of
// ranges; nil where there is none.
func drawnBy(r *KernelRule, at int) *KernelExpr {
	if at >= len(r.Exprs) || r.Exprs[at].Name != "lookup" {
		return nil
	}
	if at--; at > 0 && r.Exprs[at].Name == "byteorder" {
		at--
	}
	if at < 0 || drawAttrs[r.Exprs[at].Name] == [3]uint16{} {
		return nil
	}
	return &r.Exprs[at]
}

// draw is a number that counts or that chance or a hash gives.
func (m *machine) draw(e KernelExpr) {
	if e.Name == "numgen" {
		clear(m.regs)
		m.rule.Match.parts(e.Name)
		m.rule.Match.Random = true
		m.load(e.Data.U32(unix.NFTA_NG_DREG), content{from: chance, draws: e.Data.U32(unix.NFTA_NG_MODULUS), start: e.Data.U32(unix.NFTA_NG_OFFSET)}, 4)
		return
	}
	from := m.hashes(e.Data)
	m.expression(e.Name)
	m.rule.Match.Random = true
	m.load(e.Data.U32(unix.NFTA_HASH_DREG), content{from: from, draws: e.Data.U32(unix.NFTA_HASH_MODULUS), start: e.Data.U32(unix.NFTA_HASH_OFFSET)}, 4)
}

// hashes is chance for a hash of ports, too, which differ from one connection to the next.
func (m *machine) hashes(a netlink.Attrs) origin {
	ports := a.U32(unix.NFTA_HASH_TYPE) == unix.NFT_HASH_SYM
	for i := range (a.U32(unix.NFTA_HASH_LEN) + 3) / 4 {
		c := m.regs[slot(a.U32(unix.NFTA_HASH_SREG))+i]
		ports = ports || c.from == payload && c.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER
	}
	return map[bool]origin{true: chance}[ports]
}

// queue leaves the packet to a program (enum nft_queue_attributes).
func (m *machine) queue(a netlink.Attrs) {
	const num, total, flags, bypass = 1, 2, 3, 1
	if !m.judged || !a.Has(num) {
		m.expression("queue")
		return
	}
	t := &m.rule.Target
	t.Queued, t.Queue.First = true, port(a.Get(num))
	t.Queue.Last = t.Queue.First + max(port(a.Get(total)), 1) - 1
	t.Bypass, t.Name = port(a.Get(flags))&bypass != 0, "queue num "+PortsString([]nat.Ports{t.Queue})
}

// objectOf is the kind of the object with a name that a rule refers to (enum nft_objref_attributes, NFT_OBJECT_*), in
// the words of the expression that does the same; empty for others, and those that a map chooses.
func objectOf(a netlink.Attrs) string {
	const kind = 1 // NFTA_OBJREF_IMM_TYPE
	return map[uint32]string{1: "counter", 2: "quota", 4: "limit", 5: "connlimit"}[a.U32(kind)]
}

// object refers to an object: a counter decides nothing, and is not read.
func (m *machine) object(kind string) {
	switch kind {
	case "counter":
	case "":
		m.expression("objref")
	default:
		m.rule.Match.parts(kind)
	}
}

// limits reports whether an expression, or the one that each element of a set has, counts.
func limits(e KernelExpr) bool {
	name := e.Name
	if name == "objref" {
		name = objectOf(e.Data)
	}
	if name == "dynset" {
		name = e.Data.Nested(unix.NFTA_DYNSET_EXPR).Text(ExprName)
	}
	return name == "limit" || name == "quota" || name == "connlimit"
}

// expression is one that is not known. It may have loaded any register.
func (m *machine) expression(name string) {
	m.unknown(name)
	clear(m.regs)
}

// ctKeys are nft's words for enum nft_ct_keys, as far as rules of NAT use them.
var ctKeys = map[uint32]string{
	unix.NFT_CT_STATE: "state", unix.NFT_CT_DIRECTION: "direction", unix.NFT_CT_STATUS: "status", unix.NFT_CT_MARK: "mark",
	unix.NFT_CT_LABELS: "label", unix.NFT_CT_ZONE: "zone",
}

// connection loads something of the packet's connection, or sets it.
func (m *machine) connection(a netlink.Attrs) {
	key, loads := a.U32(unix.NFTA_CT_KEY), a.U32(unix.NFTA_CT_DREG) != 0
	match := &m.rule.Match
	if zone := m.held(a.U32(unix.NFTA_CT_SREG)); !loads && key == unix.NFT_CT_ZONE && zone.from == constant && len(zone.data) >= 2 {
		m.rule.Target.setZone(binary.NativeEndian.Uint16(zone.data), a.Get(unix.NFTA_CT_DIRECTION))
		return
	}
	if !loads && key == unix.NFT_CT_MARK {
		m.setsMark(true, m.held(a.U32(unix.NFTA_CT_SREG)))
		return
	}
	c := content{from: ctOrigins[key]}
	direction, toDst := a.Get(unix.NFTA_CT_DIRECTION), key == unix.NFT_CT_DST || key == unix.NFT_CT_DST_IP || key == unix.NFT_CT_DST_IP6
	first := bytes.Equal(direction, []byte{0}) // IP_CT_DIR_ORIGINAL
	switch {
	case first && toDst:
		c = content{from: connOriginal, length: 4}
		if key == unix.NFT_CT_DST_IP6 || m.family == "ip6" {
			c.length = 16
		}
	case first && key == unix.NFT_CT_PROTO_DST:
		c = content{from: connOriginal, length: 2}
	case direction != nil:
		c = content{}
	}
	if what := strings.TrimSpace("ct " + ctKeys[key]); loads && c.from != unknown {
		match.note(what)
	} else {
		match.unknown(what)
	}
	m.load(a.U32(unix.NFTA_CT_DREG), c, 16)
	match.Marked = match.Marked || loads && key == unix.NFT_CT_MARK
	match.BeforeNAT = match.BeforeNAT || loads && first && toDst
}

// ctOrigins are the keys that Judge knows in every direction.
var ctOrigins = map[uint32]origin{
	unix.NFT_CT_STATE: connState, unix.NFT_CT_STATUS: connStatus, unix.NFT_CT_MARK: connMark, unix.NFT_CT_DIRECTION: connDirection,
}

// setsMark notes that a rule sets the mark of a packet, or of its connection.
func (m *machine) setsMark(connection bool, c content) {
	s := SetMark{Connection: connection, From: true, Mask: ^uint32(0)}
	switch {
	case c.from == constant && len(c.data) >= 4:
		s.From, s.Value = false, binary.NativeEndian.Uint32(c.data)
	case c.mask == nil && (connection && c.from == metaData && c.key == unix.NFT_META_MARK || !connection && c.from == connMark):
		s.From, s.Copy = false, true
	}
	m.rule.Marks = append(m.rule.Marks, s)
}

// setZone sets the zone of one direction (IP_CT_DIR_ORIGINAL is 0), or of both.
func (t *Target) setZone(zone uint16, direction []byte) {
	t.does(Zone)
	t.Name = fmt.Sprintf("ct zone set %d", zone)
	if !bytes.Equal(direction, []byte{1}) {
		t.Zone = zone
	}
	if !bytes.Equal(direction, []byte{0}) {
		t.AnswerZone = zone
	}
}

func (m *machine) immediate(a netlink.Attrs) {
	data := a.Nested(unix.NFTA_IMMEDIATE_DATA)
	if dreg := a.U32(unix.NFTA_IMMEDIATE_DREG); dreg != 0 {
		value := data.Get(unix.NFTA_DATA_VALUE)
		m.load(dreg, content{from: constant, data: value}, len(value))
		return
	}
	m.rule.Target.decide(data)
}

// decide is a verdict.
func (t *Target) decide(data netlink.Attrs) {
	code, chain := verdict(data)
	switch code {
	case unix.NFT_JUMP:
		t.does(Jump)
		t.Chains = []string{chain}
	case unix.NFT_GOTO:
		t.does(Goto)
		t.Chains = []string{chain}
	case verdictAccept:
		t.does(Accept)
	case verdictDrop:
		t.does(Drop)
	case unix.NFT_RETURN:
		t.does(Return)
	}
}

// logOf reads enum nft_log_attributes. A level of nft's default (warning) and no group are none of its Options.
func logOf(a netlink.Attrs) *Log {
	const warning = 4 // LOGLEVEL_WARNING
	l := &Log{Prefix: a.Text(unix.NFTA_LOG_PREFIX)}
	if a.Has(unix.NFTA_LOG_GROUP) {
		l.Options = append(l.Options, fmt.Sprintf("group %d", port(a.Get(unix.NFTA_LOG_GROUP))))
	}
	if level := a.U32(unix.NFTA_LOG_LEVEL); a.Has(unix.NFTA_LOG_LEVEL) && level != warning {
		l.Options = append(l.Options, fmt.Sprintf("level %d", level))
	}
	if flags := a.U32(unix.NFTA_LOG_FLAGS); flags != 0 {
		l.Options = append(l.Options, fmt.Sprintf("flags %#x", flags))
	}
	return l
}

// bitwise keeps what a mask leaves of the packet.
func (m *machine) bitwise(a netlink.Attrs) {
	const op = 6 // NFTA_BITWISE_OP
	c := m.held(a.U32(unix.NFTA_BITWISE_SREG))
	mask, xor := a.Nested(unix.NFTA_BITWISE_MASK).Get(unix.NFTA_DATA_VALUE), a.Nested(unix.NFTA_BITWISE_XOR).Get(unix.NFTA_DATA_VALUE)
	if a.U32(op) != 0 || c.from == constant || c.mask != nil || len(bytes.Trim(xor, "\x00")) > 0 {
		c = content{}
	}
	c.mask = mask
	m.load(a.U32(unix.NFTA_BITWISE_DREG), c, len(mask))
}

// inSet is the condition that a lookup is, of what there is no word for.
const inSet = "lookup in a set or map"

// isIn is the condition that fields, in registers from one on, are an element of a set, or are not, as nft writes it.
func (m *machine) isIn(set string, from uint32, inverted bool) string {
	var fields []string
	for at, size := 0, m.keySize(m.sets[set]); size == 0 || at < size; {
		c := m.regs[from+uint32(at/4)]
		word := m.fieldWord(c)
		if word == "" && (size > 0 || at == 0) {
			return inSet
		}
		if word == "" {
			break
		}
		fields = append(fields, word)
		at += (c.size() + 3) &^ 3
	}
	name := "@" + set
	if anonymous := strings.TrimRight(set, "0123456789"); anonymous == "__set" || anonymous == "__map" {
		name = "{ … }"
	}
	if isMost(m.sets[set]) {
		name += " of most addresses"
	}
	return strings.Join(fields, " . ") + map[bool]string{true: " !="}[inverted] + " " + name
}

// isMost reports whether elements that begin with an address hold the half of all of IPv4, or of IPv6, or more:
// nobody lists these one by one.
func isMost(elements []interval) bool {
	var heads uint64
	for _, e := range elements {
		if len(e.first) < 4 || len(e.last) < 4 {
			return false
		}
		heads += uint64(binary.BigEndian.Uint32(e.last)-binary.BigEndian.Uint32(e.first)) + 1
	}
	return heads >= 1<<31
}

// fieldWord is nft's word for a field of packets; empty where there is none.
func (m *machine) fieldWord(c content) string {
	address := map[[2]uint32]string{{12, 4}: "ip saddr", {16, 4}: "ip daddr", {8, 16}: "ip6 saddr", {24, 16}: "ip6 daddr"}
	switch ports := m.portsOf(c); {
	case c.from == payload && c.base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		return address[[2]uint32{c.offset, c.length}]
	case c.from == payload && c.base == unix.NFT_PAYLOAD_LL_HEADER && c.length == 6:
		return map[uint32]string{0: "ether daddr", 6: "ether saddr"}[c.offset]
	case ports != nil:
		transport := cmp.Or(m.rule.Match.protocol(), "th")
		return transport + map[bool]string{true: " sport", false: " dport"}[ports == &m.rule.Match.SourcePorts]
	case c.from == metaData:
		return map[uint32]string{unix.NFT_META_IIFNAME: "iifname", unix.NFT_META_OIFNAME: "oifname", unix.NFT_META_L4PROTO: "meta l4proto"}[c.key]
	}
	return ""
}

// lookup leads on by a verdict map, takes a value from a map, or is a condition; in every
// case a packet without an element does not match.
func (m *machine) lookup(a netlink.Attrs) {
	name, inverted := a.Text(unix.NFTA_LOOKUP_SET), a.U32(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	source, dreg := a.U32(unix.NFTA_LOOKUP_SREG), a.U32(unix.NFTA_LOOKUP_DREG)
	if e, ok := m.picked[m.at]; ok {
		m.pick(a, e)
		return
	}
	if m.drawing && m.draws(m.kernel, m.at) {
		m.rule.Target.Drawn, m.rule.Target.Hashed = drawn(m.sets[name], m.kernel.Exprs[m.at-1].Name == "byteorder"), drawnBy(m.kernel, m.at).Name == "hash"
		return
	}
	if elements := m.sets[name]; inverted && !m.judged && len(elements) > 0 && m.budget.Elements(len(elements)) {
		for _, e := range elements {
			m.not(func(is *machine) { is.isBetween(slot(source), e) })
		}
		return
	}
	set, known := m.membership(name, slot(source))
	switch {
	case known && !a.Has(unix.NFTA_LOOKUP_DREG):
		m.rule.Match.note(m.isIn(name, slot(source), inverted))
		set.not = inverted
		m.rule.Match.Sets = append(m.rule.Match.Sets, set)
	case known && dreg == 0:
		m.rule.Match.note(inSet)
		m.rule.Target.verdicts = &verdictMap{set}
	case !a.Has(unix.NFTA_LOOKUP_DREG):
		m.unknown(m.isIn(name, slot(source), inverted))
	case known: // what is no key of a map of values does not match
		m.rule.Match.note(inSet)
		m.rule.Match.Sets = append(m.rule.Match.Sets, set)
	default:
		m.unknown(inSet)
	}
	switch {
	case !a.Has(unix.NFTA_LOOKUP_DREG):
		if c := m.held(source); c.from == metaData && c.key == unix.NFT_META_L4PROTO && !inverted {
			m.protoSet = name
		}
	case dreg == 0: // its elements may be any verdicts
		m.rule.Target.does(Ends)
		m.rule.Target.Chains, m.rule.Target.Unknown = m.verdicts[name], []string{"a verdict map"}
	default:
		of := &lookup{set: name, at: m.at, address: m.held(source).isAddress()}
		if key := m.held(source); m.judged && key.draws > 0 && len(m.sets[name]) > 0 {
			t := &m.rule.Target
			t.Missing, t.Draws, t.Drawn, t.Hashed = key.missing(m.sets[name]), key.draws, drawn(m.sets[name], false), key.from != chance
		}
		m.load(dreg, content{}, 64)
		for i := range uint32(16) {
			m.regs[slot(dreg)+i] = content{from: mapData, lookup: of, offset: 4 * i}
		}
	}
}

// missing are the numbers that may be drawn as a key and that have no element, as "3, 5"; empty where there are none.
func (of *content) missing(list []interval) string {
	if slices.ContainsFunc(list, func(e interval) bool { return !bytes.Equal(e.first, e.last) || len(e.first) != 4 }) {
		return "" // keys of another form
	}
	var none []string
	for n := of.start; n-of.start < of.draws && of.draws <= maxExpanded; n++ {
		key := binary.NativeEndian.AppendUint32(nil, n)
		if !slices.ContainsFunc(list, func(e interval) bool { return bytes.Equal(e.first, key) }) {
			none = append(none, fmt.Sprint(n))
		}
	}
	return strings.Join(none, ", ")
}

// drawn are the destinations that are the values of a map whose keys are single numbers, or ranged, in network byte order;
// none where one is of another form: an address, and a port where the map gives it.
func drawn(list []interval, ranged bool) (all []snapshot.Drawn) {
	for _, e := range list {
		value := e.value.Get(unix.NFTA_DATA_VALUE)
		var d snapshot.Drawn
		switch n := len(value); {
		case len(e.first) != 4 || len(e.last) != 4 || !ranged && !bytes.Equal(e.first, e.last):
			return nil
		case n == 8 || n == 20: // with a port, in a register of its own
			d.Port, value = binary.BigEndian.Uint16(value[n-4:]), value[:n-4]
		case n != 4 && n != 16:
			return nil
		}
		d.Address, _ = netip.AddrFromSlice(value)
		i := slices.IndexFunc(all, func(o snapshot.Drawn) bool { return o.Address == d.Address && o.Port == d.Port })
		if i < 0 {
			i, all = len(all), append(all, d)
		}
		all[i].Numbers += binary.BigEndian.Uint32(e.last) - binary.BigEndian.Uint32(e.first) + 1
	}
	return all
}

// pick is a lookup that finds this element.
func (m *machine) pick(a netlink.Attrs, e interval) {
	m.isBetween(slot(a.U32(unix.NFTA_LOOKUP_SREG)), e)
	register := a.U32(unix.NFTA_LOOKUP_DREG)
	switch {
	case !a.Has(unix.NFTA_LOOKUP_DREG):
	case register == 0:
		m.rule.Target.decide(e.value)
	default: // a rule takes parts of the value out of the registers
		value := e.value.Get(unix.NFTA_DATA_VALUE)
		m.load(register, content{}, len(value))
		for i := 0; i < len(value); i += 4 {
			m.regs[slot(register)+uint32(i/4)] = content{from: constant, data: value[i:]}
		}
	}
}

// NATAttrs are the attributes of an expression that translates, 0 if it has none of a kind.
type NATAttrs struct{ AddrMin, AddrMax, PortMin, PortMax, Flags uint16 }

// NATAttrsOf are those of the expressions (enum nft_nat_attributes and so on).
var NATAttrsOf = map[string]NATAttrs{
	"nat":   {unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX, unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX, unix.NFTA_NAT_FLAGS},
	"masq":  {0, 0, unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX, unix.NFTA_MASQ_FLAGS},
	"redir": {0, 0, unix.NFTA_REDIR_REG_PROTO_MIN, unix.NFTA_REDIR_REG_PROTO_MAX, unix.NFTA_REDIR_FLAGS},
}

// translate is nat, masq or redir: registers traced back to constants.
func (m *machine) translate(e KernelExpr) {
	t, n := &m.rule.Target, NATAttrsOf[e.Name]
	flags := e.Data.U32(n.Flags)
	kind := map[string]Kind{"masq": Masquerade, "redir": Redirect, "nat": SNAT}[e.Name]
	if e.Name == "nat" && e.Data.U32(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
		kind = DNAT
	}
	t.does(kind)
	if t.setFlags(flags); flags&unix.NF_NAT_RANGE_PROTO_OFFSET != 0 {
		t.shifted(0)
	}
	if len(t.Drawn) == 0 || t.Kind != DNAT {
		t.AddrsVary, t.PortsVary = !m.addresses(e.Data, n), !m.ports(e.Data, n)
	}
	if t.AddrsVary {
		t.Unknown = append(t.Unknown, "addresses that are not fixed")
	}
	if t.PortsVary {
		t.Unknown = append(t.Unknown, "ports that are not fixed")
	}
	given := t.First
	if len(t.Drawn) > 0 {
		given = t.Drawn[0].Address
	}
	if m.family == "inet" && given.IsValid() {
		m.rule.Match.of(map[bool]int{true: 4, false: 6}[given.Is4()])
	}
	for _, kind := range []uint16{n.AddrMin, n.PortMin} {
		if c := m.held(e.Data.U32(kind)); t.Kind == SNAT && c.from == mapData && e.Data.Has(kind) {
			m.fromMap = c.lookup
		}
	}
}

// setFlags takes the options out of NF_NAT_RANGE_* flags, after the kind.
func (t *Target) setFlags(flags uint32) {
	t.Name = strings.ToUpper(string(t.Kind))
	t.SetFlags(flags)
	if flags&unix.NF_NAT_RANGE_NETMAP != 0 {
		t.Kind = Netmap
	}
}

// shifted gives each port the one at its place, from a base on; 0 where that is not known.
func (t *Target) shifted(base uint16) {
	if t.Base = base; base == 0 {
		t.Unknown = append(t.Unknown, "ports that are shifted")
	}
}

// addresses reports whether those that are given are constant.
func (m *machine) addresses(a netlink.Attrs, n NATAttrs) bool {
	if n.AddrMin == 0 || !a.Has(n.AddrMin) {
		return true
	}
	first := m.held(a.U32(n.AddrMin))
	last := first
	if a.Has(n.AddrMax) {
		last = m.held(a.U32(n.AddrMax))
	}
	size := map[uint32]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 16}[a.U32(unix.NFTA_NAT_FAMILY)]
	if first.from == mapData && first.lookup == last.lookup && first.mask == nil && last.mask == nil {
		of := first.lookup
		of.first, of.last, of.size = int(first.offset), int(last.offset), size
	}
	x, ok := netip.AddrFromSlice(first.data[:min(len(first.data), size)])
	y, ok2 := netip.AddrFromSlice(last.data[:min(len(last.data), size)])
	if first.from != constant || last.from != constant || !ok || !ok2 {
		return false
	}
	m.rule.Target.First, m.rule.Target.Last = x, y
	return true
}

// ports reports whether those that are given are constant.
func (m *machine) ports(a netlink.Attrs, n NATAttrs) bool {
	if !a.Has(n.PortMin) {
		return true
	}
	first := m.held(a.U32(n.PortMin))
	last := first
	if a.Has(n.PortMax) {
		last = m.held(a.U32(n.PortMax))
	}
	if first.from != constant || last.from != constant || len(first.data) < 2 || len(last.data) < 2 {
		return false
	}
	if m.rule.Target.Kind != Masquerade || a.U32(n.Flags)&unix.NF_NAT_RANGE_PROTO_SPECIFIED != 0 { // else nft_masq_eval ignores them
		m.rule.Target.Ports = nat.Ports{First: port(first.data), Last: port(last.data)}
	}
	return true
}

// port is a number of 16 bits in network byte order; 0 if it is missing.
func port(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func (m *machine) compare(a netlink.Attrs) {
	if e, ok := m.picked[m.at]; ok { // a part of a range
		m.isBetween(slot(a.U32(unix.NFTA_CMP_SREG)), e)
		return
	}
	c, op := m.held(a.U32(unix.NFTA_CMP_SREG)), a.U32(unix.NFTA_CMP_OP)
	data := a.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE)
	if c.from == metaData && c.key == unix.NFT_META_L4PROTO && len(data) > 0 {
		m.proto, m.protoNot = data[0], op == unix.NFT_CMP_NEQ
	}
	if c.from == metaData && c.key == unix.NFT_META_MARK {
		m.rule.Match.Marked = true
	}
	ports := m.portsOf(c)
	switch {
	case m.compareJudged(c, op, data):
	case c.from == connState || c.from == connStatus:
		m.rule.Match.connIs(c, op, data)
	case c.isFlags() && isSYN(c.mask[0], op, data):
		m.rule.Match.SYN = true
	case c.isFlags() && len(data) == 1 && (op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ):
		f := FlagCondition{Mask: c.mask[0], Set: data[0], Not: op == unix.NFT_CMP_NEQ}
		m.rule.Match.Flags = append(m.rule.Match.Flags, f)
		m.rule.Match.note(f.String())
	case len(data) == 0:
		m.unknown("")
	case op == unix.NFT_CMP_EQ:
		m.equal(c, data)
	case op == unix.NFT_CMP_NEQ:
		m.not(func(is *machine) { is.equal(c, data) })
	case ports != nil && len(data) == 2 && op == unix.NFT_CMP_LTE:
		m.narrow(ports, 0, port(data))
	case ports != nil && len(data) == 2 && op == unix.NFT_CMP_GTE:
		m.narrow(ports, port(data), 65535)
	default:
		m.unknown("a range")
	}
}

// compareJudged is a comparison that Judge alone decides on: of a mark, a direction, what the first packet
// asked for, a type of ICMP; or one that packets of a connection meet differently. It reports whether it
// is one.
func (m *machine) compareJudged(c content, op uint32, data []byte) bool {
	match, equal, not := &m.rule.Match, op == unix.NFT_CMP_EQ || op == unix.NFT_CMP_NEQ, op == unix.NFT_CMP_NEQ
	words := map[bool]string{true: "!= "}[not]
	switch {
	case c.from == chance: // noted
	case c.isLength():
		match.parts("meta length")
	case m.isVarying(c):
		match.parts(map[bool]string{true: "length", false: "ttl"}[c.length == 2])
	case c.isMeta(metaHour) && len(data) == 4 && (op == unix.NFT_CMP_LTE || op == unix.NFT_CMP_GTE):
		h := nat.Hours{First: 0, Last: lastSecond}
		if second := min(binary.BigEndian.Uint32(data), lastSecond); op == unix.NFT_CMP_LTE { // behind byteorder
			h.Last = second
		} else {
			h.First = second
		}
		match.times(TimeCondition{Hours: []nat.Hours{h}}, "meta hour")
	case !equal:
		return false
	case (c.from == metaData && c.key == unix.NFT_META_MARK || c.from == connMark) && len(data) == 4 && (c.mask == nil || len(c.mask) == 4):
		mark := MarkCondition{Connection: c.from == connMark, Value: binary.NativeEndian.Uint32(data), Mask: ^uint32(0), Not: not}
		if c.mask != nil {
			mark.Mask = binary.NativeEndian.Uint32(c.mask)
		}
		match.asks(mark, map[bool]string{true: "ct", false: "meta"}[mark.Connection]+" mark")
	case c.from == metaData && c.mask == nil && (c.key == unix.NFT_META_SKUID || c.key == unix.NFT_META_SKGID) && len(data) == 4:
		id := binary.NativeEndian.Uint32(data)
		match.asks(OwnerCondition{Of: []nat.IDs{{First: id, Last: id}}, Group: c.key == unix.NFT_META_SKGID, Not: not}, "meta "+metaKeys[c.key])
	case c.from == metaData && c.mask == nil && c.key == unix.NFT_META_L4PROTO && not && len(data) == 1:
		match.asks(ProtocolCondition{data[0]}, "meta l4proto != "+nat.ProtocolName(data[0]))
	case m.isDSCP(c) && len(data) == len(c.mask):
		point := data[0] >> 2
		if len(data) == 2 {
			point = uint8(binary.BigEndian.Uint16(data) >> 6 & 0x3f)
		}
		match.asks(DSCPCondition{[]uint8{point}, not}, "dscp "+words+nat.DSCPName(point))
		match.Part = true
	case c.isMeta(metaHour) && len(data) == 4:
		second := min(binary.NativeEndian.Uint32(data), lastSecond)
		match.asks(TimeCondition{Hours: []nat.Hours{{First: second, Last: second}}, Not: not}, "meta hour")
	case c.isMeta(metaDay) && len(data) == 1:
		match.times(TimeCondition{Days: []time.Weekday{time.Weekday(data[0] % 7)}, Not: not}, "meta day")
	case c.from == connDirection && len(data) == 1:
		match.asks(DirectionCondition{(data[0] != 0) != not}, "ct direction")
	case c.from == connOriginal && c.mask == nil && int(c.length) == len(data):
		match.asks(originalIs(data, not), "ct original")
	case not && m.portsOf(c) != nil && len(data) == 2:
		source := m.portsOf(c) == &match.SourcePorts
		match.asks(PortsCondition{[]nat.Ports{{First: port(data), Last: port(data)}}, source, true}, fmt.Sprintf("%sport != %d", map[bool]string{true: "s", false: "d"}[source], port(data)))
	case m.isICMPType(c) && len(data) == 1:
		match.asks(ICMPCondition{match.Protocol, data[0], 0, 0xff, not}, fmt.Sprintf("%s type %s%d", nat.ProtocolName(match.Protocol), words, data[0]))
	case m.isEtherType(c) && len(data) == 2 && !not:
		switch binary.BigEndian.Uint16(data) {
		case unix.ETH_P_IP:
			match.of(4)
		case unix.ETH_P_IPV6:
			match.of(6)
		default:
			match.asks(never{}, "meta protocol")
		}
	default:
		return false
	}
	return true
}

func originalIs(data []byte, not bool) OriginalCondition {
	if len(data) == 2 {
		return OriginalCondition{Ports: nat.Ports{First: port(data), Last: port(data)}, Not: not}
	}
	address, _ := netip.AddrFromSlice(data)
	return OriginalCondition{To: nat.Host(address), Not: not}
}

// isVarying: the length of the packet, or how many hops it may still take.
func (m *machine) isVarying(c content) bool {
	at := [2]uint32{c.offset, c.length}
	return c.from == payload && c.base == unix.NFT_PAYLOAD_NETWORK_HEADER && (m.ipVersion() == 4 && (at == [2]uint32{2, 2} || at == [2]uint32{8, 1}) ||
		m.ipVersion() == 6 && (at == [2]uint32{4, 2} || at == [2]uint32{7, 1}))
}

// isLength: that of the packet.
func (c content) isLength() bool { return c.from == metaData && c.key == unix.NFT_META_LEN }

// isDSCP: the upper bits of the byte behind the first one of IPv4, or of the traffic class of IPv6.
func (m *machine) isDSCP(c content) bool {
	if c.from != payload || c.base != unix.NFT_PAYLOAD_NETWORK_HEADER {
		return false
	}
	return m.ipVersion() == 4 && c.offset == 1 && bytes.Equal(c.mask, []byte{0xfc}) ||
		m.ipVersion() == 6 && c.offset == 0 && bytes.Equal(c.mask, []byte{0x0f, 0xc0})
}

// isICMPType: the first byte of a message of ICMP.
func (m *machine) isICMPType(c content) bool {
	return c.from == payload && c.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && c.offset == 0 && c.length == 1 && c.mask == nil && nat.IsICMP(m.rule.Match.Protocol)
}

// isEtherType: the protocol of the frame, of a family that has several.
func (m *machine) isEtherType(c content) bool {
	return c.mask == nil && (c.from == metaData && c.key == unix.NFT_META_PROTOCOL ||
		c.from == payload && c.base == unix.NFT_PAYLOAD_LL_HEADER && c.offset == 12 && c.length == 2)
}

// between is a range of ports (enum nft_range_attributes).
func (m *machine) between(a netlink.Attrs) {
	const sreg, op, from, to = 1, 2, 3, 4
	ports := m.portsOf(m.held(a.U32(sreg)))
	first, last := a.Nested(from).Get(unix.NFTA_DATA_VALUE), a.Nested(to).Get(unix.NFTA_DATA_VALUE)
	if c := m.held(a.U32(sreg)); c.isMeta(metaHour) && len(first) == 4 && len(last) == 4 {
		h := nat.Hours{First: min(binary.BigEndian.Uint32(first), lastSecond), Last: min(binary.BigEndian.Uint32(last), lastSecond)}
		m.rule.Match.times(TimeCondition{Hours: []nat.Hours{h}, Not: a.U32(op) != 0}, "meta hour")
		return
	}
	if a.U32(op) != 0 || ports == nil || len(first) != 2 || len(last) != 2 { // NFT_RANGE_EQ
		m.unknown("range")
		return
	}
	m.narrow(ports, port(first), port(last))
}

// portsOf is the list of the match that a content is compared for; nil if it is no port.
func (m *machine) portsOf(c content) *[]nat.Ports {
	switch {
	case c.from != payload || c.base != unix.NFT_PAYLOAD_TRANSPORT_HEADER || c.length != 2 || c.mask != nil:
	case c.offset == 0:
		return &m.rule.Match.SourcePorts
	case c.offset == 2:
		return &m.rule.Match.Ports
	}
	return nil
}

func (m *machine) narrow(list *[]nat.Ports, first, last uint16) {
	m.rule.Match.narrow(list, nat.Ports{First: first, Last: last})
}

// narrow keeps the ports of a list that are in a range.
func (m *Match) narrow(list *[]nat.Ports, to nat.Ports) {
	common := []nat.Ports{}
	for _, p := range *list {
		if c, ok := p.Common(to); ok {
			common = append(common, c)
		}
	}
	if len(*list) == 0 {
		common = append(common, to)
	}
	if len(common) == 0 || to.Last == 0 {
		m.unknown("")
		return
	}
	*list = common
}

// equal is the condition that a content has this value.
func (m *machine) equal(c content, data []byte) {
	switch ports := m.portsOf(c); {
	case c.from == metaData && c.mask == nil:
		m.compareMeta(c.key, data)
	case c.from == payload && c.base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		m.compareNetwork(c, data)
	case ports != nil && len(data) == 2:
		m.narrow(ports, port(data), port(data))
	case c.from == payload && c.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && c.mask == nil && c.offset == 0 && c.length == 4 && len(data) == 4: // iptables-nft compares both at once
		m.narrow(&m.rule.Match.SourcePorts, port(data), port(data))
		m.narrow(&m.rule.Match.Ports, port(data[2:]), port(data[2:]))
	case c.from == destinationType && len(data) == 4 && binary.NativeEndian.Uint32(data) == unix.RTN_LOCAL:
		m.rule.Match.ToLocal = true
	default:
		m.unknown("")
	}
}

// fib asks the routing table; here only for the type of the destination.
func (m *machine) fib(a netlink.Attrs) {
	if a.U32(unix.NFTA_FIB_RESULT) == unix.NFT_FIB_RESULT_ADDRTYPE && a.U32(unix.NFTA_FIB_FLAGS) == unix.NFTA_FIB_F_DADDR {
		m.load(a.U32(unix.NFTA_FIB_DREG), content{from: destinationType}, 4)
		return
	}
	m.unknown("fib")
}

// metaKeys are nft's words for enum nft_meta_keys, as far as rules of NAT use them and
// natkit has no field.
var metaKeys = map[uint32]string{
	unix.NFT_META_MARK: "mark", unix.NFT_META_SKUID: "skuid", unix.NFT_META_SKGID: "skgid", unix.NFT_META_PKTTYPE: "pkttype",
	unix.NFT_META_CGROUP: "cgroup", unix.NFT_META_IIFGROUP: "iifgroup", unix.NFT_META_OIFGROUP: "oifgroup",
	unix.NFT_META_IIFTYPE: "iiftype", unix.NFT_META_OIFTYPE: "oiftype", unix.NFT_META_RTCLASSID: "rtclassid",
}

func (m *machine) compareMeta(key uint32, data []byte) {
	match := &m.rule.Match
	switch key {
	case unix.NFT_META_IIFNAME:
		match.setName(&match.In, interfaceName(data))
	case unix.NFT_META_OIFNAME:
		match.setName(&match.Out, interfaceName(data))
	case unix.NFT_META_IIF:
		match.setName(&match.In, m.link(data))
	case unix.NFT_META_OIF:
		match.setName(&match.Out, m.link(data))
	case unix.NFT_META_L4PROTO:
		match.setProtocol(data[0])
	case unix.NFT_META_NFPROTO:
		version := map[byte]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 6}[data[0]]
		if match.of(version); version == 0 {
			match.unknown("")
		}
	case metaDay:
		match.times(TimeCondition{Days: []time.Weekday{time.Weekday(data[0] % 7)}}, "meta day")
	default:
		match.unknown("meta " + metaKeys[key])
	}
}

// setName sets an interface; a second, other one is more than the field holds.
func (m *Match) setName(field *[]string, v string) {
	if v == "" || v == "*" || len(*field) > 0 && (*field)[0] != v {
		m.unknown("")
		return
	}
	*field = []string{v}
}

// setProtocol sets the protocol, as setName an interface.
func (m *Match) setProtocol(v uint8) {
	if v == 0 || m.Protocol != 0 && m.Protocol != v {
		m.unknown("")
		return
	}
	m.Protocol = v
}

// setPrefix sets an address condition, or narrows it.
func (m *Match) setPrefix(field *[]netip.Prefix, p netip.Prefix) {
	overlaps := p.IsValid()
	if overlaps && len(*field) > 0 {
		p, overlaps = nat.CommonPrefix((*field)[0], p)
	}
	switch {
	case !overlaps:
		m.unknown("")
	case p.Bits() > 0:
		*field = []netip.Prefix{p}
	}
}

// interfaceName is a name that nft compares with all its bytes, or, if no NUL ends it,
// as a prefix.
func interfaceName(data []byte) string {
	name, _, exact := bytes.Cut(data, []byte{0})
	if exact || len(data) >= unix.IFNAMSIZ {
		return string(name)
	}
	return string(name) + "*"
}

// link is the name of the interface of an index in the host's byte order; empty if it is
// gone.
func (m *machine) link(data []byte) string {
	if len(data) < 4 {
		return ""
	}
	return m.links[binary.NativeEndian.Uint32(data)]
}

// ipVersion returns the IP version that a rule's header offsets refer to; 0 if unknown.
func (m *machine) ipVersion() int {
	switch {
	case m.family == "ip", m.rule.Match.Family() == 32:
		return 4
	case m.family == "ip6", m.rule.Match.Family() == 128:
		return 6
	}
	return 0
}

// compareNetwork knows source, destination and protocol of both versions of IP.
func (m *machine) compareNetwork(c content, data []byte) {
	match := &m.rule.Match
	if c.mask == nil {
		c.mask = bytes.Repeat([]byte{0xff}, len(data))
	}
	type field struct{ version, offset int }
	switch at := (field{m.ipVersion(), int(c.offset)}); {
	case int(c.length) != len(data) || len(c.mask) != len(data):
		match.unknown("")
	case at == field{4, 12}, at == field{6, 8}:
		match.setPrefix(&match.From, padded(data, c.mask, at.version))
	case at == field{4, 16}, at == field{6, 24}:
		match.setPrefix(&match.To, padded(data, c.mask, at.version))
	case (at == field{4, 9} || at == field{6, 6}) && len(data) == 1 && c.mask[0] == 0xff:
		match.setProtocol(data[0])
	default:
		match.unknown("")
	}
}

// padded is a prefix of which only the bytes that count were compared; not valid if the
// mask has holes.
func padded(addr, mask []byte, version int) netip.Prefix {
	size := map[int]int{4: 4, 6: 16}[version]
	if len(addr) > size {
		return netip.Prefix{}
	}
	a, m := make([]byte, size), make([]byte, size)
	copy(a, addr)
	copy(m, mask)
	return prefixOf(a, m)
}

// prefixOf is an address with a netmask; not valid if the mask has holes.
func prefixOf(addr, mask []byte) netip.Prefix {
	a, ok := netip.AddrFromSlice(addr)
	if !ok || len(mask) != len(addr) {
		return netip.Prefix{}
	}
	for bits := range 8*len(mask) + 1 {
		if p := netip.PrefixFrom(a, bits); bytes.Equal(netmask(p), mask) {
			return p
		}
	}
	return netip.Prefix{}
}

func netmask(p netip.Prefix) []byte {
	all, _ := netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, p.Addr().BitLen()/8)) // as long as an address
	return netip.PrefixFrom(all, p.Bits()).Masked().Addr().AsSlice()
}

// not is the inverse of one condition, of those that have a field for it.
func (m *machine) not(condition func(*machine)) {
	is := *m
	is.rule = Rule{}
	is.rule.Match.of(m.ipVersion())
	condition(&is)
	n, mine := is.rule.Match, &m.rule.Match
	from := Some(n.Source())
	only := n
	only.From, only.To, only.In, only.Out = nil, nil, nil, nil
	if len(from)+len(n.To)+len(n.In)+len(n.Out) != 1 || !only.isAll() {
		mine.unknown("")
		return
	}
	mine.NotFrom, mine.NotTo = append(mine.NotFrom, from...), append(mine.NotTo, n.To...)
	mine.NotIn, mine.NotOut = append(mine.NotIn, n.In...), append(mine.NotOut, n.Out...)
}

// isBetween compares registers with a key, field by field.
func (m *machine) isBetween(start uint32, e interval) {
	for at := 0; at < len(e.first); {
		c := m.regs[start+uint32(at/4)]
		size := c.size()
		if size == 0 || at+size > len(e.first) {
			m.unknown("")
			return
		}
		m.inside(c, e.first[at:at+size], e.last[at:at+size])
		at += (size + 3) &^ 3
	}
}

// inside is the condition that a content is one of first to last.
func (m *machine) inside(c content, first, last []byte) {
	ports := m.portsOf(c)
	switch {
	case bytes.Equal(first, last):
		m.equal(c, first)
	case c.isMeta(unix.NFT_META_IIFNAME) || c.isMeta(unix.NFT_META_OIFNAME):
		m.compareMeta(c.key, namesBetween(first, last))
	case ports != nil:
		m.narrow(ports, port(first), port(last))
	default:
		a, ok := netip.AddrFromSlice(first)
		z, ok2 := netip.AddrFromSlice(last)
		p := (nat.AddrRange{First: a, Last: z}).Prefix()
		if !ok || !ok2 || !p.IsValid() || c.mask != nil {
			m.unknown("a range")
			return
		}
		c.mask = netmask(p)
		m.equal(c, first)
	}
}

// namesBetween is the begin of names that a range holds all of, in the form in which it is compared; empty where there is
// none.
func namesBetween(first, last []byte) []byte {
	n := 0
	for n < len(first) && n < len(last) && first[n] == last[n] {
		n++
	}
	if n == 0 || len(bytes.Trim(first[n:], "\x00")) > 0 || len(bytes.Trim(last[n:], "\xff")) > 0 {
		return nil
	}
	return first[:n]
}

// isAddress: a whole address of the header, of either version.
func (c content) isAddress() bool {
	return c.from == payload && c.base == unix.NFT_PAYLOAD_NETWORK_HEADER && c.mask == nil && (c.length == 4 || c.length == 16)
}

// NFT_META_TIME_DAY and NFT_META_TIME_HOUR (include/uapi/linux/netfilter/nf_tables.h, since Linux 5.4): the day of the week,
// of which Sunday is 0, and the second of the day, both of UTC.
const (
	metaDay  = 31
	metaHour = 32
)

// isMeta reports whether it is all of what a key of meta loads.
func (c content) isMeta(key uint32) bool { return c.from == metaData && c.key == key && c.mask == nil }

// size returns the number of bytes of a content, 0 if it is not known.
func (c content) size() int {
	switch {
	case c.from == payload:
		return int(c.length)
	case c.from == metaData && (c.key == unix.NFT_META_L4PROTO || c.key == unix.NFT_META_NFPROTO || c.key == metaDay):
		return 1
	case c.from == metaData && (c.key == unix.NFT_META_IIFNAME || c.key == unix.NFT_META_OIFNAME):
		return unix.IFNAMSIZ
	case c.from == metaData && c.key == unix.NFT_META_PROTOCOL:
		return 2
	case c.from == metaData, c.from == destinationType, c.from == connState, c.from == connStatus, c.from == connMark, c.from == chance:
		return 4
	case c.from == connDirection:
		return 1
	case c.from == connOriginal:
		return int(c.length)
	}
	return 0
}

// segments runs the expressions of rules that limit the MSS: what the route takes, in the
// byte order of the header, is written into an option of the header.
func (m *machine) segments(e KernelExpr) {
	switch a := e.Data; {
	case e.Name == "rt" && a.U32(unix.NFTA_RT_KEY) == unix.NFT_RT_TCPMSS:
		m.load(a.U32(unix.NFTA_RT_DREG), content{from: routeMSS}, 2)
	case e.Name == "byteorder" && m.held(a.U32(unix.NFTA_BYTEORDER_SREG)).from == routeMSS:
		m.load(a.U32(unix.NFTA_BYTEORDER_DREG), content{from: routeMSS}, 2)
	case e.Name == "byteorder" && m.held(a.U32(unix.NFTA_BYTEORDER_SREG)).isMeta(metaHour):
		m.load(a.U32(unix.NFTA_BYTEORDER_DREG), content{from: metaData, key: metaHour}, 4)
	case e.Name == "byteorder" && m.held(a.U32(unix.NFTA_BYTEORDER_SREG)).isLength():
		m.load(a.U32(unix.NFTA_BYTEORDER_DREG), content{from: metaData, key: unix.NFT_META_LEN}, 4)
	case e.Name == "exthdr" && writesMSS(a):
		m.mss(m.held(a.U32(unix.NFTA_EXTHDR_SREG)))
	default:
		m.expression(e.Name)
	}
}

// writesMSS: the maximum segment size follows kind and length of the option (RFC 9293,
// section 3.2). The kernel only lowers it (nft_exthdr_tcp_set_eval).
func writesMSS(a netlink.Attrs) bool {
	const maxSegment = 2 // TCPOPT_MAXSEG
	return a.Has(unix.NFTA_EXTHDR_SREG) && a.U32(unix.NFTA_EXTHDR_OP) == unix.NFT_EXTHDR_OP_TCPOPT &&
		bytes.Equal(a.Get(unix.NFTA_EXTHDR_TYPE), []byte{maxSegment}) &&
		a.U32(unix.NFTA_EXTHDR_OFFSET) == 2 && a.U32(unix.NFTA_EXTHDR_LEN) == 2
}

// mss notes the limit.
func (m *machine) mss(c content) {
	t := &m.rule.Target
	switch {
	case c.from == routeMSS:
		t.does(MSS)
		t.Clamp, t.Name = true, "tcp option maxseg size set rt mtu"
	case c.from == constant && port(c.data) != 0:
		t.does(MSS)
		t.Bytes = port(c.data)
		t.Name = fmt.Sprintf("tcp option maxseg size set %d", t.Bytes)
	default:
		m.unknown("exthdr")
	}
}

// isFlags: TCP's flags, of which a mask keeps some.
func (c content) isFlags() bool {
	return c.from == payload && c.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && c.offset == 13 && c.length == 1 && len(c.mask) == 1
}

// TCP's flags as in the header.
const (
	tcpSYN = 0x02
	tcpRST = 0x04
)

// isSYN matches the SYNs of both hosts: tcp flags & (syn|rst) == syn, or tcp flags syn.
func isSYN(mask byte, op uint32, data []byte) bool {
	if len(data) != 1 {
		return false
	}
	is, not := op == unix.NFT_CMP_EQ, op == unix.NFT_CMP_NEQ
	return is && (mask == tcpSYN|tcpRST || mask == tcpSYN) && data[0] == tcpSYN || not && mask == tcpSYN && data[0] == 0
}
