package run

import (
	"syscall"

	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// connState is the state of a connection. Up to draining a request is in flight.
type connState uint8

const (
	free       connState = iota // no socket
	connecting                  // connect was called
	sending                     // part of the request is sent
	waiting                     // for the first byte
	reading                     // the response
	draining                    // the response is complete, the server's FIN is not there
	idle                        // kept alive, for the next request
	closing                     // our FIN is sent, its ACK not seen
	parked                      // a closed socket, ready to connect again
)

// conn is one connection: small, because there may be many and each event touches one. Instants are
// nanoseconds since the run's start.
type conn struct {
	intended, start, connected, sent, first int64

	resp load.Response
	fd   int32
	// next and prev link the connections in flight in the order of their deadlines, or the idle
	// ones.
	next, prev int32
	offset     uint16 // of the request, while sending
	// left is how many more requests the connection may carry after this one.
	left  int32
	state connState
	// fresh sockets can connect as they are; others must be unspecified first.
	fresh bool
	// bound sockets have a source address; dissolving a connection leaves it (tcp_disconnect,
	// SOCK_BINDADDR_LOCK) and gives only the port back.
	bound bool
}

// launch begins one request at w.now, on an open connection if one is idle.
func (w *worker) launch(intended int64) {
	if i := w.conns[w.idle].prev; i != w.idle {
		w.remove(i)
		c := &w.conns[i]
		c.resp, c.offset = load.Response{}, 0
		c.left--
		c.intended, c.start, c.connected = intended, w.now, w.now
		w.enlist(i)
		w.write(i, c)
		return
	}
	i, errno := w.socket()
	if errno != 0 {
		w.countFailure(load.Connect, load.Reason(errno))
		return
	}
	c := &w.conns[i]
	*c = conn{fd: c.fd, state: connecting, fresh: c.fresh, bound: c.bound, intended: intended, start: w.now, left: w.run.perConnection() - 1}
	w.enlist(i)
	if errno := w.open(c); errno != 0 {
		w.fail(i, load.Connect, load.Reason(errno))
		return
	}
	// On one machine the handshake is often over when connect returns. If it is not (another
	// machine), trying is given up after a few times.
	if w.eager > 0 {
		c.connected = w.stamp()
		w.begin(i, c)
	}
}

// begin does with a connection what it is for, right after connect or when it stands.
func (w *worker) begin(i int32, c *conn) {
	if w.run.cfg.NoRequest {
		w.end(i, c)
	} else {
		w.write(i, c)
	}
}

// end begins to close a connection that carries nothing, or to wait for the server to do so. Right after connect
// the handshake may not be over: a second connect returns whether it is.
func (w *worker) end(i int32, c *conn) {
	if c.state == connecting {
		switch errno := w.sys.connect(c.fd, &w.run.origin.to[0]); errno {
		case 0, unix.EISCONN:
			w.eager = eagerTries
		case unix.EALREADY:
			w.eager--
			return
		default:
			w.fail(i, load.Connect, load.Reason(errno))
			return
		}
	}
	c.sent, c.first, c.state = c.connected, c.connected, draining
	switch w.run.cfg.Close {
	case load.CloseReset:
		w.finish(i, c)
	case load.CloseClient:
		// It is over with the server's FIN: else the server would be left behind.
		if errno := w.sys.shutdown(c.fd); errno != 0 {
			w.fail(i, load.Close, load.Reason(errno))
		}
	}
}

func (w *worker) enlist(i int32) {
	w.push(w.flying, i)
	w.flyingNow++
}

// open starts the handshake.
func (w *worker) open(c *conn) syscall.Errno {
	if !c.fresh {
		if errno := w.sys.connect(c.fd, &unspecified); errno != 0 {
			return errno
		}
		c.fresh = true
	}
	if errno := w.bind(c); errno != 0 {
		return errno
	}
	if w.run.cfg.MergeAck {
		if errno := w.sys.setOption(c.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0); errno != 0 {
			return errno
		}
	}
	c.fresh = false
	if errno := w.sys.connect(c.fd, w.destination()); errno != 0 && errno != unix.EINPROGRESS {
		return errno
	}
	return 0
}

// destination returns the next one. Each round begins one further, so that every source, which come
// in turn too, meets every destination.
func (w *worker) destination() *sockaddr {
	n := len(w.run.origin.to)
	to := &w.run.origin.to[(w.to+w.to/n)%n]
	w.to++
	return to
}

// last reports whether the connection carries no request after this one.
func (w *worker) last(c *conn) bool { return !w.run.cfg.KeepAlive || c.left == 0 }

// request returns what the connection sends: the last one that it carries may ask the server to
// close.
func (w *worker) request(c *conn) []byte {
	if w.run.cfg.KeepAlive && c.left == 0 {
		return w.run.lastRequest
	}
	return w.run.request
}

// serverCloses reports whether the server is to close after this request.
func (w *worker) serverCloses(c *conn) bool {
	return w.run.cfg.Close == load.CloseServer && w.last(c)
}

// portTries is how many ports are tried for one connection; listening sockets and other programs
// hold some.
const portTries = 64

// bind takes the next source. A socket keeps the address that it has, which costs no system call,
// unless there are more addresses than connections: then some would never be used. Source ports
// are taken in the run's order, of which each worker has its share.
func (w *worker) bind(c *conn) (errno syscall.Errno) {
	n := len(w.run.sources)
	if w.run.ownPorts() {
		for range portTries {
			w.sys.name = w.run.at(w.port)
			w.port += uint64(w.run.cfg.Workers)
			if errno = w.sys.bind(c.fd, &w.sys.name); errno != unix.EADDRINUSE {
				break
			}
		}
		return errno
	}
	if n == 0 || c.bound && n <= w.limit {
		return 0
	}
	errno = w.sys.bind(c.fd, &w.run.sources[w.source])
	w.source = (w.source + 1) % n
	c.bound = errno == 0
	return errno
}

// write sends the request, or the rest of it. Right after connect the handshake may not be over.
func (w *worker) write(i int32, c *conn) {
	request, early := w.request(c), c.state == connecting
	n, errno := w.sys.send(c.fd, request[c.offset:])
	switch {
	case errno == 0:
		if early {
			w.eager = eagerTries
		}
		c.state = sending
		if c.offset += uint16(n); int(c.offset) == len(request) {
			c.state = waiting
			c.sent = w.stamp()
		}
	case errno == unix.EAGAIN && early:
		w.eager--
	case errno == unix.EAGAIN:
		c.state = sending
	case early:
		w.fail(i, load.Connect, load.Reason(errno))
	default:
		w.fail(i, load.Send, load.Reason(errno))
	}
}

// event handles what epoll returned.
func (w *worker) event(i int32, mask uint32) {
	c := &w.conns[i]
	const broken = unix.EPOLLERR | unix.EPOLLHUP
	switch c.state {
	case closing:
		if mask&unix.EPOLLHUP != 0 {
			w.closing--
			w.park(i)
		}
	case idle:
		if mask&(broken|unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
			w.remove(i)
			w.discard(i)
		}
	case connecting:
		if mask&broken != 0 {
			// Both sides may have ended the connection already, without an error.
			if errno := w.sys.socketError(c.fd); errno != 0 {
				w.fail(i, load.Connect, load.Reason(errno))
				return
			}
		}
		if mask&unix.EPOLLOUT != 0 {
			c.connected, c.state = w.stamp(), sending
			w.writeThenRead(i, c, mask)
		}
	case sending:
		if mask&(unix.EPOLLOUT|broken) != 0 {
			w.writeThenRead(i, c, mask)
		}
	case waiting, reading, draining:
		if mask&(unix.EPOLLIN|unix.EPOLLRDHUP|broken) != 0 {
			w.read(i, c, mask)
		}
	}
}

// writeThenRead also reads what the same event announced: being edge-triggered, it comes only once.
func (w *worker) writeThenRead(i int32, c *conn, mask uint32) {
	w.begin(i, c)
	if (c.state == waiting || c.state == draining) && mask&(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
		w.read(i, c, mask)
	}
}

// read receives what has arrived. If the mask has the FIN (EPOLLRDHUP) and the response is complete,
// no system call is needed.
func (w *worker) read(i int32, c *conn, mask uint32) {
	if c.state == draining && mask&unix.EPOLLRDHUP != 0 && mask&unix.EPOLLERR == 0 {
		w.stamp()
		w.finish(i, c)
		return
	}
	for {
		n, errno := w.sys.receive(c.fd, w.buf)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			w.fail(i, w.readPhase(c), load.Reason(errno))
			return
		}
		w.stamp()
		if n == 0 {
			w.endOfStream(i, c)
			return
		}
		if !w.feed(i, c, w.buf[:n]) {
			return
		}
		switch {
		case c.state == draining && (mask&unix.EPOLLRDHUP != 0 || !w.serverCloses(c)):
			w.finish(i, c)
			return
		case n == len(w.buf) || mask&unix.EPOLLRDHUP != 0:
			// There may be more: the buffer was full, or the FIN follows.
		default:
			return
		}
	}
}

