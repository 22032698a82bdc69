package plan

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// size works out the connection table.
func (m *maker) size() error {
	arriving := capacity.Steady([]capacity.Class{{PerSecond: m.arriving, LifetimeSeconds: 1}}, 0)
	now := m.now()
	s := capacity.Size(capacity.Need{Table: m.table, Held: m.held, Arriving: arriving})
	entries := s.Entries
	expected := m.number("entries", float64(entries), "entries", "held + arriving",
		Input{"held", float64(m.held), "entries", "the states that stay"}, Input{"arriving", float64(arriving), "entries", "the states that follow from the rate"})
	headroom := Input{"headroom", 1.25, "", constant}
	with := capacity.WithHeadroom(expected)
	m.number("entries with headroom", float64(with), "entries", "ceil(entries * headroom)", Input{"entries", expected, "entries", "above"}, headroom)
	if with > mostEntries {
		return fmt.Errorf("%s entries with a quarter of headroom: one kernel tracks at most %s (nf_conntrack_max); spread the load over more gateways",
			units.Count(with), units.Count(int64(mostEntries)))
	}
	if s.Max == 0 {
		return fmt.Errorf("a quarter of the memory, %s, does not hold a table of %s entries, the smallest that is planned", units.Bytes(capacity.Budget(m.table.MemoryBytes)), units.Count(int64(capacity.Step)))
	}
	// The buckets stay where the limit does and chains are short with what is expected: a limit that is never reached
	// needs none.
	if s.Max == now.Max && now.Buckets > 0 && capacity.ChainLength(with+m.table.OtherEntries, now.Buckets) <= capacity.LongChain {
		s.Buckets, s.StallSeconds = now.Buckets, 0
	}
	t := &m.p.Table
	*t = Table{NowIsDefault: t.NowIsDefault, Entries: entries, Max: min(s.Max, mostEntries), MaxNow: now.Max, Buckets: s.Buckets, BucketsNow: now.Buckets,
		MemoryBound: s.MemoryBound, StallSeconds: s.StallSeconds, SizeSource: m.table.Cost.Source}
	if t.Buckets == 0 { // nothing is known of the machine's own: a bucket for each entry
		t.Buckets = t.Max
	}
	m.explainLimits()
	m.chains()
	m.memory()
	if s.MemoryBound && with > t.Max {
		m.note("a quarter of the memory (%s) is the bound of the table: it holds %s entries, and %s are expected with headroom", units.Bytes(capacity.Budget(m.table.MemoryBytes)),
			units.Count(t.Max), units.Count(with))
	}
	return nil
}

// now are the limits of the machine, or those that its kernel gives itself with its memory.
func (m *maker) now() capacity.Table {
	if m.table.Max == 0 && m.table.Buckets == 0 {
		if buckets, limit, known := capacity.DefaultTable(m.r.On.Kernel, m.r.On.Memory); known {
			m.table.Buckets, m.table.Max = buckets, limit
			m.p.Table.NowIsDefault = true
		}
	}
	return m.table
}

// explainLimits says where limit and buckets are from.
func (m *maker) explainLimits() {
	t := &m.p.Table
	present := Input{"present", float64(t.MaxNow), "entries", "nf_conntrack_max"}
	switch {
	case t.Max == t.MaxNow:
		m.number("nf_conntrack_max", float64(t.Max), "entries", "present", present)
	case t.MemoryBound:
		m.number("nf_conntrack_max", float64(t.Max), "entries", "max(floor(budget / (entry + bucket) / step) * step, present)",
			Input{"budget", float64(capacity.Budget(m.table.MemoryBytes)), "B", "a quarter of the memory"}, m.entryBytes(), m.bucketBytes(),
			Input{"step", capacity.Step, "entries", constant}, present)
	default:
		with := capacity.WithHeadroom(float64(t.Entries))
		m.number("nf_conntrack_max", float64(t.Max), "entries", "max(min(ceil(needed / step) * step, most), present)", Input{"needed", float64(with), "entries", "entries with headroom"},
			Input{"step", capacity.Step, "entries", constant}, Input{"most", mostEntries, "entries", "the kernel"}, present)
	}
	buckets := Input{"present", float64(t.BucketsNow), "buckets", "nf_conntrack_buckets"}
	if t.Buckets == t.BucketsNow {
		m.number("nf_conntrack_buckets", float64(t.Buckets), "buckets", "present", buckets)
		return
	}
	step := Input{"step", capacity.BucketStep, "buckets", "a page"}
	limit := Input{"limit", float64(t.Max), "entries", "nf_conntrack_max"}
	if t.BucketsNow == 0 {
		m.number("nf_conntrack_buckets", float64(t.Buckets), "buckets", "limit", limit)
		return
	}
	m.number("nf_conntrack_buckets", float64(t.Buckets), "buckets", "max(ceil(limit / step) * step, present)", limit, step, buckets)
}

// chains are how long they become, and what that costs.
func (m *maker) chains() {
	t := &m.p.Table
	others := m.table.OtherEntries
	mean := func(name string, entries int64) float64 {
		length := capacity.ChainLength(entries+others, t.Buckets)
		return m.number(name, length, "entries", "2 * (entries + others) / buckets", Input{"entries", float64(entries), "entries", "above"},
			Input{"others", float64(others), "entries", "other network namespaces, by the slab"}, Input{"buckets", float64(t.Buckets), "buckets", "nf_conntrack_buckets"})
	}
	t.ChainLength, t.FullChainLength = mean("mean hash chain", min(t.Entries, t.Max)), mean("mean hash chain, table full", t.Max)
	caps, why := m.release.Caps()
	t.CapUnsure = why
	for _, c := range caps {
		t.Losses = append(t.Losses, Loss{Cap: c, Loss: c.Loss(t.ChainLength), Full: c.Loss(t.FullChainLength),
			Alone: c.Loss(capacity.ChainLength(t.Max+others, t.BucketsNow))})
	}
}

