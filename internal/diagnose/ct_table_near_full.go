package diagnose

import (
	"fmt"
	"math"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// nearFull is the share of the limit from which a table that stays so is
	// worth a warning.
	nearFull = 0.80
	// settled is how long, in seconds, a rate must have lasted before it is
	// believed to last: a shorter ramp predicts nothing.
	settled = 30
)

// ctTableNearFull: the table is above 80 % and not only for a moment, or the
// present rates lead beyond the limit.
//
// How long the rates have lasted is read from the ages of the entries in the
// states in which short flows end: age = timeout - seconds left.
var ctTableNearFull = Rule{
	ID:    "ct-table-near-full",
	Title: "connection table nearly full",
	Check: checkTableNearFull,
}

func checkTableNearFull(rec *snapshot.Recording) (*Finding, Check) {
	t, end := readTable(rec)
	if t == nil {
		return nil, end
	}
	if full, _ := checkTableFull(rec); full != nil {
		return nil, Check{State: OK, Why: "it is full, see ct-table-full"}
	}
	if evicted, _ := t.delta("early_drop"); evicted > 0 && t.full() {
		return nil, Check{State: OK, Why: "it is at its limit, see ct-early-drop"}
	}
	steady, forecast := t.steady(), t.forecast()
	seen := t.usage()
	if forecast > t.count {
		seen += fmt.Sprintf(", present rates lead to %s", units.Count(forecast))
	}
	above := float64(steady) > nearFull*float64(t.max)
	switch {
	case !above && t.rec.Last().Table == nil:
		return nil, Check{State: NotChecked, Why: seen + "; where the present rates lead is unknown: " + t.noDump()}
	case !above && forecast <= t.max:
		return nil, Check{State: OK, Why: seen}
	}
	f := &Finding{
		Severity:    Warning,
		Confidence:  "likely",
		Title:       "the connection table is nearly full",
		Evidence:    t.evidence(),
		Cause:       t.cause("net.netfilter.nf_conntrack_max leaves little room"),
		Consequence: "when the limit is reached, packets that would open a new connection are dropped without an answer",
		Remedies:    t.remedies(false),
	}
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

// noDump says why nothing is known of the entries.
func (t *table) noDump() string {
	if why := t.rec.Last().PartError("conntrack_table"); why != "" {
		return why
	}
	return "the connection table was not read"
}

// ending are the classes in which short flows end and wait for their timeout, so
// that the time left tells when they came there.
var ending = []string{"tcp/TIME_WAIT", "tcp/SYN_SENT", "udp/stream"}

// ages returns how many entries (of the whole table) came into a class between
// from and to seconds ago.
func (t *table) ages(class string, from, to float64) float64 {
	tab := t.rec.Last().Table
	if tab == nil || tab.Sampled == 0 {
		return 0
	}
	timeout := lifetime(class, t.rec.Last().Sysctls)
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
		timeout := lifetime(class, t.rec.Last().Sysctls)
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
		timeout := lifetime(class, t.rec.Last().Sysctls)
		rate := min(t.ages(class, 0, 10), t.ages(class, 10, 20), t.ages(class, 20, settled)) / 10
		classes = append(classes, capacity.Class{Name: class, PerSecond: rate, LifetimeSeconds: timeout})
		if class == "udp/stream" && rate > 0 { // the other classes are not held
			held -= t.ages(class, 0, timeout)
		}
	}
	return int64(math.Max(0, held)) + capacity.Steady(classes, t.groups())
}
