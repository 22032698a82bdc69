// Package collect reads the kernel into snapshots. Each collector reads through
// a source that is either the running kernel or a bundle written on another
// machine, so that both give the same snapshot.
package collect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// DefaultMaxEntries is how many entries of the table are read where Options does
// not say: enough to know a rate to a few percent, a fifth of a second to read.
const DefaultMaxEntries = 131072

// Options specify what to read.
type Options struct {
	// Netns is the namespace to read; nil is the one natkit runs in.
	Netns *netns.Handle
	// Proc and Sys are the roots of procfs and sysfs; empty means /proc and /sys.
	Proc, Sys string
	// Kmsg is the kernel log device; empty means /dev/kmsg.
	Kmsg string
	// MaxEntries bounds how much of the table is read, to the next netlink datagram
	// (about 130 entries); 0 means DefaultMaxEntries.
	MaxEntries int
	// Names, where set, reads what the host calls addresses, seen from a namespace.
	Names func(context.Context, *netns.Handle) *snapshot.Names
}

func (o Options) maxEntries() int {
	if o.MaxEntries <= 0 {
		return DefaultMaxEntries
	}
	return o.MaxEntries
}

// mostSnapshots bounds those of a recording.
const mostSnapshots = 10_000

// RecordOptions specify what to read, and for how long.
type RecordOptions struct {
	Options
	// Snapshots is how many to take, at least two; For is the time from one to the next.
	Snapshots int
	For       time.Duration
	// Trace, where set, starts to record beside the snapshots, once one is taken, which it is
	// given; what it returns ends that, before the next one is taken. For then begins when it has started.
	Trace func(context.Context, *snapshot.Snapshot) (stop func() snapshot.Trace)
	// Others, where set, reads the other network namespaces as well, before and after.
	Others *SurveyOptions
	// Owner is whose the namespace is, where all of them are read; Bundle is how what is read is written down.
	Owner  *snapshot.Owner
	Bundle BundleOptions
	// Progress, where set, receives in a few words what is being done.
	Progress func(string)
}

func (o RecordOptions) progress(what string) {
	if o.Progress != nil {
		o.Progress(what)
	}
}

// Read takes one snapshot. What cannot be read is missing in it, and its Parts
// say why; an error means that there is no snapshot at all.
func Read(ctx context.Context, o Options) (*snapshot.Snapshot, error) {
	var used portReader
	s := observe(ctx, newLive(o), o.maxEntries(), used.with(always(nil))).Snapshot
	used.finish(ctx, nil)
	return s, ctx.Err()
}

// Record takes o.Snapshots snapshots o.For apart and compares the tables of the last two.
// When ctx ends, the second one is taken at once if it is missing; the recording has two in
// every case.
func Record(ctx context.Context, o RecordOptions) (*snapshot.Recording, error) {
	src := newLive(o.Options)
	survey := o.startSurvey(ctx)
	rec, err := record(ctx, o, func(i int) (source, bool, error) { return src, o.more(ctx, i), nil })
	if err == nil {
		survey.finish(ctx, rec)
	}
	return rec, err
}

// more reports whether another snapshot follows that of this index.
func (o RecordOptions) more(ctx context.Context, i int) bool {
	return i == 0 || i+1 < min(o.Snapshots, mostSnapshots) && ctx.Err() == nil
}

// cutShort is the time in seconds that an interrupt has cut short, 0 without one.
func (o RecordOptions) cutShort(ctx context.Context) float64 {
	if ctx.Err() == nil {
		return 0
	}
	return o.For.Seconds()
}

// reading is one snapshot with what the comparison with the next one needs.
type reading struct {
	*observation
	used portReader
	// births is nil where no other snapshot follows.
	births *aggregate.FlowEstimator
}

// errNoMore ends a recording that was to have another snapshot.
var errNoMore = errors.New("no other snapshot follows")

// record reads through the sources that open gives for each snapshot, counted from 0, with
// whether another one follows.
func record(ctx context.Context, o RecordOptions, open func(i int) (source, bool, error)) (*snapshot.Recording, error) {
	// A reading is bounded by MaxEntries; ending one early would spoil what was
	// already waited for.
	whole := context.WithoutCancel(ctx)
	r := &snapshot.Recording{Schema: snapshot.RecordingSchema}
	var before *reading
	var trace *snapshot.Trace // since the snapshot before
	for i, more := 0, true; more; i++ {
		began := time.Now()
		src, next, err := open(i)
		if errors.Is(err, errNoMore) && before != nil {
			break
		}
		if err != nil {
			return nil, err
		}
		more = next
		if before != nil {
			if trace, err = src.traced(trace); err != nil {
				return nil, err
			}
		}
		o.progress("reading the kernel" + map[bool]string{true: " again"}[i > 0])
		now := &reading{}
		if more {
			now.births = aggregate.NewFlowEstimator(rand.Uint64())
		}
		now.read(whole, src, o.maxEntries(), before)
		r.Snapshots = append(r.Snapshots, now.Snapshot)
		if before != nil {
			now.follow(r, before, trace)
		}
		if before = now; more {
			trace = between(ctx, o, began, now.Snapshot)
			r.CutShortOf = o.cutShort(ctx)
		}
	}
	return r, nil
}

