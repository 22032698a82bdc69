package web

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/units"
)

// restsOn are the parts of a snapshot that a part of a state is made of.
var restsOn = map[string][]string{
	state.PartCounters: {snapshot.PartSysctls, snapshot.PartStat},
	state.PartTable:    {snapshot.PartTable, snapshot.PartSysctls},
	state.PartServices: {snapshot.PartFlows, snapshot.PartTable, snapshot.PartSysctls},
	state.PartPorts:    {snapshot.PartTable, snapshot.PartSysctls},
	state.PartDrops:    {snapshot.PartDrops},
}

// grid is a table of the page.
type grid struct {
	Caption string
	// Heads are those of the names and of the values. Bars is true where a bar stands between both.
	Heads []string
	Bars  bool
	Rows  []row
	More  string
}

// row is a name with its values, and the share of a whole that it is.
type row struct {
	Name, Detail string
	Bar          *bar
	Values       []string
	Tone         string
}

// bar is a share, from 0 to 1.
type bar struct {
	Share float64
	Tone  string
}

// Width is that of the bar.
func (b bar) Width() string { return units.Fixed(100*min(max(b.Share, 0), 1), 2) + "%" }

// known writes a number that is negative where it is not known.
func known(v float64, write func(float64) string) string {
	if v < 0 {
		return units.None
	}
	return write(v)
}

type services struct {
	reading
	// None is what is shown where there are no rows.
	Note, None string
	grid
}

func (m *maker) services() *services {
	s := m.Services
	if s == nil {
		return nil
	}
	v := &services{None: "The table has no translated connection with a packet in the last " + units.Roughly(s.WindowSeconds) + ". What a filter drops at once has no entry.", reading: m.reading(state.PartServices, s.Reading), grid: grid{Caption: "Services, those that fail most first", Bars: true,
		Heads: []string{"service", "answered", "failed", "waiting", "open", "new/s"}}}
	if !s.Complete {
		v.Note = "Numbers are of the entries that were read, a sample of the table."
		v.None = "None of the entries that were read is a translated connection with a packet in the last " + units.Roughly(s.WindowSeconds) + "."
	}
	for i := range s.All {
		v.Rows = append(v.Rows, serviceRow(&s.All[i]))
	}
	if more := s.Total - len(s.All); more > 0 {
		v.More = "and " + units.Plural(more, "service", "services") + " more"
	}
	return v
}

func serviceRow(s *state.Service) row {
	r := row{Name: report.Clean(s.Name), Values: []string{known(s.AnsweredShare, units.Percent), units.Count(s.Unanswered + s.HalfOpen),
		units.Count(s.Waiting), units.Count(s.Open), known(s.NewPerSecond, units.Rate)}}
	if s.AnsweredShare >= 0 {
		r.Tone = answeredTone(s.AnsweredShare)
		r.Bar = &bar{s.AnsweredShare, r.Tone}
	}
	return r
}

// answeredTone leaves a few failures alone, as those are common: a finding says where they are not.
func answeredTone(share float64) string {
	switch {
	case share < 0.5:
		return bad
	case share < 0.95:
		return warn
	}
	return good
}

type findings struct {
	reading
	Checks     string
	All        []finding
	Incomplete []string
}

// finding is one that stands. First is the remedy to begin with, Fix the command that applies it; Finding is nil where no
// report has it any more.
type finding struct {
	ID, Severity, Title, Since, Times string
	SinceSeconds                      float64
	Finding                           *diagnose.Finding
	First                             *diagnose.Remedy
	Others                            []diagnose.Remedy
	Fix                               string
}

func (m *maker) findings() *findings {
	f := m.Findings
	if f == nil {
		return nil
	}
	v := &findings{reading: m.reading(state.PartFindings, f.Reading), Checks: fmt.Sprintf("Checks: %s without a finding, %s with one, %s without a result.",
		units.Count(f.Checks[diagnose.OK]), units.Count(f.Checks[diagnose.Found]), units.Count(f.Checks[diagnose.NotChecked]))}
	for i := range f.All {
		v.All = append(v.All, m.finding(&f.All[i]))
	}
	for _, missing := range f.Incomplete {
		text := report.Clean(missing.Why)
		if len(missing.Checks) > 0 {
			text += " (" + report.Clean(strings.Join(missing.Checks, ", ")) + ")"
		}
		v.Incomplete = append(v.Incomplete, text)
	}
	return v
}

