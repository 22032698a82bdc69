// Package sessions follows the starts and ends of translated connections by eBPF programs on two
// tracepoints, without a listener to the events of the connection tracker.
package sessions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v2" -type session -target bpfel sessions sessions.bpf.c

// Options say what is followed.
type Options struct {
	// Netns is the namespace, nil is natkit's own.
	Netns *netns.Handle
	// EndsAlone leaves out the starts: each end has the time of its start.
	EndsAlone bool
	// Connections is for how many connections at one time the start is kept; of those beyond, the ones that began
	// first have ends without it. 0 is a default.
	Connections uint32
	// ring is the size of the ring in tests; 0 is that of the program. clock reads when the monotonic clock was 0, in tests.
	ring  uint32
	clock func() (time.Time, error)
}

// Event is a start or an end.
type Event struct {
	Entry conntrack.Entry
	At    time.Time
	// Started is zero where the start was not seen: it was before Start, or so many connections ago that there was no
	// room to keep it.
	Started time.Time
	End     bool
}

// Lost are events that found no room between the kernel and their reader.
type Lost struct{ Starts, Ends uint64 }

// Tracer follows connections until Close.
type Tracer struct {
	objects sessionsObjects
	links   []link.Link
	reader  *ringbuf.Reader
	record  ringbuf.Record
	clock   *bpf.Clock
	lost    Lost
}

// usualConnections is some 20 MB of kernel memory.
const usualConnections = 1 << 18

// freeing are the functions of the tracker that give an entry back: nf_conntrack_free, or those which a compiler may
// have made it a part of (net/netfilter/nf_conntrack_core.c).
var freeing = [...]string{"nf_conntrack_free", "nf_ct_destroy", "destroy_conntrack"}

// Start needs CAP_BPF and CAP_PERFMON or CAP_SYS_ADMIN, CAP_SYSLOG for the addresses of the kernel's functions,
// and Linux 5.8 with BTF, of a module nf_conntrack too.
func Start(o Options) (*Tracer, error) {
	t := &Tracer{}
	err := bpf.CheckPrivilege("to attach programs to tracepoints")
	if err == nil {
		err = t.start(o)
	}
	if err != nil {
		return nil, fmt.Errorf("follow connections by tracepoints: %w", errors.Join(err, t.Close()))
	}
	return t, nil
}

func (t *Tracer) start(o Options) error {
	if err := features.HaveMapType(ebpf.RingBuf); err != nil {
		return fmt.Errorf("needs the ring buffer of Linux 5.8: %w", err)
	}
	inode, err := netns.InodeOf(o.Netns)
	if err != nil {
		return err
	}
	places, err := freeingPlaces()
	if err != nil {
		return err
	}
	spec, err := loadSessions()
	if err != nil {
		return err
	}
	spec.Maps[sessionsMapStarted].MaxEntries = usualConnections
	if o.Connections > 0 {
		spec.Maps[sessionsMapStarted].MaxEntries = o.Connections
	}
	ring := spec.Maps[sessionsMapEvents]
	if o.ring > 0 {
		ring.MaxEntries = o.ring
	}
	if err := bpf.Prepare(spec, map[string]any{
		sessionsVarOnlyNetns: uint32(inode), sessionsVarStarts: !o.EndsAlone, sessionsVarWakeAt: uint64(ring.MaxEntries / 4),
		sessionsVarFreeFirst: places[0].first, sessionsVarFreeBehind: places[0].behind,
		sessionsVarDestroyFirst: places[1].first, sessionsVarDestroyBehind: places[1].behind,
	}); err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&t.objects, nil); err != nil {
		return fmt.Errorf("load the eBPF programs (needs Linux 5.8 with CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	return t.attach(o.clock)
}

func (t *Tracer) attach(clock func() (time.Time, error)) (err error) {
	if t.reader, err = ringbuf.NewReader(t.objects.Events); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	if t.clock, err = bpf.NewClock(clock); err != nil {
		return err
	}
	// Ends first: an entry whose end is not seen would have its start kept for the next one at its address.
	for _, at := range []struct {
		name    string
		program *ebpf.Program
	}{{"kmem_cache_free", t.objects.Freed}, {"net_dev_start_xmit", t.objects.Leaves}} {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: at.name, Program: at.program})
		if err != nil {
			return fmt.Errorf("attach to the tracepoint %s: %w", at.name, err)
		}
		t.links = append(t.links, l)
	}
	return nil
}

// place is where a function is; both are 0 of one that there is not.
type place struct{ first, behind uint64 }

var errNoPlace = errors.New("the kernel has none of the functions that free entries of the connection tracker (nf_conntrack_free): it has no connection tracker, or its module nf_conntrack is not loaded")

