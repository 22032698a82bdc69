package ports

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// DefaultMemory bounds a Collector where Options do not.
const DefaultMemory = 64 << 20

// Options are of a Collector.
type Options struct {
	// MemoryBytes bounds the pools, about; 0 means DefaultMemory. Beyond it the smallest pools
	// are evicted: those short of ports are among the first to appear in a dump, whose order is
	// random.
	MemoryBytes int64
	// Now is the time of the dump, to compute ages; zero if unknown.
	Now time.Time
	// Addresses are known to be given by NAT; others become known by a translated entry.
	Addresses []netip.Addr
}

// youngSeconds is the age up to which an entry counts for the rate.
const youngSeconds = 10

// Collector groups the entries of one dump by what may not share a port.
type Collector struct {
	o     Options
	pools map[key]*pool
	// given are the addresses that some entry's source was translated to.
	given map[netip.Addr]bool
	names *addresses
	// waiting entries are not translated: they count only if NAT gives their address.
	waiting, inbound []waiting
	bytes            int64
	seen, translated int64
	// aged of the ported entries have a known age.
	aged, ported int64
	// leftOut counts evictions of pools.
	leftOut int64
	ended   bool
}

// waiting is a port whose pool may not be of interest.
type waiting struct {
	key
	taken
}

// waitingBytes is the size of one.
const waitingBytes = 72

// NewCollector makes a Collector for one dump.
func NewCollector(o Options) *Collector {
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = DefaultMemory
	}
	c := &Collector{o: o, pools: map[key]*pool{}, given: map[netip.Addr]bool{}, names: newAddresses()}
	for _, a := range o.Addresses {
		c.given[a] = true
	}
	return c
}

// Add takes an entry; it keeps nothing of it.
func (c *Collector) Add(e *conntrack.Entry) {
	c.seen++
	if !nat.HasPorts(e.Orig.Proto) && !nat.IsICMP(e.Orig.Proto) {
		return
	}
	k, t := outward(e)
	if e.Reply.Dst != e.Orig.Src || t.marks&isMoved != 0 {
		c.translated++
		c.given[k.addr] = true
		c.putFrom(e.Orig.Src, k, c.timed(t, e))
	} else {
		t.marks |= isLocal
		if t = c.timed(t, e); c.given[k.addr] {
			c.putFrom(k.addr, k, t)
		} else {
			c.wait(&c.waiting, k, t)
		}
	}
	// The kernel compares tuples of either direction (nf_conntrack_tuple_taken).
	if c.given[e.Orig.Dst] && !nat.IsICMP(e.Orig.Proto) {
		c.wait(&c.inbound, inward(e), taken{port: e.Orig.DstPort, marks: isInbound})
	}
}

// outward is the pool of the entry's answers, and what it takes in it.
func outward(e *conntrack.Entry) (key, taken) {
	r := &e.Reply
	k := key{addr: r.Dst, remote: r.Src, remotePort: r.SrcPort, zone: e.ReplyZone, proto: r.Proto}
	t := taken{port: r.DstPort}
	before := e.Orig.SrcPort
	if nat.IsICMP(r.Proto) {
		k.remotePort, t.port, before = 0, r.ICMPID, e.Orig.ICMPID
	}
	if t.port != before {
		t.marks |= isMoved
	}
	if r.Proto == unix.IPPROTO_TCP {
		t.marks |= closed(e)
	}
	return k, t
}

// inward is the pool of the connection's own direction.
func inward(e *conntrack.Entry) key {
	o := &e.Orig
	return key{addr: o.Dst, remote: o.Src, remotePort: o.SrcPort, zone: e.Zone, proto: o.Proto}
}

// closed returns the marks of a port by the end of its TCP connection.
func closed(e *conntrack.Entry) (m marks) {
	if e.TCPState == conntrack.TCPTimeWait {
		m |= inTimeWait
		if e.ClientClosed {
			m |= isClientClosed
		}
	}
	// IPS_SRC_NAT is not in texts, but it follows from the tuples.
	if e.TCPState >= conntrack.TCPTimeWait && e.IsSNAT() &&
		e.Status&(conntrack.FixedTimeout|conntrack.Dying|conntrack.Offload|conntrack.HWOffload) == 0 {
		m |= isEvictable
	}
	return m
}

