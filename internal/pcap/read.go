package pcap

import (
	"cmp"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"unsafe"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/units"
	"github.com/natkit/natkit/internal/unix"
)

// Read reads and analyses a whole capture. A broken file is no error (see Each). If r could not
// be read to its end, there is a report of the packets up to there as well as the error.
func Read(r io.Reader, o Options) (*Report, error) {
	if o.Memory != 0 && o.Memory < MinMemory {
		return nil, fmt.Errorf("read capture: memory of %d bytes: must be at least %d", o.Memory, MinMemory)
	}
	t := newTracker(o)
	stats, err := Each(r, func(p *Packet) error {
		t.packet(p)
		return nil
	})
	if err != nil && stats.Format == "" {
		return nil, err
	}
	return t.finished(stats), err
}

// finished ends all connections and returns the report.
func (t *tracker) finished(stats Stats) *Report {
	t.order.flush(t.take)
	t.ended, t.now = true, t.latest
	for _, c := range t.table.Values() {
		t.finish(c)
	}
	r := &t.report
	r.Stats = stats
	t.oneWay()
	t.unordered(&stats)
	t.incomplete(&stats)
	if t.headersAlone {
		t.remark("of TCP the file has the headers of SYNs, FINs and RSTs alone (natkit record), no data and no ACK, and a sample where there were many: a SYN may have been answered by an ACK, and RSTs outside the window are not recognised")
	}
	t.kept.fill(r)
	t.moves.fill(r.Incidents)
	t.clocks.fill(r, stats.First.UnixNano())
	r.Reuse.After = t.reuse.distribution()
	r.ICMPErrors = t.icmp.list()
	t.fillBackoff()
	r.Limits = Limits{Memory: t.o.Memory, Peak: t.table.memory() + t.kept.peak + t.clocks.used + t.peakTroubled + t.order.memory(), Forgotten: t.table.forgotten}
	if t.table.forgotten > 0 {
		r.Limits.Youngest = seconds(t.table.shortest)
	}
	return r
}

// oneWay recognises captures of one direction, in which no answer is expected. It is certain if
// clients go on as if they had been answered; then unanswered SYNs are not reported.
func (t *tracker) oneWay() {
	c := &t.report.Connections
	if c.Begun < 2 || t.fromServers > 0 || c.Refused > 0 {
		return
	}
	if c.Established == 0 {
		t.remark("no packet from any server: either none answers, or the capture has one direction only; then SYNs without answer mean nothing")
		return
	}
	t.kept.drop(SYNUnanswered)
	t.kept.drop(SYNNotAccepted)
	t.remark("no packet from any server, but clients go on as if there were: the capture has one direction only, so that unanswered and rejected SYNs cannot be recognised")
}

// unordered warns of packets that were too late to be sorted by time.
func (t *tracker) unordered(s *Stats) {
	const some = 1000 // packets to one late: the clock was set, or files were joined
	if late := t.order.late; late > s.Packets/some {
		t.remark(fmt.Sprintf("%s earlier than others far before in the file, and taken in the file's order: 'reordercap FILE SORTED' (of Wireshark) sorts packets by time", units.Plural(late, "packet is", "packets are")))
	}
}

// incomplete warns of captures that lost packets themselves.
func (t *tracker) incomplete(s *Stats) {
	var lost int64
	for i := range s.Interfaces {
		lost += s.Interfaces[i].Dropped
	}
	if lost > 0 {
		t.remark(fmt.Sprintf("the capture itself lost %s: what seems to be without answer, or sent for nothing, may be among them", units.Plural(lost, "packet", "packets")))
	}
}

// remark adds to the report what its reader has to know.
func (t *tracker) remark(text string) { t.report.Notes = append(t.report.Notes, text) }

func (t *tracker) fillBackoff() {
	r := &t.report.Retransmissions
	r.Backoffs = []Backoff{}
	for i := range t.backoff {
		if s := &t.backoff[i]; s.count() > 0 {
			r.Backoffs = append(r.Backoffs, Backoff{Nth: i + 1, Count: s.count(), Min: s.at(0), Median: s.at(0.5), Max: s.at(1)})
		}
	}
}

// isDamage distinguishes errors of compressed data from those of the reader below.
func isDamage(err error) bool {
	var corrupt flate.CorruptInputError
	var internal flate.InternalError
	return errors.As(err, &corrupt) || errors.As(err, &internal) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader)
}

// window bounds one search; the buffer also holds the longest record and the next header.
const window = bufferSize - MaxFrame - 2*modifiedRecord

// resume searches the next record after a broken place; false if there is none.
func (c *classic) resume(s *stream, what string) bool {
	return s.search(1, what, func(b []byte, ended bool) int {
		for i := 0; i < min(len(b), window); i++ {
			if c.plausibleAt(b, i, ended) {
				return i
			}
		}
		return -1
	})
}

