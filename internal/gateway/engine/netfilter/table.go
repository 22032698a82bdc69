package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"golang.org/x/sys/unix"
)

// table is all that natkit writes, in the order in which it is written.
type table struct {
	chains    []chain
	sets      []*set
	rules     []rule
	flowtable *flowtable
	// objects are helpers of the tracker.
	objects []gateway.HelperService
	plan    *gateway.Plan
	// branches are the chains of rules that log, and of groups that share a prefix.
	branches []chain
	logging  map[gateway.Ref]bool
	// handNetmap: prefixes are put together by expressions of every kernel.
	handNetmap bool
	// out are hosts that are checked and not chosen; hosts are the maps of places, by name, made those that were
	// made for this plan, also for another form of the table.
	out         map[gateway.Ref][]bool
	hosts, made map[string]*set
	// shared are the sets that rules would otherwise have one each of, by content; nil
	// where they have: then shareable is how many.
	shared    map[string]*set
	shareable int
}

// chain is a base chain where kind is not empty.
type chain struct {
	name, kind string
	hook       uint32
	priority   int32
}

// set is a set or a map.
type set struct {
	name  string // empty for one that belongs to one rule alone
	id    uint32
	flags uint32 // NFT_SET_*
	// key and data are types that nft(8) shows elements by; data is its zero value
	// for a set.
	key, data nftables.SetDatatype
	// ranges: the data are intervals.
	ranges bool
	size   uint32
	// places: the keys are numbers from 0 to size-1, in the order of bytes of the host.
	places   bool
	counted  bool
	elements []element
	about    string
	there    bool // and stays
	// of has the elements of a set of the plan, of one family or, without one, services.
	of     *nat.Set
	family *family
	// from is the side of pairs, of which the set is a map to the other one; empty for other sets.
	from nat.Condition
	// sample: some elements of a set of the plan are enough.
	sample bool
}

type element struct {
	key, data []byte
	chain     string // that a verdict map jumps to
	end       bool   // of an interval (NFT_SET_ELEM_INTERVAL_END)
	comment   string
	timeout   time.Duration // after which it ends; 0 is never
}

type rule struct {
	chain   string
	exprs   []expression
	comment string
}

type flowtable struct {
	name    string
	devices []string
	counted bool
}

// add gives a set its number within the transaction.
func (t *table) add(s *set) *set {
	s.id = uint32(len(t.sets) + 1)
	t.sets = append(t.sets, s)
	return s
}

// reference is what rules call the set by; the kernel numbers those without a name.
func (s *set) reference() string {
	switch {
	case s.name != "":
		return s.name
	case s.flags&unix.NFT_SET_MAP != 0:
		return "__map%d"
	}
	return "__set%d"
}

