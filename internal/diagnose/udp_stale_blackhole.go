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

// checkUDPStale: UDP clients send to a destination that rules no longer give, or not any
// more, because their entries keep the translation of the first packet, and each
// further packet keeps the entry.
func checkUDPStale(rec *snapshot.Recording) (*Finding, Check) {
	flows := rec.Flows
	switch {
	case flows == nil:
		return unknown(cmp.Or(rec.Last().PartError(snapshot.PartFlows), "two dumps of the table could not be compared"))
	case !flows.OneWayKnown:
		return unknown("UDP without an answer was not followed: a bundle of an older natkit")
	}
	asked, answered := int64(0), int64(0)
	for _, w := range flows.OneWay {
		switch {
		case w.Unanswered():
			asked += w.Entries
		case w.Translated():
			answered += w.Entries
		}
	}
	seen := fmt.Sprintf("%s of UDP went on without any answer in %.1f s", units.Plural(asked, "connection", "connections"), flows.Seconds)
	if answered > 0 {
		seen += fmt.Sprintf(", %s translated that had answers before", units.Count(answered))
	}
	if asked+answered == 0 && len(keptSources(rec)) == 0 {
		return passed(fmt.Sprintf("no UDP was sent on without an answer in %.1f s", flows.Seconds))
	}
	if rec.Last().NATRules == nil {
		why := cmp.Or(rec.Last().PartError("nat_rules"), "the NAT rules were not read")
		return unknown(seen + "; whether rules still lead there is not known: " + why)
	}
	ipvs, _ := rec.Last().Sysctls.Int(snapshot.IPVSConntrack)
	stale := staleOnes(flows.OneWay, rec.Last().NATRules, ipvs == 1)
	kept := keptSources(rec)
	switch {
	case len(stale) == 0 && len(kept) > 0:
		return keptFinding(rec, kept), Check{Why: seen + "; some keep the source of another uplink"}
	case len(stale) == 0 && ipvs == 1:
		return passed(seen + ", all where the present rules lead, or IPVS, which was not queried")
	case len(stale) == 0:
		return passed(seen + ", none of which the present rules lead elsewhere")
	}
	return staleFinding(rec, stale), Check{Why: seen}
}

// stale is UDP on a translation that the rules do not give.
type stale struct {
	snapshot.OneWay
	// now is where the rules lead; empty where that is not certain.
	now string
	// ruled is true where a rule names the service, so that it is no other program that
	// translates.
	ruled bool
}

// staleOnes leaves out entries of other zones than the default one, as Open vSwitch and
// tc translate there without rules, and services without a rule where IPVS does.
func staleOnes(all []snapshot.OneWay, rules *snapshot.NATRules, ipvs bool) []stale {
	var found []stale
	for _, w := range all {
		if w.Zone != 0 || !w.Unanswered() && !w.Translated() || leadsTo(rules, w) {
			continue
		}
		now := ruledTarget(rules, w)
		ruled := now != "" || slices.ContainsFunc(rules.Rules, func(r snapshot.NATRule) bool { return mayMatch(&r, "udp", w.Service) && isSpecific(&r) })
		if ruled && (now != "" || w.Translated()) || !ruled && w.Translated() && !ipvs && w.Unanswered() {
			found = append(found, stale{w, now, ruled})
		}
	}
	return found
}

// leadsTo reports whether a rule may send the service's packets to where they go. A rule
// with conditions that are not known may match anything; one without a constant
// address may give any.
func leadsTo(rules *snapshot.NATRules, w snapshot.OneWay) bool {
	if !w.Translated() {
		return ruledTarget(rules, w) == ""
	}
	return slices.ContainsFunc(rules.Rules, func(r snapshot.NATRule) bool { return mayMatch(&r, "udp", w.Service) && mayLead(&r, w.Target) })
}

// mayMatch reports whether a rule may be for what clients send to a service.
func mayMatch(r *snapshot.NATRule, protocol string, service netip.AddrPort) bool {
	dst := service.Addr()
	return !r.TranslatesSource() &&
		(r.Protocol == "" || r.Protocol == protocol) &&
		(service.Port() == 0 && r.DestinationPort == 0 || r.MayMatchPort(service.Port())) &&
		(!r.ToDestination.IsValid() || r.ToDestination.Contains(dst)) &&
		(r.Family == "inet" || (r.Family == "ip") == dst.Is4())
}

// isSpecific reports whether a rule is about a service, not about all there are.
func isSpecific(r *snapshot.NATRule) bool {
	return r.DestinationPort != 0 || r.ToDestination.IsValid() && r.ToDestination.Bits() > 0
}

// mayLead: a redirect leads to an address of this machine, whichever.
func mayLead(r *snapshot.NATRule, to netip.AddrPort) bool {
	if r.FirstPort != 0 && (to.Port() < r.FirstPort || to.Port() > r.LastPort) {
		return false
	}
	if r.Kind == snapshot.NATRedirect || !r.First.IsValid() {
		return true
	}
	return to.Addr().Compare(r.First) >= 0 && to.Addr().Compare(r.Last) <= 0
}

