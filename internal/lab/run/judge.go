package run

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// judge compares the report with what the scenario expects.
func (c *conductor) judge() {
	lab.WeighRemedies(c.sc, c.report)
	c.sc.CompareStages(c.report)
	judge(c.sc, c.report)
}

// expectation is one part of what a scenario expects.
type expectation struct {
	applies  bool
	expected string
	// see returns what the report shows, and whether that is as expected.
	see func() (seen string, met bool)
}

func judge(sc *lab.Scenario, r *lab.Report) {
	e := sc.Expect
	all := []expectation{
		{e.Finding != "", "doctor finds " + e.Finding, func() (string, bool) { return seenFindings(r), found(r, e.Finding) }},
		{e.Findings != nil, "doctor finds nothing" + besides(e.Findings), func() (string, bool) { return seenFindings(r), allAllowed(&e, r) }},
		{e.Cured != "", fmt.Sprintf("in stage %s %s is gone", e.Cured, e.Finding), func() (string, bool) { return seeCured(&e, r) }},
		{e.Complete != "", fmt.Sprintf("stage %s completes every request", e.Complete), func() (string, bool) { return seeComplete(sc, r) }},
	}
	for _, name := range e.Hold {
		all = append(all, expectation{!slices.Contains(r.LeftOut, name), fmt.Sprintf("in stage %s all connections stand, and those that are asked are alive", name),
			func() (string, bool) { return seeHeld(r.Stage(name)) }})
	}
	for i := range r.Stages {
		s := &r.Stages[i]
		exchanges := slices.ContainsFunc(s.Loads, func(l lab.LoadReport) bool { return l.Exchange != nil })
		all = append(all, expectation{exchanges, fmt.Sprintf("in stage %s every far end sees the expected address, and answers come back", s.Name),
			func() (string, bool) { return seeExchanges(s) }})
	}
	counted := slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return s.Delivery() != nil })
	all = append(all, expectation{counted, "packets arrive with the expected addresses and right checksums, once and in order", func() (string, bool) { return seeDeliveries(r) }})
	if e.Rate != nil {
		all = append(all, expectation{true, fmt.Sprintf("stage %s reaches %.2f × the rate of stage %s", e.Rate.Stage, e.Rate.AtLeast, e.Rate.Of),
			func() (string, bool) { return seeRate(e.Rate, r) }})
	}
	for i := range sc.Stages {
		if st := &sc.Stages[i]; st.Remedy != nil && len(st.Remedy.Expect) > 0 {
			all = append(all, expectation{true, st.Name + ": " + effects(st.Remedy.Expect), func() (string, bool) { return seeRemedy(st, r) }})
		}
	}
	all = append(all, expectation{r.Fix != nil, "every host value is restored", func() (string, bool) {
		if r.Fix.Restored {
			return "restored", true
		}
		return "not restored; see 'natkit tune list'", false
	}})
	r.ExpectationMet = true
	for _, one := range all {
		if one.applies {
			seen, met := one.see()
			r.Verdict = append(r.Verdict, lab.Verdict{Expected: one.expected, Seen: seen, Met: met})
			r.ExpectationMet = r.ExpectationMet && met
		}
	}
	r.ExpectationMet = r.ExpectationMet && len(r.Verdict) > 0 && !r.Interrupted
}

func found(r *lab.Report, id string) bool {
	return slices.ContainsFunc(r.Findings, func(f diagnose.Finding) bool { return f.ID == id })
}

func seenFindings(r *lab.Report) string {
	ids := make([]string, len(r.Findings))
	for i, f := range r.Findings {
		ids[i] = f.ID
	}
	if len(ids) == 0 {
		return "nothing found"
	}
	return "found " + strings.Join(ids, ", ")
}

func besides(findings *[]string) string {
	if findings == nil || len(*findings) == 0 {
		return ""
	}
	return " besides " + strings.Join(*findings, ", ")
}

func allAllowed(e *lab.Expect, r *lab.Report) bool {
	return !slices.ContainsFunc(r.Findings, func(f diagnose.Finding) bool { return !e.Allows(f.ID) })
}

// seeCured: doctor does not report the fault any more.
func seeCured(e *lab.Expect, r *lab.Report) (string, bool) {
	s := r.Stage(e.Cured)
	switch {
	case s == nil || s.Found == nil:
		return "doctor did not run there", false
	case !slices.Contains(s.Found, e.Finding):
		return "gone", true
	case r.Fix == nil:
		return "still found, as doctor had no remedy to apply", false
	}
	return "still found", false
}

