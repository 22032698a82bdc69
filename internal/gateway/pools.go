package gateway

import (
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
)

// PoolRules are the plan's sources in the form of rules as natkit finds them on a
// host, so that internal/ports can tell which range a connection's port is from; refs
// are their rules in the file, by the same index.
func (p *Plan) PoolRules() (rules *snapshot.NATRules, refs []Ref) {
	rules = &snapshot.NATRules{}
	for i := range p.Sources {
		s := &p.Sources[i]
		from := s.From
		if len(from) == 0 {
			from = []netip.Prefix{{}}
		}
		for _, prefix := range from {
			for _, to := range s.given() {
				rules.Rules = append(rules.Rules, s.poolRule(prefix, to))
				refs = append(refs, s.Rule)
			}
		}
	}
	return rules, refs
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

// OneToOne tells whether a source keeps each host's own ports: it cannot run out.
func (s *Source) OneToOne() bool { return s.Prefix.IsValid() }
