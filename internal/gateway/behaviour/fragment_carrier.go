package behaviour

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

// carrier makes packets that are worth cutting.
type carrier struct {
	name string
	// id is the identification of its fragments: what is left of a packet in the
	// gateway must not meet another one.
	id    uint32
	small flowKind
	// ask makes a packet of a session from inside, answer one of its answer; nil where
	// that takes more than one packet.
	ask, answer func(from end, to netip.AddrPort, data []byte) datagram
}

var (
	carrierUDP = carrier{"udp", 0x1100, flowUDP,
		func(from end, to netip.AddrPort, data []byte) datagram { return udp(from.AddrPort, to, data) },
		func(from end, to netip.AddrPort, data []byte) datagram { return udp(from.AddrPort, to, data) }}
	carrierZero = carrier{"udp without checksum", 0x1200, flowZero,
		func(from end, to netip.AddrPort, data []byte) datagram { return udpWithout(from.AddrPort, to, data) },
		func(from end, to netip.AddrPort, data []byte) datagram { return udpWithout(from.AddrPort, to, data) }}
	// carrierTCP has data in a SYN (RFC 9293, section 3.10.7.4), so that one packet is
	// a session.
	carrierTCP = carrier{"tcp", 0x1300, flowTCP,
		func(from end, to netip.AddrPort, data []byte) datagram {
			return tcp(from.AddrPort, to, frame.TCP{SequenceNumber: 100, Flags: frame.SYN}, data)
		}, nil}
	carrierEcho = carrier{"echo", 0x1400, flowEcho,
		func(from end, to netip.AddrPort, data []byte) datagram {
			return echoWith(from.Addr(), to.Addr(), from.Port(), data, echoRequest, echoRequest6)
		},
		func(from end, to netip.AddrPort, data []byte) datagram {
			return echoWith(from.Addr(), to.Addr(), to.Port(), data, echoReply, echoReply6)
		}}
)

func carriers(v6 bool) []carrier {
	if v6 {
		return []carrier{carrierUDP, carrierTCP, carrierEcho}
	}
	return []carrier{carrierUDP, carrierZero, carrierTCP, carrierEcho}
}

func echoWith(from, to netip.Addr, identifier uint16, data []byte, kind, kind6 uint8) datagram {
	if from.Is6() {
		kind = kind6
	}
	return icmp(from, to, frame.ICMP{Type: kind, Rest: uint32(identifier)<<16 | 1}, data)
}

// someData is of a length that is not a multiple of eight. Every byte identifies its
// position.
func someData(salt int) []byte {
	b := make([]byte, 1357)
	for i := range b {
		b[i] = byte(i*7 + i/256 + salt*31)
	}
	return b
}

func packets(parts []datagram) [][]byte {
	var all [][]byte
	for _, d := range parts {
		all = append(all, d.bytes())
	}
	return all
}

// judge wants packets with each of the data, once, whole or in parts, between two
// addresses, and nothing else.
func (c carrier) judge(arrivals Arrivals, at Host, from, to netip.Addr, data [][]byte) Outcome {
	came := assemble(arrivals)
	if len(came) == 0 {
		return Dropped
	}
	found := 0
	for _, w := range came {
		switch {
		case nameOf(w.ip.Source) == "an inside address" && w.at == X:
			return leavesUntranslated
		case w.at != at || w.ip.Source != from || w.ip.Destination != to:
			return "for other addresses"
		case w.missing:
			return "not all parts arrive"
		case wrongChecksums(w.ip.Append(nil, w.payload)) != nil:
			return "with a wrong checksum"
		case c.name == carrierZero.name && binary.BigEndian.Uint16(w.payload[6:]) != 0:
			return "with a checksum that it had not"
		}
		for _, d := range data {
			if bytes.HasSuffix(w.payload, d) {
				found++
			}
		}
	}
	if found != len(data) || len(came) != len(data) {
		return "not all packets arrive as they were"
	}
	return Passes
}

// arrived is a packet put together of what came.
type arrived struct {
	at      Host
	ip      frame.IP
	payload []byte
	missing bool
}

// assemble puts fragments together, in whatever order they come. Those that overlap, or of which not all come,
// leave it missing something.
func assemble(arrivals Arrivals) []arrived {
	var done []arrived
	open := map[uint32]Arrivals{}
	for i := range arrivals {
		if f := &arrivals[i].Frame; f.Fragment.Is() {
			open[f.Fragment.Identification] = append(open[f.Fragment.Identification], arrivals[i])
		} else {
			done = append(done, arrived{arrivals[i].At, ipOf(f), ipPayload(arrivals[i].Packet), false})
		}
	}
	for _, parts := range open {
		done = append(done, parts.joined())
	}
	return done
}

// joined is the packet that fragments are of.
func (a Arrivals) joined() arrived {
	slices.SortStableFunc(a, func(x, y Arrival) int { return cmp.Compare(x.Frame.Fragment.Offset, y.Frame.Fragment.Offset) })
	whole := arrived{at: a[0].At, ip: ipOf(&a[0].Frame)}
	for i := range a {
		f := &a[i].Frame
		last := i == len(a)-1
		if f.Fragment.Offset != len(whole.payload) || f.Fragment.More == last {
			whole.missing = true
		}
		whole.payload = append(whole.payload, ipPayload(a[i].Packet)...)
	}
	return whole
}

func ipOf(f *frame.Frame) frame.IP {
	return frame.IP{Source: f.Source, Destination: f.Destination, Protocol: f.Protocol}
}

// ipPayload is what follows the IP header and, in IPv6, the Fragment header.
func ipPayload(ip []byte) []byte {
	payload := ip[headerLength(ip):]
	if ip[0]>>4 == 6 && ip[6] == unix.IPPROTO_FRAGMENT {
		payload = payload[8:]
	}
	return payload
}
