// Package pcap reads captures (pcap, pcapng, gzipped or not) as a stream, follows their TCP
// connections in bounded memory, and reports what a NAT does to them: reused tuples, SYNs
// rejected by TIME_WAIT, clocks behind one address.
//
// Files are not trusted: what is broken is skipped and reported, never fatal.
package pcap

import (
	"io"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// Packet is one packet of a capture.
type Packet struct {
	// Number is Wireshark's frame number: from 1, over all packets of the file.
	Number int64
	// At is when it was captured, in nanoseconds since 1970 (UTC).
	At int64
	// Interface indexes Stats.Interfaces.
	Interface int
	// Dropped: the kernel dropped it, by the name of the interface (see DroppedOn). Where it was captured too, that is another Packet.
	Dropped bool
	// HeadersAlone: the file has no data and no ACKs of the interface (see the constant).
	HeadersAlone bool
	// Length is that of the packet on the wire, in bytes, as the file has it.
	Length int
	// Data is the frame as captured, with its link layer; no more than MaxFrame bytes.
	Data []byte
	// Reason is why the packet was not parsed, or Decoded if Frame has at least the addresses.
	Reason Reason
	// Frame is the packet from its network header on; of Ethernet it has the EtherType only.
	Frame frame.Frame
	// TSVal and TSEcr are the TCP timestamps (RFC 7323), where HasTimestamps.
	TSVal, TSEcr  uint32
	HasTimestamps bool
	// Quoted is the packet quoted by an ICMP error, if HasQuoted: addresses and mostly ports.
	Quoted    frame.Frame
	HasQuoted bool
}

// Time is At as a time.
func (p *Packet) Time() time.Time { return time.Unix(0, p.At).UTC() }

// DroppedOn ends the name of an interface that 'natkit record' has dropped packets on, behind that of the kernel's.
const DroppedOn = " (dropped)"

// HeadersAlone begins the comment of an interface on which 'natkit record' has the headers of SYNs, FINs, RSTs and ICMP alone: a packet that is not
// there may have been sent all the same.
const HeadersAlone = "headers alone"

// MaxFrame bounds the bytes of a frame that are read: the maximum of capture programs
// (MAXIMUM_SNAPLEN of libpcap, WTAP_MAX_PACKET_SIZE_STANDARD of Wireshark).
const MaxFrame = 256 << 10

// Each calls fn for every packet of a capture, in the file's order. The packet and its data are
// valid until fn returns. An error of fn ends the reading and is returned unchanged.
//
// A broken file is no error: Stats.Damage has the place, and reading resumes after it. The error
// says that r is no capture or could not be read; the statistics are those up to there.
func Each(r io.Reader, fn func(*Packet) error) (Stats, error) {
	s, err := open(r)
	if err != nil {
		return Stats{}, err
	}
	err = s.each(fn)
	return s.stats(), err
}

// each reads to the end.
func (s *stream) each(fn func(*Packet) error) error {
	var p Packet
	for {
		more, err := s.next(&p)
		if !more || err != nil {
			return err
		}
		s.decode(&p)
		if err := fn(&p); err != nil {
			return err
		}
	}
}
