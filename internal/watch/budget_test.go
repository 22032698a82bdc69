package watch

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
		least            int64 // entries of a reading in the end
		everyTick, spent bool
	}{
		{name: "quick", entry: time.Microsecond, interval: 2 * time.Second, least: 7000, everyTick: true, spent: true},
		{name: "slow machine", entry: 20 * time.Microsecond, interval: 2 * time.Second, least: 1024},
		{name: "others' large table", entry: time.Microsecond, walk: 100 * time.Millisecond, interval: time.Second, least: 1024},
		{name: "long interval", entry: time.Microsecond, interval: time.Minute, least: 16384, everyTick: true},
		{name: "free", interval: time.Second, least: 16384, everyTick: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := Continuous()
			b.Interval = tt.interval
			start := time.Unix(0, 0)
			var cost time.Duration
			readings, last := 0, int64(0)
			const ticks = 200
			for i := range ticks {
				now := start.Add(time.Duration(i) * tt.interval)
				if !b.Due(now) {
					continue
				}
				n := b.Entries()
				readings, last = readings+1, n
				took := tt.walk + time.Duration(n)*tt.entry
				cost += took
				b.Spent(now, took, n)
			}
			allowed := ticks * b.allowance()
			if cost > allowed+allowed/20+tt.walk {
				t.Errorf("spent %s of %s", cost, allowed)
			}
			if tt.spent && cost < allowed*6/10 {
				t.Errorf("spent only %s of %s", cost, allowed)
			}
			if last < tt.least || last > 16384 {
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

func TestBudgetPlansByCost(t *testing.T) {
	for _, tt := range []struct {
		name string
		took time.Duration
		read int64
		want int64
	}{
		{"cheap", 10 * time.Millisecond, 10000, 80000},
		{"at most twice as many", time.Millisecond, 10000, 100000},
		{"expensive", time.Second, 100000, 8000},
		{"so expensive that it reads the least", 10 * time.Second, 100000, 4096},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := Budget{Interval: 2 * time.Second, Share: 0.05, Least: 4096, First: 131072, Most: 131072, entries: 50000}
			if b.Spent(time.Unix(0, 0), tt.took, tt.read); b.Entries() != tt.want {
				t.Errorf("next %d, want %d", b.Entries(), tt.want)
			}
		})
	}
}

// TestPostpone: what is spent beside a reading delays the next one by what it costs, and reads no fewer entries.
func TestPostpone(t *testing.T) {
	b, now := Budget{Share: 0.01, Interval: time.Second, Least: 1024, First: 2048, Most: 16384}, time.Unix(0, 0)
	b.Spent(now, 5*time.Millisecond, 2048)
	entries := b.Entries()
	b.Postpone(100 * time.Millisecond)
	if due := now.Add(10500 * time.Millisecond); b.Due(due.Add(-time.Millisecond)) || !b.Due(due) || b.Entries() != entries {
		t.Errorf("due at %s, %d entries, want %d", b.due, b.Entries(), entries)
	}
}
