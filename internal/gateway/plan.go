package gateway

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// PlanSchema names the JSON form of a Plan.
const PlanSchema = "natkit.gateway-plan/1"

// Plan is what an engine carries out: resolved and in order, the same for every
// engine. Roles are interfaces by now, interfaces are names (one that comes later
// matches when it comes), `on: wan` is addresses.
type Plan struct {
	Schema string `json:"schema"`
	Engine Engine `json:"engine"`
	// Assigned are the rules that other engines carry out, by engine.
	Assigned map[Engine][]Ref `json:"assigned,omitempty"`
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

// The ranks of Sources. The first one wins.
const (
	rankOwnHairpin = 0 // connections that come back inside, of hosts with external addresses
	rankHairpin    = 3 // … of other hosts
	rankKinds      = 4 // all other connections
)

func (s *Source) rank() int {
	switch {
	case !s.Hairpin.Prefix.IsValid():
		return rankKinds + s.kindRank()
	case s.Hairpin.Prefix.Bits() == 0:
		return rankOwnHairpin + s.kindRank()
	}
	return rankHairpin
}

// kindRank puts one address for one before prefix for prefix before those who share.
func (s *Source) kindRank() int {
	switch {
	case s.Rule.Kind == "static":
		return 0
	case s.Prefix.IsValid():
		return 1
	}
	return 2
}

// compareSources tells which of two is more specific, that is, wins where both match:
// a where it is negative, b where it is positive, neither at 0. It looks at the kind
// (hairpin, static, netmap, then snat and masquerade), the length of From, the number
// of interfaces in Out, and whether some destinations are excepted.
func compareSources(a, b *Source) int {
	return cmp.Or(
		cmp.Compare(a.rank(), b.rank()),
		cmp.Compare(b.Hairpin.Prefix.Bits(), a.Hairpin.Prefix.Bits()),
		comparePorts(a.Hairpin.Port, b.Hairpin.Port),
		cmp.Compare(length(b.From), length(a.From)),
		compareNames(a.Out, b.Out),
		cmp.Compare(min(len(b.NotTo), 1), min(len(a.NotTo), 1)))
}

// compareDestinations is compareSources of destinations. It looks at the length of On,
// the number of ports, the length of From, and the number of interfaces in In.
func compareDestinations(a, b *Destination) int {
	return cmp.Or(
		cmp.Compare(b.On.Bits(), a.On.Bits()),
		comparePorts(a.Port, b.Port),
		cmp.Compare(length(b.From), length(a.From)),
		compareNames(a.In, b.In))
}

// length is that of all prefixes; -1 where there are none.
func length(prefixes []netip.Prefix) int {
	if len(prefixes) == 0 {
		return -1
	}
	return prefixes[0].Bits()
}

// comparePorts puts few ports before many before a whole protocol before all.
func comparePorts(a, b Port) int { return cmp.Compare(a.span(), b.span()) }

// span is how much a Port covers.
func (p Port) span() int {
	switch {
	case p.Protocol == "":
		return math.MaxInt
	case p.First == 0:
		return math.MaxUint16 + 1
	}
	return int(p.last()) - int(p.First) + 1
}

// last is the last port; First alone is one.
func (p Port) last() uint16 { return max(p.First, p.Last) }

// compareNames puts few interfaces before many before any.
func compareNames(a, b []string) int {
	return cmp.Compare(uint(len(a))-1, uint(len(b))-1) // none wraps around
}

// orderSources is compareSources with an order of those that it does not tell apart.
func orderSources(a, b *Source) int {
	return cmp.Or(compareSources(a, b),
		slices.CompareFunc(a.From, b.From, comparePrefixes),
		comparePrefixes(a.Hairpin.Prefix, b.Hairpin.Prefix),
		orderPorts(a.Hairpin.Port, b.Hairpin.Port),
		slices.Compare(a.Out, b.Out), a.Rule.Compare(b.Rule))
}

func orderDestinations(a, b *Destination) int {
	return cmp.Or(compareDestinations(a, b),
		comparePrefixes(a.On, b.On), orderPorts(a.Port, b.Port),
		slices.CompareFunc(a.From, b.From, comparePrefixes),
		slices.Compare(a.In, b.In), a.Rule.Compare(b.Rule))
}

func orderPairs(a, b Pair) int {
	return cmp.Or(comparePrefixes(a.Inside, b.Inside), comparePrefixes(a.Outside, b.Outside), a.Rule.Compare(b.Rule))
}

func orderUntracked(a, b Untracked) int {
	return cmp.Or(a.On.Compare(b.On), comparePorts(a.Port, b.Port), orderPorts(a.Port, b.Port), a.Rule.Compare(b.Rule))
}

func orderPorts(a, b Port) int {
	return cmp.Or(strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

// String says what s does, in the words of the file.
func (s Source) String() string { return s.Conditions() + " becomes " + s.becomes() }

// Conditions are the packets that s is for, in the words of the file.
func (s *Source) Conditions() string {
	var w words
	if h := s.Hairpin; h.Prefix.IsValid() {
		w.say("back inside")
		if h.Prefix.Bits() > 0 {
			w.add("of", h.String())
		}
	}
	w.add("from", nat.PrefixesString(s.From))
	w.add("except to", nat.PrefixesString(s.NotTo))
	w.add("out", strings.Join(s.Out, ", "))
	return w.String()
}

// becomes says what s gives.
func (s *Source) becomes() string {
	var w words
	switch {
	case s.Masquerade:
		w.say("the interface's address")
	case s.Prefix.IsValid():
		w.say(nat.PrefixString(s.Prefix))
	default:
		w.say(Ranges(s.To).String())
	}
	w.add("ports", s.Ports.String())
	switch s.Random {
	case RandomPorts:
		w.say("random")
	case RandomFully:
		w.say("random fully")
	}
	if s.Persistent {
		w.say("persistent")
	}
	return w.String()
}

// String is the original destination that is meant.
func (h HairpinOf) String() string { return onText(h.Prefix, h.Port) }

// String says what d does, in the words of the file.
func (d Destination) String() string { return d.Conditions() + " becomes " + d.becomes() }

// Conditions are as Source's.
func (d *Destination) Conditions() string {
	var w words
	w.add("on", onText(d.On, d.Port))
	w.add("from", nat.PrefixesString(d.From))
	w.add("in", strings.Join(d.In, ", "))
	if d.Local {
		w.say("and of programs here")
	}
	return w.String()
}

func (d *Destination) becomes() string {
	if d.Prefix.IsValid() {
		return nat.PrefixString(d.Prefix)
	}
	return d.To.String()
}

// String says what p does, in the words of the file.
func (p Pair) String() string {
	var w words
	w.say(nat.PrefixString(p.Inside))
	w.add("is outside", nat.PrefixString(p.Outside))
	w.add("out", strings.Join(p.Out, ", "))
	w.say("stateless")
	if p.Neutral {
		w.say("checksum-neutral (RFC 6296)")
	}
	return w.String()
}

// String says what u leaves alone.
func (u Untracked) String() string {
	return "to and from " + onText(host(u.On), u.Port) + " not tracked"
}

// onText is an address with its protocol and port: 203.0.113.7 tcp/80.
func onText(p netip.Prefix, port Port) string {
	return strings.TrimSpace(nat.PrefixString(p) + " " + port.String())
}

// words builds a line of words and values.
type words struct{ parts []string }

// say adds a word that stands alone.
func (w *words) say(word string) { w.parts = append(w.parts, word) }

// add adds a word and its value; neither where the value is empty.
func (w *words) add(word, value string) {
	if value != "" {
		w.parts = append(w.parts, word, value)
	}
}

func (w *words) String() string { return strings.Join(w.parts, " ") }
