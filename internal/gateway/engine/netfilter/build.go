package netfilter

import (
	"fmt"
	"math"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"golang.org/x/sys/unix"
)

// Priorities come after those of Docker, firewalld and hand-made rules (dstnat -100,
// srcnat 100, firewalld's +10): what they translate stays theirs.
var baseChains = []chain{
	{zoneFirst, "filter", unix.NF_INET_PRE_ROUTING, -450},
	{"raw-prerouting", "filter", unix.NF_INET_PRE_ROUTING, -300},
	{name: neutralChain}, // where raw-prerouting leads
	{"raw-output", "filter", unix.NF_INET_LOCAL_OUT, -300},
	{uplinkIn, "filter", unix.NF_INET_PRE_ROUTING, -145},
	{uplinkOut, "route", unix.NF_INET_LOCAL_OUT, -145},
	{zoneIn, "filter", unix.NF_INET_PRE_ROUTING, -144},
	{zoneOut, "route", unix.NF_INET_LOCAL_OUT, -144},
	{"helpers", "filter", unix.NF_INET_PRE_ROUTING, -140},
	{"prerouting", "nat", unix.NF_INET_PRE_ROUTING, -80},
	{"output", "nat", unix.NF_INET_LOCAL_OUT, -80},
	{"mss", "filter", unix.NF_INET_FORWARD, -150},
	{"forward", "filter", unix.NF_INET_FORWARD, 0},
	{"invalid-own", "filter", unix.NF_INET_LOCAL_OUT, 120},
	{invalidChain, "filter", unix.NF_INET_POST_ROUTING, 109},
	{name: "untranslatable"}, // where invalid leads
	{"stateless", "filter", unix.NF_INET_POST_ROUTING, 110},
	{name: hairpinChain}, // where postrouting leads
	{uplinkBy, "nat", unix.NF_INET_POST_ROUTING, 119},
	{"postrouting", "nat", unix.NF_INET_POST_ROUTING, 120},
	{uplinkSource, "nat", unix.NF_INET_POST_ROUTING, 121},
}

// host is what the table depends on beside the plan.
type host struct {
	// digest is that of the whole plan.
	digest string
	// flowtable are those of the plan's interfaces for it that there are.
	flowtable []string
	// netmap is true if the kernel has NF_NAT_RANGE_NETMAP for nftables (5.8).
	netmap bool
	// flowCounts is true if the flowtable is to count for the tracker (5.7).
	flowCounts bool
	// cameIn is true if packets know in postrouting where they came in (5.5).
	cameIn bool
}

// manySets is the number of sets that could be shared from which they are: the kernel looks for each through all
// those of the transaction (nft_set_lookup_byid). Below, each rule is easier to read.
const manySets = 256

// build makes the table of a plan.
func build(p *gateway.Plan, h host) *table {
	t := &table{handNetmap: !h.netmap, made: map[string]*set{}}
	t.fill(p, h)
	if t.shareable > manySets {
		t = &table{handNetmap: !h.netmap, made: t.made, shared: map[string]*set{}}
		t.fill(p, h)
	}
	return t
}

func (t *table) fill(p *gateway.Plan, h host) {
	t.out, t.plan = p.Out, p
	t.bypassed(p)
	t.mss(p.MSS)
	t.ttl(p)
	t.hairpins(p)
	t.uplinks(p)
	t.zones(p)
	for _, f := range []*family{ip4, ip6} {
		t.untracked(p, f)
		t.stateless(p, f)
		t.translations(p, f)
		if p.IPv4 && !f.v6 || p.IPv6 && f.v6 {
			t.limit(p, f)
			t.helpers(p, f)
		}
	}
	t.leases(p)
	t.untranslatable(p)
	t.offload(h)
	t.chains = slices.Concat(t.chains, t.used(h), t.branches)
	t.mark(h.digest)
}

// BypassComment is that of the rules for packets that programs of natkit have translated, and hand to the stack.
const BypassComment = "translated by programs"

// bypassed leaves packets alone that the eBPF engine hands to the stack, with their destination translated: neither the
// tracker sees them, and so no NAT, nor rules for stateless pairs. Their source is translated as they leave. Chains that
// ask the tracker for a state take none of them for new or invalid.
func (t *table) bypassed(p *gateway.Plan) {
	if p.Bypass == 0 {
		return
	}
	leave := func(chain string, does ...expression) {
		exprs := slices.Concat(masked(packetMark.load(reg1), p.Bypass), []expression{unequal(reg1, hostUint32(0))}, does)
		t.rules = append(t.rules, rule{chain: chain, comment: BypassComment, exprs: exprs})
	}
	leave("raw-prerouting", &expr.Notrack{}, &expr.Verdict{Kind: expr.VerdictAccept})
	if len(p.Stateless) > 0 {
		leave("stateless", &expr.Verdict{Kind: expr.VerdictAccept})
	}
}

