//go:build linux

package source

import (
	"context"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/natlog"
)

// present are the connections that are there when Trace, or a file of the log, begins. They are read while it follows those that
// begin and end, so that each has one start and one end in the log, whatever happens meanwhile.
type present struct {
	seed maphash.Seed
	// first: Trace begins, and the log has none of them.
	first bool
	// seen are those of which the log, or the file, has a start or an end, while the table is read; nil after that.
	seen map[uint64]struct{}
	// before are those of the log whose next packet looks like a first one to the tracepoint, as they are not assured, and
	// those whose start is known: when each began, in nanoseconds since 1970, 0 where that is not known.
	before map[uint64]int64
	// most bounds both.
	most int
	// left are connections for which there was no room.
	left uint64
}

// mostPresent bounds what is remembered to some 150 MB.
const mostPresent = 1 << 22

// Reasons of lost records.
const (
	reasonPresent = "connections that were there when the log began, for which there was no room"
	reasonResized = "the connection table was resized again and again while what was there when the log began was read"
	reasonUnread  = "what was there when the log began was not read to its end: at least so many connections that were there are missing"
)

// noteUnlisted is about a file that is amid a run.
const noteUnlisted = "the new file of the log lacks the list of what is there, which the files before it have: %s"

func (p *present) key(r *natlog.Record) uint64 { return maphash.Comparable(p.seed, r.Connection()) }

// settle puts right what the tracepoints say of a connection that was there before, and reports whether that is another
// start of one that has its start.
func (p *present) settle(r *natlog.Record) (again bool) {
	if p.seen == nil && len(p.before) == 0 {
		return false
	}
	key := p.key(r)
	since, known := p.before[key]
	if known && r.Kind == natlog.Start {
		return true
	}
	if p.seen != nil && len(p.seen) < p.most {
		p.seen[key] = struct{}{}
	}
	if !known {
		return false
	}
	delete(p.before, key)
	if r.Started = (time.Time{}); since != 0 {
		r.Started = time.Unix(0, since)
	}
	return false
}

// add reports whether the log lacks the start of a connection of the table.
func (p *present) add(r *natlog.Record, assured bool) bool {
	key := p.key(r)
	if _, seen := p.seen[key]; seen {
		return false
	}
	if len(p.seen) >= p.most || len(p.before) >= p.most {
		p.left++
		return false
	}
	p.seen[key] = struct{}{}
	if !p.first { // the tracepoints know which have begun
		return true
	}
	if since := r.Started; !since.IsZero() {
		p.before[key] = since.UnixNano()
	} else if !assured {
		p.before[key] = 0
	}
	return true
}

// begin makes room for what is there when Trace begins.
func (p *present) begin() {
	p.seed, p.before, p.first = maphash.MakeSeed(), map[uint64]int64{}, true
	if p.most == 0 {
		p.most = mostPresent
	}
}

// list lists what is there for a file of the log.
func (t *trace) list(ctx context.Context, to *Listing) {
	if err := t.readPresent(ctx, to, time.Now()); err != nil && t.o.Note != nil {
		t.o.Note(fmt.Sprintf(noteUnlisted, err))
	}
}

// readPresent hands on the starts of what has been there since a time, and follows what begins and ends meanwhile.
func (t *trace) readPresent(ctx context.Context, to *Listing, since time.Time) error {
	p := &t.present
	p.seen, p.left = map[uint64]struct{}{}, 0
	first := p.first
	var listed []natlog.Record
	var waiting []natlog.Record
	var assured []bool
	hand := func() error {
		// Connections whose first packet has already left are among the events: the tracepoint is behind the place that makes
		// an entry.
		err := t.follow(time.Now())
		if err == nil {
			err = await(ctx, to.Room, len(waiting), t.follow)
		}
		for i := range waiting {
			if p.add(&waiting[i], assured[i]) {
				listed = append(listed, waiting[i])
			}
		}
		if len(listed) > 0 {
			to.Put(listed)
		}
		listed, waiting, assured = listed[:0], waiting[:0], assured[:0]
		return err
	}
	result, err := dump.EachWhole(ctx, t.o.Netns, translated, func() {}, func(e *conntrack.Entry) error {
		r := presentRecord(e, since)
		if !first && !r.Before { // the tracepoints have its start, or will
			return nil
		}
		waiting = append(waiting, r)
		if assured = append(assured, e.Status.Has(conntrack.Assured)); len(waiting) < batch {
			return nil
		}
		return hand()
	})
	if err == nil {
		err = hand()
	}
	p.seen, p.first = nil, false
	if ctx.Err() == nil || first {
		to.Put(p.outcome(result.Interrupted, err != nil))
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what is there when the log begins: %w", err)
	}
	return nil
}

