package ruleset

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/unix"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

const (
	// mostCompared bounds the comparisons of Audit, some 0.2 µs each.
	mostCompared = 300_000
	// mostAudited bounds the rules of each kind that it finds.
	mostAudited = 1000
)

// conntrackPriority is NF_IP_PRI_CONNTRACK: what exempts packets from tracking later has no effect.
const conntrackPriority = -200

// Routed returns the interface by which an address is reached; empty where that is not known.
type Routed func(netip.Addr) string

// Audit compares the rules of tables, read for Judge, with each other. It does not know of the host.
func Audit(tables []*Table, routed Routed) *snapshot.Audit {
	a := &auditor{left: mostCompared, out: &snapshot.Audit{}}
	for _, hook := range HookNames {
		a.hook(tables, hook)
	}
	a.untracked(tables, routed)
	for _, t := range tables {
		a.refusals(t)
		a.variant(t)
	}
	a.out.MSSFree = !slices.ContainsFunc(tables, (*Table).limitsMSS)
	a.out.TooMany = a.left < 0
	return a.out
}

// limitsMSS reports whether a rule of the table gives SYNs another MSS.
func (t *Table) limitsMSS() bool {
	return slices.ContainsFunc(t.Chains, func(c *Chain) bool {
		return slices.ContainsFunc(c.Rules, func(r *Rule) bool { return r.Target.Kind == MSS })
	})
}

// auditor collects what Audit finds.
type auditor struct {
	out *snapshot.Audit
	// left is how many comparisons may still be made.
	left int
	// found are the rules that translate, in the order in which packets reach them; at has those of
	// this base chain.
	found []*translation
	at    map[*Rule]*translation
	// takers are what takes packets at this hook, those so far; by has their places in the list.
	takers []taker
	by     map[takerKey][]int
}

// translation is a rule that translates, at one base chain.
type translation struct {
	Place
	base *Chain
	// match is that of the first path that leads to it, paths is how many do.
	match Match
	paths int
	// by took the packets of all paths before; without a rule where some come to it.
	by Place
	// alike is true where it has the conditions of the rule that took them, too.
	alike bool
}

// taker is packets that a rule takes: none of them comes to a later one.
type taker struct {
	Place
	match Match
	// not are those that may have left its chain before, and those that led to it. Rules share
	// the lists: there are chains with thousands of returns.
	not [][]*Match
	// over is set where packets are past what they were taken out of.
	over bool
}

// takerKey is what packets must have that a taker may cover: the protocol, the port and the
// destination where there is one only, or, where it has none of these, the sources.
type takerKey struct {
	protocol uint8
	port     uint16
	to, from netip.Prefix
}

// key has what a match asks for.
func (m *Match) key() (k takerKey) {
	k.protocol = m.Protocol
	if len(m.Ports) == 1 && m.Ports[0].Len() == 1 {
		k.port = m.Ports[0].First
	}
	if to := m.Dest(); to.IsSingleIP() {
		k.to = to
	}
	if k == (takerKey{}) {
		k.from = m.Source().Masked()
	}
	return k
}

// takes reports whether it is certain that all packets of a match are taken.
func (t *taker) takes(m *Match) bool {
	return !t.over && t.match.Covers(m) && !slices.ContainsFunc(t.not, func(list []*Match) bool {
		return slices.ContainsFunc(list, func(n *Match) bool { return !n.Disjoint(m) })
	})
}

// hook goes through the chains of NAT at a hook. Where one of them translates, later ones are not
// asked (nf_nat_inet_fn), and where one accepts, they are.
func (a *auditor) hook(tables []*Table, hook string) {
	type base struct {
		*Table
		*Chain
	}
	var chains []base
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Hook == hook && c.Type == "nat" {
				chains = append(chains, base{t, c})
			}
		}
	}
	slices.SortStableFunc(chains, func(x, y base) int { return cmp.Compare(x.Priority, y.Priority) })
	a.takers, a.by = nil, map[takerKey][]int{}
	for _, c := range chains {
		a.at = map[*Rule]*translation{}
		m := Match{}
		m.of(c.version())
		from := len(a.takers)
		a.walk(c.Table, c.Chain, c.Chain, m, 0)
		a.pass(from, func(t *taker) bool { return !t.Rule.Target.Translates() && t.Rule.Target.Kind != Drop })
	}
}

// version is that of IP of a table's packets; 0 is both.
func (t *Table) version() int { return map[string]int{"ip": 4, "ip6": 6}[t.Family] }

