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

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
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
	sockets, err := listenAll(cfg.Netns, unix.SOCK_STREAM, cfg.Listen, n)
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
			_ = netns.OnThread(func() error { // with a file table of its own
				w := newServeWorker(s, int32(fd))
				err := w.setUp()
				ready <- err
				if err == nil {
					w.loop()
				}
				return nil
			})
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

// listenEvent is the epoll data of the listening socket.
const listenEvent = -2

// peer is one accepted connection.
type peer struct {
	deadline   int64
	request    load.Request
	rest       []byte // of the response that did not fit into the socket's buffer
	fd         int32
	next, prev int32 // in the order of the deadlines
	watched    bool
	kept       bool // the response says keep-alive
}

// serveWorker is one thread of the server.
type serveWorker struct {
	server   *server
	listener int32
	epoll    int32
	sys      caller
	now      int64
	peers    []peer
	unused   []int32
	order    peerList
	paused   bool // the listener is not watched: there are too many connections
	buf      []byte
	events   []unix.EpollEvent
}

// peerList is a queue of peers, oldest deadline first.
type peerList struct{ head, tail int32 }

func newServeWorker(s *server, listener int32) *serveWorker {
	return &serveWorker{
		server: s, listener: listener, order: peerList{none, none},
		buf: make([]byte, bufferSize), events: make([]unix.EpollEvent, batch),
	}
}

func (w *serveWorker) setUp() error {
	if err := privateFiles(int(w.listener), w.server.stopFile); err != nil {
		return err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make an epoll: %w", err)
	}
	w.epoll = int32(epoll)
	if errno := w.sys.watch(w.epoll, int32(w.server.stopFile), stopEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the stop event: %w", errno)
	}
	if errno := w.sys.watch(w.epoll, w.listener, listenEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the listening socket: %w", errno)
	}
	return nil
}

func (w *serveWorker) loop() {
	for !w.server.stop.Load() {
		n, errno := w.sys.poll(w.epoll, w.events, w.pause())
		if errno != 0 {
			n = 0
		}
		w.now = int64(time.Since(w.server.started))
		for _, e := range w.events[:n] {
			switch {
			case e.Fd == listenEvent:
				w.acceptAll()
			case e.Fd >= 0:
				w.event(e.Fd, e.Events)
			}
		}
		w.expire()
	}
	for i := w.order.head; i != none; i = w.order.head {
		w.close(i)
	}
	w.sys.close(w.listener)
	w.sys.close(w.epoll)
}

// pause is the time to the oldest deadline; a minute where there is none.
func (w *serveWorker) pause() int64 {
	if w.order.head == none {
		return int64(idleTimeout)
	}
	return max(w.peers[w.order.head].deadline-int64(time.Since(w.server.started)), 0)
}

func (w *serveWorker) expire() {
	for i := w.order.head; i != none && w.peers[i].deadline <= w.now; i = w.order.head {
		w.close(i)
	}
}

// acceptAll takes at most a batch, so that those already accepted are served in
// between; the listener is level-triggered and says so again.
func (w *serveWorker) acceptAll() {
	for range batch {
		if len(w.peers)-len(w.unused) >= w.server.files {
			w.pauseAccept()
			return
		}
		fd, errno := w.sys.accept(w.listener)
		switch errno {
		case 0:
			w.serveNew(fd)
		case unix.ECONNABORTED, unix.EINTR:
		case unix.EAGAIN:
			return
		default: // EMFILE, ENFILE, ENOMEM, ENOBUFS
			w.pauseAccept()
			return
		}
	}
}

// pauseAccept waits for a connection to end. Where there is none of this
// worker's, the shortage is the machine's: going on is all that is left.
func (w *serveWorker) pauseAccept() {
	if w.order.head != none && !w.paused {
		w.sys.unwatch(w.epoll, w.listener)
		w.paused = true
	}
}

