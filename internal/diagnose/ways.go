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

// fewestLost is how many packets a place must drop between the snapshots before what it drops is missed:
// a client that gets no answer sends that often.
const fewestLost = 3

// ways is what filters do to traffic that the host translates, serves and bridges, and what they dropped
// between the last two snapshots.
type ways struct {
	rec         *snapshot.Recording
	now, before *snapshot.Ways
}

func readWays(rec *snapshot.Recording) (*ways, Check) {
	last := rec.Last()
	var end Check
	switch {
	case last.Ways == nil:
		_, end = unknown(cmp.Or(last.PartError(snapshot.PartWays), last.PartError("nat_rules"), "the filters were not asked about it: a bundle of an older natkit"))
	case rec.First().Ways == nil:
		_, end = unknown(cmp.Or(rec.First().PartError(snapshot.PartWays), askedOnce))
	case rec.SinceStart && slices.ContainsFunc(last.Ways.All, dropsSome):
		_, end = unknown(askedOnce)
	default:
		return &ways{rec, last.Ways, rec.First().Ways}, end
	}
	return nil, end
}

const askedOnce = "the filters were asked once only: what they count cannot be compared"

// dropsSome reports whether a filter drops something of a way.
func dropsSome(way snapshot.Way) bool {
	return slices.ContainsFunc([]*snapshot.Filter{way.Filter, way.AnswerFilter, way.LaterFilter}, func(f *snapshot.Filter) bool {
		return f != nil && len(f.Drops) > 0
	})
}

// readCut is readWays, and takes what was read once.
func readCut(rec *snapshot.Recording) (*ways, Check) {
	if last := rec.Last(); rec.SinceStart && last.Ways != nil {
		return &ways{rec, last.Ways, nil}, Check{}
	}
	return readWays(rec)
}

// of are the ways of a kind.
func (w *ways) of(kind string) (all []*snapshot.Way) {
	for i := range w.now.All {
		if w.now.All[i].Kind == kind {
			all = append(all, &w.now.All[i])
		}
	}
	return all
}

// ended ends a check without a finding.
func (w *ways) ended(why string) (*Finding, Check) {
	if w.now.TooMany {
		return unknown("there are too many rules to ask about all; of what was asked, " + why)
	}
	return passed(why)
}

// The filters of a way.
func firstFilter(w *snapshot.Way) *snapshot.Filter  { return w.Filter }
func answerFilter(w *snapshot.Way) *snapshot.Filter { return w.AnswerFilter }

// filterLoss is what the places of a filter dropped between the snapshots.
type filterLoss struct {
	places  []snapshot.RulePlace
	grown   []uint64
	packets uint64
	// counted is true where one of them counts; ever is true where it counts from its start on.
	counted, ever bool
}

// lossOf returns what dropped the packets of ways, of those filters that let none pass.
func (w *ways) lossOf(all []*snapshot.Way, filter func(*snapshot.Way) *snapshot.Filter) (l filterLoss) {
	l.ever = w.rec.SinceStart
	for _, way := range all {
		f := filter(way)
		if f == nil || f.Passes {
			continue
		}
		var before *snapshot.Filter
		if earlier := w.before.Before(way); earlier != nil {
			before = filter(earlier)
		} else if w.rec.SinceStart {
			before = f.Unused()
		}
		l.add(f, before)
	}
	return l
}

// add takes the places of a filter, each once.
func (l *filterLoss) add(f, before *snapshot.Filter) {
	grown := f.Grown(before)
	for i, d := range f.Drops {
		if slices.ContainsFunc(l.places, func(p snapshot.RulePlace) bool { return p.Text == d.Text && p.Handle == d.Handle }) {
			continue
		}
		l.places, l.grown = append(l.places, d), append(l.grown, grown[i])
		l.packets += grown[i]
		l.counted = l.counted || d.Counted
	}
}

// felt reports whether packets were dropped lately, or nothing counts them.
func (l *filterLoss) felt() bool { return l.packets >= fewestLost || len(l.places) > 0 && !l.counted }

