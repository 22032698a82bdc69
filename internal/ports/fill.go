package ports

import (
	"net/netip"

	"github.com/natkit/natkit/internal/snapshot"
)

// What TakenFrom may say.
const (
	fromDraws = "the rule draws a port for every connection"
	fromNew   = "new connections"
	fromAll   = "all connections"
	fromUse   = "the share of ports in use"
)

// fewNew is how many new connections must be known for their ports to tell what
// those of the next ones will be.
const fewNew = 20

// filler adds what has to be computed to rows.
type filler struct {
	*Collector
	q   *Query
	out *snapshot.Ports
	// now and then are where the sets of small pools are made.
	now, then many
}

// fill adds rate, users and chance; that of a pool which is not pressed only where
// it takes no time.
func (f *filler) fill(r *row, pressed bool) {
	sets := r.pool.sets(&f.now)
	if f.q.Users > 0 {
		r.Users = f.users(r)
	}
	fresh := f.rate(r, sets)
	if f.q.Complete && !r.pool.late && (pressed || r.Used < int64(leastUsed(r.share.Size()))) {
		r.Known = true
		r.chance(f.out, sets, fresh)
		if f.q.Alternatives && (r.Fails >= pressedFails || r.Share >= pressedShare) {
			r.Alternatives = r.alternatives(f.out, sets)
		}
	}
}

// users are the sources with most ports of the row's range. Of a large pool it is not
// known which port is whose; then the rule tells by the sources that it is for.
func (f *filler) users(r *row) []snapshot.Talker {
	var from netip.Prefix
	of := newSources()
	if r.pool.many != nil {
		of = r.pool.many.sources
		if r.Rule >= 0 {
			from = f.q.rules()[r.Rule].FromSource
		}
	}
	for _, t := range r.pool.few {
		if r.share.Has(t.port) && t.marks&isInbound == 0 {
			of.add(t.source)
		}
	}
	users := f.names.largest(of, f.q.Users, from)
	for i := range users {
		users[i].Entries = min(r.Used, f.q.scaled(f.Collector, int(users[i].Entries)))
	}
	return users
}

// rate fills in the rates, and returns the ports of new connections; nil where
// those are not known.
func (f *filler) rate(r *row, sets *many) *Set {
	switch {
	case f.q.comparable():
		return f.compared(r, sets)
	case f.q.Complete && f.ported > 0 && f.aged == f.ported:
		r.RateKnown = true
		r.NewPerSecond = float64(sets.young.Count(r.share.Range)) / youngSeconds
		return &sets.young
	}
	return nil
}

// compared takes the rates from what has changed since the dump before.
func (f *filler) compared(r *row, sets *many) *Set {
	earlier := &pool{}
	if p := f.q.Before.pools[r.key]; p != nil {
		earlier = p
	}
	if r.pool.late || earlier.late {
		return nil
	}
	before := earlier.sets(&f.then)
	came := sets.used.without(&before.used, r.share.Range)
	went := before.used.without(&sets.used, r.share.Range)
	r.RateKnown = true
	r.NewPerSecond, r.EndedPerSecond = float64(came)/f.q.Seconds, float64(went)/f.q.Seconds
	r.SecondsLeft = SecondsLeft(r.share.Size(), int(r.Used), int64(came), int64(went), f.q.Seconds)
	fresh := sets.used
	for w, bits := range before.used {
		fresh[w] &^= bits
	}
	return &fresh
}

// chance fills in how likely a new connection is to fail.
func (r *row) chance(out *snapshot.Ports, sets *many, fresh *Set) {
	used := &sets.used
	r.FailsIfKept = FailChance(used, nil, r.share.Range, out.Probing)
	r.FailsIfTaken = r.FailsIfKept
	if out.Evicts && sets.evictable != nil {
		r.FailsIfTaken = FailChance(used, sets.evictable, r.share.Range, out.Probing)
	}
	r.FailsScattered = ScatteredChance(int(r.Used), r.share.Size(), out.Probing)
	r.TakenShare, r.TakenFrom = r.taken(sets, fresh)
	r.Fails = r.TakenShare * r.FailsIfTaken
}

// taken is how often the preferred port is taken, and what that is from.
func (r *row) taken(sets *many, fresh *Set) (share float64, from string) {
	if r.share.draws {
		return 1, fromDraws
	}
	from = fromAll
	kept, moved := r.origins(sets, &sets.used)
	if fresh != nil {
		if k, m := r.origins(sets, fresh); k+m >= fewNew {
			kept, moved, from = k, m, fromNew
		}
	}
	share, seen := takenShare(kept, moved, r.FailsIfTaken, r.Share)
	if !seen {
		from = fromUse
	}
	return share, from
}

// origins counts the ports of translated connections that were kept, and those
// that were drawn.
func (r *row) origins(m *many, of *Set) (kept, moved int64) {
	for w := int(r.share.First) / 64; w <= int(r.share.Last)/64; w++ {
		bits := of[w] & r.share.word(w) &^ m.local[w] &^ m.inbound[w]
		moved += int64(ones(bits & m.moved[w]))
		kept += int64(ones(bits &^ m.moved[w]))
	}
	return kept, moved
}
