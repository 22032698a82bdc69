package convert

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
)

// made is a rule of the file, and what it stands for.
type made struct {
	version int
	rule    gateway.Rule
	from    []*entry
	// match is whose packets it is for; not of one for both directions.
	match nat.Match
	// twin is the same rule in OUTPUT.
	twin *entry
	// parts are the entries of a plan that Compile is to make of it.
	parts []part
}

// part is one entry of a plan as it has to be.
type part struct {
	of   *entry
	want gateway.Entry
}

// isPair reports whether it is for both directions, or for what is not translated.
func (m *made) isPair() bool {
	return m.rule.Static != nil || m.rule.Netmap != nil || m.rule.Notrack != nil
}

// add adds a part that is about all packets of an entry.
func (m *made) add(e *entry, want gateway.Entry) { m.parts = append(m.parts, part{e, want}) }

// build makes rules of the entries, pairs first.
func (t *translator) build(open []*entry) {
	for _, version := range []int{4, 6} {
		later := slices.DeleteFunc(slices.Clone(open), func(x *entry) bool { return x.version != version })
		for len(later) > 0 {
			e := later[0]
			later = later[1:]
			all, reason := t.make(e, later)
			if reason != "" {
				t.refuse(e, reason)
				continue
			}
			for i := range all {
				all[i].version = version
				t.rules = append(t.rules, &all[i])
				later = slices.DeleteFunc(later, func(x *entry) bool { return slices.Contains(all[i].from, x) })
			}
		}
	}
	slices.SortStableFunc(t.rules, func(a, b *made) int { return cmp.Compare(firstLine(a), firstLine(b)) })
}

// refuse takes an entry out of the file; what comes after it has to be judged anew.
func (t *translator) refuse(e *entry, reason string) { t.refused[e], t.again = reason, true }

func firstLine(m *made) int {
	return slices.MinFunc(m.from, func(a, b *entry) int { return cmp.Compare(a.Rule.Line, b.Rule.Line) }).Rule.Line
}

// make makes rules of an entry and, if that is one of several that belong together, of
// those, which come later.
func (t *translator) make(e *entry, later []*entry) (all []made, reason string) {
	m := made{}
	switch kind := e.Rule.Target.Kind; {
	case kind == ruleset.MSS:
		return nil, t.takeMSS(e)
	case kind == ruleset.Notrack:
		reason = m.notrack(e, later)
		return []made{m}, reason
	case kind == ruleset.Netmap:
		reason = m.netmap(e, later)
		t.log(&m)
		return []made{m}, reason
	case t.static(&m, e, later):
		t.log(&m)
		return []made{m}, ""
	}
	m.from = []*entry{e}
	if m.twin = t.localTwin(e, later); m.twin != nil {
		m.from = append(m.from, m.twin)
	}
	t.nearly(e)
	if g := &e.Rule.Target; g.Kind == ruleset.DNAT && (g.First != g.Last || g.Hashed) {
		t.differs(e, "a client may get another one of the hosts than now")
	}
	for _, form := range t.forms[e] {
		one := m
		if one.match = form; e.hook == "output" && !form.IsOwn() {
			one.match.Users = everyProgram
			t.differs(e, "is for programs on this host by \"user: 0-4294967295\": not for connections of the kernel itself, such as those of NFS")
		}
		one.write()
		t.log(&one)
		all = append(all, one)
	}
	return all, ""
}

// nearly notes in what conditions, of the entry and of what is kept from it, differ from those of the file.
func (t *translator) nearly(e *entry) {
	all := e.Match.Nearly
	for _, x := range e.Except {
		all = nat.Union(all, x.Match.Nearly)
	}
	for _, how := range all {
		t.differs(e, how)
	}
}

// log has a rule log what those log that it stands for.
func (t *translator) log(m *made) {
	for _, e := range m.from {
		l := e.Rule.Log
		if l == nil {
			continue
		}
		m.rule.Log = gateway.Log{On: true, Prefix: gateway.LogPrefix(l.Prefix)}
		if m.rule.Log.Prefix.Check() != nil {
			m.rule.Log.Prefix = ""
		}
		t.differs(e, fmt.Sprintf("logs at most %s", gateway.DefaultLogRate))
		if len(l.Options) > 0 {
			t.differs(e, "logs without "+strings.Join(l.Options, ", "))
		}
	}
}

