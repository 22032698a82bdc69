package run

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
)

// listeners are sockets on one address, among which the kernel shares out the
// connections, or the senders of datagrams.
type listeners struct {
	fds  []int
	addr netip.AddrPort
}

// listenAll makes n sockets of a kind, SOCK_STREAM or SOCK_DGRAM, in a namespace;
// nil is the caller's.
func listenAll(ns *netns.Handle, kind int, at netip.AddrPort, n int) (listeners, error) {
	var l listeners
	listen := func() error {
		var err error
		l, err = listenHere(kind, at, n)
		return err
	}
	if ns != nil {
		return l, ns.Do(listen)
	}
	err := listen()
	return l, err
}

func listenHere(kind int, at netip.AddrPort, n int) (listeners, error) {
	// SO_REUSEPORT would let this server share the port with another one of the
	// same user without a word; a first socket without it finds out. TCP needs
	// SO_REUSEADDR for old connections in TIME_WAIT; with UDP it would share, too.
	var options []int
	if kind == unix.SOCK_STREAM {
		options = append(options, unix.SO_REUSEADDR)
	}
	probe, addr, err := bound(kind, at, options...)
	if err != nil {
		return listeners{}, err
	}
	err = listen(kind, probe, 1)
	unix.Close(probe)
	if err != nil {
		return listeners{}, err
	}
	l := listeners{addr: addr}
	for range n {
		fd, _, err := bound(kind, addr, append(options, unix.SO_REUSEPORT)...)
		if err == nil {
			l.fds = append(l.fds, fd)
			err = listen(kind, fd, backlog)
		}
		if err != nil {
			l.close()
			return listeners{}, err
		}
	}
	return l, nil
}

func listen(kind, fd, backlog int) error {
	if kind != unix.SOCK_STREAM {
		return nil
	}
	return bindError(unix.Listen(fd, backlog))
}

func (l listeners) close() {
	for _, fd := range l.fds {
		unix.Close(fd)
	}
}

func bindError(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("address in use: another server listens there: %w", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("not an address of this machine or namespace: %w", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("the port is below net.ipv4.ip_unprivileged_port_start: %w", privilege.Denied(err, privilege.Bind))
	}
	return err
}

// bound makes a socket with the given options set and binds it.
func bound(kind int, at netip.AddrPort, options ...int) (int, netip.AddrPort, error) {
	fd, err := unix.Socket(family(at.Addr()), kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, at, fmt.Errorf("make a socket: %w", err)
	}
	for _, option := range options {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1)
		}
	}
	if err == nil {
		err = bind(fd, at)
	}
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, at, err
	}
	return fd, withPort(at, name), nil
}

func bind(fd int, a netip.AddrPort) error {
	if ip := a.Addr().Unmap(); ip.Is4() {
		return bindError(unix.Bind(fd, &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.As4()}))
	}
	zone, err := zoneNumber(a.Addr().Zone())
	if err != nil {
		return err
	}
	return bindError(unix.Bind(fd, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16(), ZoneId: zone}))
}

func withPort(at netip.AddrPort, name unix.Sockaddr) netip.AddrPort {
	port := 0
	switch n := name.(type) {
	case *unix.SockaddrInet4:
		port = n.Port
	case *unix.SockaddrInet6:
		port = n.Port
	}
	return netip.AddrPortFrom(at.Addr(), uint16(min(port, math.MaxUint16)))
}
