package lab

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Bounds of a mix; what is made of its parts is kept in memory.
const (
	maxParts     = 64
	maxShare     = 1000
	maxEndpoints = 64
	maxSNAT      = 1024
)

// mixChecker looks at a mix.
type mixChecker struct {
	m *Mix
	faults
}

func (m *Mix) check() *problem {
	c := &mixChecker{m: m}
	if !validName(m.Name) {
		c.fail(at("name"), "expected name: lower-case letters, digits and dashes, at most 40, found %q", m.Name)
	}
	if m.Title == "" {
		c.fail(at("title"), "expected title: one line about the mix")
	}
	if n := len(m.Parts); n < 1 || n > maxParts {
		c.fail(at("parts"), "expected parts: a list with 1 to %d parts, found %d", maxParts, n)
		return c.first
	}
	for i := range m.Parts {
		c.part(i)
	}
	c.strangers()
	if c.first != nil {
		return c.first
	}
	_, p := m.compile(0)
	return p
}

func (c *mixChecker) part(i int) {
	p, path := &c.m.Parts[i], at("parts", i)
	if !validName(p.Name) {
		c.fail(append(path, "name"), "expected a part's name: lower-case letters, digits and dashes, at most 40, found %q", p.Name)
	}
	for _, other := range c.m.Parts[:i] {
		if other.Name == p.Name {
			c.fail(append(path, "name"), "part %q is there twice", p.Name)
		}
	}
	switch {
	case p.Count == 0 && (p.Share < 1 || p.Share > maxShare):
		c.fail(append(path, "share"), "expected share: a weight from 1 to %d, or count: a number of entries; found share %d", maxShare, p.Share)
	case p.Count != 0 && p.Share != 0:
		c.fail(append(path, "count"), "expected share or count, found both")
	case p.Count < 0 || p.Count > MaxFill:
		c.fail(append(path, "count"), "expected count: 1 to %d, found %d", MaxFill, p.Count)
	}
	c.kind(p, path)
	c.ends(p, path)
	if p.NAT != nil {
		c.nat(p, append(path, "nat"))
	}
}

func (c *mixChecker) kind(p *Part, path []any) {
	tcp := p.Protocol.Number == unix.IPPROTO_TCP
	switch {
	case p.Protocol.Number == 0:
		c.fail(append(path, "protocol"), "expected protocol: such as tcp")
	case tcp && p.State.TCPState == 0:
		c.fail(append(path, "state"), "expected state: that of TCP, such as ESTABLISHED")
	case !tcp && p.State.TCPState != 0:
		c.fail(append(path, "state"), "state %s: only tcp has states", p.State)
	}
	switch p.Status {
	case "", Unreplied, Replied, Assured:
	default:
		c.fail(append(path, "status"), "status %q: expected one of: %s, %s, %s", p.Status, Unreplied, Replied, Assured)
	}
}

func (c *mixChecker) ends(p *Part, path []any) {
	from := append(path[:len(path):len(path)], "sources")
	sources := p.Sources.Prefix
	switch {
	case !sources.IsValid():
		c.fail(from, "expected sources: {prefix: 198.18.128.0/17, hosts: 500}")
		return
	case sources.Port != 0:
		c.fail(append(from, "prefix"), "prefix %s: expected no port; source_ports has them", sources)
	case p.Sources.Hosts < 0, uint64(p.Sources.Hosts) > hosts(sources.Prefix).n:
		c.fail(append(from, "hosts"), "hosts %d: %s has addresses for 1 to %d", p.Sources.Hosts, sources, hosts(sources.Prefix).n)
	case p.Sources.Hosts > maxPool, p.Sources.Hosts == 0 && hosts(sources.Prefix).n > maxPool:
		c.fail(append(from, "hosts"), "expected hosts: at most %d", maxPool)
	}
	c.endpoints(append(path, "destinations"), p, p.Destinations, true)
	switch {
	case p.Order != "" && p.Order != Random && p.Order != Sequential:
		c.fail(append(path, "order"), "order %q: expected %s or %s", p.Order, Random, Sequential)
	case p.Order != "" && p.NAT != nil && p.NAT.SNAT != nil:
		c.fail(append(path, "order"), "expected no order beside snat, whose ports have one")
	}
}

