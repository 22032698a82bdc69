package frame

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/unix"
)

// CutError is a frame that ends inside a header.
type CutError struct {
	Header string // as its RFC calls it
	// Have of Need bytes are there.
	Have, Need int
}

func (e *CutError) Error() string {
	return fmt.Sprintf("parse frame: the %s header is cut: %d of %d bytes", e.Header, e.Have, e.Need)
}

// need returns a CutError if a header of n bytes is cut.
func need(b []byte, n int, header string) error {
	if len(b) < n {
		return &CutError{header, len(b), n}
	}
	return nil
}

// Parse parses one frame. See Frame.Decode.
func Parse(frame []byte) (f Frame, err error) {
	err = f.Decode(frame)
	return f, err
}

// Decode parses an Ethernet frame, with or without FCS, and sets all of f. It allocates nothing
// but errors. Other protocols than IP are no error, nor is a cut payload (Missing). The error is
// a *CutError for a cut header, or describes a contradiction; the headers before it are set.
func (f *Frame) Decode(frame []byte) error {
	*f = Frame{}
	if err := need(frame, EthernetLen, "Ethernet"); err != nil {
		return err
	}
	f.Ethernet.Destination = MAC(frame[:6])
	f.Ethernet.Source = MAC(frame[6:12])
	n := 12
	for isTag(binary.BigEndian.Uint16(frame[n:])) {
		if err := need(frame[n:], VLANLen+2, "VLAN"); err != nil {
			return err
		}
		n += VLANLen
	}
	f.Ethernet.Tags = frame[12:n]
	f.Ethernet.EtherType = binary.BigEndian.Uint16(frame[n:])
	return f.decodeNetwork(f.Ethernet.EtherType, frame[n+2:])
}

func isTag(etherType uint16) bool {
	return etherType == EtherTypeVLAN || etherType == EtherTypeSVLAN
}

// DecodeNetwork is Decode for a network header with a known EtherType.
func (f *Frame) DecodeNetwork(etherType uint16, b []byte) error {
	*f = Frame{Ethernet: Ethernet{EtherType: etherType}}
	return f.decodeNetwork(etherType, b)
}

func (f *Frame) decodeNetwork(etherType uint16, b []byte) error {
	switch etherType {
	case EtherTypeIPv4:
		return f.decodeIPv4(b)
	case EtherTypeIPv6:
		return f.decodeIPv6(b)
	}
	f.Payload = b
	return nil
}

func (f *Frame) decodeIPv4(b []byte) error {
	if err := need(b, IPv4Len, "IPv4"); err != nil {
		return err
	}
	if version := b[0] >> 4; version != 4 {
		return fmt.Errorf("parse frame: version %d in an IPv4 header", version)
	}
	header := int(b[0]&0xf) * 4
	if header < IPv4Len {
		return fmt.Errorf("parse frame: IPv4 header length (IHL) of %d bytes: 20 are the least", header)
	}
	if err := need(b, header, "IPv4"); err != nil {
		return err
	}
	total := int(binary.BigEndian.Uint16(b[2:]))
	if total == 0 && b[9] == unix.IPPROTO_TCP {
		// A segment that the sender's network card was to cut, seen before that:
		// more than 64 KiB in Linux (BIG TCP), of any length elsewhere.
		total = len(b)
	}
	if total < header {
		return fmt.Errorf("parse frame: IPv4 total length %d is less than the header's %d", total, header)
	}
	f.fillIPv4(b[:header])
	return f.decodeTransport(f.limit(b[header:], total-header))
}

func (f *Frame) fillIPv4(b []byte) {
	const dontFragment, moreFragments, offset = 0x4000, 0x2000, 0x1fff
	flags := binary.BigEndian.Uint16(b[6:])
	f.Version, f.header = 4, b
	f.IPv4 = IPv4{
		DSCP:           b[1] >> 2,
		TotalLength:    binary.BigEndian.Uint16(b[2:]),
		Identification: binary.BigEndian.Uint16(b[4:]),
		DontFragment:   flags&dontFragment != 0,
		TTL:            b[8],
		Options:        b[IPv4Len:],
	}
	f.Protocol = b[9]
	f.Source = netip.AddrFrom4([4]byte(b[12:]))
	f.Destination = netip.AddrFrom4([4]byte(b[16:]))
	f.Fragment = Fragment{Offset: int(flags&offset) * 8, More: flags&moreFragments != 0}
	if f.Fragment.Is() {
		f.Fragment.Identification = uint32(f.IPv4.Identification)
	}
}

