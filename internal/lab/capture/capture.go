// Package capture writes what interfaces of network namespaces send and receive into
// pcapng files, headers first of all: by packet sockets with rings, so that a load that
// fills two CPUs is captured without loss.
package capture

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

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
	// DefaultSnapLen has room for all headers that are looked at: Ethernet with two
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
	var names map[int]string
	err := ns.Do(func() (err error) {
		if names, err = indexes(interfaces); err != nil {
			return err
		}
		r, err = openRing(names, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture packets in %s: %w", ns.Name(), err)
	}
	c := &Capture{ring: r, done: make(chan struct{})}
	if c.out, err = createFile(path, interfaces, names, o); err != nil {
		r.close()
		return nil, err
	}
	go c.run()
	return c, nil
}

// drainTime bounds how long Stop waits for packets that the kernel has counted and not
// handed over.
const drainTime = 2 * time.Second

// run moves packets from the ring to the file until it is told to stop and has all that
// the kernel captured up to then. It goes on reading after the file failed, so that
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
