package conntrack

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// class groups entries by what decides how long they live: the TCP state, for
// UDP whether the stream timeout holds, otherwise the protocol.
type class uint16

const (
	classUDPUnreplied = class(tcpStates) + 1 + iota
	classUDPStream
	classProtocol
	classes = classProtocol + 256
)

// classOf follows the kernel's choice of timeout. A UDP entry takes the stream
// timeout at the moment it becomes assured; before that, answered or not, it has
// the short one (nf_conntrack_udp_packet, net/netfilter/nf_conntrack_proto_udp.c).
func classOf(e *Entry) class {
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return class(min(e.TCPState, tcpStates))
	case unix.IPPROTO_UDP:
		if e.Status.Has(Assured) {
			return classUDPStream
		}
		return classUDPUnreplied
	default:
		return classProtocol + class(e.Orig.Proto)
	}
}

func (c class) String() string {
	switch {
	case c <= class(tcpStates):
		return "tcp/" + TCPState(c).String()
	case c == classUDPUnreplied:
		return "udp/unreplied"
	case c == classUDPStream:
		return "udp/stream"
	default:
		return ProtocolName(uint8(c - classProtocol))
	}
}

// identity is a 64-bit key of what the tracker allows one entry at a time:
// original tuple and zone. Two of a million have the same one with a probability
// of 3 in 10^8.
func identity(seed uint64, e *Entry) uint64 {
	return mix(mixTuple(seed, &e.Orig), uint64(e.Zone))
}

// group is a key of what bounds the number of entries together with the source
// ports: protocol, source, destination, destination port.
func group(seed uint64, e *Entry) uint64 {
	t := e.Orig
	t.SrcPort, t.ICMPID = 0, 0
	return mixTuple(seed, &t)
}

func mixTuple(seed uint64, t *Tuple) uint64 {
	src, dst := t.Src.As16(), t.Dst.As16()
	h := mix(seed, binary.NativeEndian.Uint64(src[:8]))
	h = mix(h, binary.NativeEndian.Uint64(src[8:]))
	h = mix(h, binary.NativeEndian.Uint64(dst[:8]))
	h = mix(h, binary.NativeEndian.Uint64(dst[8:]))
	h = mix(h, uint64(t.SrcPort)<<48|uint64(t.DstPort)<<32|uint64(t.ICMPID)<<16|uint64(t.ICMPType)<<8|uint64(t.ICMPCode))
	return mix(h, uint64(t.Proto))
}

// mix folds a 128-bit product with constants that keep a zero operand from
// swallowing the other one.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	return hi ^ lo ^ h
}
