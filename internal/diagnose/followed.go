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

// row is a service of which connections that were followed fail.
type row struct {
	*snapshot.FollowedService
	rec *snapshot.Recording
	all []snapshot.FollowedService
	// answered and of are the connections that were answered, and that were followed to an end.
	answered, of uint64
	// place is what this host does to the packet that was lost; empty where it was not asked.
	place *snapshot.FailedPlace
	// filter is what filters do to it; nil where that is not known, or where it was something else.
	filter *snapshot.Filter
}

// rows are the services of which a part fails that users feel.
func rows(rec *snapshot.Recording) (all []row) {
	services := rec.Followed.Services
	for i := range services {
		s := &services[i]
		if s.Failed == nil {
			continue
		}
		r := row{FollowedService: s, rec: rec, all: services, place: s.Failed.Place}
		if r.place == nil {
			r.place = &snapshot.FailedPlace{}
		}
		r.answered, r.of = outcome(services, s)
		r.filter = filterOf(rec, s)
		few := s.Failing() < fewestFailing && (s.Protocol == "tcp" || r.attempts() < fewestBlocked)
		if few || float64(s.Failing()) < failedPart*float64(r.of) && !r.losesSome() {
			continue
		}
		all = append(all, r)
	}
	return all
}

// attempts are the connections that failed, or their first packets that came again: those of a protocol
// without connections are one from the same port.
func (r *row) attempts() uint64 { return max(r.Failing(), r.Repeated) }

// followedOnes are the services that fail by what was seen of their packets, with where they
// fail.
func followedOnes(rec *snapshot.Recording) (all []failing) {
	if rec.Followed == nil {
		return nil
	}
	for _, r := range rows(rec) {
		blocked := r.blockedHere()
		if blocked.how == "" && r.excuse() != "" {
			continue
		}
		s := r.FollowedService
		f := failing{name: followedName(s), key: serviceID{s.Protocol, s.Service, s.Target}, how: r.how()}
		f.severity, f.confidence = r.severity()
		if f.cause = stepCause(rec, s); blocked.how != "" {
			f.severity, f.confidence = blocked.severity, blocked.confidence
			f.cause += blocked.cause
		}
		f.place = r.where()
		r.advise(&f)
		f.evidence = []Evidence{{
			What: f.name + ": " + string(s.Failed.Step), Value: int64(s.Steps[s.Failed.Step]), Unit: "of " + units.Plural(int64(r.of), "connection", "connections"),
			Source: "first packets and their answers at the interfaces",
		}, {What: "one of them from", Value: s.Failed.Client.String(), Source: "packets at " + cmp.Or(s.In, "this host")}}
		all = append(all, f)
	}
	return append(all, helperless(rec)...)
}

// helperless are the services that tell their clients the address of the server itself, as FTP does: what
// clients from outside ask for then, at ports of all kinds, no rule translates.
func helperless(rec *snapshot.Recording) (all []failing) {
	for i := range rec.Followed.Services {
		s := &rec.Followed.Services[i]
		if s.Steps[snapshot.StepAnswered] == 0 || s.Protocol != "tcp" || !s.Target.IsValid() || !s.Target.Addr().IsPrivate() {
			continue
		}
		var lost *snapshot.FollowedService
		ports, n := map[uint16]bool{}, uint64(0)
		for j := range rec.Followed.Services {
			o := &rec.Followed.Services[j]
			if o.Service.Addr() == s.Target.Addr() && o.In == s.In && !o.Target.IsValid() && o.Failed != nil && o.Steps[snapshot.StepAnswered] == 0 && o.Service != s.Target {
				lost, ports[o.Service.Port()], n = o, true, n+o.Failing()
			}
		}
		if len(ports) < fewestFailing {
			continue
		}
		f := failing{name: followedName(s), how: "opens further connections that get no answers", severity: Warning, confidence: "likely", key: serviceID{"tcp", s.Service, s.Target},
			place: "clients are told the address of the server itself, " + s.Target.Addr().String()}
		f.cause = fmt.Sprintf("its clients go on to %s, as the server tells them, at ports of all kinds (such as %d), which came in by %s and is not translated: a protocol that names addresses, such as FTP, needs a helper of conntrack (nf_conntrack_ftp and nf_nat_ftp, and a rule: iptables -t raw -A PREROUTING -p tcp --dport %d -j CT --helper ftp), or a server that is told its public address and ports",
			s.Target.Addr(), lost.Service.Port(), lost.In, s.Service.Port())
		f.evidence = []Evidence{{What: fmt.Sprintf("tcp %s: connections to other ports that were lost", s.Target.Addr()), Value: int64(n), Unit: "connections", Source: "first packets and their answers at the interfaces"}}
		all = append(all, f)
	}
	return all
}