func (m *maker) finding(f *state.Finding) finding {
	v := finding{ID: report.Clean(f.ID), Severity: f.Severity.String(), Title: report.Clean(f.Title), SinceSeconds: unixSeconds(f.Since),
		Since: f.Since.In(m.now.Location()).Format(dateTime), Finding: f.Finding}
	if f.Times > 1 {
		v.Times = "came " + units.Plural(f.Times, "time", "times")
	}
	if f.Finding == nil || len(f.Finding.Remedies) == 0 {
		return v
	}
	v.First, v.Others = &f.Finding.Remedies[0], f.Finding.Remedies[1:]
	if flag := diagnose.NamespaceFlag(m.Name); v.First.Automatic && (flag != "" || m.Name == "") {
		v.Fix = "natkit doctor " + flag + "--fix"
	}
	return v
}

// counters is how far the connection table is used, and what conntrack counts.
type counters struct {
	reading
	Entries, Limit, Used string
	Bar                  *bar
	Trouble              grid
}

func (m *maker) counters() *counters {
	c := m.Counters
	if c == nil {
		return nil
	}
	v := &counters{reading: m.reading(state.PartCounters, c.Reading), Entries: units.Count(c.Entries),
		Trouble: grid{Caption: "Counters that indicate trouble", Heads: []string{"counter", "per s", "total"}, Rows: troubleRows(c)}}
	if used, known := c.Used(); known {
		v.Limit, v.Used, v.Bar = units.Count(c.Limit), units.Percent(used), &bar{used, usedTone(used)}
	}
	return v
}

// usedTone warns of what is nearly used up.
func usedTone(share float64) string {
	switch {
	case share >= 0.95:
		return bad
	case share >= 0.8:
		return warn
	}
	return plain
}

