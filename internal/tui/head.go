package tui

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// head is the lines above the panels: as many as there is room for.
func (m Model) head() []line {
	if m.sample == nil {
		return []line{{{"natkit top", report.Bold}}, {{"reading the kernel …", report.Dim}}}
	}
	lines := []line{m.identity(), m.usageLine(), m.birthsLine()}
	if !m.whole() {
		return lines
	}
	return append(lines, m.cpuLine(), m.sampledLine(), nil)
}

// identity returns the line with the namespace and the time of the sample.
func (m Model) identity() line {
	s := m.sample
	left := line{{"natkit top", report.Bold}}
	release := s.Kernel.Release
	if !m.whole() {
		release = ""
	}
	// A long host name leaves room for the namespace's.
	for _, text := range []string{report.Truncate(report.Clean(s.Host), m.width/4), release, m.space()} {
		if text != "" {
			left = append(left, span{text: "  " + text})
		}
	}
	right := line{}
	if m.paused {
		right = append(right, span{"paused", "1;33"}, span{text: "  "})
	}
	if m.tape.Of > 0 {
		right = append(right, span{fmt.Sprintf("recorded, %s of %s", units.Count(m.tape.Number), units.Count(m.tape.Of)), report.Bold}, span{text: "  "})
	}
	right = append(right, span{s.TakenAt.Format(time.TimeOnly) + s.TakenAt.Format(" MST"), report.Plain})
	// A long name makes room for the clock, not the other way round.
	return beside(left.fit(min(left.width(), max(m.width-right.width()-2, 1))), right, m.width)
}

// space names the namespace.
func (m Model) space() string {
	ns := m.sample.Netns
	if ns.Name == "" {
		return fmt.Sprintf("netns %d", ns.Inode)
	}
	return fmt.Sprintf("netns %s (%d)", ns.Name, ns.Inode)
}

// labelled are the widths of labels, bars and texts of the lines with history.
const (
	labelColumns = 7
	barColumns   = 20
)

func (m Model) usageLine() line {
	count, limit, ok := m.sample.Entries()
	if !ok {
		why := cmp.Or(m.sample.PartError(snapshot.PartSysctls), "not known")
		return line{{label("table"), report.Bold}, {why, report.Warn}}
	}
	text := units.Plural(count, "entry", "entries")
	l := line{{label("table"), report.Bold}}
	if limit > 0 {
		share := float64(count) / float64(limit)
		text = fmt.Sprintf("%s of %s  %s", units.Count(count), units.Count(limit), units.Percent(share))
		l = append(l, span{bar(share, min(barColumns, m.width/4)), shareTone(share)}, span{text: " "}, span{text, shareTone(share)})
	} else {
		l = append(l, span{text: text})
	}
	return m.withHistory(l, m.usage, float64(limit))
}

func (m Model) birthsLine() line {
	l := line{{label("new"), report.Bold}}
	f := m.sample.Flows
	if f == nil {
		why := m.sample.PartError(snapshot.PartFlows)
		switch {
		case why == "" && m.sample.Table == nil:
			why = m.sample.noTable()
		case why == "":
			why = "flows per second: after two samples of the table"
		}
		return append(l, span{why, report.Dim})
	}
	err := f.StandardErrorPerSecond
	l = append(l, span{text: fmt.Sprintf("%s flows/s %s %s", units.RateWithin(f.TotalPerSecond, err), m.plusMinus(), units.RateWithin(err, err))})
	if m.whole() {
		l = append(l, span{fmt.Sprintf("  (over %s)", units.Roughly(f.Seconds)), report.Dim})
	}
	return m.withHistory(l, m.births, 0)
}

func (m Model) plusMinus() string {
	if m.theme.ASCII {
		return "+/-"
	}
	return "±"
}

// withHistory fills what is left of a line with a sparkline.
func (m Model) withHistory(l line, h history, top float64) line {
	room := min(m.width-l.width()-2, m.width/2)
	if room < 4 {
		return l
	}
	return beside(l, line{{h.spark(room, top), report.Dim}}, m.width)
}

func label(text string) string { return fmt.Sprintf("%-*s", labelColumns, text) }