// endpoints checks a list of addresses that connections of the part have.
func (c *mixChecker) endpoints(path []any, p *Part, list []Endpoint, ports bool) {
	if len(list) < 1 || len(list) > maxEndpoints {
		c.fail(path, "expected %s: a list of 1 to %d addresses, found %d", field(path), maxEndpoints, len(list))
	}
	ports = ports && p.Protocol.Number != unix.IPPROTO_ICMP
	for i, e := range list {
		here := append(path[:len(path):len(path)], i)
		switch {
		case e.Addr().Is4() != p.Sources.Prefix.Addr().Is4():
			c.fail(here, "%s is not of the same family as %s", e, p.Sources.Prefix)
		case ports && e.Port == 0:
			c.fail(here, "%s: expected a port, such as %s", e, Endpoint{e.Prefix, 443})
		case !ports && e.Port != 0:
			c.fail(here, "%s: expected no port here", e)
		case hosts(e.Prefix).n > maxPool:
			c.fail(here, "%s: expected at most %d addresses", e, maxPool)
		case c.first == nil && poolsOf(list[:i]).overlaps(poolsOf(list[i:i+1]), true):
			c.fail(here, "%s has addresses that stand before it in the list", e)
		}
	}
}

func (c *mixChecker) nat(p *Part, path []any) {
	n := p.NAT
	if len(n.DNAT) == 0 && n.SNAT == nil {
		c.fail(path, "expected nat with dnat: [203.0.113.10:80], or snat: {to: [203.0.113.1]}, or both")
	}
	if len(n.DNAT) > 0 {
		c.endpoints(append(path, "dnat"), p, n.DNAT, true)
		if c.first == nil && poolsOf(n.DNAT).overlaps(poolsOf(p.Destinations), true) {
			c.fail(append(path, "dnat"), "a destination is among the servers behind it: expected others, or no NAT")
		}
	}
	if n.SNAT == nil {
		return
	}
	path = append(path, "snat")
	c.endpoints(append(path[:len(path):len(path)], "to"), p, n.SNAT.To, false)
	switch n.SNAT.Order {
	case "", Preserve, Random, Sequential:
	default:
		c.fail(append(path, "order"), "order %q: expected one of: %s, %s, %s", n.SNAT.Order, Preserve, Random, Sequential)
	}
	if to := poolsOf(n.SNAT.To); c.first == nil && to.len() > maxSNAT {
		c.fail(append(path, "to"), "expected at most %d addresses, found %d", maxSNAT, to.len())
	} else if c.first == nil && to.overlaps(endpoints{{pool: p.Sources.pool()}}, false) {
		c.fail(append(path, "to"), "an address of SNAT is among the clients': expected others")
	}
}

// strangers makes sure that no client is a server too: a reply could then be
// another connection's request.
func (c *mixChecker) strangers() {
	for i := range c.m.Parts {
		for k := range c.m.Parts {
			if c.first != nil {
				return
			}
			clients := endpoints{{pool: c.m.Parts[i].Sources.pool()}}
			servers := c.m.Parts[k].Destinations
			if n := c.m.Parts[k].NAT; n != nil {
				servers = append(servers[:len(servers):len(servers)], n.DNAT...)
			}
			if clients.overlaps(poolsOf(servers), false) {
				c.fail(at("parts", i, "sources"), "sources %s: some of them are destinations of part %q", c.m.Parts[i].Sources.Prefix, c.m.Parts[k].Name)
			}
		}
	}
}

// setAside are the addresses that belong to nobody: for benchmarks (RFC 2544) and
// for documentation (RFC 5737, 3849, 9637).
var setAside = []netip.Prefix{
	Network, netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("3fff::/20"),
}

// Foreign are addresses of the mix that somebody may really have: packets of such
// connections would meet the entries.
func (m *Mix) Foreign() []Endpoint {
	var all []Endpoint
	for _, p := range m.Parts {
		ends := append([]Endpoint{p.Sources.Prefix}, p.Destinations...)
		if p.NAT != nil {
			ends = append(ends, p.NAT.DNAT...)
			if p.NAT.SNAT != nil {
				ends = append(ends, p.NAT.SNAT.To...)
			}
		}
		for _, e := range ends {
			if !isSetAside(e.Prefix) {
				all = append(all, e)
			}
		}
	}
	return all
}

func isSetAside(p netip.Prefix) bool {
	for _, a := range setAside {
		if a.Bits() <= p.Bits() && a.Contains(p.Addr()) {
			return true
		}
	}
	return false
}
