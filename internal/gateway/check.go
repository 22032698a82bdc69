package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
)

// Check reports what in a file is invalid, harmful, or impossible on the host that facts
// describe, in the order of the file. With the zero Facts only the file itself is checked.
// If no Finding refuses, Compile takes the file.
func Check(f *File, facts Facts) []Finding { return CheckPlan(f, facts, func(*Plan) {}) }

// CheckPlan is Check that hands over the plan of the file as soon as there is one, and then goes on; it does not where
// Compile fails, or the file is refused before that. The plan must not be changed until CheckPlan returns.
func CheckPlan(f *File, facts Facts, compiled func(*Plan)) []Finding {
	c := &checker{file: f, config: &f.Config, facts: &facts, held: f.Config.held()}
	c.everyRule(c.rule)
	c.ruleNames()
	c.packets()
	c.pcp()
	c.interfaces()
	c.uplinks()
	c.zones()
	c.engine()
	if c.refused > 0 {
		c.others()
	} else if c.compile(); c.plan != nil {
		compiled(c.plan)
		c.together()
		c.onHost()
	}
	c.sort()
	return c.findings
}

// others checks what rules do to each other where some are refused already: without these, so that one look shows all
// faults. Where more than rules is refused there is no plan to look at.
func (c *checker) others() {
	rest, off := *c.config, Switch(false)
	rest.NAT, rest.IPv6 = slices.Clone(rest.NAT), slices.Clone(rest.IPv6)
	for _, f := range c.findings {
		switch {
		case f.Severity != Refuse:
		case f.Rule == nil:
			return
		default:
			rest.listNamed(f.Rule.List)[f.Rule.Index].Enabled = &off
		}
	}
	plan, err := Compile(&rest, *c.facts)
	if err != nil {
		return
	}
	c.config, c.plan = &rest, plan
	c.amongRules(c.asWritten())
}

// amongRules checks which rules take packets from which.
func (c *checker) amongRules(plan *Plan) {
	c.pins = pinsOf(plan)
	refused := c.overlaps(plan)
	if len(refused) == 0 {
		c.shadowed(plan, c.pins)
		return
	}
	rest := *plan // two that overlap also shadow each other
	for _, list := range []*[]Entry{&rest.Sources, &rest.Destinations, &rest.Stateless, &rest.Untracked} {
		*list = slices.DeleteFunc(slices.Clone(*list), func(e Entry) bool { return refused[e.Rule] })
	}
	c.shadowed(&rest, pinsOf(&rest))
}

// KernelRefuses returns the finding for a plan that an engine tried and the kernel
// rejected: about the rule that the error names, if any.
func KernelRefuses(f *File, err error) Finding {
	found := Finding{ID: "kernel-refuses", Severity: Refuse, Message: err.Error()}
	var about interface {
		error
		Rule() (Ref, bool)
	}
	if !errors.As(err, &about) {
		return found
	}
	if ref, ok := about.Rule(); ok && f.Line(ref) != "" {
		found.Rule = &ref
		found.stand(f, f.place(ref.List, ref.Index))
	}
	return found
}

// stand puts a finding at a place of a file.
func (found *Finding) stand(f *File, p document.Place) {
	found.Line, found.Column, found.Excerpt = p.Line, p.Column, p.Excerpt
	if p.File != f.Name {
		found.File = p.File
	}
	if p.Uses != "" {
		found.Message += " (" + p.Uses + ")"
	}
}

// checker collects findings.
type checker struct {
	file   *File
	config *Config
	facts  *Facts
	// plan is what the file becomes on the host; nil where it cannot be compiled.
	plan *Plan
	// held are addresses that pools do not give.
	held *rangeIndex
	// pins are those of its entries.
	pins *pins
	// byPort are indexes of the plan's destinations for one port, those for more under
	// the zero key; everyPort are all.
	byPort    map[portKey][]int
	everyPort []int
	findings  []Finding
	refused   int
}

