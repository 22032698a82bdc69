package pair

import (
	"errors"
	"io"
	"iter"
	"math"

	"github.com/natkit/natkit/internal/pcap"
)

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
	// first and last are the times of packets that were taken, not only of those that can
	// be compared; by this capture's own clock.
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
			switch o.look(p) {
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

// fill reads ahead until so many packets are there, or the capture ends.
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

// until is the time to which the capture is known to have run: without end while there
// are packets to come; then that of its last packet, or later where it says so.
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
