package tui

import (
	"cmp"
	"fmt"

	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/units"
)

// helpLines tell the keys, and what the numbers are.
var helpLines = []string{
	"q, ctrl+c     quit",
	"p, space      pause: nothing is read until the next one",
	"1 to 7, tab   choose a panel; left and right too",
	"up, down      scroll its rows; also pgup, pgdown, home",
	"s             sort it by name, or by number again",
	"enter, z      show it alone, or all of them again",
	"/             filter: an address or prefix chooses entries, other text rows;",
	"              esc on the screen shows all again",
	"n             look at another network namespace; one that is deleted lives on",
	"              as long as top looks at it",
	"w, S          save a snapshot to a file, as 'natkit snapshot' does",
	"+, -          a longer or shorter time between samples",
	"ctrl+z        back to the shell; 'fg' continues",
	"",
	"table         entries of this namespace against nf_conntrack_max, which each",
	"              namespace is compared with, and its history",
	"new           entries that came between two readings of the table, with the",
	"              standard error; what came and went in between is not seen",
	"CPU           of all CPUs; softirqs are mostly received packets. top itself: of",
	"              one CPU",
	"sample        how many entries the panels rest on, and the CPU time that reading",
	"              them took. They are a sample without bias, as the kernel's hash is",
	"              keyed, and their numbers are scaled to the table, and rounded to the",
	"              digit that the sample tells. No more is read than costs half a",
	"              percent of a CPU. Nothing listens to events: that would cut the rate",
	"              of new connections to a third",
	"counters      of conntrack since boot, and what they grow by per second",
	"drops         in this namespace, counted by an eBPF program at skb:kfree_skb",
	"SNAT ports    in use of those that NAT may give, of one address towards one",
	"              destination",
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
	right := fmt.Sprintf("  %18s", entries)
	if m.width >= wholeWidth {
		right = fmt.Sprintf("%12d", s.Inode) + right
	}
	room := max(m.width-report.TextWidth(right), 1)
	return append(line{{mark + cmp.Or(s.Name, "(without a name)"), tone}}.fit(room), span{right, tone})
}
