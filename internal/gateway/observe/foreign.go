package observe

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// sees reports whether packets of the family come to the chain, and whether it can do
// anything to them.
func sees(f *gateway.Foreign, p nat.Packet) bool {
	fits := f.Family == "inet" || (f.Family == "ip") == p.Src.Is4() && (f.Family == "ip" || f.Family == "ip6")
	return fits && (f.Rules > 0 || f.Policy == "drop")
}

// foreign takes the packet through another program's chain, as far as its rules are
// understood: those that translate.
func (w *walk) foreign(f *gateway.Foreign, s *Step) {
	s.Chain, s.Owner = strings.Join([]string{f.Family, f.Table, f.Chain}, " "), f.Owner
	if f.Type != "nat" {
		s.Unsure = true
		s.Does = fmt.Sprintf("%s that natkit does not follow", units.Plural(f.Rules, "rule", "rules"))
		if f.Policy == "drop" || f.Policy == "reject" {
			w.unless("the rules of %s do not accept it", s.Chain)
		}
		switch f.Policy {
		case "drop":
			s.Does += "; what none of them accepts is dropped"
		case "reject":
			s.Does += "; what none of them accepts is rejected"
		}
		return
	}
	switch {
	case w.e.Untracked:
		return
	case w.decided(f):
		s.Does = "not asked: it is translated already"
		return
	}
	w.foreignRules(f, s)
}

// foreignRules evaluates the rules of a nat chain in their order. Those with conditions that
// natkit does not know are skipped, and noted.
func (w *walk) foreignRules(f *gateway.Foreign, s *Step) {
	var may *snapshot.NATRule
	for i := range f.NAT {
		r := &f.NAT[i]
		match := w.foreignMatch(r)
		if match == matches {
			w.foreignTranslates(r, s)
			break
		}
		if match == mayMatch && (may == nil || may.Marked && !r.Marked) {
			may = r
		}
	}
	s.Unsure = may != nil || f.TooMany
	switch {
	case f.TooMany:
		w.note("too many to follow: more jumps and elements of sets lead to rules of %s than natkit follows; if one of them translates it, natkit's rules are not asked", s.Chain)
		s.Does = "too many to follow: a rule that translates may be for it"
		w.unless("one of too many rules of %s translates it", s.Chain)
	case may != nil && !may.Marked:
		note := "if %q in %s translates it, natkit's rules are not asked, and it becomes something else"
		if s.Does != "" {
			note = "or what %q in %s makes of it: natkit's rules are not asked in either case"
		}
		w.note(note, may.Text, s.Chain)
		w.unless("%q in %s translates it", may.Text, s.Chain)
		first := fmt.Sprintf("%q may translate it first: it has conditions that natkit does not know", may.Text)
		s.Does = strings.Join(slices.DeleteFunc([]string{first, s.Does}, func(text string) bool { return text == "" }), "; otherwise ")
	case s.Does != "":
	case may != nil:
		// kube-proxy marks what it translates, and nothing else; others may mark anything.
		if f.Owner != "kubernetes" || w.dstTranslated && w.e.Destination.Rule == nil {
			w.note("if it carries the mark that %q in %s asks for, it becomes something else", may.Text, s.Chain)
			w.unless("it carries the mark that %q in %s asks for", may.Text, s.Chain)
		}
		s.Does = fmt.Sprintf("no rule that translates is for it, unless it carries the mark that %q asks for", may.Text)
	default:
		s.Does = "no rule that translates is for it"
	}
}

// unless notes what may make something else of the packet.
func (w *walk) unless(format string, args ...any) {
	w.e.Unless = append(w.e.Unless, fmt.Sprintf(format, args...))
}

// decided reports whether this direction is translated already.
func (w *walk) decided(f *gateway.Foreign) bool {
	if f.Hook == hookPostrouting || f.Hook == hookInput {
		return w.srcDone
	}
	return w.dstDone
}

type matching int

const (
	noMatch matching = iota
	mayMatch
	matches
)

