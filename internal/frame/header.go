// Package frame is the model of one packet: its headers parsed and built, checksums,
// and filters in the words of pcap-filter(7).
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/unix"
)

// Ethernet is the header of a frame with its tags (IEEE 802.3, 802.1Q).
type Ethernet struct {
	Link
	// Tags are four bytes for each tag, the outermost first: EtherType and TCI.
	Tags []byte
	// EtherType is that of the payload. Below 0x600 it is a length, and LLC follows.
	EtherType uint16
}

// IPv4 has what an IPv4 header (RFC 791) has besides the fields of Frame.
type IPv4 struct {
	DSCP           uint8 // RFC 2474
	TotalLength    uint16
	Identification uint16
	DontFragment   bool
	TTL            uint8
	Options        []byte
}

// IPv6 has what an IPv6 header (RFC 8200) has besides the fields of Frame.
type IPv6 struct {
	DSCP          uint8
	PayloadLength uint16
	HopLimit      uint8
	// Extensions are the extension headers before the transport header.
	Extensions []byte
}

// Fragment is the place of a packet's payload in that of the whole packet. The zero value is a
// whole packet.
type Fragment struct {
	// Identification is that of the IPv4 or Fragment header; 0 in whole packets.
	Identification uint32
	Offset         int  // in bytes
	More           bool // fragments follow
}

// Is reports whether the packet is a fragment. A Fragment header with neither an
// offset nor a successor makes none (RFC 6946).
func (f Fragment) Is() bool { return f.Offset != 0 || f.More }

// TCP is a header (RFC 9293).
type TCP struct {
	SourcePort           uint16
	DestinationPort      uint16
	SequenceNumber       uint32
	AcknowledgmentNumber uint32
	Flags                TCPFlags
	Window               uint16 // as it stands there, not scaled
	Checksum             uint16
	UrgentPointer        uint16
	Options              []byte // see Option
}

// UDP is a header (RFC 768).
type UDP struct {
	SourcePort      uint16
	DestinationPort uint16
	Length          uint16
	Checksum        uint16
}

// ICMP is a header of ICMP (RFC 792) or ICMPv6 (RFC 4443).
type ICMP struct {
	Type, Code uint8
	Checksum   uint16
	// Rest is the second word: identifier and sequence number of a query, the MTU
	// or a pointer of an error.
	Rest uint32
}

// Identifier returns that of an echo message.
func (i *ICMP) Identifier() uint16 { return uint16(i.Rest >> 16) }

// SequenceNumber returns that of an echo message.
func (i *ICMP) SequenceNumber() uint16 { return uint16(i.Rest) }

// Frame is a parsed frame. Its slices are parts of the parsed bytes.
type Frame struct {
	Ethernet Ethernet
	// Version is 4 if IPv4 is set, 6 if IPv6 is, and 0 if the frame carries something else.
	Version             uint8
	IPv4                IPv4
	IPv6                IPv6
	Source, Destination netip.Addr
	// Protocol follows IP and its extension headers (IPPROTO_…).
	Protocol uint8
	Fragment Fragment
	// Transport is Protocol if its header was parsed (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP,
	// IPPROTO_ICMPV6), else 0, as for fragments after the first one.
	Transport uint8
	TCP       TCP
	UDP       UDP
	ICMP      ICMP
	// Payload is what follows the innermost header that was parsed, without padding.
	Payload []byte
	// Missing is the number of bytes by which the IP payload was cut, as in captures.
	Missing int
	// Trailer follows the IP packet: padding of short frames, or FCS.
	Trailer []byte

	header  []byte // of IPv4, with its options
	segment []byte // transport header and payload
	// unverifiable is set if the transport checksum covers more than segment: the final
	// destination of a Routing header, or a cut header.
	unverifiable bool
}

// Tuple returns the addresses and ports; ports are 0 if there are none.
func (f *Frame) Tuple() Tuple {
	source, destination := f.ports()
	return Tuple{netip.AddrPortFrom(f.Source, source), netip.AddrPortFrom(f.Destination, destination)}
}

