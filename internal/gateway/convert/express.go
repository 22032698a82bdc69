package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// wordless says which condition natkit's rules have no word for; empty where they
// have one for all that are not among those allowed by name.
func wordless(m *ruleset.Match, allowed string) string {
	has := func(word string) bool { return strings.Contains(allowed, word) }
	switch {
	case len(m.Unknown) > 0:
		return "the condition " + m.Unknown[0]
	case m.ToLocal:
		return "the condition that the destination is any address of the host"
	case len(m.SourcePorts) > 0 && !has("sport"):
		return "source ports (" + ruleset.PortsString(m.SourcePorts) + ")"
	case m.SYN && !has("syn"):
		return "a condition on TCP flags"
	case m.Protocol != 0 && !has("protocol"):
		return "rules about sources for " + nat.ProtocolName(m.Protocol) + " alone: they are for every protocol"
	case m.Dest().IsValid() && !has("to"):
		return "rules about sources for the destination " + m.Dest().String() + " alone"
	case len(m.NotFrom) > 0:
		return "sources other than " + m.NotFrom[0].String()
	case len(m.NotTo) > 0 && !has("except"):
		return "destinations other than " + m.NotTo[0].String()
	case m.Source().IsValid() && !has("from"):
		return "this rule for the source " + m.Source().String() + " alone"
	}
	return wordlessName(m, has)
}

func wordlessName(m *ruleset.Match, has func(string) bool) string {
	switch {
	case len(m.NotIn) > 0:
		return "interfaces other than " + m.NotIn[0]
	case len(m.NotOut) > 0:
		return "interfaces other than " + m.NotOut[0]
	case strings.HasSuffix(m.InName()+m.OutName(), "*"):
		return "all interfaces that begin with " + strings.TrimSuffix(m.InName()+m.OutName(), "*")
	case m.InName() != "" && !has("in "):
		return "the interface that packets come in by (" + m.InName() + ") here"
	case m.OutName() != "" && !has("out"):
		return "the interface that packets leave by (" + m.OutName() + ") here"
	}
	return ""
}

// express says why a rule cannot be in a gateway file by itself; empty where it can.
// wan is the interface that the file names as such, or empty.
func (e *entry) express(wan string) string {
	if wan != "" && e.everywhere() { // what is so without it says more
		if reason := e.express(""); reason != "" {
			return reason
		}
	}
	t := &e.Rule.Target
	switch {
	case t.Kind == ruleset.Ends && len(t.Chains) > 0:
		return "leads to the chain " + t.Name + ", which is not there"
	case len(t.Unknown) > 0:
		return ruleset.NoWord + t.Unknown[0]
	}
	switch t.Kind {
	case ruleset.Masquerade, ruleset.SNAT:
		return e.expressSource(wan)
	case ruleset.DNAT:
		return e.expressDestination(wan)
	case ruleset.Netmap:
		return e.expressNetmap(wan)
	case ruleset.Redirect:
		return "redirects connections to this host itself; natkit translates what passes through"
	case ruleset.Notrack:
		return e.expressNotrack()
	case ruleset.MSS:
		return e.expressMSS()
	}
	return ruleset.NoWord + "the target " + t.Name
}

func (e *entry) expressSource(wan string) string {
	t := &e.Rule.Target
	switch {
	case e.hook != "postrouting":
		return "translates sources of what comes to this host itself; natkit translates what passes through"
	case t.Ports != nat.Ports{}:
		return fmt.Sprintf("gives ports %d-%d to %s alone; natkit's \"ports: %[1]d-%[2]d\" would hold for all protocols and for the identifiers of pings",
			t.Ports.First, t.Ports.Last, orWord(protocolName(e.Match.Protocol), "some"))
	case t.Kind == ruleset.SNAT && !t.First.IsValid():
		return ruleset.NoWord + "a rule that changes the source's port alone"
	}
	if word := wordless(&e.Match, "from except out"); word != "" {
		return ruleset.NoWord + word
	}
	if e.Match.OutName() == gateway.RoleWAN && wan != gateway.RoleWAN {
		return "is for an interface named wan, which in a gateway file is a role; natkit can give it that role only where all rules about destinations are for what comes in by it"
	}
	if wan != "" && e.Match.OutName() == "" {
		return "holds for every interface; with the interface " + wan + " named as wan it would hold for that one"
	}
	_, reason := e.exceptTo()
	return reason
}

