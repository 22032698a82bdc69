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

// checkDNATEverywhere: a rule publishes a server, names neither the interface that connections come in by nor their
// destination, and so takes there what hosts inside ask of the Internet as well. A transparent proxy takes only these.
func (a *audit) checkDNATEverywhere() (*Finding, Check) {
	flows := a.rec.Flows
	if flows == nil || flows.Services == nil {
		return unknown(cmp.Or(a.rec.Last().PartError(snapshot.PartFlows), "translated connections were not counted"))
	}
	f := worded("dnat-everywhere", nil, nil)
	var names, rules []string
	for _, t := range a.takenEverywhere() {
		rule := t.by.Place() + ": " + t.by.Text
		for _, s := range t.services {
			if len(f.Evidence) < 2*mostListed {
				f.Evidence = append(f.Evidence, Evidence{What: s.String() + ": connections from private addresses", Value: s.Inside, Unit: "connections", Source: "connection table"})
			}
			names, f.About = append(names, fmt.Sprintf("%s %s", s.Protocol, s.Service)), append(f.About, ends(s.Service, s.Target)...)
		}
		if t.published != nil {
			f.Evidence = append(f.Evidence, Evidence{What: t.published.String() + ": connections from others", Value: t.published.Outside, Unit: "connections", Source: "connection table"})
		} else {
			f.Confidence = "possible"
		}
		f.Remedies = append(f.Remedies, advice("dnat-narrow", rule, cmp.Or(t.uplink, "UPLINK"), t.address, where(a.rec)))
		rules = once(rules, rule)
	}
	if len(names) == 0 {
		return passed("no rule that publishes a server takes what hosts inside ask of the Internet there")
	}
	f.Remedies, f.Evidence = f.Remedies[:min(len(f.Remedies), mostShown)], head(f.Evidence)
	f.Title = "a rule that publishes a server takes there what hosts inside ask of the Internet as well: " + firstOf(names)
	f.Cause = "it names neither the interface that connections come in by nor their destination: " + strings.Join(rules[:min(len(rules), mostShown)], "; ")
	if f.Confidence == "possible" {
		f.Cause += "; no connection from outside comes to that server now: if the rule is for a proxy, it redirects the proxy's own connections back to it"
	}
	return f, Check{Why: fmt.Sprintf("%s of hosts inside to foreign addresses are led to a published server", units.Plural(int64(len(names)), "service", "services"))}
}

// forced are the ports of DNS and NTP, which hosts inside are often meant to ask of one server.
var forced = []uint16{53, 123}

// taken is what a rule takes of hosts inside that ask for public addresses that are not this host's.
type taken struct {
	by       *snapshot.NATRule
	services []*snapshot.Service
	// published is a service that the rule leads to the same server from outside; nil where no connection comes now.
	published *snapshot.Service
	// uplink and address are what the rule should ask for.
	uplink  string
	address netip.Addr
}

// takenEverywhere returns the rules that publish a server and take connections of hosts inside to other servers as
// well, by rule: sites are many, and few connections go to each.
func (a *audit) takenEverywhere() (all []taken) {
	if a.rules.TooMany {
		return nil
	}
	services := a.rec.Flows.Services.All
	for i := range services {
		s := &services[i]
		if s.Kind != snapshot.ServiceDNAT || s.Inside == 0 {
			continue
		}
		by := a.everywhereRule(s)
		if by == nil {
			continue
		}
		if t := slices.IndexFunc(all, func(t taken) bool { return t.by == by }); t >= 0 {
			all[t].services = append(all[t].services, s)
			continue
		}
		all = append(all, taken{by: by, services: []*snapshot.Service{s}})
	}
	var sure []taken
	for i := range all {
		if a.publishes(&all[i]) {
			sure = append(sure, all[i])
		}
	}
	return sure
}

// everywhereRule is the rule that takes what is asked of a public address that is not this host's; nil where none does.
func (a *audit) everywhereRule(s *snapshot.Service) *snapshot.NATRule {
	if slices.Contains(forced, s.Service.Port()) || !a.isForeign(s) || a.rules.TooMany {
		return nil
	}
	dnat := *s
	dnat.Kind = snapshot.ServiceDNAT // of one network, or of all
	at := slices.IndexFunc(a.rules.Rules, func(r snapshot.NATRule) bool { return isEverywhere(&r) && mayBe(&r, &dnat) })
	if at < 0 {
		return nil
	}
	return &a.rules.Rules[at]
}

