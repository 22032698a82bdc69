package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/units"
)

// page is what the template reads: an overview of the namespaces where there are several, and one of them in full.
type page struct {
	Title, Version, Host, Kernel string
	// Zone is the host's time zone, OffsetSeconds how far it is ahead of UTC.
	Zone          string
	OffsetSeconds int
	// At is when the newest part of the namespace was read, in seconds since 1970 as all times for the script; Now is the
	// host's time.
	At, Now, EverySeconds, StaleAfterSeconds float64
	Status                                   string
	Stale                                    bool
	Overview                                 []overview
	LeftOut, Gone                            string
	Space                                    *space
	History                                  history
	Self                                     string
}

// overview is one namespace among others.
type overview struct {
	Name    string
	Inode   uint64
	Verdict verdict
	Chosen  bool
}

// space is one namespace in full. Services, Findings, Table, Drops and Ports are nil where they are not known; Missing says
// why, by the name of the part.
type space struct {
	Name     string
	Several  bool
	Verdict  verdict
	First    string
	Answered string
	Services *services
	Findings *findings
	Counters *counters
	Table    *table
	Drops    *drops
	Ports    *ports
	Stack    *stack
	Missing  map[string]string
	Parts    []reading
	Unread   []state.Unread
	Charts   []chartPlace
	// Spans are the lengths of history that there are, where something records; Unrecorded is why there is none, or not all.
	Spans      []spanLink
	Unrecorded string
}

// The tones are classes of the style sheet.
const (
	plain = ""
	dim   = "dim"
	good  = "good"
	warn  = "warn"
	bad   = "bad"
)

// badness orders tones.
func badness(tone string) int { return slices.Index([]string{plain, good, dim, warn, bad}, tone) }

// verdict is the outcome in a line. About is what it rests on: that changes less often than the numbers in the text.
type verdict struct {
	Tone, Mark, Text, About string
}

// reading is when a part was read, and after how many seconds that is old.
type reading struct {
	Part                    string
	At                      time.Time
	ReadSeconds, OldSeconds float64
	Old                     bool
	Age                     string
}

// Clock is the time of day.
func (r reading) Clock() string { return r.At.Format("15:04:05 MST") }

// oldAfter is how old a part may be: the counters as /healthz has it, and what costs more, which is read less often where the
// host is slow or the table is large, as the history has it.
func oldAfter(part string, everySeconds float64) time.Duration {
	every := time.Duration(everySeconds * float64(time.Second))
	switch part {
	case state.PartCounters, state.PartDrops, state.PartStack:
		return max(6*every, 30*time.Second)
	}
	return max(12*every, time.Minute)
}

// roughlySeconds writes an age: the page counts whole seconds.
func roughlySeconds(age float64) string { return units.Roughly(max(1, math.Round(age))) }

// unixSeconds is a time for the script; that of no time is 0.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// newest is when a namespace was read last.
func newest(n *state.Namespace) (at time.Time) {
	for _, r := range n.Readings() {
		if r.At.After(at) {
			at = r.At
		}
	}
	return at
}

// maker makes the view of one namespace at one time.
type maker struct {
	*state.Namespace
	state *state.State
	now   time.Time
}

