package diagnose

import (
	"cmp"
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
)

// checkTableFull: the kernel is dropping new connections now, because the table is full.
//
// `drop` counts packets that the tracker drops: a full table, no memory, or a
// clash that could not be resolved. A clash counts in insert_failed as well, so only
// the surplus of drop speaks for a full table (snapshot.DecodeTracker).
func (t *table) checkTableFull() (*Finding, Check) {
	dropped, haveCounters := t.surplusDrops()
	lines, suppressed := t.logLines()
	switch {
	case t.firstMax != t.max && !t.full() && (lines > 0 || dropped > 0 || !haveCounters):
		return unknown(fmt.Sprintf("%s; the limit was %s a moment ago: run doctor again", t.usage(), units.Count(t.firstMax)))
	case !haveCounters && lines == 0 && t.full():
		return unknown(t.usage() + ", but whether it drops is unknown: " + t.noCounters())
	case lines == 0 && t.loggedOnce():
		return unknown(t.notDropping())
	case lines == 0 && dropped == 0:
		return passed(t.notDropping())
	case lines == 0 && !t.full() && t.seenFull() == 0:
		return nil, Check{State: NotChecked, Why: t.usage() + t.droppedText(dropped, true) +
			" for another reason, or the table was full only in between: use a longer --for"}
	}
	f := worded("ct-table-full", append(t.evidence(), t.drops()...), t.remedies(true),
		t.cause("net.netfilter.nf_conntrack_max is too small for the connections at hand"))
	f.SinceSeconds = loggedSince(t.rec, func(l snapshot.LogLine) bool { return isTableFull(l.Text) && t.concerns(l) })
	if t.flooded() {
		of := "connections without an answer"
		if t.halfOpen() > mostlyHalfOpen {
			of = "half-open connections"
		}
		f.Title = fmt.Sprintf("the connection table is full of %s, as a flood makes them: new connections are dropped", of)
	}
	if lines > 0 {
		f.Evidence = append(f.Evidence, Evidence{What: "kernel log: \"table full\"", Value: lines, Unit: "lines", Source: "/dev/kmsg"})
		if suppressed > 0 {
			f.Evidence = append(f.Evidence, Evidence{What: "kernel log: suppressed", Value: suppressed, Unit: "lines", Source: "/dev/kmsg"})
		}
	}
	if lines > 0 || t.seenFull() > 0 || (haveCounters && t.count >= t.max) {
		f.Confidence = "certain"
	}
	return f, Check{Why: t.usage() + t.droppedText(dropped, haveCounters)}
}

// checkFull is checkTableFull; where the size of the table or its limit is not known, the kernel log alone decides.
func checkFull(rec *snapshot.Recording) (*Finding, Check) {
	t, end := readTable(rec)
	if t != nil {
		return t.checkTableFull()
	}
	lines := newLines(rec, tableFull)
	if len(lines) == 0 {
		return nil, end
	}
	f := worded("ct-table-full", []Evidence{{What: "kernel log: \"table full\"", Value: int64(len(lines)), Unit: "lines", Source: "/dev/kmsg"}},
		[]Remedy{advice("table-see"), advice("notrack"), advice("spread-connections")},
		"net.netfilter.nf_conntrack_max was too small for the connections at hand, of this network namespace or another; how many they are is not known")
	f.SinceSeconds = loggedSince(rec, func(l snapshot.LogLine) bool { return isTableFull(l.Text) })
	if rec.SinceStart || rec.NoUptime { // it may be long ago
		f.Severity, f.Confidence = Warning, "possible"
		f.Title = "the connection table was full, and new connections were dropped; whether it still is, is not known"
	}
	return f, Check{Why: fmt.Sprintf("the kernel logged a full table %s", units.Plural(int64(len(lines)), "time", "times"))}
}

// surplusDrops are the drops that no failed insertion explains.
func (t *table) surplusDrops() (int64, bool) {
	l, ok := t.losses()
	return l.NoRoom, ok
}

func (t *table) droppedText(dropped int64, known bool) string {
	if !known {
		return ""
	}
	return fmt.Sprintf(", %s drops", units.Count(dropped))
}

// notDropping is the good news, with the last time that it was otherwise.
func (t *table) notDropping() string {
	why := t.usage()
	if d, ok := t.delta("drop"); ok {
		why += t.droppedText(d, true)
	}
	switch ago, ok := t.lastLogged(); {
	case ok && t.rec.NoUptime:
		why += "; the kernel logged a full table, and how long ago is not known: it takes /proc/uptime, or the log and the counters twice"
	case ok:
		why += fmt.Sprintf("; the kernel last logged a full table %s ago", units.Roughly(ago))
	}
	return why
}

