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

// checkSNATAddress: connections leave with a source that no answer comes back to: this host does not
// have it, or it belongs to another interface.
//
// An address that is not here is no fault where a router sends it here, or while a second gateway has
// it: hence only connections without an answer prove it.
func (a *audit) checkSNATAddress() (*Finding, Check) {
	flows := a.rec.Flows
	if flows == nil || flows.Services == nil {
		return unknown(cmp.Or(a.rec.Last().PartError(snapshot.PartFlows), "translated connections were not counted"))
	}
	var bad []misgiven
	for i := range flows.Services.All {
		if m := a.misgiven(&flows.Services.All[i]); m.cause != "" {
			bad = append(bad, m)
		}
	}
	used := map[netip.Addr]bool{}
	for _, s := range flows.Services.All {
		if s.Kind == snapshot.ServiceSNAT {
			used[s.Given] = true
		}
	}
	why := fmt.Sprintf("translated connections have %s as their source", units.Plural(int64(len(used)), "address", "addresses"))
	if len(bad) == 0 {
		return passed(why + ", none that answers are known not to come back to")
	}
	slices.SortStableFunc(bad, func(x, y misgiven) int { return cmp.Compare(y.severity, x.severity) })
	f := worded("snat-address", nil, nil)
	f.Severity, f.Confidence, f.Cause = bad[0].severity, bad[0].confidence, bad[0].cause
	var names []string
	for i, m := range bad {
		known := slices.Contains(names, m.Given.String()) // of another protocol: the same advice
		names, f.About = once(names, m.Given.String()), append(f.About, netip.AddrPortFrom(m.Given, 0))
		if i < mostListed {
			f.Evidence = append(f.Evidence, m.evidence...)
		}
		if i < mostShown && !known {
			f.Remedies = append(f.Remedies, m.remedies...)
		}
	}
	f.Title = "answers do not come back to the source that NAT gives: " + firstOf(names)
	return f, Check{Why: why + "; answers do not come back to " + strings.Join(names[:min(len(names), mostShown)], ", ")}
}

// misgiven is a source that no answers come back to.
type misgiven struct {
	snapshot.Service
	cause, confidence string
	severity          Severity
	evidence          []Evidence
	remedies          []Remedy
}

