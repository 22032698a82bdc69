package pcap

import (
	"cmp"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"unsafe"
)

// clocks finds TCP timestamp clocks between pairs of addresses: points (time, timestamp) on one
// line are one clock.
type clocks struct {
	pairs     map[addrPair]*pair
	used, max int64 // memory, in bytes
	more      int64 // connections of pairs that did not fit
}

// What a pair and a line take: a slice has room for more than is in it.
const (
	perPair = 256
	perLine = 2 * int64(unsafe.Sizeof(line{}))
)

type addrPair struct{ from, to netip.Addr }

// MaxClocks bounds the clocks of a pair.
const MaxClocks = 64

// pair are the clocks of one sender towards one receiver.
type pair struct {
	connections int64
	made        int64 // clocks, those that did not fit too
	again       int64 // connections on the clock and the ports of one before
	lines       []line
	// fast: timestamps of microseconds were seen (TCP_USEC_TS, Linux 6.7).
	fast bool
}

// Rates of clocks, in Hz: Linux has 1000 since 4.13 and had its HZ before, others 100; 1e6 for
// microseconds.
var rates = [...]float64{1000, 250, 100, 1e6}

const (
	usualRates = 0b0111
	fastRate   = 0b1000
)

// line is one clock.
type line struct {
	at    int64 // the last point that was not late
	val   uint32
	rates uint8 // bits of those that all points fit

	firstAt int64
	first   uint32
	ticks   int64 // from the first point to the last one that was not late
	lastAt  int64
	ports   [2]uint16 // of its last connection
	// connections that began with it, points in all.
	connections, points int64
}

// Tolerances of a point, in seconds: a packet may be delayed (late), but a timestamp is not made
// before its time, except for rounding and the delay of the point before (early). drift is the
// relative difference in speed.
const (
	late  = 0.5
	early = 0.05
	drift = 500e-6
	// renew is after which time the last point counts although it may have been late.
	renew = 30e9 // ns
)

func newClocks(memory int64) clocks {
	return clocks{pairs: map[addrPair]*pair{}, max: memory}
}

// interval between two points of a connection, besides its SYN and FIN.
const interval = 1_000_000_000 // ns

// point adds a packet's timestamp to the clocks once per interval.
func (t *tracker) point(c *conn, r *record) {
	s := &c.side[r.from()]
	if !r.hasTimestamps() || s.fed != 0 && r.at-s.fed < interval && !s.endsNow(r) {
		return
	}
	t.clocks.feed(c, s, r)
	s.fed, s.fedVal = max(r.at, 1), r.tsval
}

// endsNow reports whether the packet is the end's FIN.
func (s *side) endsNow(r *record) bool { return r.flags&1 != 0 }

func (k *clocks) feed(c *conn, s *side, r *record) {
	id := addrPair{c.addr(r.from()).Addr(), c.addr(1 - r.from()).Addr()}
	p := k.pairs[id]
	if p == nil {
		if k.used >= k.max {
			if s.fed == 0 {
				k.more++
			}
			return
		}
		p = &pair{}
		k.pairs[id] = p
		k.used += perPair
	}
	if s.fed == 0 {
		p.connections++
		lines := len(p.lines)
		s.clock = p.begin(r.at, r.tsval, c.key.port, k.used < k.max)
		k.used += perLine * int64(len(p.lines)-lines)
		return
	}
	if s.clock > 0 {
		p.goOn(&p.lines[s.clock-1], s, r)
	}
}

// begin returns the number from 1 of a new connection's clock, made if need be; 0 if there are
// too many.
func (p *pair) begin(at int64, val uint32, ports [2]uint16, room bool) uint8 {
	best, off := -1, math.Inf(1)
	for i := range p.lines {
		if d, ok := p.lines[i].fits(at, val); ok && d < off {
			best, off = i, d
		}
	}
	if best < 0 {
		p.made++
		if len(p.lines) == MaxClocks || !room {
			return 0
		}
		best = len(p.lines)
		p.lines = append(p.lines, p.newLine(at, val))
	}
	l := &p.lines[best]
	if l.connections > 0 && l.ports == ports {
		p.again++
	}
	l.connections++
	l.ports = ports
	l.take(at, val)
	return uint8(best + 1)
}

func (p *pair) newLine(at int64, val uint32) line {
	mask := uint8(usualRates)
	if p.fast {
		mask |= fastRate
	}
	return line{at: at, val: val, rates: mask, firstAt: at, first: val, lastAt: at}
}

// goOn takes another point of a connection, which is of the same clock for sure.
func (p *pair) goOn(l *line, s *side, r *record) {
	ticks, took := float64(int32(r.tsval-s.fedVal)), float64(r.at-s.fed)/1e9
	if took > 0.002 && ticks/took > 1e5 { // far from 1000
		p.fast = true
		l.rates = fastRate
	}
	if _, ok := l.fits(r.at, r.tsval); ok {
		l.take(r.at, r.tsval)
	}
}

