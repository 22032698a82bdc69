// Package syn follows the SYNs that arrive at a network namespace and, once one may not have been
// accepted, their answers: which are repeated, and which meet a connection in TIME_WAIT. It
// watches by a tap, bounded in rate, memory and time.
package syn

import (
	"bytes"
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
	// Source is one of that namespace that others watch, too; nil for one of its own.
	Source *tap.Source
	// Answers are watched from the beginning, not from the first suspicion.
	Answers bool
}

// Tap watches from Start to Stop.
type Tap struct {
	ns     *netns.Handle
	watch  *Watch
	source *tap.Source
	own    bool // no other watches source
	// arriving and leaving are nil where they are not open: the first where nothing listens.
	arriving, leaving *tap.Feed
	asker             *asker
	rate              *tap.Rate
	began             time.Time
	listed            time.Time
	// answers is when they began to be watched, pausedBefore how long no packet was seen until then.
	answers      time.Time
	pausedBefore time.Duration
	lost         uint64
	// seen segments of this turn.
	seen int
	stop func() error
}

// Start begins to watch a namespace. Needs CAP_NET_RAW there.
func Start(ctx context.Context, o Options) (*Tap, error) {
	if err := netns.CheckPrivilege(netns.Need{Any: netns.NetRaw, Why: "for packet sockets, to see SYNs"}); err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	t := &Tap{ns: o.Netns, source: o.Source, own: o.Source == nil, rate: tap.NewRate(), began: time.Now()}
	if t.own {
		t.source = tap.OpenSource(o.Netns)
	}
	if err := t.open(o.Answers); err != nil {
		t.close()
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	t.stop = t.source.Watch(ctx, t)
	return t, nil
}

func (t *Tap) open(answers bool) (err error) {
	// A netlink socket belongs to the namespace where it is made.
	if err = t.ns.Do(func() error { t.asker, err = newAsker(); return err }); err != nil {
		return err
	}
	t.watch = NewWatch(t.asker.listens)
	t.listed = time.Now()
	if err := t.openArriving(); err != nil {
		return err
	}
	if answers && t.arriving != nil {
		return t.openLeaving()
	}
	return nil
}

// openArriving sees no SYNs where nothing listens: none is for this namespace.
func (t *Tap) openArriving() (err error) {
	if len(t.asker.ports) == 0 {
		return nil
	}
	t.arriving, err = t.source.Open(true, t.samples(), func(s tap.Samples) ([]bpf.RawInstruction, error) { return arriving(t.asker.ports, s[0]) })
	return err
}

// relist is the interval at which listeners are looked for that started meanwhile.
const relist = time.Second

func (t *Tap) list() error {
	if time.Since(t.listed) < relist {
		return nil
	}
	t.listed = time.Now()
	switch changed, err := t.asker.list(); {
	case err != nil || !changed: // those that were known are watched
		return nil
	case t.arriving == nil:
		return t.openArriving()
	}
	return t.arriving.Attach()
}

// See processes what has come, SYNs before their answers.
func (t *Tap) See() error {
	if err := t.list(); err != nil || t.arriving == nil {
		return err
	}
	// Answers are taken first: the SYN of each has come by then.
	answers, err := t.answered()
	if err != nil {
		return err
	}
	at := time.Since(t.began).Seconds()
	n, err := t.arriving.Receive(func(p *tap.Packet) {
		with(p, func(f *frame.Frame) { t.watch.Arrived(f, p.Interface, at) })
	})
	if err != nil {
		return err
	}
	for _, p := range answers {
		with(&p, func(f *frame.Frame) { t.watch.Answered(f, at) })
	}
	t.seen += n + len(answers)
	for _, q := range t.watch.Questions() {
		t.watch.Resolve(q, t.asker.state(q.Tuple))
	}
	if t.leaving == nil && t.watch.Suspicion() {
		if err := t.openLeaving(); err != nil {
			return err
		}
	}
	return t.limit()
}

// answered takes the answers that wait.
func (t *Tap) answered() (all []tap.Packet, err error) {
	if t.leaving == nil {
		return nil, nil
	}
	_, err = t.leaving.Receive(func(p *tap.Packet) {
		kept := *p
		kept.Data = bytes.Clone(p.Data)
		all = append(all, kept)
	})
	return all, err
}

// with decodes a segment.
func with(p *tap.Packet, do func(*frame.Frame)) {
	var f frame.Frame
	if f.DecodeNetwork(tap.EtherType(p.Version), p.Data) == nil && f.Transport == unix.IPPROTO_TCP {
		do(&f)
	}
}

func (t *Tap) openLeaving() (err error) {
	if t.leaving, err = t.source.Open(false, t.samples(), func(s tap.Samples) ([]bpf.RawInstruction, error) { return leaving(s[0]) }); err != nil {
		return err
	}
	t.answers = time.Now()
	t.pausedBefore = t.source.Paused(t.answers)
	t.watch.Watching()
	return nil
}

// Pause leaves out what waits for an answer that may come in a pause.
func (t *Tap) Pause() { t.watch.Pause() }

func (t *Tap) samples() tap.Samples { return tap.Samples{t.rate.Sample, 1} }

// limit halves the sampled connections where too many segments come.
func (t *Tap) limit() error {
	more := t.rate.Add(t.seen)
	t.seen = 0
	for _, s := range t.feeds() {
		if !more {
			break
		}
		if err := s.Sample(t.samples()); err != nil {
			return err
		}
	}
	return nil
}

// feeds returns the open ones.
func (t *Tap) feeds() (open []*tap.Feed) {
	for _, f := range []*tap.Feed{t.arriving, t.leaving} {
		if f != nil {
			open = append(open, f)
		}
	}
	return open
}

// Stop ends the watch and returns its result. It may be called once.
func (t *Tap) Stop() (*snapshot.SYNs, error) {
	err := t.stop()
	ended := time.Now()
	for _, s := range t.feeds() {
		t.lost += s.Lost()
	}
	t.close()
	if err != nil {
		return nil, fmt.Errorf("watch SYNs: %w", err)
	}
	r := t.watch.Result()
	paused := t.source.Paused(ended)
	r.Seconds, r.PausedSeconds, r.Sample, r.Lost = ended.Sub(t.began).Seconds(), paused.Seconds(), t.rate.Sample, t.lost
	if !t.answers.IsZero() {
		r.AnswersSeconds = (ended.Sub(t.answers) - paused + t.pausedBefore).Seconds()
	}
	return r, nil
}

func (t *Tap) close() {
	for _, s := range t.feeds() {
		s.Close()
	}
	if t.own {
		t.source.Close()
	}
	t.asker.close()
}
