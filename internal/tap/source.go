package tap

import (
	"errors"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/capture"
	"github.com/natkit/natkit/internal/netns"
)

// Filter makes a filter that keeps one in sample connections. It decides also on packets that are no IP,
// and by their type (PACKET_OUTGOING, …) which way they go.
type Filter func(sample int) ([]bpf.RawInstruction, error)

// Feed is the packets that a filter keeps. It may be used by one goroutine.
type Feed interface {
	// Receive calls fn for waiting packets and returns their number. It does not wait.
	Receive(fn func(*Packet)) (int, error)
	// Attach replaces the filter by one for one in sample connections.
	Attach(sample int) error
	// Lost returns the number of packets that found no room since the last call.
	Lost() uint64
	// Rest sees no packets, and costs others nothing, until Resume; other feeds of the source may rest as well.
	Rest() error
	Resume() error
	Close()
}

// Source is where the feeds of a namespace come from: eBPF programs that all of them share or, where the
// kernel or the privilege has none, a packet socket each.
type Source struct {
	ns *netns.Handle
	mu sync.Mutex
	// capture is nil where feeds are sockets.
	capture *capture.Capture
	feeds   []*captured
}

// OpenSource never fails: without programs there are sockets.
func OpenSource(ns *netns.Handle) *Source { return openSource(capture.Options{Netns: ns}) }

func openSource(o capture.Options) *Source {
	s := &Source{ns: o.Netns}
	if c, err := capture.Open(o); err == nil {
		s.capture = c
	}
	return s
}

// SocketSource is one without programs.
func SocketSource(ns *netns.Handle) *Source { return &Source{ns: ns} }

// Programs reports whether feeds are by programs, which leave packets as they are; sockets have those that are
// sent cloned.
func (s *Source) Programs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

// Open begins a feed; one of received packets alone costs a socket less.
func (s *Source) Open(received bool, sample int, filter Filter) (Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture != nil {
		f := &captured{source: s, received: received, filter: filter}
		s.feeds = append(s.feeds, f)
		if err := f.attach(sample); err != nil {
			s.feeds = s.feeds[:len(s.feeds)-1]
			return nil, err
		}
		return f, nil
	}
	f, err := s.socket(received, sample, filter)
	if err != nil {
		return nil, err // not f: a Feed with a nil Socket is not nil
	}
	return f, nil
}

func (s *Source) socket(received bool, sample int, filter Filter) (f *Socket, err error) {
	err = s.ns.Do(func() (err error) { f, err = openSocket(received, sample, filter); return err })
	return f, err
}

// install has the programs work for all feeds, or gives all of them sockets.
func (s *Source) install() error {
	filters, received := make([][]bpf.RawInstruction, len(s.feeds)), true
	for i, f := range s.feeds {
		filters[i] = f.program
		received = received && f.received
	}
	return s.orReplace(s.capture.Install(filters, received))
}

// orReplace gives feeds sockets where programs failed, which may leave all of them without packets.
func (s *Source) orReplace(failed error) error {
	if failed == nil {
		return nil
	}
	if err := s.replace(); err != nil {
		return errors.Join(failed, err)
	}
	return nil
}

// drain gives feeds the packets that wait.
func (s *Source) drain() error {
	_, err := s.capture.Read(mostAtOnce, func(p *capture.Packet) {
		for i, f := range s.feeds {
			if p.Feeds>>i&1 == 0 {
				continue
			}
			if len(f.queue) == mostAtOnce {
				f.dropped++
				continue
			}
			q := queued{Packet: Packet{Version: int(p.Data[0] >> 4), Interface: p.Interface, At: p.At,
				Sent: p.Type == unix.PACKET_OUTGOING, Passing: p.Type == unix.PACKET_OTHERHOST}, length: len(p.Data)}
			copy(q.bytes[:], p.Data)
			f.queue = append(f.queue, q)
		}
	})
	if err == nil && s.capture.Unreadable() > 0 {
		return s.replace()
	}
	return s.orReplace(err)
}

// replace gives feeds sockets, where programs fail or cannot read packets whole.
func (s *Source) replace() (err error) {
	for _, f := range s.feeds {
		if f.closed || f.socket != nil {
			continue
		}
		if f.socket, err = s.socket(f.received, f.sample, f.filter); err != nil {
			return err
		}
	}
	s.close()
	return nil
}

// Close ends the programs; feeds have to be closed before.
func (s *Source) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
}

func (s *Source) close() {
	if s.capture != nil {
		_ = s.capture.Close()
	}
	s.capture = nil
}

// queued is a packet with its bytes.
type queued struct {
	Packet
	bytes  [KeepBytes]byte
	length int
}

// captured is a feed by programs, or by a socket in their place.
type captured struct {
	source   *Source
	received bool
	filter   Filter
	sample   int
	program  []bpf.RawInstruction
	queue    []queued
	// dropped found no room in the queue; told is what Lost has returned of what the source has lost.
	dropped, told uint64
	socket        *Socket
	closed        bool
}

// use has a function use the programs, or the socket once there is one.
func (f *captured) use(programs func() error, socket func(*Socket) error) error {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	if f.socket != nil {
		return socket(f.socket)
	}
	return programs()
}

func (f *captured) Attach(sample int) error {
	return f.use(func() error { return f.attach(sample) }, func(s *Socket) error { return s.Attach(sample) })
}

func (f *captured) attach(sample int) error {
	program, err := f.filter(sample)
	if err != nil {
		return err
	}
	f.sample, f.program = sample, program
	return f.source.install()
}

func (f *captured) Receive(fn func(*Packet)) (n int, err error) {
	var queue []queued
	err = f.use(func() error {
		err := f.source.drain()
		queue, f.queue = f.queue, nil
		return err
	}, func(s *Socket) (err error) { n, err = s.Receive(fn); return err })
	for i := range queue {
		queue[i].Data = queue[i].bytes[:queue[i].length]
		fn(&queue[i].Packet)
	}
	return n + len(queue), err
}

func (f *captured) Lost() (lost uint64) {
	_ = f.use(func() error {
		all := f.source.capture.Lost() + f.dropped
		lost, f.told = all-f.told, all
		return nil
	}, func(s *Socket) error { lost = s.Lost(); return nil })
	return lost
}

func (f *captured) Rest() error {
	return f.use(func() error { f.source.capture.Rest(); return nil }, (*Socket).Rest)
}

func (f *captured) Resume() error {
	return f.use(func() error { return f.source.orReplace(f.source.capture.Resume()) }, (*Socket).Resume)
}

// Close has the filter keep nothing from the next one on. The programs work until the source ends.
func (f *captured) Close() {
	_ = f.use(func() error { f.program, f.queue, f.closed = nil, nil, true; return nil },
		func(s *Socket) error { s.Close(); f.closed = true; return nil })
}
