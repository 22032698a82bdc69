package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// load checks what the file expects of the connection table.
func (c *checker) load() {
	if c.facts.Known && !c.facts.Initial && c.config.Expect.Flows > 0 {
		c.add(Finding{ID: "expect-in-namespace", Severity: Warn,
			Message: "the size of the connection table belongs to the host: from this network namespace it cannot be changed",
			Advice:  "on the host, give net.netfilter.nf_conntrack_max the value that 'natkit gateway apply' names"}, []any{"expect", "flows"})
	}
	flows, limit := int64(c.config.Expect.Flows), int64(c.config.Limits.ConnectionsPerSource)
	if flows > 0 && limit > flows {
		c.add(Finding{ID: "limit-without-effect", Severity: Warn,
			Message: fmt.Sprintf("one host may have %s, and %s are expected of all together: it bounds nothing", units.Plural(limit, "connection", "connections"), units.Count(flows)),
			Advice:  "lower it, so that one host cannot take what is for all"}, []any{"limits", "connections-per-source"})
	}
}

// logs notes that the kernel may log nothing (nf_log_syslog.c): it does so for the host's own namespace.
func (c *checker) logs() {
	said := c.facts.Initial
	c.everyRule(func(o one) {
		if ref := o.ref; o.Log.On && !said {
			said = true
			o.add(Finding{ID: "log-in-namespace", Severity: Notice, Rule: &ref, Message: "the kernel logs what happens in this network namespace only where net.netfilter.nf_log_all_netns is 1",
				Advice: "on the host: sudo sysctl -w net.netfilter.nf_log_all_netns=1"}, []any{o.ref.List, o.ref.Index, "log"})
		}
	})
}

// support checks what the kernel can do.
func (c *checker) support() {
	c.logs()
	if why := NoHairpin(c.facts.Kernel); why != "" {
		c.everyRule(func(o one) {
			o.noHairpin(why)
			o.noInbound()
		})
	}
	if f := c.facts.Flowtable; bool(c.config.Flowtable) && !f.OK && !f.Unknown {
		c.add(Finding{ID: "no-flowtable", Severity: Warn, Message: "flowtable: " + c.facts.Flowtable.Reason,
			Advice: "everything is forwarded the slow way until then; write flowtable: off if that is meant"}, []any{"flowtable"})
	}
}

func (o one) noHairpin(why string) {
	if o.DNAT != nil && bool(o.DNAT.Hairpin) || o.Static != nil && bool(o.Static.Hairpin) {
		o.refuse("no-hairpin", why, "take hairpin out, or let hosts inside use the address inside", "hairpin")
	}
}

// noInbound refuses what a source cannot ask for on a kernel that does not know in postrouting where a packet came in.
func (o one) noInbound() {
	c := o.conditions()
	if o.DNAT != nil || o.Static != nil || c == nil || len(c.In)+len(c.ExceptIn) == 0 {
		return
	}
	key := map[bool]string{true: "in", false: "except-in"}[len(c.In) > 0]
	o.refuse("no-inbound-interface", "the interface by which a connection came in is known to rules about sources since Linux 5.5, this is "+o.facts.Kernel.Release,
		"write from: and the networks behind the interface", key)
}

// waits names rules about an interface that has no address yet.
func (c *checker) waits() {
	for _, w := range c.plan.Waiting {
		if !c.facts.has(w.Interface) {
			continue // said already
		}
		o := c.ruleOf(w.Rule)
		o.warn("address-waits", fmt.Sprintf("%s has no %s address that others can reach: the rule waits for one", w.Interface, familyName(o.bits)),
			"give it one, or wait: 'natkit gateway run' takes it up when it comes", "on")
	}
}

func familyName(bits int) string {
	if bits == 128 {
		return "IPv6"
	}
	return "IPv4"
}

