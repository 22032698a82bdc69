//go:build linux

package record

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/watch"
	"golang.org/x/sys/unix"
)

// Options specify a recording.
type Options struct {
	// Netns is the namespace; nil is the one natkit runs in.
	Netns *netns.Handle
	// Dir is the ring's; it is made where it is missing, for its owner alone.
	Dir string
	// Most is what the ring takes on the disk at most, and what is kept as much again.
	Most int64
	// Every is the time from one snapshot to the next. It becomes longer where they cost more than their share of a CPU.
	Every time.Duration
	// On is the severity from which findings trigger; 0 for none. When are conditions of counters that do.
	On   diagnose.Severity
	When []Condition
	// Before and After are how much is kept around a trigger, Keep how many times at most.
	Before, After time.Duration
	Keep          int
	// Names, where set, reads what the host calls addresses.
	Names func(context.Context, *netns.Handle) *snapshot.Names
	// Packets has headers of packets recorded, Drops what the kernel drops.
	Packets, Drops bool
	// Outcomes is how often the connections of services are followed, from one snapshot to the next: whether they are
	// answered, and where they are lost; 0 for never.
	Outcomes time.Duration
	Version  string
	// Event receives what happens; its error ends the recording.
	Event func(ring.RecordedEvent) error
	// Note receives what cannot be done, a line each; the recording goes on.
	Note func(error)

	// unpaced is for tests, which cannot wait for the share of a CPU.
	unpaced bool
	// retryFull is the constant of that name, but in tests.
	retryFull time.Duration
}

// share is the part of one CPU that snapshots may take; credit is what it saves up for those that cost more, as key
// snapshots do. traceShare is for following the connections of services. With the start it is less than 1 % in any three
// minutes. What a trigger has kept comes on top, once in againAfter for each: the minutes after it are not to lack
// snapshots for it.
const (
	share      = 0.006
	traceShare = 0.003
	credit     = 300 * time.Millisecond
)

// However much a snapshot costs, the next one comes within latest, and within latestKept in the minutes after a trigger, for
// which there would be nothing to look at else.
const (
	latest     = time.Minute
	latestKept = 15 * time.Second
)

// tableBudget is for the connection table: with the rest of a snapshot, and its compression, it is within share. Most
// bounds what the ring grows by.
var tableBudget = watch.Budget{Share: 0.003, Least: 1024, First: 2048, Most: 4096}

// End is what a recording ends with.
type End struct {
	Snapshots uint64
	// Lost could not be written.
	Lost uint64
	// Kept is how many times the minutes around a trigger were kept.
	Kept int
	// NotKept is how many times they could not be, as on a disk that remained full.
	NotKept int
	Bytes   int64
	Seconds float64
	CPU     time.Duration
}

// Run records until ctx ends.
func Run(ctx context.Context, o Options) (*End, error) {
	if err := makeDir(o.Dir); err != nil {
		return nil, err
	}
	lock, err := disk.TryLock(filepath.Join(o.Dir, lockName))
	if errors.Is(err, unix.EWOULDBLOCK) {
		lock.Close()
		return nil, fmt.Errorf("record into %s: another natkit record is writing there; stop it, or give another --dir", o.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("record into %s: %w", o.Dir, err)
	}
	defer lock.Close()
	r, err := begin(o)
	if err != nil {
		return nil, fmt.Errorf("record into %s: %w", o.Dir, err)
	}
	err = r.run(ctx)
	return &r.end, cmp.Or(err, r.close())
}

const lockName = "lock"

// makeDir makes the ring's directory, which other users must not read: it has addresses of connections.
func makeDir(dir string) error {
	err := permit.Output(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, marksDir), 0o700)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, keptDir), 0o700)
	}
	if err != nil {
		return fmt.Errorf("make the directory of the recording: %w; give one that you may write to with --dir", err)
	}
	if disk.Trust(dir) != nil { // marks are taken from it
		return fmt.Errorf("record into %s: others than you may write there, or could put another directory in its place; give one that only you can write to with --dir", dir)
	}
	return nil
}

// recorder is a recording under way.
type recorder struct {
	Options
	series  *collect.Series
	budget  watch.Budget
	tracker *diagnose.Tracker
	writer  *ring.Writer
	drops   *dropCounter
	// dropped is what was dropped since the snapshot before the last one; nil where that is not known.
	dropped *snapshot.Drops
	packets *packetTap
	outcomes
	keeper keeper
	end    End
	began  time.Time
	// besides is the CPU time since the snapshot before that is not paid for by snapshots.
	besides time.Duration
	// failing is why the last snapshot could not be written; it is reported once.
	failing string
	// again is when each trigger triggers again.
	again map[string]time.Time
	// unread are the parts of snapshots that were noted as missing.
	unread map[string]bool
}