func (w *worker) readPhase(c *conn) load.Phase {
	switch {
	case w.run.cfg.NoRequest:
		return load.Close
	case c.state == waiting:
		return load.Wait
	}
	return load.Read
}

// feed parses received bytes; false if the request has failed.
func (w *worker) feed(i int32, c *conn, b []byte) bool {
	w.tally.Received += int64(len(b))
	switch c.state {
	case waiting:
		c.first = w.now
		c.state = reading
		if w.server == "" {
			w.server = load.ServerName(b)
		}
	case draining:
		if w.run.cfg.NoRequest { // the server speaks first
			return true
		}
		w.fail(i, load.Reply, load.Surplus)
		return false
	}
	n, bad := c.resp.Feed(b)
	if bad == 0 && n < len(b) {
		bad = load.Surplus
	}
	if bad != 0 {
		w.fail(i, load.Reply, bad)
		return false
	}
	if c.resp.Done() {
		c.state = draining
	}
	return true
}

func (w *worker) endOfStream(i int32, c *conn) {
	if c.state == draining {
		w.finish(i, c)
		return
	}
	switch bad := c.resp.End(); bad {
	case 0:
		w.finish(i, c)
	case load.ClosedEarly:
		w.fail(i, load.Wait, bad)
	default:
		w.fail(i, load.Read, bad)
	}
}

