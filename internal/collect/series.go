package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack/aggregate"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/snapshot"
)

// Series reads a namespace again and again. Each reading is compared with the one before, as in a recording of both, and
// is returned with the members that a bundle has of it.
type Series struct {
	src    source
	before *reading
}

// Take is one reading of a Series.
type Take struct {
	*snapshot.Snapshot
	// Members are named as in the folder of a snapshot.
	Members []snapshot.BundleMember
	// Recording is of the reading before and this one; nil of the first.
	Recording *snapshot.Recording
	// EntriesRead is how many entries of the table were read, TableCost what the meter grew by meanwhile.
	EntriesRead int64
	TableCost   time.Duration
}

// TakeOptions specify one reading.
type TakeOptions struct {
	// Enough ends the reading of the table after that many entries, at a cost of that much so far.
	Enough func(read int64, cost time.Duration) bool
	// Meter is what readings of the table cost; nil for none.
	Meter func() time.Duration
	// Trace is what was traced since the reading before; nil for nothing.
	Trace *snapshot.Trace
}

// NewSeries returns one that has read nothing yet.
func NewSeries(o Options) *Series { return &Series{src: newLive(o)} }

// Take reads once more. What cannot be read is missing, and the snapshot's Parts say why.
func (s *Series) Take(ctx context.Context, o TakeOptions) (*Take, error) {
	kept := &folder{}
	tape := newRecorder(s.src, kept, place{}, nil)
	metered := &metered{recorder: tape, o: o}
	now := &reading{births: aggregate.NewFlowEstimator(rand.Uint64())}
	trace := o.Trace
	if s.before != nil {
		var err error
		if trace, err = tape.traced(trace); err != nil {
			return nil, err
		}
	}
	now.read(context.WithoutCancel(ctx), metered, math.MaxInt, s.before)
	take := &Take{Snapshot: now.Snapshot, EntriesRead: metered.read, TableCost: metered.cost}
	if s.before != nil {
		take.Recording = &snapshot.Recording{Schema: snapshot.RecordingSchema,
			Snapshots: []*snapshot.Snapshot{s.before.Snapshot, now.Snapshot}}
		now.follow(take.Recording, s.before, trace)
	}
	if err := tape.end(); err != nil {
		return nil, err
	}
	s.before, take.Members = now, kept.members
	return take, nil
}

// metered ends the reading of the table where its cost demands it.
type metered struct {
	*recorder
	o    TakeOptions
	read int64
	cost time.Duration
}

func (m *metered) table(ctx context.Context, fn func([]byte) error) (dump.Result, error) {
	began := m.spent()
	defer func() { m.cost = m.spent() - began }()
	return m.recorder.table(ctx, func(msgs []byte) error {
		err := fn(msgs)
		m.read += messages(msgs)
		if err == nil && m.o.Enough != nil && m.o.Enough(m.read, m.spent()-began) {
			return dump.ErrStop
		}
		return err
	})
}

// messages counts those of a datagram.
func messages(datagram []byte) (n int64) {
	for len(datagram) > 0 {
		_, rest, err := netlink.Next(datagram)
		if err != nil {
			return n
		}
		datagram = rest
		n++
	}
	return n
}

func (m *metered) spent() time.Duration {
	if m.o.Meter == nil {
		return 0
	}
	return m.o.Meter()
}

// folder keeps the members of one snapshot.
type folder struct{ members []snapshot.BundleMember }

func (f *folder) add(name string, data []byte) error {
	f.members = append(f.members, snapshot.BundleMember{Name: strings.TrimPrefix(name, place{}.member("")), Data: bytes.Clone(data)})
	return nil
}

func (f *folder) addJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return f.add(name, data)
}

// WriteTakes writes a bundle of one recording, with the snapshots whose members these are, in the order of time.
func WriteTakes(w io.Writer, o BundleOptions, takenAt time.Time, takes [][]snapshot.BundleMember) error {
	b, err := newBundle(w, o, snapshot.BundleHeader{TakenAt: takenAt})
	if err != nil {
		return err
	}
	for i, members := range takes {
		for _, m := range members {
			data := m.Data
			if m.Name == headName {
				if data, err = withMore(data, i > 0 && i+1 < len(takes)); err != nil {
					return fmt.Errorf("%s: %w", m.Name, err)
				}
			}
			if err := b.add(place{0, i}.member(m.Name), data); err != nil {
				return err
			}
		}
	}
	return b.Close()
}

// withMore sets whether another snapshot follows.
func withMore(data []byte, more bool) ([]byte, error) {
	var h map[string]json.RawMessage
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, err
	}
	delete(h, "more")
	if more {
		h["more"] = json.RawMessage("true")
	}
	return json.Marshal(h)
}
