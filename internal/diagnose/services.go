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

const (
	// fewestFailing is how many connections in a row must fail before a service is said to.
	fewestFailing = 3
	// failedPart is the share of failed connections from which a part of them is reported, of
	// fewestFailed at least.
	failedPart   = 0.2
	fewestFailed = 5
)

// checkServices: connections that NAT translates come to nothing, whatever the cause.
func checkServices(rec *snapshot.Recording) (*Finding, Check) {
	s, why := tableServices(rec)
	if s == nil && rec.Followed == nil {
		return unknown(why)
	}
	if s == nil { // what was followed is known all the same
		s = &snapshot.Services{}
	}
	var bad []failing
	for i := range s.All {
		if f := judgeService(rec, &s.All[i]); f.how != "" {
			if !f.later {
				f.explain(rec, &s.All[i])
			}
			network := netip.Addr{}
			if s.All[i].Kind == snapshot.ServiceUntranslated && !s.All[i].Target.IsValid() {
				network = s.All[i].Given
			}
			bad = sameNetwork(bad, network, f)
		}
	}
	bad = narrowed(bad)
	bad = traceAdded(slices.Concat(bad, vanishedOnes(rec), leftOver(rec), drawnOnes(rec)), followedOnes(rec))
	answered := int64(0)
	for i := range s.All {
		if !s.All[i].IsPart() {
			answered += s.All[i].Answered
		}
	}
	if why == "" {
		why = fmt.Sprintf("%s of the last %.0f s answered", units.Plural(answered, "translated connection", "translated connections"), s.Seconds)
	} else if len(bad) == 0 {
		return unknown(why)
	}
	if len(bad) == 0 {
		return passed(why)
	}
	placed := func(f failing) int { return map[bool]int{true: 1}[f.place != ""] }
	slices.SortStableFunc(bad, func(a, b failing) int {
		return cmp.Or(cmp.Compare(b.severity, a.severity), cmp.Compare(placed(b), placed(a)))
	})
	return servicesFinding(rec, bad), Check{Why: fmt.Sprintf("%s; %s without", why, units.Plural(int64(len(bad)), "service is", "services are"))}
}

// whose connections fail of a service.
type whose int

const (
	ofAll whose = iota
	ofSome
	ofNetwork
)

// narrowed leaves out services of which some connections fail where it is known that these are a network's.
func narrowed(bad []failing) []failing {
	return slices.DeleteFunc(bad, func(f failing) bool {
		return f.whose == ofSome && slices.ContainsFunc(bad, func(o failing) bool { return o.whose == ofNetwork && o.key == f.key })
	})
}

// tableServices is what the connection table says of services; nil where it does not, and why.
func tableServices(rec *snapshot.Recording) (s *snapshot.Services, why string) {
	switch {
	case rec.Flows == nil:
		return nil, cmp.Or(rec.Last().PartError(snapshot.PartFlows), "two dumps of the table could not be compared")
	case rec.Flows.Services == nil:
		return nil, "what became of translated connections was not counted: a bundle of an older natkit"
	}
	return rec.Flows.Services, ""
}

// serviceID is a service as its clients name it.
type serviceID struct {
	protocol string
	service  netip.AddrPort
	// target is what it becomes, where that is known.
	target netip.AddrPort
}

// maybe reports whether both may be the same service: of one that did not leave, the target is not known.
func (id serviceID) maybe(other serviceID) bool {
	return id.protocol == other.protocol && id.service == other.service && (id.target == other.target || !id.target.IsValid() || !other.target.IsValid())
}

// traceAdded gives to services that fail what was seen of their packets, and adds those that only
// the packets show.
func traceAdded(bad, followed []failing) []failing {
	for _, f := range followed {
		i := slices.IndexFunc(bad, func(b failing) bool { return b.key.maybe(f.key) || b.matches != nil && b.matches(f.key) })
		if i < 0 {
			bad = append(bad, f)
			continue
		}
		b := &bad[i]
		if b.known && !b.byElimination && !strings.Contains(f.cause, b.cause) {
			b.cause, b.place = b.cause+"; at the interfaces: "+f.cause, cmp.Or(b.place, f.place)
		} else {
			b.cause, b.target, b.advice, b.place = f.cause, f.target, f.advice, f.place
		}
		b.client, b.bare = f.client, f.bare
		if b.decided = f.decided; f.decided {
			b.advice, b.place, b.target = f.advice, f.place, f.target
		}
		b.severity, b.confidence, b.about = max(b.severity, f.severity), f.confidence, append(b.about, f.about...)
		b.evidence = append(f.evidence, b.evidence...)
	}
	return absorbed(bad)
}

