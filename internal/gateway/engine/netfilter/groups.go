package netfilter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
	"iter"
)

// layout lists the keys that the entries of a list become: the fields of a packet, in their
// order. The address in principal distinguishes entries.
type layout struct {
	fields           []field
	principal, ports field
}

var (
	bySource      = layout{[]field{sourceAddress, destinationAddress, protocol, destinationPort}, sourceAddress, destinationPort}
	byOriginal    = layout{[]field{originalAddress, originalPort, sourceAddress}, originalAddress, originalPort}
	byDestination = layout{[]field{sourceAddress, destinationAddress, protocol, destinationPort}, destinationAddress, destinationPort}
	untrackedTo   = layout{[]field{destinationAddress, protocol, destinationPort}, destinationAddress, destinationPort}
	untrackedFrom = layout{[]field{sourceAddress, protocol, sourcePort}, sourceAddress, sourcePort}
)

// translations writes what becomes of connections of one family: their sources, their
// destinations for packets that come in and for those of the gateway's own programs, and
// what the tracker leaves alone. Of the latter all do the same, so that their order means
// nothing.
func (t *table) translations(p *gateway.Plan, f *family) {
	var in, local, out groups
	for i := range p.Destinations {
		d := &p.Destinations[i]
		if !d.IsOwn() {
			in.collect(d, f, byDestination)
		}
		if d.Local {
			own := *d
			own.In, own.NotIn = nil, nil // the output hook has no such condition
			local.collect(&own, f, byDestination)
		}
	}
	for i := range p.Sources {
		s, keys := &p.Sources[i], bySource
		if s.IsHairpin() {
			keys = byOriginal
		}
		out.collect(s, f, keys)
	}
	t.emitAll("prerouting", "destination"+f.suffix, in)
	t.emitAll("output", "local"+f.suffix, local)
	t.emitAll("postrouting", "source"+f.suffix, out)
}

func (t *table) untracked(p *gateway.Plan, f *family) {
	var to, from groups
	for i := range p.Untracked {
		back := p.Untracked[i]
		to.collect(&back, f, untrackedTo)
		back.From, back.To = back.To, nil
		from.collect(&back, f, untrackedFrom)
	}
	for _, hook := range []string{"prerouting", "output"} {
		t.emitAll("raw-"+hook, fmt.Sprintf("untracked%s-%s-to", f.suffix, hook), to)
		t.emitAll("raw-"+hook, fmt.Sprintf("untracked%s-%s-from", f.suffix, hook), from)
	}
}

// emitAll names the groups' maps and writes them. Several of neighbouring addresses have a chain of their own, to which
// one rule leads: packets of all other addresses pass that one alone.
func (t *table) emitAll(chain, name string, all groups) {
	for i, g := range all.all {
		g.name = fmt.Sprintf("%s-%d", name, i+1)
	}
	for i := 0; i < len(all.all); {
		n, shared := neighbours(all.all[i:])
		to := chain
		if n >= fewestApart {
			to = fmt.Sprintf("%s-%d-to-%d", name, i+1, i+n)
			t.lead(chain, to, all.all[i], shared)
		}
		for _, g := range all.all[i : i+n] {
			t.emit(to, g)
		}
		i += n
	}
}

// fewestApart is how many groups stand in a chain of their own: passing fewer costs little more than the rule that leads
// there.
const fewestApart = 5

// leastShared is how many bits of an address are enough to tell inside from outside.
const leastShared = 8

// neighbours are the first of some groups whose addresses begin with the same bits: the fewest that are worth a chain by
// at least leastShared, and more as long as they share no fewer.
func neighbours(all []*group) (n int, shared netip.Prefix) {
	for n, g := range all {
		within := g.within()
		if n > 0 && within.IsValid() {
			within = common(shared, within)
		}
		if !within.IsValid() || within.Bits() < leastShared || g.principalField != all[0].principalField || n >= fewestApart && within != shared {
			return max(n, 1), shared
		}
		shared = within
	}
	return len(all), shared
}

// within is the shortest prefix that all packets of a group have their address in; invalid where packets of any may be.
func (g *group) within() (all netip.Prefix) {
	if g.hairpin || g.bits <= 0 {
		return netip.Prefix{}
	}
	for p := range g.principal {
		if all.IsValid() {
			p = common(all, p)
		}
		all = p
	}
	return all
}

