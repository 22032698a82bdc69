package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// drawnOnes are the servers of a rule that draws among several to which nothing stays in the table while the others
// have new connections: of what a server refuses the tracker removes the entry with the RST, and what this host
// drops is never entered.
func drawnOnes(rec *snapshot.Recording) (all []failing) {
	services, _ := tableServices(rec)
	rules := rec.Last().NATRules
	if services == nil || rules == nil || rules.TooMany || !services.Complete || !services.NewKnown || finds(rec, "ct-table-full", "ct-chain-cap") {
		return nil
	}
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.Hook != "prerouting" || r.Protocol != "tcp" || len(r.Drawn) < 2 {
			continue
		}
		all = append(all, shareOf(rec, services, i)...)
	}
	return all
}

// isShared reports whether another rule may translate connections of the service as well, so that it is not known which
// rule drew.
func isShared(rules *snapshot.NATRules, rule int, service netip.AddrPort) bool {
	r := &rules.Rules[rule]
	return slices.ContainsFunc(rules.Rules, func(o snapshot.NATRule) bool {
		return (o.Handle != r.Handle || o.Chain != r.Chain || o.Table != r.Table) && o.Hook == r.Hook && mayMatch(&o, r.Protocol, service)
	})
}

// shareOf returns the servers of a rule that hold no connection, where the others' new connections make some due to each.
func shareOf(rec *snapshot.Recording, services *snapshot.Services, rule int) (all []failing) {
	r := &rec.Last().NATRules.Rules[rule]
	var idle []snapshot.Drawn
	numbers, births, lately, service := uint32(0), int64(0), int64(0), netip.AddrPort{}
	for _, d := range r.Drawn {
		n, asked := int64(0), false
		for i := range services.All {
			if s := &services.All[i]; mayBe(r, s) && s.Target.Addr() == d.Address && (d.Port == 0 || s.Target.Port() == d.Port) {
				n, lately, asked = n+s.New, lately+s.Lately, asked || s.Failed()+s.Waiting > 0
				if s.New > 0 {
					service = s.Service
				}
			}
		}
		if births += n; n > 0 || asked {
			numbers += d.Numbers
		} else {
			idle = append(idle, d)
		}
	}
	grown := uint64(0)
	if first := rec.First().NATRules; first != nil {
		grown = rec.Last().NATRules.Grown(first)[rule]
	}
	missing := int64(grown) - births - lately
	if numbers == 0 || isShared(rec.Last().NATRules, rule, service) || r.Counted && missing < fewestVanished || !r.Counted && r.Hashed { // a hash may lead all clients there are to the others
		return nil
	}
	for _, d := range idle {
		if due := births * int64(d.Numbers) / int64(numbers); due >= fewestVanished {
			if f, is := neverHeld(rec, rule, d, service, births, due); is {
				all = append(all, f)
			}
		}
	}
	return all
}

// neverHeld is a server of which nothing stays in the table of the connections that are due to it.
func neverHeld(rec *snapshot.Recording, rule int, d snapshot.Drawn, service netip.AddrPort, births, due int64) (f failing, is bool) {
	r := &rec.Last().NATRules.Rules[rule]
	target := netip.AddrPortFrom(d.Address, d.Port)
	if d.Port == 0 {
		target = netip.AddrPortFrom(d.Address, service.Port())
	}
	f = failing{name: fmt.Sprintf("%s %s -> %s", r.Protocol, service, target), how: "gets no answers", severity: Warning, confidence: "possible", whose: ofSome}
	f.key, f.about = serviceID{r.Protocol, service, target}, ends(service, target)
	f.cause = "they were dropped on this host after the translation, or the server refused them (RST)"
	f.place = fmt.Sprintf("its rule draws among servers, and %s holds none of the connections", d.Address)
	f.evidence = []Evidence{
		{What: fmt.Sprintf("new connections to the other servers of %s: %s", r.Place(), r.Text), Value: births, Unit: "connections", Source: "connection table"},
		{What: fmt.Sprintf("new connections to %s, of about %d that are due to it", target, due), Value: int64(0), Source: "connection table"},
	}
	targets := rec.Last().DNATTargets
	if targets == nil {
		f.target = target
		return f, true
	}
	i := slices.IndexFunc(targets.Targets, func(t snapshot.DNATTarget) bool {
		return t.Address == d.Address && t.Port == target.Port() && t.Protocol == r.Protocol && !t.Beside
	})
	if i < 0 {
		f.target = target
		return f, true
	}
	if is = f.vanishesAt(rec, &targets.Targets[i], uint64(due)); f.known && !r.Hashed {
		f.confidence = "likely"
	}
	return f, is
}
