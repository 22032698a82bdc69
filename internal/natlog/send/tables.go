//go:build linux

package send

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/natkit/natkit/internal/natlog"
	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/table/store"
)

// Tables writes rows of the table nat_log. A file is visible when it is whole: after tablesEvery or tablesRows. Until then
// the records are kept, and are written again where that fails; those of a process that is killed are lost, without a spool.
type Tables struct {
	o      store.Options
	kernel string
	now    func() time.Time
	kept   []natlog.Record
	began  time.Time
	// omitted are records that have no row.
	omitted uint64
}

// Bounds of a file: its age, and its rows, of which the records take some 80 MB.
const (
	tablesEvery = time.Minute
	tablesRows  = 1 << 18
)

// NewTables writes to a directory or a store that speaks S3. It fails where nothing can ever be written there.
func NewTables(ctx context.Context, o store.Options, kernel string, now func() time.Time) (*Tables, error) {
	if kind, err := store.KindOf(o.To); err != nil || kind == store.ToFile {
		return nil, fmt.Errorf("tables go to a directory or to s3://BUCKET/PREFIX, not to %s: a log has no end", o.To)
	}
	if err := store.CheckNode(o.Node); err != nil {
		return nil, fmt.Errorf("node %q: %w", o.Node, err)
	}
	o.Stdout = io.Discard
	o.Now = now()
	if err := store.Check(ctx, o); err != nil {
		return nil, err
	}
	return &Tables{o: o, kernel: kernel, now: now}, nil
}

// Send keeps records, and writes the file of those that it has where that is due. Where that fails it takes none.
func (t *Tables) Send(ctx context.Context, records []natlog.Record) (int, error) {
	kept, omitted := len(t.kept), t.omitted
	for i := range records {
		r := &records[i]
		switch {
		case hasRow(r):
			if len(t.kept) == 0 {
				t.began = t.now()
			}
			t.kept = append(t.kept, *r)
		case r.Kind != natlog.Lost: // which does not count
			t.omitted++
		}
	}
	if len(t.kept) < tablesRows && (len(t.kept) == 0 || t.Due() > 0) {
		return len(records), nil
	}
	if err := t.Flush(ctx); err != nil {
		t.kept, t.omitted = t.kept[:kept], omitted
		return 0, err
	}
	return len(records), nil
}

// hasRow reports whether the table has a row for a record: not for what was lost and what is about the log itself.
func hasRow(r *natlog.Record) bool { return r.IsSession() }

// Kept are the records that are taken and in no file yet.
func (t *Tables) Kept() int { return len(t.kept) }

// Omitted are the records that have no row.
func (t *Tables) Omitted() uint64 { return t.omitted }

// Due is when the file of what is kept is.
func (t *Tables) Due() time.Duration { return tablesEvery - t.now().Sub(t.began) }

// Flush writes a file of what is kept.
func (t *Tables) Flush(ctx context.Context) error {
	if len(t.kept) == 0 {
		return nil
	}
	o := t.o
	o.Now = t.now()
	s, err := store.Open(context.WithoutCancel(ctx), o)
	if err != nil {
		return err
	}
	sink := store.Of[table.NATLog](s)
	for i := range t.kept {
		if err := sink.Add(t.kept[i].Row(table.Head{Node: t.o.Node, Kernel: t.kernel})); err != nil {
			s.Abort()
			return err
		}
	}
	if err := s.Commit(); err != nil {
		return err
	}
	t.kept = t.kept[:0]
	return nil
}

// Close makes the last file visible.
func (t *Tables) Close() error { return t.Flush(context.Background()) }
