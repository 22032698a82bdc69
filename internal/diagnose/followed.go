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
		answered, of := outcome(rec.Followed.Services, s)
		some := losesSome(rec, s, of)
		blocked := blockedHere(rec, s, answered)
		if s.Failed == nil || s.Failing() < fewestFailing || float64(s.Failing()) < failedPart*float64(of) && !some || blocked.how == "" && !concernsNAT(rec, s, dead) {
			continue
		}
		f := failing{name: followedName(s), key: serviceID{s.Protocol, s.Service, s.Target}, about: ends(s.Service, s.Target, netip.AddrPortFrom(s.Given, 0)), how: "gets no answers", severity: Critical, confidence: "certain"}
		if answered > 0 {
			f.how, f.severity = "gets no answer to a part of the connections", Warning
		}
		f.cause = stepCause(rec, s)
		detour := followedDetour(rec, s)
		if detour.cause != "" {
			f.cause += "; " + detour.cause
		}
		if blocked.how != "" {
			f.severity, f.confidence = blocked.severity, blocked.confidence
			f.cause += blocked.cause
		}
		switch lone := s.Given.IsValid() && !s.Target.IsValid() && destinations(rec.Followed.Services, s.Given) == 1; {
		case s.Failed.Step != snapshot.StepNoAnswer:
		case s.Protocol != "tcp" && s.Steps[snapshot.StepAnswered] == 0 && !nat.AnswersAlways(s.Service.Port()):
			f.severity, f.confidence = Notice, "possible" // it may not be meant to answer
		case strayed(rec, s) != nil:
			f.severity, f.confidence = Warning, "likely"
		case lone:
			f.how, f.severity, f.confidence = "gets no answers, the only destination of "+s.Given.String(), Warning, "possible"
		}
		switch filter := filterOf(rec, s); {
		case some, blocked.how == "" && s.InOnly && s.Out == "": // a rule may mean to keep out what comes by one interface
			f.severity, f.confidence = Warning, "likely"
		case filter != nil && filter.Passes && len(filter.Drops) > 0:
			// An allow-list may mean to.
			f.severity, f.confidence = Notice, "possible"
		case blocked.how == "" && rec.Last().NATRules != nil && isRefusal(s.Failed.Step) && !isPublished(rec, s): // a rule that rejects is meant to
			f.severity, f.confidence = Notice, "possible"
		}
		switch s.Failed.Step {
		case snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable, snapshot.StepOtherSource:
			f.target = s.Failed.LeftTo
		case snapshot.StepClientSilent:
			f.advice = new(advice("service-client", s.Failed.Client.Addr(), s.In, where(rec)))
			if s.Failed.AnswerOut != "" {
				f.advice = new(advice("service-uplinks", s.In, where(rec)))
			}
		default:
			f.advice = new(advice("service-path", inNamespace(rec.Last().Netns.Name), s.Protocol, s.Failed.Client.Addr()))
		}
		if detour.certain {
			f.advice, f.target = &detour.remedy, netip.AddrPort{}
		}
		f.evidence = []Evidence{{
			What: f.name + ": " + string(s.Failed.Step), Value: int64(s.Steps[s.Failed.Step]), Unit: "of " + units.Plural(int64(of), "connection", "connections"),
			Source: "first packets and their answers at the interfaces",
		}, {What: "one of them from", Value: s.Failed.Client.String(), Source: "packets at " + cmp.Or(s.In, "this host")}}
		all = append(all, f)
	}
	return all
}

// destinations counts those of an address that sources become.
func destinations(all []snapshot.FollowedService, given netip.Addr) int {
	seen := map[serviceID]bool{}
	for i := range all {
		if s := &all[i]; s.Given == given && !s.Target.IsValid() {
			seen[serviceID{protocol: s.Protocol, service: s.Service}] = true
		}
	}
	return len(seen)
}

