package observe

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// Attribution identifies the rules that made the entries of a connection table. It is
// made once for a plan (Attribute) and asked for each entry: it does not search, so
// that 10,000 rules cost no more than ten.
type Attribution struct {
	plan         *gateway.Plan
	destinations portIndex
	sources      sourceIndex
	// facts are set where only what the plan gives to new connections counts.
	facts *gateway.Facts
}

// Attribute indexes a plan, with the leases in force.
func Attribute(p *gateway.Plan) *Attribution {
	p = p.Leased()
	return &Attribution{plan: p, destinations: indexDestinations(p.Destinations), sources: indexSources(p.Sources)}
}

// OfNew restricts it to what a new connection would get on the host in facts: a rule that
// another precedes for the same packets gives nothing, and masquerade gives addresses that
// the interfaces have.
func (a *Attribution) OfNew(facts *gateway.Facts) *Attribution {
	b := *a
	b.facts = facts
	return &b
}

// Of returns the rules that translated the source and the destination of an entry;
// nil where it was not translated, or not by this plan. An entry does not record the
// interfaces: of rules that differ only in these, and give the same, it is the most
// specific one. The references point into the plan.
func (a *Attribution) Of(e *conntrack.Entry) (source, destination *gateway.Ref) {
	if e.IsDNAT() {
		if d := a.destination(e); d != nil {
			destination = &d.Rule
		}
	}
	if e.IsSNAT() && !a.KeepsAddress(e) {
		if s := a.source(e, destination != nil); s != nil {
			source = &s.Rule
		}
	}
	return source, destination
}

// destination is the first entry that matches e and gives what e became.
func (a *Attribution) destination(e *conntrack.Entry) *gateway.Entry {
	first := a.firstDestination(e, func(i int) bool {
		d := &a.plan.Destinations[i]
		return destinationGave(d, e) && (a.facts == nil || i == a.firstDestination(e, func(before int) bool {
			return before == i || precedes(&a.plan.Destinations[before], d)
		}))
	})
	if first == none {
		return nil
	}
	return &a.plan.Destinations[first]
}

// firstDestination is the first entry that matches e and that ok accepts.
func (a *Attribution) firstDestination(e *conntrack.Entry, ok func(int) bool) int {
	p := asked(e)
	return a.destinations.first(p.Dst, p.Protocol, p.DstPort, none, func(i int) bool {
		return a.plan.Destinations[i].MatchesTuple(&p) && ok(i)
	})
}

// precedes reports whether a, which comes before b and matches the same connection, takes it
// by every interface by which b would.
func precedes(a, b *gateway.Entry) bool {
	x, y := a.Beyond(), b.Beyond()
	return !a.IsHairpin() && (a.Local || !b.Local) && x.Covers(&y)
}

// asked is what a destination sees of a connection, given what a source does: the destination as it became.
func asked(e *conntrack.Entry) nat.Packet {
	return nat.Packet{Protocol: e.Orig.Proto, Src: e.Orig.Src, SrcPort: e.Orig.SrcPort, Dst: e.Orig.Dst, DstPort: e.Orig.DstPort}
}

func given(e *conntrack.Entry) nat.Packet {
	p := asked(e)
	p.OriginalDst, p.OriginalPort, p.Dst, p.DstPort = p.Dst, p.DstPort, e.Reply.Src, e.Reply.SrcPort
	return p
}

func destinationGave(d *gateway.Entry, e *conntrack.Entry) bool {
	if s := d.Pairs(); s != nil {
		return e.Reply.Src == s.Inward(e.Orig.Dst)
	}
	if d.Action.Prefix.IsValid() {
		return e.Reply.Src == nat.Replace(e.Orig.Dst, d.Action.Prefix)
	}
	if d.Action.Kind == nat.Redirect { // to whichever address of the host
		return e.Reply.SrcPort == d.Action.Ports.First
	}
	return slices.ContainsFunc(d.Action.Backends, func(b nat.Backend) bool {
		return e.Reply.Src == b.Address && (b.Port == 0 || e.Reply.SrcPort == b.PortOf(e.Orig.DstPort, d.Ports))
	})
}

