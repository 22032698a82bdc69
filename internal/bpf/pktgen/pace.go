package pktgen

import (
	"context"
	"math"
	"time"

	"github.com/natkit/natkit/internal/load"
)

// tick is how often a paced worker sends what is due.
const tick = time.Millisecond

// pace is the schedule of each worker.
func (r *run) pace() load.Pace { return load.Pace{PerSecond: r.cfg.Rate / float64(r.cfg.Workers)} }

// paced sends what is due each tick, until the last one is due. Those that were sent
// before the start, to find the receiver, count as due.
func (w *worker) paced(ctx context.Context, start time.Time, total int64) error {
	pace, s := w.run.pace(), w.run.schedule(total)
	for ctx.Err() == nil {
		sent, err := w.alreadySent()
		if err != nil {
			return err
		}
		now := time.Since(start)
		due, last := s.due(now)
		switch {
		case due > sent && now < s.end+s.grace:
			if err := w.sendUntil(min(due, sent+burst)); err != nil {
				return err
			}
		case last:
			return nil
		default:
			wait(ctx, min(max(pace.At(min(sent, total-1))-now, tick), s.end-now))
		}
	}
	return nil
}

// schedule is what a paced worker has to send, and when.
type schedule struct {
	pace  load.Pace
	total int64
	end   time.Duration // of the run
	// grace is how long after the end a worker may catch up, whose CPU was
	// somebody else's when the last ones were due.
	grace time.Duration
}

func (r *run) schedule(total int64) schedule {
	if r.cfg.Duration == 0 {
		return schedule{r.pace(), total, math.MaxInt64 / 2, 0}
	}
	return schedule{r.pace(), total, r.cfg.Duration, min(r.cfg.Duration/10, 100*time.Millisecond)}
}

// due is how many are due in all, and whether none will be after them.
func (s schedule) due(now time.Duration) (n int64, last bool) {
	n = min(s.pace.Due(min(now, s.end-1)), s.total)
	return n, now >= s.end || n == s.total
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
