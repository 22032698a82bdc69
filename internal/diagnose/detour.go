package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// detour is what is wrong with the routes of a connection that fails; it has no cause where nothing is known
// to be.
type detour struct {
	cause string
	// certain is false where a mark may lead the packets elsewhere, or where it is an indication.
	certain bool
	remedy  Remedy
	// place is it in a few words, where these say more than where packets ended.
	place string
	// works is true where many networks let the packets through all the same.
	works bool
}

func misled(cause string, certain bool, remedy Remedy) detour {
	return detour{cause: cause, certain: certain, remedy: remedy}
}

// routing is the routes of a connection that fails, and what they are compared with.
type routing struct {
	rec   *snapshot.Recording
	audit *snapshot.Audit
	*snapshot.Routes
	// target is what the first packet is led to, given what its source becomes.
	target, given netip.Addr
	published     bool
	// protocol is empty where it is not known.
	protocol string
}

// routingOf returns nil where the routes were not asked for.
func routingOf(rec *snapshot.Recording, w *snapshot.Routes, target, given netip.Addr, published bool) *routing {
	if w == nil || rec.Last().Audit == nil {
		return nil
	}
	return &routing{rec: rec, audit: rec.Last().Audit, Routes: w, target: target, given: given, published: published}
}

// ofService are the routes of a service's connections.
func ofService(rec *snapshot.Recording, s *snapshot.Service) *routing {
	target := s.Target.Addr()
	if s.Kind != snapshot.ServiceDNAT && len(s.Destinations) > 0 {
		target = s.Destinations[0].Addr()
	}
	given := s.Given
	if s.Kind == snapshot.ServiceUntranslated {
		given = netip.Addr{}
		if s.Service.IsValid() {
			target = s.Service.Addr()
		}
	}
	r := routingOf(rec, s.Routes, target, given, s.Kind == snapshot.ServiceDNAT)
	if r != nil {
		r.protocol = s.Protocol
	}
	return r
}

// loses finds what the routes have to do with connections that get no answer; answered is true where the
// server answers and its clients do not go on.
func (r *routing) loses(answered bool) detour {
	switch {
	case r == nil:
		return detour{}
	case answered:
		return r.answer()
	}
	return r.question()
}

// strands reports whether it is certain that connections of the client come to nothing, though others of the
// service do not.
func (r *routing) strands(answered bool) bool {
	d := r.loses(answered)
	return d.certain && !d.works
}

// question finds what keeps the first packets, which left this host, from their target.
func (r *routing) question() detour {
	q, sure := r.taken()
	if q == nil || q.Error != "" || q.Local {
		return detour{}
	}
	if d := r.blocked(q, "what is sent to "+r.target.String()); d.cause != "" {
		d.works = !r.published && q.NextHop == r.target && q.Broken == "" // the destination itself is gone
		return d.unless(!sure)
	}
	if network := r.beyondOwn(q); network.IsValid() {
		d := misled(fmt.Sprintf("%s came in by %s, and its address is within %s, the network of %s and of the server: the networks overlap, so that the server, and this host, look for it there", r.Client, r.In, network, q.Out),
			true, overlapAdvice(r.rec, q.Out, network, r.Client, r.In))
		d.place = overlapText(r.Client, r.In, network, q.Out)
		return d
	}
	at, own := r.audit.Near(r.given)
	server, _ := r.audit.Near(r.target)
	switch out := r.audit.Interface(q.Out); {
	case own && out != nil && at.Name != q.Out && newSource(r.rec, r.protocol, r.Client, r.target, r.given, q.Out) != nil:
		return r.keepsSource(q, at.Name)
	case own && out != nil && at.Name != q.Out && len(out.Addresses) > 0:
		return misled(fmt.Sprintf("they leave by %s%s with the source %s, which is the address of %s: answers come by that network, and that of %s may drop what has a foreign source", q.Out, by(q), r.given, at.Name, q.Out),
			true, advice("way-source", q.Out, where(r.rec)))
	case q.Out == r.In && r.published && r.target.IsPrivate() && (server == nil || server.Name != r.In):
		return r.backOut(q)
	case q.Hardware != "":
		return r.permanent(q)
	}
	return detour{}
}