// absorbed gives what the table says of an address that sources become to the services outside of which it is
// seen where connections with that address end.
func absorbed(bad []failing) []failing {
	for i := range bad {
		b := &bad[i]
		if !b.given.IsValid() || b.known || b.key.service.IsValid() {
			continue
		}
		at := slices.IndexFunc(bad, func(f failing) bool {
			return f.given == b.given && f.key.protocol == b.key.protocol && f.key.service.IsValid()
		})
		if at < 0 {
			continue
		}
		f := &bad[at]
		f.severity, f.since, f.evidence, f.about = max(f.severity, b.severity), max(f.since, b.since), append(f.evidence, b.evidence...), append(f.about, b.about...)
		b.how = ""
	}
	return slices.DeleteFunc(bad, func(f failing) bool { return f.how == "" })
}

// failing is a service whose connections come to nothing.
type failing struct {
	name string
	// key is the service; matches finds it where a rule alone is known.
	key     serviceID
	matches func(serviceID) bool
	// given is what sources become on their way outside.
	given netip.Addr
	// network is where connections come from that are not translated.
	network netip.Addr
	// about are its ends, as of Finding.
	about []netip.AddrPort
	// how is what users see of it, after the name; cause what is known of where they fail.
	how, cause string
	// place is where they fail, in a few words.
	place string
	// known is true where the rules and the host's addresses explain it.
	known bool
	// byElimination is true of a known cause that is what is left: what packets show replaces it.
	byElimination bool
	// whose is which of a service's connections fail, if not all.
	whose whose
	// later is true where connections are answered, and fail after that.
	later      bool
	severity   Severity
	confidence string
	evidence   []Evidence
	// since is how long ago the last connection was answered, in seconds; 0 where that is not known.
	since float64
	// target is valid where the server is worth a look; advice is another one.
	target netip.AddrPort
	advice *Remedy
	// decided is true where the place itself says what to do, whatever is wrong with the host besides.
	decided bool
	// client is one of those who ask; bare is true where nothing of it is translated.
	client netip.Addr
	bare   bool
	// explained is true where another finding says why it fails.
	explained bool
}

// formerLine is the masquerade rule for what comes from a network whose interface does not exist, or is not the one
// that they leave by; nil where another one may be for it, too.
func formerLine(rec *snapshot.Recording, s *snapshot.Service) (found *snapshot.NATRule, exists bool) {
	a, _ := readAudit(rec)
	out := ""
	if s.Routes != nil && s.Routes.Question != nil {
		out = s.Routes.Question.Out
	}
	if a == nil || a.rules.TooMany || len(s.Destinations) == 0 {
		return nil, false
	}
	to := s.Destinations[0].Addr()
	for i := range a.rules.Rules {
		r := &a.rules.Rules[i]
		if r.Kind != snapshot.NATMasquerade || r.OutInterface == "" || len(s.Clients) == 0 || !mayTranslate(r, s.Clients[0], to, r.OutInterface) {
			continue
		}
		exists = slices.ContainsFunc(a.Interfaces, func(l snapshot.Interface) bool { return nat.InName(r.OutInterface, l.Name) })
		if exists && (out == "" || isInside(to) || nat.InName(r.OutInterface, out)) || !exists && r.Counted && r.Packets > 0 {
			return nil, false
		}
		found = r
	}
	return found, exists
}

// sameNetwork makes one of the protocols that fail alike, from a network that is not translated.
func sameNetwork(bad []failing, network netip.Addr, f failing) []failing {
	i := slices.IndexFunc(bad, func(b failing) bool { return b.network == network && network.IsValid() })
	if i < 0 {
		f.network = network
		return append(bad, f)
	}
	b := &bad[i]
	b.name, b.evidence = f.key.protocol+", "+b.name, append(b.evidence, f.evidence...)
	if f.severity > b.severity {
		b.severity, b.confidence = f.severity, f.confidence
	}
	return bad
}

// keeps is the interface that answers to an address of this host come in by where it does not
// forward them; empty where it does.
func (a *audit) keeps(given netip.Addr) string {
	if at, own := a.Near(given); own && given.Is4() && at.ForwardingOff {
		return at.Name
	}
	return ""
}

func translatesSources(rec *snapshot.Recording, out string) bool {
	rules := rec.Last().NATRules
	return rules != nil && slices.ContainsFunc(rules.Rules, func(r snapshot.NATRule) bool { return r.TranslatesSource() && mayLeaveBy(&r, out) })
}

// followUps is how many packets a client sends at least once its SYN is answered: an ACK, data, a FIN.
// Where the answer took another way each is INVALID (SYN_SENT, nf_conntrack_tcp_packet).
const followUps = 3

// answeredElsewhere reports whether so many connections in which the tracker saw no answer may go on all
// the same, as their answers take another way (asymmetric routing).
func answeredElsewhere(rec *snapshot.Recording, s *snapshot.Service, connections float64) bool {
	invalid := rec.Last().ConntrackStat.Grown(rec.First().ConntrackStat)["invalid"]
	return s.Protocol == "tcp" && invalid > 0 && float64(invalid) >= followUps*connections
}

