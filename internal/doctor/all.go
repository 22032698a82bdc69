package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
)

// atOnce is how many namespaces are examined at a time: they wait most of it, and a dump of a large
// table takes some megabytes and a CPU.
const atOnce = 16

// All examines every network namespace, the calling thread's first, atOnce at a time, and calls each
// with the reports in the order in which they were found. What cannot be examined has a report that
// is incomplete; what has ended meanwhile has none. missed is why others may not have been found.
func All(ctx context.Context, o collect.RecordOptions, each func(r *diagnose.Report, of int) error) (missed, err error) {
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
	reports := make([]chan *diagnose.Report, len(found))
	begin := make(chan struct{}, atOnce)
	for i := range found {
		reports[i] = make(chan *diagnose.Report, 1)
	}
	go func() {
		for i, f := range found {
			begin <- struct{}{}
			go func() {
				defer func() { <-begin }()
				reports[i] <- one(ctx, o, f, f.Inode == own)
			}()
		}
	}()
	for _, ready := range reports {
		r := <-ready
		if r == nil || err != nil {
			continue
		}
		if err = each(r, len(found)); err != nil {
			cancel()
		}
	}
	return missed, err
}

// one examines a namespace; nil where it has ended.
func one(ctx context.Context, o collect.RecordOptions, f netns.Found, own bool) *diagnose.Report {
	if ctx.Err() != nil {
		return nil
	}
	r, err := examine(ctx, o, f, own)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	owner := collect.OwnerOf(f)
	if err != nil {
		r = &diagnose.Report{
			Schema: diagnose.ReportSchema, TakenAt: time.Now().UTC(), Netns: owner.Name(), NetnsInode: f.Inode,
			Checks: []diagnose.Check{}, Findings: []diagnose.Finding{}, Unread: []diagnose.Unread{},
			Incomplete: []diagnose.Missing{{Why: fmt.Sprint(err), Checks: []string{}}},
		}
	}
	if !own {
		r.Owner = &owner
	}
	return r
}

func examine(ctx context.Context, o collect.RecordOptions, f netns.Found, own bool) (*diagnose.Report, error) {
	if !own {
		h, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer h.Close()
		o.Netns = h
	}
	_, r, err := Look(ctx, o)
	return r, err
}
