package ebpf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"golang.org/x/sys/unix"
)

// link is what a rule makes of addresses outside and inside, one for one: packets to outside go to inside, and those from
// inside come from outside.
type link struct {
	rule            gateway.Ref
	outside, inside span
	// in are the interfaces by which packets to outside come in, out those by which packets from inside go out; empty: any.
	in, out []string
	// hairpin: packets to outside also come in by interfaces inside. back: netfilter also leads connections from inside
	// there that the programs leave to it.
	hairpin, back bool
	// pairs, where it has many, are the addresses of outside and inside; nil where there is one prefix for one.
	pairs *nat.Set
	// tracked is that netfilter translates connections, and not packets, by the rule.
	tracked, neutral bool
	// destination and source are the plan's entries for the two directions. A dnat has no source: there packets from inside
	// are answers.
	destination, source *gateway.Entry
}

// mostPorts bounds the mappings that one rule becomes.
const mostPorts = 4096

// links are those of a plan, in its order of precedence, and for each rule that has none why.
func links(p *gateway.Plan) (all []link, why map[gateway.Ref]string) {
	l := linker{plan: p, why: map[gateway.Ref]string{}, sources: map[gateway.Ref]*gateway.Entry{}, hairpins: map[gateway.Ref]bool{}, owns: map[gateway.Ref]bool{}, ports: map[gateway.Ref]int{}}
	for i := range p.Sources {
		l.source(&p.Sources[i])
	}
	for i := range p.Destinations {
		l.destination(&p.Destinations[i])
	}
	for i := range p.Stateless {
		l.pair(&p.Stateless[i])
	}
	for i := range p.Untracked {
		l.refuse(p.Untracked[i].Rule, "it is for the tracker alone")
	}
	return slices.DeleteFunc(l.links, func(k link) bool { return l.why[k.rule] != "" }), l.why
}

type linker struct {
	plan  *gateway.Plan
	links []link
	why   map[gateway.Ref]string
	// sources are the entries of rules about sources of hosts that have an address of their own; hairpins the rules whose
	// packets come from inside as well, owns those whose hosts have that address inside, too; ports is how many rules translate.
	sources        map[gateway.Ref]*gateway.Entry
	hairpins, owns map[gateway.Ref]bool
	ports          map[gateway.Ref]int
}

func (l *linker) refuse(r gateway.Ref, format string, args ...any) {
	if l.why[r] == "" {
		l.why[r] = fmt.Sprintf(format, args...)
	}
}

func (l *linker) source(e *gateway.Entry) {
	switch {
	case e.IsHairpin() && e.Original[0].Bits() > 0:
		l.hairpins[e.Rule] = true
		return
	case e.IsHairpin(): // the same, for what comes back inside
		l.owns[e.Rule] = true
		return
	case e.Rule.Kind == "masquerade" || e.Rule.Kind == "snat":
		l.refuse(e.Rule, "only the tracker can tell answers from what others begin")
		return
	}
	l.logged(e)
	asked := e.Match
	asked.From, asked.Out, asked.Members = nil, nil, withoutPairs(asked.Members)
	l.conditions(e.Rule, &asked)
	if l.sources[e.Rule] != nil {
		l.refuse(e.Rule, "it is for some of what its hosts send")
	}
	l.sources[e.Rule] = e
}

// conditions refuses what the programs do not look at.
func (l *linker) conditions(r gateway.Ref, m *nat.Match) {
	if text := m.String(); text != "" {
		l.refuse(r, "the programs do not look at all that it asks for: %s", text)
	}
}

func (l *linker) logged(e *gateway.Entry) {
	if e.Log != nil {
		l.refuse(e.Rule, "log is about connections, and the programs see packets")
	}
}

func (l *linker) destination(e *gateway.Entry) {
	l.logged(e)
	asked := e.Match
	asked.To, asked.Protocol, asked.Ports, asked.In, asked.Members = nil, 0, nil, nil, withoutPairs(asked.Members)
	if len(asked.From) == 1 && asked.From[0].Bits() == 0 {
		asked.From = nil
	}
	l.conditions(e.Rule, &asked)
	switch a := &e.Action; {
	case len(e.To) != 1:
		l.refuse(e.Rule, "it is for several prefixes")
	case a.Zone != "":
		l.refuse(e.Rule, "it leads to a zone")
	case a.Pairs != "":
		l.both(e, sideOf(e.Pairs(), nat.From, e.Rule.BitLen()))
	case a.Prefix.IsValid():
		l.both(e, whole(a.Prefix))
	case a.Kind == nat.Redirect:
		l.refuse(e.Rule, "it leads to the gateway itself")
	case len(a.Backends) != 1:
		l.refuse(e.Rule, "it leads to several hosts")
	case !e.On().IsSingleIP():
		l.refuse(e.Rule, "it leads all of %s to one address", nat.PrefixString(e.On()))
	case e.Rule.Kind == "static":
		l.both(e, whole(nat.Host(a.Backends[0].Address)))
	default:
		l.forwards(e)
	}
}