// dropsFollowing has the rules that drop what follows the first packets of these connections; it has no
// how where there is none, as the connections go on then.
func (f failing) dropsFollowing(rec *snapshot.Recording, connections float64) failing {
	a, _ := readAudit(rec)
	if a == nil || rec.First().Audit == nil {
		return failing{}
	}
	r, _ := a.refusals(snapshot.RefusalInvalid)
	if r.packets == 0 || float64(r.packets) < followUps*connections {
		return failing{}
	}
	f.cause = "their answers take another way than by this host, which saw none of them: what follows the first packet is INVALID here and dropped: " + strings.Join(r.texts(), "; ")
	f.evidence = append(f.evidence, r.evidence("dropped as INVALID by ")...)
	f.known, f.advice = true, new(advice("service-asymmetric", where(rec)))
	return f
}

// explain takes what is known to be wrong with the service for the cause.
func (f *failing) explain(rec *snapshot.Recording, s *snapshot.Service) {
	f.explainTarget(rec, s)
	a, _ := readAudit(rec)
	detour := ofService(rec, s).loses(s.HalfOpen > s.Unanswered)
	w, _ := readWays(rec)
	switch {
	case w != nil && s.Kind == snapshot.ServiceSNAT && w.answersOf(s) != nil:
		l := w.answersOf(s)
		f.cause, f.advice, f.known = "filters of this host drop the answers: "+placesOf(l.places), new(w.accepts(l)), true
		f.evidence = append(f.evidence, l.evidence("the answers")...)
	case a == nil:
	case a.loops(s) != nil:
		f.leadsBack(rec, s, a.loops(s))
	case detour.cause != "" && (f.target.IsValid() || s.Kind != snapshot.ServiceDNAT) && !(s.Kind == snapshot.ServiceUntranslated && f.known):
		f.takes(detour)
	case s.Kind == snapshot.ServiceSNAT && s.HalfOpen > s.Unanswered && a.keeps(s.Given) != "":
		device := a.keeps(s.Given)
		f.cause, f.confidence, f.known = fmt.Sprintf("the server answers, and this host does not forward what comes in by %s: net.ipv4.conf.%s.forwarding is 0", device, slashed(device)), "certain", true
		f.advice = new(advice("forward", "net.ipv4.conf."+slashed(device)+".forwarding", where(rec)))
	case s.Kind == snapshot.ServiceSNAT && a.everywhere(s) != nil:
		f.leavesMasked(rec, s, a.everywhere(s))
	case s.Kind == snapshot.ServiceSNAT && a.misgiven(s).cause != "":
		f.cause = a.misgiven(s).cause
	case s.Kind == snapshot.ServiceSNAT && a.elsewhere(s.Given) != nil:
		f.cause, f.known = s.Given.String()+" is no address of this host: answers come only if the network beyond leads it here", true
		f.advice = new(unrouted(rec, s.Given, ""))
		if e := a.elsewhere(s.Given); e.Last.IsValid() {
			f.hasForeignPrefix(a, s, e)
		}
	case f.target.IsValid() && isCrossed(s):
		f.crosses(rec, s)
	case deadBeside(a, s):
		f.hasDeadLine(rec, a, s)
	case a.untracked(s) != nil:
		f.cause, f.target, f.known = whatOf(a.untracked(s))+": "+a.untracked(s).By.Text, netip.AddrPort{}, true
	case (s.Kind == snapshot.ServiceDNAT || s.Kind == snapshot.ServiceNetwork) && f.target.IsValid():
		network := a.hairpin(s)
		if at := a.bridgePast(s); !network.IsValid() && at != nil {
			f.cause = fmt.Sprintf("clients and server are behind one bridge, %s, which passes the answers on directly and not by the rules of this host that would translate them back: %s is 0", at.Name, bridgeCalls(s.Target.Addr()))
			f.advice, f.target, f.known = new(bridgeAdvice(rec, s.Target.Addr())), netip.AddrPort{}, true
			return
		}
		if !network.IsValid() {
			f.silentNear(rec, s)
			if s.Zone != 0 {
				f.cause += fmt.Sprintf("; or they come in in another conntrack zone than %d, that of these connections", s.Zone)
			}
			return
		}
		if isUnheard(s) {
			f.overlaps(a, s, network)
			return
		}
		if by := a.everywhereRule(s); by != nil {
			f.isTaken(a, s, by)
			return
		}
		f.cause = fmt.Sprintf("clients and server are on the same network, %s, so that the server answers them directly and not by this host: what comes from there is not masqueraded", network)
		f.advice, f.target, f.known = hairpinAdvice(rec, s.Protocol, s.Service, s.Target, network), netip.AddrPort{}, true
		if a.bridgePast(s) != nil {
			f.advice = new(bridgeAdvice(rec, s.Target.Addr()))
		}
	}
}