// source is the first entry that matches e and gives what e became; those of hairpins
// count where a destination of ours was translated.
func (a *Attribution) source(e *conntrack.Entry, sentBack bool) *gateway.Entry {
	gave := func(i int) bool {
		s := &a.plan.Sources[i]
		if gave := sourceGave(s, e); !gave || a.facts == nil {
			return gave
		}
		return (s.Action.Kind != nat.Masquerade || a.facts.Masquerades(s.Out, e.Reply.Dst)) &&
			i == a.firstSource(e, sentBack, func(before int) bool { return before == i || precedes(&a.plan.Sources[before], s) })
	}
	// Any masquerade may have given an address: one that asks for what the entry does not show comes last.
	vague := func(i int) bool { s := &a.plan.Sources[i]; return s.Action.Kind == nat.Masquerade && !isCertain(s) }
	first := a.firstSource(e, sentBack, func(i int) bool { return !vague(i) && gave(i) })
	if first == none {
		first = a.firstSource(e, sentBack, func(i int) bool { return vague(i) && gave(i) })
	}
	if first == none {
		return nil
	}
	return &a.plan.Sources[first]
}

// firstSource is the first entry that matches e and that ok accepts.
func (a *Attribution) firstSource(e *conntrack.Entry, sentBack bool, ok func(int) bool) int {
	p := given(e)
	p.Zone = a.zoneOf(e)
	return a.sources.first(&e.Orig, func(i int) bool {
		s := &a.plan.Sources[i]
		return (sentBack || !s.IsHairpin()) && s.MatchesTuple(&p) && ok(i)
	})
}

func sourceGave(s *gateway.Entry, e *conntrack.Entry) bool {
	switch to := e.Reply.Dst; {
	case s.Action.Kind == nat.Masquerade:
		return true // whichever address the interface had
	case s.Action.Pairs != "":
		return to == s.Pairs().Outward(e.Orig.Src)
	case s.Action.Prefix.IsValid():
		return to == nat.Replace(e.Orig.Src, s.Action.Prefix)
	default:
		return s.Action.To.Contains(to)
	}
}

// Tally counts connections by the rules that translated them. It is fed entry by
// entry, and keeps none.
type Tally struct {
	attribution *Attribution
	// rules are by the plan's own references, which are compared faster than names.
	rules map[*gateway.Ref]*Usage
	// masquerade are sources of that kind.
	masquerade map[*gateway.Ref]bool
	// hosts are connections of each of several hosts, by the rule that chose it.
	hosts    map[*gateway.Ref]map[netip.AddrPort]int64
	here     map[netip.Addr]bool
	stale    map[netip.Addr]int64
	stranger int64
	related  int64
	seen     int64
}

// NewTally counts for a plan; here are the host's addresses, by which stale flows are
// recognised (none: they are not reported).
func NewTally(p *gateway.Plan, here []netip.Addr) *Tally {
	t := &Tally{
		attribution: Attribute(p), rules: map[*gateway.Ref]*Usage{}, masquerade: map[*gateway.Ref]bool{},
		hosts: map[*gateway.Ref]map[netip.AddrPort]int64{}, here: map[netip.Addr]bool{}, stale: map[netip.Addr]int64{},
	}
	for i := range p.Destinations {
		if d := &p.Destinations[i]; len(d.Action.Backends) > 1 {
			t.hosts[&d.Rule] = map[netip.AddrPort]int64{}
			for _, b := range d.Action.Backends {
				t.hosts[&d.Rule][netip.AddrPortFrom(b.Address, b.Port)] = 0
			}
		}
	}
	for i := range p.Sources {
		if p.Sources[i].Action.Kind == nat.Masquerade {
			t.masquerade[&p.Sources[i].Rule] = true
		}
	}
	for _, a := range here {
		t.here[a] = true
	}
	return t
}

