package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// stalledPart is the share of answered connections that must stall to be reported whoever their
	// clients are: a smaller one may be of clients that left.
	stalledPart = 0.5
	// stalledSome is the share from which a part is reported, of fewestClients or manyStalled.
	stalledSome = 0.15
	// manyStalled is how many of one client must stall beside others that do not.
	manyStalled = 8
	// stalledAll is the share from which the service is as good as dead.
	stalledAll = 0.9
	// shortPause is the timeout in seconds below which connections that live are forgotten: with a
	// longer one it is those whose ends are gone.
	shortPause = 120
	// fewestUnnamed is how many connections to a port that no rule names must fail: strangers try them
	// all.
	fewestUnnamed = 20
	// fewRangePorts is how many ports of a rule are as good as named.
	fewRangePorts = 16
	// fewestClients is how many clients of a network must fail before it is said to: one may be the
	// fault.
	fewestClients = 2
)

// judgeService has no how where the service works, as far as is known.
func judgeService(rec *snapshot.Recording, s *snapshot.Service) failing {
	f := failing{name: s.String(), key: serviceID{s.Protocol, s.Service, s.Target}, target: s.Target, severity: Critical, confidence: "certain"}
	f.about = ends(s.Service, s.Target)
	switch s.Kind {
	case snapshot.ServiceDNAT:
		f.judgePublished(rec, s)
	case snapshot.ServiceUntranslated:
		return f.judgeUntranslated(rec, s)
	case snapshot.ServiceSNAT:
		f.about, f.given = ends(netip.AddrPortFrom(s.Given, 0)), s.Given
		f.judgeLeaving(s)
		f.nameDestination(s)
	case snapshot.ServiceNetwork:
		return f.judgeNetwork(rec, s)
	}
	if f.how == "" && partFails(rec, s) { // not forged ones
		f.how, f.severity, f.whose = "gets no answer to a part of the connections", Warning, ofSome
	}
	if f.how == "" {
		return f.judgeLater(rec, s)
	}
	f.evidence, f.since = serviceEvidence(s), float64(max(0, s.SilentSeconds))
	f.cause = "what is sent there leaves this host translated, and no answer comes back to the connection tracker: the server is down or drops it, answers by another way, or its answers are dropped here before they are tracked"
	if s.HalfOpen > s.Unanswered {
		f.cause = "the server answers, and its clients do not go on: its answers are dropped on this host, go by another way than the clients came, are lost beyond, or the clients' addresses are forged"
	}
	return f
}

// partFails reports whether a part of the connections comes to nothing for the routes of its clients: of those
// that are half open others may be forged, and of destinations outside some are always dead.
func partFails(rec *snapshot.Recording, s *snapshot.Service) bool {
	if s.Kind != snapshot.ServiceDNAT && (s.Kind != snapshot.ServiceSNAT || s.Answered+s.Open == 0) || s.FailedShare() < failedPart {
		return false
	}
	r := ofService(rec, s)
	return s.HalfOpen >= fewestFailed && r.strands(true) || s.Kind == snapshot.ServiceSNAT && s.Unanswered >= fewestFailed && r.strands(false)
}

// dead reports whether so many in a row failed that the next one will.
func dead(s *snapshot.Service) bool { return s.Failing >= fewestFailing }

// silent reports whether nothing at all was answered.
func silent(s *snapshot.Service) bool { return s.Answered+s.Open+s.Stalled == 0 }

// judgePublished is for connections that a rule leads to a server. Datagrams that get no answer may not
// be meant to.
func (f *failing) judgePublished(rec *snapshot.Recording, s *snapshot.Service) {
	if s.Failed() < fewestUnnamed && !named(rec, s) && answersBeside(rec, s) {
		return
	}
	always := s.Protocol != "udp" && s.Protocol != "icmp" && s.Protocol != "icmpv6" || answersAlways(s)
	switch {
	case dead(s):
		f.how = "gets no answers"
		if s.Open > 0 && len(s.Clients) == 1 {
			f.severity, f.confidence = Warning, "likely"
		}
	case silent(s) && s.Asking > 0 && always: // one flow is all that such a client has
		f.how, f.severity, f.confidence = "gets no answers", Warning, "likely"
	case s.Unanswered >= fewestFailed && s.FailedShare() >= failedPart:
		f.how, f.severity, f.whose = "gets no answer to a part of the connections", Warning, ofSome
	}
	if !always && s.Answered+s.Open == 0 {
		f.severity, f.confidence = Notice, "possible"
	}
}