// limit splits an IP payload of the given length from the trailer, and sets Missing.
func (f *Frame) limit(b []byte, length int) []byte {
	if len(b) < length {
		f.Missing = length - len(b)
		return b
	}
	f.Trailer = b[length:]
	return b[:length:length]
}

func (f *Frame) decodeIPv6(b []byte) error {
	if err := need(b, IPv6Len, "IPv6"); err != nil {
		return err
	}
	if version := b[0] >> 4; version != 6 {
		return fmt.Errorf("parse frame: version %d in an IPv6 header", version)
	}
	f.fillIPv6(b)
	b = b[IPv6Len:]
	length := int(f.IPv6.PayloadLength)
	if length == 0 && (f.Protocol == unix.IPPROTO_HOPOPTS || f.Protocol == unix.IPPROTO_TCP) {
		// A jumbogram (RFC 2675), whose length is an option; or BIG TCP, which Linux
		// lets be seen with that option or without. Both reach to the frame's end.
		length = len(b)
	}
	rest, err := f.skipExtensions(f.limit(b, length))
	if err != nil {
		return err
	}
	return f.decodeTransport(rest)
}

func (f *Frame) fillIPv6(b []byte) {
	f.Version = 6
	f.IPv6 = IPv6{
		DSCP:          b[0]<<2&0x3c | b[1]>>6,
		PayloadLength: binary.BigEndian.Uint16(b[4:]),
		HopLimit:      b[7],
	}
	f.Protocol = b[6]
	f.Source = netip.AddrFrom16([16]byte(b[8:]))
	f.Destination = netip.AddrFrom16([16]byte(b[24:]))
}

// extensionName names the extension headers, those of ipv6_ext_hdr (net/ipv6/exthdrs_core.c);
// it is empty for other protocols.
func extensionName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_HOPOPTS:
		return "Hop-by-Hop Options"
	case unix.IPPROTO_ROUTING:
		return "Routing"
	case unix.IPPROTO_FRAGMENT:
		return "Fragment"
	case unix.IPPROTO_AH:
		return "Authentication"
	case unix.IPPROTO_DSTOPTS:
		return "Destination Options"
	}
	return ""
}

// skipExtensions processes the extension headers, and returns what follows. After the Fragment
// header of a later fragment there is none.
func (f *Frame) skipExtensions(b []byte) ([]byte, error) {
	rest := b
	for f.Fragment.Offset == 0 {
		name := extensionName(f.Protocol)
		if name == "" {
			break
		}
		length, err := extensionLength(f.Protocol, name, rest)
		if err != nil {
			return nil, err
		}
		f.noteExtension(rest[:length])
		rest = rest[length:]
		f.IPv6.Extensions = b[:len(b)-len(rest)]
	}
	return rest, nil
}

// extensionLength returns the length of the header at the start of b.
func extensionLength(header uint8, name string, b []byte) (int, error) {
	if err := need(b, 8, name); err != nil {
		return 0, err
	}
	length := 8 + int(b[1])*8
	switch header {
	case unix.IPPROTO_FRAGMENT:
		length = 8 // the second byte is reserved
	case unix.IPPROTO_AH:
		length = 8 + int(b[1])*4 // RFC 4302, section 2.2
	}
	return length, need(b, length, name)
}

