package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/apply"
)

// FillOptions of StartFill.
type FillOptions struct {
	// Netns is the namespace to fill.
	Netns *netns.Handle
	// Where is what the user calls it.
	Where string
	Mix   *lab.Mix
	Seed  uint64
	// Target is how many entries the table is to hold.
	Target int64
	// Keep records that the fill stays after natkit's end.
	Keep bool
	// Dir is Options.Dir.
	Dir string
	// Progress, where set, gets how many of how many entries are made.
	Progress func(made, of int64)
}

// Fill is a connection table filled with the entries of a lab.Mix. Its record is written
// before the first of them, so that another natkit can remove it. Release or Remove ends it.
type Fill struct {
	FillRecord
	// Before is how many entries the table held, Table what it holds now.
	Before int64
	Table  dump.Usage
	// Made entries took so long.
	Made int64
	Took time.Duration

	filler *lab.Filler
	ns     *netns.Handle
	file   *os.File
	path   string
}

// RemovedFill is what became of a fill that was removed.
type RemovedFill struct {
	FillRecord
	Deleted int64 `json:"entries_deleted"`
	// Gone: the namespace had ended, and its table with it.
	Gone bool `json:"netns_gone"`
}

// Marks of fills, each for one at a time. lab.FillMark is that of scenarios.
const (
	marks     = 256
	firstMark = lab.FillMark + 1
	lastMark  = lab.FillMark + marks
)

// StartFill fills a table to the target. The record is written before the first
// entry. After an error everything that was made is removed again; the error says
// so where even that failed. Needs CAP_NET_ADMIN.
func StartFill(ctx context.Context, o FillOptions) (*Fill, error) {
	if err := permit.Change("fill the connection table"); err != nil {
		return nil, err
	}
	f := &Fill{ns: o.Netns}
	if err := f.start(ctx, o); err != nil {
		return nil, fmt.Errorf("fill the connection table of %s: %w", o.Where, err)
	}
	return f, nil
}

func (f *Fill) start(ctx context.Context, o FillOptions) error {
	usage, err := dump.Count(f.ns)
	if err != nil {
		return err
	}
	id, err := netns.IDOf(f.ns)
	if err != nil {
		return err
	}
	f.Before, f.FillRecord = usage.Entries, FillRecord{
		Netns: id.Inode, NetnsCookie: id.Cookie, Where: o.Where, Mix: o.Mix.Name, Seed: o.Seed, Keep: o.Keep,
		Entries: o.Target - usage.Entries, Started: time.Now().UTC(),
	}
	if f.Entries <= 0 {
		return fmt.Errorf("it holds %d entries already, %d are wanted", usage.Entries, o.Target)
	}
	f.filler = o.Mix.Filler(o.Seed, 0)
	if room := f.filler.Room(); f.Entries > room {
		return fmt.Errorf("%d entries are to be made, only %d connections of mix %s can be distinct", f.Entries, room, o.Mix.Name)
	}
	if err := f.begin(ctx, o.Dir); err != nil {
		return err
	}
	if err := f.insert(ctx, o); err != nil {
		return f.takeBack(ctx, err)
	}
	return nil
}

// begin takes the first mark that no record and no entry of the namespace has.
func (f *Fill) begin(ctx context.Context, dir string) error {
	for f.Mark = firstMark; f.Mark <= lastMark; f.Mark++ {
		n, err := dump.Matching(ctx, f.ns, f.filter())
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		file, err := f.write(dir)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write the record of it: %w", err)
		}
		f.file, f.path = file, recordPath(dir, f.Mark)
		f.filler.Mark = f.Mark
		return nil
	}
	return fmt.Errorf("there are %d fills already; 'natkit lab fill --remove' removes those that were left", marks)
}

func (r FillRecord) filter() *conntrack.Filter {
	return &conntrack.Filter{Mark: r.Mark, MarkMask: ^uint32(0)}
}

func (f *Fill) insert(ctx context.Context, o FillOptions) (err error) {
	start := time.Now()
	if err := f.probe(ctx); err != nil {
		return err
	}
	made, err := InsertFill(ctx, f.ns, f.filler, f.Made, o.Target, o.Progress)
	f.Made += made
	if err != nil {
		return err
	}
	f.Took = time.Since(start)
	f.Table, err = dump.Count(f.ns)
	return err
}