// hasForeignPrefix names the rule by which sources get a prefix that this host has nothing of, such as one that the
// provider has replaced by another.
func (f *failing) hasForeignPrefix(a *audit, s *snapshot.Service, e *snapshot.GivenElsewhere) {
	r := &a.rules.Rules[e.Rule]
	f.place = fmt.Sprintf("they leave as %s, which no interface or route of this host has (%s), and no answer comes back", s.Given, r.Text)
	f.cause = fmt.Sprintf("%s is given by %s: %s, and no interface or route of this host has any of these addresses: answers come only if the network beyond leads them here; or the server is down", s.Given, r.Place(), r.Text)
	f.byElimination = true
	f.advice = new(advice("service-elsewhere", s.Given, cmp.Or(r.OutInterface, "any"), where(a.rec), r.Place()+": "+r.Text))
}

// isCrossed reports whether the answers of a service come from another address than that which was asked.
func isCrossed(s *snapshot.Service) bool {
	return s.AnsweredBy.IsValid() && s.AnsweredBy != s.Target.Addr() && silent(s)
}

// crosses takes it for the cause.
func (f *failing) crosses(rec *snapshot.Recording, s *snapshot.Service) {
	f.cause = fmt.Sprintf("it is led to %s, and %s sends from port %d to the ports that clients ask from, in flows of its own: the answers come from an address that was not asked, belong to no connection, and are not translated back, as of a server with several addresses", s.Target, s.AnsweredBy, s.Target.Port())
	f.evidence = append(f.evidence, Evidence{What: "answers in flows of their own, from", Value: netip.AddrPortFrom(s.AnsweredBy, s.Target.Port()).String(), Source: "connection table"})
	f.place = fmt.Sprintf("the answers come from %s, which was not asked", s.AnsweredBy)
	f.severity, f.confidence, f.known, f.byElimination, f.target = max(f.severity, Warning), "likely", true, true, netip.AddrPort{}
	f.advice = new(advice("service-other-source", s.Target, s.AnsweredBy, where(rec)))
}

// isUnheard reports whether a client with an address of the server's network has no entry of a neighbour there, which
// it gets when it asks for the hardware address of this host.
func isUnheard(s *snapshot.Service) bool {
	if s.Routes == nil || s.Routes.Answer == nil || s.Routes.Answer.NextHop != s.Routes.Client {
		return false
	}
	n := s.Routes.Answer.Neighbour
	return n == "" || n == snapshot.NeighbourFailed || n == snapshot.NeighbourIncomplete
}

// overlaps takes for the cause that clients elsewhere have addresses of the server's network.
func (f *failing) overlaps(a *audit, s *snapshot.Service, network netip.Prefix) {
	out, in := s.Routes.Answer.Out, "another interface"
	if at, own := a.Near(s.Service.Addr()); own && at.Name != out {
		in = at.Name
	}
	f.cause = fmt.Sprintf("the address of %s is within %s, the network of %s and of the server, and no such neighbour is known there: networks overlap, so that the server, and this host, look on %[3]s for clients that come in by %[4]s", s.Routes.Client, network, out, in)
	f.place = fmt.Sprintf("its clients have addresses of %s, the network of %s, and are not there", network, out)
	f.advice, f.target, f.known, f.confidence = new(overlapAdvice(a.rec, out, network, s.Routes.Client, in)), netip.AddrPort{}, true, "likely"
}

// takes makes what is wrong with the routes the cause.
func (f *failing) takes(d detour) {
	f.cause, f.advice, f.target, f.known = d.cause, &d.remedy, netip.AddrPort{}, d.certain
	if d.certain && f.confidence == "possible" {
		f.severity = max(f.severity, Warning)
	}
	f.confidence = "likely"
}

// hairpinAdvice is the rule that makes the answers come back by this host.
func hairpinAdvice(rec *snapshot.Recording, protocol string, service, target netip.AddrPort, network netip.Prefix) *Remedy {
	rule := fmt.Sprintf("iptables -t nat -A POSTROUTING -s %s -d %s -p %s --dport %d -j MASQUERADE", network, target.Addr(), protocol, target.Port())
	if target.Addr().Is6() {
		rule = "ip6" + strings.TrimPrefix(rule, "ip")
	}
	for _, r := range rec.Last().NATRules.Rules {
		if mayMatch(&r, protocol, service) && mayLead(&r, target) && r.Source == "nftables" {
			rule = fmt.Sprintf("masquerade in a postrouting chain of type nat: ip saddr %s ip daddr %s %s dport %d masquerade", network, target.Addr(), protocol, target.Port())
			if target.Addr().Is6() {
				rule = strings.ReplaceAll(rule, "ip ", "ip6 ")
			}
		}
	}
	one := advice("hairpin", rule, target, where(rec))
	return &one
}

