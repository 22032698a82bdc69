// Package record is the flight recorder: it reads a network namespace again and again into a ring on disk, and keeps the
// minutes around what triggers it.
package record

import (
	"bytes"
	"io"
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
	before, after, err := r.Pair(at)
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
		before, after, err = r.Pair(at)
	}
	if err != nil {
		return nil, err
	}
	rec, err := RecordingOf(r, budget, before, after)
	if err == nil {
		rec.Dropped, err = r.DropsUntil(after)
	}
	return rec, err
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
	drops, err := r.DropsUntil(after)
	if err != nil {
		return nil, err
	}
	last := rec.Last()
	s := &snapshot.Sample{Snapshot: last, Before: rec.First(), Flows: rec.Flows, Drops: drops, TableAt: last.TakenAt}
	if last.Table != nil {
		s.EntriesRead = last.Table.Sampled
	}
	return s, nil
}