func (w *serveWorker) serveNew(fd int32) {
	var i int32
	if n := len(w.unused); n > 0 {
		i = w.unused[n-1]
		w.unused = w.unused[:n-1]
	} else {
		i = int32(len(w.peers))
		w.peers = append(w.peers, peer{})
	}
	w.peers[i] = peer{fd: fd}
	w.enqueue(i)
	// The request is often there already; where it is answered at once the
	// connection never gets into the epoll.
	w.read(i)
}

func (w *serveWorker) event(i int32, mask uint32) {
	p := &w.peers[i]
	if p.next == i { // closed in this batch
		return
	}
	// What came while the response was stuck had its event then.
	stuck := len(p.rest) > 0
	if stuck && !w.write(i) {
		return
	}
	if stuck || mask&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		w.read(i)
	}
}

// read takes requests until the socket is empty or the connection is closed.
func (w *serveWorker) read(i int32) {
	for {
		p := &w.peers[i]
		n, errno := w.sys.receive(p.fd, w.buf)
		switch {
		case errno == unix.EAGAIN:
			w.watch(i)
			return
		case errno != 0 || n == 0:
			w.close(i)
			return
		}
		if !w.answer(i, w.buf[:n]) {
			return
		}
		if p.watched && n < len(w.buf) {
			return // edge-triggered: more data comes with a new event
		}
	}
}

// answer handles what was received; false where the connection is closed or
// waits to be written to.
func (w *serveWorker) answer(i int32, b []byte) bool {
	p := &w.peers[i]
	for len(b) > 0 {
		n, bad := p.request.Feed(b)
		if bad != 0 {
			w.close(i)
			return false
		}
		b = b[n:]
		if !p.request.Done() {
			return true
		}
		p.kept = p.request.KeepAlive()
		p.request = load.Request{}
		if p.rest = w.server.closed; p.kept {
			p.rest = w.server.kept
		}
		if !w.write(i) {
			// A request behind one whose response is stuck is not kept for later.
			p.kept = p.kept && len(b) == 0
			return false
		}
		w.dequeue(i)
		w.enqueue(i)
	}
	return true
}

// write sends the rest of a response; false where the connection is closed or
// its buffer is full.
func (w *serveWorker) write(i int32) bool {
	p := &w.peers[i]
	for len(p.rest) > 0 {
		n, errno := w.sys.send(p.fd, p.rest)
		switch errno {
		case 0:
			p.rest = p.rest[n:]
		case unix.EAGAIN:
			w.watch(i)
			return false
		default:
			w.close(i)
			return false
		}
	}
	p.rest = nil
	if !p.kept {
		w.close(i)
		return false
	}
	return true
}

func (w *serveWorker) watch(i int32) {
	p := &w.peers[i]
	if p.watched {
		return
	}
	p.watched = true
	if w.sys.watch(w.epoll, p.fd, i, watchedEvents) != 0 {
		w.close(i)
	}
}

func (w *serveWorker) close(i int32) {
	w.sys.close(w.peers[i].fd)
	w.dequeue(i)
	w.peers[i] = peer{next: i, fd: -1}
	w.unused = append(w.unused, i)
	if w.paused {
		w.paused = w.sys.watch(w.epoll, w.listener, listenEvent, unix.EPOLLIN) != 0
	}
}

func (w *serveWorker) enqueue(i int32) {
	p := &w.peers[i]
	p.deadline = w.now + int64(idleTimeout)
	p.prev, p.next = w.order.tail, none
	if w.order.tail == none {
		w.order.head = i
	} else {
		w.peers[w.order.tail].next = i
	}
	w.order.tail = i
}

func (w *serveWorker) dequeue(i int32) {
	p := &w.peers[i]
	if p.prev == none {
		w.order.head = p.next
	} else {
		w.peers[p.prev].next = p.next
	}
	if p.next == none {
		w.order.tail = p.prev
	} else {
		w.peers[p.next].prev = p.prev
	}
}

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
	err := ns.Do(listen)
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
		return fmt.Errorf("the port is below net.ipv4.ip_unprivileged_port_start: %w", netns.Denied(err, netns.Bind))
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