// ruledTarget returns what the first rule that is certain to match gives; empty where none
// is. It is certain where it names service and port and nothing else.
func ruledTarget(rules *snapshot.NATRules, w snapshot.OneWay) string {
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if !mayMatch(r, "udp", w.Service) || r.Hook != "prerouting" {
			continue
		}
		plain := !r.Partial && len(r.Unless) == 0 && !r.LocalDestination && r.InInterface == "" && !r.FromSource.IsValid()
		if !plain || r.DestinationPort == 0 || !r.ToDestination.IsSingleIP() || !r.First.IsValid() {
			return ""
		}
		return strings.TrimPrefix(r.Text, "dnat to ")
	}
	return ""
}

func staleFinding(rec *snapshot.Recording, all []stale) *Finding {
	entries, oldest := int64(0), 0.0
	var services []string
	for _, s := range all {
		entries += s.Entries
		oldest = max(oldest, s.OldestSeconds)
		if name := s.Service.String(); !slices.Contains(services, name) {
			services = append(services, name)
		}
	}
	named := strings.Join(services[:min(len(services), mostShown)], ", ")
	f := worded("udp-stale-blackhole", staleEvidence(rec, all), staleRemedies(rec, all), named,
		units.Plural(entries, "connection", "connections"))
	for _, s := range all {
		if f.About = append(f.About, ends(s.Target)...); !s.Target.IsValid() {
			f.About = append(f.About, s.Service) // its present target may fail by itself
		}
	}
	if !slices.ContainsFunc(all, func(s stale) bool { return s.Unanswered() }) {
		f.Severity, f.Confidence = Warning, "possible"
		f.Title = fmt.Sprintf("UDP to %s goes on to where no rule leads any more", named)
		f.Consequence = fmt.Sprintf("the old target remains that of %s of UDP, which had answers before, for as long as their clients go on from the same port: if it is gone, no answer comes any more; new ones work",
			units.Plural(entries, "connection", "connections"))
	} else if ruled := slices.ContainsFunc(all, func(s stale) bool { return s.ruled }); !ruled { // IPVS, Open vSwitch or a program may translate there without a rule
		f.Severity, f.Confidence = Warning, "possible"
		f.Title = fmt.Sprintf("UDP to %s is translated as no present rule does, and gets no answer", named)
	}
	return f
}

func staleEvidence(rec *snapshot.Recording, all []stale) []Evidence {
	var e []Evidence
	dumps := fmt.Sprintf("two dumps, %.1f s apart: ", rec.Flows.Seconds)
	for _, s := range all[:min(len(all), mostShown)] {
		source := dumps + "a packet came, never an answer"
		switch {
		case s.Silent:
			source = dumps + "a packet came, and by the counters no answer, as there were before"
		case s.HadAnswers:
			source = dumps + "a packet came; there were answers before, and the kernel does not count whether any came now (net.netfilter.nf_conntrack_acct)"
		}
		e = append(e,
			Evidence{What: "udp to " + s.Service.String(), Value: s.Entries, Unit: "entries", Source: source},
			Evidence{What: "one of them from", Value: s.Source.String(), Source: "the later dump"},
			Evidence{What: "for at least", Value: round1(s.OldestSeconds), Unit: "s", Source: "both dumps have it"},
			Evidence{What: "sent on to", Value: s.Target.String(), Source: "the entry's translation"})
		now := s.now
		switch {
		case now != "":
		case s.ruled:
			now = "elsewhere"
		default:
			now = "nowhere: none is about it"
		}
		e = append(e, Evidence{What: "the rules lead to", Value: now, Source: "NAT rules by netlink"})
	}
	return e
}

// staleRemedies are advice: natkit deletes no entry automatically.
func staleRemedies(rec *snapshot.Recording, all []stale) []Remedy {
	var r []Remedy
	for _, s := range all[:min(len(all), mostShown)] {
		if !s.Unanswered() && !isSilent(rec, s.Service, s.Target) {
			r = append(r, advice("stale-still-answers", s.Target, where(rec), s.Target.Addr(), s.Target.Port()))
		}
		r = append(r, advice("stale-forget", deleteCommand(rec, staleFilter(s.OneWay)), units.Plural(s.Entries, "entry", "entries")))
	}
	return append(r, advice("stale-rule-changer"))
}

func staleFilter(w snapshot.OneWay) string {
	filter := fmt.Sprintf("-p udp --orig-dst %s --orig-port-dst %d --reply-src %s --reply-port-src %d",
		w.Service.Addr(), w.Service.Port(), w.Target.Addr(), w.Target.Port())
	if !w.HadAnswers {
		filter += " -u UNREPLIED"
	}
	return filter
}

// isSilent reports whether flows of UDP to a service were followed to a target that answered none.
func isSilent(rec *snapshot.Recording, service, target netip.AddrPort) bool {
	return rec.Followed != nil && slices.ContainsFunc(rec.Followed.Services, func(o snapshot.FollowedService) bool {
		return o.Protocol == "udp" && o.Service == service && o.Target == target && o.Steps[snapshot.StepNoAnswer] > 0 && o.Steps[snapshot.StepAnswered] == 0
	})
}
