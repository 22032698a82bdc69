package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
)

// The priorities of natkit's chains (dataplane: after those of Docker, firewalld and
// hand-made rules, so that others keep what they had).
const (
	destinationPriority = -80
	sourcePriority      = 120
)

// foreign finds rules of others that come before ours, or drop what we forward.
func (c *checker) foreign() {
	for i := range c.facts.Foreign {
		f := &c.facts.Foreign[i]
		switch {
		case f.Type == "filter" && f.Hook == "forward" && f.Policy == "drop" && c.forwards(f.Family):
			c.drops(f)
		case f.Hook == "prerouting" && f.Priority < destinationPriority:
			c.foreignRules(f, c.destinationFirst, outside)
		case f.Hook == "postrouting" && f.Priority < sourcePriority:
			c.foreignRules(f, c.sourceFirst, inside)
		}
	}
}

// forwards tells whether the plan has rules for what a chain of that family sees.
func (c *checker) forwards(family string) bool {
	return family != "ip6" && c.plan.IPv4 || family != "ip" && c.plan.IPv6
}

// drops warns of a forward chain that drops what nobody accepts.
func (c *checker) drops(f *Foreign) {
	c.add(Finding{ID: "foreign-forward-drop", Severity: Warn,
		Message: fmt.Sprintf("%s drops what its rules do not accept, what this gateway forwards too", f.words()),
		Advice:  f.accept(c.plan)}, nil)
}

// words are a chain and whose it is.
func (f *Foreign) words() string {
	whose := ""
	if f.Owner != "" {
		whose = f.Owner + "'s "
	}
	return fmt.Sprintf("%schain %s of table %s %s (%s)", whose, f.Chain, f.Family, f.Table, f.Source)
}

// rule names a rule that comes first.
func (f *Foreign) rule(n *snapshot.NATRule) string {
	whose := "a rule"
	if f.Owner != "" {
		whose = f.Owner + "'s rule"
	}
	return fmt.Sprintf("%s in %s (%s: %s) comes first", whose, n.Place(), f.Source, n.Text)
}

// may chooses the word for a rule with conditions that natkit does not know.
func may(n *snapshot.NATRule, does, may string) string {
	if n.Partial {
		return may
	}
	return does
}

// accept is the command with which the owner's own means let through what we forward.
func (f *Foreign) accept(p *Plan) string {
	in, out := "LAN", "WAN"
	if len(p.LAN) > 0 {
		in = p.LAN[0]
	}
	if len(p.WAN) > 0 {
		out = p.WAN[0]
	}
	program := "iptables"
	if f.Family == "ip6" {
		program = "ip6tables"
	}
	switch {
	case f.Owner == "docker":
		return fmt.Sprintf("%s -I DOCKER-USER -i %s -o %s -j ACCEPT, and the same for the way in", program, in, out)
	case f.Owner == "firewalld":
		return "firewall-cmd --permanent --new-policy, with the zones of these interfaces as ingress and egress, and target ACCEPT"
	case f.Source == "nftables":
		return fmt.Sprintf("nft insert rule %s %s %s iifname %s oifname %s accept, and the same for the way in", f.Family, f.Table, f.Chain, in, out)
	}
	return fmt.Sprintf("%s -I %s -i %s -o %s -j ACCEPT, and the same for the way in", program, f.Chain, in, out)
}

// foreignRules compares a chain's translations with ours; one finding for each of
// ours that it is in the way of.
func (c *checker) foreignRules(f *Foreign, first func(*Foreign, *snapshot.NATRule) (Ref, string, string), side string) {
	seen := map[Ref]bool{}
	for i := range f.NAT {
		ref, message, advice := first(f, &f.NAT[i])
		if message == "" || seen[ref] {
			continue
		}
		seen[ref] = true
		o := c.ruleOf(ref)
		o.warn("foreign-rule-first", message, advice, o.subject(side)...)
	}
}

// destinationFirst is the rule of ours whose packets a foreign dnat or redirect takes.
func (c *checker) destinationFirst(f *Foreign, n *snapshot.NATRule) (Ref, string, string) {
	if n.Kind != snapshot.NATDest && n.Kind != snapshot.NATRedirect {
		return Ref{}, "", ""
	}
	theirs := Port{n.Protocol, n.DestinationPort, n.DestinationPort}
	for _, i := range c.destinationsFor(theirs) {
		d := c.plan.Destinations[i]
		if sameFamily(n, d.On.Addr()) && meetOne(n.ToDestination, []netip.Prefix{d.On}) && portsMeet(theirs, d.Port) &&
			meetOne(n.FromSource, d.From) && meetName(n.InInterface, d.In) && !sameDestination(n, &d) {
			return d.Rule, fmt.Sprintf("%s and %s %s of %s to %s", f.rule(n), may(n, "takes", "may take"), orEverything(both(theirs, d.Port)), Prefix{d.On}, takenTo(n)),
				f.remove("dnat")
		}
	}
	return Ref{}, "", ""
}

