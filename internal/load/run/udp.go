package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"golang.org/x/sys/unix"
)

// errNothingBack ends runs that get no answer.
var errNothingBack = errors.New("nothing came back")

// udpRun is what the workers of a run of datagrams share.
type udpRun struct {
	crew
	origin
	cfg    packets.UDPConfig
	pace   load.Pace
	server netip.AddrPort // as replies name it
	token  uint32         // the run of its requests

	warm     chan struct{} // closed when begun is set
	begun    int64         // when the schedule and the time of the run begin
	answered atomic.Bool   // something came back
}

// UDP sends datagrams and receives the replies, until all are sent or the time is over, and their
// replies are there or the timeout has passed; or until ctx ends: then it returns what was
// measured until then, without an error. If nothing at all comes back it ends early, and returns
// an error beside the result. It uses one thread per worker and leaves nothing open.
func UDP(ctx context.Context, cfg packets.UDPConfig, opt Options) (*packets.UDPResult, error) {
	if err := permit.Change("send datagrams"); err != nil {
		return nil, err
	}
	cfg, err := cfg.Checked()
	if err != nil {
		return nil, fmt.Errorf("bench udp: %w", err)
	}
	fail := func(err error) error { return fmt.Errorf("bench udp %v: %w", cfg.To, err) }
	r, workers, err := newUDPRun(cfg, opt.Netns)
	if err != nil {
		return nil, fail(err)
	}
	defer unix.Close(r.stopFile)
	if err := conduct(ctx, &r.crew, workers, opt); err != nil {
		return nil, fail(err)
	}
	result := r.result(workers, ctx.Err() != nil)
	if result.Received == 0 && ctx.Err() == nil {
		return result, fail(fmt.Errorf("%w of %d datagrams: %s", errNothingBack, result.Sent, result.Hint))
	}
	return result, nil
}

// newUDPRun makes a run and its workers, which share the flows; the caller closes stopFile.
func newUDPRun(cfg packets.UDPConfig, ns *netns.Handle) (*udpRun, []*udpWorker, error) {
	files, err := fileLimit()
	if err != nil {
		return nil, nil, err
	}
	least, err := workersFor(1, cfg.Flows, "flows", files)
	if err != nil {
		return nil, nil, err
	}
	cfg.Workers = max(workersAtOnce(cfg.Workers, cfg.Flows), least)
	if cfg.Concurrency > 0 {
		if cfg.Workers = min(cfg.Workers, cfg.Concurrency); cfg.Workers < least {
			return nil, nil, fmt.Errorf("%d flows need %d workers for the limit of %d open files each, but concurrency is %d: raise one of them",
				cfg.Flows, least, files, cfg.Concurrency)
		}
	}
	to := netip.AddrPortFrom(cfg.To.Addr().Unmap(), cfg.To.Port())
	r := &udpRun{
		cfg: cfg, pace: load.Pace{PerSecond: cfg.Rate},
		server: netip.AddrPortFrom(to.Addr().WithZone(""), to.Port()),
		warm:   make(chan struct{}),
		token:  packets.RequestRun(rand.Uint32()), // other runs beside this one have others
	}
	if r.origin, err = newOrigin(ns, []netip.AddrPort{to}, cfg.Sources, cfg.SourcePorts, cfg.Seed); err != nil {
		return nil, nil, err
	}
	workers := make([]*udpWorker, cfg.Workers)
	for i := range workers {
		workers[i] = newUDPWorker(r, i)
	}
	return r, workers, r.prepare(cfg.Workers)
}

// datagrams returns the total number the run sends: what a schedule has until the end
// where there is one; 0 where time is the only bound.
func (r *udpRun) datagrams() int64 {
	n := r.cfg.Packets
	if r.cfg.Rate == 0 || r.cfg.Duration == 0 {
		return n
	}
	due := r.pace.Due(r.cfg.Duration - 1)
	if n == 0 {
		return due
	}
	return min(n, due)
}

func (r *udpRun) largestFrame() int { return slices.Max(r.cfg.FrameBytes) }

// silentAfter returns how long after the first datagram a run ends to which nothing has
// come back. With the default timeout that is a little more than the 3 s after which
// the last router says that it finds no host (mcast_solicit × retrans_time_ms).
func (r *udpRun) silentAfter() int64 { return 2*int64(r.cfg.Timeout) + 1500*int64(time.Millisecond) }

// result merges what the workers counted. If the run was interrupted, replies may still be under way.
func (r *udpRun) result(workers []*udpWorker, interrupted bool) *packets.UDPResult {
	all := packets.NewUDPTally()
	end, whole, late := int64(0), int64(0), int64(0)
	for _, w := range workers {
		all.Merge(w.tally)
		if interrupted {
			all.InFlight += int64(w.flight.Flying)
		}
		end, whole = max(end, w.last), max(whole, w.now)
		late += w.late
	}
	res := &packets.UDPResult{Config: r.cfg, RunToken: r.token, Seconds: float64(max(end-r.begun, 0)) / 1e9}
	all.Fill(res)
	res.Series = r.course.Series(float64(whole) / 1e9)
	seen, cpu := observed(&r.crew, workers, float64(whole)/1e9)
	res.CPU, res.CPUContention = cpu, seen.Contention()
	res.GeneratorLimit = cmp.Or(packets.Overflow(res.SocketDrops), seen.Limit(), packets.Lateness(res.Sent, late))
	return res
}

