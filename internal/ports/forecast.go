package ports

import (
	"math"
	"math/bits"
	"net/netip"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// forever is longer than anybody waits.
const forever = 30 * 86400

// Never is SecondsLeft where the ports do not run out, or where it is not known.
const Never = -1

// SecondsLeft is how long the ports of a range last: used of size now, which grew
// by came and shrank by went in so many seconds. The connections' mean lifetime is
// taken from what went; at the present rate the ports then come to a level, and if
// that is below the range they last forever. A growth that chance explains (two
// standard deviations of arrivals and departures) is none. Where none went, every
// port is held for longer than the time that was watched, and the growth goes on.
func SecondsLeft(size, used int, came, went int64, seconds float64) float64 {
	left := float64(size - used)
	net := float64(came - went)
	if seconds <= 0 || net <= 2*math.Sqrt(float64(came+went)) {
		if left <= 0 && came > 0 {
			return 0
		}
		return Never
	}
	if left <= 0 {
		return 0
	}
	rate := float64(came) / seconds
	if went == 0 {
		return bounded(left / rate)
	}
	// du/dt = rate - u/lifetime. The number in use was, on average, the mean of what
	// it was before and after.
	lifetime := (float64(used) - net/2) * seconds / float64(went)
	level := rate * lifetime
	if level <= float64(size) {
		return Never
	}
	return bounded(lifetime * math.Log((level-float64(used))/(level-float64(size))))
}

func bounded(seconds float64) float64 {
	if !(seconds < forever) {
		return Never
	}
	return max(0, seconds)
}

// takenShare is how often the preferred port of a new connection is taken, from
// the ports that new connections kept and from those that were moved: as a part of
// fails of the moved ones is not seen, each stands for 1/(1-fails). Where there
// are few, or where none that is moved survives, the part of the range that is in
// use counts.
func takenShare(kept, moved int64, fails, usedShare float64) (share float64, seen bool) {
	survive := 1 - fails
	if kept+moved == 0 || survive < 0.005 {
		return usedShare, false
	}
	was := float64(moved) / survive
	return (was + usedShare) / (float64(kept) + was + 1), true
}

// The kernel's search (nf_nat_l4proto_unique_tuple, net/netfilter/nf_nat_core.c):
// a first window of consecutive ports from a random start, then windows half as
// long from other ones, the last of 8; a range no longer than the first window is
// looked at once, whole.
const (
	firstWindow = 128
	lastWindow  = 8
	// evictTries at the end of every window may take the port of a TCP connection
	// that has ended (NF_NAT_HARDER_THRESH, Linux 6.6).
	evictTries = 32
)

// offsets is how many random starts there are: a 16-bit number, which also wraps
// as one, and is then taken modulo the size of the range. So the first ports of a
// range are a little likelier to be looked at than the last ones, and a window
// that wraps goes on at the beginning.
const offsets = 1 << 16

// windows are the lengths of what the kernel looks at one after the other.
func windows(size int) []int {
	if size <= firstWindow {
		return []int{size}
	}
	var lengths []int
	for n := firstWindow; n >= lastWindow; n /= 2 {
		lengths = append(lengths, n)
	}
	return lengths
}

// FailChance is the chance that the kernel finds no port for a connection whose
// preferred one is taken, or which is to have a random one: exactly, for these
// used ports. Of the used ports evictable ones are not in the way in the last
// tries of a window; nil is none. The time is proportional to the number of ports.
func FailChance(used, evictable *Set, r nat.Ports, probing string) float64 {
	if probing == snapshot.PortProbeAll {
		if used.Count(r) == r.Len() {
			return 1
		}
		return 0
	}
	if used.Count(r) < leastUsed(r.Len()) {
		return 0
	}
	runs := findRuns(used, evictable, r)
	chance := 1.0
	for _, n := range windows(r.Len()) {
		chance *= float64(runs.blocked(n)) / offsets
	}
	return chance
}

// leastUsed is the least number of used ports that can fill a first window. One
// that wraps with the 16-bit number looks at some ports twice, but at least at the
// longer of its two parts.
func leastUsed(size int) int { return (min(size, firstWindow) + 1) / 2 }

// runs are the lengths of the used ports' blocks from each offset on, up to 255.
// hard leaves out evictable ports.
type runs struct{ used, hard []uint8 }

func findRuns(used, evictable *Set, r nat.Ports) runs {
	const all = offsets + firstWindow
	found := runs{used: make([]uint8, all), hard: make([]uint8, all)}
	var inUsed, inHard uint8
	for i := all - 1; i >= 0; i-- {
		p := r.First + uint16(i%offsets%r.Len())
		switch {
		case !used.Has(p):
			inUsed, inHard = 0, 0
		case evictable.Has(p):
			inUsed, inHard = longer(inUsed), 0
		default:
			inUsed, inHard = longer(inUsed), longer(inHard)
		}
		found.used[i], found.hard[i] = inUsed, inHard
	}
	return found
}

func longer(run uint8) uint8 {
	if run < 255 {
		run++
	}
	return run
}

// blocked counts the starts from which a window of n ports has no free one.
func (r *runs) blocked(n int) int {
	tail := min(n, evictTries)
	count := 0
	for i := range offsets {
		if int(r.used[i]) >= n && int(r.hard[i+n-tail]) >= tail {
			count++
		}
	}
	return count
}

// ScatteredChance is the chance of FailChance where so many used ports lie in the
// range by chance, as random ones do after some time.
func ScatteredChance(used, size int, probing string) float64 {
	if used >= size {
		return 1
	}
	if probing == snapshot.PortProbeAll {
		return 0
	}
	chance := 1.0
	for _, n := range windows(size) {
		for i := range n {
			chance *= max(0, float64(used-i)/float64(size-i))
		}
	}
	return chance
}

// From here on it is of interest what another rule would change.
const (
	pressedFails = 1e-4
	pressedShare = 0.8
)

// alternatives computes what other rules would change.
func (r *row) alternatives(out *snapshot.Ports, sets *many) []snapshot.PortAlternative {
	var all []snapshot.PortAlternative
	if !r.share.draws {
		// Every new connection then draws, and after some time all ports were drawn.
		all = append(all, snapshot.PortAlternative{What: snapshot.PortsFullyRandom,
			FailsNow: r.FailsIfTaken, FailsLater: r.FailsScattered})
	}
	if whole := DefaultRange(r.key.proto, classOther); r.share.class == classOther && r.share.Len() < whole.Len() {
		all = append(all, r.longer(out, sets, whole))
	}
	// Connections are spread over the addresses by a hash of source and destination
	// (find_best_ips_proto), and a new address is empty.
	half := ScatteredChance(int(r.Used)/2, r.share.Len(), out.Probing)
	return append(all, snapshot.PortAlternative{What: snapshot.PortsAnotherAddress,
		FailsNow: r.Fails / 2, FailsLater: r.TakenShare * half})
}

// longer is the whole range, in which most clients' own ports lie: those that are
// taken are as many as by chance.
func (r *row) longer(out *snapshot.Ports, sets *many, whole nat.Ports) snapshot.PortAlternative {
	used := sets.used.Count(whole)
	takenThen := 1.0
	if !r.share.draws {
		takenThen = float64(used) / float64(whole.Len())
	}
	var evictable *Set
	if out.Evicts {
		evictable = sets.with(isEvictable)
	}
	return snapshot.PortAlternative{What: snapshot.PortsLongerRange,
		FailsNow:   takenThen * FailChance(&sets.used, evictable, whole, out.Probing),
		FailsLater: takenThen * ScatteredChance(used, whole.Len(), out.Probing)}
}

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
	if f.q.Complete && !r.pool.late && (pressed || r.Used < int64(leastUsed(r.share.Len()))) {
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
		if r.share.Contains(t.port) && t.marks&isInbound == 0 {
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
		r.NewPerSecond = float64(sets.with(isYoung).Count(r.share.Ports)) / youngSeconds
		if young := sets.with(isYoung); young != nil {
			return young
		}
		return &Set{}
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
	came := sets.used.without(&before.used, r.share.Ports)
	went := before.used.without(&sets.used, r.share.Ports)
	r.RateKnown = true
	r.NewPerSecond, r.EndedPerSecond = float64(came)/f.q.Seconds, float64(went)/f.q.Seconds
	r.SecondsLeft = SecondsLeft(r.share.Len(), int(r.Used), int64(came), int64(went), f.q.Seconds)
	fresh := sets.used
	for w, bits := range before.used {
		fresh[w] &^= bits
	}
	return &fresh
}

// chance fills in how likely a new connection is to fail.
func (r *row) chance(out *snapshot.Ports, sets *many, fresh *Set) {
	used := &sets.used
	r.FailsIfKept = FailChance(used, nil, r.share.Ports, out.Probing)
	r.FailsIfTaken = r.FailsIfKept
	if evictable := sets.with(isEvictable); out.Evicts && evictable != nil {
		r.FailsIfTaken = FailChance(used, evictable, r.share.Ports, out.Probing)
	}
	r.FailsScattered = ScatteredChance(int(r.Used), r.share.Len(), out.Probing)
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
		ports := of[w] & wordOf(r.share.Ports, w) &^ m.with(isLocal).word(w) &^ m.with(isInbound).word(w)
		drawn := m.with(isMoved).word(w)
		moved += int64(bits.OnesCount64(ports & drawn))
		kept += int64(bits.OnesCount64(ports &^ drawn))
	}
	return kept, moved
}
