package drops

import "fmt"

// ipProtocols and etherTypes are the names of numbers (IANA).
var ipProtocols = map[uint8]string{
	0: "hopopt", 43: "ip6-route", 44: "ip6-frag", 60: "ip6-opts", // IPv6 extension headers
	1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 41: "ip6-in-ip", 47: "gre", 50: "esp", 51: "ah",
	58: "icmp6", 89: "ospf", 103: "pim", 112: "vrrp", 132: "sctp",
}

var etherTypes = map[uint16]string{
	0x0800: "ip", 0x0806: "arp", 0x8035: "rarp", 0x86dd: "ip6", 0x8100: "vlan", 0x88a8: "vlan", 0x88cc: "lldp", 0x8847: "mpls",
	0x8863: "pppoe", 0x8864: "pppoe", 0x0004: "802.2",
}

// protocolKnown is PROTOCOL_KNOWN in tables.h.
const protocolKnown = 1 << 8

// protocolName names what the program put together.
func protocolName(p uint32) string {
	ether, ip := uint16(p>>16), uint8(p)
	if p&protocolKnown != 0 {
		if name, ok := ipProtocols[ip]; ok {
			return name
		}
		return fmt.Sprintf("ip proto %d", ip)
	}
	if name, ok := etherTypes[ether]; ok {
		return name
	}
	if ether == 0 {
		return "-"
	}
	return fmt.Sprintf("ethertype 0x%04x", ether)
}
