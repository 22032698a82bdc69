package diagnose

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// checkUnreached: rules are for addresses that nobody answers for, or for interfaces that are not there, so that
// no packet comes to them.
//
// An address that is not here may be that of the other one of two hosts, and a router may lead one here that
// nobody asks for: hence only what no packet came to is reported.
func (a *audit) checkUnreached() (*Finding, Check) {
	f := worded("rule-unreached", nil, nil)
	f.Severity, f.Confidence = Notice, "possible"
	var names, causes []string
	grown := a.rules.Grown(a.rec.First().NATRules)
	for i := range a.Silent {
		s := &a.Silent[i]
		if s.Rule < 0 || s.Rule >= len(a.rules.Rules) || a.reached(s, grown) {
			continue
		}
		cause, severity, remedy := a.silence(s)
		if cause == "" {
			continue
		}
		r := &a.rules.Rules[s.Rule]
		f.Severity = max(f.Severity, severity)
		names, causes = once(names, "nobody answers for "+asked(r, s.Address)), once(causes, cause)
		f.Evidence = append(f.Evidence, Evidence{What: "rule for " + s.Address.String(), Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
		f.Remedies = append(f.Remedies, remedy)
	}
	for _, l := range a.Interfaces {
		if l.NoARP && a.uses(l) {
			f.Severity = Warning
			names, causes = once(names, "nobody answers on "+l.Name), once(causes, l.Name+" neither asks nor answers who has an address: ARP is off (NOARP)")
			f.Evidence = append(f.Evidence, Evidence{What: "flag of " + l.Name, Value: "NOARP", Source: "interfaces by netlink"})
			f.Remedies = append(f.Remedies, advice("silent-arp-on", l.Name, where(a.rec)))
		}
	}
	if r, refused := a.absent(); r != nil {
		if all := !slices.ContainsFunc(a.rules.Rules, func(o snapshot.NATRule) bool {
			return o.Hook == "prerouting" && !o.TranslatesSource() && !a.isAbsent(&o)
		}); all {
			f.Severity = Warning
		}
		names, causes = once(names, fmt.Sprintf("rules that publish ports are for %s, which does not exist", r.InInterface)), once(causes, fmt.Sprintf("%s: %s is for what comes in by %s, and this host has no such interface, so that it refuses what is asked for", r.Place(), r.Text, r.InInterface))
		f.Evidence = append(f.Evidence, Evidence{What: "connections and datagrams that this host refused", Value: refused, Unit: a.rec.Span(), Source: snmpSource})
		f.Remedies = append(f.Remedies, advice("unreached-interface", r.InInterface, r.Place()+": "+r.Text, where(a.rec)))
	}
	if r, own, refused := a.translatedBefore(); r != nil {
		f.Severity = Warning
		names, causes = once(names, fmt.Sprintf("no packet comes in for %s, which a rule is for", asked(r, r.ToDestination.Addr()))), once(causes, notHereText(r, "may have given", own))
		f.Evidence = append(f.Evidence, Evidence{What: "rule for " + r.ToDestination.Addr().String() + ", packets since it is there", Value: int64(0), Source: "counter of the rule"},
			Evidence{What: "connections and datagrams that this host refused", Value: refused, Unit: a.rec.Span(), Source: snmpSource})
		f.Remedies = append(f.Remedies, notHereAdvice(a.rec, r, own))
	}
	for _, l := range a.leftChains() {
		felt := l.isFelt(a.rec)
		if felt {
			f.Severity = Warning
		}
		names, causes = once(names, l.title()), once(causes, l.cause())
		f.Evidence = append(f.Evidence, l.evidence(a.rec, felt)...)
		f.Remedies = append(f.Remedies, l.advice(a.rec))
	}
	if len(names) == 0 {
		return passed("packets can come to the addresses and interfaces of " + units.Plural(int64(len(a.rules.Rules)), "rule", "rules"))
	}
	if f.Severity >= Warning {
		f.Confidence = "likely"
	}
	f.Evidence, f.Remedies = head(f.Evidence), f.Remedies[:min(len(f.Remedies), mostShown)]
	f.Title, f.Cause = firstOf(names), strings.Join(causes[:min(len(causes), mostShown)], "; ")
	return f, Check{Why: firstOf(names)}
}

// asked is an address of a rule, with the port that clients ask for.
func asked(r *snapshot.NATRule, address netip.Addr) string {
	switch {
	case r.TranslatesSource():
		return address.String() + ", which sources become"
	case r.DestinationPort != 0:
		return strings.TrimSpace(fmt.Sprintf("%s %s port %d", r.Protocol, address, r.DestinationPort))
	}
	return address.String()
}

// fewestAbsent is how many packets this host must have refused.
const fewestAbsent = 5

// cards begin the names of interfaces that do not come and go as tunnels and modems do.
var cards = regexp.MustCompile(`^(eth|en[opsx]|em|wan|lan|bond)[0-9]`)

// absent is a rule for an interface that does not exist, where all that publish ports are or its name is that
// of a card, and this host refuses packets meanwhile: one rule alone may be for a link that comes and goes.
func (a *audit) absent() (found *snapshot.NATRule, refused int64) {
	var some, card *snapshot.NATRule
	others := false
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		switch {
		case r.TranslatesSource() || r.Hook != "prerouting":
		case !a.isAbsent(r):
			others = true
		case cards.MatchString(r.InInterface) && !a.isAnew(r):
			some, card = r, r
		default:
			some = r
		}
	}
	if found = some; others {
		found = card
	}
	if found == nil {
		return nil, 0
	}
	if refused = refusedHere(a.rec); refused < fewestAbsent {
		return nil, 0
	}
	return found, refused
}

// refusedHere is how many connections and datagrams this host refused.
func refusedHere(rec *snapshot.Recording) (refused int64) {
	for _, counter := range []string{"TcpOutRsts", "UdpNoPorts"} {
		n, _ := hostDelta(rec, counter)
		refused += int64(min(n, 1<<32))
	}
	return refused
}

// translatedBefore is a rule for a public address that no packet met, on a host that has private addresses alone and
// refuses packets meanwhile: who translates before it, such as a cloud, has given them that of this host. It is nil
// where that is not so, or another rule is for the port.
func (a *audit) translatedBefore() (found *snapshot.NATRule, own netip.Addr, refused int64) {
	if _, public := a.publicAddress(); public.IsValid() || a.rules.TooMany {
		return nil, own, 0
	}
	for _, l := range a.Interfaces {
		for _, p := range l.Addresses {
			if p.Addr().Is4() && !own.IsValid() {
				own = p.Addr()
			}
		}
	}
	if refused = refusedHere(a.rec); refused < fewestAbsent || !own.IsValid() {
		return nil, own, 0
	}
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		others := func(o snapshot.NATRule) bool { return isForSamePort(&o, r) && !a.isForNobodyHere(&o) }
		if a.isForNobodyHere(r) && r.Counted && r.Packets == 0 && !slices.ContainsFunc(a.rules.Rules, others) {
			return r, a.beside(r, own), refused
		}
	}
	return nil, own, 0
}

