package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// ConnBits are what rules can ask of a packet's connection: its state by NF_CT_STATE_BIT, and
// how it is translated.
type ConnBits uint32

// The states, of which a packet has one, and the translations (IPS_SRC_NAT, IPS_DST_NAT).
const (
	ConnInvalid     ConnBits = 1 << 0
	ConnEstablished ConnBits = 1 << 1
	ConnRelated     ConnBits = 1 << 2
	ConnNew         ConnBits = 1 << 3
	ConnUntracked   ConnBits = 1 << 6

	statusShift          = 8
	ConnSNAT    ConnBits = 1 << (4 + statusShift)
	ConnDNAT    ConnBits = 1 << (5 + statusShift)
)

// ConnCondition is met by a connection with one of these bits, or with none of them.
type ConnCondition struct {
	Any ConnBits
	Not bool
}

func (c ConnCondition) met(b ConnBits) bool { return (b&c.Any != 0) != c.Not }

// connIs is a comparison of the connection's state or status, of which a mask may have left a
// part.
func (m *Match) connIs(c content, op uint32, data []byte) {
	if len(data) != 4 || op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ {
		m.unknown("")
		return
	}
	shift := 0
	if c.from == connStatus {
		shift = statusShift
	}
	value, differs := ConnBits(binary.NativeEndian.Uint32(data)), op == unix.NFT_CMP_NEQ
	switch {
	case len(c.mask) == 4 && value == 0:
		m.Conn = append(m.Conn, ConnCondition{ConnBits(binary.NativeEndian.Uint32(c.mask)) << shift, !differs})
	case c.mask == nil && c.from == connState, value != 0 && value&(value-1) == 0 && bytes.Equal(c.mask, data):
		m.Conn = append(m.Conn, ConnCondition{value << shift, differs})
	default:
		m.unknown("")
	}
}

// FlagCondition is met by TCP segments of which the flags in Mask are those in Set, or, with Not,
// are others.
type FlagCondition struct {
	Mask, Set byte
	Not       bool
}

func (c FlagCondition) judge(p *Packet) answer {
	if p.Flags == 0 {
		return maybe
	}
	return asked(p.Flags&c.Mask == c.Set, c.Not)
}

// String is the condition in the words of nftables.
func (c FlagCondition) String() string {
	op := map[bool]string{false: "==", true: "!="}[c.Not]
	return "tcp flags & (" + flagNames(c.Mask, "|", "0") + ") " + op + " " + flagNames(c.Set, "|", "0")
}

