package dump

import (
	"context"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
)

// memory is the entries that a watcher knows to exist, by ID, so that it can tell
// after a gap which began and which ended in it.
type memory struct {
	known map[uint32]remembered
	// full: there were more than are remembered, so what is not known need not be
	// new.
	full bool
	// buried are entries whose end was told as missed; its event may be in the
	// queue still.
	buried map[uint32]bool
	// round counts dumps; an entry's is that of the last one that showed it.
	round uint32
}

// remembered is what is told of an entry when its end is found out.
type remembered struct {
	orig, reply     conntrack.Tuple
	zone, replyZone uint16
	status          conntrack.Status
	mark            uint32
	round           uint32
	// found: its beginning was told as missed.
	found bool
}

// keep remembers a chosen entry; told is whether its beginning was told as missed
// and its event not read yet.
func (w *watcher) keep(e *conntrack.Entry) (told bool) {
	if w.o.Remember == 0 {
		return false
	}
	old, known := w.known[e.ID]
	if !known && len(w.known) >= w.o.Remember {
		w.full = true
		return false
	}
	delete(w.buried, e.ID)
	w.known[e.ID] = remembered{e.Orig, e.Reply, e.Zone, e.ReplyZone, e.Status, e.Mark, w.round, false}
	return known && old.found
}

// forget removes an entry; told is whether its end was told as missed already.
func (w *watcher) forget(id uint32) (told, known bool) {
	told = w.buried[id]
	delete(w.buried, id)
	_, known = w.known[id]
	delete(w.known, id)
	return told, known
}

// remember reads the table once before the events.
func (w *watcher) remember(ctx context.Context) error {
	_, err := w.dump(ctx, func(*conntrack.Entry) error { return nil })
	return err
}

// dump reads the table and calls fresh with what was not known.
func (w *watcher) dump(ctx context.Context, fresh func(*conntrack.Entry) error) (Result, error) {
	w.round++
	restart := func() { w.round++ }
	return EachWhole(ctx, w.ns, w.o.Filter, restart, func(e *conntrack.Entry) error {
		old, known := w.known[e.ID]
		w.keep(e)
		if known || w.full {
			w.found(e.ID, old.found)
			return nil
		}
		w.found(e.ID, true)
		return fresh(e)
	})
}

func (w *watcher) found(id uint32, found bool) {
	if r, ok := w.known[id]; ok {
		r.found = found
		w.known[id] = r
	}
}

// repair finds out what a gap hid: what is in the table and was not known, and
// what was known and is not in it.
func (w *watcher) repair(ctx context.Context) error {
	gap, began, before := w.gap, time.Now(), w.done.Missed
	w.gap = nil
	gap.Lost = w.lost()
	w.done.Lost += gap.Lost
	gap.Why = w.whyNot()
	var err error
	if gap.Why == "" {
		gap.Repaired, err = w.restore(ctx)
		gap.Missed = w.done.Missed - before
	}
	if gap.Why == "" && !gap.Repaired {
		gap.Why = "the table was resized during the dump, or it could not be read to its end"
	}
	if w.full { // since then
		gap.Why = w.whyNot()
	}
	took := time.Since(began)
	w.notBefore = time.Now().Add(max(restoreEvery, restoreFactor*took))
	if w.o.Gap != nil {
		w.o.Gap(*gap)
	}
	if err == nil {
		err = w.stop // which ended the dump, and is no error there
	}
	return err
}

// whyNot says why a gap cannot be repaired.
func (w *watcher) whyNot() string {
	switch {
	case w.o.Remember == 0:
		return "it needs the events NEW and DESTROY, and memory"
	case w.full:
		return fmt.Sprintf("there were more than the %d entries that are remembered", w.o.Remember)
	}
	return ""
}

func (w *watcher) restore(ctx context.Context) (whole bool, err error) {
	w.buried = map[uint32]bool{}
	r, err := w.dump(ctx, func(e *conntrack.Entry) error {
		return w.emit(Event{Kind: NewEvents, Entry: e, Missed: true})
	})
	if err != nil || !r.Complete || r.Interrupted {
		return false, err
	}
	for id, known := range w.known {
		if known.round == w.round {
			continue
		}
		delete(w.known, id)
		w.buried[id] = true
		if err := w.emit(Event{Kind: DestroyEvents, Entry: known.entry(id), Missed: true}); err != nil {
			return false, err
		}
	}
	return true, nil
}

// entry is what an event of its end would have told.
func (r *remembered) entry(id uint32) *conntrack.Entry {
	e := &conntrack.Entry{
		Orig: r.orig, Reply: r.reply, Zone: r.zone, ReplyZone: r.replyZone, Status: r.status, Mark: r.mark, ID: id,
		Fields: conntrack.NoTimeout | conntrack.NoState,
	}
	e.Family = r.orig.Family()
	return e
}