// isTaken takes for the cause that a rule leads what clients ask of others to a server on their own network: to let
// that answer would show them a site that they did not ask for.
func (f *failing) isTaken(a *audit, s *snapshot.Service, by *snapshot.NATRule) {
	uplink, address := a.publicAddress()
	rule := by.Place() + ": " + by.Text
	f.cause = fmt.Sprintf("a rule that names neither the interface that connections come in by nor their destination takes what hosts inside ask of %s, %s; its server is on their own network and answers them directly, not by this host", s.Service.Addr(), rule)
	f.place = fmt.Sprintf("%s is no address of this host, and a rule that publishes a server takes what is sent there", s.Service.Addr())
	to := "ADDRESS"
	if address.IsValid() {
		to = address.String()
	}
	f.advice, f.target, f.known = new(advice("dnat-narrow", rule, cmp.Or(uplink, "UPLINK"), to, where(a.rec))), netip.AddrPort{}, true
}

// publishes completes what is taken, and reports whether the rule surely publishes a server: connections from outside
// are led there, too, or it is no proxy, which would listen at a port of its own, and have its own questions led back
// to it by such a rule.
func (a *audit) publishes(t *taken) bool {
	n := int64(0)
	for _, s := range t.services {
		n += s.Inside
	}
	all, target := a.rec.Flows.Services.All, t.services[0].Target
	for i := range all {
		o := &all[i]
		if at, own := a.Near(o.Service.Addr()); own && o.Outside > 0 && o.Target == target && mayBe(t.by, o) && t.published == nil {
			t.published, t.uplink, t.address = o, at.Name, o.Service.Addr()
		}
	}
	if t.published == nil {
		t.uplink, t.address = a.publicAddress()
		if _, own := a.Near(target.Addr()); own || !target.Addr().IsPrivate() || target.Port() != t.services[0].Service.Port() || !t.address.IsValid() {
			return false
		}
	}
	// Behind another host that translates, the one address that is asked for may be that by which this one is published.
	return n >= fewestFailing && (len(t.services) > 1 || !isInside(t.address))
}

// publicAddress is the first public address of this host, and its interface.
func (a *audit) publicAddress() (name string, address netip.Addr) {
	for _, l := range a.Interfaces {
		for _, p := range l.Addresses {
			if !isInside(p.Addr()) && p.Addr().IsGlobalUnicast() && !address.IsValid() {
				name, address = l.Name, p.Addr()
			}
		}
	}
	return name, address
}

// isForeign reports whether a service is asked for at a public address that nothing says is led to this host: it is none
// of its own, no connection from outside comes for it, and no rule names it.
func (a *audit) isForeign(s *snapshot.Service) bool {
	to := s.Service.Addr()
	if _, own := a.Near(to); own || s.Outside > 0 || isInside(to) || !to.IsGlobalUnicast() {
		return false
	}
	return !slices.ContainsFunc(a.rules.Rules, func(r snapshot.NATRule) bool {
		return r.ToDestination.IsValid() && r.ToDestination.Bits() > 0 && r.ToDestination.Contains(to) ||
			r.Kind == snapshot.NATSource && r.First.IsValid() && r.First.Compare(to) <= 0 && to.Compare(r.Last) <= 0
	})
}

// isEverywhere reports whether a rule is for what comes in to a port, by whichever interface and for whichever address.
func isEverywhere(r *snapshot.NATRule) bool {
	whole := !r.Partial || r.FirstOfSeveral != 0 && !strings.HasPrefix(r.Chain, "KUBE-") // those lead there by several ways
	return whole && r.Kind == snapshot.NATDest && r.Hook == "prerouting" && r.InInterface == "" && !r.LocalDestination && !r.FromSource.IsValid() && !r.Marked && len(r.Unless) == 0 &&
		(!r.ToDestination.IsValid() || r.ToDestination.Bits() == 0) && (r.DestinationPort != 0 || r.FirstOfSeveral != 0)
}