// finish counts a request whose response was complete at w.now and lets go of its connection, which
// is still open.
func (w *worker) finish(i int32, c *conn) {
	w.unlist(i)
	if status := c.resp.Status(); status/100 == 2 || w.run.cfg.NoRequest {
		w.complete(c)
	} else {
		w.countFailure(load.Reply, load.StatusReason(status))
	}
	switch {
	case !w.last(c) && c.resp.Persistent():
		c.state = idle
		w.push(w.idle, i)
	case w.run.cfg.NoRequest && w.run.cfg.Close == load.CloseClient && w.reusable(c):
		w.park(i) // both have closed
	case w.run.cfg.Close == load.CloseReset && w.last(c):
		// Dissolving the connection sends the reset as well (tcp_disconnect), and leaves the socket.
		if w.reusable(c) && w.sys.connect(c.fd, &unspecified) == 0 {
			w.park(i)
			c.fresh = true
			return
		}
		w.sys.resetOnClose(c.fd)
		w.discard(i)
	case w.last(c) && w.closing < w.spare && w.reusable(c) && w.sys.shutdown(c.fd) == 0:
		c.state = closing
		w.closing++
	default:
		w.discard(i)
	}
}

// fail counts a failed request in flight and ends its connection at once.
func (w *worker) fail(i int32, phase load.Phase, reason load.Reason) {
	c := &w.conns[i]
	w.stamp()
	w.unlist(i)
	w.countFailure(phase, reason)
	if c.state != connecting {
		w.sys.resetOnClose(c.fd)
	}
	w.discard(i)
}
