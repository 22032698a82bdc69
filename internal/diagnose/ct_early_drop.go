package diagnose

import (
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// ctEarlyDrop: at the limit the kernel evicts entries that have seen no answer or
// are not assured yet, to make room (early_drop in nf_conntrack_core.c). Nothing
// is refused so far, but connections that are being set up are forgotten.
var ctEarlyDrop = Rule{
	ID:    "ct-early-drop",
	Title: "connections evicted to make room",
	Check: checkEarlyDrop,
}

func checkEarlyDrop(rec *snapshot.Recording) (*Finding, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	evicted, ok := t.delta("early_drop")
	if !ok {
		return nil, Check{State: NotChecked, Why: t.noCounters()}
	}
	seen := units.Count(evicted) + " evicted"
	if evicted == 0 {
		return nil, Check{State: OK, Why: seen}
	}
	return &Finding{
		Severity:    Warning,
		Confidence:  "certain",
		Title:       "the connection table is at its limit: unanswered connections are evicted for new ones",
		Evidence:    t.evidence(),
		Cause:       t.cause("the table has reached net.netfilter.nf_conntrack_max"),
		Consequence: "connections that are still being set up, and UDP without an answer, lose their NAT mapping; once only assured connections are left, new ones are dropped",
		Remedies:    t.remedies(true),
	}, Check{Why: seen}
}
