package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// holdAbort is how many connections may fail before any stands; then the run ends. That many at least may time out
// in a row when they are verified, or closed by the server; then no more are.
const holdAbort = 100

// holdRun is what the workers of a run that holds connections share.
type holdRun struct {
	crew
	origin
	turns
	cfg     load.HoldConfig
	pace    load.Pace
	openers int // workers that open connections at once

	claimed atomic.Int64 // starts of the schedule
	// Workers that have not opened, or not verified, all of theirs.
	opening, verifying atomic.Int64
	opened             int64 // when the last of them had
	// Connections that were asked for a byte, or to be closed, and timed out, since one has answered.
	unanswered atomic.Int64
	kept       atomic.Int64 // when the time begins for which they are kept; 0 before

	standing atomic.Int64  // connections, once the worker has opened all of its
	full     chan struct{} // closed when the last worker has opened all of its

	stood    atomic.Bool // a connection did
	refusals atomic.Int64

	// Before the first connection, when all were open, and when all were closed.
	before, held, after *snapshot.TCPSockets
	rss, heldRSS        int64
	usage               usage // of the CPUs, before and then while they were opened
}

// Hold opens connections, keeps them, verifies some and closes all. When ctx ends it closes what is
// open and returns what was measured until then, without an error. Only a run in which no connection
// stood returns an error beside its result. Nothing stays open.
func Hold(ctx context.Context, cfg load.HoldConfig, opt Options) (*load.HoldResult, error) {
	if err := permit.Change("open connections"); err != nil {
		return nil, err
	}
	files, err := fileLimit()
	if err != nil {
		return nil, fmt.Errorf("bench hold: %w", err)
	}
	return hold(ctx, cfg, opt, files)
}

// hold is Hold with that many connections for each thread at most.
func hold(ctx context.Context, cfg load.HoldConfig, opt Options, files int) (*load.HoldResult, error) {
	cfg, err := cfg.Checked()
	if err != nil {
		return nil, fmt.Errorf("bench hold: %w", err)
	}
	at := fmt.Sprintf("%s:%v", bracketed(cfg.To), cfg.Ports)
	fail := func(err error) error { return fmt.Errorf("bench hold %s: %w", at, err) }
	r, workers, err := newHoldRun(cfg, opt.Netns, files)
	if err != nil {
		return nil, fail(err)
	}
	defer unix.Close(r.stopFile)
	defer unix.Close(r.turns.file)
	r.before = readSockets(opt.Netns)
	attended := r.attend(opt)
	opt.ready = func() { r.usage = readUsage() } // workers have no files for it
	err = conduct(ctx, &r.crew, workers, opt)
	attended()
	if err != nil {
		return nil, fail(err)
	}
	r.after = readSockets(opt.Netns)
	result := r.result(workers)
	if result.Established == 0 && ctx.Err() == nil {
		return result, fail(noneStood(result))
	}
	return result, nil
}

