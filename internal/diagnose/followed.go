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
		blocked, portless := r.blockedHere(), r.portless()
		if blocked.how == "" && portless == nil && r.excuse() != "" || r.isOfOneSided() {
			continue
		}
		s := r.FollowedService
		f := failing{name: followedName(s), key: serviceID{s.Protocol, s.Service, s.Target}, about: ends(s.Service, s.Target, r.place.To, netip.AddrPortFrom(s.Given, 0)), how: r.how(), later: s.Failed.Step.Later(),
			client: s.Failed.Client.Addr(), bare: !s.Target.IsValid() && !s.Given.IsValid()}
		if f.severity, f.confidence = r.severity(); !s.Target.IsValid() {
			f.given = s.Given
		}
		detour := followedDetour(rec, s)
		if f.cause = stepCause(rec, s) + r.sourceText() + r.tunnelCause(); detour.cause != "" {
			f.cause += "; " + detour.cause
		}
		if blocked.how != "" {
			f.severity, f.confidence = blocked.severity, blocked.confidence
			f.cause += blocked.cause
		}
		f.place = r.where()
		r.advise(&f)
		if f.decided = r.decided(); blocked.advice != nil {
			f.place, f.advice, f.target = blocked.place, blocked.advice, netip.AddrPort{}
		} else if detour.certain && !f.decided {
			f.advice, f.target = &detour.remedy, netip.AddrPort{}
			if r.place.NoRoute != "" {
				f.place = detour.cause
			}
			f.place = cmp.Or(detour.place, f.place)
		} else if portless != nil {
			f.cause, f.place, f.advice = portless.Cause, portless.Title, &portless.Remedies[0]
			f.severity, f.confidence = max(f.severity, Warning), portless.Confidence
		}
		f.evidence = []Evidence{{
			What: f.name + ": " + string(s.Failed.Step), Value: int64(s.Steps[s.Failed.Step]), Unit: "of " + units.Plural(int64(r.of), "connection", "connections"),
			Source: "first packets and their answers at the interfaces",
		}, {What: "one of them from", Value: s.Failed.Client.String(), Source: "packets at " + cmp.Or(s.In, "this host")}}
		all = append(all, f)
	}
	return slices.Concat(all, helperless(rec), detoured(rec), expiredMappings(rec))
}

// control is a connection in which a server may name others to its client, as FTP does.
type control struct {
	name            string
	service, target netip.AddrPort
	// in is the interface that its clients are behind; empty where it is not known.
	in string
	// ftp is true where it is known to be one of FTP.
	ftp bool
}

// controlsOf are those that were followed and, as they may be older, those of the connection table.
func controlsOf(rec *snapshot.Recording) (all []control) {
	for i := range rec.Followed.Services {
		s := &rec.Followed.Services[i]
		helped := rec.Flows != nil && slices.ContainsFunc(rec.Flows.Controls, func(c snapshot.Control) bool { return c.Service == s.Service && c.Helped > 0 })
		if s.Steps[snapshot.StepAnswered] > 0 && s.Protocol == "tcp" && (s.Target.IsValid() || s.Service.Port() == ftpPort) && !helped {
			all = append(all, control{followedName(s), s.Service, s.Target, s.In, s.Service.Port() == ftpPort})
		}
	}
	if rec.Flows == nil {
		return all
	}
	for i := range rec.Flows.Controls {
		c := &rec.Flows.Controls[i]
		known := slices.ContainsFunc(all, func(o control) bool { return o.service == c.Service })
		if c.Helper != "ftp" || c.Helped > 0 || c.Answered == 0 || known {
			continue
		}
		one := control{name: c.Protocol + " " + c.Service.String(), service: c.Service, ftp: true}
		if c.DNAT {
			one.target = c.Target
		}
		all = append(all, one)
	}
	return all
}