func (w *walk) foreignMatch(r *snapshot.NATRule) matching {
	switch {
	case !w.meets(r.NATCondition) || slices.ContainsFunc(r.Unless, w.meets):
		return noMatch
	case r.Partial || r.PortsFromMap:
		return mayMatch
	}
	return matches
}

// meets reports whether the packet, as it is by now, is what a condition asks for.
func (w *walk) meets(c snapshot.NATCondition) bool {
	m, p := gateway.MatchOf(c), w.now()
	local := m.ToLocal
	m.ToLocal = false
	return m.Matches(&p) && (!local || w.isLocal())
}

// isLocal reports whether the routing table takes the destination for this host's own.
func (w *walk) isLocal() bool {
	hop, err := w.route(Lookup{Destination: w.dst.addr})
	w.err = cmp.Or(w.err, err)
	return hop.Local
}

// foreignTranslates does what another program's rule does; natkit's chain is not asked
// then (nf_nat_inet_fn stops at the first chain that decides).
func (w *walk) foreignTranslates(r *snapshot.NATRule, s *Step) {
	if r.TranslatesSource() {
		pool := nat.Action{Kind: nat.SNAT, To: nat.AddrRanges{{First: r.First, Last: r.Last}}, Ports: nat.Ports{First: r.FirstPort, Last: r.LastPort}}
		if r.Kind == snapshot.NATMasquerade || !r.First.IsValid() {
			pool.Kind = nat.Masquerade
		}
		if r.Random || r.FullyRandom {
			pool.Random = nat.RandomFully
		}
		w.e.Source, w.srcDone = w.give(&pool), true
		s.Does = fmt.Sprintf("%s: the source becomes %s; natkit's chain is not asked", r.Text, w.words(w.e.Source, &pool))
		return
	}
	before := w.dst
	w.dst = w.foreignTarget(r)
	w.dstDone, w.dstTranslated = true, w.dst != before
	w.e.Destination = as(w.dst)
	s.Does = fmt.Sprintf("%s: the destination becomes %s; natkit's chain is not asked", r.Text, w.dst)
}

// foreignTarget is the first address of a rule's, where it has several.
func (w *walk) foreignTarget(r *snapshot.NATRule) endpoint {
	to := w.dst
	switch {
	case r.First.IsValid():
		to.addr = r.First
	case r.Kind == snapshot.NATRedirect:
		to.addr = w.redirected()
	}
	if r.FirstPort != 0 {
		to.port = r.FirstPort
	}
	return to
}

// redirected is the address of the interface by which the packet came, or the loopback's for one of the gateway's own
// programs (nf_nat_redirect).
func (w *walk) redirected() netip.Addr {
	if w.packet.In == "" {
		return map[bool]netip.Addr{true: netip.AddrFrom4([4]byte{127, 0, 0, 1}), false: netip.IPv6Loopback()}[w.dst.addr.Is4()]
	}
	for _, p := range w.facts.AddressesOf(w.packet.In) {
		if p.Addr().BitLen() == w.dst.addr.BitLen() {
			return p.Addr()
		}
	}
	return w.dst.addr
}

// track is the tracker's place (nf_conntrack_in).
func (w *walk) track(s *Step) {
	s.Does = "conntrack: a new connection; its first packet alone asks the nat chains"
	if w.e.Untracked {
		s.Does = "conntrack: not tracked; no nat chain is asked"
	}
}

// raw is what is done before the tracker sees the packet. A stateless pair needs no
// tracker: it translates what is not tracked for another reason too.
func (w *walk) raw(s *Step) {
	s.Does = "no rule is for it: it is tracked"
	for i := range w.plan.Untracked {
		if u := &w.plan.Untracked[i]; concerns(u, w.packet) {
			w.e.Untracked, s.Rule, s.Does = true, &u.Rule, "not tracked"
			break
		}
	}
	if w.reflected(s) {
		return
	}
	for i := range w.plan.Stateless {
		if w.statelessIn(&w.plan.Stateless[i], s) {
			return
		}
	}
}

