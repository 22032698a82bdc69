package simulate

import "math/bits"

// mix is a hash of two numbers (a multiplication folded, as in wyhash).
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xbf58476d1ce4e5b9)
	hi2, lo2 := bits.Mul64(hi^lo^0x94d049bb133111eb, 0xd6e8feb86659fd93)
	return hi2 ^ lo2
}