// isForNobodyHere reports whether a rule leads what comes in for one public address that is on no network of this host.
func (a *audit) isForNobodyHere(r *snapshot.NATRule) bool {
	if r.Hook != "prerouting" || r.TranslatesSource() || !r.ToDestination.IsSingleIP() || r.DestinationPort == 0 && r.FirstOfSeveral == 0 && len(r.SeveralPorts) == 0 || isInside(r.ToDestination.Addr()) {
		return false
	}
	at, _ := a.Near(r.ToDestination.Addr())
	return at == nil
}

// isForSamePort reports whether another rule may be for what one is for, whatever the address.
func isForSamePort(o, r *snapshot.NATRule) bool {
	return o.Hook == "prerouting" && !o.TranslatesSource() && (o.Protocol == "" || o.Protocol == r.Protocol) && (o.DestinationPort == 0 || o.DestinationPort == r.DestinationPort)
}

// beside is the address of this host that is not on the network of the server of a rule: by which it is asked.
func (a *audit) beside(r *snapshot.NATRule, own netip.Addr) netip.Addr {
	server, _ := a.Near(r.First)
	for _, l := range a.Interfaces {
		for _, p := range l.Addresses {
			if (server == nil || l.Name != server.Name) && p.Addr().Is4() == r.ToDestination.Addr().Is4() {
				return p.Addr()
			}
		}
	}
	return own
}

func notHereText(r *snapshot.NATRule, gives string, own netip.Addr) string {
	return fmt.Sprintf("%s: %s is for %s, which this host does not have, and no packet meets it: who translates before this host, such as a cloud or a router, %s the packets an address of this host, such as %s, and no rule is for that", r.Place(), r.Text, r.ToDestination.Addr(), gives, own)
}

