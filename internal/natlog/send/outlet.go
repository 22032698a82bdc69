//go:build linux

package send

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/natlog"
)

// Output is where records go. Only one goroutine uses it.
type Output interface {
	// Send delivers records, and returns how many of the first ones were: of an error the others are to be sent again.
	Send(ctx context.Context, records []natlog.Record) (sent int, err error)
	// Close flushes what Send took.
	Close() error
}

// Bounds of what waits in memory, and of the time between two attempts.
const (
	queueRecords = 1 << 15
	batchRecords = 1 << 10
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 30 * time.Second
)

// Options are those of an outlet.
type Options struct {
	// Name is for messages.
	Name string
	// Spool takes what waits; nil: it waits in memory.
	Spool *Spool
	// Note is told when the receiver fails, once until it takes something again.
	Note func(error)
	// Lost makes a record about what was lost, with its time and place.
	Lost func() natlog.Record
	// queue and retry are other bounds, of tests.
	queue int
	retry time.Duration
}

// Outlet delivers records to an output, behind a queue of its own.
type Outlet struct {
	o   Options
	out Output

	mu sync.Mutex
	// queue is what waits in memory.
	queue []natlog.Record
	// lost are records since the last one that says so, by reason.
	lost map[string]uint64
	// all are those of the run.
	all     Tally
	closing bool
	// more is signalled when there is something to do.
	more chan struct{}
	// spooled is signalled when the spool has something, and closed when no more will come.
	spooled chan struct{}
	running sync.WaitGroup
	cancel  context.CancelFunc
	// failing is set from a failure that was noted to the next success.
	failing bool
	// spoolFailing is the same of writing to the spool.
	spoolFailing bool
}

// Tally is what became of the records of a run.
type Tally struct {
	// Records came, Delivered were taken by the receiver, Lost found no room. Waiting bytes are left in the spool.
	Records, Delivered, Lost uint64
	Waiting                  int64
}

// Reasons of lost records.
const (
	reasonQueue   = "the receiver is slow or away, and memory for what waits is full"
	reasonSpool   = "the receiver is slow or away, and the spool is full"
	reasonDisk    = "the spool cannot be written"
	reasonDamaged = "damaged lines of the spool"
)

