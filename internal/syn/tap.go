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
	"github.com/natkit/natkit/internal/tap"
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
	arriving []*tap.Socket
	leaving  *tap.Socket
	asker    *asker
	rate     *tap.Rate
	began    time.Time
	answers  time.Time
	lost     uint64
	// seen segments of this turn.
	seen int
	stop func() error
}

// Start begins to watch a namespace. Needs CAP_NET_RAW there.
func Start(ctx context.Context, o Options) (t *Tap, err error) {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.NetRaw, Why: "for packet sockets, to see SYNs"}); err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	t = &Tap{ns: o.Netns, rate: tap.NewRate(), began: time.Now()}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err := t.ns.Do(func() error { return t.open(o.Answers) }); err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	t.stop = tap.Run(ctx, t.poll)
	return t, nil
}

// open needs to be in the namespace: sockets belong to the one where they are made.
func (t *Tap) open(answers bool) (err error) {
	if t.asker, err = newAsker(); err != nil {
		return err
	}
	t.watch = NewWatch(t.asker.listens)
	for _, version := range []int{4, 6} {
		s, err := tap.Open(tap.EtherType(version), t.rate.Sample, func(sample int) ([]bpf.RawInstruction, error) { return arriving(version, sample) })
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
func (t *Tap) take(s *tap.Socket, to func(*frame.Frame, float64)) error {
	at := time.Since(t.began).Seconds()
	var f frame.Frame
	n, err := s.Receive(func(p *tap.Packet) {
		if f.DecodeNetwork(tap.EtherType(p.Version), p.Data) == nil && f.Transport == unix.IPPROTO_TCP {
			to(&f, at)
		}
	})
	t.seen += n
	return err
}

func (t *Tap) openLeaving() (err error) {
	if t.leaving, err = tap.Open(unix.ETH_P_ALL, t.rate.Sample, leaving); err != nil {
		return err
	}
	t.answers = time.Now()
	t.watch.Watching()
	return nil
}

// limit halves the sampled connections where too many segments come.
func (t *Tap) limit() error {
	more := t.rate.Add(t.seen)
	t.seen = 0
	for _, s := range t.sockets() {
		if !more {
			break
		}
		if err := s.Attach(t.rate.Sample); err != nil {
			return err
		}
	}
	return nil
}

// sockets returns the open ones.
func (t *Tap) sockets() []*tap.Socket {
	if t.leaving == nil {
		return t.arriving
	}
	return append(t.arriving[:len(t.arriving):len(t.arriving)], t.leaving)
}

// Stop ends the watch and returns its result. It may be called once.
func (t *Tap) Stop() (*snapshot.SYNs, error) {
	err := t.stop()
	ended := time.Now()
	for _, s := range t.sockets() {
		t.lost += s.Lost()
	}
	t.close()
	if err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	r := t.watch.Result()
	r.Seconds, r.Sample, r.Lost = ended.Sub(t.began).Seconds(), t.rate.Sample, t.lost
	if !t.answers.IsZero() {
		r.AnswersSeconds = ended.Sub(t.answers).Seconds()
	}
	return r, nil
}

func (t *Tap) close() {
	for _, s := range t.sockets() {
		s.Close()
	}
	t.asker.close()
}
