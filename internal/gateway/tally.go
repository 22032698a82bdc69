package gateway

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
)

// Tally counts connections by the rules that translated them. It is fed entry by
// entry, and keeps none.
type Tally struct {
	attribution *Attribution
	// rules are by the plan's own references, which are compared faster than names.
	rules map[*Ref]*Usage
	// masquerade are sources of that kind.
	masquerade map[*Ref]bool
	here       map[netip.Addr]bool
	stale      map[netip.Addr]int64
	stranger   int64
	seen       int64
}

// NewTally counts for a plan; here are the host's addresses, by which stale flows are
// known (none: they are not told).
func NewTally(p *Plan, here []netip.Addr) *Tally {
	t := &Tally{
		attribution: Attributor(p), rules: map[*Ref]*Usage{}, masquerade: map[*Ref]bool{},
		here: map[netip.Addr]bool{}, stale: map[netip.Addr]int64{},
	}
	for i := range p.Sources {
		if p.Sources[i].Masquerade {
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
	snat, dnat := e.IsSNAT(), e.IsDNAT()
	if !snat && !dnat {
		return
	}
	source, destination := t.attribution.Attribute(e)
	if source == nil && destination == nil {
		t.stranger++
		return
	}
	if destination != nil {
		t.rule(destination).add(e)
	}
	if source != nil && (destination == nil || *source != *destination) {
		t.rule(source).add(e)
	}
	if to := e.Reply.Dst; t.masquerade[source] && len(t.here) > 0 && !t.here[to] {
		t.stale[to]++
	}
}

func (t *Tally) rule(r *Ref) *Usage {
	u := t.rules[r]
	if u == nil {
		u = &Usage{}
		t.rules[r] = u
	}
	return u
}

func (u *Usage) add(e *conntrack.Entry) {
	u.Flows++
	u.Packets += e.Sent.Packets + e.Received.Packets
	u.Bytes += e.Sent.Bytes + e.Received.Bytes
	if !e.Status.Has(conntrack.SeenReply) {
		u.Unanswered++
	}
}

// Seen is how many entries were counted.
func (t *Tally) Seen() int64 { return t.seen }

// Usage is of each rule; factor is what a sample is scaled by, 1 for a whole table.
func (t *Tally) Usage(factor float64) map[Ref]Usage {
	out := map[Ref]Usage{}
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

// Refs are the rules of the file that a plan has entries for or waits with, in the
// file's order, with what the first entry of each does and how many more it has.
func (p *Plan) Refs() []RuleStatus {
	var all []RuleStatus
	at := map[Ref]int{}
	add := func(r Ref, text string) {
		if i, known := at[r]; known {
			all[i].More++
			return
		}
		at[r] = len(all)
		all = append(all, RuleStatus{Rule: r, Text: text})
	}
	for _, d := range p.Destinations {
		add(d.Rule, d.String())
	}
	for _, hairpin := range []bool{false, true} { // what comes back inside is not what a rule is for
		for _, s := range p.Sources {
			if s.Hairpin.Prefix.IsValid() == hairpin {
				add(s.Rule, s.String())
			}
		}
	}
	for _, s := range p.Stateless {
		add(s.Rule, s.String())
	}
	for _, u := range p.Untracked {
		add(u.Rule, u.String())
	}
	for _, w := range p.Waiting {
		if _, known := at[w.Rule]; !known {
			add(w.Rule, "waits for an address of "+w.Interface)
		}
	}
	SortRules(all)
	return all
}

// SortRules puts rules in the order of the file, those of nat before those of ipv6.
func SortRules(all []RuleStatus) {
	slices.SortStableFunc(all, func(a, b RuleStatus) int {
		return cmp.Or(cmp.Compare(b.Rule.List, a.Rule.List), cmp.Compare(a.Rule.Index, b.Rule.Index))
	})
}

// Interfaces are all that the plan names, each once, in order.
func (p *Plan) Interfaces() []string {
	names := slices.Concat(p.WAN, p.LAN, p.Flowtable)
	for _, s := range p.Sources {
		names = append(names, s.Out...)
	}
	for _, d := range p.Destinations {
		names = append(names, d.In...)
	}
	for _, s := range p.Stateless {
		names = append(names, s.Out...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Busiest are the n rules with most connections, those first that lose some, in the
// order of the file.
func Busiest(rules []RuleStatus, n int) []RuleStatus {
	all := slices.Clone(rules)
	slices.SortStableFunc(all, func(a, b RuleStatus) int {
		return cmp.Or(compareCounts(b.Dropped, a.Dropped), cmp.Compare(b.Flows, a.Flows), compareCounts(b.New, a.New))
	})
	all = all[:min(n, len(all))]
	SortRules(all)
	return all
}

// compareCounts takes what is not known for 0.
func compareCounts(a, b *uint64) int {
	var none uint64
	return cmp.Compare(*cmp.Or(a, &none), *cmp.Or(b, &none))
}