// Add counts an entry.
func (t *Tally) Add(e *conntrack.Entry) {
	t.seen++
	snat, dnat := e.IsSNAT() && !t.attribution.KeepsAddress(e), e.IsDNAT()
	if !snat && !dnat {
		return
	}
	source, destination := t.attribution.Of(e)
	switch {
	case source != nil || destination != nil:
	case e.Status.Has(conntrack.Expected) && len(t.attribution.plan.Helpers) > 0:
		t.related++
		return
	case !dnat && t.here[e.Orig.Src] && t.here[e.Reply.Dst] && t.attribution.plan.Marked(e.Mark) >= 0:
		return // the gateway's own, by another WAN than the one whose address its program has
	default:
		t.stranger++
		return
	}
	if destination != nil {
		add(t.rule(destination), e)
		t.addHost(destination, e)
	}
	if source != nil && (destination == nil || *source != *destination) {
		add(t.rule(source), e)
	}
	if to := e.Reply.Dst; t.masquerade[source] && len(t.here) > 0 && !t.here[to] {
		t.stale[to]++
	}
}

// addHost counts it for the host that it became, which has a port or none.
func (t *Tally) addHost(r *gateway.Ref, e *conntrack.Entry) {
	hosts := t.hosts[r]
	for _, port := range []uint16{e.Reply.SrcPort, 0} {
		at := netip.AddrPortFrom(e.Reply.Src, port)
		if n, ok := hosts[at]; ok {
			hosts[at] = n + 1
			return
		}
	}
}

// Hosts are the connections of each host that rules choose from, by Host.Host; factor is as for Usage.
func (t *Tally) Hosts(factor float64) map[gateway.Ref]map[string]int64 {
	out := map[gateway.Ref]map[string]int64{}
	for ref, hosts := range t.hosts {
		if out[*ref] == nil {
			out[*ref] = map[string]int64{}
		}
		for at, n := range hosts {
			out[*ref][nat.Backend{Address: at.Addr(), Port: at.Port()}.String()] += scaled(n, factor)
		}
	}
	return out
}

func (t *Tally) rule(r *gateway.Ref) *Usage {
	u := t.rules[r]
	if u == nil {
		u = &Usage{}
		t.rules[r] = u
	}
	return u
}

func add(u *Usage, e *conntrack.Entry) {
	u.Flows++
	u.Packets += e.Sent.Packets + e.Received.Packets
	u.Bytes += e.Sent.Bytes + e.Received.Bytes
	if !e.Status.Has(conntrack.SeenReply) {
		u.Unanswered++
	}
}

// Rules returns the attribution of entries to rules.
func (t *Tally) Rules() *Attribution { return t.attribution }

// Seen is how many entries were counted.
func (t *Tally) Seen() int64 { return t.seen }

// Usage is of each rule; factor is what a sample is scaled by, 1 for a whole table.
func (t *Tally) Usage(factor float64) map[gateway.Ref]Usage {
	out := map[gateway.Ref]Usage{}
	for ref, u := range t.rules {
		sum := out[*ref]
		sum.Flows += scaled(u.Flows, factor)
		sum.Packets += scaled(u.Packets, factor)
		sum.Bytes += scaled(u.Bytes, factor)
		sum.Unanswered += scaled(u.Unanswered, factor)
		out[*ref] = sum
	}
	return out
}

// Strangers are flows that none of the plan's rules translated.
func (t *Tally) Strangers(factor float64) int64 { return scaled(t.stranger, factor) }

// Related are flows that a helper of the tracker let in and translated.
func (t *Tally) Related(factor float64) int64 { return scaled(t.related, factor) }

// Stale are masqueraded flows whose address the host no longer has, and those
// addresses in order.
func (t *Tally) Stale(factor float64) (flows int64, addresses []netip.Addr) {
	for a, n := range t.stale {
		flows += n
		addresses = append(addresses, a)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return scaled(flows, factor), addresses
}

func scaled[T int64 | uint64](n T, factor float64) T { return T(float64(n) * max(1, factor)) }
