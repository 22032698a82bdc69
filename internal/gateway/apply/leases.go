package apply

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/pcp"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

const (
	// mostRequests is how many requests are answered together: they cost one transaction, and one write to disk.
	mostRequests = 64
	// eachSecond and allSecond are how many requests of a host, and of all by an interface, are answered in a second.
	// Others are dropped, and clients ask again. Of readSecond datagrams in a second, those that follow are left to the
	// kernel, which drops what the socket does not hold: a flood costs no more than that.
	eachSecond, allSecond, readSecond = 20, 200, 5000
	// announcements of a new epoch are repeated so often, the first time after firstPause, and each time after twice as
	// long (RFC 6887, section 14.1).
	announcements, firstPause = 10, 250 * time.Millisecond
)

// leases answers hosts inside that ask for ports of the plan in force, and keeps what they have.
type leases struct {
	server    *pcp.Server
	plan      *gateway.Plan
	facts     *gateway.Facts
	listeners map[listenerKey]*listener
	requests  chan asked
	// served reports whether the plan serves what comes from an address by an interface, as far as that is known without a
	// look at routes. Readers call it.
	served atomic.Pointer[func(name string, from netip.Addr) bool]
	// announce is when clients are told of the epoch next, left how often, pause how long after that.
	announce *time.Timer
	left     int
	pause    time.Duration
	// said bounds the log, unsaid are the lines left out since the last one.
	said   pcp.Limiter
	unsaid int
	// refused is the last error of a change of leases, unkept that of keeping them, as logged; empty where it was done. They are
	// tried again.
	refused, unkept string
	// renewed is true where leases have been renewed since they were kept.
	renewed bool
	// unheard is why requests by an interface cannot be taken, as logged; empty where they can.
	unheard string
}

// listenerKey is an interface and a family: one that was replaced by another of its name has another index.
type listenerKey struct {
	network string
	index   int
}

// listener takes requests that come by an interface.
type listener struct {
	listenerKey
	name  string
	conn  *net.UDPConn
	ended chan struct{}
}

// asked is a request, with the address of the gateway that it was for.
type asked struct {
	via  *listener
	from netip.AddrPort
	to   netip.Addr
	text []byte
}

func newLeases() *leases {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &leases{listeners: map[listenerKey]*listener{}, requests: make(chan asked, mostRequests), announce: t, said: pcp.Limiter{Each: 1, All: 5}}
}

// ready follows an apply: the leases that there were are in force again, as far as the plan can have them.
func (l *leases) ready(ctx context.Context, k *keeper, r *Ready) {
	now := time.Now()
	l.plan, l.facts = r.Gateway, &r.Facts
	id, err := k.Host.id()
	if err != nil {
		k.log("%v", err)
		return
	}
	if l.plan.PCP == nil {
		l.server = nil
		l.listen(ctx, k)
		if err := k.Host.store().PutLeases(id, nil); err != nil {
			k.log("%v", err)
		}
		return
	}
	first := l.server == nil
	if first {
		l.server = pcp.New(k.Host.store().PCP(id), now)
	}
	plan, facts := l.plan, l.facts
	serves := func(host netip.Addr) bool { return plan.PCP.Serves(facts, host) }
	served := func(name string, from netip.Addr) bool {
		return !from.Is4() || plan.PCP.ServesBy(facts, name, from, func(netip.Addr) string { return name })
	}
	l.served.Store(&served)
	busy := func(protocol uint8, port uint16) bool {
		return k.Host.busy(l.plan.PCP.External, protocol, port)
	}
	before := l.server.Leases(now)
	changed, announce := l.server.Use(l.plan, serves, busy, now)
	if first || changed {
		l.lend(k, now)
	}
	if first || changed || announce {
		l.save(k, now)
		l.logTaken(k, before, now)
	}
	l.listen(ctx, k)
	if announce {
		l.left, l.pause = announcements, firstPause
		l.tell(now)
	}
}