// loggedOnce reports whether the kernel logged a full table at a time that is not known or, where texts are of one time
// alone, so lately that it may go on: what is dropped now one reading of the counters does not tell.
func (t *table) loggedOnce() bool {
	const lately = 3600
	ago, ok := t.lastLogged()
	return ok && (t.rec.NoUptime || t.rec.SinceStart && ago < lately)
}

const (
	// nearFull is the share of the limit from which a table that stays so is
	// worth a warning.
	nearFull = 0.80
	// settled is how long, in seconds, a rate must have lasted before it is
	// believed to last: a shorter ramp predicts nothing.
	settled = 30
)

// checkTableNearFull: the table is above 80 % and not only for a moment, or the
// present rates lead beyond the limit.
//
// How long the rates have lasted is read from the ages of the entries in the
// states in which short flows end: age = timeout - seconds left.
func (t *table) checkTableNearFull() (*Finding, Check) {
	if full, _ := t.checkTableFull(); full != nil {
		return passed("it is full, see ct-table-full")
	}
	if l, _ := t.losses(); l.Evicted > 0 && t.full() {
		return passed("it is at its limit, see ct-early-drop")
	}
	steady, forecast := t.steady(), t.forecast()
	seen := t.usage()
	if forecast > t.count {
		seen += fmt.Sprintf(", present rates lead to %s", units.Count(forecast))
	}
	above := float64(steady) > nearFull*float64(t.max)
	switch {
	case !above && t.rec.Last().Table == nil:
		return unknown(seen + "; where the present rates lead is unknown: " + t.noDump())
	case !above && forecast <= t.max:
		return passed(seen)
	}
	f := worded("ct-table-near-full", t.evidence(), t.remedies(false),
		t.cause("net.netfilter.nf_conntrack_max leaves little room"))
	if forecast > t.max {
		if !above && !t.flooded() {
			f.Cause = fmt.Sprintf("net.netfilter.nf_conntrack_max is %s, and the present rates lead to %s entries", units.Count(t.max), units.Count(forecast))
		}
		f.Title = "the connection table will be full at the present rates"
		f.Evidence = append(f.Evidence, Evidence{What: "present rates lead to", Value: forecast, Unit: "entries",
			Source: fmt.Sprintf("rate of the last %d s × timeout", settled)})
	}
	return f, Check{Why: seen}
}

// noDump returns why nothing is known of the entries.
func (t *table) noDump() string {
	return cmp.Or(t.rec.Last().PartError(snapshot.PartTable), "the connection table was not read")
}

// ending are the classes in which short flows end and wait for their timeout, so
// that their creation follows from the time left.
var ending = []string{"tcp/TIME_WAIT", "tcp/SYN_SENT", "udp/stream"}

// ages returns how many entries (of the whole table) came into a class between
// from and to seconds ago.
func (t *table) ages(class string, from, to float64) float64 {
	tab := t.rec.Last().Table
	if tab == nil || tab.Sampled == 0 {
		return 0
	}
	timeout := capacity.Lifetime(class, t.rec.Last().Sysctls)
	n := 0.0
	for i, entries := range tab.Remaining[class] {
		age := timeout - (float64(i)+0.5)*snapshot.RemainingStep
		if age >= from && age < to {
			n += float64(entries)
		}
	}
	return n * t.scale()
}

// steady is the count without what a ramp of the last half minute added.
func (t *table) steady() int64 {
	ramp := 0.0
	for _, class := range ending {
		timeout := capacity.Lifetime(class, t.rec.Last().Sysctls)
		if older := timeout - settled; older > 0 {
			ramp += t.ages(class, 0, settled) - settled*t.ages(class, settled, timeout)/older
		}
	}
	if s := t.rec.Seconds(); s > 0 {
		growth := float64(t.count-t.before) / s
		ramp = math.Max(ramp, settled*growth)
	}
	return min(t.count, t.before, t.count-int64(math.Max(0, ramp)))
}

