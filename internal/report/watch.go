package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/units"
)

// Event writes what has changed in a watched namespace, in a line; its times are of the zone that they have.
func Event(w io.Writer, style Style, e diagnose.Event) error {
	p := &printer{w: w, style: style}
	var details []string
	if e.Was > 0 {
		details = append(details, e.Was.String()+" before")
	}
	if e.Kind == diagnose.Went || e.Kind == diagnose.Checked {
		details = append(details, lasted(e.Since, e.At))
	}
	if e.Times > 1 {
		details = append(details, "came "+units.Plural(e.Times, "time", "times"))
	}
	p.event(e.At, string(e.Kind), e.Standing, e.Checks, details)
	return p.err
}

// WatchEnd writes what stands when a watch ends.
func WatchEnd(w io.Writer, style Style, e *diagnose.WatchEnd) error {
	p := &printer{w: w, style: style}
	what := units.Plural(len(e.Findings), "finding", "findings")
	if len(e.Findings) == 0 {
		what = "no findings"
	}
	cpu := 0.0
	if e.Seconds > 0 {
		cpu = 100 * e.CPUSeconds / e.Seconds
	}
	p.line(p.style.Paint(Bold, fmt.Sprintf("%s ended after %s, %s, %s %% of a CPU: %s", e.At.Format(time.RFC3339),
		seconds(e.Seconds), units.Plural(e.Reports, "report", "reports"), units.Fixed(cpu, 2), what)))
	for _, s := range e.Findings {
		details := []string{lasted(s.Since, e.At)}
		if s.Times > 1 {
			details = append(details, "came "+units.Plural(s.Times, "time", "times"))
		}
		p.event(e.At, "stands", s, nil, details)
	}
	for _, m := range e.Incomplete {
		p.event(e.At, string(diagnose.Unchecked), diagnose.Standing{Title: m.Why}, m.Checks, nil)
	}
	return p.err
}

// event writes a line.
func (p *printer) event(at time.Time, kind string, s diagnose.Standing, checks, details []string) {
	subject := s.ID
	if len(checks) > 0 {
		subject = strings.Join(checks, ", ")
	}
	text := fmt.Sprintf("%s %-9s", at.Format(time.RFC3339), kind)
	if s.Severity > 0 {
		text += " " + p.style.Paint(severityTones[s.Severity], fmt.Sprintf("%-8s", s.Severity))
	}
	text += " " + clean(subject+": "+s.Title)
	if len(details) > 0 {
		text += p.style.Paint(Dim, " ("+strings.Join(details, ", ")+")")
	}
	p.line(text)
}

func lasted(since, until time.Time) string {
	return fmt.Sprintf("since %s, %s", since.Format(time.RFC3339), seconds(until.Sub(since).Seconds()))
}

// seconds is a time in whole seconds.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// TroubleCounters are the conntrack counters that indicate trouble, the worst first, by the names in the kernel's
// documentation. The first LosingCounters of them lose connections.
var TroubleCounters = []string{"drop", "insert_failed", "early_drop", "chaintoolong", "clash_resolve", "invalid",
	"error", "icmp_error", "search_restart", "expect_create", "expect_delete"}

// LosingCounters is how many of TroubleCounters lose connections.
const LosingCounters = 4