// one is a rule being checked.
type one struct {
	*checker
	Rule
	ref Ref
	// bits is the length of the list's addresses.
	bits int
}

func (c *checker) everyRule(check func(one)) {
	c.config.each(func(r Rule, ref Ref) { check(one{c, r, ref, ref.BitLen()}) })
}

// ruleOf is the rule that ref names.
func (c *checker) ruleOf(ref Ref) one {
	return one{c, c.config.listNamed(ref.List)[ref.Index], ref, ref.BitLen()}
}

// packets checks what is done to packets besides their translation.
func (c *checker) packets() {
	roles := len(c.config.Interfaces.WAN) + len(c.config.Interfaces.LAN)
	switch helpers := c.config.Helpers; {
	case len(helpers) == 0:
	case roles == 0:
		c.add(Finding{ID: "helpers-without-roles", Severity: Refuse, Message: "helpers: they are for connections from inside, but the file names no interfaces that lead there",
			Advice: "name them: interfaces: {wan: eth0, lan: eth1}"}, []any{"helpers"})
	default:
		var modules []string
		for _, h := range helpers {
			modules = append(modules, "nf_nat_"+string(h))
		}
		c.add(Finding{ID: "helpers-open", Severity: Notice,
			Message: "helpers: the kernel reads what clients and servers write, and lets in the connections that they announce, as RELATED: who controls one of the two can have a port of a host inside opened",
			Advice:  "leave them out where passive FTP, or SIP without help, does; what they announce is translated by modules of their own, which have to be loaded where they are modules: sudo modprobe -a " + strings.Join(modules, " ") + "; at boot by a file in /etc/modules-load.d"}, []any{"helpers"})
	}
	if c.config.TTL == 0 {
		return
	}
	if len(c.config.Interfaces.WAN) == 0 {
		c.add(Finding{ID: "ttl-without-wan", Severity: Refuse, Message: "ttl: it is for packets that leave by wan, and no interface has that role", Advice: "name it: interfaces: {wan: eth0}"}, []any{"ttl"})
	}
	if c.config.Flowtable {
		c.add(Finding{ID: "ttl-and-flowtable", Severity: Warn, Message: "ttl: packets on the fast path come to no chain, and keep theirs", Advice: "write flowtable: off, or leave out ttl"}, []any{"ttl"})
	}
}

// ruleNames refuses two rules of one name.
func (c *checker) ruleNames() {
	known := map[Name]Ref{}
	c.everyRule(func(o one) {
		if o.Name == "" {
			return
		}
		if before, taken := known[o.Name]; taken {
			ref := o.ref
			o.add(Finding{ID: "name-twice", Severity: Refuse, Rule: &ref, Message: fmt.Sprintf("%s is the name of %s as well", o.Name, c.named(before)),
				Advice: "give it another name"}, []any{o.ref.List, o.ref.Index, "name"})
			return
		}
		known[o.Name] = o.ref
	})
}

// compile makes the plan. What a rule may not mean was found before, so that an error
// here concerns the file as a whole.
func (c *checker) compile() {
	plan, err := Compile(c.config, *c.facts)
	if err != nil {
		c.add(Finding{ID: "not-compilable", Severity: Refuse, Message: err.Error()}, nil)
		return
	}
	c.plan = plan
}

// together checks what rules do to each other.
func (c *checker) together() {
	plan := c.asWritten()
	c.amongRules(plan)
	c.pools()
	c.notrack()
	c.uplinksTogether()
	c.zonesTogether()
	c.pcpTogether(plan)
}

// onHost checks what rules meet on the host.
func (c *checker) onHost() {
	c.load()
	if !c.facts.Known {
		return
	}
	c.support()
	c.waits()
	c.ownAddresses()
	c.targets()
	c.uplinksOnHost()
	c.zonesOnHost()
	c.pcpOnHost()
	c.sessions()
	c.foreign()
}

// add takes a finding, which stands at path below the file's key gateway.
func (c *checker) add(f Finding, path []any) {
	if path != nil {
		f.stand(c.file, c.file.place(path...))
	}
	if f.Severity == Refuse {
		c.refused++
	}
	c.findings = append(c.findings, f)
}

