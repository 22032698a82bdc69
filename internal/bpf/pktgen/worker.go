package pktgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

const (
	// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES.
	liveFrames = 1 << 1
	// batch is the number of frames that the kernel makes, sends and takes back at once
	// (attr.test.batch_size, at most 256). A veth's ring has 256 places.
	batch = 32
	// burst bounds the packets of one system call.
	burst = 1 << 16
	// firstBurst is that of the first call. Later ones take up to callTime, the latency of an
	// interrupt and of the end.
	firstBurst = 1 << 12
	callTime   = 20 * time.Millisecond
)

// sender is one CPU that sends, with its own copy of the generator's variables.
type sender struct {
	ns      *netns.Handle
	cpu     int
	objects generatorObjects
	anchor  *anchor
	// frame is what the kernel copies into its pages.
	frame []byte
}

// worker sends a share of a run's packets.
type worker struct {
	sender
	run   *run
	index int
}

type generatorObjects struct {
	Program   *ebpf.Program  `ebpf:"chosen"` // generate, bare or initiate
	Generator *ebpf.Variable `ebpf:"generator"`
}

// share splits n into equal parts, and returns the start and length of part i.
func share(n, parts, i int) (first, count int) {
	first = n * i / parts
	return first, n*(i+1)/parts - first
}

func newWorker(r *run, index, cpu int) (*worker, error) {
	w := &worker{run: r, index: index, sender: sender{ns: r.from.Netns, cpu: cpu, frame: r.bareFrame()}}
	if err := w.load(); err != nil {
		return nil, err
	}
	var err error
	if w.anchor, err = newAnchor(w.objects.Program); err != nil {
		return nil, errors.Join(err, w.objects.Program.Close())
	}
	return w, nil
}

func (w *worker) load() error {
	spec := w.run.tables.spec.Copy()
	if err := set(spec, w.variables()); err != nil {
		return err
	}
	spec.Programs["chosen"] = spec.Programs[pktgenProgGenerate]
	if w.run.cfg.Bare {
		spec.Programs["chosen"] = spec.Programs[pktgenProgBare]
	}
	return w.run.tables.loadGenerator(spec, &w.objects)
}

func (w *worker) variables() map[string]any {
	cfg, spec := w.run.cfg, w.run.cfg.Spec
	first, count := share(cfg.Flows.Count, cfg.Workers, w.index)
	var lengths [packets.MaxCycle]uint16
	cycle := biggestFirst(spec.Sizes)
	for i, size := range cycle {
		lengths[i] = uint16(size - frame.FCSLen)
	}
	var flags [packets.MaxCycle]uint8
	for i, f := range spec.TCPFlags {
		flags[i] = uint8(f)
	}
	return map[string]any{
		pktgenVarIpv6: spec.IPv6, pktgenVarProtocol: spec.Protocol,
		pktgenVarOutIfindex: uint32(w.run.from.Index), pktgenVarTemplate: newTemplate(&spec, w.run.from.link(), w.run.tables.runID),
		pktgenVarFirstFlow: uint32(first), pktgenVarFlowCount: uint32(count),
		pktgenVarLengths: lengths, pktgenVarLengthCount: uint32(len(cycle)),
		pktgenVarInterval: w.run.interval(),
		pktgenVarTcpFlags: flags, pktgenVarTcpFlagsCount: uint32(max(1, len(spec.TCPFlags))),
	}
}

// biggestFirst rotates a cycle of sizes until the greatest is first; a single repeated size is
// one.
func biggestFirst(sizes []int) []int {
	at, same := 0, true
	for i, s := range sizes {
		if s > sizes[at] {
			at = i
		}
		same = same && s == sizes[0]
	}
	if same {
		return sizes[:1]
	}
	return append(append([]int{}, sizes[at:]...), sizes[:at]...)
}

func (w *sender) close() error { return errors.Join(w.anchor.close(), w.objects.Program.Close()) }

func (w *sender) state() (s pktgenGeneratorState, err error) {
	if err := w.objects.Generator.Get(&s); err != nil {
		return s, fmt.Errorf("read the generator's state: %w", err)
	}
	return s, nil
}

// allow sets the limit of packets in all.
func (w *sender) allow(total int64) error {
	s, err := w.state()
	if err != nil {
		return err
	}
	s.Limit, s.NowFor = uint64(total), 0
	if err := w.objects.Generator.Set(s); err != nil {
		return fmt.Errorf("set the generator's limit: %w", err)
	}
	return nil
}

