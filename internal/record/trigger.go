//go:build linux

package record

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
)

// Condition is what a counter or a value of the kernel is compared with.
type Condition struct {
	// Text is as it was given.
	Text string
	// Name is a counter of conntrack (insert_failed), one as nstat prints it (TcpExtListenDrops), or a sysctl
	// (nf_conntrack_count).
	Name string
	// AtLeast is >=, otherwise >.
	AtLeast bool
	Value   float64
	// PerSecond compares the growth in a second.
	PerSecond bool
}

var condition = regexp.MustCompile(`^\s*([A-Za-z][A-Za-z0-9_.]*)\s*(>=?)\s*([0-9]+(?:\.[0-9]+)?)\s*(/s)?\s*$`)

// ParseCondition reads COUNTER > NUMBER or COUNTER > NUMBER/s, also with >=.
func ParseCondition(text string) (Condition, error) {
	m := condition.FindStringSubmatch(text)
	if m == nil {
		return Condition{}, errors.New("must be a counter, > or >=, and a number, such as 'insert_failed > 10/s' or 'nf_conntrack_count > 200000'")
	}
	v, err := strconv.ParseFloat(m[3], 64)
	return Condition{Text: strings.TrimSpace(text), Name: m[1], AtLeast: m[2] == ">=", Value: v, PerSecond: m[4] != ""}, err
}

// Holds reports whether it is met between two snapshots: known is false where the kernel has no such counter. Without /s
// a counter is compared by what it grew by, a sysctl by its value.
func (c Condition) Holds(rec *snapshot.Recording) (holds, known bool) {
	value, known := c.value(rec)
	return known && (value > c.Value || c.AtLeast && value == c.Value), known
}

func (c Condition) value(rec *snapshot.Recording) (float64, bool) {
	before, now := rec.First(), rec.Last()
	grown, counts := now.ConntrackStat.Delta(before.ConntrackStat, c.Name)
	if !counts && now.TCP != nil && before.TCP != nil {
		grown, counts = now.TCP.Counters.Delta(before.TCP.Counters, c.Name)
	}
	value := float64(grown)
	if !counts {
		name := c.Name
		if !strings.Contains(name, ".") {
			name = "net.netfilter." + name
		}
		v, known := now.Sysctls.Int(name)
		if !known {
			return 0, false
		}
		if value = float64(v); c.PerSecond {
			was, known := before.Sysctls.Int(name)
			if !known {
				return 0, false
			}
			value -= float64(was)
		}
	}
	if !c.PerSecond {
		return value, true
	}
	seconds := rec.Seconds()
	return value / seconds, seconds > 0
}

// againAfter is for how long the same trigger does not trigger once more: one that comes and goes must not push out what
// was kept of others.
const againAfter = 15 * time.Minute

// triggers sees to marks, conditions and findings.
func (r *recorder) triggers(at ring.Stamp, take *collect.Take) error {
	if err := r.takeMarks(at); err != nil {
		return err
	}
	if take.Recording == nil {
		return nil
	}
	for _, c := range r.When {
		holds, known := c.Holds(take.Recording)
		if !known {
			r.unknown(c)
		}
		if holds {
			if err := r.trigger(at, c.Text, ring.Event{Text: c.Text}); err != nil {
				return err
			}
		}
	}
	report := diagnose.Run(take.Recording, diagnose.Rules())
	for _, e := range r.tracker.Add(&report) {
		comes := e.Kind == diagnose.Came || e.Kind == diagnose.Changed && e.Was < r.On
		if r.On == 0 || !comes || e.Severity < r.On {
			continue
		}
		if err := r.trigger(at, e.ID, ring.Event{Text: e.Title, ID: e.ID, Severity: e.Severity.String()}); err != nil {
			return err
		}
	}
	return nil
}

// unknown notes once that a condition is about nothing that this kernel has.
func (r *recorder) unknown(c Condition) {
	key := "unknown " + c.Text
	if r.again[key].IsZero() {
		r.again[key] = time.Now()
		r.Note(fmt.Errorf("--when %q: this kernel has no counter or sysctl %s here", c.Text, c.Name))
	}
}

// trigger has the minutes around a moment kept.
func (r *recorder) trigger(at ring.Stamp, key string, e ring.Event) error {
	now := time.Now() // with its monotonic clock
	if until := r.again[key]; now.Before(until) {
		return nil
	}
	r.again[key] = now.Add(againAfter)
	e.Event, e.Of = ring.EventTrigger, at.Wall
	r.await(pending{at: at, due: now.Add(r.After), event: e})
	return r.event(at, e)
}