// destinationsFor are the entries that may be for p: both they and the rules of others
// are thousands where a cluster or a carrier is.
func (c *checker) destinationsFor(p Port) []int {
	if c.byPort == nil {
		c.byPort = map[Port][]int{}
		for i, d := range c.plan.Destinations {
			key := d.Port
			if key.span() != 1 {
				key = Port{}
			}
			c.byPort[key] = append(c.byPort[key], i)
			c.everyPort = append(c.everyPort, i)
		}
	}
	if p.span() != 1 {
		return c.everyPort
	}
	return slices.Concat(c.byPort[p], c.byPort[Port{}])
}

// sameDestination tells whether both rules do the same.
func sameDestination(n *snapshot.NATRule, d *Destination) bool {
	return n.First == d.To.Address && n.Last == d.To.Address && n.FirstPort == d.To.Port
}

func takenTo(n *snapshot.NATRule) string {
	if !n.First.IsValid() {
		return "another port of this host"
	}
	return Endpoint{n.First, n.FirstPort}.String()
}

// sourceFirst is the rule of ours whose connections a foreign snat or masquerade takes.
func (c *checker) sourceFirst(f *Foreign, n *snapshot.NATRule) (Ref, string, string) {
	if n.Kind != snapshot.NATMasquerade && n.Kind != snapshot.NATSource {
		return Ref{}, "", ""
	}
	for _, s := range c.plan.Sources {
		if s.Hairpin.Prefix.IsValid() || !sameFamily(n, anywhere(s.Rule.BitLen()).Addr()) {
			continue
		}
		if meetOne(n.FromSource, s.From) && meetName(n.OutInterface, s.Out) && !sameSource(n, &s) {
			return s.Rule, fmt.Sprintf("%s and %s connections from %s %s", f.rule(n), may(n, "gives", "may give"), foreignFrom(n), foreignGives(n)),
				f.remove(n.Kind)
		}
	}
	return Ref{}, "", ""
}

// sameSource tells whether it makes no difference which of the two is first.
func sameSource(n *snapshot.NATRule, s *Source) bool {
	if n.Kind == snapshot.NATMasquerade {
		return s.Masquerade && s.Ports == (Ports{First: n.FirstPort, Last: n.LastPort}) && s.Random == randomOf(n)
	}
	return s.Random == randomOf(n) && len(s.To) == 1 && s.To[0] == (Range{n.First, n.Last}) && s.Ports == (Ports{First: n.FirstPort, Last: n.LastPort})
}

func randomOf(n *snapshot.NATRule) Random {
	switch {
	case n.FullyRandom:
		return RandomFully
	case n.Random:
		return RandomPorts
	}
	return ""
}

func foreignFrom(n *snapshot.NATRule) string {
	if !n.FromSource.IsValid() {
		return "everybody"
	}
	return Prefix{n.FromSource}.String()
}

func foreignGives(n *snapshot.NATRule) string {
	if n.Kind == snapshot.NATMasquerade || !n.First.IsValid() {
		return "the interface's address"
	}
	return Range{n.First, n.Last}.String()
}

// remove says what to do about a rule that comes first.
func (f *Foreign) remove(kind string) string {
	switch f.Owner {
	case "docker":
		if kind == "dnat" {
			return "use another port, or publish the container's on another address: docker run -p ADDRESS:PORT:PORT"
		}
		return "its containers keep it unless their network has com.docker.network.bridge.enable_ip_masquerade=false"
	case "":
		return "remove it where it was made, or leave this one out"
	}
	return fmt.Sprintf("have %s not make it, or leave this one out", f.Owner)
}

// sameFamily tells whether a foreign rule sees packets of an address's family.
func sameFamily(n *snapshot.NATRule, a netip.Addr) bool {
	return n.Family == "inet" || (n.Family == "ip") == a.Is4()
}

// meetOne tells whether a prefix, where it is valid, has a part in one of a list, where
// that has any.
func meetOne(p netip.Prefix, list []netip.Prefix) bool {
	return !p.IsValid() || len(list) == 0 || slices.ContainsFunc(list, p.Overlaps)
}

// meetName is meetOne of interfaces; a foreign name may end in + or *.
func meetName(name string, list []string) bool {
	if name == "" || len(list) == 0 {
		return true
	}
	stem := strings.TrimRight(name, "+*")
	return slices.ContainsFunc(list, func(n string) bool { return n == name || stem != name && strings.HasPrefix(n, stem) })
}
