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

// Keeper is an output that keeps what Send took for a while: it is delivered when Kept is 0.
type Keeper interface {
	Output
	// Kept are how many records it has taken and not delivered, Omitted how many it has no place for.
	Kept() int
	Omitted() uint64
	// Flush delivers what is kept, all or nothing, Due is in how much time that is to be called.
	Flush(ctx context.Context) error
	Due() time.Duration
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
	// took is when the receiver, or the spool, took something last, or when there was nothing to take.
	took time.Time
	// all are those of the run.
	all     Tally
	closing bool
	// more is signalled when there is something to do.
	more chan struct{}
	// spooled is signalled when the spool has something, and closed when no more will come.
	spooled chan struct{}
	running sync.WaitGroup
	cancel  context.CancelFunc
	// sending are failures of the receiver, spooling those of writing to the spool.
	sending, spooling failures
	// at is how far the spool was read, by the goroutine that delivers.
	at position
}

// Tally is what became of the records of a run.
type Tally struct {
	// Records came, Delivered were taken by the receiver, Lost found no room, for Omitted it has no place. Unsaid are those of
	// Lost of which no record says so. Waiting bytes are left in the spool.
	Records, Delivered, Lost, Omitted, Unsaid uint64
	Waiting                                   int64
}

// Reasons of lost records.
const (
	reasonQueue   = "the receiver is slow or away, and memory for what waits is full"
	reasonSpool   = "the receiver is slow or away, and the spool is full"
	reasonDisk    = "the spool cannot be written"
	reasonDamaged = "damaged lines of the spool"
	reasonClose   = "the receiver did not take them at the end"
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
	l := &Outlet{o: o, out: out, lost: map[string]uint64{}, took: time.Now(), more: make(chan struct{}, 1), spooled: make(chan struct{}, 1), cancel: cancel}
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
	if len(l.queue) == 0 { // it waits from now on
		l.took = time.Now()
	}
	if len(l.queue)+len(l.lost) < l.o.queue { // said where they are missing
		l.queue = l.confess(l.queue)
	}
	n := min(max(l.o.queue-len(l.queue), 0), len(records))
	l.queue = append(l.queue, records[:n]...)
	l.drop(reasonQueue, uint64(len(records)-n))
	l.mu.Unlock()
	signal(l.more)
}

// roomPatience is how long a receiver that takes nothing is waited for.
const roomPatience = 10 * time.Second

// Room reports whether n more records find room in half of the queue, so that the other half is there for what happens
// meanwhile; or that it is no use to wait, as nothing is taken.
func (l *Outlet) Room(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)+n <= l.o.queue/2 || time.Since(l.took) > roomPatience
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
	if l.queue = batch[:0]; l.o.Spool != nil {
		l.took = time.Now()
	}
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
			l.await(ctx, l.more)
		}
	}
}

// await waits for a signal, and has an output deliver what it keeps when that is due. It is false when no more will come.
func (l *Outlet) await(ctx context.Context, signal <-chan struct{}) bool {
	keeper, is := l.out.(Keeper)
	for wait := time.Duration(0); is && keeper.Kept() > 0; {
		timer := time.NewTimer(max(keeper.Due(), wait))
		select {
		case _, open := <-signal:
			timer.Stop()
			return open
		case <-timer.C:
			wait = min(max(2*wait, l.o.retry), lastRetry)
			l.note(l.flush(ctx, keeper))
		}
	}
	_, open := <-signal
	return open
}

// flush has an output deliver what it keeps.
func (l *Outlet) flush(ctx context.Context, k Keeper) error {
	if err := k.Flush(ctx); err != nil || l.o.Spool == nil {
		return err
	}
	return l.o.Spool.Delivered(l.at)
}

// failures are those of one thing that is tried again.
type failures struct {
	failing bool
	noted   time.Time
}

// notedEvery bounds how often something is noted that fails and works in turn.
const notedEvery = time.Minute

// isNews reports whether an error is one to note: the first after a success, unless another one was noted just before.
func (f *failures) isNews(err error) bool {
	first := err != nil && !f.failing
	if f.failing = err != nil; !first || time.Since(f.noted) < notedEvery {
		return false
	}
	f.noted = time.Now()
	return true
}

// note notes failures to send.
func (l *Outlet) note(err error) {
	if l.sending.isNews(err) && l.o.Note != nil {
		l.o.Note(fmt.Errorf("send to %s: %w; retrying", l.o.Name, err))
	}
}

// deliver sends a batch until all of it is taken or ctx ends, and returns what is left.
func (l *Outlet) deliver(ctx context.Context, batch []natlog.Record) (left []natlog.Record) {
	for wait := l.o.retry; len(batch) > 0; {
		n, err := l.out.Send(ctx, batch)
		l.mu.Lock()
		if n > 0 {
			l.took = time.Now()
		}
		for i := range batch[:n] {
			if batch[i].Kind != natlog.Lost {
				l.all.Delivered++
			}
		}
		l.mu.Unlock()
		batch = batch[n:]
		if err != nil && ctx.Err() != nil {
			return batch
		}
		l.note(err)
		if err == nil {
			continue
		}
		if n > 0 {
			wait = l.o.retry
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

func (l *Outlet) noteSpool(err error) {
	if l.spooling.isNews(err) && l.o.Note != nil {
		l.o.Note(err)
	}
}

// deliverSpool delivers what the spool has.
func (l *Outlet) deliverSpool(ctx context.Context) {
	var records []natlog.Record
	l.at = l.o.Spool.Position()
	keeper, _ := l.out.(Keeper)
	for ctx.Err() == nil {
		batch, behind, damaged, err := l.o.Spool.Next(l.at, records)
		records = batch
		if err == nil && len(batch) == 0 && damaged == 0 {
			if !l.await(ctx, l.spooled) {
				return
			}
			continue
		}
		if err == nil {
			if len(l.deliver(ctx, batch)) > 0 {
				return // it stays in the spool: what was sent of the batch is sent again
			}
			l.dropped(reasonDamaged, damaged)
			l.at = behind
			switch {
			case keeper == nil || keeper.Kept() == 0:
				err = l.o.Spool.Delivered(l.at)
			case l.o.Spool.IsPressed():
				l.note(l.flush(ctx, keeper))
			}
			signal(l.more) // there is room, for what was lost to be said
		}
		if err != nil {
			if l.sending.isNews(err) && l.o.Note != nil {
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
	if keeper, is := l.out.(Keeper); is {
		err = errors.Join(err, l.settle(keeper))
	}
	for _, n := range l.lost {
		l.all.Unsaid += n
	}
	if l.o.Spool != nil {
		l.all.Waiting = l.o.Spool.Waiting()
		err = errors.Join(err, l.o.Spool.Close())
	}
	if err != nil {
		err = fmt.Errorf("close %s: %w", l.o.Name, err)
	}
	return l.all, err
}

// settle counts what an output that is closed kept: it is lost, or waits in the spool.
func (l *Outlet) settle(k Keeper) error {
	kept := uint64(k.Kept())
	l.all.Omitted = k.Omitted()
	l.all.Delivered -= kept + l.all.Omitted
	if l.o.Spool == nil {
		l.drop(reasonClose, kept)
		return nil
	}
	if kept > 0 {
		return nil
	}
	return l.o.Spool.Delivered(l.at)
}
