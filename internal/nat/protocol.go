package nat

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/unix"
)

// protocolNames are those that conntrack(8) prints (libnetfilter_conntrack).
var protocolNames = [256]string{
	unix.IPPROTO_ICMP:    "icmp",
	unix.IPPROTO_IGMP:    "igmp",
	unix.IPPROTO_TCP:     "tcp",
	unix.IPPROTO_UDP:     "udp",
	unix.IPPROTO_DCCP:    "dccp",
	unix.IPPROTO_GRE:     "gre",
	unix.IPPROTO_ESP:     "esp",
	unix.IPPROTO_AH:      "ah",
	unix.IPPROTO_ICMPV6:  "icmpv6",
	unix.IPPROTO_SCTP:    "sctp",
	unix.IPPROTO_UDPLITE: "udplite",
}

// Protocols are the names that ParseProtocol reads.
var Protocols = knownProtocols()

func knownProtocols() (names []string) {
	for _, name := range protocolNames {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// ProtocolName is the name of an IP protocol, its number where conntrack(8) has no name
// for it.
func ProtocolName(protocol uint8) string {
	if name := protocolNames[protocol]; name != "" {
		return name
	}
	return strconv.Itoa(int(protocol))
}

// ParseProtocol reads the name or the number of an IP protocol.
func ParseProtocol(text string) (uint8, error) {
	lower := strings.ToLower(text)
	if lower == "ipv6-icmp" || lower == "icmp6" {
		lower = "icmpv6"
	}
	for n, name := range protocolNames {
		if name == lower && name != "" {
			return uint8(n), nil
		}
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%q is no protocol; give a number or one of %s", text, strings.Join(Protocols, ", "))
	}
	return uint8(n), nil
}

// HasPorts reports whether NAT can give a protocol another port
// (nf_nat_l4proto_unique_tuple).
func HasPorts(protocol uint8) bool {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_UDPLITE, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP:
		return true
	}
	return false
}

// IsICMP reports whether a protocol is ICMP or ICMPv6.
func IsICMP(protocol uint8) bool {
	return protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6
}

// ParseNumber reads a number of 32 bits: 16, or 0x10.
func ParseNumber(text string) (uint32, error) {
	digits, base := text, 10
	if hex, is := strings.CutPrefix(strings.ToLower(text), "0x"); is {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	return uint32(n), err
}