// keepsSource is about connections that keep the source of the uplink which their first packet left by.
func (r *routing) keepsSource(q *snapshot.Route, of string) detour {
	rule := newSource(r.rec, r.protocol, r.Client, r.target, r.given, q.Out)
	return misled(fmt.Sprintf("they leave by %s%s with the source %s, which is the address of %s, as their entries keep the translation of a time when they left by that: new connections get another one (%s: %s), and the network of %s may drop what has a foreign source", q.Out, by(q), r.given, of, rule.Place(), rule.Text, q.Out),
		true, forgetSource(r.rec, r.protocol, r.target, r.given, r.published))
}

// taken is the route of the question: that of the mark which explains the given source, or the one without
// a mark. sure is false where another one may be taken.
func (r *routing) taken() (route *snapshot.Route, sure bool) {
	if r.Question == nil {
		return nil, false
	}
	at, own := r.audit.Near(r.given)
	for i := range r.Question.Hops {
		if h := &r.Question.Hops[i]; own && h.Out == at.Name {
			return h, true
		}
	}
	for i := range r.Question.Marked {
		if m := &r.Question.Marked[i]; r.Question.Doubtful && own && m.Out == at.Name && r.Question.Out != at.Name {
			return &m.Route, true
		}
	}
	return r.Question, !r.Question.Doubtful && len(r.Question.Hops) == 0 || own && at.Name == r.Question.Out
}

// backOut is about connections that are led out by the interface that they came in by.
func (r *routing) backOut(q *snapshot.Route) detour {
	d := misled(fmt.Sprintf("the route to %s is out by %s%s, by which they came in: no other route leads there", r.target, q.Out, by(q)), !q.Doubtful, advice("way-route", r.target, where(r.rec)))
	for _, l := range r.audit.Interfaces {
		if !l.Up && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Contains(r.target) }) {
			d.cause, d.remedy = fmt.Sprintf("%s, on whose network %s is, is down, so that the route to it is out by %s", l.Name, r.target, q.Out), advice("way-up", l.Name, where(r.rec))
		}
	}
	return d
}

// permanent is about a next hop whose hardware address was set by hand.
func (r *routing) permanent(q *snapshot.Route) detour {
	return misled(fmt.Sprintf("the neighbour entry of %s on %s is permanent, with the hardware address %s: it may be that of a card that is gone, and the kernel does not ask again", q.NextHop, q.Out, q.Hardware),
		false, advice("way-neighbour", q.NextHop, q.Out, where(r.rec)))
}

// blocked finds what keeps packets from a next hop.
func (r *routing) blocked(route *snapshot.Route, what string) detour {
	switch {
	case route.Broken != "":
		return misled(fmt.Sprintf("%s leaves by %s%s, which %s", what, route.Out, by(route), route.Broken), true, advice("way-link", route.Out, where(r.rec)))
	case route.Neighbour == snapshot.NeighbourFailed || route.Neighbour == snapshot.NeighbourIncomplete:
		hop := "its own address"
		if route.NextHop != r.target && route.NextHop != r.Client {
			hop = "the next hop"
		}
		cause := fmt.Sprintf("%s leaves by %s%s, where nobody answers for %s, %s (%s)", what, route.Out, by(route), route.NextHop, hop, route.Neighbour) + closed(route.Out, route.Ports)
		ask := fmt.Sprintf("arping -I %s %s", route.Out, route.NextHop)
		if route.NextHop.Is6() {
			ask = fmt.Sprintf("ndisc6 %s %s", route.NextHop, route.Out)
		}
		if network := r.overlap(route); network.IsValid() {
			cause = fmt.Sprintf("%s came in by %s, and its address is within %s, the network of %s: the networks overlap; %s", r.Client, r.In, network, route.Out, cause)
			d := misled(cause, true, advice("way-overlap", route.Out, network, r.Client, r.In, where(r.rec)))
			d.place = overlapText(r.Client, r.In, network, route.Out)
			return d
		}
		if network := r.coveredBy(route); network.IsValid() {
			return misled(cause+fmt.Sprintf("; or it is not there, and its own network is within %s, that of %s", network, route.Out), true, advice("way-hop-bridge", route.NextHop, route.Out, where(r.rec), ask, network))
		}
		return misled(cause, true, advice("way-hop", route.NextHop, route.Out, where(r.rec), ask))
	}
	return detour{}
}

