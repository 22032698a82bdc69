package gateway

import (
	"fmt"
	"net/netip"
	"slices"
)

// sessions refuses rules that would take the administrator's own session away: what
// comes for its address and port would go elsewhere, or no longer be tracked.
func (c *checker) sessions() {
	for _, s := range c.facts.Sessions {
		client, server := s.Client.Addr().Unmap(), s.Server.Addr().Unmap()
		for _, ref := range c.cutting(client, server, s.Server.Port()) {
			o := c.ruleOf(ref)
			o.refuse("cuts-own-session", fmt.Sprintf("it takes your own session from %s to %s port %d", netip.AddrPortFrom(client, s.Client.Port()), server, s.Server.Port()),
				o.sparing(s.Server.Port()), o.outsidePath())
		}
	}
}

// cutting are the rules that match a session's packets.
func (c *checker) cutting(client, server netip.Addr, port uint16) (rules []Ref) {
	p := Port{"tcp", port, port}
	add := func(r Ref) {
		if !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	for _, u := range c.plan.Untracked {
		if u.On == server && portsMeet(u.Port, p) {
			add(u.Rule)
		}
	}
	for _, s := range c.plan.Stateless {
		if s.Outside.Contains(server) || s.Inside.Contains(server) {
			add(s.Rule)
		}
	}
	for _, d := range c.plan.Destinations { // the first that matches, as in the kernel
		if d.On.Contains(server) && portsMeet(d.Port, p) && contains(d.From, client) {
			if to := d.To; to.Address != server || to.Port != 0 && to.Port != port { // it stays what it is
				add(d.Rule)
			}
			break
		}
	}
	return rules
}

// sparing says how the rule would leave a session alone.
func (o one) sparing(port uint16) string {
	switch {
	case o.DNAT != nil && o.DNAT.Port.First != 0:
		return fmt.Sprintf("leave port %d out, or restrict the clients by from", port)
	case o.DNAT != nil, o.Notrack != nil:
		return "name the ports that are meant, or another address"
	}
	return "take another address outside, or come in by one that the rule does not have"
}

// outsidePath is where a rule names the addresses that others reach.
func (o one) outsidePath() string {
	if o.Static != nil || o.Netmap != nil {
		return "outside"
	}
	return "on"
}
