package run

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
)

const (
	// startBatch is how many requests may start before the next epoll_wait without others having
	// ended: it spreads the first burst.
	startBatch = 128
	// A worker replaces ended requests together once they are a vacantShare-th of its
	// connections, replaceBatch at most: one at a time costs the machine 3 to 5 % more time per
	// request, because of the caches.
	replaceBatch = 32
	vacantShare  = 16
	// maxSpare bounds the sockets that wait for the ACK of their FIN. More than a batch cannot be
	// used on one machine.
	maxSpare = 2 * eventBatch
	// eagerTries is how often in a row a request may be tried right after connect in vain.
	eagerTries = 16
	bufferSize = 64 << 10
	// holdAfterError keeps a worker from spinning if connections fail at once, in nanoseconds;
	// batchTick is the interval at which it asks for the next batch.
	holdAfterError = 1_000_000
	batchTick      = 1_000_000
)

// worker is one thread's share of a run. Nothing in its loop allocates.
type worker struct {
	thread
	run     *httpRun
	first   bool // of the run's workers
	limit   int  // requests in flight at once
	spare   int  // sockets beyond
	replace int  // ended requests that are replaced together
	timeout int64
	// conns are the connections and, behind them, the beginnings of two lists: of those in flight,
	// oldest first, and of the idle ones.
	conns []conn
	buf   []byte

	flying, idle   int32
	unused, parked []int32
	flyingNow      int
	ended          int // requests, since others were started instead
	closing        int
	source, to     int    // the next ones
	port           uint64 // place in the order of source ports
	eager          int
	// reuse is whether sockets may be connected again, once reuseKnown.
	reuse, reuseKnown bool
	succeeded         bool
	exhausted         bool  // there are no more requests to start
	crowded           bool  // more requests could start at once
	hold              int64 // no start before
	nextDue           int64 // number of the next request, in an open loop
	lastFull          int64 // when all allowed connections were last in use
	starts, late      int64
	queued            int64
	noLocalPort       int64
	flown             int64 // time that requests were in flight, added up

	tally  *load.Tally
	server string
}

func newWorker(r *httpRun, id, limit, spare int) *worker {
	total := limit + spare
	w := &worker{
		thread: newThread(&r.crew),
		run:    r, first: id == 0, limit: limit, spare: spare,
		replace: max(min(limit/vacantShare, replaceBatch), 1),
		timeout: int64(r.cfg.Timeout),
		conns:   make([]conn, total+2),
		buf:     make([]byte, bufferSize),
		flying:  int32(total), idle: int32(total + 1),
		unused: make([]int32, total), parked: make([]int32, 0, total),
		eager: eagerTries, nextDue: int64(id), to: id, port: uint64(id),
		source:   id * len(r.sources) / r.cfg.Workers,
		lastFull: -1, reuseKnown: r.ownPorts(),
		tally: load.NewTally(r.cfg.Rate > 0),
	}
	for i := range w.unused {
		w.unused[i] = int32(total - 1 - i)
	}
	for _, l := range []int32{w.flying, w.idle} {
		w.conns[l].prev, w.conns[l].next = l, l
	}
	return w
}

func (w *worker) setUp(ns *netns.Handle) error {
	err := w.enter(ns, w.run.cfg.Rate > 0)
	if err == nil && w.first {
		err = w.run.check(&w.sys)
	}
	return err
}

// loop runs until the work or the time is over, or the run was cancelled.
func (w *worker) loop() {
	w.measure(func() int64 { return 0 }, func() {
		for w.stamp(); !w.over(); w.publish() {
			w.expire()
			// Instead of what has ended, and a burst at most.
			most := w.ended + startBatch
			w.ended = 0
			w.crowded = !w.start(most)
			if w.exhausted && w.flyingNow == 0 {
				break
			}
			for _, e := range w.wait(w.pause()) {
				if e.Fd >= 0 {
					w.event(e.Fd, e.Events)
					w.startInstead()
				}
			}
		}
	})
	w.leave()
}

// over reports whether to stop though there is work left.
func (w *worker) over() bool {
	d := int64(w.run.cfg.Duration)
	return w.run.stop.Load() || d > 0 && w.now >= d
}

