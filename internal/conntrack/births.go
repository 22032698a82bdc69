package conntrack

import (
	"math"

	"github.com/natkit/natkit/internal/snapshot"
)

// Births estimates from two dumps of a table how many connections are new in
// the second. The kernel has no counter of them: since 4.9 `insert` counts only
// what ctnetlink inserts.
//
// Every entry of the first dump is remembered by a 64-bit key with its ID in it;
// what comes in the second dump and was not in the first is new. A tuple used
// again has another entry, so another ID, and counts as new, except where the
// kernel happened to reuse the same memory for the same tuple. Connections that
// came and went between the dumps are not seen: the rate is one of entries that
// live longer than the time between.
//
// A dump walks the hash table in the order of a keyed hash, in which resizing
// keeps the order (reciprocal_scale). So the beginning of a dump is a sample
// without bias, and where a dump was cut short only the part that both dumps
// reached can be compared: the second one up to its last entry that the first
// one had too.
type Births struct {
	seed          uint64
	known         map[uint64]struct{}
	firstComplete bool

	seen, compared  int64
	born, tentative [classes]int64
	pending         bool
	groups          map[uint64]struct{}
	laterGroups     []uint64
}

// NewBirths makes an estimator. The seed keys its hashes and should be random,
// so that nobody can choose addresses that collide.
func NewBirths(seed uint64) *Births {
	return &Births{seed: seed, known: map[uint64]struct{}{}, groups: map[uint64]struct{}{}}
}

// First takes an entry of the first dump.
func (b *Births) First(e *Entry) { b.known[identity(b.seed, e)] = struct{}{} }

// EndFirst ends the first dump; complete says whether it reached the table's end.
func (b *Births) EndFirst(complete bool) { b.firstComplete = complete }

// Second takes an entry of the second dump, in the order of the dump.
func (b *Births) Second(e *Entry) {
	b.seen++
	if _, ok := b.known[identity(b.seed, e)]; ok {
		b.settle()
		return
	}
	b.tentative[classOf(e)]++
	b.laterGroups = append(b.laterGroups, group(b.seed, e))
	b.pending = true
}

// settle makes everything seen so far comparable.
func (b *Births) settle() {
	b.compared = b.seen
	if !b.pending {
		return
	}
	for c, n := range b.tentative {
		b.born[c] += n
	}
	for _, g := range b.laterGroups {
		b.groups[g] = struct{}{}
	}
	b.tentative, b.laterGroups, b.pending = [classes]int64{}, b.laterGroups[:0], false
}

// Flows ends the second dump. seconds is the time between the beginnings of the
// dumps, count is nf_conntrack_count at the second one, complete says whether
// that reached the table's end. It is nil where nothing can be compared.
func (b *Births) Flows(seconds float64, count int64, complete bool) *snapshot.Flows {
	if b.firstComplete {
		b.settle()
	}
	if seconds <= 0 || (b.compared == 0 && !(b.firstComplete && complete)) {
		return nil
	}
	// A whole table needs no scaling; the count would only add entries that have
	// expired and that the kernel has yet to remove.
	scale := 1.0
	if (!complete || b.compared < b.seen) && count > b.compared {
		scale = float64(count) / float64(b.compared)
	}
	f := &snapshot.Flows{
		Seconds: seconds, Sampled: b.compared, Groups: int64(len(b.groups)),
		PerSecond: map[string]float64{},
	}
	born := int64(0)
	for c, n := range b.born {
		if n > 0 {
			born += n
			f.PerSecond[class(c).String()] = float64(n) * scale / seconds
		}
	}
	f.TotalPerSecond = float64(born) * scale / seconds
	f.StandardErrorPerSecond = standardError(born, b.compared, scale) / seconds
	return f
}

// standardError is that of scale*born: of drawing the sample (binomial, with the
// correction for a sample that is a large part of the whole) and of arrivals
// that are a Poisson process.
func standardError(born, seen int64, scale float64) float64 {
	if seen == 0 {
		return 0
	}
	share := float64(born) / float64(seen)
	drawing := scale * scale * float64(born) * (1 - share) * (1 - 1/scale)
	arrivals := scale * float64(born)
	return math.Sqrt(drawing + arrivals)
}