// walk takes packets of a match through a chain, and notes what takes some of them for certain.
func (a *auditor) walk(t *Table, base, c *Chain, m Match, depth int) {
	if c == nil || depth > deepest || a.left < 0 {
		return
	}
	begin := len(a.takers)
	var returned []*Match // what may have left the chain for the one that led to it
	for _, r := range c.Rules {
		a.left--
		both, possible := m.And(&r.Match)
		if !possible {
			continue
		}
		from := len(a.takers)
		switch k := r.Target.Kind; {
		case k == Accept, k == Drop, k == Return:
			a.take(Place{Table: t, Chain: c, Rule: r}, both)
		case k == Jump, k == Goto, k == Ends:
			for _, name := range r.Target.Chains {
				a.walk(t, base, t.Find(name), both, depth+1)
			}
		case r.Target.Translates():
			a.reach(Place{Table: t, Chain: c, Rule: r}, base, both)
			a.take(Place{Table: t, Chain: c, Rule: r}, both)
		}
		for i := from; i < len(a.takers) && len(returned) > 0; i++ {
			a.takers[i].not = append(a.takers[i].not, slices.Clip(returned))
		}
		if r.Target.Kind == Goto || r.Target.Kind == Return {
			returned = append(returned, &both)
		}
	}
	if c != base {
		a.pass(begin, func(t *taker) bool { return t.Chain == c && t.Rule.Target.Kind == Return })
	}
}

// take notes a taker, unless a condition that is not known may let packets pass it.
func (a *auditor) take(p Place, m Match) {
	if len(m.Unknown) == 0 {
		k := m.key()
		a.by[k] = append(a.by[k], len(a.takers))
		a.takers = append(a.takers, taker{Place: p, match: m})
	}
}

// pass marks the takers since a place in the list that packets are past.
func (a *auditor) pass(from int, over func(*taker) bool) {
	for i := from; i < len(a.takers); i++ {
		t := &a.takers[i]
		t.over = t.over || over(t)
	}
}

// taken returns the first taker of all packets of a match; nil where there is none.
func (a *auditor) taken(m *Match) *taker {
	first, own := len(a.takers), m.key()
	look := func(k takerKey) {
		for _, i := range a.by[k] {
			if a.left--; i < first && a.left >= 0 && a.takers[i].takes(m) {
				first = i
			}
		}
	}
	for _, protocol := range slices.Compact([]uint8{0, own.protocol}) {
		for _, port := range slices.Compact([]uint16{0, own.port}) {
			for _, to := range slices.Compact([]netip.Prefix{{}, own.to}) {
				if k := (takerKey{protocol: protocol, port: port, to: to}); k != (takerKey{}) {
					look(k)
				}
			}
		}
	}
	look(takerKey{})
	if from := m.Source(); from.IsValid() {
		for bits := 1; bits <= from.Bits(); bits++ {
			look(takerKey{from: netip.PrefixFrom(from.Addr(), bits).Masked()})
		}
	}
	if first == len(a.takers) {
		return nil
	}
	return &a.takers[first]
}

// reach notes a path to a rule that translates.
func (a *auditor) reach(p Place, base *Chain, m Match) {
	by := a.taken(&m)
	t := a.at[p.Rule]
	if t == nil {
		t = &translation{Place: p, base: base, match: m}
		if by != nil {
			t.by, t.alike = by.Place, m.Covers(&by.match)
		}
		a.at[p.Rule], a.found = t, append(a.found, t)
	}
	t.paths++
	if by == nil {
		t.by = Place{}
	}
}

// shadowed reports whether the rule that takes the packets of another one does something else with
// them. What programs keep is their own affair.
func (t *translation) shadowed() bool {
	if t.by.Rule == nil || t.Table.IsGateway() || t.Owner() != "" {
		return false
	}
	a, b := &t.Rule.Target, &t.by.Rule.Target
	return a.Kind != b.Kind || a.First != b.First || a.Last != b.Last || a.Ports != b.Ports || b.AddrsVary != a.AddrsVary
}

// recordedShadow is the form of bundles of a rule that is shadowed.
func (t *translation) recordedShadow() snapshot.ShadowedRule {
	s := snapshot.ShadowedRule{RulePlace: t.Recorded(), By: t.by.Recorded(), Kind: t.Rule.Target.natKind(t.base.Hook), Alike: t.alike && t.paths == 1}
	target := &t.Rule.Target
	if s.Kind == "snat" && target.First == target.Last && target.Ports == (nat.Ports{}) && len(t.match.Out) == 1 && t.by.Rule.Target.natKind(t.base.Hook) == "masquerade" && t.by.Rule.Target.Ports == (nat.Ports{}) {
		s.Address, s.Masqueraded = target.First, t.match.Out[0]
	}
	return s
}

