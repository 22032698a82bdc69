package ring

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/natkit/natkit/internal/pcap"
)

// Directions of a packet in the flags of its block (draft-ietf-opsawg-pcapng).
const (
	inbound  = pcapgo.NgEpbFlagDirectionInbound
	outbound = pcapgo.NgEpbFlagDirectionOutbound
)

// WritePcapng writes the headers of packets that were recorded from one time to another, those that came and left and those that
// the kernel dropped. Packets begin with their IP header. One that was dropped may be there as one that came, too: it is on an interface of
// its own, and its comment has place and reason.
func WritePcapng(w io.Writer, r *Ring, from, to time.Time, version string) error {
	out := pcapng{buf: bufio.NewWriter(w), version: version, numbers: map[string]int{}}
	for f := range r.All() {
		// A frame has the packets of the time before it.
		if f.Wall.Before(from) || f.Wall.After(to.Add(leastGap)) {
			continue
		}
		if err := out.flush(f.Wall.Add(-takenWithin)); err != nil {
			return failed(err)
		}
		if err := out.addFrame(r, f, func(p *Packet) bool { return !p.At.Before(from) && !p.At.After(to) }); err != nil {
			return failed(err)
		}
	}
	return failed(cmp.Or(out.flush(to), out.end()))
}

type pcapng struct {
	buf     *bufio.Writer
	ng      *pcapgo.NgWriter
	version string
	// numbers are those of interfaces in the file.
	numbers map[string]int
	// waiting packets are written in the order of their times.
	waiting []waitingPacket
}

type waitingPacket struct {
	*Packet
	on      string
	options pcapgo.NgPacketOptions
}

// on returns the number of an interface, which it adds where it is new.
func (p *pcapng) on(name string) (n int, err error) {
	n, known := p.numbers[name]
	if known {
		return n, nil
	}
	about := pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeRaw, Comment: "headers alone: IP, TCP, ICMP; no payload"}
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
	switch f.Kind {
	case KindPackets:
		packets, err := r.Packets(f)
		if err != nil {
			return err
		}
		for i := range packets.List {
			if one := &packets.List[i]; wanted(one) {
				p.add(one)
			}
		}
	case KindDropped:
		dropped, err := r.Dropped(f)
		if err != nil {
			return err
		}
		for i := range dropped.List {
			if one := &dropped.List[i]; wanted(&one.Packet) {
				p.addDropped(one)
			}
		}
	}
	return nil
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

// takenWithin bounds how late a recorder takes a packet: that it came may be in the frames behind those where it was dropped.
const takenWithin = time.Second

// flush writes the packets that wait, up to a time.
func (p *pcapng) flush(until time.Time) error {
	slices.SortStableFunc(p.waiting, func(a, b waitingPacket) int { return a.At.Compare(b.At) })
	n := 0
	for ; n < len(p.waiting) && !p.waiting[n].At.After(until); n++ {
		if err := p.write(&p.waiting[n]); err != nil {
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
	info := gopacket.CaptureInfo{Timestamp: one.At, CaptureLength: len(one.Data), Length: max(int(one.Length), len(one.Data)), InterfaceIndex: n}
	return p.ng.WritePacketWithOptions(info, one.Data, one.options)
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
