package gateway

import (
	"fmt"
	"net/netip"
)

// rule looks at a rule by itself.
func (c *checker) rule(o one) {
	if p := o.whole(); p != nil { // of a Config that Parse has not read
		o.refuse("rule-incomplete", p.Message, "write what is missing")
		return
	}
	for _, w := range o.written() {
		o.address(w)
	}
	switch {
	case o.Masquerade != nil:
		o.choice(&o.Masquerade.Choice)
	case o.SNAT != nil:
		o.choice(&o.SNAT.Choice)
		o.nothingLeft()
	case o.DNAT != nil:
		o.dnat(o.DNAT)
	case o.Static != nil:
		o.static(o.Static)
	case o.Netmap != nil:
		o.netmap(o.Netmap)
	case o.Notrack != nil:
		o.protocol(o.Notrack.Port, "port")
	}
}

// special are addresses that no host has, or that only it can reach.
var special = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), `an address of "this network" (RFC 1122), which no host has`},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address, which no packet from or to another host carries"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address, which connection tracking does not translate"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved or the broadcast address (RFC 1112, RFC 919), which no host has"},
	{netip.MustParsePrefix("::/127"), "the unspecified or the loopback address, which no packet from or to another host carries"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address, which connection tracking does not translate"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address, which no router forwards"},
}

// address looks at the family and the kind of one address, range or prefix.
func (o one) address(w written) {
	if w.addrs.First.BitLen() != o.bits {
		other := "ipv6"
		if o.bits == 128 {
			other = "nat"
		}
		o.refuse("wrong-family", fmt.Sprintf("%s is not %s, which the rules below %s are for", w.text, familyName(o.bits), o.ref.List),
			"write the rule below "+other, w.path...)
		return
	}
	for _, s := range special {
		// Whom a rule is about may be everybody: only the whole of it counts.
		r, condition := RangeOf(s.prefix), w.use == useFrom || w.use == useExcept
		if condition && r.covers(w.addrs) || !condition && r.overlaps(w.addrs) {
			o.refuse("unusable-address", fmt.Sprintf("%s is %s", withPart(w, r), s.what), "write the address of a host", w.path...)
			return
		}
	}
}

// withPart is how w is written, and which part of it lies in r where not all does.
func withPart(w written, r Range) string {
	if r.covers(w.addrs) {
		return w.text
	}
	first := w.addrs.First
	if first.Less(r.First) {
		first = r.First
	}
	return fmt.Sprintf("%s of %s", first, w.text)
}

func (o one) choice(c *Choice) {
	if c.Ports.Keep && c.Random != "" {
		o.refuse("keep-random", "ports are kept, and chosen at random", "leave out ports: keep, or random", "random")
	}
}

func (o one) dnat(d *DNAT) {
	o.protocol(d.Port, "port")
	switch {
	case d.To.Port != 0 && !HasPorts(d.Port.Protocol):
		o.refuse("port-without-protocol", fmt.Sprintf("to %s has a port, but the rule is not for a protocol that has ports", d.To),
			fmt.Sprintf("write port: tcp/%d, or leave the port out of to", d.To.Port), "to")
	case d.To.Port != 0 && d.Port.First == 0:
		o.warn("ports-to-one", fmt.Sprintf("every port of %s goes to the one port of %s", d.Port.Protocol, d.To),
			"write the ports that are meant after port, or leave the port out of to: then each stays what it is", "to")
	case d.To.Port != 0 && d.Port.last() > d.Port.First:
		o.warn("ports-to-one", fmt.Sprintf("the %d ports of %s all go to the one port of %s", d.Port.span(), d.Port, d.To),
			"leave the port out of to: then each stays what it is", "to")
	case d.On.Address == d.To.Address && (d.To.Port == 0 || d.To.Port == d.Port.First && d.Port.last() == d.Port.First):
		o.refuse("translates-to-itself", fmt.Sprintf("%s becomes itself", d.On), "leave the rule out, or name the host inside", "to")
	}
	if d.Hairpin {
		o.hairpin()
	}
}

// hairpin needs to know which interfaces lead inside.
func (o one) hairpin() {
	if i := o.config.Interfaces; len(i.WAN)+len(i.LAN) == 0 {
		o.refuse("hairpin-without-roles", "hairpin is for hosts inside, and nothing tells which interfaces lead there",
			"name them: interfaces: {wan: eth0, lan: eth1}", "hairpin")
	}
}

// protocol refuses the other family's ICMP.
func (o one) protocol(p Port, path ...any) {
	switch {
	case p.Protocol == "icmp" && o.bits == 128:
		o.refuse("wrong-family", "icmp is of IPv4", "write icmpv6", path...)
	case p.Protocol == "icmpv6" && o.bits == 32:
		o.refuse("wrong-family", "icmpv6 is of IPv6", "write icmp", path...)
	}
}

func (o one) static(s *Static) {
	if s.Inside == s.Outside {
		o.refuse("translates-to-itself", fmt.Sprintf("%s becomes itself", s.Inside), "leave the rule out", "outside")
	}
	switch {
	case bool(s.Stateless) && bool(s.Hairpin):
		o.refuse("stateless-needs-tracker", "hairpin needs connections, and stateless has none", "leave out one of them", "hairpin")
	case bool(s.Stateless) && bool(s.Local):
		o.refuse("stateless-needs-tracker", "local needs connections, and stateless has none", "leave out one of them", "local")
	case bool(s.Hairpin):
		o.hairpin()
	}
}

func (o one) netmap(n *Netmap) {
	in, out := n.Inside.Prefix, n.Outside.Prefix
	switch {
	case in.Addr().BitLen() != out.Addr().BitLen(): // one of them is of the wrong family
	case in.Bits() != out.Bits():
		o.refuse("netmap-lengths", fmt.Sprintf("inside is a /%d, outside a /%d: every address inside needs one of its own outside", in.Bits(), out.Bits()),
			fmt.Sprintf("write two prefixes of one length, or share addresses: snat: {from: %s, to: %s}", n.Inside, n.Outside), "outside")
	case in == out:
		o.refuse("translates-to-itself", fmt.Sprintf("%s becomes itself", n.Inside), "leave the rule out", "outside")
	case bool(n.Stateless) && o.bits == 128 && in.Bits() > longestNeutral:
		o.refuse("nptv6-prefix", fmt.Sprintf("/%d is too long for NPTv6, which keeps checksums right in the last 64 bits (RFC 6296, 3.5)", in.Bits()),
			fmt.Sprintf("use prefixes of /%d or shorter, or leave out stateless", longestNeutral), "inside")
	}
}
