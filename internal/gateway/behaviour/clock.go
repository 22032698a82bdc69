package behaviour

import (
	"fmt"
	"time"
)

// What a machine may lose between the steps of a case, beside the time that the case
// lets pass, without the case saying something else. Of the cases with the least room,
// one reads whole seconds that are left, one sets timers to 1 s and makes 20 mappings
// before they end.
const (
	roomOfTimers = 800 * time.Millisecond
	// roomOfDefaults is that of cases which neither set timers nor read them: the
	// shortest timer of an engine (nf_conntrack: 10 s behind a RST).
	roomOfDefaults = 10 * time.Second
)

// longest is how much longer a case is made to take, at most, where the machine is late.
const longest = 8

// clock is a World that measures how late the machine was: the monotonic time from the
// first packet to the end of the case, without what the case let pass.
type clock struct {
	World
	start, end time.Time
	passed     time.Duration
	// sets is that the case sets timers or lets time pass, reads that it reads what
	// is left.
	sets, reads bool
}

// on makes the world to measure.
func (c *clock) on(world Maker) Maker {
	return func() (w World, err error) {
		c.World, err = world()
		return c, err
	}
}

func (c *clock) begin() {
	if c.start.IsZero() {
		c.start = time.Now()
	}
}

func (c *clock) Send(from Host, packets ...[]byte) (Arrivals, error) {
	c.begin()
	return c.World.Send(from, packets...)
}

func (c *clock) Program(s Socket) (Program, error) {
	c.begin()
	return c.World.Program(s)
}

func (c *clock) Pass(d time.Duration) error {
	c.begin()
	c.sets = true
	c.passed += d
	return c.World.Pass(d)
}

func (c *clock) Timers(values map[Timer]time.Duration) error {
	c.sets = true
	return c.World.Timers(values)
}

func (c *clock) Mappings() ([]Mapping, error) {
	c.reads = true
	return c.World.Mappings()
}

func (c *clock) Close() error {
	c.end = time.Now()
	return c.World.Close()
}

// late returns an error if the result is inconclusive because more time went by than the
// case allows for. Times is the factor by which its timers were stretched. A pass is
// accepted within that; a failure only if no second was lost, as not all that is compared
// with a time is stretched.
func (c *clock) late(times int, failed bool) error {
	var lost time.Duration
	if !c.start.IsZero() {
		lost = c.end.Sub(c.start) - c.passed
	}
	room := roomOfTimers
	switch {
	case !c.sets && !failed:
		return nil
	case !c.sets && !c.reads:
		room = roomOfDefaults
	case !failed:
		room *= time.Duration(times)
	}
	if lost <= room {
		return nil
	}
	return fmt.Errorf("the machine is too busy for this case: it lost %v beside what the case lets pass, of %v at most", lost.Round(time.Millisecond), room)
}
