package run

import (
	"context"
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/lab"
)

// moreRounds is how often two stages are run again at most where their rates missed
// what was expected. A stage lasts a second or two, and on a busy machine one run of
// the very same thing differs from the next by tens of percent.
const moreRounds = 8

// compareRates keeps the ratio of the rates that the scenario compares. Where it is
// below what is expected it runs both stages again, in turn and without doctor, until
// the median of all is not, as often as moreRounds.
func (c *conductor) compareRates(ctx context.Context) error {
	e := c.sc.Expect.Rate
	if e == nil {
		return nil
	}
	stage, of := c.report.Stage(e.Stage), c.report.Stage(e.Of)
	if stage == nil || of == nil || of.RequestsPerSecond == 0 {
		return nil
	}
	c.report.RateRatios = []float64{stage.RequestsPerSecond / of.RequestsPerSecond}
	for range moreRounds {
		// Of an even number the median is a mean, which one good run may lift.
		if r := c.report.RateRatios; len(r)%2 == 1 && median(r) >= e.AtLeast {
			return nil
		}
		if err := c.compareAgain(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (c *conductor) compareAgain(ctx context.Context, e *lab.Rate) error {
	base, err := c.rate(ctx, e.Of)
	if err != nil {
		return err
	}
	rate, err := c.rate(ctx, e.Stage)
	if err != nil {
		return err
	}
	if base > 0 {
		c.report.RateRatios = append(c.report.RateRatios, rate/base)
	}
	return nil
}

// rate runs a stage again, for its rate alone.
func (c *conductor) rate(ctx context.Context, name string) (float64, error) {
	st, ok := c.sc.Stage(name)
	if !ok {
		return 0, fmt.Errorf("compare rates: no stage %s", name)
	}
	again := *st
	again.Doctor, again.Trace = nil, nil
	if err := c.prepare(ctx, &again); err != nil {
		return 0, fmt.Errorf("stage %s again: %w", name, err)
	}
	r, err := c.measure(ctx, &again, 0)
	if err != nil {
		return 0, fmt.Errorf("stage %s again: %w", name, err)
	}
	return r.RequestsPerSecond, nil
}

func judgeRate(e lab.Rate, r *lab.Report) lab.Verdict {
	v := lab.Verdict{
		Expected: fmt.Sprintf("stage %s reaches %.2f × the rate of stage %s", e.Stage, e.AtLeast, e.Of),
		Seen:     "a stage did not run",
	}
	if len(r.RateRatios) == 0 {
		return v
	}
	ratio := median(r.RateRatios)
	v.Seen = fmt.Sprintf("%.2f ×", ratio)
	if n := len(r.RateRatios); n > 1 {
		v.Seen = fmt.Sprintf("%.2f ×, the median of %d comparisons (%s)", ratio, n, ratios(r.RateRatios))
	}
	v.Met = ratio >= e.AtLeast
	return v
}

func ratios(values []float64) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprintf("%.2f", v)
	}
	return strings.Join(texts, ", ")
}
