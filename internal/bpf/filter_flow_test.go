package bpf

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/testutil"
)

// matches is the slow and obvious evaluation of a filter over a parsed packet. It returns what
// pcap-filter(7) says of the packet's frame, but for two things. A
// packet that is too short to have what a word asks is not what the word says, so
// that not matches it; libpcap drops it whatever the words around. And ARP about
// something else than IPv4 over Ethernet, and IPv4 with a header length that cannot
// be, have no addresses and no ports, where libpcap takes the bytes that are there.
func matches(e *frame.Filter, p flow) bool {
	if e == nil {
		return true
	}
	switch e.Op {
	case frame.OpNot:
		return !matches(e.Left, p)
	case frame.OpAnd:
		return matches(e.Left, p) && matches(e.Right, p)
	case frame.OpOr:
		return matches(e.Left, p) || matches(e.Right, p)
	}
	return matchesTerm(e.Term, p)
}

func matchesTerm(t frame.Term, p flow) bool {
	switch t.Kind {
	case frame.OfProtocol:
		return matchesProtocol(t.Protocol, p)
	case frame.OfHost, frame.OfNet:
		return matchesNet(t, p)
	}
	return matchesPorts(t, p)
}

func matchesProtocol(proto frame.Protocol, p flow) bool {
	switch proto {
	case frame.OnlyIPv4:
		return p.L3 == frame.EtherTypeIPv4
	case frame.OnlyIPv6:
		return p.L3 == frame.EtherTypeIPv6
	case frame.OnlyTCP:
		return p.Proto == unix.IPPROTO_TCP
	case frame.OnlyUDP:
		return p.Proto == unix.IPPROTO_UDP
	case frame.OnlyICMP:
		return p.L3 == frame.EtherTypeIPv4 && p.Proto == unix.IPPROTO_ICMP
	}
	return true
}

func matchesNet(t frame.Term, p flow) bool {
	if p.Flags&HasAddresses == 0 {
		return false
	}
	is6 := p.L3 == frame.EtherTypeIPv6
	if t.Net.Addr().Is6() != is6 || t.Protocol == frame.OnlyIPv4 && p.L3 != frame.EtherTypeIPv4 {
		return false
	}
	address := func(a [16]byte) netip.Addr {
		if is6 {
			return netip.AddrFrom16(a)
		}
		return netip.AddrFrom4([4]byte(a[:4]))
	}
	return combine(t.Direction, contains(t, address(p.Source)), contains(t, address(p.Destination)))
}

// contains does what netip.Prefix.Contains does not: an IPv4 address mapped into
// IPv6 is one of IPv6 here.
func contains(t frame.Term, a netip.Addr) bool {
	prefix, err := a.Prefix(t.Net.Bits())
	return err == nil && prefix.Addr() == t.Net.Addr()
}

func matchesPorts(t frame.Term, p flow) bool {
	if p.Flags&HasPorts == 0 || !matchesProtocol(t.Protocol, p) {
		return false
	}
	in := func(port uint16) bool { return t.Ports.First <= port && port <= t.Ports.Last }
	return combine(t.Direction, in(p.SourcePort), in(p.DestinationPort))
}

func combine(d frame.Direction, source, destination bool) bool {
	switch d {
	case frame.Source:
		return source
	case frame.Destination:
		return destination
	case frame.Both:
		return source && destination
	}
	return source || destination
}

// EtherTypes (include/uapi/linux/if_ether.h) that filters know besides those of IP.
const (
	etherTypeARP  = 0x0806
	etherTypeRARP = 0x8035
)

const (
	arpLen = 28
	// tcpFlagsEnd is how far into a segment its flags are.
	tcpFlagsEnd = 14
)

// parseFrame reads an Ethernet frame without VLAN tag, as parse_flow in flow.h does.
// A frame that is cut short gives what it has.
func parseFrame(b []byte) flow {
	if len(b) < frame.EthernetLen {
		return flow{}
	}
	return parsePacket(binary.BigEndian.Uint16(b[12:]), b[frame.EthernetLen:])
}

