package ring

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/pcap"
)

// Directions of a packet in the flags of its block (draft-ietf-opsawg-pcapng).
const (
	inbound  = pcapgo.NgEpbFlagDirectionInbound
	outbound = pcapgo.NgEpbFlagDirectionOutbound
)

// WritePcapng writes the headers of packets that were recorded from one time to another in the order of their times, those that came and left
// and those that the kernel dropped. One that was dropped may be there as one that came, too: it is on an interface of
// its own, and its comment has place and reason.
func WritePcapng(w io.Writer, r *Ring, from, to time.Time, version string) error {
	out := pcapng{buf: bufio.NewWriter(w), version: version, numbers: map[string]int{}}
	wanted := func(p *Packet) bool { return !p.At.Before(from) && !p.At.After(to) }
	parts, err := r.headerParts(from, to, wanted)
	if err != nil {
		return failed(err)
	}
	for _, part := range parts {
		if err := out.flush(part.first); err != nil {
			return failed(err)
		}
		if err := out.addFrame(r, part.frame, wanted); err != nil {
			return failed(err)
		}
	}
	return failed(cmp.Or(out.flush(to), out.end()))
}

// headerPart is a frame with headers, and the time of the first of them.
type headerPart struct {
	frame *Frame
	first time.Time
}

// headerParts are the frames that have wanted packets, by the time of their first one: no part has a packet from before it. Frames of different kinds
// are of the same seconds, so their own times do not say in which order packets are.
func (r *Ring) headerParts(from, to time.Time, wanted func(*Packet) bool) (parts []headerPart, err error) {
	for f := range r.All() {
		// A frame has the packets of the time before it, and some of while it was made.
		if f.Wall.Before(from.Add(-leastGap)) || f.Wall.After(to.Add(leastGap)) {
			continue
		}
		var first time.Time
		err := r.eachHeader(f, func(p *Packet, _ *DroppedPacket) {
			if wanted(p) && (first.IsZero() || p.At.Before(first)) {
				first = p.At
			}
		})
		if err != nil {
			return nil, err
		}
		if !first.IsZero() {
			parts = append(parts, headerPart{f, first})
		}
	}
	slices.SortStableFunc(parts, func(a, b headerPart) int { return a.first.Compare(b.first) })
	return parts, nil
}

// eachHeader calls fn for the packets of a frame; of those that were dropped with all that is known of them.
func (r *Ring) eachHeader(f *Frame, fn func(*Packet, *DroppedPacket)) error {
	switch f.Kind {
	case KindPackets:
		packets, err := r.Packets(f)
		if err != nil {
			return err
		}
		for i := range packets.List {
			fn(&packets.List[i], nil)
		}
	case KindDropped:
		dropped, err := r.Dropped(f)
		if err != nil {
			return err
		}
		for i := range dropped.List {
			fn(&dropped.List[i].Packet, &dropped.List[i])
		}
	}
	return nil
}

type pcapng struct {
	buf     *bufio.Writer
	ng      *pcapgo.NgWriter
	version string
	// numbers are those of interfaces in the file.
	numbers map[string]int
	// waiting packets are those of parts that overlap in time.
	waiting []waitingPacket
	data    []byte // of the packet that is written
}

type waitingPacket struct {
	*Packet
	on      string
	options pcapgo.NgPacketOptions
}

// mostWaiting bounds how many packets wait, so that a recording whose parts all overlap takes no more memory: many times
// what a recorder writes in a gap between snapshots.
const mostWaiting = 4 * mostPackets

// on returns the number of an interface, which it adds where it is new.
func (p *pcapng) on(name string) (n int, err error) {
	n, known := p.numbers[name]
	if known {
		return n, nil
	}
	about := pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeLinuxSLL, Comment: pcap.HeadersAlone + ": SYNs, FINs and RSTs of TCP, ICMP; no payload, no ACKs"}
	if strings.HasSuffix(name, pcap.DroppedOn) {
		about.Comment = pcap.HeadersAlone + ": a sample of dropped packets; no payload"
	}
	if p.ng == nil {
		section := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "natkit " + p.version, OS: "Linux"}}
		p.ng, err = pcapgo.NewNgWriterInterface(p.buf, about, section)
	} else {
		n, err = p.ng.AddInterface(about)
	}
	p.numbers[name] = n
	return n, err
}

