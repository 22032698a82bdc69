package convert

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// tracker is the priority of the connection tracker at its hooks (NF_IP_PRI_CONNTRACK).
const tracker = -200

// express returns why a rule cannot be in a gateway file, whatever other rules there are;
// empty if it can. wan is the interface that the file names as such, or empty.
func (e *entry) express(wan string) (reason string) {
	if wan != "" && e.everywhere() { // what is so without it says more
		if reason := e.express(""); reason != "" {
			return reason
		}
	}
	m, t := e.Match, &e.Rule.Target
	switch {
	case t.Kind == ruleset.Ends && len(t.Chains) > 0:
		return "leads to the chain " + t.Name + ", which is not there"
	case len(t.Unknown) > 0:
		return ruleset.NoWord + t.Unknown[0]
	}
	// Each takes out of the match what rules of the file have words for.
	switch t.Kind {
	case ruleset.Masquerade, ruleset.SNAT:
		reason = e.expressSource(&m, wan)
	case ruleset.DNAT:
		reason = e.expressDestination(&m, wan)
	case ruleset.Netmap:
		reason = e.expressNetmap(&m, wan)
	case ruleset.Redirect:
		return "redirects connections to this host itself; natkit translates what passes through"
	case ruleset.Notrack:
		reason = e.expressNotrack(&m)
	case ruleset.MSS:
		reason = e.expressMSS(&m)
	default:
		return ruleset.NoWord + "the target " + t.Name
	}
	return cmp.Or(reason, wordless(&m), e.excepted())
}

// wordless is the reason of a match of which something is left that the file has no words
// for.
func wordless(m *ruleset.Match) string {
	rest := m.Match
	rest.From = ruleset.Some(m.Source()) // not the version alone
	switch text := rest.String(); {
	case len(m.Unknown) > 0:
		return ruleset.NoWord + "the condition " + m.Unknown[0]
	case m.SYN:
		return ruleset.NoWord + "a condition on TCP flags"
	case text != "":
		return ruleset.NoWord + "the condition '" + text + "' in such a rule"
	}
	return ""
}

// excepted is the reason of a rule that some of its packets do not reach; those about
// sources have except-to.
func (e *entry) excepted() string {
	if len(e.Except) == 0 || e.Rule.Target.Kind == ruleset.Masquerade || e.Rule.Target.Kind == ruleset.SNAT {
		return ""
	}
	return where(e.Except[0].Rule) + " keeps some of its packets from it, for which natkit's rule has no word"
}

// everywhere reports whether the rule names no interface.
func (e *entry) everywhere() bool { return len(e.Match.In)+len(e.Match.Out) == 0 }

func isPattern(name string) bool { return strings.HasSuffix(name, "*") }

// everyInterface is the reason of a rule that names none, beside others that name wan.
func everyInterface(wan string) string {
	return "holds for every interface; with the interface " + wan + " named as wan it would hold for that one"
}

func (e *entry) expressSource(m *ruleset.Match, wan string) (reason string) {
	t := &e.Rule.Target
	switch {
	case e.hook != "postrouting":
		return "translates sources of what comes to this host itself; natkit translates what passes through"
	case t.Ports != nat.Ports{}:
		return fmt.Sprintf("gives ports %s to some protocols; natkit's \"ports: %[1]s\" would hold for all protocols and for the identifiers of pings", t.Ports)
	case t.Kind == ruleset.SNAT && !t.First.IsValid():
		return ruleset.NoWord + "a rule that changes the source's port alone"
	}
	out := m.OutName()
	m.From, m.NotTo = nil, nil
	if !isPattern(out) {
		m.Out = nil
	}
	if reason = wordless(m); reason != "" {
		return reason
	}
	switch {
	case out == gateway.RoleWAN && wan != gateway.RoleWAN:
		return "is for an interface named wan, which in a gateway file is a role; natkit can give it that role only where all rules about destinations are for what comes in by it"
	case out == "" && wan != "":
		return everyInterface(wan)
	}
	_, reason = e.exceptTo()
	return reason
}

