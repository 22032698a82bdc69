package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkShadowed: a rule that translates can never match, as one before it takes all of its packets,
// and does something else with them.
func (a *audit) checkShadowed() (*Finding, Check) {
	grown := a.grown(func(x *snapshot.Audit) []snapshot.RulePlace {
		return placesIn(x.Shadowed, func(s *snapshot.ShadowedRule) snapshot.RulePlace { return s.RulePlace })
	})
	taken := a.grown(func(x *snapshot.Audit) []snapshot.RulePlace {
		return placesIn(x.Shadowed, func(s *snapshot.ShadowedRule) snapshot.RulePlace { return s.By })
	})
	f := worded("rule-shadowed", nil, nil)
	var texts, by []string
	leftovers := true
	for i, s := range a.Shadowed {
		if grown[i] > 0 || a.sameSource(&s) {
			continue
		}
		leftovers = leftovers && s.Alike
		texts, by = append(texts, s.Text), once(by, s.By.Text)
		if len(texts) <= mostListed {
			e := placeOf("comes before, and takes its packets", s.By)
			if taken[i] > 0 {
				e.Source += fmt.Sprintf(", %s meanwhile", units.Plural(int64(taken[i]), "packet", "packets"))
			}
			f.Evidence = append(f.Evidence, placeOf("rule that can never match", s.RulePlace), e)
		}
		if len(texts) <= mostShown {
			remedy := advice("shadowed-order", deletes(s.RulePlace), s.By.Text, where(a.rec))
			if s.Alike {
				remedy = advice("shadowed-leftover", deletes(s.RulePlace), s.By.Text, where(a.rec))
			}
			f.Remedies = append(f.Remedies, remedy)
		}
	}
	rules := units.Plural(int64(len(a.rules.Rules)), "rule", "rules")
	if len(texts) == 0 {
		return a.short("none of " + rules + " of NAT is behind one that takes all of its packets to another effect")
	}
	// A later rule for the very packets of another one is a leftover: it harms only where a service fails.
	if leftovers && !servicesFail(a.rec) {
		f.Severity = Notice
	}
	f.Title = "a rule of NAT can never match: " + texts[0]
	if len(texts) > 1 {
		f.Title = fmt.Sprintf("%d rules of NAT can never match: %s", len(texts), firstOf(texts))
	}
	f.Cause = "all of its packets are taken before: " + strings.Join(by[:min(len(by), mostShown)], "; ")
	return f, Check{Why: fmt.Sprintf("%d of %s can never match", len(texts), rules)}
}

// sameSource reports whether a rule gives the address that the masquerade before it chooses: the only
// one of its family that the interface has.
func (a *audit) sameSource(s *snapshot.ShadowedRule) bool {
	if !s.Address.IsValid() {
		return false
	}
	i := slices.IndexFunc(a.Interfaces, func(i snapshot.Interface) bool { return i.Name == s.Masqueraded })
	if i < 0 {
		return false
	}
	var own []netip.Addr
	for _, p := range a.Interfaces[i].Addresses {
		if p.Addr().Is4() == s.Address.Is4() {
			own = append(own, p.Addr())
		}
	}
	return len(own) == 1 && own[0] == s.Address
}