// refuse and warn take a finding about the rule, at path below its word.
func (o one) refuse(id, message, advice string, path ...any) {
	o.found(Refuse, id, message, advice, path)
}

func (o one) warn(id, message, advice string, path ...any) {
	o.found(Warn, id, message, advice, path)
}

func (o one) found(s Severity, id, message, advice string, path []any) {
	whole := []any{o.ref.List, o.ref.Index}
	if len(path) > 0 {
		whole = append(append(whole, o.ref.Kind), path...)
	}
	ref := o.ref
	o.add(Finding{ID: id, Severity: s, Rule: &ref, Message: ref.called() + ": " + message, Advice: advice}, whole)
}

// named is a rule in words of another's finding.
func (c *checker) named(ref Ref) string {
	line := c.file.Line(ref)
	if line == "" {
		return ref.String()
	}
	return ref.Kind + " in " + line
}

// sort puts findings in the order of the file, those about the whole of it last.
func (c *checker) sort() {
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(uint(a.Line)-1, uint(b.Line)-1), cmp.Compare(a.Column, b.Column), cmp.Compare(a.ID, b.ID))
	})
}

// rule checks a single rule.
func (c *checker) rule(o one) {
	if o.file.tree == nil { // a Config that Parse has not read
		if p := o.whole(); p != nil {
			o.refuse("rule-incomplete", p.Message, "write what is missing")
			return
		}
	}
	for w := range o.written() {
		o.address(w)
	}
	o.sets()
	if c := o.conditions(); c != nil {
		o.asks(c)
	}
	switch {
	case o.Masquerade != nil:
		o.sources(&o.Masquerade.Sources)
		o.choice(&o.Masquerade.Choice)
	case o.SNAT != nil:
		o.sources(&o.SNAT.Sources)
		o.choice(&o.SNAT.Choice)
		o.nothingLeft()
	case o.DNAT != nil:
		o.dnat(o.DNAT)
	case o.Static != nil:
		o.static(o.Static)
	case o.Netmap != nil:
		o.netmap(o.Netmap)
	case o.Notrack != nil:
		o.protocol(o.Notrack.Port, "port")
	case o.NAT64 != nil, o.NAT46 != nil:
		o.acrossFamilies()
		o.refuse("no-family-change", noFamilyChange+", and no engine of this version does", "leave it out, and run Jool (https://nicmx.github.io/Jool) beside natkit for it: its packets are of one family on each side, and natkit's rules apply to both")
	}
	if o.Log.On && o.isStateless() {
		ref := o.ref
		o.add(Finding{ID: "log-needs-tracker", Severity: Refuse, Rule: &ref, Message: ref.called() + ": " + logsEveryPacket, Advice: "leave log out; tcpdump shows its packets"},
			[]any{o.ref.List, o.ref.Index, "log"})
	}
}

// acrossFamilies checks the fields of a rule that no engine carries out: of nat64 the hosts have IPv6 and are given
// addresses of IPv4, of nat46 it is the other way round.
func (o one) acrossFamilies() {
	a, from, to := cmp.Or(o.NAT64, o.NAT46), 128, 32
	if o.NAT46 != nil {
		from, to = to, from
	}
	family := func(addrs nat.AddrRange, bits int, path ...any) {
		if addrs.First.BitLen() != bits {
			o.refuse("wrong-family", fmt.Sprintf("%s is not %s, which %s of %s has", addrs, familyName(bits), path[0], o.ref.Kind), "write an address of that family", path...)
		}
	}
	family(nat.RangeOf(a.Prefix.Prefix), 128, "prefix")
	for i, p := range a.From {
		if p.Set == "" {
			family(nat.RangeOf(p.Prefix), from, "from", i)
		}
	}
	for i, r := range a.To {
		family(r, to, "to", i)
	}
}