// misgiven has no cause where nothing is wrong for certain.
func (a *audit) misgiven(s *snapshot.Service) (m misgiven) {
	m = misgiven{Service: *s, severity: Warning, confidence: "certain"}
	if s.Kind != snapshot.ServiceSNAT || s.Zone != 0 || s.Answered > 0 {
		return m
	}
	silent := s.Open == 0 && s.Unanswered > 0
	if silent && s.Failing >= fewestFailing {
		m.severity = Critical
	}
	here := where(a.rec)
	if e := a.elsewhere(s.Given); e != nil {
		if !silent || e.OnLink == "" {
			return m
		}
		rule := &a.rules.Rules[e.Rule]
		m.cause = fmt.Sprintf("hosts on the network of %s ask there who has %s, and this host does not answer: none of its interfaces has the address, no local route, and it is no proxy for it", e.OnLink, s.Given)
		m.evidence = append(m.evidence, Evidence{What: "rule that gives " + s.Given.String(), Value: rule.Place() + ": " + rule.Text, Source: "NAT rules by netlink"})
		m.remedies = []Remedy{advice("snat-correct", rule.Place(), a.ownOf(e.OnLink, s.Given), here), advice("snat-give-here", s.Given, e.OnLink, here)}
	} else if at, own := a.Near(s.Given); at != nil && at.Up && !own && !a.given(s.Given) && !a.rules.TooMany {
		m.severity, m.confidence = Warning, "likely"
		m.cause = fmt.Sprintf("the entries have a translation of before: no rule gives %s now, and this host does not have it any more", s.Given)
		m.remedies = []Remedy{advice("snat-forget", deleteCommand(a.rec, "--src-nat="+s.Given.String()))}
	} else if r := a.borrowed(s.Given); silent && r != nil {
		m.confidence = "likely"
		m.cause = fmt.Sprintf("%s has no address of its own, so that masquerade takes one of another interface (inet_select_addr), to which the network beyond need not know a way back", r.OutInterface)
		m.evidence = append(m.evidence, Evidence{What: "addresses of " + r.OutInterface, Value: int64(0), Source: "addresses by netlink"})
		m.remedies = []Remedy{advice("snat-address-missing", r.OutInterface, here)}
	} else if r, public := a.privateBeside(s); r != nil {
		m.confidence = "likely"
		m.cause = fmt.Sprintf("%s is a private address of %s (%s), which also has %s: what asks public addresses with it gets no answer from any of them", s.Given, at.Name, orderOf(at, s.Given), public)
		m.evidence = append(m.evidence, Evidence{What: "rule that gives " + s.Given.String(), Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
		m.remedies = []Remedy{advice("snat-public", r.Place()+": "+r.Text, public, givesPublic(r, at.Name, public, s.Clients[0]), s.Given, at.Name, here)}
	}
	if m.cause != "" {
		m.evidence = append(m.evidence, Evidence{What: "connections with the source " + s.Given.String(), Value: s.Failed() + s.Open, Unit: fmt.Sprintf("connections, %s without an answer", units.Count(s.Failed())), Source: "connection table"})
	}
	return m
}

// carrierNAT is the network of addresses behind a carrier's NAT (RFC 6598).
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

// isInside reports whether an address is none that answers from the Internet come back to.
func isInside(a netip.Addr) bool {
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || carrierNAT.Contains(a)
}

// privateBeside is the rule that gives connections a private address of an interface that has a public one as well,
// and that one, where nothing that asks public addresses with it is answered; nil where that is not so.
func (a *audit) privateBeside(s *snapshot.Service) (by *snapshot.NATRule, public netip.Addr) {
	at, own := a.Near(s.Given)
	if !own || !silent(s) || !dead(s) || !isInside(s.Given) || len(s.Clients) == 0 || len(s.Destinations) == 0 || a.rules.TooMany {
		return nil, public
	}
	inside := func(d netip.AddrPort) bool { return isInside(d.Addr()) }
	answered := func(o snapshot.Service) bool {
		return o.Given == s.Given && o.Kind == snapshot.ServiceSNAT && !silent(&o)
	}
	if slices.ContainsFunc(s.Destinations, inside) || slices.ContainsFunc(a.rec.Flows.Services.All, answered) {
		return nil, public
	}
	for _, p := range at.Addresses {
		if p.Addr().Is4() == s.Given.Is4() && !isInside(p.Addr()) && !public.IsValid() {
			public = p.Addr()
		}
	}
	i := slices.IndexFunc(a.rules.Rules, func(r snapshot.NATRule) bool {
		return r.Hook == "postrouting" && mayTranslate(&r, s.Clients[0], s.Destinations[0].Addr(), at.Name) && (!r.First.IsValid() || r.First.Compare(s.Given) <= 0 && s.Given.Compare(r.Last) <= 0)
	})
	if !public.IsValid() || i < 0 {
		return nil, public
	}
	return &a.rules.Rules[i], public
}

// orderOf says which of the addresses of an interface one is: masquerade takes the first that fits (inet_select_addr).
func orderOf(at *snapshot.Interface, address netip.Addr) string {
	i := slices.IndexFunc(at.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == address.Is4() })
	if at.Addresses[i].Addr() == address {
		return "the first of its addresses"
	}
	return "not the first of its addresses"
}

// givesPublic is the rule, before another one, that gives the network of a client an address of an interface.
func givesPublic(r *snapshot.NATRule, out string, public, client netip.Addr) string {
	network := snapshot.NetworkOf(client)
	if r.Source == "nftables" {
		family := map[bool]string{true: "ip", false: "ip6"}[public.Is4()]
		return fmt.Sprintf("nft insert rule %s %s %s %s saddr %s oifname %s snat to %s", r.Family, r.Table, r.Chain, family, network, out, public)
	}
	command := map[bool]string{true: "iptables", false: "ip6tables"}[public.Is4()]
	return fmt.Sprintf("%s -t nat -I %s -s %s -o %s -j SNAT --to-source %s", command, r.Chain, network, out, public)
}

// ownOf is an address of an interface, of the family of another one.
func (a *audit) ownOf(device string, like netip.Addr) string {
	if i := a.Interface(device); i != nil {
		for _, p := range i.Addresses {
			if p.Addr().Is4() == like.Is4() {
				return p.Addr().String()
			}
		}
	}
	return "an address of this host"
}

// borrowed is the rule that masquerades over an interface without an address, where the address is
// another one's; nil where there is none.
func (a *audit) borrowed(address netip.Addr) *snapshot.NATRule {
	at, own := a.Near(address)
	if !own {
		return nil
	}
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		out := a.Interface(r.OutInterface)
		if r.Kind == snapshot.NATMasquerade && out != nil && out.Up && out.Name != at.Name &&
			!slices.ContainsFunc(out.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == address.Is4() }) {
			return r
		}
	}
	return nil
}