// protocolName is the name that a file has for a protocol; empty for all.
func protocolName(protocol uint8) string {
	if protocol == 0 {
		return ""
	}
	return nat.ProtocolName(protocol)
}

func orWord(word, other string) string {
	if word == "" {
		return other
	}
	return word
}

// exceptTo are the destinations that a rule about sources leaves alone, by its own
// condition or by rules before it.
func (e *entry) exceptTo() (list []netip.Prefix, reason string) {
	for _, x := range e.Except {
		anywhere := x.Match
		anywhere.To = nil
		switch {
		case x.Drops:
			return nil, fmt.Sprintf("%s drops some of its packets first, which natkit does not", where(x.Rule))
		case !x.Match.Dest().IsValid() || !anywhere.Covers(&e.Match):
			return nil, fmt.Sprintf("%s keeps some of its packets from it, by more than the destination; natkit has except-to alone", where(x.Rule))
		}
		list = append(list, x.Match.Dest())
	}
	return nat.Union(e.Match.NotTo, list), ""
}

// where names another rule.
func where(r *ruleset.Rule) string {
	if r.Line > 0 {
		return fmt.Sprintf("line %d", r.Line)
	}
	return fmt.Sprintf("%q", r.Text)
}

func (e *entry) expressDestination(wan string) string {
	m, t := &e.Match, &e.Rule.Target
	switch {
	case e.hook != "prerouting" && e.hook != "output":
		return "natkit translates destinations of what comes in, and of the host's own programs"
	case !t.First.IsValid():
		return ruleset.NoWord + "a rule that changes the destination's port alone"
	case t.First != t.Last:
		return ruleset.NoWord + "a choice among several destinations: that is a load balancer's"
	case t.Random || t.RandomFully:
		return ruleset.NoWord + "a port of the destination at random"
	case !keepsPorts(t, m) && t.Ports.First != t.Ports.Last:
		return fmt.Sprintf("%sa choice among the ports %d-%d of the destination", ruleset.NoWord, t.Ports.First, t.Ports.Last)
	}
	if m.Dest().IsValid() || wan != "" {
		if reason := e.inbound(wan, "from to protocol in "); reason != "" {
			return reason
		}
	}
	switch {
	case m.ToLocal:
		return "is on every address of the host; natkit's dnat is on one, or, as in \"on: eth0\", on those of an interface"
	case !m.Dest().IsValid():
		return "has no destination (-d), and so translates what passes through to others too; natkit's dnat is on an address, or, as in \"on: " + orWord(e.Match.InName(), "eth0") + "\", on those of an interface"
	case !m.Dest().IsSingleIP():
		return "is on the whole of " + m.Dest().String() + "; natkit's dnat is on one address, its netmap gives each address one of its own"
	}
	for _, p := range m.Ports {
		if p.First == 0 && p.Last != 65535 {
			return ruleset.NoWord + "port 0"
		}
	}
	return ""
}

// everywhere tells that the rule names no interface.
func (e *entry) everywhere() bool { return e.Match.InName() == "" && e.Match.OutName() == "" }

// keepsPorts reports whether the ports that are given are those that were asked for: the
// kernel takes that very one as long as it is free (get_unique_tuple in
// net/netfilter/nf_nat_core.c).
func keepsPorts(t *ruleset.Target, m *ruleset.Match) bool {
	return t.Ports == nat.Ports{} || len(m.Ports) == 1 && m.Ports[0] == t.Ports
}

// inbound is what rules about destinations have in common.
func (e *entry) inbound(wan, allowed string) string {
	m := e.Match
	if m.InName() != "" && m.InName() == wan {
		m.In = nil
	} else if wan != "" && m.InName() == "" && e.hook == "prerouting" {
		return "holds for every interface; with the interface " + wan + " named as wan it would hold for that one"
	}
	if m.InName() != "" && !strings.HasSuffix(m.InName(), "*") {
		return fmt.Sprintf("holds for what comes in by %s alone; natkit can say that (interfaces: {wan: %[1]s}) only where it is true of all rules", m.InName())
	}
	if word := wordless(&m, allowed); word != "" {
		return ruleset.NoWord + word
	}
	if len(e.Except) > 0 {
		return fmt.Sprintf("%s keeps some of its packets from it, which natkit's rules about destinations cannot", where(e.Except[0].Rule))
	}
	return ""
}

