package dump

import (
	"encoding/binary"
	"unsafe"

	"github.com/natkit/natkit/internal/conntrack"
	"golang.org/x/sys/unix"
)

// handle takes a datagram of events.
func (w *watcher) handle(b []byte) error {
	for len(b) > 0 {
		m, rest, err := conntrack.Next(b)
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

// kindOf tells what a message is about; 0 where it is no event. The kernel marks
// the first event of an entry by flags (ctnetlink_conntrack_event).
func kindOf(m conntrack.Message) EventKinds {
	switch {
	case m.Is(conntrack.Delete):
		return DestroyEvents
	case m.Is(conntrack.New) && m.Flags&unix.NLM_F_CREATE != 0:
		return NewEvents
	case m.Is(conntrack.New):
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
		// It tells less than those before: what was chosen then is chosen now.
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

// earlier tells what must have been lost before an event of an entry that a dump
// has shown. An event of its own for what the dump found makes that no loss.
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

// lost is how many events the kernel could not queue since it was last asked
// (sk_drops of the socket, which netlink_overrun counts; SO_MEMINFO, Linux 4.12).
func (w *watcher) lost() int64 {
	var info [9]uint32 // SK_MEMINFO_VARS, include/uapi/linux/sock_diag.h
	const drops = 8    // SK_MEMINFO_DROPS
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(w.s.fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 || int(size) < binary.Size(info) {
		return 0
	}
	n := int64(info[drops]) - w.drops
	w.drops = int64(info[drops])
	return n
}
