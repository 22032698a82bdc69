package ring

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// ContentsSchema names the JSON form of Contents.
const ContentsSchema = "natkit.record/1"

// Contents is what is in a ring.
type Contents struct {
	Schema string `json:"schema"`
	Host   string `json:"host,omitempty"`
	// Netns is the namespace's name; empty for the one natkit ran in.
	Netns        string  `json:"netns,omitempty"`
	WrittenBy    string  `json:"written_by,omitempty"`
	EverySeconds float64 `json:"every_seconds"`
	// From and To are when the first and the last snapshot was taken, zero without any.
	From      time.Time `json:"from,omitzero"`
	To        time.Time `json:"to,omitzero"`
	Snapshots int       `json:"snapshots"`
	Bytes     int64     `json:"size_bytes"`
	Segments  int       `json:"segments"`
	// Outcomes is how many snapshots have the outcomes of services, the last of them of OutcomesAt.
	Outcomes   int       `json:"outcomes"`
	OutcomesAt time.Time `json:"outcomes_at,omitzero"`
	// Events are marks, triggers, what was kept and what could not be recorded.
	Events []RecordedEvent `json:"events"`
	Gaps   []Gap           `json:"gaps"`
	// Damaged are segments of which not all can be read.
	Damaged []DamagedSegment `json:"damaged"`
	// Copies are segments that are in the directory twice, and count once.
	Copies  []Copy         `json:"copies,omitempty"`
	Packets PacketContents `json:"packets"`
	// Dropped is how many packets the kernel dropped between the snapshots; DropsKnown is false where that was not recorded.
	Dropped    uint64 `json:"packets_dropped"`
	DropsKnown bool   `json:"packets_dropped_known"`
	// DroppedHeaders are of these packets; DroppedLost were to be kept, and there was no room for them.
	DroppedHeaders uint64 `json:"dropped_headers_kept"`
	DroppedLost    uint64 `json:"dropped_headers_lost"`
}

// RecordedEvent is an Event with its time.
type RecordedEvent struct {
	At time.Time `json:"time"`
	Event
}

// Gap is a time between two snapshots in which none was recorded, or that the clock skipped or repeated.
type Gap struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	Why  string    `json:"why"`
}

// Why there is a gap.
const (
	GapRestarted  = "the recorder was started again"
	GapMissing    = "not recorded"
	GapClockBack  = "the clock was set back"
	GapClockAhead = "the clock was set ahead, or the host slept"
)

// DamagedSegment is one of which not all can be read.
type DamagedSegment struct {
	Segment string `json:"segment"`
	// Lost is what is lost with a whole length, or before what can be read.
	Lost Damage `json:"damage,omitzero"`
	// TornBytes at its end are of no whole frame; all bytes where Error says why none is read.
	TornBytes int64  `json:"torn_bytes"`
	Error     string `json:"error,omitempty"`
}

// Damaged is what cannot be read of a segment, false for one that is whole.
func (s *Segment) Damaged() (d DamagedSegment, is bool) {
	d = DamagedSegment{Segment: s.Name, Lost: s.Lost, TornBytes: s.Torn}
	switch {
	case s.Err != nil:
		d.TornBytes, d.Error = s.Bytes, s.Err.Error()
		return d, true
	case s.broken:
		d.Lost.add(s.read, s.Torn)
		d.TornBytes = 0
	}
	return d, d.TornBytes > 0 || d.Lost.Places > 0
}

// TornAlone reports whether a segment has parts, and nothing is wrong but its end.
func (s *Segment) TornAlone() bool {
	return s.Err == nil && !s.broken && s.Lost.Places == 0 && s.Torn > 0 && len(s.Frames) > 0
}

// Text says what is damaged, and what that cost.
func (d *DamagedSegment) Text() string {
	if d.Error != "" {
		return "not read: " + d.Error
	}
	var parts []string
	if lost := d.Lost; lost.Places > 0 {
		where := fmt.Sprintf("at byte %d", lost.First)
		if lost.Places > 1 {
			where = fmt.Sprintf("in %d places, the first at byte %d,", lost.Places, lost.First)
		}
		text := fmt.Sprintf("%s %s %s damaged, and left out", units.Plural(lost.Bytes, "byte", "bytes"), where, are(lost.Bytes))
		if lost.Snapshots > 0 {
			text += ", with " + units.Plural(lost.Snapshots, "snapshot that needs", "snapshots that need") + " what is lost"
		}
		parts = append(parts, text)
	}
	if d.TornBytes > 0 {
		parts = append(parts, units.Plural(d.TornBytes, "byte at its end is", "bytes at its end are")+" no whole part: what a crash left, or a recorder is writing")
	}
	return strings.Join(parts, "; ")
}

