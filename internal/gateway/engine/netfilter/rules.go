package netfilter

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// Comments of rules that no entry of nat or ipv6 has made.
const (
	MSSComment       = "mss"
	LimitComment     = "limits connections-per-source"
	FlowtableComment = "flowtable"
	LogComment       = "log"
)

// mss bounds the maximum segment size in SYNs through the gateway. The kernel only
// ever makes it smaller (nft_exthdr_tcp_set_eval), and takes the smaller one of the
// routes' MTUs of both directions (nft_rt get_tcpmss).
func (t *table) mss(m gateway.MSS) {
	if !m.Clamp && m.Bytes == 0 {
		return
	}
	const optionMSS = 2
	exprs := t.protocols(unix.IPPROTO_TCP)
	exprs = append(exprs,
		payload(expr.PayloadBaseTransportHeader, 13, 1, reg1),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{0x06}, Xor: []byte{0}}, // SYN, RST
		equal(reg1, []byte{0x02}), &expr.Counter{})
	if m.Clamp {
		exprs = append(exprs, &expr.Rt{Register: reg1, Key: expr.RtTCPMSS},
			&expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 2, Size: 2})
	} else {
		exprs = append(exprs, immediate(reg1, portBytes(m.Bytes)))
	}
	exprs = append(exprs, &expr.Exthdr{SourceRegister: reg1, Type: optionMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt})
	t.rules = append(t.rules, rule{chain: "mss", exprs: exprs, comment: MSSComment})
}

// ttl sets that of what is forwarded by a WAN interface, after the kernel has taken one off (ip_forward). What the
// gateway sends itself has its own: neighbour discovery needs a hop limit of 255.
func (t *table) ttl(p *gateway.Plan) {
	if p.TTL == 0 {
		return
	}
	for _, f := range []*family{ip4, ip6} { // two bytes each: TTL and protocol, next header and hop limit
		at, mask, value := place{base: expr.PayloadBaseNetworkHeader, offset: 8, mends: true, checksum: 10}, []byte{0, 0xff}, []byte{byte(p.TTL), 0}
		if f.v6 {
			at, mask, value = place{base: expr.PayloadBaseNetworkHeader, offset: 6}, []byte{0xff, 0}, []byte{0, byte(p.TTL)}
		}
		t.rules = append(t.rules, rule{chain: "forward", comment: "ttl", exprs: slices.Concat(t.interfaces(expr.MetaKeyOIFNAME, p.WAN, false), f.is(), []expression{
			at.load(2), &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 2, Mask: mask, Xor: value}, at.store(2, reg1)})})
	}
}

// helped is the kind of groups of connections that get a helper.
const helped nat.Kind = "helper"

func helperComment(s gateway.HelperService) string { return "helper " + string(s.Helper) }

// helperObject is the name of a helper's object.
func helperObject(s gateway.HelperService) string {
	return string(s.Helper) + "-" + nat.ProtocolName(s.Protocol)
}

// attach gives a connection a helper; one that the tracker has entered into its table gets none any more.
func attach(s gateway.HelperService) expression {
	return &expr.Objref{Type: ctHelper, Name: helperObject(s)}
}

// helpers gives new connections from inside helpers, and those that a rule leads inside: behind the tracker, and
// before any translation, whose sequence numbers it prepares (nf_nat_setup_info adds nf_conn_seqadj then).
func (t *table) helpers(p *gateway.Plan, f *family) {
	for _, s := range p.HelperServices() {
		if s.V4Only && f.v6 {
			continue
		}
		if !slices.Contains(t.objects, s) {
			t.objects = append(t.objects, s)
		}
		exprs := slices.Concat(t.fromInside(p), f.is(), t.protocols(s.Protocol), []expression{payload(expr.PayloadBaseTransportHeader, 2, 2, reg1), equal(reg1, portBytes(s.Port)), attach(s)})
		t.rules = append(t.rules, rule{chain: "helpers", comment: helperComment(s), exprs: exprs})
		var in groups
		for i := range p.Destinations {
			ports, some := s.AskedFor(&p.Destinations[i])
			if !some || p.Destinations[i].IsOwn() {
				continue
			}
			d := p.Destinations[i]
			d.Protocol, d.Ports, d.Action, d.Log = s.Protocol, ports, nat.Action{Kind: helped}, nil
			in.collect(&d, f, byDestination)
		}
		for _, g := range in.all {
			g.helper = s
		}
		t.emitAll("helpers", helperObject(s)+f.suffix, in)
	}
}