// freeingPlaces finds where entries are freed.
func freeingPlaces() (places [2]place, err error) {
	symbols, err := bpf.ReadSymbols("/proc")
	if err != nil {
		return places, err
	}
	n := 0
	for f := range symbols.All() {
		name, _, _ := strings.Cut(f.Name, ".")
		for _, freeing := range freeing {
			if name == freeing && f.Name != name+".cold" && n < len(places) {
				places[n] = place{f.Addr, symbols.End(f.Addr)}
				n++
			}
		}
	}
	if n == 0 {
		return places, errNoPlace
	}
	return places, nil
}

// FollowClock returns by how much the wall clock was set since the last call. Events that are read afterwards have the
// time of the wall clock as it is now, their starts included.
func (t *Tracer) FollowClock() (step time.Duration, err error) { return t.clock.Follow() }

// Read calls each for what there is, and waits for more until the deadline: the events of a fraction of a second
// cost the kernel one wake-up, or none. The event is filled anew each time. What was lost comes with the end.
func (t *Tracer) Read(until time.Time, each func(*Event)) (lost Lost, err error) {
	t.reader.SetDeadline(until)
	var e Event
	for {
		switch err := t.reader.ReadInto(&t.record); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return t.newlyLost()
		case err != nil:
			return lost, fmt.Errorf("read starts and ends of connections: %w", err)
		}
		if len(t.record.RawSample) < int(unsafe.Sizeof(sessionsSession{})) {
			continue
		}
		t.decode((*sessionsSession)(unsafe.Pointer(&t.record.RawSample[0])), &e)
		each(&e)
		if t.record.Remaining == 0 && !time.Now().Before(until) {
			return t.newlyLost()
		}
	}
}

func (t *Tracer) newlyLost() (lost Lost, err error) {
	var now [2]uint64
	for i := range now {
		var cpus []uint64
		if err := t.objects.Lost.Lookup(uint32(i), &cpus); err != nil {
			return lost, fmt.Errorf("read how many events were lost: %w", err)
		}
		for _, n := range cpus {
			now[i] += n
		}
	}
	lost = Lost{now[0] - t.lost.Starts, now[1] - t.lost.Ends}
	t.lost = Lost{now[0], now[1]}
	return lost, nil
}

func (t *Tracer) decode(s *sessionsSession, e *Event) {
	etherType := uint16(unix.ETH_P_IP)
	if s.Family == unix.AF_INET6 {
		etherType = unix.ETH_P_IPV6
	}
	e.End, e.At, e.Started = s.Kind == endKind, t.clock.Time(s.TimeNs), time.Time{}
	if s.StartedNs != 0 {
		e.Started = t.clock.Time(s.StartedNs)
	}
	e.Entry = conntrack.Entry{
		Family: uint8(s.Family), Status: conntrack.Status(s.Status), Zone: s.Zone, ReplyZone: s.ReplyZone,
		Orig:  conntrack.Tuple{Src: bpf.Address(etherType, s.Src), Dst: bpf.Address(etherType, s.Dst), Proto: s.Protocol},
		Reply: conntrack.Tuple{Src: bpf.Address(etherType, s.ReplySrc), Dst: bpf.Address(etherType, s.ReplyDst), Proto: s.Protocol},
	}
	if nat.IsICMP(s.Protocol) { // its identifier is where others have the source port; type and code where they have the other
		e.Entry.Orig.ICMPID, e.Entry.Reply.ICMPID = port(s.Sport), port(s.ReplySport)
		e.Entry.Orig.ICMPType, e.Entry.Orig.ICMPCode = icmp(s.Dport)
		e.Entry.Reply.ICMPType, e.Entry.Reply.ICMPCode = icmp(s.ReplyDport)
		return
	}
	e.Entry.Orig.SrcPort, e.Entry.Orig.DstPort = port(s.Sport), port(s.Dport)
	e.Entry.Reply.SrcPort, e.Entry.Reply.DstPort = port(s.ReplySport), port(s.ReplyDport)
}

// endKind is SESSION_END of the program.
const endKind = 2

// port is a number in network byte order.
func port(n uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], n)
	return binary.BigEndian.Uint16(b[:])
}

// icmp is what stands in memory: type, then code.
func icmp(n uint16) (kind, code uint8) {
	p := port(n)
	return uint8(p >> 8), uint8(p)
}

// Close detaches the programs. What they had seen until then and nothing has read is gone.
func (t *Tracer) Close() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	t.links = nil
	if t.reader != nil {
		errs = append(errs, t.reader.Close())
		t.reader = nil
	}
	return errors.Join(append(errs, t.objects.Close())...)
}