// Size returns the length that the IP header states, in bytes.
func (f *Frame) Size() int {
	if f.Version == 6 {
		return IPv6Len + int(f.IPv6.PayloadLength)
	}
	return int(f.IPv4.TotalLength)
}

// ICMPError reports whether the frame is an ICMP error message, which quotes a packet.
func (f *Frame) ICMPError() bool {
	switch f.Transport {
	case unix.IPPROTO_ICMP: // RFC 792
		switch f.ICMP.Type {
		case 3, 4, 5, 11, 12: // unreachable, quench, redirect, time exceeded, parameter problem
			return true
		}
	case unix.IPPROTO_ICMPV6:
		return f.ICMP.Type < 128 // RFC 4443, section 2.1
	}
	return false
}

// Quoted parses the packet that an ICMP error message quotes. It is mostly cut (see Missing);
// the eight bytes of the transport header that have the ports are enough (RFC 792).
func (f *Frame) Quoted(inner *Frame) error {
	if !f.ICMPError() {
		*inner = Frame{}
		return errors.New("parse quoted packet: the frame is no ICMP error message")
	}
	etherType := uint16(EtherTypeIPv4)
	if f.Version == 6 {
		etherType = EtherTypeIPv6
	}
	err := inner.DecodeNetwork(etherType, f.Payload)
	if err == nil {
		return nil
	}
	var cut *CutError
	if errors.As(err, &cut) && inner.Protocol == unix.IPPROTO_TCP && cut.Header == "TCP" && cut.Have >= 8 {
		inner.Transport, inner.Payload, inner.unverifiable = unix.IPPROTO_TCP, nil, true
		return nil
	}
	return err
}

// TCPFlags are the flag bits of a TCP header (RFC 9293, section 3.1).
type TCPFlags uint8

// The flags by their bits.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

var tcpFlagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

func (f TCPFlags) String() string {
	var names []string
	for i, name := range tcpFlagNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// ParseTCPFlags parses names of flags joined by +, such as "syn+ack".
func ParseTCPFlags(names string) (set TCPFlags, err error) {
	for name := range strings.SplitSeq(strings.ToLower(names), "+") {
		i := slices.Index(tcpFlagNames, name)
		if i < 0 {
			return 0, fmt.Errorf("%q is none of %s (joined by +)", name, strings.Join(tcpFlagNames, ", "))
		}
		set |= 1 << i
	}
	return set, nil
}

// MarshalText returns the names: a list of bare flag sets would become base64 in JSON.
func (f TCPFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText parses what MarshalText returns.
func (f *TCPFlags) UnmarshalText(text []byte) (err error) {
	*f = 0
	if len(text) > 0 {
		*f, err = ParseTCPFlags(string(text))
	}
	return err
}

// Kinds of TCP options (RFC 9293, section 3.1; RFC 7323; RFC 2018).
const (
	OptionMaximumSegmentSize = 2
	OptionWindowScale        = 3
	OptionSACKPermitted      = 4
	OptionSACK               = 5
	OptionTimestamps         = 8
)

const (
	optionEndOfList   = 0
	optionNoOperation = 1
)

// Option returns the value of the first option of a kind. Options after a malformed one are
// not found.
func (t *TCP) Option(kind uint8) (value []byte, ok bool) {
	for b := t.Options; len(b) > 0 && b[0] != optionEndOfList; {
		if b[0] == optionNoOperation {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return nil, false
		}
		if b[0] == kind {
			return b[2:b[1]], true
		}
		b = b[b[1]:]
	}
	return nil, false
}

// Timestamps returns TSval and TSecr (RFC 7323, section 3.2).
func (t *TCP) Timestamps() (value, echoReply uint32, ok bool) {
	b, ok := t.Option(OptionTimestamps)
	if !ok || len(b) != 8 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), true
}

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Link has the addresses of an Ethernet header.
type Link struct{ Source, Destination MAC }