// read reads everything, and compares the table with that of the reading before.
func (n *reading) read(ctx context.Context, src source, maxEntries int, before *reading) {
	n.observation = observe(ctx, src, maxEntries, n.used.with(func(o *observation) func(*conntrack.Entry) {
		switch {
		case before == nil && n.births == nil: // one reading alone
			return nil
		case before == nil:
			return n.births.First
		}
		before.births.BeginSecond(gap(before.observation, o))
		return func(e *conntrack.Entry) {
			before.births.Second(e)
			if n.births != nil {
				n.births.First(e)
			}
		}
	}))
	if n.births != nil {
		n.births.EndFirst(n.tableRead && n.Table.Complete)
	}
	if before == nil {
		n.used.finish(ctx, nil)
		return
	}
	n.used.finish(ctx, &before.used)
}

// follow adds what happened since the reading before to the recording.
func (n *reading) follow(r *snapshot.Recording, before *reading, trace *snapshot.Trace) {
	n.compareIPVS(before.observation)
	flows, err := compare(before.births, before.observation, n.observation)
	p := snapshot.Part{Name: snapshot.PartFlows}
	if err != nil {
		p.Error = causes(err)
	}
	r.Flows = flows
	n.Parts = append(n.Parts, p)
	if trace != nil {
		r.Drops, r.Profile, r.SYNs, r.Followed = trace.Drops, trace.Profile, trace.SYNs, trace.Followed
		n.Parts = append(n.Parts, trace.Parts...)
	}
	n.part(snapshot.PartRoutes, func() error { return n.readRoutes(r) })
}

// between waits for what is left of o.For, and traces meanwhile where that is
// wanted; nil where it is not.
func between(ctx context.Context, o RecordOptions, began time.Time, before *snapshot.Snapshot) *snapshot.Trace {
	if o.Trace == nil {
		if o.For > 0 {
			o.progress("waiting " + o.For.String() + " to compare")
			pause(ctx, o.For-time.Since(began))
		}
		return nil
	}
	o.progress("starting to trace")
	stop := o.Trace(ctx, before)
	o.progress("tracing for " + o.For.String())
	pause(ctx, o.For)
	trace := stop()
	return &trace
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// source is all that collectors know of the world. The kernel answers it (live),
// or a bundle (tape); a recorder stands in front of the kernel and writes down
// what it answered.
type source interface {
	// inside runs fn where the files are those of the namespace.
	inside(fn func() error) error
	// readStart reads at most max bytes of a file below /proc or /sys, for at most that
	// long; whole is whether that was all. Call it inside.
	readStart(path string, max int, patience time.Duration) (data []byte, whole bool, err error)
	// list names the entries of a directory that begin with prefix; call it inside.
	list(dir, prefix string) ([]string, error)
	// counters and table pass on the kernel's netlink messages, a datagram at a
	// time. When fn returns dump.ErrStop they end without an error. No other question
	// may be asked after table, except answer and clock.
	counters(ctx context.Context, fn func(msgs []byte) error) error
	table(ctx context.Context, fn func(msgs []byte) error) (dump.Result, error)
	// kernelLog passes on the records of the kernel's log, oldest first, and
	// returns the number that the next record will have. fn reports whether the
	// record is of interest; others are not written into bundles.
	kernelLog(fn func(record []byte) bool) (next uint64, err error)
	// answer has ask fill v with what no file shows; a bundle keeps that as JSON. Call it
	// inside.
	answer(q question, v any, ask func() error) error
	// structSize is the size of a kernel structure by BTF.
	structSize(name string) (int, error)
	machine() (machine, error)
	// judged are the rules that packets meet, for ruleset.Judge.
	judged() ([]*ruleset.Table, error)
	// namer reads what the host calls addresses; nil where that was not asked for.
	namer() func(context.Context) *snapshot.Names
	// world is what answers about rules need beside files; call it inside. Bundles have the answers.
	world() (world, error)
	// traced passes on what was recorded before this snapshot, nil where nothing
	// was; a bundle has its own. It comes before all other questions.
	traced(now *snapshot.Trace) (*snapshot.Trace, error)
	// clock reads the clocks; label names the reading within a snapshot.
	clock(label string) instant
}

// question names what is asked in errors, and its member in bundles.
type question struct{ what, member string }

// machine is what is not in a file.
type machine struct {
	// Arch is uname -m.
	Arch      string         `json:"arch"`
	PageBytes int            `json:"page_bytes"`
	Netns     snapshot.Netns `json:"netns"`
}

// pointerBytes is the size of a kernel pointer.
const pointerBytes = 8

// instant is one moment on two clocks.
type instant struct {
	Wall time.Time `json:"wall"`
	// Uptime is CLOCK_MONOTONIC in seconds.
	Uptime float64 `json:"uptime_seconds"`
}

// failure is an error in a form that a bundle keeps: the text, and the errno
// that decides what a collector tries next.
type failure struct {
	Text  string     `json:"error"`
	Errno unix.Errno `json:"errno,omitempty"`
}

func (f *failure) Error() string { return f.Text }

// Unwrap makes errors.Is(f, fs.ErrNotExist) and the like hold as for the original.
func (f *failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

func newFailure(err error) *failure {
	f := &failure{Text: err.Error()}
	errors.As(err, &f.Errno)
	return f
}

// errNotRecorded is why a newer natkit misses something in an older bundle.
type errNotRecorded struct{ what string }

func (e errNotRecorded) Error() string {
	return fmt.Sprintf("read %s: not in the bundle: the natkit that wrote it did not read it", e.what)
}

// errLost is why something is missing in a bundle that is not whole.
type errLost struct{ what string }

func (e errLost) Error() string {
	return fmt.Sprintf("read %s: not in what is left of the bundle", e.what)
}

// causes is an error as one line: errors.Join puts each on a line of its own.
func causes(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
