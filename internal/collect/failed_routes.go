package collect

import (
	"cmp"
	"net/netip"

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
func (n *reading) readRoutes(r *snapshot.Recording) error {
	all := failedOnes(r)
	if len(all) == 0 || n.Audit == nil {
		return errNone
	}
	known, err := answer(n.observation, question{"routes", "routes.json"}, func() (*map[string]snapshot.Route, error) { return n.askRoutes(all) })
	if err != nil {
		return noneIfAbsent(err)
	}
	k := &router{known: *known}
	for i := range all {
		*all[i].put = k.bothWays(n.Audit, &all[i])
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
	if k.conn == nil || q.Unseen != nil || f.protocol != unix.IPPROTO_TCP || q.Out != f.in || q.NextHop == f.to.Addr() || !k.afford(throughHooks...) {
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
