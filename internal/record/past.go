package record

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/units"
)

// pointOf has the numbers that the history of a State has, of a snapshot and the time before it.
func pointOf(take *collect.Take, dropped *snapshot.Drops) ring.Point {
	s := &snapshot.Sample{Snapshot: take.Snapshot, TableAt: take.TakenAt, EntriesRead: take.EntriesRead}
	var counted map[string]uint64
	if rec := take.Recording; rec != nil {
		s.Before, s.Flows = rec.First(), rec.Flows
		if before := state.CountersOf(s.Before, nil, nil); before != nil {
			counted = before.Conntrack
		}
	}
	most := state.Limits{Top: 1}
	n := state.Namespace{Counters: state.CountersOf(take.Snapshot, s.Before, counted), Table: state.TableOf(s, most),
		Services: state.ServicesOf(s, most), Ports: state.PortsOf(s, most)}
	if dropped != nil && dropped.Seconds > 0 {
		n.Drops = &state.Drops{PerSecond: float64(dropped.Packets) / dropped.Seconds}
	}
	return ring.Point{NetnsInode: take.Netns.Inode, Values: n.Point()}
}

// Past has the course of hours from a recording, asked for again and again: what was read once is not read again.
type Past struct {
	dir string

	mu   sync.Mutex // what follows
	ring *ring.Ring
	// segments are the points that were read, by the segment.
	segments map[*ring.Segment]*segmentPoints
}

type segmentPoints struct {
	run string
	// frames are how many of the segment were read.
	frames int
	points []timedPoint
}

type timedPoint struct {
	at time.Time
	ring.Point
}

// NewPast reads nothing yet: the recording may come, and go.
func NewPast(dir string) *Past { return &Past{dir: dir} }

// History is that of a namespace from one time to another. The error says in one line why there is none, or which part of the
// recording of this time is lost.
func (p *Past) History(n *state.Namespace, from, to time.Time) (h state.History, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refresh(from); err != nil {
		return state.History{}, err
	}
	h, err = p.history(n, from, to)
	lost := lostBetween(p.ring.Segments, from, to, to)
	switch {
	case lost == "":
		return h, err
	case err != nil:
		return h, fmt.Errorf("%w; %s", err, lost)
	}
	return h, fmt.Errorf("the recording in %s is damaged: %s", p.dir, lost)
}

// writing is how long ago the newest part is at most where a recorder may be writing the next one.
const writing = 2 * time.Minute

// lostBetween says what is damaged in segments that may have something of the time from one moment to another: the first of them,
// and how many others. What the newest one ends with is no damage where it is being written now.
func lostBetween(segments []*ring.Segment, from, to, now time.Time) (text string) {
	others := 0
	for i, s := range segments {
		damaged, is := s.Damaged()
		begins, ends := lostFrom(segments, i), time.Time{}
		if next := slices.IndexFunc(segments[i+1:], func(s *ring.Segment) bool { return len(s.Frames) > 0 }); next >= 0 {
			ends = segments[i+1+next].Frames[0].Wall
		}
		switch {
		case !is || begins.After(to) || !ends.IsZero() && ends.Before(from):
		case i+1 == len(segments) && s.TornAlone() && s.Frames[len(s.Frames)-1].Wall.After(now.Add(-writing)):
		case text == "":
			text = s.Name + ": " + damaged.Text()
		default:
			others++
		}
	}
	if others > 0 {
		text += ", and in " + units.Plural(others, "other segment", "other segments")
	}
	return text
}

// lostFrom is the time from which on a segment may lack something; zero where it may be any. What is torn is behind its last frame,
// and anything else may be before the first one, behind those of the segment before.
func lostFrom(segments []*ring.Segment, i int) time.Time {
	last := i - 1
	if segments[i].TornAlone() {
		last = i
	}
	for ; last >= 0; last-- {
		if frames := segments[last].Frames; len(frames) > 0 {
			return frames[len(frames)-1].Wall
		}
	}
	return time.Time{}
}

// Lost says in a line what is damaged of a recording from one time to another; empty where nothing is.
func Lost(r *ring.Ring, from, to time.Time) string {
	lost := lostBetween(r.Segments, from, to, time.Now())
	if lost == "" {
		return ""
	}
	return "the recording is damaged: " + lost
}

func (p *Past) history(n *state.Namespace, from, to time.Time) (state.History, error) {
	var found []timedPoint
	any, others := false, ""
	for _, s := range p.ring.Segments {
		for _, point := range p.segments[s].points {
			any = true
			if !isOf(s, &point.Point, n) {
				others = cmp.Or(s.Netns, "this host's own")
			} else if !point.at.Before(from) && point.at.Before(to) {
				found = append(found, point)
			}
		}
	}
	switch {
	case len(found) > 0:
		return historyOf(found), nil
	case !any:
		return state.History{}, fmt.Errorf("the recording in %s has no course of this time: there is no whole snapshot, or an older natkit records", p.dir)
	case others != "":
		return state.History{}, fmt.Errorf("the recording in %s is of another network namespace: %s", p.dir, others)
	}
	return state.History{}, fmt.Errorf("the recording in %s has nothing from %s to %s", p.dir, from.Format(time.DateTime), to.Format(time.DateTime))
}

// isOf reports whether a point of a segment is of a namespace. One with a name has another number each time that it is made.
func isOf(s *ring.Segment, point *ring.Point, n *state.Namespace) bool {
	if s.Netns != "" {
		return s.Netns == n.Name
	}
	return point.NetnsInode == n.Inode
}

// refresh reads what is new.
func (p *Past) refresh(from time.Time) (err error) {
	if p.ring == nil {
		p.ring, err = ring.OpenSince(disk.Plain(p.dir), from)
	} else {
		err = p.ring.Refresh(from)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ring.ErrNone):
		return fmt.Errorf("no recording in %s: 'natkit record' makes one, natkit-record.service all the time", p.dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("read the recording in %s: %w (it is root's alone: needs CAP_DAC_READ_SEARCH)", p.dir, fs.ErrPermission)
	case err != nil:
		return fmt.Errorf("read the recording in %s: %w", p.dir, err)
	}
	before := p.segments
	p.segments = make(map[*ring.Segment]*segmentPoints, len(p.ring.Segments))
	for _, s := range p.ring.Segments {
		known := before[s]
		if known == nil || known.run != s.Run || known.frames > len(s.Frames) {
			known = &segmentPoints{run: s.Run}
		}
		known.add(p.ring, s.Frames[known.frames:])
		p.segments[s] = known
	}
	return nil
}

// add reads frames. A point that cannot be read is missing.
func (k *segmentPoints) add(r *ring.Ring, frames []ring.Frame) {
	k.frames += len(frames)
	for i := range frames {
		if frames[i].Kind != ring.KindPoint {
			continue
		}
		if point, err := r.Point(&frames[i]); err == nil {
			k.points = append(k.points, timedPoint{frames[i].Wall, point})
		}
	}
}

// historyOf sorts points by time: a clock may have been set back.
func historyOf(found []timedPoint) state.History {
	slices.SortStableFunc(found, func(a, b timedPoint) int { return a.at.Compare(b.at) })
	times, points := make([]float64, 0, len(found)), make([]map[string]float64, 0, len(found))
	for i := range found {
		times = append(times, float64(found[i].at.UnixMilli())/1000)
		points = append(points, found[i].Values)
	}
	return state.HistoryOf(times, points)
}