// coveredBy is the network of a bridge, such as that of containers, on which a client or a server does not answer: it
// may be beyond a router, with an address that this network covers.
func (r *routing) coveredBy(route *snapshot.Route) (network netip.Prefix) {
	out := r.audit.Interface(route.Out)
	if out == nil || !out.Bridge || route.NextHop != r.Client && route.NextHop != r.target {
		return network
	}
	return networkOn(out, route.NextHop)
}

// beyondOwn is the network of a server that its client seems to be on as well, though it came in by the interface of
// another one; not valid where that is not so.
func (r *routing) beyondOwn(q *snapshot.Route) (network netip.Prefix) {
	at, own := r.audit.Near(r.Client)
	in := r.audit.Interface(r.In) // a port of a bridge has no address
	if at == nil || own || in == nil || len(in.Addresses) == 0 || at.Name == r.In || at.Name != q.Out || q.NextHop != r.target || r.given.IsValid() {
		return network
	}
	return networkOn(at, r.Client)
}

func overlapText(client netip.Addr, in string, network netip.Prefix, out string) string {
	return fmt.Sprintf("%s came in by %s, and its address is of %s, the network of %s: answers go there", client, in, network, out)
}

// networkOn is the narrowest network of an interface that has an address.
func networkOn(at *snapshot.Interface, address netip.Addr) (network netip.Prefix) {
	for _, p := range at.Addresses {
		if p.Contains(address) && p.Bits() > network.Bits() {
			network = p.Masked()
		}
	}
	return network
}

// overlapAdvice is for clients that seem to be on the network of the server.
func overlapAdvice(rec *snapshot.Recording, out string, network netip.Prefix, client netip.Addr, in string) Remedy {
	return advice("way-overlap-server", out, network, client, in, where(rec), snapshot.NetworkOf(client), iptablesFor(client))
}

// iptablesFor is the program for the family of an address.
func iptablesFor(address netip.Addr) string {
	if address.Is6() {
		return "ip6tables"
	}
	return "iptables"
}

// overlap is the network of the interface by which answers leave, to a client that came in by another one from
// beyond it and has an address of that network; not valid where that is not so.
func (r *routing) overlap(route *snapshot.Route) (network netip.Prefix) {
	out := r.audit.Interface(route.Out)
	if route != r.Answer || out == nil || route.NextHop != r.Client || r.In == "" || r.In == route.Out {
		return network
	}
	return networkOn(out, r.Client)
}

// closed names the ports of a bridge that forward nothing.
func closed(bridge string, ports []string) string {
	if len(ports) == 0 {
		return ""
	}
	return fmt.Sprintf("; ports of the bridge %s that forward nothing: %s", bridge, firstOf(ports))
}

