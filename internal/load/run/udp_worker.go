package run

import (
	"encoding/binary"
	"math"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"golang.org/x/sys/unix"
)

const (
	// udpBatch is how many datagrams one system call takes at most.
	udpBatch = 64
	// udpBurst is how many datagrams are sent before replies are read.
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
	thread
	run   *udpRun
	share packets.Share
	total int64 // datagrams to send; as many as tokens can distinguish if time is the bound
	spare uint64

	last     int64 // the last datagram or reply
	lastSent int64
	flows    []udpFlow
	flight   *packets.Flight
	out, in  *messages
	errors   *messages

	tried int64 // datagrams sent, and such that could not be
	burst int   // of one flow, in this round
	turn  int   // the flow that sends
	left  int   // datagrams that it has left in this round
	hold  int64 // nothing is sent before
	limit int   // datagrams without a reply at once; 0 with a schedule
	late  int64

	tally *packets.UDPTally
}

func newUDPWorker(r *udpRun, id int) *udpWorker {
	share := packets.Share{Flows: r.cfg.Flows, Workers: r.cfg.Workers, Worker: id}
	// One byte more than expected: replies that are too long are seen.
	size := packets.PayloadBytes(r.largestFrame(), r.server.Addr()) + 1
	w := &udpWorker{
		thread: newThread(&r.crew),
		run:    r, share: share, total: int64(share.Len()) * math.MaxUint32,
		flows: make([]udpFlow, share.Len()),
		out:   newMessages(udpBatch, size, 0), in: newMessages(udpBatch, size, 0),
		errors: newMessages(1, size, errorControl),
		tally:  packets.NewUDPTally(),
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
		remember += int(2 * r.cfg.Rate / float64(r.cfg.Workers) * r.cfg.Timeout.Seconds())
	} else {
		w.limit = packets.Share{Flows: r.cfg.Concurrency, Workers: r.cfg.Workers, Worker: id}.Len()
		remember += 2 * w.limit
	}
	w.flight = packets.NewFlight(remember)
	// The first spare combination of an address and a port.
	w.spare = uint64(share.Flow((r.cfg.Flows - id + r.cfg.Workers - 1) / r.cfg.Workers))
	for i := range udpBatch {
		w.out.list[i].hdr.Name = &r.origin.to[0].raw[0]
		w.out.list[i].hdr.Namelen = uint32(r.origin.to[0].size)
	}
	return w
}

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
	w.measure(func() int64 { return w.run.begun }, func() {
		for w.stamp(); !w.over(); w.publish() {
			w.expire()
			w.send()
			w.receive(w.pause())
		}
		w.countUnsent()
	})
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
		w.run.end() // no answer
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

// pause returns how long nothing is to be done if no reply comes, in nanoseconds.
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

func (w *udpWorker) publish() {
	w.turnSecond()
	w.thread.completed.Store(w.tally.Answered)
	w.failed.Store(w.tally.Sent - w.tally.Answered - int64(w.flight.Flying))
	w.inFlight.Store(int64(w.flight.Flying))
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
	w.handIn()
	for i := range w.flows {
		if fd := w.flows[i].fd; fd >= 0 {
			w.tally.SocketDrops += int64(w.sys.socketDrops(fd))
			w.sys.close(fd)
		}
	}
	w.sys.close(w.epoll)
	w.publish()
}

// sendTries is how often a datagram is tried where an ICMP error about an earlier one
// comes instead.
const sendTries = 4

// send sends what may be sent now, a burst at most.
func (w *udpWorker) send() {
	budget := min(w.budget(), udpBurst)
	if budget == 0 || !w.sending() || w.now < w.hold {
		return
	}
	w.stamp()
	w.countLate(int64(budget))
	for budget > 0 && w.tried < w.total {
		if w.left == 0 {
			w.nextFlow(budget)
		}
		n := w.sendFlow(&w.flows[w.turn], min(w.left, budget, udpBatch))
		if n == 0 {
			return
		}
		budget -= n
		w.left -= n
	}
}

// budget returns the number of datagrams that may be sent now: as many as are due, or until the
// allowed number is on the way.
func (w *udpWorker) budget() int {
	if w.limit > 0 {
		return int(min(int64(w.limit-w.flight.Flying), w.total-w.tried))
	}
	return int(min(max(w.due(w.now)-w.tried, 0), w.total-w.tried, udpBurst))
}

