package frame

import (
	"encoding/binary"

	"github.com/natkit/natkit/internal/unix"
)

// compared is how much of a payload is in Content, for captures with different snap lengths.
const compared = 32

// Content returns a key of a payload's beginning and length, or of the length if it is cut: of what a NAT
// does not change.
func Content(protocol, length uint64, payload []byte) uint64 {
	var b [compared]byte
	if copy(b[:], payload) < compared && uint64(len(payload)) < length && length > compared {
		b = [compared]byte{}
	}
	return Mix(protocol, length,
		binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]),
		binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:]))
}

// Content returns a key of a datagram or an ICMP query, of what a NAT does not change.
func (f *Frame) Content() uint64 {
	id := uint64(f.IPv4.Identification)
	if f.Transport == unix.IPPROTO_UDP {
		return Mix(id, Content(unix.IPPROTO_UDP, uint64(f.UDP.Length), f.Payload))
	}
	return Mix(id, uint64(f.ICMP.Type), uint64(f.ICMP.SequenceNumber()), Content(uint64(f.Protocol), uint64(len(f.Payload)+f.Missing), f.Payload))
}

// Mix makes one word of several, by the finalizer of SplitMix64.
func Mix(words ...uint64) uint64 {
	h := uint64(len(words))
	for _, w := range words {
		h += 0x9e3779b97f4a7c15 + w
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}