// special are addresses that no host has, or that only it can reach.
var special = []struct {
	addrs nat.AddrRange
	what  string
}{
	{nat.RangeOf(netip.MustParsePrefix("0.0.0.0/8")), `an address of "this network" (RFC 1122), which no host has`},
	{nat.RangeOf(netip.MustParsePrefix("127.0.0.0/8")), "a loopback address, which no packet from or to another host carries"},
	{nat.RangeOf(netip.MustParsePrefix("224.0.0.0/4")), "a multicast address, which connection tracking does not translate"},
	{nat.RangeOf(netip.MustParsePrefix("240.0.0.0/4")), "a reserved or the broadcast address (RFC 1112, RFC 919), which no host has"},
	{nat.RangeOf(netip.MustParsePrefix("::/127")), "the unspecified or the loopback address, which no packet from or to another host carries"},
	{nat.RangeOf(netip.MustParsePrefix("ff00::/8")), "a multicast address, which connection tracking does not translate"},
	{nat.RangeOf(netip.MustParsePrefix("fe80::/10")), "a link-local address, which no router forwards"},
}

// address checks the family and the kind of one address, range or prefix.
func (o one) address(w written) {
	if w.addrs.First.BitLen() != o.bits {
		other := "ipv6"
		if o.bits == 128 {
			other = "nat"
		}
		o.refuse("wrong-family", fmt.Sprintf("%s is not %s, which the rules below %s are for", w.text(), familyName(o.bits), o.ref.List),
			"write the rule below "+other, w.path()...)
		return
	}
	if w.use == useExcept { // such as multicast, which rules of others except
		return
	}
	for _, s := range special {
		// Whom a rule is about may be everybody: only the whole of it counts.
		r, condition := s.addrs, w.use == useFrom
		if condition && r.Covers(w.addrs) || !condition && r.Overlaps(w.addrs) {
			o.refuse("unusable-address", fmt.Sprintf("%s is %s", withPart(w, r), s.what), "write the address of a host", w.path()...)
			return
		}
	}
}

// withPart is how w is written, and which part of it lies in r where not all does.
func withPart(w written, r nat.AddrRange) string {
	if r.Covers(w.addrs) {
		return w.text()
	}
	first := w.addrs.First
	if first.Less(r.First) {
		first = r.First
	}
	return fmt.Sprintf("%s of %s", first, w.text())
}

// sets warns where a set leaves a rule nothing to do.
func (o one) sets() {
	for _, u := range o.setUses() {
		if s := o.config.Sets.named(u.name); s != nil && !strings.HasPrefix(u.key, "except-") && s.LenOf(o.bits) == 0 {
			o.warn("set-empty", fmt.Sprintf("set %s has no %s address: the rule matches nothing by it", u.name, familyName(o.bits)),
				"fill it, or leave it out", o.pathOf(u.key, u.at, u.of)...)
		}
	}
}

func (o one) choice(c *Choice) {
	if c.Ports.Keep && c.Random != "" {
		o.refuse("keep-random", "ports are kept, and chosen at random", "leave out ports: keep, or random", "random")
	}
}

// asks checks the conditions of any rule.
func (o one) asks(c *Conditions) {
	for i, p := range c.ExceptPort {
		o.protocol(p, o.pathOf("except-port", i, len(c.ExceptPort))...)
		if p.First != 0 && p.all().Len() > mostExcepted {
			o.refuse("too-many-excepted", fmt.Sprintf("except-port %s is %d ports", p, p.all().Len()),
				fmt.Sprintf("name the ports that are meant after port, or except at most %d", mostExcepted), o.pathOf("except-port", i, len(c.ExceptPort))...)
		}
	}
	if c.isOwn() && len(c.In)+len(c.ExceptIn) > 0 {
		o.refuse("own-programs-come-in", "what programs on the gateway send comes in by no interface: with user or group no packet matches",
			"leave out in, or user and group", map[bool]string{true: "in", false: "except-in"}[len(c.In) > 0])
	}
}

// mostExcepted bounds the ports of one exception: each is an element of a set.
const mostExcepted = 1024

