// Package capture hands on the packets of a network namespace that filters keep, by eBPF programs: unlike
// a packet socket that sees what is sent, they have the kernel clone no packet.
package capture

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	netbpf "golang.org/x/net/bpf"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/netns"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -type packet -target bpfel capture capture.bpf.c

// subprogram is the function of capture.bpf.c that has the filters' place.
const subprogram = "filters"

// Offsets in struct packet of capture.bpf.c.
const (
	timeAt       = unsafe.Offsetof(capturePacket{}.TimeNs)
	ifindexAt    = unsafe.Offsetof(capturePacket{}.Ifindex)
	keptAt       = unsafe.Offsetof(capturePacket{}.Length)
	typeAt       = unsafe.Offsetof(capturePacket{}.Type)
	feedsAt      = unsafe.Offsetof(capturePacket{}.Feeds)
	dataAt       = unsafe.Offsetof(capturePacket{}.Bytes)
	generationAt = unsafe.Offsetof(capturePacket{}.Generation)
	packetBytes  = int(unsafe.Sizeof(capturePacket{}))
)

// The words of enum state.
const (
	stateLost = uint32(iota)
	stateUnreadable
)

// Packet is one that a filter kept; Data holds until the next one.
type Packet struct {
	At        time.Time
	Interface int
	// Type is PACKET_OUTGOING for one that was sent, PACKET_HOST, PACKET_OTHERHOST, … for others.
	Type uint8
	// Feeds has a bit for each filter that kept it.
	Feeds uint8
	// Data begins with the IP header.
	Data []byte
}

// Capture is a number of filters at work.
type Capture struct {
	inode   uint32
	maps    map[string]*ebpf.Map
	reader  *ringbuf.Reader
	record  ringbuf.Record
	filters [][]netbpf.RawInstruction
	masks   [mostFilters * Masks]uint32
	// received: the filters want nothing that leaves.
	received bool
	programs *programs
	// generation is that of the newest programs, which are at work since then: in nanoseconds of CLOCK_MONOTONIC.
	generation uint32
	since      uint64
	resting    bool
	// ability is the number of that of this kernel, newest of the first to try.
	ability, newest int
	types           *btf.Cache
	// interfaces have a program for what comes in each; nil where that is traced.
	interfaces *interfaces
	// zero is what CLOCK_MONOTONIC counts from.
	zero time.Time
}

// Options specify what to capture.
type Options struct {
	// Netns is the namespace; nil is the one natkit runs in.
	Netns *netns.Handle
	// Traced leaves interfaces without programs.
	Traced bool
	// Types are the kernel's, where they are read already.
	Types *btf.Cache
	// Old does what kernels before Linux 6.11 can do, for tests.
	Old bool
}

// Open makes ready to capture packets, from the first Install on. It needs Linux 5.12 with BTF, CAP_BPF and
// CAP_PERFMON, and for programs on interfaces Linux 6.6 and CAP_NET_ADMIN.
func Open(o Options) (c *Capture, err error) {
	if err := bpf.CheckPrivilege("for packets at tracepoints"); err != nil {
		return nil, fmt.Errorf("capture packets: %w", err)
	}
	c = &Capture{maps: map[string]*ebpf.Map{}, types: cmp.Or(o.Types, btf.NewCache())}
	if o.Old {
		c.newest = len(abilities) - 1
	}
	c.ability = c.newest
	defer func() {
		if err != nil {
			err = fmt.Errorf("capture packets: %w", errors.Join(err, c.Close()))
		}
	}()
	inode, err := netns.InodeOf(o.Netns)
	if err != nil {
		return c, err
	}
	c.inode = uint32(inode)
	if _, c.zero, err = bpf.Monotonic(); err != nil {
		return c, err
	}
	if !o.Traced {
		if c.interfaces, err = watchInterfaces(o.Netns); err != nil {
			return c, err
		}
	}
	return c, c.makeMaps()
}

