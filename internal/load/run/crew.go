package run

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Options is what a run needs besides its configuration.
type Options struct {
	// Netns is where the load comes from; nil for the caller's.
	Netns *netns.Handle
	// Progress is called several times a second, from one goroutine; may be nil.
	Progress func(load.Progress)
	// NextBatch returns when the batch of that number (from 1; the first is 0) may begin,
	// all requests of those before being over; nil waits for Config.Pause. Its error ends
	// the run.
	NextBatch func(ctx context.Context, batch int) error
	// Held is called once by Hold, when all connections that could be opened are open; before it returns none
	// is verified or closed. It is not called where the run was ended before. May be nil.
	Held func()
	// WatchOthers measures what other processes use of the CPUs.
	WatchOthers bool
	// ready is called when all workers are set up; may be nil.
	ready func()
}

const (
	// progressEvery is the interval of Options.Progress.
	progressEvery = 250 * time.Millisecond
	// eventBatch is how many events one epoll_wait returns.
	eventBatch = 512
	second     = int64(time.Second)
	// stopEvent is the epoll data of the descriptor that ends the run.
	stopEvent = -1
)

// crew is what the workers of a run share, whatever they send: their common start and end, and
// the seconds that they hand in.
type crew struct {
	started  time.Time
	stop     atomic.Bool
	stopFile int // eventfd that wakes the workers
	ended    chan struct{}
	endOnce  sync.Once
	cpu      usage // of the run, when it is over

	mu     sync.Mutex
	course *load.Course // nil if nothing is handed in
}

// prepare makes the eventfd, which the caller closes, and collects the seconds of that many workers;
// none if it is 0.
func (c *crew) prepare(workers int) (err error) {
	c.ended = make(chan struct{})
	if workers > 0 {
		c.course = load.NewCourse(workers)
	}
	if c.stopFile, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	return nil
}

// clock returns the time since the start, in nanoseconds.
func (c *crew) clock() int64 { return int64(time.Since(c.started)) }

// end makes the workers leave at once. The eventfd is never read, so it wakes all of them.
func (c *crew) end() {
	c.stop.Store(true)
	c.endOnce.Do(func() { close(c.ended) })
	one := [8]byte{1}
	_, _ = unix.Write(c.stopFile, one[:]) // cannot fail below 2^64 writes
}

// maxThreads bounds the workers of a run. The Go runtime ends a program with 10,000 threads
// (debug.SetMaxThreads).
const maxThreads = 4000

// workersAtOnce returns how many workers do as much at a time as more would: asked, or one per CPU.
func workersAtOnce(asked, units int) int {
	if asked == 0 {
		asked = runtime.NumCPU()
	}
	return min(asked, units)
}

// workersFor returns the number of workers for units of work (connections, flows): asked, or one per
// CPU, more if the limit of open files requires it. It returns an error where that is too many.
func workersFor(asked, units int, what string, files int) (int, error) {
	n, least := workersAtOnce(asked, units), (units-1)/files+1
	switch {
	case least > maxThreads:
		return 0, fmt.Errorf("%d %s at %d open files for each thread require %d threads, more than %d: raise the limit with `ulimit -n`",
			units, what, files, least, maxThreads)
	case n > maxThreads:
		return 0, fmt.Errorf("%d workers: must be at most %d", n, maxThreads)
	}
	return max(n, least), nil
}

// member is one worker.
type member interface {
	// setUp prepares the locked thread: namespace, files, sockets.
	setUp(ns *netns.Handle) error
	// loop works from the start to the end.
	loop()
	base() *thread
}

// thread is what every worker has: a locked thread that waits for events.
type thread struct {
	crew     *crew
	sys      caller
	epoll    int32
	events   []unix.EpollEvent
	now      int64 // the last time the clock was read
	second   int
	interval *load.Interval
	busy     float64 // share of a CPU

	// Read by the goroutine that reports progress.
	completed, failed, inFlight atomic.Int64
}

func newThread(c *crew) thread {
	return thread{crew: c, epoll: -1, events: make([]unix.EpollEvent, eventBatch), interval: load.NewInterval()}
}

func (t *thread) base() *thread { return t }

// enter moves the calling thread, which must be locked, into the namespace and gives it a file
// table of its own, with the files to keep and an epoll that the run's end wakes.
func (t *thread) enter(ns *netns.Handle, paced bool, keep ...int) error {
	if ns != nil {
		if err := ns.Enter(); err != nil {
			return err
		}
	}
	if err := privateFiles(append(keep, t.crew.stopFile)...); err != nil {
		return err
	}
	// Sleeps are rounded up by the timer slack, 50 µs by default: the schedule of an open loop
	// would not be more exact. An error leaves it so.
	if paced {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make an epoll: %w", err)
	}
	t.epoll = int32(epoll)
	if errno := t.sys.watch(t.epoll, int32(t.crew.stopFile), stopEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the stop event: %w", errno)
	}
	return nil
}

