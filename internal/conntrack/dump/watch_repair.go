package dump

import (
	"context"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
)

// A gap is repaired in three steps, each when what was queued at the one before it
// has been read: it begins when the buffer is full; a dump tells which entries
// began and ended that no event told of; and what is still not told of by events
// that were queued during the dump was lost.

// overrun notes that events were lost. The kernel queues none until all that is in
// the buffer has been read (NETLINK_S_CONGESTED, net/netlink/af_netlink.c).
func (w *watcher) overrun() {
	if w.gap == nil {
		w.gap = &Gap{}
		w.received = 0
		w.done.Gaps++
	}
}

// step goes on with a repair, if it is time.
func (w *watcher) step(ctx context.Context) error {
	switch {
	case w.gap == nil && w.settling == nil || !w.drained():
		return nil
	case w.settling != nil:
		return w.settle()
	case time.Now().After(w.notBefore):
		return w.repair(ctx)
	}
	return nil
}

// repair finds out by a dump what a gap hid.
func (w *watcher) repair(ctx context.Context) error {
	began := time.Now()
	w.gap, w.settling = nil, w.gap
	w.settling.Lost = w.lost()
	w.done.Lost += w.settling.Lost
	if w.o.Remember > 0 && !w.full {
		if err := w.restore(ctx); err != nil {
			return err
		}
	}
	w.notBefore = time.Now().Add(max(restoreEvery, restoreFactor*time.Since(began)))
	w.received = 0
	return nil
}

// restore notes what is in the table and was not known, and what was known and is
// not in it.
func (w *watcher) restore(ctx context.Context) error {
	r, err := w.dump(ctx, func(e *conntrack.Entry) {
		entry := e.Clone()
		w.begun[identityOf(e)] = &entry
	})
	if err != nil {
		return err
	}
	if w.settling.Repaired = r.Complete && !r.Interrupted && !w.full; !w.settling.Repaired {
		return nil
	}
	for id, known := range w.known {
		if known.round != w.round {
			delete(w.known, id)
			w.ended[id] = known
		}
	}
	return nil
}

// settle tells what no event has told of.
func (w *watcher) settle() error {
	gap, before := w.settling, w.done.Missed
	w.settling = nil
	for id := range w.begun {
		if err := w.missedBegin(id); err != nil {
			return err
		}
	}
	for id := range w.ended {
		if err := w.missedEnd(id); err != nil {
			return err
		}
	}
	gap.Missed = w.done.Missed - before + w.missed
	w.missed = 0
	if !gap.Repaired {
		gap.Why = w.whyNot()
	}
	if w.o.Gap != nil {
		w.o.Gap(*gap)
	}
	return nil
}

// missedBegin tells of the beginning of an entry, if it was lost.
func (w *watcher) missedBegin(id identity) error {
	e := w.begun[id]
	if e == nil {
		return nil
	}
	delete(w.begun, id)
	return w.emit(Event{Kind: NewEvents, Entry: e, Missed: true})
}

// missedEnd tells of the end of an entry, if it was lost.
func (w *watcher) missedEnd(id identity) error {
	known, ok := w.ended[id]
	if !ok {
		return nil
	}
	delete(w.ended, id)
	return w.emit(Event{Kind: DestroyEvents, Entry: known.entry(id), Missed: true})
}

// whyNot says why a gap was not repaired.
func (w *watcher) whyNot() string {
	switch {
	case w.o.Remember == 0:
		return "that needs the events NEW and DESTROY, and memory"
	case w.full:
		return fmt.Sprintf("there are more than the %d connections that are remembered", w.o.Remember)
	}
	return "the table was resized while it was read, or could not be read to its end"
}

// finish tells what is known of gaps when the listening ends.
func (w *watcher) finish() error {
	if w.settling != nil {
		if err := w.settle(); err != nil {
			return err
		}
	}
	if w.gap == nil {
		return nil
	}
	w.gap.Lost, w.gap.Why = w.lost(), "the listening ended before"
	w.done.Lost += w.gap.Lost
	if w.o.Gap != nil {
		w.o.Gap(*w.gap)
	}
	return nil
}
