package gateway

import "fmt"

// held are addresses that no pool gives, as answers to them would not find back to
// the connection: the rule that has them is stateless, or keeps the tracker away.
func (c *Config) held() *rangeIndex {
	all := c.pairsOutside(true)
	c.each(func(r Rule, ref Ref) {
		if r.Notrack != nil {
			all = append(all, indexed{Range{r.Notrack.On.Addr, r.Notrack.On.Addr}, ref, r.Notrack.Port})
		}
	})
	return newRangeIndex(all)
}

// ofOneHost are the addresses outside that stand for one host each, whose connections
// are tracked: others can share them, and take ports from them.
func (c *Config) ofOneHost() *rangeIndex { return newRangeIndex(c.pairsOutside(false)) }

// pairsOutside are the addresses outside of rules that pair them with those inside.
func (c *Config) pairsOutside(stateless Switch) (all []indexed) {
	c.each(func(r Rule, ref Ref) {
		switch {
		case r.Static != nil && r.Static.Stateless == stateless:
			all = append(all, indexed{addrs: Range{r.Static.Outside.Addr, r.Static.Outside.Addr}, by: ref})
		case r.Netmap != nil && r.Netmap.Stateless == stateless:
			all = append(all, indexed{addrs: RangeOf(r.Netmap.Outside.Prefix), by: ref})
		}
	})
	return all
}

func (c *Config) each(look func(Rule, Ref)) {
	for _, l := range c.lists() {
		for i, r := range l.rules {
			look(r, Ref{List: l.name, Index: i, Kind: r.Kind()})
		}
	}
}

// gives reports whether ports that are given may be one of p.
func gives(ports Ports, p Port) bool {
	if p.First == 0 {
		return true
	}
	ports = given(ports)
	return p.First <= ports.Last && ports.First <= p.last()
}

// left is what a pool gives, and what it does not since others hold it.
func (x *rangeIndex) left(to []Range, ports Ports) (left []Range, taken []indexed) {
	left = to
	for _, r := range to {
		for _, h := range x.overlapping(r) {
			if gives(ports, h.port) {
				left, taken = subtract(left, h.addrs), append(taken, h)
			}
		}
	}
	return left, taken
}

// withdraw takes from pools what others hold. The order of rules, or which of them
// says more, does not matter: a connection would lose its answers.
func (b *compiler) withdraw() error {
	held := b.config.held()
	for i := range b.plan.Sources {
		s := &b.plan.Sources[i]
		if s.Rule.Kind != "snat" {
			continue
		}
		var taken []indexed
		if s.To, taken = held.left(s.To, s.Ports); len(s.To) == 0 {
			return fmt.Errorf("%s: nothing is left to give: %s has the addresses, and answers to them would not find back", s.Rule, taken[0].by)
		}
		s.Persistent = s.Persistent && s.choosesAddress()
	}
	return nil
}
