package gateway

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// refuses warns of a chain that refuses what none of its rules accepts, as long as none
// accepts what the gateway forwards.
func (c *checker) refuses(f *Foreign) {
	if f.Policy == "accept" || f.Policy == "" || !c.forwards(f.Family) || c.admitted(f) {
		return
	}
	does := map[string]string{"drop": "drops", "reject": "rejects"}[f.Policy]
	c.add(Finding{ID: "foreign-forward-drop", Severity: Warn,
		Message: fmt.Sprintf("%s %s what its rules do not accept, what this gateway forwards too", f.words(), does),
		Advice:  f.admit(c.plan)}, nil)
}

// forwards reports whether the plan has rules for what a chain of that family sees.
func (c *checker) forwards(family string) bool {
	return family != "ip6" && c.plan.IPv4 || family != "ip" && c.plan.IPv6
}

// admitted reports whether rules let through what begins inside, altogether, and something
// that comes in: answers are that, and what is sent on to hosts inside. By which states
// and addresses natkit does not follow.
func (c *checker) admitted(f *Foreign) bool {
	p := c.plan
	if len(p.LAN) == 0 || len(p.WAN) == 0 {
		return false
	}
	for _, lan := range p.LAN {
		for _, wan := range p.WAN {
			out, in := traffic{in: []string{lan}, out: []string{wan}}, traffic{in: []string{wan}, out: []string{lan}}
			all := func(n snapshot.NATRule) bool {
				return !n.Partial && len(n.Unless) == 0 && c.contains(n.Condition(), out)
			}
			some := func(n snapshot.NATRule) bool { return c.meets(&n, in) }
			if len(p.Sources) > 0 && !slices.ContainsFunc(f.Accepts, all) || !slices.ContainsFunc(f.Accepts, some) {
				return false
			}
		}
	}
	return true
}