// common is the longest prefix that both are in.
func common(a, b netip.Prefix) netip.Prefix {
	for bits := min(a.Bits(), b.Bits()); ; bits-- {
		if p := netip.PrefixFrom(a.Addr(), bits).Masked(); p.Contains(b.Addr()) {
			return p
		}
	}
}

// lead has packets of a prefix pass the chain of groups like g.
func (t *table) lead(from, to string, g *group, shared netip.Prefix) {
	t.branches = append(t.branches, chain{name: to})
	exprs := append(g.f.is(), part{g.principalField, shared.Bits()}.match(g.f, shared.Addr().AsSlice())...)
	t.rules = append(t.rules, rule{chain: from, exprs: append(exprs, &expr.Verdict{Kind: expr.VerdictJump, Chain: to}), comment: "rules for " + shared.String()})
}

// familyFor is that of an entry's addresses, or of the list that its rule stands in.
func familyFor(e *gateway.Entry) *family {
	if cmp.Or(e.Family(), e.Rule.BitLen()) == 128 {
		return ip6
	}
	return ip4
}

// collect adds a key for each prefix of From and each port, if the entry is of the family.
func (gs *groups) collect(s *gateway.Entry, f *family, keys layout) {
	if familyFor(s) != f {
		return
	}
	ports := s.Ports
	if s.IsHairpin() {
		ports = s.OriginalPorts
	}
	extras := extrasOf(&s.Match)
	for _, from := range f.orAll(s.From) {
		for _, to := range f.orAll(s.To) {
			for port, wide := range expand(ports, s.Action.Shifts()) {
				for _, extra := range extras {
					g := gs.groupOf(s, f)
					g.principalField, g.shape.ports, g.widePorts = keys.principal, wide, keys.ports
					e := entry{rule: s.Rule, to: targetOf(s, port), log: s.Log}
					g.toPort = s.Action.Kind == nat.DNAT && (e.to.firstPort > 0 || len(g.pool) > 0 && g.pool[0].firstPort > 0)
					g.keepTo = s.Action.Kind == nat.DNAT && len(g.pool) > 0 && !g.toPort && len(ports) > 0
					principal := g.addKey(s, &e, keys, from, to, port)
					g.addExtra(&e, extra)
					gs.add(g, principal, e)
				}
			}
		}
	}
}

// extra is a condition that stands in the key besides addresses and ports; its zero value is none.
type extra struct {
	part  part
	value []byte
	// rest clears the condition, which the key has.
	rest func(*nat.Match)
}

// extrasOf is the first of a match's conditions on single values that can be looked up, each value one.
func extrasOf(m *nat.Match) (all []extra) {
	ids := func(of field, list []nat.IDs, rest func(*nat.Match)) {
		for _, i := range list {
			if i.First != i.Last { // a range is none
				all = nil
				return
			}
			all = append(all, extra{part{field: of}, hostUint32(i.First), rest})
		}
	}
	if m.Mark.Mask != 0 {
		return []extra{{part{field: markField, bits: int(m.Mark.Mask)}, hostUint32(m.Mark.Value & m.Mark.Mask), func(m *nat.Match) { m.Mark = nat.Mark{} }}}
	}
	if ids(userField, m.Users, func(m *nat.Match) { m.Users = nil }); len(all) > 0 {
		return all
	}
	if ids(groupField, m.Groups, func(m *nat.Match) { m.Groups = nil }); len(all) > 0 {
		return all
	}
	return []extra{{}}
}

func (g *group) addExtra(e *entry, x extra) {
	if x.rest != nil {
		g.addPart(e, x.part, x.value)
		x.rest(&g.other)
	}
	g.shape.other = g.other.String()
}

// orAll are the prefixes, or that of all addresses where there are none.
func (f *family) orAll(prefixes []netip.Prefix) []netip.Prefix {
	if len(prefixes) == 0 {
		return []netip.Prefix{nat.Anywhere(f.bits())}
	}
	return prefixes
}

