package netfilter

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// The chains that mark packets by the uplink of their connection come after those of others that mark (mangle, -150):
// a mark of an uplink that they give counts. The route is chosen behind the first; the second, of type route, has it
// chosen again. The others are for what is the gateway's own: the third marks it by the uplink that it does leave by, as a
// program may have chosen the interface; the last translates what leaves by another uplink than its source address is of.
const (
	uplinkIn     = "uplink-prerouting"
	uplinkOut    = "uplink-output"
	uplinkBy     = "uplink-leaving"
	uplinkSource = "uplink-postrouting"
)

// slotsName begins the names of the maps that give each slot its uplink, and with outName those of the sets of uplinks
// that are out.
const (
	slotsName = "uplinks"
	outName   = slotsName + "-out"
)

// uplinkChain gives a packet and its connection the mark of an uplink, which ends the chain that leads there.
func uplinkChain(i int) string { return fmt.Sprintf("uplink-%d", i+1) }

// uplinks keeps connections on their uplink: packets get the mark of their connection, a new connection that of the
// uplink that it comes in by, so that answers leave there; one from inside that of the slot which its source has.
func (t *table) uplinks(p *gateway.Plan) {
	if len(p.Uplinks) == 0 {
		return
	}
	for i, u := range p.Uplinks {
		t.chains = append(t.chains, chain{name: uplinkChain(i)})
		for _, exprs := range [][]expression{ // a rule ends where a packet has no connection
			setMark(packetMark, reg1, p.Marks, u.Mark), setMark(connectionMark, reg1, p.Marks, u.Mark), {&expr.Verdict{Kind: expr.VerdictAccept}}} {
			t.rules = append(t.rules, rule{chain: uplinkChain(i), comment: "wan " + u.Interface, exprs: exprs})
		}
	}
	for _, hook := range []string{uplinkIn, uplinkOut} {
		for _, mark := range []mark{connectionMark, packetMark} {
			to := t.toUplink(nftables.TypeMark, p, func(u gateway.Uplink) []byte { return hostUint32(u.Mark) })
			t.rules = append(t.rules, rule{chain: hook, comment: mark.comment, exprs: append(masked(mark.load(reg1), p.Marks), to)})
		}
	}
	by := []expression{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, t.toUplink(nftables.TypeIFName, p, byName)}
	t.rules = append(t.rules, rule{chain: uplinkIn, comment: "wan in", exprs: append(newPackets(), by...)})
	for _, f := range []*family{ip4, ip6} {
		if p.IPv4 && !f.v6 || p.IPv6 && f.v6 {
			t.divide(p, f)
		}
	}
	t.translateOwn(p)
}

// translateOwn gives connections of the gateway's own, which divide had leave by an uplink that has not their source
// address, its address: programs choose theirs by the main table's routes. Rules of the file come first.
func (t *table) translateOwn(p *gateway.Plan) {
	isLocal := func(of *expr.Fib, op expr.CmpOp) []expression {
		of.Register, of.ResultADDRTYPE, of.FlagSADDR = reg1, true, true
		return []expression{of, &expr.Cmp{Op: op, Register: reg1, Data: hostUint32(unix.RTN_LOCAL)}}
	}
	own := append(ctBits(expr.CtKeyMARK, p.Marks, expr.CmpOpNeq), isLocal(&expr.Fib{}, expr.CmpOpEq)...)
	by := []expression{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, t.toUplink(nftables.TypeIFName, p, byName)}
	t.rules = append(t.rules, rule{chain: uplinkBy, exprs: slices.Concat(own, by), comment: "wan of own connections"},
		rule{chain: uplinkSource, comment: "wan of own connections", exprs: slices.Concat(own, t.interfaces(expr.MetaKeyOIFNAME, uplinkNames(p), false),
			isLocal(&expr.Fib{FlagOIF: true}, expr.CmpOpNeq), []expression{raw{name: "masq"}})})
}

func byName(u gateway.Uplink) []byte { return interfaceName(u.Interface) }

func uplinkNames(p *gateway.Plan) (names []string) {
	for _, u := range p.Uplinks {
		names = append(names, u.Interface)
	}
	return names
}

// divide sends each source to the uplink of its slot, and what the gateway itself would send by an uplink that is out.
// Slots have the type of marks: nft(8) has no name for the one of a hash.
func (t *table) divide(p *gateway.Plan, f *family) {
	s, out := t.add(newSlots(p, f, nil)), t.add(newOut(p, f, nil))
	bySlot := append(f.is(), payload(expr.PayloadBaseNetworkHeader, f.saddr, uint32(f.bytes), reg2),
		&expr.Hash{SourceRegister: reg2, DestRegister: reg1, Length: uint32(f.bytes), Modulus: uint32(len(s.elements)), Seed: gateway.UplinkSeed, Type: expr.HashTypeJenkins},
		s.verdict(reg1))
	t.rules = append(t.rules,
		rule{chain: uplinkIn, exprs: slices.Concat(newPackets(), t.fromInside(p), bySlot), comment: "wan out"},
		rule{chain: uplinkOut, comment: "wan of own connections", exprs: slices.Concat(ctBits(expr.CtKeySTATE, expr.CtStateBitNEW, expr.CmpOpNeq),
			[]expression{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, out.lookup(reg1, false)}, bySlot)})
}