// where is the place of the loss in a few words; empty where it is not known.
func (r *row) where() string {
	p, by := r.place, droppedIn(r.rec, r.FollowedService)
	switch {
	case r.filter != nil && len(r.filter.Drops) > 0 && r.Failed.Step.Here():
		return "this host drops it by " + r.filter.Drops[0].Text
	case r.Failed.Step.Here() && p.ReversePath:
		return "rp_filter drops it at " + r.In
	case r.Failed.Step.Here() && p.NoRoute != "" && r.In != "":
		return "this host has no route there: " + p.NoRoute
	case r.Failed.Step.Here() && p.NoRoute != "":
		return p.NoRoute
	case r.Failed.Step.Here() && len(by) > 0 && placeMeaning(by[0], r.Failed.Step) != "":
		return "this host drops it" + placeMeaning(by[0], r.Failed.Step)
	case r.Failed.Step == snapshot.StepNoAnswer:
		return r.Failed.LeftTo.String() + " does not answer"
	case r.Failed.Step == snapshot.StepRefused:
		return r.Failed.By.String() + " refuses it"
	}
	return ""
}

// how is what users see of a service.
func (r *row) how() string {
	switch {
	case r.Failed.Step == snapshot.StepPartLost:
		return "loses a part of the datagrams of its flows"
	case r.answered > 0 && r.Failed.Step.Later():
		return "opens connections, and a part of them comes to nothing"
	case r.Failed.Step.Later():
		return "opens connections that come to nothing"
	case r.answered > 0:
		return "gets no answer to a part of the connections"
	case r.isOnly():
		return "gets no answers, the only destination of " + r.Given.String()
	}
	return "gets no answers"
}

// isOnly reports whether a destination outside is the only one of the address that its sources become.
func (r *row) isOnly() bool {
	return r.Failed.Step == snapshot.StepNoAnswer && r.Given.IsValid() && !r.Target.IsValid() && destinations(r.all, r.Given) == 1
}

// severity is by how sure it is that users feel it, and that nobody means it.
func (r *row) severity() (Severity, string) {
	worst, surely := Critical, "certain"
	if r.answered > 0 {
		worst = Warning
	}
	step, published := r.Failed.Step, r.isPublished()
	switch {
	case step == snapshot.StepNoAnswer && r.Protocol != "tcp" && r.Steps[snapshot.StepAnswered] == 0 && !nat.AnswersAlways(r.Service.Port()):
		return Notice, "possible" // it may not be meant to answer
	case step == snapshot.StepNoAnswer && strayed(r.rec, r.FollowedService) != nil:
		return Warning, "likely"
	case r.isOnly():
		return Warning, "possible"
	case r.losesSome(), r.InOnly && r.Out == "": // a rule may mean to keep out what comes by one interface
		return Warning, "likely"
	case step.Later() && step != snapshot.StepReset: // no list lets connections be opened
	case r.filter != nil && r.filter.Passes && len(r.filter.Drops) > 0 && step.Here() && step != snapshot.StepAnswerLost:
		return Notice, "possible" // an allow-list may mean to
	case !published && isRefusal(step) && r.refusedByRule() && r.accepts() == nil:
		return Notice, "possible" // a rule that rejects is meant to
	case !published && r.byRule() && isFor(r.dropsSurely(), "dport") && r.accepts() == nil:
		return Notice, "possible" // one for this port alone may be meant to
	case r.bySource(), r.byRule() && r.isAmongInside() && r.accepts() == nil && !r.Bridged:
		return Notice, "possible" // networks may be meant to be apart, and sources to be kept out
	case step == snapshot.StepReset && !published:
		return Notice, "possible"
	case published || r.Given.IsValid() && (step.Here() || deadSources(r.all)[r.Given]) || r.goesOutBare():
		return worst, surely
	case !step.Here() && !step.Later(): // routed alone, or to a private address by an uplink
		return Notice, "possible"
	}
	if published {
		return worst, surely
	}
	return min(worst, Warning), "likely"
}

