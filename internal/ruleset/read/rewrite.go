package read

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/tune"
	"golang.org/x/sys/unix"
)

// options are what the rule has now.
func (e *edit) options() tune.NATOptions {
	var o tune.NATOptions
	flags := uint32(0)
	switch {
	case e.xt != nil:
		flags, o.FirstPort, o.LastPort = e.xt.flags, e.xt.firstPort, e.xt.lastPort
	default:
		x := e.rule.exprs[e.at]
		flags = x.data.u32(natAttrsOf[x.name].flags)
		if e.portMin >= 0 {
			o.FirstPort, o.LastPort = e.port(e.portMin), e.port(e.portMax)
		}
	}
	o.Random = flags&rangeRandom != 0
	o.FullyRandom = flags&rangeFullyRandom != 0
	o.Persistent = flags&rangePersistent != 0
	return o
}

func (e *edit) port(i int) uint16 {
	return beUint16(e.rule.exprs[i].data.nested(nftImmediateData).get(nftDataValue))
}

// withPorts are the protocols that NAT gives ports to; iptables and nft take a
// range of ports only behind a condition on them.
var withPorts = []string{"tcp", "udp", "udplite", "sctp", "dccp"}

// accepts says why a rule for these protocols (none: for all) cannot have the
// options, or could not be given back those that it has.
func (e *edit) accepts(o tune.NATOptions, protocols []string) error {
	other := func(p string) bool { return !slices.Contains(withPorts, p) }
	was := e.options()
	if (o.FirstPort != 0) != (was.FirstPort != 0) && (len(protocols) == 0 || slices.ContainsFunc(protocols, other)) {
		return errors.New("it is not only for protocols that have ports, and iptables and nft take a range of ports nowhere else: make rules for tcp and udp in the program that loads them, or change only its options (fully-random)")
	}
	name := e.rule.exprs[e.at].data.text(nftXtName)
	if e.xt != nil && name == "MASQUERADE" && o.Persistent {
		return errors.New("iptables' MASQUERADE has no option persistent")
	}
	return nil
}

func rangeFlags(o tune.NATOptions) (flags uint32) {
	for _, f := range []struct {
		on   bool
		flag uint32
	}{{o.FirstPort != 0, rangePorts}, {o.Random, rangeRandom}, {o.FullyRandom, rangeFullyRandom}, {o.Persistent, rangePersistent}} {
		if f.on {
			flags |= f.flag
		}
	}
	return flags
}

// expressions are the rule's with other options: what NFTA_RULE_EXPRESSIONS holds.
// All others are as the kernel told them, counters included.
func (e *edit) expressions(o tune.NATOptions, rename map[string]newSet) ([]byte, error) {
	var b []byte
	for i, x := range e.rule.exprs {
		switch {
		case e.portImmediate(i):
		case i == e.at && e.xt != nil:
			data := replaceAttr(x.data, nftXtInfo, e.withRange(rangeFlags(o), o.FirstPort, o.LastPort))
			b = appendExpr(b, x.name, data)
		case i == e.at:
			with, err := e.translation(o)
			if err != nil {
				return nil, err
			}
			b = append(b, with...)
		case x.name == "lookup" && rename[x.data.text(nftLookupSet)].id != 0:
			b = appendExpr(b, x.name, rename[x.data.text(nftLookupSet)].lookup(x.data))
		default:
			b = appendAttr(b, nftListElem|nlaNested, x.raw)
		}
	}
	return b, nil
}

// translation is nat or masq, behind the immediates that load its ports.
func (e *edit) translation(o tune.NATOptions) ([]byte, error) {
	x := e.rule.exprs[e.at]
	n := natAttrsOf[x.name]
	var before, data []byte
	for _, a := range x.data {
		if a.kind != n.portMin && a.kind != n.portMax && a.kind != n.flags {
			data = append(data, a.raw...)
		}
	}
	if flags := x.data.u32(n.flags)&^portFlags | rangeFlags(o); flags != 0 {
		data = appendU32(data, n.flags, flags)
	}
	free := e.freeRegisters(n)
	load := func(kind uint16, port uint16) {
		before = appendExpr(before, "immediate", immediatePort(free[0], port))
		data = appendU32(data, kind, free[0])
		free = free[1:]
	}
	if o.FirstPort != 0 {
		if len(free) < 2 {
			return nil, fmt.Errorf("rule %d of %s: no register is free for ports", e.rule.handle, e.rule.chain)
		}
		load(n.portMin, o.FirstPort)
		if o.LastPort != o.FirstPort {
			load(n.portMax, o.LastPort)
		}
	}
	return appendExpr(before, x.name, data), nil
}

// freeRegisters are those of NFT_REG_1 to NFT_REG_4 that do not hold addresses.
// Whatever else is in them nobody reads after a translation, which ends the rule.
func (e *edit) freeRegisters(n natAttrs) []uint32 {
	a := e.rule.exprs[e.at].data
	free := []uint32{1, 2, 3, 4}
	for _, kind := range []uint16{n.addrMin, n.addrMax} {
		if kind != 0 && a.has(kind) {
			used := slot(a.u32(kind))/4 + 1
			free = slices.DeleteFunc(free, func(r uint32) bool { return r == used })
		}
	}
	return free
}

func immediatePort(register uint32, port uint16) []byte {
	value := appendAttr(nil, nftDataValue, binary.BigEndian.AppendUint16(nil, port))
	return appendAttr(appendU32(nil, nftImmediateDreg, register), nftImmediateData|nlaNested, value)
}

func appendExpr(b []byte, name string, data []byte) []byte {
	e := appendAttr(appendText(nil, nftExprName, name), nftExprData|nlaNested, data)
	return appendAttr(b, nftListElem|nlaNested, e)
}

// replaceAttr writes attributes out again, one of them with other content.
func replaceAttr(a attrs, kind uint16, data []byte) []byte {
	var b []byte
	for _, x := range a {
		if x.kind == kind {
			b = appendAttr(b, kind, data)
		} else {
			b = append(b, x.raw...)
		}
	}
	return b
}

func (m *machine) compare(a attrs) {
	if e, ok := m.picked[m.at]; ok { // a part of a range
		m.isBetween(slot(a.u32(nftCmpSreg)), e)
		return
	}
	c := m.held(a.u32(nftCmpSreg))
	data := a.nested(nftCmpData).get(nftDataValue)
	if c.from == metaData && c.key == metaL4proto && len(data) > 0 {
		m.step.proto, m.step.protoNot = data[0], a.u32(nftCmpOp) == 1 // NFT_CMP_NEQ
	}
	if c.from == metaData && c.key == unix.NFT_META_MARK {
		m.step.rule.Marked = true
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
		s.setText(&s.rule.Protocol, nat.ProtocolName(data[0]))
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
			s.setText(&s.rule.Protocol, nat.ProtocolName(data[0]))
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
