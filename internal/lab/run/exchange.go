package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

// usualExchange is how long an exchange may take where the load does not say;
// hopeless is how many failures on end are taken for all that are left.
const (
	usualExchange = time.Second
	hopeless      = 3
)

// exchange makes connections or sends datagrams one after the other to a server that
// tells whom it saw, and counts what the gateway tracked of them.
func (l *loads) exchange(ctx context.Context, i int, one lab.Load) (o outcome) {
	began := time.Now()
	if err := l.answer(one); err != nil {
		o.err = fmt.Errorf("%s: %w", one.Exchange.Name, err)
		return o
	}
	var done []lab.Exchanged
	o.result = load.Result{FirstFailureSeconds: -1, Failures: []load.Failure{}}
	o.err = l.c.node(one.From).Do(func() error {
		for k, failed := int64(0), 0; k < one.Requests && failed < hopeless && ctx.Err() == nil; k++ {
			x, err := exchangeOne(ctx, one, k)
			if err == nil {
				done, failed = append(done, x), 0
			} else {
				failed++
			}
			l.done[i].Add(1)
		}
		return ctx.Err()
	})
	if o.err != nil {
		return o
	}
	entries, err := l.tracked(ctx, one, done)
	o.err = err
	o.result.Seconds, o.result.Completed = time.Since(began).Seconds(), int64(len(done))
	o.result.RequestsPerSecond = float64(len(done)) / o.result.Seconds
	o.result.Failed = one.Requests - o.result.Completed
	if o.result.Failed > 0 {
		o.result.Failures = append(o.result.Failures, load.Failure{Phase: load.Wait, Reason: "no answer", Count: o.result.Failed})
	}
	o.report = lab.LoadReport{Sent: one.Requests, Answered: o.result.Completed, Failed: o.result.Failed,
		Exchange: one.Exchange.Judge(done, one.Requests, entries)}
	return o
}

// answerer tells clients whom it sees until it is closed.
type answerer struct {
	tcp  net.Listener
	udp  net.PacketConn
	over chan struct{}
}

// answer starts the load's server, unless another load of the stage has it too.
func (l *loads) answer(one lab.Load) error {
	addr, port := one.Listens()
	at, family := fmt.Sprintf(":%d", port), familyOf(one.To.Addr())
	if addr.IsValid() {
		at = netip.AddrPortFrom(addr, port).String()
	}
	l.serving.Lock()
	defer l.serving.Unlock()
	key := one.Exchange.Server.Node + at + one.Exchange.Protocol + family
	if l.answerers[key] != nil {
		return nil
	}
	a := &answerer{over: make(chan struct{})}
	err := l.c.node(one.Exchange.Server.Node).Do(func() (err error) {
		if one.Exchange.Protocol == "udp" {
			a.udp, err = net.ListenPacket("udp"+family, at)
		} else {
			a.tcp, err = net.Listen("tcp"+family, at)
		}
		return err
	})
	if err != nil {
		return err
	}
	if l.answerers == nil {
		l.answerers = map[string]*answerer{}
	}
	l.answerers[key] = a
	go a.serve()
	return nil
}

// closeAnswerers ends all servers of the stage's exchanges.
func (l *loads) closeAnswerers() {
	for _, a := range l.answerers {
		a.Close()
	}
}

func familyOf(a netip.Addr) string {
	if a.Is6() {
		return "6"
	}
	return "4"
}

func (a *answerer) serve() {
	defer close(a.over)
	if a.udp != nil {
		buf := make([]byte, 64)
		for {
			_, from, err := a.udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = a.udp.WriteTo([]byte(from.String()+"\n"), from) // a lost answer is the client's to tell
		}
	}
	for {
		conn, err := a.tcp.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(conn.RemoteAddr().String() + "\n"))
		conn.Close()
	}
}

// Close waits until it serves no more.
func (a *answerer) Close() {
	if a.udp != nil {
		a.udp.Close()
	} else {
		a.tcp.Close()
	}
	<-a.over
}

// exchangeOne is the k-th of a load, on a thread in the client's node.
func exchangeOne(ctx context.Context, one lab.Load, k int64) (x lab.Exchanged, err error) {
	dialer := net.Dialer{Timeout: usualExchange}
	if one.Timeout.Duration > 0 {
		dialer.Timeout = one.Timeout.Duration
	}
	network := "tcp"
	if one.Exchange.Protocol == "udp" {
		network = "udp"
	}
	dialer.LocalAddr = exchangedFrom(one, network, k)
	conn, err := dialer.DialContext(ctx, network, one.To.String())
	if err != nil {
		return x, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(dialer.Timeout)); err != nil {
		return x, err
	}
	if network == "udp" {
		if _, err := conn.Write([]byte("?")); err != nil {
			return x, err
		}
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return x, err
	}
	x.Own, err = netip.ParseAddrPort(conn.LocalAddr().String())
	if err == nil {
		x.Seen, err = netip.ParseAddrPort(strings.TrimSpace(line))
	}
	return x, err
}

func exchangedFrom(one lab.Load, network string, k int64) net.Addr {
	from := heldFrom(one, k)
	if from == nil || network == "tcp" {
		return from
	}
	return net.UDPAddrFromAddrPort(from.(*net.TCPAddr).AddrPort())
}

// tracked counts the entries of the gateway that are of what was exchanged.
func (l *loads) tracked(ctx context.Context, one lab.Load, done []lab.Exchanged) (n int64, err error) {
	own := map[netip.AddrPort]bool{}
	for _, x := range done {
		own[x.Own] = true
	}
	protocol := uint8(unix.IPPROTO_TCP)
	if one.Exchange.Protocol == "udp" {
		protocol = unix.IPPROTO_UDP
	}
	count := func(e *conntrack.Entry) error {
		t := &e.Orig
		if t.Proto == protocol && t.Dst == one.To.Addr() && t.DstPort == one.To.Port() && own[netip.AddrPortFrom(t.Src, t.SrcPort)] {
			n++
		}
		return nil
	}
	_, err = dump.Each(ctx, l.c.node(l.c.watched(l.st)), &match.Filter{}, count)
	if err != nil {
		err = errors.Join(fmt.Errorf("count what %s tracked", l.c.watched(l.st)), err)
	}
	return n, err
}
