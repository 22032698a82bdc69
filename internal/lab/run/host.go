package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"golang.org/x/sys/unix"
)

// setHost sets the host-wide values that the stage has. Where they are
// the same as in the stage before they stay, with what a remedy has made of them; else
// all that was changed is undone first.
func (c *conductor) setHost(ctx context.Context, st *lab.Stage) error {
	if maps.Equal(st.Host, c.host) {
		return nil
	}
	if restored, err := c.undoHost(); err != nil {
		return err
	} else if !restored {
		return errors.New("a value of the host could not be put back; see 'natkit tune list'")
	}
	c.host = nil
	var changes []tune.Change
	for _, name := range slices.Sorted(maps.Keys(st.Host)) {
		before, err := apply.ReadSysctlInt("/proc", name)
		if err != nil {
			return err
		}
		if after := st.Host[name]; after != strconv.FormatInt(before, 10) {
			changes = append(changes, tune.Change{Kind: tune.Sysctl, Target: name, Before: strconv.FormatInt(before, 10), After: after,
				Why: "stage " + st.Name + " of the scenario"})
		}
	}
	if len(changes) > 0 {
		c.Progress(fmt.Sprintf("changing %d values of the host for %s", len(changes), st.Name))
		applied, err := apply.Apply(ctx, tune.Plan{Origin: c.origin(), Changes: changes}, apply.Options{Journal: c.Journal, Lifeline: true})
		if err != nil {
			return err
		}
		c.applied = append(c.applied, applied)
	}
	c.host = maps.Clone(st.Host)
	return nil
}

// undoHost undoes the changes to the host, newest first, and keeps those that could not be
// undone. restored is false if a value was left as it is because another process has
// changed it since.
func (c *conductor) undoHost() (restored bool, err error) {
	var left []*apply.Applied
	restored = true
	for _, a := range slices.Backward(c.applied) {
		tx, undoErr := a.Undo()
		if undoErr != nil && !errors.Is(undoErr, apply.ErrUnsaved) { // the journal is gone, but the value is back
			err = errors.Join(err, undoErr)
			left = append([]*apply.Applied{a}, left...)
		}
		restored = restored && tx != nil && undone(tx)
	}
	c.applied = left
	return restored, err
}

// undisturbed fails if another process changed the host's maximum since the lab began:
// the stages would not show what the scenario describes.
func (c *conductor) undisturbed() error {
	want := c.hostMax
	for _, a := range c.applied {
		for _, change := range a.Changes() {
			if change.Target == snapshot.ConntrackMax {
				want, _ = strconv.ParseInt(change.After, 10, 64)
			}
		}
	}
	now, err := build.ConntrackMax()
	if err == nil && now != want {
		err = fmt.Errorf("%s was %d and is %d now: another process changes it; find out which (another lab, kube-proxy, a configuration agent) and run again", snapshot.ConntrackMax, want, now)
	}
	return err
}

// lowered returns a scenario that makes a table full by a small maximum of the whole host,
// as --lower-max asks for, instead of by a fill.
func (c *conductor) lowered() (*lab.Scenario, error) {
	switch {
	case c.LowerMax >= c.hostMax:
		return nil, fmt.Errorf("lower %s to %d: it is %d already", snapshot.ConntrackMax, c.LowerMax, c.hostMax)
	case c.LowerMax >= c.sc.Load.Requests:
		return nil, fmt.Errorf("lower %s to %d: %d requests do not fill that; a lower limit, or more requests", snapshot.ConntrackMax, c.LowerMax, c.sc.Load.Requests)
	}
	sc := *c.sc
	sc.Stages = slices.Clone(sc.Stages)
	for i := range sc.Stages {
		if st := &sc.Stages[i]; st.Fill != nil {
			st.Fill, st.Host = nil, map[string]string{}
			maps.Copy(st.Host, c.sc.Stages[i].Host)
			st.Host[snapshot.ConntrackMax] = strconv.FormatInt(c.LowerMax, 10)
		}
	}
	return &sc, nil
}

// longChain is the mean length of hash chains, by the entries of one namespace, from
// which others lose connections (cap of 8 at the least, Linux 5.15) or CPU time.
const longChain = 4

// mayLowerHost refuses values of the scenario with which other namespaces would lose
// connections.
func (c *conductor) mayLowerHost() error {
	lower := map[string]int64{}
	for _, st := range c.sc.Stages {
		for name, text := range st.Host {
			before, err := apply.ReadSysctlInt("/proc", name)
			if err != nil {
				return err
			}
			if value, err := strconv.ParseInt(text, 10, 64); err == nil && value < before {
				lower[name] = min(value, cmp.Or(lower[name], value))
			}
		}
	}
	if len(lower) == 0 || c.Force {
		return nil
	}
	busiest, entries, err := dump.Busiest()
	if err != nil {
		return fmt.Errorf("lower values of the host: %w; --force skips this check", err)
	}
	return tooLow(lower, busiest, entries)
}

// tooLow judges by what the busiest namespace tracks.
func tooLow(lower map[string]int64, busiest string, entries int64) error {
	limit, lowerMax := lower[snapshot.ConntrackMax]
	buckets, lowerBuckets := lower[snapshot.ConntrackBuckets]
	switch {
	case lowerMax && entries > limit/2:
		return fmt.Errorf("lower %s to %d: network namespace %s tracks %d connections, more than half of it, and would lose new ones; --force does it all the same",
			snapshot.ConntrackMax, limit, busiest, entries)
	case lowerBuckets && capacity.ChainLength(entries, buckets) > longChain:
		return fmt.Errorf("lower %s to %d: network namespace %s tracks %d connections, which would be hash chains of %.0f entries, and would lose new ones; --force does it all the same",
			snapshot.ConntrackBuckets, buckets, busiest, entries, capacity.ChainLength(entries, buckets))
	}
	return nil
}

const (
	// openers open connections at once.
	openers = 8
	// openTimeout limits the opening of a connection if the load does not set it.
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
	o.err = errors.Join(append(errs, wait(ctx, time.Until(began.Add(l.bounded(one.For)))))...)
	o.result = result(time.Since(began).Seconds(), int64(len(h.conns)), float64(len(h.conns))/opening)
	for reason, n := range h.failed {
		o.fail(load.Connect, reason, n)
	}
	o.report.Sent = int64(one.Concurrency)
	return o
}

// open opens every connection that is still to be opened, from within the node.
func (l *loads) open(ctx context.Context, i int, one lab.Load, h *held, next *atomic.Int64) error {
	dialer := net.Dialer{Timeout: cmp.Or(one.Timeout, openTimeout)}
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