// detoured are the services of UDP at the address of one uplink whose answers leave by another one, and of which
// no flow goes on: the other network may drop what has a source of the first. Connections of TCP that take the same
// way show that it does not; an address that both networks route is not one of either link.
func detoured(rec *snapshot.Recording) (all []failing) {
	audit := rec.Last().Audit
	for i := range rec.Followed.Services {
		s := &rec.Followed.Services[i]
		if s.Detoured < fewestBlocked || s.Protocol != "udp" || audit == nil || 2*s.Detoured < s.Steps[snapshot.StepAnswered] {
			continue
		}
		at, own := audit.Near(s.Service.Addr())
		out := audit.Interface(s.DetourOut)
		if !own || out == nil || at.Name != s.In || len(out.Addresses) == 0 || slices.ContainsFunc(out.Addresses, func(p netip.Prefix) bool { return p.Contains(s.Service.Addr()) }) {
			continue
		}
		arrives := func(o snapshot.FollowedService) bool {
			return o.In == s.In && o.DetourOut == s.DetourOut && o.WentOn > 0
		}
		if slices.ContainsFunc(rec.Followed.Services, arrives) {
			continue
		}
		f := failing{name: followedName(s), how: "is answered by another uplink than it is asked by, and no flow goes on", severity: Warning, confidence: "possible", key: serviceID{s.Protocol, s.Service, s.Target}, about: ends(s.Service, s.Target),
			place: fmt.Sprintf("the answers leave by %s with %s, the address of %s", s.DetourOut, s.Service.Addr(), s.In), decided: true, advice: new(advice("service-uplinks", s.In, where(rec)))}
		f.cause = fmt.Sprintf("the answers leave by %s, by this host's routes to the clients, with the source %s, which is the address of %s, by which the questions come: the network of %s may drop what has a foreign source", s.DetourOut, s.Service.Addr(), s.In, s.DetourOut)
		f.evidence = []Evidence{{What: f.name + ": answers that left by " + s.DetourOut, Value: int64(s.Detoured), Unit: "of " + units.Plural(int64(s.Steps[snapshot.StepAnswered]), "answer", "answers"), Source: "first packets and their answers at the interfaces"},
			{What: "of these flows such as went on", Value: int64(0), Source: "packets at " + s.In}}
		all = append(all, f)
	}
	return all
}

// ftpPort is that of FTP's control connections.
const ftpPort = 21

// firstFree is the first port that a server may choose for a further connection: who tries lower ones, too,
// scans.
const firstFree = 1024

// helperless are the services that tell their clients an address and a port to go on to, as FTP does: what
// clients ask for then, at ports of all kinds, no rule translates or accepts. The address is that of the server
// itself or, of FTP alone, as strangers try many ports of a public address, the one that clients know.
func helperless(rec *snapshot.Recording) (all []failing) {
	controls := controlsOf(rec)
	for _, c := range controls {
		// Where FTP is served there as well, it is what names the ports.
		if !c.ftp && slices.ContainsFunc(controls, func(o control) bool { return o.ftp && o.target.Addr() == c.target.Addr() }) {
			continue
		}
		for _, at := range []netip.Addr{c.target.Addr(), c.service.Addr()} {
			own := at == c.target.Addr() && at.IsPrivate()
			if !at.IsValid() || !own && !c.ftp {
				continue
			}
			lost, ports, n := goneOnTo(rec, c, at)
			if ports < fewestFailing {
				continue
			}
			all = append(all, helperlessTo(rec, c, at, own, lost, n))
			break
		}
	}
	return all
}

// goneOnTo counts the ports of an address that clients were lost on their way to, and the connections; lost
// is one of them. There are none where low ports are among them.
func goneOnTo(rec *snapshot.Recording, c control, at netip.Addr) (lost *snapshot.FollowedService, ports int, n uint64) {
	seen := map[uint16]bool{}
	for i := range rec.Followed.Services {
		o := &rec.Followed.Services[i]
		if o.Service.Addr() != at || o.Protocol != "tcp" || c.in != "" && o.In != c.in || o.Target.IsValid() || o.Failed == nil || o.Steps[snapshot.StepAnswered] > 0 || o.Service == c.target {
			continue
		}
		if o.Service.Port() < firstFree {
			return nil, 0, 0
		}
		if !o.Failed.Step.Later() && (c.target.Addr() == at || o.Failed.Step.Here()) {
			lost, seen[o.Service.Port()], n = o, true, n+o.Failing()
		}
	}
	return lost, len(seen), n
}