// ownAddresses checks whether packets to the addresses outside come here at all. What
// thousands of rules have in common is reported once.
func (c *checker) ownAddresses() {
	h := c.facts.addresses()
	said := map[nat.AddrRange]bool{}
	c.everyRule(func(o one) {
		for w := range o.written() {
			if said[w.addrs] {
				continue
			}
			said[w.addrs] = o.subnetEnd(w, h)
			if (w.use == useOn || w.use == useOutside || w.use == useGive) && !said[w.addrs] {
				said[w.addrs] = o.notHere(w, h)
			}
		}
	})
}

// targets checks whether the hosts inside are other hosts, and inside.
func (c *checker) targets() {
	said := map[netip.Addr]bool{}
	c.everyRule(func(o one) {
		for w := range o.written() {
			if a, ok := w.inside(); ok && !said[a] {
				said[a] = o.notInside(a, w)
			}
		}
	})
}

// notInside warns of a host inside that is the gateway itself, or is outside.
func (o one) notInside(a netip.Addr, w written) bool {
	by, near := o.toward(a)
	if !near {
		by = o.facts.Ways[a]
	}
	switch {
	case o.facts.Has(a):
		o.warn("target-is-gateway", w.text()+" is an address of this host itself: what is sent there goes no further than to its own programs",
			"name a host inside; or leave the rule out and have the program listen on the address outside", w.path()...)
	case by != "" && slices.ContainsFunc(o.config.Interfaces.WAN.Names(), o.facts.interfaceOf(by).Is):
		o.warn("target-outside", fmt.Sprintf("the way to %s leads out by %s, which is wan: what is sent there leaves again and comes to no host inside", w.text(), by),
			"name a host inside; or give this one a route by an interface inside: sudo "+o.facts.Commands("ip route add "+nat.Host(a).String()+" dev INTERFACE"), w.path()...)
	default:
		return false
	}
	return true
}

// hostAddresses are those that a host has, and those of its networks that no host has.
type hostAddresses struct {
	own  map[netip.Addr]bool
	ends map[netip.Addr]string
}

func (f *Facts) addresses() hostAddresses {
	h := hostAddresses{map[netip.Addr]bool{}, map[netip.Addr]string{}}
	for _, i := range f.Interfaces {
		for _, p := range i.Addresses {
			h.own[p.Addr()] = true
			if p.Addr().Is4() && p.Bits() < 31 {
				all := nat.RangeOf(p.Masked())
				words := fmt.Sprintf("%s on %s", p.Masked(), i.Name)
				h.ends[all.First], h.ends[all.Last] = words, words
			}
		}
	}
	return h
}

// subnetEnd refuses an address that no host on a network here can have. Of a prefix that
// each host has its own address of, the others work.
func (o one) subnetEnd(w written, h hostAddresses) bool {
	single := w.use == useOn || w.use == useTo || w.use == useInside || w.use == useOutside
	if w.use != useGive && !(single && w.addrs.IsSingle()) {
		return false
	}
	var end netip.Addr
	if w.addrs.IsSingle() {
		end = w.addrs.First
	} else {
		for a := range h.ends {
			if w.addrs.Contains(a) && !h.own[a] && (!end.IsValid() || a.Less(end)) {
				end = a
			}
		}
	}
	if h.ends[end] == "" || h.own[end] {
		return false
	}
	o.refuse("subnet-end", fmt.Sprintf("%s is the network's own or the broadcast address of %s", withPart(w, nat.OneAddr(end)), h.ends[end]),
		"write the address of a host", w.path()...)
	return true
}

// notHere warns of addresses that no interface here has.
func (o one) notHere(w written, h hostAddresses) bool {
	switch a := w.addrs.First; {
	case !w.addrs.IsSingle():
		return o.notAllOurs(w)
	case h.own[a] || h.ends[a] != "" || o.facts.Has(a):
		return false
	default:
		o.notOurs(a, w.path())
	}
	return true
}