// exceptTo are the destinations that a rule about sources leaves alone, by its own
// condition or by rules before it.
func (e *entry) exceptTo() (list []netip.Prefix, reason string) {
	for _, x := range e.Except {
		anywhere := x.Match
		anywhere.To = nil
		switch {
		case x.Drops:
			return nil, where(x.Rule) + " drops some of its packets first, which natkit does not"
		case !x.Match.Dest().IsValid() || !anywhere.Covers(&e.Match):
			return nil, where(x.Rule) + " keeps some of its packets from it, by more than the destination; natkit has except-to alone"
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

func (e *entry) expressDestination(m *ruleset.Match, wan string) string {
	t, to := &e.Rule.Target, m.Dest()
	switch {
	case e.hook != "prerouting" && e.hook != "output":
		return "natkit translates destinations of what comes in, and of the host's own programs"
	case !t.First.IsValid():
		return ruleset.NoWord + "a rule that changes the destination's port alone"
	case t.First != t.Last, !keepsPorts(t, m) && t.Ports.First != t.Ports.Last, t.Random, t.FullyRandom:
		return ruleset.NoWord + "a choice among several addresses or ports of the destination"
	}
	own := *m
	m.To, m.From, m.Protocol, m.Ports, m.ToLocal = nil, nil, 0, nil, false
	if to.IsValid() || wan != "" {
		if reason := cmp.Or(e.inbound(m, wan), wordless(m), e.excepted()); reason != "" {
			return reason
		}
	}
	switch {
	case own.ToLocal:
		return "is on every address of the host; natkit's dnat is on one, or, as in \"on: eth0\", on those of an interface"
	case !to.IsValid():
		return "has no destination (-d), and so translates what passes through to others too; natkit's dnat is on an address, or, as in \"on: " + cmp.Or(own.InName(), "eth0") + "\", on those of an interface"
	case !to.IsSingleIP():
		return "is on the whole of " + to.String() + "; natkit's dnat is on one address, its netmap gives each address one of its own"
	case slices.ContainsFunc(own.Ports, func(p nat.Ports) bool { return p.First == 0 && p != nat.AllPorts }):
		return ruleset.NoWord + "port 0"
	}
	return ""
}

// keepsPorts reports whether the ports that are given are those that were asked for: the
// kernel takes that very one as long as it is free (get_unique_tuple in
// net/netfilter/nf_nat_core.c).
func keepsPorts(t *ruleset.Target, m *ruleset.Match) bool {
	return t.Ports == nat.Ports{} || len(m.Ports) == 1 && m.Ports[0] == t.Ports
}

// inbound is the reason of a rule about destinations by its interface.
func (e *entry) inbound(m *ruleset.Match, wan string) string {
	switch in := m.InName(); {
	case in == wan:
		m.In = nil
	case in == "" && e.hook == "prerouting":
		return everyInterface(wan)
	case in != "" && !isPattern(in):
		return fmt.Sprintf("holds for what comes in by %s alone; natkit can say that (interfaces: {wan: %[1]s}) only where it is true of all rules", in)
	}
	return ""
}

func (e *entry) expressNetmap(m *ruleset.Match, wan string) string {
	t, prefix := &e.Rule.Target, m.Dest()
	outward := e.hook == "postrouting"
	if outward {
		prefix = m.Source()
	}
	switch {
	case !outward && e.hook != "prerouting":
		return "natkit's netmap is for what passes through"
	case !prefix.IsValid() || prefix.Bits() != t.Prefix().Bits():
		return fmt.Sprintf("puts addresses of another number into %s; natkit's netmap gives each address one of its own", t.Prefix())
	case t.Random || t.FullyRandom || t.Persistent || t.Ports != nat.Ports{}:
		return ruleset.NoWord + "options of NETMAP"
	case !outward:
		m.To = nil
		return e.inbound(m, wan)
	}
	m.From = nil
	if m.OutName() == wan {
		m.Out = nil
	}
	return ""
}

func (e *entry) expressMSS(m *ruleset.Match) string {
	switch {
	case e.hook != "forward":
		return "natkit bounds segments of what passes through (FORWARD), not of the host's own connections"
	case m.Protocol != unix.IPPROTO_TCP || !m.SYN:
		return "natkit bounds what SYNs say (--tcp-flags SYN,RST SYN)"
	}
	m.Protocol, m.SYN = 0, false
	return ""
}

func (e *entry) expressNotrack(m *ruleset.Match) string {
	from, to := m.Source(), m.Dest()
	switch {
	case e.Base.Priority >= tracker:
		return fmt.Sprintf("comes after the tracker, and keeps nothing from it (priority %d)", e.Base.Priority)
	case from.IsValid() == to.IsValid() || from.IsValid() && !from.IsSingleIP() || to.IsValid() && !to.IsSingleIP():
		return "natkit's notrack is for what one address gets and sends"
	case to.IsValid() && len(m.SourcePorts) > 0 || from.IsValid() && len(m.Ports) > 0:
		return "is for ports of the other host; natkit's notrack is for those of its own address"
	}
	m.From, m.To, m.Protocol, m.Ports, m.SourcePorts = nil, nil, 0, nil, nil
	return ""
}

// hairpinOf is the DNAT that a rule about sources belongs to: that one gives hosts of a
// network, whom the DNAT sends back to a host of the same network, another address, as
// answers would not pass the gateway otherwise. It is nil for any other rule.
func (t *translator) hairpinOf(h *entry) *entry {
	d, known := t.hairpins[h]
	if known {
		return d
	}
	m, kind := &h.Match, h.Rule.Target.Kind
	if from, to := m.Source(), m.Dest(); h.hook == "postrouting" && (kind == ruleset.SNAT || kind == ruleset.Masquerade) &&
		from.IsValid() && to.IsValid() && to.IsSingleIP() && from.Contains(to.Addr()) {
		i := slices.IndexFunc(t.entries, func(d *entry) bool {
			g := &d.Rule.Target
			return d.hook == "prerouting" && d.Owner == "" && g.Kind == ruleset.DNAT && d.Match.Dest().IsValid() &&
				g.First == to.Addr() && g.First == g.Last && d.Match.Protocol == m.Protocol && slices.Equal(d.portsAfter(), m.Ports)
		})
		if i >= 0 {
			d = t.entries[i]
		}
	}
	t.hairpins[h] = d
	return d
}

// portsAfter are the destination's ports as a DNAT leaves them.
func (e *entry) portsAfter() []nat.Ports {
	if g := &e.Rule.Target; !keepsPorts(g, &e.Match) {
		return []nat.Ports{g.Ports}
	}
	return e.Match.Ports
}

// expressHairpin returns why such a rule is not "hairpin: on" of its DNAT.
func (t *translator) expressHairpin(h, d *entry) string {
	m, g, outside := h.Match, &h.Rule.Target, d.Match.Dest().Addr()
	out, reason := m.OutName(), ""
	switch {
	case g.Kind == ruleset.Masquerade || g.First != outside || g.Last != outside:
		reason = "by which they are seen under " + outside.String()
	case len(d.Match.In)+len(ruleset.Some(d.Match.Source())) > 0 || len(d.Match.Ports) > 1:
		reason = "for one that is on an address and a port for whatever comes"
	case out == "" || isPattern(out) || out == t.wan:
		reason = "for which the file has to say which interface leads inside (interfaces: {lan: eth1}), as this rule does not (-o)"
	case t.lan != "" && t.lan != out:
		reason = "between whatever interfaces lead inside, here " + t.lan + " and " + out
	case g.Ports != nat.Ports{} || g.Random || g.FullyRandom || len(h.Except) > 0:
		reason = "without ports, options and exceptions"
	case slices.ContainsFunc(t.entries, func(x *entry) bool { return x.givesAnother(h) && t.hairpinOf(x) == nil }):
		reason = "but hosts with a snat, static or netmap are seen under the address that those give"
	default:
		m.From, m.To, m.Protocol, m.Ports, m.Out = nil, nil, 0, nil, nil
		if reason = wordless(&m); reason == "" {
			t.lan = out
		}
		return reason
	}
	return fmt.Sprintf("gives hosts inside another source where %s sends them back inside; natkit's word for that is \"hairpin: on\" of a dnat, %s", where(d.Rule), reason)
}

// givesAnother reports whether an entry gives some of the hosts of h an address of its own.
func (e *entry) givesAnother(h *entry) bool {
	k := e.Rule.Target.Kind
	return e.hook == "postrouting" && e.version == h.version && e.Owner == "" && (k == ruleset.SNAT || k == ruleset.Netmap)
}
