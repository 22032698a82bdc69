package gateway

import (
	"net/netip"
	"slices"
	"strings"
)

// PlanSchema names the JSON form of a Plan.
const PlanSchema = "natkit.gateway-plan/1"

// Plan is what an engine carries out: resolved and in order, the same for every
// engine. Roles are interfaces by now, interfaces are names (one that comes later
// matches when it comes), `on: wan` is addresses.
type Plan struct {
	Schema string `json:"schema"`
	Engine Engine `json:"engine"`
	// WAN and LAN are the interfaces of the roles.
	WAN []string `json:"wan,omitempty"`
	LAN []string `json:"lan,omitempty"`

	// Destinations translate the destination of a connection's first packet, Sources
	// its source; in each the first that matches does, and only it. Sources see the
	// destination as Destinations left it, except where they say Original.
	Destinations []Destination `json:"destinations,omitempty"`
	Sources      []Source      `json:"sources,omitempty"`
	// Stateless pairs are translated packet by packet and not tracked.
	Stateless []Pair `json:"stateless,omitempty"`
	// Untracked is left alone by the tracker, and so by Destinations and Sources;
	// Stateless pairs need no tracker and translate it all the same.
	Untracked []Untracked `json:"untracked,omitempty"`
	// Waiting are rules about the addresses of an interface that has none: the plan
	// has no entries for these until it is compiled again.
	Waiting []Waiting `json:"waiting,omitempty"`

	MSS MSS `json:"mss,omitzero"`
	// Flowtable are the interfaces of the kernel's fast path; none where empty.
	Flowtable []string `json:"flowtable,omitempty"`
	// ConnectionsPerSource bounds connections of one source that enter by a LAN
	// interface (any interface but WAN where no LAN is named); 0 is no limit.
	ConnectionsPerSource int64 `json:"connections_per_source,omitempty"`

	// IPv4 and IPv6 tell which families the gateway forwards.
	IPv4 bool `json:"ipv4,omitempty"`
	IPv6 bool `json:"ipv6,omitempty"`
	// Accounting and Expect become sysctls, not rules.
	Accounting bool   `json:"accounting,omitempty"`
	Expect     Expect `json:"expect,omitzero"`
}

// Source is a translation of sources.
type Source struct {
	Rule Ref `json:"rule"`
	// From, NotTo and Out are conditions; empty means any. The prefixes of From have
	// one length: a rule with several lengths is several Sources. From is empty only with
	// Hairpin; a rule for any source has 0.0.0.0/0 or ::/0, which tells the family.
	From  []netip.Prefix `json:"from,omitempty"`
	NotTo []netip.Prefix `json:"not_to,omitempty"`
	Out   []string       `json:"out,omitempty"`
	// Hairpin, where valid, restricts it to connections that a Destination sent back
	// inside: their destination was translated (IPS_DST_NAT), the original one is in
	// Hairpin.Prefix (0.0.0.0/0 or ::/0: whichever) and Hairpin.Port, and they came in
	// by and leave by an interface inside (Plan.Inside). Connections of the gateway
	// itself are not meant. Out is empty then.
	Hairpin HairpinOf `json:"hairpin,omitzero"`

	// Masquerade gives the address of the interface by which it leaves. Otherwise To
	// are the addresses to choose from, or Prefix (with one From of the same length)
	// what the prefix becomes, the bits of the host kept.
	Masquerade bool         `json:"masquerade,omitempty"`
	To         []Range      `json:"to,omitempty"`
	Prefix     netip.Prefix `json:"prefix,omitzero"`
	// Ports apply to protocols with ports and to echo identifiers.
	Ports  Ports  `json:"ports,omitzero"`
	Random Random `json:"random,omitempty"`
	// Persistent: of several addresses a source gets the same one for every destination.
	Persistent bool `json:"persistent,omitempty"`
}

// HairpinOf is the original destination of connections that come back inside.
type HairpinOf struct {
	Prefix netip.Prefix `json:"prefix"`
	Port   Port         `json:"port,omitzero"`
}

// Destination is a translation of destinations. Either On is one address (a prefix of
// full length) or a prefix that Prefix, of the same length, replaces.
type Destination struct {
	Rule Ref          `json:"rule"`
	On   netip.Prefix `json:"on"`
	// From restricts the clients; empty means any. Its prefixes have one length.
	From []netip.Prefix `json:"from,omitempty"`
	// Port restricts protocol and ports; the zero value means all.
	Port Port `json:"port,omitzero"`
	// In are the interfaces that packets come in by; any where empty.
	In []string `json:"in,omitempty"`

	To     Endpoint     `json:"to,omitzero"`
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// Local does it for connections of the gateway's own programs too.
	Local bool `json:"local,omitempty"`
}

// Pair is a stateless translation between prefixes of the same length: what leaves by
// Out from Inside gets Outside, what comes in by Out for Outside gets Inside. Neutral
// is RFC 6296: the address is chosen so that checksums stay right, and what hosts inside
// send to each other's addresses outside is translated at both ends (see Reflects).
type Pair struct {
	Rule    Ref          `json:"rule"`
	Inside  netip.Prefix `json:"inside"`
	Outside netip.Prefix `json:"outside"`
	Out     []string     `json:"out,omitempty"`
	Neutral bool         `json:"neutral,omitempty"`
}

// Untracked is traffic to and from an address that is not tracked.
type Untracked struct {
	Rule Ref        `json:"rule"`
	On   netip.Addr `json:"on"`
	Port Port       `json:"port,omitzero"`
}

// Waiting is a rule that needs an address of an interface.
type Waiting struct {
	Rule      Ref    `json:"rule"`
	Interface string `json:"interface"`
}

// Inside reports whether an interface leads inside: it is one of LAN, or, where none
// is named, none of WAN.
func (p *Plan) Inside(name string) bool {
	if len(p.LAN) > 0 {
		return slices.Contains(p.LAN, name)
	}
	return name != "" && !slices.Contains(p.WAN, name)
}

// Interfaces are all that the plan names, each once, in order.
func (p *Plan) Interfaces() []string {
	names := slices.Concat(p.WAN, p.LAN, p.Flowtable)
	for _, s := range p.Sources {
		names = append(names, s.Out...)
	}
	for _, d := range p.Destinations {
		names = append(names, d.In...)
	}
	for _, s := range p.Stateless {
		names = append(names, s.Out...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Range is addresses from First to Last, both included.
type Range struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

func (r Range) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

func (r Ranges) String() string {
	texts := make([]string, len(r))
	for i, one := range r {
		texts[i] = one.String()
	}
	return strings.Join(texts, ", ")
}

// Contains reports whether a is in r.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}
