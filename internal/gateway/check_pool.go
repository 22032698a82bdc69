package gateway

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"cmp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/units"
)

// pools checks the addresses that rules give.
func (c *checker) pools() {
	ofOneHost := c.config.ofOneHost()
	c.everyRule(func(o one) {
		if o.SNAT == nil {
			return
		}
		if o.SNAT.Ports.Keep {
			o.keep()
		}
		o.taken(ofOneHost)
	})
	c.capacity()
}

// keep compares the hosts of a pool without port translation with its addresses.
func (o one) keep() {
	hosts, addresses := o.hostsOf(o.SNAT.From), nat.AddrRanges(o.SNAT.To).Size()
	if hosts <= addresses {
		return
	}
	who := "any number of hosts"
	if len(o.SNAT.From) > 0 {
		who = many(hosts, "host", "hosts")
	}
	o.warn("keep-pool-small", fmt.Sprintf("%s for %s whose ports are kept: no more hosts than addresses can use the same source port to one destination at a time; others fail, and are counted",
		many(addresses, "address", "addresses"), who),
		"give it as many addresses as hosts (netmap then gives each its own), or leave out ports: keep", "to")
}

// many is units.Plural of a number that is as large as that, or larger.
func many(n int64, one, many string) string {
	if n == math.MaxInt64 {
		return "2^63 " + many + " or more"
	}
	return units.Plural(n, one, many)
}

// hostsOf is how many hosts prefixes can have; those of a network's own address and of
// its broadcast are none. Without prefixes it is any number.
func (c *checker) hostsOf(prefixes Prefixes) (hosts int64) {
	for _, p := range prefixes {
		if p.Set != "" {
			if s := c.config.Sets.named(p.Set); s != nil {
				hosts = addBounded(hosts, s.Addresses.Size())
			}
			continue
		}
		n := nat.RangeOf(p.Prefix).Size()
		if p.Addr().Is4() && p.Bits() < 31 {
			n -= 2
		}
		hosts = addBounded(hosts, n)
	}
	if len(prefixes) == 0 {
		return math.MaxInt64
	}
	return hosts
}

// taken finds addresses of the pool that belong to one host, or to one each, and
// those that it does not give at all.
func (o one) taken(ofOneHost *rangeIndex) {
	for i, to := range o.SNAT.To {
		held := slices.DeleteFunc(o.held.overlapping(to), func(h indexed) bool { return !gives(o.SNAT.Ports.given(), h.port) })
		perRule(to, held, func(by Ref, what string) {
			o.warn("pool-held", fmt.Sprintf("%s is not given: it is that of %s, and answers would not find back", what, o.named(by)),
				"take the address out of the pool", "to", i)
		})
		perRule(to, ofOneHost.overlapping(to), func(by Ref, what string) {
			o.warn("pool-shared", fmt.Sprintf("%s is also that of %s: its host may find its own ports given away", what, o.named(by)),
				"take the address out of the pool", "to", i)
		})
	}
}

// perRule calls found once for each rule that has addresses of a pool, with the first of them: a set of pairs may have many.
func perRule(pool nat.AddrRange, all []indexed, found func(by Ref, what string)) {
	var order []Ref
	of := map[Ref]nat.AddrRanges{}
	for _, h := range all {
		if of[h.by] == nil {
			order = append(order, h.by)
		}
		of[h.by] = append(of[h.by], pool.Common(h.addrs))
	}
	for _, by := range order {
		what := of[by][0].String()
		if rest := of[by][1:]; len(rest) > 0 {
			what += fmt.Sprintf(" (and %s more)", units.Count(rest.Size()))
		}
		found(by, what)
	}
}

// nothingLeft refuses pools all of whose addresses others hold.
func (o one) nothingLeft() {
	if left, taken := o.held.left(nat.AddrRanges(o.SNAT.To), o.SNAT.Ports.given()); len(left) == 0 {
		o.refuse("pool-held", fmt.Sprintf("nothing is left to give: %s has the addresses, and answers to them would not find back", o.named(taken[0].by)),
			"give it other addresses", "to")
	}
}

