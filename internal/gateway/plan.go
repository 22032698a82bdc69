package gateway

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/nat"
)

// PlanSchema names the JSON form of a Plan.
const PlanSchema = "natkit.gateway-plan/2"

// Plan is what an engine carries out: resolved and in order, the same for every
// engine. Roles are interfaces by now, interfaces are names (one that comes later
// matches when it comes), `on: wan` is addresses.
type Plan struct {
	Schema string `json:"schema"`
	// Engine carries out the whole plan, and every packet that no other engine has translated before.
	Engine Engine `json:"engine"`
	// Assigned are the rules that other engines carry out before Engine does, by engine.
	Assigned map[Engine][]Ref `json:"assigned,omitempty"`
	// Bypass are the bits of skb->mark of packets that EngineEBPF hands to the stack, some of which are set: nothing else
	// translates these. It is 0 where EngineEBPF is not asked for, or carries out nothing.
	Bypass uint32 `json:"bypass,omitempty"`
	// Elsewhere are destinations that EngineEBPF leaves to netfilter where it has no rule for a packet.
	Elsewhere []netip.Prefix `json:"elsewhere,omitempty"`
	// XDP is where EngineEBPF runs.
	XDP XDP `json:"xdp,omitempty"`
	// WAN and LAN are the interfaces of the roles.
	WAN []string `json:"wan,omitempty"`
	LAN []string `json:"lan,omitempty"`
	// Uplinks divide the connections that leave by the WAN interfaces; where empty the host's routes decide. Marks
	// are the bits of marks that say on which uplink a connection is: others are left alone.
	Uplinks []Uplink `json:"uplinks,omitempty"`
	Marks   uint32   `json:"marks,omitempty"`
	// Zones are parts of what is inside whose addresses overlap; ZoneMarks the bits of marks by which packets go there.
	Zones     []Zone `json:"zones,omitempty"`
	ZoneMarks uint32 `json:"zone_marks,omitempty"`

	// Destinations translate the destination of a connection's first packet, Sources
	// its source; in each the first that matches does, and only it. Sources see the
	// destination as Destinations left it, except for Match.Original.
	//
	// A Source with Match.Original is for connections that a Destination sent back
	// inside: besides, they came in by and leave by an interface inside (Inside), which
	// connections of the gateway itself did not. All other Sources have Match.From.
	Destinations []Entry `json:"destinations,omitempty"`
	Sources      []Entry `json:"sources,omitempty"`
	// Stateless pairs are translated packet by packet and not tracked.
	Stateless []Entry `json:"stateless,omitempty"`
	// Untracked is left alone by the tracker, and so by Destinations and Sources;
	// Stateless pairs need no tracker and translate it all the same.
	Untracked []Entry `json:"untracked,omitempty"`
	// Waiting are rules about the addresses of an interface that has none: the plan
	// has no entries for these until it is compiled again.
	Waiting []Waiting `json:"waiting,omitempty"`
	// Off are rules that the file has and that are not enabled: nothing asks for them.
	Off []Off `json:"off,omitempty"`

	// Sets are those that entries ask for, by their names.
	Sets []*nat.Set `json:"sets,omitempty"`

	MSS MSS `json:"mss,omitzero"`
	// Flowtable are the interfaces of the kernel's fast path; none where empty.
	Flowtable []string `json:"flowtable,omitempty"`
	// Helpers of the tracker are for connections that come in by a LAN interface, as ConnectionsPerSource has it, and for
	// those that Destinations translate. TTL is that of forwarded packets that leave by a WAN interface; 0 leaves it.
	Helpers []Helper `json:"helpers,omitempty"`
	TTL     TTL      `json:"ttl,omitempty"`
	// ConnectionsPerSource bounds connections of one source that enter by a LAN
	// interface (any interface but WAN where no LAN is named); 0 is no limit.
	ConnectionsPerSource int64 `json:"connections_per_source,omitempty"`

	// PCP is which ports hosts inside may open to themselves; nil where they may not. Those of Destinations come first.
	PCP *Grants `json:"pcp,omitempty"`

	// IPv4 and IPv6 are the families that the gateway forwards.
	IPv4 bool `json:"ipv4,omitempty"`
	IPv6 bool `json:"ipv6,omitempty"`
	// Out are the hosts that new connections do not go to, by rule and their place in Backends, where checks of an
	// engine's hosts have begun before the plan is put in force. It is no part of what the plan says.
	Out map[Ref][]bool `json:"-"`
	// Leases are the ports that hosts inside have open as the plan is put in force, or is looked at. They are no part of
	// what it says, either.
	Leases []Lease `json:"-"`

	// Accounting and Expect become sysctls, not rules.
	Accounting bool   `json:"accounting,omitempty"`
	Expect     Expect `json:"expect,omitzero"`
}

