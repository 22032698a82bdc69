package pcap

import (
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

type linkLayer struct {
	name string
	// network skips the link layer's header, and returns the EtherType of what follows.
	network func(*header) (etherType uint16, reason Reason)
}

// links are the link layers that are read.
var links = map[int]linkLayer{
	linkNull:        {"NULL", (*header).loopback},
	linkEthernet:    {"EN10MB", typed(12, frame.EthernetLen)},
	linkPPP:         {"PPP", (*header).ppp},
	linkFDDI:        {"FDDI", (*header).fddi},
	linkRawBSD:      {"RAW", (*header).ip},
	linkRawOpenBSD:  {"RAW", (*header).ip},
	linkPPPHDLC:     {"PPP_HDLC", (*header).ppp},
	linkPPPEthernet: {"PPP_ETHER", (*header).pppoe},
	linkRaw:         {"RAW", (*header).ip},
	linkCiscoHDLC:   {"C_HDLC", typed(2, 4)},
	linkWLAN:        {"IEEE802_11", (*header).wlan},
	linkLoop:        {"LOOP", (*header).loopback},
	linkSLL:         {"LINUX_SLL", typed(14, 16)},
	linkPFLog:       {"PFLOG", (*header).pfLog},
	linkPrism:       {"IEEE802_11_PRISM", (*header).prism},
	linkRadiotap:    {"IEEE802_11_RADIOTAP", (*header).radiotap},
	linkIPv4:        {"IPV4", (*header).ip},
	linkIPv6:        {"IPV6", (*header).ip},
	linkNFLog:       {"NFLOG", (*header).nfLog},
	linkSLL2:        {"LINUX_SLL2", typed(0, 20)},
}

func linkName(link int) string {
	if l, ok := links[link]; ok {
		return l.name
	}
	return fmt.Sprintf("LINKTYPE %d", link)
}

// EtherTypes beside those of package frame.
const (
	etherTypeOldQinQ = 0x9100
	etherTypeMPLS    = 0x8847
	etherTypeMPLSUp  = 0x8848 // upstream-assigned label
	etherTypePPPoE   = 0x8864 // session
	// leastEtherType is the first that is no length (IEEE 802.3, 3.2.6).
	leastEtherType = 0x600
)

// header is the rest of a frame. What is read beyond its end is 0 and sets cut.
type header struct {
	b   []byte
	cut bool
}

// networkOf returns the EtherType of a frame's network header, and moves h.b there.
func (h *header) networkOf(link int, b []byte) (etherType uint16, reason Reason) {
	*h = header{b: b}
	l, ok := links[link]
	if !ok {
		return 0, UnknownLinkType
	}
	etherType, reason = l.network(h)
	if h.cut {
		return 0, CutHeader
	}
	return etherType, reason
}

func (h *header) has(n int) bool {
	h.cut = h.cut || len(h.b) < n
	return !h.cut
}

func (h *header) byte(at int) byte {
	if !h.has(at + 1) {
		return 0
	}
	return h.b[at]
}

// big reads two bytes in network byte order, little in the other one.
func (h *header) big(at int) uint16    { return uint16(h.byte(at))<<8 | uint16(h.byte(at+1)) }
func (h *header) little(at int) uint16 { return uint16(h.byte(at+1))<<8 | uint16(h.byte(at)) }

func (h *header) skip(n int) {
	if h.has(n) {
		h.b = h.b[n:]
	}
}

// typed is a header of a fixed length with an EtherType.
func typed(at, length int) func(*header) (uint16, Reason) {
	return func(h *header) (uint16, Reason) {
		etherType := h.big(at)
		h.skip(length)
		return h.typed(etherType)
	}
}

// typed skips tags and labels before the network header.
func (h *header) typed(etherType uint16) (uint16, Reason) {
	for !h.cut {
		switch etherType {
		case frame.EtherTypeIPv4, frame.EtherTypeIPv6:
			return etherType, Decoded
		case frame.EtherTypeVLAN, frame.EtherTypeSVLAN, etherTypeOldQinQ:
			etherType = h.big(2)
			h.skip(frame.VLANLen)
		case etherTypePPPoE:
			return h.pppoe()
		case etherTypeMPLS, etherTypeMPLSUp:
			return h.mpls()
		default:
			if etherType < leastEtherType {
				return h.llc()
			}
			return 0, NotIP
		}
	}
	return 0, CutHeader
}

// llc reads the SNAP header (IEEE 802.2, RFC 1042).
func (h *header) llc() (uint16, Reason) {
	if h.big(0) != 0xaaaa || h.byte(2) != 3 {
		return 0, NotIP
	}
	etherType := h.big(6)
	h.skip(8)
	if etherType < leastEtherType {
		return 0, NotIP
	}
	return h.typed(etherType)
}

// mpls skips labels up to the bottom of their stack (RFC 3032).
func (h *header) mpls() (uint16, Reason) {
	for bottom := false; !bottom && !h.cut; {
		bottom = h.byte(2)&1 != 0
		h.skip(4)
	}
	return h.ip()
}

// ip takes the version from the IP header.
func (h *header) ip() (uint16, Reason) {
	switch h.byte(0) >> 4 {
	case 4:
		return frame.EtherTypeIPv4, Decoded
	case 6:
		return frame.EtherTypeIPv6, Decoded
	}
	return 0, NotIP
}

// loopback begins with the address family, in host (NULL) or network (LOOP) byte order.
func (h *header) loopback() (uint16, Reason) {
	family := h.little(0)
	if family == 0 {
		family = h.big(2)
	}
	h.skip(4)
	return ofFamily(family)
}

// ofFamily knows the address families of the systems that write such files.
func ofFamily(family uint16) (uint16, Reason) {
	switch family {
	case 2:
		return frame.EtherTypeIPv4, Decoded
	case 10, 24, 28, 30: // Linux; NetBSD, OpenBSD; FreeBSD; Darwin
		return frame.EtherTypeIPv6, Decoded
	}
	return 0, NotIP
}

// ppp reads the protocol field of RFC 1661, with or without the address and control bytes of RFC
// 1662; both may be compressed.
func (h *header) ppp() (uint16, Reason) {
	if len(h.b) >= 2 && h.big(0) == 0xff03 {
		h.skip(2)
	}
	protocol, length := uint16(h.byte(0)), 1
	if protocol&1 == 0 {
		protocol, length = h.big(0), 2
	}
	h.skip(length)
	switch protocol {
	case 0x21:
		return frame.EtherTypeIPv4, Decoded
	case 0x57:
		return frame.EtherTypeIPv6, Decoded
	case 0x281, 0x283:
		return h.mpls()
	}
	return 0, NotIP
}

// pppoe reads a session's header (RFC 2516); PPP follows without address and control bytes.
func (h *header) pppoe() (uint16, Reason) {
	discovery := h.byte(1) != 0
	h.skip(6)
	if discovery {
		return 0, NotIP
	}
	return h.ppp()
}

// fddi has frame control and two addresses before LLC.
func (h *header) fddi() (uint16, Reason) {
	const llcFrame = 0x50
	control := h.byte(0)
	h.skip(13)
	if control&0xf0 != llcFrame {
		return 0, NotIP
	}
	return h.llc()
}

// pfLog has a header with its length, padded to four bytes, and the address family.
func (h *header) pfLog() (uint16, Reason) {
	length, family := (int(h.byte(0))+3)&^3, h.byte(1)
	h.skip(length)
	return ofFamily(uint16(family))
}

// nfLog has a header and attributes in host byte order, one of which is the packet (tcpdump.org,
// LINKTYPE_NFLOG).
func (h *header) nfLog() (uint16, Reason) {
	const payload = 9
	family := h.byte(0)
	for h.skip(4); !h.cut; {
		length, kind := int(h.little(0)), h.little(2)
		switch {
		case h.cut:
		case length < 4:
			return 0, MalformedHeader
		case kind&0x7fff == payload:
			h.b = h.b[4:min(length, len(h.b))]
			return ofFamily(uint16(family))
		default:
			h.skip((length + 3) &^ 3)
		}
	}
	return 0, CutHeader
}

// radiotap and prism have a header with its length before that of IEEE 802.11.
func (h *header) radiotap() (uint16, Reason) { return h.wlanAt(int(h.little(2)), 8) }
func (h *header) prism() (uint16, Reason) {
	return h.wlanAt(int(h.little(4))|int(h.byte(6))<<16, 24)
}

func (h *header) wlanAt(length, least int) (uint16, Reason) {
	if h.has(least) && length < least {
		return 0, MalformedHeader
	}
	h.skip(length)
	return h.wlan()
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

// wlan reads unprotected data frames, and the first of an aggregate (A-MSDU).
func (h *header) wlan() (uint16, Reason) {
	control := h.little(0)
	if control&wlanTypeMask != wlanData || control&wlanNull != 0 {
		return 0, NotIP
	}
	if control&wlanProtected != 0 {
		return 0, Encrypted
	}
	length := 24
	if control&wlanToDS != 0 && control&wlanFromDS != 0 {
		length = 30 // with the fourth address
	}
	if control&wlanQoS != 0 {
		aggregate := h.byte(length)&wlanAMSDU != 0
		length += 2
		if control&wlanOrder != 0 {
			length += 4 // HT control
		}
		if aggregate {
			length += 14 // addresses and length of the first frame
		}
	}
	h.skip(length)
	return h.llc()
}