func (e *entry) expressNetmap(wan string) string {
	m, t := &e.Match, &e.Rule.Target
	outward := e.hook == "postrouting"
	prefix := m.Dest()
	if outward {
		prefix = m.Source()
	}
	switch {
	case !outward && e.hook != "prerouting":
		return "natkit's netmap is for what passes through"
	case !prefix.IsValid() || prefix.Bits() != t.Prefix().Bits():
		return fmt.Sprintf("puts addresses of another number into %s; natkit's netmap gives each address one of its own", t.Prefix())
	case t.Random || t.RandomFully || t.Persistent || t.Ports != nat.Ports{}:
		return ruleset.NoWord + "options of NETMAP"
	case !outward:
		return e.inbound(wan, "to in ")
	}
	r := *m
	if r.OutName() == wan {
		r.Out = nil
	}
	if word := wordless(&r, "from"); word != "" {
		return ruleset.NoWord + word
	}
	if len(e.Except) > 0 {
		return fmt.Sprintf("%s keeps some of its packets from it, which natkit's netmap cannot", where(e.Except[0].Rule))
	}
	return ""
}

func (e *entry) expressMSS() string {
	m := e.Match
	switch {
	case e.hook != "forward":
		return "natkit bounds segments of what passes through (FORWARD), not of the host's own connections"
	case m.Protocol != unix.IPPROTO_TCP || !m.SYN:
		return "natkit bounds what SYNs say (--tcp-flags SYN,RST SYN)"
	case len(e.Except) > 0:
		return fmt.Sprintf("%s keeps some of its packets from it", where(e.Except[0].Rule))
	}
	if word := wordless(&m, "protocol syn"); word != "" {
		return "natkit's mss is for all that passes through: it has no word for " + word
	}
	return ""
}

// sourceOf is what a plan has for a MASQUERADE or SNAT.
func sourceOf(e *entry) gateway.Entry {
	g := &e.Rule.Target
	s := gateway.Entry{Match: nat.Match{From: prefixes(e.Match.Source()), Out: e.Match.Out},
		Action: nat.Action{Kind: nat.SNAT, Random: nat.Random(randomOf(g)), Persistent: g.Persistent && g.First != g.Last}}
	if g.Kind == ruleset.Masquerade {
		s.Action.Kind = nat.Masquerade
	}
	s.NotTo, _ = e.exceptTo()
	if len(s.From) == 0 {
		s.From = []netip.Prefix{nat.Anywhere(map[int]int{4: 32, 6: 128}[e.version])}
	}
	if g.First.IsValid() {
		s.Action.To = nat.AddrRanges{{First: g.First, Last: g.Last}}
	}
	return s
}

func randomOf(g *ruleset.Target) gateway.Random {
	switch {
	case g.RandomFully:
		return gateway.RandomFully
	case g.Random:
		return gateway.RandomPorts
	}
	return ""
}

func makeSource(e *entry) *made {
	s, g := sourceOf(e), &e.Rule.Target
	conditions := gateway.Sources{From: prefixesOf(prefixes(e.Match.Source())), ExceptTo: prefixesOf(s.NotTo), Out: s.Out}
	choice := gateway.Choice{Random: randomOf(g)}
	m := &made{version: e.version, from: []*entry{e}, parts: []part{{of: e, match: e.Match, source: &s}}}
	if g.Kind == ruleset.Masquerade {
		m.rule.Masquerade = &gateway.Masquerade{Sources: conditions, Choice: choice}
	} else {
		m.rule.SNAT = &gateway.SNAT{Sources: conditions, To: gateway.Ranges(s.Action.To), Choice: choice}
		if !s.Action.Persistent && g.First != g.Last { // which is what --persistent changes
			m.rule.SNAT.Persistent = new(gateway.Switch(false))
		}
	}
	return m
}

