package ring

import (
	"bufio"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Directions of a packet in the flags of its block (draft-ietf-opsawg-pcapng).
const (
	inbound  = pcapgo.NgEpbFlagDirectionInbound
	outbound = pcapgo.NgEpbFlagDirectionOutbound
)

// WritePcapng writes the headers of packets that were recorded from one time to another. Packets begin with their IP
// header.
func WritePcapng(w io.Writer, r *Ring, from, to time.Time, version string) error {
	out := pcapng{buf: bufio.NewWriter(w), version: version, numbers: map[string]int{}}
	for f := range r.All() {
		// A frame has the packets of the time before it.
		if f.Kind != KindPackets || f.Wall.Before(from) || f.Wall.After(to.Add(leastGap)) {
			continue
		}
		p, err := r.Packets(f)
		if err != nil {
			return err
		}
		for _, one := range p.List {
			if one.At.Before(from) || one.At.After(to) {
				continue
			}
			if err := out.add(one); err != nil {
				return fmt.Errorf("write headers of packets: %w", err)
			}
		}
	}
	if err := out.end(); err != nil {
		return fmt.Errorf("write headers of packets: %w", err)
	}
	return nil
}

type pcapng struct {
	buf     *bufio.Writer
	ng      *pcapgo.NgWriter
	version string
	// numbers are those of interfaces in the file.
	numbers map[string]int
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

func (p *pcapng) add(one Packet) error {
	n, err := p.on(one.Interface)
	if err != nil {
		return err
	}
	info := gopacket.CaptureInfo{Timestamp: one.At, CaptureLength: len(one.Data), Length: max(int(one.Length), len(one.Data)), InterfaceIndex: n}
	flags := pcapgo.NgEpbFlags{Direction: inbound}
	if one.Sent {
		flags.Direction = outbound
	}
	return p.ng.WritePacketWithOptions(info, one.Data, pcapgo.NgPacketOptions{Flags: &flags})
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