func bracketed(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

// noneStood is why a run failed in which no connection was established.
func noneStood(r *load.HoldResult) error {
	var causes []string
	for _, f := range r.Failures {
		causes = append(causes, fmt.Sprintf("%s: %s %d", f.Phase, f.Reason, f.Count))
	}
	if len(causes) == 0 {
		return errors.New("the run ended before any connection stood")
	}
	return fmt.Errorf("no connection stood: %s", strings.Join(causes, ", "))
}

// newHoldRun makes a run and its workers; the caller closes stopFile and the turns.
func newHoldRun(cfg load.HoldConfig, ns *netns.Handle, files int) (r *holdRun, workers []*holdWorker, err error) {
	to := cfg.To.Unmap()
	if len(cfg.Sources) == 0 && cfg.SourcePorts.Len() > 0 {
		// Sockets without an address would be moved in the kernel's table of ports by connect.
		a, err := routeSource(ns, netip.AddrPortFrom(to, cfg.Ports.First))
		if err != nil {
			return nil, nil, err
		}
		cfg.Sources = []netip.Addr{a}
	}
	r = &holdRun{cfg: cfg, full: make(chan struct{}), pace: load.Pace{PerSecond: cfg.Rate}, rss: residentSet()}
	r.openers = min(workersAtOnce(cfg.Workers, cfg.Connections), cfg.Concurrency)
	r.cfg.Workers = r.openers
	threads, err := workersFor(r.openers, cfg.Connections, "connections", files)
	if err != nil {
		return nil, nil, err
	}
	var all []netip.AddrPort
	for port := int(cfg.Ports.First); port <= int(cfg.Ports.Last); port++ {
		all = append(all, netip.AddrPortFrom(to, uint16(port)))
	}
	if r.origin, err = newOrigin(ns, all, cfg.Sources, cfg.SourcePorts, cfg.Seed); err != nil {
		return nil, nil, err
	}
	workers = make([]*holdWorker, threads)
	for i := range workers {
		workers[i] = newHoldWorker(r, i, len(workers))
	}
	r.opening.Store(int64(len(workers)))
	r.verifying.Store(int64(len(workers)))
	if err := r.turns.begin(r.openers); err != nil {
		return nil, nil, err
	}
	if err := r.prepare(len(workers)); err != nil {
		unix.Close(r.turns.file)
		return nil, nil, err
	}
	return r, workers, nil
}

// readSockets reads the namespace's numbers; nil where they cannot be read.
func readSockets(ns *netns.Handle) (s *snapshot.TCPSockets) {
	_ = ns.Do(func() (err error) {
		s, err = collect.ReadTCPSockets()
		return err
	})
	return s
}

// attend reads what all connections take when they are open, and then lets the time begin for which
// they are kept. Workers have no files but their connections. The returned function ends that.
func (r *holdRun) attend(opt Options) func() {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-r.full:
			r.usage = readUsage().since(r.usage)
			held, rss := readSockets(opt.Netns), residentSet()
			if !r.stop.Load() { // otherwise they are being closed
				r.held, r.heldRSS = held, rss
				if opt.Held != nil {
					opt.Held()
				}
			}
			r.kept.Store(r.clock())
			r.turns.wake()
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-done
	}
}

// routeSource returns the address that the kernel would connect from.
func routeSource(ns *netns.Handle, to netip.AddrPort) (a netip.Addr, err error) {
	err = ns.Do(func() error {
		name, err := resolved(to)
		if err != nil {
			return err
		}
		var sys caller
		fd, errno := sys.socket(family(to.Addr()), unix.SOCK_DGRAM)
		if errno != 0 {
			return fmt.Errorf("make a socket: %w", errno)
		}
		defer sys.close(fd)
		if errno = sys.connect(fd, &name); errno == 0 {
			errno = sys.localName(fd, &name)
		}
		if errno != 0 {
			return fmt.Errorf("no route: %w (`ip route get %v` in this namespace shows the same)", errno, to.Addr().WithZone(""))
		}
		a = name.addrPort().Addr().WithZone(to.Addr().Zone())
		return nil
	})
	return a, err
}

// residentSet is this process's memory in bytes; 0 without /proc.
func residentSet() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// heldState is the state of a held connection.
type heldState uint8

const (
	gone      heldState = iota // no socket
	opening                    // connect was called
	standing                   // established, nothing is asked of it
	asked                      // a byte was sent and has to come back
	dismissed                  // the server was told to close
)

// heldConn is one connection: small, because there are many.
type heldConn struct {
	start int64 // of the phase it is in, in nanoseconds since the run's start
	fd    int32
	state heldState
	sent  byte // what has to come back
}

// holdWorker is one thread's share of the connections: as many as its file table has room for.
type holdWorker struct {
	thread
	run    *holdRun
	id, of int
	window int // connections that are opened, verified or closed at once
	conns  []heldConn
	buf    []byte
	order  *rand.Rand

	flying   int // of the window
	opened   bool
	spare    uint64 // place in the order from which taken combinations are replaced
	closing  int64  // when it began to close
	lastFull int64  // when its window was last in use as a whole

	established, refused, lost, taken, late int64
	verified, alive, closed                 int64
	starts, lateStarts, queued, noLocalPort int64
	failures                                load.FailureCounts
	connect, roundTrip                      *load.Histogram
}

func newHoldWorker(r *holdRun, id, of int) *holdWorker {
	n := share(r.cfg.Connections, id, of)
	return &holdWorker{
		thread: newThread(&r.crew), run: r, id: id, of: of,
		window: max(min(r.cfg.Concurrency/r.openers, n), 1),
		conns:  make([]heldConn, n), buf: make([]byte, 4096),
		order:    rand.New(rand.NewPCG(r.cfg.Seed, uint64(id))),
		spare:    uint64(r.cfg.Connections + id),
		lastFull: -1,
		failures: load.FailureCounts{},
		connect:  load.NewHistogram(), roundTrip: load.NewHistogramOf(1_000, 60_000_000_000, 2),
	}
}