// Recorded is the form of bundles.
func (p Place) Recorded() snapshot.RulePlace {
	s := snapshot.RulePlace{Text: p.Text(), Owner: p.Owner(), Unsure: p.Doubt&DoubtPacket != 0, Part: p.Doubt&DoubtPart != 0, Named: p.Named, Limits: p.Limits, Early: p.Early}
	if p.Rule != nil {
		s.Handle, s.Rejects = p.Rule.Handle, p.Rule.Target.Rejects
		s.Random, s.ForPort = p.Rule.Match.Random, len(p.Rule.Match.Ports) > 0
	}
	s.Packets, s.Counted = p.Counted()
	if p.Limit != nil {
		s.Limit = p.Limit.Text()
	}
	return s
}

// untracked notes the rules that are shadowed, and finds those whose packets, or the answers to them, are exempt from tracking.
func (a *auditor) untracked(tables []*Table, routed Routed) {
	if a.left < 0 { // another way may lead to a rule
		return
	}
	for _, t := range a.found {
		if t.shadowed() && len(a.out.Shadowed) < mostAudited {
			a.out.Shadowed = append(a.out.Shadowed, t.recordedShadow())
		}
	}
	exempt, zones := map[string][]taker{}, map[string][]taker{}
	for _, t := range tables {
		for _, c := range t.Chains {
			if c.Priority < conntrackPriority && c.Type != "nat" && !t.IsGateway() && (c.Hook == "prerouting" || c.Hook == "output") {
				exempt[c.Hook] = append(exempt[c.Hook], a.exempt(t, c)...)
				zones[c.Hook] = append(zones[c.Hook], a.zoned(t, c)...)
			}
		}
	}
	for _, t := range a.found {
		if a.left -= len(exempt["prerouting"]) + len(exempt["output"]) + len(zones["prerouting"]) + len(zones["output"]); a.left >= 0 && len(a.out.Untracked) < mostAudited && t.paths == 1 && !t.Table.IsGateway() {
			if !a.exempts(t, exempt, routed) {
				a.splits(t, zones, routed)
			}
		}
	}
}

// exempt are the packets that a chain exempts for certain.
func (a *auditor) exempt(t *Table, base *Chain) (all []taker) {
	entries, _ := t.Flatten(base, Query{Coarse: true, Keep: func(_ *Chain, r *Rule) bool { return r.Target.Kind == Notrack }}, &Budget{})
	for _, e := range entries {
		e.Match.ofSYNs()
		if len(e.Except) == 0 && !e.Doubt && len(e.Match.Unknown) == 0 {
			e.Match.of(t.version())
			all = append(all, taker{Place: Place{Table: t, Chain: e.Chain, Rule: e.Rule}, match: e.Match})
		}
	}
	return all
}

// ofSYNs makes a match of flags, as of 'iptables --syn', one of the first packets of connections, where all of these
// meet it.
func (m *Match) ofSYNs() {
	missesSYN := func(f FlagCondition) bool { return (tcpSYN&f.Mask == f.Set) == f.Not }
	if len(m.Flags) == 0 || len(m.Unknown) != len(m.Flags) || m.Opaque || slices.ContainsFunc(m.Flags, missesSYN) {
		return
	}
	m.SYN, m.Flags, m.Unknown = true, nil, nil
}

// zoned are the packets that a chain puts into zones; match is all that it may be for where that is
// not certain.
func (a *auditor) zoned(t *Table, base *Chain) (all []taker) {
	entries, _ := t.Flatten(base, Query{Coarse: true, Keep: func(_ *Chain, r *Rule) bool { return r.Target.Kind == Zone }}, &Budget{})
	for _, e := range entries {
		e.Match.of(t.version())
		if len(e.Except) > 0 || e.Doubt {
			e.Match.note("")
		}
		all = append(all, taker{Place: Place{Table: t, Chain: e.Chain, Rule: e.Rule}, match: e.Match})
	}
	return all
}

// zoneOf returns the first of the rules that puts packets into a zone, none for the default one; false
// where that is not certain (xt_ct_target and nft_ct_set_zone_eval leave what has one).
func zoneOf(zones []taker, m *Match) (by *taker, certain bool) {
	for i := range zones {
		switch z := &zones[i]; {
		case z.match.Covers(m):
			return z, true
		case !z.match.Disjoint(m):
			return nil, false
		}
	}
	return &taker{Place: Place{Rule: &Rule{}}}, true
}