// noteExtension processes the header that f.Protocol names.
func (f *Frame) noteExtension(b []byte) {
	switch f.Protocol {
	case unix.IPPROTO_FRAGMENT:
		at := binary.BigEndian.Uint16(b[2:])
		inner := Fragment{binary.BigEndian.Uint32(b[4:]), int(at &^ 7), at&1 != 0}
		if inner.Is() {
			f.Fragment = inner
		}
	case unix.IPPROTO_ROUTING:
		f.unverifiable = f.unverifiable || b[3] != 0 // segments left
	}
	f.Protocol = b[0]
}

const icmpLen = 8

// decodeTransport parses the IP payload.
func (f *Frame) decodeTransport(b []byte) (err error) {
	f.Payload = b
	if f.Fragment.Offset != 0 {
		return nil
	}
	header := 0
	switch f.Protocol {
	case unix.IPPROTO_TCP:
		header, err = f.TCP.decode(b)
	case unix.IPPROTO_UDP:
		header = UDPLen
		b, err = f.decodeUDP(b)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		header = icmpLen
		err = f.decodeICMP(b)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	f.Transport, f.segment, f.Payload = f.Protocol, b, b[header:]
	return nil
}

// decode returns the length of the header. Of a cut one it sets ports and sequence number.
func (t *TCP) decode(b []byte) (header int, err error) {
	if len(b) >= 8 {
		t.SourcePort = binary.BigEndian.Uint16(b)
		t.DestinationPort = binary.BigEndian.Uint16(b[2:])
		t.SequenceNumber = binary.BigEndian.Uint32(b[4:])
	}
	if err := need(b, TCPLen, "TCP"); err != nil {
		return 0, err
	}
	t.AcknowledgmentNumber = binary.BigEndian.Uint32(b[8:])
	t.Flags = TCPFlags(b[13])
	t.Window = binary.BigEndian.Uint16(b[14:])
	t.Checksum = binary.BigEndian.Uint16(b[16:])
	t.UrgentPointer = binary.BigEndian.Uint16(b[18:])
	header = int(b[12]>>4) * 4
	if header < TCPLen {
		return 0, fmt.Errorf("parse frame: TCP header length (data offset) of %d bytes: 20 are the least", header)
	}
	if err := need(b, header, "TCP"); err != nil {
		return 0, err
	}
	t.Options = b[TCPLen:header]
	return header, nil
}

// decodeUDP returns the datagram without the surplus area (RFC 9868).
func (f *Frame) decodeUDP(b []byte) ([]byte, error) {
	if err := need(b, UDPLen, "UDP"); err != nil {
		return nil, err
	}
	f.UDP = UDP{
		SourcePort:      binary.BigEndian.Uint16(b),
		DestinationPort: binary.BigEndian.Uint16(b[2:]),
		Length:          binary.BigEndian.Uint16(b[4:]),
		Checksum:        binary.BigEndian.Uint16(b[6:]),
	}
	length := int(f.UDP.Length)
	if length == 0 && f.Version == 6 && f.IPv6.PayloadLength == 0 { // RFC 2675, section 4
		return b, nil
	}
	switch {
	case length < UDPLen:
		return nil, fmt.Errorf("parse frame: UDP length %d is less than the header's 8", length)
	case length <= len(b):
		return b[:length:length], nil
	case length > len(b)+f.Missing && !f.Fragment.More:
		return nil, fmt.Errorf("parse frame: UDP length %d is more than the %d bytes that IP carries", length, len(b)+f.Missing)
	}
	return b, nil
}

func (f *Frame) decodeICMP(b []byte) error {
	name := "ICMP"
	if f.Protocol == unix.IPPROTO_ICMPV6 {
		name = "ICMPv6"
	}
	if err := need(b, icmpLen, name); err != nil {
		return err
	}
	f.ICMP = ICMP{b[0], b[1], binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint32(b[4:])}
	return nil
}

// ports returns those of the transport header, 0 if there are none.
func (f *Frame) ports() (source, destination uint16) {
	switch f.Protocol {
	case unix.IPPROTO_TCP:
		return f.TCP.SourcePort, f.TCP.DestinationPort
	case unix.IPPROTO_UDP:
		return f.UDP.SourcePort, f.UDP.DestinationPort
	}
	return 0, 0
}