// all reports whether every place is such.
func (l *filterLoss) all(such func(*snapshot.RulePlace) bool) bool {
	for i := range l.places {
		if !such(&l.places[i]) {
			return false
		}
	}
	return len(l.places) > 0
}

func isNamed(p *snapshot.RulePlace) bool { return p.Named }
func isPort(p *snapshot.RulePlace) bool  { return p.ForPort }

func (l *filterLoss) evidence(what string) (all []Evidence) {
	when := map[bool]string{false: "meanwhile", true: "since it counts"}[l.ever]
	for i, p := range l.places[:min(len(l.places), mostListed)] {
		all = append(all, placeOf("what drops "+what, p))
		if l.grown[i] > 0 {
			all = append(all, Evidence{What: "dropped there " + when, Value: int64(l.grown[i]), Unit: "packets", Source: "counter of the rule"})
		}
	}
	return all
}

// network is the ways of what one network sends.
type network struct {
	ways []*snapshot.Way
	// cut is true where none of it passes.
	cut  bool
	loss filterLoss
}

func (n *network) String() string {
	w := n.ways[0]
	if w.Kind == snapshot.WayOwn {
		return fmt.Sprintf("programs of this host to the outside (%s)", w.Out)
	}
	return fmt.Sprintf("%s (%s) to the outside (%s)", w.Network, w.In, w.Out)
}

// networks groups the ways of networks whose sources are translated.
func (w *ways) networks() (all []*network) {
	for _, way := range w.of(snapshot.WaySource) {
		if way.Filter == nil { // not asked, or passed by
			continue
		}
		i := slices.IndexFunc(all, func(n *network) bool {
			o := n.ways[0]
			return o.Network == way.Network && o.In == way.In && o.Out == way.Out
		})
		if i < 0 {
			i, all = len(all), append(all, &network{cut: true})
		}
		all[i].ways = append(all[i].ways, way)
		all[i].cut = all[i].cut && !way.Filter.Passes
	}
	for _, n := range all {
		n.loss = w.lossOf(n.ways, firstFilter)
	}
	return all
}

// snatLoss is what of a network's traffic is dropped.
type snatLoss struct {
	*network
	filterLoss
	// what is dropped, of which port where it is one; answers is true where it is answers.
	what    string
	port    *snapshot.Way
	answers bool
}

// checkSNATFiltered: what a rule translates the source of is dropped before it leaves, or its answers are.
// Firewalls cut networks off on purpose: a rule that is for a network, where the one that translates is
// for all, is one. What counters do not show to happen is not missed.
func (w *ways) checkSNATFiltered() (*Finding, Check) {
	all := w.networks()
	var bad []snatLoss
	if w.rec.SinceStart {
		return w.checkCut(all)
	}
	if own := w.of(snapshot.WayOwn); len(own) > 0 {
		bad = w.servicesCut(&network{ways: own})
	}
	for _, n := range all {
		if l, is := w.cutOff(n, all); is {
			bad = append(bad, l)
			continue
		}
		bad = append(bad, w.servicesCut(n)...)
		bad = append(bad, w.answersCut(n)...)
	}
	networks := units.Plural(int64(len(all)), "network", "networks")
	switch {
	case len(all)+len(bad) == 0:
		return w.ended("no rule translates the sources of a network behind this host")
	case len(bad) == 0:
		return w.ended("filters drop nothing that is missed of what is sent to the outside (" + networks + " asked about)")
	}
	return w.snatFinding(bad), Check{Why: fmt.Sprintf("filters drop what networks send to the outside, or its answers (%s asked about)", networks)}
}

// checkCut is checkSNATFiltered where counters are known since they began alone: a network whose sources a rule of
// its own translates is not cut off on purpose, whenever it was felt.
func (w *ways) checkCut(all []*network) (*Finding, Check) {
	var bad []snatLoss
	for _, n := range all {
		if n.ways[0].Explicit && n.cut && n.loss.felt() {
			bad = append(bad, snatLoss{network: n, filterLoss: n.loss, what: "everything from " + n.String()})
		}
	}
	networks := units.Plural(int64(len(all)), "network", "networks")
	switch {
	case len(bad) == 0 && slices.ContainsFunc(w.now.All, dropsSome):
		return unknown(askedOnce)
	case len(bad) == 0:
		return w.ended("filters drop nothing of what is sent to the outside (" + networks + " asked about)")
	}
	f := w.snatFinding(bad)
	f.Severity, f.Confidence = Warning, "possible"
	return f, Check{Why: fmt.Sprintf("filters drop everything that networks send to the outside (%s asked about)", networks)}
}