// NewOutlet begins to deliver.
func NewOutlet(out Output, o Options) *Outlet {
	if o.queue == 0 {
		o.queue = queueRecords
	}
	if o.retry == 0 {
		o.retry = firstRetry
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Outlet{o: o, out: out, lost: map[string]uint64{}, more: make(chan struct{}, 1), spooled: make(chan struct{}, 1), cancel: cancel}
	if o.Spool == nil {
		l.running.Go(func() { l.deliverQueue(ctx) })
		return l
	}
	l.running.Go(func() { l.fillSpool(ctx); close(l.spooled) })
	l.running.Go(func() { l.deliverSpool(ctx) })
	signal(l.spooled) // there may be something of the last run
	return l
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Put takes records, and returns at once: those that there is no room for are counted.
func (l *Outlet) Put(records []natlog.Record) {
	l.mu.Lock()
	l.all.Records += uint64(len(records))
	if len(l.queue)+len(l.lost) < l.o.queue { // said where they are missing
		l.queue = l.confess(l.queue)
	}
	n := min(max(l.o.queue-len(l.queue), 0), len(records))
	l.queue = append(l.queue, records[:n]...)
	l.drop(reasonQueue, uint64(len(records)-n))
	l.mu.Unlock()
	signal(l.more)
}

// drop counts what is lost; the lock is held.
func (l *Outlet) drop(reason string, n uint64) {
	if n > 0 {
		l.lost[reason] += n
		l.all.Lost += n
	}
}

func (l *Outlet) dropped(reason string, n int) {
	l.mu.Lock()
	l.drop(reason, uint64(n))
	l.mu.Unlock()
}

// take takes all that waits, and leaves an empty batch in its place. ended is true when there is nothing and nothing
// will come.
func (l *Outlet) take(batch []natlog.Record) (_ []natlog.Record, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.confess(l.queue)
	l.queue = batch[:0]
	return taken, l.closing && len(taken) == 0
}

// confess adds a record for each reason of what was lost; the lock is held.
func (l *Outlet) confess(batch []natlog.Record) []natlog.Record {
	for reason, n := range l.lost {
		batch = append(batch, l.lostRecord(n, reason))
	}
	clear(l.lost)
	return batch
}

func (l *Outlet) lostRecord(n uint64, reason string) natlog.Record {
	r := l.o.Lost()
	r.Kind, r.Count, r.Reason = natlog.Lost, n, reason
	return r
}

// restore puts back what a batch confesses, where the batch itself was lost.
func (l *Outlet) restore(batch []natlog.Record, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		if r := &batch[i]; r.Kind == natlog.Lost {
			l.lost[r.Reason] += r.Count
		} else {
			l.drop(reason, 1)
		}
	}
}

// deliverQueue delivers from memory.
func (l *Outlet) deliverQueue(ctx context.Context) {
	var batch []natlog.Record
	for {
		taken, ended := l.take(batch)
		if ended {
			return
		}
		batch = taken
		for part := range slices.Chunk(taken, batchRecords) {
			if left := l.deliver(ctx, part); len(left) > 0 {
				l.restore(left, reasonQueue)
			}
		}
		if ctx.Err() != nil {
			return
		}
		if len(taken) == 0 {
			<-l.more
		}
	}
}

// deliver sends a batch until all of it is taken or ctx ends, and returns what is left.
func (l *Outlet) deliver(ctx context.Context, batch []natlog.Record) (left []natlog.Record) {
	for wait := l.o.retry; len(batch) > 0; {
		n, err := l.out.Send(ctx, batch)
		l.mu.Lock()
		for i := range batch[:n] {
			if batch[i].Kind != natlog.Lost {
				l.all.Delivered++
			}
		}
		l.mu.Unlock()
		batch = batch[n:]
		if err == nil {
			l.failing = false
			continue
		}
		if ctx.Err() != nil {
			return batch
		}
		if n > 0 {
			wait = l.o.retry
		}
		if !l.failing && l.o.Note != nil {
			l.failing = true
			l.o.Note(fmt.Errorf("send to %s: %w; retrying", l.o.Name, err))
		}
		if !pause(ctx, wait) {
			return batch
		}
		wait = min(2*wait, lastRetry)
	}
	return nil
}

// pause reports whether the time passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// fillSpool writes what comes to the spool.
func (l *Outlet) fillSpool(ctx context.Context) {
	var batch []natlog.Record
	for {
		taken, ended := l.take(batch)
		if ended {
			return
		}
		batch = taken
		full := false
		for part := range slices.Chunk(taken, batchRecords) {
			full = !l.appendSpool(part)
		}
		signal(l.spooled)
		if len(taken) > 0 && !full {
			continue
		}
		select { // until something comes, or there is room
		case <-l.more:
		case <-ctx.Done():
			return
		}
	}
}

// appendSpool reports whether the spool took a batch; otherwise it is lost.
func (l *Outlet) appendSpool(batch []natlog.Record) bool {
	text := make([]byte, 0, len(batch)*usualLine)
	for i := range batch {
		text = batch[i].AppendJSON(text)
	}
	ok, err := l.o.Spool.Append(text)
	switch {
	case err != nil:
		l.noteSpool(fmt.Errorf("write the spool of %s: %w; records are lost until that works again", l.o.Name, err))
		l.restore(batch, reasonDisk)
	case !ok:
		l.restore(batch, reasonSpool)
	default:
		l.noteSpool(nil)
	}
	return ok
}

const usualLine = 320

// noteSpool notes the first error of several.
func (l *Outlet) noteSpool(err error) {
	if err != nil && !l.spoolFailing && l.o.Note != nil {
		l.o.Note(err)
	}
	l.spoolFailing = err != nil
}

// deliverSpool delivers what the spool has.
func (l *Outlet) deliverSpool(ctx context.Context) {
	var records []natlog.Record
	for ctx.Err() == nil {
		batch, behind, damaged, err := l.o.Spool.Next(records)
		records = batch
		if err == nil && len(batch) == 0 && damaged == 0 {
			if _, open := <-l.spooled; !open {
				return
			}
			continue
		}
		if err == nil {
			if len(l.deliver(ctx, batch)) > 0 {
				return // it stays in the spool: what was sent of the batch is sent again
			}
			l.dropped(reasonDamaged, damaged)
			err = l.o.Spool.Delivered(behind)
			signal(l.more) // there is room, for what was lost to be said
		}
		if err != nil {
			if !l.failing && l.o.Note != nil {
				l.failing = true
				l.o.Note(fmt.Errorf("read the spool of %s: %w", l.o.Name, err))
			}
			if !pause(ctx, l.o.retry) {
				return
			}
		}
	}
}

// Close delivers what waits, for as long as patience lasts, and returns what became of all records.
func (l *Outlet) Close(patience time.Duration) (Tally, error) {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	signal(l.more)
	timer := time.AfterFunc(patience, l.cancel)
	l.running.Wait()
	timer.Stop()
	l.cancel()
	l.restore(l.queue, reasonQueue) // patience ended before they were taken
	err := l.out.Close()
	if l.o.Spool != nil {
		l.all.Waiting = l.o.Spool.Waiting()
		err = errors.Join(err, l.o.Spool.Close())
	}
	if err != nil {
		err = fmt.Errorf("close %s: %w", l.o.Name, err)
	}
	return l.all, err
}