// used are the chains that have rules: another would cost each packet a call, and
// a nat chain starts the tracker.
func (t *table) used(h host) []chain {
	rules := map[string]int{}
	for _, r := range t.rules {
		rules[r.chain]++
	}
	var used []chain
	for _, c := range baseChains {
		if c.name == invalidChain && !h.cameIn {
			c.hook, c.priority = unix.NF_INET_FORWARD, 120
		}
		if rules[c.name] > 0 {
			used = append(used, c)
		}
	}
	return used
}

// mark leaves the digest of the plan.
func (t *table) mark(digest string) {
	t.chains = append(t.chains, chain{name: MarkChain})
	t.rules = append(t.rules, rule{chain: MarkChain, comment: fmt.Sprint(digestWords, digest),
		exprs: []expression{&expr.Verdict{Kind: expr.VerdictReturn}}})
}

// variant is one of the rules that a group needs: protocols differ in what a port is.
type variant struct {
	// protocols that it is for; all where empty.
	protocols []byte
	// suffix of its map's name.
	suffix string
	// ports says whether it bounds them, loads how a port is kept.
	ports bool
	keep  expression
}

// withPorts are the protocols whose ports the kernel translates
// (nf_nat_l4proto_unique_tuple); of ICMP it is the identifier of an echo.
var withPorts = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_DCCP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE}

// variants of a group: where ports are chosen, those with ports, then the others.
func (g *group) variants() []variant {
	switch {
	case g.action.keep:
		return []variant{
			{protocols: withPorts, keep: payload(expr.PayloadBaseTransportHeader, 0, 2, reg3)},
			{protocols: []byte{g.f.icmp}, keep: payload(expr.PayloadBaseTransportHeader, 4, 2, reg3), suffix: "-echo"},
			{suffix: "-other"},
		}
	case g.action.keepTo && len(g.entries) == 1:
		// As it is named, the kernel does not search for one (nf_nat_l4proto_unique_tuple). nft(8) takes no rule that names
		// it where the protocol is a part of a key alone.
		return []variant{{keep: payload(expr.PayloadBaseTransportHeader, 2, 2, reg3)}}
	case g.kind != nat.Redirect && (g.action.ports.First > 0 || g.action.ports.Last > 0):
		return []variant{{protocols: slices.Concat([]byte{g.f.icmp}, withPorts), ports: true}, {suffix: "-other"}}
	}
	return []variant{{}}
}

// emit writes a group into a chain.
func (t *table) emit(chain string, g *group) {
	if g.hairpin {
		chain = hairpinChain
	}
	g.seek()
	t.log(chain, g)
	if t.handNetmap && g.prefix {
		t.emitByHand(chain, g)
		return
	}
	for _, v := range g.variants() {
		var m *set
		if len(g.entries) > 1 {
			m = t.mapOf(g, v)
		}
		exprs := t.selects(g, v, m)
		if m == nil && !g.again() {
			exprs = append(exprs, &expr.Counter{})
		}
		exprs = slices.Concat(exprs, t.toZone(g), t.choose(g))
		switch {
		case m == nil:
			exprs = append(exprs, g.act(v, g.entries[0].to)...)
		case m.flags&unix.NFT_SET_MAP == 0:
			exprs = append(exprs, g.act(v, target{firstPort: g.action.ports.First, lastPort: g.action.ports.Last})...)
		default:
			exprs = append(exprs, g.actMapped(v, m)...)
		}
		t.rules = append(t.rules, rule{chain: chain, exprs: exprs, comment: g.comment()})
		t.reject(chain, g, v, m)
	}
}

// reject answers, behind a rule that chooses among hosts, what that found none for.
func (t *table) reject(chain string, g *group, v variant, m *set) {
	if g.does == nil || g.does.AllDown != nat.AllDownReject {
		return
	}
	tcp, others := g.protocols()
	add := func(more []expression, r *expr.Reject) {
		exprs := slices.Concat(t.selects(g, v, m), more, []expression{&expr.Counter{}, r})
		t.rules = append(t.rules, rule{chain: chain, exprs: exprs, comment: AllDownComment})
	}
	if tcp {
		var only []expression
		if others {
			only = t.protocols(unix.IPPROTO_TCP)
		}
		add(only, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	}
	if others {
		add(nil, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH})
	}
}

