//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/record"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/units"
)

// Bounds and defaults of the recorder.
const (
	usualRing   = 200 << 20
	mostRing    = 1 << 40
	usualBefore = 5 * time.Minute
	usualAfter  = 2 * time.Minute
	mostAround  = 24 * time.Hour
	usualKeep   = 10
	mostKeep    = 10_000
	recordEvery = 5 * time.Second
	// usualOutcomes: to load the programs for it takes more than all else.
	usualOutcomes = 2 * time.Minute
	// namesEvery: of very many containers reading them takes as much as some snapshots.
	namesEvery = 5 * time.Minute
)

// neverTriggers is the word of --on for no finding.
const neverTriggers = "none"

// addRecorder makes cmd the recorder.
func addRecorder(env *Env, cmd *cobra.Command) {
	o := record.Options{Version: env.Version, Most: usualRing, Every: recordEvery, Before: usualBefore, After: usualAfter, Keep: usualKeep}
	t := &target{}
	on := "critical"
	t.runs(cmd, func(ctx context.Context, ns *netns.Handle, _ []string) error {
		o.Netns = ns
		if o.Dir == "" {
			o.Dir = recordDir(env)
		}
		if on != neverTriggers {
			if err := o.On.UnmarshalText([]byte(on)); err != nil {
				return err
			}
		}
		return runRecorder(ctx, env, t.name(), o)
	})
	f := cmd.Flags()
	f.Var(into(&o.Dir, notEmpty("a directory")), "dir", "the `DIR` of the recording (default "+record.DefaultDir+")")
	size := into(&o.Most, parseRing)
	size.text = "200M"
	f.Var(size, "ring", "`SIZE` that the ring takes on the disk at most, and what is kept as much again: 200M, 1G, …")
	f.Var(period(&o.Every, minEvery, time.Hour), "every", "time from one snapshot to the next: seconds or 2s, 1m, …")
	words := []string{diagnose.Warning.String(), diagnose.Critical.String(), neverTriggers}
	severity := into(&on, oneOf(words...))
	severity.text = on
	f.Var(severity, "on", "keep the minutes around a finding of this `SEVERITY`, or a worse one: warning, critical; none: of no finding")
	when := &value{kind: repeatable, set: func(text string) error {
		c, err := record.ParseCondition(text)
		o.When = append(o.When, c)
		return err
	}}
	f.Var(when, "when", "keep the minutes around the time when this `CONDITION` holds, such as 'insert_failed > 10/s' or 'nf_conntrack_count > 200000'; may be repeated")
	f.Var(period(&o.Before, 0, mostAround), "before", "how much is kept before a trigger")
	f.Var(period(&o.After, 0, mostAround), "after", "how much is kept after a trigger")
	f.Var(between(&o.Keep, 1, mostKeep), "keep", "keep the minutes around the last `N` triggers")
	f.BoolVar(&o.Packets, "packets", true, "record headers of SYNs, FINs, RSTs and ICMP")
	f.BoolVar(&o.Drops, "drops", true, "record what the kernel drops, by eBPF")
	o.Outcomes = usualOutcomes
	f.Var(period(&o.Outcomes, 0, time.Hour), "outcomes", "how often the connections of services are followed, from one snapshot to the next: whether they are answered, and where they are lost; 0: never")
	env.addJSON(cmd, record.EventSchema+", a line for each event")
	completeFlags(cmd, map[string]cobra.CompletionFunc{"on": completeWords(words...)})
}

func parseRing(text string) (int64, error) {
	n, ok := parseBytes(text)
	switch {
	case !ok:
		return 0, fmt.Errorf("must be an amount of memory on disk: 200M, 1G, …")
	case n < ring.LeastBytes || n > mostRing:
		return 0, outside(fmt.Sprintf("%dM", ring.LeastBytes>>20), "1T", false)
	}
	return n, nil
}

func runRecorder(ctx context.Context, env *Env, where string, o record.Options) error {
	env.note("recording %s into %s: a snapshot every %s, %s at most, until interrupted", where, o.Dir, o.Every, units.Bytes(o.Most))
	o.Names = env.hostNames(namesEvery)
	lines := &eventLines{env: env, ranks: journaled(env)}
	o.Note = env.fail
	o.Event = func(e ring.RecordedEvent) error {
		if env.asJSON {
			return printed(report.JSONLine(env.Stdout, record.EventLine{Schema: record.EventSchema, RecordedEvent: e}))
		}
		e.At = e.At.Local()
		var s diagnose.Severity
		_ = s.UnmarshalText([]byte(e.Severity)) // of a mark there is none
		return lines.ranked(s, func(w io.Writer) error { return report.RecordEvent(w, env.style(), e) })
	}
	end, err := record.Run(ctx, o)
	if err != nil {
		return err
	}
	env.note("ended after %s: %s, %s of ring, %s of a CPU", time.Duration(end.Seconds*float64(time.Second)).Round(time.Second),
		units.Plural(end.Snapshots, "snapshot", "snapshots"), units.Bytes(end.Bytes), units.Percent(end.CPU.Seconds()/max(end.Seconds, 1e-9)))
	if end.NotKept > 0 {
		env.note("the minutes around %s were not kept", units.Plural(end.NotKept, "trigger", "triggers"))
	}
	return nil
}

func newRecordMark(env *Env) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "mark [TEXT]",
		Short: "have a running recorder keep the minutes around now",
		Long: `Note this moment in a recording that is under way, and have it keep the minutes around it,
with a text of your own. Only who may write into its directory can.`,
		Example: `  sudo natkit record mark
  sudo natkit record mark 'users call: logins hang'`,
		RunE: func(_ *cobra.Command, args []string) error {
			if dir == "" {
				dir = recordDir(env)
			}
			text := ""
			if len(args) > 0 {
				text = args[0]
			}
			at, err := record.Mark(dir, text)
			if err != nil {
				return err
			}
			return env.say("marked %s in %s; 'natkit record list' shows what is kept when the minutes after it are over\n", at.Local().Format(time.RFC3339), dir)
		},
	}
	cmd.Flags().Var(into(&dir, notEmpty("a directory")), "dir", "the `DIR` of the recording (default "+record.DefaultDir+")")
	return cmd
}
