package tap

import (
	"context"
	"time"
)

const (
	// pause is the interval of turns: each costs a task switch, which is felt where the CPU is used up.
	pause = 20 * time.Millisecond
	// longest is for how long a tap works, whatever its caller does.
	longest = 10 * time.Minute
)

// Run calls poll every 20 ms until stop, at most 10 minutes, and once more at the end. stop
// returns the first error.
func Run(ctx context.Context, poll func() error) (stop func() error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	ended := make(chan error, 1)
	go func() { ended <- turns(ctx, poll) }()
	return func() error { cancel(); return <-ended }
}

func turns(ctx context.Context, poll func() error) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return poll()
		case <-tick.C:
			if err := poll(); err != nil {
				return err
			}
		}
	}
}

// MostPerSecond packets are read, about.
const MostPerSecond = 2_500

const (
	mostSample = 1 << 12
	burst      = time.Second
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

// Add counts packets, and reports whether Sample is larger from now on: twice, or four times where packets come
// much too fast, as each change costs time.
func (r *Rate) Add(packets int) bool {
	r.seen += packets
	span := time.Since(r.since)
	if float64(r.seen) < MostPerSecond*(span+burst).Seconds() || r.Sample >= mostSample {
		return false
	}
	r.Sample *= 2
	if float64(r.seen) > 4*MostPerSecond*span.Seconds() {
		r.Sample *= 2
	}
	r.seen, r.since = 0, time.Now()
	return true
}
