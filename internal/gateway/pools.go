package gateway

import (
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
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
		r.Protocol = conntrack.ProtocolName(number)
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