// The ports that the kernel gives to connections from a port above 1023 where a rule
// names none (nf_nat_l4proto_unique_tuple in net/netfilter/nf_nat_core.c).
const (
	firstGiven = 1024
	lastGiven  = 65535
)

// capacity compares the expected connections with the ports that rules can give.
func (c *checker) capacity() {
	flows := int64(c.config.Expect.Flows)
	ports, shared := c.portsInAll()
	if !shared || ports >= flows {
		return
	}
	c.add(Finding{ID: "pool-small", Severity: Warn,
		Message: fmt.Sprintf("%s are expected, and the rules have %s to give for each protocol and destination: more than those cannot go to one address and port", units.Plural(flows, "connection", "connections"), many(ports, "port", "ports")),
		Advice:  "add addresses to the pools, unless the connections go to many destinations"}, []any{"expect", "flows"})
}

// portsInAll is how many pairs of address and port the rules have whose hosts share
// them; false where there is no such rule.
func (c *checker) portsInAll() (ports int64, shared bool) {
	pools := map[nat.Ports]nat.AddrRanges{}
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if !s.IsHairpin() && !s.oneForOne() {
			ports := given(s.Action.Ports)
			pools[ports] = append(pools[ports], c.pool(s)...)
		}
	}
	for given, pool := range pools {
		each := int64(given.Len())
		n := pool.Size()
		if n > math.MaxInt64/each {
			return math.MaxInt64, true
		}
		ports = addBounded(ports, n*each)
	}
	return ports, len(pools) > 0
}

func given(p nat.Ports) nat.Ports { return cmp.Or(p, nat.Ports{First: firstGiven, Last: lastGiven}) }

// pool returns the addresses of a source entry; one if the host's are unknown.
func (c *checker) pool(s *Entry) nat.AddrRanges {
	if pool := s.gives(c.facts); len(pool) > 0 {
		return pool
	}
	a := standIn(byte(s.Rule.BitLen()/128), 0)
	return nat.AddrRanges{nat.OneAddr(a)}
}

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
func (c *checker) masquerades() (all []*Entry) {
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if s.Action.Kind == nat.Masquerade && !slices.ContainsFunc(all, func(m *Entry) bool { return m.Rule.BitLen() == s.Rule.BitLen() && slices.Equal(m.Out, s.Out) }) {
			all = append(all, s)
		}
	}
	return all
}

// takesGiven refuses a stateless rule that sends answers to an interface's own address
// inside, which one of the rules gives to connections.
func (o one) takesGiven(p Entry, masquerades []*Entry) bool {
	for _, s := range masquerades {
		at := slices.IndexFunc(o.pool(s), p.hasSomeOutside)
		if at >= 0 && meet(s.Out, p.Out) {
			o.refuse("notrack-answers", fmt.Sprintf("%s gives %s to connections, and answers to it would go inside without being tracked", o.named(s.Rule), o.pool(s)[at]),
				"take another address, or leave stateless out", outside)
			return true
		}
	}
	return false
}

// hasSomeOutside reports whether an address of a range is one outside of a stateless pair.
func (e *Entry) hasSomeOutside(r nat.AddrRange) bool {
	if s := e.Pairs(); s != nil {
		return len(s.Side(nat.To).Of(e.Rule.BitLen()).Within(r)) > 0
	}
	return nat.RangeOf(e.Outside()).Overlaps(r)
}

func (e *Entry) outsideText() string {
	if e.Action.Pairs != "" {
		return "the pairs of $" + e.Action.Pairs
	}
	return nat.PrefixString(e.Outside())
}