// share returns the part of n that worker id has, of the given number of workers.
func share(n, id, of int) int {
	part := n / of
	if id < n%of {
		part++
	}
	return part
}

func (w *holdWorker) setUp(ns *netns.Handle) error {
	if err := w.enter(ns, w.run.cfg.Rate > 0, w.run.turns.file); err != nil {
		return err
	}
	if err := w.run.turns.watch(&w.thread); err != nil {
		return err
	}
	if w.id > 0 {
		return nil
	}
	return w.run.check(&w.sys)
}

func (w *holdWorker) loop() {
	w.open()
	w.keep()
	w.verify()
	w.close()
	w.leave()
}

// over reports whether to stop opening and keeping.
func (w *holdWorker) over() bool {
	d := int64(w.run.cfg.Duration)
	return w.run.stop.Load() || d > 0 && w.now >= d
}

// inTurn does something when the worker has its turn, unless it is to stop before.
func (w *holdWorker) inTurn(stop func() bool, do func()) {
	for w.stamp(); !stop(); w.handle(w.untilOver()) {
		if w.run.turns.take() {
			do()
			w.run.turns.give()
			return
		}
	}
}

// open opens the worker's connections when it has its turn.
func (w *holdWorker) open() {
	w.inTurn(w.over, func() {
		begun := w.now
		w.measure(func() int64 { return begun }, func() {
			w.sweep(len(w.conns), w.over, w.mayStart, func(n int) { w.start(int32(n)) })
		})
	})
	for i := range w.conns { // the time was over
		if c := &w.conns[i]; c.state == opening {
			w.discard(c)
		}
	}
	w.run.standing.Add(w.established - w.lost)
	w.opened = true
	// What follows is done by all of them, each with its part of the window, which is one at least.
	w.window = max(share(w.run.cfg.Concurrency, w.id, w.of), 1)
	if w.run.opening.Add(-1) == 0 {
		w.run.turns.allow(min(w.of, w.run.cfg.Concurrency))
		w.run.opened = w.stamp()
		close(w.run.full)
	}
}

// keep waits until all workers have opened theirs and what they take was read, and then until the time to
// keep them is over, or none is left.
func (w *holdWorker) keep() {
	for w.stamp(); !w.run.stop.Load(); {
		until := w.untilOver()
		if kept := w.run.kept.Load(); kept > 0 {
			end := kept + int64(w.run.cfg.Keep)
			if w.over() || w.now >= end || w.run.standing.Load() == 0 {
				return
			}
			until = min(until, end)
		}
		w.handle(until)
	}
}

// verify asks for a byte on the worker's share of those that are verified.
func (w *holdWorker) verify() {
	var chosen []int32
	for i := range w.conns {
		if w.conns[i].state == standing {
			chosen = append(chosen, int32(i))
		}
	}
	n := min(share(w.run.cfg.Verify, w.id, w.of), len(chosen))
	for i := range n {
		j := i + w.order.IntN(len(chosen)-i)
		chosen[i], chosen[j] = chosen[j], chosen[i]
	}
	if n > 0 {
		w.inTurn(w.run.stop.Load, func() {
			w.sweep(n, w.run.stop.Load, always, func(n int) { w.ask(chosen[n]) }, chosen[:n]...)
		})
	}
	if w.run.verifying.Add(-1) == 0 {
		w.run.unanswered.Store(0)
		w.run.turns.wake()
	}
	for w.stamp(); w.run.verifying.Load() > 0 && !w.run.stop.Load(); { // as long as others verify, all are held
		w.handle(w.untilOver())
	}
}

// close closes every connection that stands.
func (w *holdWorker) close() {
	w.closing = w.stamp()
	if w.run.cfg.Close == load.CloseServer {
		w.inTurn(w.run.stop.Load, func() {
			w.sweep(len(w.conns), w.run.stop.Load, always, func(n int) { w.dismiss(int32(n)) })
		})
	}
	for i := range w.conns {
		c := &w.conns[i]
		if c.state == gone {
			continue
		}
		w.closed++
		if w.run.cfg.Close == load.CloseReset {
			w.sys.resetOnClose(c.fd)
		}
		w.sys.close(c.fd)
		c.state = gone
	}
	w.stamp()
}

