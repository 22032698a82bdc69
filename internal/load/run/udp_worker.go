package run

import (
	"math"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/udp"
)

const (
	// udpBatch is how many datagrams one system call takes at most.
	udpBatch = 64
	// udpBurst is how many datagrams are sent before replies are looked at.
	udpBurst = 256
	// paceGrain is how long, in nanoseconds, datagrams of a schedule may be
	// collected: above 20,000 per second they go out a few at a time, which saves
	// sleeps.
	paceGrain = 50_000
	// lingerNs is how long replies that come twice are waited for where nothing
	// else is.
	lingerNs = 20_000_000
	// firstWait bounds the wait for the first reply.
	firstWait = 200_000_000
	// errorControl has room for a struct sock_extended_err with the address of who
	// sent the ICMP message.
	errorControl = 128
	// answeredRemembered is how many answered datagrams are at least remembered, to
	// know their duplicates and late replies.
	answeredRemembered = 1 << 16
)

// udpWorker is one thread's share of a run of datagrams. Nothing in its loop
// allocates, except for the first misdelivered replies.
type udpWorker struct {
	run   *udpRun
	share udp.Share
	total int64 // datagrams to send; as many as tokens can tell apart where time is the bound
	spare uint64
	epoll int32
	sys   caller

	now      int64 // the last time the clock was read
	last     int64 // the last datagram or reply
	lastSent int64
	flows    []udpFlow
	flight   *udp.Flight
	out, in  *messages
	errors   *messages
	events   []unix.EpollEvent

	tried int64 // datagrams sent, and such that could not be
	burst int   // of one flow, in this round
	turn  int   // the flow that sends
	left  int   // datagrams that it has left in this round
	hold  int64 // nothing is sent before
	limit int   // datagrams without a reply at once; 0 with a schedule

	second int
	late   int64
	busy   float64 // share of a CPU

	tally    *udp.Tally
	interval *load.Interval
	seen     seen
}

func newUDPWorker(r *udpRun, id int) *udpWorker {
	share := udp.Share{Flows: r.cfg.Flows, Workers: r.workers, Worker: id}
	// One byte more than expected: replies that are too long are seen.
	size := udp.PayloadBytes(r.largestFrame(), r.server.Addr()) + 1
	w := &udpWorker{
		run: r, share: share, total: int64(share.Len()) * math.MaxUint32,
		flows: make([]udpFlow, share.Len()),
		out:   newMessages(udpBatch, size, 0), in: newMessages(udpBatch, size, 0),
		errors: newMessages(1, size, errorControl),
		events: make([]unix.EpollEvent, batch),
		tally:  udp.NewTally(), interval: load.NewInterval(),
	}
	for i := range w.flows {
		w.flows[i] = udpFlow{fd: -1, last: math.MaxUint32}
		if n := r.datagrams(); n > 0 {
			w.flows[i].last = uint32(share.Of(n, share.Flow(i)))
		}
	}
	if n := r.datagrams(); n > 0 {
		w.total = share.UpTo(n)
	}
	remember := answeredRemembered
	if r.cfg.Rate > 0 {
		remember += int(2 * r.cfg.Rate / float64(r.workers) * r.cfg.Timeout.Seconds())
	} else {
		w.limit = udp.Share{Flows: r.cfg.Concurrency, Workers: r.workers, Worker: id}.Len()
		remember += 2 * w.limit
	}
	w.flight = udp.NewFlight(remember)
	// The first spare combination of an address and a port.
	w.spare = uint64(share.Flow((r.cfg.Flows - id + r.workers - 1) / r.workers))
	for i := range udpBatch {
		w.out.list[i].hdr.Name = &r.to.raw[0]
		w.out.list[i].hdr.Namelen = uint32(r.to.size)
	}
	return w
}

// soFar is what the worker published last.
func (w *udpWorker) soFar() *seen { return &w.seen }

// loop sends and receives until the work or the time is over.
func (w *udpWorker) loop() {
	if w.share.Worker == 0 {
		w.sendFirst()
	}
	select {
	case <-w.run.warm:
	case <-w.run.ended: // perhaps before the first worker began
		w.leave()
		return
	}
	cpu := threadSeconds()
	w.stamp()
	for !w.over() {
		w.expire()
		w.send()
		w.receive(w.pause())
		w.publish()
	}
	w.countUnsent()
	if w.now > w.run.begun {
		w.busy = (threadSeconds() - cpu) / (float64(w.now-w.run.begun) / 1e9)
	}
	w.leave()
}

