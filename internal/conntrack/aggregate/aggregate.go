package aggregate

import (
	"iter"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/tally"
)

// Aggregator counts entries by keys, in bounded memory: exactly while all groups fit,
// else with an error that it knows (package tally). Adding an entry allocates nothing,
// except for what its table grows by.
type Aggregator struct {
	keys []Key
	// tables has one for each version of IP where there are addresses among the keys:
	// an IPv4 group then takes no more memory than it has to.
	tables  [versions]*tally.Table
	offsets [versions][]int
	// apart says that there are two tables. snatOnly says that the only addresses are
	// those that the source became: entries that have none are of no version then.
	apart    bool
	snatOnly bool
	scratch  [keysMax * 16]byte
}

// Memory bounds what an Aggregator takes.
type Memory struct {
	Budget *tally.Budget
	// Reserve is kept for each of its tables.
	Reserve int64
	// Seed keys the hashes. It should be random; it changes no result.
	Seed uint64
}

// New makes an Aggregator for keys of ParseKeys.
func New(keys []Key, m Memory) *Aggregator {
	a := &Aggregator{keys: keys, snatOnly: true}
	for i := range keys {
		a.apart = a.apart || keys[i].kind.isAddress()
		a.snatOnly = a.snatOnly && (keys[i].kind == snatAddress || !keys[i].kind.isAddress())
	}
	for v := range versions {
		if v > 0 && !a.apart {
			a.tables[v], a.offsets[v] = a.tables[0], a.offsets[0]
			break
		}
		width := 0
		for i := range keys {
			a.offsets[v] = append(a.offsets[v], width)
			width += keys[i].width(v)
		}
		a.tables[v] = tally.New(width, m.Seed, m.Budget, m.Reserve)
	}
	return a
}

// Keys are those that entries are grouped by.
func (a *Aggregator) Keys() []Key { return a.keys }

// Add counts one entry. It keeps nothing of it.
func (a *Aggregator) Add(e *conntrack.Entry) {
	v := versionOf(e.Orig.Src)
	if a.snatOnly && !e.IsSNAT() {
		v = v4
	}
	group := a.scratch[:0]
	for i := range a.keys {
		group = a.keys[i].append(group, v, e)
	}
	a.tables[v].Add(group)
}

// each yields the tables that there are.
func (a *Aggregator) each(fn func(v version, t *tally.Table)) {
	fn(v4, a.tables[v4])
	if a.apart {
		fn(v6, a.tables[v6])
	}
}

// Entries is how many were added.
func (a *Aggregator) Entries() (n int64) {
	a.each(func(_ version, t *tally.Table) { n += int64(t.Total()) })
	return n
}

// Len is the number of groups, of those that are told apart.
func (a *Aggregator) Len() (n int) {
	a.each(func(_ version, t *tally.Table) { n += t.Len() })
	return n
}

// Exact reports whether all groups found room.
func (a *Aggregator) Exact() bool {
	exact := true
	a.each(func(_ version, t *tally.Table) { exact = exact && t.Exact() })
	return exact
}

// Bound is by how much a count can be too high, and how many entries a group can have
// that is not there; 0 while counts are exact.
func (a *Aggregator) Bound() (n int64) {
	a.each(func(_ version, t *tally.Table) { n = max(n, int64(t.Bound())) })
	return n
}

// Group is what entries have in common, and how many there are.
type Group struct {
	of      *Aggregator
	version version
	key     []byte
	// Entries is their number; Excess is by how much it can be too high.
	Entries, Excess int64
}

func (g Group) value(i int) (*Key, []byte) {
	k := &g.of.keys[i]
	from := g.of.offsets[g.version][i]
	return k, g.key[from : from+k.width(g.version)]
}

// Groups yields the top groups (0: all) of at least so many entries, the largest first,
// equals in the order of their values.
func (a *Aggregator) Groups(top int, atLeast int64) iter.Seq[Group] {
	var lists [versions][]uint32
	a.each(func(v version, t *tally.Table) { lists[v] = t.Top(top, uint64(max(atLeast, 0))) })
	return func(yield func(Group) bool) {
		for n := 0; top <= 0 || n < top; n++ {
			v := a.next(&lists)
			if len(lists[v]) == 0 || !yield(a.group(v, lists[v][0])) {
				return
			}
			lists[v] = lists[v][1:]
		}
	}
}

// next is the version whose first group comes first.
func (a *Aggregator) next(lists *[versions][]uint32) version {
	switch {
	case len(lists[v6]) == 0:
		return v4
	case len(lists[v4]) == 0:
		return v6
	}
	first, second := a.tables[v4].Row(lists[v4][0]), a.tables[v6].Row(lists[v6][0])
	if second.Count > first.Count {
		return v6
	}
	return v4
}

func (a *Aggregator) group(v version, number uint32) Group {
	r := a.tables[v].Row(number)
	return Group{of: a, version: v, key: r.Key, Entries: int64(r.Count), Excess: int64(r.Excess)}
}
