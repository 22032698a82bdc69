// Package netfilter carries out a gateway.Plan by nftables: it writes, reads and removes
// the table "inet natkit", and touches no other.
package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

func apply(ns *netns.Handle, p *gateway.Plan, digest string) error {
	there, err := present(ns, p.Flowtable)
	if err != nil {
		return err
	}
	return write(p, digest, there, func(t *table) error { return commit(ns, t) })
}

// write makes the table of a plan as this kernel can have it, with a flowtable over some
// interfaces, by a function that hands it to the kernel.
func write(p *gateway.Plan, digest string, flowtable []string, hand func(*table) error) error {
	if err := valid(p); err != nil {
		return err
	}
	k, err := kernel()
	if err == nil {
		err = old(p, k)
	}
	if err != nil {
		return err
	}
	h := host{digest: digest, flowtable: flowtable, netmap: true, flowCounts: p.Accounting, cameIn: gateway.NoHairpin(k) == ""}
	err = hand(build(p, h))
	for h.without(err) {
		err = hand(build(p, h))
	}
	return err
}

// without notes what the kernel lacks and the table can be written without; false
// where it is something else, or nothing.
func (h *host) without(err error) bool {
	var m *Missing
	switch {
	case !errors.As(err, &m):
		return false
	case m.What == "nat prefix" && h.netmap:
		h.netmap = false
	case m.What == "flowtable" && h.flowCounts:
		h.flowCounts = false
	default:
		return false
	}
	return true
}

// present are the interfaces that there are in the namespace.
func present(ns *netns.Handle, names []string) (there []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	look := func() error {
		all, err := net.Interfaces()
		for _, i := range all {
			if slices.Contains(names, i.Name) {
				there = append(there, i.Name)
			}
		}
		return err
	}
	if err = ns.Do(look); err != nil {
		return nil, fmt.Errorf("list interfaces for the flowtable: %w", err)
	}
	slices.Sort(there)
	return there, nil
}

// attempts is how often an apply that keeps something, or is to be sealed, begins again as
// others change rules meanwhile.
const attempts = 5

func commit(ns *netns.Handle, t *table) error {
	for range attempts {
		was, err := t.keeps(ns)
		if err != nil {
			return err
		}
		err = transact(ns, t, was)
		if was == nil || err == nil {
			return err
		}
		if !errors.Is(err, unix.ERESTART) {
			break // then without what was to be kept
		}
	}
	for _, s := range t.sets {
		s.there = false
	}
	return transact(ns, t, nil)
}

func transact(ns *netns.Handle, t *table, was *read.Table) error {
	messages, err := t.messages(was)
	if err != nil {
		return err
	}
	generation := uint32(0)
	if was != nil {
		generation = was.Generation
	}
	return transaction(ns, messages, generation)
}

// transaction carries messages out, all of them or none; of a generation other than 0
// see batchOf.
func transaction(ns *netns.Handle, messages []message, generation uint32) error {
	refused, err := send(ns, messages, generation, true)
	if err != nil {
		return err
	}
	return inWords(ns, messages, refused)
}

// Remove takes natkit's table away; nothing where there is none. Connections that it
// translated stay translated only where another table has a rule of NAT: with the last
// one the kernel stops translating (nf_nat_unregister_fn) or tracking
// (nf_ct_netns_put) altogether.
func (Engine) Remove(ns *netns.Handle) error {
	err := transaction(ns, []message{tableMessage(unix.NFT_MSG_DELTABLE)}, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the gateway's rules: %w", err)
	}
	return nil
}

// act is what is done to packets of which the table of rules knows the addresses.
func (g *group) act(v variant, to target) []expression {
	switch g.kind {
	case nat.Notrack:
		return []expression{&expr.Notrack{}}
	case dropped:
		drop := &expr.Verdict{Kind: expr.VerdictDrop}
		if g.hasPairs() { // a write reads the register as well, and unlike a comparison nft(8) has words for it
			return []expression{g.f.header(false).store(uint32(g.f.bytes), pairRegister), drop}
		}
		return []expression{drop}
	case helped:
		if g.hasPairs() {
			return []expression{g.f.read(), attach(g.helper)}
		}
		return []expression{attach(g.helper)}
	case nat.Masquerade:
		return g.masquerade(v)
	case nat.Redirect:
		return []expression{immediate(reg1, portBytes(g.action.ports.First)), &expr.Redir{RegisterProtoMin: reg1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}}
	}
	n := g.nat()
	var all []expression
	if g.pairs {
		n.RegAddrMin = pairRegister
		return []expression{n}
	}
	if len(g.pool) > 0 {
		n.RegAddrMin = reg1
		if g.kind == nat.SNAT {
			n.RegAddrMax = word00 + words(uint32(g.f.bytes))
		} else if g.toPort {
			n.RegProtoMin = word00 + words(uint32(g.f.bytes))
		}
	} else {
		n.RegAddrMin = reg1
		all = append(all, immediate(reg1, to.first.AsSlice()))
		if to.first != to.last {
			n.RegAddrMax = reg2
			all = append(all, immediate(reg2, to.last.AsSlice()))
		}
	}
	if v.ports || to.firstPort > 0 && g.kind == nat.DNAT && !g.prefix {
		n.RegProtoMin = reg3
		all = append(all, immediate(reg3, portBytes(to.firstPort)))
		if to.lastPort != to.firstPort {
			n.RegProtoMax = reg4
			all = append(all, immediate(reg4, portBytes(to.lastPort)))
		}
	}
	if v.keep != nil {
		all, n.RegProtoMin = append(all, v.keep), reg3
	}
	return append(all, n)
}

