package filter

import (
	"net/netip"
)

// Match reports whether the filter lets a packet pass.
//
// It says what pcap-filter(7) says of the packet's frame, but for two things. A
// packet that is too short to have what a word asks is not what the word says, so
// that not matches it; libpcap drops it whatever the words around. And ARP about
// something else than IPv4 over Ethernet, and IPv4 with a header length that cannot
// be, have no addresses and no ports, where libpcap takes the bytes that are there.
func (e *Expr) Match(p Packet) bool {
	if e == nil {
		return true
	}
	switch e.Op {
	case Not:
		return !e.Left.Match(p)
	case And:
		return e.Left.Match(p) && e.Right.Match(p)
	case Or:
		return e.Left.Match(p) || e.Right.Match(p)
	}
	return e.Term.match(p)
}

func (t Term) match(p Packet) bool {
	switch t.Kind {
	case OfProtocol:
		return t.Proto.match(p)
	case Host, Network:
		return t.matchNet(p)
	}
	return t.matchPorts(p)
}

func (proto Protocol) match(p Packet) bool {
	switch proto {
	case IPv4:
		return p.L3 == EtherTypeIPv4
	case IPv6:
		return p.L3 == EtherTypeIPv6
	case TCP:
		return p.Proto == ProtoTCP
	case UDP:
		return p.Proto == ProtoUDP
	case ICMP:
		return p.L3 == EtherTypeIPv4 && p.Proto == ProtoICMP
	}
	return true
}

func (t Term) matchNet(p Packet) bool {
	if p.Flags&HasAddresses == 0 {
		return false
	}
	is6 := p.L3 == EtherTypeIPv6
	if t.Net.Addr().Is6() != is6 || t.Proto == IPv4 && p.L3 != EtherTypeIPv4 {
		return false
	}
	address := func(a [16]byte) netip.Addr {
		if is6 {
			return netip.AddrFrom16(a)
		}
		return netip.AddrFrom4([4]byte(a[:4]))
	}
	return t.Direction.combine(t.contains(address(p.Source)), t.contains(address(p.Destination)))
}

// contains does what netip.Prefix.Contains does not: an IPv4 address mapped into
// IPv6 is one of IPv6 here.
func (t Term) contains(a netip.Addr) bool {
	prefix, err := a.Prefix(t.Net.Bits())
	return err == nil && prefix.Addr() == t.Net.Addr()
}

func (t Term) matchPorts(p Packet) bool {
	if p.Flags&HasPorts == 0 || !t.Proto.match(p) {
		return false
	}
	in := func(port uint16) bool { return t.FirstPort <= port && port <= t.LastPort }
	return t.Direction.combine(in(p.SourcePort), in(p.DestinationPort))
}

func (d Direction) combine(source, destination bool) bool {
	switch d {
	case Source:
		return source
	case Destination:
		return destination
	case Both:
		return source && destination
	}
	return source || destination
}
