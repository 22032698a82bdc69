package run

import (
	"context"
	"errors"
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

// progressEvery is how often Options.Progress is called.
const progressEvery = 250 * time.Millisecond

// crew is what the workers of a run share whatever they send: their common start
// and end, and the seconds that they hand in.
type crew struct {
	started  time.Time
	stop     atomic.Bool
	stopFile int // eventfd that wakes the workers
	ended    chan struct{}
	endOnce  sync.Once

	mu     sync.Mutex
	course *load.Course
}

// member is one worker: a thread of its own.
type member interface {
	// setUp gets the locked thread ready: namespace, files, sockets.
	setUp(ns *netns.Handle) error
	// loop works from the start to the end.
	loop()
	// soFar may be asked from another goroutine.
	soFar() *seen
}

// seen is what a worker publishes for the goroutine that reports progress.
type seen struct{ completed, failed, inFlight atomic.Int64 }

// prepare makes the eventfd; the caller closes stopFile.
func (c *crew) prepare() (err error) {
	c.ended = make(chan struct{})
	if c.stopFile, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("make an eventfd: %w", err)
	}
	return nil
}

// clock is the time since the start, in nanoseconds.
func (c *crew) clock() int64 { return int64(time.Since(c.started)) }

// end makes the workers leave at once. The eventfd is never read, so it wakes
// all of them.
func (c *crew) end() {
	c.stop.Store(true)
	c.endOnce.Do(func() { close(c.ended) })
	one := [8]byte{1}
	_, _ = unix.Write(c.stopFile, one[:]) // cannot fail short of 2^64 writes
}

// handIn takes a worker's second and empties the interval for the next one.
func (c *crew) handIn(second int, in *load.Interval) {
	c.mu.Lock()
	c.course.Add(second, in)
	c.mu.Unlock()
	in.Reset()
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
func conduct[W member](ctx context.Context, c *crew, workers []W, opt Options) (before, after usage, err error) {
	var done sync.WaitGroup
	ready := make(chan error, len(workers))
	gun := make(chan struct{})
	for _, w := range workers {
		done.Go(func() {
			_ = netns.OnThread(func() error { // with a namespace and a file table of its own
				err := w.setUp(opt.Netns)
				ready <- err
				if <-gun; err == nil && !c.stop.Load() {
					w.loop()
				}
				return nil
			})
		})
	}
	for range workers {
		err = errors.Join(err, <-ready)
	}
	if err != nil {
		c.stop.Store(true)
		close(gun)
		done.Wait()
		return before, after, err
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
	before = readUsage()
	c.started = time.Now()
	close(gun)
	done.Wait()
	after = readUsage()
	after.others = others()
	close(finished)
	<-watched
	return before, after, nil
}

// watch ends the run with ctx and reports progress until finished is closed;
// then it closes the returned channel.
func watch[W member](ctx context.Context, c *crew, workers []W, progress func(load.Progress), finished <-chan struct{}) <-chan struct{} {
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
				c.end()
				cancelled = nil
			case <-tick:
				last = sum(workers, time.Since(begun), last)
				progress(last)
			}
		}
	}()
	return watched
}

func sum[W member](workers []W, elapsed time.Duration, last load.Progress) load.Progress {
	p := load.Progress{Elapsed: elapsed}
	for _, w := range workers {
		seen := w.soFar()
		p.Completed += seen.completed.Load()
		p.Failed += seen.failed.Load()
		p.InFlight += seen.inFlight.Load()
	}
	if d := (p.Elapsed - last.Elapsed).Seconds(); d > 0 {
		p.PerSecond = float64(p.Completed-last.Completed) / d
	}
	return p
}

// begin starts what is due: instead of what has ended, and a burst at most.
func (w *worker) begin() {
	most := w.ended + startBatch
	w.ended = 0
	w.crowded = !w.start(most)
}