func prefixesOf(list []netip.Prefix) (all gateway.Prefixes) {
	for _, p := range list {
		all = append(all, gateway.Prefix{Prefix: p})
	}
	return all
}

// makeDestination makes a dnat for all ports, which spread parts.
func makeDestination(e *entry, later []*entry) (*made, string) {
	if e.hook == "output" {
		return nil, "is for this host's own programs alone; natkit's \"local: on\" is for them too, with the same rule in PREROUTING"
	}
	m := &made{version: e.version, from: []*entry{e}}
	r := gateway.DNAT{On: gateway.On{Address: e.Match.Dest().Addr()}, From: prefixesOf(prefixes(e.Match.Source())), To: gateway.Backends{endpointOf(e)}}
	if twin := localTwin(e, later); twin != nil {
		r.Local = true
		m.from = append(m.from, twin)
	}
	m.rule.DNAT = &r
	r.Port.Protocol = protocolName(e.Match.Protocol)
	m.parts = append(m.parts, destinationPart(e, &r))
	return m, ""
}

func destinationPart(e *entry, r *gateway.DNAT) part {
	d := gateway.Entry{Match: nat.Match{To: prefixes(e.Match.Dest()), From: prefixes(e.Match.Source()), In: e.Match.In},
		Action: nat.Action{Kind: nat.DNAT, Backends: r.To}, Local: bool(r.Local)}
	d.Protocol, d.Ports = r.Port.Service()
	match := e.Match
	match.Ports = nil
	if r.Port.First != 0 {
		match.Ports = []nat.Ports{{First: r.Port.First, Last: r.Port.Last}}
	}
	return part{of: e, match: match, destination: &d}
}

func endpointOf(e *entry) nat.Backend {
	g := &e.Rule.Target
	to := nat.Backend{Address: g.First}
	if !keepsPorts(g, &e.Match) || len(e.Match.Ports) == 1 && g.Ports.First == g.Ports.Last {
		to.Port = g.Ports.First
	}
	return to
}

// spread makes a rule for each of several ports of one entry.
func spread(m made) (all []made) {
	if m.rule.DNAT == nil || len(m.from[0].Match.Ports) == 0 {
		return []made{m}
	}
	e := m.from[0]
	for _, p := range e.Match.Ports {
		r := *m.rule.DNAT
		if p != nat.AllPorts {
			r.Port.First, r.Port.Last = p.First, p.Last
		}
		one := made{version: m.version, rule: gateway.Rule{DNAT: &r}, from: m.from}
		one.parts = append([]part{destinationPart(e, &r)}, m.parts[1:]...)
		for i := range one.parts[1:] { // a hairpin's
			one.parts[1+i].source.Protocol, one.parts[1+i].source.OriginalPorts = r.Port.Service()
		}
		all = append(all, one)
	}
	return all
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
	if t.wan != "" && slices.ContainsFunc(t.rules, usesWAN) {
		c.Interfaces.WAN = gateway.Names{t.wan}
	}
	if slices.ContainsFunc(t.rules, func(m made) bool { return leavesBy(m, gateway.RoleLAN) }) {
		c.Interfaces.LAN = gateway.Names{gateway.RoleLAN} // an interface of that name
	}
	if t.lan != "" && slices.ContainsFunc(t.rules, func(m made) bool { return m.rule.DNAT != nil && bool(m.rule.DNAT.Hairpin) }) {
		c.Interfaces.LAN = gateway.Names{t.lan}
	}
	if len(t.mss) > 0 {
		g := t.mss[0].Rule.Target
		c.MSS = gateway.MSS{Clamp: g.Clamp, Bytes: g.Bytes}
	}
	return c
}

// usesWAN reports whether a rule means another thing without a wan interface.
func usesWAN(m made) bool {
	return m.rule.DNAT != nil || m.rule.Static != nil || m.rule.Netmap != nil || leavesBy(m, gateway.RoleWAN)
}

// leavesBy reports whether a rule is for connections that leave by that interface.
func leavesBy(m made, name string) bool {
	return slices.ContainsFunc(m.from, func(e *entry) bool { return e.Match.OutName() == name })
}
