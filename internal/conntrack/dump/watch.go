//go:build linux

package dump

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// EventKinds is a set of what can happen to an entry.
type EventKinds uint8

// The kinds of events.
const (
	NewEvents EventKinds = 1 << iota
	UpdateEvents
	DestroyEvents
	AllEvents = NewEvents | UpdateEvents | DestroyEvents
)

// Event is what happened to an entry.
type Event struct {
	Kind EventKinds
	// Entry holds until fn returns.
	Entry *conntrack.Entry
	// Missed: the event was lost; that it must have happened was found by a dump
	// afterwards. Only beginnings and ends are found so.
	Missed bool
}

// WatchOptions are the options of Watch.
type WatchOptions struct {
	Kinds EventKinds
	// Filter selects entries; nil selects all. It is applied to the fields of the event;
	// for the end of a remembered entry, to the remembered fields.
	Filter *conntrack.Filter
	// Remember is the number of entries kept in memory to find lost events, some 250
	// bytes each; 0 disables it. It needs NewEvents and DestroyEvents.
	Remember int
	// Buffer is the size of the receive buffer in bytes; 0 is watchBuffer.
	Buffer int
	// Ready is called once events are being received, Gap after each gap, Idle
	// repeatedly while no event arrives.
	Ready func()
	Gap   func(Gap)
	Idle  func() error
}

// Gap is a time in which the receive buffer was full.
type Gap struct {
	// Lost is the number of events dropped in the gap and while the gap before was
	// repaired; 0 if the kernel does not report it (before Linux 4.12).
	Lost int64
	// Repaired: a dump found the entries that began and ended meanwhile; Missed is their
	// number. Otherwise Why holds the reason.
	Repaired bool
	Missed   int64
	Why      string
}

// Watched holds the counters of a Watch.
type Watched struct {
	Events, Missed, Lost, Gaps int64
}

const (
	// watchBuffer holds some 100,000 events.
	watchBuffer = 64 << 20
	// Repairs are at least restoreEvery apart, and restoreFactor times the duration of
	// the last repair: a listener that is overrun all the time would otherwise do
	// nothing else.
	restoreEvery  = time.Second
	restoreFactor = 10
)

// ErrNoEvents is returned if events are disabled in the namespace.
var ErrNoEvents = errors.New("net.netfilter.nf_conntrack_events is 0 in this network namespace: the kernel makes no events there; set it to 1 or 2")

// Watch subscribes to the events of a namespace (nil: this one) and calls fn with each
// selected event until ctx ends or fn returns an error. Neither the end of ctx nor
// ErrStop is an error. Needs CAP_NET_ADMIN.
//
// While it runs, every packet that changes an entry causes a message: a listener costs
// the namespace a good part of its rate of new connections. This is why nothing else in
// natkit uses it.
func Watch(ctx context.Context, ns *netns.Handle, o WatchOptions, fn func(Event) error) (Watched, error) {
	w := &watcher{ns: ns, o: o, fn: fn, memory: newMemory()}
	if w.o.Buffer == 0 {
		w.o.Buffer = watchBuffer
	}
	if !w.needs(NewEvents) || !w.needs(DestroyEvents) {
		w.o.Remember = 0
	}
	err := w.listen(ctx)
	if errors.Is(err, ErrStop) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("watch the connection table: %w", err)
	}
	return w.done, err
}

// watcher is one Watch.
type watcher struct {
	ns    *netns.Handle
	o     WatchOptions
	fn    func(Event) error
	conn  *socket.Conn
	entry conntrack.Entry
	done  Watched
	memory
	// gap is the last one, settling the one before whose dump has been read; received
	// counts bytes since the last step. The next dump is not before notBefore.
	gap, settling *Gap
	received      int
	notBefore     time.Time
	// missed counts lost events reported between the dump and settling.
	missed int64
	// drops is the socket's drop counter at the last call of lost.
	drops int64
}

func (w *watcher) listen(ctx context.Context) error {
	if err := w.subscribe(); err != nil {
		return err
	}
	defer w.conn.Close()
	if w.o.Remember > 0 {
		if err := w.remember(ctx); err != nil {
			return err
		}
	}
	if w.o.Ready != nil {
		w.o.Ready()
	}
	buf := make([]byte, socket.DatagramMax)
	for ctx.Err() == nil {
		if err := w.next(ctx, buf); err != nil {
			return err
		}
	}
	return w.finish()
}

// next handles what comes within patience, and repairs a gap when it is time.
func (w *watcher) next(ctx context.Context, buf []byte) error {
	if err := w.step(ctx); err != nil {
		return err
	}
	b, err := w.conn.Poll(buf)
	switch {
	case err == nil:
		w.received += len(b)
		return w.handle(b)
	case errors.Is(err, os.ErrDeadlineExceeded):
		if w.o.Idle != nil {
			return w.o.Idle()
		}
		return nil
	case errors.Is(err, unix.ENOBUFS):
		w.overrun()
		return nil
	}
	return err
}

// drained reports whether what was queued at the last step of a repair has been read:
// nothing is queued, or more has been read than the buffer holds.
func (w *watcher) drained() bool { return w.received >= w.o.Buffer || w.conn.Empty() }

