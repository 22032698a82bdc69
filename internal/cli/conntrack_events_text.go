package cli

import (
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
)

// flushEvery is how long a line may wait for others.
const flushEvery = 100 * time.Millisecond

// eventWriter writes events as they come.
type eventWriter struct {
	lines   *lineWriter
	form    *entryForm
	max, n  int64
	flushed time.Time
}

// begin writes what comes before the first event.
func (w *eventWriter) begin() {
	if w.form.csv {
		w.lines.buf = append(w.lines.buf, "event,time,missed,"...)
	}
	w.form.begin(w.lines)
}

// eventNames are those of conntrack -E, and how it sets them.
var eventNames = map[dump.EventKinds]struct{ name, line string }{
	dump.NewEvents:     {"NEW", "    [NEW] "},
	dump.UpdateEvents:  {"UPDATE", " [UPDATE] "},
	dump.DestroyEvents: {"DESTROY", "[DESTROY] "},
}

func (w *eventWriter) take(e dump.Event) error {
	now := time.Now()
	w.form.now(now)
	w.lines.buf = w.append(w.lines.buf, e, now)
	if err := w.lines.endLine(); err != nil {
		return err
	}
	if w.n++; w.n == w.max {
		return dump.ErrStop
	}
	if now.Sub(w.flushed) < flushEvery {
		return nil
	}
	w.flushed = now
	return w.lines.flush()
}

// idle writes what waits while nothing comes.
func (w *eventWriter) idle() error { return w.lines.flush() }

func (w *eventWriter) append(b []byte, e dump.Event, now time.Time) []byte {
	names := eventNames[e.Kind]
	switch {
	case w.form.json:
		b = fmt.Appendf(b, `{"event":%q,"time":%q,`, names.name, now.UTC().Format(time.RFC3339Nano))
		if e.Missed {
			b = append(b, `"missed":true,`...)
		}
		at := len(b)
		b = w.form.append(b, e.Entry)
		return append(b[:at], b[at+1:]...) // its own brace
	case w.form.csv:
		b = fmt.Appendf(b, "%s,%s,%t,", names.name, now.UTC().Format(time.RFC3339Nano), e.Missed)
		return w.form.append(b, e.Entry)
	}
	if w.form.timestamped {
		b = fmt.Appendf(b, "[%-8d.%-6d]\t", now.Unix(), now.Nanosecond()/1000)
	}
	b = w.form.append(append(b, names.line...), e.Entry)
	if e.Missed {
		b = append(b, " [MISSED]"...)
	}
	return b
}