func (t *translator) takeMSS(e *entry) string {
	if len(t.mss) > 0 {
		first := t.mss[0].Rule.Target
		if first.Clamp != e.Rule.Target.Clamp || first.Bytes != e.Rule.Target.Bytes {
			return "the file has one mss, and " + where(t.mss[0].Rule) + " has another"
		}
	}
	t.mss = append(t.mss, e)
	if !e.everywhere() {
		t.differs(e, "holds for one interface; the file's mss is for every one")
	}
	return ""
}

// directed returns the rule about sources and the one about destinations of a pair on the
// wan interface, or on all; false if they are none.
func (t *translator) directed(a, b *entry) (out, in *entry, ok bool) {
	if a.hook == "prerouting" {
		a, b = b, a
	}
	return a, b, a.hook == "postrouting" && b.hook == "prerouting" && a.Match.OutName() == t.wan && b.Match.InName() == t.wan
}

// inward is the entry of a plan about the destinations of a rule for both directions.
func inward(in *entry, a nat.Action) gateway.Entry {
	return gateway.Entry{Match: nat.Match{To: ruleset.Some(in.Match.Dest()), In: in.Match.In}, Action: a}
}

// netmap is of two rules that take back what the other does.
func (m *made) netmap(e *entry, later []*entry) string {
	for _, x := range later {
		out, in := e, x
		if e.hook == "prerouting" {
			out, in = x, e
		}
		if out.hook != "postrouting" || in.hook != "prerouting" || out.Match.OutName() != in.Match.InName() ||
			x.Rule.Target.Kind != ruleset.Netmap || out.Match.Source() != in.Rule.Target.Prefix() || in.Match.Dest() != out.Rule.Target.Prefix() {
			continue
		}
		inside, outside := out.Match.Source(), in.Match.Dest()
		m.from = []*entry{e, x}
		m.rule.Netmap = &gateway.Netmap{Inside: gateway.Prefix{Prefix: inside}, Outside: gateway.Prefix{Prefix: outside}}
		m.add(in, inward(in, nat.Action{Kind: nat.DNAT, Prefix: inside}))
		m.add(out, gateway.Entry{Match: nat.Match{From: out.Match.From, Out: out.Match.Out}, Action: nat.Action{Kind: nat.SNAT, Prefix: outside}})
		return ""
	}
	return "is for one direction; natkit's netmap is for both, with NETMAP in PREROUTING and in POSTROUTING"
}

// static is of a SNAT and a DNAT of one address for one.
func (t *translator) static(m *made, e *entry, later []*entry) bool {
	if t.apart[e] || !t.wholeHost(e) {
		return false
	}
	for _, x := range later {
		out, in, ok := t.directed(e, x)
		if !ok || t.apart[x] || !t.wholeHost(x) || out.Match.Source().Addr() != in.Rule.Target.First || in.Match.Dest().Addr() != out.Rule.Target.First {
			continue
		}
		inside, outside := out.Match.Source().Addr(), in.Match.Dest().Addr()
		r := &gateway.Static{Inside: gateway.Address{Addr: inside}, Outside: gateway.Address{Addr: outside}}
		m.from, m.rule.Static = []*entry{e, x}, r
		d := inward(in, nat.Action{Kind: nat.DNAT, Backends: []nat.Backend{{Address: inside}}})
		if m.twin = t.localTwin(in, later); m.twin != nil {
			r.Local, d.Local = true, true
			m.from = append(m.from, m.twin)
		}
		m.add(in, d)
		m.add(out, gateway.Entry{Match: nat.Match{From: out.Match.From, Out: out.Match.Out}, Action: actionOf(&out.Rule.Target)})
		return true
	}
	return false
}