// outcome are the records behind the starts of what is there: what is missing of it, or that all of it is listed.
func (p *present) outcome(interrupted, failed bool) (all []natlog.Record) {
	missing := func(n uint64, reason string) {
		all = append(all, natlog.Record{Kind: natlog.Lost, Time: time.Now(), Count: n, Reason: reason})
	}
	if p.left > 0 {
		missing(p.left, reasonPresent)
	}
	if interrupted {
		missing(1, reasonResized)
	}
	if failed {
		missing(1, reasonUnread)
	}
	if len(all) == 0 {
		all = append(all, natlog.Record{Kind: natlog.Listed, Time: time.Now()})
	}
	return all
}

// forget forgets what was there before, of which an end was missed: the next start may be of another connection with the same
// addresses and ports.
func (p *present) forget() { clear(p.before) }

// presentRecord is the start of an entry. One that is assured was there at a time since when the tracepoints have been attached:
// otherwise they would have seen its start. One that is not may have begun since.
func presentRecord(e *conntrack.Entry, since time.Time) natlog.Record {
	r := natlog.Of(natlog.Start, e)
	if r.Time, r.Before = time.Now(), true; e.Status.Has(conntrack.Assured) {
		r.Time = since
	}
	if e.Start != 0 {
		if r.Started = time.Unix(0, int64(e.Start)); r.Started.After(since) {
			r.Time, r.Before = r.Started, false
		} else {
			r.Time = since
		}
	}
	return r
}

// await waits until there is room for more records of what is there, and calls meanwhile with a time until then.
func await(ctx context.Context, room func(n int) bool, n int, meanwhile func(until time.Time) error) error {
	for room != nil && !room(n) && ctx.Err() == nil {
		if err := meanwhile(time.Now().Add(roomEvery)); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func sleep(until time.Time) error {
	time.Sleep(time.Until(until))
	return nil
}

// roomEvery is how often it is asked whether there is room.
const roomEvery = 10 * time.Millisecond

// present hands on the starts of what the last reading had, with the time of that reading, and whether these are all.
func (t *table) present(ctx context.Context, to *Listing) error {
	var some []natlog.Record
	left := uint64(len(t.live))
	hand := func() error {
		err := await(ctx, to.Room, len(some), sleep)
		left -= uint64(len(some))
		to.Put(some)
		some = some[:0]
		return err
	}
	var err error
	for _, f := range t.live {
		r := f.record
		if !r.Started.IsZero() { // by the clock as it is now
			r.Started = r.Started.Add(t.set - f.set)
		}
		if r.Time, r.Within, r.Before = t.before, 0, true; r.Started.After(t.before) { // it began while the table was read
			r.Time, r.Before = r.Started, false
		}
		if some = append(some, r); len(some) == batch {
			if err = hand(); err != nil {
				break
			}
		}
	}
	if err == nil {
		err = hand()
	}
	switch {
	case left > 0 && !t.begun:
		to.Put([]natlog.Record{{Kind: natlog.Lost, Time: time.Now(), Count: left, Reason: reasonUnread}})
	case left > 0: // the log ends
	case t.whole:
		to.Put([]natlog.Record{{Kind: natlog.Listed, Time: time.Now()}})
	case !t.begun && len(t.records) > 0: // these say what is missing
	default:
		t.o.Note(fmt.Sprintf(noteUnlisted, "the last reading of the table did not have all"))
		to.Put([]natlog.Record{{Kind: natlog.Lost, Time: time.Now(), Count: 1, Reason: reasonUnread}})
	}
	return err
}