// addKey composes the key, and returns the prefix that distinguishes entries.
func (g *group) addKey(s *gateway.Entry, e *entry, keys layout, from, to netip.Prefix, port uint16) (principal netip.Prefix) {
	for _, name := range keys.fields {
		address := netip.Prefix{}
		switch name {
		case sourceAddress:
			address = from
		case destinationAddress:
			address = to
		case originalAddress:
			address = s.Original[0]
		case protocol:
			if s.Protocol != 0 && !s.IsHairpin() {
				g.addPart(e, part{field: protocol}, []byte{s.Protocol})
			}
		default:
			if port > 0 {
				g.addPart(e, part{field: name}, portBytes(port))
			}
		}
		if address.Bits() > 0 {
			g.addPart(e, part{name, address.Bits()}, address.Masked().Addr().AsSlice())
		}
		if name == keys.principal {
			principal = address
		}
	}
	return principal
}

func (g *group) addPart(e *entry, p part, value []byte) {
	e.values[g.keys] = value
	g.key[g.keys] = p
	g.keys++
}

// groupOf is a group of the entry's shape, without a key, until the next one.
func (gs *groups) groupOf(s *gateway.Entry, f *family) *group {
	a, g := &s.Action, &gs.scratch
	*g = group{other: s.Match, pool: poolOf(a)}
	g.f, g.hairpin = f, s.IsHairpin()
	g.other.To, g.other.From, g.other.Protocol, g.other.Ports, g.other.Original, g.other.OriginalPorts = nil, nil, 0, nil, nil, nil
	g.action = action{kind: a.Kind, zone: a.Zone, prefix: a.Prefix.IsValid(), pairs: a.Pairs != "", ports: a.Ports, random: a.Random, keep: a.Keep, persistent: a.Persistent, balance: a.Balance}
	if len(g.pool) > 0 {
		g.action.pool = fmt.Sprint(g.pool)
	}
	if g.givesAddresses() && g.action.ports != (nat.Ports{}) { // the map has the ports; any will do for the shape
		g.action.ports = nat.Ports{First: 1, Last: 65535}
	}
	if len(a.Backends) > 1 {
		g.does = a
	}
	if a.Balance == nat.BalanceRoundRobin || a.Check != nil {
		g.turns = s.Rule
	}
	if g.hairpin {
		g.proto = s.Protocol
	}
	return g
}

// targetOf is what addresses and ports become. The port of a destination that stays is
// named as well, so that rules with and without one share a map.
func targetOf(s *gateway.Entry, port uint16) target {
	a := &s.Action
	t := target{firstPort: a.Ports.First, lastPort: a.Ports.Last}
	switch {
	case a.Prefix.IsValid():
		t.first, t.last, t.prefix = a.Prefix.Masked().Addr(), nat.LastAddr(a.Prefix), a.Prefix
	case len(a.Backends) == 1:
		b := a.Backends[0]
		t.first, t.last, t.firstPort = b.Address, b.Address, b.PortOf(port, s.Ports)
		t.lastPort = t.firstPort
	case len(a.To) == 1:
		t.first, t.last = a.To[0].First, a.To[0].Last
	}
	return t
}

// taken is how many ports a range may have to become that many entries.
const taken = 256

// expand takes ranges of ports apart, as one entry for each port costs a packet nothing.
// A wide one stays a range, with port 0, unless each of its ports becomes another; no port at all is one entry with
// port 0.
func expand(all []nat.Ports, shifted bool) iter.Seq2[uint16, nat.Ports] {
	return func(yield func(uint16, nat.Ports) bool) {
		if len(all) == 0 {
			yield(0, nat.Ports{})
			return
		}
		for _, p := range all {
			if p.Len() > taken && !shifted {
				if !yield(0, p) {
					return
				}
				continue
			}
			for n := int(p.First); n <= int(p.Last); n++ {
				if !yield(uint16(n), nat.Ports{}) {
					return
				}
			}
		}
	}
}

// field is something of a packet that keys are made of.
type field uint8

const (
	destinationPort field = iota
	sourceAddress
	destinationAddress
	protocol
	sourcePort
	originalAddress // the destination before it was translated
	originalPort
	markField
	userField
	groupField
)

// mostParts is how many parts a key has: addresses, protocol, port, and one of what extrasOf finds.
const mostParts = 5

// part is one field of a key; bits is how much of an address counts, of a mark its mask.
type part struct {
	field field
	bits  int
}