// NFTA_OBJ_* and NFT_OBJECT_CT_HELPER of linux/netfilter/nf_tables.h.
const objTable, objName, objType, objData, ctHelper = 1, 2, 3, 4, 3

// helperMessage makes the object of a helper; the kernel loads its module, nfct-helper-NAME.
func helperMessage(s gateway.HelperService) message {
	const helperName, helperL4 = 1, 3 // NFTA_CT_HELPER_*
	m := message{kind: unix.NFT_MSG_NEWOBJ, flags: unix.NLM_F_CREATE, about: "helpers", exprs: []string{helperComment(s)}}
	m.body.text(objTable, Table)
	m.body.text(objName, helperObject(s))
	m.body.u32(objType, ctHelper)
	data := m.body.begin(objData)
	m.body.text(helperName, string(s.Helper))
	m.body.bytes(helperL4, []byte{s.Protocol})
	m.body.end(data)
	return m
}

// limitedSources is how many sources the limit knows at one time; those beyond are
// not limited.
const limitedSources = 1 << 18

// limit drops new connections of sources that have too many. A connection counts as
// long as it is in the tracker's table. The set is called by the limit, so that an apply
// with the same one keeps it; with another one the counts begin anew, with the
// connections that come then.
func (t *table) limit(p *gateway.Plan, f *family) {
	if p.ConnectionsPerSource <= 0 {
		return
	}
	s := &set{name: fmt.Sprintf("limit%s-%d", f.suffix, p.ConnectionsPerSource), key: f.address, flags: unix.NFT_SET_EVAL, size: limitedSources, about: LimitComment}
	key := []expression{payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), reg1)}
	if len(p.Zones) > 0 { // an address is that of several hosts
		s.name, s.key = s.name+"-zones", concat(nftables.TypeIFIndex, f.address)
		key = []expression{&expr.Meta{Key: expr.MetaKeyIIF, Register: word00}, payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), word00+1)}
	}
	t.add(s)
	exprs := slices.Concat(newConnections(), t.fromInside(p), f.is(), key)
	exprs = append(exprs,
		&expr.Dynset{SrcRegKey: reg1, SetName: s.name, SetID: s.id, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: over(uint32(min(p.ConnectionsPerSource, 1<<31)))},
		&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
	t.rules = append(t.rules, rule{chain: "forward", exprs: exprs, comment: LimitComment})
}

// newConnections asks for the first packet of a connection: its state is new, and the
// tracker has not yet entered it into its table (nf_conntrack_confirm, after this chain).
// More packets of one without an answer are new, too, but counted already; of a source
// that asks for too many they would be dropped.
func newConnections() []expression {
	const confirmed = 1 << 3 // IPS_CONFIRMED
	return append(ctBits(expr.CtKeySTATE, expr.CtStateBitNEW, expr.CmpOpNeq), ctBits(expr.CtKeySTATUS, confirmed, expr.CmpOpEq)...)
}

// ctBits compares some bits of what is known of the connection with none.
func ctBits(key expr.CtKey, bits uint32, op expr.CmpOp) []expression {
	return []expression{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: hostUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg1, Data: make([]byte, 4)},
	}
}

func hostUint32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// fromInside asks for a LAN interface; where none is named, for one that is not WAN.
func (t *table) fromInside(p *gateway.Plan) []expression {
	if len(p.LAN) > 0 {
		return t.interfaces(expr.MetaKeyIIFNAME, p.LAN, false)
	}
	return t.interfaces(expr.MetaKeyIIFNAME, p.WAN, true)
}

func over(count uint32) []expr.Any {
	return []expr.Any{&expr.Connlimit{Count: count, Flags: expr.NFT_CONNLIMIT_F_INV}}
}

const flowtableName = "fastpath"

