package convert

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// tracker is the priority of the connection tracker at its hooks (NF_IP_PRI_CONNTRACK).
const tracker = -200

// express returns why a rule cannot be in a gateway file, whatever other rules there are;
// empty if it can. wan is the interface that the file names as such, or empty.
func (e *entry) express(wan string) (reason string) {
	m, t := e.Match, &e.Rule.Target
	switch {
	case t.Kind == ruleset.Ends && len(t.Chains) > 0:
		return "leads to the chain " + t.Name + ", which is not there"
	case t.Besides != "":
		return fmt.Sprintf("%sa rule that does two things (%s, %s)", ruleset.NoWord, t.Besides, t.Kind)
	case len(t.Unknown) > 0:
		return ruleset.NoWord + t.Unknown[0]
	case t.Translates() && len(e.Rule.Marks) > 0:
		return ruleset.NoWord + "a rule that sets a mark and translates"
	}
	// Each takes out of the match what rules of the file have words for.
	switch t.Kind {
	case ruleset.Masquerade, ruleset.SNAT:
		reason = e.expressSource(&m, wan)
	case ruleset.DNAT, ruleset.Redirect:
		reason = e.expressDestination(&m, wan)
	case ruleset.Netmap:
		reason = e.expressNetmap(&m, wan)
	case ruleset.Notrack:
		reason = e.expressNotrack(&m)
	case ruleset.MSS:
		reason = e.expressMSS(&m)
	case "":
		return wordless(&m)
	default:
		return ruleset.NoWord + "the target " + t.Name
	}
	return cmp.Or(reason, wordless(&m))
}

// wordless is the reason of a match of which something is left that the file has no words
// for.
func wordless(m *ruleset.Match) string {
	rest := m.Match
	rest.From, rest.To = specific(m.From), specific(m.To) // not the version alone
	switch text := rest.String(); {
	case len(m.Unknown) > 0:
		// Those in brackets are known, but not beside others.
		i := slices.IndexFunc(m.Unknown, func(text string) bool { return text[:min(1, len(text))] != "(" })
		return ruleset.NoWord + "the condition " + m.Unknown[max(i, 0)]
	case m.SYN:
		return ruleset.NoWord + "a condition on TCP flags"
	case text != "":
		return ruleset.NoWord + "the condition '" + text + "' in such a rule"
	}
	return ""
}

// worded takes out of a match what all rules about connections have words for.
func worded(m *ruleset.Match) {
	m.From, m.NotFrom, m.To, m.NotTo, m.Protocol, m.Ports, m.NotServices = nil, nil, nil, nil, 0, nil, nil
	m.In, m.NotIn, m.Mark, m.NotMarks, m.DSCP, m.NotDSCP = nil, nil, nat.Mark{}, nil, nil, nil
	m.Users, m.NotUsers, m.Groups, m.NotGroups = nil, nil, nil, nil
	m.Hours, m.NotHours, m.Days, m.NotDays = nil, nil, nil, nil
}

// everywhere reports whether a rule names no interface.
func (e *entry) everywhere() bool {
	return len(e.Match.In)+len(e.Match.NotIn)+len(e.Match.Out)+len(e.Match.NotOut) == 0
}

// everyInterface is the reason of a rule that names none, beside others that name wan.
func everyInterface(wan string) string {
	return "holds for every interface; with the interface " + wan + " named as wan it would hold for that one"
}

// isRole is the reason of a rule for an interface that has the name of a role; the file can give it that role
// only where that changes no other rule.
func (e *entry) isRole(wan string) string {
	m := &e.Match
	if wan != gateway.RoleWAN && slices.Contains(slices.Concat(m.In, m.NotIn, m.Out, m.NotOut), gateway.RoleWAN) {
		return "is for an interface named wan, which in a gateway file is a role; natkit can give it that role only where all rules name an interface"
	}
	return ""
}

func (e *entry) expressSource(m *ruleset.Match, wan string) (reason string) {
	t := &e.Rule.Target
	switch {
	case e.hook != "postrouting":
		return "translates sources of what comes to this host itself; natkit translates what passes through"
	case t.Kind == ruleset.SNAT && !t.First.IsValid():
		return ruleset.NoWord + "a rule that changes the source's port alone"
	}
	worded(m)
	m.Out, m.NotOut = nil, nil
	switch {
	case wordless(m) != "":
		return ""
	case len(e.Match.Out)+len(e.Match.NotOut) == 0 && wan != "":
		return everyInterface(wan)
	}
	return e.isRole(wan)
}

