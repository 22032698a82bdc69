package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Recorded is the document of `natkit record show`.
type Recorded struct {
	*ring.Contents
	Dir string `json:"-"`
}

// Text writes the span and the counts, then marks, triggers and gaps in the order of time.
func (r Recorded) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	const label = 13
	p.labelled(0, "recording", label, r.about())
	if r.Snapshots > 0 {
		span := r.To.Sub(r.From).Round(time.Second).String()
		if r.To.Before(r.From) {
			span = "as the clock was set back"
		}
		p.labelled(0, "time", label, fmt.Sprintf("%s to %s, %s", local(r.From), local(r.To), span))
	}
	p.labelled(0, "snapshots", label, fmt.Sprintf("%s, every %s", units.Count(r.Snapshots), units.Seconds(r.EverySeconds)))
	p.labelled(0, "size", label, fmt.Sprintf("%s in %s%s", units.Bytes(r.Bytes), units.Plural(r.Segments, "segment", "segments"), r.perMinute()))
	p.labelled(0, "outcomes", label, r.outcomes())
	p.labelled(0, "headers", label, r.headers())
	p.labelled(0, "drops", label, r.drops())
	p.recordedEvents(r.Events)
	if len(r.Gaps) > 0 {
		p.heading("Gaps")
		for _, g := range r.Gaps {
			p.line(fmt.Sprintf("  %s to %s  %s", local(g.From), local(g.To), clean(g.Why)))
		}
	}
	if len(r.Damaged) > 0 {
		p.heading("Damaged")
		for _, d := range r.Damaged {
			p.line("  " + clean(d.Segment+": "+d.Text()))
		}
	}
	if len(r.Copies) > 0 {
		p.heading("Copies")
		for _, c := range r.Copies {
			p.line("  " + clean(c.Text()))
		}
	}
	return p.err
}

func (r Recorded) about() string {
	of := cmp.Or(r.Host, "a host")
	if r.Netns != "" {
		of += ", network namespace " + r.Netns
	}
	return fmt.Sprintf("%s: %s, written by natkit %s", r.Dir, of, cmp.Or(r.WrittenBy, "of that form"))
}

// perMinute is what the ring grows by.
func (r Recorded) perMinute() string {
	minutes := r.To.Sub(r.From).Minutes()
	if minutes < 1 {
		return ""
	}
	return ", " + units.Bytes(float64(r.Bytes)/minutes) + " a minute"
}

// outcomes are those of services.
func (r Recorded) outcomes() string {
	if r.Outcomes == 0 {
		return "not recorded"
	}
	return fmt.Sprintf("of services in %s, last %s", units.Plural(r.Outcomes, "snapshot", "snapshots"), local(r.OutcomesAt))
}

func (r Recorded) headers() string {
	c := r.Packets
	if c.Kept+c.NotKept+c.Lost == 0 {
		return "none"
	}
	text := units.Plural(c.Kept, "packet", "packets")
	if c.NotKept > 0 {
		text += ", " + units.Plural(c.NotKept, "more was", "more were") + " seen and not kept"
	}
	if c.Lost > 0 {
		text += ", " + units.Count(c.Lost) + " lost"
	}
	var samples []string
	if c.Sampled > 1 {
		samples = append(samples, fmt.Sprintf("1 in %s connections", units.Count(c.Sampled)))
	}
	if c.SampledICMP > 1 {
		samples = append(samples, fmt.Sprintf("1 in %s packets of ICMP", units.Count(c.SampledICMP)))
	}
	if len(samples) > 0 { // by the kernel's filter, which does not count
		text += "; at times of " + strings.Join(samples, " and ") + ", the others are in no number"
	}
	return text
}

func (r Recorded) drops() string {
	if !r.DropsKnown {
		return "not recorded"
	}
	text := units.Plural(r.Dropped, "packet", "packets") + ", headers of " + units.Count(r.DroppedHeaders)
	if r.DroppedLost > 0 {
		text += ", of " + units.Count(r.DroppedLost) + " lost"
	}
	return text
}

func (p *printer) recordedEvents(all []ring.RecordedEvent) {
	if len(all) == 0 {
		return
	}
	p.heading("Events")
	for _, e := range all {
		e.At = e.At.Local()
		p.line("  " + p.recorded(e))
	}
}

