package simulate

import "math/bits"

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
