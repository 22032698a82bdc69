//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/report"
)

// watchFor examines a namespace until it is interrupted. The exit code is that of a report with what stands then.
func (d *doctorVerb) watchFor(ctx context.Context, ns *netns.Handle) error {
	where := d.target.name()
	d.env.note("watching %s: a report every %s, until interrupted", where, d.watch.every)
	hook := &doctor.Hook{Command: d.watch.exec, Limit: d.watch.limit, Output: d.env.Stderr, Failed: func(err error) { d.env.fail(err) }}
	ranUntil, kill := context.WithCancel(ctx)
	defer hook.Wait()
	defer kill()
	lines := &eventLines{env: d.env, ranks: journaled(d.env)}
	end, err := doctor.Watch(ctx, doctor.WatchOptions{Netns: ns, Every: d.watch.every,
		Event: func(e diagnose.Event) error {
			if d.watch.exec != "" {
				hook.Run(ranUntil, e)
			}
			return lines.event(e)
		},
		Slowed: func(next time.Duration) {
			d.env.note("reports of %s take more than 1 %% of a CPU: the next comes in %s", where, next.Round(time.Second))
		},
	})
	if err != nil {
		return err
	}
	if err := lines.ended(end); err != nil {
		return err
	}
	last := &diagnose.Report{Incomplete: end.Incomplete}
	for _, s := range end.Findings {
		last.Findings = append(last.Findings, diagnose.Finding{ID: s.ID, Severity: s.Severity})
	}
	return verdict(context.WithoutCancel(ctx), last)
}

// eventLines prints events.
type eventLines struct {
	env *Env
	// ranks is true where systemd's journal reads the lines, and their severity from their beginning.
	ranks bool
}

func (l *eventLines) event(e diagnose.Event) error {
	if l.env.asJSON {
		return printed(report.JSONLine(l.env.Stdout, e))
	}
	e.At, e.Since = e.At.Local(), e.Since.Local()
	return l.ranked(e.Severity, func(w io.Writer) error { return report.Event(w, l.env.style(), e) })
}

func (l *eventLines) ended(e *diagnose.WatchEnd) error {
	if l.env.asJSON {
		return printed(report.JSONLine(l.env.Stdout, e))
	}
	local := *e
	local.At, local.Findings = e.At.Local(), nil
	for _, s := range e.Findings {
		s.Since = s.Since.Local()
		local.Findings = append(local.Findings, s)
	}
	return l.ranked(0, func(w io.Writer) error { return report.WatchEnd(w, l.env.style(), &local) })
}

// ranked writes lines, for the journal with their priority before them (sd-daemon(3)).
func (l *eventLines) ranked(s diagnose.Severity, write func(io.Writer) error) error {
	priority, known := map[diagnose.Severity]string{diagnose.Critical: "<2>", diagnose.Warning: "<4>", diagnose.Notice: "<5>"}[s]
	if l.ranks && known {
		if _, err := io.WriteString(l.env.Stdout, priority); err != nil {
			return printed(err)
		}
	}
	return printed(write(l.env.Stdout))
}

func printed(err error) error {
	if err != nil {
		return fmt.Errorf("print the change: %w", err)
	}
	return nil
}

// journaled reports whether stdout is systemd's journal (systemd.exec(5), $JOURNAL_STREAM).
func journaled(env *Env) bool {
	var at unix.Stat_t
	file, ok := env.Stdout.(*os.File)
	if !ok || unix.Fstat(int(file.Fd()), &at) != nil {
		return false
	}
	return strings.TrimSpace(env.Getenv("JOURNAL_STREAM")) == fmt.Sprintf("%d:%d", at.Dev, at.Ino)
}
