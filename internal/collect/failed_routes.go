package collect

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// mostFailed bounds the connections whose ways are asked for.
const mostFailed = 100

// failed is a connection whose ways are asked for, and where they are kept.
type failed struct {
	protocol        uint8
	client          netip.Addr
	service, target netip.AddrPort
	given           netip.Addr
	// in and answerIn are empty where they are not known.
	in, answerIn string
	put          **snapshot.Routes
}

// readRoutes asks for the routes of connections that failed: those that the table has, and those that were
// followed.
func (o *observation) readRoutes(r *snapshot.Recording) error {
	all := failedOnes(r)
	if len(all) == 0 || o.Audit == nil {
		return errNone
	}
	known, err := answer(o, question{"routes", "routes.json"}, func() (*map[string]snapshot.Route, error) {
		var known map[string]snapshot.Route
		err := o.src.inside(func() error {
			w, err := o.src.world()
			if err != nil {
				return err
			}
			defer w.close()
			k, err := newRouter(w)
			if err != nil {
				return err
			}
			k.tables = o.tables
			for i := range all {
				k.bothWays(o.Audit, &all[i])
			}
			known = k.known
			return nil
		})
		return &known, err
	})
	if err != nil {
		return noneIfAbsent(err)
	}
	k := &router{known: *known}
	for i := range all {
		*all[i].put = k.bothWays(o.Audit, &all[i])
	}
	return nil
}

// fewestAsked is how many connections of a service must have failed.
const fewestAsked = 3

func failedOnes(r *snapshot.Recording) (all []failed) {
	if r.Flows != nil && r.Flows.Services != nil {
		for i := range r.Flows.Services.All {
			s := &r.Flows.Services.All[i]
			if s.Failed() < fewestAsked || len(s.Clients) == 0 || s.Zone != 0 || len(all) >= mostFailed {
				continue
			}
			w := failed{protocol: number(s.Protocol), client: s.Clients[0], service: s.Service, target: s.Target, given: s.Given, put: &s.Routes}
			if s.Kind != snapshot.ServiceDNAT && len(s.Destinations) > 0 {
				w.target = s.Destinations[0]
			}
			if s.Kind == snapshot.ServiceUntranslated {
				w.given = netip.Addr{}
				if s.Service.IsValid() { // one destination of a network
					w.target = s.Service
				}
			}
			all = append(all, w)
		}
	}
	all = append(all, keepSources(r)...)
	if r.Followed == nil {
		return all
	}
	for i := range r.Followed.Services {
		s := &r.Followed.Services[i]
		if s.Failed == nil || s.In == "" || len(all) >= 2*mostFailed {
			continue
		}
		w := failed{protocol: number(s.Protocol), client: s.Failed.Client.Addr(), service: s.Service, target: s.Target, given: s.Given, in: s.In, answerIn: s.Failed.AnswerIn, put: &s.Failed.Routes}
		if !w.target.IsValid() {
			w.target = s.Service
		}
		all = append(all, w)
	}
	return all
}

// mostKept bounds the services of UDP whose ways are asked for because their sources keep a translation.
const mostKept = 32

// keepSources are the UDP services whose clients go on with the source that their first packet was given, which
// may be of another way than the present one.
func keepSources(r *snapshot.Recording) (all []failed) {
	if r.Flows == nil {
		return nil
	}
	for i := range r.Flows.OneWay {
		w := &r.Flows.OneWay[i]
		if w.Given.IsValid() && !w.Translated() && w.Zone == 0 && len(all) < mostKept {
			all = append(all, failed{protocol: unix.IPPROTO_UDP, client: w.Source, service: w.Service, target: w.Service, given: w.Given, put: &w.Routes})
		}
	}
	return all
}

func number(protocol string) uint8 {
	n, _ := nat.ParseProtocol(protocol)
	return n
}

