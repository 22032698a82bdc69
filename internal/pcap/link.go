package pcap

import (
	"encoding/binary"
	"fmt"

	"github.com/natkit/natkit/internal/frame"
)

// Link layers (tcpdump.org/linktypes.html).
const (
	linkNull        = 0
	linkEthernet    = 1
	linkPPP         = 9
	linkFDDI        = 10
	linkRawBSD      = 12 // DLT_RAW, as it was written into files
	linkRawOpenBSD  = 14
	linkPPPHDLC     = 50
	linkPPPEthernet = 51
	linkRaw         = 101
	linkCiscoHDLC   = 104
	linkWLAN        = 105
	linkLoop        = 108
	linkSLL         = 113
	linkPFLog       = 117
	linkPrism       = 119
	linkRadiotap    = 127
	linkIPv4        = 228
	linkIPv6        = 229
	linkNFLog       = 239
	linkSLL2        = 276
)

// network finds the network header of a frame: its EtherType and what begins with it.
type network func(b []byte) (etherType uint16, rest []byte, reason Reason)

type linkLayer struct {
	name    string
	network network
}

// links are the link layers that are read.
var links = map[int]linkLayer{
	linkNull:        {"NULL", loopback},
	linkEthernet:    {"EN10MB", ethernet},
	linkPPP:         {"PPP", ppp},
	linkFDDI:        {"FDDI", fddi},
	linkRawBSD:      {"RAW", rawIP},
	linkRawOpenBSD:  {"RAW", rawIP},
	linkPPPHDLC:     {"PPP_HDLC", ppp},
	linkPPPEthernet: {"PPP_ETHER", pppoe},
	linkRaw:         {"RAW", rawIP},
	linkCiscoHDLC:   {"C_HDLC", ciscoHDLC},
	linkWLAN:        {"IEEE802_11", wlan},
	linkLoop:        {"LOOP", loopback},
	linkSLL:         {"LINUX_SLL", sll},
	linkPFLog:       {"PFLOG", pfLog},
	linkPrism:       {"IEEE802_11_PRISM", prism},
	linkRadiotap:    {"IEEE802_11_RADIOTAP", radiotap},
	linkIPv4:        {"IPV4", rawIP},
	linkIPv6:        {"IPV6", rawIP},
	linkNFLog:       {"NFLOG", nfLog},
	linkSLL2:        {"LINUX_SLL2", sll2},
}

func linkName(link int) string {
	if l, ok := links[link]; ok {
		return l.name
	}
	return fmt.Sprintf("LINKTYPE %d", link)
}

// EtherTypes beside those of package packet.
const (
	etherTypeOldQinQ = 0x9100
	etherTypeMPLS    = 0x8847
	etherTypeMPLSUp  = 0x8848 // upstream-assigned label
	etherTypePPPoE   = 0x8864 // session
	// leastEtherType is the first that is no length (IEEE 802.3, 3.2.6).
	leastEtherType = 0x600
)

func ethernet(b []byte) (uint16, []byte, Reason) {
	if len(b) < frame.EthernetLen {
		return 0, nil, CutHeader
	}
	return behindEtherType(binary.BigEndian.Uint16(b[12:]), b[14:])
}

// behindEtherType goes on to the network header behind tags and labels.
func behindEtherType(etherType uint16, b []byte) (uint16, []byte, Reason) {
	for {
		switch etherType {
		case frame.EtherTypeIPv4, frame.EtherTypeIPv6:
			return etherType, b, Decoded
		case frame.EtherTypeVLAN, frame.EtherTypeSVLAN, etherTypeOldQinQ:
			if len(b) < frame.VLANLen {
				return 0, nil, CutHeader
			}
			etherType, b = binary.BigEndian.Uint16(b[2:]), b[frame.VLANLen:]
		case etherTypePPPoE:
			return pppoe(b)
		case etherTypeMPLS, etherTypeMPLSUp:
			return mpls(b)
		default:
			if etherType < leastEtherType {
				return llc(b)
			}
			return 0, nil, NotIP
		}
	}
}

// llc reads the SNAP header (IEEE 802.2, RFC 1042).
func llc(b []byte) (uint16, []byte, Reason) {
	if len(b) < 3 {
		return 0, nil, CutHeader
	}
	if b[0] != 0xaa || b[1] != 0xaa || b[2] != 3 {
		return 0, nil, NotIP
	}
	if len(b) < 8 {
		return 0, nil, CutHeader
	}
	etherType := binary.BigEndian.Uint16(b[6:])
	if etherType < leastEtherType {
		return 0, nil, NotIP
	}
	return behindEtherType(etherType, b[8:])
}

// mpls skips labels up to the bottom of their stack (RFC 3032); what follows is told
// by its first four bits.
func mpls(b []byte) (uint16, []byte, Reason) {
	for len(b) >= 4 {
		bottom := b[2]&1 != 0
		b = b[4:]
		if bottom {
			return rawIP(b)
		}
	}
	return 0, nil, CutHeader
}

func rawIP(b []byte) (uint16, []byte, Reason) {
	if len(b) == 0 {
		return 0, nil, CutHeader
	}
	switch b[0] >> 4 {
	case 4:
		return frame.EtherTypeIPv4, b, Decoded
	case 6:
		return frame.EtherTypeIPv6, b, Decoded
	}
	return 0, nil, NotIP
}

func sll(b []byte) (uint16, []byte, Reason) {
	if len(b) < 16 {
		return 0, nil, CutHeader
	}
	return behindEtherType(binary.BigEndian.Uint16(b[14:]), b[16:])
}

func sll2(b []byte) (uint16, []byte, Reason) {
	if len(b) < 20 {
		return 0, nil, CutHeader
	}
	return behindEtherType(binary.BigEndian.Uint16(b), b[20:])
}

func ciscoHDLC(b []byte) (uint16, []byte, Reason) {
	if len(b) < 4 {
		return 0, nil, CutHeader
	}
	return behindEtherType(binary.BigEndian.Uint16(b[2:]), b[4:])
}

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
		return frame.EtherTypeIPv4, b, Decoded
	case 10, 24, 28, 30: // Linux; NetBSD, OpenBSD; FreeBSD; Darwin
		return frame.EtherTypeIPv6, b, Decoded
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
		return frame.EtherTypeIPv4, b[length:], Decoded
	case 0x57:
		return frame.EtherTypeIPv6, b[length:], Decoded
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