// helperlessTo is what fails of a service whose clients go on to an address.
func helperlessTo(rec *snapshot.Recording, c control, at netip.Addr, own bool, lost *snapshot.FollowedService, n uint64) failing {
	f := failing{name: c.name, how: "opens further connections that get no answers", severity: Warning, confidence: "likely", key: serviceID{"tcp", c.service, c.target},
		about: ends(c.service, c.target), place: "clients are told ports of " + at.String() + " that this host lets none pass to"}
	what := "which no rule translates or accepts"
	if own && c.target.IsValid() {
		f.place = "clients are told the address of the server itself, " + at.String()
		what = "and is not translated"
	}
	f.cause = fmt.Sprintf("the server names %s, and clients connect there to various ports (such as %d), which came in by %s, %s: a protocol that names addresses, such as FTP, needs a helper of conntrack (nf_conntrack_ftp and nf_nat_ftp, and a rule that assigns it) and filters that accept RELATED, or a server that is told its public address and ports",
		at, lost.Service.Port(), cmp.Or(lost.In, "this host"), what)
	f.advice = new(helperAdd(rec, "ftp", "tcp", c.service))
	f.evidence = []Evidence{{What: fmt.Sprintf("tcp %s: connections to other ports that were lost", at), Value: int64(n), Unit: "connections", Source: "first packets and their answers at the interfaces"}}
	return f
}