// protocols reports whether entries of a group are for TCP, and for others.
func (g *group) protocols() (tcp, others bool) {
	at := slices.IndexFunc(g.parts(), func(p part) bool { return p.field == protocol })
	if at < 0 {
		return true, true
	}
	for _, e := range g.entries {
		isTCP := e.values[at][0] == unix.IPPROTO_TCP
		tcp, others = tcp || isTCP, others || !isTCP
	}
	return tcp, others
}

// log writes, before the rules of a group, one that leads what its entries translate that are logged to chains of
// theirs, in which the kernel logs some of it: by one lookup, however many there are. What comes back inside was
// logged where its destination was translated.
func (t *table) log(chain string, g *group) {
	var logged []entry
	for i := range g.entries {
		if g.entries[i].log != nil {
			logged = append(logged, g.entries[i])
		}
	}
	if len(logged) == 0 || g.again() {
		return
	}
	s := &set{name: g.name + "-log", flags: unix.NFT_SET_MAP, data: nftables.TypeVerdict, about: g.comment()}
	for _, e := range logged {
		s.elements = append(s.elements, element{key: g.keyOf(e), chain: t.logChain(e), comment: e.rule.Label()})
	}
	exprs := append(t.conditions(g), t.exceptions(g, variant{})...)
	if g.hasPairs() {
		exprs = append(exprs, g.f.read())
	}
	if len(logged) == 1 {
		for i, p := range g.parts() {
			exprs = append(exprs, p.match(g.f, logged[0].values[i])...)
		}
		exprs = append(exprs, &expr.Verdict{Kind: expr.VerdictJump, Chain: s.elements[0].chain})
	} else {
		s.key = g.keyType()
		exprs = append(slices.Concat(exprs, g.common(), g.loadKey()), t.add(s).verdict(word00))
	}
	t.rules = append(t.rules, rule{chain: chain, exprs: exprs, comment: LogComment})
}

// logChain is the chain in which a rule of the file logs.
func (t *table) logChain(e entry) string {
	name := fmt.Sprintf("log-%s-%d", e.rule.List, e.rule.Index)
	if t.logging[e.rule] {
		return name
	}
	if t.logging == nil {
		t.logging = map[gateway.Ref]bool{}
	}
	t.logging[e.rule] = true
	t.branches = append(t.branches, chain{name: name})
	rate := uint64(e.log.Rate)
	t.rules = append(t.rules, rule{chain: name, comment: LogComment, exprs: []expression{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond, Burst: uint32(min(max(rate, logBurst), math.MaxUint32))},
		&expr.Log{Key: 1 << unix.NFTA_LOG_PREFIX, Data: []byte(e.log.Prefix)},
	}})
	return name
}

// logBurst is how many lines a rule that was silent may log at once.
const logBurst = 5

// emitByHand is for kernels that cannot replace a prefix: a rule for each, which puts
// the new address together. Ports are not chosen with prefixes.
func (t *table) emitByHand(chain string, g *group) {
	for _, e := range g.entries {
		exprs := t.conditions(g)
		for i, p := range g.parts() {
			exprs = append(exprs, p.match(g.f, e.values[i])...)
		}
		exprs = append(exprs, t.exceptions(g, variant{})...)
		n := g.nat()
		n.Prefix, n.RegAddrMin = false, reg1
		offset := g.f.saddr
		if g.kind == nat.DNAT {
			offset = g.f.daddr
		}
		exprs = append(exprs, t.toZone(g)...)
		exprs = append(exprs, &expr.Counter{}, payload(expr.PayloadBaseNetworkHeader, offset, uint32(g.f.bytes), reg1),
			g.f.replaced(e.to.prefix, g.f.bytes), n)
		t.rules = append(t.rules, rule{chain: chain, exprs: exprs, comment: e.rule.Label()})
	}
}

// comment names the rule of the file, or how many there are.
func (g *group) comment() string {
	switch g.kind {
	case dropped:
		return UntranslatableComment
	case helped:
		return helperComment(g.helper)
	}
	first := g.entries[0].rule
	if slices.ContainsFunc(g.entries, func(e entry) bool { return e.rule != first }) {
		return fmt.Sprintf("%d entries of @%s", len(g.entries), g.name)
	}
	return first.Label()
}

