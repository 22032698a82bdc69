package filter

import (
	"encoding/binary"
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

// Packet is what can be read of a packet. What cannot be is 0. It has the layout of
// struct flow in internal/bpf/include/flow.h, where programs fill it.
type Packet struct {
	Source, Destination         [16]byte // of IPv4 and ARP the first four
	SourcePort, DestinationPort uint16
	L3                          uint16 // skb->protocol: EtherTypeIPv4…
	Length                      uint16 // of the IP packet, header included, as it says itself
	Proto                       uint8  // ProtoTCP…; of an IPv6 fragment, that behind the fragment header
	TCPFlags                    uint8
	ICMPType, ICMPCode          uint8
	Flags                       Flags
	TTL                         uint8
	_                           uint16
}

// Flags say what a Packet has.
type Flags uint8

const (
	// HasAddresses is set where Source and Destination are known.
	HasAddresses Flags = 1 << iota
	// HasPorts is set where the ports are known: of TCP, UDP and SCTP.
	HasPorts
	// Fragment is an IPv4 fragment but the first, or any of IPv6.
	Fragment
)

// EtherTypes (include/uapi/linux/if_ether.h) that filters know.
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeARP  = 0x0806
	EtherTypeRARP = 0x8035
	EtherTypeIPv6 = 0x86dd
)

// Protocols above IP (include/uapi/linux/in.h and in6.h) that filters know.
const (
	ProtoICMP     = 1
	ProtoTCP      = 6
	ProtoUDP      = 17
	ProtoFragment = 44
	ProtoICMPv6   = 58
	ProtoSCTP     = 132
)

const (
	ethernetLen = 14
	ipv4Len     = 20
	ipv6Len     = 40
	arpLen      = 28
	// tcpFlagsEnd is how far into a segment its flags are.
	tcpFlagsEnd = 14
)

// ParseFrame reads an Ethernet frame without VLAN tag, as parse_flow in flow.h does.
// A frame that is cut short gives what it has.
func ParseFrame(frame []byte) Packet {
	if len(frame) < ethernetLen {
		return Packet{}
	}
	return ParsePacket(binary.BigEndian.Uint16(frame[12:]), frame[ethernetLen:])
}

// ParsePacket is ParseFrame without the Ethernet header. etherType tells what b is.
func ParsePacket(etherType uint16, b []byte) Packet {
	p := Packet{L3: etherType}
	switch etherType {
	case EtherTypeIPv4:
		p.parseIPv4(b)
	case EtherTypeIPv6:
		p.parseIPv6(b)
	case EtherTypeARP, EtherTypeRARP:
		p.parseARP(b)
	}
	return p
}

func (p *Packet) parseIPv4(b []byte) {
	if len(b) < ipv4Len {
		return
	}
	copy(p.Source[:], b[12:16])
	copy(p.Destination[:], b[16:20])
	p.Flags |= HasAddresses
	p.Proto = b[9]
	p.Length = binary.BigEndian.Uint16(b[2:])
	p.TTL = b[8]
	if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		p.Flags |= Fragment
		return
	}
	if ihl := int(b[0]&0x0f) * 4; ihl >= ipv4Len && ihl <= len(b) {
		p.parseTransport(b[ihl:])
	}
}

func (p *Packet) parseIPv6(b []byte) {
	if len(b) < ipv6Len {
		return
	}
	copy(p.Source[:], b[8:24])
	copy(p.Destination[:], b[24:40])
	p.Flags |= HasAddresses
	p.Proto = b[6]
	p.Length = binary.BigEndian.Uint16(b[4:]) + ipv6Len
	p.TTL = b[7]
	b = b[ipv6Len:]
	if p.Proto != ProtoFragment {
		p.parseTransport(b)
		return
	}
	p.Flags |= Fragment
	if len(b) > 0 {
		p.Proto = b[0]
	}
}

func (p *Packet) parseTransport(b []byte) {
	switch p.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		p.parsePorts(b)
	case ProtoICMP, ProtoICMPv6:
		if len(b) >= 2 {
			p.ICMPType, p.ICMPCode = b[0], b[1]
		}
	}
}

func (p *Packet) parsePorts(b []byte) {
	if len(b) < 4 {
		return
	}
	p.SourcePort = binary.BigEndian.Uint16(b)
	p.DestinationPort = binary.BigEndian.Uint16(b[2:])
	p.Flags |= HasPorts
	if p.Proto == ProtoTCP && len(b) >= tcpFlagsEnd {
		p.TCPFlags = b[13]
	}
}

// parseARP takes the addresses of what is about IPv4 over Ethernet; in others they
// lie elsewhere.
func (p *Packet) parseARP(b []byte) {
	if len(b) < arpLen || binary.BigEndian.Uint16(b[2:]) != EtherTypeIPv4 || b[4] != 6 || b[5] != 4 {
		return
	}
	copy(p.Source[:], b[14:18])
	copy(p.Destination[:], b[24:28])
	p.Flags |= HasAddresses
}
