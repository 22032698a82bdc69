package path

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/snapshot"
)

// Times of the kernel's monotonic clock, in nanoseconds.
const (
	// settle is how long a packet without an sk_buff waits for what is reported late:
	// what the function returned that freed it.
	settle = 50 * uint64(time.Millisecond)
	// idle is how long a packet is waited for that nothing happens to: it lies in a
	// queue or in a socket.
	idle = uint64(time.Second)
)

// assembler makes the ways of packets from events.
type assembler struct {
	place   func(addr uint64) bpf.Symbol
	reasons *bpf.Reasons
	// wall is the time of day at which the monotonic clock was 0.
	wall time.Time
	// limit is the number of packets to follow: more may be begun at once.
	limit int
	open  map[uint64]*following
	begun int
	ended map[uint64]bool
}

func newAssembler(place func(uint64) bpf.Symbol, table *bpf.Reasons, wall time.Time, limit int) *assembler {
	return &assembler{place: place, reasons: table, wall: wall, limit: limit,
		open: map[uint64]*following{}, ended: map[uint64]bool{}}
}

// maxSteps bounds the memory that one packet takes.
const maxSteps = 10000

// following is a packet on its way.
type following struct {
	number int
	events []pathEvent
	alive  map[uint64]bool
	last   uint64
}

// add takes an event. Those of one processor come in order.
func (a *assembler) add(e *pathEvent) {
	f := a.open[e.Packet]
	if f == nil {
		if a.ended[e.Packet] || a.begun == a.limit {
			return
		}
		a.begun++
		f = &following{number: a.begun, alive: map[uint64]bool{}}
		a.open[e.Packet] = f
	}
	if len(f.events) < maxSteps {
		f.events = append(f.events, *e)
	}
	f.last = max(f.last, e.Time)
	switch e.Kind {
	case pathKindDROPPED, pathKindCONSUMED, pathKindFREED:
		delete(f.alive, e.Skb)
	case pathKindSTEP, pathKindCLONE:
		f.alive[e.Skb] = true
	}
}

// ready gives those packets that are through, or idle; all of them where now is 0.
func (a *assembler) ready(now uint64) []*snapshot.PacketPath {
	var done []*snapshot.PacketPath
	for id, f := range a.open {
		age := uint64(0)
		if now > f.last {
			age = now - f.last
		}
		if now != 0 && age < idle && (len(f.alive) > 0 || age < settle) {
			continue
		}
		delete(a.open, id)
		a.ended[id] = true
		done = append(done, a.path(f))
	}
	slices.SortFunc(done, func(x, y *snapshot.PacketPath) int { return cmp.Compare(x.Number, y.Number) })
	return done
}

// finished: no more packets will come.
func (a *assembler) finished() bool { return a.begun == a.limit && len(a.open) == 0 }

// path makes steps of a packet's events.
func (a *assembler) path(f *following) *snapshot.PacketPath {
	slices.SortStableFunc(f.events, func(x, y pathEvent) int { return cmp.Compare(x.Time, y.Time) })
	p := &snapshot.PacketPath{Number: f.number, Incomplete: len(f.events) == maxSteps}
	w := way{a: a, p: p, buffers: map[uint64]int{}, first: f.events[0].Time}
	p.Time = a.wall.Add(time.Duration(w.first))
	for i := range f.events {
		w.add(&f.events[i])
	}
	p.Verdict = verdict(p.Steps, len(f.alive) > 0)
	return p
}

// way is a packet whose steps are being made.
type way struct {
	a     *assembler
	p     *snapshot.PacketPath
	first uint64
	// buffers numbers the sk_buffs that live, by address; used is the last number.
	buffers map[uint64]int
	used    int
	nesting nesting
	// calls are the places in Steps of calls that may yet return, by function.
	calls []int
}

func (w *way) add(e *pathEvent) {
	if e.Kind == pathKindRESULT && (w.returned(e) || w.buffers[e.Skb] == 0) {
		return // what was freed before may be another packet's by now
	}
	s := w.describe(e)
	switch e.Kind {
	case pathKindSTEP:
		s.Event, s.Depth = snapshot.StepCall, w.nesting.depth(e.Cpu, e.Stack)
		w.calls = append(w.calls, len(w.p.Steps))
	case pathKindCLONE:
		s.Event, s.Depth = snapshot.StepClone, w.nesting.depth(e.Cpu, e.Stack)
	case pathKindRESULT:
		s.Event, s.Depth = snapshot.StepReturn, w.nesting.here()
		s.Returned, s.Hook = result(s.Function, e)
	default:
		w.end(e, &s)
	}
	w.p.Steps = append(w.p.Steps, s)
}

// end is that of an sk_buff; its address may become another's.
func (w *way) end(e *pathEvent, s *snapshot.PathStep) {
	delete(w.buffers, e.Skb)
	s.Depth = w.nesting.here()
	switch e.Kind {
	case pathKindDROPPED:
		s.Event = snapshot.StepDropped
		if e.Value >= 0 {
			s.Reason = w.a.reasons.Name(uint32(e.Value))
		}
	case pathKindCONSUMED:
		s.Event = snapshot.StepConsumed
	case pathKindFREED:
		s.Event = snapshot.StepFreed
	}
}

