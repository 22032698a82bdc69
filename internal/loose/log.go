package loose

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/lazyregexp"
)

// LogLine is a line of the kernel log.
type LogLine struct {
	// Uptime is when it was logged, in seconds since the start, where Timed says that this is known.
	Uptime float64
	Timed  bool
	Text   string
	// wall is when it was logged, where the line has a date; uncertain of its year.
	wall time.Time
}

// logForms are the forms of a line: how long after the start, or when, and the message.
var logForms = []struct {
	form  *regexp.Regexp
	parse func(l *LogLine, time string) bool
}{
	{regexp.MustCompile(`^\[ *(\d+\.\d{3,9})\] \S+ kernel: (.*)$`), sinceStart}, // journalctl -o short-monotonic
	{regexp.MustCompile(`^(?:<\d+>|kern *:\w+ *: *)?\[ *(\d+\.\d{3,9})\] (.*)$`), sinceStart},
	{regexp.MustCompile(`^(?:kern *:\w+ *: *)?\[(\S{2,9} \S{2,9} +\d+ \d\d:\d\d:\d\d \d{4})\] (.*)$`), layouts(time.ANSIC)},
	{regexp.MustCompile(`^([^\s\d]\S{1,9} +\d{1,2} \d\d:\d\d:\d\d) \S+ kernel(?:\[\d+\])?: (.*)$`), layouts(time.Stamp)},
	{regexp.MustCompile(`^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*) (?:\S+ )?kernel(?:\[\d+\])?: (.*)$`), layouts(time.RFC3339, "2006-01-02T15:04:05,999999999-07:00", "2006-01-02T15:04:05-0700", "2006-01-02T15:04:05.999999-0700", "2006-01-02 15:04:05")},
}

// withStart is the stamp of printk that syslog leaves in the message.
var withStart = lazyregexp.New(`^\[ *(\d+\.\d{6})\] (.*)$`)

func sinceStart(l *LogLine, text string) bool {
	n, err := strconv.ParseFloat(text, 64)
	l.Uptime, l.Timed = n, err == nil && n >= 0 && n <= maxUptime
	return l.Timed
}

// layouts reads a date; one in another language is not known, and the line stays.
func layouts(all ...string) func(*LogLine, string) bool {
	return func(l *LogLine, text string) bool {
		for _, layout := range all {
			if at, err := time.Parse(layout, text); err == nil {
				l.wall = at
				break
			}
		}
		return true
	}
}

// parseLogLine returns a line of the kernel's own; false where it is another.
func parseLogLine(line string) (l LogLine, ok bool) {
	for _, f := range logForms {
		m := f.form.FindStringSubmatch(line)
		if m == nil || !f.parse(&l, m[1]) {
			continue
		}
		l.Text = m[2]
		if inner := withStart.FindStringSubmatch(l.Text); inner != nil && sinceStart(&l, inner[1]) {
			l.Text = inner[2]
		}
		return l, true
	}
	return l, false
}

// readLog reads the kernel's lines; of a log of all programs they are those of the kernel.
func readLog(s *Sample, t *Text) error {
	s.HasLog = true
	var all []LogLine
	for line := range strings.Lines(string(t.Data)) {
		if l, ok := parseLogLine(strings.TrimSpace(line)); ok {
			all = append(all, l)
		}
	}
	switch {
	case len(s.Log) == 0:
		s.Log = all
	case len(all) > 0: // of two logs of one time, such as dmesg and the journal, the one with more
		if len(all) > len(s.Log) {
			s.Log = all
		}
	case len(t.Data) > 0:
		return fmt.Errorf("has no line of the kernel")
	}
	return nil
}

// setClock gives lines with a date the time since the start, where both clocks are known.
func (s *Sample) setClock() {
	if !s.HasUptime || s.At.IsZero() {
		return
	}
	boot := s.At.Add(-time.Duration(s.Uptime * float64(time.Second)))
	for i := range s.Log {
		l := &s.Log[i]
		if l.Timed || l.wall.IsZero() {
			continue
		}
		at := l.wall
		if at.Year() == 0 { // syslog has none
			at = at.AddDate(s.At.Year(), 0, 0)
			if at.After(s.At.Add(24 * time.Hour)) {
				at = at.AddDate(-1, 0, 0)
			}
		}
		if up := at.Sub(boot).Seconds(); up >= 0 {
			l.Uptime, l.Timed = up, true
		}
	}
}