// toFirst is the filter of natkit conntrack for the first destination of a service; empty where it is not known.
func toFirst(s *snapshot.Service) string {
	switch {
	case len(s.Destinations) == 0:
		return ""
	case s.Destinations[0].Port() == 0:
		return " -d " + s.Destinations[0].Addr().String()
	}
	return fmt.Sprintf(" -d %s --dport %d", s.Destinations[0].Addr(), s.Destinations[0].Port())
}

// named reports whether a rule may be for the port of a service, and not for all ports of an address.
func named(rec *snapshot.Recording, s *snapshot.Service) bool {
	rules := rec.Last().NATRules
	if rules == nil || rules.TooMany || s.Service.Port() == 0 {
		return true
	}
	led := false
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if !mayBe(r, s) {
			continue
		}
		if led = true; r.Partial || r.DestinationPort != 0 && r.LastDestinationPort < r.DestinationPort+fewRangePorts {
			return true
		}
	}
	return !led
}

// answersBeside reports whether the server of a service answers at other ports.
func answersBeside(rec *snapshot.Recording, s *snapshot.Service) bool {
	return slices.ContainsFunc(rec.Flows.Services.All, func(o snapshot.Service) bool {
		return o.Kind == snapshot.ServiceDNAT && o.Target.Addr() == s.Target.Addr() && o.Answered+o.Open > 0
	})
}

// judgeLeaving is for connections whose source alone is translated. That one destination is dead is no
// fault of this host, nor are datagrams that are not meant to be answered.
func (f *failing) judgeLeaving(s *snapshot.Service) {
	if !silent(s) || isScan(s) || s.Protocol == "udp" && !answersAlways(s) {
		return
	}
	alone := len(s.Destinations) == 1
	switch s.Protocol {
	case "icmp", "icmpv6": // many hosts do not answer
		if alone || len(s.Clients) < fewestClients || s.Failing+s.Asking < fewestFailing {
			return
		}
		f.how, f.severity, f.confidence = "gets no answers from anywhere", Warning, "possible"
		return
	}
	switch {
	case dead(s) && alone:
		f.how, f.severity, f.confidence = "gets no answers from its only destination", Warning, "possible"
	case dead(s), s.Asking > 0 && !alone:
		f.how, f.confidence = "gets no answers from anywhere", "likely"
	}
	if s.Protocol != "tcp" && !answersAlways(s) {
		f.severity, f.confidence = Notice, "possible"
	}
}

// nameDestination names what clients ask for, where it is one.
func (f *failing) nameDestination(s *snapshot.Service) {
	switch port := onePort(s.Destinations); {
	case f.how == "" || port == 0:
	case len(s.Destinations) == 1:
		f.name = fmt.Sprintf("%s %s", s.Protocol, s.Destinations[0])
		f.how = strings.Replace(f.how, "from its only destination", "the only destination of "+s.Given.String(), 1)
		f.how = strings.Replace(f.how, "answers the", "answers, the", 1)
		f.key.service, f.about = s.Destinations[0], append(ends(s.Destinations[0]), f.about...)
	default:
		f.name = fmt.Sprintf("%s port %d from %s", s.Protocol, port, s.Given)
	}
}