// wholeHost reports whether an entry is about all that one host sends, or gets.
func (t *translator) wholeHost(e *entry) bool {
	g, forms := &e.Rule.Target, t.forms[e]
	if g.Ports != (nat.Ports{}) || !g.First.IsValid() || g.First != g.Last || g.Random || g.FullyRandom || len(forms) != 1 {
		return false
	}
	rest, host := forms[0], netip.Prefix{}
	switch {
	case e.hook == "postrouting" && g.Kind == ruleset.SNAT:
		host, rest.From, rest.Out = e.Match.Source(), nil, nil
	case e.hook == "prerouting" && g.Kind == ruleset.DNAT:
		host, rest.To, rest.In = e.Match.Dest(), nil, nil
	}
	return host.IsValid() && host.IsSingleIP() && reflect.DeepEqual(rest, nat.Match{})
}

// localTwin is the same rule in OUTPUT.
func (t *translator) localTwin(e *entry, later []*entry) *entry {
	if e.hook != "prerouting" || t.alone[e] {
		return nil
	}
	twin := func(list []nat.Match) (all []nat.Match) {
		for _, m := range list {
			m.In, m.NotIn = nil, nil // OUTPUT has no such condition
			all = append(all, m)
		}
		return all
	}
	i := slices.IndexFunc(later, func(x *entry) bool {
		return x.hook == "output" && givesSame(&x.Rule.Target, &e.Rule.Target) && reflect.DeepEqual(t.forms[x], twin(t.forms[e]))
	})
	if i < 0 {
		return nil
	}
	return later[i]
}

func sameTarget(a, b *ruleset.Target) bool {
	return a.Kind == b.Kind && a.First == b.First && a.Last == b.Last && a.Ports == b.Ports && a.Base == b.Base &&
		a.Hashed == b.Hashed && slices.Equal(a.Drawn, b.Drawn)
}

// write makes the rule of the file for its packets, and what Compile is to make of that.
func (m *made) write() {
	prefer, log := m.rule.Prefer, m.rule.Log
	e, want := m.from[0], gateway.Entry{}
	if e.hook == "postrouting" {
		m.rule, want = sourceRule(e, m.match)
	} else {
		m.rule, want = destinationRule(e, m.match, m.twin != nil)
	}
	m.rule.Prefer, want.Prefer, m.rule.Log = prefer, int(prefer), log
	m.parts = []part{{e, want}}
}

// actionOf is what a plan has for a MASQUERADE or SNAT.
func actionOf(g *ruleset.Target) nat.Action {
	a := nat.Action{Kind: nat.SNAT, Ports: g.Ports, Random: nat.Random(randomOf(g)), Persistent: g.Persistent && g.First != g.Last}
	if g.Kind == ruleset.Masquerade {
		a.Kind = nat.Masquerade
	}
	if g.First.IsValid() {
		a.To = nat.AddrRanges{{First: g.First, Last: g.Last}}
	}
	return a
}

func randomOf(g *ruleset.Target) gateway.Random {
	switch {
	case g.FullyRandom:
		return gateway.RandomFully
	case g.Random:
		return gateway.RandomPorts
	}
	return ""
}

// conditionsOf are those that rules of all kinds have.
func conditionsOf(m *nat.Match) gateway.Conditions {
	c := gateway.Conditions{ExceptFrom: prefixesOf(m.NotFrom), In: m.In, ExceptIn: m.NotIn, Mark: gateway.Mark{Mark: m.Mark},
		User: idsOf(m.Users), ExceptUser: idsOf(m.NotUsers), Group: idsOf(m.Groups), ExceptGroup: idsOf(m.NotGroups),
		DSCP: pointsOf(m.DSCP), ExceptDSCP: pointsOf(m.NotDSCP),
		UTCHours: hoursOf(m.Hours), ExceptUTCHours: hoursOf(m.NotHours), UTCDays: daysOf(m.Days), ExceptUTCDays: daysOf(m.NotDays)}
	for _, s := range m.NotServices {
		c.ExceptPort = append(c.ExceptPort, portOf(s))
	}
	for _, k := range m.NotMarks {
		c.ExceptMark = append(c.ExceptMark, gateway.Mark{Mark: k})
	}
	return c
}

func idsOf(list []nat.IDs) (all gateway.IDs) {
	for _, i := range list {
		all = append(all, gateway.ID{IDs: i})
	}
	return all
}