// sendFirst sends the run's first datagram and waits for its reply before the
// schedule begins: neighbours on the way may have to be found (ARP, NDP), and what
// follows would wait for that in queues that overflow, and come out of order.
func (w *udpWorker) sendFirst() {
	defer close(w.run.warm)
	w.stamp()
	w.nextFlow(1)
	w.left -= w.sendFlow(&w.flows[w.turn], 1)
	for until := w.now + min(int64(w.run.cfg.Timeout), firstWait); w.flight.Flying > 0 && w.now < until && !w.run.stop.Load(); {
		w.receive(until - w.now)
	}
	w.run.begun = w.now
}

func (w *udpWorker) stamp() { w.now = w.run.clock() }

// sending reports whether datagrams are still to be sent. Those that a schedule has for
// the last moments may come a little later.
func (w *udpWorker) sending() bool {
	end := w.run.begun + int64(w.run.cfg.Duration)
	if w.limit == 0 {
		end += load.LateAfter
	}
	return w.tried < w.total && (w.run.cfg.Duration == 0 || w.now < end)
}

// over reports whether to stop: when all replies are there, a moment after that, or
// when the time for them is over.
func (w *udpWorker) over() bool {
	if w.run.stop.Load() {
		return true
	}
	if !w.run.answered.Load() && w.now > w.run.silentAfter() && w.tried > 0 {
		w.run.end() // nobody answers
		return true
	}
	return !w.sending() && w.now >= w.drained()
}

// drained is when nothing more is waited for.
func (w *udpWorker) drained() int64 {
	timeout := int64(w.run.cfg.Timeout)
	if w.flight.Flying == 0 {
		return w.last + min(timeout, lingerNs)
	}
	return w.lastSent + timeout
}

// expire gives up what has had no reply in time.
func (w *udpWorker) expire() { w.lose(w.flight.Expire(w.now - int64(w.run.cfg.Timeout))) }

func (w *udpWorker) lose(n int) {
	if n > 0 {
		w.turnSecond()
		w.interval.Failed += int64(n)
	}
}

// pause is how long nothing is to be done if no reply comes, in nanoseconds.
func (w *udpWorker) pause() int64 {
	until := int64(w.second+1) * second
	if !w.sending() {
		until = min(until, w.drained())
	} else if w.budget() > 0 {
		until = w.hold
	} else if w.limit == 0 {
		grain := int64(0)
		if w.run.cfg.Rate*paceGrain >= 1e9 {
			grain = w.now + paceGrain
		}
		until = min(until, max(w.dueAt(w.share.When(w.tried)), grain))
	}
	if sent, ok := w.flight.Oldest(); ok {
		until = min(until, sent+int64(w.run.cfg.Timeout))
	}
	return max(until-w.run.clock(), 0)
}

// turnSecond hands in the seconds that are over.
func (w *udpWorker) turnSecond() {
	for w.now >= int64(w.second+1)*second {
		w.run.handIn(w.second, w.interval)
		w.second++
	}
}

func (w *udpWorker) publish() {
	w.turnSecond()
	w.seen.completed.Store(w.tally.Answered)
	w.seen.failed.Store(w.tally.Sent - w.tally.Answered - int64(w.flight.Flying))
	w.seen.inFlight.Store(int64(w.flight.Flying))
}

// countUnsent counts what was due in the run's time and not sent.
func (w *udpWorker) countUnsent() {
	if w.run.cfg.Rate > 0 {
		w.tally.Unsent = max(min(w.due(w.now), w.total)-w.tried, 0)
	}
}

// leave closes everything: the worker's thread and its file table may outlive this
// by a moment.
func (w *udpWorker) leave() {
	w.tally.SystemCalls = w.sys.count
	w.run.handIn(w.second, w.interval)
	for i := range w.flows {
		if fd := w.flows[i].fd; fd >= 0 {
			w.tally.SocketDrops += int64(w.sys.socketDrops(fd))
			w.sys.close(fd)
		}
	}
	w.sys.close(w.epoll)
	w.publish()
}
