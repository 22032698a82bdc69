package gateway

import (
	"math"
	"net/netip"
	"slices"
	"sort"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// PoolRules are the plan's sources in the form of rules as natkit finds them on a
// host, so that internal/ports can tell which range a connection's port is from; refs
// are their rules in the file, by the same index.
func (p *Plan) PoolRules() (rules *snapshot.NATRules, refs []Ref) {
	rules = &snapshot.NATRules{}
	sentBack := p.sentBack()
	for i := range p.Sources {
		s := &p.Sources[i]
		from := s.From
		if len(from) == 0 {
			from = []netip.Prefix{{}}
		}
		for _, prefix := range from {
			for _, to := range s.given() {
				rule := s.poolRule(prefix, to)
				if d := sentBack[hairpinKey{s.Rule, s.Hairpin}]; d != nil {
					d.bound(&rule)
				}
				rules.Rules = append(rules.Rules, rule)
				refs = append(refs, s.Rule)
			}
		}
	}
	return rules, refs
}

// hairpinKey is a rule and what one of its destinations was before.
type hairpinKey struct {
	rule Ref
	of   HairpinOf
}

// sentBack are the destinations by what a hairpin's source asks for: its connections
// go to what these became, and to nothing else.
func (p *Plan) sentBack() map[hairpinKey]*Destination {
	all := map[hairpinKey]*Destination{}
	for i := range p.Destinations {
		d := &p.Destinations[i]
		all[hairpinKey{d.Rule, HairpinOf{Prefix: d.On, Port: d.Port}}] = d
	}
	return all
}

// bound restricts a rule to connections whose destination d translated.
func (d *Destination) bound(r *snapshot.NATRule) {
	if r.ToDestination = d.Prefix; !d.Prefix.IsValid() {
		r.ToDestination = netip.PrefixFrom(d.To.Address, d.To.Address.BitLen())
	}
	r.DestinationPort = d.To.Port
	if number, ok := d.Port.Number(); ok && d.Port.Protocol != "" {
		r.Protocol = nat.ProtocolName(number)
	}
}

// given are the addresses that s gives; the zero Range where the interface decides.
func (s *Source) given() []Range {
	switch {
	case s.Masquerade:
		return []Range{{}}
	case s.Prefix.IsValid():
		return []Range{RangeOf(s.Prefix)}
	}
	return s.To
}

// choosesAddress reports whether there are several to choose from.
func (s *Source) choosesAddress() bool {
	return len(s.To) > 1 || len(s.To) == 1 && s.To[0].First != s.To[0].Last
}

func (s *Source) poolRule(from netip.Prefix, to Range) snapshot.NATRule {
	kind := snapshot.NATSource
	if s.Masquerade {
		kind = snapshot.NATMasquerade
	}
	return snapshot.NATRule{
		Source: "nftables", Family: "inet", Table: "natkit", Chain: s.Rule.String(), Hook: "postrouting", Kind: kind,
		First: to.First, Last: to.Last, FirstPort: s.Ports.First, LastPort: s.Ports.Last,
		Random: s.Random == RandomPorts, FullyRandom: s.Random == RandomFully, Persistent: s.Persistent,
		FromSource: from, Partial: len(s.NotTo) > 0 || len(s.Out) > 1 || s.Hairpin.Prefix.IsValid(), Text: s.becomes(),
	}
}

// PoolCapacity is how many connections a rule's addresses and ports can tell apart.
type PoolCapacity struct {
	Rule Ref `json:"rule"`
	// Addresses is how many there are to give; 0 where the interface has none yet.
	Addresses int64 `json:"addresses"`
	// Ports is how many of each address, for one protocol and destination.
	Ports int64 `json:"ports"`
	// OneForOne: each host has an address of its own with all its ports, so nothing runs
	// out but what one host can do itself.
	OneForOne bool `json:"one_for_one,omitempty"`
	// AtOnce is the most connections to one address and port of one protocol at one
	// time: two of them cannot have the same address and port.
	AtOnce int64 `json:"connections_per_destination"`
	// PerSecond is the rate of short TCP connections to one destination that they
	// suffice for without reusing a port that an ended one still holds (its entry stays
	// for nf_conntrack_tcp_timeout_time_wait).
	PerSecond float64 `json:"connections_per_second_per_destination"`
	// SharedWith are rules that give some of the same addresses: they share the ports. Of
	// many it is a few.
	SharedWith []Ref `json:"shared_with,omitempty"`
}

// Capacity predicts what the pools of a plan can hold, in the order of the file.
// timeWait is in seconds.
func Capacity(p *Plan, facts Facts, timeWait float64) []PoolCapacity {
	var all []PoolCapacity
	var ranges [][]Range
	seen := map[Ref]bool{}
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.Hairpin.Prefix.IsValid() || seen[s.Rule] {
			continue
		}
		seen[s.Rule] = true
		given := s.gives(&facts)
		all, ranges = append(all, s.capacity(given, timeWait)), append(ranges, given)
	}
	share(all, ranges)
	for i := range all {
		slices.SortFunc(all[i].SharedWith, Ref.Compare)
	}
	slices.SortFunc(all, func(a, b PoolCapacity) int { return a.Rule.Compare(b.Rule) })
	return all
}