// silentNear takes it for the cause that the server answers on its network and not these clients: what is left are its
// own firewall and its way back, where the filters of this host dropped nothing of it.
func (f *failing) silentNear(rec *snapshot.Recording, s *snapshot.Service) {
	q := s.Routes
	if q == nil || q.Question == nil || q.Question.NextHop != s.Target.Addr() || !answersARP(q.Question.Neighbour) || s.HalfOpen > s.Unanswered {
		return
	}
	f.cause = fmt.Sprintf("the server %s is up: it answers on its own network (neighbour %s), and not these clients: its own firewall drops what is from other networks, its default route is by another gateway than this host", s.Target.Addr(), q.Question.Neighbour)
	if s.Kind != snapshot.ServiceDNAT || s.Zone != 0 || len(s.Clients) == 0 || q.Question.Out == "" || !filtersPass(rec, s) {
		f.cause += ", or filters of this host drop it or its answers"
		return
	}
	if returnsTo(rec, s, q.Question.Out) {
		f.atPort(rec, s)
		return
	}
	f.cause = strings.Replace(f.cause, ", its default route", " or the program hangs, or its default route", 1) + "; the filters of this host let pass what leads to it and its answers"
	f.known, f.byElimination, f.target = true, true, netip.AddrPort{}
	f.advice = new(advice("service-silent-near", s.Target.Addr(), s.Target.Port(), s.Clients[0], toServer(rec, s.Protocol, s.Service, s.Target, q.Question.Out), where(rec)))
}

// returnsTo reports whether a server is known to lead answers to clients from outside by this host: it does so at other
// ports, and they come to it with their own addresses.
func returnsTo(rec *snapshot.Recording, s *snapshot.Service, out string) bool {
	client, target := s.Clients[0], s.Target.Addr()
	if client.IsPrivate() || slices.ContainsFunc(rec.Last().NATRules.Rules, func(r snapshot.NATRule) bool { return mayTranslate(&r, client, target, out) }) {
		return false
	}
	return slices.ContainsFunc(rec.Flows.Services.All, func(o snapshot.Service) bool {
		return o.Kind == snapshot.ServiceDNAT && o.Target.Addr() == target && o.Answered+o.Open > 0 && o.Inside == 0
	})
}

// atPort takes it for the cause that a server which answers at other ports does not at this one.
func (f *failing) atPort(rec *snapshot.Recording, s *snapshot.Service) {
	others := ""
	if s.Protocol == "udp" {
		others = ", or it answers from another of its addresses, as a program that is bound to none does"
	}
	f.cause = fmt.Sprintf("the server %s answers clients at other ports, and not at %s port %d: its own firewall drops them, or its program there hangs%s; the filters of this host let pass what leads to it and its answers", s.Target.Addr(), s.Protocol, s.Target.Port(), others)
	f.known, f.byElimination, f.target = true, true, netip.AddrPort{}
	f.advice = new(advice("service-silent-port", s.Target.Addr(), s.Target.Port(), s.Protocol, s.Clients[0]))
}

// answersARP reports whether a neighbour has answered lately.
func answersARP(state string) bool { return state == snapshot.NeighbourReachable || state == "DELAY" }

// filtersPass reports whether the filters are known to let pass what DNAT leads to a server and its answers: those
// that may drop some of it dropped nothing meanwhile.
func filtersPass(rec *snapshot.Recording, s *snapshot.Service) bool {
	now, first := rec.Last().DNATTargets, rec.First().DNATTargets
	if now == nil || first == nil {
		return false
	}
	i := slices.IndexFunc(now.Targets, func(t snapshot.DNATTarget) bool {
		return t.Address == s.Target.Addr() && (t.Port == 0 || t.Port == s.Target.Port()) && (t.Protocol == "" || t.Protocol == s.Protocol)
	})
	if i < 0 {
		return false
	}
	t, before := &now.Targets[i], targetBefore(first, &now.Targets[i])
	if before == nil {
		return false
	}
	return stoodStill(t.Filter, before.Filter) && stoodStill(t.AnswerFilter, before.AnswerFilter)
}

// stoodStill reports whether a filter lets packets pass, and every place that may drop some counts and dropped none.
func stoodStill(now, before *snapshot.Filter) bool {
	if now == nil || before == nil || !now.Passes {
		return false
	}
	var l filterLoss
	l.add(now, before)
	return l.packets == 0 && !slices.ContainsFunc(l.places, func(p snapshot.RulePlace) bool { return !p.Counted })
}

// toServer is the rule that gives what goes to a server the address of this host on the server's network.
func toServer(rec *snapshot.Recording, protocol string, service, target netip.AddrPort, out string) string {
	rule := fmt.Sprintf("iptables -t nat -A POSTROUTING -o %s -d %s -p %s --dport %d -j MASQUERADE", out, target.Addr(), protocol, target.Port())
	for _, r := range rec.Last().NATRules.Rules {
		if mayMatch(&r, protocol, service) && mayLead(&r, target) && r.Source == "nftables" {
			rule = fmt.Sprintf("in a postrouting chain of type nat: oifname %s ip daddr %s %s dport %d masquerade", out, target.Addr(), protocol, target.Port())
		}
	}
	if !target.Addr().Is6() {
		return rule
	}
	return strings.NewReplacer("iptables", "ip6tables", "ip daddr", "ip6 daddr").Replace(rule)
}