func pageOf(s *state.State, o Options, r request, now time.Time) *page {
	zone, offset := now.Zone()
	p := &page{Title: "natkit", Version: s.Version, Host: report.Clean(o.Host), Kernel: report.Clean(s.Kernel.Release), Zone: zone, OffsetSeconds: offset,
		Now: unixSeconds(now), EverySeconds: s.EverySeconds, StaleAfterSeconds: oldAfter(state.PartCounters, s.EverySeconds).Seconds(),
		Status: "no data yet", History: history{Charts: map[string]chart{}},
		Self: fmt.Sprintf("running since %s; used %s s of CPU time, %s s of it for connection tables",
			s.Started.In(now.Location()).Format(dateTime), units.Fixed(s.Self.CPUSeconds, 1), units.Fixed(s.Self.TableCPUSeconds, 1))}
	if s.LeftOut > 0 {
		p.LeftOut = units.Plural(s.LeftOut, "other network namespace is", "other network namespaces are") + " not watched"
	}
	if r.gone {
		p.Gone = "The network namespace that was asked for has ended, or is not watched. This is another one."
	}
	chosen := max(0, slices.IndexFunc(s.Namespaces, func(n state.Namespace) bool { return n.Inode == r.netns }))
	worst := verdict{Mark: "?", Text: "no data yet"}
	for i := range s.Namespaces {
		m := &maker{&s.Namespaces[i], s, now}
		v := m.verdict()
		if badness(v.Tone) > badness(worst.Tone) || i == 0 {
			worst = v
		}
		if len(s.Namespaces) > 1 {
			p.Overview = append(p.Overview, overview{m.name(), m.Inode, v, i == chosen})
		}
		if i == chosen {
			p.choose(m, o, r)
		}
	}
	p.Title = fmt.Sprintf("%s %s: %s", worst.Mark, cmp.Or(p.Host, "natkit"), worst.Text)
	return p
}

// dateTime is the form of times that may be of another day.
const dateTime = "2006-01-02 15:04:05 MST"

// choose shows a namespace in full.
func (p *page) choose(m *maker, o Options, r request) {
	course, why := m.History, ""
	if o.Past != nil {
		course, why = m.recorded(o, r.span)
	}
	p.History = historyOf(&course)
	p.Space = m.space(p.History)
	p.Space.Unrecorded = why
	if o.Past != nil {
		p.Space.Spans = spanLinks(m.Inode, r.span)
	}
	at := newest(m.Namespace)
	if at.IsZero() {
		return
	}
	p.At, p.Stale = unixSeconds(at), m.now.Sub(at).Seconds() > p.StaleAfterSeconds
	p.Status = fmt.Sprintf("data from %s, %s old", at.In(m.now.Location()).Format("15:04:05 MST"), roughlySeconds(m.now.Sub(at).Seconds()))
	if p.Stale {
		p.Status = "stale: " + p.Status
	}
}

// name is that of the namespace, and whose it is.
func (m *maker) name() string {
	name := cmp.Or(report.Clean(m.Name), "this host")
	switch {
	case m.Owner == nil || m.Name == "" || m.Owner.Netns == m.Name:
		return name
	case m.Owner.Name() == m.Name: // pid N, which its owner has as well
		return report.Clean(m.Owner.String())
	}
	return name + " (" + report.Clean(m.Owner.String()) + ")"
}

func (m *maker) space(h history) *space {
	s := &space{Name: m.name(), Several: len(m.state.Namespaces) > 1, Verdict: m.verdict(), Answered: m.answered(), Missing: m.missing(),
		Services: m.services(), Findings: m.findings(), Counters: m.counters(), Table: m.table(), Drops: m.drops(), Ports: m.ports(), Stack: m.stack(),
		Charts: h.places(m.now.Location())}
	if f := m.Findings; f != nil && f.Summary != nil {
		s.First = report.Clean(f.Summary.First)
	}
	for _, part := range state.Parts {
		if r, there := m.Namespace.Readings()[part]; there {
			s.Parts = append(s.Parts, m.reading(part, *r))
		}
	}
	for _, u := range m.Unread {
		s.Unread = append(s.Unread, state.Unread{Part: report.Clean(u.Part), Why: report.Clean(u.Why), Unavailable: u.Unavailable})
	}
	return s
}

func (m *maker) reading(part string, r state.Reading) reading {
	old, age := oldAfter(part, m.state.EverySeconds), m.now.Sub(r.At)
	return reading{Part: part, At: r.At.In(m.now.Location()), ReadSeconds: unixSeconds(r.At), OldSeconds: old.Seconds(), Old: age > old,
		Age: roughlySeconds(age.Seconds())}
}

// missing says of each part why it may not be there.
func (m *maker) missing() map[string]string {
	all := map[string]string{}
	for _, part := range state.Parts {
		all[part] = "not read yet"
		for _, u := range m.Unread {
			if u.Part == part || slices.Contains(restsOn[part], u.Part) {
				all[part] = "cannot be read: " + report.Clean(u.Why)
				break
			}
		}
	}
	return all
}

