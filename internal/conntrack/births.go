package conntrack

import (
	"math"

	"github.com/natkit/natkit/internal/snapshot"
)

// Births estimates from two dumps of a table how many connections are new in
// the second. The kernel has no counter of them: since 4.9 `insert` counts only
// what ctnetlink inserts.
//
// Every entry of the first dump is remembered by a 64-bit key of its tuple; what
// comes in the second dump and was not in the first, or has been reborn since, is
// new. Connections that came and went between the dumps are not seen, except by
// what recent can tell of them: the rate is one of entries that live, or keep
// their tuple, longer than the time between.
//
// A dump walks the hash table in the order of a keyed hash, in which resizing
// keeps the order (reciprocal_scale). So the beginning of a dump is a sample
// without bias, and where a dump was cut short only the part that both dumps
// reached can be compared: the second one up to its last entry that the first
// one had too.
type Births struct {
	seed          uint64
	known         map[uint64]known
	firstComplete bool
	gap           Gap

	seen, compared int64
	born           [classes]int64
	groups         map[uint64]struct{}
	// pending are births behind the last entry that both dumps have.
	pending []birth
	recent  recent
	oneWay  oneWay
	// unanswered are births by who asked.
	unanswered *top[asker]
}

// birth is a new entry.
type birth struct {
	group  uint64
	class  class
	lately bool
	// asker is the zero value where the entry was answered.
	asker asker
}

// NewBirths makes an estimator. The seed keys its hashes and should be random,
// so that nobody can choose addresses that collide.
func NewBirths(seed uint64) *Births {
	return &Births{
		seed: seed, known: map[uint64]known{}, groups: map[uint64]struct{}{},
		oneWay: newOneWay(), unanswered: newTop(askerForm),
	}
}

// First takes an entry of the first dump.
func (b *Births) First(e *Entry) {
	id := identity(b.seed, e)
	b.known[id] = know(e)
	b.oneWay.first(id, e)
}

// EndFirst ends the first dump; complete says whether it reached the table's end.
func (b *Births) EndFirst(complete bool) { b.firstComplete = complete }

// BeginSecond says what lies between the dumps, before the second one's entries.
func (b *Births) BeginSecond(gap Gap) {
	b.gap = gap
	b.recent.begin(gap)
}

// Second takes an entry of the second dump, in the order of the dump.
func (b *Births) Second(e *Entry) {
	b.seen++
	b.recent.look(e)
	id := identity(b.seed, e)
	k, ok := b.known[id]
	isNew := !ok || k.reborn(e, b.gap)
	if isNew {
		n := birth{group: group(b.seed, e), class: classOf(e), lately: b.gap.lately(stateOf(e), e.Timeout)}
		if isUnanswered(e) {
			n.asker = asker{e.Orig.Src, e.Orig.Proto}
		}
		b.pending = append(b.pending, n)
	}
	if ok {
		b.recent.again(k, isNew)
	}
	if !isNew {
		b.oneWay.add(id, e, k, b.gap)
	}
	if ok || b.firstComplete {
		b.settle()
	}
}

// settle makes everything seen so far comparable.
func (b *Births) settle() {
	b.compared = b.seen
	for _, n := range b.pending {
		b.born[n.class]++
		b.groups[n.group] = struct{}{}
		if n.lately {
			b.recent.born[n.class]++
		}
		if n.asker != (asker{}) {
			b.unanswered.add(n.asker)
		}
	}
	b.pending = b.pending[:0]
}

// Flows ends the second dump. seconds is the time between the middles of the
// dumps, count is nf_conntrack_count at the second one, complete says whether
// that reached the table's end. It is nil where nothing can be compared.
func (b *Births) Flows(seconds float64, count int64, complete bool) *snapshot.Flows {
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
		OneWay:    b.oneWay.list(), OneWayKnown: true,
	}
	for _, c := range b.unanswered.largest(shown, asker.String) {
		f.Unanswered = append(f.Unanswered, snapshot.Rate{Who: c.key.String(), PerSecond: float64(c.n) / seconds * scale})
	}
	born := int64(0)
	unseen := b.recent.unseen(&b.born, seconds)
	for c, n := range b.born {
		if n > 0 {
			born += n
			rate := (float64(n)/seconds + unseen[class(c)]) * scale
			f.PerSecond[class(c).String()] = rate
			f.TotalPerSecond += rate
		}
	}
	f.StandardErrorPerSecond = standardError(born, b.compared, scale) / seconds
	if len(unseen) > 0 {
		// What was corrected is known by the fewer births of one second.
		f.StandardErrorPerSecond *= math.Sqrt(seconds)
	}
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
