package run

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// judge compares the report with what the scenario expects.
func (c *conductor) judge() { judge(c.sc, c.report) }

func judge(sc *lab.Scenario, r *lab.Report) {
	e := sc.Expect
	if e.Finding != "" {
		r.Verdict = append(r.Verdict, judgeFinding(e.Finding, r))
	}
	if e.Complete != "" {
		r.Verdict = append(r.Verdict, judgeComplete(sc, r))
	}
	if e.Rate != nil {
		r.Verdict = append(r.Verdict, judgeRate(*e.Rate, r))
	}
	if r.Fix != nil {
		v := lab.Verdict{Expected: "every host value is put back", Seen: "put back", Met: r.Fix.Restored}
		if !v.Met {
			v.Seen = "not put back; see 'natkit tune list'"
		}
		r.Verdict = append(r.Verdict, v)
	}
	r.ExpectationMet = len(r.Verdict) > 0
	for _, v := range r.Verdict {
		r.ExpectationMet = r.ExpectationMet && v.Met
	}
}

func judgeFinding(id string, r *lab.Report) lab.Verdict {
	v := lab.Verdict{Expected: "doctor finds " + id + " by itself", Seen: "nothing found"}
	for i, f := range r.Findings {
		if i == 0 {
			v.Seen = "found " + f.ID
		} else {
			v.Seen += ", " + f.ID
		}
		v.Met = v.Met || f.ID == id
	}
	return v
}

func judgeComplete(sc *lab.Scenario, r *lab.Report) lab.Verdict {
	name := sc.Expect.Complete
	v := lab.Verdict{Expected: fmt.Sprintf("stage %s completes every request", name), Seen: "the stage did not run"}
	if s := r.Stage(name); s != nil {
		v.Seen = fmt.Sprintf("%s of %s completed, %s failed",
			units.Count(s.Completed), units.Count(sc.Load.Requests), units.Count(s.Failed))
		v.Met = s.Failed == 0 && s.Completed == sc.Load.Requests
	}
	return v
}

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
