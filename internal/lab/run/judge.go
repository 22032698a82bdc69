package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
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

// weighable is the number of entries from which the growth of the kernel's slabs
// tells the size of one: slabs grow by pages and belong to others too.
const weighable = 5000

// weigh puts the predicted memory beside what the slabs grew by since the lab was
// empty.
func (c *conductor) weigh(ctx context.Context, st *lab.Stage, fix *lab.Fix) error {
	node := c.watched(st)
	now, err := c.look(ctx, node)
	if err != nil {
		return err
	}
	usage, err := dump.Count(c.node(node))
	if err != nil {
		return err
	}
	fix.SeenEntries = usage.Entries
	if now.ConntrackSize == nil {
		return nil
	}
	fix.PredictedBytesPerEntry = float64(now.ConntrackSize.PerEntry())
	facts := tune.FactsOf(now)
	fix.PredictedMaxBytes = facts.Cost.TableBytes(facts.Max, facts.Buckets)
	fix.SeenBytes = slabBytes(now) - c.emptyBytes
	if fix.SeenEntries >= weighable && fix.SeenBytes > 0 {
		fix.SeenBytesPerEntry = float64(fix.SeenBytes) / float64(fix.SeenEntries)
	}
	return nil
}

// slabBytes is what the slabs of entries and of extensions hold.
func slabBytes(s *snapshot.Snapshot) int64 {
	if s.ConntrackSize == nil {
		return 0
	}
	return int64(s.ConntrackSize.SlabBytes + s.ConntrackSize.ExtensionSlabBytes)
}
