package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// Compile resolves a file against what is known of the host: roles become
// interfaces, `on: wan` addresses, each rule the entries that engines carry out, the
// most specific ones first (see compareEntries). It refuses
// what has no meaning; what is unwise Check says. The order of rules in the file
// does not change what a packet becomes.
func Compile(c *Config, facts Facts) (*Plan, error) {
	b := &compiler{config: c, facts: facts}
	b.begin()
	b.reserve()
	for _, list := range c.lists() {
		if err := b.list(list); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(b.withdraw(), b.pcp()); err != nil {
		return nil, err
	}
	b.hairpins()
	b.flowtable()
	slices.SortFunc(b.plan.Sets, func(x, y *nat.Set) int { return strings.Compare(x.Name, y.Name) })
	b.sort()
	return &b.plan, nil
}

// ruleList is one of a file's lists of rules.
type ruleList struct {
	name string
	// bits is the length of an address of the list's family.
	bits  int
	rules []Rule
}

func (c *Config) lists() []ruleList {
	return []ruleList{{"nat", 32, c.NAT}, {"ipv6", 128, c.IPv6}}
}

func (c *Config) listNamed(name string) []Rule {
	if name == "ipv6" {
		return c.IPv6
	}
	return c.NAT
}

// compiler collects a plan.
type compiler struct {
	config *Config
	facts  Facts
	plan   Plan
}

func (b *compiler) begin() {
	c := b.config
	b.plan = Plan{
		Schema: PlanSchema, Engine: EngineNetfilter,
		WAN: b.names(c.Interfaces.WAN.Names()), LAN: b.names(b.withVRFs(c.Interfaces.LAN.Names())),
		MSS: c.MSS, ConnectionsPerSource: int64(c.Limits.ConnectionsPerSource),
		IPv4: slices.ContainsFunc(c.NAT, Rule.isEnabled), IPv6: slices.ContainsFunc(c.IPv6, Rule.isEnabled),
		Accounting: bool(c.Accounting), Expect: c.Expect, TTL: c.TTL,
	}
	b.plan.Helpers = slices.Clone(c.Helpers)
	slices.Sort(b.plan.Helpers)
	if c.Engine == EngineEBPF {
		b.plan.Bypass, b.plan.XDP = c.marks().bypass(), c.XDP
	}
	b.uplinks()
	b.zones()
}

// reserve makes room for the entries of rules that have one of a kind for each service at most, as nearly all do.
func (b *compiler) reserve() {
	sources, destinations := 0, 0
	b.config.each(func(r Rule, _ Ref) {
		switch {
		case r.DNAT != nil:
			n := max(1, len(r.DNAT.Port))
			destinations += n
			if r.DNAT.Hairpin {
				sources += n
			}
		case r.SNAT != nil:
			sources += max(1, len(r.SNAT.Port))
		case r.Masquerade != nil:
			sources += max(1, len(r.Masquerade.Port))
		default:
			sources, destinations = sources+1, destinations+1
		}
	})
	b.plan.Sources, b.plan.Destinations = slices.Grow(b.plan.Sources, sources), slices.Grow(b.plan.Destinations, destinations)
}

// names is a list of interfaces without repetition, in an order of its own.
func (b *compiler) names(names []string) []string {
	out := slices.Clone(names)
	slices.Sort(out)
	return slices.Compact(out)
}

func (b *compiler) list(l ruleList) error {
	for i, r := range l.rules {
		one := ruleCompiler{compiler: b, bits: l.bits, ref: r.ref(l.name, i)}
		if err := one.rule(r); err != nil {
			return fmt.Errorf("%s[%d] %s: %w", l.name, i, r.Kind(), err)
		}
	}
	return nil
}

// Kind is the word that the rule is written with.
func (r Rule) Kind() string {
	switch {
	case r.Masquerade != nil:
		return "masquerade"
	case r.SNAT != nil:
		return "snat"
	case r.DNAT != nil:
		return "dnat"
	case r.Static != nil:
		return "static"
	case r.Netmap != nil:
		return "netmap"
	case r.Notrack != nil:
		return "notrack"
	case r.NAT64 != nil:
		return "nat64"
	case r.NAT46 != nil:
		return "nat46"
	}
	return ""
}

// resolve makes interfaces of roles and names.
func (b *compiler) resolve(names []string) ([]string, error) {
	var out []string
	for _, n := range names {
		switch n {
		case RoleWAN, RoleLAN:
			role := b.role(n)
			if len(role) == 0 {
				return nil, fmt.Errorf("no interface has the role %s: name it below interfaces", n)
			}
			out = append(out, role...)
		default:
			out = append(out, n)
		}
	}
	return b.names(out), oneKind(out)
}

// oneKind refuses names beside link groups: the kernel asks for one or the other (meta iifname, iifgroup).
func oneKind(names []string) error {
	groups := 0
	for _, n := range names {
		if _, is := nat.LinkGroup(n); is {
			groups++
		}
	}
	if groups > 0 && groups < len(names) {
		return errNamesAndGroups
	}
	return nil
}

var errNamesAndGroups = errors.New("names of interfaces and link groups are not asked for together: write one rule for each, or put the interfaces into the group (ip link set dev NAME group N)")

func (b *compiler) role(name string) []string {
	if name == RoleWAN {
		return b.plan.WAN
	}
	return b.plan.LAN
}

// addresses are the present ones of an interface that others can be sent to.
func (b *compiler) addresses(name string, bits int) (out []netip.Addr) {
	for _, i := range b.facts.Interfaces {
		if !i.Is(name) {
			continue
		}
		for _, p := range i.Addresses {
			a := p.Addr().Unmap().WithZone("")
			if a.BitLen() == bits && !a.IsLinkLocalUnicast() && !a.IsLoopback() {
				out = append(out, a)
			}
		}
	}
	return out
}

// flowtable takes the interfaces of both roles, where none has one all that the host
// has; those that are not there yet cannot be in it: of patterns and
// link groups it takes those that are.
func (b *compiler) flowtable() {
	if !bool(b.config.Flowtable) || b.facts.Known && !b.facts.Flowtable.OK {
		return
	}
	names := slices.Concat(b.plan.WAN, b.plan.LAN)
	if len(names) == 0 {
		for _, i := range b.facts.Interfaces {
			if i.Name != "lo" {
				names = append(names, i.Name)
			}
		}
	}
	names = b.facts.concrete(names)
	if b.facts.Known {
		names = slices.DeleteFunc(names, func(n string) bool { return !b.facts.has(n) })
	}
	b.plan.Flowtable = b.names(names)
}

// has reports whether the host has an interface.
func (f *Facts) has(name string) bool {
	return slices.ContainsFunc(f.Interfaces, func(i Interface) bool { return i.Is(name) })
}

func (b *compiler) sort() {
	for _, list := range [][]Entry{b.plan.Destinations, b.plan.Sources, b.plan.Stateless} {
		sortEntries(list, orderEntries)
	}
	sortEntries(b.plan.Untracked, func(x, y *Entry) int { // all do the same: those on one address together
		return cmp.Or(comparePrefixes(x.On(), y.On()), orderEntries(x, y))
	})
}

// sortEntries sorts the places of entries, which are large, and then moves each entry once.
func sortEntries(list []Entry, order func(a, b *Entry) int) {
	places := make([]int32, len(list))
	for i := range places {
		places[i] = int32(i)
	}
	slices.SortFunc(places, func(a, b int32) int { return cmp.Or(order(&list[a], &list[b]), cmp.Compare(a, b)) })
	const done = -1
	for i := range places {
		if places[i] == done || int(places[i]) == i {
			continue
		}
		first, at := list[i], i
		for int(places[at]) != i {
			from := int(places[at])
			list[at], places[at], at = list[from], done, from
		}
		list[at], places[at] = first, done
	}
}

// ruleCompiler turns one rule into entries.
type ruleCompiler struct {
	*compiler
	// bits is the length of the family's addresses.
	bits   int
	ref    Ref
	prefer int
	log    *Log
}

// noFamilyChange and logsEveryPacket say why a rule is refused.
const (
	noFamilyChange  = "netfilter does not translate between IPv6 and IPv4"
	logsEveryPacket = "log is about the first packet of a connection, and what is not tracked has none"
)

const statelessByName = "stateless asks the routes for the interface by which a packet will leave, which they name without its link group"

func isGroup(name string) bool {
	_, is := nat.LinkGroup(name)
	return is
}

// resolved is the log with its defaults; nil where nothing is logged.
func (l Log) resolved(r Ref) *Log {
	if !l.On {
		return nil
	}
	return &Log{On: true, Rate: cmp.Or(l.Rate, DefaultLogRate), Prefix: cmp.Or(l.Prefix, defaultPrefix(r))}
}

func defaultPrefix(r Ref) LogPrefix { return LogPrefix("natkit " + r.String() + ": ") }

// isStateless reports whether the rule is for packets, not for connections.
func (r Rule) isStateless() bool {
	return r.Notrack != nil || r.Static != nil && bool(r.Static.Stateless) || r.Netmap != nil && bool(r.Netmap.Stateless)
}

func (b *ruleCompiler) rule(r Rule) error {
	if !r.isEnabled() {
		r.Name, r.Note, r.Log, r.Prefer, r.Enabled = "", "", Log{}, 0, nil // the place has the name and the note
		b.plan.Off = append(b.plan.Off, Off{b.ref, document.OneLine(strings.TrimPrefix(MarshalRule(r), r.Kind()+": "))})
		return nil
	}
	b.prefer, b.log = int(r.Prefer), r.Log.resolved(b.ref)
	if b.log != nil && r.isStateless() {
		return errors.New(logsEveryPacket)
	}
	switch {
	case r.Masquerade != nil:
		return b.masquerade(r.Masquerade)
	case r.SNAT != nil:
		return b.snat(r.SNAT)
	case r.DNAT != nil:
		return b.dnat(r.DNAT)
	case r.Static != nil:
		return b.static(r.Static)
	case r.Netmap != nil:
		return b.netmap(r.Netmap)
	case r.Notrack != nil:
		return b.notrack(r.Notrack)
	case r.NAT64 != nil, r.NAT46 != nil:
		return errors.New(noFamilyChange)
	}
	return errors.New("the rule is empty")
}

func (b *ruleCompiler) masquerade(m *Masquerade) error {
	return b.sources(&m.Sources, &m.Conditions, b.entry(nat.Match{}, m.Choice.action(nat.Masquerade)))
}

// isEnabled reports whether the rule is meant to hold.
func (r Rule) isEnabled() bool { return r.Enabled == nil || bool(*r.Enabled) }

// entry is one of the rule.
func (b *ruleCompiler) entry(m nat.Match, does nat.Action) Entry {
	return Entry{Rule: b.ref, Match: m, Action: does, Prefer: b.prefer, Log: b.log}
}

func (c *Choice) action(kind nat.Kind) nat.Action {
	return nat.Action{Kind: kind, Ports: c.Ports.given(), Keep: c.Ports.Keep, Random: nat.Random(c.Random)}
}

func (b *ruleCompiler) snat(r *SNAT) error {
	if len(r.To) == 0 {
		return errors.New("to is missing: the addresses to give")
	}
	for _, to := range r.To {
		if err := b.family("to", to.First); err != nil {
			return err
		}
	}
	e := b.entry(nat.Match{}, r.Choice.action(nat.SNAT))
	e.Action.To = nat.AddrRanges(r.To).Join()
	e.Action.Persistent = e.choosesAddress() && (r.Persistent == nil || bool(*r.Persistent))
	return b.sources(&r.Sources, &r.Conditions, e)
}

// sources adds e once for each length of the prefixes that it is for: the longest
// one wins, of all rules.
func (b *ruleCompiler) sources(s *Sources, c *Conditions, e Entry) (err error) {
	if e.NotOut, err = b.resolve(s.ExceptOut); err != nil {
		return err
	}
	if len(s.Out)+len(s.ExceptOut) > 0 {
		e.Out, err = b.resolve(s.Out)
	} else {
		e.Out = b.plan.WAN
	}
	if err != nil {
		return err
	}
	if e.In, err = b.resolve(c.In); err != nil {
		return err
	}
	e.In, e.Zone = b.withVRFs(e.In), string(c.Zone)
	if err := b.except("except-to", s.ExceptTo, nat.To, &e.Match); err != nil {
		return err
	}
	to, err := b.place("only-to", s.OnlyTo, nat.To)
	if err != nil {
		return err
	}
	from, err := b.place("from", s.From, nat.From)
	if err != nil {
		return err
	}
	from.any = []netip.Prefix{nat.Anywhere(b.bits)}
	if err := b.conditions(c, &e.Match); err != nil {
		return err
	}
	return b.each(e, s.Port, to, from, func(e Entry) { b.plan.Sources = append(b.plan.Sources, e) })
}

// where are addresses that a rule asks for: in prefixes, or in one of some sets.
type where struct {
	prefixes []netip.Prefix
	sets     []nat.Member
	// any are the prefixes where there are none.
	any []netip.Prefix
}

// alternatives calls do for the prefixes of each length, and for each set, which is a condition on addresses of any.
func (w where) alternatives(do func(prefixes []netip.Prefix, sets []nat.Member)) {
	switch {
	case len(w.prefixes) > 0:
		for _, one := range byLength(w.prefixes) {
			do(one, nil)
		}
	case len(w.sets) == 0:
		do(w.any, nil)
	}
	for i := range w.sets {
		do(w.any, w.sets[i:i+1])
	}
}

// place resolves addresses that a rule asks for.
func (b *ruleCompiler) place(field string, list Prefixes, of nat.Condition) (w where, err error) {
	if w.prefixes, err = b.prefixes(field, list); err != nil {
		return w, err
	}
	for _, p := range list {
		if p.Set == "" {
			continue
		}
		x, err := b.member(p.Set, of)
		if err != nil {
			return w, err
		}
		w.sets = append(w.sets, x)
	}
	return w, nil
}

// except adds addresses that a rule leaves alone.
func (b *ruleCompiler) except(field string, list Prefixes, of nat.Condition, m *nat.Match) error {
	w, err := b.place(field, list, of)
	if of == nat.To {
		m.NotTo = w.prefixes
	} else {
		m.NotFrom = w.prefixes
	}
	for _, x := range w.sets {
		x.Not = true
		m.Members = append(slices.Clip(m.Members), x)
	}
	return err
}

// member is a condition on a set of the file, which becomes one of the plan.
func (b *compiler) member(name string, of nat.Condition) (nat.Member, error) {
	s := b.config.Sets.named(name)
	if s == nil {
		return nat.Member{}, fmt.Errorf("$%s is not a set of the file", name)
	}
	if !slices.Contains(b.plan.Sets, s) {
		b.plan.Sets = append(b.plan.Sets, s)
	}
	return nat.Member{Of: of, Name: name, Set: s}, nil
}

// choices are the services that a rule asks for: ports of each protocol, or sets.
func (b *ruleCompiler) choices(services Services) (all []serviceChoice, err error) {
	for _, p := range services {
		if name, is := p.set(); is {
			x, err := b.member(name, nat.DestPorts)
			if err != nil {
				return nil, err
			}
			all = append(all, serviceChoice{sets: []nat.Member{x}})
		}
	}
	if len(all) == len(services) && len(all) > 0 {
		return all, nil
	}
	return append(services.protocols(), all...), nil
}

// each hands over an entry for every protocol of services, every length of prefixes, and every set.
func (b *ruleCompiler) each(e Entry, services Services, to, from where, add func(Entry)) error {
	choices, err := b.choices(services)
	if err != nil {
		return err
	}
	own := slices.Clip(e.Members)
	for _, s := range choices {
		e.Protocol, e.Ports = s.protocol, s.ports
		to.alternatives(func(prefixes []netip.Prefix, toSets []nat.Member) {
			e.To = prefixes
			from.alternatives(func(prefixes []netip.Prefix, fromSets []nat.Member) {
				e.From, e.Members = prefixes, own
				if len(fromSets)+len(toSets)+len(s.sets) > 0 {
					e.Members = slices.Concat(fromSets, toSets, s.sets, own)
				}
				add(e)
			})
		})
	}
	return nil
}

// conditions adds those that all kinds of rules have; In, whose default they have of their own, is left to them.
func (b *ruleCompiler) conditions(c *Conditions, m *nat.Match) (err error) {
	if err = b.except("except-from", c.ExceptFrom, nat.From, m); err != nil {
		return err
	}
	if m.NotIn, err = b.resolve(c.ExceptIn); err != nil {
		return err
	}
	m.NotServices = c.ExceptPort.services()
	for _, p := range c.ExceptPort {
		if name, is := p.set(); is {
			x, err := b.member(name, nat.DestPorts)
			if err != nil {
				return err
			}
			x.Not = true
			m.Members = append(slices.Clip(m.Members), x)
		}
	}
	m.Mark = c.Mark.Mark
	for _, k := range c.ExceptMark {
		m.NotMarks = append(m.NotMarks, k.Mark)
	}
	m.Users, m.NotUsers, m.Groups, m.NotGroups = c.User.ids(), c.ExceptUser.ids(), c.Group.ids(), c.ExceptGroup.ids()
	m.DSCP, m.NotDSCP = c.DSCP.points(), c.ExceptDSCP.points()
	m.Hours, m.NotHours, m.Days, m.NotDays = c.UTCHours.hours(), c.ExceptUTCHours.hours(), c.UTCDays.days(), c.ExceptUTCDays.days()
	return nil
}

func (b *ruleCompiler) dnat(r *DNAT) error {
	for _, to := range r.To {
		if to.Address.IsValid() {
			if err := b.family("to", to.Address); err != nil {
				return err
			}
		}
		if to.Port != 0 && !r.Port.havePorts() {
			return fmt.Errorf("to %s has a port: port must name a protocol that has ports, such as tcp/%d", to, to.Port)
		}
		if to.Last != 0 && len(r.To) > 1 {
			return errShiftedToSeveral
		}
		if span, one := r.Port.span(); to.Last != 0 && (!one || span.Len() != int(to.Last-to.Port)+1) {
			return fmt.Errorf("to %s has %d ports: port must name one range of as many", to, int(to.Last-to.Port)+1)
		}
	}
	from, err := b.place("from", r.From, nat.From)
	if err != nil {
		return err
	}
	on, in, err := b.on(r.On)
	if err != nil {
		return err
	}
	var to []where // what is on a prefix each, or on a set
	for _, a := range on {
		to = append(to, where{prefixes: []netip.Prefix{a}})
	}
	if len(r.OnlyTo) > 0 {
		only, err := b.place("only-to", r.OnlyTo, nat.To)
		if err != nil {
			return err
		}
		to = nil
		for _, a := range only.prefixes {
			to = append(to, where{prefixes: []netip.Prefix{a}})
		}
		if len(only.sets) > 0 {
			to = append(to, where{sets: only.sets, any: []netip.Prefix{nat.Anywhere(b.bits)}})
		}
	}
	switch {
	case len(r.In) > 0:
		if in, err = b.resolve(r.In); err != nil {
			return err
		}
	case bool(r.Hairpin), len(r.ExceptIn) > 0, r.isOwn():
		in = nil
	}
	for _, on := range to {
		does := r.action()
		does.Zone = string(r.Zone)
		d := b.destination(netip.Prefix{}, in, does)
		d.To = on.prefixes
		if err := errors.Join(b.except("except-to", r.ExceptTo, nat.To, &d.Match), b.conditions(&r.Conditions, &d.Match)); err != nil {
			return err
		}
		d.Local, d.Asked = bool(r.Local) || r.isOwn(), len(r.In) > 0
		err = errors.Join(err, b.each(d, r.Port, on, from, func(e Entry) { b.plan.Destinations = append(b.plan.Destinations, e) }))
		if r.Hairpin {
			err = errors.Join(err, b.hairpin(d, r.Port, from))
		}
	}
	return err
}

var errShiftedToSeveral = errors.New("a range of ports becomes that of one host: with several in to each keeps its port")

// action is what a destination becomes.
func (r *DNAT) action() nat.Action {
	switch {
	case len(r.To) == 1 && !r.To[0].Address.IsValid():
		return nat.Action{Kind: nat.Redirect, Ports: nat.Ports{First: r.To[0].Port, Last: r.To[0].Port}}
	case len(r.To) > 1:
		a := nat.Action{Backends: r.To, Balance: cmp.Or(nat.Balance(r.Balance), nat.BalanceRoundRobin), Check: r.check()}
		if a.Check != nil {
			a.AllDown = cmp.Or(nat.AllDown(r.AllDown), nat.AllDownLast)
		}
		return a
	}
	return nat.Action{Backends: r.To}
}

func (b *ruleCompiler) destination(on netip.Prefix, in []string, does nat.Action) Entry {
	does.Kind = cmp.Or(does.Kind, nat.DNAT)
	return b.entry(nat.Match{To: []netip.Prefix{on}, In: in}, does)
}

// isOwn reports whether a rule is for programs of the gateway alone.
func (c *Conditions) isOwn() bool {
	return len(c.User)+len(c.ExceptUser)+len(c.Group)+len(c.ExceptGroup) > 0
}

// on resolves what a dnat is on: addresses, and the interfaces by which connections
// to them come that the rule is meant for.
func (b *ruleCompiler) on(on On) (prefixes []netip.Prefix, in []string, err error) {
	switch {
	case on.Address.IsValid():
		in = b.plan.WAN
		if b.isInside(on.Address) {
			in = nil // those that can reach it at all
		}
		return []netip.Prefix{nat.Host(on.Address)}, in, b.family("on", on.Address)
	case on.Name == OnAny:
		return []netip.Prefix{nat.Anywhere(b.bits)}, nil, nil
	}
	var addresses []netip.Addr
	in, err = b.resolve([]string{on.Name})
	for _, name := range in {
		present := b.addresses(name, b.bits)
		if len(present) == 0 {
			b.plan.Waiting = append(b.plan.Waiting, Waiting{b.ref, name})
		}
		addresses = append(addresses, present...)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range slices.Compact(addresses) {
		prefixes = append(prefixes, nat.Host(a))
	}
	return prefixes, in, err
}

// isInside reports whether the address is known to be one of the host's that no WAN
// interface has.
func (b *compiler) isInside(a netip.Addr) bool {
	inside := false
	for _, i := range b.facts.Interfaces {
		for _, p := range i.Addresses {
			switch {
			case p.Addr() != a:
			case slices.ContainsFunc(b.plan.WAN, i.Is):
				return false
			default:
				inside = true
			}
		}
	}
	return inside
}

// sides are the two ends of a static: one address each, or a set of pairs.
type sides struct {
	inside, outside []netip.Prefix
	// from and to are the conditions on the two sides of pairs, empty for single addresses.
	from, to []nat.Member
	pairs    string
}

func (b *ruleCompiler) sides(r *Static) (s sides, err error) {
	if r.Pairs == "" {
		s.inside, s.outside = []netip.Prefix{nat.Host(r.Inside.Addr)}, []netip.Prefix{nat.Host(r.Outside.Addr)}
		return s, errors.Join(b.family("inside", r.Inside.Addr), b.family("outside", r.Outside.Addr))
	}
	from, err := b.member(r.Pairs.name(), nat.From)
	from.Pairs = true
	to := from
	to.Of = nat.To
	s.from, s.to, s.pairs = []nat.Member{from}, []nat.Member{to}, r.Pairs.name()
	s.inside = []netip.Prefix{nat.Anywhere(b.bits)}
	s.outside = s.inside
	return s, err
}

func (b *ruleCompiler) static(r *Static) error {
	s, err := b.sides(r)
	if err != nil {
		return err
	}
	if r.Stateless {
		return b.statelessStatic(r, s)
	}
	if r.isOwn() || len(r.ExceptFrom) > 0 {
		return errors.New("user, group and except-from do not hold both ways")
	}
	farFrom, err := b.place("only-to", r.OnlyTo, nat.From)
	if err != nil {
		return err
	}
	farTo, err := b.place("only-to", r.OnlyTo, nat.To)
	if err != nil {
		return err
	}
	does, gives := nat.Action{Pairs: s.pairs, Zone: string(r.Zone)}, nat.Action{Kind: nat.SNAT, Pairs: s.pairs}
	if s.pairs == "" {
		does.Backends, gives.To = []nat.Backend{{Address: r.Inside.Addr}}, nat.AddrRanges{nat.OneAddr(r.Outside.Addr)}
	}
	d := b.destination(s.outside[0], b.plan.WAN, does)
	if err := b.conditions(&r.Conditions, &d.Match); err != nil {
		return err
	}
	out := b.entry(d.Match, gives)
	d.Members, out.Members = slices.Concat(s.to, d.Members), slices.Concat(s.from, out.Members)
	switch {
	case len(r.In) > 0:
		d.In, err = b.resolve(r.In)
	case bool(r.Hairpin), len(r.ExceptIn) > 0:
		d.In = nil
	}
	d.Local, d.Asked = bool(r.Local), len(r.In) > 0
	out.To, out.In, out.NotIn, out.Out, out.Zone = nil, nil, nil, b.plan.WAN, string(r.Zone)
	err = errors.Join(err, b.except("except-to", r.ExceptTo, nat.From, &d.Match), b.except("except-to", r.ExceptTo, nat.To, &out.Match))
	on := where{prefixes: s.outside}
	err = errors.Join(err, b.each(d, r.Port, on, farFrom, func(e Entry) { b.plan.Destinations = append(b.plan.Destinations, e) }))
	if r.Hairpin {
		err = errors.Join(err, b.hairpin(d, r.Port, farFrom))
	}
	if len(r.Out)+len(r.ExceptOut) > 0 {
		var bad, worse error
		out.Out, bad = b.resolve(r.Out)
		out.NotOut, worse = b.resolve(r.ExceptOut)
		err = errors.Join(err, bad, worse)
	}
	own := where{prefixes: s.inside}
	return errors.Join(err, b.each(out, r.Port, farTo, own, func(e Entry) { b.plan.Sources = append(b.plan.Sources, e) }))
}

// pair adds a translation of both directions packet by packet.
func (b *ruleCompiler) pair(s sides, out []string, neutral bool) error {
	if slices.ContainsFunc(out, isGroup) {
		return errors.New(statelessByName)
	}
	b.plan.Stateless = append(b.plan.Stateless, b.entry(nat.Match{From: s.inside, Out: out, Members: s.from},
		nat.Action{Kind: nat.Pair, Prefix: s.outside[0], Pairs: s.pairs, Stateless: true, Neutral: neutral}))
	return nil
}

func (b *ruleCompiler) statelessStatic(r *Static, s sides) error {
	if r.isNarrow() {
		return errors.New("stateless has no connections, of whose first packet conditions are asked: leave one of them out")
	}
	if r.Hairpin || r.Local {
		return errors.New("stateless has no connections: hairpin and local need one, leave them or stateless out")
	}
	return b.pair(s, b.plan.WAN, false)
}

func (b *ruleCompiler) netmap(r *Netmap) error {
	inside, outside := r.Inside.Masked(), r.Outside.Masked()
	err := errors.Join(b.family("inside", inside.Addr()), b.family("outside", outside.Addr()))
	switch {
	case err != nil:
		return err
	case inside.Bits() != outside.Bits():
		return fmt.Errorf("inside %s and outside %s differ in length: each address needs one of its own", inside, outside)
	}
	out := b.plan.WAN
	if len(r.Out) > 0 {
		out, err = b.resolve(r.Out)
	}
	switch {
	case err != nil:
		return err
	case bool(r.Stateless):
		return b.statelessNetmap(inside, outside, out)
	}
	b.plan.Destinations = append(b.plan.Destinations, b.destination(outside, out, nat.Action{Prefix: inside, Zone: string(r.Zone)}))
	b.plan.Sources = append(b.plan.Sources, b.entry(nat.Match{From: []netip.Prefix{inside}, Out: out, Zone: string(r.Zone)}, nat.Action{Kind: nat.SNAT, Prefix: outside}))
	return nil
}

// longestNeutral is the longest prefix of RFC 6296, which puts the difference of the
// checksums into one of the words behind the eighth byte (section 3.5).
const longestNeutral = 64

func (b *ruleCompiler) statelessNetmap(inside, outside netip.Prefix, out []string) error {
	neutral := b.bits == 128
	if neutral && inside.Bits() > longestNeutral {
		return fmt.Errorf("%s is too long for NPTv6 (RFC 6296), which keeps checksums in the last 64 bits of the address: at most /%d", inside, longestNeutral)
	}
	return b.pair(sides{inside: []netip.Prefix{inside}, outside: []netip.Prefix{outside}}, out, neutral)
}

func (b *ruleCompiler) notrack(r *Notrack) error {
	e := b.entry(nat.Match{To: []netip.Prefix{nat.Host(r.On.Addr)}}, nat.Action{Kind: nat.Notrack})
	e.Protocol, e.Ports = r.Port.Service()
	b.plan.Untracked = append(b.plan.Untracked, e)
	return b.family("on", r.On.Addr)
}

// family refuses an address of the other family than the list's.
func (b *ruleCompiler) family(field string, a netip.Addr) error {
	switch {
	case !a.IsValid():
		return fmt.Errorf("%s is missing", field)
	case a.BitLen() == b.bits:
		return nil
	case b.bits == 32:
		return fmt.Errorf("%s %s is IPv6: such rules stand below ipv6", field, a)
	}
	return fmt.Errorf("%s %s is IPv4: such rules stand below nat", field, a)
}

func (b *ruleCompiler) prefixes(field string, list Prefixes) (out []netip.Prefix, err error) {
	for _, p := range list {
		if p.Set != "" {
			continue
		}
		if err := b.family(field, p.Addr()); err != nil {
			return nil, err
		}
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, comparePrefixes)
	return slices.Compact(out), nil
}

// NoHairpin says why hairpins are not for a kernel; empty where they are. Before 5.5
// packets do not know in postrouting where they came in (28f8bfd1ac94 "Support iif
// matches in POSTROUTING"): the kernel takes a rule about that, which matches none.
func NoHairpin(k snapshot.Kernel) string {
	if !k.Before(5, 5) {
		return ""
	}
	return "hairpin needs Linux 5.5, this is " + k.Release
}

// hairpin adds what gives connections from inside to the address of d, which come back inside, that
// address as their source: answers then pass the gateway, and the host inside sees an
// external address (RFC 4787, REQ-9).
func (b *ruleCompiler) hairpin(d Entry, services Services, from where) error {
	if len(b.plan.WAN) == 0 && len(b.plan.LAN) == 0 {
		return errors.New("hairpin needs to know what is inside: name the wan interfaces, or the lan ones, below interfaces")
	}
	if len(d.To) != 1 {
		return errors.New("hairpin is about an address of the gateway: leave it out")
	}
	e := b.entry(d.Match, nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{nat.RangeOf(d.On())}})
	e.Original, e.To, e.NotTo = []netip.Prefix{d.On()}, nil, nil
	e.Members = slices.DeleteFunc(slices.Clone(e.Members), func(x nat.Member) bool { return x.Of == nat.To })
	if len(services) > 0 { // which may become others: what is excepted of them is left out
		e.NotServices = nil
	}
	return b.each(e, services, where{}, from, func(e Entry) {
		asked, some := e.Ports, true
		if len(services) > 0 {
			asked, some = without(e.Protocol, e.Ports, d.NotServices)
		}
		e.Members = slices.Clone(e.Members)
		for i := range e.Members {
			if x := &e.Members[i]; x.Of == nat.DestPorts {
				x.Of = nat.OriginalPorts
			}
		}
		if e.OriginalPorts, e.Ports = asked, nil; some {
			b.plan.Sources = append(b.plan.Sources, e)
		}
	})
}

// without are the ports of a protocol, all where there are none, that are of none of the services; false where none
// is left.
func without(protocol uint8, ports []nat.Ports, services []nat.Service) (left []nat.Ports, some bool) {
	var excepted []nat.Ports
	for _, s := range services {
		if s.Protocol == protocol {
			excepted = append(excepted, s.Ports)
		}
	}
	if len(excepted) == 0 {
		return ports, true
	}
	if len(ports) == 0 {
		ports = []nat.Ports{nat.AllPorts}
	}
	for _, p := range ports {
		left = append(left, p.Without(excepted)...)
	}
	return left, len(left) > 0
}

// hairpins lets hosts that have an external address of their own, or a pool, be seen
// inside under that one rather than under the address that they asked for: REQ-9 a)
// wants the source to be the one that the outside would see. A masqueraded host's is
// the WAN interface's; it is seen under the one it asked for.
func (b *compiler) hairpins() {
	families := map[int]bool{}
	if b.plan.PCP != nil {
		families[32] = true
	}
	for i := range b.plan.Sources {
		if e := &b.plan.Sources[i]; e.IsHairpin() {
			families[e.Family()] = true
		}
	}
	if len(families) == 0 {
		return
	}
	for i := range len(b.plan.Sources) {
		e := b.plan.Sources[i]
		anywhere := e
		anywhere.Zone = "" // which is known inside as well
		if e.IsHairpin() || e.Action.Kind == nat.Masquerade || !families[e.Family()] || !leavesBy(e.Out, b.plan.WAN) || anywhere.IsNarrow() {
			continue
		}
		e.Original, e.Out, e.NotTo = []netip.Prefix{nat.Anywhere(e.Family())}, nil, nil
		b.plan.Sources = append(b.plan.Sources, e)
	}
}

// IsNarrow reports whether a source is for some of what its hosts send: where they are seen inside does not follow
// from it.
func (e *Entry) IsNarrow() bool {
	return len(e.To) > 0 || e.Protocol != 0 || len(e.In) > 0 || e.further() > 0
}

// leavesBy reports whether a source rule is one for the way to the WAN.
func leavesBy(out, wan []string) bool {
	return len(out) == 0 || slices.ContainsFunc(out, func(n string) bool { return nat.InNames(wan, n) })
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), a.Addr().Compare(b.Addr()))
}

// byLength groups sorted prefixes by their length; one empty group where there are
// none, which means any.
func byLength(sorted []netip.Prefix) (groups [][]netip.Prefix) {
	if len(sorted) == 0 {
		return [][]netip.Prefix{nil}
	}
	for len(sorted) > 0 {
		n := slices.IndexFunc(sorted, func(p netip.Prefix) bool { return p.Bits() != sorted[0].Bits() })
		if n < 0 {
			n = len(sorted)
		}
		groups, sorted = append(groups, sorted[:n:n]), sorted[n:]
	}
	return groups
}