func pointsOf(list []uint8) (all gateway.CodePoints) {
	for _, p := range list {
		all = append(all, gateway.CodePoint(p))
	}
	return all
}

func hoursOf(list []nat.Hours) (all gateway.HourRanges) {
	for _, h := range list {
		all = append(all, gateway.HourRange{First: int(h.First / 60), End: int((h.Last + 1) / 60)})
	}
	return all
}

func daysOf(list []time.Weekday) (all gateway.Days) {
	for _, d := range list {
		all = append(all, gateway.Day(d))
	}
	return all
}

func prefixesOf(list []netip.Prefix) (all gateway.Prefixes) {
	for _, p := range list {
		all = append(all, gateway.Prefix{Prefix: p})
	}
	return all
}

// servicesOf are the services that a match asks for.
func servicesOf(m *nat.Match) (all gateway.Services) {
	for _, s := range m.Services() {
		all = append(all, portOf(s))
	}
	return all
}

func portOf(s nat.Service) gateway.Port {
	p := gateway.Port{Protocol: protocolName(s.Protocol)}
	if s.Ports != nat.AllPorts {
		p.First, p.Last = s.Ports.First, s.Ports.Last
	}
	return p
}

// protocolName is the name that a file has for a protocol; empty for all.
func protocolName(protocol uint8) string {
	if protocol == 0 {
		return ""
	}
	return nat.ProtocolName(protocol)
}

// sourceRule is a masquerade or snat for some packets, and its entry of a plan.
func sourceRule(e *entry, m nat.Match) (r gateway.Rule, want gateway.Entry) {
	g := &e.Rule.Target
	s := gateway.Sources{From: prefixesOf(m.From), OnlyTo: prefixesOf(m.To), Port: servicesOf(&m), ExceptTo: prefixesOf(m.NotTo), Out: m.Out, ExceptOut: m.NotOut}
	choice := gateway.Choice{Ports: gateway.Ports{First: g.Ports.First, Last: g.Ports.Last}, Random: randomOf(g)}
	if want = (gateway.Entry{Match: m, Action: actionOf(g)}); len(want.From) == 0 {
		want.From = []netip.Prefix{nat.Anywhere(map[int]int{4: 32, 6: 128}[e.version])}
	}
	if g.Kind == ruleset.Masquerade {
		r.Masquerade = &gateway.Masquerade{Sources: s, Choice: choice, Conditions: conditionsOf(&m)}
		return r, want
	}
	r.SNAT = &gateway.SNAT{Sources: s, To: gateway.Ranges(want.Action.To), Choice: choice, Conditions: conditionsOf(&m)}
	if !want.Action.Persistent && g.First != g.Last { // which is what --persistent changes
		r.SNAT.Persistent = new(gateway.Switch(false))
	}
	return r, want
}

// everyProgram are all users: a rule for these is one for the host's own programs alone.
var everyProgram = []nat.IDs{{First: 0, Last: math.MaxUint32}}

// destinationRule is a dnat for some packets, and its entry of a plan. local is true where it is for the host's own
// programs, too.
func destinationRule(e *entry, m nat.Match, local bool) (gateway.Rule, gateway.Entry) {
	to, _ := e.backends()
	d := &gateway.DNAT{On: gateway.On{Name: gateway.OnAny}, Port: servicesOf(&m), To: to, ExceptTo: prefixesOf(m.NotTo), Local: gateway.Switch(local), Conditions: conditionsOf(&m)}
	want := gateway.Entry{Match: m, Action: nat.Action{Kind: nat.DNAT, Backends: to}, Local: local || m.IsOwn(), Asked: len(m.In) > 0}
	anywhere := nat.Anywhere(map[int]int{4: 32, 6: 128}[e.version])
	switch {
	case len(m.To) == 0:
		want.To = []netip.Prefix{anywhere}
	case m.To[0].IsSingleIP():
		d.On = gateway.On{Address: m.To[0].Addr()}
	default:
		d.OnlyTo = prefixesOf(m.To)
	}
	if d.On.Name == gateway.OnAny && len(m.In)+len(m.From) == 0 && m.Mark.Mask == 0 && !m.IsOwn() {
		want.From = []netip.Prefix{anywhere} // a file has to say that all are meant
	}
	d.From = prefixesOf(want.From)
	switch {
	case e.Rule.Target.Kind == ruleset.Redirect:
		want.Action = nat.Action{Kind: nat.Redirect, Ports: nat.Ports{First: to[0].Port, Last: to[0].Port}}
	case len(to) > 1:
		want.Action.Balance = nat.BalanceHash
		if g := &e.Rule.Target; len(g.Drawn) > 0 && !g.Hashed {
			want.Action.Balance = nat.BalanceRoundRobin
		}
		d.Balance = gateway.Balance(want.Action.Balance)
	}
	return gateway.Rule{DNAT: d}, want
}

