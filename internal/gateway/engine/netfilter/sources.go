package netfilter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// sources writes the translations of sources of one family.
func (t *table) sources(p *gateway.Plan, f *family) {
	var all groups
	for i := range p.Sources {
		s := &p.Sources[i]
		if sourceFamily(s) == f {
			collectSource(&all, s, f)
		}
	}
	t.emitAll("postrouting", "source"+f.suffix, all)
}

// emitAll names the groups' maps and writes them.
func (t *table) emitAll(chain, name string, all groups) {
	for i, g := range all.all {
		g.name = fmt.Sprintf("%s-%d", name, i+1)
		t.emit(chain, g)
	}
}

// sourceFamily is told by any address of the rule, or by the list that it stands in.
func sourceFamily(s *gateway.Source) *family {
	switch {
	case len(s.From) > 0:
		return familyOf(s.From[0].Addr())
	case len(s.To) > 0:
		return familyOf(s.To[0].First)
	case s.Prefix.IsValid():
		return familyOf(s.Prefix.Addr())
	case s.Hairpin.Prefix.IsValid():
		return familyOf(s.Hairpin.Prefix.Addr())
	case len(s.NotTo) > 0:
		return familyOf(s.NotTo[0].Addr())
	case s.Rule.List == "ipv6":
		return ip6
	}
	return ip4
}

// collectSource adds an entry for each prefix of From and each port of a hairpin.
func collectSource(all *groups, s *gateway.Source, f *family) {
	from := s.From
	if len(from) == 0 {
		from = []netip.Prefix{netip.PrefixFrom(zero(f), 0)}
	}
	single, wide := expand(s.Hairpin.Port)
	for _, prefix := range from {
		for _, port := range single {
			g := sourceGroup(s, f)
			e := entry{rule: s.Rule, to: g.target(s)}
			principal := g.addSourceKey(s, prefix, port, &e)
			g.shape.ports, g.widePorts = wide, originalPort
			all.add(g, principal, e)
		}
	}
}

// zero is the family's unspecified address.
func zero(f *family) netip.Addr {
	if f.v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// addSourceKey puts together the key, and says by what address entries are told apart.
func (g *group) addSourceKey(s *gateway.Source, from netip.Prefix, port uint16, e *entry) netip.Prefix {
	principal := from
	g.principalField = sourceAddress
	if h := s.Hairpin.Prefix; h.IsValid() {
		g.principalField, principal = originalAddress, h
		if h.Bits() > 0 {
			g.addPart(e, part{originalAddress, h.Bits()}, h.Masked().Addr().AsSlice())
		}
		if port > 0 {
			g.addPart(e, part{field: originalPort}, portBytes(port))
		}
	}
	if from.Bits() > 0 {
		g.addPart(e, part{sourceAddress, from.Bits()}, from.Masked().Addr().AsSlice())
	}
	return principal
}

func (g *group) addPart(e *entry, p part, value []byte) {
	e.values[g.keys] = value
	g.key[g.keys] = p
	g.keys++
}

// sourceGroup is a group of the rule's shape, without a key.
func sourceGroup(s *gateway.Source, f *family) *group {
	g := &group{out: s.Out, notTo: s.NotTo}
	g.f, g.kind = f, actSource
	g.shape.out, g.shape.notTo = strings.Join(s.Out, " "), fmt.Sprint(s.NotTo)
	g.action.ports, g.random, g.persistent = s.Ports, s.Random, s.Persistent
	switch {
	case s.Masquerade:
		g.kind = actMasquerade
	case s.Prefix.IsValid():
		g.kind = actSourcePrefix
	default:
		g.setPool(s.To)
	}
	if g.givesAddresses() && !s.Ports.Keep { // the map has the ports; any will do for the shape
		g.action.ports = boundless(s.Ports)
	}
	if s.Hairpin.Prefix.IsValid() {
		g.hairpin = true
		g.proto, _ = s.Hairpin.Port.Number()
	}
	return g
}

// boundless is the mark of a group whose map bounds ports.
func boundless(p gateway.Ports) gateway.Ports {
	if p.First == 0 && p.Last == 0 {
		return gateway.Ports{}
	}
	return gateway.Ports{First: 1, Last: 65535}
}

func (g *group) setPool(to []gateway.Range) {
	if len(to) > 1 {
		g.pool, g.action.pool = to, poolText(to)
	}
}

// target is what the rule's addresses and ports become.
func (g *group) target(s *gateway.Source) target {
	t := target{firstPort: s.Ports.First, lastPort: s.Ports.Last}
	switch {
	case s.Prefix.IsValid():
		t.first, t.last, t.prefix = s.Prefix.Masked().Addr(), nat.LastAddr(s.Prefix), s.Prefix
	case len(s.To) == 1:
		t.first, t.last = s.To[0].First, s.To[0].Last
	}
	return t
}

// taken is how many ports a range may have to become that many entries.
const taken = 256

// expand takes a range of ports apart, as one entry for each port costs a packet
// nothing. A wide one stays a range; no port at all is one entry with port 0.
func expand(p gateway.Port) (single []uint16, wide [2]uint16) {
	last := max(p.First, p.Last)
	switch {
	case p.First == 0:
		return []uint16{0}, wide
	case int(last)-int(p.First) >= taken:
		return []uint16{0}, [2]uint16{p.First, last}
	}
	for n := int(p.First); n <= int(last); n++ {
		single = append(single, uint16(n))
	}
	return single, wide
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
)

// part is one field of a key; bits is how much of an address counts.
type part struct {
	field field
	bits  int
}

// shape is what rules have in common that become one rule of the table, which looks
// up in a map what differs. It is comparable: two rules of one shape share a map.
type shape struct {
	f    *family
	key  [4]part // the first parts of it
	keys int
	// in, out, notTo are conditions, as text; group has the values.
	in, out, notTo string
	// hairpin: what a Destination sent back inside. proto is its protocol.
	hairpin bool
	proto   byte
	// ports are a range of ports too wide to be taken apart, widePorts the field that
	// has them.
	ports     [2]uint16
	widePorts field
	action
}

// action is what is done to the packets, but for the addresses that a map can give.
type action struct {
	kind   actionKind
	pool   string // the ranges, where there are several
	ports  gateway.Ports
	random gateway.Random
	// persistent is NF_NAT_RANGE_PERSISTENT, toPort that map data have a port.
	persistent, toPort bool
}

type actionKind uint8

const (
	actDestination actionKind = iota
	actSource
	actMasquerade
	actDestinationPrefix
	actSourcePrefix
	actNotrack
)

// entry is one key of a group and what it leads to.
type entry struct {
	values [4][]byte // of the parts of the key
	to     target
	rule   gateway.Ref
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
	name    string // of its map
	in, out []string
	notTo   []netip.Prefix
	pool    []gateway.Range
	entries []entry
	// seen are the keys; principal are the addresses, of so many bits, that some
	// entry has in principalField.
	seen           map[string]struct{}
	principal      map[netip.Prefix]struct{}
	bits           int
	principalField field
}

// groups keep the order of rules: the first one that matches does.
type groups struct{ all []*group }

// lookBack is how many groups an entry looks at for one of its shape.
const lookBack = 16

// add puts an entry into the last group of its shape, if no rule of a group after that
// one could match the same packets: those are to win. principal is the entry's
// address by which that is told.
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
	g.principal, g.seen = map[netip.Prefix]struct{}{}, map[string]struct{}{}
	g.bits = principal.Bits()
	gs.all = append(gs.all, g)
	g.put(principal, e)
}

