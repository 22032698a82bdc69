package run

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// setUp makes the calling thread, which must be locked, the worker's: its
// namespace, its file table, its epoll.
func (w *worker) setUp(ns *netns.Handle) error {
	if ns != nil {
		if err := ns.Enter(); err != nil {
			return err
		}
	}
	if err := privateFiles(w.run.stopFile); err != nil {
		return err
	}
	// Sleeps are rounded up by the timer slack, 50 µs by default: the schedule of
	// an open loop would be kept no better. An error leaves it so.
	if w.run.cfg.Rate > 0 {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make an epoll: %w", err)
	}
	w.epoll = int32(epoll)
	if errno := w.sys.watch(w.epoll, int32(w.run.stopFile), stopEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the stop event: %w", errno)
	}
	if w.id == 0 {
		if err := w.checkSources(); err != nil {
			return err
		}
	}
	w.sys.count = 0
	return nil
}

// checkSources binds to every source once, so that an address that is not this
// machine's is one error and not as many failures as there are requests.
func (w *worker) checkSources() error {
	for i := range w.run.sources {
		fd, errno := w.sys.socket(w.run.family)
		if errno == 0 {
			errno = w.sys.bind(fd, &w.run.sources[i])
			w.sys.close(fd)
		}
		if errno == syscall.EADDRNOTAVAIL {
			return fmt.Errorf("source address %v: not an address of this machine or namespace; add it to an interface first",
				w.run.sources[i].addr())
		}
		if errno != 0 && errno != syscall.EADDRINUSE {
			return fmt.Errorf("source address %v: bind: %w", w.run.sources[i].addr(), errno)
		}
	}
	return nil
}