// addFrame adds the packets of a frame that are wanted.
func (p *pcapng) addFrame(r *Ring, f *Frame, wanted func(*Packet) bool) error {
	err := r.eachHeader(f, func(one *Packet, dropped *DroppedPacket) {
		switch {
		case !wanted(one):
		case dropped != nil:
			p.addDropped(dropped)
		default:
			p.add(one)
		}
	})
	if over := len(p.waiting) - mostWaiting; err == nil && over > 0 {
		p.sort()
		err = p.writeFirst(over)
	}
	return err
}

func failed(err error) error {
	if err != nil {
		return fmt.Errorf("write headers of packets: %w", err)
	}
	return nil
}

func (p *pcapng) add(one *Packet) {
	flags := pcapgo.NgEpbFlags{Direction: inbound}
	if one.Sent {
		flags.Direction = outbound
	}
	p.waiting = append(p.waiting, waitingPacket{one, one.Interface, pcapgo.NgPacketOptions{Flags: &flags}})
}

func (p *pcapng) addDropped(one *DroppedPacket) {
	about := "dropped at " + one.Site.Place()
	if one.Site.Reason != "" {
		about += ", reason " + one.Site.Reason
	}
	on := cmp.Or(one.Interface, "none") + pcap.DroppedOn
	p.waiting = append(p.waiting, waitingPacket{&one.Packet, on, pcapgo.NgPacketOptions{Comments: []string{about}}})
}

func (p *pcapng) sort() {
	slices.SortStableFunc(p.waiting, func(a, b waitingPacket) int { return a.At.Compare(b.At) })
}

// flush writes the packets that wait, up to a time.
func (p *pcapng) flush(until time.Time) error {
	p.sort()
	n := 0
	for n < len(p.waiting) && !p.waiting[n].At.After(until) {
		n++
	}
	return p.writeFirst(n)
}

// writeFirst writes that many of the packets that wait, which are in order.
func (p *pcapng) writeFirst(n int) error {
	for i := range p.waiting[:n] {
		if err := p.write(&p.waiting[i]); err != nil {
			return err
		}
	}
	p.waiting = slices.Delete(p.waiting, 0, n)
	return nil
}

func (p *pcapng) write(one *waitingPacket) error {
	n, err := p.on(one.on)
	if err != nil {
		return err
	}
	p.data = append(appendCooked(p.data[:0], one.Packet), one.Data...)
	info := gopacket.CaptureInfo{Timestamp: one.At, CaptureLength: len(p.data), Length: cookedHeader + max(int(one.Length), len(one.Data)), InterfaceIndex: n}
	return p.ng.WritePacketWithOptions(info, p.data, one.options)
}

// What LINKTYPE_LINUX_SLL, what "tcpdump -i any" writes, has before the IP header (tcpdump.org/linktypes). Of what holds both IPv4 and IPv6 without made
// addresses it is the one that libpcap reads on several interfaces: it compares their numbers with its own, which is another one for
// LINKTYPE_RAW.
const (
	cookedHeader = 16
	cookedToUs   = 0
	cookedFromUs = 4
	arphrdNone   = 0xfffe
)

func appendCooked(to []byte, one *Packet) []byte {
	direction, etherType := uint16(cookedToUs), uint16(frame.EtherTypeIPv4)
	if one.Sent {
		direction = cookedFromUs
	}
	if one.isIPv6() {
		etherType = frame.EtherTypeIPv6
	}
	to = binary.BigEndian.AppendUint16(to, direction)
	to = binary.BigEndian.AppendUint16(to, arphrdNone)
	to = append(to, make([]byte, 2+8)...) // no address
	return binary.BigEndian.AppendUint16(to, etherType)
}

// end writes the beginning of a file without packets, too.
func (p *pcapng) end() error {
	if p.ng == nil {
		if _, err := p.on("any"); err != nil {
			return err
		}
	}
	if err := p.ng.Flush(); err != nil {
		return err
	}
	return p.buf.Flush()
}
