package tap

import (
	"context"
	"time"
)

const (
	// pause is the interval of turns: each costs a task switch, which is felt where the CPU is used up.
	pause = 20 * time.Millisecond
	// longest is for how long a source is watched, whatever its caller does.
	longest = 10 * time.Minute
)

// Watcher is whom the feeds of a source are for.
type Watcher interface {
	// See takes the packets that have come.
	See() error
	// Pause: what comes from now on until the next See is not seen.
	Pause()
}

// Watch calls See every 20 ms until stop, at most 10 minutes, and once more at the end. On a busy host the source's
// feeds rest at times. stop returns the first error.
func (s *Source) Watch(ctx context.Context, w Watcher) (stop func() error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	ended := s.watch(ctx, w, pause)
	return func() error { cancel(); return <-ended }
}

// WatchEvery is Watch with another interval and no end but stop: for a watcher that keeps up with its feeds by their
// samples.
func (s *Source) WatchEvery(ctx context.Context, w Watcher, every time.Duration) (stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := s.watch(ctx, w, every)
	return func() error { cancel(); return <-ended }
}

func (s *Source) watch(ctx context.Context, w Watcher, every time.Duration) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- s.turns(ctx, w, every) }()
	return ended
}

func (s *Source) turns(ctx context.Context, w Watcher, every time.Duration) error {
	known := 0
	for {
		pauses, wait, err := s.turn()
		if err == nil {
			err = s.see(w, pauses != known)
		}
		if err != nil {
			return err
		}
		known = pauses
		select {
		case <-ctx.Done():
			return s.see(w, false)
		case <-time.After(max(wait, every)):
		}
	}
}

// see has one watcher at a time at work: what a filter depends on is its watcher's, and where sockets have to replace
// programs it is made again in the turn of any.
func (s *Source) see(w Watcher, paused bool) error {
	s.seeing.Lock()
	defer s.seeing.Unlock()
	if err := w.See(); err != nil || !paused {
		return err
	}
	w.Pause()
	return nil
}

// MostPerSecond packets are read, about.
const MostPerSecond = 2_500

const (
	mostSample = 1 << 12
	burst      = time.Second
	// leastSpan is the shortest time that a rate is taken of: a burst is none.
	leastSpan = 100 * time.Millisecond
)

// Rate bounds the packets that are read to MostPerSecond: beyond, fewer connections are sampled.
type Rate struct {
	// Sample: one in so many connections is read, a power of two.
	Sample int
	seen   int
	since  time.Time
}

// NewRate begins with all connections.
func NewRate() *Rate { return &Rate{Sample: 1, since: time.Now()} }

// Add counts packets, and reports whether Sample is larger from now on: as much as their rate demands, as each
// change costs time.
func (r *Rate) Add(packets int) bool {
	r.seen += packets
	span := time.Since(r.since)
	if float64(r.seen) < MostPerSecond*(span+burst).Seconds() || r.Sample >= mostSample {
		return false
	}
	r.Sample *= 2
	for left := float64(r.seen) / 2; left > MostPerSecond*max(span, leastSpan).Seconds() && r.Sample < mostSample; left /= 2 {
		r.Sample *= 2
	}
	r.seen, r.since = 0, time.Now()
	return true
}
