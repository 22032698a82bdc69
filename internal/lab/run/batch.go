package run

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/lab"
)

// Between two looks at a table is the time that its entries have to live, within these
// bounds: each look walks all buckets of the host, and what is open has days to live and
// can be closed at any moment.
const (
	forgetTickMin = 100 * time.Millisecond
	forgetTickMax = 500 * time.Millisecond
)

// batches waits between the batches of a load, and tells of it.
type batches struct {
	l     *loads
	batch lab.Batch
	// impatient batches began before all was forgotten; waited is in nanoseconds.
	count, impatient, waited atomic.Int64
}

func (l *loads) newBatches(b *lab.Batch) *batches {
	if b == nil {
		return nil
	}
	w := &batches{l: l, batch: *b}
	w.count.Store(1)
	return w
}

// next returns when the node has forgotten the connections of the last batch, or when
// patience is over.
func (w *batches) next(ctx context.Context, number int) error {
	began := time.Now()
	deadline := began.Add(w.batch.Patience.Duration)
	defer func() { w.waited.Add(int64(time.Since(began))) }()
	for {
		left, longest, err := w.remembered(ctx)
		if err != nil {
			return err
		}
		if left == 0 {
			break
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			w.impatient.Add(1)
			break
		}
		w.l.say(fmt.Sprintf("batch %d of %d requests begins when %s has forgotten %d connections", number+1, w.batch.Requests, w.batch.ForgottenBy, left))
		if err := wait(ctx, min(rest, max(forgetTickMin, min(longest, forgetTickMax)))); err != nil {
			return err
		}
	}
	w.count.Add(1)
	return nil
}

// tcpOfLoad are TCP entries that no fill has made.
var tcpOfLoad = match.Filter{Proto: match.Is(uint8(unix.IPPROTO_TCP)), MarkMask: math.MaxUint32}

// remembered counts the node's entries of TCP connections and tells how long the last
// of them has to live at least.
func (w *batches) remembered(ctx context.Context) (n int, longest time.Duration, err error) {
	_, err = dump.Each(ctx, w.l.c.node(w.batch.ForgottenBy), &tcpOfLoad, func(e *conntrack.Entry) error {
		n++
		longest = max(longest, time.Duration(e.Timeout)*time.Second)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("look which connections %s remembers: %w", w.batch.ForgottenBy, err)
	}
	return n, longest, err
}

// report is nil where there are no batches.
func (w *batches) report() *lab.Batches {
	if w == nil {
		return nil
	}
	return &lab.Batches{Count: int(w.count.Load()), Requests: w.batch.Requests,
		OutOfPatience: int(w.impatient.Load()), WaitedSeconds: float64(w.waited.Load()) / 1e9}
}