// notOurs warns of an address that no interface has.
func (o one) notOurs(a netip.Addr, path []any) {
	if dev, near := o.toward(a); near {
		o.warn("address-missing", fmt.Sprintf("%s is on the network of %s, and no interface here has it: no host answers for it there", a, dev),
			"sudo "+o.facts.Commands("ip addr add "+nat.Host(a).String()+" dev "+dev), path...)
	} else {
		o.warn("address-missing", fmt.Sprintf("no interface here has %s: its packets come only if a router sends them here", a),
			"unless it does: sudo "+o.facts.Commands("ip addr add "+nat.Host(a).String()+" dev "+dev), path...)
	}
}

// notAllOurs is notOurs of a range or a prefix, of which a router may send all.
func (o one) notAllOurs(w written) bool {
	missing := nat.AddrRanges{w.addrs}
	for _, i := range o.facts.Interfaces {
		for _, p := range i.Addresses {
			missing = missing.Without(nat.OneAddr(p.Addr()))
		}
	}
	for _, p := range o.facts.Local {
		missing = missing.Without(nat.RangeOf(p))
	}
	if network, name := o.networkIn(w.addrs); name != "" {
		o.warn("address-missing", fmt.Sprintf("%s covers all of %s, the network of %s, including the addresses of its router and other hosts",
			w.text(), network, name), "name a part of the network that is for this gateway alone", w.path()...)
		return true
	}
	dev, near := o.toward(w.addrs.First)
	if len(missing) == 0 || !near {
		return false // a prefix elsewhere is one that is routed here
	}
	var commands []string
	for _, p := range w.addrs.Prefixes() {
		commands = append(commands, "sudo "+o.facts.Commands(fmt.Sprintf("ip route add local %s dev %s", p, dev)))
	}
	advice := strings.Join(commands, "\n")
	if w.addrs.First.Is6() {
		advice = "have it routed here, or answer for it: ndppd, or " + o.facts.Commands("ip -6 neigh add proxy") + " for each"
	}
	o.warn("address-missing", fmt.Sprintf("%s lies on the network of %s, and this host does not have %s of it: no host answers for them there",
		w.text(), dev, many(missing.Size(), "address", "addresses")), advice, w.path()...)
	return true
}

// networkIn is a network of an interface that lies in r, with its other hosts.
func (c *checker) networkIn(r nat.AddrRange) (network netip.Prefix, name string) {
	for _, i := range c.facts.Interfaces {
		for _, p := range i.Addresses {
			if p.Bits() < p.Addr().BitLen()-1 && r.Covers(nat.RangeOf(p.Masked())) {
				return p.Masked(), i.Name
			}
		}
	}
	return network, ""
}

// toward is the interface on whose network the address is; the first WAN interface
// otherwise.
func (c *checker) toward(a netip.Addr) (name string, near bool) {
	for _, i := range c.facts.Interfaces {
		for _, p := range i.Addresses {
			if p.Bits() < p.Addr().BitLen() && p.Contains(a) {
				return i.Name, true
			}
		}
	}
	if wan := c.facts.concrete(c.config.Interfaces.WAN.Names()); len(wan) > 0 {
		return wan[0], false
	}
	return "INTERFACE", false
}

// interfaces checks names and roles.
func (c *checker) interfaces() {
	c.roles()
	c.kinds()
	missing := map[string]bool{}
	for _, n := range c.names() {
		switch role := n.misspelt(); {
		case n.isRole():
			c.role(n)
		case role != "" && !c.facts.has(n.name) && !missing[n.name]:
			missing[n.name] = true
			n.found(c, Warn, "interface-missing", fmt.Sprintf("interface %s does not exist, as far as is known: its rules have no effect until it appears", n.name),
				fmt.Sprintf("write %s, if the role is meant", role))
		case c.facts.Known && nat.IsSeveral(n.name) && !c.facts.has(n.name) && !missing[n.name]:
			missing[n.name] = true
			n.found(c, Notice, "interface-missing", fmt.Sprintf("no interface is %s yet: its rules have no effect until one appears", n.name),
				"look at '"+c.facts.Commands("ip link")+"' where one is there")
		case c.facts.Known && !c.facts.has(n.name) && !missing[n.name]:
			missing[n.name] = true
			n.found(c, Warn, "interface-missing", fmt.Sprintf("interface %s does not exist: its rules have no effect until it appears", n.name),
				"look at '"+c.facts.Commands("ip link")+"' whether it has another name"+c.similar(n.name))
		}
	}
	c.anyInterface()
}

