// Package syn follows the SYNs that arrive at a network namespace and, once one may not have been
// accepted, their answers: which are repeated, and which meet a connection in TIME_WAIT. It
// watches by packet sockets with a filter, bounded in rate, memory and time.
package syn

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

const (
	// pause is the interval of samples: one per packet would cost a task switch each.
	pause = 5 * time.Millisecond
	// mostPerSecond segments are read, about: beyond, half of the connections are left out,
	// repeatedly.
	mostPerSecond = 2_500
	mostSample    = 1 << 12
	burst         = time.Second
	// longest is for how long a tap works, whatever its caller does.
	longest = 10 * time.Minute
)

// Options specify what to watch.
type Options struct {
	// Netns is the namespace; nil is the one natkit runs in.
	Netns *netns.Handle
	// Answers are watched from the beginning, not from the first suspicion.
	Answers bool
}

// Tap watches from Start to Stop.
type Tap struct {
	ns       *netns.Handle
	watch    *Watch
	arriving []*socket
	leaving  *socket
	asker    *asker
	sample   int
	began    time.Time
	answers  time.Time
	lost     uint64
	// seen segments since checked.
	seen    int
	checked time.Time
	stop    context.CancelFunc
	done    chan struct{}
	err     error
}

// Start begins to watch a namespace. Needs CAP_NET_RAW there.
func Start(ctx context.Context, o Options) (t *Tap, err error) {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.NetRaw, Why: "for packet sockets, to see SYNs"}); err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	now := time.Now()
	t = &Tap{ns: o.Netns, sample: 1, began: now, checked: now, done: make(chan struct{})}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err := t.ns.Do(func() error { return t.open(o.Answers) }); err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	ctx, t.stop = context.WithTimeout(context.WithoutCancel(ctx), longest)
	go t.run(ctx)
	return t, nil
}

// open needs to be in the namespace: sockets belong to the one where they are made.
func (t *Tap) open(answers bool) (err error) {
	if t.asker, err = newAsker(); err != nil {
		return err
	}
	t.watch = NewWatch(t.asker.listens)
	for _, version := range []int{4, 6} {
		s, err := newSocket(etherType(version), t.sample, func(sample int) ([]bpf.RawInstruction, error) { return arriving(version, sample) })
		if err != nil {
			return err
		}
		t.arriving = append(t.arriving, s)
	}
	if answers {
		return t.openLeaving()
	}
	return nil
}

// run polls the sockets until ctx ends.
func (t *Tap) run(ctx context.Context) {
	defer close(t.done)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for t.err == nil {
		select {
		case <-ctx.Done():
			t.err = t.poll()
			return
		case <-tick.C:
			t.err = t.poll()
		}
	}
}

// poll processes what has come, SYNs before their answers.
func (t *Tap) poll() error {
	for _, s := range t.arriving {
		if err := t.take(s, t.watch.Arrived); err != nil {
			return err
		}
	}
	if t.leaving != nil {
		if err := t.take(t.leaving, t.watch.Answered); err != nil {
			return err
		}
	}
	for _, q := range t.watch.Questions() {
		t.watch.Resolve(q, t.asker.state(q.Tuple))
	}
	if t.leaving == nil && t.watch.Suspicion() {
		if err := t.ns.Do(t.openLeaving); err != nil {
			return err
		}
	}
	return t.limit()
}

// take reads a socket empty.
func (t *Tap) take(s *socket, to func(*frame.Frame, float64)) error {
	at := time.Since(t.began).Seconds()
	var f frame.Frame
	n, err := s.receive(func(version int, b []byte) {
		if f.DecodeNetwork(etherType(version), b) == nil && f.Transport == unix.IPPROTO_TCP {
			to(&f, at)
		}
	})
	t.seen += n
	return err
}

func (t *Tap) openLeaving() (err error) {
	if t.leaving, err = newSocket(unix.ETH_P_ALL, t.sample, leaving); err != nil {
		return err
	}
	t.answers = time.Now()
	t.watch.Watching()
	return nil
}

// limit halves the sampled connections at more than mostPerSecond and a burst.
func (t *Tap) limit() error {
	span := time.Since(t.checked) + burst
	if float64(t.seen) < mostPerSecond*span.Seconds() || t.sample >= mostSample {
		return nil
	}
	t.seen, t.checked = 0, time.Now()
	t.sample *= 2
	for _, s := range t.sockets() {
		if err := s.attach(t.sample); err != nil {
			return err
		}
	}
	return nil
}

// sockets returns the open ones.
func (t *Tap) sockets() []*socket {
	if t.leaving == nil {
		return t.arriving
	}
	return append(t.arriving[:len(t.arriving):len(t.arriving)], t.leaving)
}

// Stop ends the watch and returns its result. It may be called once.
func (t *Tap) Stop() (*snapshot.SYNs, error) {
	t.stop()
	<-t.done
	ended := time.Now()
	for _, s := range t.sockets() {
		t.lost += s.lost()
	}
	t.close()
	if t.err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", t.err)
	}
	r := t.watch.Result()
	r.Seconds, r.Sample, r.Lost = ended.Sub(t.began).Seconds(), t.sample, t.lost
	if !t.answers.IsZero() {
		r.AnswersSeconds = ended.Sub(t.answers).Seconds()
	}
	return r, nil
}

func (t *Tap) close() {
	for _, s := range t.sockets() {
		s.close()
	}
	t.asker.close()
}
