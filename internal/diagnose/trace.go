package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// mostShown bounds the places, and the flows, that a finding names.
const mostShown = 3

// trace holds a recording's drops of the examined namespace.
type trace struct {
	*snapshot.Drops
	netns uint64
	// ports is nil where it is not known what NAT translates; opened is how many
	// connections a second came about, 0 where that is not known.
	ports  *snapshot.Ports
	opened float64
}

// traceOf is false where nothing was traced, or for no time.
func traceOf(rec *snapshot.Recording) (trace, bool) {
	d := rec.Drops
	t := trace{Drops: d, netns: rec.Last().Netns.Inode, ports: rec.Last().Ports}
	if rec.Flows != nil {
		t.opened = rec.Flows.TotalPerSecond
	}
	return t, d != nil && d.Seconds > 0
}

func (t trace) perSecond(packets uint64) float64 { return float64(packets) / t.Seconds }

func (t trace) inSeconds(packets uint64) string {
	return fmt.Sprintf("in %.1f s (%s/s)", t.Seconds, units.Rate(t.perSecond(packets)))
}

// source returns where drops were counted, for evidence.
func (t trace) source() string { return "skb:kfree_skb, " + t.Source }

// caused are the drops of the namespace with a known cause.
func (t trace) caused(cause string) (packets uint64, source string) {
	for _, c := range t.Causes {
		if c.Netns == t.netns && c.Cause == cause {
			packets, source = packets+c.Packets, c.Source
		}
	}
	return packets, source
}

// place is where packets of one protocol are dropped for one reason, whatever the
// offset in the function.
type place struct{ Function, Reason, Protocol string }

func (p place) String() string {
	name := p.Function
	if p.Reason != "" {
		name += ", " + p.Reason
	}
	if p.Protocol != "" && p.Protocol != "-" {
		name += ", " + p.Protocol
	}
	return name
}

// places sums up the namespace's drops of the reasons that are wanted.
func (t trace) places(want func(function, reason string) bool) map[place]uint64 {
	sums := map[place]uint64{}
	for _, s := range t.Sites {
		if s.Netns == t.netns && want(s.Function, s.Reason) {
			sums[place{s.Function, s.Reason, s.Protocol}] += s.Packets
		}
	}
	return sums
}

// evidence of the wanted drops: the places first, then the flows.
func (t trace) evidence(want func(function, reason string) bool, of []snapshot.DropFlow) []Evidence {
	var e []Evidence
	sums := t.places(want)
	for _, p := range most(sums) {
		e = append(e, Evidence{What: "dropped in " + p.String(), Value: int64(sums[p]), Unit: t.inSeconds(sums[p]), Source: t.source()})
	}
	flows, sampled := talks(of)
	flows = together(flows, sampled)
	for _, f := range most(flows) {
		e = append(e, Evidence{What: "dropped flow " + f.String(), Value: int64(flows[f]),
			Unit: fmt.Sprintf("of %s sampled", units.Count(sampled)), Source: t.sample()})
	}
	return e
}

func (t trace) sample() string {
	if t.FlowSample > 1 {
		return fmt.Sprintf("the first 64 of each place, then 1 in %s drops", units.Count(t.FlowSample))
	}
	return "every drop"
}

// talk is the dropped packets from one address to one service.
type talk struct{ Protocol, From, To string }

func (f talk) String() string { return fmt.Sprintf("%s %s → %s", f.Protocol, f.From, f.To) }

// talks sums up flows, source ports left out, and returns how many drops were sampled.
func talks(flows []snapshot.DropFlow) (sums map[talk]uint64, sampled uint64) {
	sums = map[talk]uint64{}
	for _, f := range flows {
		sums[talk{f.Protocol, f.SourceAddress(), f.Destination}] += f.Packets
		sampled += f.Packets
	}
	return sums, sampled
}

// wanted are the namespace's flows of some drops.
func (t trace) wanted(want func(function, reason string) bool) []snapshot.DropFlow {
	var flows []snapshot.DropFlow
	for _, f := range t.Flows {
		if f.Netns == t.netns && want(f.Function, f.Reason) {
			flows = append(flows, f)
		}
	}
	return flows
}

