package tap

import (
	"sync"

	"golang.org/x/net/bpf"

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
func OpenSource(ns *netns.Handle) *Source {
	s := &Source{ns: ns}
	if c, err := capture.Open(capture.Options{Netns: ns}); err == nil {
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
		f := &captured{source: s, filter: filter}
		s.feeds = append(s.feeds, f)
		err := f.attach(sample)
		if err == nil {
			return f, nil
		}
		s.feeds = s.feeds[:len(s.feeds)-1]
		if len(s.feeds) > 0 {
			return nil, err
		}
		s.close()
	}
	var socket Feed
	err := s.ns.Do(func() (err error) { socket, err = Open(received, sample, filter); return err })
	return socket, err
}

// install has the programs work for all feeds.
func (s *Source) install() error {
	filters := make([][]bpf.RawInstruction, len(s.feeds))
	for i, f := range s.feeds {
		filters[i] = f.program
	}
	return s.capture.Install(filters)
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
			q := queued{Packet: Packet{Version: int(p.Data[0] >> 4), Interface: p.Interface, Sent: p.Sent, At: p.At}, length: len(p.Data)}
			copy(q.bytes[:], p.Data)
			f.queue = append(f.queue, q)
		}
	})
	return err
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

// captured is a feed by programs.
type captured struct {
	source  *Source
	filter  Filter
	program []bpf.RawInstruction
	queue   []queued
	// dropped found no room in the queue; lost is what the source had lost by the last call.
	dropped, lost uint64
}

func (f *captured) Attach(sample int) error {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	return f.attach(sample)
}

func (f *captured) attach(sample int) (err error) {
	if f.program, err = f.filter(sample); err != nil {
		return err
	}
	return f.source.install()
}

func (f *captured) Receive(fn func(*Packet)) (int, error) {
	f.source.mu.Lock()
	err := f.source.drain()
	queue := f.queue
	f.queue = nil
	f.source.mu.Unlock()
	for i := range queue {
		queue[i].Data = queue[i].bytes[:queue[i].length]
		fn(&queue[i].Packet)
	}
	return len(queue), err
}

func (f *captured) Lost() uint64 {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	all := f.source.capture.Lost() + f.dropped
	lost := all - f.lost
	f.lost = all
	return lost
}

func (f *captured) Rest() error {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	f.source.capture.Rest()
	return nil
}

func (f *captured) Resume() error {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	return f.source.capture.Resume()
}

// Close has the filter keep nothing. The programs work until the source ends.
func (f *captured) Close() {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	f.filter = func(int) ([]bpf.RawInstruction, error) { return nil, nil }
	f.program, f.queue = nil, nil
}
