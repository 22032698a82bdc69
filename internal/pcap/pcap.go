// Package pcap reads captures of packets (pcap, pcapng, either one gzipped) as a
// stream, follows their TCP connections with bounded memory, and reports what a NAT
// does to them: tuples used again, SYNs that the former connection's TIME_WAIT
// rejects, clocks behind one address.
//
// Files are not trusted: what is broken is skipped and told, never fatal.
package pcap

import (
	"io"
	"time"

	"github.com/natkit/natkit/internal/frame"
)

// Packet is one packet of a capture, as far as natkit looks into it.
type Packet struct {
	// Number is the frame's number as Wireshark has it: from 1, over all packets of
	// the file, whatever their link type.
	Number int64
	// At is when it was captured, in nanoseconds since 1970 (UTC).
	At int64
	// Interface indexes Stats.Interfaces.
	Interface int
	// Length is that of the packet on the wire, in bytes, as the file has it.
	Length int
	// Data is the frame as captured, with its link layer; no more than MaxFrame bytes.
	Data []byte
	// Reason says why nothing of the packet was understood; it is Decoded where
	// Frame tells at least the addresses.
	Reason Reason
	// Frame is the packet from its network header on. Its Ethernet header is empty
	// but for the EtherType.
	Frame frame.Frame
	// TSVal and TSEcr are the TCP timestamps (RFC 7323), where HasTimestamps.
	TSVal, TSEcr  uint32
	HasTimestamps bool
	// Quoted is what an ICMP error quotes, where HasQuoted: addresses and, nearly
	// always, ports.
	Quoted    frame.Frame
	HasQuoted bool
}

// Time is At as a time.
func (p *Packet) Time() time.Time { return time.Unix(0, p.At).UTC() }

// MaxFrame is how much of a frame is looked at, in bytes: as much as the capture
// programs take at most (MAXIMUM_SNAPLEN of libpcap, WTAP_MAX_PACKET_SIZE_STANDARD of
// Wireshark). What is longer is read over.
const MaxFrame = 256 << 10

// Each calls fn for every packet of a capture, in the file's order. The packet, with
// all that it points to, is fn's until it returns. An error of fn ends the reading and
// is given back as it is.
//
// A file that is broken is no error: Stats.Damage tells where, and what is behind the
// place is looked for. The error says that r is no capture at all, or that it could
// not be read; the statistics hold up to there.
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
