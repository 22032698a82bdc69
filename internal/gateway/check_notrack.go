package gateway

import (
	"fmt"
	"net/netip"
	"slices"
)

// notrack finds translations of what is not tracked, and so not translated.
func (c *checker) notrack() {
	for _, u := range c.plan.Untracked {
		if o := c.ruleOf(u.Rule); !o.takesAnswers(u) {
			o.takesBefore(u)
		}
	}
	masquerades := c.masquerades()
	for _, p := range c.plan.Stateless {
		if o := c.ruleOf(p.Rule); !o.takesGiven(p, masquerades) {
			o.takesOwn(p)
		}
	}
}

// masquerades are those of the plan, one of each that give the same addresses.
func (c *checker) masquerades() (all []*Source) {
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if s.Masquerade && !slices.ContainsFunc(all, func(m *Source) bool { return m.Rule.BitLen() == s.Rule.BitLen() && slices.Equal(m.Out, s.Out) }) {
			all = append(all, s)
		}
	}
	return all
}

// takesGiven refuses a stateless rule that sends answers to an interface's own address
// inside, which one of the rules gives to connections.
func (o one) takesGiven(p Pair, masquerades []*Source) bool {
	for _, s := range masquerades {
		at := slices.IndexFunc(o.pool(s), RangeOf(p.Outside).overlaps)
		if at >= 0 && meet(s.Out, p.Out) {
			o.refuse("notrack-answers", fmt.Sprintf("%s gives %s to connections, and answers to it would go inside without being tracked", o.named(s.Rule), o.pool(s)[at]),
				"take another address, or leave stateless out", outside)
			return true
		}
	}
	return false
}

// takesOwn warns of a stateless rule that leaves this host no address of its own by an
// interface.
func (o one) takesOwn(p Pair) {
	for _, i := range o.facts.Interfaces {
		own := slices.DeleteFunc(slices.Clone(i.Addresses), func(a netip.Prefix) bool {
			return a.Addr().BitLen() != o.bits || a.Addr().IsLinkLocalUnicast()
		})
		kept := slices.ContainsFunc(own, func(a netip.Prefix) bool { return !p.Outside.Contains(a.Addr()) })
		if len(own) > 0 && !kept && meet(p.Out, []string{i.Name}) {
			o.warn("takes-own-address", fmt.Sprintf("what comes for %s goes inside: %s has no other address, so that this host gets no answers by it", own[0].Addr(), i.Name),
				"give the interface an address that is not of "+Prefix{p.Outside}.String()+", or take other addresses outside", outside)
			return
		}
	}
}

func (o one) takesAnswers(u Untracked) bool {
	return slices.ContainsFunc(o.plan.Sources, func(s Source) bool { return o.notrackTakes(u, &s) }) ||
		slices.ContainsFunc(o.plan.Sources, func(s Source) bool { return o.notrackMayTake(u, &s) })
}

// notrackMayTake warns of ports below those that are given otherwise: where a rule names
// none, a host inside that sends from one keeps it (nf_nat_l4proto_unique_tuple).
func (o one) notrackMayTake(u Untracked, s *Source) bool {
	if !s.Masquerade || s.Ports.First != 0 || !slices.ContainsFunc(o.pool(s), func(r Range) bool { return r.Contains(u.On) }) {
		return false
	}
	o.warn("notrack-low-port", fmt.Sprintf("%s leaves hosts inside their source port: who sends from %s there gets no answers, as those to %s are not tracked", o.named(s.Rule), u.Port, u.On),
		"write ports: 1024-65535 there, unless no host inside sends from such a port", "on")
	return true
}

// takesBefore warns of a destination that is translated only as far as it is tracked.
func (o one) takesBefore(u Untracked) {
	for _, d := range o.plan.Destinations {
		if d.On.Contains(u.On) && portsMeet(d.Port, u.Port) {
			o.warn("notrack-before", fmt.Sprintf("%s of %s is not tracked, so that %s does not translate it", orEverything(both(d.Port, u.Port)), u.On, o.named(d.Rule)),
				"restrict one of them to other ports, unless it is meant so", "on")
			return
		}
	}
}

// notrackTakes refuses a rule that keeps the tracker from answers to what an
// interface's own address is given to.
func (o one) notrackTakes(u Untracked, s *Source) bool {
	if !s.Masquerade || !gives(s.Ports, u.Port) || !slices.ContainsFunc(o.pool(s), func(r Range) bool { return r.Contains(u.On) }) {
		return false
	}
	o.refuse("notrack-answers", fmt.Sprintf("%s gives %s to connections, and answers to it that are not tracked do not find back", o.named(s.Rule), u.On),
		"name a port that the rule does not give, or another address", "on")
	return true
}

// both is what two that meet have in common.
func both(a, b Port) Port {
	switch {
	case a.Protocol == "" || a.First == 0 && b.Protocol != "":
		return b
	case b.Protocol == "" || b.First == 0:
		return a
	}
	return Port{a.Protocol, max(a.First, b.First), min(a.last(), b.last())}
}

func orEverything(p Port) string {
	if p.Protocol == "" {
		return "everything"
	}
	return p.String()
}