// parsePacket is parseFrame without the Ethernet header. etherType is the protocol of b.
func parsePacket(etherType uint16, b []byte) flow {
	p := flow{L3: etherType}
	switch etherType {
	case frame.EtherTypeIPv4:
		p.parseIPv4(b)
	case frame.EtherTypeIPv6:
		p.parseIPv6(b)
	case etherTypeARP, etherTypeRARP:
		p.parseARP(b)
	}
	return p
}

func (p *flow) parseIPv4(b []byte) {
	if len(b) < frame.IPv4Len {
		return
	}
	copy(p.Source[:], b[12:16])
	copy(p.Destination[:], b[16:20])
	p.Flags |= HasAddresses
	p.Proto = b[9]
	p.Length = binary.BigEndian.Uint16(b[2:])
	p.TTL = b[8]
	if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		p.Flags |= IsFragment
		return
	}
	if ihl := int(b[0]&0x0f) * 4; ihl >= frame.IPv4Len && ihl <= len(b) {
		p.parseTransport(b[ihl:])
	}
}

func (p *flow) parseIPv6(b []byte) {
	if len(b) < frame.IPv6Len {
		return
	}
	copy(p.Source[:], b[8:24])
	copy(p.Destination[:], b[24:40])
	p.Flags |= HasAddresses
	p.Proto = b[6]
	p.Length = binary.BigEndian.Uint16(b[4:]) + frame.IPv6Len
	p.TTL = b[7]
	b = b[frame.IPv6Len:]
	if p.Proto != unix.IPPROTO_FRAGMENT {
		p.parseTransport(b)
		return
	}
	p.Flags |= IsFragment
	if len(b) > 0 {
		p.Proto = b[0]
	}
}

func (p *flow) parseTransport(b []byte) {
	switch p.Proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		p.parsePorts(b)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if len(b) >= 2 {
			p.ICMPType, p.ICMPCode = b[0], b[1]
		}
	}
}

func (p *flow) parsePorts(b []byte) {
	if len(b) < 4 {
		return
	}
	p.SourcePort = binary.BigEndian.Uint16(b)
	p.DestinationPort = binary.BigEndian.Uint16(b[2:])
	p.Flags |= HasPorts
	if p.Proto == unix.IPPROTO_TCP && len(b) >= tcpFlagsEnd {
		p.TCPFlags = b[13]
	}
}

// parseARP takes the addresses of what is about IPv4 over Ethernet; in others they
// lie elsewhere.
func (p *flow) parseARP(b []byte) {
	if len(b) < arpLen || binary.BigEndian.Uint16(b[2:]) != frame.EtherTypeIPv4 || b[4] != 6 || b[5] != 4 {
		return
	}
	copy(p.Source[:], b[14:18])
	copy(p.Destination[:], b[24:28])
	p.Flags |= HasAddresses
}

// synFrame is a SYN.
func synFrame() []byte {
	a, b := []byte{198, 18, 0, 1}, []byte{198, 19, 0, 1}
	l4 := transport(1024, 80)
	return ethernet(frame.EtherTypeIPv4, ipv4(unix.IPPROTO_TCP, 0, 0, a, b, len(l4)), l4)
}

func TestParseFrame(t *testing.T) {
	got := parseFrame(synFrame())
	want := flow{
		Source: [16]byte{198, 18, 0, 1}, Destination: [16]byte{198, 19, 0, 1}, SourcePort: 1024, DestinationPort: 80,
		L3: frame.EtherTypeIPv4, Length: got.Length, Proto: unix.IPPROTO_TCP, TCPFlags: 0x12, Flags: HasAddresses | HasPorts, TTL: 61,
	}
	if got != want || got.Length < 40 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := parseFrame(make([]byte, 13)); got != (flow{}) {
		t.Errorf("of a frame without EtherType: %+v", got)
	}
}

// FuzzParseFrame: no frame panics, and none has what it is too short for.
func FuzzParseFrame(f *testing.F) {
	f.Add(synFrame())
	f.Fuzz(func(t *testing.T, b []byte) {
		defer testutil.Bounded(t, len(b))()
		p := parseFrame(b)
		if p.Flags&HasPorts != 0 && (len(b) < frame.EthernetLen+frame.IPv4Len+4 || p.Flags&HasAddresses == 0) {
			t.Errorf("%x has ports: %+v", b, p)
		}
	})
}