// startInstead starts requests instead of those that have ended, so that nearly the allowed number
// stays in flight while more events wait to be handled. In an open loop one may also have become
// due meanwhile.
func (w *worker) startInstead() {
	most := w.ended
	if w.run.cfg.Rate > 0 {
		most++
	} else if most < w.replace {
		return
	}
	w.ended = 0
	w.start(most)
}

// start begins up to most requests; false if more could have begun.
func (w *worker) start(most int) bool {
	if w.run.cfg.Rate > 0 {
		return w.startDue(most)
	}
	for w.flyingNow < w.limit && !w.exhausted && w.hold <= w.now {
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

// startDue follows the schedule, whatever became of earlier requests. What is due keeps its time
// while it waits for a connection.
func (w *worker) startDue(most int) bool {
	for w.hold <= w.now {
		due, ok := w.due()
		switch {
		case !ok || due > w.now:
			return true
		case due+w.timeout <= w.now:
			w.nextDue += int64(w.run.cfg.Workers)
			w.starts++
			w.queued++
			w.countFailure(load.Connect, load.TimedOutQueued)
			continue
		case w.flyingNow >= w.limit:
			return true
		case most == 0:
			return false
		}
		most--
		w.nextDue += int64(w.run.cfg.Workers)
		w.stamp()
		w.starts++
		if due <= w.lastFull {
			w.queued++
		} else if w.now-due > load.LateAfter {
			w.late++
		}
		w.launch(due)
	}
	return true
}

// due returns when the next request of this worker is due; false after the last.
func (w *worker) due() (int64, bool) {
	if n := w.run.cfg.Requests; n > 0 && w.nextDue >= n {
		w.exhausted = true
		return 0, false
	}
	return int64(w.run.pace.At(w.nextDue)), true
}

// pause returns how long nothing is to be done if no event comes, in nanoseconds.
func (w *worker) pause() int64 {
	if w.crowded {
		return 0
	}
	until := int64(w.second+1) * second
	if d := int64(w.run.cfg.Duration); d > 0 {
		until = min(until, d)
	}
	if oldest := w.conns[w.flying].next; oldest != w.flying {
		until = min(until, w.conns[oldest].intended+w.timeout)
	}
	if w.flyingNow < w.limit && !w.exhausted {
		start := w.hold
		if w.run.cfg.Rate > 0 {
			if due, ok := w.due(); ok {
				start = max(start, due)
			}
		}
		until = min(until, start)
	}
	return max(until-w.run.clock(), 0)
}

// expire fails the requests whose time is over. They are in the order of their intended starts, and
// all have the same time, so the first are the oldest.
func (w *worker) expire() {
	oldest := &w.conns[w.flying].next
	for i := *oldest; i != w.flying && w.conns[i].intended+w.timeout <= w.now; i = *oldest {
		switch w.conns[i].state {
		case connecting:
			w.fail(i, load.Connect, load.TimedOut)
		case sending:
			w.fail(i, load.Send, load.TimedOut)
		case waiting:
			w.fail(i, load.Wait, load.TimedOut)
		case draining:
			if w.run.cfg.NoRequest {
				w.fail(i, load.Close, load.TimedOut)
			} else {
				w.fail(i, load.Read, load.NotClosed)
			}
		default:
			w.fail(i, load.Read, load.TimedOut)
		}
	}
}

func (w *worker) publish() {
	w.thread.completed.Store(w.tally.Completed)
	w.failed.Store(w.tally.Failed)
	w.inFlight.Store(int64(w.flyingNow))
}

// leave counts what is not finished and closes everything: the worker's thread and its file table
// may outlive this by a moment.
func (w *worker) leave() {
	w.handIn()
	w.tally.Unfinished = int64(w.flyingNow)
	for i := w.conns[w.flying].next; i != w.flying; i = w.conns[i].next {
		w.flown += w.now - w.conns[i].start
	}
	if w.run.cfg.Rate > 0 {
		for due, ok := w.due(); ok && due <= w.now; due, ok = w.due() {
			w.tally.Unfinished++
			w.nextDue += int64(w.run.cfg.Workers)
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

// complete counts a request with a good response.
func (w *worker) complete(c *conn) {
	w.turnSecond()
	w.run.requestOver()
	done := w.now
	w.tally.Complete(load.Sample{
		Intended: c.intended, Start: c.start, Connected: c.connected,
		Sent: c.sent, First: c.first, Done: done, Body: c.resp.Body(),
	})
	w.interval.Complete(done - c.intended)
	if w.run.firstFailure.Load() <= done {
		w.tally.AfterFailure++
	}
	if !w.succeeded {
		w.succeeded = true
		w.run.succeeded.Store(true)
	}
}

func (w *worker) countFailure(phase load.Phase, reason load.Reason) {
	w.turnSecond()
	w.run.requestOver()
	w.tally.Fail(phase, reason)
	w.interval.Failed++
	for first := w.run.firstFailure.Load(); w.now < first && !w.run.firstFailure.CompareAndSwap(first, w.now); {
		first = w.run.firstFailure.Load()
	}
	if reason.NoLocalPort() {
		w.noLocalPort++
	}
	if phase == load.Connect && !reason.Timeout() {
		w.hold = w.now + holdAfterError
		w.run.connectFailed(reason)
	}
}

// unlist takes a request out of flight.
func (w *worker) unlist(i int32) {
	if w.flyingNow == w.limit {
		w.lastFull = w.now
	}
	w.flyingNow--
	w.flown += w.now - w.conns[i].start
	w.ended++
	w.remove(i)
}

// push appends a connection to a list, a ring of connections around the one of that number.
func (w *worker) push(list, i int32) {
	last := w.conns[list].prev
	w.conns[i].prev, w.conns[i].next = last, list
	w.conns[last].next, w.conns[list].prev = i, i
}

// remove takes a connection out of its list.
func (w *worker) remove(i int32) {
	c := &w.conns[i]
	w.conns[c.prev].next, w.conns[c.next].prev = c.next, c.prev
}

// socket returns a socket to connect with, a parked one if there is one.
func (w *worker) socket() (int32, syscall.Errno) {
	if n := len(w.parked); n > 0 {
		i := w.parked[n-1]
		w.parked = w.parked[:n-1]
		return i, 0
	}
	i := w.unused[len(w.unused)-1]
	fd, errno := w.sys.socket(w.run.family, unix.SOCK_STREAM)
	if errno != 0 {
		return 0, errno
	}
	switch {
	case w.run.ownPorts():
		// Ports that a former connection holds in TIME_WAIT can be bound again; the kernel
		// refuses the connection if the whole tuple is still in use.
		errno = w.sys.setOption(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	case len(w.run.sources) > 0:
		// The port is then chosen by connect, for the whole tuple, not by bind for the address
		// alone (ip(7), IP_BIND_ADDRESS_NO_PORT; holds for IPv6 too).
		errno = w.sys.setOption(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	if errno == 0 {
		// Once and for all: edge-triggered, so that no epoll_ctl follows.
		errno = w.sys.watch(w.epoll, fd, i, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
	}
	if errno != 0 {
		w.sys.close(fd)
		return 0, errno
	}
	w.unused = w.unused[:len(w.unused)-1]
	w.conns[i] = conn{fd: fd, fresh: true}
	return i, 0
}

// reusable reports whether sockets may be connected again. A socket that is used again takes its
// next initial sequence number from its last one, not from the clock; a server in TIME_WAIT then
// distinguishes a new connection from an old one by the timestamps only
// (tcp_timewait_state_process). Without them each connection gets a new socket.
func (w *worker) reusable(c *conn) bool {
	if !w.reuseKnown {
		w.reuse, w.reuseKnown = w.sys.timestamps(c.fd), true
	}
	return w.reuse
}

// park keeps a closed socket, still in the epoll, for another connection. That saves two system
// calls and the making of a socket per connection; on the wire nothing differs.
func (w *worker) park(i int32) {
	w.conns[i].state, w.conns[i].fresh = parked, false
	w.parked = append(w.parked, i)
}

// discard closes the socket.
func (w *worker) discard(i int32) {
	w.sys.close(w.conns[i].fd)
	w.conns[i].state = free
	w.unused = append(w.unused, i)
}
