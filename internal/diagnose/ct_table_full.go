package diagnose

import (
	"fmt"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// ctTableFull: the kernel is dropping new connections now, because the table is full.
//
// `drop` counts packets that the tracker drops: a full table, no memory, or a
// clash that could not be resolved. A clash counts in insert_failed as well, so only
// the surplus of drop speaks for a full table (see refused).
var ctTableFull = Rule{
	ID:    "ct-table-full",
	Title: "connection table full",
	Check: checkTableFull,
}

func checkTableFull(rec *snapshot.Recording) (*Finding, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	dropped, haveCounters := t.surplusDrops()
	lines, suppressed := t.logLines()
	switch {
	case t.firstMax != t.max && !t.full() && (lines > 0 || dropped > 0 || !haveCounters):
		return nil, Check{State: NotChecked, Why: fmt.Sprintf("%s; the limit was %s a moment ago: look again", t.usage(), units.Count(t.firstMax))}
	case !haveCounters && lines == 0 && t.full():
		return nil, Check{State: NotChecked, Why: t.usage() + ", but whether it drops is unknown: " + t.noCounters()}
	case lines == 0 && dropped == 0:
		return nil, Check{State: OK, Why: t.notDropping()}
	case lines == 0 && !t.full() && t.seenFull() == 0:
		return nil, Check{State: NotChecked, Why: t.usage() + t.droppedText(dropped, true) +
			" for another reason, or the table was full only in between: look longer (--for)"}
	}
	f := &Finding{
		Severity:   Critical,
		Confidence: "likely",
		Title:      "the connection table is full: new connections are dropped",
		Evidence:   append(t.evidence(), t.drops()...),
		Cause:      t.cause("net.netfilter.nf_conntrack_max is too small for the connections at hand"),
		Consequence: "packets that would open a new connection are dropped without an answer: clients see connect timeouts, " +
			"SYN retransmits after 1 s, 3 s, 7 s; established connections go on",
		Remedies: t.remedies(true),
	}
	if t.flooded() {
		f.Title = "the connection table is full of half-open connections, as a flood makes them: new connections are dropped"
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

// surplusDrops are the drops that no failed insertion explains.
func (t *table) surplusDrops() (int64, bool) {
	r, ok := t.refused()
	return r.full, ok
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
	if ago, ok := t.lastLogged(); ok {
		why += fmt.Sprintf("; the kernel last logged a full table %s ago", units.Roughly(ago))
	}
	return why
}
