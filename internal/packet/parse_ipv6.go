package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

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
	if length == 0 && (f.IPv6.NextHeader == unix.IPPROTO_HOPOPTS || f.IPv6.NextHeader == unix.IPPROTO_TCP) {
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
	first := binary.BigEndian.Uint32(b)
	f.Version = 6
	f.IPv6 = IPv6{
		DSCP:          uint8(first >> 22 & 0x3f),
		ECN:           uint8(first >> 20 & 3),
		FlowLabel:     first & 0xfffff,
		PayloadLength: binary.BigEndian.Uint16(b[4:]),
		NextHeader:    b[6],
		HopLimit:      b[7],
	}
	f.Protocol = b[6]
	f.Source = netip.AddrFrom16([16]byte(b[8:]))
	f.Destination = netip.AddrFrom16([16]byte(b[24:]))
}

// extensionName names the headers that are skipped on the way to the transport
// header, the same as in ipv6_ext_hdr (net/ipv6/exthdrs_core.c); it is empty for all
// other protocols.
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

// skipExtensions notes the extension headers, and gives what follows them. What is
// behind the Fragment header of a later fragment is no header, whatever its type.
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

// extensionLength is how long the header at the start of b is.
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

// noteExtension takes the header that f.Protocol names, and goes on to the next.
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
