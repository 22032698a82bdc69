package gateway

import (
	"fmt"
	"math/big"
	"net/netip"

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
	hosts, addresses := countPrefixes(o.SNAT.From), countRanges(o.SNAT.To)
	if hosts != nil && hosts.Cmp(addresses) <= 0 {
		return
	}
	who := "any number of hosts"
	if hosts != nil {
		who = bigPlural(hosts, "host", "hosts")
	}
	have := bigPlural(addresses, "address", "addresses")
	o.warn("keep-pool-small", fmt.Sprintf("%s for %s whose ports are kept: only so many of them can use the same source port to one destination at a time; others fail, and are counted", have, who),
		"give it as many addresses as hosts (netmap then gives each its own), or leave out ports: keep", "to")
}

func bigPlural(n *big.Int, one, many string) string {
	if n.IsInt64() {
		return units.Plural(n.Int64(), one, many)
	}
	return fmt.Sprintf("2^%d %s or more", n.BitLen()-1, many)
}

// countPrefixes is how many addresses hosts of the prefixes can have; nil for any.
// Those of a network and of its broadcast are no host's.
func countPrefixes(prefixes Prefixes) *big.Int {
	if len(prefixes) == 0 {
		return nil
	}
	sum := new(big.Int)
	for _, p := range prefixes {
		n := countRange(RangeOf(p.Prefix))
		if p.Addr().Is4() && p.Bits() < 31 {
			n.Sub(n, big.NewInt(2))
		}
		sum.Add(sum, n)
	}
	return sum
}

func countRanges(ranges Ranges) *big.Int {
	sum := new(big.Int)
	for _, r := range joinRanges(ranges) {
		sum.Add(sum, countRange(r))
	}
	return sum
}

func countRange(r Range) *big.Int {
	first, last := new(big.Int).SetBytes(r.First.AsSlice()), new(big.Int).SetBytes(r.Last.AsSlice())
	return last.Sub(last, first).Add(last, big.NewInt(1))
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
	ports := c.portsInAll()
	if flows == 0 || ports == nil || ports.Cmp(big.NewInt(flows)) >= 0 {
		return
	}
	c.add(Finding{ID: "pool-small", Severity: Warn,
		Message: fmt.Sprintf("%s are expected, and the rules have %s to give for each protocol and destination: more than those cannot go to one address and port", units.Plural(flows, "connection", "connections"), bigPlural(ports, "port", "ports")),
		Advice:  "add addresses to the pools, unless the connections go to many destinations"}, []any{"expect", "flows"})
}

// portsInAll is how many pairs of address and port the source rules have; nil where one
// of them may give any number, or there is none.
func (c *checker) portsInAll() *big.Int {
	pools := map[Ports][]Range{}
	sum, shared := new(big.Int), false
	for _, s := range c.plan.Sources {
		if s.Hairpin.Prefix.IsValid() {
			continue
		}
		if s.Prefix.IsValid() || s.Rule.Kind == "static" {
			continue
		}
		shared = true
		pools[given(s.Ports)] = append(pools[given(s.Ports)], c.pool(&s)...)
	}
	for ports, pool := range pools {
		n := big.NewInt(int64(ports.Last) - int64(ports.First) + 1)
		sum.Add(sum, n.Mul(n, countRanges(pool)))
	}
	if !shared {
		return nil
	}
	return sum
}

func given(p Ports) Ports {
	if p.First == 0 {
		return Ports{First: firstGiven, Last: lastGiven}
	}
	return p
}

// pool are the addresses of a source entry: the first of each interface where it
// masquerades, one where the host does not tell.
func (c *checker) pool(s *Source) (pool []Range) {
	if !s.Masquerade {
		return s.To
	}
	family := byte(s.Rule.bits() / 128)
	for i, name := range s.Out {
		a := standIn(family, i)
		if own := c.own(name, s.Rule.bits()); len(own) > 0 {
			a = own[0]
		}
		pool = append(pool, Range{a, a})
	}
	if len(s.Out) == 0 {
		a := standIn(family, 0)
		pool = append(pool, Range{a, a})
	}
	return pool
}

// own are the addresses of an interface in one family that others can reach.
func (c *checker) own(name string, bits int) []netip.Addr {
	b := compiler{facts: *c.facts}
	return b.addresses(name, bits)
}
