package ports

import (
	"math"
	"math/bits"
	"net/netip"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// forever, in seconds, is longer than a forecast is of use.
const forever = 30 * 86400

// Never is SecondsLeft where the ports do not run out, or where it is not known.
const Never = -1

// SecondsLeft estimates how long a range's ports last: used of size now, came and went in the given
// seconds. The mean lifetime follows from what went; with it the ports approach a level, and last
// forever if that is below size. A growth within chance (two standard deviations of arrivals and
// departures) is none. If none went, the growth continues.
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
	// du/dt = rate - u/lifetime, with u the mean of the numbers in use before and after.
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

// takenShare returns how often the preferred port of a new connection is taken, from those kept and
// moved: as a share of fails of the moved ones failed, each stands for 1/(1-fails). With few, or
// if none that moved survives, it is the share of the range in use.
func takenShare(kept, moved int64, fails, usedShare float64) (share float64, seen bool) {
	survive := 1 - fails
	if kept+moved == 0 || survive < 0.005 {
		return usedShare, false
	}
	was := float64(moved) / survive
	return (was + usedShare) / (float64(kept) + was + 1), true
}

// The kernel's search (nf_nat_l4proto_unique_tuple, net/netfilter/nf_nat_core.c): a first window
// of consecutive ports from a random start, then half as long ones down to 8; a range no longer
// than the first window is searched once, whole.
const (
	firstWindow = 128
	lastWindow  = 8
	// evictTries at the end of a window may evict a closed TCP connection (NF_NAT_HARDER_THRESH,
	// Linux 6.6).
	evictTries = 32
)

// offsets is the number of random starts: 16 bits, taken modulo the size of the range. So the
// first ports are a little likelier than the last ones, and a window wraps to the beginning.
const offsets = 1 << 16

// windows are the lengths of the kernel's windows, in order.
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

// FailChance is the exact chance that the kernel finds no port for a connection whose preferred
// one is taken, or which needs a random one. Evictable ports are free in the last tries of a
// window; nil is none. The time is proportional to the number of ports.
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

// leastUsed is the least number of used ports that fills a first window: one that wraps sees some
// ports twice, but at least the longer of its two parts.
func leastUsed(size int) int { return (min(size, firstWindow) + 1) / 2 }

// runs are the lengths of used blocks from each offset, up to 255. hard excludes evictable ports.
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

// ScatteredChance is FailChance of randomly used ports.
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
	if whole := DefaultRange(r.key.proto); r.share.class == classOther && r.share.Len() < whole.Len() {
		all = append(all, r.longer(out, sets, whole))
	}
	// Connections are spread over the addresses by a hash of source and destination
	// (find_best_ips_proto), and a new address is empty.
	half := ScatteredChance(int(r.Used)/2, r.share.Len(), out.Probing)
	return append(all, snapshot.PortAlternative{What: snapshot.PortsAnotherAddress,
		FailsNow: r.Fails / 2, FailsLater: r.TakenShare * half})
}

// longer is the whole range, with most clients' own ports: taken as often as by chance.
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

// Values of TakenFrom.
const (
	fromDraws = "the rule draws a port for every connection"
	fromNew   = "new connections"
	fromAll   = "all connections"
	fromUse   = "the share of ports in use"
)

// fewNew connections are needed to predict the ports of the next ones.
const fewNew = 20

// filler adds what has to be computed to rows.
type filler struct {
	*Collector
	q   *Query
	out *snapshot.Ports
	// now and then are where the sets of small pools are made.
	now, then many
}

// fill adds rate, users and chance; the chance of a pool that is not pressed only if it is
// trivial.
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

// users are the sources with most ports of the row's range. In a large pool a port's owner is
// unknown; then the rule's sources decide.
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

// rate sets the rates, and returns the ports of new connections; nil if unknown.
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

// taken returns how often the preferred port is taken, and the source of that number.
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

// origins counts the ports of translated connections that were kept and drawn.
func (r *row) origins(m *many, of *Set) (kept, moved int64) {
	for w := int(r.share.First) / 64; w <= int(r.share.Last)/64; w++ {
		ports := of[w] & wordOf(r.share.Ports, w) &^ m.with(isLocal).word(w) &^ m.with(isInbound).word(w)
		drawn := m.with(isMoved).word(w)
		moved += int64(bits.OnesCount64(ports & drawn))
		kept += int64(bits.OnesCount64(ports &^ drawn))
	}
	return kept, moved
}
