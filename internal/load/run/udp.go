package run

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/netns"
)

// errNothingBack ends runs to which nobody answers.
var errNothingBack = errors.New("nothing came back")

// udpRun is what the workers of a run of datagrams share.
type udpRun struct {
	crew
	cfg     udp.Config
	pace    load.Pace
	server  netip.AddrPort // as replies name it
	to      sockaddr
	family  int
	sources []sockaddr
	ports   load.Permutation // of sources × source ports; unused where the kernel chooses
	workers int
	token   uint32 // the run of its requests

	warm     chan struct{} // closed when begun is set
	begun    int64         // when the schedule and the time of the run begin
	answered atomic.Bool   // something came back
}

// UDP sends datagrams and takes the replies, until all are sent or the time is over,
// and their replies are there or the timeout has passed; or until ctx ends: then it
// returns what was measured until then, without an error. Where nothing at all comes
// back it ends early, and returns an error beside the result. It takes one thread
// per worker and leaves nothing open.
func UDP(ctx context.Context, cfg udp.Config, opt Options) (*udp.Result, error) {
	cfg, err := cfg.Checked()
	if err != nil {
		return nil, fmt.Errorf("bench udp: %w", err)
	}
	fail := func(err error) error { return fmt.Errorf("bench udp %v: %w", cfg.To, err) }
	r, err := newUDPRun(cfg, opt.Netns)
	if err != nil {
		return nil, fail(err)
	}
	defer unix.Close(r.stopFile)
	workers, err := r.makeWorkers()
	if err != nil {
		return nil, fail(err)
	}
	defer moreProcs(len(workers))()
	before, after, err := conduct(ctx, &r.crew, workers, opt)
	if err != nil {
		return nil, fail(err)
	}
	result := r.result(workers, before, after, ctx.Err() != nil)
	if result.Received == 0 && ctx.Err() == nil {
		return result, fail(fmt.Errorf("%w of %d datagrams: %s", errNothingBack, result.Sent, result.Hint))
	}
	return result, nil
}

func newUDPRun(cfg udp.Config, ns *netns.Handle) (*udpRun, error) {
	to := netip.AddrPortFrom(cfg.To.Addr().Unmap(), cfg.To.Port())
	zones, err := zoneNumbers(ns, append([]netip.Addr{to.Addr()}, cfg.Sources...))
	if err != nil {
		return nil, err
	}
	r := &udpRun{
		cfg: cfg, pace: load.Pace{PerSecond: cfg.Rate},
		server: netip.AddrPortFrom(to.Addr().WithZone(""), to.Port()),
		to:     newSockaddr(to, zones[to.Addr().Zone()]),
		family: family(to.Addr()),
		warm:   make(chan struct{}),
		token:  udp.RequestRun(rand.Uint32()), // other runs beside this one have others
	}
	if r.sources, err = sourceAddrs(cfg.Sources, to.Addr(), zones, cfg.Seed); err != nil {
		return nil, err
	}
	if cfg.SourcePorts.Len() > 0 {
		r.sources = anyAddr(r.sources, r.family)
		r.ports = load.NewPermutation(uint64(len(r.sources)*cfg.SourcePorts.Len()), cfg.Seed)
	} else if err := r.checkPorts(ns); err != nil {
		return nil, err
	}
	return r, r.prepare()
}

// checkPorts compares the flows with the ports that the kernel may give out. Other
// than TCP, a UDP socket has its port of an address for itself, whatever the
// destination (udp_lib_get_port).
func (r *udpRun) checkPorts(ns *netns.Handle) error {
	var text []byte
	read := func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // holds for IPv6 too
		return err
	}
	var err error
	if ns != nil {
		err = ns.Do(read)
	} else {
		err = read()
	}
	var first, last int
	if _, scanErr := fmt.Sscan(string(text), &first, &last); err != nil || scanErr != nil {
		return nil // the kernel will say where it has too few
	}
	n := max(len(r.sources), 1)
	if have := n * (last - first + 1); r.cfg.Flows > have {
		return fmt.Errorf("%d flows: %d source addresses with %d ports each (net.ipv4.ip_local_port_range) are too few: give more with --source or --source-port, or fewer --flows",
			r.cfg.Flows, n, last-first+1)
	}
	return nil
}

// makeWorkers shares the flows out: one worker per CPU, more where the limit of
// open files asks for it.
func (r *udpRun) makeWorkers() ([]*udpWorker, error) {
	files, err := fileLimit()
	if err != nil {
		return nil, err
	}
	n := r.cfg.Workers
	if n == 0 {
		n = runtime.NumCPU()
	}
	n = min(max(n, (r.cfg.Flows+files-1)/files), r.cfg.Flows)
	if r.cfg.Concurrency > 0 {
		n = min(n, r.cfg.Concurrency)
		if least := (r.cfg.Flows + files - 1) / files; n < least {
			return nil, fmt.Errorf("%d flows need %d workers for the limit of %d open files each, but concurrency is %d: raise one of them",
				r.cfg.Flows, least, files, r.cfg.Concurrency)
		}
	}
	r.workers, r.cfg.Workers = n, n
	r.course = load.NewCourse(n)
	workers := make([]*udpWorker, n)
	for i := range workers {
		workers[i] = newUDPWorker(r, i)
	}
	return workers, nil
}

// datagrams is how many the run sends in all: what a schedule has until the end
// where there is one; 0 where time is the only bound.
func (r *udpRun) datagrams() int64 {
	n := r.cfg.Packets
	if r.cfg.Rate == 0 || r.cfg.Duration == 0 {
		return n
	}
	due := r.pace.Due(r.cfg.Duration - 1)
	if n == 0 {
		return due
	}
	return min(n, due)
}

func (r *udpRun) largestFrame() int { return slices.Max(r.cfg.FrameBytes) }

// silentAfter is how long after the first datagram a run ends to which nothing has
// come back. With the default timeout that is a little more than the 3 s after which
// the last router says that it finds no host (mcast_solicit × retrans_time_ms).
func (r *udpRun) silentAfter() int64 { return 2*int64(r.cfg.Timeout) + 1500*int64(time.Millisecond) }

// result merges what the workers counted. Where the run was interrupted, replies may
// still be on the way.
func (r *udpRun) result(workers []*udpWorker, before, after usage, interrupted bool) *udp.Result {
	seen := load.Observed{Workers: len(workers)}
	all := udp.NewTally()
	end, whole, late := int64(0), int64(0), int64(0)
	for _, w := range workers {
		all.Merge(w.tally)
		if interrupted {
			all.InFlight += int64(w.flight.Flying)
		}
		end, whole = max(end, w.last), max(whole, w.now)
		late += w.late
		seen.BusiestWorker = max(seen.BusiestWorker, w.busy)
	}
	res := &udp.Result{Config: r.cfg, RunToken: r.token, Seconds: float64(max(end-r.begun, 0)) / 1e9}
	all.Fill(res)
	res.Series = r.course.Series(float64(whole) / 1e9)
	res.CPU = between(before, after)
	observeCPU(&seen, before, after, float64(whole)/1e9)
	for _, limit := range []string{udp.Overflow(res.SocketDrops), seen.Limit(), udp.Lateness(res.Sent, late)} {
		if res.GeneratorLimit == "" {
			res.GeneratorLimit = limit
		}
	}
	res.CPUContention = seen.Contention()
	return res
}