// cutOff reports whether all of what a network sends is dropped though it is meant to pass.
func (w *ways) cutOff(n *network, all []*network) (l snatLoss, is bool) {
	l = snatLoss{network: n, filterLoss: n.loss, what: "everything from " + n.String()}
	explicit, live := n.ways[0].Explicit, n.ways[0].Host.IsValid()
	others := slices.ContainsFunc(all, func(o *network) bool {
		return !o.cut && o.ways[0].Network.Addr().Is4() == n.ways[0].Network.Addr().Is4()
	})
	switch {
	case !n.cut || !l.felt() || !live && l.packets == 0:
		return l, false
	case explicit:
		return l, true
	case others && (l.all(isNamed) || !l.counted || w.shares(n, all)):
		return l, false
	}
	return l, true
}

// shares reports whether something else may have come to the places where a network's traffic is dropped.
func (w *ways) shares(n *network, all []*network) bool {
	return slices.ContainsFunc(all, func(o *network) bool {
		return o != n && slices.ContainsFunc(o.ways, func(way *snapshot.Way) bool {
			return slices.ContainsFunc(way.Filter.Drops, func(d snapshot.RulePlace) bool {
				return slices.ContainsFunc(n.loss.places, func(p snapshot.RulePlace) bool { return p.Text == d.Text && p.Handle == d.Handle })
			})
		})
	})
}

// servicesCut are the services of the outside that a rule for their port drops, of those that no network
// can do without.
func (w *ways) servicesCut(n *network) (all []snatLoss) {
	for _, way := range n.ways {
		name := map[string]string{"tcp/443": "HTTPS", "tcp/80": "HTTP", "udp/53": "DNS"}[fmt.Sprintf("%s/%d", way.Protocol, way.Port)]
		l := snatLoss{network: n, filterLoss: w.lossOf([]*snapshot.Way{way}, firstFilter), port: way}
		if name == "" || l.packets < fewestLost || !l.all(isPort) || way.Filter == nil || name == "DNS" && w.resolves(n) {
			continue
		}
		l.what = fmt.Sprintf("%s (%s port %d) from %s", name, way.Protocol, way.Port, n)
		all = append(all, l)
	}
	return all
}

// resolves reports whether a network may ask this host, or one that a rule leads to, for names.
func (w *ways) resolves(n *network) bool {
	if n.ways[0].Kind == snapshot.WayOwn {
		return false
	}
	if t := w.rec.Last().DNATTargets; t != nil && slices.ContainsFunc(t.Targets, func(t snapshot.DNATTarget) bool { return t.Port == 53 }) {
		return true
	}
	return n.ways[0].Resolver
}

// answersCut are the answers that are dropped though the questions pass, of the protocols that are.
func (w *ways) answersCut(n *network) (all []snatLoss) {
	var dropped []*snapshot.Way
	var protocols []string
	for _, way := range n.ways {
		if way.Protocol != "icmp" && way.Filter.Passes && way.AnswerFilter != nil && !way.AnswerFilter.Passes {
			dropped, protocols = append(dropped, way), once(protocols, way.Protocol)
		}
	}
	l := snatLoss{network: n, filterLoss: w.lossOf(dropped, answerFilter), answers: true}
	l.what = fmt.Sprintf("the answers (%s) to what %s (%s) sends to the outside (%s)", strings.Join(protocols, ", "), n.ways[0].Network, n.ways[0].In, n.ways[0].Out)
	if len(dropped) > 0 && l.felt() && (n.ways[0].Host.IsValid() || l.packets > 0) && !w.ofTargets(&l) {
		all = append(all, l)
	}
	return all
}

