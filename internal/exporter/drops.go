package exporter

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/natkit/natkit/internal/bpf/drops"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
)

// dropCounter counts what the kernel drops, in all network namespaces by one program.
type dropCounter struct {
	tracer *drops.Tracer
	since  time.Time
	// why is the reason where nothing is counted.
	why error
}

// startDrops begins to count. Where that is not possible the rest goes on.
func startDrops(ctx context.Context, note func(string)) *dropCounter {
	c := &dropCounter{since: time.Now()}
	c.tracer, c.why = drops.Start(ctx, drops.Options{PlacesOnly: true})
	if c.why != nil {
		note("drops are not counted: " + c.why.Error())
	}
	return c
}

// dropReading is what was counted so far.
type dropReading struct {
	drops     *snapshot.Drops
	since, at time.Time
	why       error
}

func (c *dropCounter) read() *dropReading {
	r := &dropReading{since: c.since, at: time.Now(), why: c.why}
	if c.why == nil {
		r.drops, r.why = c.tracer.Read()
	}
	return r
}

// of returns the drops of one network namespace; nil where they are not known.
func (r *dropReading) of(netns uint64, before *state.Drops, l state.Limits) *state.Drops {
	if r.why != nil {
		return nil
	}
	return state.DropsOf(r.drops, before, netns, r.since, r.at, l)
}

func (r *dropReading) unread() []state.Unread {
	if r.why == nil {
		return nil
	}
	return []state.Unread{{Part: snapshot.PartDrops, Why: r.why.Error(), Unavailable: errors.Is(r.why, fs.ErrPermission)}}
}

func (c *dropCounter) close() error {
	if c == nil || c.tracer == nil {
		return nil
	}
	return c.tracer.Close()
}
