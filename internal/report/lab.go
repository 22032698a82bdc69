package report

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/units"
)

// LabRun is the run of a scenario.
type LabRun struct{ *lab.Report }

// Text writes it.
func (d LabRun) Text(w io.Writer, style Style) error { return Lab(w, style, d.Report) }

// Lab writes the run of a scenario: what was built, the stages side by side,
// what doctor found, the fix and the verdict.
func Lab(w io.Writer, style Style, r *lab.Report) error {
	p := &printer{w: w, style: style}
	p.labHeader(r)
	if len(r.Stages) > 0 {
		p.labStages(r)
	}
	p.labDrops(r)
	p.heading("What doctor found")
	if len(r.Findings) == 0 {
		p.line("  nothing")
	}
	p.findings(r.Findings)
	if r.Fix != nil {
		p.labFix(r.Fix)
	}
	p.labCaptures(r)
	p.labVerdict(r)
	return p.err
}

func (p *printer) labHeader(r *lab.Report) {
	p.line(p.style.Paint(Bold, clean("natkit lab run "+r.Scenario)))
	if r.Title != "" {
		p.labelled(2, "", 0, r.Title)
	}
	p.blank()
	for _, fact := range labFacts(r) {
		for i, text := range fact.Lines {
			label := fact.Label
			if i > 0 {
				label = ""
			}
			p.labelled(2, label, labelWidth, text)
		}
	}
}

// fact is a label with the lines that belong to it.
type fact struct {
	Label string
	Lines []string
}

// labFacts returns where and how a report was measured.
func labFacts(r *lab.Report) []fact {
	machine := fmt.Sprintf("Linux %s, %s", r.Kernel, units.Plural(r.CPUs, "CPU", "CPUs"))
	run := fmt.Sprintf("natkit %s, %s, took %s", r.Version, r.Started.UTC().Format(time.DateTime)+" UTC", units.Seconds(r.Seconds))
	facts := []fact{{"machine", []string{machine}}, {"run", []string{run}}}
	if r.Server != "" {
		facts = append(facts, fact{"server", []string{r.Server}})
	}
	if len(r.Topology) > 0 {
		facts = append(facts, fact{"topology", r.Topology})
	}
	if lines := loadLines(r); len(lines) > 0 {
		facts = append(facts, fact{"load", lines})
	}
	return facts
}

// stageWidth lets the figures of stages stand apart from each other.
const stageWidth = 11

func (p *printer) labStages(r *lab.Report) {
	p.heading("Stages")
	about := &Table{Indent: 2, Columns: []Column{{}, {Wrap: true}}}
	for _, s := range r.Stages {
		about.Cells(Cell{s.Name, Bold}, Cell{Text: s.About})
		if s.GeneratorLimit != "" {
			about.Cells(Cell{}, Cell{"the generator was the limit: " + s.GeneratorLimit, Warn})
		}
		if why := r.Caution(&s); why != "" {
			about.Cells(Cell{}, Cell{"caution: " + why, Warn})
		}
	}
	for _, name := range r.LeftOut {
		about.Cells(Cell{name, Bold}, Cell{"left out: it changes values of the whole host for a while; --allow-host allows it", Warn})
	}
	if r.Interrupted {
		about.Cells(Cell{}, Cell{"interrupted: the last stage is what was reached, later ones did not run", Warn})
	}
	p.table(about)
	p.blank()
	if hasRemedies(r) {
		p.labRemedies(r)
		return
	}
	if r.Compared != nil {
		p.table(comparison(r))
		return
	}
	p.labMeasures(r)
	for _, t := range append(exchanges(r), stageCarriers(r)...) {
		p.gap()
		p.table(t)
	}
}

// labMeasures has a column for each stage.
func (p *printer) labMeasures(r *lab.Report) {
	t := &Table{Indent: 2, Keys: 2, Columns: []Column{{Min: 16}, {Min: 19}}}
	for _, s := range r.Stages {
		t.Columns = append(t.Columns, Column{Head: s.Name, Right: true, Min: stageWidth})
	}
	for i, group := range stageMeasures(r) {
		if i > 0 && !group.Joined {
			t.Row()
		}
		for j, m := range group.Rows {
			title := Cell{}
			if j == 0 {
				title = Cell{group.Title, Bold}
			}
			t.Cells(append([]Cell{title, {Text: m.Label}}, m.Cells...)...)
		}
	}
	p.table(t)
}