// kinds refuses lists of names and link groups that came together by a role, and groups that the kernel cannot ask for.
func (c *checker) kinds() {
	roles := compiler{config: c.config, plan: Plan{WAN: c.config.Interfaces.WAN.Names(), LAN: c.config.Interfaces.LAN.Names()}}
	c.everyRule(func(o one) {
		list := func(key string, names Names) {
			if _, err := roles.resolve(names); errors.Is(err, errNamesAndGroups) {
				o.refuse("names-and-groups", key+": "+err.Error(), "write one rule for each", key)
			}
		}
		if asks := o.conditions(); asks != nil {
			list("in", asks.In)
		}
		switch {
		case o.Masquerade != nil:
			list("out", o.Masquerade.Out)
		case o.SNAT != nil:
			list("out", o.SNAT.Out)
		case o.Static != nil && len(o.Static.Out) > 0:
			list("out", o.Static.Out)
		case o.Netmap != nil && len(o.Netmap.Out) > 0:
			list("out", o.Netmap.Out)
			if out, _ := roles.resolve(o.Netmap.Out); bool(o.Netmap.Stateless) && slices.ContainsFunc(out, isGroup) {
				o.refuse("stateless-by-group", statelessByName, "name the interfaces, or give them a common beginning such as ppp*", "out")
			}
		case o.isStateless() && o.Notrack == nil && slices.ContainsFunc(roles.plan.WAN, isGroup):
			o.refuse("stateless-by-group", statelessByName, "name the wan interfaces, or give them a common beginning such as ppp*", "stateless")
		}
	})
}

// interfaceOf is the host's of a name; only named where it has none.
func (f *Facts) interfaceOf(name string) Interface {
	for _, i := range f.Interfaces {
		if i.Name == name {
			return i
		}
	}
	return Interface{Name: name}
}

// mention is the name of an interface or a role that stands somewhere.
type mention struct {
	name string
	// of is the rule that it stands in; nil among the roles.
	of   *one
	path []any
}

func (m mention) isRole() bool { return m.of != nil && (m.name == RoleWAN || m.name == RoleLAN) }

// misspelt is the role that a name may be meant for: interfaces mostly have numbers.
func (m mention) misspelt() string {
	if m.of == nil || m.isRole() || strings.ContainsAny(m.name, "0123456789.-_*") {
		return ""
	}
	return document.Nearest(m.name, []string{RoleWAN, RoleLAN})
}

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
	list(nil, c.config.Interfaces.WAN.Names(), "interfaces", RoleWAN)
	list(nil, c.config.Interfaces.LAN.Names(), "interfaces", RoleLAN)
	for i, name := range c.config.PCP.LAN {
		if name != RoleWAN && name != RoleLAN {
			all = append(all, mention{name, nil, []any{"pcp", "lan", i}})
		}
	}
	c.everyRule(func(o one) {
		if asks := o.conditions(); asks != nil {
			list(&o, asks.In, "in")
			list(&o, asks.ExceptIn, "except-in")
		}
		switch {
		case o.Masquerade != nil:
			list(&o, o.Masquerade.Out, "out")
			list(&o, o.Masquerade.ExceptOut, "except-out")
		case o.SNAT != nil:
			list(&o, o.SNAT.Out, "out")
			list(&o, o.SNAT.ExceptOut, "except-out")
		case o.Static != nil:
			list(&o, o.Static.Out, "out")
			list(&o, o.Static.ExceptOut, "except-out")
		case o.Netmap != nil:
			list(&o, o.Netmap.Out, "out")
		case o.DNAT != nil && o.DNAT.On.Name != "" && o.DNAT.On.Name != OnAny:
			all = append(all, mention{o.DNAT.On.Name, &o, []any{"on"}})
		}
	})
	return all
}

