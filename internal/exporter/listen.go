package exporter

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// firstActivated is the first descriptor that systemd hands over (sd_listen_fds(3)).
const firstActivated = 3

// Activated returns the sockets that systemd listens on for this process; none where it was not started by a socket.
// The environment is read by getenv.
func Activated(getenv func(string) string, pid int) ([]net.Listener, error) {
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if forPID, pidErr := strconv.Atoi(getenv("LISTEN_PID")); err != nil || pidErr != nil || forPID != pid {
		return nil, nil
	}
	var all []net.Listener
	for fd := firstActivated; fd < firstActivated+n; fd++ {
		f := os.NewFile(uintptr(fd), "LISTEN_FD_"+strconv.Itoa(fd))
		l, err := net.FileListener(f)
		f.Close() // the listener has a descriptor of its own
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take over socket %d of systemd: it must be a stream socket that listens: %w", fd, err), closeAll(all))
		}
		all = append(all, l)
	}
	return all, nil
}

// Listen listens on an address.
func Listen(address string) ([]net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return []net.Listener{l}, nil
}

func closeAll(all []net.Listener) (err error) {
	for _, l := range all {
		err = errors.Join(err, l.Close())
	}
	return err
}

// Exposed returns the first address that other hosts can reach; nil where there is none.
func Exposed(all []net.Listener) net.Addr {
	for _, l := range all {
		if at, ok := l.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
			return at
		}
	}
	return nil
}