// takesOwn warns of a stateless rule that leaves this host no address of its own by an
// interface.
func (o one) takesOwn(p Entry) {
	for _, i := range o.facts.Interfaces {
		own := slices.DeleteFunc(slices.Clone(i.Addresses), func(a netip.Prefix) bool {
			return a.Addr().BitLen() != o.bits || a.Addr().IsLinkLocalUnicast()
		})
		kept := slices.ContainsFunc(own, func(a netip.Prefix) bool { return !p.HasOutside(a.Addr()) })
		if len(own) > 0 && !kept && meet(p.Out, []string{i.Name}) {
			o.warn("takes-own-address", fmt.Sprintf("what comes for %s goes inside: %s has no other address, so that this host gets no answers by it", own[0].Addr(), i.Name),
				"give the interface an address that is not of "+p.outsideText()+", or take other addresses outside", outside)
			return
		}
	}
}

func (o one) takesAnswers(u Entry) bool {
	return slices.ContainsFunc(o.plan.Sources, func(s Entry) bool { return o.notrackTakes(u, &s) }) ||
		slices.ContainsFunc(o.plan.Sources, func(s Entry) bool { return o.notrackMayTake(u, &s) })
}

// notrackMayTake warns of ports below those that are given otherwise: where a rule names
// none, a host inside that sends from one keeps it (nf_nat_l4proto_unique_tuple).
func (o one) notrackMayTake(u Entry, s *Entry) bool {
	if s.Action.Kind != nat.Masquerade || s.Action.Ports != (nat.Ports{}) || !o.pool(s).Contains(u.On().Addr()) {
		return false
	}
	o.warn("notrack-low-port", fmt.Sprintf("%s leaves hosts inside their source port: who sends from %s there gets no answers, as those to %s are not tracked", o.named(s.Rule), nat.ServiceString(u.Protocol, u.Ports), u.On().Addr()),
		"write ports: 1024-65535 there, unless no host inside sends from such a port", "on")
	return true
}

// takesBefore warns of a destination that is translated only as far as it is tracked.
func (o one) takesBefore(u Entry) {
	for _, d := range o.plan.Destinations {
		if d.Overlaps(&u.Match) {
			o.warn("notrack-before", fmt.Sprintf("%s of %s is not tracked, so that %s does not translate it", cmp.Or(common(&d.Match, &u.Match), "everything"), u.On().Addr(), o.named(d.Rule)),
				"restrict one of them to other ports, unless it is meant so", "on")
			return
		}
	}
}

// notrackTakes refuses a rule that keeps the tracker from answers to what an
// interface's own address is given to.
func (o one) notrackTakes(u Entry, s *Entry) bool {
	if s.Action.Kind != nat.Masquerade || !mayGive(s.Action.Ports, u.Ports) || !o.pool(s).Contains(u.On().Addr()) {
		return false
	}
	o.refuse("notrack-answers", fmt.Sprintf("%s gives %s to connections, and answers to it that are not tracked do not find back", o.named(s.Rule), u.On().Addr()),
		"name a port that the rule does not give, or another address", "on")
	return true
}

// mayGive reports whether ports that are given may be one of others; none are all.
func mayGive(ports nat.Ports, others []nat.Ports) bool {
	return len(others) == 0 || slices.ContainsFunc(others, func(p nat.Ports) bool {
		_, meet := given(ports).Common(p)
		return meet
	})
}

// common is the protocol and the ports that two matches have in common; empty for all.
func common(a, b *nat.Match) string {
	if a.Protocol == 0 || len(a.Ports) == 0 && b.Protocol != 0 {
		a, b = b, a
	}
	if b.Protocol == 0 || len(b.Ports) == 0 {
		return nat.ServiceString(a.Protocol, a.Ports)
	}
	var ports []nat.Ports
	for _, p := range a.Ports {
		for _, q := range b.Ports {
			if both, meet := p.Common(q); meet {
				ports = append(ports, both)
			}
		}
	}
	return nat.ServiceString(a.Protocol, ports)
}
