package run

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/load/udp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/packet"
)

// udpFlow is one socket. It is not connected, because replies from a wrong address
// or port are to be seen; a connected socket would save about 5 % of the time.
type udpFlow struct {
	fd    int32
	next  uint32 // sequence number of the next datagram
	last  uint32 // sequence number after the last one; MaxUint32 for no bound
	track packet.Track
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
	if largest := udp.PacketBytes(w.run.largestFrame()); err == nil && largest > mtu {
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