// judgeUntranslated is for private addresses that go out as they are, which another host may translate:
// then they get answers.
func (f failing) judgeUntranslated(rec *snapshot.Recording, s *snapshot.Service) failing {
	if s.Service.IsValid() {
		return f.judgeInside(rec, s)
	}
	if s.Target.IsValid() {
		return f.judgeExempt(rec, s)
	}
	asks := s.Asking > 0 && (answersAlways(s) || strings.HasPrefix(s.Protocol, "icmp"))
	if !silent(s) || isScan(s) || !dead(s) && !asks || !translatesSources(rec, "") {
		return failing{}
	}
	f.how, f.severity, f.confidence = "gets no answers", Warning, "likely"
	f.cause = "their private address goes out as it is: no rule that translates sources is for them"
	if r, exists := formerLine(rec, s); r != nil {
		not := "this host has no such interface"
		if exists {
			not = "they leave by " + leavesBy(s)
		}
		f.cause = fmt.Sprintf("their private address goes out as it is: the rule for them is for %s, and %s: %s: %s", r.OutInterface, not, r.Place(), r.Text)
		f.known, f.advice = true, new(advice("snat-interface", leavesBy(s), r.Place()+": "+r.Text, where(rec), r.OutInterface))
	} else if r := laterThan(rec, s); r != nil {
		f.cause = fmt.Sprintf("their entries have no translation, and a rule is for them: the entries are older, and keep what was decided for their first packet: %s: %s", r.Place(), r.Text)
		f.known = true
		f.advice = new(advice("untranslated-forget", deleteCommand(rec, "-p "+s.Protocol+" -s "+s.Clients[0].String()+toFirst(s))))
	} else if r, others := besideThem(rec, s); r != nil {
		f.cause += fmt.Sprintf("; the rule for others, %s: %s, is for %s", r.Place(), r.Text, others)
		f.known = true
		f.advice = new(advice("snat-cover", s.Protocol, snapshot.NetworkOf(s.Given), where(rec)))
	}
	if port := onePort(s.Destinations); port != 0 {
		f.name = fmt.Sprintf("%s port %d from %s, untranslated", s.Protocol, port, snapshot.NetworkOf(s.Given))
	}
	f.evidence = serviceEvidence(s)
	if len(s.Destinations) > 0 {
		to := s.Destinations[0].String()
		if s.Destinations[0].Port() == 0 {
			to = s.Destinations[0].Addr().String()
		}
		f.evidence = append(f.evidence, Evidence{What: "destinations, such as", Value: to, Source: "connection table"})
	}
	if expected := float64(s.Failed()) * rec.Seconds() / max(rec.Flows.Services.Seconds, 1); answeredElsewhere(rec, s, expected) {
		return f.dropsFollowing(rec, expected)
	}
	return f
}

// leavesBy names the interface by which the first of those that fail leaves.
func leavesBy(s *snapshot.Service) string {
	if s.Routes != nil && s.Routes.Question != nil && s.Routes.Question.Out != "" {
		return s.Routes.Question.Out
	}
	return fmt.Sprintf("the interface that they leave by ('ip route get %s')", s.Destinations[0].Addr())
}

// laterThan is the rule that translates sources of an entry without translation which its client keeps
// alive: it came after the first packet. It is nil where no rule is for them, or that is not certain.
func laterThan(rec *snapshot.Recording, s *snapshot.Service) *snapshot.NATRule {
	rules := rec.Last().NATRules
	if s.Asking == 0 || len(s.Clients) == 0 || len(s.Destinations) == 0 || rules.TooMany {
		return nil
	}
	a, _ := readAudit(rec)
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.Hook != "postrouting" || r.Partial || r.Marked || len(r.Unless) > 0 || !mayTranslate(r, s.Clients[0], s.Destinations[0].Addr(), "") {
			continue
		}
		if r.OutInterface != "" && (a == nil || a.Interface(r.OutInterface) == nil) {
			continue
		}
		if (r.Protocol == "" || r.Protocol == s.Protocol) && (r.DestinationPort == 0 || r.DestinationPort == s.Destinations[0].Port()) {
			return r
		}
	}
	return nil
}

// onePort is the port of all destinations; 0 where they have several, or none.
func onePort(all []netip.AddrPort) uint16 {
	if len(all) == 0 || slices.ContainsFunc(all, func(d netip.AddrPort) bool { return d.Port() != all[0].Port() }) {
		return 0
	}
	return all[0].Port()
}

// besideThem is a rule that translates other sources, and what others it is for: other protocols, ports
// or networks; nil where there is none.
func besideThem(rec *snapshot.Recording, s *snapshot.Service) (found *snapshot.NATRule, others string) {
	rules := rec.Last().NATRules
	if len(s.Clients) == 0 || len(s.Destinations) == 0 || rules.TooMany {
		return nil, ""
	}
	client, to := s.Clients[0], s.Destinations[0]
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if !r.TranslatesSource() || r.Hook != "postrouting" || r.Family != "inet" && (r.Family == "ip") != client.Is4() || r.OriginalDestination {
			continue
		}
		switch last := max(r.DestinationPort, r.LastDestinationPort); {
		case r.FromSource.IsValid() && !r.FromSource.Contains(client):
			others = "what comes from " + r.FromSource.String()
		case r.Protocol != "" && r.Protocol != s.Protocol:
			others = r.Protocol
		case r.DestinationPort != 0 && (to.Port() < r.DestinationPort || to.Port() > last):
			others = fmt.Sprintf("port %d", r.DestinationPort)
		case r.ToDestination.IsValid() && !r.ToDestination.Contains(to.Addr()):
			others = "what goes to " + r.ToDestination.String()
		default:
			continue
		}
		return r, others
	}
	return nil, ""
}

