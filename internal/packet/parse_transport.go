package packet

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

const icmpLen = 8

// decodeTransport parses what IP carries. b ends where that does, or where the frame
// does if some is missing.
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

// decode gives the length of the header. The ports and the sequence number are
// filled in also where they are all that is there.
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
	t.DataOffset = b[12] >> 4
	t.Reserved = b[12] & 0xf
	t.Flags = TCPFlags(b[13])
	t.Window = binary.BigEndian.Uint16(b[14:])
	t.Checksum = binary.BigEndian.Uint16(b[16:])
	t.UrgentPointer = binary.BigEndian.Uint16(b[18:])
	header = int(t.DataOffset) * 4
	if header < TCPLen {
		return 0, fmt.Errorf("parse frame: TCP header length (data offset) of %d bytes: 20 are the least", header)
	}
	if err := need(b, header, "TCP"); err != nil {
		return 0, err
	}
	t.Options = b[TCPLen:header]
	return header, nil
}

// decodeUDP gives the datagram, without what lies behind it in the IP packet (the
// surplus area of RFC 9868).
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

// ports are those of the transport header, as far as it is there.
func (f *Frame) ports() (source, destination uint16) {
	switch f.Protocol {
	case unix.IPPROTO_TCP:
		return f.TCP.SourcePort, f.TCP.DestinationPort
	case unix.IPPROTO_UDP:
		return f.UDP.SourcePort, f.UDP.DestinationPort
	}
	return 0, 0
}
