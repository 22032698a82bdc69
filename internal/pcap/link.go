package pcap

import (
	"encoding/binary"
	"fmt"

	"github.com/natkit/natkit/internal/packet"
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
	if len(b) < packet.EthernetLen {
		return 0, nil, CutHeader
	}
	return behindEtherType(binary.BigEndian.Uint16(b[12:]), b[14:])
}

// behindEtherType goes on to the network header behind tags and labels.
func behindEtherType(etherType uint16, b []byte) (uint16, []byte, Reason) {
	for {
		switch etherType {
		case packet.EtherTypeIPv4, packet.EtherTypeIPv6:
			return etherType, b, Decoded
		case packet.EtherTypeVLAN, packet.EtherTypeSVLAN, etherTypeOldQinQ:
			if len(b) < packet.VLANLen {
				return 0, nil, CutHeader
			}
			etherType, b = binary.BigEndian.Uint16(b[2:]), b[packet.VLANLen:]
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
		return packet.EtherTypeIPv4, b, Decoded
	case 6:
		return packet.EtherTypeIPv6, b, Decoded
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
