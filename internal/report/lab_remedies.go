package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
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

// handshakes has a row for each stage; one without connections has a row of dashes.
func handshakes(r *lab.Report) *Table {
	t := &Table{Indent: 2, Keys: 1, Columns: []Column{
		{Head: "stage"}, {Head: "conns", Right: true}, {Head: "failed", Right: true}, {Head: "late", Right: true},
		{Head: "connect, ms", Right: true}, {Head: "resent", Right: true}, {Head: "PAWS", Right: true},
		{Head: "TW", Right: true}, {Head: "new/s", Right: true}, {Head: "effect"},
	}}
	for i := range r.Stages {
		s := &r.Stages[i]
		row := []Cell{{s.Name, Bold}}
		if h := s.Handshakes; h != nil {
			row = append(row, Cell{Text: units.Count(h.Opened)}, badUnlessZero(s.Failed), badUnlessZero(h.Late), connectCell(s),
				badUnlessZero(int64(h.SYNRetransmits)), badUnlessZero(int64(h.Rejected)),
				Cell{Text: units.Count(h.TimeWait)}, Cell{Text: units.Fixed(h.PerSecond, 0)})
		}
		for len(row) < len(t.Columns)-1 {
			row = append(row, noValue)
		}
		t.Cells(append(row, effectCell(s))...)
	}
	return t
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

// handshakeLegend explains the columns.
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
	p.table(handshakes(r))
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

// remedySummary returns how great the fault was, and in one sentence for each effect which
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

// What a stage's trace is shown of: the rest is in the JSON, or summed up.
const (
	mostPlaces = 6
	mostTalks  = 3
	// leastWork is the share of packet receive from which, in some stage, a class of
	// work has a row of its own.
	leastWork = 0.01
)

// profileMeasures returns where the CPUs spent their time, in those stages that were
// profiled.
func profileMeasures(r *lab.Report) []measures {
	profiled := func(s lab.StageReport) bool { return s.Profile != nil }
	if !slices.ContainsFunc(r.Stages, profiled) {
		return nil
	}
	all := func(label string, samples func(*snapshot.Profile) uint64) measure {
		return profileRow(r, label, func(p *snapshot.Profile) Cell { return Cell{Text: units.Percent(p.Share(samples(p)))} })
	}
	return []measures{
		{Title: "CPU time", Rows: []measure{
			all("busy", func(p *snapshot.Profile) uint64 { return p.Samples }),
			all("in packet receive", func(p *snapshot.Profile) uint64 { return p.Receive }),
			profileRow(r, "samples", func(p *snapshot.Profile) Cell { return Cell{units.Count(p.Samples + p.Idle), Dim} }),
		}},
		{Title: "of packet receive", Joined: true, Rows: receiveRows(r)},
	}
}

func profileRow(r *lab.Report, label string, cell func(*snapshot.Profile) Cell) measure {
	return row(r, label, func(s *lab.StageReport) Cell {
		if s.Profile == nil {
			return noValue
		}
		return cell(s.Profile)
	})
}

// receiveRows are the classes of work in packet receive, in the order of the
// profile; they add up to 100 %.
func receiveRows(r *lab.Report) []measure {
	var large, small []string
	for _, name := range receiveClasses(r) {
		isLarge := func(s lab.StageReport) bool { return receiveShare(s.Profile, name) >= leastWork }
		if slices.ContainsFunc(r.Stages, isLarge) {
			large = append(large, name)
		} else {
			small = append(small, name)
		}
	}
	share := func(names ...string) func(*snapshot.Profile) Cell {
		return func(p *snapshot.Profile) Cell { return Cell{Text: units.Percent(receiveShare(p, names...))} }
	}
	var rows []measure
	for _, name := range large {
		rows = append(rows, profileRow(r, name, share(name)))
	}
	if any := func(s lab.StageReport) bool { return receiveShare(s.Profile, small...) > 0 }; slices.ContainsFunc(r.Stages, any) {
		rows = append(rows, profileRow(r, "less than 1 % each", share(small...)))
	}
	return rows
}

// receiveClasses are the names of all classes of work in packet receive.
func receiveClasses(r *lab.Report) []string {
	var names []string
	for _, s := range r.Stages {
		if s.Profile == nil {
			continue
		}
		for _, c := range s.Profile.Classes {
			if c.Receive && !slices.Contains(names, c.Name) {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

func receiveShare(p *snapshot.Profile, names ...string) float64 {
	if p == nil || p.Receive == 0 {
		return 0
	}
	var n uint64
	for _, c := range p.Classes {
		if c.Receive && slices.Contains(names, c.Name) {
			n += c.Samples
		}
	}
	return float64(n) / float64(p.Receive)
}

// dropView is what text and page show of the drops of a stage.
type dropView struct {
	Stage, Summary string
	Places         *Table
	Causes, Talks  []string
}

// labDrops are the stages whose drops were traced.
func labDrops(r *lab.Report) []dropView {
	var views []dropView
	for i := range r.Stages {
		if s := &r.Stages[i]; s.Drops != nil {
			views = append(views, dropView{
				Stage: s.Name, Summary: dropSummary(s),
				Places: dropPlaces(s.Drops), Causes: dropCauses(s), Talks: dropTalks(s.Drops),
			})
		}
	}
	return views
}

func dropSummary(s *lab.StageReport) string {
	d := s.Drops
	text := fmt.Sprintf("%s dropped in %s, counted at skb:kfree_skb (%s)", units.Plural(d.Packets, "packet", "packets"), units.Seconds(d.Seconds), d.Source)
	if d.Lost > 0 {
		text += fmt.Sprintf("; %s of them not placed: natkit's own tables were full", units.Count(d.Lost))
	}
	return text
}

// dropPlaces are the most frequent places, and a row for the rest.
func dropPlaces(d *snapshot.Drops) *Table {
	t := &Table{Indent: 2, Columns: []Column{{Head: "packets", Right: true}, {Head: "rate", Right: true}, {Head: "share", Right: true}, {Head: "function"}, {Head: "reason"}, {Head: "protocol"}}}
	place := func(packets uint64, where ...string) {
		t.Row(append([]string{units.Count(packets), perSecond(packets, d.Seconds) + "/s", share(packets, d.Packets)}, where...)...)
	}
	rest := d.Packets
	for _, s := range d.Sites[:min(len(d.Sites), mostPlaces)] {
		function := s.Function
		if s.Offset > 0 {
			function += fmt.Sprintf("+%#x", s.Offset)
		}
		place(s.Packets, function, orNone(s.Reason), s.Protocol)
		rest -= min(rest, s.Packets)
	}
	if rest > 0 && len(t.rows) > 0 {
		place(rest, "elsewhere")
	}
	return t
}

// dropCauses are the causes of netfilter's drops, and compare the full table's
// with the kernel's own counter.
func dropCauses(s *lab.StageReport) []string {
	var lines []string
	for _, c := range s.Drops.Causes {
		lines = append(lines, fmt.Sprintf("%s: %s (from %s)", c.Cause, units.Plural(c.Packets, "packet", "packets"), c.Source))
	}
	if n, ok := s.Counters["drop"]; ok {
		lines = append(lines, fmt.Sprintf("conntrack's own counter drop grew by %s meanwhile", units.Count(n)))
	}
	return lines
}

// dropTalks are whose packets were dropped.
func dropTalks(d *snapshot.Drops) []string {
	sampled := uint64(0)
	for _, f := range d.Flows {
		sampled += f.Packets
	}
	var lines []string
	for _, f := range d.Flows[:min(len(d.Flows), mostTalks)] {
		line := fmt.Sprintf("%s %s → %s", f.Protocol, f.Source, f.Destination)
		if f.Interface != "" {
			line += " by " + f.Interface
		}
		lines = append(lines, fmt.Sprintf("%s: %s of the sampled drops, %s", line, share(f.Packets, sampled), f.Function))
	}
	return lines
}

// untraced are the sentences about what a stage should have traced and could not.
func untraced(r *lab.Report) []string {
	var lines []string
	for _, s := range r.Stages {
		for _, u := range s.Untraced {
			lines = append(lines, fmt.Sprintf("not traced in %s: %s: %s", s.Name, u.What, strings.ReplaceAll(u.Why, "\n", "; ")))
		}
	}
	return lines
}

func (p *printer) labDrops(r *lab.Report) {
	for _, v := range labDrops(r) {
		p.heading("Dropped in " + v.Stage)
		p.labelled(2, "", 0, v.Summary)
		if len(v.Places.rows) > 0 {
			p.table(v.Places)
		}
		for i, line := range v.Causes {
			p.labelled(2, []string{"of these", ""}[min(i, 1)], labelWidth, line)
		}
		for i, line := range v.Talks {
			p.labelled(2, []string{"whose", ""}[min(i, 1)], labelWidth, line)
		}
	}
	if lines := untraced(r); len(lines) > 0 {
		p.blank()
		for _, line := range lines {
			p.labelled(2, "", 0, line)
		}
	}
}