// newOut is the set of the uplinks of a family that are out.
func newOut(p *gateway.Plan, f *family, out []bool) *set {
	s := &set{name: outName + f.suffix, key: nftables.TypeIFName, about: "wan"}
	for i, u := range p.Uplinks {
		if out != nil && out[i] {
			s.elements = append(s.elements, element{key: interfaceName(u.Interface)})
		}
	}
	return s
}

// newSlots is the map of a family, without the uplinks that are out.
func newSlots(p *gateway.Plan, f *family, out []bool) *set {
	s := &set{name: slotsName + f.suffix, key: nftables.TypeMark, data: nftables.TypeVerdict, flags: unix.NFT_SET_MAP, about: "wan"}
	for n, i := range p.Slots(func(i int) bool { return out == nil || !out[i] }) {
		s.elements = append(s.elements, element{key: hostUint32(uint32(n)), chain: uplinkChain(i)})
	}
	return s
}

// steering is the choice among the uplinks of a plan, of a family.
func steering(p *gateway.Plan, f *family) *placing {
	return &placing{of: "connections by wan",
		without: func(out []bool) []*set {
			if !slices.Contains(out, false) { // where all are out none is
				out = nil
			}
			return []*set{newSlots(p, f, out), newOut(p, f, out)}
		},
		out: func(found []map[string][]byte) []bool {
			out := make([]bool, len(p.Uplinks))
			for i, u := range p.Uplinks {
				_, out[i] = found[1][string(interfaceName(u.Interface))]
			}
			return out
		}}
}

// toUplink goes on in the chain of the uplink that reg1 names; nowhere where it names none.
func (t *table) toUplink(key nftables.SetDatatype, p *gateway.Plan, of func(gateway.Uplink) []byte) expression {
	s := &set{key: key, data: nftables.TypeVerdict, flags: unix.NFT_SET_MAP}
	for i, u := range p.Uplinks {
		s.elements = append(s.elements, element{key: of(u), chain: uplinkChain(i)})
	}
	return t.anonymous(s).verdict(reg1)
}

// newPackets asks for the first packets of connections, and for packets without one.
func newPackets() []expression {
	return ctBits(expr.CtKeySTATE, expr.CtStateBitNEW|expr.CtStateBitUNTRACKED, expr.CmpOpNeq)
}

// mark is that of a packet or of its connection.
type mark struct {
	comment string
	load    func(register uint32) expression
	store   func(register uint32) expression
}

var (
	connectionMark = mark{"wan of the connection",
		func(r uint32) expression { return &expr.Ct{Key: expr.CtKeyMARK, Register: r} },
		func(r uint32) expression { return &expr.Ct{Key: expr.CtKeyMARK, Register: r, SourceRegister: true} }}
	packetMark = mark{"wan by another program's mark",
		func(r uint32) expression { return &expr.Meta{Key: expr.MetaKeyMARK, Register: r} },
		func(r uint32) expression { return &expr.Meta{Key: expr.MetaKeyMARK, Register: r, SourceRegister: true} }}
)

// masked loads a mark into reg1, and keeps some of its bits.
func masked(load expression, marks uint32) []expression {
	return []expression{load, &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: hostUint32(marks), Xor: make([]byte, 4)}}
}

// setMark sets some bits of a mark by way of a register, and leaves the others.
func setMark(m mark, register, marks, value uint32) []expression {
	return []expression{m.load(register),
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: hostUint32(^marks), Xor: hostUint32(value)}, m.store(register)}
}

// Steer leaves uplinks out of the choice of new connections, by one transaction: of IPv4 and of IPv6; nil for a family
// that stays as it is. Where all are out none is. Connections that there are stay on their uplink.
func (Engine) Steer(ns *netns.Handle, p *gateway.Plan, out [2][]bool) error {
	var all []chosen
	for i, f := range []*family{ip4, ip6} {
		if out[i] != nil {
			all = append(all, chosen{steering(p, f), out[i]})
		}
	}
	if err := choose(ns, all); err != nil {
		return fmt.Errorf("divide connections among uplinks: %w", err)
	}
	return nil
}

// Steered returns which uplinks of a plan in force are not left out of that choice, of IPv4 and of IPv6; nil for a family that
// is not divided, or whose map is not as natkit would have it.
func (Engine) Steered(ns *netns.Handle, p *gateway.Plan) (used [2][]bool, err error) {
	for i, f := range []*family{ip4, ip6} {
		if len(p.Uplinks) == 0 || !f.v6 && !p.IPv4 || f.v6 && !p.IPv6 {
			continue
		}
		if used[i], err = steering(p, f).used(ns); err != nil {
			return used, err
		}
	}
	return used, nil
}
