package natrules

import (
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
)

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
