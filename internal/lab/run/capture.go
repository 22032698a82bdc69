package run

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
)

// CaptureOptions specify where packets are captured while stages run.
type CaptureOptions struct {
	// Dir gets the files; nothing is captured where it is empty.
	Dir string
	// SnapLen is how many bytes of each packet are kept.
	SnapLen int
	// MaxBytes bounds each file.
	MaxBytes int64
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

// captured runs the load of a stage while the packets of every node are captured. A
// capture that cannot begin is an error; what becomes of one later stands in the report,
// and the stage is not the worse for it.
func (c *conductor) captured(st *lab.Stage, load func() error) error {
	if c.Capture.Dir == "" {
		return load()
	}
	recordings, err := c.startCaptures(st)
	err = errors.Join(err, load()) // doctor waits for the load's end
	for _, r := range recordings {
		c.report.Captures = append(c.report.Captures, r.end())
	}
	return err
}

func (c *conductor) startCaptures(st *lab.Stage) ([]*capture, error) {
	var all []*capture
	var errs []error
	round := c.round(st.Name)
	vantages := c.sc.Vantages()
	memory := ringBytes(c.sc, st, len(vantages))
	for _, v := range vantages {
		about := lab.Capture{Stage: st.Name, Round: round, Node: v.Node, Side: v.Side, Interfaces: v.Interfaces}
		about.File = filepath.Join(c.Capture.Dir, captureName(about))
		one, err := startCapture(c.node(v.Node), about, c.Capture, memory, c.Version)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, one)
	}
	return all, errors.Join(errs...)
}

// mostRings is the memory of all rings that are in use at the same time.
const mostRings = 192 << 20

// ringBytes shares it between the stages that run at the same time.
func ringBytes(sc *lab.Scenario, st *lab.Stage, vantages int) int {
	rings := vantages
	if st.Apart {
		rings = 0
		for i := range sc.Stages {
			if sc.Stages[i].Apart {
				rings += vantages
			}
		}
	}
	return min(DefaultRingBytes, mostRings/max(rings, 1))
}

// round returns how often a stage has been captured, this time included.
func (c *conductor) round(stage string) int {
	most := 0
	for _, done := range c.report.Captures {
		if done.Stage == stage {
			most = max(most, done.Round)
		}
	}
	return most + 1
}

// captureName is fault-gateway-inside.pcapng, and fault.2-… where the stage runs again:
// names of stages have no dots.
func captureName(c lab.Capture) string {
	stage := c.Stage
	if c.Round > 1 {
		stage = fmt.Sprintf("%s.%d", stage, c.Round)
	}
	side := ""
	if c.Side != "" {
		side = "-" + c.Side
	}
	return stage + "-" + c.Node + side + ".pcapng"
}

// capture is one file that is being written.
type capture struct {
	lab.Capture
	ring *ring
	out  *captureFile
	stop atomic.Bool
	done chan struct{}
	err  error // set before done is closed
}

// startCapture captures what the interfaces of about send and receive from now on into its
// file, which is replaced, through a ring of that many bytes. Needs CAP_NET_RAW in the
// namespace.
func startCapture(ns *netns.Handle, about lab.Capture, o CaptureOptions, ringBytes int, version string) (*capture, error) {
	c := &capture{Capture: about, done: make(chan struct{})}
	var numbers []int
	err := ns.Do(func() (err error) {
		if numbers, err = indexes(about.Interfaces); err != nil {
			return err
		}
		c.ring, err = openRing(numbers, o.SnapLen, ringBytes)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets in %s: %w", ns.Name(), err)
	}
	if c.out, err = createFile(about, numbers, o, version); err != nil {
		c.ring.close()
		return nil, err
	}
	go c.run()
	return c, nil
}

// drainTime bounds how long end waits for packets that the kernel has counted and not
// handed over.
const drainTime = 2 * time.Second

// run moves packets from the ring to the file until end, and all that the kernel captured
// up to then. It goes on reading after the file failed, so that
// what comes is counted.
func (c *capture) run() {
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

// end ends the capture with all packets that came before, closes the file and returns what
// became of it.
func (c *capture) end() lab.Capture {
	c.stop.Store(true)
	<-c.done
	c.Packets, c.Bytes, c.Dropped, c.Cut = c.out.packets, c.out.size, c.ring.lost(), c.out.cut
	if c.err != nil {
		c.Error = c.err.Error()
	}
	return c.Capture
}

// captureFile is a pcapng file with one description per interface.
type captureFile struct {
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
func createFile(about lab.Capture, indexes []int, o CaptureOptions, version string) (*captureFile, error) {
	f, err := disk.Open(about.File, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create capture: %w", err)
	}
	out := &captureFile{f: f, path: about.File, most: o.MaxBytes, numbers: map[int]int{}, received: make([]uint64, len(indexes)), began: time.Now()}
	out.buf = bufio.NewWriterSize(writerFunc(out.toDisk), 256<<10)
	if err := out.begin(about.Interfaces, o.SnapLen, version); err != nil {
		f.Close()
		return nil, fmt.Errorf("write capture %s: %w", about.File, err)
	}
	for i, index := range indexes {
		out.numbers[index] = i
	}
	return out, nil
}

func (f *captureFile) begin(interfaces []string, snapLen int, version string) (err error) {
	section := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "natkit " + version, OS: "Linux"}}
	for i, name := range interfaces {
		about := pcapgo.NgInterface{Name: name, LinkType: layers.LinkTypeEthernet, SnapLength: uint32(snapLen)}
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

func (f *captureFile) toDisk(b []byte) (int, error) {
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
func (f *captureFile) write(c captured) {
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
func (f *captureFile) close(dropped uint64) error {
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