// splits notes rules that put answers into another zone than the connection's (nf_ct_zone_id).
func (a *auditor) splits(t *translation, zones map[string][]taker, routed Routed) {
	own, first := t.own()
	answers, known := t.answers(routed)
	by, certain := zoneOf(zones[first], &own)
	back, certainBack := zoneOf(zones["prerouting"], &answers)
	if !known || !certain || !certainBack {
		return
	}
	zone := by.Rule.Target.AnswerZone
	if is := back.Rule.Target; zone == is.Zone || zone == is.AnswerZone {
		return
	}
	if back.Table != nil {
		by = back
	}
	u := answers.untracked()
	u.OtherZone = true
	a.untrackedBy(t, by, u)
}

// own is the match of the first packets that a rule translates, and the hook by which they come.
func (t *translation) own() (m Match, hook string) {
	m = t.match
	m.Out, m.NotOut = nil, nil // not known at that hook
	if t.base.Hook == "output" {
		return m, "output"
	}
	return m, "prerouting"
}

func (a *auditor) untrackedBy(t *translation, by *taker, u snapshot.UntrackedRule) {
	u.RulePlace, u.By, u.Kind = t.Recorded(), by.Recorded(), t.Rule.Target.natKind(t.base.Hook)
	own, _ := t.own()
	u.Asked = own.packets()
	a.out.Untracked = append(a.out.Untracked, u)
}

// packets are those that it matches, as far as a service has them.
func (m *Match) packets() *snapshot.Asked {
	a := &snapshot.Asked{Protocol: m.protocol(), From: m.Source(), To: m.Dest()}
	if len(m.Ports) > 0 {
		a.FirstPort, a.LastPort = m.Ports[0].First, m.Ports[len(m.Ports)-1].Last
	}
	return a
}

// exempts notes what exempts packets that a rule translates, or all of their answers, and reports
// whether there is one.
func (a *auditor) exempts(t *translation, exempt map[string][]taker, routed Routed) bool {
	own, first := t.own()
	for i := range exempt[first] {
		if e := &exempt[first][i]; e.match.Covers(&own) {
			a.untrackedBy(t, e, snapshot.UntrackedRule{})
			return true
		}
	}
	syns := own // NAT needs no others
	syns.SYN = true
	for i := range exempt[first] {
		if e := &exempt[first][i]; own.Protocol == unix.IPPROTO_TCP && len(own.Ports) == 1 && e.match.Covers(&syns) {
			a.untrackedBy(t, e, snapshot.UntrackedRule{SYNs: true, Protocol: own.protocol(), FirstPort: own.Ports[0].First, LastPort: own.Ports[0].Last})
			return true
		}
	}
	a.asked(t, exempt)
	answers, known := t.answers(routed)
	if !known {
		return false
	}
	back := exempt["prerouting"]
	for i := range back {
		if e := &back[i]; e.match.Covers(&answers) {
			a.untrackedBy(t, e, answers.untracked())
			return true
		}
	}
	for i := range back {
		if e := &back[i]; e.isPart(&answers) && !e.mirrored(back) {
			u := e.match.untracked()
			u.Part = true
			a.untrackedBy(t, e, u)
		}
	}
	return false
}

// asked notes rules that exempt questions of some ports among what a rule translates as it leaves.
func (a *auditor) asked(t *translation, exempt map[string][]taker) {
	own, first := t.own()
	if t.base.Hook != "postrouting" {
		return
	}
	for i := range exempt[first] {
		e := &exempt[first][i]
		both, possible := own.And(&e.match)
		if !possible || !e.match.isAsked() || len(e.match.In) > 0 && len(nat.Union(e.match.In, t.match.Out)) < len(e.match.In)+len(t.match.Out) {
			continue // what comes in by the interface that others leave by is not theirs
		}
		if a.left -= len(exempt["prerouting"]) + len(exempt["output"]); a.left < 0 || len(a.out.Untracked) >= mostAudited {
			return
		}
		u := snapshot.UntrackedRule{Questions: true}
		answers := Match{}
		answers.Protocol, answers.SourcePorts = e.match.Protocol, e.match.Ports
		for _, o := range slices.Concat(exempt["prerouting"], exempt["output"]) {
			if !o.match.Disjoint(&answers) && o.Rule != e.Rule {
				u.Back = append(u.Back, o.Recorded())
			}
		}
		a.untrackedBy(t, e, u)
		a.out.Untracked[len(a.out.Untracked)-1].Asked = both.packets()
	}
}

// isAsked reports whether a match is for questions alone, each of which gets an answer.
func (m *Match) isAsked() bool {
	if len(m.Ports) == 0 || len(m.SourcePorts) > 0 || m.SYN {
		return false
	}
	never := func(p nat.Ports) bool { return p.Len() != 1 || !nat.AnswersAlways(p.First) }
	return m.Protocol == unix.IPPROTO_TCP || m.Protocol == unix.IPPROTO_UDP && !slices.ContainsFunc(m.Ports, never)
}