// reflected reports whether the packet goes back inside without state.
func (w *walk) reflected(s *Step) bool {
	out, in := w.reflector(func(p *gateway.Entry) bool { return p.HasInside(w.src.addr) }),
		w.reflector(func(p *gateway.Entry) bool { return p.HasOutside(w.dst.addr) })
	if out == nil || in == nil || w.packet.In == "" {
		return false
	}
	if !w.becomes(&w.src, out.Outward(w.src.addr), out, s) || !w.becomes(&w.dst, in.Inward(w.dst.addr), in, s) {
		return true
	}
	w.e.Source, w.e.Destination = as(w.src), as(w.dst)
	w.e.Source.Rule, w.e.Destination.Rule = &out.Rule, &in.Rule
	w.e.Untracked = true
	s.Does = fmt.Sprintf("not tracked; the source becomes %s, the destination %s, packet by packet", w.src, w.dst)
	return true
}

// becomes gives one end the address that a pair has for it. Where it has none the packet
// is dropped (RFC 6296, section 3.5).
func (w *walk) becomes(end *endpoint, a netip.Addr, p *gateway.Entry, s *Step) bool {
	s.Rule = &p.Rule
	if !a.IsValid() {
		w.e.Fate, w.e.Untracked = Dropped, true
		s.Does = fmt.Sprintf("dropped: the last 64 bits of %s are all ones, and no word of them could keep its checksums right", end.addr)
		return false
	}
	end.addr = a
	return true
}

// reflector is the first pair that reflects, not for the interface by which the packet
// comes in, and is for it.
func (w *walk) reflector(is func(*gateway.Entry) bool) *gateway.Entry {
	i := slices.IndexFunc(w.plan.Stateless, func(p gateway.Entry) bool { return p.Reflects() && is(&p) })
	if i < 0 || nat.InNames(w.plan.Reflecting(), w.packet.In) {
		return nil
	}
	return &w.plan.Stateless[i]
}

// concerns reports whether a packet is to or from what is not tracked.
func concerns(u *gateway.Entry, p nat.Packet) bool {
	back := p
	back.Src, back.SrcPort, back.Dst, back.DstPort = p.Dst, p.DstPort, p.Src, p.SrcPort
	return u.Matches(&p) || u.Matches(&back)
}

// statelessIn reports whether a pair is for a packet that comes in, from either side.
func (w *walk) statelessIn(p *gateway.Entry, s *Step) bool {
	switch {
	case p.HasOutside(w.dst.addr) && w.packet.In != "" && has(p.Out, w.packet.In):
		if !w.becomes(&w.dst, p.Inward(w.dst.addr), p, s) {
			return true
		}
		s.Does = fmt.Sprintf("not tracked; the destination becomes %s, packet by packet", w.dst)
		w.e.Destination = as(w.dst)
		w.e.Destination.Rule = &p.Rule
	case p.HasInside(w.src.addr) && w.leavesBy(w.plan.LeavingBy(p.Out)):
		s.Does = "not tracked"
	default:
		return false
	}
	w.e.Untracked, s.Rule = true, &p.Rule
	return true
}

// leavesBy reports whether a route leads by one of the interfaces, before it is asked for
// the packet: the rules in raw match the destination alone.
func (w *walk) leavesBy(out []string) bool {
	hop, err := w.route(Lookup{Destination: w.dst.addr})
	if err != nil {
		w.err = err
	}
	return !hop.Local && hop.Unreachable == "" && has(out, hop.Out)
}

// has reports whether a condition on interfaces holds: none is any.
func has(names []string, name string) bool { return len(names) == 0 || nat.InNames(names, name) }

func (w *walk) destination(s *Step) {
	if w.e.Untracked {
		return
	}
	if w.dstDone {
		s.Does = "not asked: the destination is translated already"
		return
	}
	w.asked = w.dst
	for i := range w.plan.Destinations {
		if d := &w.plan.Destinations[i]; len(w.misses(d)) == 0 {
			w.translateDestination(d, s)
			return
		}
	}
	s.Does = fmt.Sprintf("no rule is for %s: it stays", w.dst)
}