// replace starts requests instead of those that have ended, so that nearly the
// allowed number stays in flight while more events wait to be handled. In an open
// loop one may also have become due meanwhile.
func (w *worker) replace() {
	most := w.ended
	if w.run.cfg.Rate > 0 {
		most++
	} else if most < w.batch {
		return
	}
	w.ended = 0
	w.start(most)
}

// start begins up to most requests; false where more could have begun.
func (w *worker) start(most int) bool {
	if w.run.cfg.Rate > 0 {
		return w.startDue(most)
	}
	for w.inFlight < w.limit && !w.exhausted && w.hold <= w.now {
		if most == 0 {
			return false
		}
		most--
		switch w.run.claim() {
		case granted:
			w.launch(w.stamp())
		case notYet:
			w.hold = w.now + batchTick
		case noMore:
			w.exhausted = true
		}
	}
	return true
}

// startDue follows the schedule, whatever became of earlier requests. What is due
// keeps its time while it waits for a connection.
func (w *worker) startDue(most int) bool {
	for w.hold <= w.now {
		due, ok := w.due()
		if !ok || due > w.now {
			return true
		}
		if due+w.timeout <= w.now {
			w.nextDue += int64(w.run.workers)
			w.starts++
			w.queued++
			w.countFailure(load.InConnect, load.TimedOutQueued)
			continue
		}
		if w.inFlight >= w.limit {
			return true
		}
		if most == 0 {
			return false
		}
		most--
		w.nextDue += int64(w.run.workers)
		w.stamp()
		w.countStart(due)
		w.launch(due)
	}
	return true
}

// due is when the next request of this worker is; false after the last.
func (w *worker) due() (int64, bool) {
	if n := w.run.cfg.Requests; n > 0 && w.nextDue >= n {
		w.exhausted = true
		return 0, false
	}
	return int64(w.run.pace.At(w.nextDue)), true
}

func (w *worker) countStart(due int64) {
	w.starts++
	switch {
	case due <= w.lastFull:
		w.queued++
	case w.now-due > load.LateAfter:
		w.late++
	}
}

// setUp makes the calling thread, which must be locked, the worker's: its
// namespace, its file table, its epoll.
func (w *worker) setUp(ns *netns.Handle) error {
	epoll, err := w.run.enter(&w.sys, ns, w.run.cfg.Rate > 0)
	if err != nil {
		return err
	}
	w.epoll = epoll
	if w.id == 0 {
		if err := checkSources(&w.sys, w.run.family, w.run.sources); err != nil {
			return err
		}
	}
	w.sys.restart()
	return nil
}

// enter moves the calling thread, which must be locked, into the namespace and
// gives it a file table of its own, with the files to keep and an epoll that the
// run's end wakes.
func (c *crew) enter(sys *caller, ns *netns.Handle, paced bool, keep ...int) (int32, error) {
	if ns != nil {
		if err := ns.Enter(); err != nil {
			return 0, err
		}
	}
	if err := privateFiles(append(keep, c.stopFile)...); err != nil {
		return 0, err
	}
	// Sleeps are rounded up by the timer slack, 50 µs by default: the schedule of
	// an open loop would be kept no better. An error leaves it so.
	if paced {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("make an epoll: %w", err)
	}
	if errno := sys.watch(int32(epoll), int32(c.stopFile), stopEvent, unix.EPOLLIN); errno != 0 {
		return 0, fmt.Errorf("watch the stop event: %w", errno)
	}
	return int32(epoll), nil
}

// none ends a list of connections.
const none = -1

// list is a queue of connections; the links are in the connections.
type list struct{ head, tail int32 }

func (w *worker) push(l *list, i int32) {
	c := &w.conns[i]
	c.prev, c.next = l.tail, none
	if l.tail == none {
		l.head = i
	} else {
		w.conns[l.tail].next = i
	}
	l.tail = i
}

func (w *worker) remove(l *list, i int32) {
	c := &w.conns[i]
	if c.prev == none {
		l.head = c.next
	} else {
		w.conns[c.prev].next = c.next
	}
	if c.next == none {
		l.tail = c.prev
	} else {
		w.conns[c.next].prev = c.prev
	}
}