// udpFlow is one socket. It is not connected, because replies from a wrong address
// or port are to be seen; a connected socket would save about 5 % of the time.
type udpFlow struct {
	fd    int32
	next  uint32 // sequence number of the next datagram
	last  uint32 // sequence number after the last one; MaxUint32 for no bound
	track packets.Track
}

// setUp opens the flows' sockets.
func (w *udpWorker) setUp(ns *netns.Handle) error {
	if err := w.enter(ns, w.run.cfg.Rate > 0); err != nil {
		return err
	}
	if w.share.Worker == 0 {
		if err := w.run.check(&w.sys); err != nil {
			return err
		}
		if err := w.checkWay(); err != nil {
			return err
		}
	}
	for i := range w.flows {
		if err := w.open(i); err != nil {
			return err
		}
	}
	return nil
}

// checkWay finds out before the start whether there is a route, and whether the
// datagrams fit into what it carries: the size of a frame means nothing where IP
// cuts it into fragments.
func (w *udpWorker) checkWay() error {
	fd, errno := w.sys.socket(w.run.family, unix.SOCK_DGRAM)
	if errno != 0 {
		return fmt.Errorf("make a socket: %w", errno)
	}
	defer w.sys.close(fd)
	if len(w.run.sources) > 0 {
		if errno := w.sys.bind(fd, &w.run.sources[0]); errno != 0 {
			return fmt.Errorf("source address %v: bind: %w", w.run.sources[0].addrPort().Addr(), errno)
		}
	}
	switch errno := w.sys.connect(fd, &w.run.origin.to[0]); errno {
	case 0:
	case unix.ENETUNREACH, unix.EHOSTUNREACH:
		return fmt.Errorf("no route: %w (`ip route get %v` in this namespace shows the same)", errno, w.run.server.Addr())
	case unix.EACCES:
		return fmt.Errorf("connect: %w: the server's address is a broadcast address here", errno)
	default:
		return fmt.Errorf("connect: %w", errno)
	}
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if w.run.family == unix.AF_INET6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	mtu, err := unix.GetsockoptInt(int(fd), level, name)
	if largest := packets.PacketBytes(w.run.largestFrame()); err == nil && largest > mtu {
		return fmt.Errorf("size %d: IP packets of %d bytes would be fragmented, the route's MTU is %d: give smaller sizes or raise the MTU",
			w.run.largestFrame(), largest, mtu)
	}
	return nil
}

// open makes the i-th flow's socket and gives it its address and port.
func (w *udpWorker) open(i int) error {
	f := &w.flows[i]
	fd, errno := w.sys.socket(w.run.family, unix.SOCK_DGRAM)
	if errno != 0 {
		return w.openError(i, "make a socket", errno)
	}
	f.fd = fd
	if err := w.setOptions(fd); err != nil {
		return err
	}
	w.sys.growBuffers(fd)
	if errno := w.bind(fd, i); errno != 0 {
		return w.openError(i, "bind", errno)
	}
	if errno := w.sys.watch(w.epoll, fd, int32(i), unix.EPOLLIN|unix.EPOLLET); errno != 0 {
		return w.openError(i, "watch it", errno)
	}
	return nil
}

func (w *udpWorker) openError(i int, what string, errno syscall.Errno) error {
	flow := w.share.Flow(i)
	if errno == unix.EADDRINUSE {
		return fmt.Errorf("open flow %d of %d: %s: no source port is free: give more with --source or --source-port, or fewer --flows",
			flow+1, w.run.cfg.Flows, what)
	}
	return fmt.Errorf("open flow %d of %d: %s: %w", flow+1, w.run.cfg.Flows, what, errno)
}

// setOptions asks for every ICMP error by a queue of its own (IP_RECVERR), and for
// no fragments.
func (w *udpWorker) setOptions(fd int32) error {
	options := [][3]int{
		{unix.IPPROTO_IP, unix.IP_RECVERR, 1},
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
	}
	if w.run.family == unix.AF_INET6 {
		options = [][3]int{
			// Ports that IPv4 sockets hold do not matter then.
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
		}
	}
	for _, o := range options {
		if errno := w.sys.setOption(fd, o[0], o[1], int32(o[2])); errno != 0 {
			return fmt.Errorf("prepare a socket: set option %d of level %d: %w", o[1], o[0], errno)
		}
	}
	return nil
}

// bind gives the flow of number n the n-th combination of a source address and a port in the order
// of the seed; if that is taken, one of those that the worker has to spare.
func (w *udpWorker) bind(fd int32, i int) syscall.Errno {
	r, n := w.run, w.share.Flow(i)
	if !r.ownPorts() {
		w.sys.name = r.anySource()
		if len(r.sources) > 0 {
			w.sys.name = r.sources[n%len(r.sources)]
		}
		return w.sys.bind(fd, &w.sys.name)
	}
	for k := uint64(n); ; {
		w.sys.name = r.at(k)
		errno := w.sys.bind(fd, &w.sys.name)
		if errno != unix.EADDRINUSE || w.spare >= uint64(r.combinations()) {
			return errno
		}
		k = w.spare
		w.spare += uint64(r.cfg.Workers)
	}
}
