package frame

import (
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/natkit/natkit/internal/unix"
)

var (
	link = Link{
		Source:      MAC{0x02, 0, 0x5e, 0, 0x53, 1},
		Destination: MAC{0x02, 0, 0x5e, 0, 0x53, 2},
	}
	tuple4 = Tuple{netip.MustParseAddrPort("198.18.0.1:1024"), netip.MustParseAddrPort("203.0.113.7:80")}
	tuple6 = Tuple{netip.MustParseAddrPort("[2001:db8::1]:1024"), netip.MustParseAddrPort("[2001:db8:1::7]:80")}
)

// Headers as gopacket has them, to be put together to frames.
func ethernet(etherType layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{
		SrcMAC:       net.HardwareAddr(link.Source[:]),
		DstMAC:       net.HardwareAddr(link.Destination[:]),
		EthernetType: etherType,
	}
}

func ipv4(protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{
		Version: 4, TOS: 46<<2 | 1, Id: 7, TTL: 63, Protocol: protocol,
		SrcIP: tuple4.Src.Addr().AsSlice(), DstIP: tuple4.Dst.Addr().AsSlice(),
	}
}

func ipv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{
		Version: 6, TrafficClass: 46<<2 | 1, FlowLabel: 0xabcdf, HopLimit: 63, NextHeader: next,
		SrcIP: tuple6.Src.Addr().AsSlice(), DstIP: tuple6.Dst.Addr().AsSlice(),
	}
}

func tcp(ip gopacket.NetworkLayer) *layers.TCP {
	t := &layers.TCP{
		SrcPort: 1024, DstPort: 80, Seq: 0x01020304, Ack: 0x05060708,
		SYN: true, ACK: true, ECE: true, Window: 29200, Urgent: 3,
		Options: []layers.TCPOption{
			{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}},
			{OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{7}},
			{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte{0, 0, 1, 0, 0, 0, 2, 0}},
		},
	}
	_ = t.SetNetworkLayerForChecksum(ip) // fails for other layers than IP only
	return t
}

func udp(ip gopacket.NetworkLayer) *layers.UDP {
	u := &layers.UDP{SrcPort: 1024, DstPort: 80}
	_ = u.SetNetworkLayerForChecksum(ip)
	return u
}

func icmpv6(ip gopacket.NetworkLayer, kind uint8) *layers.ICMPv6 {
	i := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
	_ = i.SetNetworkLayerForChecksum(ip)
	return i
}

// serialize puts a frame together, padded to 60 bytes.
func serialize(t testing.TB, parts ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, parts...); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

var payload = gopacket.Payload("the payload")

