package gateway

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/units"
)

// load looks at what the file expects of the connection table.
func (c *checker) load() {
	if c.facts.Known && !c.facts.Initial && c.config.Expect.Flows > 0 {
		c.add(Finding{ID: "expect-in-namespace", Severity: Warn,
			Message: "the size of the connection table belongs to the host: from this network namespace it cannot be changed",
			Advice:  "on the host, give net.netfilter.nf_conntrack_max the value that 'natkit gateway apply' names"}, []any{"expect", "flows"})
	}
	flows, limit := int64(c.config.Expect.Flows), int64(c.config.Limits.ConnectionsPerSource)
	if flows > 0 && limit > flows {
		c.add(Finding{ID: "limit-without-effect", Severity: Warn,
			Message: fmt.Sprintf("one host may have %s, and %s are expected of all together: it bounds nothing", units.Plural(limit, "connection", "connections"), units.Count(flows)),
			Advice:  "lower it, so that one host cannot take what is for all"}, []any{"limits", "connections-per-source"})
	}
}

// support looks at what the kernel can do.
func (c *checker) support() {
	if why := NoHairpin(c.facts.Kernel); why != "" {
		c.everyRule(func(o one) { o.noHairpin(why) })
	}
	if f := c.facts.Flowtable; bool(c.config.Flowtable) && !f.OK && !f.Unknown {
		c.add(Finding{ID: "no-flowtable", Severity: Warn, Message: "flowtable: " + c.facts.Flowtable.Reason,
			Advice: "everything is forwarded the slow way until then; write flowtable: off if that is meant"}, []any{"flowtable"})
	}
}

func (o one) noHairpin(why string) {
	if o.DNAT != nil && bool(o.DNAT.Hairpin) || o.Static != nil && bool(o.Static.Hairpin) {
		o.refuse("no-hairpin", why, "take hairpin out, or let hosts inside use the address inside", "hairpin")
	}
}

// waits names rules about an interface that has no address yet.
func (c *checker) waits() {
	for _, w := range c.plan.Waiting {
		if !c.facts.has(w.Interface) {
			continue // said already
		}
		o := c.ruleOf(w.Rule)
		o.warn("address-waits", fmt.Sprintf("%s has no %s address that others can reach: the rule waits for one", w.Interface, familyName(o.bits)),
			"give it one, or wait: 'natkit gateway run' takes it up when it comes", "on")
	}
}

func familyName(bits int) string {
	if bits == 128 {
		return "IPv6"
	}
	return "IPv4"
}

// ownAddresses looks whether packets to the addresses outside come here at all. What
// thousands of rules have in common is said once.
func (c *checker) ownAddresses() {
	h := c.facts.addresses()
	said := map[Range]bool{}
	c.everyRule(func(o one) {
		for _, w := range o.written() {
			if (w.use == useOn || w.use == useOutside || w.use == useGive) && !said[w.addrs] {
				said[w.addrs] = o.notHere(w, h)
			}
		}
	})
}

// targets looks whether the hosts inside are other hosts, and inside.
func (c *checker) targets() {
	said := map[netip.Addr]bool{}
	c.everyRule(func(o one) {
		for _, w := range o.written() {
			if a, ok := w.inside(); ok && !said[a] {
				said[a] = o.notInside(a, w)
			}
		}
	})
}

// notInside warns of a host inside that is the gateway itself, or is outside.
func (o one) notInside(a netip.Addr, w written) bool {
	by, near := o.toward(a)
	if !near {
		by = o.facts.Ways[a]
	}
	switch {
	case o.facts.Has(a):
		o.warn("target-is-gateway", w.text+" is an address of this host itself: what is sent there goes no further than to its own programs",
			"name a host inside; or leave the rule out and have the program listen on the address outside", w.path...)
	case slices.Contains(o.config.Interfaces.WAN, by):
		o.warn("target-outside", fmt.Sprintf("the way to %s leads out by %s, which is wan: what is sent there leaves again and comes to no host inside", w.text, by),
			"name a host inside; or give this one a route by an interface inside: sudo ip route add "+host(a).String()+" dev INTERFACE", w.path...)
	default:
		return false
	}
	return true
}