// answer finds what keeps answers, which came to this host, from the client.
func (r *routing) answer() detour {
	a := r.Answer
	if a == nil || a.Local {
		return detour{}
	}
	if d := r.keptBack(); d.cause != "" {
		d.cause = "the server answers, and " + d.cause
		return d
	}
	if a.Error != "" {
		return misled(fmt.Sprintf("the server answers, and the kernel does not lead the answers%s to %s: %s", r.comingIn(), r.Client, refusal(a, r.AnswerIn)), true, r.refused(a, r.Client)).unless(a.Doubtful && r.marked(a) != "")
	}
	if near, _ := r.audit.Near(r.Client); !r.published && near == nil && a.Out == r.AnswerIn {
		return misled(fmt.Sprintf("the server answers, and the answers to %s are led out again by %s%s, by which they come in: no other route leads to that client", r.Client, a.Out, by(a)), !a.Doubtful, advice("way-route", r.Client, where(r.rec)))
	}
	if d := r.blocked(a, "the answer to "+r.Client.String()); d.cause != "" {
		return d.unless(a.Doubtful)
	}
	if a.Out != r.In {
		cause := fmt.Sprintf("the server answers, and the answers to %s leave by %s%s, while the connections come in by %s", r.Client, a.Out, by(a), r.In)
		switch mark := r.marked(a); {
		case mark != "" && a.Mark != 0:
			cause += fmt.Sprintf("; %s would lead them out by %s, and rules give them %#x", mark, r.In, a.Mark)
		case mark != "":
			cause += fmt.Sprintf("; %s would lead them out by %s, and nothing gives it to them", mark, r.In)
		}
		return detour{cause: cause, certain: true, remedy: advice("service-uplinks", r.In, where(r.rec)), works: true}
	}
	for _, m := range a.Marked {
		if a.Doubtful && (m.Error != "" || m.Out != r.In) {
			return misled(fmt.Sprintf("the server answers; with the mark %#x the answers to %s would be led elsewhere than by %s, by which the connections come in: rule %s", m.Mark, r.Client, r.In, m.Policy), false, advice("service-uplinks", r.In, where(r.rec)))
		}
	}
	return detour{}
}

// keptBack is about what comes in by an interface that does not forward.
func (r *routing) keptBack() detour {
	in := r.audit.Interface(r.AnswerIn)
	if in == nil || !in.ForwardingOff || !r.Client.Is4() {
		return detour{}
	}
	return r.unforwarded(r.AnswerIn, confForwarding(r.AnswerIn))
}

// unforwarded is for what comes in by an interface and is not forwarded, by a sysctl. Answers come in by the
// interface of the target: it is named as well where it does not forward.
func (r *routing) unforwarded(in, name string) detour {
	how := name
	if out, _ := r.audit.Near(r.target); name != ipForward && out != nil && out.ForwardingOff && out.Name != in {
		how += "=1 " + confForwarding(out.Name)
	}
	return misled(fmt.Sprintf("this host does not forward what comes in by %s: %s is 0", in, name), true, advice("forward", how, where(r.rec)))
}

func confForwarding(device string) string { return "net.ipv4.conf." + slashed(device) + ".forwarding" }

// notForwarding is the sysctl by which what comes in by an interface is not forwarded; empty where that is not so.
// What the kernel answers about its route is then that of a route of type unreachable (ip_route_input_slow).
func notForwarding(rec *snapshot.Recording, in, answer string, v6 bool) string {
	audit := rec.Last().Audit
	if audit == nil || v6 || answer != unix.EHOSTUNREACH.Error() {
		return ""
	}
	if i := audit.Interface(in); i != nil && i.ForwardingOff {
		return confForwarding(in)
	}
	if v, known := rec.Last().Sysctls.Int(ipForward); known && v == 0 && refusedToForward(rec) > 0 {
		return ipForward
	}
	return ""
}

// comingIn is the interface that answers come in by; empty for those of this host.
func (r *routing) comingIn() string {
	if r.AnswerIn == "" {
		return ""
	}
	return ", which come in by " + r.AnswerIn + ","
}

// marked is a mark by which a route is that of the question; empty where there is none.
func (r *routing) marked(a *snapshot.Route) string {
	for _, m := range a.Marked {
		if m.Error == "" && m.Out == r.In {
			return fmt.Sprintf("the mark %#x (rule %s)", m.Mark, m.Policy)
		}
	}
	return ""
}

func (d detour) unless(doubtful bool) detour {
	d.certain = d.certain && !doubtful
	return d
}

