package run

import (
	"fmt"

	"github.com/natkit/natkit/internal/lab"
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
	if s := stageOf(r, name); s != nil {
		v.Seen = fmt.Sprintf("%d of %d completed, %d failed", s.Completed, sc.Load.Requests, s.Failed)
		v.Met = s.Failed == 0 && s.Completed == sc.Load.Requests
	}
	return v
}

func judgeRate(e lab.Rate, r *lab.Report) lab.Verdict {
	v := lab.Verdict{
		Expected: fmt.Sprintf("stage %s reaches %.2f × the rate of stage %s", e.Stage, e.AtLeast, e.Of),
		Seen:     "a stage did not run",
	}
	s, of := stageOf(r, e.Stage), stageOf(r, e.Of)
	if s == nil || of == nil || of.RequestsPerSecond == 0 {
		return v
	}
	ratio := s.RequestsPerSecond / of.RequestsPerSecond
	v.Seen = fmt.Sprintf("%.2f × (%.0f and %.0f requests/s)", ratio, s.RequestsPerSecond, of.RequestsPerSecond)
	v.Met = ratio >= e.AtLeast
	return v
}

func stageOf(r *lab.Report, name string) *lab.StageReport {
	for i := range r.Stages {
		if r.Stages[i].Name == name {
			return &r.Stages[i]
		}
	}
	return nil
}
