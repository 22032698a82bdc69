package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// comparison has a row for each stage that is compared.
func comparison(r *lab.Report) *Table {
	t := &Table{Indent: 2, Title: fmt.Sprintf("Each in turn, %s; rates and times are the median", units.Plural(r.Compared.Rounds, "round", "rounds")),
		Columns: []Column{{}, {Head: "packets/s", Right: true}, {Head: "gateway, ns/packet", Right: true}, {Head: "table entries", Right: true},
			{Head: "lost", Right: true}, {Head: "of " + r.Compared.With, Right: true}, {}}}
	for i := range r.Stages {
		s := &r.Stages[i]
		c := s.Comparison
		if c == nil {
			continue
		}
		own, times := Cell{Text: units.Fixed(c.GatewayNanoseconds, 0)}, Cell{timesWords(c.Times), Bold}
		if s.Name == r.Compared.Alone {
			own, times = noValue, noValue
		}
		d := s.Delivery()
		lost, verdict := Cell{"0", Dim}, Cell{}
		if d.Lost > 0 {
			lost = Cell{units.Percent(float64(d.Lost) / float64(d.Sent)), Bad}
		}
		if n := d.Wrong(); n > 0 {
			verdict = Cell{units.Count(n) + " arrived wrong", Bad}
		}
		t.Cells(Cell{s.Name, Bold}, Cell{Text: units.Rate(c.PerSecond)}, own, Cell{Text: units.Count(s.TableEntries)}, lost, times, verdict)
	}
	return t
}

// comparedLoads are what the stages send, those that send the same in one line.
func comparedLoads(r *lab.Report) (lines []string) {
	var asked []string
	stages := map[string][]string{}
	for _, s := range r.Stages {
		for _, l := range s.Loads {
			text := loadName(l) + ": " + l.Asked
			if stages[text] == nil {
				asked = append(asked, text)
			}
			stages[text] = append(stages[text], s.Name)
		}
	}
	for _, text := range asked {
		lines = append(lines, fmt.Sprintf("in %s %s", strings.Join(stages[text], ", "), text))
	}
	return lines
}

func timesWords(times float64) string { return units.Fixed(times, 2) + " ×" }

// comparisonSummary is one sentence: the fastest way to translate first, then the others, then what does not translate.
func comparisonSummary(r *lab.Report) []string {
	with := r.Stage(r.Compared.With)
	var translate, others []*lab.StageReport
	for i := range r.Stages {
		s := &r.Stages[i]
		switch {
		case s.Comparison == nil || s == with || s.Name == r.Compared.Alone:
		case s.Delivery().Translates:
			translate = append(translate, s)
		default:
			others = append(others, s)
		}
	}
	if with == nil || with.Comparison == nil || len(translate) == 0 {
		return nil
	}
	slices.SortStableFunc(translate, func(a, b *lab.StageReport) int { return cmp.Compare(b.Comparison.Times, a.Comparison.Times) })
	best := translate[0]
	parts := []string{fmt.Sprintf("With the mapping fixed, %s translates %s as many packets/s as %s%s", best.Name, timesWords(best.Comparison.Times), with.Name, costWords(best, with))}
	for _, s := range translate[1:] {
		parts = append(parts, s.Name+" "+timesWords(s.Comparison.Times))
	}
	text := strings.Join(parts, "; ")
	for i, s := range others {
		joined := " and "
		if i == 0 {
			joined = "; without translation "
		}
		text += joined + s.Name + " " + timesWords(s.Comparison.Times)
	}
	return []string{text + "."}
}

// costWords compares the gateway's time and the entries of two stages.
func costWords(s, with *lab.StageReport) string {
	text, own, its := "", s.Comparison.GatewayNanoseconds, with.Comparison.GatewayNanoseconds
	if own > 0 && its > 0 {
		text = fmt.Sprintf(", in %s of the gateway's time (%s ns instead of %s)", units.Percent(own/its), units.Fixed(own, 0), units.Fixed(its, 0))
	}
	return text + fmt.Sprintf(", with %s instead of %s in the connection table", units.Plural(s.TableEntries, "entry", "entries"), units.Count(with.TableEntries))
}
