package run

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// ServeUDPConfig is how the built-in server of datagrams runs. Only Listen must be
// given.
type ServeUDPConfig struct {
	// Listen is where; port 0 takes a free one.
	Listen netip.AddrPort
	// Netns is where it listens; nil for the caller's.
	Netns *netns.Handle
	// Workers is the number of threads; 0 means one per CPU.
	Workers int
	// Expected is what senders should be, for instance behind a NAT; nil where
	// that does not matter.
	Expected *packets.End
	// OwnNetwork lets senders at public addresses be answered, too.
	OwnNetwork bool
	// Ready is called once, when datagrams are answered, with the bound address; may
	// be nil.
	Ready func(netip.AddrPort)
	// Progress is called now and then: completed are answered datagrams, failed those
	// that were not expected; may be nil.
	Progress func(load.Progress)
}

// maxServedSeconds bounds the course of a server that runs on and on.
const maxServedSeconds = 24 * 3600

// udpServer is what its workers share.
type udpServer struct {
	crew
	cfg ServeUDPConfig
	any bool // it listens on all addresses

	seconds []packets.ServedSecond // under mu
}

// ServeUDP answers every request with its own payload, marked as a reply, from the
// address that it was sent to, until ctx ends, and returns what it saw. What is no
// request (packets.MakeReply) is not answered. Senders at public addresses are
// not answered unless cfg.OwnNetwork is set. It returns an error that wraps
// unix.EADDRINUSE where another program has the address.
func ServeUDP(ctx context.Context, cfg ServeUDPConfig) (*packets.Served, error) {
	if err := permit.Change("serve"); err != nil {
		return nil, err
	}
	fail := func(err error) error { return fmt.Errorf("serve UDP on %v: %w", cfg.Listen, err) }
	if !cfg.Listen.IsValid() {
		return nil, errors.New("serve UDP: no address to listen on; give ADDRESS:PORT")
	}
	if cfg.Expected != nil {
		if err := packets.CheckExpected(*cfg.Expected, cfg.Listen.Addr()); err != nil {
			return nil, fail(fmt.Errorf("expected source: %w", err))
		}
	}
	if cfg.Workers <= 0 {
		cfg.Workers = runtime.NumCPU()
	}
	s := &udpServer{cfg: cfg, any: cfg.Listen.Addr().IsUnspecified()}
	if err := s.prepare(0); err != nil {
		return nil, fail(err)
	}
	defer unix.Close(s.stopFile)
	sockets, err := listenUDP(cfg.Netns, cfg.Listen, cfg.Workers)
	if err != nil {
		return nil, fail(err)
	}
	served, err := s.serve(ctx, sockets)
	if err != nil {
		return nil, fail(err)
	}
	return served, nil
}

// serve runs one worker per socket until ctx ends. It owns the sockets.
func (s *udpServer) serve(ctx context.Context, sockets listeners) (*packets.Served, error) {
	closed := sync.OnceFunc(sockets.close)
	defer closed()
	workers := make([]*udpServeWorker, len(sockets.fds))
	for i, fd := range sockets.fds {
		workers[i] = newUDPServeWorker(s, int32(fd), packets.MaxSourcesSeen/len(workers))
	}
	opt := Options{Progress: s.cfg.Progress, ready: func() {
		closed() // each worker has a copy of its own
		if s.cfg.Ready != nil {
			s.cfg.Ready(sockets.addr)
		}
	}}
	if err := conduct(ctx, &s.crew, workers, opt); err != nil {
		return nil, err
	}
	served := &packets.Served{
		Listen: sockets.addr, Workers: len(workers), Expected: s.cfg.Expected,
		Seconds: float64(s.clock()) / 1e9, Series: s.seconds, CPU: s.cpu.report(),
	}
	tallies := make([]*packets.ServeTally, len(workers))
	for i, w := range workers {
		tallies[i] = w.tally
	}
	served.Fill(tallies)
	return served, nil
}

