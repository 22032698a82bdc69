package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
)

const (
	// openers open connections at once.
	openers = 8
	// openTimeout bounds the opening of a connection where the load does not say.
	openTimeout = 2 * time.Second
)

// held are connections that stand open.
type held struct {
	mu     sync.Mutex
	conns  []net.Conn
	failed map[string]int64
}

func (h *held) add(conn net.Conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.conns = append(h.conns, conn)
		return
	}
	h.failed[holdReason(err)]++
}

func holdReason(err error) string {
	var timeout net.Error
	var errno unix.Errno
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// hold opens connections and keeps them open, without a byte, until its time is over.
func (l *loads) hold(ctx context.Context, i int, one lab.Load) (o outcome) {
	began := time.Now()
	h := &held{failed: map[string]int64{}}
	defer func() {
		for _, conn := range h.conns {
			conn.Close()
		}
	}()
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, openers)
	for k := range openers {
		wg.Go(func() { errs[k] = l.open(ctx, i, one, h, &next) })
	}
	wg.Wait()
	opening := time.Since(began).Seconds()
	l.say(fmt.Sprintf("%d connections held", len(h.conns)))
	o.err = errors.Join(append(errs, wait(ctx, time.Until(began.Add(l.bounded(one.For.Duration)))))...)
	o.result = load.Result{Completed: int64(len(h.conns)), Seconds: time.Since(began).Seconds(), FirstFailureSeconds: -1,
		RequestsPerSecond: float64(len(h.conns)) / opening, Failures: []load.Failure{}}
	for reason, n := range h.failed {
		o.result.Failed += n
		o.result.Failures = append(o.result.Failures, load.Failure{Phase: load.Connect, Reason: reason, Count: n})
	}
	o.report = lab.LoadReport{Sent: int64(one.Concurrency), Answered: o.result.Completed, Failed: o.result.Failed}
	return o
}

// open opens every connection that is still to be opened, from within the node.
func (l *loads) open(ctx context.Context, i int, one lab.Load, h *held, next *atomic.Int64) error {
	dialer := net.Dialer{Timeout: openTimeout}
	if one.Timeout.Duration > 0 {
		dialer.Timeout = one.Timeout.Duration
	}
	return l.c.node(one.From).Do(func() error {
		for {
			k := next.Add(1) - 1
			if k >= int64(one.Concurrency) || ctx.Err() != nil {
				return ctx.Err()
			}
			dialer.LocalAddr = heldFrom(one, k)
			h.add(dialer.DialContext(ctx, "tcp", one.To.String()))
			l.done[i].Add(1)
		}
	})
}

// heldFrom is the source of the k-th connection: the addresses in turn, then the
// next port. Nil leaves it to the kernel.
func heldFrom(one lab.Load, k int64) net.Addr {
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