// due returns the number of this worker's datagrams due at an instant.
func (w *udpWorker) due(at int64) int64 {
	due := w.run.pace.Due(time.Duration(at - w.run.begun))
	if n := w.run.datagrams(); n > 0 {
		due = min(due, n)
	}
	return w.share.UpTo(due)
}

// dueAt is when the run's datagram k is due.
func (w *udpWorker) dueAt(k int64) int64 {
	at := int64(w.run.pace.At(k))
	return at + min(w.run.begun, math.MaxInt64-at) // never stays never
}

// countLate counts those of the next datagrams that are too late for the schedule.
func (w *udpWorker) countLate(next int64) {
	if w.limit == 0 {
		w.late += min(max(w.due(w.now-load.LateAfter)-w.tried, 0), next)
	}
}

// nextFlow passes the turn on. Where more datagrams may be sent than there are flows,
// each flow sends several with one system call; otherwise one each.
func (w *udpWorker) nextFlow(budget int) {
	for w.left == 0 {
		if w.turn++; w.turn >= len(w.flows) || w.burst == 0 {
			w.turn = 0
			w.burst = max(min(budget/len(w.flows), udpBatch), 1)
		}
		f := &w.flows[w.turn]
		w.left = int(min(uint32(w.burst), f.last-f.next))
	}
}

// sendFlow sends a flow's next n datagrams and returns how many of them are done
// with; 0 where the machine cannot take any now.
func (w *udpWorker) sendFlow(f *udpFlow, n int) int {
	flow := w.share.Flow(w.turn)
	for i := range n {
		sequence := f.next + uint32(i)
		token := packets.Token{Run: w.run.token, Flow: uint32(flow), Sequence: sequence}
		token.Put(w.out.room(i))
		w.out.vectors[i].SetLen(w.payload(flow, sequence))
	}
	var errno syscall.Errno
	for range sendTries {
		w.stamp()
		var sent int
		sent, errno = w.sys.sendMessages(f.fd, w.out, 0, n)
		switch {
		case errno == 0:
			w.sent(f, flow, sent)
			return sent
		case errno == unix.EAGAIN:
			w.hold = w.now + holdAfterError
			return 0
		case w.readErrors(w.turn) == 0:
			w.refuse(f, errno)
			return 1
		}
		// An error about an earlier datagram came instead (sk_err), or one of this
		// machine that is in the queue of errors, too, such as EMSGSIZE.
	}
	w.refuse(f, errno)
	return 1
}

// frame is the size of a flow's datagram: all flows go through all sizes, each from
// a place of its own.
func (w *udpWorker) frame(flow int, sequence uint32) int {
	sizes := w.run.cfg.FrameBytes
	return sizes[(uint64(flow)+uint64(sequence))%uint64(len(sizes))]
}

func (w *udpWorker) payload(flow int, sequence uint32) int {
	return packets.PayloadBytes(w.frame(flow, sequence), w.run.server.Addr())
}

// sent takes down that the kernel took n datagrams of the flow.
func (w *udpWorker) sent(f *udpFlow, flow, n int) {
	lost := 0
	for range n {
		w.tally.SentFrameBytes += int64(w.frame(flow, f.next))
		lost += w.flight.Sent(w.number(w.turn, f.next), w.now)
		f.next++
	}
	w.lose(lost)
	w.tally.Sent += int64(n)
	w.tried += int64(n)
	w.lastSent, w.last = w.now, w.now
}

// refuse passes over a datagram that this machine does not send.
func (w *udpWorker) refuse(f *udpFlow, errno syscall.Errno) {
	w.tally.Failures.Add(load.Send, load.Reason(errno))
	w.lose(w.flight.Skip(w.number(w.turn, f.next)))
	f.next++
	w.tried++
	w.lastSent, w.last = w.now, w.now
	w.hold = w.now + holdAfterError
}

// number is a datagram's among those of the worker: the order in which they are sent
// where each flow sends one in turn.
func (w *udpWorker) number(i int, sequence uint32) int64 {
	return int64(sequence)*int64(len(w.flows)) + int64(i)
}

// receive waits pause nanoseconds for replies and takes those that are there.
func (w *udpWorker) receive(pause int64) {
	for _, e := range w.wait(pause) {
		if e.Fd == stopEvent {
			continue
		}
		if e.Events&unix.EPOLLERR != 0 {
			w.readErrors(int(e.Fd))
		}
		w.receiveFlow(int(e.Fd))
	}
}

