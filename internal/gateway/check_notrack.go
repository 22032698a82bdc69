package gateway

import (
	"fmt"
	"slices"
)

// notrack finds translations of what is not tracked, and so not translated.
func (c *checker) notrack() {
	for _, u := range c.plan.Untracked {
		if o := c.ruleOf(u.Rule); !o.takesAnswers(u) {
			o.takesBefore(u)
		}
	}
}

func (o one) takesAnswers(u Untracked) bool {
	return slices.ContainsFunc(o.plan.Sources, func(s Source) bool { return o.notrackTakes(u, &s) })
}

// takesBefore warns of a destination that is translated only as far as it is tracked.
func (o one) takesBefore(u Untracked) {
	for _, d := range o.plan.Destinations {
		if d.On.Contains(u.On) && portsMeet(d.Port, u.Port) {
			o.warn("notrack-before", fmt.Sprintf("%s of %s is not tracked, so that %s does not translate it", orEverything(both(d.Port, u.Port)), u.On, o.named(d.Rule)),
				"restrict one of them to other ports, unless it is meant so", "on")
			return
		}
	}
}

// notrackTakes refuses a rule that keeps the tracker from answers to what an
// interface's own address is given to.
func (o one) notrackTakes(u Untracked, s *Source) bool {
	if !s.Masquerade || !gives(s.Ports, u.Port) || !slices.ContainsFunc(o.pool(s), func(r Range) bool { return r.Contains(u.On) }) {
		return false
	}
	o.refuse("notrack-answers", fmt.Sprintf("%s gives %s to connections, and answers to it that are not tracked do not find back", o.named(s.Rule), u.On),
		"name a port that the rule does not give, or another address", "on")
	return true
}

// both is what two that meet have in common.
func both(a, b Port) Port {
	switch {
	case a.Protocol == "" || a.First == 0 && b.Protocol != "":
		return b
	case b.Protocol == "" || b.First == 0:
		return a
	}
	return Port{a.Protocol, max(a.First, b.First), min(a.last(), b.last())}
}

func orEverything(p Port) string {
	if p.Protocol == "" {
		return "everything"
	}
	return p.String()
}