// ofTargets reports whether the same places drop what DNAT leads to, or its answers, and nothing shows
// that it is something else, too: answers to translated sources that are dropped leave half open connections.
func (w *ways) ofTargets(l *snatLoss) bool {
	if w.rec.Flows != nil && w.rec.Flows.Services != nil && slices.ContainsFunc(w.rec.Flows.Services.All, func(s snapshot.Service) bool {
		return s.Kind == snapshot.ServiceSNAT && s.HalfOpen > 0
	}) {
		return false
	}
	targets := w.rec.Last().DNATTargets
	return targets != nil && slices.ContainsFunc(targets.Targets, func(t snapshot.DNATTarget) bool {
		return slices.ContainsFunc([]*snapshot.Filter{t.Filter, t.AnswerFilter}, func(f *snapshot.Filter) bool {
			return f != nil && !f.Passes && slices.ContainsFunc(f.Drops, func(d snapshot.RulePlace) bool {
				return slices.ContainsFunc(l.places, func(p snapshot.RulePlace) bool { return p.Text == d.Text && p.Handle == d.Handle })
			})
		})
	})
}

func (w *ways) snatFinding(bad []snatLoss) *Finding {
	f := worded("snat-filtered", nil, nil)
	var names, places []string
	for i := range bad {
		l := &bad[i]
		if l.packets > 0 && (l.answers || l.ways[0].Explicit) {
			f.Severity = Critical
		}
		if i < mostListed {
			f.Evidence = append(f.Evidence, l.evidence(l.what)...)
		}
		if i < mostShown {
			names = append(names, l.what)
			f.Remedies = append(f.Remedies, w.accepts(l))
		}
		for _, p := range l.places {
			places = once(places, p.Text)
		}
	}
	f.Title = "filters drop what this host should translate: " + firstOf(names)
	f.Cause = "no rule accepts it before: " + strings.Join(places[:min(len(places), mostShown)], "; ")
	if r := w.ruleOf(bad[0].ways[0]); r != nil {
		f.Evidence = append(f.Evidence, Evidence{What: "the rule that translates it", Value: r.Place() + ": " + r.Text, Source: "NAT rules by netlink"})
	}
	return f
}

func (w *ways) ruleOf(way *snapshot.Way) *snapshot.NATRule {
	rules := w.rec.Last().NATRules
	if rules == nil || way.Rule < 0 || way.Rule >= len(rules.Rules) {
		return nil
	}
	return &rules.Rules[way.Rule]
}

// accepts is how the program that keeps the filter lets a network's traffic pass.
func (w *ways) accepts(l *snatLoss) Remedy {
	way, place := l.ways[0], l.places[0]
	switch {
	case l.answers:
		return acceptAnswers(place, "FORWARD", w.rec)
	case isEarly(place):
		return restrict(place, w.rec)
	}
	a := accepted{in: way.In, from: way.Network, out: way.Out, chain: "FORWARD"}
	if way.Kind == snapshot.WayOwn {
		a = accepted{out: way.Out, chain: "OUTPUT"}
	}
	if l.port != nil {
		a.protocol, a.to = l.port.Protocol, netip.AddrPortFrom(netip.Addr{}, l.port.Port)
	}
	return advice("filter-accept-way", l.what, bothWays(a.how(place, place.Owner), place, way.AnswerFilter, map[string]string{"OUTPUT": "INPUT"}[a.chain]), where(w.rec))
}

// bothWays adds to how first packets are accepted the same for what answers them, where filters drop that as well:
// one direction alone helps nobody. The place that drops the first packets is the one for both where it does.
func bothWays(how string, first snapshot.RulePlace, answers *snapshot.Filter, chain string) string {
	if answers == nil || answers.Passes || len(answers.Drops) == 0 {
		return how
	}
	p := answers.Drops[0]
	if slices.ContainsFunc(answers.Drops, func(d snapshot.RulePlace) bool { return d.Text == first.Text && d.Handle == first.Handle }) {
		p = first
	}
	if isEarly(p) || p.Owner == "firewalld" || p.Owner == "ufw" { // these two accept answers before
		return how
	}
	return how + "; and for the answers " + accepted{chain: cmp.Or(chain, "FORWARD"), answers: true}.how(p, p.Owner)
}