// stamp reads the clock. What happens to a request is stamped when it is handled, not when the
// batch of events came, so that the time it waited for its turn here is in the figures.
func (t *thread) stamp() int64 {
	t.now = t.crew.clock()
	return t.now
}

// wait returns the events that come within ns nanoseconds.
func (t *thread) wait(ns int64) []unix.EpollEvent {
	n, errno := t.sys.poll(t.epoll, t.events, ns)
	if errno != 0 { // EINTR
		n = 0
	}
	t.stamp()
	t.turnSecond()
	return t.events[:n]
}

// turnSecond hands in the seconds that are over.
func (t *thread) turnSecond() {
	for t.now >= int64(t.second+1)*second {
		t.handIn()
	}
}

// handIn hands in the present second and begins the next one.
func (t *thread) handIn() {
	if t.crew.course != nil {
		t.crew.mu.Lock()
		t.crew.course.Add(t.second, t.interval)
		t.crew.mu.Unlock()
		t.interval.Reset()
	}
	t.second++
}

// measure runs a worker's loop and notes the share of a CPU that it used from begun on.
func (t *thread) measure(begun func() int64, loop func()) {
	cpu := threadSeconds()
	loop()
	if ns := t.now - begun(); ns > 0 {
		t.busy = (threadSeconds() - cpu) / (float64(ns) / 1e9)
	}
}

// moreProcs lets Go run enough threads that a worker that waits keeps its place, and that the rest
// of the program runs beside busy workers. The returned function takes it back.
func moreProcs(workers int) func() {
	add := func(n int) {
		procs.Lock()
		defer procs.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	add(workers)
	return func() { add(-workers) }
}

var procs sync.Mutex

// conduct starts the workers together and waits for all.
func conduct[W member](ctx context.Context, c *crew, workers []W, opt Options) error {
	defer moreProcs(len(workers))()
	var done sync.WaitGroup
	ready := make(chan error, len(workers))
	gun := make(chan struct{})
	for _, w := range workers {
		done.Go(func() {
			_ = netns.OnThread(func() error { // with a namespace and a file table of its own
				err := w.setUp(opt.Netns)
				w.base().sys.restart()
				ready <- err
				if <-gun; err == nil && !c.stop.Load() {
					w.loop()
				}
				return nil
			})
		})
	}
	var err error
	for range workers { // one error is enough: mostly all are alike
		err = cmp.Or(<-ready, err)
	}
	if err != nil {
		c.stop.Store(true)
		close(gun)
		done.Wait()
		return err
	}
	finished := make(chan struct{})
	watched := watch(ctx, c, workers, opt.Progress, finished)
	resetPeak()
	if opt.ready != nil {
		opt.ready()
	}
	others := func() float64 { return 0 }
	if opt.WatchOthers {
		others = collect.WatchOthers()
	}
	before := readUsage()
	c.started = time.Now()
	close(gun)
	done.Wait()
	c.cpu = readUsage().since(before)
	c.cpu.others = others()
	close(finished)
	<-watched
	return nil
}

// watch ends the run with ctx and reports progress until finished is closed; then it closes the
// returned channel.
func watch[W member](ctx context.Context, c *crew, workers []W, progress func(load.Progress), finished <-chan struct{}) <-chan struct{} {
	watched := make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(watched)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		cancelled := ctx.Done()
		last := load.Progress{}
		for {
			select {
			case <-finished:
				return
			case <-cancelled:
				c.end()
				cancelled = nil
			case <-ticker.C:
				if progress != nil {
					last = sum(workers, time.Since(begun), last)
					progress(last)
				}
			}
		}
	}()
	return watched
}

func sum[W member](workers []W, elapsed time.Duration, last load.Progress) load.Progress {
	p := load.Progress{Elapsed: elapsed}
	for _, w := range workers {
		t := w.base()
		p.Completed += t.completed.Load()
		p.Failed += t.failed.Load()
		p.InFlight += t.inFlight.Load()
	}
	if d := (p.Elapsed - last.Elapsed).Seconds(); d > 0 {
		p.PerSecond = float64(p.Completed-last.Completed) / d
	}
	return p
}

// observed returns what a run of that many seconds showed of the generator, and its CPU time.
func observed[W member](c *crew, workers []W, seconds float64) (load.Observed, load.CPU) {
	seen := load.Observed{Workers: len(workers)}
	for _, w := range workers {
		seen.BusiestWorker = max(seen.BusiestWorker, w.base().busy)
	}
	c.cpu.observe(&seen, seconds)
	return seen, c.cpu.report()
}
