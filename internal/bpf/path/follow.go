package path

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/snapshot"
)

// Summary is what a run saw.
type Summary struct {
	Packets int
	// Lost are the events for which the ring had no room: steps are missing.
	Lost uint64
	// Missed are calls, of all packets, that no program ran for, as another ran on
	// their processor: kernels tell it since 6.7, for kprobe.multi.
	Missed uint64
}

// look is how often packets are asked whether they are through.
const look = 20 * time.Millisecond

// Follow hands each packet to one function when it is through, until all have been
// seen or ctx ends; those on their way then are handed over as they are.
func (t *Tracer) Follow(ctx context.Context, to func(*snapshot.PacketPath) error) (Summary, error) {
	var sum Summary
	ring, err := ringbuf.NewReader(t.coll.Maps[pathMapEvents])
	if err != nil {
		return sum, fmt.Errorf("open the ring of events: %w", err)
	}
	defer ring.Close()
	now, err := monotonic()
	if err != nil {
		return sum, err
	}
	a := newAssembler(t.symbols.Lookup, t.types.reasons(), time.Now().Add(-time.Duration(now)), t.packets)
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
		if now, err = monotonic(); err != nil {
			return sum, err
		}
		if err := hand(now); err != nil {
			return sum, err
		}
	}
	sum.Missed = t.missed()
	return sum, hand(0)
}

// missed is 0 where the kernel does not tell.
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

// take takes the events that come within one look, at most so many that packets
// are handed over under load too.
func take(ring *ringbuf.Reader, a *assembler) error {
	ring.SetDeadline(time.Now().Add(look))
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

// monotonic is the clock that bpf_ktime_get_ns reads, in nanoseconds.
func monotonic() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return uint64(ts.Nano()), nil
}
