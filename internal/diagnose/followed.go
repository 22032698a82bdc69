package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// followedOnes are the services that fail by what was seen of their packets, with where they
// fail.
func followedOnes(rec *snapshot.Recording) (all []failing) {
	if rec.Followed == nil {
		return nil
	}
	dead := deadSources(rec.Followed.Services)
	for i := range rec.Followed.Services {
		s := &rec.Followed.Services[i]
		n := s.Failing()
		if s.Failed == nil || n < fewestFailing || float64(n) < failedPart*float64(n+s.Steps[snapshot.StepAnswered]) || !concernsNAT(rec, s, dead) {
			continue
		}
		f := failing{name: followedName(s), key: serviceID{s.Protocol, s.Service}, how: "gets no answers", severity: Critical, confidence: "certain"}
		if s.Steps[snapshot.StepAnswered] > 0 {
			f.how, f.severity = "gets no answer to a part of the connections", Warning
		}
		f.cause = stepCause(rec, s)
		switch lone := s.Given.IsValid() && !s.Target.IsValid() && destinations(rec.Followed.Services, s.Given) == 1; {
		case s.Failed.Step != snapshot.StepNoAnswer:
		case s.Protocol != "tcp" && s.Steps[snapshot.StepAnswered] == 0 && !nat.AnswersAlways(s.Service.Port()):
			f.severity, f.confidence = Notice, "possible" // it may not be meant to answer
		case lone:
			f.how, f.severity, f.confidence = "gets no answers, the only destination of "+s.Given.String(), Warning, "possible"
		}
		if filter := filterOf(rec, s); filter != nil && filter.Passes && len(filter.Drops) > 0 {
			// An allow-list may mean to.
			f.severity, f.confidence = Notice, "possible"
		}
		switch s.Failed.Step {
		case snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable, snapshot.StepOtherSource:
			f.target = s.Failed.LeftTo
		case snapshot.StepClientSilent:
			f.advice = new(advice("service-client", s.Failed.Client.Addr(), s.In, where(rec)))
		default:
			f.advice = new(advice("service-path", inNamespace(rec.Last().Netns.Name), s.Protocol, s.Failed.Client.Addr()))
		}
		f.evidence = []Evidence{{
			What: f.name + ": " + string(s.Failed.Step), Value: int64(s.Steps[s.Failed.Step]), Unit: "of " + units.Plural(connections(s), "connection", "connections"),
			Source: "first packets and their answers at the interfaces",
		}, {What: "one of them from", Value: s.Failed.Client.String(), Source: "packets at " + cmp.Or(s.In, "this host")}}
		all = append(all, f)
	}
	return all
}

// destinations counts those of an address that sources become.
func destinations(all []snapshot.FollowedService, given netip.Addr) (n int) {
	for i := range all {
		if all[i].Given == given && !all[i].Target.IsValid() {
			n++
		}
	}
	return n
}

// connections are those that were followed to an end.
func connections(s *snapshot.FollowedService) int64 {
	return int64(s.Failing() + s.Steps[snapshot.StepAnswered])
}

func followedName(s *snapshot.FollowedService) string {
	name := s.Protocol + " " + s.Service.String()
	if s.Target.IsValid() {
		name += " -> " + s.Target.String()
	}
	return name
}

// deadSources are the addresses given to sources to which no answer came from anywhere.
func deadSources(all []snapshot.FollowedService) map[netip.Addr]bool {
	dead := map[netip.Addr]bool{}
	for i := range all {
		if s := &all[i]; s.Given.IsValid() && !s.Target.IsValid() {
			was, known := dead[s.Given]
			dead[s.Given] = (was || !known) && s.Steps[snapshot.StepAnswered] == 0
		}
	}
	return dead
}

// concernsNAT reports whether a service that fails may do so for this host: it is translated, or
// a rule is for it, or it leaves untranslated and should not. A destination outside that is dead
// among others that are not is no fault of this host.
func concernsNAT(rec *snapshot.Recording, s *snapshot.FollowedService, dead map[netip.Addr]bool) bool {
	if s.Protocol == "udp" && nat.IsOneWay(s.Service.Port()) {
		return false
	}
	beyond := slices.Contains([]snapshot.Step{snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable}, s.Failed.Step)
	switch {
	case s.Target.IsValid():
		return true
	case s.Given.IsValid():
		return !beyond || dead[s.Given]
	case s.In == "":
		return false
	}
	rules := rec.Last().NATRules
	if rules == nil {
		return false
	}
	if slices.ContainsFunc(rules.Rules, func(r snapshot.NATRule) bool {
		return r.Hook == "prerouting" && (r.DestinationPort != 0 || r.ToDestination.IsValid()) && mayMatch(&r, s.Protocol, s.Service)
	}) {
		return true
	}
	return s.Failed.Client.Addr().IsPrivate() && !s.Service.Addr().IsPrivate() &&
		translatesSources(rec, s.Out) && !goesOn(s)
}

// goesOn reports whether clients that get no answer by this host do not ask again, which TCP does
// after 1 s (RFC 6298, section 2.1): the answer took another way.
func goesOn(s *snapshot.FollowedService) bool {
	return s.Protocol == "tcp" && s.Failed.Step == snapshot.StepNoAnswer && 2*s.Repeated < s.Steps[snapshot.StepNoAnswer]
}