// recorded is an event in a line.
func (p *printer) recorded(e ring.RecordedEvent) string {
	text := fmt.Sprintf("%s %-8s", e.At.Format(time.RFC3339), e.Event.Event)
	if e.Severity != "" {
		text += " " + clean(e.Severity)
	}
	var words []string
	for _, word := range []string{e.ID, e.Text} {
		if word != "" {
			words = append(words, word)
		}
	}
	switch {
	case e.Event.Event == ring.EventLost:
		words = append(words, fmt.Sprintf("%s not recorded: %s", units.Plural(e.Snapshots, "snapshot was", "snapshots were"), e.Why))
	case e.Kept != "":
		words = append(words, e.Kept)
	}
	if len(words) > 0 {
		text += " " + clean(strings.Join(words, ": "))
	}
	return text
}

// RecordEvent writes what happens while a recording is under way, in a line.
func RecordEvent(w io.Writer, style Style, e ring.RecordedEvent) error {
	p := &printer{w: w, style: style}
	p.line(p.recorded(e))
	return p.err
}

func local(t time.Time) string { return t.Local().Format(time.RFC3339) }

// Kept is what a trigger kept.
type Kept struct {
	Dir       string    `json:"dir"`
	At        time.Time `json:"time"`
	Event     string    `json:"event"`
	ID        string    `json:"id,omitempty"`
	Severity  string    `json:"severity,omitempty"`
	Text      string    `json:"text,omitempty"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Snapshots int       `json:"snapshots"`
	Bytes     int64     `json:"size_bytes"`
	// Missing is why the bundle or the headers are not there.
	Missing string `json:"missing,omitempty"`
}

// KeptList is the document of `natkit record list`.
type KeptList struct {
	Schema string `json:"schema"`
	Kept   []Kept `json:"kept"`
}

// Text writes a line for each, and its directory below it.
func (l KeptList) Text(w io.Writer, style Style) error {
	p := &printer{w: w, style: style}
	if len(l.Kept) == 0 {
		p.line("nothing is kept: no trigger so far, or its minutes are not over ('natkit record show')")
	}
	for _, k := range l.Kept {
		what := k.Event
		if k.Severity != "" {
			what = k.Severity
		}
		for _, word := range []string{k.ID, k.Text} {
			if word != "" {
				what += ": " + word
			}
		}
		p.line(clean(fmt.Sprintf("%s  %s", local(k.At), what)))
		p.line(clean(fmt.Sprintf("  %s (%s, %s)", k.Dir, units.Plural(k.Snapshots, "snapshot", "snapshots"), units.Bytes(k.Bytes))))
		if k.Missing != "" {
			p.line(clean("  not there: " + k.Missing))
		}
	}
	return p.err
}

// Compared says which two snapshots of a recording were compared, and what is not as usual about them.
func Compared(c *snapshot.Compared) string {
	from, to := c.From.Local(), c.To.Local()
	until := to.Format(time.TimeOnly)
	if from.Format(time.DateOnly) != to.Format(time.DateOnly) {
		until = local(to)
	}
	text := fmt.Sprintf("the snapshots of %s and %s", local(from), until)
	switch wall := c.To.Sub(c.From).Round(time.Second); {
	case c.ClockJumped && wall < 0:
		text += fmt.Sprintf(", between which the clock was set back: %s apart, usually %s", units.Seconds(c.UptimeSeconds), units.Seconds(c.UsualSeconds))
	case c.ClockJumped:
		text += fmt.Sprintf(", between which the clock was set or the host slept: %s apart by the clock, %s without that, usually %s",
			wall, units.Seconds(c.UptimeSeconds), units.Seconds(c.UsualSeconds))
	case c.FarApart:
		text += fmt.Sprintf(", %s apart, usually %s", units.Seconds(c.UptimeSeconds), units.Seconds(c.UsualSeconds))
	}
	if c.NotNewest {
		text += "; not the newest, which is of " + local(c.RecordingTo)
		if later := c.RecordingTo.Sub(c.To).Round(time.Second); later > 0 {
			text += fmt.Sprintf(", %s later", later)
		}
		text += ", and has none before it to compare with, or is damaged"
	}
	return text
}

// compared prints that first: it is the time that all of the report is of.
func (p *printer) compared(c *snapshot.Compared) {
	if c == nil {
		return
	}
	if c.NotNewest || c.FarApart || c.ClockJumped {
		p.mark(0, Cell{padRight("compared", labelWidth), Warn}, Compared(c), Bold)
	} else {
		p.labelled(0, "compared", labelWidth, Compared(c))
	}
}