// explainTarget takes what is known to be wrong with the target for the cause.
func (f *failing) explainTarget(rec *snapshot.Recording, s *snapshot.Service) {
	targets := rec.Last().DNATTargets
	if targets == nil || s.Kind != snapshot.ServiceDNAT {
		return
	}
	silent := silentBefore(rec)
	for _, t := range targets.Targets {
		if t.Address != s.Target.Addr() || t.Port != 0 && t.Port != s.Target.Port() {
			continue
		}
		if u := unreachableOf(rec, t, silent); u.problem != "" {
			f.cause, f.severity, f.confidence, f.target = u.problem, Critical, "likely", netip.AddrPort{}
			return
		}
		if t.AnswerFilter != nil && !t.AnswerFilter.Passes {
			f.cause, f.target = "filters of this host drop its answers: "+placesOf(t.AnswerFilter.Drops), netip.AddrPort{}
			return
		}
	}
}

// isScan reports whether one client tries many addresses, which is not the fault of the NAT.
func isScan(s *snapshot.Service) bool {
	const many = 5
	return len(s.Clients) == 1 && len(s.Destinations) >= many
}

// answersAlways reports whether a protocol without connections is one in which every question
// gets an answer.
func answersAlways(s *snapshot.Service) bool {
	if s.Service.IsValid() {
		return nat.AnswersAlways(s.Service.Port())
	}
	return slices.ContainsFunc(s.Destinations, func(d netip.AddrPort) bool { return nat.AnswersAlways(d.Port()) })
}

func serviceEvidence(s *snapshot.Service) []Evidence {
	const table = "connection table"
	all := units.Count(s.Failed() + s.Answered)
	var e []Evidence
	if s.Failed() > 0 || s.Stalled+s.Expired == 0 {
		e = append(e, Evidence{What: s.String() + ": connections without an answer", Value: s.Failed(), Unit: "of " + all, Source: table})
	}
	if s.Stalled > 0 {
		e = append(e, Evidence{What: s.String() + ": connections that were answered, and in which one side waits for the other to acknowledge what it sent", Value: s.Stalled, Unit: "of " + units.Count(s.Stalled+s.Answered+s.Open), Source: table})
	}
	if s.Asking > 0 {
		e = append(e, Evidence{What: "of them such as go on asking", Value: s.Asking, Unit: "flows", Source: table})
	}
	if s.HalfOpen > 0 {
		e = append(e, Evidence{What: "of them answered by the server only (SYN_RECV)", Value: s.HalfOpen, Unit: "connections", Source: table})
	}
	if s.SilentSeconds >= 0 {
		e = append(e, Evidence{What: "last one that was answered", Value: s.SilentSeconds, Unit: "s ago", Source: table})
	}
	if len(s.Clients) > 0 {
		e = append(e, Evidence{What: "clients, such as", Value: s.Clients[0].String(), Source: table})
	}
	return e
}

// vanishedOnes are the rules that translated connections of which none is in the table, or older ones
// alone: what
// is dropped on this machine is never entered there, and what is refused is removed with the
// RST. Any other connection would stay for 10 s at least.
func vanishedOnes(rec *snapshot.Recording) (all []failing) {
	services, _ := tableServices(rec)
	now, before := rec.Last().NATRules, rec.First().NATRules
	if services == nil || now == nil || before == nil || now.TooMany || !services.Complete || finds(rec, "ct-table-full", "ct-chain-cap") {
		return nil
	}
	for i, packets := range now.Grown(before) {
		r := &now.Rules[i]
		soon := float64(packets) * min(1, staysFor(rec, r)/max(rec.Seconds(), 1))
		entries, births, lately := entriesOf(services, r)
		if r.TranslatesSource() || r.Hook != "prerouting" || soon < fewestSoon(rec) || births > 0 {
			continue
		}
		if entries > 0 && (soon-float64(lately) < fewestVanished || !services.NewKnown || r.DestinationPort == 0 || r.LastDestinationPort > r.DestinationPort) {
			continue
		}
		if f, is := vanished(rec, i, packets, entries); is {
			all = append(all, f)
		}
	}
	return all
}

// fewestVanished is how many first packets of a rule that has entries must have come to nothing, beside
// those of entries that may have begun between the reading of its counter and of the table.
const fewestVanished = 10

// entriesOf returns how many services have entries that a rule may have made, how many of these entries
// are new, and how many may have been when the rule's counter was read first.
func entriesOf(all *snapshot.Services, r *snapshot.NATRule) (entries, births, lately int64) {
	for i := range all.All {
		if s := &all.All[i]; mayBe(r, s) {
			entries++
			births += s.New
			lately += s.Lately
		}
	}
	return entries, births, lately
}

// shortestEntry is a little less than how long an entry stays at least after its last packet,
// in seconds (nf_conntrack_tcp_timeout_close).
const shortestEntry = 8

// usualShortest is nf_conntrack_tcp_timeout_close by default, in seconds.
const usualShortest = 10