// bothWays asks for the way of a connection's packets to its target, and for that of the answers; nil where the
// interface that they come in by is not known.
func (k *router) bothWays(a *snapshot.Audit, w *failed) *snapshot.Routes {
	if !w.target.IsValid() || !w.client.IsValid() {
		return nil
	}
	in := w.in
	if in == "" {
		in = k.comesIn(a, w)
	}
	if in == "" || in == loopback {
		return nil
	}
	both := &snapshot.Routes{In: in, Client: w.client, AnswerIn: cmp.Or(w.answerIn, k.given(a, w))}
	from := netip.AddrPortFrom(w.client, 0)
	question := flow{protocol: w.protocol, from: from, to: w.target, in: in}
	question.packet = packetOf(question, ruleset.ConnNew)
	if w.protocol == unix.IPPROTO_TCP {
		question.packet.Flags = synOnly
	}
	if w.service.IsValid() && w.service != w.target {
		first := question.packet.Packet
		first.Dst, first.DstPort = w.service.Addr(), w.service.Port()
		question.packet.First, question.packet.Conn = &first, question.packet.Conn|ruleset.ConnDNAT
	}
	if q, known := k.ask(question); known {
		if !w.given.IsValid() && w.service == w.target {
			k.unseen(question, &q)
		}
		both.Question = &q
		both.AnswerIn = cmp.Or(both.AnswerIn, q.Out)
	}
	if both.AnswerIn == "" && (both.Question == nil || !both.Question.Local) {
		return both
	}
	answer := flow{protocol: w.protocol, from: w.target, to: from, in: both.AnswerIn}
	answer.packet = k.answerTo(question.packet, both.Question, answer, w.given)
	if a, known := k.ask(answer); known {
		both.Answer = &a
	}
	return both
}

// unseen asks the filters about what follows the first packet of a connection that leaves by the interface which it
// came in by, as its answer may go from the next router to the client and not by this host.
func (k *router) unseen(f flow, q *snapshot.Route) {
	if k.world == nil || q.Unseen != nil || f.protocol != unix.IPPROTO_TCP || q.Out != f.in || q.NextHop == f.to.Addr() || !k.afford(throughHooks...) {
		return
	}
	p := packetOf(f, ruleset.ConnInvalid)
	p.Flags, p.Out, p.V6 = ackOnly, q.Out, f.to.Addr().Is6()
	q.Unseen = ruleset.Filter(k.tables, p, throughHooks...)
	k.known[f.String()] = *q
}

// answerTo is the answer to a packet, with the mark of the connection that rules have saved on the way.
func (k *router) answerTo(question *ruleset.Packet, q *snapshot.Route, f flow, given netip.Addr) *ruleset.Packet {
	answer := *packetOf(f, question.Conn&^ruleset.ConnNew|ruleset.ConnEstablished)
	if given.IsValid() {
		first := answer.Packet
		first.Dst = given
		answer.First = &first
	}
	if len(k.marks()) > 0 && q != nil {
		question.Out = q.Out
		k.judge(question, "forward", "postrouting")
	}
	return question.Answer(answer)
}

// comesIn is the interface of a client's network, or else that of the address which it asks for, or the
// one that leads to the client.
func (k *router) comesIn(a *snapshot.Audit, w *failed) string {
	back, _ := k.ask(flow{to: netip.AddrPortFrom(w.client, 0)})
	at, own := a.Near(w.service.Addr())
	if onLink := back.Out != "" && back.NextHop == w.client; !onLink && own && at.Name != loopback {
		return at.Name
	}
	return back.Out
}

// given is the interface of the address that the source becomes, which answers come in by.
func (k *router) given(a *snapshot.Audit, w *failed) string {
	if at, own := a.Near(w.given); own && at.Name != loopback && at.Name != w.in {
		return at.Name
	}
	return ""
}

// public is an address that only a default route leads to.
func public(v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, 15: 1})
	}
	return netip.AddrFrom4([4]byte{1, 0, 0, 1})
}

// example is what is asked about a target of which no connection is known: a neighbour on the network that
// the rule is for, and where that gets through, one of any other network.
func (k *router) example(a *host, r *snapshot.NATRule, t *snapshot.DNATTarget) *snapshot.Routes {
	in := a.comesIn(r)
	if in == "" || r.Hook != "prerouting" || !t.Address.IsValid() {
		return nil
	}
	clients := []netip.Addr{k.neighbourOn(in, t.Address.Is6()), public(t.Address.Is6())}
	if r.FromSource.IsValid() {
		clients = []netip.Addr{r.FromSource.Addr()}
	}
	for _, client := range clients {
		q, known := k.ask(flow{protocol: number(t.Protocol), from: netip.AddrPortFrom(client, 0), to: netip.AddrPortFrom(t.Address, t.Port), in: in})
		if client.IsValid() && known && q.Error != "" {
			return &snapshot.Routes{In: in, Client: client, Question: &q}
		}
	}
	return nil
}