// lend puts the leases in force. What fails is tried again with the periodic check.
func (l *leases) lend(k *keeper, now time.Time) error {
	err := k.Host.Engines.Lend(k.Host.Netns, l.plan, l.server.Leases(now))
	logOnce(k, err, &l.refused)
	return err
}

// logOnce says once why something could not be done; last is why it could not before. Of errors of the system that is
// the bare one: the others name a temporary file, whose name is another one each time.
func logOnce(k *keeper, err error, last *string) {
	if err == nil {
		*last = ""
		return
	}
	why := err.Error()
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		why = errno.Error()
	}
	if why != *last {
		*last = why
		k.log("pcp: %v; it is tried again every %s", err, usualLook)
	}
}

// save keeps epoch and leases on disk. What fails is tried again with the periodic check.
func (l *leases) save(k *keeper, now time.Time) {
	l.renewed = false
	id, err := k.Host.id()
	var text []byte
	if err == nil {
		text, err = json.Marshal(l.server.State(now))
	}
	if err == nil {
		err = k.Host.store().PutLeases(id, text)
	}
	if err != nil {
		err = fmt.Errorf("keep leases: %w", err)
	}
	logOnce(k, err, &l.unkept)
}

// look ends leases, which the kernel has ended by itself, and listens again where that has ended.
func (l *leases) look(ctx context.Context, k *keeper, now time.Time) {
	if l.server == nil {
		return
	}
	if k.suspended { // another program may answer meanwhile
		l.left = 0
		l.listen(ctx, k)
		return
	}
	if l.server.Expire(now) || l.renewed {
		l.save(k, now)
	}
	for _, one := range l.listeners {
		select {
		case <-one.ended:
			l.listen(ctx, k)
			return
		default:
		}
	}
}

// usual tries again what failed.
func (l *leases) usual(ctx context.Context, k *keeper) {
	if l.server == nil || k.suspended {
		return
	}
	if l.refused != "" {
		l.lend(k, time.Now())
	}
	if l.unkept != "" {
		l.save(k, time.Now())
	}
	if l.unheard != "" {
		l.listen(ctx, k)
	}
}

// answer answers a request and those that have come meanwhile: once what they change is in force. It is kept as well where
// that is possible: hosts have their ports also while a disk is full.
func (l *leases) answer(k *keeper, r asked, now time.Time) {
	all := []asked{r}
	for more := true; more && len(all) < mostRequests; {
		select {
		case r = <-l.requests:
			all = append(all, r)
		default:
			more = false
		}
	}
	if l.server == nil || k.suspended {
		return
	}
	before, answers, changes := l.server.Leases(now), make([][]byte, len(all)), make([]bool, len(all))
	for i, r := range all {
		if l.serves(k, r) {
			answers[i], changes[i] = l.server.Answer(now, r.from.Addr(), r.text)
		}
	}
	if slices.Contains(changes, true) {
		if l.lend(k, now) == nil {
			after := l.server.Leases(now)
			if l.renewed = true; !areRenewed(before, after) {
				l.save(k, now)
			}
			l.logChanges(k, before, after, now)
		} else {
			l.server.Restore(before)
			for i, changed := range changes {
				if changed {
					answers[i] = l.server.Refuse(now, all[i].text)
				}
			}
		}
	}
	for i, r := range all {
		if answers[i] != nil {
			r.via.send(answers[i], r)
		}
	}
}

// areRenewed reports whether leases differ from those before in their times alone. That is kept within a second: should
// the service be killed meanwhile, a lease has what was left of its time before, and its host asks again in half of that.
func areRenewed(before, after []gateway.Lease) bool {
	return slices.EqualFunc(before, after, func(a, b gateway.Lease) bool {
		a.Expires = b.Expires
		return a == b
	})
}

