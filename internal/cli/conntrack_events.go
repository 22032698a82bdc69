//go:build linux

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/units"
	"github.com/spf13/cobra"
)

// conntrackWatcher is conntrack events.
type conntrackWatcher struct {
	tableVerb
	form      entryForm
	opt       dump.WatchOptions
	duration  time.Duration
	max, n    int64
	bufferMiB int

	lines   *bufio.Writer
	flushed time.Time
}

// eventsCost is what a subscriber was measured to cost, on two cores, behind DNAT.
const eventsCost = `one that only reads all
of them cut a gateway's 175,000 new connections per second to 55,000–61,000, one of
DESTROY alone to 108,000. 'natkit conntrack' and 'natkit top' do not subscribe`

// Bounds of the flags of events.
const (
	maxRemember  = 10_000_000
	maxBufferMiB = 1024
)

func newConntrackEvents(env *Env) *cobra.Command {
	w := &conntrackWatcher{tableVerb: tableVerb{env: env}, bufferMiB: 64, opt: dump.WatchOptions{Remember: 200_000}}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show connections as they begin, change and end; this slows the gateway down",
		Long: `Subscribe to the events of the connection table and print each, as 'conntrack -E'
does, as JSON (one document per line) or CSV, until interrupted. The filters are
those of conntrack(8).

A subscriber slows the gateway down: ` + eventsCost + `.

net.netfilter.nf_conntrack_events must be 1 or 2 in the namespace. When events come
faster than they are read, some are lost. They are counted, and a dump then finds the
connections that began and ended meanwhile: their lines end with [MISSED]. For this it
remembers connections, up to --remember. Requires CAP_NET_ADMIN.`,
		Example: `  sudo natkit conntrack events -p tcp --for 10s
  sudo natkit conntrack events --netns gateway -e DESTROY --src-nat --json
  sudo natkit conntrack events -e NEW -o timestamp --max 20`,
		RunE: func(cmd *cobra.Command, _ []string) error { return w.run(cmd) },
	}
	w.addFlags(cmd, false)
	w.form.addFlags(cmd, "plain")
	f := cmd.Flags()
	f.VarP(&value{text: "ALL", set: w.setMask}, "event-mask", "e", "`KINDS` of events, separated by commas: NEW, UPDATES, DESTROY or ALL")
	f.Var(period(&w.duration, time.Millisecond, 0), "for", "end after this time: seconds or 500ms, 2m, … (default: when interrupted)")
	f.Var(natural(&w.max), "max", "end after `N` events; 0 is no limit")
	f.Var(between(&w.opt.Remember, 0, maxRemember), "remember", "remember up to `N` connections, some 250 bytes each, to find what was lost; 0 for none")
	f.VarP(between(&w.bufferMiB, 1, maxBufferMiB), "buffer-size", "b", "receive buffer in `MIB`")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"event-mask": completeList(func() []string { return []string{"NEW", "UPDATES", "DESTROY", "ALL"} })})
	return cmd
}

// eventKinds are the words of --event-mask.
var eventKinds = map[string]dump.EventKinds{
	"ALL": dump.AllEvents, "NEW": dump.NewEvents, "UPDATES": dump.UpdateEvents, "UPDATE": dump.UpdateEvents, "DESTROY": dump.DestroyEvents,
}

// setMask reads --event-mask.
func (w *conntrackWatcher) setMask(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		kind, ok := eventKinds[strings.ToUpper(word)]
		if !ok {
			return errors.New("must be of NEW, UPDATES, DESTROY and ALL")
		}
		w.opt.Kinds |= kind
	}
	return nil
}

func (w *conntrackWatcher) run(cmd *cobra.Command) error {
	if err := w.form.check(cmd); err != nil {
		return err
	}
	ns, err := w.entries.open(cmd)
	if err != nil {
		return err
	}
	defer ns.Close()
	ctx, cancel := within(cmd.Context(), w.duration)
	defer cancel()
	w.env.note("a subscriber slows the gateway down: %s", strings.ReplaceAll(eventsCost, "\n", " "))
	w.lines = bufio.NewWriterSize(w.env.Stdout, lineBuffer)
	if w.form.csv {
		_, _ = w.lines.WriteString("event,time,missed,")
	}
	_, _ = w.lines.Write(w.form.header(nil))
	if w.opt.Kinds == 0 {
		w.opt.Kinds = dump.AllEvents
	}
	w.opt.Filter, w.opt.Buffer, w.opt.Gap, w.opt.Idle = &w.filter.filter, w.bufferMiB<<20, w.gap, w.lines.Flush
	w.opt.Ready = func() { w.env.note("listening") }
	done, err := dump.Watch(ctx, ns, w.opt, w.take)
	if err = written(err, w.lines.Flush()); err != nil {
		return err
	}
	text := units.Plural(done.Events, "event", "events") + ", none was lost"
	if done.Gaps > 0 {
		text = fmt.Sprintf("%s, %s of them found afterwards; %s lost in %s", units.Plural(done.Events, "event", "events"), units.Count(done.Missed),
			units.Count(done.Lost), units.Plural(done.Gaps, "gap", "gaps"))
	}
	w.env.note("%s", text)
	return nil
}

// gap reports a loss. Where gaps follow each other, which events were lost in which is
// unknown: the sum comes at the end.
func (w *conntrackWatcher) gap(g dump.Gap) {
	if g.Why != "" {
		w.env.note("the receive buffer overflowed and events were lost; which is unknown: %s", g.Why)
		return
	}
	w.env.note("the receive buffer overflowed and events were lost; a dump found %s without an event",
		units.Plural(g.Missed, "beginning or end", "beginnings and ends"))
}

// flushEvery is how long a line may wait for others.
const flushEvery = 100 * time.Millisecond

// eventNames are the names of events in conntrack -E, in its layout.
var eventNames = map[dump.EventKinds]struct{ name, line string }{
	dump.NewEvents:     {"NEW", "    [NEW] "},
	dump.UpdateEvents:  {"UPDATE", " [UPDATE] "},
	dump.DestroyEvents: {"DESTROY", "[DESTROY] "},
}

// take writes an event.
func (w *conntrackWatcher) take(e dump.Event) error {
	now := time.Now()
	w.form.options.Now = now.Unix()
	if _, err := w.lines.Write(append(w.append(w.lines.AvailableBuffer(), e, now), '\n')); err != nil {
		return err
	}
	if w.n++; w.n == w.max {
		return dump.ErrStop
	}
	if now.Sub(w.flushed) < flushEvery {
		return nil
	}
	w.flushed = now
	return w.lines.Flush()
}

func (w *conntrackWatcher) append(b []byte, e dump.Event, now time.Time) []byte {
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
