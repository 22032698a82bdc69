package diagnose

import (
	"cmp"
	"slices"
	"time"
)

// EventSchema names the JSON form of an Event.
const EventSchema = "natkit.doctor-watch/1"

// EventKind is what has changed.
type EventKind string

const (
	// Came: there is a finding that was not there.
	Came EventKind = "came"
	// Changed: a finding has another severity.
	Changed EventKind = "changed"
	// Went: a finding is no longer there.
	Went EventKind = "went"
	// Unchecked: a rule comes to no result, so that its finding may come or go unseen.
	Unchecked EventKind = "unchecked"
	// Checked: it does again.
	Checked EventKind = "checked"
)

// Event is a change from one report to the next ones.
type Event struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"time"`
	Kind   EventKind `json:"event"`
	// Netns is the namespace's name; empty for the one natkit runs in.
	Netns string `json:"netns,omitempty"`
	Standing
	// Was is the severity before a change.
	Was Severity `json:"was,omitempty"`
	// Checks are the rules that come to no result, or do again.
	Checks []string `json:"checks,omitempty"`
	// Finding is the finding as the report has it; nil where it went, and of rules without a result.
	Finding *Finding `json:"finding,omitempty"`
}

// Standing is a finding, or a rule without a result, that lasts or has lasted.
type Standing struct {
	// ID is the rule's; empty in an event of several rules.
	ID string `json:"id,omitempty"`
	// Severity is absent of a rule without a result.
	Severity Severity `json:"severity,omitempty"`
	// Title is the finding's, or why there is no result.
	Title string `json:"title"`
	// Since is when it came.
	Since time.Time `json:"since"`
	// Times is how often it has come, brief absences that were no event included, since it was forgotten.
	Times int `json:"times"`
}

const (
	// fewestCalm is in how many reports in succession a finding must be absent, or less severe, before that
	// is an event. It doubles whenever the finding then comes back, or becomes as severe again, up to mostCalm.
	fewestCalm = 3
	mostCalm   = 96
)

// Tracker turns a series of reports of one namespace into events. What comes, or becomes worse, is an event
// at once; what goes, or becomes better, is one after fewestCalm reports that agree, and after twice as many
// whenever it was premature, so that what flaps becomes one event that lasts. A report whose rule has no
// result tells nothing about its finding, which then stays.
type Tracker struct {
	findings, unchecked map[string]*level
}

// level is the course of one finding, or of one rule without a result, the severity of which is unresolved.
type level struct {
	Standing
	// last is the severity in the last report, calm how many reports in succession have been below
	// Severity, and highest the most severe of them.
	last, highest Severity
	calm          int
	// wanted is how many reports are to be calm; fell is whether there was an event of falling, which what
	// rises again shows to have been premature.
	wanted int
	fell   bool
}

// unresolved is the severity of a rule without a result.
const unresolved = Notice

// NewTracker returns a Tracker that has seen no report.
func NewTracker() *Tracker {
	return &Tracker{findings: map[string]*level{}, unchecked: map[string]*level{}}
}

// Add returns what a report changes, the most severe findings first, then rules without a result.
func (t *Tracker) Add(r *Report) (events []Event) {
	findings, unchecked, unknown := map[string]Standing{}, map[string]Standing{}, map[string]bool{}
	for _, f := range r.Findings {
		findings[f.ID] = Standing{ID: f.ID, Severity: f.Severity, Title: f.Title}
	}
	for _, c := range r.Checks {
		if unknown[c.ID] = c.State == NotChecked; unknown[c.ID] && !c.NotAsked {
			unchecked[c.ID] = Standing{ID: c.ID, Severity: unresolved, Title: c.Why}
		}
	}
	for _, e := range step(t.findings, findings, unknown, r.TakenAt) {
		if e.Kind != Went {
			e.Finding = r.Find(e.ID)
		}
		events = append(events, e)
	}
	events = append(events, byReason(step(t.unchecked, unchecked, nil, r.TakenAt))...)
	for i := range events {
		events[i].Schema, events[i].Netns = EventSchema, r.Netns
	}
	return events
}

// byReason makes one event of those of all rules that lack the same.
func byReason(each []Event) (events []Event) {
	for _, e := range each {
		id := e.ID
		e.ID, e.Severity, e.Kind = "", 0, map[EventKind]EventKind{Came: Unchecked, Went: Checked}[e.Kind]
		i := slices.IndexFunc(events, func(other Event) bool { return other.Kind == e.Kind && other.Title == e.Title })
		if i < 0 {
			i, events = len(events), append(events, e)
		}
		events[i].Checks = append(events[i].Checks, id)
	}
	return events
}

// step takes all levels to what a report has now. Those of unknown stay as they are.
func step(levels map[string]*level, now map[string]Standing, unknown map[string]bool, at time.Time) (events []Event) {
	for id := range now {
		if levels[id] == nil {
			levels[id] = &level{wanted: fewestCalm}
		}
	}
	for id, l := range levels {
		if unknown[id] {
			continue
		}
		if e := l.step(now[id], at); e != nil {
			events = append(events, *e)
		}
		if l.Severity == 0 && l.calm >= mostCalm {
			delete(levels, id)
		}
	}
	slices.SortFunc(events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.ID, b.ID))
	})
	return events
}

// step is one report, in which the finding is now, with severity 0 where it is absent.
func (l *level) step(now Standing, at time.Time) *Event {
	was := l.Severity
	if now.Severity > 0 {
		if l.last == 0 {
			l.Times++
		}
		l.ID, l.Title = now.ID, now.Title
	}
	l.last = now.Severity
	switch {
	case now.Severity > was:
		if was == 0 {
			l.Since = at
		}
		if l.fell {
			l.wanted, l.fell = min(2*l.wanted, mostCalm), false
		}
		l.Severity, l.calm, l.highest = now.Severity, 0, 0
		return l.event(was, at)
	case now.Severity == was && was > 0:
		l.calm, l.highest = 0, 0
		return nil
	}
	l.calm, l.highest = l.calm+1, max(l.highest, now.Severity)
	if was == 0 || l.calm < l.wanted {
		return nil
	}
	l.Severity, l.calm, l.fell = l.highest, 0, true
	l.highest = 0
	return l.event(was, at)
}

func (l *level) event(was Severity, at time.Time) *Event {
	e := &Event{At: at, Standing: l.Standing}
	switch {
	case was == 0:
		e.Kind = Came
	case l.Severity == 0:
		e.Kind, e.Severity = Went, was
	default:
		e.Kind, e.Was = Changed, was
	}
	return e
}

// Standing returns the findings that last, the most severe first, and why rules come to no result.
func (t *Tracker) Standing() (findings []Standing, missing []Missing) {
	var unchecked []Check
	for _, s := range standing(t.unchecked) {
		unchecked = append(unchecked, Check{ID: s.ID, State: NotChecked, Why: s.Title})
	}
	return standing(t.findings), incomplete(unchecked)
}

func standing(levels map[string]*level) []Standing {
	all := []Standing{}
	for _, l := range levels {
		if l.Severity > 0 {
			all = append(all, l.Standing)
		}
	}
	slices.SortFunc(all, func(a, b Standing) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Ended is the kind of the last line of a watch.
const Ended EventKind = "ended"

// WatchEnd is what stands when a watch ends.
type WatchEnd struct {
	Schema string    `json:"schema"`
	At     time.Time `json:"time"`
	Kind   EventKind `json:"event"`
	Netns  string    `json:"netns,omitempty"`
	// Reports is how often the namespace was examined, in Seconds; CPUSeconds is what all of that took, and
	// TableCPUSeconds of it what the connection table took.
	Reports         int     `json:"reports"`
	Seconds         float64 `json:"seconds"`
	CPUSeconds      float64 `json:"cpu_seconds"`
	TableCPUSeconds float64 `json:"table_cpu_seconds"`
	// Findings and Incomplete are what the last reports have.
	Findings   []Standing `json:"findings"`
	Incomplete []Missing  `json:"incomplete"`
}