func (m *maker) entryBytes() Input {
	return Input{"entry", float64(m.table.Cost.EntryBytes), "B", m.table.Cost.Source}
}
func (m *maker) bucketBytes() Input {
	return Input{"bucket", float64(m.table.Cost.BucketBytes), "B", "a pointer"}
}

// memory is that of the table.
func (m *maker) memory() {
	t, cost := &m.p.Table, m.table.Cost
	t.ObjectBytes, t.ExtensionBytes, t.BucketBytes = int64(cost.EntryBytes-cost.ExtensionBytes), int64(cost.ExtensionBytes), int64(cost.BucketBytes)
	bytes := func(name string, entries int64) int64 {
		n := cost.TableBytes(entries, t.Buckets)
		m.number(name, float64(n), "B", "entries * entry + buckets * bucket", Input{"entries", float64(entries), "entries", "above"}, m.entryBytes(),
			Input{"buckets", float64(t.Buckets), "buckets", "nf_conntrack_buckets"}, m.bucketBytes())
		return n
	}
	t.Bytes, t.FullBytes = bytes("memory of the table", min(t.Entries, t.Max)), bytes("memory of the table, full", t.Max)
	if cost.Source == "assumed" {
		m.note("the size of an entry is assumed by the kernel's version (%d B with its extension); on the machine, 'natkit plan' reads it from /proc/slabinfo or BTF", cost.EntryBytes)
	}
}

// ports are those of the NAT, and the rates at which they come again.
func (m *maker) ports() {
	p, l := &m.p.Ports, m.load
	*p = Ports{PerAddress: int64(m.r.Ports.Len()), Addresses: m.r.Addresses, Destinations: m.r.Destinations}
	hold := m.portHold()
	open, ports := m.open(), Input{"ports", float64(p.PerAddress), "ports", "range of the NAT"}
	destinations := Input{"destinations", float64(p.Destinations), "", given}
	if l.Observed {
		entries := Input{"entries", float64(m.p.Table.Entries), "entries", "above"}
		p.Needed = capacity.PortsFor(m.p.Table.Entries, 0, 0, p.Destinations)
		m.number("ports toward one destination", float64(p.Needed), "ports", "ceil(entries / destinations)", entries, destinations)
		m.note("as if all connections were translated and went to %s; 'natkit ports' shows what each destination takes", units.Plural(p.Destinations, "destination", "destinations"))
	} else {
		p.Needed = capacity.PortsFor(l.Open, l.PerSecond, hold.Value, p.Destinations)
		m.number("ports toward one destination", float64(p.Needed), "ports", "ceil((open + rate * timeout) / destinations)", open, m.rate(), hold, destinations)
	}
	p.AddressesNeeded = capacity.AddressesFor(p.Needed, p.PerAddress)
	m.number("SNAT addresses", float64(p.AddressesNeeded), "addresses", "max(1, ceil(needed / ports))", Input{"needed", float64(p.Needed), "ports", "above"}, ports)

	if own := hold.Value + l.DurationSeconds; l.DurationSeconds > 0 {
		m.wrap("the NAT's entry, "+units.Seconds(own)+" from its first packet", own)
	} else {
		m.wrap("the NAT's entry, after its connection's end", own)
	}
	if l.Protocol == TCP {
		m.wrap("an IPVS session after FIN", snapshot.IPVSTimeWait)
		m.wrap("TIME_WAIT of a server, Linux 4.1 and later", capacity.TimeWaitLength.Seconds())
		m.wrap("TIME_WAIT of a server, Linux up to 4.0, many closings", capacity.LongestTimeWait(capacity.TimeWaitWheel, math.Inf(1)).Seconds())
		m.wrap("TIME_WAIT of a server, 3.10.0-1127 and its successors, many closings", capacity.LongestTimeWait(capacity.TimeWaitWheelRearm, math.Inf(1)).Seconds())
	}
	for _, s := range m.r.Holds {
		m.wrap("as given", s)
	}
	if have := p.Addresses; have < p.AddressesNeeded {
		m.note("%s: %s toward one destination need %s", units.Plural(have, "SNAT address", "SNAT addresses"), units.Plural(p.Needed, "port", "ports"), units.Count(p.AddressesNeeded))
	}
}

// portHold is for how long a port is held after its connection has ended.
func (m *maker) portHold() Input {
	switch {
	case m.load.Protocol == TCP:
		return m.timeout(capacity.TimeWaitClass)
	case m.load.DurationSeconds > streamAfter || m.load.PerSecond == 0:
		return m.timeout("udp/stream")
	}
	return m.timeout("udp/unreplied")
}

func (m *maker) wrap(by string, seconds float64) {
	p := &m.p.Ports
	all := capacity.Tuples(p.PerAddress, p.Addresses, p.Destinations)
	rate := capacity.Wrap(all, seconds)
	if math.IsInf(rate, 0) {
		return
	}
	m.number("ports come again from, held by "+by, rate, "/s", "ports * addresses * destinations / hold",
		Input{"ports", float64(p.PerAddress), "ports", "range of the NAT"}, Input{"addresses", float64(p.Addresses), "", given},
		Input{"destinations", float64(p.Destinations), "", given}, Input{"hold", seconds, "s", by})
	p.Wraps = append(p.Wraps, Wrap{By: by, HoldSeconds: seconds, PerSecond: rate, Reached: m.load.PerSecond >= rate})
}
