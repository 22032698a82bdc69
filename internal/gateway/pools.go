package gateway

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"sort"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// PoolRules are the plan's sources in the form of rules as natkit finds them on a
// host, so that internal/ports can identify the range a connection's port is from; refs
// are their rules in the file, by the same index.
func (p *Plan) PoolRules() (rules *snapshot.NATRules, refs []Ref) {
	rules = &snapshot.NATRules{}
	sentBack := p.sentBack()
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.Action.Pairs != "" {
			continue // no port of theirs is chosen, and there may be a million
		}
		from := s.From
		if len(from) == 0 {
			from = []netip.Prefix{{}}
		}
		for _, prefix := range from {
			for _, to := range s.given() {
				rule := s.poolRule(prefix, to)
				if d := sentBack[s.asked()]; d != nil {
					d.bound(&rule)
				}
				rules.Rules = append(rules.Rules, rule)
				refs = append(refs, s.Rule)
			}
		}
	}
	return rules, refs
}

// asked is a rule and what one of its destinations was before the translation.
type asked struct {
	rule     Ref
	on       netip.Prefix
	protocol uint8
	ports    nat.Ports
}

func (e *Entry) asked() asked {
	a := asked{rule: e.Rule, protocol: e.Protocol}
	for _, on := range slices.Concat(e.To, e.Original) {
		a.on = on
	}
	for _, ports := range slices.Concat(e.Ports, e.OriginalPorts) {
		a.ports = ports
	}
	return a
}

// sentBack are the destinations by what a hairpin's source asks for: its connections
// go to what these became, and to nothing else.
func (p *Plan) sentBack() map[asked]*Entry {
	all := map[asked]*Entry{}
	for i := range p.Destinations {
		all[p.Destinations[i].asked()] = &p.Destinations[i]
	}
	return all
}

// bound restricts a rule to connections whose destination e translated.
func (e *Entry) bound(r *snapshot.NATRule) {
	switch {
	case e.Action.Prefix.IsValid():
		r.ToDestination = e.Action.Prefix
	case len(e.Action.Backends) == 1:
		r.ToDestination, r.DestinationPort = nat.Host(e.Action.Backends[0].Address), e.Action.Backends[0].Port
	}
	if e.Protocol != 0 {
		r.Protocol = nat.ProtocolName(e.Protocol)
	}
}

// given are the addresses that a source gets; the zero range where the interface decides.
func (e *Entry) given() nat.AddrRanges {
	switch {
	case e.Action.Kind == nat.Masquerade:
		return nat.AddrRanges{{}}
	case e.Action.Prefix.IsValid():
		return nat.AddrRanges{nat.RangeOf(e.Action.Prefix)}
	}
	return e.Action.To
}

// choosesAddress reports whether there are several to choose from.
func (e *Entry) choosesAddress() bool {
	return len(e.Action.To) > 1 || len(e.Action.To) == 1 && !e.Action.To[0].IsSingle()
}

func (e *Entry) poolRule(from netip.Prefix, to nat.AddrRange) snapshot.NATRule {
	kind, a := snapshot.NATSource, &e.Action
	if a.Kind == nat.Masquerade {
		kind = snapshot.NATMasquerade
	}
	return snapshot.NATRule{
		Source: "nftables", Family: "inet", Table: "natkit", Chain: e.Rule.String(), Hook: "postrouting", Kind: kind, First: to.First, Last: to.Last, FirstPort: a.Ports.First, LastPort: a.Ports.Last, Random: a.Random == nat.RandomPorts, FullyRandom: a.Random == nat.RandomFully, Persistent: a.Persistent, Partial: len(e.NotTo) > 0 || len(e.Out) > 1 || e.IsHairpin() || e.IsNarrow(), Text: a.String(), NATCondition: snapshot.NATCondition{FromSource: from},
	}
}

// PoolCapacity is how many connections a rule's addresses and ports can distinguish.
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
	// SharedWith are rules that give some of the same ports of the same addresses. Of many it
	// is a few.
	SharedWith []Ref `json:"shared_with,omitempty"`
}

// Capacity predicts what the pools of a plan can hold, in the order of the file.
// timeWait is in seconds.
func Capacity(p *Plan, facts Facts, timeWait float64) []PoolCapacity {
	var all []PoolCapacity
	var owners []owner
	seen := map[Ref]bool{}
	for i := range p.Sources {
		e := &p.Sources[i]
		if e.IsHairpin() || seen[e.Rule] {
			continue
		}
		seen[e.Rule] = true
		given := e.gives(&facts)
		for _, r := range given {
			owners = append(owners, owner{r, cmp.Or(e.Action.Ports, nat.Ports{First: 1, Last: lastGiven}), len(all)})
		}
		all = append(all, e.capacity(given, timeWait))
	}
	share(all, owners)
	for i := range all {
		slices.SortFunc(all[i].SharedWith, Ref.Compare)
	}
	slices.SortFunc(all, func(a, b PoolCapacity) int { return a.Rule.Compare(b.Rule) })
	return all
}

