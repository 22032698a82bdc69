package gateway

import (
	"fmt"
	"slices"
	"strings"
)

// interfaces looks at names and roles.
func (c *checker) interfaces() {
	c.roles()
	missing := map[string]bool{}
	for _, n := range c.names() {
		switch {
		case n.isRole():
			c.role(n)
		case c.facts.Known && !c.facts.has(n.name) && !missing[n.name]:
			missing[n.name] = true
			n.found(c, Warn, "interface-missing", fmt.Sprintf("there is no interface %s here: what is said of it waits until it comes", n.name),
				"look at 'ip link' whether it has another name"+c.similar(n.name))
		}
	}
	c.anyInterface()
}

// mention is the name of an interface or a role that stands somewhere.
type mention struct {
	name string
	// of is the rule that it stands in; nil among the roles.
	of   *one
	path []any
}

func (m mention) isRole() bool { return m.of != nil && (m.name == RoleWAN || m.name == RoleLAN) }

func (m mention) found(c *checker, s Severity, id, message, advice string) {
	if m.of != nil {
		m.of.found(s, id, message, advice, m.path)
		return
	}
	c.add(Finding{ID: id, Severity: s, Message: message, Advice: advice}, m.path)
}

// names are all names of interfaces and roles.
func (c *checker) names() (all []mention) {
	list := func(of *one, names Names, path ...any) {
		for i, name := range names {
			all = append(all, mention{name, of, append(slices.Clone(path), i)})
		}
	}
	list(nil, c.config.Interfaces.WAN, "interfaces", RoleWAN)
	list(nil, c.config.Interfaces.LAN, "interfaces", RoleLAN)
	c.everyRule(func(o one) {
		switch {
		case o.Masquerade != nil:
			list(&o, o.Masquerade.Out, "out")
		case o.SNAT != nil:
			list(&o, o.SNAT.Out, "out")
		case o.DNAT != nil && o.DNAT.On.Name != "":
			all = append(all, mention{o.DNAT.On.Name, &o, []any{"on"}})
		}
	})
	return all
}

// roles looks at the interfaces of both.
func (c *checker) roles() {
	for i, name := range c.config.Interfaces.LAN {
		if slices.Contains(c.config.Interfaces.WAN, name) {
			c.add(Finding{ID: "both-roles", Severity: Refuse, Message: name + " is a wan and a lan interface",
				Advice: "leave it out of one of them"}, []any{"interfaces", RoleLAN, i})
		}
	}
}

// role looks at a role where a rule names it.
func (c *checker) role(m mention) {
	names := c.config.Interfaces.WAN
	if m.name == RoleLAN {
		names = c.config.Interfaces.LAN
	}
	if len(names) == 0 {
		m.found(c, Refuse, "role-empty", fmt.Sprintf("no interface has the role %s", m.name),
			fmt.Sprintf("name it: interfaces: {%s: eth0}", m.name))
	}
}

// similar offers the interface that was probably meant.
func (c *checker) similar(name string) string {
	for _, i := range c.facts.Interfaces {
		if strings.EqualFold(i.Name, name) || strings.TrimRight(i.Name, "0123456789") == strings.TrimRight(name, "0123456789") {
			return "; there is " + i.Name
		}
	}
	return ""
}

// anyInterface says what it means that a rule names no interface, and no role does.
func (c *checker) anyInterface() {
	if len(c.config.Interfaces.WAN) > 0 {
		c.outLAN()
		return
	}
	said := false
	c.everyRule(func(o one) {
		var s *Sources
		switch {
		case o.Masquerade != nil:
			s = &o.Masquerade.Sources
		case o.SNAT != nil:
			s = &o.SNAT.Sources
		}
		all := s != nil && len(s.Out) == 0 && len(s.ExceptTo) == 0
		if (all || o.Static != nil || o.Netmap != nil) && !said {
			said = true
			o.warn("any-interface", "no interface has the role wan, so that this holds for packets by whatever interface they leave, between hosts inside too",
				"name it: interfaces: {wan: eth0}")
		}
	})
}

// outLAN finds rules that translate what goes inside.
func (c *checker) outLAN() {
	for _, m := range c.names() {
		inside := m.name == RoleLAN && m.isRole() || slices.Contains(c.config.Interfaces.LAN, m.name)
		if m.of != nil && m.of.DNAT == nil && inside {
			m.found(c, Warn, "out-is-lan", fmt.Sprintf("%s leads inside: hosts there see the address of the gateway in place of that of who connects", m.name),
				"write out: wan, unless they must see it, as where they have no way back through the gateway")
		}
	}
}
