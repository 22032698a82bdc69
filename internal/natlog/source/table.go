//go:build linux

package source

import (
	"context"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Defaults of readings.
const (
	UsualEvery       = 5 * time.Second
	usualShare       = 0.05
	UsualConnections = 1 << 18
	mostFollowed     = 1 << 20
	usualLastWait    = 5 * time.Second
)

// table is Table. It follows the entries that are translated from one reading to the next.
type table struct {
	writer
	o    Options
	seed maphash.Seed
	// live are the entries of the last reading, by a hash of what tells them apart.
	live map[uint64]followed
	// since is when the first reading began.
	since time.Time
	// round is the number of the reading, before is when the last one began.
	round  uint32
	before time.Time
	// shortest is the least time that the kernel keeps an entry after its last packet.
	shortest time.Duration
	// dropped is the tracker's count of entries that it removed because the table was full.
	dropped uint64
	// unfollowed are entries of a reading for which there was no room, toldUnfollowed how many of one were reported so far.
	unfollowed, toldUnfollowed uint64
	// whole: the last reading had all that was there, and all of it is followed. span is the time since the one before it.
	whole bool
	span  time.Duration
	// begun: the list of what was there at the beginning was handed on, or as much of it as there was room for.
	begun   bool
	slow    bool
	records []natlog.Record
	// clock is followed, set is by how much it was set since the first reading.
	clock *bpf.Clock
	set   time.Duration
}

// followed is an entry.
type followed struct {
	record natlog.Record
	round  uint32
	set    time.Duration
}

func openTable(o Options) (*table, error) { return openTableBy(nil, o) }

// openTableBy is openTable with a clock, nil for the host's.
func openTableBy(clock func() (time.Time, error), o Options) (*table, error) {
	if o.Every <= 0 {
		o.Every = UsualEvery
	}
	if o.Share <= 0 {
		o.Share = usualShare
	}
	if o.Connections <= 0 {
		o.Connections = mostFollowed
	}
	if o.lastWait <= 0 {
		o.lastWait = usualLastWait
	}
	t := &table{writer: newWriter(&o), o: o, seed: maphash.MakeSeed(), live: map[uint64]followed{}, shortest: shortestTimeout(o.Netns)}
	if t.o.Note == nil {
		t.o.Note = func(string) {}
	}
	var err error
	if t.clock, err = bpf.NewClock(clock); err != nil {
		return nil, err
	}
	// The first reading is what is there already, of which it is not known when it began.
	t.since = time.Now()
	if err := t.read(context.Background(), t.since); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *table) About() string {
	return fmt.Sprintf("differences of the connection table, read every %s or as seldom as %g %% of a CPU allows: not connections that come and go between two readings; an entry stays for %s at least after its last packet, unless the table is full or it is deleted",
		seconds(t.o.Every), 100*t.o.Share, seconds(t.shortest))
}

func (t *table) Since() time.Time { return t.since }

func (t *table) Every() time.Duration { return t.o.Every }

func (*table) Close() error { return nil }

func (t *table) Run(ctx context.Context, put func([]natlog.Record)) error {
	t.put = put
	t.hand(t.records) // reports entries beyond the limit
	t.last = time.Now()
	if !t.o.EndsAlone && !t.o.NoPresent {
		if err := t.present(ctx, &Listing{Put: t.hand, Room: t.o.Room}); err != nil && ctx.Err() == nil {
			return err
		}
	}
	t.begun = true
	patience, cancel := outlasting(ctx, t.o.lastWait)
	defer cancel()
	wait := t.o.Every
	for {
		if t.pause(ctx, wait); ctx.Err() != nil {
			_, err := t.once(context.WithoutCancel(ctx), patience) // what is there is still read
			return err
		}
		cost, err := t.once(ctx, patience)
		if err != nil && ctx.Err() == nil {
			return err
		}
		wait = max(t.o.Every, time.Duration(float64(cost)/t.o.Share))
		if slow := wait > t.shortest; slow != t.slow {
			if t.slow = slow; slow {
				t.o.Note(fmt.Sprintf("a reading of the connection table takes %s of CPU time: the next one is in %s, and connections whose entry stays for less can be missed (%s after the last packet)",
					cost.Round(time.Millisecond), seconds(wait), seconds(t.shortest)))
			}
		}
	}
}

// pause waits, and lists meanwhile what the last reading had where a file wants it.
func (t *table) pause(ctx context.Context, wait time.Duration) {
	for until := time.Now().Add(wait); ; {
		if to := t.o.listing(); to != nil {
			_ = t.present(ctx, to) // its only error is that of ctx
		}
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return
		}
		if t.o.List != nil {
			left = min(left, readEvery)
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// outlasting returns a context that ends so long after ctx.
func outlasting(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return longer, cancel
}

// once reads the table until ctx ends, hands on the differences, for which it waits for outputs until patience ends, and returns
// what that cost.
func (t *table) once(ctx, patience context.Context) (time.Duration, error) {
	began := cpuTime()
	if err := t.read(ctx, time.Now()); err != nil {
		return 0, err
	}
	for len(t.records) > 0 {
		n := min(len(t.records), batch)
		// Differences can wait for slow outputs: what happens meanwhile is in the next reading. After that they are handed on
		// all the same, and outputs count what they lose.
		_ = await(patience, t.o.Room, n, sleep)
		t.hand(t.records[:n])
		t.records = t.records[n:]
	}
	t.alive(t.before, t.span)
	return cpuTime() - began, nil
}

// read compares the table with the last reading.
func (t *table) read(ctx context.Context, now time.Time) error {
	t.round++
	t.records, t.unfollowed = t.records[:0], 0
	within := time.Duration(0)
	if !t.before.IsZero() {
		within = now.Sub(t.before)
	}
	step, err := t.clock.Follow()
	if err != nil {
		return err
	}
	t.set += step
	t.o.noteStep(step)
	see := func(e *conntrack.Entry) error {
		t.see(e, now, within)
		return nil
	}
	var result dump.Result
	if t.before.IsZero() { // what it lacks would look like a start in the second
		result, err = dump.EachWhole(ctx, t.o.Netns, translated, func() {}, see)
		if result.Interrupted {
			t.records = append(t.records, natlog.Record{Kind: natlog.Lost, Time: now, Count: 1, Reason: reasonResized})
		}
	} else {
		result, err = dump.Each(ctx, t.o.Netns, translated, see)
	}
	if err != nil {
		return err
	}
	whole := result.Complete && !result.Interrupted
	t.whole, t.span = whole && t.unfollowed == 0, 0
	if whole {
		t.gone(now, within)
		t.span = within
	}
	if whole || t.before.IsZero() { // the next one spans the time since the last one that had all
		t.before = now
	}
	t.count(now)
	return nil
}

// key is a hash of what tells entries apart: the kernel's identifier and both directions.
func (t *table) key(e *conntrack.Entry) uint64 {
	return maphash.Comparable(t.seed, struct {
		id          uint32
		orig, reply conntrack.Tuple
	}{e.ID, e.Orig, e.Reply})
}

func (t *table) see(e *conntrack.Entry, now time.Time, within time.Duration) {
	key := t.key(e)
	f, known := t.live[key]
	if known {
		f.round = t.round
		t.live[key] = f
		return
	}
	if len(t.live) >= t.o.Connections {
		t.unfollowed++
		return
	}
	f = followed{natlog.Of(natlog.Start, e), t.round, t.set}
	f.record.Time = now
	switch {
	case e.Start != 0:
		f.record.Started = time.Unix(0, int64(e.Start))
		f.record.Time = f.record.Started
	case within > 0:
		f.record.Started, f.record.Within, f.record.StartedWithin = now, within, within
	}
	t.live[key] = f
	if within > 0 && !t.o.EndsAlone {
		f.record.StartedWithin = 0 // Within says it
		t.records = append(t.records, f.record)
	}
}

// gone are the entries that this reading did not have.
func (t *table) gone(now time.Time, within time.Duration) {
	for key, f := range t.live {
		if f.round == t.round {
			continue
		}
		f.record.Kind, f.record.Time, f.record.Ended, f.record.Within = natlog.End, now, now, within
		if !f.record.Started.IsZero() { // by the clock that the end is by
			f.record.Started = f.record.Started.Add(t.set - f.set)
		}
		t.records = append(t.records, f.record)
		delete(t.live, key)
	}
}

// Reasons of lost records.
const (
	reasonFull    = "the table was full: the kernel removed entries (early_drop), at most so many of which came and went between two readings"
	reasonTooMany = "more translated connections at one time than are followed"
)

// count says what may be missed.
func (t *table) count(now time.Time) {
	cpus, err := dump.Stats(t.o.Netns)
	if err == nil {
		var dropped uint64
		for _, cpu := range cpus {
			dropped += cpu["early_drop"]
		}
		if n := dropped - t.dropped; t.round > 1 && dropped > t.dropped {
			t.records = append(t.records, natlog.Record{Kind: natlog.Lost, Time: now, Count: n, Reason: reasonFull})
		}
		t.dropped = dropped
	}
	if n := t.unfollowed; n > t.toldUnfollowed {
		t.records = append(t.records, natlog.Record{Kind: natlog.Lost, Time: now, Count: n - t.toldUnfollowed, Reason: reasonTooMany})
		t.toldUnfollowed = n
	}
}

// usualShortest is the kernel's timeout of TCP connections that were reset, its shortest one.
const usualShortest = 10 * time.Second

// shortestTimeout reads the least of the timeouts; what cannot be read counts as the kernel's default.
func shortestTimeout(ns *netns.Handle) time.Duration {
	shortest := usualShortest
	_ = ns.Do(func() error {
		all, err := filepath.Glob("/proc/sys/net/netfilter/nf_conntrack_*timeout*")
		for _, name := range all {
			if strings.Contains(name, "frag6") || strings.Contains(name, "_sctp_") || strings.Contains(name, "_dccp_") {
				continue
			}
			text, err := os.ReadFile(name)
			n, numErr := strconv.Atoi(strings.TrimSpace(string(text)))
			if err == nil && numErr == nil && n >= 0 {
				shortest = min(shortest, time.Duration(n)*time.Second)
			}
		}
		return err
	})
	return shortest
}

// cpuTime is that of the process.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
