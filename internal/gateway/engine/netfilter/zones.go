package netfilter

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// What comes from a zone gets its conntrack zone in the first of these chains, before fragments are put together
// (NF_IP_PRI_CONNTRACK_DEFRAG, -400): those of two hosts with one address are not mixed (nf_ct_defrag_user). The others
// mark what goes to a zone, before the route is chosen; the last one, of type route, has it chosen again.
const (
	zoneFirst = "zones"
	zoneIn    = "zone-prerouting"
	zoneOut   = "zone-output"
)

// zoneType is that of numbers of zones, in the order of bytes of the host.
var zoneType = func() nftables.SetDatatype {
	t := nftables.TypeInteger
	t.Bytes = 2
	return t
}()

func hostUint16(v uint16) []byte { return binary.NativeEndian.AppendUint16(nil, v) }

// Directions of a connection (IP_CT_DIR_ORIGINAL, IP_CT_DIR_REPLY).
const dirOriginal, dirReply = 0, 1

// zoneChain gives a packet the mark of a zone, which ends the chain that leads there.
func zoneChain(i int) string { return fmt.Sprintf("zone-%d", i+1) }

func zoneComment(z *gateway.Zone) string { return "zone " + z.Name }

// zones keeps zones apart, whose addresses overlap. The original direction alone is in the conntrack zone: answers are
// in that of all connections, where the kernel gives no address and port twice. Answers go to the zone that a connection
// came from; what a rule about destinations leads to a zone goes there; all else from a zone looks for its destination
// in that zone first.
func (t *table) zones(p *gateway.Plan) {
	if len(p.Zones) == 0 {
		return
	}
	numbers := &set{key: nftables.TypeIFName, data: zoneType, flags: unix.NFT_SET_MAP}
	byNumber, byMark, byName := t.zoneVerdicts(zoneType), t.zoneVerdicts(nftables.TypeMark), t.zoneVerdicts(nftables.TypeIFName)
	for i := range p.Zones {
		z := &p.Zones[i]
		to := zoneChain(i)
		t.chains = append(t.chains, chain{name: to})
		for _, exprs := range [][]expression{setMark(packetMark, reg1, p.ZoneMarks, z.Mark), {&expr.Verdict{Kind: expr.VerdictAccept}}} {
			t.rules = append(t.rules, rule{chain: to, comment: zoneComment(z), exprs: exprs})
		}
		byNumber.elements = append(byNumber.elements, element{key: hostUint16(z.Number), chain: to})
		byMark.elements = append(byMark.elements, element{key: hostUint32(z.Mark), chain: to})
		for _, name := range z.Interfaces {
			numbers.elements = append(numbers.elements, element{key: interfaceName(name), data: hostUint16(z.Number)})
			byName.elements = append(byName.elements, element{key: interfaceName(name), chain: to})
		}
	}
	iif := &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}
	t.rules = append(t.rules, rule{chain: zoneFirst, comment: "zones", exprs: []expression{iif, t.anonymous(numbers).translate(reg1), setZone(reg1)}})
	for _, hook := range []string{zoneIn, zoneOut} {
		t.rules = append(t.rules, rule{chain: hook, comment: "answers to zones", exprs: append(direction(dirReply), zoneOf(reg1), t.anonymous(byNumber.again()).verdict(reg1))})
		if leadsToZones(p) {
			exprs := append(direction(dirOriginal), masked(connectionMark.load(reg1), p.ZoneMarks)...)
			t.rules = append(t.rules, rule{chain: hook, comment: "destinations in zones", exprs: append(exprs, t.anonymous(byMark.again()).verdict(reg1))})
		}
	}
	t.rules = append(t.rules, rule{chain: zoneIn, comment: "from zones", exprs: []expression{iif, t.anonymous(byName).verdict(reg1)}})
}

func (t *table) zoneVerdicts(key nftables.SetDatatype) *set {
	return &set{key: key, data: nftables.TypeVerdict, flags: unix.NFT_SET_MAP}
}

// again is a set of the same elements for another rule.
func (s *set) again() *set {
	o := *s
	return &o
}

// leadsToZones reports whether a rule about destinations does.
func leadsToZones(p *gateway.Plan) bool {
	for i := range p.Destinations {
		if p.Destinations[i].Action.Zone != "" {
			return true
		}
	}
	return false
}

func direction(is byte) []expression {
	return []expression{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1}, equal(reg1, []byte{is})}
}

// zoneOf loads the number of the zone of a connection's original direction.
func zoneOf(register uint32) expression { return &expr.Ct{Key: expr.CtKeyZONE, Register: register} }

// setZone puts the original direction of a connection to be into the zone whose number a register has.
// google/nftables does not send the direction.
func setZone(register uint32) expression {
	r := raw{name: "ct", what: "ct zone"}
	r.data.u32(unix.NFTA_CT_KEY, unix.NFT_CT_ZONE)
	r.data.u32(unix.NFTA_CT_SREG, register)
	r.data.bytes(unix.NFTA_CT_DIRECTION, []byte{dirOriginal})
	return r
}

// inZone asks for connections from a zone.
func (t *table) inZone(m *nat.Match) []expression {
	if m.Zone == "" {
		return nil
	}
	z := t.plan.ZoneNamed(m.Zone)
	return []expression{zoneOf(reg1), equal(reg1, hostUint16(z.Number))}
}

// toZone marks a connection whose destination a rule leads to a zone, and its first packet. The register is none that
// translations use.
func (t *table) toZone(g *group) []expression {
	if g.zone == "" {
		return nil
	}
	z := t.plan.ZoneNamed(g.zone)
	return append(setMark(packetMark, reg4, t.plan.ZoneMarks, z.Mark), setMark(connectionMark, reg4, t.plan.ZoneMarks, z.Mark)...)
}
