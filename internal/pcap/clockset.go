package pcap

import "math"

// ClockSet finds the timestamp clocks behind the SYNs from one address to another, as
// a report does for captures. The zero value is ready. It takes 5 KB at most.
type ClockSet struct {
	pair
	last int64
}

// Add takes in the SYN of a new connection: its time in nanoseconds of any steady clock,
// and its TSval.
func (c *ClockSet) Add(at int64, tsval uint32) {
	c.connections++
	c.begin(at, tsval, [2]uint16{}, true)
	c.again = 0 // the ports are not known
	c.last = max(c.last, at)
}

// apart is how many seconds two lines must lie apart to be two clocks: less can come
// from a reader that was late, and two machines are hardly ever so near.
const apart = 1.0

// Count is how many clocks there are, 64 at most.
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

// atTime is what the clock shows at some time.
func (l *line) atTime(at int64, hz float64) uint32 {
	return l.val + uint32(int64(math.Round(hz*float64(at-l.at)/1e9)))
}

// PerConnection reports whether nearly each connection has an offset of its own, which
// says nothing of the number of machines.
func (c *ClockSet) PerConnection() bool { return c.perConnection() }
