package packet

import "golang.org/x/sys/unix"

// Checksum is what can be said of a checksum on the wire.
type Checksum int

const (
	// ChecksumNone is a packet without a checksum: UDP over IPv4 may leave it out
	// (RFC 768), and what has no transport header that is known has none either.
	ChecksumNone Checksum = iota
	// ChecksumOK is one that is right.
	ChecksumOK
	// ChecksumBad is one that is wrong. A receiver drops the packet.
	ChecksumBad
	// ChecksumPartial covers the pseudo header only, as a stack leaves it to a
	// network card that completes it (CHECKSUM_PARTIAL in include/linux/skbuff.h).
	ChecksumPartial
	// ChecksumUnknown cannot be verified: not all that it covers is in the frame.
	ChecksumUnknown
)

func (c Checksum) String() string {
	return [...]string{"none", "ok", "bad", "partial", "unknown"}[c]
}

// IPChecksumOK verifies the header checksum of IPv4. Where there is none, as in IPv6,
// nothing is wrong with it.
func (f *Frame) IPChecksumOK() bool {
	return f.Version != 4 || checksum(f.header) == 0
}

// TransportChecksum verifies that of TCP, UDP, ICMP or ICMPv6.
func (f *Frame) TransportChecksum() Checksum {
	check := f.transportCheck()
	switch {
	case f.Transport == 0, f.Transport == unix.IPPROTO_UDP && check == 0 && f.Version == 4:
		return ChecksumNone
	case f.Fragment.Is() || f.unverifiable:
		return ChecksumUnknown
	case f.Transport == unix.IPPROTO_UDP && check == 0: // only tunnels may (RFC 6935)
		return ChecksumBad
	}
	length, complete := f.segmentLength()
	pseudo := f.pseudoSum(length)
	switch {
	case complete && fold(sum(pseudo, f.segment)) == 0xffff:
		return ChecksumOK
	case pseudo != 0 && check == fold(pseudo):
		return ChecksumPartial
	case complete:
		return ChecksumBad
	}
	return ChecksumUnknown
}

func (f *Frame) transportCheck() uint16 {
	switch f.Transport {
	case unix.IPPROTO_TCP:
		return f.TCP.Checksum
	case unix.IPPROTO_UDP:
		return f.UDP.Checksum
	}
	return f.ICMP.Checksum
}

// segmentLength is what the length fields say of the segment, and whether all of it
// is there.
func (f *Frame) segmentLength() (length uint32, complete bool) {
	if f.Transport == unix.IPPROTO_UDP && f.UDP.Length != 0 {
		return uint32(f.UDP.Length), len(f.segment) == int(f.UDP.Length)
	}
	return uint32(len(f.segment) + f.Missing), f.Missing == 0
}

// pseudoSum is the sum of the pseudo header; 0 for ICMP, which has none with IPv4.
func (f *Frame) pseudoSum(length uint32) uint64 {
	if f.Transport == unix.IPPROTO_ICMP {
		return 0
	}
	return pseudoSum(f.Source, f.Destination, f.Transport, length)
}
