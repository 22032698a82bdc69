package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// HoldLimit is the default of ServeTCPConfig.Limit.
const HoldLimit = 100_000

// ServeTCPConfig is how the server that holds connections runs. Address and ports must be given.
type ServeTCPConfig struct {
	Listen netip.Addr
	// Ports to listen on. One that is 0 takes a free one.
	Ports nat.Ports
	// Netns is where it listens; nil for the caller's.
	Netns *netns.Handle
	// Limit is the number of connections that it holds at most; HoldLimit. It has as many threads
	// as the limit of open files requires for them, which cost nothing until they are needed.
	Limit int
	// Workers is the number of threads that accept connections at once; the number of CPUs.
	Workers int
	// CloseAtOnce closes every connection as soon as it is accepted.
	CloseAtOnce bool
	// Ready is called once, when connections are accepted, with the first bound address; may be nil.
	Ready func(netip.AddrPort)
	// Progress is called now and then: completed are accepted connections, in flight the open ones.
	Progress func(load.Progress)
}

const (
	// maxListening bounds the ports that a server listens on: each takes a file of every thread.
	maxListening = 1024
	// acceptBatch is how many connections one event of a listening socket accepts.
	acceptBatch = 64
	// listenEvent is the epoll data of the first listening socket; that of the next is one less.
	// That of a connection is its descriptor.
	listenEvent = stopEvent - 1
	// refill is how many connections of a full thread must have ended, or a quarter of all where that is
	// less, before it accepts again at once. Otherwise it does so after refillPause, if any has ended: each
	// time it watches all ports again, and wakes the threads that wait for a turn.
	refill      = 16
	refillPause = 100 * time.Millisecond
)

// tcpServer is what its workers share.
type tcpServer struct {
	crew
	turns
	cfg   ServeTCPConfig
	files []int // listening sockets

	open, peak atomic.Int64
}

// ServeTCP accepts connections on all ports and keeps them until ctx ends, the other side closes, or
// load.EndOfHold comes; other bytes are sent back. It returns what it saw, or an error that wraps
// unix.EADDRINUSE if another server has a port.
func ServeTCP(ctx context.Context, cfg ServeTCPConfig) (*load.Held, error) {
	if err := permit.Change("serve"); err != nil {
		return nil, err
	}
	files, err := fileLimit()
	if err != nil {
		return nil, fmt.Errorf("serve TCP: %w", err)
	}
	return serveTCP(ctx, cfg, files)
}

// serveTCP is ServeTCP with that many files for each thread at most.
func serveTCP(ctx context.Context, cfg ServeTCPConfig, files int) (*load.Held, error) {
	if !cfg.Listen.IsValid() {
		return nil, errors.New("serve TCP: no address to listen on; give ADDRESS:PORT")
	}
	fail := func(err error) (*load.Held, error) {
		return nil, fmt.Errorf("serve TCP on %s:%v: %w", bracketed(cfg.Listen), portsText(cfg.Ports), err)
	}
	if n := int(cfg.Ports.Last) - int(cfg.Ports.First) + 1; n < 1 || n > maxListening {
		return fail(fmt.Errorf("%d ports: must be 1 to %d", n, maxListening))
	}
	if cfg.Limit == 0 {
		cfg.Limit = HoldLimit
	}
	s := &tcpServer{cfg: cfg}
	first, err := s.listen()
	if err != nil {
		return fail(err)
	}
	defer s.closeListeners()
	if files -= len(s.files); files < 1 {
		return fail(fmt.Errorf("%d ports leave none of the open files for connections: raise the limit with `ulimit -n`", len(s.files)))
	}
	held, err := s.serve(ctx, first, files)
	if err != nil {
		return fail(err)
	}
	return held, nil
}

func portsText(p nat.Ports) string {
	if p.Len() == 0 {
		return "0"
	}
	return p.String()
}

// listen opens the listening sockets, which all workers share, and returns the first one's address.
func (s *tcpServer) listen() (first netip.AddrPort, err error) {
	err = s.cfg.Netns.Do(func() error {
		for port := int(s.cfg.Ports.First); port <= int(s.cfg.Ports.Last); port++ {
			at := netip.AddrPortFrom(s.cfg.Listen, uint16(port))
			fd, bound, err := listenTCP(at)
			if err != nil {
				return fmt.Errorf("port %d: %w", port, err)
			}
			if s.files = append(s.files, fd); len(s.files) == 1 {
				first = bound
			}
		}
		return nil
	})
	if err != nil {
		s.closeListeners()
	}
	return first, err
}