// offload hands established connections to the kernel's fast path, over those of the
// interfaces that are there.
func (t *table) offload(h host) {
	if len(h.flowtable) == 0 {
		return
	}
	t.flowtable = &flowtable{name: flowtableName, devices: h.flowtable, counted: h.flowCounts}
	exprs := t.protocols(unix.IPPROTO_TCP, unix.IPPROTO_UDP)
	exprs = append(exprs, &expr.Counter{}, &expr.FlowOffload{Name: flowtableName})
	t.rules = append(t.rules, rule{chain: "forward", exprs: exprs, comment: FlowtableComment})
}

// hairpinChain has the sources that connections get which come back inside.
const hairpinChain = "hairpin"

// hairpins lead connections there whose destination was translated and that come in and
// leave by interfaces inside. The gateway's own come in by none; nor does what a bridge
// takes from one port to another where it hands packets to netfilter (br_nf_post_routing
// in net/bridge/br_netfilter_hooks.c), which its source distinguishes from them.
func (t *table) hairpins(p *gateway.Plan) {
	if !asksHairpins(p) {
		return
	}
	names, others := p.LAN, false
	if len(names) == 0 {
		names, others = p.WAN, true
	}
	none := make([]byte, 4)
	iif := &expr.Meta{Key: expr.MetaKeyIIF, Register: reg1}
	routed := append([]expression{iif, unequal(reg1, none)}, t.interfaces(expr.MetaKeyIIFNAME, names, others)...)
	bridged := []expression{iif, equal(reg1, none),
		&expr.Fib{Register: reg1, ResultADDRTYPE: true, FlagSADDR: true}, unequal(reg1, hostUint32(unix.RTN_LOCAL))}
	for _, came := range [][]expression{routed, bridged} {
		t.rules = append(t.rules, rule{chain: "postrouting", comment: "hairpin", exprs: slices.Concat(translated(), came,
			t.interfaces(expr.MetaKeyOIFNAME, names, others), []expression{&expr.Verdict{Kind: expr.VerdictJump, Chain: hairpinChain}})})
	}
}

// translated asks whether the destination was.
func translated() []expression {
	const dstNAT = 1 << 5 // IPS_DST_NAT
	return ctBits(expr.CtKeySTATUS, dstNAT, expr.CmpOpNeq)
}

// neutralChain is for what goes back inside without state: other packets pay for the
// rule that leads there, and not for those in it.
const neutralChain = "stateless-hairpin"

// neutralHairpins bring back what hosts inside send to addresses outside of the same
// site (RFC 6296, section 4.3): as if it had left, and come in. Both are done before
// there is a route, as behind that nothing distinguishes such a packet from others
// inside. Where a pair is for any interface, its own rules do both.
func (t *table) neutralHairpins(p *gateway.Plan) {
	var all []*rewriter
	var insides, outsides []netip.Prefix
	for _, pair := range p.Stateless {
		if pair.Reflects() {
			all = append(all, &rewriter{t: t, f: ip6, pairs: []gateway.Entry{pair}})
			insides, outsides = append(insides, pair.Inside()), append(outsides, pair.Outside())
		}
	}
	if len(all) == 0 {
		return
	}
	t.rules = append(t.rules, rule{chain: "raw-prerouting", comment: all[0].pairs[0].Rule.Label(), exprs: slices.Concat(ip6.is(),
		t.interfaces(expr.MetaKeyIIFNAME, p.Reflecting(), true),
		t.addresses(ip6, ip6.daddr, outsides, false), t.addresses(ip6, ip6.saddr, insides, false),
		[]expression{&expr.Notrack{}, &expr.Verdict{Kind: expr.VerdictGoto, Chain: neutralChain}})})
	// An error quotes what came from an address outside, to one inside.
	for _, r := range all {
		r.reflect(r.icmpErrors, ip6.quoted(false), ip6.quoted(true))
	}
	for _, r := range all {
		r.reflect(func() []expression { return nil }, ip6.header(true), ip6.header(false))
	}
}

// reflect translates an address outside into the one inside at one place, and the other
// way round at another.
func (r *rewriter) reflect(start conditions, in, out place) {
	pair := r.pairs[0]
	r.neutral(neutralChain, start, out, pair.Inside(), pair.Outside(), nil)
	r.neutral(neutralChain, start, in, pair.Outside(), pair.Inside(), nil)
}
