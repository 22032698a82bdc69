package gateway

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/units"
)

// pools looks at the addresses that rules give.
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
	hosts, addresses := hostsOf(o.SNAT.From), sizeOf(o.SNAT.To)
	if hosts <= addresses {
		return
	}
	who := "any number of hosts"
	if len(o.SNAT.From) > 0 {
		who = many(hosts, "host", "hosts")
	}
	o.warn("keep-pool-small", fmt.Sprintf("%s for %s whose ports are kept: only so many of them can use the same source port to one destination at a time; others fail, and are counted",
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
func hostsOf(prefixes Prefixes) (hosts int64) {
	for _, p := range prefixes {
		n := RangeOf(p.Prefix).Size()
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

func sizeOf(ranges []Range) (addresses int64) {
	for _, r := range JoinRanges(ranges) {
		addresses = addBounded(addresses, r.Size())
	}
	return addresses
}

// taken finds addresses of the pool that belong to one host, or to one each, and
// those that it does not give at all.
func (o one) taken(ofOneHost *rangeIndex) {
	for i, to := range o.SNAT.To {
		for _, h := range o.held.overlapping(to) {
			if gives(o.SNAT.Ports, h.port) {
				o.warn("pool-held", fmt.Sprintf("%s is not given: it is that of %s, and answers would not find back", common(to, h.addrs), o.named(h.by)),
					"take the address out of the pool", "to", i)
			}
		}
		for _, h := range ofOneHost.overlapping(to) {
			o.warn("pool-shared", fmt.Sprintf("%s is also that of %s: its host may find its own ports given away", common(to, h.addrs), o.named(h.by)),
				"take the address out of the pool", "to", i)
		}
	}
}

// nothingLeft refuses pools all of whose addresses others hold.
func (o one) nothingLeft() {
	if left, taken := o.held.left(o.SNAT.To, o.SNAT.Ports); len(left) == 0 {
		o.refuse("pool-held", fmt.Sprintf("nothing is left to give: %s has the addresses, and answers to them would not find back", o.named(taken[0].by)),
			"give it other addresses", "to")
	}
}

func common(a, b Range) string {
	if b.First.Less(a.First) {
		b.First = a.First
	}
	if a.Last.Less(b.Last) {
		b.Last = a.Last
	}
	return b.String()
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
	pools := map[Ports][]Range{}
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if !s.Hairpin.Prefix.IsValid() && !s.oneForOne() {
			pools[given(s.Ports)] = append(pools[given(s.Ports)], c.pool(s)...)
		}
	}
	for given, pool := range pools {
		each := int64(given.Last) - int64(given.First) + 1
		n := sizeOf(pool)
		if n > math.MaxInt64/each {
			return math.MaxInt64, true
		}
		ports = addBounded(ports, n*each)
	}
	return ports, len(pools) > 0
}

func given(p Ports) Ports {
	if p.First == 0 {
		return Ports{First: firstGiven, Last: lastGiven}
	}
	return Ports{First: p.First, Last: p.Last}
}

// pool are the addresses of a source entry; one where the host does not tell.
func (c *checker) pool(s *Source) []Range {
	if pool := s.gives(c.facts); len(pool) > 0 {
		return pool
	}
	a := standIn(byte(s.Rule.BitLen()/128), 0)
	return []Range{{a, a}}
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