// timed adds the age.
func (c *Collector) timed(t taken, e *conntrack.Entry) taken {
	c.ported++
	if age, ok := c.age(e); ok {
		c.aged++
		if age <= youngSeconds {
			t.marks |= isYoung
		}
	}
	return t
}

// age in seconds; false if the entry has none.
func (c *Collector) age(e *conntrack.Entry) (float64, bool) {
	switch {
	case e.Fields.Has(conntrack.HasDeltaTime):
		return float64(e.DeltaTime), true
	case e.Start != 0 && !c.o.Now.IsZero():
		return c.o.Now.Sub(time.Unix(0, int64(e.Start))).Seconds(), true
	}
	return 0, false
}

// putFrom is put with the source of the connection.
func (c *Collector) putFrom(source netip.Addr, k key, t taken) {
	t.source = c.names.number(source)
	c.put(k, t)
}

func (c *Collector) put(k key, t taken) {
	p := c.pools[k]
	if p == nil {
		p = &pool{late: c.leftOut > 0}
		c.pools[k] = p
		c.bytes += p.bytes()
	}
	before := p.bytes()
	p.add(t)
	c.bytes += p.bytes() - before
	if c.held() > c.o.MemoryBytes {
		c.shrink()
	}
}

// held is the memory in use, about.
func (c *Collector) held() int64 {
	return c.bytes + int64(len(c.names.all))*addressBytes + int64(cap(c.waiting)+cap(c.inbound))*waitingBytes
}

// wait keeps a port until it is known whether it matters. Those without room are not counted.
func (c *Collector) wait(list *[]waiting, k key, t taken) {
	if int64(len(*list)+1)*waitingBytes <= c.o.MemoryBytes/8 {
		*list = append(*list, waiting{k, t})
	}
}

// shrink evicts the smallest pools, until a quarter of the memory is free.
func (c *Collector) shrink() {
	for least := 1; c.held() > c.o.MemoryBytes/4*3 && len(c.pools) > 0 && least < numbers; least *= 2 {
		for k, p := range c.pools {
			if p.size() <= least {
				c.bytes -= p.bytes()
				delete(c.pools, k)
				c.leftOut++
			}
		}
	}
}

// End ends the dump. It may be called more than once.
func (c *Collector) End() {
	if c.ended {
		return
	}
	c.ended = true
	for _, w := range c.waiting { // untranslated: the pool's address is the source
		if c.given[w.addr] {
			c.putFrom(w.addr, w.key, w.taken)
		}
	}
	for _, w := range c.inbound {
		if c.pools[w.key] != nil {
			c.put(w.key, w.taken)
		}
	}
	c.waiting, c.inbound = nil, nil
	for _, p := range c.pools {
		p.tidy()
	}
}

// Translated returns the number of entries with a translated source.
func (c *Collector) Translated() int64 { return c.translated }

// Seen returns how many ports of each address were collected so far.
func (c *Collector) Seen() map[netip.Addr]int {
	seen := map[netip.Addr]int{}
	for k, p := range c.pools {
		seen[k.addr] += p.size()
	}
	return seen
}

// Query selects what Ports returns, and has what it needs besides the entries.
type Query struct {
	// Complete is set if the collector saw the whole table; else Entries is its size, 0 if
	// unknown.
	Complete bool
	Entries  int64
	// Rules determine the range of a pool; nil: the kernel's own.
	Rules *snapshot.NATRules
	// Release of the kernel, which determines its search for free ports; empty is a new one.
	Release string
	// Before is the collector of a dump Seconds earlier; nil if there was none.
	Before  *Collector
	Seconds float64
	// Top bounds the pools that are returned, 0 for all; Users the sources of each.
	Top, Users int
	// Alternatives asks what other rules would change in pressed pools.
	Alternatives bool
	// Address and Protocol choose pools; not valid and 0 mean all.
	Address  netip.Addr
	Protocol uint8
	// Each gets every pool with its use, the fullest first, not bounded by Top.
	Each func(*snapshot.PortPool)

	index ruleIndex
}

// pressed bounds the fullest pools whose chance is computed, in half a millisecond each.
const pressed = 512

// row is a pool, or a share of one, on its way out.
type row struct {
	snapshot.PortPool
	key   key
	pool  *pool
	share share
}

// Ports ends the dump and returns the pools, worst first.
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
	slices.SortFunc(rows, byPressure)
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
	slices.SortFunc(rows, byPressure)
	return rows
}