func (m Model) cpuLine() line {
	l := line{{label("CPU"), report.Bold}}
	if m.tape.Of > 0 {
		return append(l, span{"not recorded", report.Dim})
	}
	own := units.Percent(m.sample.Cost.Own)
	c := m.sample.CPU
	if c == nil {
		why := cmp.Or(m.sample.PartError(snapshot.PartCPU), "after two samples")
		return append(l, span{why, report.Dim}, span{text: "; top itself " + own})
	}
	text := fmt.Sprintf("packets %s (softirq time), busy %s of %s; top itself %s", units.Percent(c.Packets), units.Percent(c.Busy),
		units.Plural(c.CPUs, "CPU", "CPUs"), own)
	return append(l, span{text: text})
}

// sampledLine shows the sample that the numbers of entries are based on.
func (m Model) sampledLine() line {
	s := m.sample
	l := line{{label("sample"), report.Bold}}
	if s.Table == nil {
		return append(l, span{s.noTable(), report.Dim})
	}
	text := fmt.Sprintf("%s of %s entries", units.Count(s.EntriesRead), m.total())
	if s.Table.Complete {
		text = "all " + units.Plural(s.EntriesRead, "entry", "entries")
	}
	if m.tape.Of == 0 {
		text += " in " + units.Roughly(s.Cost.Table.Seconds())
	}
	if age := s.TakenAt.Sub(s.TableAt); age > time.Second {
		text += ", " + units.Roughly(age.Seconds()) + " ago"
	}
	l = append(l, span{text: text})
	if note := m.filterNote(); note != "" {
		return append(l, span{"; " + note, report.Warn})
	}
	return append(l, span{"; " + m.status(), report.Dim})
}

// filterWaits reports whether the sample's entries are not those that the filter
// chooses: it came after them.
func (m Model) filterWaits() bool {
	return m.sample.Filter != m.filter && (m.filter.chooses() || m.sample.Filter.chooses())
}

// filterNote shows the filter of the sample's entries; nothing if there is none.
func (m Model) filterNote() string {
	shown := m.sample.Filter
	switch {
	case m.filterWaits() && shown.chooses():
		return fmt.Sprintf("still filter %s", shown)
	case m.filterWaits():
		return fmt.Sprintf("filter %s: next sample", m.filter)
	case m.filter.chooses():
		return fmt.Sprintf("filter %s: %s", m.filter, units.Plural(m.sample.Table.Sampled, "entry", "entries"))
	case m.filter.String() != "":
		return fmt.Sprintf("rows with %s", m.filter)
	}
	return ""
}

func (m Model) total() string {
	if count, _, ok := m.sample.Entries(); ok {
		return units.Count(count)
	}
	return "?"
}

// status returns the shares of unreplied, translated and offloaded entries.
func (m Model) status() string {
	t := m.sample.Table
	of := func(n int64) string { return units.Percent(float64(n) / max(float64(t.Sampled), 1)) }
	parts := []string{"unreplied " + of(t.Unreplied), "SNAT " + of(t.SNAT), "DNAT " + of(t.DNAT)}
	if t.Offloaded > 0 {
		parts = append(parts, "offloaded "+of(t.Offloaded))
	}
	return strings.Join(parts, ", ")
}

// foot is the last line: what happened, what is typed, or the keys.
func (m Model) foot() line {
	switch {
	case m.mode == typing:
		return line{{"filter (address, prefix or text): ", report.Bold}, {text: m.draft + "_"}}
	case m.message != "" && m.failed:
		return line{{m.message, report.Alarm}}
	case m.message != "":
		return line{{m.message, report.Good}}
	case m.busy != "":
		return line{{m.busy + " …", report.Good}}
	case m.mode == help:
		return line{{"any other key goes back", report.Dim}}
	case m.mode == spaces:
		return line{{"↑ ↓ choose  enter switch  esc back", report.Dim}}
	}
	keys := "q quit  p pause  s sort  / filter  n netns  w save  1-7 panel  ? help  " + interval(m.interval)
	if m.tape.Of > 0 {
		keys = fmt.Sprintf("q quit  space pause  ←/→ step  [ ] 12 steps  +/- speed: %d times  / filter  1-7 panel", m.tape.Speed)
	}
	if m.width < wholeWidth {
		keys = "? help  q quit  tab panel"
	}
	return line{{keys, report.Dim}}
}

// interval is 2 s, 500 ms or 1 min.
func interval(d time.Duration) string { return units.Roughly(d.Seconds()) }
