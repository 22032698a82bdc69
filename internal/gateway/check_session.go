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
		a := admin{c.facts.from(s.Client.Addr().Unmap()), s.Client.Addr().Unmap(), s.Server.Addr().Unmap(), s.Server.Port()}
		whose := fmt.Sprintf("your own session from %s to %s port %d", netip.AddrPortFrom(a.client, s.Client.Port()), a.server, a.port)
		cutting := c.cutting(a)
		for _, ref := range cutting {
			o := c.ruleOf(ref)
			o.refuse("cuts-own-session", "it takes "+whose, o.sparing(a.port), o.outsidePath())
		}
		if ref, is := c.answering(a); is && !slices.Contains(cutting, ref) {
			o := c.ruleOf(ref)
			o.warn("own-session-source", fmt.Sprintf("connections of %s itself are translated, too: %s ends if the tracker does not know it yet and an answer comes first", a.server, whose),
				"name the hosts that are meant after from, without this host", o.subject(inside)...)
		}
	}
}

// admin is a session of the administrator's: by which interface it comes (empty where
// that is not known), from where, and to what of this host.
type admin struct {
	in             string
	client, server netip.Addr
	port           uint16
}

// from is the interface on whose network an address is.
func (f *Facts) from(a netip.Addr) string {
	for _, i := range f.Interfaces {
		if slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return i.Name
		}
	}
	return ""
}

// by reports whether the session may pass one of the interfaces.
func (a admin) by(names []string) bool {
	return len(names) == 0 || a.in == "" || slices.Contains(names, a.in)
}

// cutting are the rules that match a session's packets.
func (c *checker) cutting(a admin) (rules []Ref) {
	p := Port{"tcp", a.port, a.port}
	for _, u := range c.plan.Untracked {
		if u.On == a.server && portsMeet(u.Port, p) {
			rules = append(rules, u.Rule)
		}
	}
	for _, s := range c.plan.Stateless {
		if a.by(s.Out) && (s.Outside.Contains(a.server) || s.Inside.Contains(a.server)) {
			rules = append(rules, s.Rule)
		}
	}
	for _, d := range c.plan.Destinations { // the first that matches, as in the kernel
		if d.On.Contains(a.server) && a.by(d.In) && portsMeet(d.Port, p) && contains(d.From, a.client) {
			if to := d.To; to.Address != a.server || to.Port != 0 && to.Port != a.port { // it stays what it is
				rules = append(rules, d.Rule)
			}
			break
		}
	}
	slices.SortFunc(rules, Ref.Compare)
	return slices.Compact(rules)
}

// answering is the rule that translates what this host sends to the client, where that
// changes its address. The tracker may not have been at work until the rules come: it
// then takes what it sees first for the beginning of a connection.
func (c *checker) answering(a admin) (Ref, bool) {
	for i := range c.plan.Sources {
		s := &c.plan.Sources[i]
		if s.Hairpin.Prefix.IsValid() || !contains(s.From, a.server) || !a.by(s.Out) || inAny(s.NotTo, a.client) {
			continue
		}
		given := s.gives(c.facts)
		return s.Rule, len(given) != 1 || given[0] != (Range{a.server, a.server})
	}
	return Ref{}, false
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

// contains reports whether a condition holds for an address: none is any.
func contains(condition []netip.Prefix, a netip.Addr) bool {
	return len(condition) == 0 || inAny(condition, a)
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