// gives are the addresses of a source rule, those of interfaces as they are now.
func (s *Source) gives(facts *Facts) []Range {
	if !s.Masquerade {
		return s.given()
	}
	var all []Range
	for _, name := range s.Out {
		for _, p := range facts.AddressesOf(name) {
			if a := p.Addr(); a.BitLen() == s.Rule.BitLen() && !a.IsLinkLocalUnicast() {
				all = append(all, Range{a, a})
				break // of several it is mostly one
			}
		}
	}
	return all
}

func (s *Source) capacity(given []Range, timeWait float64) PoolCapacity {
	c := PoolCapacity{Rule: s.Rule, Ports: capacity.PortsPerTuple, OneForOne: s.oneForOne()}
	if s.Ports.First > 0 {
		c.Ports = int64(max(s.Ports.First, s.Ports.Last)) - int64(s.Ports.First) + 1
	}
	for _, r := range given {
		c.Addresses = addBounded(c.Addresses, r.Size())
	}
	if c.AtOnce = math.MaxInt64; c.Addresses <= math.MaxInt64/c.Ports {
		c.AtOnce = c.Addresses * c.Ports
	}
	if timeWait > 0 {
		c.PerSecond = float64(c.AtOnce) / timeWait
	}
	return c
}

func (s *Source) oneForOne() bool { return s.Prefix.IsValid() || s.Rule.Kind == "static" }

// Size is the number of addresses, at most the greatest int64.
func (r Range) Size() int64 {
	first, last := r.First.As16(), r.Last.As16()
	var n uint64
	for i := range first {
		if n > math.MaxInt64>>8 {
			return math.MaxInt64
		}
		n = n<<8 + uint64(last[i]) - uint64(first[i])
	}
	return addBounded(int64(n), 1)
}

func addBounded(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// owner is a range of a pool, by the pool's index.
type owner struct {
	Range
	pool int
}

// share finds pools that have addresses in common: in the order of first addresses, a
// range meets those before it that have not ended.
func share(all []PoolCapacity, ranges [][]Range) {
	var owners []owner
	for i, list := range ranges {
		for _, r := range list {
			owners = append(owners, owner{r, i})
		}
	}
	slices.SortFunc(owners, func(a, b owner) int { return a.First.Compare(b.First) })
	var open []owner
	for _, o := range owners {
		open = slices.DeleteFunc(open, func(e owner) bool { return ended(e, o.First) })
		for _, e := range open {
			all[e.pool].sharesWith(all[o.pool].Rule)
			all[o.pool].sharesWith(all[e.pool].Rule)
		}
		if open = append(open, o); len(open) > manyShare {
			open = open[1:]
		}
	}
}

func ended(o owner, at netip.Addr) bool { return o.Last.Compare(at) < 0 }

// manyShare bounds how many rules with the same addresses are named.
const manyShare = 8

func (c *PoolCapacity) sharesWith(r Ref) {
	if r != c.Rule && !slices.Contains(c.SharedWith, r) && len(c.SharedWith) < manyShare {
		c.SharedWith = append(c.SharedWith, r)
	}
}

// MissingInterfaces are those that a plan names and the host does not have: their rules
// hold when they come.
func MissingInterfaces(p *Plan, facts Facts) []string {
	if !facts.Known {
		return nil
	}
	named := p.Interfaces()
	for _, w := range p.Waiting {
		named = append(named, w.Interface)
	}
	slices.Sort(named)
	return slices.DeleteFunc(slices.Compact(named), func(n string) bool { return facts.has(n) })
}

// rangeIndex finds ranges that overlap another, among thousands.
type rangeIndex struct {
	all []indexed
	// reach is how far all ranges up to an index go.
	reach []netip.Addr
}

// indexed is a range and what it belongs to.
type indexed struct {
	addrs Range
	by    Ref
	// port restricts what is meant of the addresses.
	port Port
}

func newRangeIndex(all []indexed) *rangeIndex {
	slices.SortStableFunc(all, func(a, b indexed) int { return a.addrs.First.Compare(b.addrs.First) })
	x := &rangeIndex{all: all, reach: make([]netip.Addr, len(all))}
	for i, one := range all {
		x.reach[i] = one.addrs.Last
		if i > 0 && one.addrs.Last.Less(x.reach[i-1]) {
			x.reach[i] = x.reach[i-1]
		}
	}
	return x
}

// overlapping are those that have an address of r.
func (x *rangeIndex) overlapping(r Range) (found []indexed) {
	end := sort.Search(len(x.all), func(i int) bool { return r.Last.Less(x.all[i].addrs.First) })
	for i := end - 1; i >= 0 && !x.reach[i].Less(r.First); i-- {
		if x.all[i].addrs.overlaps(r) {
			found = append(found, x.all[i])
		}
	}
	slices.Reverse(found)
	return found
}

// subtract takes the addresses of r from ranges.
func subtract(ranges []Range, r Range) (left []Range) {
	for _, one := range ranges {
		if !one.overlaps(r) {
			left = append(left, one)
			continue
		}
		if one.First.Less(r.First) {
			left = append(left, Range{one.First, r.First.Prev()})
		}
		if r.Last.Less(one.Last) {
			left = append(left, Range{r.Last.Next(), one.Last})
		}
	}
	return left
}
