package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ruleCompiler turns one rule into entries.
type ruleCompiler struct {
	*compiler
	// bits is the length of the family's addresses.
	bits int
	ref  Ref
}

func (b *ruleCompiler) rule(r Rule) error {
	switch {
	case r.Masquerade != nil:
		return b.masquerade(r.Masquerade)
	case r.SNAT != nil:
		return b.snat(r.SNAT)
	case r.DNAT != nil:
		return b.dnat(r.DNAT)
	case r.Static != nil:
		return b.static(r.Static)
	case r.Netmap != nil:
		return b.netmap(r.Netmap)
	case r.Notrack != nil:
		return b.notrack(r.Notrack)
	}
	return errors.New("the rule is empty")
}

func (b *ruleCompiler) masquerade(m *Masquerade) error {
	s := Source{Rule: b.ref, Masquerade: true, Ports: m.Ports, Random: m.Random}
	return b.sources(&m.Sources, s)
}

func (b *ruleCompiler) snat(r *SNAT) error {
	if len(r.To) == 0 {
		return errors.New("to is missing: the addresses to give")
	}
	for _, to := range r.To {
		if err := b.family("to", to.First); err != nil {
			return err
		}
	}
	s := Source{Rule: b.ref, To: JoinRanges(r.To), Ports: r.Ports, Random: r.Random}
	s.Persistent = s.choosesAddress() && (r.Persistent == nil || bool(*r.Persistent))
	return b.sources(&r.Sources, s)
}

// sources adds s once for each length of the prefixes that it is for: the longest
// one wins, of all rules.
func (b *ruleCompiler) sources(conditions *Sources, s Source) (err error) {
	if s.Out, err = b.out(conditions.Out); err != nil {
		return err
	}
	if s.NotTo, err = b.prefixes("except-to", conditions.ExceptTo); err != nil {
		return err
	}
	from, err := b.prefixes("from", conditions.From)
	if err != nil {
		return err
	}
	if len(from) == 0 {
		from = []netip.Prefix{anywhere(b.bits)}
	}
	for _, group := range byLength(from) {
		s.From = group
		b.plan.Sources = append(b.plan.Sources, s)
	}
	return nil
}

// out are the interfaces that a rule names, or the default.
func (b *ruleCompiler) out(names Names) ([]string, error) {
	if len(names) == 0 {
		return b.plan.WAN, nil
	}
	return b.resolve(names)
}

func (b *ruleCompiler) dnat(r *DNAT) error {
	if err := b.family("to", r.To.Address); err != nil {
		return err
	}
	if r.To.Port != 0 && !HasPorts(r.Port.Protocol) {
		return fmt.Errorf("to %s has a port: port must name a protocol that has ports, such as tcp/%d", r.To, r.To.Port)
	}
	from, err := b.prefixes("from", r.From)
	if err != nil {
		return err
	}
	on, in, err := b.on(r.On)
	if err != nil {
		return err
	}
	if r.Hairpin {
		in = nil
	}
	for _, a := range on {
		d := Destination{Rule: b.ref, On: host(a), Port: r.Port, In: in, To: r.To, Local: bool(r.Local)}
		for _, group := range byLength(from) {
			d.From = group
			b.plan.Destinations = append(b.plan.Destinations, d)
		}
		if r.Hairpin {
			err = errors.Join(err, b.hairpin(a, r.Port, from))
		}
	}
	return err
}

// on resolves what a dnat is on: addresses, and the interfaces by which connections
// to them come that the rule is meant for.
func (b *ruleCompiler) on(on On) (addresses []netip.Addr, in []string, err error) {
	if on.Address.IsValid() {
		in = b.plan.WAN
		if b.isInside(on.Address) {
			in = nil // those that can reach it at all
		}
		return []netip.Addr{on.Address}, in, b.family("on", on.Address)
	}
	in, err = b.resolve([]string{on.Name})
	for _, name := range in {
		present := b.addresses(name, b.bits)
		if len(present) == 0 {
			b.plan.Waiting = append(b.plan.Waiting, Waiting{b.ref, name})
		}
		addresses = append(addresses, present...)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses), in, err
}

