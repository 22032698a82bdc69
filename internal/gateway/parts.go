package gateway

import (
	"cmp"
	"maps"
	"slices"
)

// Note is why an engine does not carry out a rule.
type Note struct {
	Rule    Ref    `json:"rule"`
	Engine  Engine `json:"engine"`
	Because string `json:"because"`
}

// Word is that of the file for the engines of a plan.
func (p *Plan) Word() Engine {
	if p.Bypass != 0 {
		return EngineEBPF
	}
	return p.Engine
}

// Carrier is which engine carries out a rule first, and why others do not.
type Carrier struct {
	Rule   Ref    `json:"rule"`
	Engine Engine `json:"engine"`
	Notes  []Note `json:"notes,omitempty"`
}

// Carriers are those of all rules of a plan, by the notes of its assignment; nil where there is one engine.
func (p *Plan) Carriers(notes []Note) (all []Carrier) {
	if len(p.Assigned) == 0 && len(notes) == 0 {
		return nil
	}
	by, why := map[Ref]Engine{}, map[Ref][]Note{}
	for engine, rules := range p.Assigned {
		for _, r := range rules {
			by[r] = engine
		}
	}
	for _, n := range notes {
		why[n.Rule] = append(why[n.Rule], n)
	}
	for _, r := range p.Refs() {
		all = append(all, Carrier{r, cmp.Or(by[r], p.Engine), why[r]})
	}
	slices.SortFunc(all, func(a, b Carrier) int { return a.Rule.Compare(b.Rule) })
	return all
}

// Part is what an engine carries out of the plan; nil for nothing. p.Engine has all of it, what is not about a single
// rule, such as a limit of connections, alone.
func (p *Plan) Part(e Engine) *Plan {
	switch {
	case e == p.Engine:
		return p
	case len(p.Assigned[e]) == 0:
		return nil
	}
	mine := map[Ref]bool{}
	for _, r := range p.Assigned[e] {
		mine[r] = true
	}
	part := p.Only(func(r Ref) bool { return mine[r] })
	part.Engine, part.Assigned = e, nil
	part.MSS, part.Flowtable, part.ConnectionsPerSource, part.Helpers, part.TTL, part.PCP = MSS{}, nil, 0, nil, 0, nil
	return part
}

// Only is the plan with some of its rules.
func (p *Plan) Only(keep func(Ref) bool) *Plan {
	part := *p
	for _, list := range []*[]Entry{&part.Destinations, &part.Sources, &part.Stateless, &part.Untracked} {
		*list = only(*list, func(e Entry) bool { return keep(e.Rule) })
	}
	part.Waiting = only(p.Waiting, func(w Waiting) bool { return keep(w.Rule) })
	part.Off = nil
	return &part
}

func only[T any](all []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(t T) bool { return !keep(t) })
}

// Refs are the rules that have entries in the plan, each once.
func (p *Plan) Refs() []Ref {
	var all []Ref
	seen := map[Ref]bool{}
	for e := range p.Entries() {
		if !seen[e.Rule] {
			seen[e.Rule], all = true, append(all, e.Rule)
		}
	}
	return all
}

// Engines are those that carry out the plan: the one that has all of it comes first.
func (p *Plan) Engines() []Engine {
	return append([]Engine{p.Engine}, slices.Sorted(maps.Keys(p.Assigned))...)
}

// Miss adds to Changes which engines of a plan have nothing in force.
func (s *State) Miss(p *Plan) {
	if p == nil {
		return
	}
	for _, name := range p.Engines() {
		if one := s.Engines[name]; one == nil || !one.Present {
			s.Change("engine %s has nothing in force", name)
		}
	}
}
