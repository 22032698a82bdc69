package natrules

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

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