// are is the verb of a number.
func are(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// PacketContents are the headers of packets in a ring. NotKept were seen beyond those, Lost had no room. Packets outside of a sample are in none of
// these numbers: the kernel's filter passes over them.
type PacketContents struct {
	Kept    uint64 `json:"kept"`
	NotKept uint64 `json:"not_kept"`
	Lost    uint64 `json:"lost"`
	// Sampled is the largest number of connections of which one was recorded, SampledICMP of packets of ICMP.
	Sampled     uint64 `json:"sampled"`
	SampledICMP uint64 `json:"sampled_icmp"`
}

// Contents reads what is in the ring, but for the snapshots themselves. A part that cannot be read though its checksum is right is
// damaged like one of which that is wrong.
func (r *Ring) Contents() *Contents {
	c := &Contents{Schema: ContentsSchema, Events: []RecordedEvent{}, Gaps: []Gap{}, Damaged: []DamagedSegment{}, Copies: r.Copies, Segments: len(r.Segments)}
	for _, s := range r.Segments {
		c.Bytes += s.Bytes
		if s.Err == nil {
			c.Host, c.Netns, c.WrittenBy, c.EverySeconds = s.Host, s.Netns, s.WrittenBy, s.EverySeconds
		}
	}
	var before *Frame
	unread, failed := map[*Segment][]*Frame{}, map[*Segment]error{}
	for f := range r.All() {
		if f.IsSnapshot() {
			c.add(before, f)
			before = f
			continue
		}
		var refused *fs.PathError
		switch err := c.addOther(r, f); {
		case err == nil, errors.Is(err, fs.ErrNotExist): // the recorder has removed it meanwhile
		case errors.As(err, &refused): // by the disk, not for what is in it
			failed[f.segment] = err
		default:
			unread[f.segment] = append(unread[f.segment], f)
		}
	}
	for _, s := range r.Segments {
		d, is := s.Damaged()
		for _, f := range unread[s] {
			is = true
			d.Lost.add(f.offset, f.Bytes)
		}
		if err := failed[s]; err != nil {
			is, d.Error = true, err.Error()
		}
		if is {
			c.Damaged = append(c.Damaged, d)
		}
	}
	return c
}

func (c *Contents) add(before, f *Frame) {
	c.Snapshots++
	c.To = f.Wall
	if f.Traced() {
		c.Outcomes++
		c.OutcomesAt = f.Wall
	}
	if before == nil {
		c.From = f.Wall
		return
	}
	if why := between(before, f); why != "" {
		c.Gaps = append(c.Gaps, Gap{before.Wall, f.Wall, why})
	}
}

func (c *Contents) addOther(r *Ring, f *Frame) error {
	switch f.Kind {
	case KindEvent:
		e, err := r.Event(f)
		if err != nil {
			return err
		}
		c.Events = append(c.Events, RecordedEvent{f.Wall, e})
	case KindPackets:
		p, err := r.Packets(f)
		if err != nil {
			return err
		}
		c.Packets.Kept += uint64(len(p.List))
		c.Packets.NotKept += p.NotKept
		c.Packets.Lost += p.Lost
		c.Packets.Sampled, c.Packets.SampledICMP = max(c.Packets.Sampled, p.Sample), max(c.Packets.SampledICMP, p.SampleICMP)
	case KindDrops:
		d, err := r.Drops(f)
		if err != nil {
			return err
		}
		c.Dropped, c.DropsKnown = c.Dropped+d.Packets, true
	case KindDropped:
		d, err := r.Dropped(f)
		if err != nil {
			return err
		}
		c.DroppedHeaders += uint64(len(d.List))
		c.DroppedLost += d.Lost
	}
	return nil
}

const (
	// clockSlack is how far both clocks may be apart between two snapshots.
	clockSlack = 2 * time.Second
	// missedFrom is how many times the usual time is a gap. leastGap is one in any case: a recorder that costs too much
	// waits longer.
	missedFrom = 3
	leastGap   = 30 * time.Second
)

// between is why two snapshots in succession do not follow each other; empty where they do.
func between(a, b *Frame) string {
	uptime, wall := b.Uptime-a.Uptime, b.Wall.Sub(a.Wall)
	switch {
	case a.segment.Run != b.segment.Run:
		return GapRestarted
	case uptime < 0:
		return GapMissing
	case wall < uptime-clockSlack:
		return GapClockBack
	case wall > uptime+clockSlack:
		return GapClockAhead
	case uptime > b.segment.longest():
		return GapMissing
	}
	return ""
}

// longest is how far two snapshots in succession lie apart at most.
func (s *Segment) longest() time.Duration { return max(missedFrom*s.every(), leastGap) }

func (s *Segment) every() time.Duration { return time.Duration(s.EverySeconds * float64(time.Second)) }

// ErrTooFew is the error of Pair where a ring has less than two snapshots in succession.
var ErrTooFew = errors.New("it has no two snapshots in succession, which a diagnosis compares")

// Newest returns the last two snapshots in succession.
func (r *Ring) Newest() (before, after *Frame, err error) {
	pairs := r.Pairs()
	if len(pairs) == 0 {
		return nil, nil, ErrTooFew
	}
	last := pairs[len(pairs)-1]
	return last[0], last[1], nil
}

// Pair returns the two snapshots in succession of which the second is nearest to a time: what a diagnosis at that time
// would have compared. Where the clock was set back, so that the time came twice, they are the later ones. It fails where
// the nearest is further away than a gap.
func (r *Ring) Pair(at time.Time) (before, after *Frame, err error) {
	pairs := r.Pairs()
	if len(pairs) == 0 {
		return nil, nil, ErrTooFew
	}
	away := func(p [2]*Frame) time.Duration { return p[1].Wall.Sub(at).Abs() }
	nearest := pairs[0]
	for _, p := range pairs {
		if away(p) < away(nearest) {
			nearest = p
		}
	}
	every := nearest[1].segment.every()
	if away(nearest) > nearest[1].segment.longest() {
		return nil, nil, r.away(at)
	}
	for _, p := range pairs {
		if away(p) <= away(nearest)+every/2 && p[1].Wall.Sub(p[0].Wall) >= 0 {
			before, after = p[0], p[1]
		}
	}
	if after == nil {
		before, after = nearest[0], nearest[1]
	}
	return before, after, nil
}

// Last is the time of the last snapshot, also of one that is left out as the snapshot that it needs is lost; zero without any.
func (r *Ring) Last() time.Time {
	for _, s := range slices.Backward(r.Segments) {
		if !s.last.IsZero() {
			return s.last
		}
	}
	return time.Time{}
}

// IsLast reports whether a snapshot is the last one.
func (r *Ring) IsLast(f *Frame) bool {
	i := slices.Index(r.Segments, f.segment)
	later := func(s *Segment) bool { return !s.last.IsZero() }
	return f.Wall.Equal(f.segment.last) && !slices.ContainsFunc(r.Segments[i+1:], later)
}

// usual is the time between two snapshots in succession, by the time that the host ran: half of them lie no further apart.
func usual(pairs [][2]*Frame) time.Duration {
	apart := make([]time.Duration, 0, len(pairs))
	for _, p := range pairs {
		apart = append(apart, p[1].Uptime-p[0].Uptime)
	}
	slices.Sort(apart)
	return apart[(len(apart)-1)/2]
}

// farFrom is how many times the usual time between two snapshots is far.
const farFrom = 2

// Compared describes one of the pairs.
func (r *Ring) Compared(before, after *Frame) *snapshot.Compared {
	apart, usual := after.Uptime-before.Uptime, usual(r.Pairs())
	why := between(before, after)
	return &snapshot.Compared{From: before.Wall, To: after.Wall, RecordingTo: r.Last(), UptimeSeconds: apart.Seconds(), UsualSeconds: usual.Seconds(),
		FarApart: apart > farFrom*max(usual, after.segment.every()), ClockJumped: why == GapClockBack || why == GapClockAhead}
}

// Pairs are the snapshots in succession.
func (r *Ring) Pairs() (all [][2]*Frame) {
	var before *Frame
	for _, f := range r.Snapshots() {
		if before != nil {
			why, clock := between(before, f), f.Uptime-before.Uptime <= f.segment.longest()
			if why == "" || clock && (why == GapClockBack || why == GapClockAhead) {
				all = append(all, [2]*Frame{before, f})
			}
		}
		before = f
	}
	return all
}

// Covers returns why nothing was recorded from one time to another, around at; nil where something was.
func (r *Ring) Covers(from, to, at time.Time) error {
	all := r.Snapshots()
	if len(all) == 0 {
		return ErrTooFew
	}
	// A snapshot is written with what came before it.
	if slices.ContainsFunc(all, func(f *Frame) bool { return !f.Wall.Before(from) && !f.Wall.After(to.Add(leastGap)) }) {
		return nil
	}
	return r.away(at)
}

// away is the error for a time without snapshots.
func (r *Ring) away(at time.Time) error {
	var before, after *Frame
	for _, f := range r.Snapshots() {
		if !f.Wall.After(at) && (before == nil || f.Wall.After(before.Wall)) {
			before = f
		}
		if f.Wall.After(at) && (after == nil || f.Wall.Before(after.Wall)) {
			after = f
		}
	}
	text := func(f *Frame) string { return f.Wall.In(at.Location()).Format(time.RFC3339) }
	at = at.Truncate(time.Second)
	switch {
	case before == nil:
		return fmt.Errorf("nothing was recorded at %s: the first snapshot is of %s", at.Format(time.RFC3339), text(after))
	case after == nil:
		return fmt.Errorf("nothing was recorded at %s: the last snapshot is of %s", at.Format(time.RFC3339), text(before))
	}
	return fmt.Errorf("nothing was recorded at %s: the nearest snapshots are of %s and %s", at.Format(time.RFC3339), text(before), text(after))
}
