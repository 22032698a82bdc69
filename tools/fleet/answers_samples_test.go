package main

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/table"
)

// place is a table of connections: that of a namespace of a node.
type place struct{ node, netns string }

func (p place) compare(o place) int {
	return cmp.Or(strings.Compare(p.node, o.node), strings.Compare(p.netns, o.netns))
}

// readings are the samples of each table in the order of time, without those that were sent twice or lack what is needed.
func (t Tables) readings(from, to table.Time, has func(table.Sample) bool) map[place][]table.Sample {
	all := map[place][]table.Sample{}
	for _, s := range t.Samples {
		if s.Time >= from && s.Time < to && has(s) {
			all[place{s.Node, s.Netns}] = append(all[place{s.Node, s.Netns}], s)
		}
	}
	for p := range all {
		slices.SortStableFunc(all[p], func(a, b table.Sample) int { return cmp.Compare(a.Time, b.Time) })
		all[p] = slices.CompactFunc(all[p], func(a, b table.Sample) bool { return a.Time == b.Time })
	}
	return all
}

func hasCounters(s table.Sample) bool { return s.Drop != nil || s.InsertFailed != nil }

// lostBetween is what was lost from one sample to the next: after a boot all that is counted.
func lostBetween(a, b table.Sample) int64 {
	before, now := value(a.Drop)+value(a.InsertFailed), value(b.Drop)+value(b.InsertFailed)
	if a.BootID != b.BootID || now < before {
		return now
	}
	return now - before
}

func (t Tables) losing(from, to string) (answer []row) {
	type bout struct {
		since, until table.Time
		kernel       string
		lost         int64
	}
	bouts := map[place][]bout{}
	last := map[place]table.Time{}
	all := map[place]int64{}
	for p, samples := range t.readings(moment(from), moment(to), hasCounters) {
		var now bout
		end := func() {
			if now.lost > 0 {
				bouts[p] = append(bouts[p], now)
				all[p] += now.lost
			}
		}
		for i, s := range samples {
			last[p] = s.Time
			var lost int64
			if i > 0 {
				lost = lostBetween(samples[i-1], s)
			}
			if lost == 0 {
				end()
				now = bout{since: s.Time}
			}
			now.until, now.lost, now.kernel = s.Time, now.lost+lost, max(now.kernel, s.Kernel)
		}
		end()
	}
	for _, p := range sortedKeys(bouts, func(a, b place) int { return cmp.Or(-cmp.Compare(all[a], all[b]), a.compare(b)) }) {
		b := bouts[p][len(bouts[p])-1]
		now := "no"
		if b.until == last[p] {
			now = "yes"
		}
		answer = append(answer, line("node", p.node, "netns", null(p.netns), "kernel", b.kernel, "lost_in_all", all[p], "bouts", len(bouts[p]), "since", b.since, "until", b.until, "lost", b.lost, "now", now))
	}
	return answer
}

func (t Tables) growth(from, to string, hours float64) (answer []row) {
	type growing struct {
		samples             int
		last                table.Time
		entries, limit      *int64
		peak                int64
		perHour, remaining  float64
		hasSlope, hasRemain bool
	}
	all := map[place]growing{}
	for p, samples := range t.readings(moment(from), moment(to), func(s table.Sample) bool { return s.Entries != nil }) {
		var g growing
		var sumX, sumY, sumXY, sumXX float64
		for _, s := range samples {
			x, y := math.Floor(float64(s.Time-samples[0].Time)/1000000), float64(*s.Entries)
			sumX, sumY, sumXY, sumXX = sumX+x, sumY+y, sumXY+x*y, sumXX+x*x
			g.samples++
			g.last, g.entries, g.limit, g.peak = s.Time, s.Entries, s.EntriesMax, max(g.peak, *s.Entries)
		}
		n := float64(g.samples)
		if down := n*sumXX - sumX*sumX; down != 0 {
			g.perHour, g.hasSlope = 3600*((n*sumXY-sumX*sumY)/down), true
		}
		switch {
		case g.limit == nil:
		case *g.entries >= *g.limit:
			g.hasRemain = true
		case g.hasSlope && g.perHour > 0:
			g.remaining, g.hasRemain = float64(*g.limit-*g.entries)/g.perHour, true
		}
		if g.hasRemain && g.remaining <= hours {
			all[p] = g
		}
	}
	for _, p := range sortedKeys(all, func(a, b place) int { return cmp.Or(cmp.Compare(all[a].remaining, all[b].remaining), a.compare(b)) }) {
		g := all[p]
		var perHour any
		if g.hasSlope {
			perHour = thousandths(g.perHour)
		}
		answer = append(answer, line("node", p.node, "netns", null(p.netns), "samples", g.samples, "last", g.last, "entries", g.entries, "entries_max", g.limit, "peak", g.peak, "used", quotient(float64(*g.entries), float64(*g.limit)), "per_hour", perHour, "hours_left", thousandths(g.remaining)))
	}
	return answer
}