// conditions are those on interfaces.
func (t *table) conditions(g *group) []expression {
	all := append(g.f.is(), t.byInterfaces(&g.other)...)
	if g.proto != 0 {
		all = append(all, t.protocols(g.proto)...)
	}
	if at := slices.IndexFunc(g.parts(), func(p part) bool { return p.field == protocol }); g.kind == nat.Redirect && at >= 0 && slices.Contains(g.sought, at) {
		var asked []byte // nft(8) reads a port that is given only behind a protocol
		for _, e := range g.entries {
			if !slices.Contains(asked, e.values[at][0]) {
				asked = append(asked, e.values[at][0])
			}
		}
		slices.Sort(asked)
		all = append(all, t.protocols(asked...)...)
	}
	return all
}

// exceptions are the conditions that narrow down what the key says. A map is asked
// after them, so that it counts what the rule does.
func (t *table) exceptions(g *group, v variant) []expression {
	all := append(t.addresses(g.f, g.f.daddr, g.other.NotTo, true), t.further(g.f, &g.other)...)
	if g.shape.ports != (nat.Ports{}) {
		all = append(all, portsWithin(part{field: g.widePorts}.loadAll(g.f, reg1), g.shape.ports)...)
	}
	if len(v.protocols) > 0 {
		all = append(all, t.protocols(v.protocols...)...)
	}
	return all
}

// selects is what a packet must be for a group: with the key of its only entry, or with one in m, which counts by entries
// and, where it is a map, leaves what it has in the registers.
func (t *table) selects(g *group, v variant, m *set) []expression {
	all := slices.Concat(t.conditions(g), g.common(), t.exceptions(g, v))
	switch {
	case m == nil:
		return all
	case m.flags&unix.NFT_SET_MAP == 0:
		return append(append(all, g.loadKey()...), m.lookup(reg1, false))
	}
	return append(append(all, g.loadKey()...), m.translate(reg1))
}

// loadKey puts what is sought into the registers from the first on.
func (g *group) loadKey() (all []expression) {
	word := uint32(0)
	for _, i := range g.sought {
		all = append(all, g.key[i].load(g.f, word00+word)...)
		word += words(g.key[i].datatype(g.f).Bytes)
	}
	return all
}

// keyType is the type of what is sought.
func (g *group) keyType() nftables.SetDatatype {
	var types []nftables.SetDatatype
	for _, i := range g.sought {
		types = append(types, g.key[i].datatype(g.f))
	}
	return concat(types...)
}

// words is how many registers of four bytes a value takes.
func words(bytes uint32) uint32 { return (bytes + 3) / 4 }

func (g *group) parts() []part { return g.key[:g.keys] }

// givesAddresses reports whether the addresses are different by entry, and so stand in
// a map.
func (g *group) givesAddresses() bool {
	switch g.kind {
	case nat.Masquerade, nat.Redirect, nat.Notrack, dropped, helped:
		return false
	}
	return len(g.pool) == 0 && !g.pairs
}

// mapOf is the map, or set, of a group's entries.
func (t *table) mapOf(g *group, v variant) *set {
	s := &set{name: g.name + v.suffix, key: g.keyType(), counted: !g.again(), about: g.comment()}
	if g.givesAddresses() {
		s.flags, s.data = unix.NFT_SET_MAP, g.f.address
		s.ranges = v.ports || g.prefix ||
			slices.ContainsFunc(g.entries, func(e entry) bool { return e.to.first != e.to.last })
		if v.ports || g.toPort {
			s.data = concat(g.f.address, nftables.TypeInetService)
		}
	}
	s.elements = make([]element, 0, len(g.entries))
	for _, e := range g.entries {
		s.elements = append(s.elements, g.element(e, v, s))
	}
	return t.add(s)
}

func concat(types ...nftables.SetDatatype) nftables.SetDatatype {
	if len(types) == 1 {
		return types[0]
	}
	return nftables.MustConcatSetType(types...) // never more than five
}

// element is an entry as the map has it.
func (g *group) element(e entry, v variant, s *set) element {
	out := element{comment: e.rule.Label(), key: g.keyOf(e)}
	if g.kind == dropped || g.kind == helped {
		out.comment = g.comment()
	}
	if s.flags&unix.NFT_SET_MAP == 0 {
		return out
	}
	out.data = e.to.data(s, v.ports || g.toPort)
	return out
}