// perPort is an entry for each of the ports of a rule that keeps the tracker off, as a
// rule of the file has one range.
func (e *entry) perPort() []*entry {
	ports := slices.Concat(e.Match.Ports, e.Match.SourcePorts)
	if e.Rule.Target.Kind != ruleset.Notrack || len(ports) < 2 || len(e.Match.Ports)*len(e.Match.SourcePorts) > 0 {
		return []*entry{e}
	}
	var all []*entry
	for _, p := range ports {
		part, one := *e.Entry, *e
		one.Entry = &part
		if len(e.Match.Ports) > 0 {
			one.Match.Ports = []nat.Ports{p}
		} else {
			one.Match.SourcePorts = []nat.Ports{p}
		}
		all = append(all, &one)
	}
	return all
}

// untracked is the address and the ports that such an entry is about, and whether that
// is what comes for them.
func (e *entry) untracked() (on netip.Addr, port gateway.Port, to bool) {
	m := &e.Match
	on, list, to := m.Source().Addr(), m.SourcePorts, m.Dest().IsValid()
	if to {
		on, list = m.Dest().Addr(), m.Ports
	}
	port.Protocol = protocolName(m.Protocol)
	if len(list) == 1 && list[0] != nat.AllPorts {
		port.First, port.Last = list[0].First, list[0].Last
	}
	return on, port, to
}

// notrack requires both directions: what the address gets, and what it sends.
func (m *made) notrack(e *entry, later []*entry) string {
	on, port, _ := e.untracked()
	m.rule.Notrack = &gateway.Notrack{On: gateway.Address{Addr: on}, Port: port}
	gets, sends := false, false
	for _, x := range append([]*entry{e}, later...) {
		if x.Rule.Target.Kind != ruleset.Notrack {
			continue
		}
		if a, p, to := x.untracked(); a == on && p == port {
			m.from = append(m.from, x)
			gets, sends = gets || to && x.hook == "prerouting", sends || !to
		}
	}
	if !gets || !sends {
		return "is for one direction; natkit's notrack is for what the address gets and for what it sends"
	}
	return ""
}

// config is the file with all rules, in their order.
func (t *translator) config() gateway.Config {
	var c gateway.Config
	for _, m := range t.rules {
		if m.version == 4 {
			c.NAT = append(c.NAT, m.rule)
		} else {
			c.IPv6 = append(c.IPv6, m.rule)
		}
	}
	// A dnat, static or netmap means another thing without a wan interface.
	if t.wan != "" && slices.ContainsFunc(t.rules, func(m *made) bool {
		return m.rule.DNAT != nil || m.rule.Static != nil || m.rule.Netmap != nil || m.names(gateway.RoleWAN)
	}) {
		c.Interfaces.WAN = gateway.WANs{{Interface: t.wan}}
	}
	if slices.ContainsFunc(t.rules, func(m *made) bool { return m.names(gateway.RoleLAN) }) {
		c.Interfaces.LAN = gateway.LANs{{Interface: gateway.RoleLAN}} // an interface of that name
	}
	if len(t.mss) > 0 {
		g := t.mss[0].Rule.Target
		c.MSS = gateway.MSS{Clamp: g.Clamp, Bytes: g.Bytes}
	}
	return c
}

// names reports whether a rule is about that interface.
func (m *made) names(name string) bool {
	return slices.ContainsFunc(m.from, func(e *entry) bool {
		return slices.Contains(slices.Concat(e.Match.In, e.Match.NotIn, e.Match.Out, e.Match.NotOut), name)
	})
}