// isEarly reports whether a place sees packets before their translation, and the way that they leave by, are
// known, or is where none are to be let pass.
func isEarly(p snapshot.RulePlace) bool {
	return p.Early || strings.HasPrefix(p.Text, "netdev ") || strings.Contains(p.Text, " -t raw ") || strings.Contains(p.Text, " -t mangle ")
}

// restrict is the advice for a place before which natkit has no rule that accepts.
func restrict(p snapshot.RulePlace, rec *snapshot.Recording) Remedy {
	return advice("filter-restrict", p.Text+keeper(p), where(rec))
}

// acceptAnswers is the advice for a place that drops what belongs to connections.
func acceptAnswers(p snapshot.RulePlace, chain string, rec *snapshot.Recording) Remedy {
	if isEarly(p) || p.Owner == "firewalld" {
		return restrict(p, rec)
	}
	return advice("filter-accept-answers", accepted{chain: chain, answers: true}.how(p, p.Owner), where(rec))
}

// acceptRule is a rule of iptables or nftables that accepts before a place.
func acceptRule(p snapshot.RulePlace, chain, iptables, nft string) string {
	if isIPTables(p) {
		if chain == "FORWARD" && (p.Owner == "docker" || strings.Contains(p.Text, " DOCKER-USER ")) {
			chain = "DOCKER-USER"
		}
		command, _, _ := strings.Cut(p.Text, " ")
		return command + " -I " + chain + " " + iptables + " -j ACCEPT"
	}
	at, _, _ := strings.Cut(p.Text, ":")
	return "nft insert rule " + at + " " + nft + " accept"
}

// answersOf is what drops the answers to a translated source: filters that let none pass, or, where servers
// answer and clients do not go on, those that may drop some and did so meanwhile; nil where there are none.
func (w *ways) answersOf(s *snapshot.Service) *snatLoss {
	for _, way := range w.of(snapshot.WaySource) {
		r := w.ruleOf(way)
		if way.Protocol != s.Protocol || way.AnswerFilter == nil || way.Filter != nil && !way.Filter.Passes || r == nil || s.Given.Is4() != way.Network.Addr().Is4() {
			continue
		}
		if r.First.IsValid() && (s.Given.Less(r.First) || r.Last.Less(s.Given)) {
			continue
		}
		l := &snatLoss{network: &network{ways: []*snapshot.Way{way}}, answers: true}
		var before *snapshot.Filter
		if earlier := w.before.Before(way); earlier != nil {
			before = earlier.AnswerFilter
		}
		l.add(way.AnswerFilter, before)
		if way.AnswerFilter.Passes && s.HalfOpen <= s.Unanswered {
			continue
		}
		if way.AnswerFilter.Passes {
			l.filterLoss = l.grew(uint64(max(fewestLost, s.HalfOpen/2)))
		}
		if len(l.places) > 0 {
			return l
		}
	}
	return nil
}

// grew has those of the places that dropped so many packets meanwhile.
func (l *filterLoss) grew(fewest uint64) (some filterLoss) {
	for i, p := range l.places {
		if l.grown[i] >= fewest {
			some.places, some.grown = append(some.places, p), append(some.grown, l.grown[i])
			some.packets, some.counted = some.packets+l.grown[i], true
		}
	}
	return some
}

// servedNames are the services that hosts of a network ask their gateway for.
var servedNames = map[uint16]string{53: "DNS", 67: "DHCP", 123: "NTP"}

// meant reports whether a network is meant to be answered: a rule for the port is in the way of what hosts
// do ask for, or nobody but this host reaches a program that is there for networks. Of other programs lists of
// who may ask are usual, and what a policy drops is mostly something else.
func (w *ways) meant(way *snapshot.Way, l *filterLoss) bool {
	switch way.Port {
	case 53, 67:
		return l.all(isPort) || !way.Elsewhere
	case 123:
		return l.all(isPort)
	}
	return l.all(isPort) && !slices.ContainsFunc(l.places, func(p snapshot.RulePlace) bool { return p.Named })
}