// keyOf is what is sought of an entry, as a map has it.
func (g *group) keyOf(e entry) (key []byte) {
	if len(g.sought) == 1 { // what is not composed has its own length
		return e.values[g.sought[0]]
	}
	for _, i := range g.sought {
		key = appendPadded(key, e.values[i])
	}
	return key
}

// data is the target as a map has it: first and last where the map has ranges.
func (t target) data(s *set, withPort bool) (data []byte) {
	data = appendPadded(data, t.first.AsSlice())
	if withPort {
		data = appendPadded(data, portBytes(t.firstPort))
	}
	if s.ranges {
		data = appendPadded(data, t.last.AsSlice())
		if withPort {
			data = appendPadded(data, portBytes(t.lastPort))
		}
	}
	return data
}

// appendPadded fills a value up to a whole register.
func appendPadded(b, value []byte) []byte {
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// message is one of a transaction.
type message struct {
	kind  uint16 // NFT_MSG_*
	flags uint16
	body  attrs
	// about says what it is of the plan, exprs what it needs of the kernel, for errors;
	// of a rule that is in rule.
	about string
	exprs []string
	rule  *rule
	// elements are those of a set that are in it.
	elements []placed
}

// placed is where an element begins in a message's body, and what it is of the plan.
type placed struct {
	offset int
	about  string
}

// at returns what the plan has at an offset of the message, which the kernel counts from
// its header on; all that the message is about if the offset is of no element.
func (m *message) at(offset int) string {
	i := slices.IndexFunc(m.elements, func(e placed) bool { return headers+e.offset == offset && e.about != "" })
	if i < 0 {
		return m.about
	}
	return m.elements[i].about
}

// firstSequence is the number of a batch's first message; the one before it is the
// batch's own.
const firstSequence = 1

const familyInet = 1 // NFPROTO_INET

// headers are those before a message's body: nlmsghdr and nfgenmsg.
const headers = unix.SizeofNlMsghdr + netlink.SizeofNetfilter

// NFNL_MSG_BATCH_* of linux/netfilter/nfnetlink.h.
const batchBegin, batchEnd, batchGenID = 0x10, 0x11, 1

// batchOf is a whole transaction. Without its end the kernel checks all of it, says
// what it refuses, and does nothing: that is how natkit probes.
//
// A generation other than 0 is that of the rules that the transaction was made for; the
// kernel refuses it for others (NFNL_BATCH_GENID, Linux 4.10).
func batchOf(messages []message, generation uint32, end bool) []byte {
	var begin attrs
	if generation != 0 {
		begin.u32(batchGenID, generation)
	}
	size := 3 * headers
	for _, m := range messages {
		size += headers + len(m.body)
	}
	b := appendMessage(make([]byte, 0, size), batchBegin, 0, firstSequence-1, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, begin)
	for i, m := range messages {
		flags := m.flags
		if i == len(messages)-1 {
			flags |= unix.NLM_F_ACK
		}
		b = appendMessage(b, unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, flags, i+firstSequence, familyInet, 0, m.body)
	}
	if end {
		b = appendMessage(b, batchEnd, 0, firstSequence+len(messages), unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	}
	return b
}

func appendMessage(b []byte, kind, flags uint16, sequence int, family uint8, resource uint16, body attrs) []byte {
	start := len(b)
	b = netlink.Begin(b, kind, unix.NLM_F_REQUEST|flags, uint32(sequence))
	return netlink.End(append(netlink.AppendNetfilter(b, family, resource), body...), start)
}

// attrs are netlink attributes in the making. A nested one is begun and ended, so
// that a set of ten thousand elements is written once and copied never.
type attrs []byte

func (a *attrs) bytes(kind uint16, data []byte) { *a = netlink.AppendAttr(*a, kind, data) }

func (a *attrs) text(kind uint16, s string) { *a = netlink.AppendText(*a, kind, s) }

// u32 is a number as nf_tables keeps all of its own, in network byte order.
func (a *attrs) u32(kind uint16, v uint32) { *a = netlink.AppendU32(*a, kind, v) }

// begin opens a nested attribute; end, with what begin returned, closes it.
func (a *attrs) begin(kind uint16) (start int) {
	*a, start = netlink.BeginNest(*a, kind)
	return start
}

func (a *attrs) end(start int) { netlink.EndNest(*a, start) }