// Entry is what a rule of the file does to packets of one kind. The prefixes of one
// condition have one length: a rule with several lengths is several entries.
type Entry struct {
	Rule Ref `json:"rule"`
	nat.Match
	Action nat.Action `json:"action"`
	// Local does it for connections of the gateway's own programs too.
	Local bool `json:"local,omitempty"`
	// Prefer decides between entries that are equally specific.
	Prefer int `json:"prefer,omitempty"`
	// Log is how the first packets of its connections are logged; nil: not at all.
	Log *Log `json:"log,omitempty"`
	// Asked is that a rule about destinations names In itself: otherwise In says where its connections are from.
	Asked bool `json:"in_asked,omitempty"`
}

// IsHairpin reports whether an entry is for connections that come back inside.
func (e *Entry) IsHairpin() bool { return len(e.Original) > 0 }

// Pairs is the set of pairs by which an entry translates; nil where it has none.
func (e *Entry) Pairs() *nat.Set {
	if e.Action.Pairs == "" {
		return nil
	}
	for i := range e.Members {
		if m := &e.Members[i]; m.Pairs {
			return m.Set
		}
	}
	return nil
}

// HasInside reports whether an address is inside a Stateless pair, or inside a pair of its set that has the rule's family.
func (e *Entry) HasInside(a netip.Addr) bool {
	if s := e.Pairs(); s != nil {
		return a.BitLen() == e.Rule.BitLen() && s.Outward(a).IsValid()
	}
	return e.Inside().Contains(a)
}

// HasOutside is HasInside for the address outside.
func (e *Entry) HasOutside(a netip.Addr) bool {
	if s := e.Pairs(); s != nil {
		return a.BitLen() == e.Rule.BitLen() && s.Inward(a).IsValid()
	}
	return e.Outside().Contains(a)
}

// Outside is the prefix that a Stateless pair translates sources in Inside to; of a set of pairs both are all addresses.
func (e *Entry) Outside() netip.Prefix { return e.Action.Prefix }

// Inside is the prefix of a Stateless pair that stands behind Outside.
func (e *Entry) Inside() netip.Prefix { return e.From[0] }

// On is the address or the prefix that Destinations and Untracked are about.
func (e *Entry) On() netip.Prefix { return e.To[0] }

// Link finds the elements of the sets of a plan that was read from JSON, by their digests, and has its entries refer to
// them.
func (p *Plan) Link(elements func(digest string) ([]byte, error)) error {
	known := map[string]*nat.Set{}
	for i, s := range p.Sets {
		text, err := elements(s.Digest())
		if err != nil {
			return err
		}
		if p.Sets[i], err = nat.ParseSet(s.Name, text); err != nil {
			return err
		}
		known[s.Name] = p.Sets[i]
	}
	for e := range p.Entries() {
		for i := range e.Members {
			x := &e.Members[i]
			if x.Set = known[x.Name]; x.Set == nil {
				return fmt.Errorf("%s: there is no set %s", e.Rule, x.Name)
			}
		}
	}
	return nil
}

// SameButElements reports whether two plans differ in nothing but the elements of their sets.
func SameButElements(a, b *Plan) bool {
	if !slices.EqualFunc(a.Sets, b.Sets, func(x, y *nat.Set) bool { return x.Name == y.Name }) {
		return false
	}
	x, y := *a, *b
	x.Sets, y.Sets = nil, nil
	return Digest(&x) == Digest(&y)
}

// Waiting is a rule that needs an address of an interface.
type Waiting struct {
	Rule      Ref    `json:"rule"`
	Interface string `json:"interface"`
}

// Off is a rule that is not enabled.
type Off struct {
	Rule Ref `json:"rule"`
	// Text is its fields as the file has them, cut where they are many: as it may name what is not there, nothing of it is
	// resolved.
	Text string `json:"text"`
}

// Inside reports whether an interface leads inside: it is one of LAN, or, where none
// is named, none of WAN.
func (p *Plan) Inside(name string) bool {
	if len(p.LAN) > 0 {
		return nat.InNames(p.LAN, name)
	}
	return name != "" && !nat.InNames(p.WAN, name)
}

