package behaviour

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// Types of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const (
	echoReply        = 0
	unreachable      = 3
	sourceQuench     = 4
	redirect         = 5
	echoRequest      = 8
	timeExceeded     = 11
	parameterProblem = 12
	timestampRequest = 13
	timestampReply   = 14

	unreachable6      = 1
	packetTooBig6     = 2
	timeExceeded6     = 3
	parameterProblem6 = 4
	echoRequest6      = 128
	echoReply6        = 129
)

// Codes of destination unreachable.
const (
	portUnreachable = 3
	fragNeeded      = 4
)

// icmp is a message of ICMP or, between addresses of IPv6, of ICMPv6.
func icmp(from, to netip.Addr, h frame.ICMP, body []byte) datagram {
	protocol := uint8(unix.IPPROTO_ICMP)
	if from.Is6() {
		protocol = unix.IPPROTO_ICMPV6
	}
	return datagramOf(from, to, protocol, frame.AppendICMP(nil, from, to, h, body))
}

// ping is an echo request of either family, pong the reply; the data is what RFC 792
// wants back.
func ping(from, to netip.Addr, identifier, sequence uint16) datagram {
	return echo(from, to, identifier, sequence, echoRequest, echoRequest6)
}

func pong(from, to netip.Addr, identifier, sequence uint16) datagram {
	return echo(from, to, identifier, sequence, echoReply, echoReply6)
}

func echo(from, to netip.Addr, identifier, sequence uint16, kind, kind6 uint8) datagram {
	if from.Is6() {
		kind = kind6
	}
	rest := uint32(identifier)<<16 | uint32(sequence)
	return icmp(from, to, frame.ICMP{Type: kind, Rest: rest}, []byte("an echo that comes back whole"))
}