// checkServedFiltered: a program listens for a network behind this host, and rules drop what the network
// sends to it.
func (w *ways) checkServedFiltered() (*Finding, Check) {
	if w.now.NoSockets != "" {
		return unknown(w.now.NoSockets)
	}
	var f *Finding
	var names []string
	for _, way := range w.of(snapshot.WayServed) {
		l := w.lossOf([]*snapshot.Way{way}, firstFilter)
		if l.packets < fewestLost || !w.meant(way, &l) {
			continue
		}
		if f == nil {
			f = worded("served-filtered", nil, nil)
			f.Cause = "no rule accepts it before: " + l.places[0].Text
		}
		name := fmt.Sprintf("%s port %d", way.Protocol, way.Port)
		if known := servedNames[way.Port]; known != "" {
			name = fmt.Sprintf("%s (%s)", known, name)
		}
		name += fmt.Sprintf(" from %s (%s)", way.Network, way.In)
		names = append(names, name)
		f.Evidence = append(f.Evidence, l.evidence(name)...)
		f.Evidence = append(f.Evidence, Evidence{What: "what listens for it", Value: way.Socket.String(), Source: "sock_diag"})
		if len(f.Remedies) < mostShown {
			one := restrict(l.places[0], w.rec)
			if !isEarly(l.places[0]) {
				a := accepted{protocol: way.Protocol, to: netip.AddrPortFrom(netip.Addr{}, way.Port), in: way.In, chain: "INPUT"}
				one = advice("filter-accept-way", name, a.how(l.places[0], l.places[0].Owner), where(w.rec))
			}
			f.Remedies = append(f.Remedies, one)
		}
	}
	if f == nil {
		return w.ended("filters drop nothing that networks behind this host ask of it and that is missed")
	}
	f.Title = "filters drop what a program of this host should answer: " + firstOf(names)
	return f, Check{Why: "filters drop what networks behind this host ask of it"}
}

// checkBridgeFiltered: the rules of IP, or of the bridge, drop what the ports of a bridge send to each other.
func (w *ways) checkBridgeFiltered() (*Finding, Check) {
	all := slices.DeleteFunc(w.of(snapshot.WayBridge), func(way *snapshot.Way) bool { return way.Out == "" })
	l := w.lossOf(all, firstFilter)
	switch {
	case len(all) == 0:
		return w.ended("no filter sees what bridges pass on")
	case l.packets < fewestLost || l.all(isNamed) || slices.ContainsFunc(all, func(way *snapshot.Way) bool { return way.Filter != nil && way.Filter.Passes }):
		return w.ended("filters let pass what the ports of bridges send to each other, as far as any is missed")
	}
	f := worded("bridge-filtered", l.evidence("what the ports of "+all[0].In+" send to each other"), nil, all[0].In, l.places[0].Text)
	f.About = w.bridgedAway(l.places[0].Text)
	if p := l.places[0]; hasBridgeRule(p) {
		f.Remedies = append(f.Remedies, acceptBridged(p, all[0].In, w.rec), advice("bridge-nf-off", where(w.rec)))
	} else {
		f.Remedies = append(f.Remedies, restrict(p, w.rec))
	}
	return f, Check{Why: "filters drop what bridges pass on"}
}

// bridgedAway are destinations of connections that were seen to be dropped by a rule on a bridge.
func (w *ways) bridgedAway(rule string) (all []netip.AddrPort) {
	if w.rec.Followed == nil {
		return nil
	}
	for i := range w.rec.Followed.Services {
		s := &w.rec.Followed.Services[i]
		if s.Failed == nil || !s.Failed.Step.Here() || len(all) == mostListed {
			continue
		}
		if f := filterOf(w.rec, s); f != nil && slices.ContainsFunc(f.Drops, func(d snapshot.RulePlace) bool { return d.Text == rule }) {
			all = append(all, s.Service)
		}
	}
	return all
}

