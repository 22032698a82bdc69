package tui

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/names"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// row is a line of a panel: a name, and numbers at the right side.
type row struct {
	name string
	// called is what the host calls an address, behind it where there is room.
	called string
	values []string
	tone   report.Tone
	// by is what rows are sorted by, the greatest first.
	by float64
	// words are what a filter looks at.
	words []string
}

// content is what a panel shows.
type content struct {
	title string
	rows  []row
	// note is why there are no rows.
	note string
}

var titles = [panels]string{"TCP states", "protocols", "counters, and per s", "drops per s", "SNAT ports", "sources", "services"}

// rows are those of a panel, filtered and sorted.
func (m Model) rows(id panelID) content {
	c := content{title: titles[id]}
	if m.sample == nil {
		c.note = "reading the kernel"
		return c
	}
	if ofEntries[id] && m.sample.Table == nil {
		c.note = m.sample.noTable()
	} else {
		c.rows, c.note = fill[id](m.sample)
	}
	had := len(c.rows) > 0
	if !m.filter.chooses() || !ofEntries[id] || m.filterWaits() {
		c.rows = slices.DeleteFunc(c.rows, func(r row) bool { return !m.filter.row(r.words...) })
	}
	if had && len(c.rows) == 0 {
		c.note = "nothing has " + m.filter.String()
	}
	slices.SortStableFunc(c.rows, func(a, b row) int {
		if m.byName[id] {
			return strings.Compare(a.name, b.name)
		}
		return cmp.Compare(b.by, a.by)
	})
	return c
}

// ofEntries are the panels that count entries: those that a filter chose by their
// addresses are all that is in them.
var ofEntries = [panels]bool{states: true, protocols: true, sources: true, services: true}

// fill makes the rows of each panel, or says why there are none. Those of entries are
// called with a table.
var fill = [panels]func(*Sample) ([]row, string){
	states:    func(s *Sample) ([]row, string) { return s.countRows(s.Table.ByTCPState), "none" },
	protocols: func(s *Sample) ([]row, string) { return s.countRows(s.Table.ByProtocol), "none" },
	counters:  (*Sample).counterRows,
	drops:     (*Sample).dropRows,
	ports:     (*Sample).portRows,
	sources:   func(s *Sample) ([]row, string) { return s.talkerRows(s.Table.TopSources), "none" },
	services:  func(s *Sample) ([]row, string) { return s.talkerRows(s.Table.TopServices), "none" },
}

// noTable is why there are no numbers of entries.
func (s *Sample) noTable() string {
	if _, _, ok := s.Entries(); !ok {
		// Where there is no conntrack, that the table cannot be read says less.
		return cmp.Or(s.PartError(snapshot.PartSysctls), s.PartError(snapshot.PartTable), "not known")
	}
	return cmp.Or(s.PartError(snapshot.PartTable), "the table is not read yet")
}

// countRow is a number of looked-at entries, scaled to the table.
func (s *Sample) countRow(name string, n int64) row {
	return row{name: name, by: float64(n), words: []string{name},
		values: []string{units.Count(s.whole(n)), units.Percent(s.part(n))}}
}

// countRows are in the order of their names: that of a map is another each time.
func (s *Sample) countRows(counts map[string]int64) (rows []row) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		rows = append(rows, s.countRow(name, counts[name]))
	}
	return rows
}

func (s *Sample) talkerRows(talkers []snapshot.Talker) (rows []row) {
	for _, t := range talkers {
		r := s.countRow(t.Who, t.Entries)
		r.callIt(strings.TrimPrefix(names.BesideWho(s.Names, t.Who), t.Who))
		rows = append(rows, r)
	}
	return rows
}

func (s *Sample) counterRows() (rows []row, note string) {
	if why := s.PartError(snapshot.PartStat); s.ConntrackStat == nil {
		return nil, cmp.Or(why, "not read")
	}
	for i, name := range report.TroubleCounters {
		total, ok := s.ConntrackStat.Total(name)
		if !ok {
			continue
		}
		r := row{name: name, words: []string{name}, values: []string{units.Count(total), units.None}, by: -float64(i) * 1e-9}
		if s.Before != nil && s.Seconds() > 0 {
			if grown, ok := s.ConntrackStat.Delta(s.Before.ConntrackStat, name); ok {
				rate := float64(grown) / s.Seconds()
				r.values[1], r.by = units.Rate(rate), r.by+rate
				r.tone = counterTone(i, grown)
			}
		}
		rows = append(rows, r)
	}
	return rows, "this kernel has no counters"
}