// On is the plan as packets are compared with it on a host: beside patterns and link groups stand the interfaces that
// they are for there. It is p itself where there are none.
func (p *Plan) On(f *Facts) *Plan {
	if !slices.ContainsFunc(p.Interfaces(), nat.IsSeveral) {
		return p
	}
	named := func(names []string) []string {
		if !slices.ContainsFunc(names, nat.IsSeveral) {
			return names
		}
		all := slices.Concat(names, f.concrete(names))
		slices.Sort(all)
		return slices.Compact(all)
	}
	on := *p
	on.WAN, on.LAN = named(p.WAN), named(p.LAN)
	for _, list := range []*[]Entry{&on.Destinations, &on.Sources, &on.Stateless} {
		*list = slices.Clone(*list)
		for i := range *list {
			e := &(*list)[i]
			e.In, e.NotIn, e.Out, e.NotOut = named(e.In), named(e.NotIn), named(e.Out), named(e.NotOut)
		}
	}
	return &on
}

// Interfaces are all that the plan names, each once, in order.
func (p *Plan) Interfaces() []string {
	names := slices.Concat(p.WAN, p.LAN, p.Flowtable)
	if p.PCP != nil {
		names = append(names, p.PCP.LAN...)
	}
	for e := range p.Entries() {
		names = append(append(append(append(names, e.In...), e.NotIn...), e.Out...), e.NotOut...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Entries are all of a plan: Destinations, Sources, Stateless and Untracked.
func (p *Plan) Entries() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, list := range [][]Entry{p.Destinations, p.Sources, p.Stateless, p.Untracked} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// The ranks of Sources. The first one wins.
const (
	rankOwnHairpin = 0 // connections that come back inside, of hosts with external addresses
	rankHairpin    = 3 // … of other hosts
	rankKinds      = 4 // all other connections
)

// rank is that of a Source; of other entries it is 0.
func (e *Entry) rank() int {
	switch {
	case !e.Action.Kind.TranslatesSource():
		return 0
	case !e.IsHairpin():
		return rankKinds + e.kindRank()
	case e.Original[0].Bits() == 0:
		return rankOwnHairpin + e.kindRank()
	}
	return rankHairpin
}

// kindRank puts one address for one before prefix for prefix before those who share.
func (e *Entry) kindRank() int {
	switch {
	case e.Rule.Kind == "static":
		return 0
	case e.Action.Prefix.IsValid():
		return 1
	}
	return 2
}

// compareEntries returns which of two entries of one list is more specific, that is, wins
// where both match: a where it is negative, b where it is positive, neither at 0. It
// compares the rank (hairpin, static, netmap, then snat and masquerade), the length of the
// destination's prefix and the number of ports, the length of From, the number of interfaces,
// whether some destinations are excepted, the number of other conditions, and at last Prefer.
func compareEntries(a, b *Entry) int { return firstOf(precedence, a, b) }

// precedence is compareEntries' order.
var precedence = []func(a, b *Entry) int{
	func(a, b *Entry) int { return cmp.Compare(a.rank(), b.rank()) },
	func(a, b *Entry) int { return cmp.Compare(length(b.Original), length(a.Original)) },
	func(a, b *Entry) int { return cmp.Compare(b.length(nat.To), a.length(nat.To)) },
	func(a, b *Entry) int { return cmp.Compare(a.span(), b.span()) },
	func(a, b *Entry) int { return cmp.Compare(b.length(nat.From), a.length(nat.From)) },
	func(a, b *Entry) int { return compareNames(a.asksIn(), b.asksIn()) },
	func(a, b *Entry) int { return compareNames(a.Out, b.Out) },
	func(a, b *Entry) int { return cmp.Compare(min(len(b.NotTo), 1), min(len(a.NotTo), 1)) },
	func(a, b *Entry) int { return cmp.Compare(b.further(), a.further()) },
	func(a, b *Entry) int { return cmp.Compare(b.Prefer, a.Prefer) },
}

// firstOf is the first of some comparisons that tells two entries apart; 0 if none does.
func firstOf(comparisons []func(a, b *Entry) int, a, b *Entry) int {
	for _, compare := range comparisons {
		if c := compare(a, b); c != 0 {
			return c
		}
	}
	return 0
}

// Compare returns which of two entries of one list wins where both match: e where it is negative, o where it is
// positive, neither at 0.
func (e *Entry) Compare(o *Entry) int { return compareEntries(e, o) }

// asksIn are the interfaces that the rule asks for.
func (e *Entry) asksIn() []string {
	if e.Action.Kind.TranslatesSource() || e.Asked {
		return e.In
	}
	return nil
}

// further is the number of conditions that nothing else of the comparison looks at.
func (e *Entry) further() (n int) {
	for _, is := range [...]bool{
		e.Mark.Mask != 0, len(e.NotMarks) > 0, len(e.Users) > 0, len(e.NotUsers) > 0, len(e.Groups) > 0, len(e.NotGroups) > 0,
		e.Zone != "", len(e.DSCP) > 0, len(e.NotDSCP) > 0, len(e.Hours) > 0, len(e.NotHours) > 0, len(e.Days) > 0, len(e.NotDays) > 0, len(e.NotFrom) > 0, len(e.NotServices) > 0, len(e.NotIn) > 0, len(e.NotOut) > 0,
	} {
		if is {
			n++
		}
	}
	if e.Action.Pairs != "" {
		n-- // a pair is what a rule has in two addresses otherwise
	}
	return n + len(e.Members)
}

// length is that of the prefixes of From or To: pairs have single addresses there.
func (e *Entry) length(of nat.Condition) int {
	prefixes := e.From
	if of == nat.To {
		prefixes = e.To
	}
	if e.Action.Pairs != "" && slices.ContainsFunc(e.Members, func(x nat.Member) bool { return x.Of == of && x.Pairs }) {
		return e.Rule.BitLen()
	}
	return length(prefixes)
}

// length is that of all prefixes; -1 where there are none.
func length(prefixes []netip.Prefix) int {
	if len(prefixes) == 0 {
		return -1
	}
	return prefixes[0].Bits()
}

// span is how much the protocol and the ports of an entry cover: few ports come before
// many before a whole protocol before all.
func (e *Entry) span() (n int) {
	if e.Protocol == 0 {
		return math.MaxInt
	}
	for _, ports := range [2][]nat.Ports{e.Ports, e.OriginalPorts} {
		for _, p := range ports {
			n += p.Len()
		}
	}
	return cmp.Or(n, math.MaxUint16+1)
}

// compareNames puts few interfaces before many, these before patterns and link groups, and those before any.
func compareNames(a, b []string) int {
	rank := func(names []string) uint {
		n := uint(len(names))
		for _, name := range names {
			if nat.IsSeveral(name) {
				n += mostInterfaces
			}
		}
		return n - 1 // none wraps around
	}
	return cmp.Compare(rank(a), rank(b))
}

// orderEntries is compareEntries with an order for those that compare equal. Entries of the same sets, of one DSCP or
// time stand together: an engine may have them share a map.
func orderEntries(a, b *Entry) int {
	if c := compareEntries(a, b); c != 0 {
		return c
	}
	return firstOf(arrangement, a, b)
}

// arrangement is orderEntries' order of entries that compare equal.
var arrangement = []func(a, b *Entry) int{
	func(a, b *Entry) int { return slices.CompareFunc(a.Members, b.Members, nat.Member.Compare) },
	func(a, b *Entry) int { return slices.Compare(a.DSCP, b.DSCP) },
	func(a, b *Entry) int { return slices.Compare(a.Days, b.Days) },
	func(a, b *Entry) int { return slices.CompareFunc(a.Hours, b.Hours, orderHours) },
	func(a, b *Entry) int { return slices.CompareFunc(a.To, b.To, comparePrefixes) },
	func(a, b *Entry) int { return cmp.Compare(a.Protocol, b.Protocol) },
	func(a, b *Entry) int { return slices.CompareFunc(a.Ports, b.Ports, orderPorts) },
	func(a, b *Entry) int { return slices.CompareFunc(a.From, b.From, comparePrefixes) },
	func(a, b *Entry) int { return slices.CompareFunc(a.Original, b.Original, comparePrefixes) },
	func(a, b *Entry) int { return slices.CompareFunc(a.OriginalPorts, b.OriginalPorts, orderPorts) },
	func(a, b *Entry) int { return slices.Compare(a.In, b.In) },
	func(a, b *Entry) int { return slices.Compare(a.Out, b.Out) },
	func(a, b *Entry) int { return cmp.Compare(a.Zone, b.Zone) },
	func(a, b *Entry) int { return comparePrefixes(a.Action.Prefix, b.Action.Prefix) },
	func(a, b *Entry) int { return a.Rule.Compare(b.Rule) },
}

func orderHours(a, b nat.Hours) int {
	return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

func orderPorts(a, b nat.Ports) int {
	return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

// String says what the entry does, in the words of the file.
func (e *Entry) String() string {
	r := nat.Rule{Match: e.Match, Action: e.Action}
	if e.Local {
		return r.String() + " local"
	}
	return r.String()
}