// hostAddresses are those that a host has, and those of its networks that no host has.
type hostAddresses struct {
	own  map[netip.Addr]bool
	ends map[netip.Addr]string
}

func (f *Facts) addresses() hostAddresses {
	h := hostAddresses{map[netip.Addr]bool{}, map[netip.Addr]string{}}
	for _, i := range f.Interfaces {
		for _, p := range i.Addresses {
			h.own[p.Addr()] = true
			if p.Addr().Is4() && p.Bits() < 31 {
				all := RangeOf(p.Masked())
				words := fmt.Sprintf("%s on %s", p.Masked(), i.Name)
				h.ends[all.First], h.ends[all.Last] = words, words
			}
		}
	}
	return h
}

// notHere finds addresses that nobody has, or no interface here.
func (o one) notHere(w written, h hostAddresses) bool {
	a := w.addrs.First
	switch end := h.ends[a]; {
	case a != w.addrs.Last:
		return o.notAllOurs(w)
	case h.own[a]:
		return false
	case end != "":
		o.refuse("subnet-end", fmt.Sprintf("%s is the network's own or the broadcast address of %s", w.text, end),
			"write the address of a host", w.path...)
	default:
		o.notOurs(a, w.path)
	}
	return true
}

// notOurs warns of an address that no interface has.
func (o one) notOurs(a netip.Addr, path []any) {
	if dev, near := o.toward(a); near {
		o.warn("address-missing", fmt.Sprintf("%s is on the network of %s, and no interface here has it: nobody answers for it there", a, dev),
			"sudo ip addr add "+host(a).String()+" dev "+dev, path...)
	} else {
		o.warn("address-missing", fmt.Sprintf("no interface here has %s: its packets come only if a router sends them here", a),
			"unless it does: sudo ip addr add "+host(a).String()+" dev "+dev, path...)
	}
}

// notAllOurs is notOurs of a range or a prefix, of which a router may send all.
func (o one) notAllOurs(w written) bool {
	all, have := w.addrs.Size(), int64(0)
	for _, i := range o.facts.Interfaces {
		for _, p := range i.Addresses {
			if w.addrs.Contains(p.Addr()) {
				have++
			}
		}
	}
	if network, name := o.networkIn(w.addrs); name != "" {
		o.warn("address-missing", fmt.Sprintf("%s takes up all of %s, the network of %s: the router's address is among them, and those of other hosts there",
			w.text, network, name), "name a part of the network that is for this gateway alone", w.path...)
		return true
	}
	dev, near := o.toward(w.addrs.First)
	if all <= have || !near {
		return false // a prefix elsewhere is one that is routed here
	}
	advice := fmt.Sprintf("sudo ip route add local %s dev %s, or ip addr add for each", prefixOr(w), dev)
	if w.addrs.First.Is6() {
		advice = "have it routed here, or answer for it: ndppd, or ip -6 neigh add proxy for each"
	}
	o.warn("address-missing", fmt.Sprintf("%s lies on the network of %s, and of its %s interfaces here have %d: nobody answers for the others there",
		w.text, dev, many(all, "address", "addresses"), have), advice, w.path...)
	return true
}

// networkIn is a network of an interface that lies in r, with its other hosts.
func (c *checker) networkIn(r Range) (network netip.Prefix, name string) {
	for _, i := range c.facts.Interfaces {
		for _, p := range i.Addresses {
			if p.Bits() < p.Addr().BitLen()-1 && r.covers(RangeOf(p.Masked())) {
				return p.Masked(), i.Name
			}
		}
	}
	return network, ""
}

// prefixOr is the prefix that a range is, or a word for one.
func prefixOr(w written) string {
	if p, is := w.addrs.prefix(); is {
		return p.String()
	}
	return "PREFIX"
}

// toward is the interface on whose network the address is; the first WAN interface
// otherwise.
func (c *checker) toward(a netip.Addr) (name string, near bool) {
	for _, i := range c.facts.Interfaces {
		for _, p := range i.Addresses {
			if p.Bits() < p.Addr().BitLen() && p.Contains(a) {
				return i.Name, true
			}
		}
	}
	if wan := c.config.Interfaces.WAN; len(wan) > 0 {
		return wan[0], false
	}
	return "INTERFACE", false
}