// isInside reports whether the address is known to be one of the host's that no WAN
// interface has.
func (b *compiler) isInside(a netip.Addr) bool {
	inside := false
	for _, i := range b.facts.Interfaces {
		for _, p := range i.Addresses {
			switch {
			case p.Addr() != a:
			case slices.Contains(b.plan.WAN, i.Name):
				return false
			default:
				inside = true
			}
		}
	}
	return inside
}

func (b *ruleCompiler) static(r *Static) error {
	err := errors.Join(b.family("inside", r.Inside.Addr), b.family("outside", r.Outside.Addr))
	if err != nil {
		return err
	}
	if r.Stateless {
		return b.statelessStatic(r)
	}
	d := Destination{Rule: b.ref, On: host(r.Outside.Addr), In: b.plan.WAN,
		To: Endpoint{Address: r.Inside.Addr}, Local: bool(r.Local)}
	if r.Hairpin {
		d.In = nil
		err = b.hairpin(r.Outside.Addr, Port{}, nil)
	}
	b.plan.Destinations = append(b.plan.Destinations, d)
	b.plan.Sources = append(b.plan.Sources, Source{Rule: b.ref, From: []netip.Prefix{host(r.Inside.Addr)},
		Out: b.plan.WAN, To: []Range{{r.Outside.Addr, r.Outside.Addr}}})
	return err
}

func (b *ruleCompiler) statelessStatic(r *Static) error {
	if r.Hairpin || r.Local {
		return errors.New("stateless has no connections: hairpin and local need one, leave them or stateless out")
	}
	b.plan.Stateless = append(b.plan.Stateless, Pair{Rule: b.ref, Inside: host(r.Inside.Addr),
		Outside: host(r.Outside.Addr), Out: b.plan.WAN})
	return nil
}

func (b *ruleCompiler) netmap(r *Netmap) error {
	inside, outside := r.Inside.Masked(), r.Outside.Masked()
	err := errors.Join(b.family("inside", inside.Addr()), b.family("outside", outside.Addr()))
	switch {
	case err != nil:
		return err
	case inside.Bits() != outside.Bits():
		return fmt.Errorf("inside %s and outside %s differ in length: each address needs one of its own", inside, outside)
	case bool(r.Stateless):
		return b.statelessNetmap(inside, outside)
	}
	b.plan.Destinations = append(b.plan.Destinations, Destination{Rule: b.ref, On: outside, In: b.plan.WAN, Prefix: inside})
	b.plan.Sources = append(b.plan.Sources, Source{Rule: b.ref, From: []netip.Prefix{inside}, Out: b.plan.WAN, Prefix: outside})
	return nil
}

// longestNeutral is the longest prefix of RFC 6296, which puts the difference of the
// checksums into one of the words behind the eighth byte (section 3.5).
const longestNeutral = 64

func (b *ruleCompiler) statelessNetmap(inside, outside netip.Prefix) error {
	neutral := b.bits == 128
	if neutral && inside.Bits() > longestNeutral {
		return fmt.Errorf("%s is too long for NPTv6 (RFC 6296), which keeps checksums in the last 64 bits of the address: at most /%d", inside, longestNeutral)
	}
	b.plan.Stateless = append(b.plan.Stateless, Pair{Rule: b.ref, Inside: inside, Outside: outside, Out: b.plan.WAN, Neutral: neutral})
	return nil
}

func (b *ruleCompiler) notrack(r *Notrack) error {
	b.plan.Untracked = append(b.plan.Untracked, Untracked{Rule: b.ref, On: r.On.Addr, Port: r.Port})
	return b.family("on", r.On.Addr)
}

// family refuses an address of the other family than the list's.
func (b *ruleCompiler) family(field string, a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("%s is missing", field)
	case a.BitLen() == b.bits:
		return nil
	case b.bits == 32:
		return fmt.Errorf("%s %s is IPv6: such rules stand below ipv6", field, a)
	}
	return fmt.Errorf("%s %s is IPv4: such rules stand below nat", field, a)
}

func (b *ruleCompiler) prefixes(field string, list Prefixes) (out []netip.Prefix, err error) {
	for _, p := range list {
		if err := b.family(field, p.Addr()); err != nil {
			return nil, err
		}
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, comparePrefixes)
	return slices.Compact(out), nil
}