func begin(o Options) (r *recorder, err error) {
	host, _ := os.Hostname() // the ring does without
	r = &recorder{Options: o, series: collect.NewSeries(collect.Options{Netns: o.Netns, Names: o.Names}), budget: tableBudget,
		tracker: diagnose.NewTracker(), began: time.Now(), again: map[string]time.Time{}, unread: map[string]bool{}}
	r.budget.Interval = o.Every
	r.retryFull = cmp.Or(o.retryFull, retryFull)
	r.keeper = keeper{Options: o}
	h := ring.Header{WrittenBy: o.Version, Host: host, Run: rand.Text(), StartedAt: r.began.UTC(), EverySeconds: o.Every.Seconds()}
	if o.Netns != nil {
		h.Netns = o.Netns.Name()
	}
	r.keeper.clean()
	if before, err := ring.Open(disk.Plain(o.Dir)); err == nil {
		if err := r.keeper.resume(before, r.began); err != nil {
			o.Note(err)
		}
	} else if !errors.Is(err, ring.ErrNone) {
		return nil, err
	}
	if r.writer, err = ring.NewWriter(store{o.Dir}, ring.Options{Most: o.Most, Header: h}); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *recorder) run(ctx context.Context) error {
	r.startTraces(ctx)
	// The start is not paid for: programs are loaded, and the kernel's types are read.
	if err := r.snapshot(ctx); err != nil {
		return err
	}
	var pays *watch.Payer
	for next := r.Every; watch.Wait(ctx, next); {
		began := time.Now()
		if err := r.snapshot(ctx); err != nil {
			return err
		}
		if pays == nil { // nor is the first comparison, which costs what later ones do not
			pays = watch.NewPayer(share, credit, time.Now(), watch.CPUTime())
			r.besides = 0
		}
		due := pays.Due(time.Now(), watch.CPUTime(), r.besides)
		r.besides = 0
		if next = r.Every - time.Since(began); !r.unpaced {
			next = max(next, postponed(due, len(r.keeper.waiting) > 0))
		}
	}
	return nil
}

// postponed is in how long the next snapshot comes that is paid for at a time; kept is set in the minutes after a trigger.
func postponed(due time.Duration, kept bool) time.Duration {
	if kept {
		return min(due, latestKept)
	}
	return min(due, latest)
}

// snapshot takes one, writes it, and sees to what triggers.
func (r *recorder) snapshot(ctx context.Context) error {
	enough, most := r.budget, r.budget.Entries()
	trace := r.followed()
	take, err := r.series.Take(ctx, collect.TakeOptions{Trace: trace, Meter: watch.CPUTime, Enough: func(read int64, cost time.Duration) bool {
		return read >= most || enough.Exceeded(read, cost)
	}})
	if err != nil {
		return err
	}
	r.budget.Spent(time.Now(), take.TableCost, take.EntriesRead)
	at := stamp(take.Snapshot)
	r.noteUnread(take.Snapshot)
	r.write(at, take)
	if err := r.triggers(at, take); err != nil {
		return err
	}
	r.follow(ctx)
	return r.keepDue(time.Now(), at)
}

// noteUnread notes each part that cannot be read, as without a capability, once: a recording without it may find nothing.
func (r *recorder) noteUnread(s *snapshot.Snapshot) {
	for _, p := range s.Parts {
		if p.Error != "" && !r.unread[p.Name] {
			r.unread[p.Name] = true
			r.Note(fmt.Errorf("%s is not recorded: %s", p.Name, p.Error))
		}
	}
}

func stamp(s *snapshot.Snapshot) ring.Stamp {
	return ring.Stamp{Wall: s.TakenAt, Uptime: time.Duration(s.UptimeSeconds * float64(time.Second))}
}

// write adds a snapshot and what was traced to the ring. A full disk is no end: what is missing is counted in the ring.
func (r *recorder) write(at ring.Stamp, take *collect.Take) {
	err := r.writer.Snapshot(at, take.Members)
	if err != nil {
		r.end.Lost++
	} else {
		r.end.Snapshots++
	}
	r.dropped = nil
	err = cmp.Or(err, r.writeTraces(at))
	if err == nil {
		_ = r.writer.Point(at, pointOf(take, r.dropped)) // where this fails alone, what comes next fails as well and is said
	}
	switch {
	case err == nil && r.failing != "":
		r.failing = ""
		r.Note(errors.New("the recording goes on"))
	case err != nil && r.failing == "":
		r.failing = err.Error()
		if isFull(err) {
			err = fmt.Errorf("%w; the recording goes on when there is room", err)
		}
		r.Note(err)
	}
}

// event adds one to the ring and reports it.
func (r *recorder) event(at ring.Stamp, e ring.Event) error {
	if err := r.writer.Event(at, e); err != nil {
		r.Note(err)
	}
	return r.Event(ring.RecordedEvent{At: at.Wall, Event: e})
}

func (r *recorder) close() error {
	now := ring.Stamp{Wall: time.Now().UTC(), Uptime: uptime()}
	r.stopTraces()
	err := cmp.Or(r.takeMarks(now), r.keepAll(now))
	err = cmp.Or(err, r.writer.Event(now, ring.Event{Event: ring.EventEnded}))
	r.end.Bytes, r.end.Seconds, r.end.CPU = r.writer.Used(), time.Since(r.began).Seconds(), watch.CPUTime()
	return cmp.Or(err, r.writer.Close())
}

// uptime reads CLOCK_MONOTONIC, as snapshots have it.
func uptime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail with this clock
	return time.Duration(ts.Nano())
}

// store is a directory.
type store struct{ dir string }

func (s store) Sizes() (map[string]int64, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			sizes[e.Name()] = info.Size()
		}
	}
	return sizes, nil
}

func (s store) Create(name string) (ring.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := disk.SyncDir(s.dir); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return segment{f}, nil
}

func (s store) Remove(name string) error {
	err := os.Remove(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) { // a person has removed it
		return nil
	}
	return err
}

// segment is a file that is appended to.
type segment struct{ *os.File }

func (s segment) Truncate(size int64) error {
	if err := s.File.Truncate(size); err != nil {
		return err
	}
	_, err := s.File.Seek(size, io.SeekStart)
	return err
}

// Sync: the size is data, times are not.
func (s segment) Sync() error { return unix.Fdatasync(int(s.Fd())) }