// stepCause says what is known of why a service's connections come no further.
func stepCause(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	f := s.Failed
	left := fmt.Sprintf("it left by %s as %s -> %s", s.Out, f.LeftFrom, f.LeftTo)
	switch f.Step {
	case snapshot.StepLostHere:
		return fmt.Sprintf("it came in by %s and did not leave this host", s.In) + lostBy(rec, s)
	case snapshot.StepRefusedHere:
		return "this host refuses it (RST): nothing listens there, or a rule rejects it" + lostBy(rec, s)
	case snapshot.StepUnreachableHere:
		return "this host answers with an ICMP error, " + icmpText(f) + lostBy(rec, s)
	case snapshot.StepNoAnswer:
		if s.In != "" && !s.Target.IsValid() && !s.Given.IsValid() && f.Client.Addr().IsPrivate() {
			return left + ", its own private address: no rule translates it, and no answer comes back"
		}
		return left + ", and nothing came back: the server is down or drops it, or its answers take another way"
	case snapshot.StepRefused:
		return left + fmt.Sprintf(", and %s refused it (RST)", f.By)
	case snapshot.StepUnreachable:
		return left + fmt.Sprintf(", and %s answered with an ICMP error, %s", f.By, icmpText(f))
	case snapshot.StepOtherSource:
		return left + fmt.Sprintf(", and %s answered in its place, which is no answer to the client: the server has several addresses, or something between translates", f.By)
	case snapshot.StepAnswerLost:
		return left + fmt.Sprintf(", the answer came in by %s and did not leave this host", s.Out) + lostBy(rec, s)
	case snapshot.StepAnswerUntranslated:
		return fmt.Sprintf("the answer left with the address %s, not translated back: the tracker does not see one of both directions (NOTRACK, a zone), or another program answered", f.By)
	case snapshot.StepClientSilent:
		return fmt.Sprintf("the answer left by %s, and the client asked again: the answer does not reach it", s.In)
	}
	return ""
}

// droppedIn are the functions that dropped packets of a connection, with their reasons, where that
// was traced.
func droppedIn(rec *snapshot.Recording, f *snapshot.FailedConnection) (by []string) {
	if rec.Drops == nil {
		return nil
	}
	for _, d := range rec.Drops.Flows {
		if isOf(d, f) {
			by = once(by, strings.TrimSpace(d.Function+" "+d.Reason))
		}
	}
	return by[:min(len(by), mostShown)]
}

// lostBy names what dropped packets of a connection, and the rule where it is known.
func lostBy(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	if by := droppedIn(rec, s.Failed); len(by) > 0 {
		text = ": dropped in " + strings.Join(by, ", ")
	}
	if filter := filterOf(rec, s); filter != nil && len(filter.Drops) > 0 {
		text += ", by " + placesOf(filter.Drops)
	}
	return text
}

// filterOf is what filters do to what was lost; nil where that is not known, or where it was
// something else that dropped it.
func filterOf(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.Filter {
	last := rec.Last()
	by := droppedIn(rec, s.Failed)
	ofFilter := len(by) == 0 || slices.ContainsFunc(by, func(place string) bool { return strings.Contains(place, "NETFILTER") || strings.HasPrefix(place, "nf") })
	if last.DNATTargets == nil || last.NATRules == nil || !ofFilter {
		return nil
	}
	for _, t := range last.DNATTargets.Targets {
		if t.Rule < 0 || t.Rule >= len(last.NATRules.Rules) || !mayMatch(&last.NATRules.Rules[t.Rule], s.Protocol, s.Service) || s.Target.IsValid() && s.Target.Addr() != t.Address {
			continue
		}
		switch s.Failed.Step {
		case snapshot.StepAnswerLost:
			return t.AnswerFilter
		case snapshot.StepLostHere, snapshot.StepRefusedHere, snapshot.StepUnreachableHere:
			return t.Filter
		}
	}
	return nil
}

// isOf reports whether a dropped flow is one way of a connection, before or after a translation.
func isOf(d snapshot.DropFlow, f *snapshot.FailedConnection) bool {
	ends := []string{f.Client.String(), f.Client.Addr().String()}
	if f.LeftFrom.IsValid() {
		ends = append(ends, f.LeftFrom.String())
	}
	return slices.Contains(ends, d.Source) || slices.Contains(ends, d.Destination)
}

// icmpText is the meaning of an ICMP error (RFC 792, RFC 1812, RFC 4443).
func icmpText(f *snapshot.FailedConnection) string {
	texts := map[[2]uint8]string{
		{3, 0}: "network unreachable: no route", {3, 1}: "host unreachable: its neighbour does not answer", {3, 3}: "port unreachable",
		{3, 4}: "fragmentation needed", {3, 9}: "prohibited by a rule", {3, 10}: "prohibited by a rule", {3, 13}: "prohibited by a rule", {11, 0}: "time to live exceeded: a loop",
	}
	if f.By.Is6() {
		texts = map[[2]uint8]string{
			{1, 0}: "no route", {1, 1}: "prohibited by a rule", {1, 3}: "address unreachable: its neighbour does not answer", {1, 4}: "port unreachable",
			{1, 5}: "prohibited by a rule", {1, 6}: "a route rejects it", {2, 0}: "packet too big", {3, 0}: "hop limit exceeded: a loop",
		}
	}
	return cmp.Or(texts[[2]uint8{f.ICMPType, f.ICMPCode}], fmt.Sprintf("type %d code %d", f.ICMPType, f.ICMPCode))
}