// search skips step bytes, and then up to the place that find returns. find gets the data from
// there, and whether the file ends with it.
func (s *stream) search(step int64, what string, find func(b []byte, ended bool) int) bool {
	d := Damage{Offset: s.offset, What: what}
	d.Skipped = s.skip(step)
	for {
		b := s.peek(bufferSize)
		ended := len(b) < bufferSize
		at := find(b, ended)
		if at >= 0 {
			d.Skipped += s.skip(int64(at))
			s.damage(d)
			return true
		}
		if ended {
			d.Skipped += s.skip(int64(len(b)))
			d.Ended = true
			s.damage(d)
			return false
		}
		d.Skipped += s.skip(window)
	}
}

// plausibleAt reports whether b[i] and the place after it look like records, or the file ends.
func (c *classic) plausibleAt(b []byte, i int, ended bool) bool {
	next, ok := c.similar(b, i)
	if !ok {
		return false
	}
	if next == len(b) {
		return ended
	}
	_, ok = c.similar(b, next)
	return ok
}

// similar reports whether b[i] could follow the last good header, and where the next would be.
func (c *classic) similar(b []byte, i int) (next int, ok bool) {
	if i+c.record > len(b) {
		return 0, false
	}
	e := c.entry(b[i:])
	const day = 24 * 60 * 60
	near := c.last == 0 || e.seconds-c.last+day <= 2*day // wraps on purpose
	ok = near && e.captured > 0 && e.captured <= min(e.length, MaxFrame) && e.length <= c.longest && e.fraction < c.perSec
	return i + c.record + int(e.captured), ok && c.believable(e)
}

// segment is what the tracker takes of a packet: a TCP segment, or an ICMP error.
type segment struct {
	record
	key   key
	icmp  *Packet // without its data; nil where it is TCP
	is4   bool
	scale uint8 // of a SYN's window
	// dropped: see Packet.Dropped.
	dropped bool
}

// segmentOf is that of a packet that is TCP or an ICMP error; false for all others.
func segmentOf(p *Packet, s *segment) bool {
	f := &p.Frame
	switch {
	case f.Transport == unix.IPPROTO_TCP:
		var dir uint8
		s.key, dir = keyOf(f.Source, f.Destination, f.TCP.SourcePort, f.TCP.DestinationPort)
		s.record, s.is4, s.icmp, s.dropped = recordOf(p, dir), f.Version == 4, nil, p.Dropped
		if s.flags&frame.SYN != 0 {
			s.scale = windowScale(&f.TCP)
		}
		return true
	case p.HasQuoted:
		about := *p
		about.Data, about.Frame.Payload, about.Quoted.Payload = nil, nil, nil
		*s = segment{record: record{number: p.Number, at: p.At}, icmp: &about}
		return true
	}
	return false
}

// sorter sorts segments by time: programs that capture on several interfaces write the packets of
// each together. Segments wait until there is no room for more.
type sorter struct {
	waiting []segment
	max     int
	// newest is the latest time that came, done the latest that went.
	newest, done int64
	late         int64 // segments that came too late to be put where they belong
}

// Bounds of what waits. Disorder of more than a second is that of a clock that was set, or of
// another file: capture programs hold packets back for less (dumpcap: 250 ms).
const (
	sortedWithin = 1_000_000_000 // ns
	mostWaiting  = 2 * 8192
	perSegment   = int64(unsafe.Sizeof(segment{})) + int64(unsafe.Sizeof(Packet{}))
)

func newSorter(memory int64) sorter {
	return sorter{max: int(max(2, min(mostWaiting, memory/perSegment))), newest: math.MinInt64 + sortedWithin, done: math.MinInt64}
}

// memory at its most, in bytes.
func (s *sorter) memory() int64 { return int64(cap(s.waiting)) * perSegment }

// add takes a segment, and calls fn for the earlier half of those that wait where they are too many.
func (s *sorter) add(g *segment, fn func(*segment)) {
	switch {
	case g.at < s.newest-sortedWithin:
		s.late++
		s.flush(fn)
		s.newest = g.at
	case g.at < s.done:
		s.late++
		fn(g)
		return
	}
	s.newest = max(s.newest, g.at)
	s.waiting = append(s.waiting, *g)
	if len(s.waiting) == s.max {
		s.pass(s.max/2, fn)
	}
}

// pass lets the earliest n go.
func (s *sorter) pass(n int, fn func(*segment)) {
	slices.SortStableFunc(s.waiting, func(a, b segment) int { return cmp.Compare(a.at, b.at) })
	for i := range s.waiting[:n] {
		s.done = s.waiting[i].at
		fn(&s.waiting[i])
	}
	s.waiting = append(s.waiting[:0], s.waiting[n:]...)
}

// flush lets all go; what comes next may be earlier.
func (s *sorter) flush(fn func(*segment)) {
	s.pass(len(s.waiting), fn)
	s.done = math.MinInt64
}
