//go:build linux

// Package source finds the starts and ends of translated connections in the kernel: by eBPF programs on tracepoints, or, where
// these cannot run, by what differs between two readings of the connection table. Neither listens to the events of the
// connection tracker, which slows new connections down to a third.
package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/bpf/sessions"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/netns"
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
	// Every is the time between two readings of the table; they take more where they would cost more than Share of a CPU.
	Every time.Duration
	Share float64
	// Connections bounds how many are followed at one time.
	Connections int
	// Note is told what changes about what is missed.
	Note func(string)
}

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
	// About is how it finds them, and what it misses.
	About() string
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

// trace is Trace.
type trace struct {
	tracer *sessions.Tracer
	o      Options
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
	return &trace{t, o}, nil
}

func (*trace) About() string {
	return "tracepoints net:net_dev_start_xmit and kmem:kmem_cache_free: each connection, however short, with exact times"
}

func (t *trace) Close() error { return t.tracer.Close() }

// Reasons of lost records.
const reasonRing = "natkit was too slow for the kernel's ring of events"

func (t *trace) Run(ctx context.Context, put func([]natlog.Record)) error {
	var records []natlog.Record
	each := func(e *sessions.Event) {
		if r := recordOf(e); r.IsTranslated() {
			records = append(records, r)
		}
		if len(records) >= batch {
			put(records)
			records = records[:0]
		}
	}
	for last := false; !last; {
		last = ctx.Err() != nil // then what is there is still read
		step, err := t.tracer.FollowClock()
		if err != nil {
			return err
		}
		t.o.noteStep(step)
		until := time.Now()
		if !last {
			until = until.Add(readEvery)
		}
		lost, err := t.tracer.Read(until, each)
		if err != nil {
			return err
		}
		if n := lost.Starts + lost.Ends; n > 0 {
			records = append(records, natlog.Record{Kind: natlog.Lost, Time: time.Now(), Count: n,
				Reason: fmt.Sprintf("%s: %d starts, %d ends", reasonRing, lost.Starts, lost.Ends)})
		}
		if len(records) > 0 {
			put(records)
			records = records[:0]
		}
	}
	return nil
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