func (p *printer) labFix(fix *lab.Fix) {
	p.heading("The fix")
	remedy := fix.Remedy
	if fix.Rounds > 1 {
		remedy += fmt.Sprintf(" (%d rounds of applying and measuring again)", fix.Rounds)
	}
	p.labelled(2, "applied", labelWidth, remedy)
	p.labelled(2, "against", labelWidth, fix.Finding)
	p.changes(2+labelWidth, fix.Changes, nil)
	p.blank()
	p.table(fixMemory(fix))
	p.blank()
	restored := Cell{"✓ every changed host value is back as it was", Good}
	if !fix.Restored {
		restored = Cell{"✗ not every changed host value is back: run natkit lab clean", Bad}
	}
	p.line("  " + p.style.Paint(restored.Tone, restored.Text))
}

// fixMemory compares predicted with seen memory.
func fixMemory(fix *lab.Fix) *Table {
	t := &Table{Indent: 2, Columns: []Column{{Head: "memory"}, {Head: "predicted", Right: true, Min: 10}, {Head: "seen", Right: true, Min: 10}}}
	known := func(text string, known bool) string {
		if !known {
			return units.None
		}
		return text
	}
	per, entries := fix.PredictedBytesPerEntry, float64(fix.SeenEntries)
	t.Row("per tracked connection", known(units.Fixed(per, 0)+" B", per > 0), known(units.Fixed(fix.SeenBytesPerEntry, 0)+" B", fix.SeenBytesPerEntry > 0))
	if fix.SeenEntries > 0 {
		t.Row("the "+units.Count(fix.SeenEntries)+" entries after the last stage", known(units.Bytes(per*entries), per > 0), known(units.Bytes(fix.SeenBytes), fix.SeenBytes > 0))
	}
	t.Row("table full to the new limit", known(units.Bytes(fix.PredictedMaxBytes), fix.PredictedMaxBytes > 0), units.None)
	return t
}

func (p *printer) labVerdict(r *lab.Report) {
	p.blank()
	p.labelled(0, "", 0, strings.Join(labSummary(r), " "))
	title := Cell{"Verdict: as expected", Good}
	switch {
	case !r.ExpectationMet:
		title = Cell{"Verdict: not as expected", Alarm}
	case cautious(r):
		title = Cell{"Verdict: as expected, but " + withCaution, Warn}
	}
	p.blank()
	p.line(p.style.Paint(title.Tone, title.Text))
	t := &Table{Indent: 2, Columns: []Column{{}, {}, {Wrap: true}}}
	for _, v := range r.Verdict {
		mark := Cell{"✓", Good}
		if !v.Met {
			mark = Cell{"✗", Bad}
		}
		t.Cells(mark, Cell{Text: v.Expected}, Cell{Text: v.Seen})
	}
	p.table(t)
}

// withCaution is what a disturbed run is worth.
const withCaution = "the machine was not quiet: do not rely on its rates"

func cautious(r *lab.Report) bool {
	return slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return r.Caution(&s) != "" })
}

// labSummary compares remedies, ways, or the stages nat, fault and fixed in sentences;
// nothing where a scenario has others.
func labSummary(r *lab.Report) []string {
	if hasRemedies(r) {
		return remedySummary(r)
	}
	if r.Compared != nil {
		return comparisonSummary(r)
	}
	if holds(r) {
		return heldSummary(r)
	}
	nat, fault, fixed := r.Stage("nat"), r.Stage("fault"), r.Stage("fixed")
	if nat == nil || fault == nil || nat.RequestsPerSecond <= 0 || !onlyHTTP(*nat) || !onlyHTTP(*fault) {
		return nil
	}
	first := fmt.Sprintf("With the fault the gateway served %s requests/s instead of %s (%s)",
		units.Rate(fault.RequestsPerSecond), units.Rate(nat.RequestsPerSecond), units.Percent(fault.RequestsPerSecond/nat.RequestsPerSecond))
	if fault.Failed > 0 {
		first += fmt.Sprintf(", %s of %s requests failed, and %s/s got through after the first failure",
			units.Count(fault.Failed), units.Count(fault.Failed+fault.Completed), units.Rate(fault.AfterFirstFailurePerSecond))
	}
	sentences := []string{first + "."}
	if fixed != nil && r.Fix != nil {
		failed := "none failed"
		if fixed.Failed > 0 {
			failed = units.Count(fixed.Failed) + " failed"
		}
		sentences = append(sentences, fmt.Sprintf("After the fix it served %s requests/s (%s); %s.",
			units.Rate(fixed.RequestsPerSecond), units.Percent(fixed.RequestsPerSecond/nat.RequestsPerSecond), failed))
	}
	if ids := findingIDs(r); len(ids) > 0 {
		sentences = append(sentences, "natkit doctor named "+strings.Join(ids, ", ")+".")
	}
	return sentences
}