func byPressure(a, b row) int { return a.Compare(&b.PortPool) }

// count makes the rows of one pool.
func (c *Collector) count(q *Query, k key, p *pool) []row {
	var rows []row
	for _, s := range q.shares(k, p, c.names) {
		r := row{key: k, share: s, pool: p}
		r.PortPool = snapshot.PortPool{
			Address: k.addr.String(), Protocol: nat.ProtocolName(k.proto), Destination: k.destination(), Zone: k.zone,
			FirstPort: s.First, LastPort: s.Last, RangeSource: s.from, Class: s.class, Rule: s.rule, Draws: s.draws,
			Used: q.scaled(c, p.count(s.Ports, 0)), TimeWait: q.scaled(c, p.count(s.Ports, inTimeWait)),
			ClientClosed: q.scaled(c, p.count(s.Ports, isClientClosed)),
			Local:        q.scaled(c, p.count(s.Ports, isLocal)), SecondsLeft: Never, Users: []snapshot.Talker{},
		}
		size := int64(s.Len())
		r.Used, r.TimeWait, r.Local = min(r.Used, size), min(r.TimeWait, size), min(r.Local, size)
		r.ClientClosed = min(r.ClientClosed, r.TimeWait)
		r.Share = float64(r.Used) / float64(size)
		rows = append(rows, r)
	}
	return rows
}

func (k *key) destination() string {
	if nat.IsICMP(k.proto) {
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

// Socket is one of this machine.
type Socket struct {
	Proto  uint8
	Local  netip.AddrPort
	Remote netip.AddrPort
}

// SharedWith returns the addresses of pools that sockets use, too. Sockets on all addresses count
// with each.
func SharedWith(pools []snapshot.PortPool, sockets []Socket) []snapshot.SharedAddress {
	type place struct{ address, protocol string }
	shared := map[place]*snapshot.SharedAddress{}
	for i := range pools {
		p := place{pools[i].Address, pools[i].Protocol}
		shared[p] = &snapshot.SharedAddress{Address: p.address, Protocol: p.protocol}
	}
	wild := map[string]int64{}
	for _, s := range sockets {
		protocol, local := nat.ProtocolName(s.Proto), s.Local.Addr().Unmap()
		if local.IsUnspecified() {
			wild[protocol]++
			continue
		}
		at := shared[place{local.String(), protocol}]
		switch {
		case at == nil:
		case s.Remote.Port() == 0:
			at.Listening++
		default:
			at.Connected++
		}
	}
	var out []snapshot.SharedAddress
	for p, s := range shared {
		// Only sockets show whether the address is this machine's.
		s.Wildcard = wild[p.protocol]
		if s.Listening+s.Connected+s.Wildcard > 0 {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b snapshot.SharedAddress) int {
		return cmp.Or(cmp.Compare(b.Connected, a.Connected), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// numbers is how many ports, or ICMP ids, there are.
const numbers = 1 << 16

// Set is a set of ports; nil is empty.
type Set [numbers / 64]uint64

// Add puts a port in.
func (s *Set) Add(p uint16) { s[p/64] |= 1 << (p % 64) }

// Has reports whether the port is in the set.
func (s *Set) Has(p uint16) bool { return s.word(int(p)/64)&(1<<(p%64)) != 0 }

func (s *Set) word(w int) uint64 {
	if s == nil {
		return 0
	}
	return s[w]
}

// Count returns how many ports of a range are in the set.
func (s *Set) Count(r nat.Ports) int { return s.without(nil, r) }

// without counts the ports of a range that are in s and not in o.
func (s *Set) without(o *Set, r nat.Ports) (n int) {
	if s == nil {
		return 0
	}
	for w := int(r.First) / 64; w <= int(r.Last)/64; w++ {
		n += bits.OnesCount64(s[w] &^ o.word(w) & wordOf(r, w))
	}
	return n
}

// wordOf has a bit for each port of the range in word w of a Set.
func wordOf(r nat.Ports, w int) uint64 {
	mask := ^uint64(0)
	if low := int(r.First) - w*64; low > 0 {
		mask &= ^uint64(0) << low
	}
	if high := int(r.Last) - w*64; high < 63 {
		mask &= ^uint64(0) >> (63 - high)
	}
	return mask
}