// hidesNeighbours are the rules that may keep a host on an interface from being found; empty for none.
func hidesNeighbours(rec *snapshot.Recording, device string, v6 bool) string {
	if rec.Last().Ways == nil {
		return ""
	}
	var texts []string
	for _, way := range rec.Last().Ways.All {
		if on := cmp.Or(way.In, way.Out) == device; on && way.Filter != nil && (way.Kind == snapshot.WayBridge && way.Out == "" || way.Kind == snapshot.WayNeighbours && v6) {
			for _, d := range way.Filter.Drops {
				texts = once(texts, d.Text)
			}
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return "; rules of this host drop, or may drop, what hosts there are found by: " + firstOf(texts)
}

// checkNDiscFiltered: rules drop the messages by which IPv6 finds the hosts of a network.
func (w *ways) checkNDiscFiltered() (*Finding, Check) {
	all := w.of(snapshot.WayNeighbours)
	all = slices.DeleteFunc(all, func(way *snapshot.Way) bool {
		l := w.lossOf([]*snapshot.Way{way}, firstFilter)
		return !l.felt()
	})
	if len(all) == 0 {
		return w.ended("filters let neighbour discovery of IPv6 pass, or it is not used")
	}
	l := w.lossOf(all, firstFilter)
	var names []string
	for _, way := range all {
		names = once(names, way.Protocol+" on "+cmp.Or(way.In, way.Out))
	}
	chain := map[bool]string{true: "INPUT", false: "OUTPUT"}[all[0].In != ""]
	accept := func(message string) string {
		return acceptRule(l.places[0], chain, "-p icmpv6 --icmpv6-type neighbour-"+message, "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert }")
	}
	how := accept("solicitation")
	if other := accept("advertisement"); other != how { // each host asks, and answers
		how = fmt.Sprintf("'%s' and '%s'", how, other)
	}
	one := advice("filter-accept-way", "neighbour discovery", how, where(w.rec))
	if p := l.places[0]; isEarly(p) || p.Owner == "firewalld" {
		one = restrict(p, w.rec)
	}
	return worded("ndisc-filtered", l.evidence("neighbour discovery"), []Remedy{one}, firstOf(names), l.places[0].Text),
		Check{Why: "filters drop neighbour discovery"}
}

// checkLaterFiltered: rules drop packets of connections that came about.
func (w *ways) checkLaterFiltered() (*Finding, Check) {
	var l filterLoss
	var names []string
	take := func(name string, now, before *snapshot.Filter) {
		part := filterLoss{}
		part.add(now, before)
		for i, p := range part.places {
			if part.grown[i] < fewestLost || p.Limits || p.Unsure {
				continue
			}
			names = once(names, name)
			l.add(&snapshot.Filter{Drops: []snapshot.RulePlace{p}}, &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: p.Text, Handle: p.Handle, Counted: true, Packets: p.Packets - part.grown[i]}}})
		}
	}
	asked := 0
	w.laterOfTargets(func(name string, now, before *snapshot.Filter) { asked++; take(name, now, before) })
	for _, way := range w.of(snapshot.WaySource) {
		if earlier := w.before.Before(way); way.LaterFilter != nil && earlier != nil && earlier.LaterFilter != nil && (way.AnswerFilter == nil || way.AnswerFilter.Passes) {
			asked++
			take(fmt.Sprintf("what %s (%s) sends to the outside", way.Network, way.In), withChance(way.LaterFilter, way.Filter), withChance(earlier.LaterFilter, earlier.Filter))
		}
	}
	if errors := w.errorsLost(); errors.packets > 0 && len(names) == 0 {
		return w.errorsFinding(errors)
	}
	switch {
	case asked == 0:
		return w.ended("no connection is translated that rules could be asked about")
	case len(names) == 0:
		return w.ended("filters drop nothing of connections that came about")
	}
	f := worded("established-filtered", l.evidence("packets of connections"), nil, firstOf(names))
	var places []string
	for _, p := range l.places {
		places = append(places, p.Text)
		one := w.deletes(p)
		if !p.Part && !p.Random { // it is the end of a chain, or what is not accepted before comes to it
			one, f.Confidence = acceptAnswers(p, builtIn(p), w.rec), "likely"
		}
		if !slices.ContainsFunc(f.Remedies, func(r Remedy) bool { return r.Title == one.Title }) {
			f.Remedies = append(f.Remedies, one)
		}
	}
	f.Cause = "a rule drops some of their packets: " + firstOf(places)
	if f.Confidence == "likely" {
		f.Cause = "no rule accepts all of their packets before: " + firstOf(places)
	}
	if l.all(func(p *snapshot.RulePlace) bool { return p.Random }) {
		f.Cause = "a rule drops packets by chance: " + firstOf(places)
	}
	return f, Check{Why: "rules drop packets of connections that came about"}
}