// verdict is what the clients of the namespace's NAT notice, as far as that is known.
func (m *maker) verdict() verdict {
	f, unanswered := m.Findings, m.unanswered()
	silent := units.Plural(unanswered, "service gets", "services get") + " no answers"
	switch {
	case f == nil && unanswered > 0:
		return verdict{warn, "!", silent + "; the causes are not examined yet", "unanswered"}
	case f == nil:
		return verdict{dim, "?", "not examined yet", "unknown"}
	case m.reading(state.PartFindings, f.Reading).Old:
		return verdict{dim, "?", "not known: the last report is of " + f.At.In(m.now.Location()).Format(dateTime), "old"}
	case len(f.All) > 0 && f.All[0].Severity > diagnose.Notice:
		return m.found()
	case unanswered > 0:
		return verdict{warn, "!", silent + ", and no finding says why", "unanswered"}
	case len(f.Incomplete) > 0:
		return verdict{warn, "!", "nothing found, but " + units.Plural(f.Checks[diagnose.NotChecked], "check has", "checks have") + " no result", "incomplete"}
	case len(f.All) > 0:
		return verdict{good, "✓", "nothing that needs an action; " + units.Plural(len(f.All), "notice", "notices"), "notice " + m.ids()}
	}
	return verdict{good, "✓", "nothing found by " + units.Plural(f.Checks[diagnose.OK], "check", "checks"), "ok"}
}

// found is the verdict of findings that need an action, the worst of which is the first.
func (m *maker) found() verdict {
	worst := &m.Findings.All[0]
	v := verdict{warn, "!", report.Clean(worst.Title), worst.Severity.String() + " " + m.ids()}
	if worst.Severity >= diagnose.Critical {
		v.Tone, v.Mark = bad, "✗"
	}
	if s := m.Findings.Summary; s != nil && s.Finding == worst.ID {
		v.Text = report.Clean(s.Text)
	}
	return v
}

func (m *maker) ids() string {
	var ids []string
	for _, f := range m.Findings.All {
		ids = append(ids, f.ID)
	}
	return report.Clean(strings.Join(ids, " "))
}

// unanswered counts the services that get no answers at all.
func (m *maker) unanswered() (n int) {
	if m.Services == nil || m.reading(state.PartServices, m.Services.Reading).Old {
		return 0
	}
	for _, s := range m.Services.All {
		if s.AnsweredShare == 0 {
			n++
		}
	}
	return n
}

// answered is the share of connections that were answered, in a sentence.
func (m *maker) answered() string {
	s := m.Services
	if s == nil || m.reading(state.PartServices, s.Reading).Old {
		return ""
	}
	window, read, among := units.Roughly(s.WindowSeconds), "", ""
	if !s.Complete { // a sample of the table
		read, among = " that were read", " among the entries that were read"
	}
	if s.AnsweredShare < 0 {
		return "There is no translated connection that began or ended in the last " + window + among + "." + m.without()
	}
	return fmt.Sprintf("%s of the translated connections of the last %s were answered: %s of %s%s.%s", units.Percent(s.AnsweredShare), window,
		units.Count(s.Answered), units.Count(s.Answered+s.Failed), read, m.without())
}

// without says how many packets of new connections were dropped for want of an entry or a port: these connections are in no
// table, and so not among those that failed.
func (m *maker) without() string {
	c := m.Counters
	if c == nil || m.reading(state.PartCounters, c.Reading).Old {
		return ""
	}
	const scale = 1000 // rates have fractions
	grown := map[string]int64{}
	for name, rate := range c.PerSecond {
		grown[name] = int64(rate * scale)
	}
	lost := snapshot.DecodeTracker(grown, false)
	dropped := float64(lost.NoRoom-lost.OrInvalid+lost.Clashes+lost.Chains) / scale
	if dropped <= 0 {
		return ""
	}
	return fmt.Sprintf(" Not among them are connections without an entry: %s packets/s of new connections are dropped.", units.Rate(dropped))
}