// gives are the addresses that a source gets, those of interfaces as they are now.
func (e *Entry) gives(facts *Facts) nat.AddrRanges {
	if e.Action.Kind != nat.Masquerade {
		return e.given()
	}
	var all nat.AddrRanges
	for _, name := range e.Out {
		for _, p := range facts.AddressesOf(name) {
			if a := p.Addr(); a.BitLen() == e.Rule.BitLen() && !a.IsLinkLocalUnicast() {
				all = append(all, nat.OneAddr(a))
				break // of several it is mostly one
			}
		}
	}
	return all
}

func (e *Entry) capacity(given nat.AddrRanges, timeWait float64) PoolCapacity {
	c := PoolCapacity{Rule: e.Rule, Ports: capacity.PortsPerTuple, OneForOne: e.oneForOne()}
	if n := e.Action.Ports.Len(); n > 0 {
		c.Ports = int64(n)
	}
	for _, r := range given {
		c.Addresses = addBounded(c.Addresses, r.Size())
	}
	if s := e.Pairs(); s != nil {
		c.Addresses = int64(s.LenOf(e.Rule.BitLen()))
	}
	c.AtOnce = capacity.Tuples(c.Ports, c.Addresses, 1)
	if timeWait > 0 {
		c.PerSecond = capacity.Wrap(c.AtOnce, timeWait)
	}
	return c
}

func (e *Entry) oneForOne() bool { return e.Action.Prefix.IsValid() || e.Rule.Kind == "static" }

func addBounded(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// owner is a range of a pool, with the ports that it may give, by the pool's index.
type owner struct {
	nat.AddrRange
	ports nat.Ports
	pool  int
}

// share finds pools that have ports of an address in common: in the order of first
// addresses, a range meets those before it that have not ended.
func share(all []PoolCapacity, owners []owner) {
	slices.SortStableFunc(owners, func(a, b owner) int { return a.First.Compare(b.First) })
	var open []owner
	for i, o := range owners {
		if i > 0 && owners[i-1].First != o.First {
			open = slices.DeleteFunc(open, func(e owner) bool { return e.Last.Less(o.First) })
		}
		for _, e := range open {
			if _, meet := e.ports.Common(o.ports); meet {
				all[e.pool].sharesWith(all[o.pool].Rule)
				all[o.pool].sharesWith(all[e.pool].Rule)
			}
		}
		open = append(open, o)
	}
}

// manyShare bounds how many rules with the same addresses are named.
const manyShare = 8

func (c *PoolCapacity) sharesWith(r Ref) {
	if len(c.SharedWith) < manyShare && r != c.Rule && !slices.Contains(c.SharedWith, r) {
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
	// tables are those that are in order already.
	tables []indexedTable
}

// indexedTable are ranges in order, and what they belong to.
type indexedTable struct {
	addrs nat.AddrRanges
	by    Ref
}

// indexed is a range and what it belongs to.
type indexed struct {
	addrs nat.AddrRange
	by    Ref
	// port restricts what is meant of the addresses.
	port Port
}

func newRangeIndex(all []indexed, tables []indexedTable) *rangeIndex {
	slices.SortStableFunc(all, func(a, b indexed) int { return a.addrs.First.Compare(b.addrs.First) })
	x := &rangeIndex{all: all, reach: make([]netip.Addr, len(all)), tables: tables}
	for i, one := range all {
		x.reach[i] = one.addrs.Last
		if i > 0 && one.addrs.Last.Less(x.reach[i-1]) {
			x.reach[i] = x.reach[i-1]
		}
	}
	return x
}

// overlapping are those that have an address of r.
func (x *rangeIndex) overlapping(r nat.AddrRange) (found []indexed) {
	end := sort.Search(len(x.all), func(i int) bool { return r.Last.Less(x.all[i].addrs.First) })
	for i := end - 1; i >= 0 && !x.reach[i].Less(r.First); i-- {
		if x.all[i].addrs.Overlaps(r) {
			found = append(found, x.all[i])
		}
	}
	slices.Reverse(found)
	for _, t := range x.tables {
		for _, a := range t.addrs.Within(r) {
			found = append(found, indexed{addrs: a, by: t.by})
		}
	}
	return found
}
