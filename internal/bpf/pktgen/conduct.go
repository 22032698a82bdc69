package pktgen

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/load/packets"
)

const (
	// probes are the first packets of a run; one of them must arrive before the rest is sent.
	probes     = 32
	probeLimit = time.Second
	// drainQuiet without an arrival after the last packet ends a run, drainLimit in any case.
	drainQuiet = 100 * time.Millisecond
	drainLimit = 2 * time.Second
)

// conduct probes the way, sends, waits for the last packets and counts.
func (r *run) conduct(ctx context.Context) (*packets.Result, error) {
	if err := r.probe(ctx); err != nil {
		return nil, err
	}
	statistics, err := r.statistics()
	if err != nil {
		return nil, err
	}
	defer statistics()
	var before counts // of a paced run nothing: its probes are the first packets of the schedule
	if r.cfg.Rate == 0 {
		if before, err = r.counts(); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	working, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop := r.watch(start, end)
	err = r.work(working, start)
	seconds := time.Since(start).Seconds()
	if err == nil {
		err = r.drain(ctx)
	}
	stop()
	if err != nil {
		return nil, err
	}
	result, err := r.result(seconds, before)
	if ctx.Err() == nil && working.Err() != nil {
		err = errors.Join(err, context.Cause(working))
	}
	return result, err
}

// probe sends the first packets, and goes no further where none of them arrives.
func (r *run) probe(ctx context.Context) error {
	w, n := r.workers[0], r.probes()
	if err := w.allow(n); err != nil {
		return err
	}
	if err := w.onCPU(func() error { return w.send(n) }); err != nil || r.sink == nil {
		return err
	}
	found, err := poll(ctx, probeLimit, func() (bool, error) {
		c, err := r.received()
		return arrived(c) > 0, err
	})
	if err != nil || found || ctx.Err() != nil {
		return err
	}
	return &NoneArrivedError{fmt.Sprintf("none of the first %d packets from %v arrived at %v: %s", n, r.from.Port, r.sink.port, r.whyNone())}
}

// NoneArrivedError ends a run none of whose first packets arrived.
type NoneArrivedError struct{ text string }

func (e *NoneArrivedError) Error() string { return e.text }

func (r *run) probes() int64 { return probesOf(r.total(0), r.pace(), r.cfg.Duration) }

// probesOf returns the number of packets of a probe: in a paced run at most those due in its
// time.
func probesOf(total int64, pace load.Pace, duration time.Duration) int64 {
	n := min(probes, total)
	if pace.PerSecond == 0 {
		return n
	}
	within := probeLimit
	if duration > 0 {
		within = min(within, duration)
	}
	return min(n, pace.Due(within-1))
}

// total returns the number of packets worker i may send: as many as the others, or one more.
func (r *run) total(i int) int64 {
	if r.cfg.Packets == 0 {
		return math.MaxInt64
	}
	workers := int64(r.cfg.Workers)
	if int64(i) < r.cfg.Packets%workers {
		return r.cfg.Packets/workers + 1
	}
	return r.cfg.Packets / workers
}

func (r *run) work(ctx context.Context, start time.Time) error {
	errs := make([]error, len(r.workers))
	var all sync.WaitGroup
	for i, w := range r.workers {
		all.Go(func() {
			errs[i] = w.onCPU(func() error { return w.work(ctx, start, r.total(i)) })
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// drain waits for packets in flight. Without a receiver the other end of a veth gets a moment:
// its ring is discarded with the program that is attached for the run (veth_napi_del).
func (r *run) drain(ctx context.Context) error {
	if r.sink == nil {
		if r.passage.pass != nil {
			_, err := poll(context.WithoutCancel(ctx), drainQuiet, func() (bool, error) { return false, nil })
			return err
		}
		return nil
	}
	sent, _, err := r.sent()
	if err != nil {
		return err
	}
	last, changed := int64(-1), time.Now()
	_, err = poll(context.WithoutCancel(ctx), drainLimit, func() (bool, error) {
		c, err := r.received()
		if n := arrived(c); n != last {
			last, changed = n, time.Now()
		}
		return last >= sent && c.Duplicated == 0 || time.Since(changed) > drainQuiet, err
	})
	return err
}

// watch reports progress and records the course of the run until stop, and ends a broken run.
func (r *run) watch(start time.Time, end context.CancelCauseFunc) (stop func()) {
	return every(200*time.Millisecond, func() { r.sample(start, end) })
}

// every calls fn at an interval until stop, and once more then.
func every(interval time.Duration, fn func()) (stop func()) {
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				fn()
				return
			case <-tick.C:
				fn()
			}
		}
	}()
	return func() {
		close(done)
		<-finished
	}
}

func (r *run) sample(start time.Time, end context.CancelCauseFunc) {
	r.note(time.Since(start))
	if err := r.broken(); err != nil {
		end(err)
	}
}

// note adds to the last second of the course. An error here shows again at the end of the run.
func (r *run) note(elapsed time.Duration) {
	sent, _, err := r.sent()
	c, err2 := r.received()
	if err != nil || err2 != nil {
		return
	}
	if n := len(r.course); n == 0 || r.course[n-1].At >= float64(n) {
		r.course = append(r.course, packets.Second{})
	}
	var before packets.Second
	for _, s := range r.course[:len(r.course)-1] {
		before.Sent, before.Received = before.Sent+s.Sent, before.Received+s.Received
	}
	r.course[len(r.course)-1] = packets.Second{
		At: elapsed.Seconds(), Sent: sent - before.Sent, Received: int64(c.Received) - before.Received,
	}
	if r.progress != nil {
		r.progress(packets.Progress{Elapsed: elapsed, Sent: sent, Received: int64(c.Received), Packets: r.cfg.Packets})
	}
}

// bareType is the EtherType of a bare run's frames: IEEE 802 local experimental 1.
const bareType = 0x88b5

// bareFrame returns what the kernel copies into its pages. The generator overwrites its headers;
// a bare run sends it unchanged.
func (r *run) bareFrame() []byte {
	frame := make([]byte, r.cfg.Spec.MaxSize()-frame.FCSLen)
	copy(frame, r.from.NextMAC)
	copy(frame[6:], r.from.MAC)
	binary.BigEndian.PutUint16(frame[12:], bareType)
	return frame
}

// whyNone returns the likely reason why nothing arrives.
func (r *run) whyNone() string {
	if r.cfg.Bare {
		return "bare frames carry no IP, and no router forwards them: the receiver must be the other end of the sender's link"
	}
	if r.from.Kind == "veth" {
		if p, err := findPeer(r.from); err == nil && p != nil {
			defer p.close()
			if !bytes.Equal(p.mac, r.from.NextMAC) && !p.promisc {
				return fmt.Sprintf("the frames go to the Ethernet address %v, and the other end %v has %v (--next-mac, or a stale neighbour: 'ip neigh')",
					r.from.NextMAC, p.port, p.mac)
			}
		}
	}
	return fmt.Sprintf("check the path between them: routes and forwarding (net.ipv4.ip_forward), filter rules, rp_filter, the NAT rule for this destination, and whether %v is where they come in ('ip -s link' counts packets)", r.sink.port)
}
