package ports

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// DefaultMemory bounds a Collector where Options do not.
const DefaultMemory = 64 << 20

// Options are of a Collector.
type Options struct {
	// MemoryBytes bounds what the pools take, about; 0 means DefaultMemory. Beyond it
	// the smallest pools are given up: those that are short of ports are among the
	// first to be seen, as a dump has the entries in a random order.
	MemoryBytes int64
	// Now is the time of the dump, against which entries' own times are held; zero
	// where it is not known.
	Now time.Time
	// Addresses are known to be given by NAT. Others are known from their first
	// translated entry on.
	Addresses []netip.Addr
}

// youngSeconds is the age up to which an entry counts for the rate, where entries
// tell their age.
const youngSeconds = 10

// Collector groups the entries of one dump by what may not share a port.
type Collector struct {
	o     Options
	pools map[key]*pool
	// given are the addresses that some entry's source was translated to.
	given map[netip.Addr]bool
	names *addresses
	// waiting entries are not translated: they count only where their address is
	// one that NAT gives.
	waiting, inbound []waiting
	bytes            int64
	seen, translated int64
	// aged of the entries in pools told how old they are, of ported.
	aged, ported int64
	// LeftOut pools were given up for memory, once for each time.
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
	if !hasPorts(e.Orig.Proto) {
		return
	}
	k, t := outward(e)
	if e.Reply.Dst != e.Orig.Src || t.marks&isMoved != 0 {
		c.translated++
		c.given[k.addr] = true
		c.put(k, c.known(t, e))
	} else {
		t.marks |= isLocal
		if c.given[k.addr] {
			c.put(k, c.known(t, e))
		} else {
			c.wait(&c.waiting, k, c.known(t, e))
		}
	}
	// The kernel looks for the tuple in either direction (nf_conntrack_tuple_taken).
	if c.given[e.Orig.Dst] && !isICMP(e.Orig.Proto) {
		c.wait(&c.inbound, inward(e), taken{port: e.Orig.DstPort, marks: isInbound})
	}
}

// outward is the pool of the entry's answers, and what it takes in it.
func outward(e *conntrack.Entry) (key, taken) {
	r := &e.Reply
	k := key{addr: r.Dst, remote: r.Src, remotePort: r.SrcPort, zone: e.ReplyZone, proto: r.Proto}
	t := taken{port: r.DstPort}
	before := e.Orig.SrcPort
	if isICMP(r.Proto) {
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

// closed is what the end of a TCP connection means for its port.
func closed(e *conntrack.Entry) (m marks) {
	if e.TCPState == conntrack.TCPTimeWait {
		m |= inTimeWait
		if e.ClientClosed {
			m |= isClientClosed
		}
	}
	// IPS_SRC_NAT is not in texts, but what it says is in the tuples.
	if e.TCPState >= conntrack.TCPTimeWait && e.IsSNAT() &&
		e.Status&(conntrack.FixedTimeout|conntrack.Dying|conntrack.Offload|conntrack.HWOffload) == 0 {
		m |= isEvictable
	}
	return m
}

// known adds source and age.
func (c *Collector) known(t taken, e *conntrack.Entry) taken {
	t.source = c.names.number(e.Orig.Src)
	c.ported++
	if age, ok := c.age(e); ok {
		c.aged++
		if age <= youngSeconds {
			t.marks |= isYoung
		}
	}
	return t
}

// age in seconds; false where the entry does not tell it.
func (c *Collector) age(e *conntrack.Entry) (float64, bool) {
	switch {
	case e.Fields.Has(conntrack.HasDeltaTime):
		return float64(e.DeltaTime), true
	case e.Start != 0 && !c.o.Now.IsZero():
		return c.o.Now.Sub(time.Unix(0, int64(e.Start))).Seconds(), true
	}
	return 0, false
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

// wait keeps a port until it is known whether it matters; those that find no room
// are the last ones of a random order, and are not counted.
func (c *Collector) wait(list *[]waiting, k key, t taken) {
	if int64(len(*list)+1)*waitingBytes <= c.o.MemoryBytes/8 {
		*list = append(*list, waiting{k, t})
	}
}

// shrink gives up the smallest pools, until a quarter of the memory is free.
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
	for _, w := range c.waiting {
		if c.given[w.addr] {
			c.put(w.key, w.taken)
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

// Translated is how many entries had a translated source.
func (c *Collector) Translated() int64 { return c.translated }