func (w *walk) translateDestination(d *gateway.Entry, s *Step) {
	before, several := w.dst, []int(nil)
	switch {
	case d.Action.Pairs != "":
		w.dst.addr = d.Pairs().Inward(w.dst.addr)
	case d.Action.Prefix.IsValid():
		w.dst.addr = nat.Replace(w.dst.addr, d.Action.Prefix)
	case d.Action.Kind == nat.Redirect:
		w.dst = endpoint{w.redirected(), d.Action.Ports.First}
	default:
		i, among := w.choice(d)
		if i == nat.Nobody {
			s.Rule, w.e.Fate = &d.Rule, Dropped
			s.Does = "rejected: all hosts of " + d.Rule.String() + " are down (" + hostNames(&d.Action, among) + ")"
			return
		}
		to := d.Action.Backends[i]
		w.dst = endpoint{to.Address, to.PortOf(w.dst.port, d.Ports)}
		several = among
	}
	w.dstDone, w.dstTranslated = true, w.dst != before
	w.e.Destination = as(w.dst)
	s.Does = fmt.Sprintf("the destination becomes %s", w.dst)
	switch {
	case len(several) > 1:
		w.e.Destination = w.oneOf(d, several)
		s.Does = "the destination becomes one of " + d.Action.String()
		w.note("followed as if %s were chosen", w.dst)
	case len(d.Action.Backends) > 1:
		s.Does += ", of " + d.Action.String()
	}
	if z := w.plan.ZoneNamed(d.Action.Zone); z != nil {
		w.intoZone(z)
		s.Does += fmt.Sprintf(", in zone %s (mark 0x%x/0x%x)", z.Name, z.Mark, w.plan.ZoneMarks)
	}
	if out := outOf(w.plan.Out[d.Rule]); len(out) > 0 && len(out) < len(d.Action.Backends) {
		w.note("%s: %s: checks fail, or had failed when the checks ended", d.Rule, units.Plural(len(out), "host is out", "hosts are out")+" ("+hostNames(&d.Action, out)+")")
	}
	w.e.Destination.Rule, s.Rule = &d.Rule, &d.Rule
	s.Does += logged(d)
}

// logged is what a step adds of a rule that logs.
func logged(e *gateway.Entry) string {
	if e.Log == nil {
		return ""
	}
	return fmt.Sprintf("; logged before, at most %s, as %q", e.Log.Rate, e.Log.Prefix)
}

// choice is which of a rule's hosts the kernel chooses, as far as that can be known, and which it may choose; Nobody and
// those that are out where the rule rejects.
func (w *walk) choice(d *gateway.Entry) (first int, among []int) {
	out := w.plan.Out[d.Rule]
	for i := range d.Action.Backends {
		if out == nil || !out[i] {
			among = append(among, i)
		}
	}
	switch {
	case len(among) == 0:
		return nat.Nobody, outOf(out)
	case len(d.Action.Backends) > 1 && d.Action.Balance == nat.BalanceHash:
		seats := d.Action.Seats(out)
		i := seats[gateway.SlotOf(w.src.addr, len(seats))]
		return i, []int{i}
	}
	return among[0], among
}

func outOf(out []bool) (which []int) {
	for i, is := range out {
		if is {
			which = append(which, i)
		}
	}
	return which
}

func hostNames(a *nat.Action, which []int) string {
	names := make([]string, len(which))
	for n, i := range which {
		names[n] = a.Backends[i].String()
	}
	return strings.Join(names, ", ")
}

// oneOf is what several backends may be: a port that they do not have in common is
// between the least and the greatest of theirs.
func (w *walk) oneOf(d *gateway.Entry, among []int) (g Given) {
	g.First, g.Last = 65535, 0
	for _, i := range among {
		b := d.Action.Backends[i]
		port := b.PortOf(w.asked.port, d.Ports)
		g.Addresses = append(g.Addresses, nat.OneAddr(b.Address))
		g.First, g.Last = min(g.First, port), max(g.Last, port)
	}
	if g.First == g.Last {
		g.Port, g.First, g.Last = g.First, 0, 0
	}
	return g
}

func (w *walk) mss(s *Step) {
	s.Does = "MSS of the SYN is at most what the route's MTU takes"
	if w.plan.MSS.Bytes > 0 {
		s.Does = fmt.Sprintf("MSS of the SYN is at most %d bytes", w.plan.MSS.Bytes)
	}
}

