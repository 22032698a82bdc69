package run

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// errNothingBack ends runs that get no answer.
var errNothingBack = errors.New("nothing came back")

// udpRun is what the workers of a run of datagrams share.
type udpRun struct {
	crew
	cfg     packets.UDPConfig
	pace    load.Pace
	server  netip.AddrPort // as replies name it
	to      sockaddr
	family  int
	sources []sockaddr
	ports   load.Permutation // of sources × source ports; unused where the kernel chooses
	workers int
	token   uint32 // the run of its requests

	warm     chan struct{} // closed when begun is set
	begun    int64         // when the schedule and the time of the run begin
	answered atomic.Bool   // something came back
}

// UDP sends datagrams and takes the replies, until all are sent or the time is over,
// and their replies are there or the timeout has passed; or until ctx ends: then it
// returns what was measured until then, without an error. Where nothing at all comes
// back it ends early, and returns an error beside the result. It takes one thread
// per worker and leaves nothing open.
func UDP(ctx context.Context, cfg packets.UDPConfig, opt Options) (*packets.UDPResult, error) {
	cfg, err := cfg.Checked()
	if err != nil {
		return nil, fmt.Errorf("bench udp: %w", err)
	}
	fail := func(err error) error { return fmt.Errorf("bench udp %v: %w", cfg.To, err) }
	r, err := newUDPRun(cfg, opt.Netns)
	if err != nil {
		return nil, fail(err)
	}
	defer unix.Close(r.stopFile)
	workers, err := r.makeWorkers()
	if err != nil {
		return nil, fail(err)
	}
	defer moreProcs(len(workers))()
	before, after, err := conduct(ctx, &r.crew, workers, opt)
	if err != nil {
		return nil, fail(err)
	}
	result := r.result(workers, before, after, ctx.Err() != nil)
	if result.Received == 0 && ctx.Err() == nil {
		return result, fail(fmt.Errorf("%w of %d datagrams: %s", errNothingBack, result.Sent, result.Hint))
	}
	return result, nil
}

func newUDPRun(cfg packets.UDPConfig, ns *netns.Handle) (*udpRun, error) {
	to := netip.AddrPortFrom(cfg.To.Addr().Unmap(), cfg.To.Port())
	zones, err := zoneNumbers(ns, append([]netip.Addr{to.Addr()}, cfg.Sources...))
	if err != nil {
		return nil, err
	}
	r := &udpRun{
		cfg: cfg, pace: load.Pace{PerSecond: cfg.Rate},
		server: netip.AddrPortFrom(to.Addr().WithZone(""), to.Port()),
		to:     newSockaddr(to, zones[to.Addr().Zone()]),
		family: family(to.Addr()),
		warm:   make(chan struct{}),
		token:  packets.RequestRun(rand.Uint32()), // other runs beside this one have others
	}
	if r.sources, err = sourceAddrs(cfg.Sources, to.Addr(), zones, cfg.Seed); err != nil {
		return nil, err
	}
	if cfg.SourcePorts.Len() > 0 {
		r.sources = anyAddr(r.sources, r.family)
		r.ports = load.NewPermutation(uint64(len(r.sources)*cfg.SourcePorts.Len()), cfg.Seed)
	} else if err := r.checkPorts(ns); err != nil {
		return nil, err
	}
	return r, r.prepare()
}

// checkPorts compares the flows with the ports that the kernel may give out. Other
// than TCP, a UDP socket has its port of an address for itself, whatever the
// destination (udp_lib_get_port).
func (r *udpRun) checkPorts(ns *netns.Handle) error {
	text, err := netns.Sysctl(ns, "net.ipv4.ip_local_port_range") // holds for IPv6 too
	var first, last int
	if _, scanErr := fmt.Sscan(text, &first, &last); err != nil || scanErr != nil {
		return nil // the kernel will say where it has too few
	}
	n := max(len(r.sources), 1)
	if have := n * (last - first + 1); r.cfg.Flows > have {
		return fmt.Errorf("%d flows: %d source addresses with %d ports each (net.ipv4.ip_local_port_range) are too few: give more with --source or --source-port, or fewer --flows",
			r.cfg.Flows, n, last-first+1)
	}
	return nil
}

