package run

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"golang.org/x/sys/unix"
)

// usualExchange is how long an exchange may take if the load does not set it;
// hopeless is how many failures on end are taken for all that are left.
const (
	usualExchange = time.Second
	hopeless      = 3
)

// exchange makes connections or sends datagrams one after the other to a server that
// answers with the source that it saw.
func (l *loads) exchange(ctx context.Context, i int, one lab.Load) (o outcome) {
	began := time.Now()
	if err := l.answer(one); err != nil {
		o.err = fmt.Errorf("%s: %w", one.Exchange.Name, err)
		return o
	}
	var done []lab.Exchanged
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
	o.exchanged = done
	took, n := time.Since(began).Seconds(), int64(len(done))
	o.result = result(took, n, float64(n)/took)
	o.fail(load.Wait, "no answer", one.Requests-n)
	o.report.Sent = one.Requests
	return o
}

// judgeExchanges counts what the gateway tracked of each, once nothing moves any more.
func (l *loads) judgeExchanges(ctx context.Context, all []lab.Load, outcomes []outcome) error {
	c := &exchangeCounter{of: map[exchangedTuple]int{}, entries: make([]int64, len(all))}
	for i, o := range outcomes {
		for _, x := range o.exchanged {
			c.of[exchangedTuple{protocolOf(all[i]), x.Own, all[i].To}] = i
		}
	}
	if len(c.of) > 0 {
		watched := l.c.watched(l.st)
		if _, err := dump.EachWhole(ctx, l.c.node(watched), &conntrack.Filter{}, c.restart, c.count); err != nil {
			return fmt.Errorf("count what %s tracked: %w", watched, err)
		}
	}
	for i, one := range all {
		if o := &outcomes[i]; one.Is(lab.LoadExchange) && o.err == nil {
			o.report.Exchange = one.Exchange.Judge(o.exchanged, one.Requests, c.entries[i], l.c.lab.Carriers())
		}
	}
	return nil
}

// exchangedTuple is the original direction of an exchange, as the tracker knows it.
type exchangedTuple struct {
	protocol uint8
	from, to netip.AddrPort
}

// exchangeCounter counts the entries of each load.
type exchangeCounter struct {
	of      map[exchangedTuple]int
	entries []int64
}

func (c *exchangeCounter) restart() { clear(c.entries) }

func (c *exchangeCounter) count(e *conntrack.Entry) error {
	t := &e.Orig
	if i, ok := c.of[exchangedTuple{t.Proto, netip.AddrPortFrom(t.Src, t.SrcPort), netip.AddrPortFrom(t.Dst, t.DstPort)}]; ok {
		c.entries[i]++
	}
	return nil
}

func protocolOf(l lab.Load) uint8 {
	if l.Exchange.Protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// answerer answers clients with their source address until it is closed. It is a
// net.Listener or a net.PacketConn.
type answerer struct {
	io.Closer
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
			a.Closer, err = net.ListenPacket("udp"+family, at)
		} else {
			a.Closer, err = net.Listen("tcp"+family, at)
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
		<-a.over
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
	if udp, ok := a.Closer.(net.PacketConn); ok {
		buf := make([]byte, 64)
		for {
			_, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo([]byte(from.String()+"\n"), from) // the client reports a lost answer
		}
	}
	for {
		conn, err := a.Closer.(net.Listener).Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(conn.RemoteAddr().String() + "\n"))
		conn.Close()
	}
}

// exchangeOne is the k-th of a load, on a thread in the client's node.
func exchangeOne(ctx context.Context, one lab.Load, k int64) (x lab.Exchanged, err error) {
	dialer, network := net.Dialer{Timeout: cmp.Or(one.Timeout, usualExchange)}, cmp.Or(one.Exchange.Protocol, "tcp")
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
	from := exchangeFrom(one, k)
	if from == nil || network == "tcp" {
		return from
	}
	return net.UDPAddrFromAddrPort(from.(*net.TCPAddr).AddrPort())
}

// Between two dumps of a table is the time that its entries have to live, within these
// bounds: each dump walks all buckets of the host, and an open connection has days to
// live and can be closed at any moment.
const (
	forgetTickMin = 100 * time.Millisecond
	forgetTickMax = 500 * time.Millisecond
)

// batches waits between the batches of a load.
type batches struct {
	l     *loads
	batch lab.Batch
	// impatient batches began before all was forgotten; waited is in nanoseconds.
	count, impatient, waited atomic.Int64
}

func (l *loads) newBatches(b *lab.Batch) *batches {
	if b == nil {
		return nil
	}
	w := &batches{l: l, batch: *b}
	w.count.Store(1)
	return w
}

// next returns when the node has forgotten the connections of the last batch, or when
// patience is over.
func (w *batches) next(ctx context.Context, number int) error {
	began := time.Now()
	deadline := began.Add(w.batch.Patience)
	defer func() { w.waited.Add(int64(time.Since(began))) }()
	for {
		left, longest, err := w.remembered(ctx)
		if err != nil {
			return err
		}
		if left == 0 {
			break
		}
		rest := time.Until(deadline)
		if rest <= 0 {
			w.impatient.Add(1)
			break
		}
		w.l.say(fmt.Sprintf("batch %d of %d requests begins when %s has forgotten %d connections", number+1, w.batch.Requests, w.batch.ForgottenBy, left))
		if err := wait(ctx, min(rest, max(forgetTickMin, min(longest, forgetTickMax)))); err != nil {
			return err
		}
	}
	w.count.Add(1)
	return nil
}

// tcpOfLoad are TCP entries that no fill has made.
var tcpOfLoad = conntrack.Filter{Proto: conntrack.Is(uint8(unix.IPPROTO_TCP)), MarkMask: math.MaxUint32}

// remembered returns the number of the node's entries of TCP connections, and the longest
// time that one of them has to live.
func (w *batches) remembered(ctx context.Context) (n int, longest time.Duration, err error) {
	_, err = dump.Each(ctx, w.l.c.node(w.batch.ForgottenBy), &tcpOfLoad, func(e *conntrack.Entry) error {
		n++
		longest = max(longest, time.Duration(e.Timeout)*time.Second)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("count the connections that %s tracks: %w", w.batch.ForgottenBy, err)
	}
	return n, longest, err
}

// report is nil where there are no batches.
func (w *batches) report() *lab.Batches {
	if w == nil {
		return nil
	}
	return &lab.Batches{Count: int(w.count.Load()), Requests: w.batch.Requests,
		OutOfPatience: int(w.impatient.Load()), WaitedSeconds: float64(w.waited.Load()) / 1e9}
}

// exchangeFrom is the source of the k-th connection: the addresses in turn, then the
// next port. Nil leaves it to the kernel.
func exchangeFrom(one lab.Load, k int64) net.Addr {
	if len(one.Sources) == 0 {
		return nil
	}
	n := int64(len(one.Sources))
	from := &net.TCPAddr{IP: one.Sources[k%n].AsSlice()}
	if one.SourcePorts != (lab.Ports{}) {
		from.Port = int(one.SourcePorts.First) + int(k/n%one.SourcePorts.Len())
	}
	return from
}
