// Package pair matches two captures taken on both sides of a NAT: what was lost, what was
// rewritten, how long it took.
//
// It needs no knowledge of the NAT. Packets are matched within a window of time by what a NAT
// does not change (TCP sequence numbers, payloads). What changes those looks lost: SYNPROXY,
// helpers that rewrite payloads, proxies, and segments joined or split between the captures (GRO
// and TSO of another machine).
package pair

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"time"

	"github.com/natkit/natkit/internal/pcap"
)

// Options of Match. The zero value means the usual ones.
type Options struct {
	// Window is the longest time from one capture to the other; 2 s.
	Window time.Duration
	// Memory bounds what is kept of packets and flows, in bytes; 256 MiB.
	Memory int64
	// Listed bounds how many flows are listed of each kind; 100.
	Listed int
}

// Bounds of Options.
const (
	MinMemory     = 16 << 20
	DefaultMemory = 256 << 20
	MaxWindow     = time.Minute
)

// Match reads two captures once, side by side, and matches them. The first is the inside one
// unless the translations show otherwise.
func Match(inside, outside io.Reader, o Options) (*Report, error) {
	if o.Memory != 0 && o.Memory < MinMemory {
		return nil, fmt.Errorf("match captures: memory of %d bytes: must be at least %d", o.Memory, MinMemory)
	}
	m := newMatcher(o)
	if err := m.read(inside, outside); err != nil {
		return nil, err
	}
	return m.report(), nil
}

// source is one of the two captures, read as it is asked for.
type source struct {
	stats                     pcap.Stats
	unreadable, unforwardable int64

	next func() (observed, bool)
	stop func()
	err  error
	// ahead are packets that were read and not yet taken.
	ahead []observed
	taken int
	ended bool
	// first and last are the times of all packets read, by this capture's clock.
	first, last int64
	any         bool
}

// errStop ends the reading of a capture.
var errStop = errors.New("enough")

func openSource(r io.Reader) *source {
	s := &source{}
	s.next, s.stop = iter.Pull(func(yield func(observed) bool) {
		var o observed
		var err error
		s.stats, err = pcap.Each(r, func(p *pcap.Packet) error {
			s.cover(p.At)
			if p.Dropped { // it is there as it came, too, or never left
				return nil
			}
			switch o.set(p) {
			case unreadable:
				s.unreadable++
			case unforwardable:
				s.unforwardable++
			default:
				if !yield(o) {
					return errStop
				}
			}
			return nil
		})
		if !errors.Is(err, errStop) {
			s.err = err
		}
	})
	return s
}

// cover notes that the capture has a packet of this time, whatever it is.
func (s *source) cover(at int64) {
	if !s.any {
		s.any, s.first, s.last = true, at, at
	}
	s.first, s.last = min(s.first, at), max(s.last, at)
}

// fill reads ahead n packets, or to the end.
func (s *source) fill(n int) {
	for len(s.ahead)-s.taken < n && !s.ended {
		o, ok := s.next()
		if !ok {
			s.ended = true
			return
		}
		if s.taken > 0 && s.taken == len(s.ahead) {
			s.ahead, s.taken = s.ahead[:0], 0
		}
		s.ahead = append(s.ahead, o)
	}
}

// peek is the next packet; nil at the end. It holds until take.
func (s *source) peek() *observed {
	s.fill(1)
	if s.taken == len(s.ahead) {
		return nil
	}
	return &s.ahead[s.taken]
}

func (s *source) take() { s.taken++ }

// until is the time up to which the capture covers: unbounded before its end.
func (s *source) until() int64 {
	if !s.ended || s.taken < len(s.ahead) {
		return math.MaxInt64
	}
	last := s.last
	for _, i := range s.stats.Interfaces {
		if !i.Ended.IsZero() {
			last = max(last, i.Ended.UnixNano())
		}
	}
	return last
}

// began is when the capture says that it began, which it does at its end.
func (s *source) began() (at int64, ok bool) {
	for _, i := range s.stats.Interfaces {
		if b := i.Began; !b.IsZero() && (!ok || b.UnixNano() < at) {
			at, ok = b.UnixNano(), true
		}
	}
	return at, ok
}
