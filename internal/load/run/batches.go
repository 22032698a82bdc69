package run

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/load"
)

// claimed is what a worker gets that asks for a request to make.
type claimed uint8

const (
	granted claimed = iota
	// notYet: the next batch has not begun.
	notYet
	// noMore: all requests are made or under way.
	noMore
)

// batchTick is how often a worker asks whether the next batch has begun, in
// nanoseconds.
const batchTick = 1_000_000

// batches are the pieces of a run, each begun when the one before is over.
type batches struct {
	size, requests int64 // requests is MaxInt64 where only the time ends the run
	issued, over   atomic.Int64
	released       atomic.Int64
	turn           chan struct{} // the present batch is over
}

func newBatches(cfg load.Config) *batches {
	if cfg.Batch == 0 {
		return nil
	}
	b := &batches{size: cfg.Batch, requests: cfg.Requests, turn: make(chan struct{}, 1)}
	if b.requests == 0 {
		b.requests = math.MaxInt64
	}
	b.release()
	return b
}

// release lets the next batch begin; false after the last one.
func (b *batches) release() bool {
	before := b.released.Load()
	b.released.Store(before + min(b.size, b.requests-before))
	return before < b.requests
}

func (b *batches) claim() claimed {
	released := b.released.Load()
	if b.issued.Add(1) <= released {
		return granted
	}
	b.issued.Add(-1)
	if released >= b.requests {
		return noMore
	}
	return notYet
}

// requestOver counts a request that was completed or has failed.
func (r *run) requestOver() {
	if b := r.batches; b != nil && b.over.Add(1) == b.released.Load() {
		b.turn <- struct{}{} // a batch is over once
	}
}

// turnBatches begins one batch after the other. The returned function ends that and
// tells what went wrong.
func (r *run) turnBatches(ctx context.Context, next func(context.Context, int) error) func() error {
	if r.batches == nil {
		return func() error { return nil }
	}
	if next == nil {
		next = func(ctx context.Context, _ int) error { return pause(ctx, r.cfg.Pause) }
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.takeTurns(ctx, next) }()
	return func() error {
		cancel()
		return <-done
	}
}

func (r *run) takeTurns(ctx context.Context, next func(context.Context, int) error) error {
	for n := 1; ; n++ {
		select {
		case <-r.batches.turn:
		case <-ctx.Done():
			return nil
		}
		if r.batches.released.Load() >= r.batches.requests {
			return nil
		}
		if err := next(ctx, n); err != nil {
			if ctx.Err() != nil { // the run has ended meanwhile
				return nil
			}
			r.end()
			return err
		}
		r.batches.release()
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// perConnection is how many requests one connection may carry.
func (r *run) perConnection() int32 {
	switch n := r.cfg.PerConnection; {
	case !r.cfg.KeepAlive:
		return 1
	case n == 0:
		return math.MaxInt32
	default:
		return int32(min(n, math.MaxInt32))
	}
}