// helpers is the chain that gives connections helpers of the tracker.
func (w *walk) helpers(s *Step) {
	if w.e.Untracked {
		return
	}
	for _, h := range w.plan.HelperServices() {
		if h.V4Only && w.src.addr.Is6() || h.Protocol != w.packet.Protocol {
			continue
		}
		helped := w.plan.Inside(w.packet.In) && w.packet.DstPort == h.Port
		for i := range w.plan.Destinations {
			d := w.plan.Destinations[i]
			ports, some := h.AskedFor(&d)
			if d.Protocol, d.Ports = h.Protocol, ports; !helped && some && !d.IsOwn() {
				p := w.now()
				helped = d.Match.Matches(&p)
			}
		}
		if helped {
			s.Does = fmt.Sprintf("helper %s: the connections that this one announces are RELATED to it, and translated as it is; a firewall has to accept these", h.Helper)
			return
		}
	}
}

// forward is the chain of limits, of TTLs and of the fast path.
func (w *walk) forward(s *Step) {
	var does []string
	if n := w.plan.TTL; n > 0 && nat.InNames(w.plan.WAN, w.e.Out) {
		does = append(does, fmt.Sprintf("the %s becomes %d", map[bool]string{true: "hop limit", false: "TTL"}[w.src.addr.Is6()], n))
	}
	if n := w.plan.ConnectionsPerSource; n > 0 && w.plan.Inside(w.packet.In) && !w.e.Untracked {
		does = append(does, fmt.Sprintf("dropped if %s has %d connections already", w.packet.Src, n))
	}
	if slices.Contains(w.plan.Flowtable, w.packet.In) && slices.Contains(w.plan.Flowtable, w.e.Out) && !w.e.Untracked {
		does = append(does, "once answered, the connection goes by the flowtable and comes to no hook after ingress")
	}
	s.Does = strings.Join(does, " · ")
}

// untranslatable is the chain that drops what is invalid to the tracker and a rule would
// have had to translate. Had the destination been translated, an invalid packet would
// have gone elsewhere.
func (w *walk) untranslatable(s *Step) {
	if w.e.Untracked || w.dstTranslated {
		return
	}
	for i := range w.plan.Sources {
		if r := &w.plan.Sources[i]; !r.IsHairpin() && len(w.sourceMisses(r)) == 0 {
			s.Does = fmt.Sprintf("passes; dropped if it were invalid to conntrack, as %s could not translate it", r.Rule)
			return
		}
	}
}

func (w *walk) statelessSource(s *Step) {
	for i := range w.plan.Stateless {
		p := &w.plan.Stateless[i]
		if p.HasInside(w.src.addr) && has(p.Out, w.e.Out) && w.e.Untracked {
			if !w.becomes(&w.src, p.Outward(w.src.addr), p, s) {
				return
			}
			w.e.Source = as(w.src)
			w.e.Source.Rule = &p.Rule
			s.Does = fmt.Sprintf("the source becomes %s, packet by packet", w.src)
			return
		}
	}
}

func (w *walk) source(s *Step) {
	switch {
	case w.e.Untracked:
		return
	case w.srcDone:
		s.Does = "not asked: the source is translated already"
		return
	}
	for i := range w.plan.Sources {
		if r := &w.plan.Sources[i]; len(w.sourceMisses(r)) == 0 {
			does := r.Action
			if s := r.Pairs(); s != nil {
				does.To = nat.AddrRanges{nat.OneAddr(s.Outward(w.src.addr))}
			}
			w.e.Source, w.srcDone = w.give(&does), true
			w.e.Source.Rule, s.Rule = &r.Rule, &r.Rule
			s.Does = "the source becomes " + w.words(w.e.Source, &does)
			if !r.IsHairpin() || r.Original[0].Bits() == 0 { // otherwise it was logged where its destination was translated
				s.Does += logged(r)
			}
			return
		}
	}
	s.Does = fmt.Sprintf("no rule is for what %s sends by %s: the source stays", w.packet.Src, w.e.Out)
}