// probe inserts the first entry and checks that the kernel keeps its mark, by which
// alone the fill can be removed.
func (f *Fill) probe(ctx context.Context) error {
	n, err := insert(ctx, f.ns, f.filler, 0, 1)
	if f.Made = n; err != nil {
		return err
	}
	if n, err = dump.Matching(ctx, f.ns, f.filter()); err != nil || n > 0 {
		return err
	}
	var e conntrack.Entry
	f.filler.Entry(0, &e)
	f.Made = 0
	_, err = dump.DeleteKeys(ctx, f.ns, []conntrack.Key{e.Key()})
	return errors.Join(errors.New("a kernel without CONFIG_NF_CONNTRACK_MARK: the entries could not be identified and removed"), err)
}

// takeBack removes what a fill that failed has made.
func (f *Fill) takeBack(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		cause = fmt.Errorf("interrupted after %d of %d entries", f.Made, f.Entries)
	}
	if _, err := f.Remove(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("%w; and then %w; 'natkit lab fill --remove' tries again", cause, err)
	}
	return fmt.Errorf("%w; what was made is removed", cause)
}

// Counts are the entries of each part of the mix.
func (f *Fill) Counts() []int64 { return f.filler.Counts(f.Made) }

// Remove removes the remaining entries. Those missing from Made have expired, were
// evicted, or were deleted by another process.
func (f *Fill) Remove(ctx context.Context) (RemovedFill, error) {
	r := RemovedFill{FillRecord: f.FillRecord}
	var err error
	if r.Deleted, err = removeMarked(ctx, f.ns, f.filter()); err != nil {
		return r, errors.Join(err, f.file.Close())
	}
	return r, errors.Join(os.Remove(f.path), f.file.Close())
}

// Release leaves the entries and the record to another natkit.
func (f *Fill) Release() error { return f.file.Close() }

// removeMarked deletes the entries of a mark and makes sure that none is left.
func removeMarked(ctx context.Context, ns *netns.Handle, f *conntrack.Filter) (int64, error) {
	d, err := dump.Delete(ctx, ns, f)
	if err != nil {
		return d.Deleted, fmt.Errorf("mark %#x: %w", f.Mark, err)
	}
	left, err := dump.Matching(ctx, ns, f)
	if err == nil && left > 0 {
		err = fmt.Errorf("delete conntrack entries of mark %#x: %d are left", f.Mark, left)
	}
	return d.Deleted, err
}

// losses bounds how many entries are made where they expire meanwhile: a multiple of
// those that were missing.
const losses = 5

// chunk is how many entries are made between two counts of the table, which real
// connections fill too: a few milliseconds. Beyond the limit each entry more would
// push out one of theirs.
const chunk = 4096

// InsertFill brings the table of a namespace (nil: this one) to target entries in
// all, by entries of f from the number first on. It returns how many it made;
// after an error up to a batch (about 150) more may be there. progress, where set,
// gets how many of how many are made. Needs CAP_NET_ADMIN.
func InsertFill(ctx context.Context, ns *netns.Handle, f *lab.Filler, first, target int64, progress func(made, of int64)) (made int64, err error) {
	if err := permit.Change("fill the connection table"); err != nil {
		return 0, err
	}
	wanted := int64(0) // what was missing at first
	for {
		usage, err := dump.Count(ns)
		if err != nil {
			return made, err
		}
		missing := target - usage.Entries
		if made == 0 {
			wanted = missing
		}
		if room := f.Room(); missing > 0 && first+made+missing > room {
			return made, fmt.Errorf("%d entries are wanted, mix %s makes %d", first+made+missing, f.Mix().Name, room)
		}
		switch {
		case missing <= 0:
			return made, nil
		case made >= losses*wanted && made > 0:
			return made, fmt.Errorf("%d of %d entries after %d were made: the kernel loses them as fast as they are made", usage.Entries, target, made)
		}
		n, err := insert(ctx, ns, f, first+made, min(missing, chunk))
		made += n
		if err != nil {
			return made, err
		}
		if progress != nil {
			progress(made, made+missing-n)
		}
	}
}

// insert makes n entries of f from the number first on.
func insert(ctx context.Context, ns *netns.Handle, f *lab.Filler, first, n int64) (int64, error) {
	i := first
	made, err := dump.Insert(ctx, ns, func(e *conntrack.Entry) bool {
		if i == first+n {
			return false
		}
		f.Entry(i, e)
		i++
		return true
	})
	if errors.Is(err, dump.ErrExists) {
		err = fmt.Errorf("%w; another fill has it ('natkit lab fill --remove' removes what was left), or a connection: a mix with other addresses or ports does without it", err)
	}
	return made, err
}

// ConntrackMax is nf_conntrack_max, which holds for each namespace; 0 is no limit.
func ConntrackMax() (int64, error) {
	n, err := apply.ReadSysctlInt("/proc", snapshot.ConntrackMax)
	if err != nil {
		return 0, fmt.Errorf("%w (needs nf_conntrack in the kernel)", err)
	}
	return n, nil
}