// judgeNetwork is for clients of a network of which none gets an answer, while others do.
func (f failing) judgeNetwork(rec *snapshot.Recording, s *snapshot.Service) failing {
	back := s.HalfOpen > s.Unanswered
	published := s.Service.IsValid()
	switch {
	case s.Protocol != "tcp" && !answersAlways(s), !dead(s):
		return failing{}
	case published && (s.Failed() < fewestFailed || len(s.Clients) < fewestClients && !s.Given.IsPrivate()): // one that the server keeps out
		return failing{}
	case !published && !back && !answersOthers(rec, s):
		return failing{}
	}
	f.how, f.severity, f.confidence, f.whose = "gets no answers, other clients do", Warning, "likely", ofNetwork
	network := snapshot.NetworkOf(s.Given)
	switch {
	case back:
		f.target = netip.AddrPort{}
		f.cause = fmt.Sprintf("servers answer, and the answers do not reach the clients of %s: they are dropped on this host, or its route to %[1]s leads elsewhere", network)
	case published:
		f.cause = fmt.Sprintf("the server does not answer %s, or answers by another way than by this host: a route of its own to %[1]s, or a filter there", network)
	default:
		f.cause = fmt.Sprintf("the same destinations answer other networks: what is different for %s is a rule of this host or of a firewall beyond", network)
	}
	f.evidence = serviceEvidence(s)
	return f
}

// answersOthers reports whether a destination that clients get no answer from answers others.
func answersOthers(rec *snapshot.Recording, s *snapshot.Service) bool {
	return slices.ContainsFunc(rec.Flows.Services.All, func(o snapshot.Service) bool {
		return o.Kind == snapshot.ServiceDestination && o.Protocol == s.Protocol && o.Answered > 0 && slices.Contains(s.Destinations, o.Service)
	})
}

// untaken is the queue of the program of this host that a service leads to, which grew by half of the new
// connections at least; nil where it is not so.
func untaken(rec *snapshot.Recording, s *snapshot.Service) *snapshot.AcceptQueue {
	of := func(all []snapshot.AcceptQueue) *snapshot.AcceptQueue {
		i := slices.IndexFunc(all, func(q snapshot.AcceptQueue) bool {
			return q.Socket.Port() == s.Target.Port() && (q.Socket.Addr() == s.Target.Addr() || q.Socket.Addr().IsUnspecified())
		})
		if i < 0 {
			return nil
		}
		return &all[i]
	}
	a, _ := readAudit(rec)
	if a == nil || s.Protocol != "tcp" || !s.Target.IsValid() {
		return nil
	}
	now, before := of(rec.Last().AcceptQueues), of(rec.First().AcceptQueues)
	if _, own := a.Near(s.Target.Addr()); !own && !s.Target.Addr().IsLoopback() || now == nil || before == nil || int64(now.Waiting)-int64(before.Waiting) < max(fewestFailing, s.New/2) {
		return nil
	}
	return now
}