// subscribe opens the socket and joins the groups.
func (w *watcher) subscribe() (err error) {
	// Where there is no such file the kernel always makes events, or subscribing fails.
	if events, err := netns.Sysctl(w.ns, "net.netfilter.nf_conntrack_events"); err == nil && events == "0" {
		return ErrNoEvents
	}
	if w.conn, err = socket.Dial(w.ns, unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	_ = w.conn.SetReceiveBuffer(w.o.Buffer)
	groups := map[EventKinds]int{NewEvents: unix.NFNLGRP_CONNTRACK_NEW, UpdateEvents: unix.NFNLGRP_CONNTRACK_UPDATE, DestroyEvents: unix.NFNLGRP_CONNTRACK_DESTROY}
	for kind, group := range groups {
		if !w.needs(kind) {
			continue
		}
		if err := w.conn.Join(group); err != nil {
			w.conn.Close()
			return fmt.Errorf("subscribe to events: %w", netns.Denied(err, netns.NetAdmin))
		}
	}
	return nil
}

// needs reports whether a kind was asked for.
func (w *watcher) needs(kind EventKinds) bool { return w.o.Kinds&kind != 0 }

// handle takes a datagram of events.
func (w *watcher) handle(b []byte) error {
	for len(b) > 0 {
		m, rest, err := netlink.Next(b)
		if err != nil {
			return err
		}
		b = rest
		kind := kindOf(m)
		if kind == 0 {
			continue
		}
		if err := w.entry.Decode(m.Body); err != nil {
			return err
		}
		if err := w.event(kind, &w.entry); err != nil {
			return err
		}
	}
	return nil
}

// kindOf returns the kind of an event; 0 for other messages. The kernel marks the
// first event of an entry by flags (ctnetlink_conntrack_event).
func kindOf(m netlink.Message) EventKinds {
	switch {
	case m.Type == conntrack.Delete:
		return DestroyEvents
	case m.Type == conntrack.New && m.Flags&unix.NLM_F_CREATE != 0:
		return NewEvents
	case m.Type == conntrack.New:
		return UpdateEvents
	}
	return 0
}

func (w *watcher) event(kind EventKinds, e *conntrack.Entry) error {
	id := identityOf(e)
	if err := w.earlier(kind, id); err != nil {
		return err
	}
	if kind == DestroyEvents {
		// It has fewer fields than earlier events: an entry selected then stays selected.
		if !w.forget(id) && !w.o.Filter.Match(e) {
			return nil
		}
		return w.emit(Event{Kind: kind, Entry: e})
	}
	if !w.o.Filter.Match(e) {
		w.forget(id) // its end is that of another one, as far as the filter goes
		return nil
	}
	w.keep(e)
	return w.emit(Event{Kind: kind, Entry: e})
}

// earlier reports the events that must have been lost before this one, by what the last
// dump found. Where this is the very event of what the dump found, nothing was lost.
func (w *watcher) earlier(kind EventKinds, id identity) error {
	before := w.done.Missed
	var err error
	if kind == DestroyEvents {
		if _, ok := w.ended[id]; ok {
			delete(w.ended, id)
			w.known[id] = remembered{} // chosen, and forgotten again by this event
		}
	} else {
		err = w.missedEnd(id) // another entry had this ID
	}
	if err == nil {
		if kind == NewEvents {
			delete(w.begun, id)
		} else {
			err = w.missedBegin(id)
		}
	}
	w.missed += w.done.Missed - before
	return err
}

func (w *watcher) emit(e Event) error {
	if !w.needs(e.Kind) {
		return nil
	}
	w.done.Events++
	if e.Missed {
		w.done.Missed++
	}
	return w.fn(e)
}

// lost returns how many events the kernel could not queue since the last call.
func (w *watcher) lost() int64 {
	before := w.drops
	w.drops = int64(w.conn.Drops())
	return w.drops - before
}

// memory holds the entries that a watcher knows to exist, so that it can find out
// after a gap which ones began and ended in it.
type memory struct {
	known map[identity]remembered
	// full: there were more entries than Remember, so an unknown entry is not
	// necessarily new.
	full bool
	// round counts dumps; an entry's is that of the last one that showed it.
	round uint32
	// begun and ended were found by a dump. Their events were lost, or are still in
	// the receive buffer.
	begun map[identity]*conntrack.Entry
	ended map[identity]remembered
}

// identity distinguishes entries: by ID, which two of a hundred thousand entries may
// share, and by ports or ICMP identifier.
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

// remembered holds the fields reported when the end of an entry was lost.
type remembered struct {
	orig, reply     conntrack.Tuple
	zone, replyZone uint16
	status          conntrack.Status
	mark            uint32
	round           uint32
}

// entry returns the entry as an event of its end would have described it.
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

// A gap is repaired in three steps, each when what was queued at the one before it
// has been read: it begins when the buffer is full; a dump finds the entries whose
// beginning or end was not reported; events for them that do not arrive among those
// queued during the dump were lost.

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

// settle reports the events that were lost.
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

// missedBegin reports the beginning of an entry, if its event was lost.
func (w *watcher) missedBegin(id identity) error {
	e := w.begun[id]
	if e == nil {
		return nil
	}
	delete(w.begun, id)
	return w.emit(Event{Kind: NewEvents, Entry: e, Missed: true})
}

// missedEnd reports the end of an entry, if its event was lost.
func (w *watcher) missedEnd(id identity) error {
	known, ok := w.ended[id]
	if !ok {
		return nil
	}
	delete(w.ended, id)
	return w.emit(Event{Kind: DestroyEvents, Entry: known.entry(id), Missed: true})
}

// whyNot returns the reason why a gap was not repaired.
func (w *watcher) whyNot() string {
	switch {
	case w.o.Remember == 0:
		return "that needs the events NEW and DESTROY, and memory"
	case w.full:
		return fmt.Sprintf("there are more than the %d connections that are remembered", w.o.Remember)
	}
	return "the table was resized while it was read, or could not be read to its end"
}

// finish reports open gaps when the listening ends.
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
