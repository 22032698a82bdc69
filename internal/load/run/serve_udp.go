package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/packet"
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
	// Expected is what senders should look like, for instance behind a NAT; nil where
	// that does not matter.
	Expected *packet.End
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

	seconds   []udp.ServedSecond
	secondsMu sync.Mutex
}

// ServeUDP answers every request with its own payload, marked as a reply, from the
// address that it was sent to, until ctx ends, and returns what it saw. What is no
// request (udp.MakeReply) is not answered. Senders at public addresses are
// not answered unless cfg.OwnNetwork is set. It returns an error that wraps
// unix.EADDRINUSE where another program has the address.
func ServeUDP(ctx context.Context, cfg ServeUDPConfig) (*udp.Served, error) {
	fail := func(err error) error { return fmt.Errorf("serve UDP on %v: %w", cfg.Listen, err) }
	if !cfg.Listen.IsValid() {
		return nil, errors.New("serve UDP: no address to listen on; give ADDRESS:PORT")
	}
	if cfg.Expected != nil {
		if err := udp.CheckExpected(*cfg.Expected, cfg.Listen.Addr()); err != nil {
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
func (s *udpServer) serve(ctx context.Context, sockets listeners) (*udp.Served, error) {
	closed := sync.OnceFunc(sockets.close)
	defer closed()
	workers := make([]*udpServeWorker, len(sockets.fds))
	for i, fd := range sockets.fds {
		workers[i] = newUDPServeWorker(s, int32(fd), udp.MaxSourcesSeen/len(workers))
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
	served := &udp.Served{
		Listen: sockets.addr, Workers: len(workers), Expected: s.cfg.Expected,
		Seconds: float64(s.clock()) / 1e9, Series: s.seconds, CPU: between(before, after),
	}
	tallies := make([]*udp.ServeTally, len(workers))
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
		s.seconds = append(s.seconds, udp.ServedSecond{At: float64(len(s.seconds) + 1)})
	}
	s.seconds[second].Received += received
	s.seconds[second].Answered += answered
}