func findingIDs(r *lab.Report) []string {
	var ids []string
	for _, f := range r.Findings {
		if !slices.Contains(ids, f.ID) {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// loadLines describe the load of most stages once, and then what is different in
// others.
func loadLines(r *lab.Report) []string {
	if r.Compared != nil || holds(r) {
		return comparedLoads(r)
	}
	common := usualLoad(r)
	var lines []string
	if common != nil {
		lines = append(lines, strings.Join(common, ", "))
	}
	for _, s := range r.Stages {
		if !onlyHTTP(s) {
			exchanges := 0
			for _, l := range s.Loads {
				if l.Exchange != nil {
					exchanges++
					continue
				}
				lines = append(lines, fmt.Sprintf("in %s %s: %s", s.Name, loadName(l), l.Asked))
			}
			if exchanges > 0 {
				lines = append(lines, fmt.Sprintf("in %s %s of exchanges, below", s.Name, units.Plural(exchanges, "load", "loads")))
			}
			continue
		}
		parts := loadParts(s.Config)
		parts = slices.DeleteFunc(parts, func(part string) bool { return slices.Contains(common, part) })
		if len(parts) > 0 {
			lines = append(lines, "in "+s.Name+" "+strings.Join(parts, ", "))
		}
	}
	return lines
}

// usualLoad returns what most stages have, the first of them where several are as many; nil
// where no stage has a load of requests alone.
func usualLoad(r *lab.Report) (usual []string) {
	count, most := map[string]int{}, 0
	for _, s := range r.Stages {
		if onlyHTTP(s) {
			count[strings.Join(loadParts(s.Config), ", ")]++
		}
	}
	for _, s := range r.Stages {
		parts := loadParts(s.Config)
		if n := count[strings.Join(parts, ", ")]; onlyHTTP(s) && n > most {
			usual, most = parts, n
		}
	}
	return usual
}

// onlyHTTP reports whether a stage had one load, of requests.
func onlyHTTP(s lab.StageReport) bool {
	return len(s.Loads) == 0 || len(s.Loads) == 1 && s.Loads[0].Kind == lab.LoadHTTP
}

func loadName(l lab.LoadReport) string {
	if l.From == "" {
		return l.Kind
	}
	return l.Kind + " from " + l.From
}

func loadParts(c load.Config) []string {
	parts := []string{units.Count(max(c.Concurrency, 1)) + " concurrent"}
	if c.Requests > 0 {
		parts = append(parts, units.Plural(c.Requests, "request", "requests"))
	}
	if c.Duration > 0 {
		parts = append(parts, "at most "+c.Duration.String())
	}
	if c.Timeout > 0 {
		parts = append(parts, "timeout "+c.Timeout.String()+" per request")
	}
	if c.Rate > 0 {
		parts = append(parts, units.Rate(c.Rate)+" requests/s started")
	}
	if c.Batch > 0 {
		parts = append(parts, "in batches of "+units.Count(c.Batch))
	}
	if n := len(c.Sources); n > 0 && c.Batch > 0 {
		parts = append(parts, "from "+units.Plural(n, "address", "addresses"))
	}
	if n := len(c.ConnectTo); n > 0 {
		parts = append(parts, "to "+units.Plural(n, "address", "addresses"))
	}
	parts = append(parts, closing(c))
	if c.MergeAck {
		parts = append(parts, "request on the handshake's ACK")
	}
	return parts
}

func closing(c load.Config) string {
	switch {
	case c.PerConnection > 0:
		return units.Plural(c.PerConnection, "request", "requests") + " for each connection"
	case c.KeepAlive:
		return "connections kept alive"
	case c.Close == load.CloseClient:
		return "one connection each, closed by the client"
	case c.Close == load.CloseReset:
		return "one connection each, closed by reset"
	}
	return "one connection each, closed by the server"
}

// exchanges has a table for each stage with loads whose far end reported source addresses.
func exchanges(r *lab.Report) (all []*Table) {
	for _, s := range r.Stages {
		t := &Table{Title: "Who saw whom in " + s.Name, Indent: 2, Columns: []Column{{Head: "traffic"}, {Head: "from"}, {Head: "to"}, {Head: "answered", Right: true},
			{Head: "failed", Right: true}, {Head: "seen as"}, {Head: "ports"}, {Head: "tracked", Right: true}, {}}}
		for _, l := range s.Loads {
			if l.Exchange != nil {
				t.Cells(exchangeCells(&l)...)
			}
		}
		if len(t.rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

// stageCarriers has a table for each stage whose gateway file several engines carry out.
func stageCarriers(r *lab.Report) (all []*Table) {
	for _, s := range r.Stages {
		if len(s.Carriers) > 0 {
			t := carriers(s.Carriers)
			t.Title = "Engines in " + s.Name
			all = append(all, t)
		}
	}
	return all
}

func exchangeCells(l *lab.LoadReport) []Cell {
	x := l.Exchange
	verdict := Cell{"as it should be", Good}
	if len(x.Faults) > 0 {
		verdict = Cell{strings.Join(x.Faults, ", "), Bad}
	}
	return []Cell{{Text: x.Name}, {Text: l.From}, {Text: x.Server}, {Text: units.Count(l.Answered)}, {Text: units.Count(l.Failed)},
		{Text: seenWords(x.Seen)}, {Text: portsSeen(x, l.Answered)}, {Text: units.Count(x.Entries)}, verdict}
}

// seenWords are up to two addresses, or the first and the last one and how many.
func seenWords(seen []lab.SeenAddress) string {
	switch n := len(seen); n {
	case 0:
		return "–"
	case 1:
		return seen[0].Address.String()
	case 2:
		return seen[0].Address.String() + ", " + seen[1].Address.String()
	default:
		return fmt.Sprintf("%s … %s, %d of them", seen[0].Address, seen[n-1].Address, n)
	}
}

// portsSeen reports whether clients kept their ports, and if not, which ones were seen.
func portsSeen(x *lab.ExchangeReport, answered int64) string {
	switch {
	case answered == 0:
		return "–"
	case x.KeptPorts == answered:
		return "kept"
	}
	return fmt.Sprintf("%d-%d", x.FirstPort, x.LastPort)
}

// labCaptures lists the files of packets, with what is not in them.
func (p *printer) labCaptures(r *lab.Report) {
	if len(r.Captures) == 0 {
		return
	}
	p.heading("Captures in " + filepath.Dir(r.Captures[0].File))
	t := &Table{Indent: 2, Columns: []Column{{Head: "file"}, {Head: "packets", Right: true}, {Head: "size", Right: true}, {Head: "dropped", Right: true}, {Head: "interfaces", Wrap: true}}}
	for _, c := range r.Captures {
		dropped := Cell{units.Count(c.Dropped), Dim}
		if c.Dropped > 0 {
			dropped.Tone = Bad
		}
		t.Cells(Cell{Text: filepath.Base(c.File)}, Cell{Text: units.Count(c.Packets)}, Cell{Text: units.Bytes(c.Bytes)}, dropped,
			Cell{strings.Join(c.Interfaces, ", "), Dim})
		if missing := captureMissing(&c); missing.Text != "" {
			t.Cells(Cell{}, Cell{}, Cell{}, Cell{}, missing)
		}
	}
	p.table(t)
	p.blank()
	p.line("  " + p.style.Paint(Dim, "Capturing took time of the CPUs: rates and times are not those without it."))
	if inside, outside, ok := capturePair(r); ok {
		p.line(clean("  try: natkit pcap " + inside + " " + outside))
	}
}

// captureMissing returns why a file lacks packets besides those dropped.
func captureMissing(c *lab.Capture) Cell {
	switch {
	case c.Error != "":
		return Cell{c.Error, Bad}
	case c.Cut > 0:
		return Cell{"full: " + units.Plural(c.Cut, "later packet is", "later packets are") + " not in it; --pcap-size lets it grow", Warn}
	}
	return Cell{}
}

// capturePair are the first files from both sides of one NAT, those of the stage named
// fault where there is one.
func capturePair(r *lab.Report) (inside, outside string, ok bool) {
	for _, in := range r.Captures {
		for _, out := range r.Captures {
			same := in.Stage == out.Stage && in.Round == out.Round && in.Node == out.Node
			if !same || in.Side != lab.Inside || out.Side != lab.Outside {
				continue
			}
			if fault := in.Stage == "fault"; fault || !ok {
				inside, outside, ok = in.File, out.File, true
				if fault {
					return inside, outside, true
				}
			}
		}
	}
	return inside, outside, ok
}
