package simulate

import "math/bits"

// portSet are the ports of one of the NAT's addresses toward one destination: a bit
// for each that is taken.
type portSet struct {
	taken []uint64
	size  int
	free  int
	// cursor is the port after the last one given, for the round robin.
	cursor int
}

func newPortSet(size int) portSet {
	s := portSet{taken: make([]uint64, (size+63)/64), size: size, free: size}
	if rest := size % 64; rest != 0 {
		s.taken[len(s.taken)-1] = ^uint64(0) << rest
	}
	return s
}

func (s *portSet) has(port int) bool { return s.taken[port>>6]&(1<<(port&63)) != 0 }

func (s *portSet) take(port int) {
	s.taken[port>>6] |= 1 << (port & 63)
	s.free--
}

func (s *portSet) release(port int) {
	s.taken[port>>6] &^= 1 << (port & 63)
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
