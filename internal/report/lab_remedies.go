package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// hasRemedies reports whether a run compares remedies: its stages are then rows of one
// table, as there are too many of them for columns.
func hasRemedies(r *lab.Report) bool {
	return slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return s.Remedy != nil })
}

// effectWords are short enough for a column, with their tone and mark.
var effectWords = map[lab.Effect]struct {
	text string
	tone Tone
	mark string
}{
	lab.Cures:        {"cures", Good, "✓"},
	lab.Reduces:      {"reduces", Warn, "~"},
	lab.HidesCounter: {"hides", Bad, "✗"},
	lab.Trades:       {"trades", Bad, "✗"},
	lab.NoEffect:     {"none", Bad, "✗"},
}

// handshakeColumns are the heads of the table of stages.
var handshakeColumns = []Column{
	{Head: "stage"}, {Head: "conns", Right: true}, {Head: "failed", Right: true}, {Head: "late", Right: true},
	{Head: "connect, ms", Right: true}, {Head: "resent", Right: true}, {Head: "PAWS", Right: true},
	{Head: "TW", Right: true}, {Head: "new/s", Right: true}, {Head: "effect"},
}

// handshakeRows have one stage each; a stage without connections has a row of dashes.
func handshakeRows(r *lab.Report) [][]Cell {
	var rows [][]Cell
	for i := range r.Stages {
		s := &r.Stages[i]
		row := []Cell{{s.Name, Bold}}
		if h := s.Handshakes; h != nil {
			row = append(row, Cell{Text: units.Count(h.Opened)}, badUnlessZero(s.Failed), badUnlessZero(h.Late), connectCell(s),
				badUnlessZero(int64(h.SYNRetransmits)), badUnlessZero(int64(h.Rejected)),
				Cell{Text: units.Count(h.TimeWait)}, Cell{Text: units.Fixed(h.PerSecond, 0)})
		}
		for len(row) < len(handshakeColumns)-1 {
			row = append(row, noValue)
		}
		rows = append(rows, append(row, effectCell(s)))
	}
	return rows
}

func connectCell(s *lab.StageReport) Cell {
	if s.Completed == 0 {
		return noValue
	}
	c := Cell{Text: fmt.Sprintf("%s / %s / %s", units.Millis(s.Connect.Median), units.Millis(s.Connect.P99), units.Millis(s.Connect.Max))}
	if s.ConnectLate > 0 {
		c.Tone = Bad
	}
	return c
}

func effectCell(s *lab.StageReport) Cell {
	if s.Remedy == nil {
		return Cell{}
	}
	e, known := effectWords[s.Remedy.Effect]
	if !known {
		return noValue
	}
	return Cell{e.text, e.tone}
}

// handshakeLegend says what the columns are.
func handshakeLegend(r *lab.Report) []string {
	counter := "no counter"
	for _, s := range r.Stages {
		if s.Handshakes != nil {
			counter = s.Handshakes.RejectedBy
		}
	}
	return []string{
		"conns: connections begun. late: connected after a second or more. connect: median / 99 % / greatest of the completed ones.",
		"resent: SYNs that the clients sent again. PAWS: segments that the server rejected by their timestamp (" + counter + ").",
		"TW: the server's sockets in TIME_WAIT at the end. new/s: accepted, with the pauses between batches.",
	}
}

// remedyView is what text and page show of one remedy.
type remedyView struct {
	Stage, About, Mark, Effect, Words, Against, Cost, Risk string
	Tone                                                   Tone
}

func remedyViews(r *lab.Report) []remedyView {
	var views []remedyView
	for _, s := range r.Stages {
		m := s.Remedy
		if m == nil {
			continue
		}
		v := remedyView{Stage: s.Name, About: s.About, Mark: "?", Effect: "not measured", Tone: Dim,
			Words: m.Words, Against: m.Against, Cost: m.Cost, Risk: m.Risk}
		if e, known := effectWords[m.Effect]; known {
			v.Mark, v.Tone, v.Effect = e.mark, e.tone, m.Effect.Words()
		}
		views = append(views, v)
	}
	return views
}

// labRemedies writes the stages as rows, and what each remedy did.
func (p *printer) labRemedies(r *lab.Report) {
	t := &Table{Indent: 2, Keys: 1, Columns: handshakeColumns}
	for _, row := range handshakeRows(r) {
		t.Cells(row...)
	}
	p.table(t)
	for _, line := range handshakeLegend(r) {
		p.labelled(2, "", 0, line)
	}
	p.heading("Remedies (in parentheses: the stage that each is against)")
	for i, v := range remedyViews(r) {
		if i > 0 {
			p.blank()
		}
		p.line("  " + p.style.Paint(v.Tone, v.Mark+" "+v.Stage+": "+v.Effect) + p.style.Paint(Dim, " (against "+v.Against+")"))
		p.labelled(4, "seen", remedyLabel, v.Words)
		p.labelled(4, "cost", remedyLabel, v.Cost)
		p.labelled(4, "risk", remedyLabel, v.Risk)
	}
}

const remedyLabel = 6

// remedySummary tells how great the fault was, and in one sentence for each effect which
// remedies have it.
func remedySummary(r *lab.Report) []string {
	sentences := rejectedSentences(r)
	for _, e := range lab.Effects {
		var names []string
		for _, v := range remedyViews(r) {
			if v.Effect == e.Words() {
				names = append(names, v.Stage)
			}
		}
		if len(names) > 0 {
			sentences = append(sentences, fmt.Sprintf("%s: %s.", sentenceCase(e.Words()), strings.Join(names, ", ")))
		}
	}
	return sentences
}

// rejectedSentences are about the stages that remedies are against.
func rejectedSentences(r *lab.Report) (sentences []string) {
	for i := range r.Stages {
		s := &r.Stages[i]
		against := func(v remedyView) bool { return v.Against == s.Name }
		if h := s.Handshakes; h != nil && h.Rejected > 0 && slices.ContainsFunc(remedyViews(r), against) {
			sentences = append(sentences, fmt.Sprintf("In stage %s the server rejected %s for %s (%s).", s.Name,
				rejectedWords(h), units.Plural(h.Accepted, "connection", "connections"), units.Percent(h.RejectRate)))
		}
	}
	return sentences
}

func rejectedWords(h *lab.Handshakes) string {
	if h.RejectedSYNsOnly() {
		return units.Plural(h.Rejected, "SYN", "SYNs")
	}
	return units.Plural(h.Rejected, "segment", "segments") + ", SYNs and late ones of open connections,"
}

func sentenceCase(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
