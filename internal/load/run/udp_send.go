package run

import (
	"math"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/packet"
)

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

// budget is how many datagrams may be sent now: as many as are due, or until the
// allowed number is on the way.
func (w *udpWorker) budget() int {
	if w.limit > 0 {
		return int(min(int64(w.limit-w.flight.Flying), w.total-w.tried))
	}
	return int(min(max(w.due(w.now)-w.tried, 0), w.total-w.tried, udpBurst))
}

// due is how many of this worker's datagrams are due at an instant.
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
		token := packet.Token{Run: w.run.token, Flow: uint32(flow), Sequence: sequence}
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
	return udp.PayloadBytes(w.frame(flow, sequence), w.run.server.Addr())
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
	w.tally.Failures.Add(load.InSend, load.Reason(errno))
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
