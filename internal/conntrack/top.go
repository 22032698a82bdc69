package conntrack

import (
	"cmp"
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// top counts how often each key comes, in bounded memory (Misra and Gries,
// "Finding repeated elements", 1982): while there are at most limit different
// keys the counts are exact; with n additions of more keys a count is too low by
// at most n/(limit+1), and never too high.
type top[K comparable] struct {
	limit  int
	counts map[K]int64
}

func newTop[K comparable](limit int) *top[K] {
	return &top[K]{limit: limit, counts: make(map[K]int64)}
}

func (t *top[K]) add(k K) {
	if n, ok := t.counts[k]; ok || len(t.counts) < t.limit {
		t.counts[k] = n + 1
		return
	}
	// k and one of each kept key cancel each other out. As every round takes back
	// limit additions, it costs a constant per addition over time.
	for other, n := range t.counts {
		if n == 1 {
			delete(t.counts, other)
		} else {
			t.counts[other] = n - 1
		}
	}
}

// counted is a key and how often it came.
type counted[K comparable] struct {
	key K
	n   int64
}

// largest are the n keys with the most additions; equals by name.
func (t *top[K]) largest(n int, name func(K) string) []counted[K] {
	all := make([]counted[K], 0, len(t.counts))
	for k, c := range t.counts {
		all = append(all, counted[K]{k, c})
	}
	slices.SortFunc(all, func(a, b counted[K]) int { return cmp.Compare(b.n, a.n) })
	// Names only where the count can be among the first n: they cost an allocation.
	if len(all) > n {
		least := all[n-1].n
		end := n
		for end < len(all) && all[end].n == least {
			end++
		}
		all = all[:end]
	}
	slices.SortFunc(all, func(a, b counted[K]) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(name(a.key), name(b.key)))
	})
	return all[:min(n, len(all))]
}

// talkers are the n keys with the most additions; equals by name.
func (t *top[K]) talkers(n int, name func(K) string) []snapshot.Talker {
	out := make([]snapshot.Talker, 0, n)
	for _, c := range t.largest(n, name) {
		out = append(out, snapshot.Talker{Who: name(c.key), Entries: c.n})
	}
	return out
}
