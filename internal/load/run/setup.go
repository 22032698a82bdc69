package run

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// setUp makes the calling thread, which must be locked, the worker's: its
// namespace, its file table, its epoll.
func (w *worker) setUp(ns *netns.Handle) error {
	epoll, err := w.run.enter(&w.sys, ns, w.run.cfg.Rate > 0)
	if err != nil {
		return err
	}
	w.epoll = epoll
	if w.id == 0 {
		if err := checkSources(&w.sys, w.run.family, w.run.sources); err != nil {
			return err
		}
	}
	w.sys.restart()
	return nil
}

// enter moves the calling thread, which must be locked, into the namespace and
// gives it a file table of its own, with the files to keep and an epoll that the
// run's end wakes.
func (c *crew) enter(sys *caller, ns *netns.Handle, paced bool, keep ...int) (int32, error) {
	if ns != nil {
		if err := ns.Enter(); err != nil {
			return 0, err
		}
	}
	if err := privateFiles(append(keep, c.stopFile)...); err != nil {
		return 0, err
	}
	// Sleeps are rounded up by the timer slack, 50 µs by default: the schedule of
	// an open loop would be kept no better. An error leaves it so.
	if paced {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("make an epoll: %w", err)
	}
	if errno := sys.watch(int32(epoll), int32(c.stopFile), stopEvent, unix.EPOLLIN); errno != 0 {
		return 0, fmt.Errorf("watch the stop event: %w", errno)
	}
	return int32(epoll), nil
}