// roles checks the interfaces of both.
func (c *checker) roles() {
	for i, name := range c.config.Interfaces.LAN.Names() {
		if nat.InNames(c.config.Interfaces.WAN.Names(), name) || slices.ContainsFunc(c.config.Interfaces.WAN.Names(), func(wan string) bool { return nat.InName(name, wan) }) {
			c.add(Finding{ID: "both-roles", Severity: Refuse, Message: name + " is a wan and a lan interface",
				Advice: "leave it out of one of them"}, []any{"interfaces", RoleLAN, i})
		}
	}
}

// role checks a role that a rule names.
func (c *checker) role(m mention) {
	names := c.config.Interfaces.WAN.Names()
	if m.name == RoleLAN {
		names = c.config.Interfaces.LAN.Names()
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
		all := s != nil && len(s.Out)+len(s.ExceptOut) == 0 && len(s.ExceptTo)+len(s.OnlyTo) == 0
		if (all || o.Static != nil && !o.Static.isNarrow() || o.Netmap != nil && len(o.Netmap.Out) == 0) && !said {
			said = true
			o.warn("any-interface", "no interface has the role wan, so that this holds for packets by whatever interface they leave, between hosts inside too",
				"name it: interfaces: {wan: eth0}")
		}
	})
}

// outLAN finds rules that translate what goes inside.
func (c *checker) outLAN() {
	for _, m := range c.names() {
		inside := m.name == RoleLAN && m.isRole() || nat.InNames(c.config.Interfaces.LAN.Names(), m.name)
		if m.of != nil && m.of.DNAT == nil && m.path[0] == "out" && inside {
			m.found(c, Warn, "out-is-lan", fmt.Sprintf("%s leads inside: hosts there see the address of the gateway in place of that of who connects", m.name),
				"write out: wan, unless they must see it, as where they have no way back through the gateway")
		}
	}
}

// refuses warns of a chain that refuses what none of its rules accepts, as long as none
// accepts what the gateway forwards.
func (c *checker) refuses(f *Foreign) {
	if f.Policy == "accept" || f.Policy == "" || !c.forwards(f.Family) || c.admitted(f) {
		return
	}
	does := map[string]string{"drop": "drops", "reject": "rejects"}[f.Policy]
	c.add(Finding{ID: "foreign-forward-drop", Severity: Warn,
		Message: fmt.Sprintf("%s %s what its rules do not accept, what this gateway forwards too", f.words(), does),
		Advice:  c.facts.Commands(f.admit(c.facts.onHost(c.plan)))}, nil)
}

// onHost is a plan with the interfaces of the host as its roles.
func (f *Facts) onHost(p *Plan) *Plan {
	on := *p
	on.WAN, on.LAN = f.concrete(p.WAN), f.concrete(p.LAN)
	return &on
}

// forwards reports whether the plan has rules for what a chain of that family sees.
func (c *checker) forwards(family string) bool {
	return family != "ip6" && c.plan.IPv4 || family != "ip" && c.plan.IPv6
}