func (w *holdWorker) leave() {
	w.handIn()
	w.publish()
	w.sys.close(w.epoll)
}

func always(int64) (bool, int64) { return true, 0 }

// givenUp reports whether no more connections are verified, or closed by the server: too many in a row have
// timed out. They are more than are asked at once, so that the dead ones among others do not suffice.
func (r *holdRun) givenUp() bool {
	return r.unanswered.Load() >= int64(max(holdAbort, 2*r.cfg.Concurrency))
}

// sweep begins n pieces of work in their order, at most the window's number at once, and returns when all have
// ended or stop says so. Once the run has given up it begins no more. A piece is over when its connection is in
// none of the states in which something is awaited. may returns whether the next one may begin now, and otherwise when. Piece k
// belongs to the k-th of the connections; to that of the given number where numbers are given.
func (w *holdWorker) sweep(n int, stop func() bool, may func(now int64) (bool, int64), begin func(int), numbers ...int32) {
	at := func(k int) int32 {
		if len(numbers) > 0 {
			return numbers[k]
		}
		return int32(k)
	}
	next, oldest := 0, 0
	for w.stamp(); !stop(); {
		if w.run.givenUp() {
			n = next
		}
		until, burst := w.untilOver(), 0
		for ; next < n && w.flying < w.window && burst < startBatch; burst++ {
			ok, when := may(w.now)
			if !ok {
				until = min(until, when)
				break
			}
			begin(next)
			next++
		}
		// All have the same time, and began in their order.
		for ; oldest < next; oldest++ {
			c := &w.conns[at(oldest)]
			if c.state != gone && c.state != standing {
				if due := c.start + int64(w.run.cfg.Timeout); w.now < due {
					until = min(until, due)
					break
				}
				w.expire(c)
			}
		}
		w.publish()
		if oldest == n {
			return
		}
		if burst == startBatch {
			until = 0
		}
		w.handle(until)
	}
}

// untilOver is the next moment at which something is due in any case: the end of the second, or that
// of the run.
func (w *holdWorker) untilOver() int64 {
	until := int64(w.second+1) * second
	if d := int64(w.run.cfg.Duration); d > w.now {
		until = min(until, d)
	}
	return until
}

// handle waits for events until that time and handles them.
func (w *holdWorker) handle(until int64) {
	for _, e := range w.wait(max(until-w.run.clock(), 0)) {
		if e.Fd >= 0 {
			w.event(&w.conns[e.Fd], e.Events)
		}
	}
}

// mayStart follows the schedule, if there is one: of all workers, the one that is free takes what is
// due next.
func (w *holdWorker) mayStart(now int64) (bool, int64) {
	if w.run.cfg.Rate == 0 {
		return true, 0
	}
	for {
		k := w.run.claimed.Load()
		due := int64(w.run.pace.At(k))
		if due > now {
			return false, due
		}
		if w.run.claimed.CompareAndSwap(k, k+1) {
			w.starts++
			if due <= w.lastFull {
				w.queued++
			} else if now-due > load.LateAfter {
				w.lateStarts++
			}
			return true, 0
		}
	}
}

