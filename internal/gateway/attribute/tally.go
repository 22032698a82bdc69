package attribute

import (
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/status"
)

// Tally counts connections by the rules that translated them. It is fed entry by
// entry, and keeps none.
type Tally struct {
	attribution *Rules
	// rules are by the plan's own references, which are compared faster than names.
	rules map[*gateway.Ref]*status.Usage
	// masquerade are sources of that kind.
	masquerade map[*gateway.Ref]bool
	here       map[netip.Addr]bool
	stale      map[netip.Addr]int64
	stranger   int64
	seen       int64
}

// NewTally counts for a plan; here are the host's addresses, by which stale flows are
// known (none: they are not told).
func NewTally(p *gateway.Plan, here []netip.Addr) *Tally {
	t := &Tally{
		attribution: New(p), rules: map[*gateway.Ref]*status.Usage{}, masquerade: map[*gateway.Ref]bool{},
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
	source, destination := t.attribution.Of(e)
	if source == nil && destination == nil {
		t.stranger++
		return
	}
	if destination != nil {
		add(t.rule(destination), e)
	}
	if source != nil && (destination == nil || *source != *destination) {
		add(t.rule(source), e)
	}
	if to := e.Reply.Dst; t.masquerade[source] && len(t.here) > 0 && !t.here[to] {
		t.stale[to]++
	}
}

func (t *Tally) rule(r *gateway.Ref) *status.Usage {
	u := t.rules[r]
	if u == nil {
		u = &status.Usage{}
		t.rules[r] = u
	}
	return u
}

func add(u *status.Usage, e *conntrack.Entry) {
	u.Flows++
	u.Packets += e.Sent.Packets + e.Received.Packets
	u.Bytes += e.Sent.Bytes + e.Received.Bytes
	if !e.Status.Has(conntrack.SeenReply) {
		u.Unanswered++
	}
}

// Rules tell which rules made entries, or are for them.
func (t *Tally) Rules() *Rules { return t.attribution }

// Seen is how many entries were counted.
func (t *Tally) Seen() int64 { return t.seen }

// Usage is of each rule; factor is what a sample is scaled by, 1 for a whole table.
func (t *Tally) Usage(factor float64) map[gateway.Ref]status.Usage {
	out := map[gateway.Ref]status.Usage{}
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
