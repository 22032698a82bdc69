package simulate

import (
	"cmp"
	"slices"
)

// incidents finds what began and ended in a curve.
func incidents(r *Result) []Incident {
	all := []Incident{}
	for _, k := range []struct {
		kind  string
		count func(*Point) int64
	}{
		{IncidentRejects, func(p *Point) int64 { return p.Counts.Rejects() }},
		{IncidentFailures, func(p *Point) int64 { return p.Counts.Failed }},
		{IncidentSessions, func(p *Point) int64 {
			if p.Counts.SessionsReused <= p.Counts.Sessions {
				return 0
			}
			return p.Counts.SessionsReused
		}},
		{IncidentPorts, func(p *Point) int64 { return p.Counts.NoPort }},
		{IncidentOverflow, func(p *Point) int64 { return p.Counts.TimeWaitOverflow }},
	} {
		all = append(all, spells(r, k.kind, k.count)...)
	}
	slices.SortStableFunc(all, func(a, b Incident) int { return cmp.Compare(a.StartSeconds, b.StartSeconds) })
	return all
}

// quiet is how many intervals without anything end an incident.
const quiet = 3

// spells are the incidents of one kind.
func spells(r *Result, kind string, count func(*Point) int64) (found []Incident) {
	last := -quiet - 1
	for i := range r.Curve {
		p := &r.Curve[i]
		n := count(p)
		if n == 0 {
			continue
		}
		end := r.Seconds
		if i+1 < len(r.Curve) {
			end = r.Curve[i+1].StartSeconds
		}
		if i-last > quiet {
			rate := 0.0
			if end > p.StartSeconds {
				rate = float64(p.Counts.Connections) / (end - p.StartSeconds)
			}
			found = append(found, Incident{Kind: kind, StartSeconds: p.StartSeconds, Rate: rate})
		}
		f := &found[len(found)-1]
		f.EndSeconds, f.Count, last = end, f.Count+n, i
	}
	return found
}
