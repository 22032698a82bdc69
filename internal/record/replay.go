// Package record is the flight recorder: it reads a network namespace again and again into a ring on disk, and keeps the
// minutes around what triggers it.
package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
)

const (
	// DefaultDir is where rings are.
	DefaultDir = "/var/lib/natkit/record"
	// StateDirEnv names the environment variable that replaces /var/lib/natkit, as for the journal of changes.
	StateDirEnv = "NATKIT_STATE_DIR"
)

// Bundle writes what 'natkit snapshot' would have written at a time, of the two snapshots nearest to it.
func Bundle(w io.Writer, r *ring.Ring, at time.Time, version string) error {
	before, after, err := Pair(r, at)
	if err != nil {
		return err
	}
	return BundleOf(w, r, version, before, after)
}

// BundleOf writes a bundle of snapshots, in the order of time.
func BundleOf(w io.Writer, r *ring.Ring, version string, frames ...*ring.Frame) error {
	var takes [][]snapshot.BundleMember
	for _, f := range frames {
		members, err := r.Members(f)
		if err != nil {
			return err
		}
		takes = append(takes, members)
	}
	return collect.WriteTakes(w, collect.BundleOptions{Version: version}, frames[0].Wall, takes)
}

// Diagnosable is the recording that a diagnosis at a time would have compared; of the newest snapshots where it is zero.
func Diagnosable(r *ring.Ring, at time.Time, budget *snapshot.Budget) (*snapshot.Recording, error) {
	before, after, err := r.Newest()
	if !at.IsZero() {
		before, after, err = Pair(r, at)
	}
	if err != nil {
		return nil, err
	}
	rec, err := RecordingOf(r, budget, before, after)
	if err != nil {
		return nil, err
	}
	rec.Compared = r.Compared(before, after)
	from, to := before.Wall, after.Wall
	if !at.IsZero() {
		from, to = Around(at, before, after)
	} else {
		// Of the newest all that is lost until the end counts: it may be what was asked for.
		to = slices.MaxFunc([]time.Time{to, r.Last(), time.Now()}, time.Time.Compare)
		rec.Compared.NotNewest = !r.IsLast(after)
	}
	var lost []string
	rec.Dropped, lost = dropsUntil(r, after)
	rec.Lost = append(rec.Lost, lost...)
	if text := Lost(r, from, to); text != "" {
		rec.Lost = append(rec.Lost, text)
	}
	return rec, nil
}

// Pair is that of the ring; where a time has none it is said what is damaged of that time: it may have been recorded.
func Pair(r *ring.Ring, at time.Time) (before, after *ring.Frame, err error) {
	before, after, err = r.Pair(at)
	return before, after, orLost(r, at, err)
}

// Covers is that of the ring, with what is damaged, as Pair.
func Covers(r *ring.Ring, from, to, at time.Time) error { return orLost(r, at, r.Covers(from, to, at)) }

// orLost adds to an error what is damaged of a time.
func orLost(r *ring.Ring, at time.Time, err error) error {
	if lost := Lost(r, at, at); err != nil && lost != "" {
		return fmt.Errorf("%w; %s", err, lost)
	}
	return err
}

// Around is the time from which on, and until when, damage of a recording may be why two snapshots are the nearest to a time.
func Around(at time.Time, before, after *ring.Frame) (from, to time.Time) {
	all := []time.Time{at, before.Wall, after.Wall}
	return slices.MinFunc(all, time.Time.Compare), slices.MaxFunc(all, time.Time.Compare)
}

// dropsUntil are the drops until a snapshot, or why they cannot be read: the rest is of use without them.
func dropsUntil(r *ring.Ring, until *ring.Frame) (all *snapshot.Drops, lost []string) {
	all, err := r.DropsUntil(until)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, []string{"the drops of this time cannot be read: the recorder has removed them meanwhile"}
	case err != nil:
		return nil, []string{fmt.Sprintf("the recording is damaged: the drops of this time cannot be read: %v", err)}
	}
	return all, nil
}

// RecordingOf reads snapshots as those of a bundle are read.
func RecordingOf(r *ring.Ring, budget *snapshot.Budget, frames ...*ring.Frame) (*snapshot.Recording, error) {
	var bundle bytes.Buffer
	if err := BundleOf(&bundle, r, "", frames...); err != nil {
		return nil, err
	}
	return collect.ReadBundle(&bundle, budget)
}

// Sample is what 'natkit top' shows of a snapshot and the one before.
func Sample(r *ring.Ring, before, after *ring.Frame) (*snapshot.Sample, error) {
	rec, err := RecordingOf(r, nil, before, after)
	if err != nil {
		return nil, err
	}
	last := rec.Last()
	s := &snapshot.Sample{Snapshot: last, Before: rec.First(), Flows: rec.Flows, TableAt: last.TakenAt}
	s.Drops, s.Lost = dropsUntil(r, after)
	if text := Lost(r, before.Wall, after.Wall); text != "" {
		s.Lost = append(s.Lost, text)
	}
	if last.Table != nil {
		s.EntriesRead = last.Table.Sampled
	}
	return s, nil
}
