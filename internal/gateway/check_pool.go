package gateway

import (
	"fmt"
	"math"

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