func (o one) sources(s *Sources) {
	for i, p := range s.Port {
		o.protocol(p, o.pathOf("port", i, len(s.Port))...)
	}
}

func (o one) dnat(d *DNAT) {
	for i, p := range d.Port {
		o.protocol(p, o.pathOf("port", i, len(d.Port))...)
	}
	for i, to := range d.To {
		o.backend(d, to, o.pathOf("to", i, len(d.To)))
	}
	if d.On.Name == OnAny {
		o.onAny(d)
	} else if len(d.OnlyTo) > 0 {
		o.refuse("only-to-of-others", "only-to is about the destinations of a rule on any", "write on: any, or leave out only-to", "only-to")
	}
	switch {
	case bool(d.Hairpin) && d.action().Kind == nat.Redirect:
		o.refuse("hairpin-to-itself", "what becomes the gateway's own port comes back to no host inside", "leave out hairpin, and name the interfaces inside by in", "hairpin")
	case bool(d.Hairpin):
		o.hairpin()
	}
}

// pathOf is that of an item of a list, or of a single value.
func (o one) pathOf(key string, i, of int) []any {
	if of == 1 {
		return []any{key}
	}
	return []any{key, i}
}

// onAny refuses a rule that would take everything, and what it cannot have.
func (o one) onAny(d *DNAT) {
	switch {
	case len(d.In)+len(d.From)+len(d.OnlyTo) == 0 && d.Mark.Mask == 0 && !d.isOwn():
		o.refuse("takes-everything", "on any takes what comes from everywhere, and for everybody", "name whose connections are meant: in, from, mark, user or group", "on")
	case bool(d.Hairpin):
		o.refuse("hairpin-on-any", "hairpin is about an address of the gateway", "leave out hairpin", "hairpin")
	}
}

func (o one) backend(d *DNAT, to nat.Backend, path []any) {
	span, one := d.Port.span()
	many := len(d.Port) > 1 || one && span.Len() > 1
	switch {
	case to.Last != 0 && (!one || span.Len() != int(to.Last-to.Port)+1):
		o.refuse("ports-differ", fmt.Sprintf("to %s has %d ports: port has to be one range of as many", to, int(to.Last-to.Port)+1),
			"write two ranges of one length, or leave the ports out of to: then each stays what it is", path...)
	case to.Last != 0:
	case to.Port != 0 && !d.Port.havePorts():
		o.refuse("port-without-protocol", fmt.Sprintf("to %s has a port, but the rule is not for a protocol that has ports", to),
			fmt.Sprintf("write port: tcp/%d, or leave the port out of to", to.Port), path...)
	case !to.Address.IsValid() && to.Port != 0: // a program that is to have all of them
	case to.Port != 0 && slices.ContainsFunc(d.Port, Port.isWhole):
		o.warn("ports-to-one", fmt.Sprintf("every port of %s goes to the one port of %s", d.Port, to),
			"write the ports that are meant after port, or leave the port out of to: then each stays what it is", path...)
	case to.Port != 0 && one && many:
		o.warn("ports-to-one", fmt.Sprintf("the %d ports of %s all go to the one port of %s", span.Len(), d.Port, to),
			fmt.Sprintf("write to: %s, so that each becomes the one at its place, or leave the port out of to: then each stays what it is", shifted(to, span)), path...)
	case d.On.Address == to.Address && (to.Port == 0 || one && !many && to.Port == span.First):
		o.refuse("translates-to-itself", fmt.Sprintf("%s becomes itself", d.On), "leave the rule out, or name the host inside", path...)
	}
}

// shifted is a backend with as many ports as a range has.
func shifted(to nat.Backend, span nat.Ports) nat.Backend {
	to.Weight, to.Last = 0, uint16(min(int(to.Port)+span.Len()-1, math.MaxUint16))
	return to
}