// fewestSoon is how many first packets must have come so late that what they began is still there. Between snapshots
// that are further apart than an entry stays they may all have come early, so that a few are no sign.
func fewestSoon(rec *snapshot.Recording) float64 {
	if rec.Seconds() > usualShortest {
		return fewestVanished
	}
	return 1
}

// endings are the classes of connections that were answered and are over.
var endings = []string{"tcp/TIME_WAIT", "tcp/CLOSE", "tcp/LAST_ACK", "tcp/CLOSE_WAIT", "tcp/FIN_WAIT"}

// staysFor is shortestEntry for a rule's connections; 0 where the host forgets datagrams, or connections that are over, so
// soon that none has to be there.
func staysFor(rec *snapshot.Recording, r *snapshot.NATRule) float64 {
	forgets := func(class string) bool {
		most := rec.Last().Sysctls.ClassTimeout(class)
		return most > 0 && most <= shortestEntry
	}
	if r.Protocol != "tcp" && forgets("udp/unreplied") || r.Protocol != "udp" && slices.ContainsFunc(endings, forgets) {
		return 0
	}
	return shortestEntry
}

// mayBe reports whether a rule may have made the connections of a service.
func mayBe(r *snapshot.NATRule, s *snapshot.Service) bool {
	return s.Kind == snapshot.ServiceDNAT && mayMatch(r, s.Protocol, s.Service) && mayLead(r, s.Target)
}

// vanished explains why nothing is left of a rule's connections; false where filters let some
// clients pass and drop others, as those may have been.
func vanished(rec *snapshot.Recording, rule int, packets uint64, entries int64) (f failing, is bool) {
	r := &rec.Last().NATRules.Rules[rule]
	f = failing{name: ruleName(r), how: "gets no answers", severity: Critical, confidence: "likely"}
	f.key.protocol = r.Protocol
	f.matches = func(id serviceID) bool { return mayMatch(r, id.protocol, id.service) }
	f.cause = "they were dropped on this host after the translation"
	if r.Protocol != "udp" {
		f.cause += ", or the server refused them (RST)"
	}
	f.evidence = []Evidence{
		{What: f.name + ": first packets translated", Value: int64(packets), Unit: "packets", Source: "counter of the rule"},
		{What: "connections of these in the table", Value: int64(0), Source: "connection table"},
	}
	if entries > 0 {
		f.evidence[1].What = "new connections of these in the table, beside older ones"
	}
	if t := targetOf(rec.Last(), rule); t != nil {
		f.about = ends(netip.AddrPortFrom(t.Address, t.Port))
		return f, f.vanishesAt(rec, t, packets)
	}
	return f, true
}

// vanishesAt takes for the cause what is known of the target; false where filters let some clients pass and drop others.
func (f *failing) vanishesAt(rec *snapshot.Recording, t *snapshot.DNATTarget, packets uint64) bool {
	switch filter := t.Filter; {
	case t.NoRoute != "":
		f.cause = "no route leads there: " + t.NoRoute
	case t.NotForwarded != "":
		f.cause = "this host does not forward: " + t.NotForwarded + " is 0"
	case t.Broken != "":
		f.cause = fmt.Sprintf("they leave by %s, which %s", t.Interface, t.Broken)
	case t.Refused != nil:
		q := t.Refused.Question
		f.cause = fmt.Sprintf("what comes in by %s, from %s for one, is not led to %s: %s", t.Refused.In, t.Refused.Client, t.Address, refusal(q, t.Refused.In))
		r := routingOf(rec, t.Refused, t.Address, netip.Addr{}, true)
		if r != nil {
			r.AnswerIn = r.In
			f.advice = new(r.refused(q, t.Address))
		}
	case t.Martian:
		u := unreachableOf(rec, *t, nil)
		f.cause, f.advice, f.known = u.problem, &Remedy{Title: u.advice}, true
	case filter != nil && !filter.Passes:
		b := filtered{DNATTarget: t, filter: filter}
		b.filter = b.dropping(rec)
		f.cause, f.place = "filters drop them: "+placesOf(b.filter.Drops), "this host drops it by "+placeText(b.filter.Drops[0])
		f.advice, f.known = new(b.accept(rec)), true
	case filter != nil && !cleared(rec, t, packets):
		return false
	case t.Loopback:
		f.cause = "the program that listens on the port of this host that they lead to does so on a loopback address alone, so that they are refused"
	case t.Listening != nil && !*t.Listening:
		f.cause = "nothing listens on the port of this host that they lead to, so that they are refused"
	default:
		f.target = netip.AddrPortFrom(t.Address, t.Port)
		f.refusedBy(rec, t)
	}
	return true
}

// cleared reports whether no filter behind the translation dropped what a rule led to a target: where some
// may drop it, the packets are more than a scanner's, and the counters of all of these stood still.
func cleared(rec *snapshot.Recording, t *snapshot.DNATTarget, packets uint64) bool {
	var l filterLoss
	before := (*snapshot.Filter)(nil)
	if first := rec.First().DNATTargets; first != nil {
		before = filterBefore(first, t)
	}
	l.add(t.Filter, before)
	for i, p := range l.places {
		if !p.Early && (!p.Counted || before == nil || l.grown[i] > 0 || packets < fewestVanished) {
			return false
		}
	}
	return true
}

