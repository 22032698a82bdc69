package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// ServeConfig is how the built-in server runs. Only Listen must be given.
type ServeConfig struct {
	// Listen is where; port 0 takes a free one.
	Listen netip.AddrPort
	// Netns is where it listens; nil for the caller's.
	Netns *netns.Handle
	// Workers is the number of threads; 0 means one per CPU.
	Workers int
	// Page is what every request gets; a short text where it is empty.
	Page []byte
	// Ready is called once, when connections are accepted, with the bound
	// address; may be nil.
	Ready func(netip.AddrPort)
}

const (
	// backlog of each worker's socket; the kernel caps it at net.core.somaxconn.
	backlog = 65535
	// idleTimeout ends connections on which nothing comes.
	idleTimeout = 60 * time.Second
	maxPage     = 16 << 20
)

var defaultPage = []byte("<!doctype html><title>natkit</title><p>This is natkit's built-in server.\n")

// server is what its workers share.
type server struct {
	listen   netip.AddrPort
	started  time.Time
	files    int
	closed   []byte // a response after which the connection is closed
	kept     []byte
	stop     atomic.Bool
	stopFile int
}

// Serve answers every HTTP/1.x request with a small page until ctx ends, then
// returns nil. It closes after each response unless the request asks for
// keep-alive by name. It returns an error that wraps unix.EADDRINUSE where
// another server has the address.
func Serve(ctx context.Context, cfg ServeConfig) error {
	fail := func(err error) error { return fmt.Errorf("serve on %v: %w", cfg.Listen, err) }
	if !cfg.Listen.IsValid() {
		return errors.New("serve: no address to listen on; give ADDRESS:PORT")
	}
	if len(cfg.Page) > maxPage {
		return fail(fmt.Errorf("a page of %d bytes is too long: at most %d", len(cfg.Page), maxPage))
	}
	n := cfg.Workers
	if n <= 0 {
		n = runtime.NumCPU()
	}
	s, err := newServer(cfg)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(s.stopFile)
	sockets, err := listenAll(cfg, n)
	if err != nil {
		return fail(err)
	}
	s.listen = sockets.addr
	defer moreProcs(n)()
	if err := s.serve(ctx, cfg, sockets.fds); err != nil {
		return fail(err)
	}
	return nil
}

func newServer(cfg ServeConfig) (*server, error) {
	files, err := fileLimit()
	if err != nil {
		return nil, err
	}
	page := cfg.Page
	if len(page) == 0 {
		page = defaultPage
	}
	answer := func(connection string) []byte {
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nServer: natkit\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n",
			len(page), connection)
		return append([]byte(head), page...)
	}
	s := &server{started: time.Now(), files: files, closed: answer("close"), kept: answer("keep-alive")}
	if s.stopFile, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	return s, nil
}

// serve runs one worker per listening socket until ctx ends. It owns the sockets.
func (s *server) serve(ctx context.Context, cfg ServeConfig, sockets []int) error {
	var done sync.WaitGroup
	ready := make(chan error, len(sockets))
	for _, fd := range sockets {
		done.Go(func() {
			runtime.LockOSThread() // never unlocked: its file table ends with it
			w := newServeWorker(s, int32(fd))
			err := w.setUp()
			ready <- err
			if err == nil {
				w.loop()
			}
		})
	}
	var err error
	for range sockets {
		err = errors.Join(err, <-ready)
	}
	// Each worker has a copy of its own.
	for _, fd := range sockets {
		unix.Close(fd)
	}
	if err == nil {
		if cfg.Ready != nil {
			cfg.Ready(s.listen)
		}
		<-ctx.Done()
	}
	s.stop.Store(true)
	one := [8]byte{1}
	_, _ = unix.Write(s.stopFile, one[:])
	done.Wait()
	return err
}

// listeners are sockets on one address, among which the kernel shares out the
// connections.
type listeners struct {
	fds  []int
	addr netip.AddrPort
}

func listenAll(cfg ServeConfig, n int) (listeners, error) {
	var l listeners
	listen := func() error {
		var err error
		l, err = listenHere(cfg.Listen, n)
		return err
	}
	var err error
	if cfg.Netns != nil {
		err = cfg.Netns.Do(listen)
	} else {
		err = listen()
	}
	return l, err
}

func listenHere(at netip.AddrPort, n int) (listeners, error) {
	// SO_REUSEPORT would let this server share the port with another one of the
	// same user without a word; a first socket without it finds out.
	probe, addr, err := bound(at, unix.SO_REUSEADDR)
	if err != nil {
		return listeners{}, err
	}
	if err := unix.Listen(probe, 1); err != nil {
		unix.Close(probe)
		return listeners{}, bindError(err)
	}
	unix.Close(probe)
	l := listeners{addr: addr}
	for range n {
		fd, _, err := bound(addr, unix.SO_REUSEADDR, unix.SO_REUSEPORT)
		if err == nil {
			l.fds = append(l.fds, fd)
			err = unix.Listen(fd, backlog)
		}
		if err != nil {
			for _, fd := range l.fds {
				unix.Close(fd)
			}
			return listeners{}, bindError(err)
		}
	}
	return l, nil
}

func bindError(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("address in use: another server listens there: %w", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("not an address of this machine or namespace: %w", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w (ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE)", err)
	}
	return err
}

// bound makes a socket with the given options set and binds it.
func bound(at netip.AddrPort, options ...int) (int, netip.AddrPort, error) {
	fd, err := unix.Socket(family(at.Addr()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
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