func (e *entry) expressDestination(m *ruleset.Match, wan string) string {
	t := &e.Rule.Target
	switch {
	case e.hook != "prerouting" && e.hook != "output":
		return "natkit translates destinations of what comes in, and of the host's own programs"
	case t.Kind == ruleset.DNAT && !t.First.IsValid() && len(t.Drawn) == 0:
		return ruleset.NoWord + "a rule that changes the destination's port alone"
	case t.Random || t.FullyRandom:
		return ruleset.NoWord + "random ports of the destination"
	}
	if _, reason := e.backends(); reason != "" {
		return reason
	}
	if m.ToLocal {
		return "is on every address of the host; natkit's dnat is on one, or, as in \"on: " + cmp.Or(m.InName(), "eth0") + "\", on those of an interface"
	}
	worded(m)
	switch own := &e.Match; {
	case wordless(m) != "":
		return ""
	case e.hook == "prerouting" && len(own.In)+len(own.NotIn) == 0 && wan != "" && len(specific(own.To)) > 0:
		return everyInterface(wan)
	}
	return e.isRole(wan)
}

// mostChosen bounds the addresses of a range that a destination becomes one of.
const mostChosen = 256

// backends are what a destination becomes.
func (e *entry) backends() (all gateway.Backends, reason string) {
	t, m := &e.Rule.Target, &e.Match
	b, asked, given := nat.Backend{}, nat.Ports{}, t.Ports
	if len(m.Ports) == 1 {
		asked = m.Ports[0]
	}
	switch redirects := t.Kind == ruleset.Redirect; {
	case t.Base != 0 && (asked.First != t.Base || asked.Len() != given.Len()):
		return nil, ruleset.NoWord + "ports that are shifted, but for a range that begins with the base and is as long"
	case t.Base != 0 && given.First != given.Last:
		b.Port, b.Last = given.First, given.Last
	case given == nat.Ports{} && redirects && (asked == nat.Ports{} || asked.First != asked.Last):
		return nil, "redirects several ports, each to itself on this host; natkit's dnat gives one, as in to: \":3128\""
	case given == nat.Ports{} && redirects:
		b.Port = asked.First
	case given == nat.Ports{}, given == asked && given.First != given.Last && !redirects: // the port stays
	case given.First != given.Last:
		return nil, ruleset.NoWord + "a choice among several ports of the destination"
	default:
		b.Port = given.First
	}
	if t.Kind == ruleset.Redirect {
		return gateway.Backends{b}, ""
	}
	if len(t.Drawn) > 0 {
		return drawn(t.Drawn)
	}
	r := nat.AddrRange{First: t.First, Last: t.Last}
	if r.Size() > mostChosen || b.Last != 0 && !r.IsSingle() {
		return nil, ruleset.NoWord + "a choice among so many addresses, or among several with shifted ports"
	}
	for i := range uint64(r.Size()) {
		b.Address = r.At(i)
		all = append(all, b)
	}
	return all, ""
}