// onCPU runs fn on a thread bound to the worker's CPU, in the sender's namespace, in which the
// program finds interfaces by number.
func (w *sender) onCPU(fn func() error) error {
	return netns.OnThread(func() error {
		if w.ns != nil {
			if err := w.ns.Enter(); err != nil {
				return err
			}
		}
		var set unix.CPUSet
		set.Set(w.cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("stay on CPU %d: %w", w.cpu, err)
		}
		return fn()
	})
}

// send runs the program on n frames. The program stops at its limit.
func (w *sender) send(n int64) error {
	_, err := w.objects.Program.Run(&ebpf.RunOptions{
		Data: w.frame, Repeat: uint32(n), Flags: liveFrames, BatchSize: uint32(min(batch, n)),
	})
	return sendError(err)
}

func sendError(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("send frames by BPF_PROG_TEST_RUN: %w (needs Linux 5.18)", err)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("send frames by BPF_PROG_TEST_RUN: %w (no memory for them)", err)
	case err != nil:
		return fmt.Errorf("send frames by BPF_PROG_TEST_RUN: %w", errnoText(err))
	}
	return nil
}

// work sends until the total is reached, the time expires or ctx ends.
func (w *worker) work(ctx context.Context, start time.Time, total int64) error {
	if w.run.cfg.Even {
		return w.even(ctx, total)
	}
	if w.run.cfg.Rate > 0 {
		return w.paced(ctx, start, total)
	}
	return w.flatOut(ctx, start, total)
}

// flatOut sends at full rate, in calls of about callTime.
func (w *worker) flatOut(ctx context.Context, start time.Time, total int64) error {
	n := int64(firstBurst)
	for !w.over(ctx, start) {
		sent, err := w.alreadySent()
		if err != nil || sent >= total {
			return err
		}
		before := time.Now()
		if err := w.sendUntil(min(total, sent+n)); err != nil {
			return err
		}
		switch took := time.Since(before); {
		case took > callTime:
			n = max(n/2, batch)
		case took < callTime/4:
			n = min(n*2, burst)
		}
	}
	return nil
}

func (w *sender) alreadySent() (int64, error) {
	s, err := w.state()
	return int64(s.Sent), err
}

// sendUntil sends until total packets are sent. A signal makes the library repeat the call for
// all of them, so that the program's limit counts.
func (w *sender) sendUntil(total int64) error {
	sent, err := w.alreadySent()
	if err != nil {
		return err
	}
	if err := w.allow(total); err != nil {
		return err
	}
	if err := w.send(total - sent); err != nil {
		return err
	}
	now, err := w.alreadySent()
	if err == nil && now == sent {
		err = errors.New("send frames: the generator made none (XDP_ABORTED; its tracepoint is xdp:xdp_exception)")
	}
	return err
}

func (w *worker) over(ctx context.Context, start time.Time) bool {
	return ctx.Err() != nil || w.run.cfg.Duration > 0 && time.Since(start) >= w.run.cfg.Duration
}

// CPUs are those that this process may run on. A run's workers take the first ones.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the allowed CPUs: %w", err)
	}
	var cpus []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// tick is how often a paced worker sends what is due.
const tick = time.Millisecond

// pace is the schedule of each worker.
func (r *run) pace() load.Pace { return load.Pace{PerSecond: r.cfg.Rate / float64(r.cfg.Workers)} }

// even lets the program wait until each packet is due.
func (w *worker) even(ctx context.Context, total int64) error {
	s, err := w.state()
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	s.Start, s.Limit = uint64(now.Nano()), uint64(total)
	if err := w.objects.Generator.Set(s); err != nil {
		return fmt.Errorf("set the generator's schedule: %w", err)
	}
	for err == nil && ctx.Err() == nil && s.Sent < s.Limit {
		if err = w.send(burst); err == nil {
			s, err = w.state()
		}
	}
	return err
}

// interval is the time between two packets of an even run for the program, 0 of others.
func (r *run) interval() uint64 {
	if !r.cfg.Even {
		return 0
	}
	return uint64(1e9 * 1024 / r.pace().PerSecond)
}

// paced sends what is due each tick. The probe's packets count as due.
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
	// grace is how long after the end a worker may catch up if its CPU was busy.
	grace time.Duration
}

func (r *run) schedule(total int64) schedule {
	if r.cfg.Duration == 0 {
		return schedule{r.pace(), total, math.MaxInt64 / 2, 0}
	}
	return schedule{r.pace(), total, r.cfg.Duration, min(r.cfg.Duration/10, 100*time.Millisecond)}
}

// due returns the total number of packets due, and whether they are the last ones.
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