// flagNames lists TCP flags by their bits (RFC 9293, section 3.1).
func flagNames(flags byte, between, none string) string {
	var names []string
	for i, name := range []string{"fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"} {
		if flags>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return cmp.Or(strings.Join(names, between), none)
}

// SetCondition asks whether fields of a packet, one after the other, are an element of a set.
type SetCondition struct {
	fields   []content
	elements []interval
	links    map[uint32]string
	family   string
	not      bool
}

// verdictMap decides by the element that a packet is.
type verdictMap struct{ SetCondition }

// membership is the condition that registers, from one on, are an element of a set; false if
// that cannot be decided.
func (m *machine) membership(set string, from uint32) (s SetCondition, known bool) {
	elements, known := m.sets[set]
	if !known {
		return s, false
	}
	s = SetCondition{elements: elements, links: m.links, family: m.family}
	for at, size := 0, m.keySize(elements); at < size; {
		c := m.regs[from+uint32(at/4)]
		if c.size() == 0 || c.from == constant {
			return s, false
		}
		s.fields = append(s.fields, c)
		at += (c.size() + 3) &^ 3
	}
	return s, true
}

// keySize is the length of the keys of a set.
func (m *machine) keySize(elements []interval) int {
	if len(elements) == 0 {
		return 0
	}
	return len(elements[0].first)
}

// Packet is one that rules are asked about. What has its zero value is not known: an address that
// is not valid (of the other one's family), a port that is 0, an interface without a name.
type Packet struct {
	// Its Mark is not used: marks are what the rules set.
	nat.Packet
	Conn ConnBits
	// V6 is its version where it has no address.
	V6 bool
	// Flags are those of TCP.
	Flags byte
	// ICMP is true where Type and Code of a message are known.
	ICMP       bool
	Type, Code uint8
	// Reply is true of answers.
	Reply bool
	// First is the packet before its destination is translated; nil where it is not.
	First *nat.Packet
	// marks are of the packet and of its connection.
	marks [2]marks
}

// Answer returns an answer to the packet, whose connection has the mark that rules have given it.
func (p *Packet) Answer(answer Packet) *Packet {
	answer.Reply, answer.marks[1] = true, p.marks[1]
	return &answer
}

// Next returns a later packet of the connection, of the same direction.
func (p *Packet) Next(flags byte) *Packet {
	next := *p
	next.marks[0], next.Flags = marks{}, flags
	next.Conn = p.Conn&^(ConnNew|ConnRelated) | ConnEstablished
	return &next
}

func (p *Packet) isIPv4() bool {
	return p.Dst.Is4() || !p.Dst.IsValid() && (p.Src.Is4() || !p.Src.IsValid() && !p.V6)
}

// knows reports whether it is known what a condition asks for; a condition on all addresses of the
// family needs no knowledge.
func (p *Packet) knows(c nat.Condition) bool {
	switch c {
	case nat.From:
		return p.Src.IsValid()
	case nat.To:
		return p.Dst.IsValid()
	case nat.SourcePorts:
		return p.SrcPort != 0
	case nat.DestPorts:
		return p.DstPort != 0
	case nat.In:
		return p.In != ""
	case nat.Out:
		return p.Out != ""
	}
	return true
}

// answer is whether a packet meets a match, as far as that is known.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// Doubt is why it is not certain what becomes of a packet.
type Doubt uint8

// DoubtPart: packets of the same connection meet the conditions differently. DoubtPacket: more would have
// to be known of the packet, or of the rule.
const (
	DoubtPart Doubt = 1 << iota
	DoubtPacket
)

// judge reports whether a packet meets all conditions, and why that is not certain.
func (m *Match) judge(p *Packet) (sure answer, why Doubt) {
	if m.Protocol != 0 && m.Protocol != p.Protocol { // most of the rules of a long list
		return no, 0
	}
	if bits := m.Family(); bits != 0 && (bits == 32) != p.isIPv4() || m.SYN && (p.Protocol != unix.IPPROTO_TCP || p.Flags != 0 && p.Flags&(tcpSYN|tcpRST) != tcpSYN) {
		return no, 0
	}
	for _, c := range m.Misses(&p.Packet) {
		switch {
		case p.knows(c):
			return no, 0
		case c == nat.From && !m.Source().IsValid(), c == nat.To && !m.Dest().IsValid():
			continue // all of the family
		}
		why = DoubtPacket
	}
	for _, c := range m.Conn {
		if !c.met(p.Conn) {
			return no, 0
		}
	}
	if m.Opaque || m.SYN && p.Flags == 0 || m.exceptsUnknown(p) {
		why |= DoubtPacket
	}
	if m.Part {
		why |= DoubtPart
	}
	switch m.asked(p) {
	case no:
		return no, 0
	case maybe:
		why |= DoubtPacket
	}
	if why != 0 {
		return maybe, why
	}
	return yes, 0
}

// exceptsUnknown reports whether an exception is about what is not known of a packet.
func (m *Match) exceptsUnknown(p *Packet) bool {
	return len(m.NotFrom) > 0 && !p.knows(nat.From) || len(m.NotTo) > 0 && !p.knows(nat.To) ||
		len(m.NotIn) > 0 && !p.knows(nat.In) || len(m.NotOut) > 0 && !p.knows(nat.Out)
}

// asked reports whether a packet meets the conditions that only Judge knows.
func (m *Match) asked(p *Packet) answer {
	sure := yes
	for _, c := range m.Flags {
		sure = min(sure, c.judge(p))
	}
	for _, c := range m.Conditions {
		sure = min(sure, c.judge(p))
	}
	for i := range m.Sets {
		_, in := m.Sets[i].find(p)
		if m.Sets[i].not {
			in = yes - in
		}
		sure = min(sure, in)
	}
	return sure
}

// names reports whether a match is about where packets come from.
func (m *Match) names() bool {
	return m.Opaque || m.Source().IsValid() || len(m.In)+len(m.NotIn)+len(m.NotFrom) > 0 ||
		slices.ContainsFunc(m.Sets, (SetCondition).names)
}

// names reports whether a field is where packets come from.
func (s SetCondition) names() bool {
	return slices.ContainsFunc(s.fields, func(c content) bool {
		source := map[uint32]uint32{4: 12, 16: 8}[c.length]
		return c.from == metaData && (c.key == unix.NFT_META_IIFNAME || c.key == unix.NFT_META_IIF) ||
			c.from == payload && c.base == unix.NFT_PAYLOAD_NETWORK_HEADER && source != 0 && c.offset == source
	})
}

// find returns the element that a packet is; maybe where its fields are not known.
func (s *SetCondition) find(p *Packet) (*interval, answer) {
	var key []byte
	var sizes []int
	for _, c := range s.fields {
		value, known := s.value(c, p)
		if !known {
			return nil, maybe
		}
		key, sizes = append(key, value...), append(sizes, len(value))
	}
	i := slices.IndexFunc(s.elements, func(e interval) bool { return e.has(key, sizes) })
	if i < 0 {
		return nil, no
	}
	return &s.elements[i], yes
}

// has reports whether each field of a key is in the interval.
func (e *interval) has(key []byte, sizes []int) bool {
	if len(key) != len(e.first) || len(key) != len(e.last) {
		return false
	}
	at := 0
	for _, n := range sizes {
		if bytes.Compare(key[at:at+n], e.first[at:at+n]) < 0 || bytes.Compare(key[at:at+n], e.last[at:at+n]) > 0 {
			return false
		}
		at += n
	}
	return true
}

// value is what a register holds of a packet, padded to whole registers as in keys.
func (s *SetCondition) value(c content, p *Packet) (b []byte, known bool) {
	switch {
	case c.from == connMark && p.marks[1].unknown == 0:
		b = binary.NativeEndian.AppendUint32(nil, p.marks[1].value)
	case c.from == metaData && c.key == unix.NFT_META_MARK && p.marks[0].unknown == 0:
		b = binary.NativeEndian.AppendUint32(nil, p.marks[0].value)
	case c.from == connState:
		b = binary.NativeEndian.AppendUint32(nil, uint32(p.Conn&(1<<statusShift-1)))
	case c.from == metaData:
		b = s.meta(c.key, p)
	case c.from == payload && c.base == unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		b = portIn(c, p)
	case c.from == payload && c.base == unix.NFT_PAYLOAD_NETWORK_HEADER:
		b = network(c, p)
	}
	if b == nil || len(c.mask) > 0 && len(c.mask) != len(b) {
		return nil, false
	}
	for i := range c.mask {
		b[i] &= c.mask[i]
	}
	if len(s.fields) > 1 {
		b = append(b, make([]byte, -len(b)&3)...)
	}
	return b, true
}

func (s *SetCondition) meta(key uint32, p *Packet) []byte {
	name := ""
	switch key {
	case unix.NFT_META_L4PROTO:
		return []byte{p.Protocol}
	case unix.NFT_META_NFPROTO:
		if p.isIPv4() {
			return []byte{unix.NFPROTO_IPV4}
		}
		return []byte{unix.NFPROTO_IPV6}
	case unix.NFT_META_IIFNAME, unix.NFT_META_IIF:
		name = p.In
	case unix.NFT_META_OIFNAME, unix.NFT_META_OIF:
		name = p.Out
	}
	if name == "" {
		return nil
	}
	if key == unix.NFT_META_IIFNAME || key == unix.NFT_META_OIFNAME {
		return append([]byte(name), make([]byte, max(0, unix.IFNAMSIZ-len(name)))...)
	}
	for index, link := range s.links {
		if link == name {
			return binary.NativeEndian.AppendUint32(nil, index)
		}
	}
	return nil
}

// portIn is one of a packet's ports, or of an ICMP message its type or code; nil where that is not known.
func portIn(c content, p *Packet) []byte {
	if p.ICMP && c.length == 1 && nat.IsICMP(p.Protocol) {
		return [][]byte{{p.Type}, {p.Code}, nil}[min(c.offset, 2)]
	}
	port := uint16(0)
	switch {
	case c.length != 2 || !nat.HasPorts(p.Protocol):
	case c.offset == 0:
		port = p.SrcPort
	case c.offset == 2:
		port = p.DstPort
	}
	if port == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint16(nil, port)
}

// network is a field of the IP header that rules look up: an address, or the protocol.
func network(c content, p *Packet) []byte {
	type field struct{ offset, length uint32 }
	source, dest, protocol := field{8, 16}, field{24, 16}, field{6, 1}
	if p.isIPv4() {
		source, dest, protocol = field{12, 4}, field{16, 4}, field{9, 1}
	}
	switch at := (field{c.offset, c.length}); {
	case at == source && p.Src.IsValid():
		return p.Src.AsSlice()
	case at == dest && p.Dst.IsValid():
		return p.Dst.AsSlice()
	case at == protocol:
		return []byte{p.Protocol}
	}
	return nil
}

// Place is where the way of a packet ends: a rule, or, without one, the policy of a chain.
type Place struct {
	Table *Table
	Chain *Chain
	Rule  *Rule
	// Doubt is why that is not certain of all packets of the kind; 0 where it is.
	Doubt Doubt
	// Named is true where the rule, or one that leads to it, is about where packets come from, Limits
	// where one of them, or one before that accepts, is about how many there are.
	Named, Limits bool
	// Limit is the rule before that accepts no more, if it is one; nil where the place itself limits.
	Limit *Place
	// Early is true where it is before the translation of destinations.
	Early bool
}

// Counted returns what the place counted so far; false if it does not count.
func (p Place) Counted() (packets uint64, ok bool) {
	if p.Rule == nil {
		return p.Chain.Packets, p.Chain.Counted
	}
	return p.Rule.Packets, p.Rule.Counted
}

// Text is the rule in the words of the program that keeps it, or the chain with its policy.
func (p Place) Text() string {
	command := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[p.Table.Family]
	text := p.Table.Family + " " + p.Table.Name + " " + p.Chain.Name + ": policy drop"
	switch {
	case p.Rule != nil:
		p.Table.describe(p.Chain, p.Rule)
		if text = p.Rule.Text; p.Rule.Target.Queued {
			text += " (no program reads the queue)"
		} else if p.Rule.Target.SetsHops {
			text += " (what is forwarded has no hop left)"
		}
	case p.Table.IsIptables():
		text = command + " -t " + p.Table.Name + " -P " + p.Chain.Name + " DROP"
	}
	// What is called iptables on a host is often the variant that does not see this table.
	if rest, ok := strings.CutPrefix(text, command+" "); ok && p.Table.Source == "iptables-legacy" {
		text = command + "-legacy " + rest
	}
	return text
}

// Owner returns the program that keeps the rule, or the whole table.
func (p Place) Owner() Owner {
	if p.Rule == nil {
		return p.Table.owner()
	}
	return p.Table.OwnerOf(p.Chain, p.Rule)
}

// Judgement is what rules do to a packet, as far as that is known.
type Judgement struct {
	// Drops are where they drop it, or may; it passes if there are none.
	Drops []Place
	// Passes is true if it may pass. It is certain that it is dropped if that is false.
	Passes bool
	// Exempts is the rule that surely keeps the tracker from it; nil if there is none.
	Exempts *Place
}

// Judge takes a packet through the chains of hooks that do not translate, in the order of the hooks and of
// the chains' priorities. It keeps in the packet what the rules mark.
func Judge(tables []*Table, p *Packet, hooks ...string) Judgement {
	all := Judgement{Passes: true}
	for _, hook := range hooks {
		for _, c := range basesAt(tables, hook, p) {
			one := p
			if strings.HasPrefix(hook, BridgeHook) { // its ports are not known
				ports := *p
				ports.In, ports.Out = "", ""
				one = &ports
			}
			if p.First != nil && beforeDNAT(hook, c.Priority) {
				first := *one
				first.Packet, first.Conn = *p.First, p.Conn&^ConnDNAT
				one = &first
			}
			if beforeConntrack(hook, c.Priority) {
				first := *one
				first.Conn = ConnInvalid
				one = &first
			}
			j := &judge{table: c.Table, hook: hook, packet: one, left: map[*Chain]bool{}}
			if j.chain(c.Chain, way{}) {
				j.decide(c.Chain, nil, map[string]Kind{"drop": Drop}[c.Policy], way{})
			}
			p.marks = one.marks
			for i := range j.drops {
				j.drops[i].Early = beforeDNAT(hook, c.Priority)
			}
			all.Drops = append(all.Drops, j.drops...)
			if all.Exempts == nil && beforeConntrack(hook, c.Priority) {
				all.Exempts = j.exempts
			}
			if !j.passes {
				all.Passes = false
				return all
			}
		}
	}
	return all
}

// Costs are what Judge asks at most of each hook, in rules; ten elements of a set count as one.
func Costs(tables []*Table) map[string]int {
	all := map[string]int{}
	for _, t := range tables {
		own, others := map[string]int{}, 0
		for _, c := range t.Chains {
			n := 0
			for _, r := range c.Rules {
				n += r.cost()
			}
			switch {
			case c.Hook == "":
				others += n
			case c.Type != "nat":
				own[c.Hook] += n
			}
		}
		for hook, n := range own {
			all[hook] += n + others
		}
	}
	return all
}

func (r *Rule) cost() int {
	elements := 0
	for i := range r.Match.Sets {
		elements += len(r.Match.Sets[i].elements)
	}
	if r.Target.verdicts != nil {
		elements += len(r.Target.verdicts.elements)
	}
	return 1 + elements/10
}

// atHook is a base chain with its table.
type atHook struct {
	*Table
	*Chain
}

// basesAt are the chains that a packet comes to at a hook.
func basesAt(tables []*Table, hook string, p *Packet) (chains []atHook) {
	for _, t := range tables {
		if version := t.version(); version != 0 && (version == 4) != p.isIPv4() {
			continue
		}
		for _, c := range t.Chains {
			on := c.Devices == nil || slices.Contains(c.Devices, map[bool]string{true: p.Out, false: p.In}[hook == HookEgress])
			if c.Hook == hook && c.Type != "nat" && on {
				chains = append(chains, atHook{t, c})
			}
		}
	}
	slices.SortStableFunc(chains, func(a, b atHook) int { return cmp.Compare(a.Priority, b.Priority) })
	return chains
}

// beforeDNAT reports whether a chain sees the destination that clients name (NF_IP_PRI_NAT_DST).
func beforeDNAT(hook string, priority int32) bool {
	return hook == HookIngress || (hook == "prerouting" || hook == "output") && priority <= -100 || hook == BridgeHook+"prerouting"
}

// beforeConntrack reports whether packets have no connection yet in a chain, which rules call INVALID
// (nft_ct_get_eval, conntrack_mt).
func beforeConntrack(hook string, priority int32) bool {
	return hook == HookIngress || (hook == "prerouting" || hook == "output" || hook == BridgeHook+"prerouting") && priority < conntrackPriority
}

// judge takes a packet through the chains of one table.
type judge struct {
	table  *Table
	hook   string
	packet *Packet
	drops  []Place
	passes bool
	// doubt is why not all of the packets come to the rules that follow, limit the first rule that takes
	// some out before for being few.
	doubt Doubt
	limit *Place
	// exempts is the first rule that surely keeps the tracker from the packet.
	exempts *Place
	// left has whether the packet may leave a chain by its end, of those that it came to.
	left map[*Chain]bool
}

// way is what led to a rule: why that is not certain, and whether it depends on where the packet is from, or
// on how many there are.
type way struct {
	doubt         Doubt
	named, limits bool
}

// chain reports whether the packet may come to the end of a chain. What becomes of it there is
// the same on every way, so that each chain is asked once.
func (j *judge) chain(c *Chain, by way) bool {
	if c == nil {
		return true
	}
	if left, asked := j.left[c]; asked {
		return left
	}
	j.left[c] = false
	returns := false
	for _, r := range c.Rules {
		met, why := r.Match.judge(j.packet)
		if met == no {
			continue
		}
		for _, s := range r.Marks {
			j.packet.mark(s, met)
		}
		goes, comes := j.rule(c, r, way{by.doubt | why, by.named || r.Match.names(), by.limits || r.Match.Limits})
		if returns = returns || comes; met == yes && !goes {
			j.left[c] = returns
			return returns
		}
	}
	j.left[c] = true
	return true
}

// rule does what a rule does: the packet may go on with the next one, or leave its chain for
// the one that led to it.
func (j *judge) rule(c *Chain, r *Rule, by way) (goes, comes bool) {
	t := &r.Target
	switch kind := t.Kind; {
	case t.Queued:
		return j.queue(c, r, by)
	case t.SetsHops && t.Hops <= 1 && j.hook == "prerouting" && !j.packet.ToLocal: // ip_forward drops it
		j.decide(c, r, Drop, by)
		return false, false
	case kind == Accept || kind == Drop:
		j.decide(c, r, kind, by)
		return false, false
	case kind == Notrack && j.exempts == nil && by.doubt|j.doubt == 0:
		j.exempts = &Place{Table: j.table, Chain: c, Rule: r}
	}
	switch t.Kind {
	case Return:
		j.takesOut(c, r, by)
		return false, true
	case Jump, Goto:
		for _, name := range t.Chains {
			back := j.chain(j.table.Find(name), by)
			goes = goes || back
		}
		if t.Kind == Goto {
			return false, goes
		}
		return goes, false
	case Ends:
		return j.verdict(c, r, by)
	}
	return true, false
}

// queue drops where no program decides; what one decides is not known.
func (j *judge) queue(c *Chain, r *Rule, by way) (goes, comes bool) {
	switch {
	case j.table.Readers == nil || r.Target.read(j.table.Readers):
		by.doubt |= DoubtPacket
		j.decide(c, r, Accept, by)
	case r.Target.Bypass: // the rule is passed over (nf_reinject, NF_VERDICT_FLAG_QUEUE_BYPASS)
		j.decide(c, r, Accept, by)
	default:
		j.decide(c, r, Drop, by)
	}
	return false, false
}

// read reports whether a program reads one of the queues.
func (t *Target) read(readers map[uint16]bool) bool {
	for n := int(t.Queue.First); n <= int(t.Queue.Last); n++ {
		if readers[uint16(n)] {
			return true
		}
	}
	return false
}

// mostMapped bounds the places of drops by the elements of a map.
const mostMapped = 64

// verdict decides by the element of a verdict map that the packet is; by any where that is not
// known.
func (j *judge) verdict(c *Chain, r *Rule, by way) (goes, comes bool) {
	if r.Target.verdicts == nil {
		by.doubt |= DoubtPacket
		for _, name := range r.Target.Chains {
			j.chain(j.table.Find(name), by)
		}
		j.decide(c, r, Drop, by)
		j.decide(c, r, Accept, by)
		return true, true
	}
	all := r.Target.verdicts.elements
	e, in := r.Target.verdicts.find(j.packet)
	switch in {
	case no:
		return true, false
	case yes:
		all = []interval{*e}
	default:
		goes = true
		by.doubt |= DoubtPacket
	}
	for i := range all {
		one := *r
		one.Target = Target{Kind: Pass}
		one.Target.decide(all[i].value)
		if in == maybe && one.Target.Kind == Drop && len(j.drops) > mostMapped {
			continue // it may be dropped here, as is known
		}
		on, back := j.rule(c, &one, by)
		goes, comes = goes || on, comes || back
	}
	return goes, comes
}

// decide ends the packet's way, or one of those that it may take.
func (j *judge) decide(c *Chain, r *Rule, k Kind, by way) {
	if k != Drop {
		j.passes = true
		j.takesOut(c, r, by)
		return
	}
	p := Place{Table: j.table, Chain: c, Rule: r, Doubt: by.doubt | j.doubt, Named: by.named, Limits: by.limits || j.limit != nil}
	if !by.limits {
		p.Limit = j.limit
	}
	j.drops = append(j.drops, p)
}

// takesOut notes that a rule may take packets out before those that follow.
func (j *judge) takesOut(c *Chain, r *Rule, by way) {
	j.doubt |= by.doubt
	if by.limits && j.limit == nil {
		j.limit = &Place{Table: j.table, Chain: c, Rule: r}
	}
}
