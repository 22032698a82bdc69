package behaviour

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// datagram is an IP packet with its payload: a whole segment or a part of one.
type datagram struct {
	frame.IP
	Payload []byte
}

// bytes is the packet from the IP header on.
func (d datagram) bytes() []byte { return d.Append(nil, d.Payload) }

// fragments cuts a packet where at says, in bytes of the payload, each a multiple of 8.
func (d datagram) fragments(identification uint32, at ...int) []datagram {
	var parts []datagram
	start := 0
	for _, end := range append(at, len(d.Payload)) {
		parts = append(parts, d.part(identification, start, end))
		start = end
	}
	return parts
}

// part is one fragment, of the bytes from start to end of the payload.
func (d datagram) part(identification uint32, start, end int) datagram {
	d.Fragment = frame.Fragment{Identification: identification, Offset: start, More: end < len(d.Payload)}
	d.Payload = d.Payload[start:end]
	return d
}

func datagramOf(from, to netip.Addr, protocol uint8, payload []byte) datagram {
	return datagram{frame.IP{Source: from, Destination: to, Protocol: protocol}, payload}
}

func udp(from, to netip.AddrPort, payload []byte) datagram {
	b := frame.AppendUDP(nil, frame.Tuple{Src: from, Dst: to}, payload, false)
	return datagramOf(from.Addr(), to.Addr(), unix.IPPROTO_UDP, b)
}

// udpWithout has no checksum (RFC 768; RFC 6935 of IPv6).
func udpWithout(from, to netip.AddrPort, payload []byte) datagram {
	b := frame.AppendUDP(nil, frame.Tuple{Src: from, Dst: to}, payload, true)
	return datagramOf(from.Addr(), to.Addr(), unix.IPPROTO_UDP, b)
}
