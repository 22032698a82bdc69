package run

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
)

const (
	// batch is how many events one epoll_wait returns, and startBatch how many
	// requests may start before the next one without others having ended: it
	// spreads the first burst.
	batch      = 512
	startBatch = 128
	// A worker replaces ended requests together once they are a vacantShare-th of
	// its connections, replaceBatch at most: one at a time costs the machine 3 to
	// 5 % more time per request, for the caches' sake.
	replaceBatch = 32
	vacantShare  = 16
	// maxSpare bounds the sockets that wait for the ACK of their FIN. More than a
	// batch cannot be used on one machine.
	maxSpare = 2 * batch
	// eagerTries is how often in a row a request may be tried right after connect
	// in vain.
	eagerTries = 16
	bufferSize = 64 << 10
	second     = int64(time.Second)
	// stopEvent is the epoll data of the descriptor that ends the run.
	stopEvent = -1
)

// trilean is what is known.
type trilean uint8

const (
	unknown trilean = iota
	yes
	no
)

// worker is one thread's share of a run. Nothing in its loop allocates.
type worker struct {
	run   *run
	id    int64
	limit int // requests in flight at once
	spare int // sockets beyond
	batch int // ended requests that are replaced together
	epoll int32
	sys   caller

	now     int64 // the last time the clock was read
	timeout int64
	conns   []conn
	events  []unix.EpollEvent
	buf     []byte
	unspec  sockaddr

	flying, idle   list
	unused, parked []int32
	inFlight       int
	ended          int // requests, since others were started instead
	closing        int
	source, to     int    // the next ones
	port           uint64 // place in the order of source ports
	eager          int
	reuse          trilean
	succeeded      bool
	exhausted      bool  // there are no more requests to start
	crowded        bool  // more requests could start at once
	hold           int64 // no start before
	nextDue        int64 // number of the next request, in an open loop
	lastFull       int64 // when all allowed connections were last in use
	second         int
	starts, late   int64
	queued         int64
	noLocalPort    int64
	busy           float64 // share of a CPU
	flown          int64   // time that requests were in flight, added up

	tally    *load.Tally
	interval *load.Interval
	server   string

	seen seen
}

func newWorker(r *run, id, limit, spare int) *worker {
	total := limit + spare
	w := &worker{
		run: r, id: int64(id), limit: limit, spare: spare,
		batch:   max(min(limit/vacantShare, replaceBatch), 1),
		timeout: int64(r.cfg.Timeout),
		conns:   make([]conn, total),
		events:  make([]unix.EpollEvent, batch),
		buf:     make([]byte, bufferSize),
		unspec:  unspecified(),
		flying:  list{none, none}, idle: list{none, none},
		unused: make([]int32, total), parked: make([]int32, 0, total),
		eager: eagerTries, nextDue: int64(id),
		lastFull: -1,
		tally:    load.NewTally(r.cfg.Rate > 0),
		interval: load.NewInterval(),
	}
	for i := range w.unused {
		w.unused[i] = int32(total - 1 - i)
	}
	if n := len(r.sources); n > 0 {
		w.source = id * n / r.workers
	}
	w.to = id
	if r.ownPorts() {
		w.reuse, w.port = no, uint64(id)
	}
	return w
}

func (w *worker) clock() int64 { return w.run.clock() }

// soFar is what the worker published last.
func (w *worker) soFar() *seen { return &w.seen }

// loop runs until the work, the time or the user's patience is over.
func (w *worker) loop() {
	cpu := threadSeconds()
	w.now = w.clock()
	for !w.over() {
		w.expire()
		w.begin()
		if w.exhausted && w.inFlight == 0 {
			break
		}
		n := w.poll()
		w.stamp()
		w.turnSecond()
		for _, e := range w.events[:n] {
			if e.Fd >= 0 {
				w.event(e.Fd, e.Events)
				w.replace()
			}
		}
		w.publish()
	}
	if w.now > 0 {
		w.busy = (threadSeconds() - cpu) / (float64(w.now) / 1e9)
	}
	w.leave()
}

// over reports whether to stop though there is work left.
func (w *worker) over() bool {
	if w.run.stop.Load() {
		return true
	}
	d := int64(w.run.cfg.Duration)
	return d > 0 && w.now >= d
}

// stamp reads the clock. What happens to a request is stamped when it is handled,
// not when the batch of events came, so that the time it waited for its turn here
// is in the figures.
func (w *worker) stamp() int64 {
	w.now = w.clock()
	return w.now
}

// poll waits for events, or until something else is to be done.
func (w *worker) poll() int {
	n, errno := w.sys.poll(w.epoll, w.events, w.pause())
	if errno != 0 { // EINTR
		return 0
	}
	return n
}

// pause is how long nothing is to be done if no event comes, in nanoseconds.
func (w *worker) pause() int64 {
	if w.crowded {
		return 0
	}
	until := int64(w.second+1) * second
	if d := int64(w.run.cfg.Duration); d > 0 {
		until = min(until, d)
	}
	if w.flying.head != none {
		until = min(until, w.conns[w.flying.head].intended+w.timeout)
	}
	if w.inFlight < w.limit && !w.exhausted {
		start := w.hold
		if w.run.cfg.Rate > 0 {
			if due, ok := w.due(); ok {
				start = max(start, due)
			}
		}
		until = min(until, start)
	}
	return max(until-w.clock(), 0)
}

// turnSecond hands in the seconds that are over.
func (w *worker) turnSecond() {
	for w.now >= int64(w.second+1)*second {
		w.run.handIn(w.second, w.interval)
		w.second++
	}
}

func (w *worker) publish() {
	w.seen.completed.Store(w.tally.Completed)
	w.seen.failed.Store(w.tally.Failed)
	w.seen.inFlight.Store(int64(w.inFlight))
}

// leave counts what is not finished and closes everything: the worker's thread
// and its file table may outlive this by a moment.
func (w *worker) leave() {
	w.run.handIn(w.second, w.interval)
	w.tally.Unfinished = int64(w.inFlight)
	for i := w.flying.head; i != none; i = w.conns[i].next {
		w.flown += w.now - w.conns[i].start
	}
	if w.run.cfg.Rate > 0 {
		for due, ok := w.due(); ok && due <= w.now; due, ok = w.due() {
			w.tally.Unfinished++
			w.nextDue += int64(w.run.workers)
		}
	}
	for i := range w.conns {
		if w.conns[i].state != free {
			w.sys.close(w.conns[i].fd)
		}
	}
	w.sys.close(w.epoll)
	w.tally.SystemCalls = w.sys.count
	w.publish()
}
