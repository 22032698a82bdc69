// Package run sends HTTP load, and serves it: epoll loops on threads of their
// own, past Go's network poller.
package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
)

// progressEvery is how often Options.Progress is called.
const progressEvery = 250 * time.Millisecond

// Options is what a run needs besides its configuration.
type Options struct {
	// Netns is where the connections come from; nil for the caller's.
	Netns *netns.Handle
	// Progress is called now and then, from one goroutine; may be nil.
	Progress func(load.Progress)
}

// run is what the workers of one run share.
type run struct {
	cfg          load.Config
	pace         load.Pace
	to           sockaddr
	family       int
	sources      []sockaddr
	ports        load.Permutation // of sources × source ports; unused where the kernel chooses
	request      []byte
	workers      int
	serverCloses bool
	started      time.Time

	issued       atomic.Int64
	firstFailure atomic.Int64 // since the start; MaxInt64 where there is none
	succeeded    atomic.Bool
	refusals     atomic.Int64
	refusal      atomic.Uint32 // the reason that ended the run
	stop         atomic.Bool
	stopFile     int // eventfd that wakes the workers

	mu     sync.Mutex
	course *load.Course
}

// claim takes one request of the run's number.
func (r *run) claim() bool {
	return r.cfg.Requests == 0 || r.issued.Add(1) <= r.cfg.Requests
}

// connectFailed ends a run in which nothing has worked and the same comes again
// and again.
func (r *run) connectFailed(reason load.Reason) {
	if r.cfg.AbortAfter == 0 || r.succeeded.Load() {
		return
	}
	if r.refusals.Add(1) == int64(r.cfg.AbortAfter) {
		r.refusal.Store(uint32(reason))
		r.end()
	}
}

// end makes the workers leave at once. The eventfd is never read, so it wakes
// all of them.
func (r *run) end() {
	r.stop.Store(true)
	one := [8]byte{1}
	_, _ = unix.Write(r.stopFile, one[:]) // cannot fail short of 2^64 writes
}

// ownPorts tells whether natkit chooses the source ports, not the kernel.
func (r *run) ownPorts() bool { return r.cfg.SourcePorts.Len() > 0 }

// HTTP runs the load until its requests or its time are done, or ctx ends: then
// it returns what was measured until then, without an error. It takes one
// thread per worker and leaves nothing open.
func HTTP(ctx context.Context, cfg load.Config, opt Options) (*load.Result, error) {
	cfg, target, err := cfg.Checked()
	if err != nil {
		return nil, fmt.Errorf("bench http: %w", err)
	}
	r, err := newRun(ctx, cfg, target, opt.Netns)
	if err != nil {
		return nil, fmt.Errorf("bench http %s: %w", target.HostPort(), err)
	}
	defer unix.Close(r.stopFile)
	workers, err := r.makeWorkers()
	if err != nil {
		return nil, fmt.Errorf("bench http %s: %w", target.HostPort(), err)
	}
	defer moreProcs(len(workers))()
	before, after, err := r.conduct(ctx, workers, opt)
	if err != nil {
		return nil, fmt.Errorf("bench http %s: %w", target.HostPort(), err)
	}
	result := r.result(workers, before, after)
	if r.refusal.Load() != 0 && ctx.Err() == nil {
		return result, fmt.Errorf("bench http %s: connect: %v (%d times, and no request succeeded)",
			target.HostPort(), load.Reason(r.refusal.Load()), cfg.AbortAfter)
	}
	return result, nil
}

func newRun(ctx context.Context, cfg load.Config, target load.Target, ns *netns.Handle) (*run, error) {
	addr, err := resolve(ctx, target)
	if err != nil {
		return nil, err
	}
	zones, err := zoneNumbers(ns, append([]netip.Addr{addr.Addr()}, cfg.Sources...))
	if err != nil {
		return nil, err
	}
	r := &run{
		cfg: cfg, pace: load.Pace{PerSecond: cfg.Rate},
		to: newSockaddr(addr, zones[addr.Addr().Zone()]), family: family(addr.Addr()),
		request:      load.RequestBytes(target, cfg),
		serverCloses: cfg.Close == load.CloseServer && !cfg.KeepAlive,
	}
	r.firstFailure.Store(math.MaxInt64)
	for _, s := range cfg.Sources {
		if family(s) != r.family {
			return nil, fmt.Errorf("source address %v is not of the same family as the target %v", s, addr.Addr())
		}
		r.sources = append(r.sources, newSockaddr(netip.AddrPortFrom(s, 0), zones[s.Zone()]))
	}
	order := rand.New(rand.NewPCG(cfg.Seed, 0))
	order.Shuffle(len(r.sources), func(i, j int) { r.sources[i], r.sources[j] = r.sources[j], r.sources[i] })
	if r.ownPorts() {
		if len(r.sources) == 0 {
			any := netip.IPv4Unspecified()
			if r.family == unix.AF_INET6 {
				any = netip.IPv6Unspecified()
			}
			r.sources = []sockaddr{newSockaddr(netip.AddrPortFrom(any, 0), 0)}
		}
		r.ports = load.NewPermutation(uint64(len(r.sources)*cfg.SourcePorts.Len()), cfg.Seed)
	}
	if r.stopFile, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	return r, nil
}

