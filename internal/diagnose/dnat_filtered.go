package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkDNATFiltered: what a rule translates is dropped by a filter behind it, whoever sends it.
func checkDNATFiltered(rec *snapshot.Recording) (*Finding, Check) {
	last := rec.Last()
	if last.DNATTargets == nil || last.NATRules == nil {
		return unknown(cmp.Or(last.PartError(snapshot.PartDNATTargets), last.PartError("nat_rules"), "the targets of DNAT were not looked up: a bundle of an older natkit"))
	}
	asked := int64(0)
	var bad []*snapshot.DNATTarget
	for i := range last.DNATTargets.Targets {
		t := &last.DNATTargets.Targets[i]
		if t.Filter == nil || t.Rule < 0 || t.Rule >= len(last.NATRules.Rules) {
			continue
		}
		if asked++; !t.Filter.Passes {
			bad = append(bad, t)
		}
	}
	switch {
	case len(last.DNATTargets.Targets) == 0:
		return passed("no rule leads to a constant address")
	case asked == 0:
		return unknown("the filters were not asked about the targets of DNAT: a bundle of an older natkit")
	}
	targets := units.Plural(asked, "target", "targets")
	if len(bad) == 0 {
		return passed("filters let pass what leads to " + targets + ", or some of it")
	}
	return filteredFinding(rec, bad), Check{Why: fmt.Sprintf("filters drop what leads to %d of %s", len(bad), targets)}
}

func filteredFinding(rec *snapshot.Recording, bad []*snapshot.DNATTarget) *Finding {
	f := worded("dnat-filtered", nil, nil)
	var names, places []string
	for i, t := range bad {
		r := &rec.Last().NATRules.Rules[t.Rule]
		name := (&unreachable{DNATTarget: *t}).String()
		if grown := r.Grown(rec.First().NATRules); grown > 0 {
			f.Severity = Critical
			f.Evidence = append(f.Evidence, Evidence{What: "translated to " + name + " and dropped", Value: int64(grown), Unit: "packets", Source: "counter of the rule"})
		}
		if i < mostListed {
			f.Evidence = append(f.Evidence, placeEvidence(name, r, t.Filter.Drops)...)
		}
		if i < mostShown {
			names = append(names, name)
			f.Remedies = append(f.Remedies, acceptRemedy(rec, t))
		}
		for _, d := range t.Filter.Drops {
			places = once(places, d.Text)
		}
	}
	f.Title = "filters drop what DNAT sends to " + strings.Join(names, ", ")
	if more := len(bad) - len(names); more > 0 {
		f.Title += fmt.Sprintf(" and %d more", more)
	}
	f.Cause = "no rule accepts it before: " + strings.Join(places[:min(len(places), mostShown)], "; ")
	return f
}

func placeEvidence(name string, r *snapshot.NATRule, drops []snapshot.RulePlace) (e []Evidence) {
	for _, d := range drops {
		source := "rules by netlink"
		if d.Counted {
			source += fmt.Sprintf("; it dropped %s so far", units.Plural(int64(d.Packets), "packet", "packets"))
		}
		e = append(e, Evidence{What: fmt.Sprintf("%s (%s) is dropped by", name, r.Text), Value: d.Text, Source: source})
	}
	return e
}

// acceptRemedy is how the program that keeps the filter lets the connections in.
func acceptRemedy(rec *snapshot.Recording, t *snapshot.DNATTarget) Remedy {
	to, port := t.Address.String(), t.Port
	protocol := cmp.Or(t.Protocol, "tcp")
	owner := ""
	for _, d := range t.Filter.Drops {
		owner = cmp.Or(owner, d.Owner)
	}
	how := fmt.Sprintf("iptables -I FORWARD -p %s -d %s --dport %d -j ACCEPT", protocol, to, port)
	switch text := t.Filter.Drops[0].Text; {
	case owner == "docker":
		how = fmt.Sprintf("iptables -I DOCKER-USER -p %s -d %s --dport %d -j ACCEPT", protocol, to, port)
	case owner == "ufw":
		how = fmt.Sprintf("ufw route allow proto %s to %s port %d", protocol, to, port)
	case owner == "firewalld":
		how = fmt.Sprintf("firewall-cmd --add-rich-rule='rule family=ipv4 destination address=%s port port=%d protocol=%s accept' in a policy from the outer zone to the inner one", to, port, protocol)
	case !strings.HasPrefix(text, "iptables") && !strings.HasPrefix(text, "ip6tables"):
		chain, _, _ := strings.Cut(text, ":")
		how = fmt.Sprintf("nft insert rule %s ip daddr %s %s dport %d accept", chain, to, protocol, port)
	}
	if t.Local {
		how = strings.Replace(how, "FORWARD", "INPUT", 1)
	}
	if t.Address.Is6() {
		how = strings.NewReplacer("iptables", "ip6tables", "ip daddr", "ip6 daddr", "family=ipv4", "family=ipv6").Replace(how)
	}
	return advice("filter-accept", to, how, where(rec))
}