// refusedBy takes it for the cause that the server refuses what left no entry, where nothing else is left: the
// filters let it pass, and the server answers on its network.
func (f *failing) refusedBy(rec *snapshot.Recording, t *snapshot.DNATTarget) {
	if t.Protocol != "tcp" || t.Local || t.Filter == nil || t.NextHop != t.Address || !answersARP(t.Neighbour) || t.Port == 0 {
		return
	}
	f.cause = fmt.Sprintf("the server refuses them (RST): no program listens on port %d of %s, or a filter there rejects them; the filters of this host let them pass, and %[2]s answers on its network", t.Port, t.Address)
	f.evidence = append(f.evidence, Evidence{What: "neighbour " + t.Address.String(), Value: t.Neighbour, Source: "neighbours of " + t.Interface})
	f.known, f.byElimination, f.target = true, true, netip.AddrPort{}
	f.advice = new(advice("service-refused", t.Address, t.Port, where(rec)))
}

// targetOf is the target of a rule; nil where it has several, or none that is known.
func targetOf(s *snapshot.Snapshot, rule int) (found *snapshot.DNATTarget) {
	if s.DNATTargets == nil {
		return nil
	}
	for i := range s.DNATTargets.Targets {
		if t := &s.DNATTargets.Targets[i]; t.Rule == rule {
			if found != nil {
				return nil
			}
			found = t
		}
	}
	return found
}

func placesOf(drops []snapshot.RulePlace) string {
	var texts []string
	for _, d := range drops {
		texts = once(texts, placeText(d))
	}
	return strings.Join(texts, "; ")
}

// placeText names a place and, where that drops what a limit before it leaves over, the limit.
func placeText(p snapshot.RulePlace) string {
	if p.Limit == "" {
		return p.Text
	}
	return p.Text + ", which drops what this limit before it does not let pass: " + p.Limit
}

// ruleName is a rule by what its clients ask for.
func ruleName(r *snapshot.NATRule) string {
	var parts []string
	if r.Protocol != "" {
		parts = append(parts, r.Protocol)
	}
	if r.ToDestination.IsValid() {
		parts = append(parts, strings.TrimSuffix(r.ToDestination.String(), "/32"))
	}
	if r.DestinationPort != 0 {
		parts = append(parts, fmt.Sprintf("port %d", r.DestinationPort))
	}
	return strings.Join(append(parts, "("+r.Place()+": "+r.Text+")"), " ")
}

// ends are those that are known.
func ends(all ...netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(all, func(e netip.AddrPort) bool { return !e.IsValid() })
}

// servicesFinding has the services that fail, the worst first.
func servicesFinding(rec *snapshot.Recording, bad []failing) *Finding {
	var names, causes []string
	f := worded("service-unanswered", nil, nil)
	f.Severity, f.Confidence, f.SinceSeconds, f.services = bad[0].severity, bad[0].confidence, bad[0].since, bad
	for i, b := range bad {
		if i < mostListed {
			f.Evidence = append(f.Evidence, b.evidence...)
		}
		if i < mostShown {
			names = append(names, b.name)
			f.About = append(f.About, b.about...)
		}
		if !slices.ContainsFunc(causes, func(c string) bool { return strings.Contains(c, b.cause) }) {
			causes = append(causes, b.cause)
		}
	}
	f.Title, f.Place, f.Decided = names[0]+" "+bad[0].how, bad[0].place, bad[0].decided
	if len(bad) > 1 {
		how := "get no answers"
		if slices.ContainsFunc(bad, func(b failing) bool { return b.later }) {
			how = "get no answers, or fail later"
		}
		f.Title = fmt.Sprintf("%d services %s: %s", len(bad), how, strings.Join(names, ", "))
	}
	if more := len(bad) - len(names); more > 0 {
		f.Title += fmt.Sprintf(" and %d more", more)
	}
	f.Cause = strings.Join(causes[:min(len(causes), mostShown)], "; or ")
	if bad[0].advice != nil {
		f.Remedies = append(f.Remedies, *bad[0].advice)
	}
	if rec.Drops == nil && !bad[0].explained { // where the cause is known there is little to find out
		trace := advice("service-trace", NamespaceFlag(rec.Last().Netns.Name))
		f.Remedies = slices.Insert(f.Remedies, map[bool]int{true: len(f.Remedies)}[bad[0].known || bad[0].decided], trace)
	}
	if target := bad[0].target; target.Addr().IsValid() && target.Port() != 0 {
		ask := advice("service-ask", target.Addr(), target.Port(), where(rec))
		if bad[0].key.protocol == "udp" {
			ask = advice("service-ask-udp", target.Addr(), target.Port(), where(rec))
		}
		f.Remedies = append(f.Remedies, ask)
	}
	return f
}
