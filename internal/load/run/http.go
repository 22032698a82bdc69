// Package run sends HTTP load, and serves it: epoll loops on threads of their
// own, past Go's network poller.
package run

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Options is what a run needs besides its configuration.
type Options struct {
	// Netns is where the connections come from; nil for the caller's.
	Netns *netns.Handle
	// Progress is called now and then, from one goroutine; may be nil.
	Progress func(load.Progress)
	// NextBatch returns when the batch of that number (from 1; the first is 0) may begin,
	// all requests of those before being over; nil waits for Config.Pause. Its error ends
	// the run.
	NextBatch func(ctx context.Context, batch int) error
	// WatchOthers measures what other processes use of the CPUs.
	WatchOthers bool
	// ready is called when all workers are set up; may be nil.
	ready func()
}

// run is what the workers of one run share.
type run struct {
	crew
	cfg         load.Config
	pace        load.Pace
	to          []sockaddr // in turn
	family      int
	sources     []sockaddr
	ports       load.Permutation // of sources × source ports; unused where the kernel chooses
	request     []byte
	lastRequest []byte // of a kept connection that is at its limit
	workers     int
	batches     *batches // nil where all requests are one piece

	issued       atomic.Int64
	firstFailure atomic.Int64 // since the start; MaxInt64 where there is none
	succeeded    atomic.Bool
	refusals     atomic.Int64
	refusal      atomic.Uint32 // the reason that ended the run
}

// claim takes one request of the run's number, where its batch has begun.
func (r *run) claim() claimed {
	if r.batches != nil {
		return r.batches.claim()
	}
	if r.cfg.Requests == 0 || r.issued.Add(1) <= r.cfg.Requests {
		return granted
	}
	return noMore
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

// ownPorts reports whether natkit chooses the source ports, not the kernel.
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
	turned := r.turnBatches(ctx, opt.NextBatch)
	before, after, err := conduct(ctx, &r.crew, workers, opt)
	if batchErr := turned(); err == nil {
		err = batchErr
	}
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
	to, err := destinations(ctx, cfg, target)
	if err != nil {
		return nil, err
	}
	zones, err := zoneNumbers(ns, slices.Concat(to, cfg.Sources))
	if err != nil {
		return nil, err
	}
	addr := to[0]
	r := &run{
		cfg: cfg, pace: load.Pace{PerSecond: cfg.Rate}, family: family(addr),
		request: load.RequestBytes(target, cfg), lastRequest: lastRequest(target, cfg),
		batches: newBatches(cfg),
	}
	for _, a := range to {
		r.to = append(r.to, newSockaddr(netip.AddrPortFrom(a, target.Port), zones[a.Zone()]))
	}
	r.firstFailure.Store(math.MaxInt64)
	if r.sources, err = sourceAddrs(cfg.Sources, addr, zones, cfg.Seed); err != nil {
		return nil, err
	}
	if r.ownPorts() {
		r.sources = anyAddr(r.sources, r.family)
		r.ports = load.NewPermutation(uint64(len(r.sources)*cfg.SourcePorts.Len()), cfg.Seed)
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	return r, nil
}

// lastRequest asks the server to close where it is to close first.
func lastRequest(t load.Target, cfg load.Config) []byte {
	cfg.KeepAlive = false
	return load.RequestBytes(t, cfg)
}

// destinations are where connections go to, in turn.
func destinations(ctx context.Context, cfg load.Config, t load.Target) ([]netip.Addr, error) {
	var to []netip.Addr
	for _, a := range cfg.ConnectTo {
		to = append(to, a.Unmap())
	}
	if len(to) > 0 {
		return to, nil
	}
	addr, err := resolve(ctx, t)
	return []netip.Addr{addr}, err
}

// resolve turns the host into an address; a name is looked up by the system's
// resolver outside of any namespace, IPv4 first.
func resolve(ctx context.Context, t load.Target) (netip.Addr, error) {
	if a, err := netip.ParseAddr(t.Host); err == nil {
		return a.Unmap(), nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.Host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("look up the host: %w", err)
	}
	best := found[0].Unmap()
	for _, a := range found {
		if a = a.Unmap(); a.Is4() {
			best = a
			break
		}
	}
	return best, nil
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

// sourceAddrs makes the source addresses, in the order of the seed.
func sourceAddrs(sources []netip.Addr, to netip.Addr, zones map[string]uint32, seed uint64) ([]sockaddr, error) {
	var all []sockaddr
	for _, s := range sources {
		if family(s) != family(to) {
			return nil, fmt.Errorf("source address %v is not of the same family as the target %v", s, to)
		}
		all = append(all, newSockaddr(netip.AddrPortFrom(s, 0), zones[s.Zone()]))
	}
	order := rand.New(rand.NewPCG(seed, 0))
	order.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}

// anyAddr is the unspecified address where there is no source: a port can be
// chosen without an address.
func anyAddr(sources []sockaddr, family int) []sockaddr {
	if len(sources) > 0 {
		return sources
	}
	unspecified := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		unspecified = netip.IPv6Unspecified()
	}
	return []sockaddr{newSockaddr(netip.AddrPortFrom(unspecified, 0), 0)}
}

// checkSources binds to every source once, so that an address that is not this
// machine's is one error and not as many failures as there are requests.
func checkSources(sys *caller, family int, sources []sockaddr) error {
	for i := range sources {
		fd, errno := sys.socket(family)
		if errno == 0 {
			errno = sys.bind(fd, &sources[i])
			sys.close(fd)
		}
		if errno == syscall.EADDRNOTAVAIL {
			return fmt.Errorf("source address %v: not an address of this machine or namespace; add it to an interface first",
				sources[i].addr())
		}
		if errno != 0 && errno != syscall.EADDRINUSE {
			return fmt.Errorf("source address %v: bind: %w", sources[i].addr(), errno)
		}
	}
	return nil
}