// start begins to open the i-th connection of the worker.
func (w *holdWorker) start(i int32) {
	c := &w.conns[i]
	c.start = w.stamp()
	errno := w.connectFrom(c, uint64(int(i)*w.of+w.id))
	for n := 0; n < portTries && taken(errno) && w.run.ownPorts() && w.spare < w.run.pairs(); n++ {
		w.taken++
		errno = w.connectFrom(c, w.spare)
		w.spare += uint64(w.of)
	}
	if errno == 0 {
		errno = w.sys.watch(w.epoll, c.fd, i, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
		if errno != 0 {
			w.sys.close(c.fd)
		}
	}
	if errno != 0 {
		w.fail(load.Reason(errno))
		return
	}
	c.state = opening
	if w.flying++; w.flying == w.window {
		w.lastFull = w.now
	}
}

// taken reports whether something else has the combination of addresses and ports: a server or
// another program the port (bind), or a connection all of it (connect).
func taken(errno syscall.Errno) bool {
	return errno == unix.EADDRINUSE || errno == unix.EADDRNOTAVAIL
}

// connectFrom makes a socket that connects as the k-th pair says.
func (w *holdWorker) connectFrom(c *heldConn, k uint64) syscall.Errno {
	fd, errno := w.sys.socket(w.run.family, unix.SOCK_STREAM)
	if errno != 0 {
		return errno
	}
	sources := w.run.sources
	n := uint64(max(len(sources), 1))
	to := &w.run.origin.to[(k%n+k/n)%uint64(len(w.run.origin.to))]
	switch {
	case w.run.ownPorts():
		// Connections to other ports of the server share the port; one in TIME_WAIT does not
		// keep it.
		w.sys.name, to = w.run.pair(k)
		if errno = w.sys.setOption(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); errno == 0 {
			errno = w.sys.bind(fd, &w.sys.name)
		}
	case len(sources) > 0:
		if errno = w.sys.setOption(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); errno == 0 {
			errno = w.sys.bind(fd, &sources[k%uint64(len(sources))])
		}
	}
	if errno == 0 {
		if errno = w.sys.connect(fd, to); errno == unix.EINPROGRESS {
			errno = 0
		}
	}
	if errno != 0 {
		w.sys.close(fd)
	}
	c.fd = fd
	return errno
}

// ask sends a byte that has to come back.
func (w *holdWorker) ask(i int32) {
	c := &w.conns[i]
	if c.state != standing { // it was lost meanwhile
		return
	}
	c.start, c.sent = w.stamp(), byte('a'+w.order.IntN(26))
	if errno := w.say(c, c.sent); errno != 0 {
		w.drop(c, load.Verify, load.Reason(errno))
		return
	}
	c.state = asked
	w.flying++
}

// dismiss tells the server to close.
func (w *holdWorker) dismiss(i int32) {
	c := &w.conns[i]
	if c.state != standing {
		return
	}
	c.start = w.stamp()
	if errno := w.say(c, load.EndOfHold); errno != 0 {
		w.drop(c, load.Close, load.Reason(errno))
		return
	}
	c.state = dismissed
	w.flying++
}

func (w *holdWorker) say(c *heldConn, b byte) syscall.Errno {
	w.buf[0] = b
	_, errno := w.sys.send(c.fd, w.buf[:1])
	return errno
}

// event handles what epoll returned for a connection.
func (w *holdWorker) event(c *heldConn, mask uint32) {
	const broken = unix.EPOLLERR | unix.EPOLLHUP
	ended := mask&(broken|unix.EPOLLRDHUP) != 0
	switch c.state {
	case opening:
		if mask&broken != 0 {
			reason := w.reason(c, load.Reason(unix.ECONNRESET))
			w.discard(c)
			w.fail(reason)
			return
		}
		if mask&unix.EPOLLOUT == 0 {
			return
		}
		w.stands(c)
		if ended {
			w.lose(c)
		}
	case standing:
		if ended {
			w.lose(c)
		}
	case asked:
		w.answered(c, ended)
	case dismissed:
		if ended {
			if reason := w.reason(c, 0); reason != 0 {
				w.drop(c, load.Close, reason)
				return
			}
			w.run.unanswered.Store(0)
			w.closed++
			w.discard(c)
		}
	}
}

// stands counts a connection that is established.
func (w *holdWorker) stands(c *heldConn) {
	took := w.stamp() - c.start
	w.turnSecond()
	w.flying--
	c.state = standing
	if w.established++; w.established == 1 {
		w.run.stood.Store(true)
	}
	w.connect.Record(took)
	w.interval.Complete(took)
	if took >= load.LateConnect {
		w.late++
	}
}

// answered reads the byte that was asked for.
func (w *holdWorker) answered(c *heldConn, ended bool) {
	n, errno := w.sys.receive(c.fd, w.buf)
	switch {
	case errno == unix.EAGAIN:
	case errno != 0:
		w.drop(c, load.Verify, load.Reason(errno))
	case n == 0:
		w.drop(c, load.Verify, load.ClosedByServer)
	case n != 1 || w.buf[0] != c.sent:
		w.drop(c, load.Verify, load.WrongByte)
	default:
		w.run.unanswered.Store(0)
		w.verified++
		w.alive++
		w.flying--
		c.state = standing
		w.roundTrip.Record(w.stamp() - c.start)
		if ended {
			w.lose(c)
		}
	}
}

// expire ends the wait for what has not come in time.
func (w *holdWorker) expire(c *heldConn) {
	switch c.state {
	case opening:
		w.discard(c)
		w.fail(load.TimedOut)
	case asked:
		w.run.unanswered.Add(1)
		w.drop(c, load.Verify, load.TimedOut)
	case dismissed:
		w.run.unanswered.Add(1)
		w.drop(c, load.Close, load.TimedOut)
	}
}

// lose counts a connection that stood and was ended from elsewhere.
func (w *holdWorker) lose(c *heldConn) {
	w.drop(c, load.Keep, w.reason(c, load.ClosedByServer))
}

// drop counts a connection that stood and works no more, and closes it.
func (w *holdWorker) drop(c *heldConn, phase load.Phase, reason load.Reason) {
	w.turnSecond()
	w.lost++
	w.interval.Lost++
	if phase == load.Verify {
		w.verified++
	}
	if w.opened && w.run.standing.Add(-1) == 0 {
		w.run.turns.wake()
	}
	w.failures.Add(phase, reason)
	w.sys.resetOnClose(c.fd)
	w.discard(c)
}

// reason is the error that a connection has, or the given one if it has none.
func (w *holdWorker) reason(c *heldConn, otherwise load.Reason) load.Reason {
	return cmp.Or(load.Reason(w.sys.socketError(c.fd)), otherwise)
}

// discard closes the socket.
func (w *holdWorker) discard(c *heldConn) {
	if c.state != standing {
		w.flying--
	}
	w.sys.close(c.fd)
	c.state = gone
}

// fail counts a connection that never stood.
func (w *holdWorker) fail(reason load.Reason) {
	w.turnSecond()
	w.refused++
	w.interval.Failed++
	w.failures.Add(load.Connect, reason)
	if reason.NoLocalPort() {
		w.noLocalPort++
	}
	if !w.run.stood.Load() && w.run.refusals.Add(1) == holdAbort {
		w.run.crew.end()
	}
}

func (w *holdWorker) publish() {
	w.completed.Store(w.established)
	w.failed.Store(w.refused)
	w.inFlight.Store(int64(w.flying))
}

// result merges what the workers counted.
func (r *holdRun) result(workers []*holdWorker) *load.HoldResult {
	res := &load.HoldResult{Config: r.cfg, Threads: len(workers), PageBytes: os.Getpagesize(), Before: r.before, Held: r.held, After: r.after}
	seen := load.Observed{Workers: r.openers, Concurrency: r.cfg.Concurrency}
	first, failures := workers[0], load.FailureCounts{}
	end, closing := int64(0), int64(0)
	for i, w := range workers {
		if i > 0 {
			first.connect.Merge(w.connect)
			first.roundTrip.Merge(w.roundTrip)
		}
		failures.Merge(w.failures)
		res.Established += w.established
		res.Failed += w.refused
		res.Lost += w.lost
		res.Taken += w.taken
		res.Late += w.late
		res.Verified += w.verified
		res.Alive += w.alive
		res.Closed += w.closed
		res.SystemCalls += w.sys.count
		seen.BusiestWorker = max(seen.BusiestWorker, w.busy)
		seen.Starts += w.starts
		seen.Late += w.lateStarts
		seen.Queued += w.queued
		seen.NoLocalPort += w.noLocalPort
		end, closing = max(end, w.now), max(closing, w.closing)
	}
	res.Unfinished = int64(r.cfg.Connections) - res.Established - res.Failed
	res.Seconds, res.OpenSeconds = float64(end)/1e9, float64(r.opened)/1e9
	res.CloseSeconds = float64(end-closing) / 1e9
	if res.OpenSeconds > 0 {
		res.OpenPerSecond = float64(res.Established) / res.OpenSeconds
	}
	if r.rss > 0 && r.heldRSS > 0 && res.Established > 0 {
		res.OwnBytes = max(r.heldRSS-r.rss, 0)
		res.BytesPerConnection = float64(res.OwnBytes) / float64(res.Established)
	}
	res.Failures, res.Connect, res.RoundTrip = failures.List(), first.connect.Times(), first.roundTrip.Times()
	res.Series = load.HeldSeries(r.course.Series(res.Seconds))
	r.usage.others = r.cpu.others
	r.usage.observe(&seen, res.OpenSeconds)
	res.GeneratorLimit, res.CPUContention = seen.Limit(), seen.Contention()
	res.CPU = r.cpu.report()
	return res
}
