package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/units"
)

// holds reports whether a run held connections until all of them stood.
func holds(r *lab.Report) bool {
	return slices.ContainsFunc(r.Stages, func(s lab.StageReport) bool { return s.Held() != nil })
}

// heldRow asks each stage that held connections.
func heldRow(r *lab.Report, label string, cell func(*lab.HeldReport) Cell) measure {
	return row(r, label, func(s *lab.StageReport) Cell {
		if h := s.Held(); h != nil {
			return cell(h)
		}
		return noValue
	})
}

// heldMeasures are the groups of a run that held connections, in place of those about requests.
func heldMeasures(r *lab.Report) []measures {
	groups := []measures{{Title: "connections", Rows: heldRows(r)}, {Title: "new per second", Rows: courseRows(r)}}
	if rows := memoryRows(r); len(rows) > 0 {
		groups = append(groups, measures{Title: "kernel memory, B", Rows: rows})
	}
	return groups
}

func heldRows(r *lab.Report) []measure {
	rows := []measure{
		heldRow(r, "established", func(h *lab.HeldReport) Cell { return Cell{units.Count(h.Established), Bold} }),
		heldRow(r, "of", func(h *lab.HeldReport) Cell { return Cell{Text: units.Count(h.Config.Connections)} }),
		heldRow(r, "per second", func(h *lab.HeldReport) Cell { return Cell{units.Rate(h.OpenPerSecond), Bold} }),
	}
	if first := r.Stages[0].Held(); first != nil && first.OpenPerSecond > 0 {
		rows = append(rows, heldRow(r, "  against "+r.Stages[0].Name, func(h *lab.HeldReport) Cell {
			return Cell{Text: units.Percent(h.OpenPerSecond / first.OpenPerSecond)}
		}))
	}
	return append(rows,
		heldRow(r, "opened in", func(h *lab.HeldReport) Cell { return Cell{Text: units.Seconds(h.OpenSeconds)} }),
		heldRow(r, "closed in", func(h *lab.HeldReport) Cell { return Cell{Text: units.Seconds(h.CloseSeconds)} }),
		heldRow(r, "failed", func(h *lab.HeldReport) Cell { return badUnlessZero(h.Failed) }),
		heldRow(r, "not reached", func(h *lab.HeldReport) Cell { return badUnlessZero(h.Unfinished) }),
		heldRow(r, "SYN sent again", func(h *lab.HeldReport) Cell { return badUnlessZero(h.Late) }),
		heldRow(r, "ended early", func(h *lab.HeldReport) Cell { return badUnlessZero(h.Lost) }),
		heldRow(r, "alive, of those asked", func(h *lab.HeldReport) Cell {
			return Cell{Text: fmt.Sprintf("%s/%s", units.Count(h.Alive), units.Count(h.Verified))}
		}),
		row(r, "doctor found", func(s *lab.StageReport) Cell {
			switch {
			case s.Found == nil:
				return noValue
			case len(s.Found) == 0:
				return Cell{Text: "nothing"}
			}
			return Cell{strings.Join(s.Found, ", "), Bad}
		}))
}

// courseShares are of all connections: the rows of the course.
var courseShares = []int64{5, 10, 20, 40, 60, 80, 100}

// courseRows are the rates at which connections were opened while so many stood already.
func courseRows(r *lab.Report) (rows []measure) {
	most := int64(0)
	for i := range r.Stages {
		if h := r.Stages[i].Held(); h != nil {
			most = max(most, int64(h.Config.Connections))
		}
	}
	for _, share := range courseShares {
		open := most * share / 100
		rows = append(rows, heldRow(r, "at "+units.Count(open), func(h *lab.HeldReport) Cell {
			if rate := h.RateAt(open); rate > 0 {
				return Cell{Text: units.Rate(rate)}
			}
			return noValue
		}))
	}
	return append(rows, heldRow(r, "in the last second", func(h *lab.HeldReport) Cell { return Cell{Text: units.Rate(h.LastRate())} }))
}

// memoryRows are the caches that grew in some stage that held all of its connections, by connection. Stages
// that stopped early have too few of them beside what else is in those caches.
func memoryRows(r *lab.Report) []measure {
	whole := func(h *lab.HeldReport) bool { return h.MemoryPerConnection > 0 && h.Unfinished+h.Failed == 0 }
	var caches []string
	for i := range r.Stages {
		h := r.Stages[i].Held()
		if h == nil || !whole(h) {
			continue
		}
		for _, m := range h.Memory {
			if !slices.Contains(caches, m.Cache) {
				caches = append(caches, m.Cache)
			}
		}
	}
	if len(caches) == 0 {
		return nil
	}
	value := func(bytes func(*lab.HeldReport) float64) func(*lab.HeldReport) Cell {
		return func(h *lab.HeldReport) Cell {
			if n := bytes(h); whole(h) && n > 0 {
				return Cell{Text: units.Fixed(n, 0)}
			}
			return noValue
		}
	}
	rows := []measure{heldRow(r, "per connection", value(func(h *lab.HeldReport) float64 { return h.MemoryPerConnection }))}
	for _, cache := range caches {
		rows = append(rows, heldRow(r, "  "+cache, value(func(h *lab.HeldReport) float64 { return h.Of(cache) })))
	}
	return rows
}

// heldSummary has a sentence for each stage: how many connections stood, and, where some did not, what the
// gateway's tracker refused.
func heldSummary(r *lab.Report) (sentences []string) {
	for i := range r.Stages {
		s := &r.Stages[i]
		h := s.Held()
		if h == nil {
			continue
		}
		text := fmt.Sprintf("%s: %s of %s connections, %s/s", s.Name, units.Count(h.Established), units.Count(h.Config.Connections), units.Rate(h.OpenPerSecond))
		if first := r.Stages[0].Held(); i > 0 && first != nil && first.OpenPerSecond > 0 {
			text += fmt.Sprintf(" (%s of %s)", units.Percent(h.OpenPerSecond/first.OpenPerSecond), r.Stages[0].Name)
		}
		if n := s.Counters["chaintoolong"]; n > 0 {
			text += fmt.Sprintf("; its hash chains were too long, so the kernel refused %s (chaintoolong)", units.Plural(int64(n), "SYN", "SYNs"))
		}
		if n := s.Counters["drop"]; n > 0 {
			text += fmt.Sprintf("; the table was full, so the kernel dropped %s (drop)", units.Plural(int64(n), "SYN", "SYNs"))
		}
		sentences = append(sentences, text+".")
	}
	return sentences
}
