package pcap

import (
	"encoding/binary"

	"github.com/natkit/natkit/internal/packet"
)

// loopback has the address family in front, in the byte order of the machine that
// captured (NULL) or of the network (LOOP).
func loopback(b []byte) (uint16, []byte, Reason) {
	if len(b) < 4 {
		return 0, nil, CutHeader
	}
	family := binary.LittleEndian.Uint32(b)
	if family > 0xffff {
		family = binary.BigEndian.Uint32(b)
	}
	return ofFamily(family, b[4:])
}

// ofFamily knows the address families of the systems that write such files.
func ofFamily(family uint32, b []byte) (uint16, []byte, Reason) {
	switch family {
	case 2:
		return packet.EtherTypeIPv4, b, Decoded
	case 10, 24, 28, 30: // Linux; NetBSD, OpenBSD; FreeBSD; Darwin
		return packet.EtherTypeIPv6, b, Decoded
	}
	return 0, nil, NotIP
}

// ppp reads RFC 1661's protocol field, with or without RFC 1662's address and control
// bytes in front of it; both may be compressed.
func ppp(b []byte) (uint16, []byte, Reason) {
	if len(b) >= 2 && b[0] == 0xff && b[1] == 3 {
		b = b[2:]
	}
	if len(b) == 0 {
		return 0, nil, CutHeader
	}
	protocol, length := uint16(b[0]), 1
	if b[0]&1 == 0 {
		if len(b) < 2 {
			return 0, nil, CutHeader
		}
		protocol, length = binary.BigEndian.Uint16(b), 2
	}
	switch protocol {
	case 0x21:
		return packet.EtherTypeIPv4, b[length:], Decoded
	case 0x57:
		return packet.EtherTypeIPv6, b[length:], Decoded
	case 0x281, 0x283:
		return mpls(b[length:])
	}
	return 0, nil, NotIP
}

// pppoe reads a session's header (RFC 2516); its payload is PPP without address and
// control bytes.
func pppoe(b []byte) (uint16, []byte, Reason) {
	const length = 6
	if len(b) < length {
		return 0, nil, CutHeader
	}
	if b[1] != 0 { // discovery
		return 0, nil, NotIP
	}
	return ppp(b[length:])
}

// fddi has frame control and two addresses in front of LLC.
func fddi(b []byte) (uint16, []byte, Reason) {
	const length, llcFrame = 13, 0x50
	if len(b) < length {
		return 0, nil, CutHeader
	}
	if b[0]&0xf0 != llcFrame {
		return 0, nil, NotIP
	}
	return llc(b[length:])
}

// pfLog has a header that tells its length, which is padded to four bytes, and the
// address family.
func pfLog(b []byte) (uint16, []byte, Reason) {
	if len(b) < 2 {
		return 0, nil, CutHeader
	}
	length := (int(b[0]) + 3) &^ 3
	if len(b) < length {
		return 0, nil, CutHeader
	}
	return ofFamily(uint32(b[1]), b[length:])
}

// nfLog is what netfilter's log target gives: a header and attributes in the byte
// order of the machine, one of which is the packet (tcpdump.org, LINKTYPE_NFLOG).
func nfLog(b []byte) (uint16, []byte, Reason) {
	const header, payload = 4, 9
	if len(b) < header {
		return 0, nil, CutHeader
	}
	family := uint32(b[0])
	for b = b[header:]; len(b) >= 4; {
		length, kind := int(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint16(b[2:])
		if length < 4 {
			return 0, nil, MalformedHeader
		}
		if kind&0x7fff == payload {
			return ofFamily(family, b[4:min(length, len(b))])
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return 0, nil, CutHeader
}

// radiotap has a header that tells its length.
func radiotap(b []byte) (uint16, []byte, Reason) {
	if len(b) < 8 {
		return 0, nil, CutHeader
	}
	length := int(binary.LittleEndian.Uint16(b[2:]))
	if length < 8 {
		return 0, nil, MalformedHeader
	}
	if len(b) < length {
		return 0, nil, CutHeader
	}
	return wlan(b[length:])
}

// prism has a header that tells its length.
func prism(b []byte) (uint16, []byte, Reason) {
	if len(b) < 24 {
		return 0, nil, CutHeader
	}
	length := int(binary.LittleEndian.Uint32(b[4:]) & 0xffffff)
	if length < 24 {
		return 0, nil, MalformedHeader
	}
	if len(b) < length {
		return 0, nil, CutHeader
	}
	return wlan(b[length:])
}

// Frame control of IEEE 802.11, section 9.2.4.1.
const (
	wlanTypeMask  = 0x000c
	wlanData      = 0x0008
	wlanNull      = 0x0040 // subtype without data
	wlanQoS       = 0x0080
	wlanToDS      = 0x0100
	wlanFromDS    = 0x0200
	wlanProtected = 0x4000
	wlanOrder     = 0x8000
	wlanAMSDU     = 0x80 // of the QoS control field
)

// wlan reads data frames that are not protected. Of several that are sent as one
// (A-MSDU), the first is read.
func wlan(b []byte) (uint16, []byte, Reason) {
	if len(b) < 2 {
		return 0, nil, CutHeader
	}
	control := binary.LittleEndian.Uint16(b)
	if control&wlanTypeMask != wlanData || control&wlanNull != 0 {
		return 0, nil, NotIP
	}
	if control&wlanProtected != 0 {
		return 0, nil, Encrypted
	}
	length := wlanLength(control)
	if len(b) < length {
		return 0, nil, CutHeader
	}
	if control&wlanQoS != 0 && b[qosAt(control)]&wlanAMSDU != 0 {
		length += 14 // addresses and length of the first
	}
	return llc(b[min(length, len(b)):])
}

func qosAt(control uint16) int {
	if control&wlanToDS != 0 && control&wlanFromDS != 0 {
		return 30 // behind the fourth address
	}
	return 24
}

func wlanLength(control uint16) int {
	length := qosAt(control)
	if control&wlanQoS == 0 {
		return length
	}
	length += 2
	if control&wlanOrder != 0 {
		length += 4 // HT control
	}
	return length
}
