package run

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load"
)

// listenEvent is the epoll data of the listening socket.
const listenEvent = -2

// peer is one accepted connection.
type peer struct {
	deadline   int64
	request    load.Request
	rest       []byte // of the response that did not fit into the socket's buffer
	fd         int32
	next, prev int32 // in the order of the deadlines
	watched    bool
	kept       bool // the response says keep-alive
}

// serveWorker is one thread of the server.
type serveWorker struct {
	server   *server
	listener int32
	epoll    int32
	sys      caller
	now      int64
	peers    []peer
	unused   []int32
	order    peerList
	paused   bool // the listener is not watched: there are too many connections
	buf      []byte
	events   []unix.EpollEvent
}

// peerList is a queue of peers, oldest deadline first.
type peerList struct{ head, tail int32 }

func newServeWorker(s *server, listener int32) *serveWorker {
	return &serveWorker{
		server: s, listener: listener, order: peerList{none, none},
		buf: make([]byte, bufferSize), events: make([]unix.EpollEvent, batch),
	}
}

func (w *serveWorker) setUp() error {
	if err := privateFiles(int(w.listener), w.server.stopFile); err != nil {
		return err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make an epoll: %w", err)
	}
	w.epoll = int32(epoll)
	if errno := w.sys.watch(w.epoll, int32(w.server.stopFile), stopEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the stop event: %w", errno)
	}
	if errno := w.sys.watch(w.epoll, w.listener, listenEvent, unix.EPOLLIN); errno != 0 {
		return fmt.Errorf("watch the listening socket: %w", errno)
	}
	return nil
}

func (w *serveWorker) loop() {
	for !w.server.stop.Load() {
		n, errno := w.sys.poll(w.epoll, w.events, w.pause())
		if errno != 0 {
			n = 0
		}
		w.now = int64(time.Since(w.server.started))
		for _, e := range w.events[:n] {
			switch {
			case e.Fd == listenEvent:
				w.acceptAll()
			case e.Fd >= 0:
				w.event(e.Fd, e.Events)
			}
		}
		w.expire()
	}
	for i := w.order.head; i != none; i = w.order.head {
		w.close(i)
	}
	w.sys.close(w.listener)
	w.sys.close(w.epoll)
}

// pause is the time to the oldest deadline; a minute where there is none.
func (w *serveWorker) pause() int64 {
	if w.order.head == none {
		return int64(idleTimeout)
	}
	return max(w.peers[w.order.head].deadline-int64(time.Since(w.server.started)), 0)
}

func (w *serveWorker) expire() {
	for i := w.order.head; i != none && w.peers[i].deadline <= w.now; i = w.order.head {
		w.close(i)
	}
}

// acceptAll takes at most a batch, so that those already accepted are served in
// between; the listener is level-triggered and says so again.
func (w *serveWorker) acceptAll() {
	for range batch {
		if len(w.peers)-len(w.unused) >= w.server.files {
			w.pauseAccept()
			return
		}
		fd, errno := w.sys.accept(w.listener)
		switch errno {
		case 0:
			w.serveNew(fd)
		case unix.ECONNABORTED, unix.EINTR:
		case unix.EAGAIN:
			return
		default: // EMFILE, ENFILE, ENOMEM, ENOBUFS
			w.pauseAccept()
			return
		}
	}
}

// pauseAccept waits for a connection to end. Where there is none of this
// worker's, the shortage is the machine's: going on is all that is left.
func (w *serveWorker) pauseAccept() {
	if w.order.head != none && !w.paused {
		w.sys.unwatch(w.epoll, w.listener)
		w.paused = true
	}
}

func (w *serveWorker) serveNew(fd int32) {
	var i int32
	if n := len(w.unused); n > 0 {
		i = w.unused[n-1]
		w.unused = w.unused[:n-1]
	} else {
		i = int32(len(w.peers))
		w.peers = append(w.peers, peer{})
	}
	w.peers[i] = peer{fd: fd}
	w.enqueue(i)
	// The request is often there already; where it is answered at once the
	// connection never gets into the epoll.
	w.read(i)
}

func (w *serveWorker) event(i int32, mask uint32) {
	p := &w.peers[i]
	if p.next == i { // closed in this batch
		return
	}
	// What came while the response was stuck had its event then.
	stuck := len(p.rest) > 0
	if stuck && !w.write(i) {
		return
	}
	if stuck || mask&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		w.read(i)
	}
}

// read takes requests until the socket is empty or the connection is closed.
func (w *serveWorker) read(i int32) {
	for {
		p := &w.peers[i]
		n, errno := w.sys.receive(p.fd, w.buf)
		switch {
		case errno == unix.EAGAIN:
			w.watch(i)
			return
		case errno != 0 || n == 0:
			w.close(i)
			return
		}
		if !w.answer(i, w.buf[:n]) {
			return
		}
		if p.watched && n < len(w.buf) {
			return // edge-triggered: more data comes with a new event
		}
	}
}

// answer handles what was received; false where the connection is closed or
// waits to be written to.
func (w *serveWorker) answer(i int32, b []byte) bool {
	p := &w.peers[i]
	for len(b) > 0 {
		n, bad := p.request.Feed(b)
		if bad != 0 {
			w.close(i)
			return false
		}
		b = b[n:]
		if !p.request.Done() {
			return true
		}
		p.kept = p.request.KeepAlive()
		p.request = load.Request{}
		if p.rest = w.server.closed; p.kept {
			p.rest = w.server.kept
		}
		if !w.write(i) {
			// A request behind one whose response is stuck is not kept for later.
			p.kept = p.kept && len(b) == 0
			return false
		}
		w.dequeue(i)
		w.enqueue(i)
	}
	return true
}

// write sends the rest of a response; false where the connection is closed or
// its buffer is full.
func (w *serveWorker) write(i int32) bool {
	p := &w.peers[i]
	for len(p.rest) > 0 {
		n, errno := w.sys.send(p.fd, p.rest)
		switch errno {
		case 0:
			p.rest = p.rest[n:]
		case unix.EAGAIN:
			w.watch(i)
			return false
		default:
			w.close(i)
			return false
		}
	}
	p.rest = nil
	if !p.kept {
		w.close(i)
		return false
	}
	return true
}

func (w *serveWorker) watch(i int32) {
	p := &w.peers[i]
	if p.watched {
		return
	}
	p.watched = true
	if w.sys.watch(w.epoll, p.fd, i, watchedEvents) != 0 {
		w.close(i)
	}
}

func (w *serveWorker) close(i int32) {
	w.sys.close(w.peers[i].fd)
	w.dequeue(i)
	w.peers[i] = peer{next: i, fd: -1}
	w.unused = append(w.unused, i)
	if w.paused {
		w.paused = w.sys.watch(w.epoll, w.listener, listenEvent, unix.EPOLLIN) != 0
	}
}

func (w *serveWorker) enqueue(i int32) {
	p := &w.peers[i]
	p.deadline = w.now + int64(idleTimeout)
	p.prev, p.next = w.order.tail, none
	if w.order.tail == none {
		w.order.head = i
	} else {
		w.peers[w.order.tail].next = i
	}
	w.order.tail = i
}

func (w *serveWorker) dequeue(i int32) {
	p := &w.peers[i]
	if p.prev == none {
		w.order.head = p.next
	} else {
		w.peers[p.prev].next = p.next
	}
	if p.next == none {
		w.order.tail = p.prev
	} else {
		w.peers[p.next].prev = p.prev
	}
}
