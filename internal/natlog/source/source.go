//go:build linux

// Package source finds the starts and ends of translated connections in the kernel: by eBPF programs on tracepoints, or, where
// these cannot run, by what differs between two readings of the connection table. Neither listens to the events of the
// connection tracker, which slows new connections down to a third.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf/sessions"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Way is how connections are found.
type Way string

// The ways. Auto is Trace, and Table where that is not possible.
const (
	Auto  Way = "auto"
	Trace Way = "trace"
	Table Way = "table"
)

// Options say what is followed, and how.
type Options struct {
	Netns *netns.Handle
	Way   Way
	// EndsAlone leaves out the starts; each end has the time of its start, where it is known.
	EndsAlone bool
	// NoPresent leaves out the starts of what is there at the beginning, as EndsAlone does.
	NoPresent bool
	// Room reports whether there is room for n more records that can wait: those of what is there at the beginning, and all of Table.
	// Until there is, none is handed on. Nil: there always is.
	Room func(n int) bool
	// List returns who wants a list of what is there now, as a file of its own that goes on amid a run; nil for nobody.
	List func() *Listing
	// Every is the time between two readings of the table; they take more where they would cost more than Share of a CPU.
	Every time.Duration
	Share float64
	// Connections bounds how many are followed at one time.
	Connections int
	// Note is told what changes about what is missed.
	Note func(string)
	// alive is the time without a record after which one says that the log is written; 0 for aliveEvery.
	alive time.Duration
	// lastWait is how long Table waits for Room at its end, in all; 0 for usualLastWait. Outputs have their own time after that.
	lastWait time.Duration
}

// Listing takes a list of what is there, behind all that was handed on before. Room is as that of Options.
type Listing struct {
	Put  func([]natlog.Record)
	Room func(n int) bool
}

// listing is who wants a list.
func (o *Options) listing() *Listing {
	if o.List == nil || o.EndsAlone || o.NoPresent {
		return nil
	}
	return o.List()
}

// aliveEvery is how long a log says nothing at most, where nothing is read more seldom.
const aliveEvery = time.Minute

// translated are the entries that concern a log.
var translated = &conntrack.Filter{AnyNAT: conntrack.NAT{On: true}}

// noteStep notes that the clock was set.
func (o *Options) noteStep(step time.Duration) {
	if step != 0 && o.Note != nil {
		o.Note(fmt.Sprintf("the clock was set by %s: times in the log are by the new one from here, and a time may occur twice", step.Round(time.Millisecond)))
	}
}

// Source finds connections.
type Source interface {
	// Run calls put with records until ctx ends; put must not keep them.
	Run(ctx context.Context, put func([]natlog.Record)) error
	// Since is from when it misses none but what About says; no record is of a time before.
	Since() time.Time
	// About is how it finds them, and what it misses.
	About() string
	// Every is the least time between two readings of the table, 0 of one that misses nothing between them.
	Every() time.Duration
	Close() error
}

// Open begins to follow by the way that is asked for; why is the error for which Auto is not Trace.
func Open(o Options) (s Source, why error, err error) {
	if o.Way != Table {
		s, err := openTrace(o)
		if err == nil {
			return s, nil, nil
		}
		if o.Way == Trace {
			return nil, nil, err
		}
		why = err
	}
	s, err = openTable(o)
	if err != nil {
		return nil, nil, errors.Join(err, why)
	}
	return s, why, nil
}

// writer hands records on, and says that the log is written where there are none.
type writer struct {
	put   func([]natlog.Record)
	every time.Duration
	// last is when there was a record.
	last time.Time
}

func newWriter(o *Options) writer { return writer{every: cmp.Or(o.alive, aliveEvery)} }

func (w *writer) hand(records []natlog.Record) {
	if len(records) > 0 {
		w.put(records)
		w.last = time.Now()
	}
}

// alive says until when the log is complete, where there was no record for a while, and that it spans the time since a reading that
// is long ago.
func (w *writer) alive(until time.Time, within time.Duration) {
	if until.Sub(w.last) >= w.every || within >= w.every {
		w.hand([]natlog.Record{{Kind: natlog.Alive, Time: until, Within: within}})
	}
}

