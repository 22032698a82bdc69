// Package run sends HTTP load and datagrams, and serves both: epoll loops on threads of their own,
// without Go's network poller.
package run

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// httpRun is what the workers of a run of HTTP requests share.
type httpRun struct {
	crew
	origin
	batches
	cfg         load.Config
	pace        load.Pace
	request     []byte
	lastRequest []byte // of a kept connection that is at its limit

	firstFailure atomic.Int64 // since the start; MaxInt64 if there is none
	succeeded    atomic.Bool
	refusals     atomic.Int64
	refusal      atomic.Uint32 // the reason that ended the run
}

// HTTP runs the load until its requests or its time are over, or ctx ends: then it returns what was
// measured until then, without an error. It uses one thread per worker and leaves nothing open.
func HTTP(ctx context.Context, cfg load.Config, opt Options) (*load.Result, error) {
	if err := permit.Change("send requests"); err != nil {
		return nil, err
	}
	cfg, target, err := cfg.Checked()
	if err != nil {
		return nil, fmt.Errorf("bench http: %w", err)
	}
	fail := func(err error) error { return fmt.Errorf("bench http %s: %w", target.HostPort(), err) }
	r, workers, err := newHTTPRun(ctx, cfg, target, opt)
	if err != nil {
		return nil, fail(err)
	}
	defer unix.Close(r.stopFile)
	turned := r.turnBatches(ctx, opt.NextBatch)
	err = conduct(ctx, &r.crew, workers, opt)
	if batchErr := turned(); err == nil {
		err = batchErr
	}
	if err != nil {
		return nil, fail(err)
	}
	result := r.result(workers)
	if r.refusal.Load() != 0 && ctx.Err() == nil {
		return result, fail(fmt.Errorf("connect: %v (%d times, and no request succeeded)",
			load.Reason(r.refusal.Load()), cfg.AbortAfter))
	}
	return result, nil
}

// newHTTPRun makes a run and its workers; the caller closes stopFile.
func newHTTPRun(ctx context.Context, cfg load.Config, target load.Target, opt Options) (*httpRun, []*worker, error) {
	to, err := destinations(ctx, cfg, target)
	if err != nil {
		return nil, nil, err
	}
	files, err := fileLimit()
	if err != nil {
		return nil, nil, err
	}
	if cfg.Workers, err = workersFor(cfg.Workers, cfg.Concurrency, "connections", files); err != nil {
		return nil, nil, err
	}
	last := cfg // asks the server to close if it is to close first
	last.KeepAlive = false
	r := &httpRun{
		cfg: cfg, pace: load.Pace{PerSecond: cfg.Rate},
		request: load.RequestBytes(target, cfg), lastRequest: load.RequestBytes(target, last),
	}
	r.firstFailure.Store(math.MaxInt64)
	r.batches.init(cfg)
	if r.origin, err = newOrigin(opt.Netns, to, cfg.Sources, cfg.SourcePorts, cfg.Seed); err != nil {
		return nil, nil, err
	}
	if err := r.prepare(cfg.Workers); err != nil {
		return nil, nil, err
	}
	workers := make([]*worker, cfg.Workers)
	for i := range workers {
		limit := cfg.Concurrency / cfg.Workers
		if i < cfg.Concurrency%cfg.Workers {
			limit++
		}
		workers[i] = newWorker(r, i, limit, min(limit, maxSpare, files-limit))
	}
	return r, workers, nil
}

// destinations returns where connections go to, in turn.
func destinations(ctx context.Context, cfg load.Config, t load.Target) (to []netip.AddrPort, err error) {
	addrs := cfg.ConnectTo
	if len(addrs) == 0 {
		addr, err := resolve(ctx, t)
		if err != nil {
			return nil, err
		}
		addrs = []netip.Addr{addr}
	}
	for _, a := range addrs {
		to = append(to, netip.AddrPortFrom(a.Unmap(), t.Port))
	}
	return to, nil
}

