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

	seconds   []packets.ServedSecond
	secondsMu sync.Mutex
}

// ServeUDP answers every request with its own payload, marked as a reply, from the
// address that it was sent to, until ctx ends, and returns what it saw. What is no
// request (packets.MakeReply) is not answered. Senders at public addresses are
// not answered unless cfg.OwnNetwork is set. It returns an error that wraps
// unix.EADDRINUSE where another program has the address.
func ServeUDP(ctx context.Context, cfg ServeUDPConfig) (*packets.Served, error) {
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
	if err := s.prepare(); err != nil {
		return nil, fail(err)
	}
	defer unix.Close(s.stopFile)
	sockets, err := listenAll(cfg.Netns, unix.SOCK_DGRAM, cfg.Listen, cfg.Workers)
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
	defer moreProcs(len(workers))()
	opt := Options{Progress: s.cfg.Progress, ready: func() {
		closed() // each worker has a copy of its own
		if s.cfg.Ready != nil {
			s.cfg.Ready(sockets.addr)
		}
	}}
	before, after, err := conduct(ctx, &s.crew, workers, opt)
	if err != nil {
		return nil, err
	}
	served := &packets.Served{
		Listen: sockets.addr, Workers: len(workers), Expected: s.cfg.Expected,
		Seconds: float64(s.clock()) / 1e9, Series: s.seconds, CPU: between(before, after),
	}
	tallies := make([]*packets.ServeTally, len(workers))
	for i, w := range workers {
		tallies[i] = w.tally
	}
	served.Fill(tallies)
	return served, nil
}

// handInServed adds what a worker did in a second.
func (s *udpServer) handInServed(second int, received, answered int64) {
	if second >= maxServedSeconds {
		return
	}
	s.secondsMu.Lock()
	defer s.secondsMu.Unlock()
	for len(s.seconds) <= second {
		s.seconds = append(s.seconds, packets.ServedSecond{At: float64(len(s.seconds) + 1)})
	}
	s.seconds[second].Received += received
	s.seconds[second].Answered += answered
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
	server *udpServer
	fd     int32
	epoll  int32
	sys    caller
	both   *messages      // a datagram is sent back from the buffers that it came into
	silent [udpBatch]bool // those of both that are not answered
	events []unix.EpollEvent
	// lastSender, and whether its address is public: many datagrams come from one.
	lastSender netip.Addr
	lastPublic bool

	second             int
	received, answered int64 // up to the second
	tally              *packets.ServeTally
	seen               seen
}

func newUDPServeWorker(s *udpServer, fd int32, senders int) *udpServeWorker {
	control := 0
	if s.any {
		control = pktinfoControl
	}
	return &udpServeWorker{
		server: s, fd: fd, both: newMessages(udpBatch, maxDatagram, control),
		events: make([]unix.EpollEvent, 2), tally: packets.NewServeTally(senders),
	}
}

func (w *udpServeWorker) soFar() *seen { return &w.seen }

func (w *udpServeWorker) setUp(*netns.Handle) error {
	epoll, err := w.server.enter(&w.sys, nil, false, int(w.fd))
	if err != nil {
		return err
	}
	w.epoll = epoll
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
	w.sys.restart()
	return nil
}

func (w *udpServeWorker) loop() {
	for !w.server.stop.Load() {
		n, errno := w.sys.poll(w.epoll, w.events, int64(w.second+1)*second-w.server.clock())
		if errno != 0 { // EINTR
			n = 0
		}
		w.turnSecond()
		for _, e := range w.events[:n] {
			if e.Fd == socketEvent {
				w.answerAll()
			}
		}
		w.publish()
	}
	w.handIn()
	w.tally.SocketDrops = int64(w.sys.socketDrops(w.fd))
	w.tally.SystemCalls = w.sys.count
	w.sys.close(w.fd)
	w.sys.close(w.epoll)
}

func (w *udpServeWorker) publish() {
	w.seen.completed.Store(w.tally.Answered)
	w.seen.failed.Store(w.tally.Misdelivered)
}

// turnSecond hands in the seconds that are over.
func (w *udpServeWorker) turnSecond() {
	now := w.server.clock()
	for now >= int64(w.second+1)*second {
		w.handIn()
		w.second++
	}
}

func (w *udpServeWorker) handIn() {
	w.server.handInServed(w.second, w.tally.Received-w.received, w.tally.Answered-w.answered)
	w.received, w.answered = w.tally.Received, w.tally.Answered
}

// answerAll takes what is in the socket, a burst at most, so that the end of the run
// and of the second are seen; the socket is level-triggered and says so again.
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

// public reports whether a sender is not to be answered: whoever forges the address of
// another party would make this machine send there.
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
			w.tally.Failures.Add(load.InSend, load.Reason(errno))
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