// hairpin needs to know which interfaces lead inside.
func (o one) hairpin() {
	if i := o.config.Interfaces; len(i.WAN)+len(i.LAN) == 0 {
		o.refuse("hairpin-without-roles", "hairpin is for hosts inside, but the file names no interfaces that lead there",
			"name them: interfaces: {wan: eth0, lan: eth1}", "hairpin")
	}
}

// protocol refuses the other family's ICMP.
func (o one) protocol(p Port, path ...any) {
	switch {
	case p.Protocol == "icmp" && o.bits == 128:
		o.refuse("wrong-family", "icmp is of IPv4", "write icmpv6", path...)
	case p.Protocol == "icmpv6" && o.bits == 32:
		o.refuse("wrong-family", "icmpv6 is of IPv6", "write icmp", path...)
	}
}

func (o one) static(s *Static) {
	if s.Pairs != "" {
		o.pairs(s)
	}
	if s.Pairs == "" && s.Inside == s.Outside {
		o.refuse("translates-to-itself", fmt.Sprintf("%s becomes itself", s.Inside), "leave the rule out", "outside")
	}
	for i, p := range s.Port {
		o.protocol(p, o.pathOf("port", i, len(s.Port))...)
	}
	switch {
	case s.isOwn():
		o.refuse("not-both-ways", "what comes from outside has no user, so that user and group hold one way only", "write an snat for what its programs send, and a dnat")
	case len(s.ExceptFrom) > 0:
		o.refuse("not-both-ways", "from is one end on the way out and the other one on the way in", "write except-to, which is the other end both ways", "except-from")
	case bool(s.Stateless) && s.isNarrow():
		o.refuse("stateless-needs-tracker", "what a rule asks for is asked of the first packet of a connection, and stateless has none", "leave out stateless, or the conditions", "stateless")
	case bool(s.Stateless) && bool(s.Hairpin):
		o.refuse("stateless-needs-tracker", "hairpin needs connections, and stateless has none", "leave out one of them", "hairpin")
	case bool(s.Stateless) && bool(s.Local):
		o.refuse("stateless-needs-tracker", "local needs connections, and stateless has none", "leave out one of them", "local")
	case bool(s.Hairpin):
		o.hairpin()
	}
}

// pairs checks the addresses of a set of pairs, and what cannot be said of all of them at once.
func (o one) pairs(s *Static) {
	if s.Hairpin {
		o.refuse("pairs-without-hairpin", "hairpin has a rule of its own for each address, and pairs are all in one", "leave out hairpin, or take the pairs of hosts that need it out of the set, and write a static for each", "hairpin")
	}
	set := o.config.Sets.named(s.Pairs.name())
	if set == nil {
		return
	}
	for _, unusable := range special {
		for _, of := range []nat.Condition{nat.To, nat.From} {
			if at := set.Side(of).Of(o.bits).Within(unusable.addrs); len(at) > 0 {
				o.refuse("unusable-address", fmt.Sprintf("%s of set %s is %s", at[0].First, s.Pairs.name(), unusable.what), "write the address of a host", "pairs")
			}
		}
	}
}

func (o one) netmap(n *Netmap) {
	in, out := n.Inside.Prefix, n.Outside.Prefix
	switch {
	case in.Addr().BitLen() != out.Addr().BitLen(): // one of them is of the wrong family
	case in.Bits() != out.Bits():
		o.refuse("netmap-lengths", fmt.Sprintf("inside is a /%d, outside a /%d: every address inside needs one of its own outside", in.Bits(), out.Bits()),
			fmt.Sprintf("write two prefixes of one length, or share addresses: snat: {from: %s, to: %s}", n.Inside, n.Outside), "outside")
	case in == out:
		o.refuse("translates-to-itself", fmt.Sprintf("%s becomes itself", n.Inside), "leave the rule out", "outside")
	case bool(n.Stateless) && o.bits == 128 && in.Bits() > longestNeutral:
		o.refuse("nptv6-prefix", fmt.Sprintf("/%d is too long for NPTv6, which keeps checksums right in the last 64 bits (RFC 6296, 3.5)", in.Bits()),
			fmt.Sprintf("use prefixes of /%d or shorter, or leave out stateless", longestNeutral), "inside")
	}
}