// outcome counts the connections that were answered, and those that were followed to an end. Those
// that did not leave are a part of all to the service, as what they were to become is not known.
func outcome(all []snapshot.FollowedService, s *snapshot.FollowedService) (answered, of uint64) {
	for i := range all {
		o := &all[i]
		if o == s || s.Out == "" && !s.InOnly && !o.InOnly && o.Protocol == s.Protocol && o.Service == s.Service {
			answered += o.Steps[snapshot.StepAnswered]
			of += o.Steps[snapshot.StepAnswered] + o.Failing()
		}
	}
	return answered, of
}

// droppedPart is the share of connections dropped by a rule from which that is reported, where others
// of the same clients are answered: no list of clients does that.
const droppedPart = 0.02

// losesSome reports whether a rule drops some of the connections of clients that it lets pass else.
func losesSome(rec *snapshot.Recording, s *snapshot.FollowedService, of uint64) bool {
	if s.Failed == nil || s.Failed.Step != snapshot.StepLostHere || s.Mixed < fewestFailed || float64(s.Mixed) < droppedPart*float64(of) {
		return false
	}
	filter := filterOf(rec, s)
	return filter != nil && len(filter.Drops) > 0 || slices.ContainsFunc(droppedIn(rec, s.Failed), isRule)
}

// isRule reports whether the place of a drop is where the kernel runs rules (nft_do_chain,
// ipt_do_table, ip6t_do_table).
func isRule(place string) bool {
	function, _, _ := strings.Cut(place, " ")
	return function == "nft_do_chain" || strings.HasSuffix(function, "t_do_table")
}

// fewestBlocked is how many connections or repeated ones must fail here before a service that is not
// translated is said to: those who scan try few times.
const fewestBlocked = 10

// blockedHere judges a service that no rule translates and that this host drops or refuses all of: it has
// no how where that is no fault: a firewall drops what no rule for that port, of any protocol or family, is for.
func blockedHere(rec *snapshot.Recording, s *snapshot.FollowedService, answered uint64) (f failing) {
	last := rec.Last()
	if s.Failed == nil || s.In == "" || s.Out != "" || answered > 0 || max(s.Failing(), s.Repeated) < fewestBlocked || last.Audit == nil || last.NATRules == nil ||
		s.Protocol == "udp" && nat.IsOneWay(s.Service.Port()) || s.Service.Port() == 0 {
		return f
	}
	_, own := last.Audit.Near(s.Service.Addr())
	for i := range last.NATRules.Rules {
		r := &last.NATRules.Rules[i]
		if r.Hook != "prerouting" || r.TranslatesSource() || r.DestinationPort != s.Service.Port() {
			continue
		}
		if mayMatch(r, s.Protocol, s.Service) {
			return failing{} // translated, and judged as such
		}
		if own && mayMatch(r, r.Protocol, s.Service) || r.Protocol == s.Protocol && (r.Family == "ip") == s.Service.Addr().Is6() && r.Family != "inet" {
			f = failing{how: "gets no answers", severity: Notice, confidence: "possible", cause: fmt.Sprintf("; the rule for this port is for %s, %s: %s", ruleWay(r, s), r.Place(), r.Text)}
		}
	}
	if f.how != "" && s.Clients > 1 {
		f.severity, f.confidence = Warning, "likely"
	}
	return f
}

// ruleWay is what a rule for the same port is for instead.
func ruleWay(r *snapshot.NATRule, s *snapshot.FollowedService) string {
	switch {
	case r.Protocol != s.Protocol:
		return r.Protocol + " only"
	case r.Family == "ip6":
		return "IPv6 only"
	}
	return "IPv4 only"
}