// serves reports whether a request comes by an interface that leads to its host, and is for the gateway's address there
// (RFC 6886, section 3.3).
func (l *leases) serves(k *keeper, r asked) bool {
	from := r.from.Addr()
	isOwn := func(i gateway.Interface) bool {
		return i.Name == r.via.name && slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == r.to })
	}
	return !from.Is4() || slices.ContainsFunc(l.facts.Interfaces, isOwn) && l.plan.PCP.ServesBy(l.facts, r.via.name, from, func(from netip.Addr) string {
		routes, err := host.OpenRoutes(k.Host.Netns)
		if err != nil {
			return ""
		}
		defer routes.Close()
		route, err := routes.Of(host.Way{Destination: from})
		if err != nil || route.Unreachable || route.Local {
			return ""
		}
		return route.Out
	})
}

// logChanges says which ports were opened and closed, as far as hosts do not do it all the time, and otherwise how many.
func (l *leases) logChanges(k *keeper, before, after []gateway.Lease, now time.Time) {
	known := map[gateway.Ref]bool{}
	for i := range before {
		known[before[i].Ref()] = true
	}
	say := func(one *gateway.Lease, format string, more ...any) {
		if !l.said.Allows(now, one.Internal.Addr()) {
			l.unsaid++
			return
		}
		if l.unsaid > 0 {
			k.log("pcp: %d ports opened or closed are not logged", l.unsaid)
		}
		l.unsaid = 0
		k.log("pcp: "+format, append([]any{one.Internal, nat.ProtocolName(one.Protocol), one.External}, more...)...)
	}
	for i := range after {
		one := &after[i]
		if !known[one.Ref()] {
			say(one, "%s has opened %s %s to itself, for %s", one.Expires.Sub(now).Round(time.Second))
		}
		delete(known, one.Ref())
	}
	for i := range before {
		if known[before[i].Ref()] {
			say(&before[i], "%s has closed %s %s")
		}
	}
}

// logTaken says which ports hosts have lost without asking.
func (l *leases) logTaken(k *keeper, before []gateway.Lease, now time.Time) {
	kept := map[gateway.Ref]bool{}
	for _, one := range l.server.Leases(now) {
		kept[one.Ref()] = true
	}
	taken := slices.DeleteFunc(slices.Clone(before), func(one gateway.Lease) bool { return kept[one.Ref()] })
	for i, one := range taken {
		if i == l.said.All {
			k.log("pcp: and %d more", len(taken)-i)
			return
		}
		k.log("pcp: %s has no longer %s %s: the file or an address changed, or a program has it", one.Internal, nat.ProtocolName(one.Protocol), one.External)
	}
}

// tell announces the epoch, and sets when it is announced next.
func (l *leases) tell(now time.Time) {
	if l.server == nil || l.left == 0 {
		return
	}
	for i, text := range l.server.Announcements(now) {
		for _, one := range l.listeners {
			to := netip.AddrPortFrom(netip.MustParseAddr("224.0.0.1"), pcp.ClientPort)
			if one.network == "udp6" {
				to = netip.AddrPortFrom(netip.MustParseAddr("ff02::1").WithZone(one.name), pcp.ClientPort)
			}
			if i == 0 || to.Addr().Is4() { // the second one is of NAT-PMP
				one.conn.WriteToUDPAddrPort(text, to) // as the network has it: they are repeated
			}
		}
	}
	l.announce.Reset(l.pause)
	l.left, l.pause = l.left-1, 2*l.pause
}

// listen takes requests by the interfaces of the plan that there are, and by no others.
func (l *leases) listen(ctx context.Context, k *keeper) {
	wanted := map[listenerKey]string{}
	if l.server != nil && !k.suspended {
		for _, name := range l.plan.PCP.LAN {
			for _, i := range l.facts.Named(name) {
				wanted[listenerKey{"udp4", i.Index}] = i.Name
				if slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
					wanted[listenerKey{"udp6", i.Index}] = i.Name
				}
			}
		}
	}
	for key, one := range l.listeners {
		gone := wanted[key] != one.name
		select {
		case <-one.ended:
			gone = true
		default:
		}
		if gone {
			one.conn.Close()
			delete(l.listeners, key)
		}
	}
	var errs []string
	for key, name := range wanted {
		if l.listeners[key] != nil {
			continue
		}
		one, err := k.Host.listenFor(ctx, key, name)
		if err != nil {
			errs = append(errs, fmt.Sprintf("answer requests by %s: %v", name, err))
			continue
		}
		l.listeners[key] = one
		go one.read(ctx, l.requests, func(from netip.Addr) bool { return (*l.served.Load())(name, from) })
	}
	slices.Sort(errs)
	unheard := strings.Join(slices.Compact(errs), "; ")
	if unheard != "" && unheard != l.unheard {
		k.log("pcp: %s; it is tried again every %s", unheard, usualLook)
	}
	l.unheard = unheard
}

