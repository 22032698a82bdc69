package run

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
)

// holdAfterError keeps a worker from spinning where connections fail at once, in
// nanoseconds.
const holdAfterError = 1_000_000

// watchedEvents are all a connection's, once and for all: edge-triggered, so that
// no epoll_ctl follows.
const watchedEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// finish counts a request whose response was complete at w.now and lets go of
// its connection, which still stands.
func (w *worker) finish(i int32, c *conn) {
	w.unlist(i)
	if status := c.resp.Status(); status/100 == 2 {
		w.complete(c)
	} else {
		w.countFailure(load.InReply, load.StatusReason(status))
	}
	switch {
	case w.run.cfg.KeepAlive && c.left > 0 && c.resp.Persistent():
		c.state = idle
		w.push(&w.idle, i)
	case w.run.cfg.Close == load.CloseReset && (!w.run.cfg.KeepAlive || c.left == 0):
		w.resetFinished(i, c)
	case !w.serverCloses(c) || !w.reusable(c) || w.closing >= w.spare:
		w.discard(i)
	default:
		if w.sys.shutdown(c.fd) != 0 {
			w.discard(i)
			return
		}
		c.state = closing
		w.closing++
	}
}

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

// resetFinished ends a good connection with RST: breaking it up by AF_UNSPEC does
// that (tcp_disconnect) and leaves the socket ready for the next one.
func (w *worker) resetFinished(i int32, c *conn) {
	if w.reusable(c) && w.sys.connect(c.fd, &w.unspec) == 0 {
		w.park(i)
		c.fresh = true
		return
	}
	w.sys.resetOnClose(c.fd)
	w.discard(i)
}

// reusable reports whether sockets may be connected again. A socket that is used
// again takes its next initial sequence number from its last one, not from the
// clock; a server in TIME_WAIT then knows a new connection from an old one by
// the timestamps only (tcp_timewait_state_process). Without them each connection
// gets a new socket.
func (w *worker) reusable(c *conn) bool {
	if w.reuse == unknown {
		w.reuse = no
		if w.sys.timestamps(c.fd) {
			w.reuse = yes
		}
	}
	return w.reuse == yes
}

// park keeps a closed socket, still in the epoll, for another connection. That
// saves two system calls and the making of a socket per connection; on the wire
// nothing differs.
func (w *worker) park(i int32) {
	w.conns[i].state = parked
	w.conns[i].fresh = false
	w.parked = append(w.parked, i)
}

// discard closes the socket.
func (w *worker) discard(i int32) {
	w.sys.close(w.conns[i].fd)
	w.conns[i].state = free
	w.unused = append(w.unused, i)
}

// socket finds a socket to connect with.
func (w *worker) socket() (int32, syscall.Errno) {
	if n := len(w.parked); n > 0 {
		i := w.parked[n-1]
		w.parked = w.parked[:n-1]
		return i, 0
	}
	i := w.unused[len(w.unused)-1]
	fd, errno := w.newSocket(i)
	if errno != 0 {
		return 0, errno
	}
	w.unused = w.unused[:len(w.unused)-1]
	w.conns[i] = conn{fd: fd, fresh: true}
	return i, 0
}

func (w *worker) newSocket(i int32) (int32, syscall.Errno) {
	fd, errno := w.sys.socket(w.run.family)
	if errno != 0 {
		return 0, errno
	}
	switch {
	case w.run.ownPorts():
		// Ports that a former connection holds in TIME_WAIT can be bound again; the
		// kernel refuses the connection where the whole tuple is still in use.
		errno = w.sys.setOption(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	case len(w.run.sources) > 0:
		// The port is then chosen by connect, for the whole tuple, not by bind
		// for the address alone (ip(7), IP_BIND_ADDRESS_NO_PORT; holds for IPv6 too).
		errno = w.sys.setOption(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	}
	if errno == 0 {
		errno = w.sys.watch(w.epoll, fd, i, watchedEvents)
	}
	if errno != 0 {
		w.sys.close(fd)
		return 0, errno
	}
	return fd, 0
}

// fail counts a failed request in flight and ends its connection at once.
func (w *worker) fail(i int32, phase load.PhaseIndex, reason load.Reason) {
	c := &w.conns[i]
	w.stamp()
	w.unlist(i)
	w.countFailure(phase, reason)
	if c.state != connecting {
		w.sys.resetOnClose(c.fd)
	}
	w.discard(i)
}

func (w *worker) countFailure(phase load.PhaseIndex, reason load.Reason) {
	w.turnSecond()
	w.run.requestOver()
	w.tally.Fail(phase, reason)
	w.interval.Failed++
	for at := w.now; ; {
		first := w.run.firstFailure.Load()
		if first <= at || w.run.firstFailure.CompareAndSwap(first, at) {
			break
		}
	}
	if reason.NoLocalPort() {
		w.noLocalPort++
	}
	if phase == load.InConnect && !reason.Timeout() {
		w.hold = w.now + holdAfterError
		w.run.connectFailed(reason)
	}
}

// unlist takes a request out of flight.
func (w *worker) unlist(i int32) {
	if w.inFlight == w.limit {
		w.lastFull = w.now
	}
	w.inFlight--
	w.flown += w.now - w.conns[i].start
	w.ended++
	w.remove(&w.flying, i)
}

// expire fails the requests whose time is over. They stand in the order of their
// intended starts, and all have the same time, so the first are the oldest.
func (w *worker) expire() {
	for i := w.flying.head; i != none; i = w.flying.head {
		c := &w.conns[i]
		if c.intended+w.timeout > w.now {
			return
		}
		switch c.state {
		case connecting:
			w.fail(i, load.InConnect, load.TimedOut)
		case sending:
			w.fail(i, load.InSend, load.TimedOut)
		case waiting:
			w.fail(i, load.InWait, load.TimedOut)
		case draining:
			w.fail(i, load.InRead, load.NotClosed)
		default:
			w.fail(i, load.InRead, load.TimedOut)
		}
	}
}
