package capture

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/natkit/natkit/internal/disk"
)

// file is a pcapng file with one description per interface.
type file struct {
	f    *os.File
	path string
	buf  *bufio.Writer
	ng   *pcapgo.NgWriter
	// numbers are those of the interfaces in the file, by index in the namespace;
	// received are their packets, in the order of the numbers.
	numbers  map[int]int
	received []uint64
	began    time.Time

	size, most   int64
	packets, cut uint64
	err          error
}

// createFile writes the file's beginning: the section with natkit's version, and the
// interfaces.
func createFile(path string, interfaces []string, names map[int]string, o Options) (*file, error) {
	f, err := disk.Open(path, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create capture: %w", err)
	}
	out := &file{f: f, path: path, most: o.MaxBytes, numbers: map[int]int{}, received: make([]uint64, len(interfaces)), began: time.Now()}
	out.buf = bufio.NewWriterSize(writerFunc(out.toDisk), 256<<10)
	if err := out.begin(interfaces, o); err != nil {
		f.Close()
		return nil, fmt.Errorf("write capture %s: %w", path, err)
	}
	for index, name := range names {
		for i := range interfaces {
			if interfaces[i] == name {
				out.numbers[index] = i
			}
		}
	}
	return out, nil
}

func (f *file) begin(interfaces []string, o Options) (err error) {
	section := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "natkit " + o.Version, OS: "Linux"}}
	for i, name := range interfaces {
		about := pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeEthernet, SnapLength: uint32(o.SnapLen)}
		if i == 0 {
			f.ng, err = pcapgo.NewNgWriterInterface(f.buf, about, section)
		} else {
			_, err = f.ng.AddInterface(about)
		}
		if err != nil {
			return err
		}
	}
	return f.ng.Flush()
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

var _ io.Writer = writerFunc(nil)

func (f *file) toDisk(b []byte) (int, error) {
	n, err := f.f.Write(b)
	f.size += int64(n)
	return n, err
}

// Lengths of blocks (draft-ietf-opsawg-pcapng): an enhanced packet block without its
// data, and what is kept free for the statistics of an interface with its options.
const (
	packetBlock     = 32
	statisticsBlock = 96
)

// write adds a packet, or counts it where the file has reached its bound or failed.
func (f *file) write(c captured) {
	number, ok := f.numbers[c.ifindex]
	if !ok {
		return
	}
	f.received[number]++
	need := int64(f.buf.Buffered()) + packetBlock + int64(len(c.data)+3)&^3 + int64(len(f.received)*statisticsBlock)
	// Once a packet did not fit, none behind it is kept: the file is whole up to there.
	if f.err != nil || f.cut > 0 || f.size+need > f.most {
		f.cut++
		return
	}
	info := gopacket.CaptureInfo{Timestamp: c.at, CaptureLength: len(c.data), Length: max(c.length, len(c.data)), InterfaceIndex: number}
	if f.err = f.ng.WritePacket(info, c.data); f.err != nil {
		f.cut++
		return
	}
	f.packets++
}

// close writes the statistics and ends the file. The kernel counts drops for all
// interfaces together: they stand with the first one.
func (f *file) close(dropped uint64) error {
	now := time.Now()
	for i, n := range f.received {
		stats := pcapgo.NgInterfaceStatistics{LastUpdate: now, StartTime: f.began, EndTime: now, PacketsReceived: n, PacketsDropped: 0}
		if i == 0 {
			stats.PacketsReceived, stats.PacketsDropped = n+dropped, dropped
		}
		f.err = cmp.Or(f.err, f.ng.WriteInterfaceStats(i, stats))
	}
	f.err = cmp.Or(f.err, f.ng.Flush(), f.buf.Flush())
	f.err = cmp.Or(f.err, f.f.Close())
	if f.err != nil {
		return fmt.Errorf("write capture %s: %w", f.path, f.err)
	}
	return nil
}