// trace is Trace.
type trace struct {
	writer
	tracer  *sessions.Tracer
	o       Options
	records []natlog.Record
	// since is when the tracepoints were attached, began when Run did.
	since, began time.Time
	present      present
}

// batch is how many records are handed on at once, readEvery how long the first of them waits at most.
const (
	batch     = 1024
	readEvery = 100 * time.Millisecond
)

func openTrace(o Options) (*trace, error) {
	t, err := sessions.Start(sessions.Options{Netns: o.Netns, EndsAlone: o.EndsAlone, Connections: uint32(o.Connections)})
	if err != nil {
		return nil, err
	}
	since := time.Now()
	if !o.EndsAlone && !o.NoPresent {
		// That the table may be read shows now rather than when the log has begun.
		if _, err := dump.Count(o.Netns); err != nil {
			return nil, errors.Join(unreadable(err), t.Close())
		}
	}
	return &trace{writer: newWriter(&o), tracer: t, o: o, since: since}, nil
}

func (t *trace) Since() time.Time { return t.since }

func (*trace) Every() time.Duration { return 0 }

// unreadable is the error of a table that may not be read, with what needs no right to.
func unreadable(err error) error {
	err = fmt.Errorf("read what is there when the log begins: %w", err)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w; --no-present needs no CAP_NET_ADMIN", err)
	}
	return err
}

func (*trace) About() string {
	return "tracepoints net:net_dev_start_xmit and kmem:kmem_cache_free: each connection, however short, with exact times"
}

func (t *trace) Close() error { return t.tracer.Close() }

// Reasons of lost records.
const reasonRing = "natkit was too slow for the kernel's ring of events"

func (t *trace) Run(ctx context.Context, put func([]natlog.Record)) error {
	t.put, t.began = put, time.Now()
	t.last = t.began
	if !t.o.EndsAlone && !t.o.NoPresent {
		t.present.begin()
		if err := t.readPresent(ctx, &Listing{Put: put, Room: t.o.Room}, t.began); err != nil {
			return err
		}
	}
	for last := false; !last; {
		last = ctx.Err() != nil // then what is there is still read
		if to := t.o.listing(); to != nil && !last {
			t.list(ctx, to)
		}
		until := time.Now()
		if !last {
			until = until.Add(readEvery)
		}
		if err := t.follow(until); err != nil {
			return err
		}
	}
	return nil
}

// follow hands on the events that are there, and those that come until a time.
func (t *trace) follow(until time.Time) error {
	step, err := t.tracer.FollowClock()
	if err != nil {
		return err
	}
	t.o.noteStep(step)
	complete := time.Now()
	lost, err := t.tracer.Read(until, t.take)
	if err != nil {
		return err
	}
	t.missed(lost)
	t.flush()
	t.alive(complete, 0)
	return nil
}

// missed counts events that found no room in the ring.
func (t *trace) missed(lost sessions.Lost) {
	if lost.Ends > 0 {
		t.present.forget()
	}
	if n := lost.Starts + lost.Ends; n > 0 {
		t.records = append(t.records, natlog.Record{Kind: natlog.Lost, Time: time.Now(), Count: n,
			Reason: fmt.Sprintf("%s: %d starts, %d ends", reasonRing, lost.Starts, lost.Ends)})
	}
}

func (t *trace) take(e *sessions.Event) {
	if r := recordOf(e); r.IsTranslated() && !t.present.settle(&r) {
		t.records = append(t.records, r)
	}
	if len(t.records) >= batch {
		t.flush()
	}
}

func (t *trace) flush() {
	t.hand(t.records)
	t.records = t.records[:0]
}

func recordOf(e *sessions.Event) natlog.Record {
	r := natlog.Of(natlog.Start, &e.Entry)
	r.Time, r.Started = e.At, e.Started
	if e.End {
		r.Kind, r.Ended = natlog.End, e.At
	}
	return r
}

// seconds is a time as people write it.
func seconds(d time.Duration) string {
	return strings.TrimSuffix(d.Round(100*time.Millisecond).String(), ".0s")
}