// fits reports whether a point is on the line, and how many seconds it is off.
func (l *line) fits(at int64, val uint32) (off float64, ok bool) {
	off = math.Inf(1)
	for i, rate := range rates {
		if l.rates&(1<<i) == 0 {
			continue
		}
		if d, near := l.near(at, val, rate); near {
			off, ok = min(off, d), true
		}
	}
	return off, ok
}

func (l *line) near(at int64, val uint32, rate float64) (float64, bool) {
	took := float64(at-l.at) / 1e9
	off := float64(int32(val-l.val))/rate - took
	tick := 1.5 / rate
	slack := drift * math.Abs(took)
	return math.Abs(off), off >= -late-tick-slack && off <= early+tick+slack
}

// take puts a point on the line, and drops the rates that it does not fit.
func (l *line) take(at int64, val uint32) {
	l.points++
	left := l.rates
	for i, rate := range rates {
		if _, near := l.near(at, val, rate); !near {
			left &^= 1 << i
		}
	}
	if left != 0 {
		l.rates = left
	}
	l.lastAt = max(l.lastAt, at)
	if rate := l.usual(); at < l.at || at-l.at < renew && float64(int32(val-l.val))/rate-float64(at-l.at)/1e9 < -early {
		return // late
	}
	l.ticks += int64(int32(val - l.val))
	l.at, l.val = at, val
}

// usual is the first of the rates that fit.
func (l *line) usual() float64 {
	return rates[bits.TrailingZeros8(l.rates)%len(rates)]
}

// rate is the slope in Hz, measured where the line is long enough.
func (l *line) rate() (hz float64, exact bool) {
	if took := float64(l.at-l.firstAt) / 1e9; took >= 1 {
		return float64(l.ticks) / took, true
	}
	return l.usual(), false
}

// atStart is the timestamp of the clock at the capture's first packet.
func (l *line) atStart(start int64) uint32 {
	hz, _ := l.rate()
	back := hz * float64(l.firstAt-start) / 1e9
	return l.first - uint32(int64(math.Round(back)))
}

// maxPairs bounds how many pairs are reported.
const maxPairs = 1000

// fill puts the clocks into the report.
func (k *clocks) fill(r *Report, start int64) {
	r.Clocks = make([]PairClocks, 0, len(k.pairs))
	for id, p := range k.pairs {
		r.Clocks = append(r.Clocks, p.report(id, start))
	}
	slices.SortFunc(r.Clocks, func(a, b PairClocks) int {
		return cmp.Or(cmp.Compare(len(b.Clocks), len(a.Clocks)), cmp.Compare(b.Count, a.Count), cmp.Compare(b.Connections, a.Connections),
			a.Source.Compare(b.Source), a.Destination.Compare(b.Destination))
	})
	r.ClocksMore = k.more
	if len(r.Clocks) > maxPairs {
		r.ClocksMore += int64(len(r.Clocks) - maxPairs)
		r.Clocks = r.Clocks[:maxPairs]
	}
}

// perConnection reports whether there is about a clock per tuple, as also for machines with one
// connection each.
func (p *pair) perConnection() bool { return p.made >= 8 && p.made*2 >= p.connections-p.again }

func (p *pair) report(id addrPair, start int64) PairClocks {
	pc := PairClocks{Source: id.from, Destination: id.to, Connections: p.connections, Count: p.made, More: p.made > int64(len(p.lines)), PerConnection: p.perConnection()}
	if pc.PerConnection {
		return pc
	}
	for i := range p.lines {
		l := &p.lines[i]
		c := Clock{Offset: l.atStart(start), Connections: l.connections, Points: l.points, First: timeOf(l.firstAt), Last: timeOf(l.lastAt)}
		c.Hz, c.Exact = l.rate()
		pc.Clocks = append(pc.Clocks, c)
	}
	return pc
}

// ClockSet finds the timestamp clocks of SYNs between two addresses. The zero value is ready; it
// takes at most 5 KB.
type ClockSet struct {
	pair
	last int64
}

// Add adds the SYN of a new connection: its time in ns of any steady clock, and TSval.
func (c *ClockSet) Add(at int64, tsval uint32) {
	c.connections++
	c.begin(at, tsval, [2]uint16{}, true)
	c.again = 0 // the ports are not known
	c.last = max(c.last, at)
}

// apart is the distance in seconds from which two lines are two clocks: less can come from a
// delayed reader.
const apart = 1.0

// Count returns the number of clocks, 64 at most.
func (c *ClockSet) Count() int {
	n := 0
	for i := range c.lines {
		if c.first(i) {
			n++
		}
	}
	return n
}

// first reports whether no line before it is the same clock.
func (c *ClockSet) first(i int) bool {
	for j := range i {
		hz := c.lines[i].usual()
		if math.Abs(float64(int32(c.lines[i].atTime(c.last, hz)-c.lines[j].atTime(c.last, hz))))/hz < apart {
			return false
		}
	}
	return true
}

// atTime returns the clock's value at some time.
func (l *line) atTime(at int64, hz float64) uint32 {
	return l.val + uint32(int64(math.Round(hz*float64(at-l.at)/1e9)))
}

// PerConnection reports whether nearly each connection has its own offset.
func (c *ClockSet) PerConnection() bool { return c.perConnection() }