func seeComplete(sc *lab.Scenario, r *lab.Report) (string, bool) {
	s := r.Stage(sc.Expect.Complete)
	if s == nil {
		return "the stage did not run", false
	}
	asked := sc.Load.Requests
	if st, ok := sc.Stage(s.Name); ok {
		asked = sc.Requests(st)
	}
	of := ""
	if asked > 0 { // 0 for other kinds of load, which end by time
		of = " of " + units.Count(asked)
	}
	return fmt.Sprintf("%s%s completed, %s failed", units.Count(s.Completed), of, units.Count(s.Failed)), s.Failed == 0 && s.Completed > 0 && s.Completed >= asked
}

// seeHeld: all connections stood, and those that were asked answered.
func seeHeld(s *lab.StageReport) (string, bool) {
	if s == nil || s.Held() == nil {
		return "the stage did not run", false
	}
	h := s.Held()
	return fmt.Sprintf("%s of %s stood, %s of %s asked were alive", units.Count(h.Established), units.Count(h.Config.Connections),
		units.Count(h.Alive), units.Count(h.Config.Verify)), h.Whole()
}

// seeExchanges: every far end saw what its load expects.
func seeExchanges(s *lab.StageReport) (string, bool) {
	loads := 0
	for _, l := range s.Loads {
		if l.Exchange == nil {
			continue
		}
		loads++
		if faults := l.Exchange.Faults; len(faults) > 0 {
			return fmt.Sprintf("%s: %s", l.Exchange.Name, strings.Join(faults, ", ")), false
		}
	}
	return units.Plural(loads, "load is as expected", "loads are as expected"), true
}

// seeDeliveries: packets arrived in every stage, and none as it should not have. Those that are lost are reported.
func seeDeliveries(r *lab.Report) (string, bool) {
	received, lost := int64(0), int64(0)
	for i := range r.Stages {
		s := &r.Stages[i]
		d := s.Delivery()
		if d == nil {
			continue
		}
		if n := d.Wrong(); n > 0 || d.Received == 0 {
			return fmt.Sprintf("stage %s: %s of %s wrong: %s misdelivered, %s corrupted, %s twice, %s late or in another order", s.Name, units.Count(n), units.Count(d.Sent),
				units.Count(d.Misdelivered), units.Count(d.Corrupted.Total()), units.Count(d.Duplicated), units.Count(d.Late+d.Reordered)), false
		}
		received, lost = received+d.Received, lost+d.Lost
	}
	return fmt.Sprintf("%s arrived, %s lost", units.Count(received), units.Count(lost)), true
}

func effects(all []lab.Effect) string {
	words := make([]string, len(all))
	for i, e := range all {
		words[i] = e.Words()
	}
	return strings.Join(words, " or ")
}

// seeRemedy: what was measured is among what is expected of the remedy.
func seeRemedy(st *lab.Stage, r *lab.Report) (string, bool) {
	s := r.Stage(st.Name)
	if s == nil || s.Remedy == nil {
		return "the stage did not run", false
	}
	return cmp.Or(s.Remedy.Effect.Words(), s.Remedy.Words), slices.Contains(st.Remedy.Expect, s.Remedy.Effect)
}

func seeRate(e *lab.Rate, r *lab.Report) (string, bool) {
	if len(r.RateRatios) == 0 {
		return "a stage did not run", false
	}
	ratio := r.RateRatios[0]
	return fmt.Sprintf("%.2f ×", ratio), ratio >= e.AtLeast
}

// compareRates keeps the ratio of the rates that the scenario compares.
func (c *conductor) compareRates() {
	e := c.sc.Expect.Rate
	if e == nil {
		return
	}
	stage, of := c.report.Stage(e.Stage), c.report.Stage(e.Of)
	if stage != nil && of != nil && of.RequestsPerSecond > 0 {
		c.report.RateRatios = []float64{stage.RequestsPerSecond / of.RequestsPerSecond}
	}
}

// weighable is the number of entries from which the growth of the kernel's slabs
// gives the size of one: slabs grow by pages and belong to others too.
const weighable = 5000

// weigh puts the predicted memory beside what the slabs grew by since the lab was
// empty.
func (c *conductor) weigh(ctx context.Context, st *lab.Stage, fix *lab.Fix) error {
	node := c.watched(st)
	now, err := c.sample(ctx, node)
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
	facts := capacity.TableOf(now)
	fix.PredictedMaxBytes = facts.Cost.TableBytes(facts.Max, facts.Buckets)
	fix.SeenBytes = slabBytes(now) - c.emptyBytes
	if fix.SeenEntries >= weighable && fix.SeenBytes > 0 {
		fix.SeenBytesPerEntry = float64(fix.SeenBytes) / float64(fix.SeenEntries)
	}
	return nil
}

// slabBytes returns the size of the slabs of entries and of extensions.
func slabBytes(s *snapshot.Snapshot) int64 {
	if s.ConntrackSize == nil {
		return 0
	}
	return int64(s.ConntrackSize.SlabBytes + s.ConntrackSize.ExtensionSlabBytes)
}