// makeWorkers shares the flows out: one worker per CPU, more where the limit of
// open files asks for it.
func (r *udpRun) makeWorkers() ([]*udpWorker, error) {
	files, err := fileLimit()
	if err != nil {
		return nil, err
	}
	n := r.cfg.Workers
	if n == 0 {
		n = runtime.NumCPU()
	}
	n = min(max(n, (r.cfg.Flows+files-1)/files), r.cfg.Flows)
	if r.cfg.Concurrency > 0 {
		n = min(n, r.cfg.Concurrency)
		if least := (r.cfg.Flows + files - 1) / files; n < least {
			return nil, fmt.Errorf("%d flows need %d workers for the limit of %d open files each, but concurrency is %d: raise one of them",
				r.cfg.Flows, least, files, r.cfg.Concurrency)
		}
	}
	r.workers, r.cfg.Workers = n, n
	r.course = load.NewCourse(n)
	workers := make([]*udpWorker, n)
	for i := range workers {
		workers[i] = newUDPWorker(r, i)
	}
	return workers, nil
}

// datagrams is how many the run sends in all: what a schedule has until the end
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

// silentAfter is how long after the first datagram a run ends to which nothing has
// come back. With the default timeout that is a little more than the 3 s after which
// the last router says that it finds no host (mcast_solicit × retrans_time_ms).
func (r *udpRun) silentAfter() int64 { return 2*int64(r.cfg.Timeout) + 1500*int64(time.Millisecond) }

// result merges what the workers counted. Where the run was interrupted, replies may
// still be on the way.
func (r *udpRun) result(workers []*udpWorker, before, after usage, interrupted bool) *packets.UDPResult {
	seen := load.Observed{Workers: len(workers)}
	all := packets.NewUDPTally()
	end, whole, late := int64(0), int64(0), int64(0)
	for _, w := range workers {
		all.Merge(w.tally)
		if interrupted {
			all.InFlight += int64(w.flight.Flying)
		}
		end, whole = max(end, w.last), max(whole, w.now)
		late += w.late
		seen.BusiestWorker = max(seen.BusiestWorker, w.busy)
	}
	res := &packets.UDPResult{Config: r.cfg, RunToken: r.token, Seconds: float64(max(end-r.begun, 0)) / 1e9}
	all.Fill(res)
	res.Series = r.course.Series(float64(whole) / 1e9)
	res.CPU = between(before, after)
	observeCPU(&seen, before, after, float64(whole)/1e9)
	for _, limit := range []string{packets.Overflow(res.SocketDrops), seen.Limit(), packets.Lateness(res.Sent, late)} {
		if res.GeneratorLimit == "" {
			res.GeneratorLimit = limit
		}
	}
	res.CPUContention = seen.Contention()
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
	epoll, err := w.run.enter(&w.sys, ns, w.run.cfg.Rate > 0)
	if err != nil {
		return err
	}
	w.epoll = epoll
	if w.share.Worker == 0 {
		if err := checkSources(&w.sys, w.run.family, w.run.sources); err != nil {
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
	w.sys.restart()
	return nil
}

// checkWay finds out before the start whether there is a route, and whether the
// datagrams fit into what it carries: the size of a frame means nothing where IP
// cuts it into fragments.
func (w *udpWorker) checkWay() error {
	fd, errno := w.sys.datagramSocket(w.run.family)
	if errno != 0 {
		return fmt.Errorf("make a socket: %w", errno)
	}
	defer w.sys.close(fd)
	if len(w.run.sources) > 0 {
		if errno := w.sys.bind(fd, &w.run.sources[0]); errno != 0 {
			return fmt.Errorf("source address %v: bind: %w", w.run.sources[0].addr(), errno)
		}
	}
	switch errno := w.sys.connect(fd, &w.run.to); errno {
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
	fd, errno := w.sys.datagramSocket(w.run.family)
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

// bind gives the flow of number n the n-th combination of a source address and a
// port in the order of the seed; where that is taken, one of those that the worker
// has to spare.
func (w *udpWorker) bind(fd int32, i int) syscall.Errno {
	r := w.run
	if r.cfg.SourcePorts.Len() == 0 {
		sources := anyAddr(r.sources, r.family)
		return w.sys.bind(fd, &sources[w.share.Flow(i)%len(sources)])
	}
	all, n := uint64(len(r.sources)*r.cfg.SourcePorts.Len()), uint64(len(r.sources))
	for k := uint64(w.share.Flow(i)); ; {
		at := r.ports.At(k)
		source := r.sources[at%n].withPort(r.cfg.SourcePorts.First + uint16(at/n))
		errno := w.sys.bind(fd, &source)
		if errno != unix.EADDRINUSE || w.spare >= all {
			return errno
		}
		k = w.spare
		w.spare += uint64(r.workers)
	}
}
