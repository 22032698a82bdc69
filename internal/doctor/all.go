package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	named "github.com/natkit/natkit/internal/names/read"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// atOnce is how many namespaces are examined at a time: they wait most of it, and a dump of a large
// table takes some megabytes and a CPU.
const atOnce = 16

// All examines every network namespace, the calling thread's first, atOnce at a time, and calls each
// with the reports in the order in which they were found. What cannot be examined has a report that
// is incomplete; what has ended meanwhile has none. missed is why others may not have been found.
func All(ctx context.Context, o collect.RecordOptions, each func(r *diagnose.Report, of int) error) (missed, err error) {
	return inEach(ctx, o, examine, each)
}

// SnapshotAll adds a recording of every network namespace to a bundle, as All examines them, and calls each with
// them. What cannot be entered is reported by missed as well.
func SnapshotAll(ctx context.Context, b *collect.Bundle, o collect.RecordOptions, each func(rec *snapshot.Recording, of int) error) (missed, err error) {
	var refused error
	missed, err = inEach(ctx, o, spool, func(s *spooled, of int) error {
		if s.err != nil {
			refused = errors.Join(refused, s.err)
			return nil
		}
		defer s.file.Close()
		if err := b.Append(s.file); err != nil {
			return err
		}
		return each(s.rec, of)
	})
	return errors.Join(missed, refused), err
}

// place is a namespace to read, by the options in which it is open.
type place struct {
	collect.RecordOptions
	inode uint64
	// refused is why it is not open.
	refused error
}

// inEach calls read with every network namespace, atOnce at a time, and each with what that returns, in the order in
// which they were found; without what is nil.
func inEach[T any](ctx context.Context, o collect.RecordOptions, read func(context.Context, place) *T, each func(t *T, of int) error) (missed, err error) {
	found, _, missed := netns.Find(time.Time{})
	own, err := netns.InodeOf(nil)
	if err != nil {
		return missed, err
	}
	if i := slices.IndexFunc(found, func(f netns.Found) bool { return f.Inode == own }); i > 0 {
		first := found[i]
		found = slices.Insert(slices.Delete(found, i, i+1), 0, first)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make([]chan *T, len(found))
	begin := make(chan struct{}, atOnce)
	for i := range found {
		results[i] = make(chan *T, 1)
	}
	go func() {
		for i, f := range found {
			begin <- struct{}{}
			go func() {
				defer func() { <-begin }()
				results[i] <- within(ctx, o, f, f.Inode == own, read)
			}()
		}
	}()
	for _, ready := range results {
		t := <-ready
		if t == nil || err != nil {
			continue
		}
		if err = each(t, len(found)); err != nil {
			cancel()
		}
	}
	return missed, err
}

// within reads a namespace; nil where it has ended.
func within[T any](ctx context.Context, o collect.RecordOptions, f netns.Found, own bool, read func(context.Context, place) *T) *T {
	if ctx.Err() != nil {
		return nil
	}
	if own {
		return read(ctx, place{o, f.Inode, nil})
	}
	h, err := f.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer h.Close()
	}
	owner := named.OwnerOf(f)
	o.Netns, o.Owner = h, &owner
	return read(ctx, place{o, f.Inode, err})
}

// examine is the report about a namespace.
func examine(ctx context.Context, p place) *diagnose.Report {
	var r *diagnose.Report
	err := p.refused
	if err == nil {
		_, r, err = Look(ctx, p.RecordOptions)
	}
	if errors.Is(err, fs.ErrNotExist) { // it has ended
		return nil
	}
	if err != nil {
		r = &diagnose.Report{
			Schema: diagnose.ReportSchema, TakenAt: time.Now().UTC(), NetnsInode: p.inode,
			Checks: []diagnose.Check{}, Findings: []diagnose.Finding{}, Unread: []diagnose.Unread{},
			Incomplete: []diagnose.Missing{{Why: fmt.Sprint(err), Checks: []string{}}},
		}
		if p.Owner != nil {
			r.Netns = p.Owner.Name()
		}
	}
	r.Owner = p.Owner
	return r
}

// spooled is the recording of a namespace, in a bundle of its own; err is why there is none.
type spooled struct {
	rec  *snapshot.Recording
	file *os.File
	err  error
}

// spool records a namespace into a file without a name, as several are read at a time and a bundle has one after
// the other.
func spool(ctx context.Context, p place) *spooled {
	if p.refused != nil {
		return &spooled{err: fmt.Errorf("%s: %w", p.Owner, p.refused)}
	}
	file, err := os.CreateTemp("", "natkit-snapshot-")
	if err != nil {
		return &spooled{err: fmt.Errorf("keep a recording until it is written: %w", err)}
	}
	s := &spooled{file: file}
	if s.err = os.Remove(file.Name()); s.err == nil {
		p.Bundle.Anonymize = nil // the bundle does it
		if s.rec, s.err = collect.WriteBundle(ctx, file, p.RecordOptions); s.err == nil {
			_, s.err = file.Seek(0, io.SeekStart)
		}
	}
	if s.err != nil {
		file.Close()
	}
	if errors.Is(s.err, fs.ErrNotExist) { // it has ended
		return nil
	}
	return s
}
