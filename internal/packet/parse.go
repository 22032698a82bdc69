package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// CutError says that a frame ends inside a header.
type CutError struct {
	Header string // as its RFC calls it
	// Have is how many of the Need bytes are there. Need grows with what the header
	// itself says of its length.
	Have, Need int
}

func (e *CutError) Error() string {
	return fmt.Sprintf("parse frame: the %s header is cut: %d of %d bytes", e.Header, e.Have, e.Need)
}

// need finds that a header of n bytes is cut.
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

// Decode parses an Ethernet frame, with or without FCS, into f, which keeps nothing
// of what was in it; it allocates nothing but errors. What is neither IPv4 nor IPv6
// is no error, nor is a payload that is not all there (Missing). The error is a
// *CutError where a header is not all there; else it tells which field contradicts
// another. The headers before the one with the error are filled in.
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

// DecodeNetwork is Decode for what follows the header of another link layer, for
// which its caller knows the EtherType. f.Ethernet is empty but for that.
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
		IHL:            b[0] & 0xf,
		DSCP:           b[1] >> 2,
		ECN:            b[1] & 3,
		TotalLength:    binary.BigEndian.Uint16(b[2:]),
		Identification: binary.BigEndian.Uint16(b[4:]),
		DontFragment:   flags&dontFragment != 0,
		TTL:            b[8],
		HeaderChecksum: binary.BigEndian.Uint16(b[10:]),
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

// limit cuts off what follows an IP payload of the given length, and notes what is
// not there of it.
func (f *Frame) limit(b []byte, length int) []byte {
	if len(b) < length {
		f.Missing = length - len(b)
		return b
	}
	f.Trailer = b[length:]
	return b[:length:length]
}