// judgeLater is for connections that are answered, and fail after that.
func (f failing) judgeLater(rec *snapshot.Recording, s *snapshot.Service) failing {
	f.later, f.confidence, f.evidence = true, "likely", serviceEvidence(s)
	invalid := int64(rec.Last().ConntrackStat.Grown(rec.First().ConntrackStat)["invalid"])
	if q := untaken(rec, s); q != nil {
		f.how = "connects, and no program takes the connections"
		f.cause = fmt.Sprintf("the program that listens on %s of this host does not accept them: it is stopped, hangs, or is too slow", q.Socket)
		f.evidence = append(f.evidence, Evidence{What: "connections that wait to be accepted at " + q.Socket.String(), Value: int64(q.Waiting), Unit: fmt.Sprintf("of %d", q.Limit), Source: "listening sockets"})
		f.known, f.target = true, netip.AddrPort{}
		return f
	}
	const timeout = establishedTimeout
	seconds, _ := rec.Last().Sysctls.Int(timeout)
	switch share := s.StalledShare(); {
	case s.Stalled >= fewestFailing && share >= stalledAll:
		f.how = "connects, and hangs then"
	case s.Stalled >= fewestFailed && (share >= stalledPart || share >= stalledSome && (len(s.Clients) >= fewestClients || s.Stalled >= manyStalled)):
		f.how, f.severity = "connects, and a part of the connections hangs then", Warning
	case s.Expired >= fewestFailing && invalid >= s.Expired && seconds < shortPause:
		f.how, f.severity, f.known = "loses connections that pause", Warning, true
		f.cause = fmt.Sprintf("this host forgets a connection after %s without a packet (%s), and its next packet is INVALID", units.Roughly(float64(seconds)), timeout)
		f.evidence = append(f.evidence, Evidence{What: s.String() + ": open connections that it forgot", Value: s.Expired, Unit: "connections", Source: "two dumps of the connection table"},
			Evidence{What: timeout, Value: seconds, Unit: "s", Source: "sysctl"}, Evidence{What: "invalid", Value: invalid, Unit: "packets", Source: "conntrack statistics"})
		f.advice, f.target = new(advice("timeout-established", timeout, where(rec))), netip.AddrPort{}
		return f
	default:
		return failing{}
	}
	f.cause = "they are established, and what one side sends then is not acknowledged: packets of established connections are lost, all of one direction or the large ones: by a rule of this host, or where the path takes smaller packets than the interfaces (MTU) and ICMP does not come back"
	errors, beyond := errorsDropped(rec), laterPass(rec, s)
	if beyond {
		f.cause = "they are established, and what one side sends then is not acknowledged; the filters of this host let pass what follows, and ICMP errors: packets are lost beyond it, the large ones where a link of the path takes smaller ones than the interfaces (MTU) and no ICMP error comes back"
		f.known = true
	}
	if len(errors.places) > 0 {
		f.cause = "they are established, and the large packets that one side sends then are not acknowledged, as where a link beyond takes smaller ones: this host drops the ICMP errors that say so (\"fragmentation needed\", \"packet too big\"): " + placesOf(errors.places)
		f.evidence = append(f.evidence, errors.evidence("ICMP errors of connections")...)
		f.known, f.byElimination = true, true
	}
	if a, _ := readAudit(rec); a != nil && rec.First().Audit != nil {
		if r, _ := a.refusals(snapshot.RefusalInvalid); r.packets >= s.Stalled {
			beyond = false
			f.cause, f.known = "they are established, and what follows is INVALID here and dropped: "+strings.Join(r.texts(), "; "), true
			f.evidence = append(f.evidence, r.evidence("dropped as INVALID by ")...)
		}
	}
	to := s.Target.Addr()
	if !to.IsValid() && len(s.Destinations) > 0 {
		to = s.Destinations[0].Addr()
	}
	switch {
	case len(errors.places) > 0:
		f.advice = new(acceptAnswers(errors.places[0], "FORWARD", rec))
	case to.IsValid() && beyond:
		if s.Kind == snapshot.ServiceDNAT && len(s.Clients) > 0 { // the long way
			to = s.Clients[0]
		}
		f.advice = new(advice("service-hangs-beyond", to, where(rec)))
	case to.IsValid():
		f.advice = new(advice("service-hangs", to, where(rec)))
	}
	f.target = netip.AddrPort{}
	return f
}

// errorsDropped are the places that surely drop ICMP errors of connections and counted packets meanwhile: to
// connections that hang they are the reason, whatever else is dropped there.
func errorsDropped(rec *snapshot.Recording) filterLoss {
	w, _ := readWays(rec)
	if w == nil {
		return filterLoss{}
	}
	l := w.lossOf(w.of(snapshot.WayErrors), firstFilter)
	return l.grew(fewestLost)
}

// laterPass reports whether the filters are known to let pass what follows the first packets of a service's
// connections, and the ICMP errors about them.
func laterPass(rec *snapshot.Recording, s *snapshot.Service) bool {
	w, _ := readWays(rec)
	if w == nil || s.Protocol != "tcp" || len(w.of(snapshot.WayErrors)) > 0 {
		return false
	}
	passes := func(first, later *snapshot.Filter) bool {
		return first != nil && later != nil && later.Passes && len(later.Drops) == 0 && !slices.ContainsFunc(first.Drops, func(p snapshot.RulePlace) bool { return p.Part })
	}
	asked := 0
	for _, way := range w.of(snapshot.WaySource) {
		if s.Kind == snapshot.ServiceSNAT && way.Protocol == s.Protocol && way.Port == 0 && s.Given.Is4() == way.Network.Addr().Is4() {
			if asked++; !passes(way.Filter, way.LaterFilter) {
				return false
			}
		}
	}
	if targets := rec.Last().DNATTargets; targets != nil && s.Kind == snapshot.ServiceDNAT {
		for i := range targets.Targets {
			t := &targets.Targets[i]
			if t.Address == s.Target.Addr() && (t.Port == 0 || t.Port == s.Target.Port()) && (t.Protocol == "" || t.Protocol == s.Protocol) {
				if asked++; !passes(t.Filter, t.LaterFilter) {
					return false
				}
			}
		}
	}
	return asked > 0
}
