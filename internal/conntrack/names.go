package conntrack

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// TCPState is the tracker's idea of a TCP connection's state, enum tcp_conntrack
// (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
type TCPState uint8

// The states that an entry can be in.
const (
	TCPNone TCPState = iota
	TCPSynSent
	TCPSynRecv
	TCPEstablished
	TCPFinWait
	TCPCloseWait
	TCPLastAck
	TCPTimeWait
	TCPClose
	// TCPSynSent2 is a simultaneous open; the number was once LISTEN's.
	TCPSynSent2
	tcpStates
)

var tcpStateNames = [tcpStates]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT",
	"CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// String is the name that conntrack(8) prints.
func (s TCPState) String() string {
	if s < tcpStates {
		return tcpStateNames[s]
	}
	return "UNKNOWN"
}

// SCTPState is the tracker's idea of an SCTP association's state, enum
// sctp_conntrack (include/uapi/linux/netfilter/nf_conntrack_sctp.h).
type SCTPState uint8

var sctpStateNames = [...]string{
	"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED",
	"SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED",
}

// String is the kernel's name.
func (s SCTPState) String() string { return nameOf(sctpStateNames[:], uint8(s)) }

// DCCPState is the tracker's idea of a DCCP connection's state, enum
// ct_dccp_states (include/uapi/linux/netfilter/nf_conntrack_dccp.h); Linux 6.16
// and later do not track it.
type DCCPState uint8

var dccpStateNames = [...]string{
	"NONE", "REQUEST", "RESPOND", "PARTOPEN", "OPEN", "CLOSEREQ", "CLOSING", "TIMEWAIT", "IGNORE", "INVALID",
}

// String is the kernel's name.
func (s DCCPState) String() string { return nameOf(dccpStateNames[:], uint8(s)) }

func nameOf(names []string, n uint8) string {
	if int(n) < len(names) {
		return names[n]
	}
	return "UNKNOWN"
}

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

// ProtocolName is the name of an IP protocol, its number where the tracker does
// not know it by name.
func ProtocolName(proto uint8) string {
	if name := protocolNames[proto]; name != "" {
		return name
	}
	return strconv.Itoa(int(proto))
}

// icmpReply is the type of the answer to an ICMP query of the tracked kinds
// (invmap in net/netfilter/nf_conntrack_proto_icmp.c and _icmpv6.c).
func icmpReply(proto, typ uint8) (uint8, bool) {
	switch proto {
	case unix.IPPROTO_ICMP:
		switch typ {
		case 8, 13, 15, 17: // echo, timestamp, information, address mask
			if typ == 8 {
				return 0, true
			}
			return typ + 1, true
		case 0:
			return 8, true
		case 14, 16, 18:
			return typ - 1, true
		}
	case unix.IPPROTO_ICMPV6:
		switch typ {
		case 128, 139: // echo, node information
			return typ + 1, true
		case 129, 140:
			return typ - 1, true
		}
	}
	return 0, false
}
