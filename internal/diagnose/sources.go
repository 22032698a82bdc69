package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// judgeExempt is for private addresses that go as they are to a private network, which does not answer a single
// one of them. Networks that know each other do so, and others are behind tunnels: here a rule lets them out by
// the interface by which sources are translated.
func (f failing) judgeExempt(rec *snapshot.Recording, s *snapshot.Service) failing {
	a, _ := readAudit(rec)
	if a == nil || !silent(s) || isScan(s) || s.Protocol != "tcp" && !answersAlways(s) || s.Failed() < fewestUnnamed && len(s.Clients) < fewestClients || s.Failed() < fewestBlocked {
		return failing{}
	}
	to := onlyDestination(s)
	r, except := a.exempts(s.Clients, to, outOf(s.Routes))
	if r == nil {
		return failing{}
	}
	f.name = fmt.Sprintf("%s %s (from %s, untranslated)", s.Protocol, to, snapshot.NetworkOf(s.Given))
	f.key.service, f.key.target, f.target, f.about = to, netip.AddrPort{}, netip.AddrPort{}, ends(to)
	f.how, f.severity, f.confidence, f.known = "gets no answers", Warning, "possible", true
	f.cause = fmt.Sprintf("their private address goes out by %s as it is, and no answer comes back: a rule exempts %s from the translation, %s: %s; the network beyond may have no route back to %s, or the server is down",
		outOf(s.Routes), except, r.Place(), r.Text, snapshot.NetworkOf(s.Given))
	f.advice = new(advice("snat-exempt", except, to.Addr(), where(rec)))
	f.evidence = serviceEvidence(s)
	if expected := float64(s.Failed()) * rec.Seconds() / max(rec.Flows.Services.Seconds, 1); answeredElsewhere(rec, s, expected) {
		return f.dropsFollowing(rec, expected)
	}
	return f
}

// judgeInside is for one server of a network inside that answers none of what another network asks it, while others
// beside it answer: it is there, as its hardware address is known, and no answer of it reaches the tracker.
func (f failing) judgeInside(rec *snapshot.Recording, s *snapshot.Service) failing {
	if one := f.judgeOneSided(rec, s); one.how != "" {
		return one
	}
	silentNetwork := slices.ContainsFunc(rec.Flows.Services.All, func(o snapshot.Service) bool {
		return o.Kind == s.Kind && !o.Service.IsValid() && o.Protocol == s.Protocol && o.Given == s.Given && o.Target == s.Target
	})
	if silentNetwork || !silent(s) || !dead(s) || s.HalfOpen > 0 || s.Failed() < fewestBlocked || s.Protocol != "tcp" && !answersAlways(s) || s.Routes == nil || len(s.Clients) == 0 {
		return failing{}
	}
	q, expected := s.Routes.Question, float64(s.Failed())*rec.Seconds()/max(rec.Flows.Services.Seconds, 1)
	if q == nil || q.Out == s.Routes.In || q.NextHop != s.Service.Addr() || q.Neighbour != snapshot.NeighbourReachable || answeredElsewhere(rec, s, expected) {
		return failing{}
	}
	network := snapshot.NetworkOf(s.Given)
	f.name, f.about = fmt.Sprintf("%s %s (from %s, untranslated)", s.Protocol, s.Service, network), ends(s.Service)
	f.key.target, f.target = netip.AddrPort{}, netip.AddrPort{}
	f.how, f.severity, f.confidence, f.known = "gets no answers", Warning, "possible", true
	f.cause = fmt.Sprintf("%[1]s is there (neighbour %[2]s on %[3]s), and others on its network answer clients of %[4]s: the default route of %[1]s leads elsewhere than to this host, or its own firewall drops what is from %[4]s",
		s.Service.Addr(), q.Neighbour, q.Out, network)
	f.advice = new(advice("service-silent-among", s.Service.Addr(), network, s.Clients[0], q.Out, where(rec)))
	f.evidence = serviceEvidence(s)
	return f
}

// judgeOneSided is for connections whose answers go from the next router to the client, as all three are on one
// network: this host sees one direction alone, and drops what follows as INVALID.
func (f failing) judgeOneSided(rec *snapshot.Recording, s *snapshot.Service) failing {
	if s.Routes == nil || s.Routes.Question == nil || !silent(s) || !dead(s) || s.HalfOpen > 0 || s.Failed() < fewestBlocked || len(s.Clients) == 0 {
		return failing{}
	}
	q, expected := s.Routes.Question, float64(s.Failed())*rec.Seconds()/max(rec.Flows.Services.Seconds, 1)
	drops := q.Unseen
	if q.Out != s.Routes.In || drops == nil || drops.Passes || len(drops.Drops) == 0 || !answeredElsewhere(rec, s, expected) {
		return failing{}
	}
	p := drops.Drops[len(drops.Drops)-1]
	if p.Counted && p.Packets == 0 {
		return failing{}
	}
	network := snapshot.NetworkOf(s.Given)
	f.name, f.about = fmt.Sprintf("%s %s (from %s, untranslated)", s.Protocol, s.Service, network), ends(s.Service)
	f.key.target, f.target = netip.AddrPort{}, netip.AddrPort{}
	f.how, f.severity, f.confidence, f.known = "connects, and hangs then", Warning, "likely", true
	f.cause = fmt.Sprintf("one direction alone passes this host: it comes in by %[1]s and leaves by it to %[2]s, whose answers go to the clients directly; this host sees none, takes what follows the first packet for INVALID and drops it: %[3]s", q.Out, q.NextHop, p.Text)
	a := accepted{protocol: s.Protocol, in: q.Out, to: netip.AddrPortFrom(s.Service.Addr(), 0), chain: "FORWARD"}
	how := a.how(p, p.Owner)
	if isEarly(p) {
		how = p.Text + keeper(p)
	}
	f.advice = new(advice("service-one-sided", s.Service.Addr(), q.NextHop, how, where(rec), "the clients"))
	f.evidence = append(serviceEvidence(s), placeOf("what drops the rest", p),
		Evidence{What: "invalid", Value: rec.Last().ConntrackStat.Grown(rec.First().ConntrackStat)["invalid"], Unit: "packets", Source: "conntrack statistics"})
	return f
}

