package diagnose

import (
	"fmt"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// leftChain is a chain with rules that translate, and that no base chain leads to.
type leftChain struct {
	// first is one of its rules, that for a port where there is one.
	first *snapshot.UnreachedRule
	rules int
	// services are what its rules publish.
	services []string
	// counted is what its rules counted while packets came to them.
	counted uint64
}

// leftChains are those of a recording. Of tables alike, as iptables' for IPv4 and IPv6, each has its own.
func (a *audit) leftChains() (all []*leftChain) {
	at := map[[4]string]*leftChain{}
	for i := range a.rules.Unreached {
		r := &a.rules.Unreached[i]
		key := [4]string{r.Source, r.Family, r.Table, r.From}
		l := at[key]
		if l == nil {
			l = &leftChain{first: r}
			at[key], all = l, append(all, l)
		}
		if l.rules++; r.Counted {
			l.counted += r.Packets
		}
		if published := publishes(&r.NATRule); published != "" {
			l.services = once(l.services, published)
		}
	}
	return all
}

// publishes is what clients ask for by a rule, and what that becomes; empty of one that is for no port.
func publishes(r *snapshot.NATRule) string {
	if r.TranslatesSource() || r.DestinationPort == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s port %d", r.Protocol, r.DestinationPort)) + " (" + r.Text + ")"
}

// hook is the chain of iptables that should lead to it.
func (l *leftChain) hook() string { return strings.ToUpper(l.first.Hook) }

func (l *leftChain) title() string {
	if len(l.services) == 0 {
		return fmt.Sprintf("no packet comes to the rules of the chain %s", l.first.From)
	}
	return fmt.Sprintf("no packet comes to the rules of the chain %s, which are for %s", l.first.From, firstOf(l.services))
}

func (l *leftChain) cause() string {
	r := l.first
	base, them := l.hook(), "its rules translate nothing"
	if r.Source == "nftables" {
		base = "the base chains of " + r.Hook
	}
	if l.rules == 1 {
		them = "its rule translates nothing"
	}
	return fmt.Sprintf("nothing in %s of %s %s leads to the chain %s (any more), as after a program that flushed %s: %s", base, r.Family, r.Table, r.From, base, them)
}

// isFelt reports whether this host refuses packets meanwhile, as it does what is not translated away from it.
func (l *leftChain) isFelt(rec *snapshot.Recording) bool {
	return l.first.Hook == "prerouting" && refusedHere(rec) >= fewestAbsent
}

func (l *leftChain) evidence(rec *snapshot.Recording, felt bool) (all []Evidence) {
	e := Evidence{What: "rule that nothing leads to", Value: l.first.Place() + ": " + l.first.Text, Source: "NAT rules by netlink"}
	if l.counted > 0 {
		e.Source += ", packets came before: " + units.Count(int64(l.counted))
	}
	if all = append(all, e); felt {
		all = append(all, Evidence{What: "connections and datagrams that this host refused", Value: refusedHere(rec), Unit: rec.ProtocolSpan(), Source: snmpSource})
	}
	return all
}

// advice is to let the program that keeps the chain write its rules again, or to add the jump.
func (l *leftChain) advice(rec *snapshot.Recording) Remedy {
	r := l.first
	jump := fmt.Sprintf("%s -t %s -A %s -j %s", map[bool]string{false: "iptables", true: "ip6tables"}[r.Family == "ip6"], r.Table, l.hook(), r.From)
	switch {
	case r.Source == "iptables-legacy":
		jump = strings.Replace(jump, "tables", "tables-legacy", 1)
	case r.Source == "nftables":
		jump = fmt.Sprintf("nft add rule %s %s CHAIN jump %s, CHAIN being the one of type nat at the hook %s", r.Family, r.Table, r.From, r.Hook)
	}
	if r.Owner == "docker" && r.Source != "nftables" {
		jump = strings.Replace(jump, " -j ", " -m addrtype --dst-type LOCAL -j ", 1)
	}
	if restart := map[string]string{"docker": "systemctl restart docker", "libvirt": "systemctl restart libvirtd (virtnetworkd)", "podman": "podman network reload --all"}[r.Owner]; restart != "" {
		return advice("unreached-restart", restart, jump, r.From, where(rec))
	}
	return advice("unreached-jump", jump, r.From, where(rec))
}

// place is where connections are lost that its first rule is for, or may be.
func (l *leftChain) place() string {
	if l.confidence() == "possible" {
		return fmt.Sprintf("no rule for it is reached: such as may be for it are in the chain %s, which nothing leads to", l.first.From)
	}
	return fmt.Sprintf("the rule that publishes it is in the chain %s, which nothing leads to", l.first.From)
}

// confidence is less of a rule with conditions that are not known, such as the ports of a set.
func (l *leftChain) confidence() string {
	if isSpecific(&l.first.NATRule) {
		return "likely"
	}
	return "possible"
}

// leftRule is the rule for a service in a chain that nothing leads to; nil where there is none.
func leftRule(rec *snapshot.Recording, s *snapshot.FollowedService) *leftChain {
	rules := rec.Last().NATRules
	if rules == nil {
		return nil
	}
	for i := range rules.Unreached {
		r := &rules.Unreached[i]
		if r.Hook == "prerouting" && (isSpecific(&r.NATRule) || r.Partial) && mayMatch(&r.NATRule, s.Protocol, s.Service) && (r.InInterface == "" || r.InInterface == s.In) {
			return &leftChain{first: r, rules: 1, services: []string{publishes(&r.NATRule)}}
		}
	}
	return nil
}