// shape is what rules have in common that become one rule of the table, which looks
// up in a map what differs. It is comparable: two rules of one shape share a map.
type shape struct {
	f    *family
	key  [mostParts]part // the first parts of it
	keys int
	// other are the conditions that are not in the key, as text; group has the values.
	other string
	// hairpin: what a Destination sent back inside. proto is its protocol.
	hairpin bool
	proto   byte
	// ports are a range of ports too wide to be taken apart, widePorts the field that
	// has them.
	ports     nat.Ports
	widePorts field
	// turns is the rule that gives each new connection the next of several destinations, or
	// checks them: its rule of the table counts them, and shares that with no other's.
	turns gateway.Ref
	action
}

// action is what is done to the packets, but for the addresses that a map can give.
type action struct {
	kind   nat.Kind
	zone   string // that a destination is in
	prefix bool   // one becomes another
	pairs  bool   // the pairs of a set, which other has, say what
	pool   string // what is chosen from, where that is several
	// balance is how one of several destinations is chosen.
	balance nat.Balance
	ports   nat.Ports
	random  nat.Random
	// keep gives the source port itself, keepTo that of the destination, persistent is NF_NAT_RANGE_PERSISTENT,
	// toPort that map data have a port.
	keep, keepTo, persistent, toPort bool
}

// entry is one key of a group and what it leads to.
type entry struct {
	values [mostParts][]byte // of the parts of the key
	to     target
	rule   gateway.Ref
	log    *gateway.Log
}

// target is what an address becomes: one of a range, with a port or one of a range.
type target struct {
	first, last         netip.Addr
	firstPort, lastPort uint16
	prefix              netip.Prefix // where it becomes one
}

// group are rules of one shape.
type group struct {
	shape
	name   string // of its map
	helper gateway.HelperService
	other  nat.Match
	pool   []choice
	// does is what chooses among several hosts; nil for other pools.
	does    *nat.Action
	entries []entry
	// differs are the parts of the key that entries have different values of, sought those that the map has.
	differs [mostParts]bool
	sought  []int // parts
	// seen are the keys; principal are the addresses, of length bits, that some entry has
	// in principalField.
	seen           map[string]struct{}
	principal      map[netip.Prefix]struct{}
	bits           int
	principalField field
}

// groups keep the order of rules: the first one that matches does. Most entries find the group of their shape: scratch is
// what they have until then.
type groups struct {
	all     []*group
	scratch group
}

// lookBack is how many groups are searched for one of an entry's shape.
const lookBack = 16

// add puts an entry into the last group of its shape, if no rule of a group after that
// one could match the same packets: those are to win. principal is the entry's
// address that decides this.
func (gs *groups) add(g *group, principal netip.Prefix, e entry) {
	for i := len(gs.all) - 1; i >= max(0, len(gs.all)-lookBack); i-- {
		old := gs.all[i]
		if old.shape == g.shape {
			old.put(principal, e)
			return
		}
		if old.mayMatch(g, principal) {
			break
		}
	}
	own := *g
	own.principal, own.seen = map[netip.Prefix]struct{}{}, map[string]struct{}{}
	own.bits = principal.Bits()
	gs.all = append(gs.all, &own)
	own.put(principal, e)
}

// put leaves out what an earlier entry has taken.
func (g *group) put(principal netip.Prefix, e entry) {
	key := make([]byte, 0, 96) // more than five values have
	for _, v := range e.values {
		key = append(append(key, byte(len(v))), v...)
	}
	if _, taken := g.seen[string(key)]; taken {
		return
	}
	g.seen[string(key)] = struct{}{}
	g.principal[principal.Masked()] = struct{}{}
	g.entries = append(g.entries, e)
	for i := range g.keys {
		g.differs[i] = g.differs[i] || !bytes.Equal(e.values[i], g.entries[0].values[i])
	}
}

// seek says which parts of the key the map is asked for, once all entries are there: those that they differ in. What all
// of them have the rule itself compares, which is faster, and spares packets of others the map. A port stands with its
// protocol. Sets of one or two bytes the kernel makes nft_bitmap, which counts nothing: these get the whole key.
func (g *group) seek() {
	g.sought = nil // a group may stand in several chains
	if len(g.entries) == 1 {
		return
	}
	size := uint32(0)
	for i, p := range g.parts() {
		if g.differs[i] || p.field == protocol && (g.differsIn(destinationPort) || g.differsIn(sourcePort)) {
			g.sought, size = append(g.sought, i), size+p.datatype(g.f).Bytes
		}
	}
	if size <= 2 {
		g.sought = nil
		for i := range g.parts() {
			g.sought = append(g.sought, i)
		}
	}
}