// comesIn is the interface that a rule is for: by its name, or by the address; empty where it may be several.
func (h *host) comesIn(r *snapshot.NATRule) string {
	if i := slices.IndexFunc(h.all, func(l snapshot.Interface) bool { return l.Name == r.InInterface }); i >= 0 {
		return r.InInterface
	}
	if r.InInterface != "" || !r.ToDestination.IsSingleIP() {
		return ""
	}
	for _, l := range h.all {
		if l.Name != loopback && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == r.ToDestination.Addr() }) {
			return l.Name
		}
	}
	return ""
}

// reachable are the states of entries of neighbours that answered once.
const reachable = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT

// neighbourOn is a neighbour on an interface, the first one by its address; not valid where none is known.
func (k *router) neighbourOn(in string, v6 bool) (first netip.Addr) {
	for at, n := range k.neighbours {
		if l := k.links[at.link]; l != nil && l.name == in && at.address.Is6() == v6 && !at.address.IsLinkLocalUnicast() && !at.address.IsMulticast() && n.State&reachable != 0 &&
			(!first.IsValid() || at.address.Less(first)) {
			first = at.address
		}
	}
	return first
}

// mostStranded bounds the hosts that are asked about, as mostJudged does the rules that are compared
// with hosts; mostReported bounds those that are kept.
const (
	mostStranded = 512
	mostReported = 20
)

// stranded are the neighbours on inner networks whose packets to elsewhere a rule would translate,
// and that the kernel does not send on.
func (h *host) stranded(rules *snapshot.NATRules) (all []snapshot.StrandedHost) {
	asked, compared := 0, 0
	uplinks := map[bool]string{}
	for _, v6 := range []bool{false, true} {
		route, _ := h.router.ask(flow{to: netip.AddrPortFrom(public(v6), 0)})
		uplinks[v6] = route.Out
	}
	for at, n := range h.router.sortedNeighbours() {
		l, inner := h.router.links[at.link], at.address.IsPrivate() || at.address.Is6() && at.address.IsGlobalUnicast()
		if l == nil || l.name == uplinks[at.address.Is6()] || !inner || n.State&reachable == 0 {
			continue
		}
		if compared += len(rules.Rules) + len(h.all); compared > mostJudged {
			break
		}
		rule, to := leaves(rules, at.address, l.name)
		if rule < 0 || h.holder(at.address) != "" {
			continue
		}
		if asked++; asked > mostStranded || len(all) >= mostReported {
			break
		}
		route, known := h.router.ask(flow{from: netip.AddrPortFrom(at.address, 0), to: netip.AddrPortFrom(to, 0), in: l.name})
		through := slices.ContainsFunc(route.Marked, func(m snapshot.MarkedRoute) bool { return route.Doubtful && m.Error == "" })
		if known && route.Error != "" && !through {
			all = append(all, snapshot.StrandedHost{Rule: rule, Host: at.address, In: l.name, To: to, Route: route})
		}
	}
	return all
}

// leaves is the first rule that may translate the source of what a host on an interface sends elsewhere,
// with a destination of it; -1 where there is none.
func leaves(rules *snapshot.NATRules, from netip.Addr, in string) (rule int, to netip.Addr) {
	for i := range rules.Rules {
		r := &rules.Rules[i]
		of := r.Family == "inet" || (r.Family == "ip") == from.Is4()
		if !r.TranslatesSource() || r.Hook != "postrouting" || !of || r.FromSource.IsValid() && !r.FromSource.Contains(from) ||
			nat.InName(r.OutInterface, in) || r.OriginalDestination || slices.ContainsFunc(r.Unless, func(c snapshot.NATCondition) bool { return c.FromSource.IsValid() && c.FromSource.Contains(from) }) {
			continue
		}
		if to = public(from.Is6()); r.ToDestination.IsValid() && r.ToDestination.Bits() > 0 {
			to = r.ToDestination.Addr()
		}
		return i, to
	}
	return -1, to
}