// deletes is the advice for a rule that drops some packets of connections and not others.
func (w *ways) deletes(p snapshot.RulePlace) Remedy {
	how := deletes(p)
	if list := lists(p); !strings.HasPrefix(how, list) {
		how = list + ", and " + how
	}
	return advice("filter-delete", how+keeper(p), where(w.rec))
}

// builtIn is the built-in chain of iptables that leads to a place, as far as its text tells.
func builtIn(p snapshot.RulePlace) string {
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		if strings.Contains(p.Text, " "+chain+" ") {
			return chain
		}
	}
	return "FORWARD"
}

// errorsLost is what drops ICMP errors and, as far as is known, nothing else.
func (w *ways) errorsLost() (l filterLoss) {
	all := w.of(snapshot.WayErrors)
	l = w.lossOf(all, firstFilter)
	others := func(f *snapshot.Filter) bool {
		return f != nil && slices.ContainsFunc(f.Drops, func(d snapshot.RulePlace) bool {
			return slices.ContainsFunc(l.places, func(p snapshot.RulePlace) bool { return p.Text == d.Text && p.Handle == d.Handle })
		})
	}
	for i := range w.now.All {
		if way := &w.now.All[i]; way.Kind != snapshot.WayErrors && (others(way.Filter) || others(way.AnswerFilter) || others(way.LaterFilter)) {
			return filterLoss{}
		}
	}
	if targets := w.rec.Last().DNATTargets; targets != nil {
		for _, t := range targets.Targets {
			if t.Filter != nil && !t.Filter.Passes && others(t.Filter) || others(t.AnswerFilter) || others(t.LaterFilter) {
				return filterLoss{}
			}
		}
	}
	if l.packets < fewestLost {
		return filterLoss{}
	}
	return l
}

func (w *ways) errorsFinding(l filterLoss) (*Finding, Check) {
	way := w.of(snapshot.WayErrors)[0]
	f := worded("established-filtered errors", l.evidence("ICMP errors of connections"), nil, way.Network, way.Out, l.places[0].Text)
	f.Remedies = append(f.Remedies, acceptAnswers(l.places[0], "FORWARD", w.rec))
	return f, Check{Why: "filters drop the ICMP errors of connections"}
}

// withChance adds to what drops later packets what drops some of the first ones.
func withChance(later, first *snapshot.Filter) *snapshot.Filter {
	both := *later
	if first != nil {
		for _, d := range first.Drops {
			if d.Part && !d.Unsure {
				both.Drops = append(slices.Clip(both.Drops), d)
			}
		}
	}
	return &both
}

// laterOfTargets does something with what DNAT leads to, of which later packets were asked about.
func (w *ways) laterOfTargets(do func(name string, now, before *snapshot.Filter)) {
	now, before := w.rec.Last().DNATTargets, w.rec.First().DNATTargets
	if now == nil || before == nil || w.rec.Last().NATRules == nil {
		return
	}
	for _, t := range now.Targets {
		earlier := targetBefore(before, &t)
		if earlier == nil || earlier.LaterFilter == nil || t.LaterFilter == nil || t.Filter == nil || !t.Filter.Passes || t.AnswerFilter != nil && !t.AnswerFilter.Passes {
			continue
		}
		name := "what DNAT leads to " + (&unreachable{DNATTarget: t}).String()
		do(name, withChance(t.LaterFilter, t.Filter), withChance(earlier.LaterFilter, earlier.Filter))
	}
}
