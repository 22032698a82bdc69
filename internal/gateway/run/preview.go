package run

import (
	"context"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/tune"
)

// Preview is what Prepare and Apply would do, and what would keep them from it.
type Preview struct {
	Prepared
	Findings []gateway.Finding
	Gateway  *gateway.Plan
	Facts    gateway.Facts
	// InForce is the plan that natkit's table was made for; nil where there is none or
	// natkit does not have it: Before tells.
	InForce *gateway.Plan
	Before  string
	// Changed says what somebody did to the rules since natkit wrote them.
	Changed []string
	// Obstacles are why apply would refuse, besides findings.
	Obstacles []string
	// TimeWaitSeconds is how long the entry of an ended connection keeps its port.
	TimeWaitSeconds float64
	// Sizing is of the connection table; nil where nothing is expected of it.
	Sizing *capacity.Sizing
	// Table are the table's present limits, and what its memory depends on.
	Table tune.Facts
}

// Preview looks at the host for a wish, and writes nothing anywhere. It goes on where
// Prepare refuses, so that somebody sees all at once.
func (h Host) Preview(ctx context.Context, w Wish) (*Preview, error) {
	file, err := UnlessEnded(ctx, func() (*gateway.File, error) { return gateway.Parse(w.Name, w.Text) })
	if err != nil {
		return nil, err
	}
	v := &Preview{}
	if v.Facts, err = h.facts(ctx, file, w.PID); err != nil {
		return nil, err
	}
	v.Findings, err = UnlessEnded(ctx, func() ([]gateway.Finding, error) { return h.Apply.Engines.Check(file, v.Facts), nil })
	if err != nil {
		return nil, err
	}
	if v.Gateway, err = UnlessEnded(ctx, func() (*gateway.Plan, error) { return gateway.Compile(&file.Config, v.Facts) }); err != nil {
		if len(refusals(v.Findings)) > 0 {
			return v, Refused{refusals(v.Findings)}
		}
		return v, err
	}
	return v, h.preview(ctx, v, w)
}

func (h Host) preview(ctx context.Context, v *Preview, w Wish) error {
	now, state, err := h.present(ctx, v.Gateway)
	if err != nil {
		return err
	}
	v.Before, v.Changed, v.Table = now.Value, state.Changes, now.Facts
	if v.InForce, err = h.replaceable(now.Value, state, w.Overwrite); err != nil {
		v.Obstacles = append(v.Obstacles, err.Error())
	}
	v.TimeWaitSeconds = timeWaitSeconds(now)
	if e := v.Gateway.Expect; (e.Flows > 0 || e.Rate > 0) && now.Facts.Max > 0 {
		s := Size(e, now)
		v.Sizing = &s
	}
	if now.Value == tune.GatewayForeign {
		return nil // Plan has no changes for that
	}
	v.Prepared, err = Plan(v.Gateway, gateway.Digest(v.Gateway), now, w.Origin)
	return err
}

// Refused reports whether apply would do nothing of it.
func (v *Preview) Refused() bool { return len(v.Obstacles) > 0 || len(refusals(v.Findings)) > 0 }

func timeWaitSeconds(now Present) float64 {
	if wait, ok := now.Sysctls.Int(timeWait); ok {
		return float64(wait)
	}
	return usualTimeWait
}