// drawn are destinations of which each has a share of the numbers that are drawn.
func drawn(list []snapshot.Drawn) (all gateway.Backends, reason string) {
	for _, d := range list {
		b := nat.Backend{Address: d.Address, Port: d.Port}
		i := slices.IndexFunc(all, func(o nat.Backend) bool { return o.Address == b.Address && o.Port == b.Port })
		if i < 0 {
			i, all = len(all), append(all, b)
		}
		all[i].Weight += d.Numbers
	}
	common, most := all[0].Weight, all[0].Weight
	for _, b := range all {
		for n := b.Weight; n != 0; {
			common, n = n, common%n
		}
		most = max(most, b.Weight)
	}
	const mostWeight = 1000
	if most/common > mostWeight || len(all) > mostChosen {
		return nil, ruleset.NoWord + "a choice of such shares"
	}
	for i := range all {
		all[i].Weight /= common
		if all[i].Weight == 1 {
			all[i].Weight = 0 // which means the same
		}
	}
	return all, ""
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
	case len(e.Except) > 0:
		return where(e.Except[0].Rule) + " keeps some of its packets from it, for which natkit's netmap has no word"
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

// inbound is the reason of a netmap by its interface.
func (e *entry) inbound(m *ruleset.Match, wan string) string {
	switch in := m.InName(); in {
	case wan:
		m.In = nil
	case "":
		return everyInterface(wan)
	default:
		return fmt.Sprintf("holds for what comes in by %s alone; natkit can say that of a netmap (interfaces: {wan: %[1]s}) only where it is true of all rules", in)
	}
	return ""
}

func (e *entry) expressMSS(m *ruleset.Match) string {
	switch {
	case e.hook != "forward":
		return "natkit bounds segments of what passes through (FORWARD), not of the host's own connections"
	case m.Protocol != unix.IPPROTO_TCP || !m.SYN:
		return "natkit bounds what SYNs say (--tcp-flags SYN,RST SYN)"
	case len(e.Except) > 0:
		return where(e.Except[0].Rule) + " keeps some of its packets from it, for which natkit's rule has no word"
	}
	if m.Protocol, m.SYN = 0, false; e.Rule.Target.Clamp {
		m.In, m.Out = nil, nil // by others it is what the route takes, too
	}
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
	case len(e.Except) > 0:
		return where(e.Except[0].Rule) + " keeps some of its packets from it, for which natkit's rule has no word"
	}
	m.From, m.To, m.Protocol, m.Ports, m.SourcePorts = nil, nil, 0, nil, nil
	return ""
}

// where names another rule.
func where(r *ruleset.Rule) string {
	if r.Line > 0 {
		return fmt.Sprintf("line %d", r.Line)
	}
	return fmt.Sprintf("%q", r.Text)
}

// mostForms bounds the matches that exceptions make of a rule's.
const mostForms = 32

// forms are the packets that come to a rule and that the file is to translate by it: without those that rules before
// it keep from it, and those of rules that are not in the file.
func (e *entry) forms(before []*entry) (all []nat.Match, reason string) {
	own := e.hook == "output"
	all = plainForms(&e.Match.Match)
	leave := func(x *ruleset.Match, r *ruleset.Rule, does string) string {
		if slices.ContainsFunc(x.Unknown, func(text string) bool { return strings.Contains(text, "policy") }) {
			return where(r) + " " + does + ", which IPsec policies decide; natkit's word is except-to, with the networks at the other end of the tunnels"
		}
		if len(x.Unknown) > 0 || x.SYN {
			return where(r) + " " + does + ", by conditions that natkit does not import"
		}
		var left []nat.Match
		for i := range all {
			parts, word := without(&all[i], &x.Match, own)
			if left = append(left, parts...); word != "" {
				return where(r) + " " + does + ", by a condition on the " + word + ", of which natkit's rule cannot say the opposite"
			}
		}
		if all = left; len(all) > mostForms {
			return where(r) + " " + does + ", and there are too many of such rules for natkit's to say what is left"
		}
		return ""
	}
	for _, x := range e.Except {
		if x.Drops {
			return nil, where(x.Rule) + " drops some of its packets first, which natkit does not"
		}
		if reason := leave(&x.Match, x.Rule, "keeps some of its packets from it"); reason != "" {
			return nil, reason
		}
	}
	for _, b := range before {
		if reason := leave(&b.Match, b.Rule, "is not translated, and gets some of its packets first"); reason != "" {
			return nil, reason
		}
	}
	return all, ""
}

// plainForms are a match in the form in which files have it: with one prefix of the source and one of the destination,
// and without the port 0, which no connection has.
func plainForms(m *nat.Match) (all []nat.Match) {
	from, to := specific(m.From), specific(m.To)
	for i := range max(len(from), 1) {
		for j := range max(len(to), 1) {
			one := *m
			one.From, one.To, one.Ports = at(from, i), at(to, j), plainPorts(m.Ports)
			all = append(all, one)
		}
	}
	return all
}

// plainPorts are ranges of which none meets another; none where they are all ports.
func plainPorts(list []nat.Ports) (all []nat.Ports) {
	for _, p := range list {
		p.First = max(p.First, 1)
		all = append(all, p.Without(all)...)
	}
	if slices.Contains(all, nat.Ports{First: 1, Last: math.MaxUint16}) {
		return nil
	}
	return all
}

// at is the list of one value of a list; none of an empty one.
func at(list []netip.Prefix, i int) []netip.Prefix {
	if len(list) == 0 {
		return nil
	}
	return list[i : i+1 : i+1]
}