// differsIn reports whether entries have different values of a field.
func (g *group) differsIn(f field) bool {
	i := slices.IndexFunc(g.parts(), func(p part) bool { return p.field == f })
	return i >= 0 && g.differs[i]
}

// common are the conditions on what no map is asked for, as all entries have it.
func (g *group) common() (all []expression) {
	for i, p := range g.parts() {
		if !slices.Contains(g.sought, i) {
			all = append(all, p.match(g.f, g.entries[0].values[i])...)
		}
	}
	return all
}

// mayMatch is false where no packet that has an address in principal can match g. It
// may be true where none can either.
func (g *group) mayMatch(other *group, principal netip.Prefix) bool {
	if g.principalField != other.principalField || g.bits > principal.Bits() {
		return true
	}
	p, err := principal.Addr().Prefix(g.bits)
	if err != nil {
		return true
	}
	_, there := g.principal[p]
	return there
}

// again: these are connections that the same rule of the file has sent back inside, by a
// translation of their destination, which counts them.
func (g *group) again() bool {
	return slices.ContainsFunc(g.key[:g.keys], func(p part) bool { return p.field == originalAddress })
}

func (p part) datatype(f *family) nftables.SetDatatype {
	switch p.field {
	case protocol:
		return nftables.TypeInetProto
	case destinationPort, sourcePort, originalPort:
		return nftables.TypeInetService
	case markField:
		return nftables.TypeMark
	case userField:
		return nftables.TypeUID
	case groupField:
		return nftables.TypeGID
	}
	return f.address
}

// load puts the field into a register.
func (p part) load(f *family, register uint32) []expression {
	full := []expression{p.loadAll(f, register)}
	switch p.field {
	case sourceAddress, destinationAddress, originalAddress:
		if p.bits < f.bits() {
			full = append(full, f.masked(register, p.bits))
		}
	case markField:
		if p.bits != math.MaxUint32 {
			full = append(full, &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: hostUint32(uint32(p.bits)), Xor: make([]byte, 4)})
		}
	}
	return full
}

func (p part) loadAll(f *family, register uint32) expression {
	switch p.field {
	case sourceAddress:
		return payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), register)
	case destinationAddress:
		return payload(expr.PayloadBaseNetworkHeader, f.daddr, uint32(f.bytes), register)
	case protocol:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}
	case destinationPort:
		return payload(expr.PayloadBaseTransportHeader, 2, 2, register)
	case sourcePort:
		return payload(expr.PayloadBaseTransportHeader, 0, 2, register)
	case originalAddress:
		return original(f.originalDestination(), register)
	case markField:
		return &expr.Meta{Key: expr.MetaKeyMARK, Register: register}
	case userField:
		return &expr.Meta{Key: expr.MetaKeySKUID, Register: register}
	case groupField:
		return &expr.Meta{Key: expr.MetaKeySKGID, Register: register}
	default:
		return original(unix.NFT_CT_PROTO_DST, register)
	}
}

// originalDestination is a key that other than NFT_CT_DST works in tables of family
// inet (Linux 4.17).
func (f *family) originalDestination() uint32 {
	if f.v6 {
		return unix.NFT_CT_DST_IP6
	}
	return unix.NFT_CT_DST_IP
}

// original loads what the connection's first packet had (IP_CT_DIR_ORIGINAL).
// google/nftables does not send the direction with these keys.
func original(key, register uint32) expression {
	r := raw{name: "ct"}
	r.data.u32(unix.NFTA_CT_KEY, key)
	r.data.u32(unix.NFTA_CT_DREG, register)
	r.data.bytes(unix.NFTA_CT_DIRECTION, []byte{0})
	return r
}

// match compares the field with one value.
func (p part) match(f *family, value []byte) []expression {
	switch p.field {
	case sourceAddress, destinationAddress:
		a, _ := netip.AddrFromSlice(value)
		offset := f.saddr
		if p.field == destinationAddress {
			offset = f.daddr
		}
		return f.within(offset, netip.PrefixFrom(a, p.bits), expr.CmpOpEq)
	}
	return append(p.load(f, reg1), equal(reg1, value))
}