// scattered is the share of the drops below which not even the greatest talk is informative
// who is concerned.
const scattered = 0.1

// together joins talks that are many and small: those to one service, or those
// from one address, whichever are fewer.
func together(talks map[talk]uint64, sampled uint64) map[talk]uint64 {
	largest, from, to := uint64(0), map[string]int{}, map[string]int{}
	for f, n := range talks {
		largest = max(largest, n)
		from[f.From]++
		to[f.To]++
	}
	if len(talks) <= mostShown || float64(largest) >= scattered*float64(sampled) {
		return talks
	}
	if joined := toAddresses(talks); len(joined) < len(talks) {
		return together(joined, sampled)
	}
	joined := map[talk]uint64{}
	for f, n := range talks {
		if len(to) <= len(from) {
			f.From = several(f.From, to[f.To], "sources")
		} else {
			f.To = several(f.To, from[f.From], "destinations")
		}
		joined[f] += n
	}
	return joined
}

// toAddresses leaves out the ports of the destinations, as where these are of clients.
func toAddresses(talks map[talk]uint64) map[talk]uint64 {
	joined := map[talk]uint64{}
	for f, n := range talks {
		if to, err := netip.ParseAddrPort(f.To); err == nil {
			f.To = to.Addr().String()
		}
		joined[f] += n
	}
	return joined
}

func several(one string, n int, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// most are the keys with the greatest sums, mostShown at most.
func most[K comparable, N int64 | uint64](sums map[K]N) []K {
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b K) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	return keys[:min(len(keys), mostShown)]
}

// byNetfilter wants what conntrack, NAT and rules drop.
func byNetfilter(function, reason string) bool { return siteReason(function, reason) == netfilterDrop }

// drops is the evidence of a trace for a full table: what conntrack dropped, where,
// and whose packets.
func (t *table) drops() []Evidence {
	d, ok := traceOf(t.rec)
	if !ok {
		return nil
	}
	e := d.evidence(byNetfilter, d.wanted(byNetfilter))
	for _, cause := range []string{snapshot.CauseTableFull, snapshot.CauseNotInserted} {
		if n, source := d.caused(cause); n > 0 {
			e = append(e, Evidence{What: "dropped: " + cause, Value: int64(n), Unit: d.inSeconds(n), Source: source})
		}
	}
	return e
}

// seenFull returns the number of packets that the kernel's functions dropped because of
// a full table; 0 where only counters are known.
func (t *table) seenFull() uint64 {
	d, ok := traceOf(t.rec)
	if !ok || d.NAT != "fexit" {
		return 0
	}
	n, _ := d.caused(snapshot.CauseTableFull)
	return n
}

// shownShare is the share of all CPU time from which a kind of work is worth
// naming.
const shownShare = 0.01

// mostShare is all CPUs, and some room for a timer that is fast: what is above was
// not measured, but stands in a damaged bundle.
const mostShare = 1.1

// natWork are the classes of a profile that tracking, NAT and rules make up
// (internal/profile).
var natWork = []string{"conntrack lookup", "conntrack state", "conntrack insert", "conntrack remove", "conntrack events", "NAT setup", "NAT rewrite", "rules", "bridge netfilter"}

// cpuEvidence returns the cost of tracking, NAT and rules, if it is high.
func cpuEvidence(p *snapshot.Profile) []Evidence {
	if p == nil {
		return nil
	}
	samples := map[string]uint64{} // in packet receive and elsewhere
	for _, c := range p.Classes {
		samples[c.Name] += c.Samples
	}
	var e []Evidence
	for _, name := range natWork {
		if share := p.Share(samples[name]); share >= shownShare && share <= mostShare {
			e = append(e, Evidence{What: "CPU time: " + name, Value: round1(100 * share), Unit: "% of all CPUs",
				Source: fmt.Sprintf("profile of %.1f s at %d Hz, %s", p.Seconds, p.Hz, p.Event)})
		}
	}
	return e
}
