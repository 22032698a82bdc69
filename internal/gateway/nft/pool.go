package nft

import (
	"encoding/binary"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
)

// poolSeed makes the choice the same after each apply: a source keeps its address.
const poolSeed = 0x6e61746b

// maxWeight bounds how finely ranges of a pool are weighed against each other.
const maxWeight = 1 << 16

// choose takes one of several ranges by a hash of the source address, each as often as
// it has addresses, and leaves its first and last address in registers. Within the
// range the kernel chooses.
func (t *table) choose(g *group) []expression {
	if len(g.pool) == 0 {
		return nil
	}
	s := &set{key: nftables.TypeInteger, data: g.f.address, ranges: true, hostOrder: false, flags: unix.NFT_SET_MAP | unix.NFT_SET_INTERVAL, about: g.comment()}
	at := uint32(0)
	for i, w := range weights(g.pool) {
		s.elements = append(s.elements, element{
			key:  binary.BigEndian.AppendUint32(nil, at),
			data: append(g.pool[i].First.AsSlice(), g.pool[i].Last.AsSlice()...),
		})
		at += w
	}
	s.elements = append(s.elements, element{key: binary.BigEndian.AppendUint32(nil, at), end: true})
	t.anonymous(s)
	return []expression{
		payload(expr.PayloadBaseNetworkHeader, g.f.saddr, uint32(g.f.bytes), reg2),
		&expr.Hash{SourceRegister: reg2, DestRegister: reg1, Length: uint32(g.f.bytes), Modulus: at, Seed: poolSeed, Type: expr.HashTypeJenkins},
		&expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		s.translate(reg1),
	}
}

// weights are the numbers of addresses, made smaller where they are large.
func weights(pool []gateway.Range) []uint32 {
	sizes, largest := make([]uint64, len(pool)), uint64(0)
	for i, r := range pool {
		sizes[i] = sizeOf(r)
		largest = max(largest, sizes[i])
	}
	out := make([]uint32, len(pool))
	for i, n := range sizes {
		if largest > maxWeight {
			n = max(1, n/(largest/maxWeight))
		}
		out[i] = uint32(n)
	}
	return out
}

// sizeOf is the number of addresses, at most 2^32.
func sizeOf(r gateway.Range) uint64 {
	first, last := r.First.AsSlice(), r.Last.AsSlice()
	n := len(first)
	if n == 16 && string(first[:12]) != string(last[:12]) {
		return 1 << 32
	}
	return uint64(binary.BigEndian.Uint32(last[n-4:])) - uint64(binary.BigEndian.Uint32(first[n-4:])) + 1
}

func poolText(pool []gateway.Range) string {
	var b strings.Builder
	for _, r := range pool {
		b.WriteString(r.String() + " ")
	}
	return b.String()
}