func (s *tcpServer) closeListeners() {
	for _, fd := range s.files {
		unix.Close(fd)
	}
	s.files = nil
}

// listenTCP makes a listening socket with the longest queue that net.core.somaxconn allows.
func listenTCP(at netip.AddrPort) (int, netip.AddrPort, error) {
	name, err := resolved(at)
	if err != nil {
		return -1, at, err
	}
	var sys caller
	fd, errno := sys.socket(family(at.Addr()), unix.SOCK_STREAM)
	if errno != 0 {
		return -1, at, fmt.Errorf("make a socket: %w", errno)
	}
	if errno = sys.setOption(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); errno == 0 {
		errno = sys.bind(fd, &name)
	}
	if errno == 0 {
		err = unix.Listen(int(fd), 1<<16-1)
		errno = sys.localName(fd, &name)
	}
	if errno != 0 {
		err = errno
	}
	if err != nil {
		sys.close(fd)
		return -1, at, bindError(err)
	}
	return int(fd), netip.AddrPortFrom(at.Addr(), name.addrPort().Port()), nil
}

// serve runs the workers until ctx ends.
func (s *tcpServer) serve(ctx context.Context, first netip.AddrPort, files int) (*load.Held, error) {
	accepting := workersAtOnce(s.cfg.Workers, s.cfg.Limit)
	threads, err := workersFor(accepting, s.cfg.Limit, "connections", files)
	if err != nil {
		return nil, err
	}
	if err := s.turns.begin(accepting); err != nil {
		return nil, err
	}
	defer unix.Close(s.turns.file)
	if err := s.prepare(0); err != nil {
		return nil, err
	}
	defer unix.Close(s.stopFile)
	workers := make([]*tcpServeWorker, threads)
	for i := range workers {
		workers[i] = &tcpServeWorker{
			thread: newThread(&s.crew), server: s, limit: share(s.cfg.Limit, i, len(workers)),
			buf: make([]byte, 4096), failures: load.FailureCounts{},
		}
	}
	opt := Options{Progress: s.cfg.Progress, ready: func() {
		if s.cfg.Ready != nil {
			s.cfg.Ready(first)
		}
	}}
	if err := conduct(ctx, &s.crew, workers, opt); err != nil {
		return nil, err
	}
	return s.result(first, workers), nil
}

func (s *tcpServer) result(first netip.AddrPort, workers []*tcpServeWorker) *load.Held {
	ports := nat.Ports{First: first.Port(), Last: first.Port() + s.cfg.Ports.Last - s.cfg.Ports.First}
	h := &load.Held{
		Listen: s.cfg.Listen, Ports: ports, Limit: s.cfg.Limit, Threads: len(workers),
		Seconds: float64(s.clock()) / 1e9, Peak: s.peak.Load(), CPU: s.cpu.report(),
	}
	failures := load.FailureCounts{}
	for _, w := range workers {
		h.Accepted += w.accepted
		h.Returned += w.returned
		h.Closed += w.closed
		h.ByPeer += w.byPeer
		h.Reset += w.reset
		h.SystemCalls += w.sys.count
		failures.Merge(w.failures)
	}
	h.Failures = failures.List()
	return h
}

// tcpServeWorker is one thread of the server: it holds as many connections as its file table has room
// for. The kernel has all that there is to know about one, its descriptor is what epoll returns.
type tcpServeWorker struct {
	thread
	server  *tcpServer
	limit   int
	open    int
	accepts bool   // it has a turn, and watches the listening sockets
	pause   int64  // do not accept before
	refill  int64  // after it was full: do not accept before without room for many
	held    []bool // by descriptor
	buf     []byte

	accepted, returned, closed, byPeer, reset int64
	failures                                  load.FailureCounts
}

func (w *tcpServeWorker) setUp(*netns.Handle) error {
	if err := w.enter(nil, false, append([]int{w.server.turns.file}, w.server.files...)...); err != nil {
		return err
	}
	return w.server.turns.watch(&w.thread)
}

func (w *tcpServeWorker) loop() {
	for w.stamp(); !w.server.stop.Load(); w.publish() {
		w.takeTurn()
		until := int64(w.second+1) * second
		for _, t := range []int64{w.pause, w.refill} {
			if t > w.now {
				until = min(until, t)
			}
		}
		for _, e := range w.wait(max(until-w.server.clock(), 0)) {
			switch {
			case e.Fd >= 0:
				w.event(e.Fd, e.Events)
			case e.Fd <= listenEvent && w.accepts:
				w.accept(int32(w.server.files[listenEvent-e.Fd]))
			}
		}
	}
	w.leave()
}

