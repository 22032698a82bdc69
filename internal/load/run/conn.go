package run

import (
	"context"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// connState is where a connection stands. Up to draining a request is in flight.
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

// conn is one connection: small, because there may be many and each event
// touches one. Instants are nanoseconds since the run's start.
type conn struct {
	intended, start, connected, sent, first int64

	resp load.Response
	fd   int32
	// next and prev link the connections in flight in the order of their
	// deadlines, or the idle ones.
	next, prev int32
	offset     uint16 // of the request, while sending
	// left is how many more requests the connection may carry after this one.
	left  int32
	state connState
	// fresh sockets can connect as they are; others must be unspecified first.
	fresh bool
	// bound sockets have a source address; breaking a connection up leaves it
	// (tcp_disconnect, SOCK_BINDADDR_LOCK) and gives only the port back.
	bound bool
}

// launch begins one request, on an open connection where one is idle. It starts
// at w.now.
func (w *worker) launch(intended int64) {
	if i := w.idle.tail; i != none {
		w.remove(&w.idle, i)
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
		w.countFailure(load.InConnect, load.Reason(errno))
		return
	}
	c := &w.conns[i]
	*c = conn{fd: c.fd, state: connecting, fresh: c.fresh, bound: c.bound, intended: intended, start: w.now, left: w.run.perConnection() - 1}
	w.enlist(i)
	if errno := w.open(c); errno != 0 {
		w.fail(i, load.InConnect, load.Reason(errno))
		return
	}
	// On one machine the handshake is often over when connect returns. Where it
	// is not (another machine), trying is given up after a few times.
	if w.eager > 0 {
		c.connected = w.stamp()
		w.tryEager(i, c)
	}
}

func (w *worker) enlist(i int32) {
	w.push(&w.flying, i)
	w.inFlight++
}

// open starts the handshake.
func (w *worker) open(c *conn) syscall.Errno {
	if !c.fresh {
		if errno := w.sys.connect(c.fd, &w.unspec); errno != 0 {
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

// destination is the next one. Each round begins one further, so that every source,
// which come in turn too, meets every destination.
func (w *worker) destination() *sockaddr {
	n := len(w.run.to)
	to := &w.run.to[(w.to+w.to/n)%n]
	w.to++
	return to
}

// request is what the connection is to say: the last one that it carries may ask the
// server to close.
func (w *worker) request(c *conn) []byte {
	if w.run.cfg.KeepAlive && c.left == 0 {
		return w.run.lastRequest
	}
	return w.run.request
}

// serverCloses reports whether the server is to close after this request.
func (w *worker) serverCloses(c *conn) bool {
	return w.run.cfg.Close == load.CloseServer && (!w.run.cfg.KeepAlive || c.left == 0)
}

// bind takes the next source address. A socket keeps the one that it has, which
// costs no system call, unless there are more addresses than connections: then
// some would never be used.
func (w *worker) bind(c *conn) syscall.Errno {
	if w.run.ownPorts() {
		return w.bindPort(c)
	}
	n := len(w.run.sources)
	if n == 0 || c.bound && n <= w.limit {
		return 0
	}
	source := &w.run.sources[w.source]
	w.source = (w.source + 1) % n
	errno := w.sys.bind(c.fd, source)
	c.bound = errno == 0
	return errno
}

// portTries is how many ports are tried for one connection; listening sockets and
// other programs hold some.
const portTries = 64

// bindPort takes the next source address and port in the run's order, of which
// each worker has its share.
func (w *worker) bindPort(c *conn) syscall.Errno {
	ports := uint64(w.run.cfg.SourcePorts.Len())
	for range portTries {
		at := w.run.ports.At(w.port)
		w.port += uint64(w.run.workers)
		source := w.run.sources[at/ports].withPort(w.run.cfg.SourcePorts.First + uint16(at%ports))
		if errno := w.sys.bind(c.fd, &source); errno != unix.EADDRINUSE {
			return errno
		}
	}
	return unix.EADDRINUSE
}

func (w *worker) tryEager(i int32, c *conn) {
	n, errno := w.sys.send(c.fd, w.request(c))
	switch errno {
	case 0:
		w.eager = eagerTries
		w.wrote(c, n)
	case unix.EAGAIN:
		w.eager--
	default:
		w.fail(i, load.InConnect, load.Reason(errno))
	}
}

// write sends the request, or the rest of it.
func (w *worker) write(i int32, c *conn) {
	n, errno := w.sys.send(c.fd, w.request(c)[c.offset:])
	switch errno {
	case 0:
		w.wrote(c, n)
	case unix.EAGAIN:
		c.state = sending
	default:
		w.fail(i, load.InSend, load.Reason(errno))
	}
}

func (w *worker) wrote(c *conn, n int) {
	if c.offset += uint16(n); int(c.offset) < len(w.request(c)) {
		c.state = sending
		return
	}
	c.state = waiting
	c.sent = w.stamp()
}

// event handles what epoll saw.
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
			w.remove(&w.idle, i)
			w.discard(i)
		}
	case connecting:
		if mask&broken != 0 && w.refused(i, c) {
			return
		}
		if mask&unix.EPOLLOUT == 0 {
			return
		}
		c.connected = w.stamp()
		w.writeThenRead(i, c, mask)
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

// writeThenRead also reads what the same event announced: being edge-triggered,
// it comes only once.
func (w *worker) writeThenRead(i int32, c *conn, mask uint32) {
	w.write(i, c)
	if c.state == waiting && mask&(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
		w.read(i, c, mask)
	}
}

// refused finds out why the handshake ended; false where it has not.
func (w *worker) refused(i int32, c *conn) bool {
	errno := w.sys.socketError(c.fd)
	if errno == 0 {
		// Both sides may have ended the connection already, without an error.
		return false
	}
	w.fail(i, load.InConnect, load.Reason(errno))
	return true
}

// claimed is what a worker gets that asks for a request to make.
type claimed uint8

const (
	granted claimed = iota
	// notYet: the next batch has not begun.
	notYet
	// noMore: all requests are made or under way.
	noMore
)

// batchTick is how often a worker asks whether the next batch has begun, in
// nanoseconds.
const batchTick = 1_000_000

// batches are the pieces of a run, each begun when the one before is over.
type batches struct {
	size, requests int64 // requests is MaxInt64 where only the time ends the run
	issued, over   atomic.Int64
	released       atomic.Int64
	turn           chan struct{} // the present batch is over
}

func newBatches(cfg load.Config) *batches {
	if cfg.Batch == 0 {
		return nil
	}
	b := &batches{size: cfg.Batch, requests: cfg.Requests, turn: make(chan struct{}, 1)}
	if b.requests == 0 {
		b.requests = math.MaxInt64
	}
	b.release()
	return b
}

// release lets the next batch begin; false after the last one.
func (b *batches) release() bool {
	before := b.released.Load()
	b.released.Store(before + min(b.size, b.requests-before))
	return before < b.requests
}

func (b *batches) claim() claimed {
	released := b.released.Load()
	if b.issued.Add(1) <= released {
		return granted
	}
	b.issued.Add(-1)
	if released >= b.requests {
		return noMore
	}
	return notYet
}

// requestOver counts a request that was completed or has failed.
func (r *run) requestOver() {
	if b := r.batches; b != nil && b.over.Add(1) == b.released.Load() {
		b.turn <- struct{}{} // a batch is over once
	}
}

// turnBatches begins one batch after the other. The returned function ends that and
// returns what went wrong.
func (r *run) turnBatches(ctx context.Context, next func(context.Context, int) error) func() error {
	if r.batches == nil {
		return func() error { return nil }
	}
	if next == nil {
		next = func(ctx context.Context, _ int) error { return pause(ctx, r.cfg.Pause) }
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- r.takeTurns(ctx, next) }()
	return func() error {
		cancel()
		return <-done
	}
}

func (r *run) takeTurns(ctx context.Context, next func(context.Context, int) error) error {
	for n := 1; ; n++ {
		select {
		case <-r.batches.turn:
		case <-ctx.Done():
			return nil
		}
		if r.batches.released.Load() >= r.batches.requests {
			return nil
		}
		if err := next(ctx, n); err != nil {
			if ctx.Err() != nil { // the run has ended meanwhile
				return nil
			}
			r.end()
			return err
		}
		r.batches.release()
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// perConnection is how many requests one connection may carry.
func (r *run) perConnection() int32 {
	switch n := r.cfg.PerConnection; {
	case !r.cfg.KeepAlive:
		return 1
	case n == 0:
		return math.MaxInt32
	default:
		return int32(min(n, math.MaxInt32))
	}
}