// advise adds what to do next.
func (r *row) advise(f *failing) {
	s, rec := r.FollowedService, r.rec
	switch s.Failed.Step {
	case snapshot.StepNoAnswer, snapshot.StepRefused, snapshot.StepUnreachable, snapshot.StepOtherSource, snapshot.StepReset, snapshot.StepDataUnanswered:
		switch {
		case r.isPrivateBeyond():
			f.advice = new(advice("service-route", s.Service.Addr(), s.Out, where(rec)))
		case strayed(rec, s) != nil || r.goesOutBare():
			f.advice = new(advice("service-source", s.Out, where(rec)))
		default:
			f.target = s.Failed.LeftTo
		}
	case snapshot.StepClientSilent:
		f.advice = new(advice("service-client", s.Failed.Client.Addr(), s.In, where(rec)))
		if s.Failed.AnswerOut != "" {
			f.advice = new(advice("service-uplinks", s.In, where(rec)))
		}
	default:
		f.advice = new(advice("service-path", inNamespace(rec.Last().Netns.Name), s.Protocol, s.Failed.Client.Addr()))
	}
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
		if o == s || s.Out == "" && !s.InOnly && !o.InOnly && o.Fragmented == s.Fragmented && o.Protocol == s.Protocol && o.Service == s.Service {
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
func (r *row) losesSome() bool {
	if r.Failed.Step != snapshot.StepLostHere || r.Mixed < fewestFailed || float64(r.Mixed) < droppedPart*float64(r.of) {
		return false
	}
	return r.filter != nil && len(r.filter.Drops) > 0 || slices.ContainsFunc(droppedIn(r.rec, r.FollowedService), isRule)
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
func (r *row) blockedHere() (f failing) {
	s, last := r.FollowedService, r.rec.Last()
	if s.In == "" || s.Out != "" || r.answered > 0 || r.attempts() < fewestBlocked || last.Audit == nil || last.NATRules == nil ||
		s.Protocol == "udp" && nat.IsOneWay(s.Service.Port()) || s.Service.Port() == 0 {
		return f
	}
	_, own := last.Audit.Near(s.Service.Addr())
	for i := range last.NATRules.Rules {
		rule := &last.NATRules.Rules[i]
		if rule.Hook != "prerouting" || rule.TranslatesSource() || rule.DestinationPort != s.Service.Port() {
			continue
		}
		if mayMatch(rule, s.Protocol, s.Service) {
			return failing{} // translated, and judged as such
		}
		if own && mayMatch(rule, rule.Protocol, s.Service) || rule.Protocol == s.Protocol && (rule.Family == "ip") == s.Service.Addr().Is6() && rule.Family != "inet" {
			f = failing{how: "gets no answers", severity: Notice, confidence: "possible", cause: fmt.Sprintf("; the rule for this port is for %s, %s: %s", ruleWay(rule, s), rule.Place(), rule.Text)}
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
	audit, source := rec.Last().Audit, leavesAs(s)
	if audit == nil || !source.IsValid() || s.Out == "" {
		return nil
	}
	at, own := audit.Near(source)
	out := audit.Interface(s.Out)
	if !own || out == nil || at.Name == out.Name || len(out.Addresses) == 0 || s.Failing() < fewestFailed {
		return nil
	}
	for i := range rec.Followed.Services {
		if o := &rec.Followed.Services[i]; leavesAs(o) == source && o.Out == s.Out && o.Steps[snapshot.StepAnswered] > 0 {
			return nil
		}
	}
	return at
}

// leavesAs is the address of this host with which connections leave; not valid where they keep another one.
func leavesAs(s *snapshot.FollowedService) netip.Addr {
	if s.In == "" && s.Failed != nil {
		return s.Failed.LeftFrom.Addr()
	}
	return s.Given
}

func followedName(s *snapshot.FollowedService) string {
	name := s.Protocol + " " + s.Service.String()
	if s.Target.IsValid() {
		name += " -> " + s.Target.String()
	}
	if s.Service.Port() == 0 {
		name = s.Protocol + " " + s.Service.Addr().String()
	}
	if s.Fragmented {
		name += " in fragments"
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

// longPause is the time in seconds without a packet from which data is said to come after a pause.
const longPause = 1

func pauseText(f *snapshot.FailedConnection) string {
	if f.PauseSeconds < longPause {
		return ""
	}
	return fmt.Sprintf(", after a pause of %.1f s,", f.PauseSeconds)
}

// stepCause says what is known of why a service's connections come no further.
func stepCause(rec *snapshot.Recording, s *snapshot.FollowedService) string {
	f := s.Failed
	left := fmt.Sprintf("it left by %s as %s -> %s", s.Out, f.LeftFrom, f.LeftTo)
	switch f.Step {
	case snapshot.StepDataLost:
		side, in := "the client", s.In
		if f.Answer {
			side, in = "the server", cmp.Or(f.AnswerIn, s.Out)
		}
		return fmt.Sprintf("connections are opened; then%s data of %s comes in by %s again and again and does not leave this host", pauseText(f), side, cmp.Or(f.DataIn, in)) + lostBy(rec, s)
	case snapshot.StepPartLost:
		side := map[bool]string{false: "the client", true: "the server"}[f.Answer]
		return fmt.Sprintf("of the datagrams of %s in one flow %d came in and %d left this host", side, f.DatagramsIn, f.DatagramsOut) + lostBy(rec, s)
	case snapshot.StepDataUnanswered:
		side, out := "the client", s.Out
		if f.Answer {
			side, out = "the server", cmp.Or(f.AnswerOut, s.In)
		}
		return fmt.Sprintf("connections are opened; then data of %s leaves by %s again and again, and is not acknowledged", side, out) + sizeText(s)
	case snapshot.StepResetHere:
		return "connections are opened; then" + pauseText(f) + " this host resets them (RST, in the name of " + f.By.String() + ")" + lostBy(rec, s)
	case snapshot.StepReset:
		return left + fmt.Sprintf(", was opened, and a RST in the name of %s came in place of an answer: the server, or something between, ends it", f.By)
	case snapshot.StepLostHere:
		if s.In == "" {
			return "programs of this host open it, and nothing leaves" + lostBy(rec, s)
		}
		return fmt.Sprintf("it came in by %s and did not leave this host", s.In) + lostBy(rec, s) + otherInterface(rec, s)
	case snapshot.StepRefusedHere:
		return "this host refuses it (RST): nothing listens there, or a rule rejects it" + lostBy(rec, s) + otherInterface(rec, s)
	case snapshot.StepUnreachableHere:
		return "this host answers with an ICMP error, " + icmpText(f) + lostBy(rec, s)
	case snapshot.StepNoAnswer:
		if s.In != "" && !s.Target.IsValid() && !s.Given.IsValid() && f.Client.Addr().IsPrivate() {
			if r := olderThan(rec, s); r != nil {
				return left + fmt.Sprintf(", its own private address, though a rule is for it: the entry of its connection is older than the rule, %s: %s, and kept by its packets ('natkit conntrack delete' lets it begin anew); no answer comes back", r.Place(), r.Text)
			}
			return left + ", its own private address: no rule translates it, and no answer comes back"
		}
		if p := f.Place; p != nil && s.Service.Addr().IsPrivate() && p.Uplink && !s.Target.IsValid() {
			return left + fmt.Sprintf(", the way to the internet, where no private address is: a route to %s is missing, and nothing came back", s.Service.Addr())
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
		if f.AnswerBridged {
			return left + fmt.Sprintf(", and %s answered the client directly by the bridge, not by this host, which would translate the answer back", f.By)
		}
		if timeout := float64(rec.Last().Sysctls.ClassTimeout(s.Protocol + "/unreplied")); s.Protocol == "udp" && timeout > 0 && f.AnswerSeconds >= timeout {
			return fmt.Sprintf("the answer came after %.1f s, when the entry that translates it back was gone: net.netfilter.nf_conntrack_udp_timeout is %.0f s; it left with the address %s", f.AnswerSeconds, timeout, f.By)
		}
		return fmt.Sprintf("the answer left with the address %s, not translated back: the tracker does not see one of both directions (NOTRACK, a zone), or another program answered", f.By)
	case snapshot.StepClientSilent:
		if f.AnswerOut != "" {
			return fmt.Sprintf("the answer left by %s, the question came by %s, and the client asked again: answers follow this host's routes to the client, not the way that the connection came", f.AnswerOut, s.In)
		}
		return fmt.Sprintf("the answer left by %s, and the client asked again: the answer does not reach it", s.In)
	}
	return ""
}

// olderThan is the rule that would translate the source of a flow that goes on untranslated; nil where
// there is none.
func olderThan(rec *snapshot.Recording, s *snapshot.FollowedService) *snapshot.NATRule {
	rules := rec.Last().NATRules
	if rules == nil || s.Protocol == "tcp" {
		return nil
	}
	for i := range rules.Rules {
		if r := &rules.Rules[i]; mayTranslate(r, s.Failed.Client.Addr(), s.Service.Addr(), s.Out) && (r.Protocol == "" || r.Protocol == s.Protocol) && r.OutInterface == s.Out {
			return r
		}
	}
	return nil
}

// wayOut is what is known of the way by which a connection left that got no answer.
func wayOut(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	if s.In != "" && s.In == s.Out {
		text = "; it left by the interface it came in by"
	}
	if at := strayed(rec, s); at != nil {
		text += fmt.Sprintf("; %s is the address of %s, so that answers come by that network, and that of %s may drop what has a foreign source", leavesAs(s), at.Name, s.Out)
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
	if last.NATRules == nil || last.Audit == nil || last.Audit.Interface(s.In) == nil || s.Failed.Place != nil && !s.Failed.Place.Local {
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

// droppedIn are the functions that dropped packets of a service, with their reasons, where that was traced:
// those of the example or, of what did not leave, of any of its clients.
func droppedIn(rec *snapshot.Recording, s *snapshot.FollowedService) (by []string) {
	if rec.Drops == nil {
		return nil
	}
	for _, same := range []func(snapshot.DropFlow) bool{
		func(d snapshot.DropFlow) bool { return isOf(d, s.Failed) },
		func(d snapshot.DropFlow) bool { return s.Out == "" && d.Destination == endString(s.Service) },
		func(d snapshot.DropFlow) bool {
			return s.Failed.Step.Here() && s.Out != "" && slices.ContainsFunc([]netip.AddrPort{s.Service, s.Target}, func(e netip.AddrPort) bool {
				return e.IsValid() && (d.Source == endString(e) || d.Destination == endString(e))
			})
		},
	} {
		for _, d := range rec.Drops.Flows {
			if same(d) && isProtocol(d, s.Protocol) {
				by = once(by, strings.TrimSpace(d.Function+" "+d.Reason))
			}
		}
		if len(by) > 0 {
			break
		}
	}
	return by[:min(len(by), mostShown)]
}

// endString is an end as flows of drops have it.
func endString(e netip.AddrPort) string {
	if e.Port() == 0 {
		return e.Addr().String()
	}
	return e.String()
}

// isProtocol reports whether a dropped flow may be of a protocol.
func isProtocol(d snapshot.DropFlow, protocol string) bool {
	ports := func(name string) bool { return name == "tcp" || name == "udp" }
	return d.Protocol == protocol || !ports(d.Protocol) && !ports(protocol)
}

// placeMeanings are what drops in a place of the kernel mean at a step, by function and reason.
var placeMeanings = []struct {
	place, meaning string
	steps          []snapshot.Step
}{
	{"ip_forward IP_INHDR", "its TTL was 1 or less: a rule of this host sets it, table mangle, or routers send it in a loop", []snapshot.Step{snapshot.StepLostHere, snapshot.StepAnswerLost}},
	{"tcp_v4_rcv NO_SOCKET", "no entry of the connection was left that translates it, and it was taken for this host's own: net.netfilter.nf_conntrack_tcp_timeout_established is shorter than its pauses, or entries were deleted", []snapshot.Step{snapshot.StepResetHere, snapshot.StepDataLost}},
	{"tcp_v6_rcv NO_SOCKET", "no entry of the connection was left that translates it, and it was taken for this host's own: net.netfilter.nf_conntrack_tcp_timeout_established is shorter than its pauses, or entries were deleted", []snapshot.Step{snapshot.StepResetHere, snapshot.StepDataLost}},
	{"ip_defrag NOT_SPECIFIED", "fragments cannot be put together: there is no room for them, net.ipv4.ipfrag_high_thresh, or a part is missing", []snapshot.Step{snapshot.StepLostHere, snapshot.StepAnswerLost}},
	{"__udp4_lib_rcv NO_SOCKET", "not translated back, it was taken for this host's own: the entry was gone as the answer came, as where net.netfilter.nf_conntrack_udp_timeout is shorter than the server takes", []snapshot.Step{snapshot.StepAnswerLost}},
	// br_handle_frame_finish (net/bridge/br_input.c) and should_deliver (net/bridge/br_forward.c)
	{"br_handle_frame_finish NOT_SPECIFIED", "the bridge forwards nothing to the port it came from where hairpin mode is off: 'bridge -d link show'", []snapshot.Step{snapshot.StepLostHere}},
}

// lostBy names what dropped packets of a connection, and the rule, the route or the neighbour where it is
// known.
func lostBy(rec *snapshot.Recording, s *snapshot.FollowedService) (text string) {
	by := droppedIn(rec, s)
	if len(by) > 0 {
		text = ": dropped in " + strings.Join(by, ", ") + onTheWay(rec, s)
		for _, place := range by {
			text += placeMeaning(place, s.Failed.Step)
		}
	}
	if filter := filterOf(rec, s); filter != nil && len(filter.Drops) > 0 {
		text += ", by " + placesOf(filter.Drops)
		if filter.Accepts != nil {
			text += ", which comes before the rule that would accept it: " + filter.Accepts.Text
		}
	} else if none := noEntry(s); filter != nil && none != "" && (len(by) == 0 || slices.ContainsFunc(by, isRule)) {
		text += none
	} else if text += routeText(s); filter != nil && slices.ContainsFunc(by, isRule) {
		text += ", by a rule that is not of the hooks of IP: 'nft list ruleset', tables of the families netdev and bridge"
	}
	return text + sizeText(s)
}

// noEntry names the rules that drop what is of no known connection; empty where there are none.
func noEntry(s *snapshot.FollowedService) string {
	if p := s.Failed.Place; p != nil && p.NoEntryFilter != nil {
		return ", by " + placesOf(p.NoEntryFilter.Drops) + ", as it is of no connection that the tracker knows: the entry was gone (net.netfilter.nf_conntrack_*_timeout, deleted) or one direction passes by another way"
	}
	return ""
}

// placeMeaning is what a drop in a place of the kernel means, in brackets.
func placeMeaning(place string, step snapshot.Step) string {
	for _, m := range placeMeanings {
		if m.place == place && slices.Contains(m.steps, step) {
			return " (" + m.meaning + ")"
		}
	}
	function, reason, _ := strings.Cut(place, " ")
	if r := reasonOf(siteReason(function, reason)); r.Means != "" && !isRule(place) && reason != netfilterDrop && siteReason(function, reason) != "" {
		return " (" + r.Means + ")"
	}
	return ""
}

// routeText is what speaks against the route of what was lost here.
func routeText(s *snapshot.FollowedService) string {
	p := s.Failed.Place
	switch {
	case p == nil || s.Out != "" && s.Failed.Step == snapshot.StepNoAnswer:
		return ""
	case p.ReversePath:
		return fmt.Sprintf(", by rp_filter: the route back to %s is not by %s, by which it came", s.Failed.Client.Addr(), cmp.Or(s.Failed.AnswerIn, s.In))
	case p.NoRoute != "" && s.In == "":
		return ": " + p.NoRoute
	case p.NoRoute != "":
		return ": no route leads there: " + p.NoRoute
	case p.OutDown:
		return fmt.Sprintf(": it is to leave by %s, which is down", p.Out)
	case (p.Neighbour == snapshot.NeighbourFailed || p.Neighbour == snapshot.NeighbourIncomplete) && s.Failed.Step != snapshot.StepDataLost:
		return fmt.Sprintf(": %s on %s does not answer ARP or neighbour discovery", p.NextHop, p.Out) + neighbourText(p)
	case p.Encrypted:
		return " in the clear: a policy of IPsec takes it ('ip xfrm policy')"
	case p.Local && s.Failed.Step == snapshot.StepLostHere:
		return ": it is for this host itself"
	}
	return ""
}

// neighbourText names the rule that drops the answers of neighbour discovery.
func neighbourText(p *snapshot.FailedPlace) string {
	if p.NeighbourFilter == nil {
		return ""
	}
	return ", as its answers are dropped by " + placesOf(p.NeighbourFilter.Drops)
}

// sizeText is what is known of the size of data that was lost.
func sizeText(s *snapshot.FollowedService) (text string) {
	f := s.Failed
	if f.Bytes == 0 {
		return ""
	}
	p := cmp.Or(f.Place, &snapshot.FailedPlace{})
	large := f.PassedBytes > 0 && f.Bytes > f.PassedBytes
	if large {
		text = fmt.Sprintf("; it had %d bytes, and packets of up to %d pass", f.Bytes, f.PassedBytes)
	}
	if p.OutMTUBytes > 0 && f.Bytes > p.OutMTUBytes && f.Step == snapshot.StepDataLost {
		text += fmt.Sprintf("; the MTU of %s is %d", p.Out, p.OutMTUBytes)
	}
	switch b := f.TooBig; {
	case b != nil && b.Here:
		text += fmt.Sprintf("; this host says that packets are too large (MTU %d), and the sender does not heed it", b.MTUBytes)
	case b != nil && !b.Passed:
		text += fmt.Sprintf("; %s says by ICMP that packets are too large (MTU %d), which came in and did not leave for the sender", b.By, b.MTUBytes)
	case b != nil:
		text += fmt.Sprintf("; %s says by ICMP that packets are too large (MTU %d), and the sender does not heed it", b.By, b.MTUBytes)
	case large && f.Step == snapshot.StepDataUnanswered:
		text += ", as where the MTU of the way is smaller and the ICMP errors that say so are lost"
	}
	if tooLarge := large || f.TooBig != nil || p.OutMTUBytes > 0 && f.Bytes > p.OutMTUBytes; tooLarge && p.ErrorFilter != nil && len(p.ErrorFilter.Drops) > 0 {
		text += "; such ICMP errors are dropped by " + placesOf(p.ErrorFilter.Drops)
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

// isPublished reports whether a rule translates the destination. One for another interface counts where
// it asks for an address of this host.
func (r *row) isPublished() bool {
	s, rules := r.FollowedService, r.rec.Last().NATRules
	translated := func(o snapshot.FollowedService) bool {
		return o.Target.IsValid() && o.Protocol == s.Protocol && o.Service == s.Service
	}
	return slices.ContainsFunc(r.all, translated) || rules != nil && slices.ContainsFunc(rules.Rules, func(n snapshot.NATRule) bool {
		byIt := n.InInterface == "" || r.Failed.Place == nil || r.place.Local || nat.InName(n.InInterface, s.In)
		return byIt && n.Hook == "prerouting" && (n.DestinationPort != 0 || n.ToDestination.IsValid()) && mayMatch(&n, s.Protocol, s.Service)
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
	by := droppedIn(rec, s)
	ofFilter := len(by) == 0 || slices.ContainsFunc(by, func(place string) bool { return strings.Contains(place, "NETFILTER") || strings.HasPrefix(place, "nf") })
	switch p := s.Failed.Place; {
	case !ofFilter:
		return nil
	case p != nil:
		return p.Filter
	case last.DNATTargets == nil || last.NATRules == nil:
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