// strayed is the interface whose address sources are given that leave by another one with addresses of
// its own; nil where that is not so, or not known.
func strayed(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.Interface {
	audit := rec.Last().Audit
	if audit == nil || !s.Given.IsValid() || s.Out == "" {
		return nil
	}
	at, own := audit.Near(s.Given)
	out := audit.Interface(s.Out)
	if !own || out == nil || at.Name == out.Name || len(out.Addresses) == 0 || s.Failing() < fewestFailed {
		return nil
	}
	for i := range rec.Followed.Services {
		if o := &rec.Followed.Services[i]; o.Given == s.Given && o.Out == s.Out && o.Steps[snapshot.StepAnswered] > 0 {
			return nil
		}
	}
	return at
}

func followedName(s *snapshot.FollowedService) string {
	name := s.Protocol + " " + s.Service.String()
	if s.Target.IsValid() {
		name += " -> " + s.Target.String()
	}
	if s.InOnly {
		name += " from " + s.In
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
	beyond := isDeadNeighbour(rec, s) || slices.Contains([]snapshot.Step{snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable}, s.Failed.Step)
	switch {
	case s.Target.IsValid():
		return true
	case s.Given.IsValid():
		return !beyond || dead[s.Given] || strayed(rec, s) != nil
	case s.In == "" || isDeadNeighbour(rec, s):
		return false
	}
	if rec.Last().NATRules == nil {
		return false
	}
	return isPublished(rec, s) || s.Failed.Client.Addr().IsPrivate() && !s.Service.Addr().IsPrivate() &&
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
		return fmt.Sprintf("it came in by %s and did not leave this host", s.In) + lostBy(rec, s) + otherInterface(rec, s)
	case snapshot.StepRefusedHere:
		return "this host refuses it (RST): nothing listens there, or a rule rejects it" + lostBy(rec, s) + otherInterface(rec, s)
	case snapshot.StepUnreachableHere:
		return "this host answers with an ICMP error, " + icmpText(f) + lostBy(rec, s)
	case snapshot.StepNoAnswer:
		if s.In != "" && !s.Target.IsValid() && !s.Given.IsValid() && f.Client.Addr().IsPrivate() {
			return left + ", its own private address: no rule translates it, and no answer comes back"
		}
		return left + ", and nothing came back: the server is down or drops it, or its answers take another way" + wayOut(rec, s)
	case snapshot.StepRefused:
		return left + fmt.Sprintf(", and %s refused it (RST)", f.By)
	case snapshot.StepUnreachable:
		return left + fmt.Sprintf(", and %s answered with an ICMP error, %s", f.By, icmpText(f))
	case snapshot.StepOtherSource:
		return left + fmt.Sprintf(", and %s answered in its place, which is no answer to the client: the server has several addresses, or something between translates", f.By)
	case snapshot.StepAnswerLost:
		return left + fmt.Sprintf(", the answer came in by %s and did not leave this host", cmp.Or(f.AnswerIn, s.Out)) + lostBy(rec, s)
	case snapshot.StepAnswerUntranslated:
		return fmt.Sprintf("the answer left with the address %s, not translated back: the tracker does not see one of both directions (NOTRACK, a zone), or another program answered", f.By)
	case snapshot.StepClientSilent:
		if f.AnswerOut != "" {
			return fmt.Sprintf("the answer left by %s, the question came by %s, and the client asked again: answers follow this host's routes to the client, not the way that the connection came", f.AnswerOut, s.In)
		}
		return fmt.Sprintf("the answer left by %s, and the client asked again: the answer does not reach it", s.In)
	}
	return ""
}

// wayOut is what is known of the way by which a connection left that got no answer.
func wayOut(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	if s.In != "" && s.In == s.Out {
		text = "; it left by the interface it came in by"
	}
	if at := strayed(rec, s); at != nil {
		text += fmt.Sprintf("; %s is the address of %s, so that answers come by that network, and that of %s may drop what has a foreign source", s.Given, at.Name, s.Out)
	}
	t := followedTarget(rec, s)
	if t == nil {
		return text
	}
	if t.Interface != "" && t.Interface != s.Out && s.In == s.Out {
		text += fmt.Sprintf(", while the main route to it is by %s: a rule of policy routing or a mark takes another table", t.Interface)
	}
	if t.Neighbour == "PERMANENT" {
		text += fmt.Sprintf("; the neighbour entry of %s is permanent, and may have the hardware address of a card that is gone: 'ip neigh show %[1]s'", t.NextHop)
	}
	return text
}

// followedTarget is what is known of the address that a service became; nil where nothing is.
func followedTarget(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.DNATTarget {
	if rec.Last().DNATTargets == nil || !s.Target.IsValid() {
		return nil
	}
	all := rec.Last().DNATTargets.Targets
	if i := slices.IndexFunc(all, func(t snapshot.DNATTarget) bool { return t.Address == s.Target.Addr() }); i >= 0 {
		return &all[i]
	}
	return nil
}

// otherInterface names the rule for a service that is for what comes in by another interface. A
// bridge's port is left out: the rule may be for the bridge.
func otherInterface(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	last := rec.Last()
	if last.NATRules == nil || last.Audit == nil || last.Audit.Interface(s.In) == nil {
		return ""
	}
	text := ""
	for i := range last.NATRules.Rules {
		r := &last.NATRules.Rules[i]
		if r.Hook != "prerouting" || r.DestinationPort == 0 || !mayMatch(r, s.Protocol, s.Service) {
			continue
		}
		if r.InInterface == "" || r.InInterface == s.In || strings.ContainsAny(r.InInterface, "*+") {
			return ""
		}
		text = fmt.Sprintf("; the rule for it, %s: %s, is for what comes in by %s", r.Place(), r.Text, r.InInterface)
	}
	return text
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

// placeMeanings are what drops in a place of the kernel mean at a step, by function and reason.
var placeMeanings = []struct {
	place, meaning string
	steps          []snapshot.Step
}{
	{"ip_forward IP_INHDR", "its TTL was 1 or less: a rule of this host sets it, table mangle, or routers send it in a loop", []snapshot.Step{snapshot.StepLostHere, snapshot.StepAnswerLost}},
	{"__udp4_lib_rcv NO_SOCKET", "not translated back, it was taken for this host's own: the entry was gone as the answer came, as where net.netfilter.nf_conntrack_udp_timeout is shorter than the server takes", []snapshot.Step{snapshot.StepAnswerLost}},
	// br_handle_frame_finish (net/bridge/br_input.c) and should_deliver (net/bridge/br_forward.c)
	{"br_handle_frame_finish NOT_SPECIFIED", "the bridge forwards nothing to the port it came from where hairpin mode is off: 'bridge -d link show'", []snapshot.Step{snapshot.StepLostHere}},
}

// lostBy names what dropped packets of a connection, and the rule where it is known.
func lostBy(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	if by := droppedIn(rec, s.Failed); len(by) > 0 {
		text = ": dropped in " + strings.Join(by, ", ") + onTheWay(rec, s)
		for _, m := range placeMeanings {
			if slices.Contains(by, m.place) && slices.Contains(m.steps, s.Failed.Step) {
				text += " (" + m.meaning + ")"
			}
		}
	}
	if filter := filterOf(rec, s); filter != nil && len(filter.Drops) > 0 {
		text += ", by " + placesOf(filter.Drops)
	}
	return text
}

// onTheWay names what a connection that was dropped had become already.
func onTheWay(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	for _, d := range rec.Drops.Flows {
		to, err := netip.ParseAddrPort(d.Destination)
		if err == nil && d.Source == s.Failed.Client.String() && to != s.Service && to != s.Target {
			return " on its way to " + to.String()
		}
	}
	return ""
}

// isPublished reports whether a rule translates the destination.
func isPublished(rec *snapshot.Recording, s *snapshot.FollowedService) bool {
	return s.Target.IsValid() || slices.ContainsFunc(rec.Last().NATRules.Rules, func(r snapshot.NATRule) bool {
		return r.Hook == "prerouting" && (r.DestinationPort != 0 || r.ToDestination.IsValid()) && mayMatch(&r, s.Protocol, s.Service)
	})
}

// isRefusal reports whether this host answered in place of the destination.
func isRefusal(s snapshot.Step) bool {
	return s == snapshot.StepRefusedHere || s == snapshot.StepUnreachableHere
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