// Extension headers of eight bytes each; the first byte is the next header.
func hopByHop(next byte) gopacket.Payload { return gopacket.Payload{next, 0, 5, 2, 0, 0, 1, 0} }
func destinationOptions(next byte) gopacket.Payload {
	return gopacket.Payload{next, 0, 1, 4, 0, 0, 0, 0}
}
func routing(next, segmentsLeft byte) gopacket.Payload {
	return gopacket.Payload{next, 0, 253, segmentsLeft, 0, 0, 0, 0}
}
func fragment(next byte, offset uint16, more byte) gopacket.Payload {
	at := offset | uint16(more)
	return gopacket.Payload{next, 0, byte(at >> 8), byte(at), 0xde, 0xad, 0xbe, 0xef}
}
func authentication(next byte) gopacket.Payload { // 4+2 words, with the ICV of 12 bytes
	return append(gopacket.Payload{next, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, make([]byte, 12)...)
}

// tcpSegment is a segment with the right checksum for IPv6.
func tcpSegment(t testing.TB) gopacket.Payload {
	return serialize(t, tcp(ipv6(unix.IPPROTO_TCP)), payload)
}

// samples are well-formed frames of all kinds.
func samples(t testing.TB) map[string][]byte {
	const v4, v6 = layers.EthernetTypeIPv4, layers.EthernetTypeIPv6
	tcp4, udp4, icmp4 := ipv4(unix.IPPROTO_TCP), ipv4(unix.IPPROTO_UDP), ipv4(unix.IPPROTO_ICMP)
	tcp6, udp6, icmp6 := ipv6(unix.IPPROTO_TCP), ipv6(unix.IPPROTO_UDP), ipv6(unix.IPPROTO_ICMPV6)
	options := ipv4(unix.IPPROTO_UDP)
	options.Options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}} // router alert
	first, later := ipv4(unix.IPPROTO_UDP), ipv4(unix.IPPROTO_UDP)
	first.Flags = layers.IPv4MoreFragments
	later.FragOffset = 185
	echo := layers.CreateICMPv4TypeCode(8, 0)
	unreachable := layers.CreateICMPv4TypeCode(3, 3)
	segment := tcpSegment(t)
	return map[string][]byte{
		"ARP":              serialize(t, ethernet(layers.EthernetTypeARP), gopacket.Payload(make([]byte, 28))),
		"LLC":              serialize(t, ethernet(0), gopacket.Payload(make([]byte, 46)))[:14+46],
		"TCP":              serialize(t, ethernet(v4), tcp4, tcp(tcp4), payload),
		"TCP6":             serialize(t, ethernet(v6), tcp6, tcp(tcp6), payload),
		"UDP":              serialize(t, ethernet(v4), udp4, udp(udp4), payload),
		"UDP6":             serialize(t, ethernet(v6), udp6, udp(udp6), payload),
		"ICMP echo":        serialize(t, ethernet(v4), icmp4, &layers.ICMPv4{TypeCode: echo, Id: 7, Seq: 9}, payload),
		"ICMPv6 echo":      serialize(t, ethernet(v6), icmp6, icmpv6(icmp6, 128), gopacket.Payload{0, 7, 0, 9, 1, 2, 3}),
		"ICMP error":       serialize(t, ethernet(v4), icmp4, &layers.ICMPv4{TypeCode: unreachable}, tcp4, tcp(tcp4)),
		"ICMPv6 error":     serialize(t, ethernet(v6), icmp6, icmpv6(icmp6, 1), gopacket.Payload(make([]byte, 4)), udp6, udp(udp6), payload),
		"IPv4 options":     serialize(t, ethernet(v4), options, udp(options), payload),
		"first fragment":   serialize(t, ethernet(v4), first, udp(first), payload),
		"later fragment":   serialize(t, ethernet(v4), later, payload),
		"GRE":              serialize(t, ethernet(v4), ipv4(unix.IPPROTO_GRE), gopacket.Payload(make([]byte, 24))),
		"no next header":   serialize(t, ethernet(v6), ipv6(unix.IPPROTO_NONE), payload),
		"VLAN":             serialize(t, ethernet(layers.EthernetTypeDot1Q), &layers.Dot1Q{Priority: 4, DropEligible: true, VLANIdentifier: 100, Type: v4}, tcp4, tcp(tcp4)),
		"QinQ":             serialize(t, ethernet(layers.EthernetTypeQinQ), &layers.Dot1Q{VLANIdentifier: 4094, Type: layers.EthernetTypeDot1Q}, &layers.Dot1Q{VLANIdentifier: 1, Type: v6}, udp6, udp(udp6)),
		"padded":           serialize(t, ethernet(v4), udp4, udp(udp4)),
		"hop-by-hop":       serialize(t, ethernet(v6), ipv6(unix.IPPROTO_HOPOPTS), hopByHop(unix.IPPROTO_TCP), segment),
		"many extensions":  serialize(t, ethernet(v6), ipv6(unix.IPPROTO_HOPOPTS), hopByHop(unix.IPPROTO_DSTOPTS), destinationOptions(unix.IPPROTO_ROUTING), routing(unix.IPPROTO_DSTOPTS, 0), destinationOptions(unix.IPPROTO_TCP), segment),
		"routed":           serialize(t, ethernet(v6), ipv6(unix.IPPROTO_ROUTING), routing(unix.IPPROTO_TCP, 1), segment),
		"authenticated":    serialize(t, ethernet(v6), ipv6(unix.IPPROTO_AH), authentication(unix.IPPROTO_TCP), segment),
		"first fragment 6": serialize(t, ethernet(v6), ipv6(unix.IPPROTO_FRAGMENT), fragment(unix.IPPROTO_TCP, 0, 1), segment),
		"later fragment 6": serialize(t, ethernet(v6), ipv6(unix.IPPROTO_FRAGMENT), fragment(unix.IPPROTO_DSTOPTS, 1480, 0), payload),
		"atomic fragment":  serialize(t, ethernet(v6), ipv6(unix.IPPROTO_FRAGMENT), fragment(unix.IPPROTO_TCP, 0, 0), segment),
	}
}
