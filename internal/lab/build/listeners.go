package build

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
)

// SetListeners opens sockets that listen and never accept, and closes those of a call before.
func (l *Lab) SetListeners(listeners []lab.Listener) error {
	var errs []error
	for _, f := range l.listeners {
		errs = append(errs, f.Close())
	}
	l.listeners = nil
	for _, w := range listeners {
		err := l.Node(w.Node).Netns.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			l.listeners = append(l.listeners, os.NewFile(uintptr(fd), "listener"))
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
				unix.Bind(fd, &unix.SockaddrInet4{Port: int(w.Port)}), unix.Listen(fd, max(1, w.Backlog)))
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("listen at port %d of %s: %w", w.Port, w.Node, err))
		}
	}
	return errors.Join(errs...)
}
