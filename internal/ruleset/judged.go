package ruleset

import (
	"slices"
	"strings"
)

// counting are the beginnings of conditions, in the words of iptables and nft, that depend on how many packets or
// connections there are; settled those of which Parse has what Judge needs.
var (
	counting = []string{"limit ", "ct count ", "quota ", "-m limit", "-m hashlimit", "-m connlimit", "-m quota", "--limit", "--hashlimit", "--connlimit", "--quota"}
	settled  = []string{"ct state ", "-m conntrack --ctstate ", "-m conntrack ! --ctstate ", "-m state ", "--ctstate ", "--state "}
)

// ForJudge completes rules that were read as text with what Judge asks about and a gateway's file has no words for, so
// that Parse leaves it open: what ends the way of a packet with an answer drops it, and a condition on how many there are
// holds for some packets of a connection.
func (s *Ruleset) ForJudge() {
	for _, t := range s.Tables {
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				r.forJudge()
			}
		}
	}
}

func (r *Rule) forJudge() {
	if name, _, _ := strings.Cut(strings.ToLower(r.Target.Name), " "); r.Target.Kind == Ends && name == "reject" {
		r.Target.Kind, r.Target.Rejects, r.Target.Unknown = Drop, true, nil
	}
	m := &r.Match
	open := false
	for _, text := range m.Unknown {
		begins := func(prefix string) bool { return strings.HasPrefix(strings.TrimPrefix(text, "("), prefix) }
		switch {
		case slices.ContainsFunc(counting, begins):
			m.Limits, m.Part, m.Loose = true, true, true
		case !slices.ContainsFunc(settled, begins):
			open = true
		}
	}
	m.Opaque = m.Opaque && (open || !m.Limits)
}