// mayAccept reports whether there is room for connections, for many of them if it was full a moment ago.
func (w *tcpServeWorker) mayAccept() bool {
	room := w.limit - w.open
	if w.now < w.refill {
		return room >= min(refill, max(w.limit/4, 1))
	}
	return room > 0
}

// takeTurn begins to accept connections if it may and not enough others do.
func (w *tcpServeWorker) takeTurn() {
	if w.accepts || w.now < w.pause || !w.mayAccept() || !w.server.turns.take() {
		return
	}
	w.accepts = true
	for i, fd := range w.server.files {
		errno := w.sys.watch(w.epoll, int32(fd), int32(listenEvent-i), unix.EPOLLIN|unix.EPOLLEXCLUSIVE)
		if errno != 0 {
			w.failures.Add(load.Connect, load.Reason(errno))
		}
	}
}

// giveTurn leaves the accepting to others.
func (w *tcpServeWorker) giveTurn() {
	w.accepts = false
	for _, fd := range w.server.files {
		w.sys.unwatch(w.epoll, int32(fd))
	}
	w.server.turns.give()
}

// accept takes what waits at a listening socket, a batch at most: it is level-triggered.
func (w *tcpServeWorker) accept(listener int32) {
	for range acceptBatch {
		if w.open >= w.limit {
			w.refill = w.stamp() + int64(refillPause)
			w.giveTurn()
			return
		}
		fd, errno := w.sys.accept(listener)
		switch errno {
		case 0:
			w.take(fd)
		case unix.EAGAIN:
			return
		case unix.ECONNABORTED, unix.EINTR:
		default: // no file or no memory is left
			w.failures.Add(load.Connect, load.Reason(errno))
			w.pause = w.stamp() + int64(acceptPause)
			w.giveTurn()
			return
		}
	}
}

// take holds a connection.
func (w *tcpServeWorker) take(fd int32) {
	w.accepted++
	if w.server.cfg.CloseAtOnce {
		w.closed++
		w.sys.close(fd)
		return
	}
	if errno := w.sys.watch(w.epoll, fd, fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET); errno != 0 {
		w.failures.Add(load.Connect, load.Reason(errno))
		w.sys.close(fd)
		return
	}
	for int(fd) >= len(w.held) {
		w.held = append(w.held, false)
	}
	w.held[fd] = true
	w.open++
	now := w.server.open.Add(1)
	for peak := w.server.peak.Load(); now > peak && !w.server.peak.CompareAndSwap(peak, now); {
		peak = w.server.peak.Load()
	}
}

// event handles what epoll returned for a connection.
func (w *tcpServeWorker) event(fd int32, mask uint32) {
	if mask&unix.EPOLLERR != 0 {
		w.reset++
		w.drop(fd)
		return
	}
	for mask&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 {
		n, errno := w.sys.receive(fd, w.buf)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			w.reset++
			w.drop(fd)
			return
		case n == 0:
			w.byPeer++
			w.drop(fd)
			return
		case bytes.IndexByte(w.buf[:n], load.EndOfHold) >= 0:
			w.closed++
			w.drop(fd)
			return
		}
		// What finds no room in the socket is not sent: the clients of this server have a byte
		// under way at most.
		sent, _ := w.sys.send(fd, w.buf[:n])
		w.returned += int64(max(sent, 0))
		if n < len(w.buf) && mask&unix.EPOLLRDHUP == 0 {
			return
		}
	}
}

func (w *tcpServeWorker) drop(fd int32) {
	w.sys.close(fd)
	w.held[fd] = false
	w.open--
	w.server.open.Add(-1)
}

func (w *tcpServeWorker) publish() {
	w.completed.Store(w.accepted)
	w.inFlight.Store(int64(w.open))
}

// leave handles what clients did before, and closes what is open.
func (w *tcpServeWorker) leave() {
	if w.accepts {
		w.giveTurn()
	}
	for more := true; more; {
		more = false
		for _, e := range w.wait(0) {
			if e.Fd >= 0 {
				more = true
				w.event(e.Fd, e.Events)
			}
		}
	}
	w.closed += int64(w.open)
	for fd, held := range w.held {
		if held {
			w.sys.close(int32(fd))
		}
	}
	for _, fd := range w.server.files {
		w.sys.close(int32(fd))
	}
	w.sys.close(w.epoll)
	w.publish()
}
