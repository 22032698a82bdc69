package simulate

import "math/bits"

// slot is one of the NAT's ports, of one of its addresses, toward one destination:
// what NAT and servers keep of it, in a quarter of a cache line, as what is far away in
// memory costs more than all else.
type slot struct {
	// heldUntil is when the port is free again: never while a connection has it.
	heldUntil int64
	// timeWait is the first of the servers' sockets.
	timeWait int32
	// end is the client's last sequence number (td_end of conntrack).
	end uint32
}

const (
	// natAttempts is NF_NAT_MAX_ATTEMPTS, natFewest the fewest that are followed by
	// another round, natHarder is NF_NAT_HARDER_THRESH: of the last attempts of a round
	// that many may evict.
	natAttempts = 128
	natFewest   = 16
	natHarder   = 32
)

// assign gives a connection a port; it reports whether there was one.
func (e *engine) assign(c *conn) bool {
	set := &e.ports[c.set]
	port := none
	if e.strategy == StrategyKernel {
		port = e.kernelPort(c, set)
	} else if set.free > 0 {
		port = e.portOf(c, set)
		set.take(port)
	}
	if port == none {
		return false
	}
	set.cursor = port + 1
	c.slot = e.slotOf(c.set, port)
	c.mapped, c.routed = true, false
	e.slots[c.slot].heldUntil = never
	return true
}

func (e *engine) slotOf(set int32, port int) uint32 {
	return uint32(set)*uint32(e.portCount) + uint32(port)
}

func (e *engine) portOf(c *conn, set *portSet) int {
	switch e.strategy {
	case StrategyRandom:
		return set.next(e.random.IntN(set.size))
	case StrategyHash:
		h := mix(e.people.secret+4, uint64(c.host)<<32|uint64(c.source)<<16|uint64(c.dest))
		return set.next(int(h % uint64(set.size)))
	}
	if set.cursor >= set.size {
		set.cursor = 0
	}
	return set.next(set.cursor)
}

// kernelPort is get_unique_tuple and nf_nat_l4proto_unique_tuple; the port is taken.
func (e *engine) kernelPort(c *conn, set *portSet) int {
	if own := int(c.source) - e.firstPort; own >= 0 && own < set.size && !set.has(own) {
		set.take(own)
		return own
	}
	for attempts := min(set.size, natAttempts); ; attempts /= 2 {
		at := e.random.IntN(1<<16) % set.size
		for left := attempts; left > 0; left-- {
			if !set.has(at) {
				set.take(at)
				return at
			}
			if left <= natHarder && e.evicts && set.isEnded(at) && after(c.isn+1, e.slots[e.slotOf(c.set, at)].end) {
				set.take(at) // nf_nat_may_kill, nf_seq_has_advanced
				e.outdated++
				return at
			}
			if at++; at == set.size {
				at = 0
			}
		}
		if attempts >= set.size || attempts < natFewest {
			return none
		}
	}
}

// hold keeps the port of a connection that is over for a while.
func (e *engine) hold(q int, slot uint32, ended bool) {
	s := &e.slots[slot]
	if e.queues[q].delay == 0 {
		s.heldUntil = e.now
		e.release(slot)
		return
	}
	if ended {
		e.ports[int(slot)/e.portCount].end(int(slot) % e.portCount)
	}
	s.heldUntil = e.now + e.queues[q].delay
	e.put(q, int32(slot))
	if e.queues[q].size >= e.sweepAt {
		e.sweep(q)
	}
}

// fewestSwept is how many events are not worth a sweep.
const fewestSwept = 1 << 20

// sweep drops the events for ports that were taken before their time, which
// would otherwise be as many as connections begin while a port is held.
func (e *engine) sweep(q int) {
	held := &e.queues[q]
	before := held.size
	held.keep(func(v event) bool { return e.slots[v.id].heldUntil == v.at })
	e.outdated -= before - held.size
	e.next[q] = held.first()
	e.sweepAt = max(2*held.size, e.sweepAt)
}

// unhold frees a port whose time is over, unless it was taken meanwhile.
func (e *engine) unhold(v event) {
	if e.slots[v.id].heldUntil == v.at {
		e.release(v.id)
	} else {
		e.outdated--
	}
}

// unholdMost does the same for a port whose connection is over for good. If no port
// was taken before its time it does not even read the slot, which is far
// away in memory.
func (e *engine) unholdMost(v event) {
	if e.outdated > 0 {
		e.unhold(v)
		return
	}
	e.ports[int(v.id)/e.portCount].release(int(v.id) % e.portCount)
}

func (e *engine) release(slot uint32) {
	e.slots[slot].heldUntil = -1
	e.ports[int(slot)/e.portCount].release(int(slot) % e.portCount)
}

// portSet are the ports of one of the NAT's addresses toward one destination: a bit
// for each that is taken, and one for each of these whose connection ended, so that it
// may be evicted.
type portSet struct {
	taken, ended []uint64
	size, free   int
	// cursor is the port after the last one given, for the round robin.
	cursor int
}

func newPortSet(size int) portSet {
	words := (size + 63) / 64
	s := portSet{taken: make([]uint64, words), ended: make([]uint64, words), size: size, free: size}
	if rest := size % 64; rest != 0 {
		s.taken[len(s.taken)-1] = ^uint64(0) << rest
	}
	return s
}

func (s *portSet) has(port int) bool { return s.taken[port>>6]&(1<<(port&63)) != 0 }

func (s *portSet) isEnded(port int) bool { return s.ended[port>>6]&(1<<(port&63)) != 0 }

// take gives the port to a connection; it may have been that of one that ended.
func (s *portSet) take(port int) {
	word, bit := port>>6, uint64(1)<<(port&63)
	if s.taken[word]&bit == 0 {
		s.free--
	}
	s.taken[word] |= bit
	s.ended[word] &^= bit
}

func (s *portSet) end(port int) { s.ended[port>>6] |= 1 << (port & 63) }

func (s *portSet) release(port int) {
	s.taken[port>>6] &^= 1 << (port & 63)
	s.ended[port>>6] &^= 1 << (port & 63)
	s.free++
}

// next is the first free port at or after the given one, around the end; some are
// free.
func (s *portSet) next(from int) int {
	word := from >> 6
	if free := ^s.taken[word] >> (from & 63); free != 0 {
		return from + bits.TrailingZeros64(free)
	}
	for {
		if word++; word == len(s.taken) {
			word = 0
		}
		if free := ^s.taken[word]; free != 0 {
			return word<<6 + bits.TrailingZeros64(free)
		}
	}
}