// resolve turns the host into an address; a name is looked up by the system's
// resolver outside of any namespace, IPv4 first.
func resolve(ctx context.Context, t load.Target) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(t.Host); err == nil {
		return netip.AddrPortFrom(a.Unmap(), t.Port), nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.Host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("look up the host: %w", err)
	}
	best := found[0].Unmap()
	for _, a := range found {
		if a = a.Unmap(); a.Is4() {
			best = a
			break
		}
	}
	return netip.AddrPortFrom(best, t.Port), nil
}

// makeWorkers shares the connections out: one worker per CPU, more where the
// limit of open files asks for it.
func (r *run) makeWorkers() ([]*worker, error) {
	files, err := fileLimit()
	if err != nil {
		return nil, err
	}
	n := r.cfg.Workers
	if n == 0 {
		n = runtime.NumCPU()
	}
	c := r.cfg.Concurrency
	n = min(max(n, (c+files-1)/files), c)
	r.workers, r.cfg.Workers = n, n
	r.course = load.NewCourse(n)
	workers := make([]*worker, n)
	for i := range workers {
		limit := c / n
		if i < c%n {
			limit++
		}
		workers[i] = newWorker(r, i, limit, min(limit, maxSpare, files-limit))
	}
	return workers, nil
}

// moreProcs lets Go run enough threads that a worker that waits is not robbed of
// its place, and that the rest of the program runs beside busy workers. The
// returned function takes it back.
func moreProcs(workers int) func() {
	procs.Lock()
	defer procs.Unlock()
	if procs.users == 0 {
		procs.before = runtime.GOMAXPROCS(0)
	}
	procs.users++
	procs.workers += workers
	runtime.GOMAXPROCS(procs.before + procs.workers)
	return func() {
		procs.Lock()
		defer procs.Unlock()
		procs.users--
		procs.workers -= workers
		runtime.GOMAXPROCS(procs.before + procs.workers)
	}
}

// procs is shared by all runs of the process, as GOMAXPROCS is.
var procs struct {
	sync.Mutex
	before, users, workers int
}

// conduct starts the workers together and waits for all.
func (r *run) conduct(ctx context.Context, workers []*worker, opt Options) (before, after usage, err error) {
	var done sync.WaitGroup
	ready := make(chan error, len(workers))
	gun := make(chan struct{})
	for _, w := range workers {
		done.Go(func() {
			// Never unlocked: the thread ends with its namespace and file table.
			runtime.LockOSThread()
			err := w.setUp(opt.Netns)
			ready <- err
			if <-gun; err == nil && !r.stop.Load() {
				w.loop()
			}
		})
	}
	for range workers {
		err = errors.Join(err, <-ready)
	}
	if err != nil {
		r.stop.Store(true)
		close(gun)
		done.Wait()
		return before, after, err
	}
	finished := make(chan struct{})
	watched := r.watch(ctx, workers, opt.Progress, finished)
	resetPeak()
	before = readUsage()
	r.started = time.Now()
	close(gun)
	done.Wait()
	after = readUsage()
	close(finished)
	<-watched
	return before, after, nil
}

// watch ends the run with ctx and reports progress until finished is closed;
// then it closes the returned channel.
func (r *run) watch(ctx context.Context, workers []*worker, progress func(load.Progress), finished <-chan struct{}) <-chan struct{} {
	watched := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(watched)
		var tick <-chan time.Time
		if progress != nil {
			ticker := time.NewTicker(progressEvery)
			defer ticker.Stop()
			tick = ticker.C
		}
		cancelled := ctx.Done()
		last := load.Progress{}
		for {
			select {
			case <-finished:
				return
			case <-cancelled:
				r.end()
				cancelled = nil
			case <-tick:
				last = sum(workers, time.Since(begun), last)
				progress(last)
			}
		}
	}()
	return watched
}

func sum(workers []*worker, elapsed time.Duration, last load.Progress) load.Progress {
	p := load.Progress{Elapsed: elapsed}
	for _, w := range workers {
		p.Completed += w.seen.completed.Load()
		p.Failed += w.seen.failed.Load()
		p.InFlight += w.seen.inFlight.Load()
	}
	if d := (p.Elapsed - last.Elapsed).Seconds(); d > 0 {
		p.PerSecond = float64(p.Completed-last.Completed) / d
	}
	return p
}

// result merges what the workers counted.
func (r *run) result(workers []*worker, before, after usage) *load.Result {
	seen := load.Observed{Concurrency: r.cfg.Concurrency, Workers: len(workers)}
	all := workers[0].tally
	end, flown := int64(0), int64(0)
	server := ""
	for i, w := range workers {
		if i > 0 {
			all.Merge(w.tally)
		}
		end = max(end, w.now)
		flown += w.flown
		if server == "" {
			server = w.server
		}
		seen.BusiestWorker = max(seen.BusiestWorker, w.busy)
		seen.Starts += w.starts
		seen.Late += w.late
		seen.Queued += w.queued
		seen.NoLocalPort += w.noLocalPort
	}
	res := &load.Result{Config: r.cfg, Server: server, Seconds: float64(end) / 1e9, FirstFailureSeconds: -1}
	if first := r.firstFailure.Load(); first != math.MaxInt64 {
		res.FirstFailureSeconds = float64(first) / 1e9
	}
	if end > 0 {
		res.MeanInFlight = float64(flown) / float64(end)
	}
	all.Fill(res)
	res.Series = r.course.Series(res.Seconds)
	res.CPU = between(before, after)
	observeCPU(&seen, before, after, res.Seconds)
	res.GeneratorLimit, res.CPUContention = seen.Limit(), seen.Contention()
	return res
}