// both adds the link of a rule that has an entry for each direction.
func (l *linker) both(e *gateway.Entry, inside span) {
	s := l.sources[e.Rule]
	k := link{rule: e.Rule, outside: whole(e.On()), inside: inside, pairs: e.Pairs(), in: e.In, tracked: true, destination: e, source: s}
	if k.pairs != nil {
		k.outside = sideOf(k.pairs, nat.To, e.Rule.BitLen())
	}
	if s == nil || e.Protocol != 0 || len(s.From) != 1 || s.From[0].Masked() != inside.prefix {
		l.refuse(e.Rule, "it does not translate all packets of both directions")
		return
	}
	k.out, k.back = s.Out, l.hairpins[e.Rule]
	if k.hairpin = k.back && !e.Asked; k.hairpin {
		k.in = s.Out
	}
	if k.hairpin && !l.owns[e.Rule] {
		l.refuse(e.Rule, "hairpin, and its host has another address inside")
	}
	if !slices.Equal(k.in, k.out) {
		l.refuse(e.Rule, "its two directions are for different interfaces: in by %s, out by %s", named(k.in), named(k.out))
	}
	l.links = append(l.links, k)
}

// forwards adds the links of a dnat, whose answers are what its host sends from the port.
func (l *linker) forwards(e *gateway.Entry) {
	to := e.Action.Backends[0]
	k := link{rule: e.Rule, in: e.In, out: e.In, tracked: true, destination: e}
	if k.back = l.hairpins[e.Rule]; k.back && !e.Asked {
		// Hosts inside would be answered by what is meant for those outside: hairpins are left to the tracker.
		if k.in, k.out = l.plan.WAN, l.plan.WAN; len(k.in) == 0 {
			l.refuse(e.Rule, "hairpin, and no interface is wan: the programs cannot tell who is outside")
		}
	}
	ports, n := e.Ports, 0
	for _, p := range ports {
		n += p.Len()
	}
	if l.ports[e.Rule] += n; n == 0 {
		ports = []nat.Ports{nat.AllPorts}
	}
	switch changes := to.Port != 0 && ports[0].First != to.Port; {
	case to.Port != 0 && to.Last == 0 && n > 1:
		l.refuse(e.Rule, "several ports become one: answers do not say which it was")
	case len(e.Ports) > 0 && !mapsPorts(e.Protocol):
		l.refuse(e.Rule, "the programs do not look at ports of %s", nat.ProtocolName(e.Protocol))
	case changes && e.Protocol == unix.IPPROTO_SCTP:
		l.refuse(e.Rule, "the checksum of SCTP is over all of a packet, and would have to be computed anew for another port")
	case l.ports[e.Rule] > mostPorts:
		l.refuse(e.Rule, "more than %d ports: each has a mapping of its own", mostPorts)
	}
	for _, p := range ports {
		one := k
		one.outside = span{prefix: e.On().Masked(), protocol: e.Protocol, ports: p}
		one.inside = span{prefix: nat.Host(to.Address), protocol: e.Protocol, ports: p}
		if to.Port != 0 {
			one.inside.ports = nat.Ports{First: to.Port, Last: max(to.Port, to.Last)}
		}
		l.links = append(l.links, one)
	}
}

// mapsPorts reports whether the programs look at the ports of a protocol.
func mapsPorts(protocol uint8) bool {
	return protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP || protocol == unix.IPPROTO_SCTP
}

func (l *linker) pair(e *gateway.Entry) {
	k := link{rule: e.Rule, pairs: e.Pairs(), in: e.Out, out: e.Out, hairpin: e.Reflects(), neutral: e.Action.Neutral}
	k.outside, k.inside = sides(e)
	l.links = append(l.links, k)
}

// sides are the two of a stateless pair.
func sides(e *gateway.Entry) (outside, inside span) {
	if s := e.Pairs(); s != nil {
		return sideOf(s, nat.To, e.Rule.BitLen()), sideOf(s, nat.From, e.Rule.BitLen())
	}
	return whole(e.Outside()), whole(e.Inside())
}

// withoutPairs are conditions on other sets than pairs.
func withoutPairs(all []nat.Member) []nat.Member {
	return slices.DeleteFunc(slices.Clone(all), func(x nat.Member) bool { return x.Pairs })
}

// agree reports whether two links make the same of what they have in common on one side.
func (k *link) agree(o *link, outside bool) bool {
	if k.pairs != nil || o.pairs != nil {
		return false
	}
	if k.neutral || o.neutral {
		return k.neutral == o.neutral && k.outside == o.outside && k.inside == o.inside
	}
	sides := func(k *link) (from, to span) {
		if outside {
			return k.outside, k.inside
		}
		return k.inside, k.outside
	}
	becomes := func(k *link, a netip.Addr) (netip.Addr, int) {
		from, to := sides(k)
		return nat.Replace(a, to.prefix), int(to.ports.First) - int(from.ports.First)
	}
	x, _ := sides(k)
	y, _ := sides(o)
	both, _ := x.common(y)
	a, shift := becomes(k, both.prefix.Addr())
	b, other := becomes(o, both.prefix.Addr())
	return a == b && shift == other
}

func named(interfaces []string) string {
	if len(interfaces) == 0 {
		return "any"
	}
	return strings.Join(interfaces, ", ")
}