const (
	// maxDatagram is the greatest payload that UDP carries.
	maxDatagram = 65535
	// socketEvent is the epoll data of a server's socket.
	socketEvent = 0
	// pktinfoControl has room for a struct in6_pktinfo.
	pktinfoControl = 40
	// writableWait bounds the wait for room in the socket's send buffer.
	writableWait = 10 * time.Millisecond
)

// udpServeWorker is one thread of the server of datagrams, with a socket of its own.
type udpServeWorker struct {
	thread
	server *udpServer
	fd     int32
	both   *messages      // a datagram is sent back from the buffers that it came into
	silent [udpBatch]bool // those of both that are not answered
	// lastSender, and whether its address is public: many datagrams come from one.
	lastSender netip.Addr
	lastPublic bool

	current            int   // second
	received, answered int64 // until then
	tally              *packets.ServeTally
}

func newUDPServeWorker(s *udpServer, fd int32, senders int) *udpServeWorker {
	control := 0
	if s.any {
		control = pktinfoControl
	}
	return &udpServeWorker{
		thread: newThread(&s.crew), server: s, fd: fd, both: newMessages(udpBatch, maxDatagram, control), tally: packets.NewServeTally(senders),
	}
}

func (w *udpServeWorker) setUp(*netns.Handle) error {
	if err := w.enter(nil, false, int(w.fd)); err != nil {
		return err
	}
	w.sys.growBuffers(w.fd)
	if w.server.any {
		// The reply has to come from the address that was asked, whichever of the
		// machine's it was.
		level, name := unix.IPPROTO_IP, unix.IP_PKTINFO
		if family(w.server.cfg.Listen.Addr()) == unix.AF_INET6 {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
		}
		if errno := w.sys.setOption(w.fd, level, name, 1); errno != 0 {
			return fmt.Errorf("ask for the destination of datagrams: %w", errno)
		}
	}
	if errno := w.sys.watch(w.epoll, w.fd, socketEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the socket: %w", errno)
	}
	return nil
}

func (w *udpServeWorker) loop() {
	for !w.server.stop.Load() {
		events := w.wait(int64(w.second+1)*second - w.server.clock())
		if w.second > w.current {
			w.countSecond()
		}
		for _, e := range events {
			if e.Fd == socketEvent {
				w.answerAll()
			}
		}
		w.completed.Store(w.tally.Answered)
		w.failed.Store(w.tally.Misdelivered)
	}
	w.countSecond()
	w.tally.SocketDrops = int64(w.sys.socketDrops(w.fd))
	w.tally.SystemCalls = w.sys.count
	w.sys.close(w.fd)
	w.sys.close(w.epoll)
}

// countSecond adds what was done since it was last called to the second that was current then.
func (w *udpServeWorker) countSecond() {
	s := w.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.seconds) <= w.current && w.current < maxServedSeconds {
		s.seconds = append(s.seconds, packets.ServedSecond{At: float64(len(s.seconds) + 1)})
	}
	if w.current < maxServedSeconds {
		s.seconds[w.current].Received += w.tally.Received - w.received
		s.seconds[w.current].Answered += w.tally.Answered - w.answered
	}
	w.received, w.answered, w.current = w.tally.Received, w.tally.Answered, w.second
}

// answerAll takes what is in the socket, a burst at most, so that the end of the run
// and of the second are seen; the socket is level-triggered and reports it again.
func (w *udpServeWorker) answerAll() {
	for range udpBurst / udpBatch {
		n, errno := w.sys.receiveMessages(w.fd, w.both)
		if errno != 0 { // EAGAIN, or an error that belongs to no datagram
			return
		}
		w.tally.Received += int64(n)
		for i := range n {
			w.turnRound(i)
		}
		w.answer(n)
		w.both.clear(n)
		if n < udpBatch {
			return
		}
	}
}

// turnRound makes a received message one to send.
func (w *udpServeWorker) turnRound(i int) {
	w.both.vectors[i].SetLen(len(w.both.bytes(i)))
	if w.silent[i] = !packets.MakeReply(w.both.bytes(i)); w.silent[i] {
		w.tally.Foreign++
		return
	}
	from := w.both.from(i)
	if w.silent[i] = w.public(from.Addr()); w.silent[i] {
		w.tally.Public++
	}
	if w.server.cfg.Expected != nil {
		w.tally.From(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), *w.server.cfg.Expected)
	}
	if w.server.any {
		anyInterface(w.both.controls(i))
	}
}

