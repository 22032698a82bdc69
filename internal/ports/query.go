package ports

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
)

// Query is what Ports is to tell, and what it needs to know besides the entries.
type Query struct {
	// Complete is whether the collector saw the whole table; else Entries is how many
	// the table has, 0 where that is not known.
	Complete bool
	Entries  int64
	// Rules say which range a pool has; nil takes the kernel's own.
	Rules *snapshot.NATRules
	// Release is the kernel's, by which it looks for free ports; empty is a new one.
	Release string
	// Before is the collector of an earlier dump, so many Seconds before; nil where
	// there was none.
	Before  *Collector
	Seconds float64
	// Top bounds the pools that are returned, 0 for all; Users the sources of each.
	Top, Users int
	// Alternatives asks what other rules would change in pressed pools.
	Alternatives bool
	// Address and Protocol choose pools; not valid and 0 mean all.
	Address  netip.Addr
	Protocol uint8
	// Each gets every pool, the fullest first, with what is used of it, before Top bounds
	// them; nil for none.
	Each func(*snapshot.PortPool)

	index ruleIndex
}

// pressed bounds the pools whose chance is computed, of those with the largest part
// of the range in use: it takes half a millisecond each.
const pressed = 512

// row is a pool, or a share of one, on its way out.
type row struct {
	snapshot.PortPool
	key   key
	pool  *pool
	share share
}

// Ports ends the dump and tells the pools, worst first.
func (c *Collector) Ports(q Query) *snapshot.Ports {
	c.End()
	q.index = indexRules(q.rules())
	if q.Before != nil {
		q.Before.End()
	}
	out := &snapshot.Ports{
		Sampled: c.seen, Complete: q.Complete, Probing: Probing(q.Release), Evicts: Evicts(q.Release),
		Translated: c.translated, LeftOut: c.leftOut, Pools: []snapshot.PortPool{},
	}
	if q.comparable() {
		out.Seconds = q.Seconds
	}
	rows := c.fullest(&q)
	out.Total = int64(len(rows))
	if q.Each != nil {
		for i := range rows {
			q.Each(&rows[i].PortPool)
		}
	}
	if q.Top > 0 {
		rows = rows[:min(len(rows), max(q.Top, pressed))]
	}
	f := &filler{Collector: c, q: &q, out: out}
	for i := range rows {
		f.fill(&rows[i], i < pressed)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.Fails, a.Fails), cmp.Compare(b.FailsIfTaken, a.FailsIfTaken))
	})
	if q.Top > 0 {
		rows = rows[:min(len(rows), q.Top)]
	}
	for i := range rows {
		out.Pools = append(out.Pools, rows[i].PortPool)
	}
	return out
}

func (q *Query) comparable() bool { return q.Before != nil && q.Seconds > 0 && q.Complete }

// fullest are the pools with what is used of them, the fullest first.
func (c *Collector) fullest(q *Query) []row {
	var rows []row
	for k, p := range c.pools {
		if !c.given[k.addr] || q.Address.IsValid() && q.Address != k.addr || q.Protocol != 0 && q.Protocol != k.proto {
			continue
		}
		rows = append(rows, c.count(q, k, p)...)
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(b.Used, a.Used), cmp.Compare(a.Address, b.Address),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.FirstPort, b.FirstPort))
	})
	return rows
}

// count makes the rows of one pool.
func (c *Collector) count(q *Query, k key, p *pool) []row {
	var rows []row
	for _, s := range q.shares(k, p, c.names) {
		r := row{key: k, share: s, pool: p}
		r.PortPool = snapshot.PortPool{
			Address: k.addr.String(), Protocol: conntrack.ProtocolName(k.proto), Destination: k.destination(), Zone: k.zone,
			FirstPort: s.First, LastPort: s.Last, RangeSource: s.from, Class: s.class, Rule: s.rule, Draws: s.draws,
			Used: q.scaled(c, p.count(s.Range, 0)), TimeWait: q.scaled(c, p.count(s.Range, inTimeWait)),
			ClientClosed: q.scaled(c, p.count(s.Range, isClientClosed)),
			Local:        q.scaled(c, p.count(s.Range, isLocal)), SecondsLeft: Never, Users: []snapshot.Talker{},
		}
		size := int64(s.Size())
		r.Used, r.TimeWait, r.Local = min(r.Used, size), min(r.TimeWait, size), min(r.Local, size)
		r.ClientClosed = min(r.ClientClosed, r.TimeWait)
		r.Share = float64(r.Used) / float64(size)
		rows = append(rows, r)
	}
	return rows
}

func (k *key) destination() string {
	if isICMP(k.proto) {
		return k.remote.String()
	}
	return netip.AddrPortFrom(k.remote, k.remotePort).String()
}

// scaled makes a number of the sample one of the table.
func (q *Query) scaled(c *Collector, n int) int64 {
	if q.Complete || c.seen == 0 || q.Entries <= c.seen {
		return int64(n)
	}
	return int64(float64(n) * float64(q.Entries) / float64(c.seen))
}
