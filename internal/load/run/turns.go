package run

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// turns let only some of a crew's workers do what one at a time of them would do as well: those
// beyond the number of CPUs exist for their file tables alone, and would take CPU time from the other
// end of the connections. Whoever waits in its epoll is woken when something has changed.
type turns struct {
	free atomic.Int64
	file int // eventfd
}

// begin lets n workers have a turn at once; the caller closes the file.
func (t *turns) begin(n int) (err error) {
	t.allow(n)
	if t.file, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	return nil
}

// allow lets n workers have a turn at once from now on; nobody has one.
func (t *turns) allow(n int) { t.free.Store(int64(n)) }

// watch wakes the thread's epoll at each change. It is edge-triggered: nobody reads the eventfd.
func (t *turns) watch(w *thread) error {
	if errno := w.sys.watch(w.epoll, int32(t.file), stopEvent, unix.EPOLLIN|unix.EPOLLET); errno != 0 {
		return fmt.Errorf("watch the turns: %w", errno)
	}
	return nil
}

// take reports whether the caller has a turn now.
func (t *turns) take() bool {
	for n := t.free.Load(); n > 0; n = t.free.Load() {
		if t.free.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// give returns a turn.
func (t *turns) give() {
	t.free.Add(1)
	t.wake()
}

// wake makes all workers look again at what they wait for.
func (t *turns) wake() {
	one := [8]byte{1}
	_, _ = unix.Write(t.file, one[:])
}