// public reports whether a sender is not to be answered: with a forged source address this
// machine would send to another party.
func (w *udpServeWorker) public(sender netip.Addr) bool {
	if w.server.cfg.OwnNetwork {
		return false
	}
	if sender != w.lastSender {
		w.lastSender, w.lastPublic = sender, packets.Public(sender)
	}
	return w.lastPublic
}

// answer sends those of n messages back that are to be answered. One that the machine
// refuses is passed over.
func (w *udpServeWorker) answer(n int) {
	for first := 0; first < n; {
		if w.silent[first] {
			first++
			continue
		}
		last := first + 1
		for last < n && !w.silent[last] {
			last++
		}
		sent, errno := w.sys.sendMessages(w.fd, w.both, first, last)
		switch {
		case errno == 0:
			first += sent
			w.tally.Answered += int64(sent)
		case errno == unix.EAGAIN && w.writable():
		default:
			w.tally.Failures.Add(load.Send, load.Reason(errno))
			first++
		}
	}
}

// writable waits until there is room in the send buffer.
func (w *udpServeWorker) writable() bool {
	w.sys.count++
	n, err := unix.Poll([]unix.PollFd{{Fd: w.fd, Events: unix.POLLOUT}}, int(writableWait.Milliseconds()))
	return err == nil && n > 0
}

// anyInterface clears the interface in a struct in_pktinfo or in6_pktinfo that came
// with a datagram, so that the answer goes where the route leads; its source is the
// address that the datagram was sent to. Link-local addresses need the interface.
func anyInterface(control []byte) {
	for len(control) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return
		}
		switch {
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			binary.NativeEndian.PutUint32(data, 0)
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			if a := netip.AddrFrom16([16]byte(data[:16])); !a.IsLinkLocalUnicast() {
				binary.NativeEndian.PutUint32(data[16:], 0)
			}
		}
		control = rest
	}
}

// listeners are sockets on one address, among which the kernel distributes the senders.
type listeners struct {
	fds  []int
	addr netip.AddrPort
}

// listenUDP makes n sockets in a namespace; nil is the caller's.
func listenUDP(ns *netns.Handle, at netip.AddrPort, n int) (l listeners, err error) {
	err = ns.Do(func() error {
		// SO_REUSEPORT would share the port with another server of the same user without an
		// error; a first socket without it finds out.
		probe, addr, err := bound(at)
		if err != nil {
			return err
		}
		unix.Close(probe)
		l.addr = addr
		for range n {
			fd, _, err := bound(addr, unix.SO_REUSEPORT)
			if err != nil {
				l.close()
				return err
			}
			l.fds = append(l.fds, fd)
		}
		return nil
	})
	return l, err
}

func (l listeners) close() {
	for _, fd := range l.fds {
		unix.Close(fd)
	}
}

// bound makes a UDP socket with the given options set, and returns the address that it has.
func bound(at netip.AddrPort, options ...int) (int, netip.AddrPort, error) {
	name, err := resolved(at)
	if err != nil {
		return -1, at, err
	}
	var sys caller
	fd, errno := sys.socket(family(at.Addr()), unix.SOCK_DGRAM)
	if errno != 0 {
		return -1, at, fmt.Errorf("make a socket: %w", errno)
	}
	for _, option := range options {
		errno = max(errno, sys.setOption(fd, unix.SOL_SOCKET, option, 1))
	}
	if errno == 0 {
		errno = sys.bind(fd, &name)
	}
	if errno == 0 {
		errno = sys.localName(fd, &name)
	}
	if errno != 0 {
		sys.close(fd)
		return -1, at, bindError(errno)
	}
	return int(fd), netip.AddrPortFrom(at.Addr(), name.addrPort().Port()), nil
}
