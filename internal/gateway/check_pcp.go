package gateway

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// pcp checks which ports hosts inside may open.
func (c *checker) pcp() {
	p := &c.config.PCP
	if !p.On {
		return
	}
	roles := compiler{config: c.config, plan: Plan{WAN: c.config.Interfaces.WAN.Names(), LAN: c.config.Interfaces.LAN.Names()}}
	lan, err := roles.resolve(p.lan())
	switch {
	case len(roles.plan.WAN)+len(roles.plan.LAN) == 0:
		c.aboutPCP(Refuse, "pcp-without-lan", "the file does not say which interfaces lead inside", "name them: interfaces: {wan: eth0, lan: eth1}")
	case err != nil && len(lan) == 0:
		c.aboutPCP(Refuse, "pcp-without-lan", "no interface has the role lan, by which requests would come", "name it: interfaces: {lan: eth1}, or pcp: {lan: eth1}", "lan")
	case err != nil:
		c.aboutPCP(Refuse, "names-and-groups", "lan: "+err.Error(), "name the interfaces", "lan")
	}
	for _, name := range lan {
		switch {
		case nat.InNames(roles.plan.WAN, name):
			c.aboutPCP(Refuse, "pcp-not-inside", name+" is a wan interface: whoever is outside could open ports", "name interfaces inside", "lan")
		case slices.Contains(c.config.Zoned(), name):
			c.aboutPCP(Refuse, "pcp-of-zone", name+" is of a zone, and what is opened leads to hosts of none", "leave it out: pcp: {lan: eth3}", "lan")
		case !roles.plan.Inside(name):
			c.aboutPCP(Refuse, "pcp-not-inside", name+" is no lan interface: what hosts there ask for does not lead back inside", "name it below interfaces: lan, too", "lan")
		}
	}
	if _, err := roles.external(p.At); err != nil {
		c.aboutPCP(Refuse, "pcp-without-address", "on: "+err.Error(), "write pcp: {on: eth0}, or its address", "on")
	}
	if i := slices.IndexFunc(p.From, func(x Prefix) bool { return x.Set != "" || x.Prefix.IsValid() && !x.Addr().Is4() }); i >= 0 {
		c.aboutPCP(Refuse, "pcp-from", "from: "+p.From[i].String()+" is no prefix of IPv4", "write the networks of the hosts that may ask", "from", i)
	}
	if t := p.Lifetime; t.Min > 0 && t.Max > 0 && t.Min > t.Max {
		c.aboutPCP(Refuse, "pcp-lifetime", fmt.Sprintf("lifetime: min %s is longer than max %s", t.Min, t.Max), "exchange them", "lifetime", "min")
	}
	c.aboutPCP(Notice, "pcp-open", "every program on a host inside can have ports of that host opened to the Internet",
		"leave hosts out that need none, by lan and from; 'natkit gateway status' shows what is open")
}

// pcpOnHost checks what can be opened on the host.
func (c *checker) pcpOnHost() {
	g := c.plan.PCP
	if g == nil {
		return
	}
	if why := NoHairpin(c.facts.Kernel); why != "" {
		c.aboutPCP(Refuse, "pcp-kernel", "what is opened is for hosts inside as well, and "+why, "leave it out")
	}
	for _, name := range g.LAN {
		if network, zone := c.facts.networkInZone(c.plan, name); zone != "" {
			c.aboutPCP(Refuse, "pcp-of-zone", fmt.Sprintf("the network %s of %s is of zone %s as well, and what is opened is for hosts of none", network, name, zone),
				"leave that interface out by lan, or give it other addresses", "lan")
		}
	}
	switch {
	case !g.External.IsValid():
		c.aboutPCP(Warn, "pcp-waits", cmp.Or(c.config.PCP.At.Name, "the wan interface")+" has no address of IPv4 yet: no port is given before it has one", "apply again when it has one, or use 'natkit gateway run'")
	case !c.facts.Has(g.External):
		c.aboutPCP(Warn, "pcp-not-here", fmt.Sprintf("%s is no address of this host: what comes for it comes here only where routes lead it", g.External), "name the interface that has it: pcp: {on: eth0}")
	case isBehindNAT(g.External):
		c.aboutPCP(Warn, "pcp-behind-nat", fmt.Sprintf("%s is no address of the Internet: another router translates it, and lets nothing in for ports that are opened here", g.External),
			"have that router forward its ports to this one, or ask the provider for a public address")
	}
}

// networkInZone is a network of an interface of no zone in which the main table has a route by a zone's interface, and that
// zone; empty for none. A wider route of a zone gives way to the network.
func (f *Facts) networkInZone(p *Plan, name string) (network netip.Prefix, zone string) {
	for _, a := range f.AddressesOf(name) {
		network = a.Masked()
		for i := range p.Zones {
			z := &p.Zones[i]
			if slices.ContainsFunc(f.RoutesTo(z, a.Addr().Is6()), func(r RouteInside) bool {
				return a.Addr().Is4() && r.To.Bits() >= network.Bits() && network.Contains(r.To.Addr())
			}) {
				return network, z.Name
			}
		}
	}
	return network, ""
}

// pcpTogether checks it beside the rules.
func (c *checker) pcpTogether(plan *Plan) {
	g := plan.PCP
	if g == nil {
		return
	}
	translates := slices.ContainsFunc(plan.Sources, func(e Entry) bool { return e.Rule.BitLen() == 32 && !e.IsHairpin() })
	if !translates {
		c.aboutPCP(Warn, "pcp-without-nat", "no rule translates the sources of hosts inside: what they send does not leave under the address whose ports they open", "write a masquerade for them")
	}
	if len(plan.Uplinks) > 1 && c.config.PCP.At == (On{}) {
		c.aboutPCP(Warn, "pcp-one-wan", "ports are opened on one address alone, that of the first wan interface that has one of IPv4, whichever a host's connections leave by", "name the one that is meant: pcp: {on: "+plan.Uplinks[0].Interface+"}")
	}
	var none []string
	for _, protocol := range LeaseProtocols {
		claimed, free := plan.Claimed(protocol), 0
		for port := int(g.Ports.First); port <= int(g.Ports.Last); port++ {
			if !claimed.Has(uint16(port)) {
				free++
			}
		}
		if free == 0 {
			none = append(none, nat.ProtocolName(protocol))
		}
	}
	if len(none) > 0 {
		c.aboutPCP(Warn, "pcp-no-ports", fmt.Sprintf("rules of the file are for all of the ports %s of %s: none is left to give", g.Ports, strings.Join(none, " and ")), "give a dnat the ports that it is for, or pcp others")
	}
}

// aboutPCP takes a finding, which stands at path below the key pcp.
func (c *checker) aboutPCP(s Severity, id, message, advice string, path ...any) {
	c.add(Finding{ID: id, Severity: s, Message: "pcp: " + message, Advice: advice}, append([]any{"pcp"}, path...))
}

// isBehindNAT reports whether an address is one that is not routed in the Internet (RFC 1918, RFC 6598).
func isBehindNAT(a netip.Addr) bool {
	return a.IsPrivate() || netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10).Contains(a)
}