func troubleRows(c *state.Counters) (rows []row) {
	for i, name := range report.TroubleCounters {
		total, there := c.Conntrack[name]
		if !there {
			continue
		}
		r := row{Name: name, Values: []string{units.None, units.Count(total)}}
		if rate, there := c.PerSecond[name]; there {
			r.Values[0] = units.Rate(rate)
			if rate > 0 {
				r.Tone = warn
			}
			if rate > 0 && i < report.LosingCounters {
				r.Tone = bad
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// table is what the entries of the connection table are.
type table struct {
	reading
	Basis, New string
	Memory     grid
	Slab       string
	Status     grid
	States     grid
	Protocols  grid
	Talkers    []grid
}

func (m *maker) table() *table {
	t := m.Table
	if t == nil {
		return nil
	}
	v := &table{reading: m.reading(state.PartTable, t.Reading), Basis: "all " + units.Plural(t.Sampled, "entry", "entries")}
	if !t.Complete {
		v.Basis = fmt.Sprintf("scaled from %s of %s entries", units.Count(t.Sampled), units.Count(t.Entries))
	}
	if f := t.Flows; f != nil {
		err := f.StandardErrorPerSecond
		v.New = fmt.Sprintf("%s/s ± %s", units.RateWithin(f.NewPerSecond, err), units.RateWithin(err, err))
	}
	v.Memory, v.Slab = memoryGrid(t.Memory)
	v.States = countGrid(t, "TCP entries by state", "state", t.TCPStates)
	v.Protocols = countGrid(t, "Entries by protocol", "protocol", t.Protocols)
	v.Status = statusGrid(t)
	v.Talkers = append(talkerGrid(t, "Sources with most entries", "source", t.TopSources), talkerGrid(t, "Services with most entries", "service", t.TopServices)...)
	v.Talkers = append(v.Talkers, unansweredGrid(t)...)
	return v
}

// memoryGrid is what the table takes, and what it takes when it is full; and what the kernel holds for it.
func memoryGrid(m *state.TableMemory) (g grid, slab string) {
	if m == nil {
		return g, ""
	}
	bytes := func(n int64) string { return units.Bytes(float64(n)) }
	full := func(n int64) string {
		if m.LimitEntriesBytes == 0 {
			return units.None
		}
		return bytes(n)
	}
	g = grid{Caption: "Memory", Heads: []string{"of", "now", "when full"}, Rows: []row{
		{Name: "entries", Values: []string{bytes(m.EntriesBytes), full(m.LimitEntriesBytes)}},
		{Name: "extensions", Detail: "NAT, accounting", Values: []string{bytes(m.ExtensionsBytes), full(m.LimitExtensionsBytes)}},
		{Name: "buckets", Detail: "of all network namespaces", Values: []string{bytes(m.BucketsBytes), full(m.BucketsBytes)}},
		{Name: "all", Values: []string{bytes(m.EntriesBytes + m.ExtensionsBytes + m.BucketsBytes), full(m.LimitEntriesBytes + m.LimitExtensionsBytes + m.BucketsBytes)}},
	}}
	slab = "Sizes of an entry: " + m.Source + "."
	if m.SlabBytes > 0 {
		slab += " The kernel holds " + bytes(int64(m.SlabBytes)) + " for entries of all network namespaces, free ones included."
	}
	return g, report.Clean(slab)
}

// scaled is what numbers of entries are scaled from where a sample of the table was read, as their last digits are noise then:
// those of a sample vary by the square root of the number of entries seen.
type scaled struct {
	sampled, scale float64
}

func scaledOf(t *state.Table) scaled {
	if t == nil || t.Complete || t.Sampled <= 0 || t.Entries <= t.Sampled {
		return scaled{}
	}
	return scaled{float64(t.Sampled), float64(t.Entries) / float64(t.Sampled)}
}

// count writes a number of entries, to the first digit of its error.
func (s scaled) count(n int64) string {
	if s.scale == 0 {
		return units.Count(n)
	}
	return units.Fixed(units.Significant(float64(n), math.Sqrt(float64(n)/s.scale)*s.scale), 0)
}

// percent writes a share of all entries, to the first digit of its error.
func (s scaled) percent(share float64) string {
	if s.scale > 0 {
		share = units.Significant(share, math.Sqrt(share*(1-min(share, 1))/s.sampled))
	}
	return units.Percent(share)
}

// part writes the share that n entries are of something else.
func (s scaled) part(n, all int64) string {
	v, of := float64(n), float64(max(1, all))
	if s.scale == 0 {
		return units.Percent(v / of)
	}
	return units.Percent(units.Significant(v/of, math.Sqrt(v/s.scale)*s.scale/of))
}

// shareGrid has counts of entries, and the share of all.
func shareGrid(caption, what string) grid {
	return grid{Caption: caption, Bars: true, Heads: []string{what, "entries", "share"}}
}

func shareRow(t *state.Table, name string, n int64) row {
	share, by := float64(n)/float64(max(1, t.Entries)), scaledOf(t)
	return row{Name: report.Clean(name), Values: []string{by.count(n), by.percent(share)}, Bar: &bar{Share: share}}
}

// countGrid has the greatest first.
func countGrid(t *state.Table, caption, what string, counts map[string]int64) grid {
	g := shareGrid(caption, what)
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		g.Rows = append(g.Rows, shareRow(t, name, counts[name]))
	}
	return g
}

func statusGrid(t *state.Table) grid {
	g := shareGrid("Entries by what they are", "entries that are")
	for _, r := range []struct {
		name string
		n    int64
	}{
		{"source translated", t.SNAT}, {"destination translated", t.DNAT}, {"without an answer", t.Unreplied}, {"offloaded", t.Offloaded},
		{"established, and idle for " + units.Roughly(snapshot.IdleLong), t.IdleLong},
	} {
		if r.n > 0 {
			g.Rows = append(g.Rows, shareRow(t, r.name, r.n))
		}
	}
	return g
}

// talkerGrid is empty where there are none.
func talkerGrid(t *state.Table, caption, what string, talkers []state.Talker) []grid {
	g := shareGrid(caption, what)
	for _, k := range talkers {
		g.Rows = append(g.Rows, shareRow(t, k.Who, k.Entries))
	}
	return some(g)
}

func unansweredGrid(t *state.Table) []grid {
	g := grid{Caption: "Sources with most new entries without an answer", Heads: []string{"source", "per second"}}
	if t.Flows != nil {
		for _, s := range t.Flows.UnansweredSources {
			g.Rows = append(g.Rows, row{Name: report.Clean(s.Who), Values: []string{units.Rate(s.PerSecond)}})
		}
	}
	return some(g)
}

func some(g grid) []grid {
	if len(g.Rows) == 0 {
		return nil
	}
	return []grid{g}
}

type drops struct {
	reading
	Total           string
	Reasons, Places grid
}

func (m *maker) drops() *drops {
	d := m.Drops
	if d == nil {
		return nil
	}
	v := &drops{reading: m.reading(state.PartDrops, d.Reading),
		Total: fmt.Sprintf("%s/s now; %s since %s", units.Rate(d.PerSecond), units.Plural(d.Packets, "packet", "packets"),
			d.Since.In(m.now.Location()).Format(dateTime)),
		Reasons: grid{Caption: "By the kernel's reason", Heads: []string{"reason", "per s", "total"}},
		Places:  grid{Caption: "By the kernel's function", Heads: []string{"function", "total"}}}
	for _, r := range d.Reasons {
		tone := plain
		if r.PerSecond > 0 {
			tone = warn
		}
		v.Reasons.Rows = append(v.Reasons.Rows, row{Name: cmp.Or(report.Clean(r.Reason), "no reason given"),
			Values: []string{units.Rate(r.PerSecond), units.Count(r.Packets)}, Tone: tone})
	}
	for _, p := range d.Places {
		v.Places.Rows = append(v.Places.Rows, row{Name: report.Clean(p.Function), Detail: report.Clean(strings.TrimSpace(p.Protocol + " " + p.Reason)),
			Values: []string{units.Count(p.Packets)}})
	}
	return v
}

type ports struct {
	reading
	Basis, None string
	grid
}

func (m *maker) ports() *ports {
	p := m.Ports
	if p == nil {
		return nil
	}
	v := &ports{None: "No source address is translated.", reading: m.reading(state.PartPorts, p.Reading), grid: grid{Caption: "Addresses that NAT gives, by their most pressed destination", Bars: true,
		Heads: []string{"address", "in use", "used up in", "new ones fail", "new/s", "TIME_WAIT", "of ports"}}}
	if !p.Complete {
		v.Basis = "scaled from a sample of the table"
		if slices.ContainsFunc(p.Addresses, func(a state.Address) bool { return a.Exact }) {
			v.Basis += "; where insertions fail and a rule gives few ports they are counted"
		}
		v.None = "None of the entries that were read has a translated source address."
	}
	sample := scaledOf(m.Table)
	for i := range p.Addresses {
		a := &p.Addresses[i]
		by := sample
		if p.Complete || a.Exact {
			by = scaled{}
		}
		tone := usedTone(a.UsedShare)
		switch {
		case a.IsMapping():
			tone = plain
		case a.Fails > 0:
			tone = bad
		}
		name := a.Address + " " + a.Protocol + " " + a.Range.String()
		if a.Zone != 0 {
			name += fmt.Sprintf(" zone %d", a.Zone)
		}
		v.Rows = append(v.Rows, row{Name: report.Clean(name), Detail: "towards " + report.Clean(a.Destination), Tone: tone,
			Bar: &bar{a.UsedShare, tone}, Values: []string{by.part(a.Used, a.Ports), known(a.SecondsLeft, units.Roughly), known(a.Fails, units.Percent),
				known(a.NewPerSecond, units.Rate), by.count(a.TimeWait), by.count(a.Used) + "/" + units.Count(a.Ports)}})
	}
	if p.Pools > int64(len(p.Addresses)) {
		v.More = units.Count(p.Pools) + " pairs of an address and a destination in all"
	}
	return v
}

// stack is what the namespace's own IP and TCP hold and have counted.
type stack struct {
	reading
	Sockets, Counters grid
}

func (m *maker) stack() *stack {
	s := m.Stack
	if s == nil {
		return nil
	}
	v := &stack{reading: m.reading(state.PartStack, s.Reading), Sockets: grid{Caption: "TCP sockets", Heads: []string{"state", "sockets"}},
		Counters: grid{Caption: "Counters that are not 0", Heads: []string{"counter", "total"}}}
	for _, name := range slices.Sorted(maps.Keys(s.Sockets)) {
		v.Sockets.Rows = append(v.Sockets.Rows, row{Name: report.Clean(name), Values: []string{units.Count(s.Sockets[name])}})
	}
	for _, name := range state.StackCounters {
		if n := s.Counters[name]; n > 0 {
			v.Counters.Rows = append(v.Counters.Rows, row{Name: name, Values: []string{units.Count(n)}})
		}
	}
	return v
}
