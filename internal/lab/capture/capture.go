// Package capture writes what interfaces of network namespaces send and receive into
// pcapng files, headers first of all: by packet sockets with rings, so that a load that
// fills two CPUs is captured without loss.
package capture

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
)

// Options say how much is kept. The zero value means the usual.
type Options struct {
	// SnapLen is how many bytes of each packet are kept; DefaultSnapLen where 0.
	SnapLen int
	// MaxBytes bounds each file; DefaultMaxBytes where 0.
	MaxBytes int64
	// RingBytes is the memory between the kernel and each file; DefaultRingBytes where 0.
	RingBytes int
	// Version is natkit's, for the file's header.
	Version string
}

const (
	// DefaultSnapLen has room for all headers that are read: Ethernet with two
	// tags (22 bytes), IPv6 (40) and TCP with options (60), and an ICMP error with what
	// it quotes of the same.
	DefaultSnapLen = 256
	// MinSnapLen has room for the largest header of TCP over IPv4 without IP options.
	MinSnapLen = 96
	// MaxSnapLen keeps packets whole, those that a network card would segment, too.
	MaxSnapLen = 256 << 10
	// DefaultMaxBytes are some 1.5 million packets of DefaultSnapLen at most.
	DefaultMaxBytes = 512 << 20
	// DefaultRingBytes are half a second of 100,000 packets of DefaultSnapLen a second.
	DefaultRingBytes = 16 << 20
)

func (o Options) withDefaults() Options {
	o.SnapLen = cmp.Or(o.SnapLen, DefaultSnapLen)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	o.RingBytes = cmp.Or(o.RingBytes, DefaultRingBytes)
	return o
}

// Capture is one file that is being written.
type Capture struct {
	ring *ring
	out  *file
	stop atomic.Bool
	done chan struct{}
	err  error // set before done is closed
}

// Result is what came of a capture.
type Result struct {
	// Packets are in the file, which has Bytes.
	Packets uint64
	Bytes   int64
	// Dropped packets came while the ring was full, Cut ones when the file had reached
	// its bound.
	Dropped, Cut uint64
}

// Start captures what the interfaces of a namespace send and receive from now on into
// the file at path, which is replaced. Needs CAP_NET_RAW there.
func Start(ns *netns.Handle, interfaces []string, path string, o Options) (*Capture, error) {
	o = o.withDefaults()
	var r *ring
	var numbers []int
	err := ns.Do(func() (err error) {
		if numbers, err = indexes(interfaces); err != nil {
			return err
		}
		r, err = openRing(numbers, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets in %s: %w", ns.Name(), err)
	}
	c := &Capture{ring: r, done: make(chan struct{})}
	if c.out, err = createFile(path, interfaces, numbers, o); err != nil {
		r.close()
		return nil, err
	}
	go c.run()
	return c, nil
}

// drainTime bounds how long Stop waits for packets that the kernel has counted and not
// handed over.
const drainTime = 2 * time.Second

// run moves packets from the ring to the file until Stop, and all that the kernel captured
// up to then. It goes on reading after the file failed, so that
// what comes is counted.
func (c *Capture) run() {
	defer close(c.done)
	defer c.ring.close()
	var until time.Time
	for {
		if c.stop.Load() && until.IsZero() {
			c.err = cmp.Or(c.err, c.ring.mute())
			until = time.Now().Add(drainTime)
		}
		if err := c.ring.read(c.out.write); err != nil {
			c.err = cmp.Or(c.err, err)
			break
		}
		if !until.IsZero() && (c.ring.drained() || time.Now().After(until)) {
			break
		}
	}
	c.err = cmp.Or(c.err, c.out.close(c.ring.lost()))
}

// Stop ends the capture with all packets that came before, and closes the file. The
// result counts also after an error.
func (c *Capture) Stop() (Result, error) {
	c.stop.Store(true)
	<-c.done
	return Result{Packets: c.out.packets, Bytes: c.out.size, Dropped: c.ring.lost(), Cut: c.out.cut}, c.err
}

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
func createFile(path string, interfaces []string, indexes []int, o Options) (*file, error) {
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
	for i, index := range indexes {
		out.numbers[index] = i
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
