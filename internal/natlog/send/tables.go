//go:build linux

package send

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
)

// Tables writes rows of the table nat_log. A file is visible when it is whole: after tablesEvery or tablesRows. Rows of
// one that is not yet are lost where the process is killed.
type Tables struct {
	o      store.Options
	kernel string
	now    func() time.Time
	store  *store.Store
	sink   *store.Sink[table.NATLog]
	rows   int
	began  time.Time
}

const (
	tablesEvery = time.Minute
	tablesRows  = 1 << 20
)

// NewTables writes to a directory or a store that speaks S3.
func NewTables(o store.Options, kernel string, now func() time.Time) (*Tables, error) {
	if kind, err := store.KindOf(o.To); err != nil || kind == store.ToFile {
		return nil, fmt.Errorf("tables go to a directory or to s3://BUCKET/PREFIX, not to %s: a log has no end", o.To)
	}
	if err := store.CheckNode(o.Node); err != nil {
		return nil, fmt.Errorf("node %q: %w", o.Node, err)
	}
	o.Stdout = io.Discard
	return &Tables{o: o, kernel: kernel, now: now}, nil
}

// Send takes rows. Records of what was lost are none.
func (t *Tables) Send(ctx context.Context, records []natlog.Record) (int, error) {
	for i := range records {
		r := &records[i]
		if !r.IsSession() {
			continue
		}
		if err := t.begin(ctx); err != nil {
			return i, err
		}
		if err := t.sink.Add(t.row(r)); err != nil {
			t.store.Abort()
			t.store = nil
			return i, err
		}
		t.rows++
	}
	if t.store != nil && (t.rows >= tablesRows || t.now().Sub(t.began) >= tablesEvery) {
		return len(records), t.commit()
	}
	return len(records), nil
}

func (t *Tables) begin(ctx context.Context) (err error) {
	if t.store != nil {
		return nil
	}
	o := t.o
	o.Now = t.now()
	if t.store, err = store.Open(context.WithoutCancel(ctx), o); err != nil {
		t.store = nil
		return err
	}
	t.sink, t.rows, t.began = store.Of[table.NATLog](t.store), 0, o.Now
	return nil
}

func (t *Tables) commit() error {
	s := t.store
	t.store = nil
	return s.Commit()
}

func (t *Tables) row(r *natlog.Record) table.NATLog {
	given := r.NAT
	if !given.IsValid() { // others see the client's own
		given = r.Src
	}
	row := table.NATLog{Head: table.Head{Node: t.o.Node, Kernel: t.kernel, Netns: r.Netns, Time: table.TimeOf(r.Time)},
		Event: string(r.Kind), Protocol: nat.ProtocolName(r.Protocol), Src: r.Src.Addr().String(), Sport: int32(r.Src.Port()),
		NATAddress: given.Addr().String(), NATPort: int32(given.Port()), NATPortLast: int32(given.Port()),
		Dst: r.Dst.Addr().String(), Dport: int32(r.Dst.Port()), Started: table.TimeOf(r.Started), Ended: table.TimeOf(r.Ended)}
	if r.Server.IsValid() {
		row.Server, row.ServerPort = r.Server.Addr().String(), int32(r.Server.Port())
	}
	return row
}

// Close makes the last file visible.
func (t *Tables) Close() error {
	if t.store == nil {
		return nil
	}
	return t.commit()
}
