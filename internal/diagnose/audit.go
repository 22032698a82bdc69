package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// audit is what speaks against the rules of a recording, whatever the traffic.
type audit struct {
	*snapshot.Audit
	rec   *snapshot.Recording
	rules *snapshot.NATRules
}

// readAudit returns nil where there are no rules, or they were not compared.
func readAudit(rec *snapshot.Recording) (*audit, Check) {
	last := rec.Last()
	var end Check
	switch {
	case last.NATRules == nil:
		_, end = unknown(cmp.Or(last.PartError("nat_rules"), "the NAT rules were not read"))
	case len(last.NATRules.Rules) == 0:
		_, end = passed("no rule translates addresses")
	case last.Audit == nil:
		_, end = unknown(cmp.Or(last.PartError(snapshot.PartAudit), "the rules were not compared with each other and the host: a bundle of an older natkit"))
	default:
		return &audit{last.Audit, rec, last.NATRules}, end
	}
	return nil, end
}

// short ends a check without a finding where rules were left out.
func (a *audit) short(why string) (*Finding, Check) {
	if a.TooMany {
		return unknown("there are more rules than natkit compares with each other; of those that were, " + why)
	}
	return passed(why)
}

// grown returns what the places of a list, which of takes out of an audit, counted between the last
// two snapshots.
func (a *audit) grown(of func(*snapshot.Audit) []snapshot.RulePlace) []uint64 {
	var before []snapshot.RulePlace
	if first := a.rec.First().Audit; first != nil {
		before = of(first)
	}
	return snapshot.GrownPlaces(of(a.Audit), before)
}

// placesIn returns one place of each element of a list.
func placesIn[T any](list []T, of func(*T) snapshot.RulePlace) (all []snapshot.RulePlace) {
	for i := range list {
		all = append(all, of(&list[i]))
	}
	return all
}

// deletes is the command that deletes a rule, in the words of the program that keeps it; a policy stays.
func deletes(p snapshot.RulePlace) string {
	command, rest, iptables := strings.Cut(p.Text, " -A ")
	chain, _, _ := strings.Cut(p.Text, ":")
	switch {
	case isPolicy(p):
		return p.Text
	case iptables && strings.Contains(rest, "("): // a condition that natkit has no word for
		name, _, _ := strings.Cut(rest, " ")
		return lists(p) + ", and -D " + name + " NUMBER"
	case iptables:
		return command + " -D " + rest
	}
	return fmt.Sprintf("nft delete rule %s handle %d", chain, p.Handle)
}

// lists is the command that shows a rule with those around it and what they counted.
func lists(p snapshot.RulePlace) string {
	if command, rest, iptables := strings.Cut(p.Text, " -A "); iptables {
		name, _, _ := strings.Cut(rest, " ")
		return command + " -nvL " + name + " --line-numbers"
	}
	chain, _, _ := strings.Cut(p.Text, ":")
	return "nft -a list chain " + chain
}

func isPolicy(p snapshot.RulePlace) bool {
	return strings.Contains(p.Text, ": policy ") || isIPTables(p) && !strings.Contains(p.Text, " -A ")
}

func isIPTables(p snapshot.RulePlace) bool {
	return strings.HasPrefix(p.Text, "iptables") || strings.HasPrefix(p.Text, "ip6tables")
}

// keeper names the program that keeps a rule, where it is not the administrator.
func keeper(p snapshot.RulePlace) string {
	if p.Owner == "" {
		return ""
	}
	return " (" + p.Owner + " keeps it: change it there)"
}

// placeOf is evidence of a rule with what it counted.
func placeOf(what string, p snapshot.RulePlace) Evidence {
	e := Evidence{What: what, Value: p.Text, Source: "rules by netlink"}
	if p.Counted {
		e.Source += ", counter at " + units.Count(int64(p.Packets))
	}
	return e
}

// mayTranslate reports whether a rule may give a new source to what goes from one address to another
// one by an interface.
func mayTranslate(r *snapshot.NATRule, from, to netip.Addr, out string) bool {
	return r.TranslatesSource() && (r.Family == "inet" || (r.Family == "ip") == to.Is4()) &&
		(!r.FromSource.IsValid() || r.FromSource.Contains(from)) &&
		(!r.ToDestination.IsValid() || r.ToDestination.Contains(to)) &&
		mayLeaveBy(r, out) &&
		!slices.ContainsFunc(r.Unless, func(c snapshot.NATCondition) bool { return c == (snapshot.NATCondition{OutInterface: out}) })
}

// mayLeaveBy reports whether a rule may be for what leaves by an interface; empty where that is not known.
func mayLeaveBy(r *snapshot.NATRule, out string) bool {
	return out == "" || r.OutInterface == "" || r.OutInterface == out || strings.HasSuffix(r.OutInterface, "*")
}

// given reports whether a rule may give an address to sources; one whose addresses are not
// constant may give any.
func (a *audit) given(address netip.Addr) bool {
	return slices.ContainsFunc(a.rules.Rules, func(r snapshot.NATRule) bool {
		return r.Kind == snapshot.NATSource && (!r.First.IsValid() || r.First.Compare(address) <= 0 && address.Compare(r.Last) <= 0)
	})
}

// elsewhere returns what is known of an address that rules give and that is not this host's.
func (a *audit) elsewhere(address netip.Addr) *snapshot.GivenElsewhere {
	i := slices.IndexFunc(a.Elsewhere, func(g snapshot.GivenElsewhere) bool { return g.Address == address })
	if i < 0 || a.Elsewhere[i].Rule < 0 || a.Elsewhere[i].Rule >= len(a.rules.Rules) {
		return nil
	}
	return &a.Elsewhere[i]
}

// prefixFor is the rule that gives an address of a prefix or range of which this host has no network; nil where there is
// none.
func (a *audit) prefixFor(given netip.Addr) *snapshot.NATRule {
	if at, _ := a.Near(given); at != nil {
		return nil
	}
	i := slices.IndexFunc(a.rules.Rules, func(r snapshot.NATRule) bool {
		return r.Kind == snapshot.NATSource && r.First.IsValid() && r.First != r.Last && r.First.Compare(given) <= 0 && given.Compare(r.Last) <= 0
	})
	if i < 0 {
		return nil
	}
	return &a.rules.Rules[i]
}

// hairpin is the network that the clients of a service without answers share with its server, which
// answers them past this host; not valid where that is not so.
func (a *audit) hairpin(s *snapshot.Service) (network netip.Prefix) {
	target := s.Target.Addr()
	at, own := a.Near(target)
	if at == nil || own || len(s.Clients) == 0 {
		return network
	}
	for _, p := range at.Addresses {
		if p.Contains(target) {
			network = p.Masked()
		}
	}
	for _, client := range s.Clients {
		_, own := a.Near(client)
		if own || !network.Contains(client) || slices.ContainsFunc(a.rules.Rules, func(r snapshot.NATRule) bool { return mayTranslate(&r, client, target, at.Name) }) {
			return netip.Prefix{}
		}
	}
	return network
}