// answers is the match of the first answers to what a rule translates, before they are translated
// back; false where it is not known.
func (t *translation) answers(routed Routed) (m Match, known bool) {
	x, own := &t.Rule.Target, &t.match
	m.Protocol = own.Protocol
	m.of(t.Table.version())
	switch {
	case t.base.Hook == "postrouting" && (x.Kind == Masquerade || x.Kind == SNAT && x.First.IsValid() && x.First == x.Last):
		m.SourcePorts, m.In = own.Ports, own.Out
		if len(own.To) > 0 {
			m.From = own.To
		}
		if x.First.IsValid() {
			m.To = []netip.Prefix{nat.Host(x.First)}
		}
		return m, true
	case t.base.Hook == "prerouting" && x.Kind == DNAT && x.First.IsValid() && x.First == x.Last:
		m.From, m.In = []netip.Prefix{nat.Host(x.First)}, Some(routed(x.First))
		m.SourcePorts = own.Ports
		if x.Ports.First != 0 {
			m.SourcePorts = []nat.Ports{x.Ports}
		}
		return m, len(m.In) > 0
	}
	return m, false
}

// untracked has the protocol, the source ports and the source of answers.
func (m *Match) untracked() snapshot.UntrackedRule {
	u := snapshot.UntrackedRule{Answers: true, Protocol: m.protocol(), From: m.Source()}
	if len(m.SourcePorts) == 1 {
		u.FirstPort, u.LastPort = m.SourcePorts[0].First, m.SourcePorts[0].Last
	}
	return u
}

// isPart reports whether a rule exempts some of the answers, all of those by protocol, source port
// and source.
func (e *taker) isPart(answers *Match) bool {
	wide := e.match
	wide.Protocol, wide.SourcePorts, wide.From = 0, nil, nil
	if len(e.match.From) > 0 && !e.match.Source().IsValid() {
		wide.From = e.match.From // all of the family
	}
	return wide.Covers(answers) && !e.match.Disjoint(answers) && len(e.match.SourcePorts) < 2
}

// mirrored reports whether another rule exempts what the answers are to.
func (e *taker) mirrored(all []taker) bool {
	m := Match{}
	m.Protocol, m.Ports, m.To = e.match.Protocol, e.match.SourcePorts, e.match.From
	for i := range all {
		o := all[i].match
		if o.In, o.NotIn, o.From, o.NotFrom = nil, nil, nil, nil; o.Covers(&m) {
			return true
		}
	}
	return false
}

// noEndpoints is what kube-proxy writes behind the name of a service (writeServiceFilterRules).
const noEndpoints = "has no endpoints"

// refusals are the rules of a table, on the way of what is forwarded, that drop packets for what
// others came before them, for want of endpoints, or as INVALID.
func (a *auditor) refusals(t *Table) {
	limited := map[string]bool{}
	for _, c := range t.Chains {
		if c.Hook == "prerouting" || c.Hook == "forward" || c.Hook == "postrouting" {
			_, names := t.reach(c)
			for _, name := range append(names, c.Name) {
				limited[name] = true
			}
		}
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			why := ""
			switch {
			case r.Target.Kind != Drop:
			case strings.HasSuffix(r.Comment, noEndpoints):
				why = snapshot.RefusalNoEndpoints
			case r.Match.Limits && limited[c.Name]:
				why = snapshot.RefusalLimit
			case limited[c.Name] && slices.Contains(r.Match.Conn, ConnCondition{Any: ConnInvalid}):
				why = snapshot.RefusalInvalid
			}
			if why != "" && len(a.out.Refusals) < mostAudited {
				a.out.Refusals = append(a.out.Refusals, snapshot.Refusal{RulePlace: Place{Table: t, Chain: c, Rule: r}.Recorded(), Why: why, Comment: r.Comment})
			}
		}
	}
}

// variant notes a table of iptables that does something.
func (a *auditor) variant(t *Table) {
	x := snapshot.IptablesTable{Program: t.Program(), Family: t.Family, Table: t.Name}
	for _, c := range t.Chains {
		if c.Hook == "forward" {
			n, _ := t.reach(c)
			x.Forwarding += n
			if c.Policy == "drop" {
				x.Forwarding++
			}
		}
		for _, r := range c.Rules {
			if r.Target.Translates() && r.Target.Kind != Ends {
				x.Translating++
			}
		}
	}
	if t.IsIptables() && x.Forwarding+x.Translating > 0 {
		a.out.Iptables = append(a.out.Iptables, x)
	}
}