// use is what a rule does with an address that stands in it.
type use int

const (
	useFrom   use = iota // whose packets it is about
	useExcept            // who is left alone
	useGive              // what becomes a source outside
	useOn                // what becomes another destination
	useTo                // what a destination becomes
	useInside            // both of one rule
	useOutside
	useUntracked
)

// written is an address, range or prefix as it stands in a rule.
type written struct {
	use   use
	addrs nat.AddrRange
	// key is its field, at its place in the field's list; -1 where it is no list.
	key string
	at  int
}

// text is how it is written.
func (w written) text() string {
	if p := w.addrs.Prefix(); p.IsValid() && w.use != useGive {
		return nat.PrefixString(p)
	}
	return w.addrs.String()
}

// path is where it stands, below the rule's word.
func (w written) path() []any {
	if w.at < 0 {
		return []any{w.key}
	}
	return []any{w.key, w.at}
}

// written are all addresses of a rule.
func (r Rule) written() iter.Seq[written] {
	return func(yield func(written) bool) {
		more := true
		add := func(u use, addrs nat.AddrRange, key string, at int) { more = more && yield(written{u, addrs, key, at}) }
		one := func(u use, key string, a netip.Addr) {
			if a.IsValid() {
				add(u, nat.OneAddr(a), key, -1)
			}
		}
		list := func(u use, key string, prefixes Prefixes) {
			for i, p := range prefixes {
				if p.Set == "" {
					add(u, nat.RangeOf(p.Prefix), key, i)
				}
			}
		}
		sources := func(s *Sources) {
			list(useFrom, "from", s.From)
			list(useFrom, "only-to", s.OnlyTo)
			list(useExcept, "except-to", s.ExceptTo)
		}
		if c := r.conditions(); c != nil {
			list(useExcept, "except-from", c.ExceptFrom)
		}
		switch {
		case r.Masquerade != nil:
			sources(&r.Masquerade.Sources)
		case r.SNAT != nil:
			sources(&r.SNAT.Sources)
			for i, to := range r.SNAT.To {
				add(useGive, to, "to", i)
			}
		case r.DNAT != nil:
			one(useOn, "on", r.DNAT.On.Address)
			list(useFrom, "from", r.DNAT.From)
			list(useFrom, "only-to", r.DNAT.OnlyTo)
			list(useExcept, "except-to", r.DNAT.ExceptTo)
			for i, to := range r.DNAT.To {
				if len(r.DNAT.To) == 1 {
					i = -1
				}
				if to.Address.IsValid() {
					add(useTo, nat.OneAddr(to.Address), "to", i)
				}
			}
		case r.Static != nil:
			one(useInside, "inside", r.Static.Inside.Addr)
			one(useOutside, "outside", r.Static.Outside.Addr)
			list(useFrom, "only-to", r.Static.OnlyTo)
			list(useExcept, "except-to", r.Static.ExceptTo)
		case r.Netmap != nil:
			add(useInside, nat.RangeOf(r.Netmap.Inside.Prefix), "inside", -1)
			add(useOutside, nat.RangeOf(r.Netmap.Outside.Prefix), "outside", -1)
		case r.Notrack != nil:
			one(useUntracked, "on", r.Notrack.On.Addr)
		}
	}
}

// inside is the address of the host inside that it is, if it is one.
func (w written) inside() (netip.Addr, bool) {
	return w.addrs.First, (w.use == useTo || w.use == useInside) && w.addrs.First == w.addrs.Last
}

// Targets are the hosts inside that rules are about, each once.
func (c *Config) Targets() (all []netip.Addr) {
	known := map[netip.Addr]bool{}
	c.each(func(r Rule, _ Ref) {
		for w := range r.written() {
			if a, ok := w.inside(); ok && !known[a] {
				known[a], all = true, append(all, a)
			}
		}
	})
	return all
}
