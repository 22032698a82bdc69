package run

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// judge compares the report with what the scenario expects.
func (c *conductor) judge() {
	lab.WeighRemedies(c.sc, c.report)
	judge(c.sc, c.report)
}

func judge(sc *lab.Scenario, r *lab.Report) {
	e := sc.Expect
	if e.Finding != "" {
		r.Verdict = append(r.Verdict, judgeFinding(e.Finding, r))
	}
	if e.Findings != nil {
		r.Verdict = append(r.Verdict, judgeFindings(&e, r))
	}
	if e.Cured != "" {
		r.Verdict = append(r.Verdict, judgeCured(&e, r))
	}
	if e.Complete != "" {
		r.Verdict = append(r.Verdict, judgeComplete(sc, r))
	}
	for i := range r.Stages {
		if v, exchanged := judgeExchanges(&r.Stages[i]); exchanged {
			r.Verdict = append(r.Verdict, v)
		}
	}
	if e.Rate != nil {
		r.Verdict = append(r.Verdict, judgeRate(*e.Rate, r))
	}
	for _, st := range sc.Stages {
		if st.Remedy != nil && len(st.Remedy.Expect) > 0 {
			r.Verdict = append(r.Verdict, judgeRemedy(&st, r))
		}
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
	v := lab.Verdict{Expected: "doctor finds " + id + " by itself", Seen: seenFindings(r)}
	v.Met = slices.ContainsFunc(r.Findings, func(f diagnose.Finding) bool { return f.ID == id })
	return v
}

func seenFindings(r *lab.Report) string {
	if len(r.Findings) == 0 {
		return "nothing found"
	}
	ids := make([]string, len(r.Findings))
	for i, f := range r.Findings {
		ids[i] = f.ID
	}
	return "found " + strings.Join(ids, ", ")
}

// judgeFindings: doctor names nothing that it may not.
func judgeFindings(e *lab.Expect, r *lab.Report) lab.Verdict {
	v := lab.Verdict{Expected: "doctor finds nothing", Seen: seenFindings(r), Met: true}
	if len(*e.Findings) > 0 {
		v.Expected = "doctor finds nothing besides " + strings.Join(*e.Findings, ", ")
	}
	for _, f := range r.Findings {
		v.Met = v.Met && e.Allows(f.ID)
	}
	return v
}

// judgeCured: doctor does not name the fault any more.
func judgeCured(e *lab.Expect, r *lab.Report) lab.Verdict {
	v := lab.Verdict{Expected: fmt.Sprintf("in stage %s %s is gone", e.Cured, e.Finding), Seen: "doctor did not look there"}
	s := r.Stage(e.Cured)
	if s == nil || s.Found == nil {
		return v
	}
	v.Seen, v.Met = "gone", !slices.Contains(s.Found, e.Finding)
	if !v.Met {
		v.Seen = "still found"
		if r.Fix == nil {
			v.Seen += ", as doctor had no remedy to apply by itself"
		}
	}
	return v
}

func judgeComplete(sc *lab.Scenario, r *lab.Report) lab.Verdict {
	name := sc.Expect.Complete
	v := lab.Verdict{Expected: fmt.Sprintf("stage %s completes every request", name), Seen: "the stage did not run"}
	if s := r.Stage(name); s != nil {
		asked := sc.Load.Requests
		if st, ok := sc.Stage(name); ok {
			asked = sc.Requests(st)
		}
		v.Seen = fmt.Sprintf("%s of %s completed, %s failed", units.Count(s.Completed), units.Count(asked), units.Count(s.Failed))
		if asked == 0 { // another kind of load: its time was the bound
			v.Seen = fmt.Sprintf("%s completed, %s failed", units.Count(s.Completed), units.Count(s.Failed))
		}
		v.Met = s.Failed == 0 && s.Completed > 0 && s.Completed >= asked
	}
	return v
}

// judgeExchanges: every far end saw what its load says.
func judgeExchanges(s *lab.StageReport) (v lab.Verdict, exchanged bool) {
	v = lab.Verdict{Expected: fmt.Sprintf("in stage %s every far end sees the address that it should, and answers come back", s.Name), Met: true}
	loads := 0
	for _, l := range s.Loads {
		if l.Exchange == nil {
			continue
		}
		loads++
		if faults := l.Exchange.Faults; len(faults) > 0 && v.Met {
			v.Met, v.Seen = false, fmt.Sprintf("%s: %s", l.Exchange.Name, strings.Join(faults, ", "))
		}
	}
	if v.Met {
		v.Seen = units.Plural(loads, "load is as it should be", "loads are as they should be")
	}
	return v, loads > 0
}

// judgeRemedy: what was measured is among what is expected of the remedy.
func judgeRemedy(st *lab.Stage, r *lab.Report) lab.Verdict {
	var expected []string
	for _, e := range st.Remedy.Expect {
		expected = append(expected, e.Words())
	}
	v := lab.Verdict{Expected: fmt.Sprintf("%s: %s", st.Name, strings.Join(expected, " or ")), Seen: "the stage did not run"}
	if s := r.Stage(st.Name); s != nil && s.Remedy != nil {
		v.Seen = cmp.Or(s.Remedy.Effect.Words(), s.Remedy.Words)
		v.Met = slices.Contains(st.Remedy.Expect, s.Remedy.Effect)
	}
	return v
}

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