// end stops answering. What was opened stays open until its time has passed.
func (l *leases) end(k *keeper) {
	if l.server != nil && l.renewed {
		l.save(k, time.Now())
	}
	l.announce.Stop()
	for _, one := range l.listeners {
		one.conn.Close()
	}
	for _, one := range l.listeners {
		<-one.ended
	}
}

// listenFor makes a socket that gets what comes by an interface alone.
func (h Host) listenFor(ctx context.Context, key listenerKey, name string) (*listener, error) {
	option := func(fd int) error {
		if key.network == "udp6" {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = errors.Join(unix.BindToDevice(int(fd), name), option(int(fd))) }), err)
	}}
	var conn net.PacketConn
	err := h.Netns.Do(func() (err error) {
		conn, err = config.ListenPacket(ctx, key.network, fmt.Sprintf(":%d", pcp.Port))
		return err
	})
	if err != nil {
		return nil, err
	}
	return &listener{key, name, conn.(*net.UDPConn), make(chan struct{})}, nil
}

// read hands requests on until the socket is closed.
func (l *listener) read(ctx context.Context, requests chan<- asked, served func(netip.Addr) bool) {
	defer close(l.ended)
	limit, reads := pcp.Limiter{Each: eachSecond, All: allSecond}, pcp.Limiter{Each: readSecond, All: readSecond}
	text, control := make([]byte, pcp.MaxSize+1), make([]byte, 256)
	for {
		n, controls, _, from, err := l.conn.ReadMsgUDPAddrPort(text, control)
		if err != nil {
			return
		}
		now := time.Now()
		if !reads.Allows(now, netip.Addr{}) {
			select {
			case <-time.After(now.Truncate(time.Second).Add(time.Second).Sub(now)):
			case <-ctx.Done():
				return
			}
		}
		to := l.addressed(control[:controls])
		if !to.IsValid() || !served(from.Addr()) || !limit.Allows(time.Now(), from.Addr()) {
			continue
		}
		select {
		case requests <- asked{l, from, to, slices.Clone(text[:n])}:
		case <-ctx.Done():
			return
		}
	}
}

// addressed is the address that a datagram was for, by its control messages; not valid where it did not come by the
// interface, or for all hosts there.
func (l *listener) addressed(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			index, local, to := int32(binary.NativeEndian.Uint32(m.Data)), netip.AddrFrom4([4]byte(m.Data[4:8])), netip.AddrFrom4([4]byte(m.Data[8:12]))
			if int(index) == l.index && local == to {
				return to
			}
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			to := netip.AddrFrom16([16]byte(m.Data[:16]))
			if int(binary.NativeEndian.Uint32(m.Data[16:])) == l.index && !to.IsMulticast() {
				return to
			}
		}
	}
	return netip.Addr{}
}

// send answers a request, from the address that it was for.
func (l *listener) send(text []byte, r asked) {
	var control []byte
	if r.to.Is4() {
		control = unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(l.index), Spec_dst: r.to.As4()})
	} else {
		control = unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(l.index), Addr: r.to.As16()})
	}
	l.conn.WriteMsgUDPAddrPort(text, control, r.from) // an answer that is lost is asked for again
}

// busy reports whether a program of the gateway has a port of an address: the kernel does not let another one have it.
func (h Host) busy(address netip.Addr, protocol uint8, port uint16) bool {
	kind := unix.SOCK_STREAM
	if protocol == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	err := h.Netns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: address.As4()})
	})
	return errors.Is(err, unix.EADDRINUSE)
}
