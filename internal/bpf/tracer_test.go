package bpf

import (
	"testing"
	"time"
)

// TestClockFollows: a step that two readings agree on moves what is timed from there on; one reading late does not.
func TestClockFollows(t *testing.T) {
	zero := time.Unix(1000, 0)
	var late []time.Duration
	set := time.Duration(0)
	c, err := NewClock(func() (time.Time, error) {
		at := zero.Add(set)
		if len(late) > 0 {
			at, late = at.Add(late[0]), late[1:]
		}
		return at, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	follow := func(want, at time.Duration) {
		t.Helper()
		step, err := c.Follow()
		if got := c.Time(uint64(time.Second)).Sub(zero); err != nil || step != want || got != at+time.Second {
			t.Errorf("step %v, a second after the start at %v, %v", step, got, err)
		}
	}
	follow(0, 0)
	late = []time.Duration{time.Minute}
	follow(0, 0)
	late = []time.Duration{leastStep / 2}
	follow(0, 0)
	set = -50 * time.Second
	follow(set, set)
	follow(0, set)
}
