package dump

import (
	"context"

	"github.com/natkit/natkit/internal/conntrack"
)

// memory is the entries that a watcher knows to exist, so that it can tell
// after a gap which began and which ended in it.
type memory struct {
	known map[identity]remembered
	// full: there were more than are remembered, so what is not known need not be
	// new.
	full bool
	// round counts dumps; an entry's is that of the last one that showed it.
	round uint32
	// begun and ended were found by a dump. Their events were lost, or are still in
	// the receive buffer.
	begun map[identity]*conntrack.Entry
	ended map[identity]remembered
}

// identity tells entries apart: the ID, of which two in a hundred thousand entries
// may be the same, and ports or an ICMP identifier.
type identity struct {
	id, ports uint32
}

func identityOf(e *conntrack.Entry) identity {
	t := &e.Orig
	return identity{e.ID, uint32(t.SrcPort)<<16 | uint32(t.DstPort) | uint32(t.ICMPID)}
}

func newMemory() memory {
	return memory{known: map[identity]remembered{}, begun: map[identity]*conntrack.Entry{}, ended: map[identity]remembered{}}
}

// remembered is what is told of an entry when its end is found out.
type remembered struct {
	orig, reply     conntrack.Tuple
	zone, replyZone uint16
	status          conntrack.Status
	mark            uint32
	round           uint32
}

// entry is what an event of its end would have told.
func (r *remembered) entry(id identity) *conntrack.Entry {
	return &conntrack.Entry{
		Family: r.orig.Family(), Orig: r.orig, Reply: r.reply, Zone: r.zone, ReplyZone: r.replyZone,
		Status: r.status, Mark: r.mark, ID: id.id, Fields: conntrack.NoTimeout | conntrack.NoState,
	}
}

// keep remembers a chosen entry, if there is room; fresh is whether it was not
// known before.
func (w *watcher) keep(e *conntrack.Entry) (fresh bool) {
	if w.o.Remember == 0 {
		return false
	}
	id := identityOf(e)
	_, known := w.known[id]
	if !known && len(w.known) >= w.o.Remember {
		w.full = true
		return false
	}
	w.known[id] = remembered{e.Orig, e.Reply, e.Zone, e.ReplyZone, e.Status, e.Mark, w.round}
	return !known
}

// forget removes an entry; known is whether it was known.
func (w *watcher) forget(id identity) (known bool) {
	_, known = w.known[id]
	delete(w.known, id)
	return known
}

// remember reads the table once before the events.
func (w *watcher) remember(ctx context.Context) error {
	_, err := w.dump(ctx, func(*conntrack.Entry) {})
	return err
}

// dump reads the table and calls fresh with what was not known.
func (w *watcher) dump(ctx context.Context, fresh func(*conntrack.Entry)) (Result, error) {
	w.round++
	return EachWhole(ctx, w.ns, w.o.Filter, func() { w.round++ }, func(e *conntrack.Entry) error {
		if w.keep(e) && !w.full {
			fresh(e)
		}
		return nil
	})
}