// makeMaps makes those that all programs share.
func (c *Capture) makeMaps() error {
	s, err := loadCapture()
	if err != nil {
		return err
	}
	if err := bpf.Prepare(s, nil); err != nil {
		return err
	}
	for _, name := range []string{captureMapPackets, captureMapState, captureMapMasks} {
		m, err := ebpf.NewMap(s.Maps[name])
		if err != nil {
			return fmt.Errorf("make eBPF map %s: %w (needs Linux 5.8)", name, err)
		}
		c.maps[name] = m
	}
	if c.reader, err = ringbuf.NewReader(c.maps[captureMapPackets]); err != nil {
		return fmt.Errorf("read packets: %w", err)
	}
	c.reader.SetDeadline(time.Unix(1, 0)) // it never waits
	return nil
}

// Install replaces the filters, and begins to capture if it is the first. A packet that the filter number n keeps
// has bit n in Feeds; where they want received packets alone, those that leave cost nothing. Upon an error the
// former filters may see less than before.
func (c *Capture) Install(filters [][]netbpf.RawInstruction, received bool) error {
	former, formerReceived := c.filters, c.received
	c.filters, c.received = filters, received
	c.generation++
	next, err := c.load()
	if err == nil && !c.resting {
		err = c.attach(next)
	}
	if err == nil {
		c.programs.close()
		c.programs = next
		return nil
	}
	next.close()
	c.filters, c.received = former, formerReceived
	c.generation-- // packets of the former programs count
	if c.interfaces != nil {
		// The kernel has no programs for interfaces, they are not allowed, or there are too many.
		c.interfaces.close()
		c.interfaces, c.ability = nil, c.newest
		return c.Install(filters, received)
	}
	return fmt.Errorf("capture packets: %w", err)
}

// Mask sets what a filter loads by ExtMask, from now on.
func (c *Capture) Mask(filter int, masks [Masks]uint32) error {
	copy(c.masks[filter*Masks:], masks[:])
	if err := c.maps[captureMapMasks].Update(uint32(0), c.masks, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("capture packets: %w", err)
	}
	return nil
}

// attach has programs see packets, and their packets count from now on.
func (c *Capture) attach(p *programs) (err error) {
	if c.interfaces != nil {
		err = c.interfaces.install(p.came)
	}
	if err == nil {
		err = p.attach()
	}
	if err == nil {
		c.since, _, err = bpf.Monotonic()
	}
	return err
}

// Rest sees no packets, and costs nothing, until Resume.
func (c *Capture) Rest() {
	c.resting = true
	c.programs.detach()
	if c.interfaces != nil {
		c.interfaces.detach()
	}
}

// Resume ends a Rest, if there is one.
func (c *Capture) Resume() error {
	if !c.resting {
		return nil
	}
	c.resting = false
	if err := c.attach(c.programs); err != nil {
		return c.Install(c.filters, c.received) // there may be too many interfaces by now
	}
	return nil
}

// programs are those of one set of filters. came is for interfaces, traced in its place.
type programs struct {
	left, came, traced *ebpf.Program
	links              []link.Link
}

// abilities of kernels, the newest first, for the switches of capture.bpf.c.
var abilities = []struct{ direct, allParts bool }{{true, true}, {false, true}, {}}

// load loads programs: the best that the kernel takes.
func (c *Capture) load() (p *programs, err error) {
	for c.ability < len(abilities) {
		if p, err = c.loadAs(abilities[c.ability].direct, abilities[c.ability].allParts); err == nil {
			return p, nil
		}
		c.ability++
	}
	c.ability = len(abilities) - 1
	return p, err
}

