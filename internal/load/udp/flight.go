package udp

import "math/bits"

// State is what is known of one datagram.
type State uint8

const (
	// Unknown was not sent, or so long ago that its place was needed for another.
	Unknown State = iota
	// Flying was sent; nothing came back, and its time is not over.
	Flying
	// Settled counts as lost: its time was over, or an ICMP error came. A reply may
	// still come.
	Settled
	// Answered had its reply.
	Answered
)

// Flight remembers when each datagram was sent and what became of it, by its
// number. Datagrams may be sent a little out of the order of their numbers, but
// their times do not go back. It is not safe for concurrent use.
type Flight struct {
	slots  []int64 // time of sending in nanoseconds << 2, and the State
	mask   int64
	oldest int64 // all before it are not Flying
	head   int64 // one more than the greatest number sent
	// Flying datagrams.
	Flying int
}

// MaxFlight bounds the memory of a Flight: 8 bytes each.
const MaxFlight = 1 << 24

// NewFlight remembers at least the last n datagrams, MaxFlight at most.
func NewFlight(n int) *Flight {
	n = 1 << bits.Len(uint(min(max(n, 2), MaxFlight)-1))
	return &Flight{slots: make([]int64, n), mask: int64(n - 1)}
}

// Sent remembers datagram k. It returns how many older ones had to be given up for
// want of room, and count as lost.
func (f *Flight) Sent(k, at int64) (lost int) {
	for ; f.head <= k; f.head++ {
		if f.head-f.oldest == int64(len(f.slots)) {
			lost += f.giveUpOldest()
		}
		f.slots[f.head&f.mask] = int64(Unknown)
	}
	if k < f.oldest { // too far behind the others: not followed
		return lost
	}
	f.slots[k&f.mask] = at<<2 | int64(Flying)
	f.Flying++
	return lost
}

func (f *Flight) giveUpOldest() (lost int) {
	if slot := &f.slots[f.oldest&f.mask]; State(*slot&3) == Flying {
		f.Flying--
		lost = 1
	}
	f.oldest++
	return lost
}

// Skip passes over a datagram that could not be sent.
func (f *Flight) Skip(k int64) (lost int) {
	lost = f.Sent(k, 0)
	f.Settle(k)
	return lost
}

// Answer takes a reply to datagram k: what was known of it before, and when it was
// sent unless that is Unknown.
func (f *Flight) Answer(k int64) (before State, sent int64) { return f.become(k, Answered) }

// Settle takes an ICMP error about datagram k.
func (f *Flight) Settle(k int64) (before State, sent int64) { return f.become(k, Settled) }

func (f *Flight) become(k int64, state State) (before State, sent int64) {
	if k < 0 || k >= f.head || f.head-k > int64(len(f.slots)) {
		return Unknown, 0
	}
	slot := &f.slots[k&f.mask]
	before, sent = State(*slot&3), *slot>>2
	if before == Unknown || before == Answered {
		return before, sent
	}
	if before == Flying {
		f.Flying--
	}
	*slot = sent<<2 | int64(state)
	return before, sent
}

// Expire settles what was sent at or before an instant, and returns how many that
// were.
func (f *Flight) Expire(until int64) (lost int) {
	for ; f.oldest < f.head; f.oldest++ {
		slot := &f.slots[f.oldest&f.mask]
		switch State(*slot & 3) {
		case Unknown:
			return lost // will be sent yet
		case Flying:
			if *slot>>2 > until {
				return lost
			}
			*slot = *slot&^3 | int64(Settled)
			f.Flying--
			lost++
		}
	}
	return lost
}

// Oldest is when the oldest datagram that is Flying was sent; ok is false where
// there is none, or where an older one is still to be sent.
func (f *Flight) Oldest() (sent int64, ok bool) {
	for ; f.oldest < f.head; f.oldest++ {
		slot := f.slots[f.oldest&f.mask]
		switch State(slot & 3) {
		case Unknown:
			return 0, false
		case Flying:
			return slot >> 2, true
		}
	}
	return 0, false
}