// messages replaces the table, was being the one that there is and of which something
// is kept. Without it the table is made where there was none, so that it can be
// deleted; all of that is one transaction.
func (t *table) messages(was *read.Table) ([]message, error) {
	all := []message{tableMessage(unix.NFT_MSG_NEWTABLE), tableMessage(unix.NFT_MSG_DELTABLE), tableMessage(unix.NFT_MSG_NEWTABLE)}
	if was != nil {
		all = t.emptied(was)
	}
	for _, c := range t.chains {
		all = append(all, c.message())
	}
	if t.flowtable != nil {
		all = append(all, t.flowtable.message())
	}
	for _, s := range t.objects {
		all = append(all, helperMessage(s))
	}
	for _, s := range t.sets {
		switch {
		case s.there:
		case s.of != nil:
			all = append(all, s.header())
		default:
			all = append(append(all, s.header()), s.changes(unix.NFT_MSG_NEWSETELEM, s.elements)...)
		}
	}
	for _, r := range t.rules {
		m, err := r.message()
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	// Elements of the plan's sets come last: each rule that asks a map checks all elements that are there (nf_tables_bind_set),
	// which of a million takes 0.15 s.
	for _, s := range t.sets {
		if s.of != nil && !s.there {
			all = append(all, s.members()...)
		}
	}
	return all, nil
}

func tableMessage(kind uint16) message {
	m := message{kind: kind, about: "the gateway", exprs: []string{"table"}}
	if kind == unix.NFT_MSG_NEWTABLE {
		m.flags = unix.NLM_F_CREATE
	}
	m.body.text(unix.NFTA_TABLE_NAME, Table)
	return m
}

func (c chain) message() message {
	m := message{kind: unix.NFT_MSG_NEWCHAIN, flags: unix.NLM_F_CREATE, about: "chain " + c.name}
	m.body.text(unix.NFTA_CHAIN_TABLE, Table)
	m.body.text(unix.NFTA_CHAIN_NAME, c.name)
	if c.kind == "" {
		return m
	}
	m.exprs = []string{"chain " + c.kind}
	hook := m.body.begin(unix.NFTA_CHAIN_HOOK)
	m.body.u32(unix.NFTA_HOOK_HOOKNUM, c.hook)
	m.body.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
	m.body.end(hook)
	m.body.u32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
	m.body.text(unix.NFTA_CHAIN_TYPE, c.kind)
	return m
}

func (r rule) message() (message, error) {
	m := message{kind: unix.NFT_MSG_NEWRULE, flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, about: r.comment, rule: &r}
	m.body.text(unix.NFTA_RULE_TABLE, Table)
	m.body.text(unix.NFTA_RULE_CHAIN, r.chain)
	list := m.body.begin(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r.exprs {
		b, err := marshal(e)
		if err != nil {
			return m, fmt.Errorf("write the rule for %s: %w", r.comment, err)
		}
		m.body.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
	}
	m.body.end(list)
	if r.comment != "" {
		m.body.bytes(unix.NFTA_RULE_USERDATA, comment(r.comment))
	}
	return m, nil
}

// NFTA_SET_*, NFTA_SET_ELEM_*, NFTNL_UDATA_SET_* that golang.org/x/sys/unix does not
// name (linux/netfilter/nf_tables.h, libnftnl/udata.h).
const (
	nftaSetExpr            = 17
	udataSetKeyByteorder   = 0
	udataSetDataByteorder  = 1
	udataSetDataInterval   = 6
	byteorderHost          = 1
	byteorderBig           = 2
	elementsPerMessageSize = 32 << 10 // of 64 KiB that an attribute can have
)

// sampled is how many elements of a set of the plan the kernel is asked about before: it takes one as the other, and a
// million take it a second.
const sampled = 1000

// members adds the elements of a set of the plan.
func (s *set) members() []message {
	spans := s.spans()
	if s.sample {
		spans = spans[:min(len(spans), sampled)]
	}
	return s.carrying(unix.NFT_MSG_NEWSETELEM, s.elementsOf(spans))
}

// changes adds elements (NFT_MSG_NEWSETELEM), or takes them away.
func (s *set) changes(kind uint16, elements []element) []message {
	return s.carrying(kind, slices.Values(elements))
}

// flush takes all elements away.
func (s *set) flush() message {
	m := message{kind: unix.NFT_MSG_DELSETELEM, about: s.about}
	m.body.text(unix.NFTA_SET_ELEM_LIST_TABLE, Table)
	m.body.text(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	return m
}

// carrying is changes of elements that are made as they are written.
func (s *set) carrying(kind uint16, elements iter.Seq[element]) (all []message) {
	var m *message
	var list int
	for e := range elements {
		if m != nil && len(m.body) >= elementsPerMessageSize {
			m.body.end(list)
			m = nil
		}
		if m == nil {
			all = append(all, message{kind: kind, about: s.about})
			if m = &all[len(all)-1]; len(all) > 1 {
				m.body = make(attrs, 0, len(all[0].body))
			}
			if kind == unix.NFT_MSG_NEWSETELEM {
				m.flags = unix.NLM_F_CREATE
			}
			m.body.text(unix.NFTA_SET_ELEM_LIST_TABLE, Table)
			m.body.text(unix.NFTA_SET_ELEM_LIST_SET, s.reference())
			if s.id > 0 {
				m.body.u32(unix.NFTA_SET_ELEM_LIST_SET_ID, s.id)
			}
			list = m.body.begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		}
		if e.comment != "" {
			m.elements = append(m.elements, placed{len(m.body), e.comment})
		}
		e.append(&m.body)
	}
	if m != nil {
		m.body.end(list)
	}
	return all
}

func (s *set) header() message {
	m := message{kind: unix.NFT_MSG_NEWSET, flags: unix.NLM_F_CREATE, about: s.about, exprs: []string{"set"}}
	m.body.text(unix.NFTA_SET_TABLE, Table)
	m.body.text(unix.NFTA_SET_NAME, s.reference())
	m.body.u32(unix.NFTA_SET_FLAGS, s.flags)
	m.body.u32(unix.NFTA_SET_KEY_TYPE, s.key.GetNFTMagic())
	m.body.u32(unix.NFTA_SET_KEY_LEN, s.key.Bytes)
	if s.flags&unix.NFT_SET_MAP != 0 {
		length := s.data.Bytes
		if s.ranges {
			length *= 2
		}
		kind := s.data.GetNFTMagic()
		if s.data == nftables.TypeVerdict {
			kind = unix.NFT_DATA_VERDICT
		}
		m.body.u32(unix.NFTA_SET_DATA_TYPE, kind)
		m.body.u32(unix.NFTA_SET_DATA_LEN, length)
	}
	if s.size > 0 {
		desc := m.body.begin(unix.NFTA_SET_DESC)
		m.body.u32(unix.NFTA_SET_DESC_SIZE, s.size)
		m.body.end(desc)
	}
	m.body.u32(unix.NFTA_SET_ID, s.id)
	m.body.bytes(unix.NFTA_SET_USERDATA, s.userdata())
	if s.counted { // kernels before 5.7 take no notice
		b, err := expr.Marshal(familyInet, &expr.Counter{})
		if err == nil {
			m.body.bytes(nftaSetExpr|unix.NLA_F_NESTED, b)
		}
	}
	return m
}

// userdata returns what nft(8) needs to show the elements.
func (s *set) userdata() []byte {
	order, dataOrder := uint32(byteorderBig), uint32(byteorderBig)
	if s.data == zoneType {
		dataOrder = byteorderHost
	}
	if s.key == zoneType || s.key == nftables.TypeIFName || s.key == nftables.TypeMark || s.key == nftables.TypeDevGroup || s.places {
		order = byteorderHost
	}
	u := putUint32(nil, udataSetKeyByteorder, order)
	if s.flags&unix.NFT_SET_MAP != 0 {
		u = putUint32(u, udataSetDataByteorder, dataOrder)
	}
	if s.places {
		u = append(u, s.typeof()...)
	}
	if s.ranges {
		u = putUint32(u, udataSetDataInterval, 1)
	}
	return u
}

// What nft(8) makes of the types of a map that has words for expressions alone ("typeof"): NFTNL_UDATA_SET_*TYPEOF,
// NFTNL_UDATA_SET_TYPEOF_*, and its own numbers of expressions, protocols and their fields.
const (
	udataSetKeyTypeof, udataSetDataTypeof = 3, 4
	udataTypeofExpr, udataTypeofData      = 0, 1
	udataPayload, udataConcat             = 7, 13
	udataNumgen                           = 23
	udataIP, udataIP6, udataTCP           = 12, 13, 8
)

// typeof says that keys are numbers of numgen, and values an address with or without a port: nft(8) has no name for
// the type of a number, and could not read again what it lists. One of jhash makes version 1.0.6 of it crash.
func (s *set) typeof() []byte {
	nest := func(kind userdata.Type, parts ...[]byte) []byte {
		inner := slices.Concat(parts...)
		return append([]byte{byte(kind), byte(len(inner))}, inner...)
	}
	number := func(kind userdata.Type, v uint32) []byte { return putUint32(nil, kind, v) }
	field := func(protocol, field uint32) []byte {
		return append(number(udataTypeofExpr, udataPayload), nest(udataTypeofData, number(0, protocol), number(1, field))...)
	}
	key := nest(udataSetKeyTypeof, number(udataTypeofExpr, udataNumgen), nest(udataTypeofData, number(0, 0), number(1, s.size), number(2, 0)))
	address, bytes := field(udataIP, 12), uint32(4)
	if s.data.Bytes >= 16 {
		address, bytes = field(udataIP6, 9), 16
	}
	data := nest(udataSetDataTypeof, address)
	if s.data.Bytes > bytes {
		data = nest(udataSetDataTypeof, number(udataTypeofExpr, udataConcat), nest(udataTypeofData, nest(0, address), nest(1, field(udataTCP, 2))))
	}
	return append(key, data...)
}

func putUint32(u []byte, kind userdata.Type, v uint32) []byte {
	return append(u, append([]byte{byte(kind), 4}, binary.NativeEndian.AppendUint32(nil, v)...)...)
}

func (e element) append(a *attrs) {
	item := a.begin(unix.NFTA_LIST_ELEM)
	if e.end {
		a.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	key := a.begin(unix.NFTA_SET_ELEM_KEY)
	a.bytes(unix.NFTA_DATA_VALUE, e.key)
	a.end(key)
	if e.data != nil {
		data := a.begin(unix.NFTA_SET_ELEM_DATA)
		a.bytes(unix.NFTA_DATA_VALUE, e.data)
		a.end(data)
	}
	if e.chain != "" {
		const jump = 0xffffffff + unix.NFT_JUMP + 1 // as 32 bits
		data := a.begin(unix.NFTA_SET_ELEM_DATA)
		verdict := a.begin(unix.NFTA_DATA_VERDICT)
		a.u32(unix.NFTA_VERDICT_CODE, jump)
		a.text(unix.NFTA_VERDICT_CHAIN, e.chain)
		a.end(verdict)
		a.end(data)
	}
	if e.timeout > 0 {
		*a = netlink.AppendU64(*a, unix.NFTA_SET_ELEM_TIMEOUT, uint64(e.timeout/time.Millisecond))
	}
	if e.comment != "" {
		a.bytes(unix.NFTA_SET_ELEM_USERDATA, comment(e.comment)) // NFTNL_UDATA_SET_ELEM_COMMENT is 0 as well
	}
	a.end(item)
}

func (f *flowtable) message() message {
	m := message{kind: nftables.NFT_MSG_NEWFLOWTABLE, flags: unix.NLM_F_CREATE, about: "flowtable", exprs: []string{"flowtable"}}
	m.body.text(nftables.NFTA_FLOWTABLE_TABLE, Table)
	m.body.text(nftables.NFTA_FLOWTABLE_NAME, f.name)
	hook := m.body.begin(nftables.NFTA_FLOWTABLE_HOOK)
	m.body.u32(nftables.NFTA_FLOWTABLE_HOOK_NUM, unix.NF_NETDEV_INGRESS)
	m.body.u32(nftables.NFTA_FLOWTABLE_PRIORITY, 0)
	devices := m.body.begin(nftables.NFTA_FLOWTABLE_DEVS)
	for _, name := range f.devices {
		m.body.text(nftables.NFTA_DEVICE_NAME, name)
	}
	m.body.end(devices)
	m.body.end(hook)
	if f.counted {
		m.body.u32(nftables.NFTA_FLOWTABLE_FLAGS, uint32(nftables.FlowtableFlagsCounter))
	}
	return m
}

// keeps returns the table in force if it has a limit's set that this one needs as well:
// with it the counts of connections are kept, which cannot be written to the kernel. It is
// nil where there is nothing to keep.
func (t *table) keeps(ns *netns.Handle) (*read.Table, error) {
	if !slices.ContainsFunc(t.sets, (*set).keepable) {
		return nil, nil
	}
	was, err := read.TableNamed(ns, Family, Table)
	if err != nil || was == nil || was.Owned || was.Dormant {
		return nil, err
	}
	found := false
	for _, s := range t.sets {
		s.there = s.keepable() && slices.ContainsFunc(was.Sets, func(old read.TableSet) bool { return old.Name == s.name && old.Dynamic })
		found = found || s.there
	}
	if !found {
		return nil, nil
	}
	return was, nil
}

// keepable: a set that packets fill.
func (s *set) keepable() bool { return s.flags&unix.NFT_SET_EVAL != 0 }

// emptied takes everything out of the table that there is, but for the sets that stay.
// Sets without a name go with their rules.
func (t *table) emptied(was *read.Table) []message {
	all := []message{tableMessage(unix.NFT_MSG_NEWTABLE)}
	for _, c := range was.Chains {
		all = append(all, removal(unix.NFT_MSG_DELRULE, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, c.Name))
	}
	for _, s := range was.Sets { // verdict maps lead to chains
		stays := slices.ContainsFunc(t.sets, func(n *set) bool { return n.there && n.name == s.Name })
		if !stays && !strings.HasPrefix(s.Name, "__") {
			all = append(all, removal(unix.NFT_MSG_DELSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, s.Name))
		}
	}
	for _, c := range was.Chains {
		all = append(all, removal(unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, c.Name))
	}
	for _, o := range was.Objects {
		m := removal(unix.NFT_MSG_DELOBJ, objTable, objName, o.Name)
		m.body.u32(objType, o.Kind)
		all = append(all, m)
	}
	for _, name := range was.Flowtables {
		all = append(all, removal(nftables.NFT_MSG_DELFLOWTABLE, nftables.NFTA_FLOWTABLE_TABLE, nftables.NFTA_FLOWTABLE_NAME, name))
	}
	return all
}

func removal(kind, table, name uint16, what string) message {
	m := message{kind: kind, about: "the rules before: " + what}
	m.body.text(table, Table)
	m.body.text(name, what)
	return m
}

// place is where in a packet an address stands, and the checksums that it is part of.
type place struct {
	base     expr.PayloadBase
	offset   uint32
	checksum uint32 // offset of a checksum to mend, where mends
	mends    bool
	pseudo   bool // the transport's checksum covers it by the pseudo header
	// quoted is the offset of the quoted packet's transport checksum, which covers it by
	// its pseudo header; 0 where it is not known.
	quoted uint32
}

// header is the source or destination of the packet itself.
func (f *family) header(destination bool) place {
	p := place{base: expr.PayloadBaseNetworkHeader, offset: f.saddr, pseudo: true}
	if destination {
		p.offset = f.daddr
	}
	if !f.v6 {
		p.mends, p.checksum = true, 10
	}
	return p
}

// quoted is an address in the packet that an ICMP error quotes, after 8 bytes of its
// own. In IPv4 the quoted header's checksum is mended, and the sum that ICMP's is made
// of stays what it was; IPv6 has none, and ICMPv6's own is mended.
func (f *family) quoted(destination bool) place {
	p := place{base: expr.PayloadBaseTransportHeader, offset: 8 + f.saddr, mends: true, checksum: icmpChecksum}
	if destination {
		p.offset = 8 + f.daddr
	}
	if !f.v6 {
		p.checksum = 8 + 10
	}
	return p
}

func (p place) load(length uint32) expression { return payload(p.base, p.offset, length, reg1) }

// write puts what reg1 has in the place, and mends all checksums that cover it. Each
// write mends one. A quoted IPv4 address stands in two checksums that themselves are in
// ICMP's: it is written for the first one, taken back for ICMP's, and written for the
// second one. In IPv6 ICMP's stays, as the quoted checksum makes up for the address.
func (p place) write(f *family, length uint32) []expression {
	first := p
	if p.quoted > 0 {
		first.checksum = p.quoted
	}
	if p.quoted == 0 || f.v6 {
		return []expression{first.store(length, reg1)}
	}
	back := p
	back.checksum = icmpChecksum
	return []expression{
		payload(p.base, p.offset, length, reg2),
		first.store(length, reg1), back.store(length, reg2), p.store(length, reg1),
	}
}

// icmpChecksum is its offset in ICMP and ICMPv6.
const icmpChecksum = 2

// store writes what a register has. google/nftables leaves the flag out where there is
// no checksum of the header itself, as in IPv6.
func (p place) store(length, register uint32) expression {
	w := raw{name: "payload"}
	w.data.u32(unix.NFTA_PAYLOAD_SREG, register)
	w.data.u32(unix.NFTA_PAYLOAD_BASE, uint32(p.base))
	w.data.u32(unix.NFTA_PAYLOAD_OFFSET, p.offset)
	w.data.u32(unix.NFTA_PAYLOAD_LEN, length)
	if p.mends {
		w.data.u32(unix.NFTA_PAYLOAD_CSUM_TYPE, unix.NFT_PAYLOAD_CSUM_INET)
		w.data.u32(unix.NFTA_PAYLOAD_CSUM_OFFSET, p.checksum)
	}
	if p.pseudo {
		w.data.u32(unix.NFTA_PAYLOAD_CSUM_FLAGS, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR)
	}
	return w
}

// within asks whether the address at the place is in a prefix.
func (p place) within(f *family, prefix netip.Prefix) []expression {
	all := []expression{p.load(uint32(f.bytes))}
	if prefix.Bits() < f.bits() {
		all = append(all, f.masked(reg1, prefix.Bits()))
	}
	return append(all, equal(reg1, prefix.Masked().Addr().AsSlice()))
}

// valid refuses a plan that no file compiles to, such as one that was written by
// another program: addresses that are none, families that do not go together.
func valid(p *gateway.Plan) error {
	for _, list := range []struct {
		entries []gateway.Entry
		needs   func(*gateway.Entry) error
	}{
		{p.Destinations, func(d *gateway.Entry) error {
			if len(d.To) != 1 || !d.Action.Prefix.IsValid() && len(d.Action.Backends) == 0 && d.Action.Kind != nat.Redirect && d.Pairs() == nil {
				return errors.New("it does not say what one prefix becomes")
			}
			return like(d.To, d.Action.Prefix)
		}},
		{p.Sources, func(s *gateway.Entry) error {
			switch becomes := s.Action.Prefix.IsValid(); {
			case len(s.Original) > 1, becomes && len(s.From) != 1:
				return errors.New("it is for several prefixes")
			case !becomes && s.Action.Kind != nat.Masquerade && len(s.Action.To) == 0 && s.Pairs() == nil:
				return errors.New("it says nothing to translate to")
			}
			return like(s.From, s.Action.Prefix)
		}},
		{p.Stateless, func(s *gateway.Entry) error {
			if len(s.From) != 1 || !s.Outside().IsValid() {
				return errors.New("it is no pair of prefixes")
			}
			return errors.Join(like(s.From, s.Outside()), neutralLength(*s))
		}},
		{p.Untracked, func(u *gateway.Entry) error {
			if len(u.To) != 1 || !u.On().IsSingleIP() {
				return fmt.Errorf("%q is no address", u.To)
			}
			return nil
		}},
	} {
		for i := range list.entries {
			e := &list.entries[i]
			err := ofOneFamily(e)
			if err == nil {
				err = list.needs(e)
			}
			for _, name := range []string{e.Zone, e.Action.Zone} {
				if name != "" && p.ZoneNamed(name) == nil {
					err = fmt.Errorf("there is no zone %s", name)
				}
			}
			if err != nil {
				return fmt.Errorf("%s: %w", e.Rule, err)
			}
		}
	}
	return nil
}

// ofOneFamily refuses an entry that has an address of another family than its others, or asks for a set that is none.
func ofOneFamily(e *gateway.Entry) error {
	for _, x := range e.Members {
		if known := x.Of == nat.From || x.Of == nat.To || x.Of == nat.DestPorts || x.Of == nat.OriginalPorts; !known || x.Set == nil {
			return fmt.Errorf("there is no set %s for %q", x.Name, x.Of)
		}
	}
	prefixes := slices.Concat(e.To, e.From, e.NotTo, e.NotFrom, e.Original)
	if e.Action.Prefix.IsValid() {
		prefixes = append(prefixes, e.Action.Prefix)
	}
	ranges := slices.Clone(e.Action.To)
	for _, p := range prefixes {
		if !p.IsValid() {
			return fmt.Errorf("%q is no prefix", p)
		}
		ranges = append(ranges, nat.OneAddr(p.Addr()))
	}
	for _, b := range e.Action.Backends {
		ranges = append(ranges, nat.OneAddr(b.Address))
	}
	for _, r := range ranges {
		if f := familyFor(e); !one(f, r.First) || !one(f, r.Last) || r.Last.Less(r.First) {
			return fmt.Errorf("%v is no range of the same family", r)
		}
	}
	return nil
}

// one reports whether a is an address of the family.
func one(f *family, a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && familyOf(a) == f }

// like refuses a prefix, if there is one, of another length than the one that becomes it.
func like(from []netip.Prefix, to netip.Prefix) error {
	if to.IsValid() && from[0].Bits() != to.Bits() {
		return fmt.Errorf("%v and %v have different lengths", from[0], to)
	}
	return nil
}

func neutralLength(p gateway.Entry) error {
	if p.Action.Neutral && (p.Inside().Addr().Is4() || p.Inside().Bits() > 64) {
		return fmt.Errorf("%v cannot be replaced without changing checksums: RFC 6296 is for IPv6 prefixes of up to 64 bits", p.Inside())
	}
	return nil
}