func notHereAdvice(rec *snapshot.Recording, r *snapshot.NATRule, own netip.Addr) Remedy {
	return advice("unreached-translated", own, r.ToDestination.Addr(), r.Place()+": "+r.Text, where(rec))
}

// isAbsent reports whether a rule is for an interface that does not exist, and no packet met it.
func (a *audit) isAbsent(r *snapshot.NATRule) bool {
	return r.InInterface != "" && slices.Contains(a.Absent, r.InInterface) && r.Packets == 0
}

// isAnew reports whether another rule is for the same port, by an interface that exists.
func (a *audit) isAnew(r *snapshot.NATRule) bool {
	return slices.ContainsFunc(a.rules.Rules, func(o snapshot.NATRule) bool {
		return o.Hook == "prerouting" && o.Protocol == r.Protocol && o.DestinationPort == r.DestinationPort && !o.TranslatesSource() && !a.isAbsent(&o)
	})
}

// reached reports whether packets came for an address, or an answer to it.
func (a *audit) reached(s *snapshot.SilentAddress, grown []uint64) bool {
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		if !s.Shared && r.ToDestination.IsValid() && r.ToDestination.Contains(s.Address) && i < len(grown) && grown[i] > 0 {
			return true
		}
	}
	if a.rec.Flows == nil || a.rec.Flows.Services == nil {
		return s.Shared
	}
	return s.Shared && !a.rec.Flows.Services.Complete || slices.ContainsFunc(a.rec.Flows.Services.All, func(f snapshot.Service) bool {
		return f.Kind == snapshot.ServiceDNAT && f.Service.Addr() == s.Address || f.Given == s.Address && f.Answered+f.Open > 0
	})
}

// silence says why nobody answers for an address; nothing where that may be meant.
func (a *audit) silence(s *snapshot.SilentAddress) (cause string, severity Severity, remedy Remedy) {
	here := where(a.rec)
	switch s.Why {
	case snapshot.AddressDuplicate:
		return fmt.Sprintf("%s on %s is not used: another host on the link had it when it was given (dadfailed)", s.Address, s.Interface), Warning, advice("silent-duplicate", s.Address, s.Interface, here)
	case snapshot.AddressTentative:
		if !a.silentBefore(s) {
			return "", 0, remedy
		}
		return fmt.Sprintf("%s on %s is not used yet: the kernel still asks whether another host has it (tentative)", s.Address, s.Interface), Warning, advice("silent-tentative", s.Interface, here)
	case snapshot.AddressIgnored:
		if s.Address.Is6() {
			return fmt.Sprintf("hosts on the network of %s ask there who has %s, which is on %s, and this host does not answer: neighbour discovery leaves out addresses of other interfaces, and there is no proxy entry", s.Interface, s.Address, s.On), Warning, advice("silent-ignored-ipv6", s.Address, s.Interface, here)
		}
		return fmt.Sprintf("hosts on the network of %s ask there who has %s, which is on %s, and this host does not answer: arp_ignore is %d", s.Interface, s.Address, s.On, s.Ignores), Warning, advice("silent-ignored", s.Address, s.Interface, here, slashed(s.Interface))
	case snapshot.AddressAbsent:
		if s.Standby || s.Neighbour != "" {
			return "", 0, remedy
		}
		ask := fmt.Sprintf("arping -D -I %s %s", s.Interface, s.Address)
		if s.Address.Is6() {
			ask = fmt.Sprintf("ndisc6 %s %s", s.Address, s.Interface)
		}
		return fmt.Sprintf("%s is not on this host (any more), no route leads it here, and on the network of %s this host does not answer for it", s.Address, s.Interface), Notice, advice("silent-absent", s.Address, s.Address.BitLen(), s.Interface, here, ask)
	}
	return "", 0, remedy
}

// silentBefore reports whether the same was so in the first snapshot.
func (a *audit) silentBefore(s *snapshot.SilentAddress) bool {
	first := a.rec.First().Audit
	return first != nil && slices.ContainsFunc(first.Silent, func(b snapshot.SilentAddress) bool { return b.Address == s.Address && b.Why == s.Why })
}

// uses reports whether a rule names an interface, or is for an address of it.
func (a *audit) uses(l snapshot.Interface) bool {
	return slices.ContainsFunc(a.rules.Rules, func(r snapshot.NATRule) bool {
		return r.InInterface != "" && nat.InName(r.InInterface, l.Name) || r.OutInterface != "" && nat.InName(r.OutInterface, l.Name) ||
			r.ToDestination.IsSingleIP() && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == r.ToDestination.Addr() })
	})
}