// put leaves out what an earlier entry has taken.
func (g *group) put(principal netip.Prefix, e entry) {
	key := fmt.Sprintf("%x", e.values)
	if _, taken := g.seen[key]; taken {
		return
	}
	g.seen[key] = struct{}{}
	g.principal[principal.Masked()] = struct{}{}
	g.entries = append(g.entries, e)
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
// google/nftables does not tell the direction with these keys.
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

// choose takes one of several ranges by a hash of the source address, each as often as
// it has addresses, and leaves its first and last address in registers. Within the
// range the kernel chooses.
func (t *table) choose(g *group) []expression {
	if len(g.pool) == 0 {
		return nil
	}
	s := &set{key: nftables.TypeInteger, data: g.f.address, ranges: true, flags: unix.NFT_SET_MAP | unix.NFT_SET_INTERVAL, about: g.comment()}
	at := uint32(0)
	for i, w := range weights(g.pool) {
		s.elements = append(s.elements, element{
			key:  binary.BigEndian.AppendUint32(nil, at),
			data: append(g.pool[i].First.AsSlice(), g.pool[i].Last.AsSlice()...),
		})
		at += w
	}
	s.elements = append(s.elements, element{key: binary.BigEndian.AppendUint32(nil, at), end: true})
	t.anonymous(s)
	return []expression{
		payload(expr.PayloadBaseNetworkHeader, g.f.saddr, uint32(g.f.bytes), reg2),
		&expr.Hash{SourceRegister: reg2, DestRegister: reg1, Length: uint32(g.f.bytes), Modulus: at, Seed: poolSeed, Type: expr.HashTypeJenkins},
		&expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		s.translate(reg1),
	}
}

// weights are the numbers of addresses, made smaller where they are large.
func weights(pool []gateway.Range) []uint32 {
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
func sizeOf(r gateway.Range) uint64 {
	first, last := r.First.AsSlice(), r.Last.AsSlice()
	n := len(first)
	if n == 16 && string(first[:12]) != string(last[:12]) {
		return 1 << 32
	}
	return uint64(binary.BigEndian.Uint32(last[n-4:])) - uint64(binary.BigEndian.Uint32(first[n-4:])) + 1
}

func poolText(pool []gateway.Range) string {
	var b strings.Builder
	for _, r := range pool {
		b.WriteString(r.String() + " ")
	}
	return b.String()
}