// poolSeed makes the choice the same after each apply: a source keeps its address.
const poolSeed = 0x6e61746b

// maxWeight bounds how finely ranges of a pool are weighed against each other.
const maxWeight = 1 << 16

// choice is one of several targets; weight is how often it is taken compared to others.
type choice struct {
	target
	weight uint32
}

// poolOf is what an action chooses from, each range as often as it has addresses; nothing
// where it gives one.
func poolOf(a *nat.Action) (all []choice) {
	if len(a.Backends) > 1 {
		for _, b := range a.Backends {
			all = append(all, choice{target{first: b.Address, firstPort: b.Port}, min(b.Share(), maxWeight)})
		}
	}
	if len(a.To) < 2 {
		return all
	}
	for i, w := range weights(a.To) {
		all = append(all, choice{target{first: a.To[i].First, last: a.To[i].Last}, w})
	}
	return all
}

// choose takes one of several targets by a hash of the source address, or each in its
// turn, and leaves its first and last address, or its address and port, in registers.
// Within a range the kernel chooses.
func (t *table) choose(g *group) []expression {
	switch {
	case len(g.pool) == 0:
		return nil
	case g.does != nil && (g.does.Check != nil || g.balance == nat.BalanceHash):
		places := uint32(g.does.Places())
		return append(g.number(places), t.placesOf(g).translate(reg1))
	}
	s := &set{key: nftables.TypeInteger, data: g.f.address, ranges: g.kind == nat.SNAT, flags: unix.NFT_SET_MAP, about: g.comment()}
	if g.toPort {
		s.data = concat(g.f.address, nftables.TypeInetService)
	}
	all := uint32(0)
	for _, c := range g.pool {
		all += c.weight
	}
	if all <= mostTurns { // the kernel finds a number faster than a range
		s.places = true
		for _, c := range g.pool {
			data := c.data(s, g.toPort)
			for range c.weight {
				s.elements = append(s.elements, element{key: binary.NativeEndian.AppendUint32(nil, uint32(len(s.elements))), data: data})
			}
		}
		return append(g.number(all), t.anonymous(s).translate(reg1))
	}
	s.flags |= unix.NFT_SET_INTERVAL
	at := uint32(0)
	for _, c := range g.pool {
		s.elements = append(s.elements, element{key: binary.BigEndian.AppendUint32(nil, at), data: c.data(s, g.toPort)})
		at += c.weight
	}
	s.elements = append(s.elements, element{key: binary.BigEndian.AppendUint32(nil, at), end: true})
	t.anonymous(s)
	return append(g.number(at), &expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 4, Size: 4}, s.translate(reg1))
}

// mostTurns is how many numbers a rule chooses from that has an element for each of them.
const mostTurns = 256

// number puts one of several numbers into a register, in the order of bytes of the host.
func (g *group) number(of uint32) []expression {
	if g.balance == nat.BalanceRoundRobin {
		return []expression{&expr.Numgen{Register: reg1, Modulus: of, Type: unix.NFT_NG_INCREMENTAL}}
	}
	return []expression{
		payload(expr.PayloadBaseNetworkHeader, g.f.saddr, uint32(g.f.bytes), reg2),
		&expr.Hash{SourceRegister: reg2, DestRegister: reg1, Length: uint32(g.f.bytes), Modulus: of, Seed: poolSeed, Type: expr.HashTypeJenkins},
	}
}

// weights are the numbers of addresses, made smaller where they are large.
func weights(pool nat.AddrRanges) []uint32 {
	sizes, largest := make([]uint64, len(pool)), uint64(0)
	for i, r := range pool {
		sizes[i] = sizeOf(r)
		largest = max(largest, sizes[i])
	}
	out := make([]uint32, len(pool))
	for i, n := range sizes {
		if largest > maxWeight {
			n = max(1, n/(largest/maxWeight))
		}
		out[i] = uint32(n)
	}
	return out
}

// sizeOf is the number of addresses, at most 2^32.
func sizeOf(r nat.AddrRange) uint64 {
	first, last := r.First.AsSlice(), r.Last.AsSlice()
	n := len(first)
	if n == 16 && string(first[:12]) != string(last[:12]) {
		return 1 << 32
	}
	return uint64(binary.BigEndian.Uint32(last[n-4:])) - uint64(binary.BigEndian.Uint32(first[n-4:])) + 1
}
