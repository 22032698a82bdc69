package live

import (
	"testing"
	"time"
)

// TestBudgetConverges: whatever an entry and the walk over the hash cost, in the long
// run no more is spent than is allowed, and no less than is useful.
func TestBudgetConverges(t *testing.T) {
	for _, tt := range []struct {
		name             string
		entry, walk      time.Duration
		interval         time.Duration
		least            int // entries of a reading in the end
		everyTick, spent bool
	}{
		{name: "quick", entry: time.Microsecond, interval: 2 * time.Second, least: 7000, everyTick: true, spent: true},
		{name: "slow machine", entry: 20 * time.Microsecond, interval: 2 * time.Second, least: leastEntries},
		{name: "others' large table", entry: time.Microsecond, walk: 100 * time.Millisecond, interval: time.Second, least: leastEntries},
		{name: "long interval", entry: time.Microsecond, interval: time.Minute, least: mostEntries, everyTick: true},
		{name: "free", interval: time.Second, least: mostEntries, everyTick: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b budget
			start := time.Unix(0, 0)
			var cost time.Duration
			readings, last := 0, 0
			const ticks = 200
			for i := range ticks {
				now := start.Add(time.Duration(i) * tt.interval)
				n := b.next(now)
				if n == 0 {
					continue
				}
				readings, last = readings+1, n
				took := tt.walk + time.Duration(n)*tt.entry
				cost += took
				b.spent(now, tt.interval, took, int64(n))
			}
			allowed := allowance(ticks * tt.interval)
			if cost > allowed+allowed/20+tt.walk {
				t.Errorf("spent %s of %s", cost, allowed)
			}
			if tt.spent && cost < allowed*6/10 {
				t.Errorf("spent only %s of %s", cost, allowed)
			}
			if last < tt.least || last > mostEntries {
				t.Errorf("reads %d entries in the end, want at least %d", last, tt.least)
			}
			if tt.everyTick && readings < ticks-2 {
				t.Errorf("read %d times in %d", readings, ticks)
			}
			if readings == 0 {
				t.Error("never read")
			}
		})
	}
}