// returned notes what a call returned, the last one of its function that has not
// returned; false where that was not seen.
func (w *way) returned(e *pathEvent) bool {
	function := w.a.place(e.At).Name
	for i, at := range slices.Backward(w.calls) {
		s := &w.p.Steps[at]
		if s.Function == function {
			s.Returned, s.Hook = result(function, e)
			w.calls = slices.Delete(w.calls, i, i+1)
			return true
		}
	}
	return false
}

func result(function string, e *pathEvent) (returned, hook string) {
	if e.HasHook != 0 {
		hook = hookName(e.Pf, e.Hook)
	}
	return verdictOf(function, e.Value), hook
}

// describe fills in what all events have.
func (w *way) describe(e *pathEvent) snapshot.PathStep {
	s := snapshot.PathStep{
		Nanoseconds: e.Time - w.first, CPU: int(e.Cpu), Buffer: w.buffer(e.Skb),
		Netns: uint64(e.Netns), Interface: deviceName(e.Device), Mark: e.Mark, Length: int(e.Length),
		PathAddresses: addresses(e),
	}
	if e.At != 0 {
		symbol := w.a.place(e.At)
		s.Function, s.Module, s.Offset = symbol.Name, symbol.Module, symbol.Offset
	}
	if e.Kind == pathKindSTEP || e.Kind == pathKindCLONE || e.Kind == pathKindRESULT {
		s.Offset = 0 // a probe lies a few bytes behind the start
	}
	return s
}

func (w *way) buffer(skb uint64) int {
	if n := w.buffers[skb]; n > 0 {
		return n
	}
	w.used++
	w.buffers[skb] = w.used
	return w.used
}

// Summary is what a run saw.
type Summary struct {
	Packets int
	// Lost are the events for which the ring had no room: steps are missing.
	Lost uint64
	// Missed are calls, of all packets, that no program ran for, as another ran on
	// their processor: available since 6.7, for kprobe.multi.
	Missed uint64
}

// pollInterval is how often packets are checked for completion.
const pollInterval = 20 * time.Millisecond

// Follow hands each packet to one function when it is through, until all have been
// seen or ctx ends; those on their way then are handed over as they are.
func (t *Tracer) Follow(ctx context.Context, to func(*snapshot.PacketPath) error) (Summary, error) {
	var sum Summary
	ring, err := ringbuf.NewReader(t.coll.Maps[pathMapEvents])
	if err != nil {
		return sum, fmt.Errorf("open the ring of events: %w", err)
	}
	defer ring.Close()
	_, zero, err := bpf.Monotonic()
	if err != nil {
		return sum, err
	}
	a := newAssembler(t.symbols.Place, t.types.reasons(), zero, t.packets)
	hand := func(now uint64) error {
		sum.Lost, err = t.lost()
		for _, p := range a.ready(now) {
			p.Incomplete = p.Incomplete || sum.Lost > 0
			sum.Packets++
			err = errors.Join(err, to(p))
		}
		return err
	}
	for ctx.Err() == nil && !a.finished() {
		if err := take(ring, a); err != nil {
			return sum, err
		}
		now, _, err := bpf.Monotonic()
		if err != nil {
			return sum, err
		}
		if err := hand(now); err != nil {
			return sum, err
		}
	}
	sum.Missed = t.missed()
	return sum, hand(0)
}

// missed is 0 where the kernel does not report it.
func (t *Tracer) missed() (n uint64) {
	for _, l := range t.att.links {
		if info, err := l.Info(); err == nil {
			if multi := info.KprobeMulti(); multi != nil {
				n += multi.Missed
			}
		}
	}
	return n
}

// take takes the events that come within one pollInterval, but no more than 4,096, so that packets
// are handed over under load too.
func take(ring *ringbuf.Reader, a *assembler) error {
	ring.SetDeadline(time.Now().Add(pollInterval))
	var record ringbuf.Record
	for range 4096 {
		err := ring.ReadInto(&record)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("read an event: %w", err)
		}
		var e pathEvent
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &e); err != nil {
			return fmt.Errorf("decode an event of %d bytes: %w", len(record.RawSample), err)
		}
		a.add(&e)
	}
	return nil
}

func (t *Tracer) lost() (uint64, error) {
	var n uint64
	if err := t.coll.Variables[pathVarLost].Get(&n); err != nil {
		return 0, fmt.Errorf("read the number of lost events: %w", err)
	}
	return n, nil
}

// stackSize is that of a kernel stack, and of those for interrupts, at most: 16 KiB
// (THREAD_SIZE, IRQ_STACK_SIZE), 32 with KASAN.
const stackSize = 32 << 10

// nesting derives from the stack pointer at its start which functions called a function:
// those that began higher on the same stack and have not been seen to be gone.
type nesting struct {
	cpu   uint32
	began []uint64 // stack pointers of functions that have not returned, falling
}

// depth takes a function's start and returns how many enclose it.
func (n *nesting) depth(cpu uint32, stack uint64) int {
	if cpu != n.cpu || len(n.began) > 0 && distance(n.began[0], stack) > stackSize {
		n.cpu, n.began = cpu, n.began[:0]
	}
	// A function that began at or below this one's place has returned.
	for len(n.began) > 0 && n.began[len(n.began)-1] <= stack {
		n.began = n.began[:len(n.began)-1]
	}
	n.began = append(n.began, stack)
	return len(n.began) - 1
}

// here is the depth of what happens in the last function.
func (n *nesting) here() int { return len(n.began) }

func distance(a, b uint64) uint64 {
	if a > b {
		return a - b
	}
	return b - a
}
