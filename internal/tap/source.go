package tap

import (
	"errors"
	"slices"
	"sync"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf/capture"
	"github.com/natkit/natkit/internal/netns"
)

// Samples are of two rates of which a filter may ask: one in so many, a power of two.
type Samples [capture.Masks]int

// Filter makes a filter that keeps one in so many connections. It decides also on packets that are no IP,
// and by their type (PACKET_OUTGOING, …) which way they go.
type Filter func(Samples) ([]bpf.RawInstruction, error)

// Source is where the feeds of a namespace come from: eBPF programs that all of them share or, where the
// kernel or the privilege has none, a packet socket each. Several watchers may have feeds of one source.
type Source struct {
	ns     *netns.Handle
	seeing sync.Mutex // see
	mu     sync.Mutex // what follows
	// capture is nil where feeds are sockets.
	capture *capture.Capture
	feeds   []*Feed
	duty    duty
}

// OpenSource never fails: without programs there are sockets.
func OpenSource(ns *netns.Handle) *Source { return openSource(capture.Options{Netns: ns}) }

// OpenSourceWith is OpenSource where the kernel's types are read already.
func OpenSourceWith(types *btf.Cache, ns *netns.Handle) *Source {
	return openSource(capture.Options{Netns: ns, Types: types})
}

func openSource(o capture.Options) *Source {
	s := SocketSource(o.Netns)
	if c, err := capture.Open(o); err == nil {
		s.capture = c
	}
	return s
}

// SocketSource is one without programs.
func SocketSource(ns *netns.Handle) *Source { return &Source{ns: ns, duty: duty{schedule: usual}} }

// Programs reports whether feeds are by programs, which leave packets as they are; sockets have those that are
// sent cloned.
func (s *Source) Programs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

// Open begins a feed; one of received packets alone costs a socket less.
func (s *Source) Open(received bool, samples Samples, filter Filter) (*Feed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &Feed{source: s, received: received, samples: samples, filter: filter}
	s.feeds = append(s.feeds, f)
	err := error(nil)
	if s.capture != nil {
		err = f.attach()
	} else {
		err = f.open()
	}
	if err != nil {
		s.feeds = s.feeds[:len(s.feeds)-1]
		return nil, err
	}
	return f, nil
}

// rest has no feed see packets, and costs others nothing, until resume.
func (s *Source) rest() error {
	if s.capture != nil {
		s.capture.Rest()
	}
	return s.sockets((*Socket).Rest)
}

func (s *Source) resume() error {
	if s.capture != nil {
		if err := s.orReplace(s.capture.Resume()); err != nil {
			return err
		}
	}
	return s.sockets((*Socket).Resume)
}

func (s *Source) sockets(do func(*Socket) error) (err error) {
	for _, f := range s.feeds {
		if f.socket != nil && !f.closed {
			err = errors.Join(err, do(f.socket))
		}
	}
	return err
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
		if err = f.open(); err != nil {
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

// Feed is the packets that a filter keeps, by programs, or by a socket in their place. It may be used by one goroutine.
type Feed struct {
	source   *Source
	received bool
	filter   Filter
	samples  Samples
	program  []bpf.RawInstruction
	queue    []queued
	// dropped found no room in the queue; told is what Lost has returned of what the source has lost.
	dropped, told uint64
	socket        *Socket
	closed        bool
}

// use has a function use the programs, or the socket once there is one, and none once the source is closed.
func (f *Feed) use(programs func() error, socket func(*Socket) error) error {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	switch {
	case f.socket != nil:
		return socket(f.socket)
	case f.source.capture == nil:
		return nil
	}
	return programs()
}

// open has a socket see packets.
func (f *Feed) open() error {
	s := f.source
	err := s.ns.Do(func() (err error) { f.socket, err = openSocket(f.received, f.samples, f.filter); return err })
	if err == nil && s.duty.pausing {
		err = f.socket.Rest()
	}
	return err
}

// Attach replaces the filter by what it is now.
func (f *Feed) Attach() error {
	return f.use(f.attach, func(s *Socket) error { return s.Attach(f.samples) })
}

func (f *Feed) attach() (err error) {
	if f.program, err = f.filter(variable); err != nil {
		return err
	}
	if err := f.source.install(); err != nil {
		return err
	}
	return f.mask()
}

// Sample has the filter keep one in so many from now on.
func (f *Feed) Sample(samples Samples) error {
	f.samples = samples
	return f.use(f.mask, func(s *Socket) error { return s.Attach(samples) })
}

func (f *Feed) mask() error {
	if f.source.capture == nil { // sockets have replaced the programs
		return nil
	}
	var masks [capture.Masks]uint32
	for i, n := range f.samples {
		masks[i] = mask(n)
	}
	return f.source.orReplace(f.source.capture.Mask(slices.Index(f.source.feeds, f), masks))
}

// Receive calls fn for waiting packets and returns their number. It does not wait.
func (f *Feed) Receive(fn func(*Packet)) (n int, err error) {
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

// Lost returns the number of packets that found no room since the last call.
func (f *Feed) Lost() (lost uint64) {
	_ = f.use(func() error {
		all := f.source.capture.Lost() + f.dropped
		lost, f.told = all-f.told, all
		return nil
	}, func(s *Socket) error { lost = s.Lost(); return nil })
	return lost
}

// Close has the filter keep nothing from the next one on. The programs work until the source
// ends. A nil feed has nothing to close.
func (f *Feed) Close() {
	if f == nil {
		return
	}
	_ = f.use(func() error { f.program, f.queue, f.closed = nil, nil, true; return nil },
		func(s *Socket) error { s.Close(); f.closed = true; return nil })
}