// receiveFlow empties a flow's socket: its event comes once (EPOLLET).
func (w *udpWorker) receiveFlow(i int) {
	fd := w.flows[i].fd
	for tries := 0; tries < udpBatch; {
		n, errno := w.sys.receiveMessages(fd, w.in)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0: // sk_err: the error queue has it, too
			w.readErrors(i)
			tries++
			continue
		}
		w.stamp()
		for k := range n {
			w.arrive(i, k)
		}
		w.in.clear(n)
		if n < udpBatch {
			return
		}
	}
}

// arrive judges the k-th of the received messages.
func (w *udpWorker) arrive(i, k int) {
	payload := w.in.bytes(k)
	token, ok := packets.ParseToken(payload)
	if !ok || token.Run != packets.ReplyRun(w.run.token) {
		w.tally.Foreign++
		return
	}
	w.last = w.now
	f, flow := &w.flows[i], w.share.Flow(i)
	own := token.Flow == uint32(flow) && token.Sequence < f.next
	switch from := w.in.from(k); {
	case !own:
		w.tally.Stray(from)
	case from != w.run.server:
		w.tally.Stray(from)
		w.settle(w.number(i, token.Sequence))
	case len(payload) != w.payload(flow, token.Sequence):
		w.tally.Altered++
		w.settle(w.number(i, token.Sequence))
	default:
		w.reply(f, w.number(i, token.Sequence), token.Sequence)
	}
}

// settle waits no longer for the reply to a datagram.
func (w *udpWorker) settle(number int64) {
	if before, _ := w.flight.Settle(number); before == packets.Flying {
		w.lose(1)
	}
}

// reply takes a reply that is as it should be.
func (w *udpWorker) reply(f *udpFlow, number int64, sequence uint32) {
	w.tally.Received++
	arrival := f.track.Observe(sequence)
	before, sent := w.flight.Answer(number)
	switch {
	case before == packets.Answered || arrival == packets.Duplicated:
		w.tally.Duplicated++
		return
	case before == packets.Unknown && arrival == packets.Late:
		// Possibly a duplicate; counted as the first one, as Delivery has it.
		w.tally.Late++
	case arrival != packets.InOrder:
		w.tally.Reordered++
	}
	w.tally.Answered++
	if w.tally.Answered == 1 {
		w.run.answered.Store(true)
	}
	if before != packets.Unknown {
		w.tally.RoundTrip.Record(w.now - sent)
		w.interval.Complete(w.now - sent)
	}
}

// readErrors takes the ICMP errors that came for a flow, and returns how many there
// were, those that the machine made itself included.
func (w *udpWorker) readErrors(i int) (n int) {
	for ; n < udpBatch; n++ {
		if errno := w.sys.receiveError(w.flows[i].fd, w.errors); errno != 0 {
			return n
		}
		if reason, ok := icmpError(w.errors.controls(0)); ok {
			w.last = w.now
			w.tally.Failures.Add(load.Wait, reason)
			w.settleQuoted(i, w.errors.bytes(0))
		}
		w.errors.clear(1)
	}
	return n
}

// settleQuoted waits no longer for the reply to a datagram of which an ICMP error
// quotes the payload, as far as the error has room for it.
func (w *udpWorker) settleQuoted(i int, payload []byte) {
	token, ok := packets.ParseToken(payload)
	if ok && token.Run == w.run.token && token.Flow == uint32(w.share.Flow(i)) {
		w.settle(w.number(i, token.Sequence))
	}
}

// icmpError finds the error that came by ICMP among control messages: a struct
// sock_extended_err (include/uapi/linux/errqueue.h).
func icmpError(control []byte) (reason load.Reason, ok bool) {
	const (
		originAt, errLen = 4, 16
		byICMP, byICMP6  = 2, 3
	)
	for len(control) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return 0, false
		}
		isError := header.Level == unix.IPPROTO_IP && header.Type == unix.IP_RECVERR ||
			header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_RECVERR
		if isError && len(data) >= errLen {
			if reason = load.Reason(binary.NativeEndian.Uint32(data)); reason == load.Reason(unix.EACCES) {
				reason = load.Prohibited
			}
			origin := data[originAt]
			return reason, origin == byICMP || origin == byICMP6
		}
		control = rest
	}
	return 0, false
}