func counterTone(i int, grown uint64) report.Tone {
	switch {
	case grown == 0:
		return report.Dim
	case i < report.LosingCounters:
		return report.Alarm
	}
	return report.Warn
}

func (s *Sample) dropRows() (rows []row, note string) {
	if s.Drops == nil {
		return nil, cmp.Or(s.PartError(snapshot.PartDrops), "counting begins")
	}
	for _, site := range s.Drops.Sites {
		name := site.Function
		if site.Reason != "" {
			name = strings.ToLower(site.Reason) + " " + name
		}
		rate := float64(site.Packets) / max(s.Drops.Seconds, 1e-3)
		rows = append(rows, row{name: name + " " + site.Protocol, by: rate, values: []string{units.Rate(rate)},
			words: []string{name, site.Protocol}, tone: report.Warn})
	}
	return rows, fmt.Sprintf("none in %s", units.Roughly(s.Drops.Seconds))
}

func (s *Sample) portRows() (rows []row, note string) {
	if s.Ports == nil {
		return nil, s.noTable()
	}
	for _, p := range s.Ports.Pools {
		name := fmt.Sprintf("%s %s → %s", p.Address, p.Protocol, p.Destination)
		used, share := s.portsUsed(p)
		r := row{name: name, by: p.Share, words: append([]string{p.Address, p.Destination, p.Protocol}, who(p.Users)...),
			values: []string{units.Count(used) + "/" + units.Count(p.Len()), chance(p), units.Percent(share)}, tone: poolTone(&p)}
		if to := names.Of(s.Names, p.Protocol, p.Destination); to != "" {
			r.callIt(" (to " + to + ")")
		}
		rows = append(rows, r)
	}
	return rows, "no translated source address"
}

// callIt adds what an address is called, by which rows are filtered as well.
func (r *row) callIt(text string) {
	if text != "" {
		r.called = text
		r.words = append(r.words, text)
	}
}

// portsUsed returns the used ports of a pool and their share, rounded to the significant
// digit of the sample.
func (s *Sample) portsUsed(p snapshot.PortPool) (used int64, share float64) {
	if s.scale() == 1 || p.Exact {
		return p.Used, p.Share
	}
	seen := int64(math.Round(float64(p.Used) / s.scale()))
	err := math.Sqrt(float64(seen)) * s.scale() / float64(p.Len())
	return s.whole(seen), units.Significant(p.Share, err)
}

// chance is that of a new connection to find no port, where it is known and there is
// one: the table was read as a whole.
func chance(p snapshot.PortPool) string {
	if !p.Known || p.Fails <= 0 {
		return ""
	}
	return units.Percent(p.Fails) + " fail"
}

func who(talkers []snapshot.Talker) (names []string) {
	for _, t := range talkers {
		names = append(names, t.Who)
	}
	return names
}

// shareTone warns of what is nearly used up.
func shareTone(share float64) report.Tone {
	switch {
	case share >= 0.95:
		return report.Alarm
	case share >= 0.8:
		return report.Warn
	}
	return report.Plain
}

// poolTone is shareTone; the ports of one program may all be in use.
func poolTone(p *snapshot.PortPool) report.Tone {
	if p.IsMapping() {
		return report.Plain
	}
	return shareTone(p.Share)
}

// helpLines explain the keys and the numbers.
var helpLines = []string{
	"q, ctrl+c     quit",
	"p, space      pause: nothing is read until the next one",
	"1 to 7, tab   choose a panel; left and right too",
	"up, down      scroll its rows; also pgup, pgdown, home",
	"s             sort it by name, or by number again",
	"enter, z      show it alone, or all of them again",
	"/             filter: an address or prefix chooses entries, other text rows;",
	"              esc on the screen shows all again",
	"n             show another network namespace; a deleted one stays alive as long",
	"              as top shows it",
	"w, S          save a snapshot to a file, as 'natkit snapshot' does",
	"+, -          a longer or shorter time between samples",
	"ctrl+z        back to the shell; 'fg' continues",
	"              of a recording (--from): left and right step, [ and ] by 12,",
	"              home and end go to its ends, + and - change the speed",
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
	"              significant digit. Reading them costs at most half a percent of a",
	"              CPU. Nothing listens to events: that would cut the rate of new",
	"              connections to a third",
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
