package diagnose

import (
	"strconv"

	"github.com/natkit/natkit/internal/tune"
)

// Plan collects the changes of the automatic remedies of all findings. Where two
// want the same thing, the larger value serves both.
func (r *Report) Plan(origin string) tune.Plan {
	plan := tune.Plan{Origin: origin}
	at := map[string]int{}
	for _, f := range r.Findings {
		for _, m := range f.Remedies {
			if !m.Automatic {
				continue
			}
			for _, c := range m.Changes {
				i, seen := at[c.Key()]
				switch {
				case !seen:
					at[c.Key()] = len(plan.Changes)
					plan.Changes = append(plan.Changes, c)
				case larger(c.After, plan.Changes[i].After):
					plan.Changes[i] = c
				}
			}
		}
	}
	return plan
}

func larger(a, b string) bool {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	return errX == nil && errY == nil && x > y
}