func (c *Capture) loadAs(direct, allParts bool) (*programs, error) {
	p := &programs{}
	s, err := loadCapture()
	if err != nil {
		return p, err
	}
	delete(s.Programs, map[bool]string{true: captureProgCame, false: captureProgTraced}[c.interfaces == nil])
	if c.received {
		delete(s.Programs, captureProgLeft)
	}
	err = bpf.Prepare(s, map[string]any{captureVarGeneration: c.generation, captureVarOnlyNetns: c.inode,
		captureVarDirect: direct, captureVarAllParts: allParts})
	if err != nil {
		return p, err
	}
	body, err := convert(c.filters)
	if err != nil {
		return p, err
	}
	for _, program := range s.Programs {
		if err := bpf.Replace(program, subprogram, body); err != nil {
			return p, err
		}
	}
	all, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: maps.Clone(c.maps), Cache: c.types})
	if err != nil {
		return p, fmt.Errorf("load the eBPF programs that capture packets: %w (needs Linux 5.12 with CONFIG_DEBUG_INFO_BTF)", err)
	}
	p.left, p.came, p.traced = all.DetachProgram(captureProgLeft), all.DetachProgram(captureProgCame), all.DetachProgram(captureProgTraced)
	all.Close()
	return p, nil
}

// attach attaches those at tracepoints.
func (p *programs) attach() error {
	for _, program := range []*ebpf.Program{p.left, p.traced} {
		if program == nil {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return fmt.Errorf("attach %v: %w", program, err)
		}
		p.links = append(p.links, l)
	}
	return nil
}

func (p *programs) detach() {
	for _, l := range p.links {
		l.Close()
	}
	p.links = nil
}

func (p *programs) close() {
	if p == nil {
		return
	}
	p.detach()
	for _, program := range []*ebpf.Program{p.left, p.came, p.traced} {
		program.Close()
	}
}

// Read calls fn for waiting packets, at most some, and returns their number.
func (c *Capture) Read(most int, fn func(*Packet)) (n int, err error) {
	if c.interfaces != nil && !c.resting && c.interfaces.changed() && c.interfaces.attach() != nil {
		if err := c.Install(c.filters, c.received); err != nil { // without them
			return 0, err
		}
	}
	for ; n < most; n++ {
		err := c.reader.ReadInto(&c.record)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return n, nil
		case err != nil:
			return n, fmt.Errorf("read captured packets: %w", err)
		case len(c.record.RawSample) < packetBytes:
			return n, fmt.Errorf("read captured packets: a record of %d bytes", len(c.record.RawSample))
		}
		b := c.record.RawSample
		if !c.valid(binary.NativeEndian.Uint32(b[generationAt:]), binary.NativeEndian.Uint64(b[timeAt:])) {
			continue
		}
		fn(&Packet{
			At: c.zero.Add(time.Duration(binary.NativeEndian.Uint64(b[timeAt:]))), Interface: int(binary.NativeEndian.Uint32(b[ifindexAt:])),
			Type: b[typeAt], Feeds: b[feedsAt], Data: b[dataAt:packetBytes][:min(binary.NativeEndian.Uint16(b[keptAt:]), uint16(len(capturePacket{}.Bytes)))],
		})
	}
	return n, nil
}

// valid reports whether programs were those at work.
func (c *Capture) valid(generation uint32, at uint64) bool {
	if generation == c.generation {
		return at >= c.since
	}
	return at < c.since
}

// Lost is how many packets found no room.
func (c *Capture) Lost() uint64 { return c.count(stateLost) }

// Unreadable is how many packets had bytes where the programs cannot read them: before Linux 6.11 those of some
// drivers. Not to have them misleads.
func (c *Capture) Unreadable() uint64 { return c.count(stateUnreadable) }

func (c *Capture) count(what uint32) (n uint64) {
	_ = c.maps[captureMapState].Lookup(what, &n)
	return n
}

// Close ends the capture.
func (c *Capture) Close() error {
	c.programs.close()
	c.interfaces.close()
	var err error
	if c.reader != nil {
		err = c.reader.Close()
	}
	for _, m := range c.maps {
		err = errors.Join(err, m.Close())
	}
	return err
}