func onlyDestination(s *snapshot.Service) netip.AddrPort {
	if len(s.Destinations) == 0 {
		return netip.AddrPort{}
	}
	return s.Destinations[0]
}

// outOf is the interface by which a connection leaves; empty where that is not known.
func outOf(r *snapshot.Routes) string {
	if r == nil || r.Question == nil || r.Question.Error != "" || r.Question.Local {
		return ""
	}
	return r.Question.Out
}

// exempts is a rule that would translate the source of what clients send out of an interface by which sources
// are translated, were its destination not exempt, and what is; nil where there is none. Which conditions let it
// out is not known of a rule that is not read as a whole, such as one behind a set of networks.
func (a *audit) exempts(clients []netip.Addr, to netip.AddrPort, out string) (rule *snapshot.NATRule, except string) {
	if out == "" || len(clients) == 0 || !slices.Contains(a.uplinks(), out) {
		return nil, ""
	}
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		if r.Hook != "postrouting" || r.Marked || r.OriginalDestination || !mayTranslate(r, clients[0], to.Addr(), out) {
			continue
		}
		for _, c := range r.Unless {
			if c.ToDestination.IsValid() && c.ToDestination.Contains(to.Addr()) && (!c.FromSource.IsValid() || c.FromSource.Contains(clients[0])) {
				return r, "what goes to " + c.ToDestination.String()
			}
		}
		if r.Partial && rule == nil {
			rule, except = r, "private destinations (by a condition of its own, or a rule before it)"
		}
	}
	return rule, except
}

// uplinks are the interfaces that networks are led out by, by which a rule translates sources.
func (a *audit) uplinks() (all []string) {
	w, _ := readWays(a.rec)
	if w == nil {
		return nil
	}
	for _, kind := range []string{snapshot.WaySource, snapshot.WayOwn} {
		for _, way := range w.of(kind) {
			if way.Out != "" {
				all = once(all, way.Out)
			}
		}
	}
	return all
}

// everywhere is the masquerade rule that gives sources the address of an interface which is not that of the
// outside, as it names none, while others are answered: what goes through a tunnel gets the address of its end. It is nil where that is
// not so.
func (a *audit) everywhere(s *snapshot.Service) *snapshot.NATRule {
	to, out := onlyDestination(s), outOf(s.Routes)
	if at, own := a.Near(s.Given); !own || at.Name != out || len(s.Clients) == 0 || !to.Addr().IsPrivate() {
		return nil
	}
	beside := slices.ContainsFunc(a.rec.Flows.Services.All, func(o snapshot.Service) bool {
		return o.Kind == snapshot.ServiceSNAT && o.Given != s.Given && o.Answered+o.Open > 0
	})
	if !beside || slices.Contains(a.uplinks(), out) {
		return nil
	}
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		if r.Kind == snapshot.NATMasquerade && r.Hook == "postrouting" && r.OutInterface == "" && !r.ToDestination.IsValid() && mayTranslate(r, s.Clients[0], to.Addr(), out) {
			return r
		}
	}
	return nil
}

// leavesMasked takes a rule that translates what goes to a private network, too, for the cause.
func (f *failing) leavesMasked(rec *snapshot.Recording, s *snapshot.Service, r *snapshot.NATRule) {
	to, out := onlyDestination(s), outOf(s.Routes)
	f.cause = fmt.Sprintf("they leave by %s, to the private %s, with the source %s, as a rule that names no interface translates them, too: %s: %s; the far end may take only the addresses that it knows (AllowedIPs of WireGuard, selectors of IPsec, a filter, its routes), or the server is down",
		out, to.Addr(), s.Given, r.Place(), r.Text)
	f.evidence = append(f.evidence, Evidence{What: "the rule that translates it", Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
	f.known, f.advice = true, new(advice("snat-restrict", out, where(rec)))
}

// loops is the rule by which what a server itself asks elsewhere is led back to it; nil where that is not so.
func (a *audit) loops(s *snapshot.Service) *snapshot.NATRule {
	_, own := a.Near(s.Service.Addr())
	_, here := a.Near(s.Target.Addr())
	if s.Kind != snapshot.ServiceDNAT || own || here || !slices.Contains(s.Clients, s.Target.Addr()) {
		return nil
	}
	i := slices.IndexFunc(a.rules.Rules, func(r snapshot.NATRule) bool { return r.Hook == "prerouting" && mayBe(&r, s) })
	if i < 0 {
		return nil
	}
	return &a.rules.Rules[i]
}

// leadsBack takes a rule that also catches its own target for the cause.
func (f *failing) leadsBack(rec *snapshot.Recording, s *snapshot.Service, r *snapshot.NATRule) {
	server := s.Target.Addr()
	f.cause = fmt.Sprintf("a loop: the rule that leads clients to %[1]s also catches what %[1]s itself asks of %[2]s, and leads it back to %[1]s: %[3]s: %[4]s", server, s.Service.Addr(), r.Place(), r.Text)
	f.evidence = append(f.evidence, Evidence{What: "one of the clients is the server itself", Value: server.String(), Source: "connection table"})
	f.place, f.known, f.target = server.String()+" is led back to itself", true, netip.AddrPort{}
	f.advice = new(advice("dnat-not-itself", server, where(rec)))
}
