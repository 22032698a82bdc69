package pktgen

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
)

// newTemplate is what all packets of a run begin with: a packet of no flow, with
// zeros where packets differ. run is in network byte order, as it lies in memory.
func newTemplate(spec *packet.Spec, link packet.Link, run uint32) pktgenTemplate {
	var mark [4]byte
	binary.NativeEndian.PutUint32(mark[:], run)
	none := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	if spec.IPv6 {
		none = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	length := spec.HeaderLen()
	b := packet.Build(nil, link, spec, packet.Tuple{Src: none, Dst: none},
		packet.Token{Run: binary.BigEndian.Uint32(mark[:])}, length, 0)
	t := pktgenTemplate{Length: uint32(length), Token: uint32(length - packet.TokenLen)}
	t.L4 = t.Token - packet.UDPLen
	if spec.Protocol == unix.IPPROTO_TCP {
		t.L4 = t.Token - packet.TCPLen
	}
	t.L3 = t.L4 - packet.IPv4Len
	if spec.IPv6 {
		t.L3 = t.L4 - packet.IPv6Len
	}
	t.sums(b, spec)
	t.fill(b)
	return t
}

// sums clears the fields that differ and adds up the rest.
func (t *pktgenTemplate) sums(b []byte, spec *packet.Spec) {
	ip, transport := b[t.L3:t.L4], b[t.L4:]
	if spec.IPv6 {
		clear(ip[4:6]) // payload length
	} else {
		clear(ip[2:4])   // total length
		clear(ip[10:12]) // checksum
		t.IpSum = sumWords(ip)
	}
	if spec.Protocol == unix.IPPROTO_TCP {
		clear(transport[4:12])  // sequence and acknowledgement numbers
		clear(transport[16:18]) // checksum
	} else {
		clear(transport[4:8]) // length, checksum
	}
	t.TransportSum = sumWords(transport) + sumWords([]byte{0, spec.Protocol})
}

// fill copies the template; the last word may be cut.
func (t *pktgenTemplate) fill(b []byte) {
	padded := make([]byte, 8*len(t.Words))
	copy(padded, b)
	for i := range t.Words {
		t.Words[i] = binary.NativeEndian.Uint64(padded[8*i:])
	}
}

// sumWords adds 16-bit words as they lie in memory; b has an even length.
func sumWords(b []byte) (sum uint32) {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.NativeEndian.Uint16(b[i:]))
	}
	return sum
}