// by is the routing rule that a route comes from, in parentheses.
func by(route *snapshot.Route) string {
	if route.Policy == "" {
		return ""
	}
	return " (rule " + route.Policy + ")"
}

// refusal says why the kernel does not send a packet on.
func refusal(route *snapshot.Route, in string) string {
	text := "no route leads there"
	switch kind := refusingRoutes[route.Error]; {
	case route.Error == unix.EXDEV.Error():
		text = fmt.Sprintf("the reverse path filter of %s is strict (rp_filter), and the way back to their source is by another interface", in)
	case kind != "" && route.Policy != "":
		text = fmt.Sprintf("the routing rule %s", route.Policy)
		if strings.Contains(route.Policy, "lookup") {
			text += fmt.Sprintf(", by a route of type %s", kind)
		}
	case kind != "":
		text = fmt.Sprintf("a route of type %s", kind)
	}
	return text
}

// refused is the remedy for what the kernel does not send on.
func (r *routing) refused(route *snapshot.Route, to netip.Addr) Remedy {
	switch {
	case route.Error == unix.EXDEV.Error():
		return advice("rp-loose", slashed(r.AnswerIn), where(r.rec))
	case route.Policy != "":
		priority, _, _ := strings.Cut(route.Policy, ":")
		return advice("way-rule", priority, where(r.rec), ipFor(to))
	}
	return advice("way-refused", to, where(r.rec), ipFor(to))
}

// followedDetour finds what the routes have to do with a connection that was followed, by how far it came.
func followedDetour(rec *snapshot.Recording, s *snapshot.FollowedService) detour {
	f := s.Failed
	target := s.Target.Addr()
	if !target.IsValid() {
		target = s.Service.Addr()
	}
	r := routingOf(rec, f.Routes, target, s.Given, s.Target.IsValid())
	if r != nil {
		r.protocol = s.Protocol
	}
	switch {
	case r == nil:
	case f.Step == snapshot.StepAnswerLost || f.Step == snapshot.StepClientSilent:
		return r.answer()
	case f.Step == snapshot.StepLostHere || f.Step == snapshot.StepUnreachableHere:
		return r.stranded()
	case f.Step == snapshot.StepNoAnswer:
		return r.question()
	}
	return detour{}
}

// stranded finds why the first packets of a connection do not leave this host.
func (r *routing) stranded() detour {
	switch q := r.Question; {
	case q == nil || q.Local:
		return detour{}
	case q.Error != "":
		if name := notForwarding(r.rec, r.In, q.Error, r.Client.Is6()); name != "" {
			return r.unforwarded(r.In, name)
		}
		return misled(fmt.Sprintf("the kernel does not lead what comes in by %s to %s: %s", r.In, r.target, refusal(q, r.In)), true, r.refused(q, r.target)).unless(q.Doubtful)
	}
	return r.blocked(r.Question, "what is sent to "+r.target.String()).unless(r.Question.Doubtful)
}

// isDeadNeighbour reports whether the destination of a connection that no rule of DNAT is for is itself the
// neighbour that does not answer: that is no fault of this host.
func (r *row) isDeadNeighbour() bool {
	rec, s := r.rec, r.FollowedService
	if s.Target.IsValid() || s.Failed.Routes == nil || s.Failed.Routes.Question == nil || rec.Last().NATRules == nil || s.Given.IsValid() && deadSources(r.all)[s.Given] || strayed(rec, s) != nil {
		return false
	}
	q := s.Failed.Routes.Question
	return q.NextHop == s.Service.Addr() && (q.Neighbour == snapshot.NeighbourFailed || q.Neighbour == snapshot.NeighbourIncomplete) &&
		!slices.ContainsFunc(rec.Last().NATRules.Rules, func(r snapshot.NATRule) bool {
			return r.Hook == "prerouting" && (r.InInterface == "" || nat.InName(r.InInterface, s.In)) && mayMatch(&r, s.Protocol, s.Service)
		})
}