// side is the two sums of a measure on one side of an upgrade.
type side struct{ up, down float64 }

type upgrade struct{ node, old, new, measure string }

func (t Tables) upgrades(from, to string, windowS int64) (answer []row) {
	window := table.Time(windowS * 1e6)
	begin, end := moment(from)-window, moment(to)+window
	readings := t.readings(begin, end, hasCounters)
	heard := t.counted(func(s table.Service) bool { return s.Time >= begin && s.Time < end })
	sums := map[upgrade]*[2]side{}
	for node, samples := range kernelsOf(readings) {
		for i := 1; i < len(samples); i++ {
			at := samples[i].Time
			if samples[i-1].Kernel == samples[i].Kernel || at < moment(from) || at >= moment(to) {
				continue
			}
			add := func(time table.Time, measure string, up, down float64) {
				if time < at-window || time >= at+window {
					return
				}
				k := upgrade{node, samples[i-1].Kernel, samples[i].Kernel, measure}
				if sums[k] == nil {
					sums[k] = &[2]side{}
				}
				which := 0
				if time >= at {
					which = 1
				}
				sums[k][which].up += up
				sums[k][which].down += down
			}
			measure(node, readings, heard, add)
		}
	}
	return upgradeRows(sums)
}

// kernelsOf are the samples of each node, of all its tables, one at a time.
func kernelsOf(readings map[place][]table.Sample) map[string][]table.Sample {
	nodes := map[string][]table.Sample{}
	for p, samples := range readings {
		nodes[p.node] = append(nodes[p.node], samples...)
	}
	for n := range nodes {
		slices.SortFunc(nodes[n], func(a, b table.Sample) int {
			return cmp.Or(cmp.Compare(a.Time, b.Time), -strings.Compare(a.Kernel, b.Kernel))
		})
		nodes[n] = slices.CompactFunc(nodes[n], func(a, b table.Sample) bool { return a.Time == b.Time })
	}
	return nodes
}

func measure(node string, readings map[place][]table.Sample, heard []table.Service, add func(table.Time, string, float64, float64)) {
	for p, samples := range readings {
		if p.node != node {
			continue
		}
		for i, s := range samples {
			if s.Entries != nil {
				add(s.Time, "entries", float64(*s.Entries), 1)
			}
			if i > 0 {
				add(s.Time, "lost_per_hour", float64(lostBetween(samples[i-1], s))*3600, math.Floor(float64(s.Time-samples[i-1].Time)/1000000))
			}
		}
	}
	for _, s := range heard {
		if s.Node != node {
			continue
		}
		add(s.Time, "answered_percent", float64(s.Answered)*100, float64(s.Attempts))
		if s.HandshakeUS != nil {
			add(s.Time, "handshake_us", float64(*s.HandshakeUS*s.Answered), float64(s.Answered))
		}
	}
}

func upgradeRows(sums map[upgrade]*[2]side) (answer []row) {
	all := map[upgrade]*[2]side{}
	nodes, worse := map[upgrade]int{}, map[upgrade]int{}
	for k, s := range sums {
		group := k
		group.node = ""
		if all[group] == nil {
			all[group] = &[2]side{}
		}
		nodes[group]++
		for i := range s {
			all[group][i].up += s[i].up
			all[group][i].down += s[i].down
		}
		change := s[1].up/s[1].down - s[0].up/s[0].down // NaN is not above 0
		if k.measure == "answered_percent" {
			change = -change
		}
		if change > 0 {
			worse[group]++
		}
	}
	for _, k := range sortedKeys(all, func(a, b upgrade) int {
		return cmp.Or(strings.Compare(a.old, b.old), strings.Compare(a.new, b.new), strings.Compare(a.measure, b.measure))
	}) {
		s := all[k]
		answer = append(answer, line("old_kernel", k.old, "new_kernel", k.new, "measure", k.measure, "nodes", nodes[k], "before", quotient(s[0].up, s[0].down), "after", quotient(s[1].up, s[1].down), "worse", worse[k]))
	}
	return answer
}
