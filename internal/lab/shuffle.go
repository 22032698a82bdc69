package lab

import "math/bits"

// shuffle is an order of the numbers below n that looks random and needs no
// memory: a Feistel network over pairs, as in Black and Rogaway, "Ciphers with
// Arbitrary Finite Domains" (2002), whose results outside of n are fed in again.
// load.Permutation is simpler and goes in steps of one length; NAT's random ports
// do not.
type shuffle struct{ n, a, b uint64 }

const shuffleRounds = 6

// newShuffle takes n from 1 to 2^62.
func newShuffle(n uint64) shuffle {
	a := root(n)
	return shuffle{n: n, a: a, b: (n + a - 1) / a}
}

// root is the square root, rounded up.
func root(n uint64) uint64 {
	r := uint64(1) << ((bits.Len64(n) + 1) / 2)
	for next := (r + n/r) / 2; next < r; next = (r + n/r) / 2 {
		r = next
	}
	if r*r < n {
		r++
	}
	return r
}

// at is the k-th number in the order of a key, for k below n.
func (s shuffle) at(k, key uint64) uint64 {
	for {
		r, l := k/s.a, k%s.a
		for round := uint64(0); round < shuffleRounds; round += 2 {
			l = add(l, scale(hash(key+round, r), s.a), s.a)
			r = add(r, scale(hash(key+round+1, l), s.b), s.b)
		}
		if k = r*s.a + l; k < s.n {
			return k
		}
	}
}

// add is x+y modulo n, for both below n.
func add(x, y, n uint64) uint64 {
	if x += y; x >= n {
		x -= n
	}
	return x
}

// scale maps 64 random bits evenly to the numbers below n.
func scale(random, n uint64) uint64 {
	hi, _ := bits.Mul64(random, n)
	return hi
}

// hash is the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable
// Pseudorandom Number Generators", 2014) over two numbers.
func hash(key, v uint64) uint64 {
	x := v + key*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
