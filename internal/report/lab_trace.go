package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// What a stage's trace is shown of: the rest is in the JSON, or summed up.
const (
	mostPlaces = 6
	mostTalks  = 3
	// leastWork is the share of packet receive from which, in some stage, a class of
	// work has a row of its own.
	leastWork = 0.01
)

// profileMeasures are where the CPUs spent their time, in those stages that were
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
	Places         []dropPlace
	Causes, Talks  []string
}

// dropPlace is one row of the table of drops.
type dropPlace struct{ Packets, Rate, Share, Function, Reason, Protocol string }

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
func dropPlaces(d *snapshot.Drops) []dropPlace {
	place := func(packets uint64) dropPlace {
		return dropPlace{Packets: units.Count(packets), Rate: perSecond(packets, d.Seconds) + "/s", Share: share(packets, d.Packets)}
	}
	var places []dropPlace
	rest := d.Packets
	for _, s := range d.Sites[:min(len(d.Sites), mostPlaces)] {
		p := place(s.Packets)
		p.Function, p.Reason, p.Protocol = s.Function, cmp.Or(s.Reason, units.None), s.Protocol
		if s.Offset > 0 {
			p.Function += fmt.Sprintf("+%#x", s.Offset)
		}
		places = append(places, p)
		rest -= min(rest, s.Packets)
	}
	if rest > 0 && len(places) > 0 {
		p := place(rest)
		p.Function = "elsewhere"
		places = append(places, p)
	}
	return places
}

// dropCauses tell what netfilter's drops come from, and compare the full table's
// with the kernel's own counter.
func dropCauses(s *lab.StageReport) []string {
	var lines []string
	for _, c := range s.Drops.Causes {
		lines = append(lines, fmt.Sprintf("%s: %s (told by %s)", c.Cause, units.Plural(c.Packets, "packet", "packets"), c.Source))
	}
	if n, ok := s.Counters["drop"]; ok {
		lines = append(lines, fmt.Sprintf("conntrack's own counter drop grew by %s meanwhile", units.Count(n)))
	}
	return lines
}

// dropTalks are whose packets were dropped.
func dropTalks(d *snapshot.Drops) []string {
	looked := uint64(0)
	for _, f := range d.Flows {
		looked += f.Packets
	}
	var lines []string
	for _, f := range d.Flows[:min(len(d.Flows), mostTalks)] {
		line := fmt.Sprintf("%s %s → %s", f.Protocol, f.Source, f.Destination)
		if f.Interface != "" {
			line += " by " + f.Interface
		}
		lines = append(lines, fmt.Sprintf("%s: %s of the drops looked at, %s", line, share(f.Packets, looked), f.Function))
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
		t := &Table{Indent: 2, Columns: []Column{{Head: "packets", Right: true}, {Head: "rate", Right: true}, {Head: "share", Right: true}, {Head: "function"}, {Head: "reason"}, {Head: "protocol"}}}
		for _, d := range v.Places {
			t.Row(d.Packets, d.Rate, d.Share, d.Function, d.Reason, d.Protocol)
		}
		if len(v.Places) > 0 {
			p.table(t)
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