// forecast is the number of entries that the short flows lead to if they go on as
// they did throughout the last half minute, with what is held anyway.
func (t *table) forecast() int64 {
	held := float64(t.held())
	var classes []capacity.Class
	for _, class := range ending {
		timeout := capacity.Lifetime(class, t.rec.Last().Sysctls)
		rate := min(t.ages(class, 0, 10), t.ages(class, 10, 20), t.ages(class, 20, settled)) / 10
		classes = append(classes, capacity.Class{Name: class, PerSecond: rate, LifetimeSeconds: timeout})
		if class == "udp/stream" && rate > 0 { // the other classes are not held
			held -= t.ages(class, 0, timeout)
		}
	}
	return int64(math.Max(0, held)) + capacity.Steady(classes, t.groups())
}

// checkEarlyDrop: at the limit the kernel evicts entries that have seen no answer or
// are not assured yet, to make room (early_drop in nf_conntrack_core.c). Nothing
// is refused so far, but connections that are being set up are forgotten.
func (t *table) checkEarlyDrop() (*Finding, Check) {
	l, ok := t.losses()
	if !ok {
		return unknown(t.noCounters())
	}
	seen := units.Count(l.Evicted) + " evicted"
	switch {
	case l.Evicted == 0:
		return passed(seen)
	case t.rec.SinceStart && !t.full():
		return unknown(seen + onlySum)
	}
	return worded("ct-early-drop", t.evidence(), t.remedies(true),
		t.cause("the table has reached net.netfilter.nf_conntrack_max")), Check{Why: seen}
}

const (
	// slowChain is the mean chain length from which every lookup of a packet walks so
	// far that a kernel without a cap (before 5.15) spends its time there.
	slowChain = 16
	// lossIsCritical is the share of new connections whose loss users notice at once.
	lossIsCritical = 0.001
)

// checkChainCap: there is room in the table, but too few hash buckets for it. Since 5.15
// the kernel refuses a connection whose hash chain is too long already.
//
// How long a chain may be is drawn at random for each insertion, and differs between
// versions and their stable updates (8 to 79), so only the counter is conclusive.
func (t *table) checkChainCap() (*Finding, Check) {
	l, ok := t.losses()
	if !ok {
		return unknown(t.noCounters())
	}
	if t.buckets == 0 {
		return unknown("the number of hash buckets is not known")
	}
	seen := fmt.Sprintf("hash chains of %s entries on average in %s buckets", units.Fixed(t.chainLength(), 1), units.Count(t.buckets))
	switch {
	case l.Chains > 0 && t.rec.SinceStart:
		return unknown(fmt.Sprintf("%s, %s refused%s", seen, units.Plural(l.Chains, "connection", "connections"), onlySum))
	case l.Chains > 0:
		return t.chainsRefused(l), Check{Why: fmt.Sprintf("%s, %s refused", seen, units.Plural(l.Chains, "connection", "connections"))}
	case l.ChainsKnown:
		return passed(seen + ", none refused")
	case t.chainLength() >= slowChain:
		return t.chainsSlow(), Check{Why: seen + "; this kernel has no counter of refusals (chaintoolong, Linux 5.15)"}
	}
	return passed(seen)
}

// chainLength is the mean one now, with what other namespaces have in the same hash.
func (t *table) chainLength() float64 {
	return capacity.ChainLength(t.count+t.facts().OtherEntries, t.buckets)
}

func (t *table) chainsRefused(l snapshot.TrackerLosses) *Finding {
	f := worded("ct-chain-cap", append(t.counters("chaintoolong", "insert_failed", "drop"), t.chainEvidence()...),
		t.bucketRemedies(), units.Count(t.count+t.facts().OtherEntries), units.Count(t.buckets))
	if share, ok := t.lostShare(l.Chains); ok {
		f.Evidence = append(f.Evidence, Evidence{What: "of new connections", Value: round2(100 * share), Unit: "% refused", Source: "chaintoolong against new entries of two dumps"})
		if share < lossIsCritical {
			f.Severity = Warning
		}
	}
	return f
}

// lostShare returns the share of n lost ones in new connections; false where the rate of
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
	return worded("ct-chain-cap slow", append(t.chainEvidence(), cpuEvidence(t.rec.Profile)...), t.bucketRemedies())
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
		return []Remedy{advice("colliding-addresses")}
	}
	if !t.mayResize(s) {
		return []Remedy{t.resize(s)}
	}
	r := remedy("raise the number of hash buckets", []tune.Change{t.bucketChange(s)}, t.facts())
	r.Automatic = true
	r.Predicts = r.Changes[0].Why
	return []Remedy{r}
}
