package ports

import (
	"cmp"
	"net/netip"
	"slices"
)

// key names a pool: no two connections of it may have the same port.
type key struct {
	addr, remote netip.Addr
	remotePort   uint16
	zone         uint16
	proto        uint8
}

// marks is what is kept of an entry.
type marks uint8

const (
	inTimeWait marks = 1 << iota
	// isEvictable: the kernel may take the port (nf_nat_may_kill).
	isEvictable
	// isMoved: the port is not the one that the client chose.
	isMoved
	// isLocal: not translated, so it is of this machine, which has the address.
	isLocal
	// isYoung: made less than youngSeconds ago.
	isYoung
	// isInbound: a connection from the destination, which has no source to name.
	isInbound
	// isClientClosed: in TIME_WAIT, and the client's FIN was the first, so that TIME_WAIT
	// of the connection is at the client.
	isClientClosed
)

// taken is a used port.
type taken struct {
	source uint32
	port   uint16
	marks  marks
}

// maxFew is how many ports are kept one by one, in no order. More go into sets:
// then it is no longer known which port is whose.
const maxFew = 1024

// pool is what is used of one key's ports.
type pool struct {
	few  []taken
	many *many
	// late is whether the pool may lack ports: it, or others before it, were given
	// up for memory.
	late bool
}

// many is a pool of more than maxFew ports.
type many struct {
	used, moved, local, young, inbound, timeWait Set
	// evictable and clientClosed are nil until there is one.
	evictable, clientClosed *Set
	sources                 *sources
}

func (p *pool) add(t taken) {
	if p.many != nil {
		p.many.add(t)
		return
	}
	p.few = append(p.few, t)
	if len(p.few) <= maxFew {
		return
	}
	p.tidy()
	if len(p.few) > maxFew/2 {
		p.many = &many{sources: newSources()}
		for _, t := range p.few {
			p.many.add(t)
		}
		p.few = nil
	}
}

// tidy sorts by port and leaves each port once: a table that changes during the
// dump can tell an entry twice.
func (p *pool) tidy() {
	slices.SortFunc(p.few, func(a, b taken) int { return cmp.Compare(a.port, b.port) })
	p.few = slices.CompactFunc(p.few, func(a, b taken) bool { return a.port == b.port })
}

func (m *many) add(t taken) {
	if m.used.Has(t.port) {
		return
	}
	m.used.Add(t.port)
	for mark, set := range m.marked() {
		if t.marks&mark != 0 {
			set.Add(t.port)
		}
	}
	if t.marks&isEvictable != 0 {
		if m.evictable == nil {
			m.evictable = &Set{}
		}
		m.evictable.Add(t.port)
	}
	if t.marks&isClientClosed != 0 {
		if m.clientClosed == nil {
			m.clientClosed = &Set{}
		}
		m.clientClosed.Add(t.port)
	}
	if t.marks&isInbound == 0 {
		m.sources.add(t.source)
	}
}

// marked goes over the sets that keep marks.
func (m *many) marked() func(yield func(marks, *Set) bool) {
	return func(yield func(marks, *Set) bool) {
		_ = yield(inTimeWait, &m.timeWait) && yield(isMoved, &m.moved) && yield(isLocal, &m.local) &&
			yield(isYoung, &m.young) && yield(isInbound, &m.inbound)
	}
}

// sets is the pool as sets; scratch is what they are made in where it has none.
func (p *pool) sets(scratch *many) *many {
	if p.many != nil {
		return p.many
	}
	*scratch = many{sources: newSources()}
	for _, t := range p.few {
		scratch.add(t)
	}
	return scratch
}

// everything is the range of all ports.
var everything = Range{0, 65535}

// count is how many ports of a range the pool has, of those with a mark if one is
// given: inTimeWait, isLocal or isClientClosed.
func (p *pool) count(r Range, mark marks) int {
	switch {
	case p.many == nil:
		return p.countFew(r, mark)
	case mark == inTimeWait:
		return p.many.timeWait.Count(r)
	case mark == isLocal:
		return p.many.local.Count(r)
	case mark == isClientClosed:
		if p.many.clientClosed == nil {
			return 0
		}
		return p.many.clientClosed.Count(r)
	default:
		return p.many.used.Count(r)
	}
}

func (p *pool) countFew(r Range, mark marks) (n int) {
	for _, t := range p.few {
		if r.Has(t.port) && t.marks&mark == mark {
			n++
		}
	}
	return n
}

// comesFrom reports whether one of the pool's sources is in the prefix.
func (p *pool) comesFrom(prefix netip.Prefix, addrs *addresses) bool {
	from := func(id uint32) bool { return id == 0 || prefix.Contains(addrs.all[id]) }
	if p.many == nil {
		return slices.ContainsFunc(p.few, func(t taken) bool { return t.marks&isInbound == 0 && from(t.source) })
	}
	for id := range p.many.sources.counts {
		if from(id) {
			return true
		}
	}
	return false
}

// size is how many ports the pool has, some of them perhaps twice.
func (p *pool) size() int {
	if p.many != nil {
		return p.many.used.Count(everything)
	}
	return len(p.few)
}

// Sizes in memory, about: of a pool with its place in the map, of one of its
// ports, and of one in sets.
const (
	poolBytes  = 280
	takenBytes = 8
	manyBytes  = 8*numbers/8 + 4096
)

func (p *pool) bytes() int64 {
	if p.many != nil {
		return poolBytes + manyBytes
	}
	return poolBytes + int64(cap(p.few))*takenBytes
}