// resolve returns the host's address; a name is resolved by the system's resolver outside of any
// namespace, IPv4 first.
func resolve(ctx context.Context, t load.Target) (netip.Addr, error) {
	if a, err := netip.ParseAddr(t.Host); err == nil {
		return a, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.Host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("resolve the host: %w", err)
	}
	for _, a := range found {
		if a.Unmap().Is4() {
			return a, nil
		}
	}
	return found[0], nil
}

// perConnection returns how many requests one connection may carry.
func (r *httpRun) perConnection() int32 {
	switch n := r.cfg.PerConnection; {
	case !r.cfg.KeepAlive:
		return 1
	case n == 0:
		return math.MaxInt32
	default:
		return int32(min(n, math.MaxInt32))
	}
}

// connectFailed ends a run in which nothing has succeeded and connections keep failing.
func (r *httpRun) connectFailed(reason load.Reason) {
	if r.cfg.AbortAfter == 0 || r.succeeded.Load() {
		return
	}
	if r.refusals.Add(1) == int64(r.cfg.AbortAfter) {
		r.refusal.Store(uint32(reason))
		r.end()
	}
}

// result merges what the workers counted.
func (r *httpRun) result(workers []*worker) *load.Result {
	all := workers[0].tally
	end, flown := int64(0), int64(0)
	res := &load.Result{Config: r.cfg, FirstFailureSeconds: -1}
	for i, w := range workers {
		if i > 0 {
			all.Merge(w.tally)
		}
		end = max(end, w.now)
		flown += w.flown
		if res.Server == "" {
			res.Server = w.server
		}
	}
	res.Seconds = float64(end) / 1e9
	if first := r.firstFailure.Load(); first != math.MaxInt64 {
		res.FirstFailureSeconds = float64(first) / 1e9
	}
	if end > 0 {
		res.MeanInFlight = float64(flown) / float64(end)
	}
	all.Fill(res)
	res.Series = r.course.Series(res.Seconds)
	var seen load.Observed
	seen, res.CPU = observed(&r.crew, workers, res.Seconds)
	seen.Concurrency = r.cfg.Concurrency
	for _, w := range workers {
		seen.Starts += w.starts
		seen.Late += w.late
		seen.Queued += w.queued
		seen.NoLocalPort += w.noLocalPort
	}
	res.GeneratorLimit, res.CPUContention = seen.Limit(), seen.Contention()
	return res
}

// claimed is the answer to a worker that asks for a request to make.
type claimed uint8

const (
	granted claimed = iota
	// notYet: the next batch has not begun.
	notYet
	// noMore: all requests are made or in flight.
	noMore
)

// batches are the pieces of a run, each begun when the one before is over; without Config.Batch
// the run is one piece.
type batches struct {
	size, requests int64 // MaxInt64 for no limit
	issued, over   atomic.Int64
	released       atomic.Int64
	turn           chan struct{} // the present batch is over
}

func (b *batches) init(cfg load.Config) {
	b.size, b.requests, b.turn = math.MaxInt64, math.MaxInt64, make(chan struct{}, 1)
	if cfg.Requests > 0 {
		b.requests = cfg.Requests
	}
	if cfg.Batch > 0 {
		b.size = cfg.Batch
	}
	b.release()
}

// release lets the next batch begin.
func (b *batches) release() {
	before := b.released.Load()
	b.released.Store(before + min(b.size, b.requests-before))
}

// claim takes one request of the run's number, if its batch has begun.
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
func (b *batches) requestOver() {
	if b.size < math.MaxInt64 && b.over.Add(1) == b.released.Load() {
		b.turn <- struct{}{} // a batch is over once
	}
}

// turnBatches begins one batch after the other. The returned function ends that and returns its
// error.
func (r *httpRun) turnBatches(ctx context.Context, next func(context.Context, int) error) func() error {
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

func (r *httpRun) takeTurns(ctx context.Context, next func(context.Context, int) error) error {
	for n := 1; r.released.Load() < r.requests; n++ {
		select {
		case <-r.turn:
		case <-ctx.Done():
			return nil
		}
		if err := next(ctx, n); err != nil {
			if ctx.Err() != nil { // the run has ended meanwhile
				return nil
			}
			r.end()
			return err
		}
		r.release()
	}
	return nil
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