// where is the place of the loss in a few words; empty where it is not known.
func (r *row) where() string {
	p, by, here := r.place, droppedIn(r.rec, r.FollowedService), r.Failed.Step.Here()
	switch culprit := r.culprit(); {
	case r.misses() && isWithoutData(r.Failed):
		return fmt.Sprintf("no data of the server comes here: it sends none, or large packets: the MTU of %s is %d, and SYNs leave with an MSS of %d or more", r.Out, r.Failed.LinkMTUBytes, r.Failed.MSSBytes)
	case r.misses() && isAboveMTU(r.Failed):
		return fmt.Sprintf("large packets of the server do not come here: the MTU of %s is %d, and SYNs leave with an MSS of %d or more", r.Out, r.Failed.LinkMTUBytes, r.Failed.MSSBytes)
	case r.misses():
		return fmt.Sprintf("large packets of the server do not come here by %s, what is behind them does", r.Out)
	case culprit != nil && r.Failed.OneSided && r.Failed.Step == snapshot.StepAnswerLost:
		return "the SYNs take another way, so that the answers are INVALID here and dropped by " + culprit.Text
	case culprit != nil && r.Failed.OneSided:
		return "the answers take another way, and what clients send then is INVALID here and dropped by " + culprit.Text
	case culprit != nil && culprit.Rejects && isRefusal(r.Failed.Step):
		return "this host rejects it by " + placeText(*culprit)
	case culprit != nil:
		return "this host drops it by " + placeText(*culprit)
	case r.tunnelLoss() != "":
		return fmt.Sprintf("it leaves by %s, and nothing comes back through it", tunnelText(p))
	case r.isReversed() && r.Failed.Step == snapshot.StepAnswerLost:
		return "rp_filter drops the answer at " + r.reversedAt()
	case here && p.ReversePath:
		return "rp_filter drops it at " + r.In
	case here && r.In != "" && notForwarding(r.rec, r.In, p.NoRoute, r.Failed.Client.Addr().Is6()) != "":
		return fmt.Sprintf("this host does not forward what comes in by %s: %s is 0", r.In, notForwarding(r.rec, r.In, p.NoRoute, false))
	case r.isBridged():
		return fmt.Sprintf("%s answers the client directly by a bridge, past the rules of this host", r.Failed.By)
	case here && p.NoRoute != "" && (r.In == "" || p.To.Addr().IsLoopback()):
		return p.NoRoute
	case here && p.NoRoute != "":
		return "this host has no route there: " + p.NoRoute
	case here && r.lacksEntry():
		return "this host knows no connection that it belongs to, and drops it by " + p.NoEntryFilter.Drops[0].Text
	case here && len(by) > 0 && placeMeaning(by[0], r.Failed.Step) != "":
		return "this host drops it" + placeMeaning(by[0], r.Failed.Step)
	case r.loops():
		return fmt.Sprintf("a rule leads what %s itself asks for back to it", r.Target.Addr())
	case r.isExempt():
		return fmt.Sprintf("it is not tracked (%s), leaves by %s untranslated, as %s, and no answer comes back", r.place.Exempts[0].Text, r.Out, r.Failed.LeftFrom.Addr())
	case r.Failed.AstrayIn != "":
		return fmt.Sprintf("answers to %s come in by %s with another hardware address than %[2]s has", r.Failed.LeftFrom.Addr(), r.Failed.AstrayIn)
	case r.Failed.Step == snapshot.StepNoAnswer && (r.isSpared() || r.goesOutBare()):
		return fmt.Sprintf("it leaves by %s untranslated, as %s, and no answer comes back", r.Out, r.Failed.LeftFrom.Addr())
	case r.isUnrouted():
		return fmt.Sprintf("no answer to %s comes back, which is no address of this host", r.Given)
	case r.Failed.Step == snapshot.StepNoAnswer && strayed(r.rec, r.FollowedService) != nil:
		return fmt.Sprintf("it leaves by %s with the address of %s, and no answer comes back", r.Out, strayed(r.rec, r.FollowedService).Name)
	case r.hasDeadLine():
		return deadLineText(r.Out, r.answersBy())
	case r.movesPort() != nil:
		return fmt.Sprintf("a rule changes its source port from %d to %d, and no answer comes back", r.Failed.Client.Port(), r.Failed.LeftFrom.Port())
	case r.isElsewhere():
		return fmt.Sprintf("it leaves by %s as %s, which no interface of this host has (%s), and no answer comes back", r.Out, r.Given, r.place.Translates.Text)
	case r.isMasqueradedInside():
		return fmt.Sprintf("it leaves by %s as %s, and no answer comes back", r.Out, r.Given)
	case r.Failed.Step == snapshot.StepNoAnswer:
		return "no answer comes back from " + r.Failed.LeftTo.String()
	case r.Failed.Step == snapshot.StepRefused:
		return r.Failed.By.String() + " refuses it"
	case r.Failed.Step == snapshot.StepUnreachable:
		return beyondText(r.FollowedService)
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
	case r.hasDeadLine():
		return "gets no answer by " + r.Out
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
	case r.Failed.OneSided, r.isLimited():
		return Warning, "likely"
	case r.misses() && isWithoutData(r.Failed):
		return Warning, "possible"
	case step == snapshot.StepNoAnswer && r.Protocol != "tcp" && r.Steps[snapshot.StepAnswered] == 0 && !nat.AnswersAlways(r.Service.Port()):
		return Notice, "possible" // it may not be meant to answer
	case step == snapshot.StepNoAnswer && strayed(r.rec, r.FollowedService) != nil:
		return Warning, "likely"
	case r.isSilentAmong(), r.tunnelLoss() != "" && !published:
		return Warning, "likely"
	case r.hasDeadLine():
		return Critical, "likely"
	case r.isOnly(), r.isSpared() && !r.goesOutBare():
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
	if r.Failed.Step != snapshot.StepLostHere && r.Failed.Step != snapshot.StepDataLost || r.Mixed < fewestFailed || float64(r.Mixed) < droppedPart*float64(r.of) {
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
	if l := leftRule(r.rec, s); l != nil {
		return failing{how: "gets no answers", severity: Critical, confidence: l.confidence(), cause: "; " + l.cause(), advice: new(l.advice(r.rec)),
			place: l.place()}
	}
	_, own := last.Audit.Near(s.Service.Addr())
	for i := range last.NATRules.Rules {
		rule := &last.NATRules.Rules[i]
		if r.isBeside(rule) && f.how == "" {
			f = r.besideRange(rule)
		}
		if own && isForAnother(r.rec, rule, s) {
			f = failing{how: "gets no answers", severity: Warning, confidence: "likely", cause: "; " + notHereText(rule, "gave", s.Service.Addr()), place: fmt.Sprintf("the rule for this port is for %s, and packets come in for %s", rule.ToDestination.Addr(), s.Service.Addr())}
			f.advice = new(notHereAdvice(r.rec, rule, s.Service.Addr()))
			continue
		}
		ranged := rule.LastOfSeveral != 0 && mayMatch(rule, s.Protocol, s.Service)
		if rule.Hook != "prerouting" || rule.TranslatesSource() || rule.DestinationPort != s.Service.Port() && !ranged {
			continue
		}
		if mayMatch(rule, s.Protocol, s.Service) {
			return failing{} // translated, and judged as such
		}
		if own && mayMatch(rule, rule.Protocol, s.Service) || rule.Protocol == s.Protocol && (rule.Family == "ip") == s.Service.Addr().Is6() && rule.Family != "inet" {
			f = r.forOther(rule)
		}
	}
	if f.how != "" && s.Clients > 1 && f.severity < Warning {
		f.severity, f.confidence = Warning, "likely"
	}
	return f
}

// forOther is about a rule for the port of another protocol or family: a service may be meant to have one alone (QUIC
// is tried beside TCP), but none that no packet ever met.
func (r *row) forOther(rule *snapshot.NATRule) failing {
	f := failing{how: "gets no answers", severity: Notice, confidence: "possible", cause: fmt.Sprintf("; the rule for this port is for %s, %s: %s", ruleWay(rule, r.FollowedService), rule.Place(), rule.Text)}
	if rule.Protocol == r.Protocol {
		return f
	}
	f.advice = new(advice("rule-protocol", r.Protocol, rule.Place()+": "+rule.Text, where(r.rec)))
	if rule.Counted && rule.Packets == 0 {
		f.severity, f.confidence, f.cause = Warning, "likely", f.cause+", which no packet ever met"
	}
	return f
}

// isForAnother reports whether a rule is for a public address that is on no network of this host, and no packet meets
// it: of one that this host is asked by itself at a private address, or of a rule that never met any.
func isForAnother(rec *snapshot.Recording, rule *snapshot.NATRule, s *snapshot.FollowedService) bool {
	a, _ := readAudit(rec)
	asked, anywhere := s.Service.Addr(), *rule
	anywhere.ToDestination = netip.Prefix{}
	if a == nil || !a.isForNobodyHere(rule) || rule.ToDestination.Addr().Is4() != asked.Is4() || !mayMatch(&anywhere, s.Protocol, s.Service) {
		return false
	}
	if !isInside(asked) {
		return rule.Counted && rule.Packets == 0
	}
	at := slices.IndexFunc(a.rules.Rules, func(o snapshot.NATRule) bool {
		return o.Handle == rule.Handle && o.Place() == rule.Place() && o.Text == rule.Text
	})
	grown := a.rules.Grown(rec.First().NATRules)
	return at < 0 || at >= len(grown) || grown[at] == 0
}

// steadyFlow is how many datagrams a flow must have that nobody answers, to be no scan nor noise: a call, a game or
// a stream has ten or more a second.
const steadyFlow = 30

// isBeside reports whether a steady flow of datagrams goes to an address of which a rule publishes a range of
// ports, by the same interface, and to a port that is not in it.
func (r *row) isBeside(rule *snapshot.NATRule) bool {
	s, port := r.FollowedService, r.Service.Port()
	if s.Protocol != "udp" || rule.Hook != "prerouting" || rule.Protocol != "udp" || rule.LastOfSeveral == 0 || port < 1024 ||
		s.Repeated < steadyFlow*s.Failing() || !r.byRule() && !isRefusal(s.Failed.Step) || rule.InInterface != "" && !nat.InName(rule.InInterface, s.In) {
		return false
	}
	return !mayMatch(rule, s.Protocol, s.Service) && mayMatch(rule, s.Protocol, netip.AddrPortFrom(s.Service.Addr(), rule.LastOfSeveral))
}

// besideRange is a warning where the client is answered else, as who calls or plays is, and as no stranger is.
func (r *row) besideRange(rule *snapshot.NATRule) failing {
	f := failing{how: "gets no answers", severity: Notice, confidence: "possible"}
	f.place = fmt.Sprintf("the range of ports that rules publish is %d-%d", rule.FirstOfSeveral, rule.LastOfSeveral)
	f.cause = fmt.Sprintf("; a flow that goes on comes to a port outside of the range %d-%d that a rule publishes, %s: %s", rule.FirstOfSeveral, rule.LastOfSeveral, rule.Place(), rule.Text)
	f.advice = new(advice("range-widen", rule.FirstOfSeveral, rule.LastOfSeveral, where(r.rec)))
	for i := range r.all {
		o := &r.all[i]
		if o.Steps[snapshot.StepAnswered] > 0 && o.In == r.In && o.Service.Addr() == r.Service.Addr() && o.Target.IsValid() {
			f.severity, f.confidence = Warning, "likely"
		}
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
	answered, failing := uint64(0), uint64(0)
	for i := range rec.Followed.Services {
		if o := &rec.Followed.Services[i]; leavesAs(o) == source && o.Out == s.Out {
			answered, failing = answered+o.Steps[snapshot.StepAnswered], failing+o.Failing()
		}
	}
	if answered >= failing { // of several next hops, those repeated may take the other one
		return nil
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

// isPublished reports whether a rule translates the destination. One for another interface counts where
// it asks for an address of this host.
func (r *row) isPublished() bool {
	s, rules := r.FollowedService, r.rec.Last().NATRules
	translated := func(o snapshot.FollowedService) bool {
		return o.Target.IsValid() && o.Protocol == s.Protocol && o.Service == s.Service
	}
	return slices.ContainsFunc(r.all, translated) || rules != nil && slices.ContainsFunc(rules.Rules, func(n snapshot.NATRule) bool {
		byIt := n.InInterface == "" || r.Failed.Place == nil || r.place.Local || nat.InName(n.InInterface, s.In)
		return byIt && n.Hook == "prerouting" && (n.DestinationPort != 0 || n.ToDestination.IsValid() || n.Names(s.Service.Port())) && mayMatch(&n, s.Protocol, s.Service)
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
	case p != nil && !(p.Filter != nil && len(p.Filter.Drops) == 0 && slices.ContainsFunc(by, isRule)):
		return p.Filter
	case last.DNATTargets == nil || last.NATRules == nil:
		return nil
	} // a rule dropped it, and was not found by the packet: it may be by the target
	to := droppedTo(rec, s).Addr() // of several the one that was drawn
	known := slices.ContainsFunc(last.DNATTargets.Targets, func(t snapshot.DNATTarget) bool { return t.Address == to && to.IsValid() })
	for _, t := range last.DNATTargets.Targets {
		if known && t.Address != to || t.Rule < 0 || t.Rule >= len(last.NATRules.Rules) || !mayMatch(&last.NATRules.Rules[t.Rule], s.Protocol, s.Service) || s.Target.IsValid() && s.Target.Addr() != t.Address {
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