// actMapped is what is done where a map has put the addresses into registers.
func (g *group) actMapped(v variant, s *set) []expression {
	n := g.nat()
	address, withPort := words(uint32(g.f.bytes)), v.ports || g.toPort
	n.RegAddrMin = reg1
	if withPort {
		n.RegProtoMin = word00 + address
	}
	if s.ranges {
		half := words(s.data.Bytes)
		n.RegAddrMax = word00 + half
		if withPort {
			n.RegProtoMax = word00 + half + address
		}
	}
	if v.keep != nil {
		n.RegProtoMin = reg3
		return []expression{v.keep, n}
	}
	return []expression{n}
}

// nat is the translation without registers.
func (g *group) nat() *expr.NAT {
	n := &expr.NAT{
		Type: expr.NATTypeSourceNAT, Family: uint32(g.f.proto),
		Random: g.random == nat.RandomPorts, FullyRandom: g.random == nat.RandomFully, Persistent: g.persistent,
		Prefix: g.prefix,
	}
	if g.kind == nat.DNAT {
		n.Type = expr.NATTypeDestNAT
	}
	return n
}

// masquerade is written by hand: google/nftables leaves the flags out where there are
// ports, and kernels before 6.x want the one that says so from us.
func (g *group) masquerade(v variant) []expression {
	var all []expression
	flags, m := g.flags(), raw{name: "masq"}
	switch {
	case v.keep != nil:
		all, flags = append(all, v.keep), flags|unix.NF_NAT_RANGE_PROTO_SPECIFIED
		m.data.u32(unix.NFTA_MASQ_REG_PROTO_MIN, reg3)
	case v.ports:
		flags |= unix.NF_NAT_RANGE_PROTO_SPECIFIED
		all = append(all, immediate(reg1, portBytes(g.action.ports.First)), immediate(reg2, portBytes(g.action.ports.Last)))
		m.data.u32(unix.NFTA_MASQ_REG_PROTO_MIN, reg1)
		m.data.u32(unix.NFTA_MASQ_REG_PROTO_MAX, reg2)
	}
	if flags != 0 {
		m.data.u32(unix.NFTA_MASQ_FLAGS, flags)
	}
	return append(all, m)
}

// flags are NF_NAT_RANGE_*.
func (g *group) flags() uint32 {
	var flags uint32
	switch g.random {
	case nat.RandomPorts:
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM
	case nat.RandomFully:
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
	}
	if g.persistent {
		flags |= unix.NF_NAT_RANGE_PERSISTENT
	}
	return flags
}

// check asks the kernel of a namespace whether it would take all of a plan, without
// carrying it out; a flowtable over lo stands for the plan's. The error is Apply's; nil
// also where natkit may not ask.
func check(ns *netns.Handle, p *gateway.Plan) error {
	var flowtable []string
	if len(p.Flowtable) > 0 {
		flowtable = []string{"lo"}
	}
	err := write(p, gateway.Digest(p), flowtable, func(t *table) error {
		for _, s := range t.sets {
			s.sample = true
		}
		messages, err := t.messages(nil)
		if err != nil {
			return err
		}
		return asked(ns, messages)
	})
	if errors.Is(err, fs.ErrPermission) { // with CAP_SYS_ADMIN for the namespace, and without CAP_NET_ADMIN in it
		return nil
	}
	return err
}

// checkFlowtable asks the kernel of a namespace (nil: this one) whether it would take a
// flowtable, without making one. It asks for one over lo, as kernels before 5.8 take none
// without interfaces (05abe4456fa3). What modules that needs are loaded by it, and stay.
// Needs CAP_NET_ADMIN in that namespace and, unlike a try in one of its own, nothing
// else. It wraps *Missing where the kernel has no flowtables.
func checkFlowtable(ns *netns.Handle) error {
	messages := []message{tableMessage(unix.NFT_MSG_NEWTABLE), (&flowtable{name: flowtableName, devices: []string{"lo"}}).message()}
	if err := asked(ns, messages); err != nil {
		return fmt.Errorf("ask for a flowtable: %w", err)
	}
	return nil
}

// asked says why the kernel would refuse a transaction.
func asked(ns *netns.Handle, messages []message) error {
	refused, err := send(ns, messages, 0, false)
	if err != nil {
		return err
	}
	return inWords(ns, messages, refused)
}

// kernel is the one that runs.
func kernel() (snapshot.Kernel, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return snapshot.Kernel{}, fmt.Errorf("read the kernel's version: %w", err)
	}
	return snapshot.Kernel{Release: unix.ByteSliceToString(u.Release[:])}, nil
}

// old refuses what a kernel takes and never does.
func old(p *gateway.Plan, k snapshot.Kernel) error {
	if !asksHairpins(p) {
		return nil
	}
	if why := gateway.NoHairpin(k); why != "" {
		if i := slices.IndexFunc(p.Sources, func(e gateway.Entry) bool { return e.IsHairpin() }); i >= 0 {
			return fmt.Errorf("%s: %s", p.Sources[i].Rule, why)
		}
		return fmt.Errorf("%s: %s", PCPComment, why)
	}
	return nil
}
