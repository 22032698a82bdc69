package watch

import (
	"testing"
	"time"
)

// TestPayer: whatever reports cost, they take no more than their share, and those that cost less come when they are wanted.
func TestPayer(t *testing.T) {
	const share = 0.01
	for _, cost := range []time.Duration{time.Millisecond, 90 * time.Millisecond, 300 * time.Millisecond, 5 * time.Second} {
		const every = 10 * time.Second
		now, cpu := time.Unix(0, 0), time.Duration(0)
		p := NewPayer(share, 200*time.Millisecond, now, cpu)
		reports := 0
		for ; now.Before(time.Unix(100_000, 0)); reports++ {
			const table = 40 * time.Millisecond
			cpu += cost + table
			now = now.Add(cost)
			now = now.Add(max(every, p.Due(now, cpu, table)))
		}
		took := float64(reports) * float64(cost) / float64(now.Sub(time.Unix(0, 0)))
		if took > 1.001*share {
			t.Errorf("reports of %s take %.4f of a CPU", cost, took)
		}
		if cost < 100*time.Millisecond && reports < 9_900 {
			t.Errorf("reports of %s come %d times instead of 10,000", cost, reports)
		}
		if cost >= 100*time.Millisecond && took < 0.9*share {
			t.Errorf("reports of %s take %.4f of a CPU only", cost, took)
		}
	}
}
