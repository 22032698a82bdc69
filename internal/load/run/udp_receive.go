package run

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/packet"
)

// receive waits so many nanoseconds for replies and takes those that are there.
func (w *udpWorker) receive(pause int64) {
	n, errno := w.sys.poll(w.epoll, w.events, pause)
	if errno != 0 { // EINTR
		n = 0
	}
	w.stamp()
	w.turnSecond()
	for _, e := range w.events[:n] {
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
	token, ok := packet.ParseToken(payload)
	if !ok || token.Run != udp.ReplyRun(w.run.token) {
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
	if before, _ := w.flight.Settle(number); before == udp.Flying {
		w.lose(1)
	}
}

// reply takes a reply that is as it should be.
func (w *udpWorker) reply(f *udpFlow, number int64, sequence uint32) {
	w.tally.Received++
	arrival := f.track.Observe(sequence)
	before, sent := w.flight.Answer(number)
	switch {
	case before == udp.Answered || arrival == packet.Duplicated:
		w.tally.Duplicated++
		return
	case before == udp.Unknown && arrival == packet.Late:
		// Possibly a duplicate; counted as the first one, as Delivery has it.
		w.tally.Late++
	case arrival != packet.InOrder:
		w.tally.Reordered++
	}
	w.tally.Answered++
	if w.tally.Answered == 1 {
		w.run.answered.Store(true)
	}
	if before != udp.Unknown {
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
			w.tally.Failures.Add(load.InWait, reason)
			w.settleQuoted(i, w.errors.bytes(0))
		}
		w.errors.clear(1)
	}
	return n
}

// settleQuoted waits no longer for the reply to a datagram of which an ICMP error
// quotes the payload, as far as the error has room for it.
func (w *udpWorker) settleQuoted(i int, payload []byte) {
	token, ok := packet.ParseToken(payload)
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
