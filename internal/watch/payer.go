package watch

import (
	"context"
	"time"
)

// Payer spreads what work costs over time: each piece is paid for before the next one comes.
type Payer struct {
	share  float64
	credit time.Duration
	at     time.Time
	cpu    time.Duration
	// balance is what is left of the share so far; negative where more was spent.
	balance time.Duration
}

// NewPayer begins with nothing spent. Work may take that share of one CPU; credit bounds what pieces that cost less leave
// for those that cost more. cpu is the CPU time of the process at that time.
func NewPayer(share float64, credit time.Duration, now time.Time, cpu time.Duration) *Payer {
	return &Payer{share: share, credit: credit, at: now, cpu: cpu}
}

// Due returns in how long a piece is paid for that costs what was spent since the call before: all that the process did,
// but for what has a budget of its own.
func (p *Payer) Due(now time.Time, cpu, other time.Duration) time.Duration {
	spent := cpu - p.cpu - other
	p.balance = min(p.balance+time.Duration(float64(now.Sub(p.at))*p.share)-spent, p.credit)
	p.at, p.cpu = now, cpu
	return time.Duration(float64(spent-p.balance) / p.share)
}

// Wait reports whether the time passed before ctx ended.
func Wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
