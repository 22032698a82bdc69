package path

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

// Bits of struct flow's flags (flow.h).
const (
	flowAddresses = 1 << 0
	flowPorts     = 1 << 1
	flowFragment  = 1 << 2
)

// addresses tells who a packet is from and to.
func addresses(e *pathEvent) snapshot.PathAddresses {
	f := &e.Flow
	a := snapshot.PathAddresses{Protocol: protocolName(f.L3, f.Proto)}
	if f.Flags&flowAddresses == 0 {
		return a
	}
	a.Source = endpoint(f.L3, f.Saddr, f.Sport, f.Flags)
	a.Destination = endpoint(f.L3, f.Daddr, f.Dport, f.Flags)
	a.TTL = int(f.Ttl)
	if f.Proto == unix.IPPROTO_TCP && f.Flags&flowPorts != 0 {
		a.TCPFlags = flagNames(f.TcpFlags)
	}
	if f.Flags&flowFragment != 0 {
		a.Protocol += " fragment"
	}
	return a
}

func endpoint(l3 uint16, words [4]uint32, port uint16, flags uint8) string {
	var b [16]byte
	for i, w := range words {
		binary.NativeEndian.PutUint32(b[4*i:], w) // as the packet has them
	}
	addr := netip.AddrFrom4([4]byte(b[:4]))
	if l3 == unix.ETH_P_IPV6 {
		addr = netip.AddrFrom16(b)
	}
	if flags&flowPorts == 0 {
		return addr.String()
	}
	return netip.AddrPortFrom(addr, port).String()
}

func protocolName(l3 uint16, proto uint8) string {
	switch l3 {
	case 0:
		return "" // not yet known
	case unix.ETH_P_ARP:
		return "arp"
	case unix.ETH_P_IP, unix.ETH_P_IPV6:
	default:
		return fmt.Sprintf("ethertype %#04x", l3)
	}
	switch proto {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmp6"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return fmt.Sprint("ip proto ", proto)
}

// tcpFlags are in the order of their bits.
var tcpFlags = [8]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"}

func flagNames(flags uint8) string {
	var names []string
	for bit, name := range tcpFlags {
		if flags&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// deviceName takes an interface's name from the kernel: whoever may make interfaces
// chose it, and what would steer a terminal is shown as "?".
func deviceName(raw [16]int8) string {
	name := make([]byte, 0, len(raw))
	for _, c := range raw {
		switch b := byte(c); {
		case b == 0:
			return string(name)
		case b <= ' ' || b >= 0x7f:
			name = append(name, '?')
		default:
			name = append(name, b)
		}
	}
	return string(name)
}
