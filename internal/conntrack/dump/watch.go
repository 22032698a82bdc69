package dump

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/match"
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

// WatchOptions say what to listen to.
type WatchOptions struct {
	Kinds EventKinds
	// Filter chooses entries; nil chooses all. An entry is judged by what the event
	// tells, and its end by what was known of it before where that is remembered.
	Filter *match.Filter
	// Remember is how many entries are kept in mind to find what was lost, some 250
	// bytes each; 0 does without. It needs NewEvents and DestroyEvents.
	Remember int
	// Buffer is the size of the receive buffer in bytes; 0 is watchBuffer.
	Buffer int
	// Ready is called when events are being received, Gap after each gap, Idle while
	// nothing happens, at least when nothing did for patience.
	Ready func()
	Gap   func(Gap)
	Idle  func() error
}

// Gap is a time in which the receive buffer was full.
type Gap struct {
	// Lost is how many events it did not take, and those that were lost while the
	// gap before was repaired; 0 where the kernel does not tell (before Linux 4.12).
	Lost int64
	// Repaired: a dump found what had begun and what had ended meanwhile, which was
	// so many entries. Otherwise Why says why not.
	Repaired bool
	Missed   int64
	Why      string
}

// Watched is what Watch did.
type Watched struct {
	Events, Missed, Lost, Gaps int64
}

const (
	// watchBuffer holds some 100,000 events.
	watchBuffer = 64 << 20
	// Between the repairs of two gaps passes at least restoreEvery, and so many
	// times what the last repair took: a listener that is overrun all the time
	// would otherwise do nothing else.
	restoreEvery  = time.Second
	restoreFactor = 10
)

// ErrNoEvents is the cause where the namespace makes no events.
var ErrNoEvents = errors.New("net.netfilter.nf_conntrack_events is 0 in this network namespace: the kernel makes no events there; set it to 1 or 2")

// Watch subscribes to the events of a namespace (nil: this one) and calls fn with
// each that it chooses, until ctx ends, which is no error, or fn returns one, of
// which ErrStop is none. Needs CAP_NET_ADMIN.
//
// Every packet that changes an entry then makes a message: a listener costs the
// namespace a good part of the connections that it could take per second. This is
// why nothing else in natkit does it.
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
	s     *socket
	entry conntrack.Entry
	done  Watched
	memory
	// gap is the last one, settling the one before whose dump has been read; received
	// counts bytes since the last step. The next dump is not before notBefore.
	gap, settling *Gap
	received      int
	notBefore     time.Time
	// missed were told of between the dump and settling.
	missed int64
	// drops is what lost last read.
	drops int64
}

func (w *watcher) listen(ctx context.Context) error {
	if err := w.subscribe(); err != nil {
		return err
	}
	defer w.s.close()
	if w.o.Remember > 0 {
		if err := w.remember(ctx); err != nil {
			return err
		}
	}
	if w.o.Ready != nil {
		w.o.Ready()
	}
	buf := make([]byte, datagramMax)
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
	n, err := unix.Read(w.s.fd, buf)
	switch err {
	case nil:
		w.received += n
		return w.handle(buf[:n])
	case unix.EINTR:
		return nil
	case unix.EAGAIN:
		if w.o.Idle != nil {
			return w.o.Idle()
		}
		return nil
	case unix.ENOBUFS:
		w.overrun()
		return nil
	default:
		return err
	}
}

// drained reports whether what was queued at the last step of a repair has been read:
// nothing is queued, or more has been read than the buffer holds.
func (w *watcher) drained() bool {
	if w.received >= w.o.Buffer {
		return true
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.s.fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 0
}

// subscribe opens the socket and joins the groups.
func (w *watcher) subscribe() (err error) {
	off, err := eventsOff(w.ns)
	if err != nil {
		return err
	}
	if off {
		return ErrNoEvents
	}
	if w.s, err = dial(w.ns); err != nil {
		return err
	}
	if unix.SetsockoptInt(w.s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, w.o.Buffer) != nil {
		_ = unix.SetsockoptInt(w.s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, w.o.Buffer)
	}
	groups := map[EventKinds]int{NewEvents: unix.NFNLGRP_CONNTRACK_NEW, UpdateEvents: unix.NFNLGRP_CONNTRACK_UPDATE, DestroyEvents: unix.NFNLGRP_CONNTRACK_DESTROY}
	for kind, group := range groups {
		if !w.needs(kind) {
			continue
		}
		if err := unix.SetsockoptInt(w.s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			w.s.close()
			if errors.Is(err, unix.EPERM) {
				err = explain(unix.EPERM)
			}
			return fmt.Errorf("subscribe to events: %w", err)
		}
	}
	return nil
}

// needs reports whether a kind was asked for.
func (w *watcher) needs(kind EventKinds) bool { return w.o.Kinds&kind != 0 }

// eventsOff reports whether nf_conntrack_events is 0 in a namespace. Where there is
// no such file the kernel always makes events, or subscribing fails.
func eventsOff(ns *netns.Handle) (off bool, err error) {
	read := func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_events")
		off = err == nil && strings.TrimSpace(string(text)) == "0"
		return nil
	}
	if ns == nil {
		return off, read()
	}
	err = ns.Do(read)
	return off, err
}