// admitted reports whether rules let through what begins inside, altogether, and something
// that comes in: answers are that, and what is sent on to hosts inside. By which states
// and addresses natkit does not follow.
func (c *checker) admitted(f *Foreign) bool {
	p := c.plan
	if len(p.LAN) == 0 || len(p.WAN) == 0 {
		return false
	}
	for _, lan := range p.LAN {
		for _, wan := range p.WAN {
			out, in := nat.Match{In: []string{lan}, Out: []string{wan}}, nat.Match{In: []string{wan}, Out: []string{lan}}
			all := func(n snapshot.NATRule) bool {
				return !n.Partial && len(n.Unless) == 0 && c.contains(n.NATCondition, &out)
			}
			some := func(n snapshot.NATRule) bool { return c.meets(&n, &in) }
			if len(p.Sources) > 0 && !slices.ContainsFunc(f.Accepts, all) || !slices.ContainsFunc(f.Accepts, some) {
				return false
			}
		}
	}
	return true
}

// sessions refuses rules that would take the administrator's own session away: what
// comes for its address and port would go elsewhere, or no longer be tracked.
func (c *checker) sessions() {
	asked := c.plan
	c.plan = asked.On(c.facts)
	defer func() { c.plan = asked }()
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

// by is the interface by which the session comes; one of the names where that is not known.
func (a admin) by(names []string) string {
	if a.in == "" && len(names) > 0 {
		return names[0]
	}
	return a.in
}

// cutting are the rules that match a session's packets.
func (c *checker) cutting(a admin) (rules []Ref) {
	p := nat.Packet{Protocol: protocolTCP, Src: a.client, Dst: a.server, DstPort: a.port, In: a.in}
	for i := range c.plan.Untracked {
		if u := &c.plan.Untracked[i]; u.Matches(&p) {
			rules = append(rules, u.Rule)
		}
	}
	for i := range c.plan.Stateless {
		if s := &c.plan.Stateless[i]; (len(s.Out) == 0 || slices.Contains(s.Out, a.by(s.Out))) && (s.HasOutside(a.server) || s.HasInside(a.server)) {
			rules = append(rules, s.Rule)
		}
	}
	for i := range c.plan.Destinations { // the first that matches, as in the kernel
		d := &c.plan.Destinations[i]
		p.In = a.by(d.In)
		if m := unmarked(d.Match); m.Matches(&p) && !d.IsOwn() {
			stays := d.Action.Kind == nat.Redirect && d.Action.Ports.Contains(a.port) || len(d.Action.Backends) == 1 && d.Action.Backends[0].Address == a.server &&
				(d.Action.Backends[0].Port == 0 || d.Action.Backends[0].Port == a.port)
			if !stays {
				rules = append(rules, d.Rule)
			}
			break
		}
	}
	slices.SortFunc(rules, Ref.Compare)
	return slices.Compact(rules)
}

// unmarked leaves out what is not known of a packet of a session: a rule that asks for it may match.
func unmarked(m nat.Match) nat.Match {
	m.Mark, m.NotMarks, m.DSCP, m.NotDSCP = nat.Mark{}, nil, nil, nil
	m.Users, m.NotUsers, m.Groups, m.NotGroups = nil, nil, nil, nil
	m.Hours, m.NotHours, m.Days, m.NotDays = nil, nil, nil, nil
	return m
}

const protocolTCP = 6

// answering is the rule that translates what this host sends to the client, where that
// changes its address. The tracker may not have been at work until the rules come: it
// then takes what it sees first for the beginning of a connection.
func (c *checker) answering(a admin) (Ref, bool) {
	p := nat.Packet{Protocol: protocolTCP, Src: a.server, Dst: a.client, SrcPort: a.port}
	for i := range c.plan.Sources {
		e := &c.plan.Sources[i]
		p.Out = a.by(e.Out)
		if m := unmarked(e.Match); !m.Matches(&p) {
			continue
		}
		given := e.gives(c.facts)
		return e.Rule, len(given) != 1 || given[0] != nat.OneAddr(a.server)
	}
	return Ref{}, false
}

// sparing says how the rule would leave a session alone.
func (o one) sparing(port uint16) string {
	switch {
	case o.DNAT != nil && len(o.DNAT.Port) > 0:
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
