package tui

import (
	"fmt"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// helpLines tell the keys, and what the numbers are.
var helpLines = []string{
	"q, ctrl+c      quit",
	"p, space       pause: nothing is read until the next one",
	"1 to 7, tab    choose a panel; left and right too",
	"up, down       scroll its rows; also pgup, pgdown, home",
	"s              sort it by name or by number",
	"enter, z       show it alone, and all of them again",
	"/              filter: an address or prefix chooses entries, other text rows;",
	"               empty, or esc on the screen, shows all",
	"n              look at another network namespace",
	"w, S           save a snapshot to a file, as 'natkit snapshot' does",
	"+, -           a longer or shorter time between samples",
	"ctrl+z         back to the shell; 'fg' continues",
	"h, ?           this page",
	"",
	"table          nf_conntrack_count of this namespace against nf_conntrack_max, which",
	"               holds for each namespace",
	"new            entries that came between two samples of the table, with the standard",
	"               error; what came and went in between is not seen",
	"sample         numbers of entries are of a part of the table, in the order of the",
	"               kernel's hash, scaled up; few are read so that it costs the machine",
	"               half a percent of a CPU. No listener to events is ever used: that",
	"               would cut the rate of new connections to a third",
	"CPU            softirq time is that of all softirqs, mostly of received packets",
	"drops          counted by an eBPF program at skb:kfree_skb, in this namespace",
}

func (m Model) helpBody(height int) []line {
	var lines []line
	for _, text := range helpLines[min(m.helpOffset, len(helpLines)-1):] {
		if len(lines) == height {
			break
		}
		lines = append(lines, plain(text))
	}
	return lines
}

// spacesBody lists the namespaces around the cursor.
func (m Model) spacesBody(height int) []line {
	switch {
	case !m.listed:
		return []line{{{"listing them …", report.Dim}}}
	case len(m.list) == 0:
		return []line{{{"none that may be opened (needs root)", report.Warn}}}
	}
	first := min(max(m.cursor-height/2, 0), max(len(m.list)-height, 0))
	var lines []line
	for i := first; i < len(m.list) && len(lines) < height; i++ {
		lines = append(lines, m.spaceLine(i))
	}
	return lines
}

func (m Model) spaceLine(i int) line {
	s := m.list[i]
	mark, tone := "  ", report.Plain
	if i == m.cursor {
		mark, tone = "▶ ", report.Bold
	}
	entries := units.None
	if s.Entries >= 0 {
		entries = units.Plural(s.Entries, "entry", "entries")
	}
	right := fmt.Sprintf("%12d  %18s", s.Inode, entries)
	room := max(m.width-report.TextWidth(right), 1)
	return append(line{{mark + s.Name, tone}}.fit(room), span{right, tone})
}
