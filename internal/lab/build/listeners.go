package build

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
)

// SetListeners opens sockets that nothing reads, and closes those of a call before.
func (l *Lab) SetListeners(listeners []lab.Listener) error {
	var errs []error
	for _, f := range l.listeners {
		errs = append(errs, f.Close())
	}
	l.listeners = nil
	for _, w := range listeners {
		err := l.Node(w.Node).Netns.Do(func() error {
			open := listen
			if w.Events {
				open = subscribe
			}
			fd, err := open(w)
			if fd >= 0 {
				l.listeners = append(l.listeners, os.NewFile(uintptr(fd), "listener"))
			}
			return err
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("open the listener of %s: %w", w.Node, err))
		}
	}
	return errors.Join(errs...)
}

// listen opens a TCP socket whose connections are never accepted.
func listen(w lab.Listener) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, err
	}
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(w.Port)}), unix.Listen(fd, max(1, w.Backlog)))
}

// subscribe opens a socket with the smallest buffer that conntrack sends its events to.
func subscribe(lab.Listener) (fd int, err error) {
	const newUpdateDestroy = 7 // bits of NFNLGRP_CONNTRACK_*
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fd, err
	}
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: newUpdateDestroy}))
}
