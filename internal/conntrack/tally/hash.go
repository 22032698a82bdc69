package tally

import (
	"encoding/binary"
	"math/bits"
)

// hash is 32 bits of a keyed hash. Whoever opens connections chooses the keys: without
// the seed nobody can choose those that collide.
func hash(seed uint64, key []byte) uint32 {
	h := seed ^ uint64(len(key))*0x9e3779b97f4a7c15
	for len(key) >= 8 {
		h = mix(h, binary.LittleEndian.Uint64(key))
		key = key[8:]
	}
	h = mix(h, tail(key))
	return uint32(h ^ h>>32)
}

// tail is the last bytes, fewer than eight, as a number.
func tail(key []byte) uint64 {
	switch n := len(key); {
	case n >= 4:
		return uint64(binary.LittleEndian.Uint32(key))<<32 | uint64(binary.LittleEndian.Uint32(key[n-4:]))
	case n > 0:
		return uint64(key[0])<<16 | uint64(key[n/2])<<8 | uint64(key[n-1])
	}
	return 0
}

// mix folds a 128-bit product.
func mix(h, v uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, v^0xd6e8feb86659fd93)
	return hi ^ lo ^ h
}
