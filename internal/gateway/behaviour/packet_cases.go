package behaviour

import (
	"fmt"
	"slices"
)

// packetHeaders are about what a NAT has to leave as it is, and what it has to know of
// headers that are rare.
func packetHeaders() []Case {
	return slices.Concat(udpChecksums(), ipHeaders(), tcpHeaders(), unknownProtocols())
}

func udpChecksums() []Case {
	zero := bothFamilies(Case{ID: "udp-checksum-zero", Level: Natkit, Want: []Outcome{"stays 0"},
		Asks: "a UDP datagram without a checksum has none behind the gateway, in either direction and with another port"}, zeroChecksum)
	zero[1].Asks = "a UDP datagram of IPv6 without a checksum, which only tunnels may send (RFC 6935), gets a right one or is dropped"
	zero[1].Want = []Outcome{"becomes right", Dropped}
	zero[1].Expect = onNetfilter("stays 0", "the kernel changes a checksum only where there is one; what tunnels send stays as it is")
	return append(zero, bothFamilies(Case{ID: "udp-checksum-ffff", Level: Natkit, Want: []Outcome{"0xffff"},
		Asks: "a UDP checksum that comes out as 0 is sent as 0xffff, as 0 says that there is none (RFC 768)"}, checksumOfZero)...)
}

func ipHeaders() []Case {
	return slices.Concat([]Case{{
		ID: "ip-options", Level: Natkit, Want: []Outcome{Untouched},
		Asks: "options of IPv4 (NOP, router alert, an unknown one) are kept in both directions, with right checksums",
		Run:  ipOptions,
	}, {
		ID: "ip-source-route", Level: Natkit, Want: []Outcome{Dropped},
		Asks: "a packet with a source route is not forwarded (RFC 7126, section 4.3)",
		Run:  sourceRoute,
	}, {
		ID: "ipv6-extension-headers", Level: Natkit, Want: []Outcome{Untouched},
		Asks: "extension headers of IPv6 (hop-by-hop and destination options) are kept, and the UDP behind them translated",
		Run:  extensionHeaders,
	}},
		bothFamilies(Case{ID: "ip-fields", Level: Natkit, Want: []Outcome{Untouched},
			Asks: "DSCP, ECN, DF, identification and flow label stay as they are, the TTL goes down by one"}, ipFields))
}

func tcpHeaders() []Case {
	return slices.Concat(
		bothFamilies(Case{ID: "tcp-options", Level: Natkit, Want: []Outcome{Untouched},
			Asks: "options of TCP stay as they are: MSS, window scale, SACK, timestamps, unknown ones"}, tcpOptionsKept),
		clamps())
}

// clamps are about the MSS, with what each family's headers take of an MTU of 1500.
func clamps() []Case {
	const gatewayWith = `
mss: %s
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {}
ipv6:
  - masquerade: {}
`
	fixed := bothFamilies(Case{ID: "tcp-mss-number", Level: Natkit, Want: []Outcome{"1200, 1200, 1000"}, Gateway: fmt.Sprintf(gatewayWith, "1200"),
		Asks: "mss: 1200 lowers the MSS of SYN and SYN+ACK to that, and leaves smaller ones"}, clampedTo)
	route := bothFamilies(Case{ID: "tcp-mss-clamp", Level: Natkit, Want: []Outcome{"1460, 1460, 1000"}, Gateway: fmt.Sprintf(gatewayWith, "clamp"),
		Asks: "mss: clamp lowers the MSS of SYN and SYN+ACK to what fits the MTU, and leaves smaller ones"}, clampedTo)
	route[1].Want = []Outcome{"1440, 1440, 1000"}
	narrowRoute := bothFamilies(Case{ID: "tcp-mss-clamp-narrow", Level: Natkit, Want: []Outcome{"1240, 1240, 1000"}, Gateway: fmt.Sprintf(gatewayWith, "clamp"),
		Asks: "mss: clamp goes by the narrower one of the two networks, for both directions"}, clampedNarrow)
	narrowRoute[1].Want = []Outcome{"1220, 1220, 1000"}
	return slices.Concat(fixed, route, narrowRoute)
}
