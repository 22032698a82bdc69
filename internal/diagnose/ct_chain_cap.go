package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

const (
	// slowChain is the mean chain length from which every lookup of a packet walks so
	// far that a kernel without a cap (before 5.15) spends its time there.
	slowChain = 16
	// lossIsCritical is the share of new connections whose loss users notice at once.
	lossIsCritical = 0.001
)

// ctChainCap: there is room in the table, but too few hash buckets for it. Since 5.15
// the kernel refuses a connection whose hash chain is too long already.
//
// How long a chain may be is drawn at random for each insertion, and differs between
// versions and their stable updates (8 to 79), so only the counter tells.
var ctChainCap = Rule{
	ID:    "ct-chain-cap",
	Title: "too few hash buckets",
	Check: checkChainCap,
}

func checkChainCap(rec *snapshot.Recording) (*Finding, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	r, ok := t.refused()
	if !ok {
		return nil, Check{State: NotChecked, Why: t.noCounters()}
	}
	if t.buckets == 0 {
		return nil, Check{State: NotChecked, Why: "the number of hash buckets is not known"}
	}
	seen := fmt.Sprintf("hash chains of %s entries on average in %s buckets", units.Fixed(t.chainLength(), 1), units.Count(t.buckets))
	switch {
	case r.chains > 0:
		return t.chainsRefused(r), Check{Why: fmt.Sprintf("%s, %s refused", seen, units.Plural(r.chains, "connection", "connections"))}
	case r.chainsKnown:
		return nil, Check{State: OK, Why: seen + ", none refused"}
	case t.chainLength() >= slowChain:
		return t.chainsSlow(), Check{Why: seen + "; this kernel has no counter of refusals (chaintoolong, Linux 5.15)"}
	}
	return nil, Check{State: OK, Why: seen}
}

// chainLength is the mean one now, with what other namespaces have in the same hash.
func (t *table) chainLength() float64 {
	return capacity.ChainLength(t.count+t.facts().OtherEntries, t.buckets)
}

func (t *table) chainsRefused(r refused) *Finding {
	f := &Finding{
		Severity:   Critical,
		Confidence: "certain",
		Title:      "new connections are dropped: the hash chains of the connection table are too long",
		Evidence:   append(t.counters("chaintoolong", "insert_failed", "drop"), t.chainEvidence()...),
		Cause: fmt.Sprintf("%s entries in %s hash buckets: the limit (net.netfilter.nf_conntrack_max) was raised and the buckets were not",
			units.Count(t.count+t.facts().OtherEntries), units.Count(t.buckets)),
		Consequence: "part of the new connections is dropped without an answer, the more the fuller the table becomes, long before it is full; nothing is logged, and the counter drop stays as it is; every packet takes longer to look up",
		Remedies:    t.bucketRemedies(),
	}
	if share, ok := t.lostShare(r.chains); ok {
		f.Evidence = append(f.Evidence, Evidence{What: "of new connections", Value: round2(100 * share), Unit: "% refused", Source: "chaintoolong against new entries of two dumps"})
		if share < lossIsCritical {
			f.Severity = Warning
		}
	}
	return f
}

// lostShare is which part of new connections n lost ones are; false where the rate of
// new ones is not known.
func (t *table) lostShare(n int64) (float64, bool) {
	s := t.rec.Seconds()
	if t.rec.Flows == nil || s <= 0 {
		return 0, false
	}
	lost := float64(n) / s
	return lost / max(lost, lost+t.rec.Flows.TotalPerSecond), lost > 0
}

func (t *table) chainsSlow() *Finding {
	return &Finding{
		Severity:    Warning,
		Confidence:  "likely",
		Title:       "lookups in the connection table are slow: its hash chains are long",
		Evidence:    append(t.chainEvidence(), cpuEvidence(t.rec.Profile)...),
		Cause:       "the limit (net.netfilter.nf_conntrack_max) was raised and the hash buckets were not",
		Consequence: "every packet walks half a chain, every new connection two whole ones: CPU time in softirq; Linux 5.15 and later would refuse part of the new connections",
		Remedies:    t.bucketRemedies(),
	}
}

func (t *table) chainEvidence() []Evidence {
	e := []Evidence{
		{What: "tracked connections", Value: t.count, Source: snapshot.ConntrackCount},
		{What: "hash buckets", Value: t.buckets, Source: snapshot.ConntrackBuckets},
		{What: "limit", Value: t.max, Source: snapshot.ConntrackMax},
	}
	if other := t.facts().OtherEntries; other > 0 {
		e = append(e, Evidence{What: "tracked in other namespaces", Value: other, Unit: "entries, about", Source: "size of the slab nf_conntrack"})
	}
	return append(e, Evidence{What: "mean length of a hash chain", Value: round1(t.chainLength()), Unit: "entries", Source: "2 × entries / buckets"})
}

// bucketRemedies give each entry of a full table a bucket of its own.
func (t *table) bucketRemedies() []Remedy {
	s := t.size(false)
	if !t.needsBuckets(s) {
		return []Remedy{{
			Title: "look for addresses that were chosen to collide, and for another namespace with many entries",
			Risk:  "the buckets are as many as the limit already: more of them only take memory",
		}}
	}
	if !t.mayResize(s) {
		return []Remedy{t.resize(s)}
	}
	r := remedy("raise the number of hash buckets", []tune.Change{t.bucketChange(s)}, t.facts())
	r.Automatic = true
	r.Predicts = r.Changes[0].Why
	return []Remedy{r}
}
