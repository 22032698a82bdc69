package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

const (
	// manyEntries is the table that doctor has to get through.
	manyEntries = 1_000_000

	labSeconds    = 40.0
	doctorSeconds = 3.5
	doctorBytes   = 64 << 20
)

// usage is what one run of a program took.
type usage struct {
	seconds   float64
	peakBytes int64
}

// limits measures what is required of single runs. A run counts as the slowest
// of three: these are limits, not means.
func limits(ctx context.Context, natkit string, progress func(string, ...any)) ([]verdict, error) {
	slowest, err := worstOf(3, func() (usage, error) {
		return measure(exec.CommandContext(ctx, natkit, "lab", "run", labName, "--json"))
	})
	if err != nil {
		return nil, err
	}
	progress("lab run table-full: %.1f s", slowest.seconds)
	all := []verdict{{fmt.Sprintf("`lab run table-full` ≤ %.0f s", labSeconds), fmt.Sprintf("%.1f s", slowest.seconds), slowest.seconds <= labSeconds}}

	look, err := doctorOnLargeTable(ctx, natkit)
	if err != nil {
		return nil, err
	}
	progress("doctor --for 2s, %d entries: %.2f s, %.1f MiB", manyEntries, look.seconds, float64(look.peakBytes)/(1<<20))
	return append(all,
		verdict{fmt.Sprintf("`doctor --for 2s` with 1,000,000 entries ≤ %.1f s", doctorSeconds), fmt.Sprintf("%.2f s", look.seconds), look.seconds <= doctorSeconds},
		verdict{fmt.Sprintf("… peak memory ≤ %d MiB", doctorBytes>>20), fmt.Sprintf("%.1f MiB", float64(look.peakBytes)/(1<<20)), look.peakBytes <= doctorBytes},
	), nil
}

// doctorOnLargeTable fills the table of a namespace of its own. Where the host's
// limit is too small for that it is raised meanwhile, as by a lab.
func doctorOnLargeTable(ctx context.Context, natkit string) (worst usage, err error) {
	putBack, err := allow(ctx, manyEntries+manyEntries/2)
	if err != nil {
		return usage{}, err
	}
	defer func() { err = errors.Join(err, putBack()) }()
	ns, err := netns.New("benchcmp")
	if err != nil {
		return usage{}, err
	}
	defer ns.Close()
	i := 0
	_, err = dump.Insert(ctx, ns, func(e *conntrack.Entry) bool {
		if i == manyEntries {
			return false
		}
		lab.FillEntry(i, e)
		i++
		return true
	})
	if err != nil {
		return usage{}, fmt.Errorf("fill a table with %d entries: %w", manyEntries, err)
	}
	return worstOf(3, func() (u usage, err error) {
		err = ns.Do(func() error { // the program starts in the thread's namespace
			u, err = measure(exec.CommandContext(ctx, natkit, "doctor", "--for", "2s", "--json"))
			return err
		})
		return u, err
	})
}

// allow raises nf_conntrack_max to n where it is below, until putBack.
func allow(ctx context.Context, n int64) (putBack func() error, err error) {
	now, err := apply.ReadSysctlInt("/proc", snapshot.ConntrackMax)
	if err != nil {
		return nil, err
	}
	if now >= n {
		return func() error { return nil }, nil
	}
	j, err := journal.At(journal.Dir(os.Getenv))
	if err != nil {
		return nil, err
	}
	applied, err := apply.Apply(ctx, tune.Plan{Origin: "benchmark", Changes: []tune.Change{{
		Kind: tune.Sysctl, Target: snapshot.ConntrackMax, Before: strconv.FormatInt(now, 10), After: strconv.FormatInt(n, 10),
		Why: "room for the benchmark's table",
	}}}, apply.Options{Journal: j, Lifeline: true})
	if err != nil {
		return nil, err
	}
	return func() error {
		_, err := applied.Undo()
		return err
	}, nil
}

// worstOf is the slowest and the largest of n runs.
func worstOf(n int, run func() (usage, error)) (usage, error) {
	var worst usage
	for range n {
		u, err := run()
		if err != nil {
			return usage{}, err
		}
		worst.seconds = max(worst.seconds, u.seconds)
		worst.peakBytes = max(worst.peakBytes, u.peakBytes)
	}
	return worst, nil
}

// measure runs a program of ours; 3 (findings) is a success.
func measure(cmd *exec.Cmd) (usage, error) {
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	start := time.Now()
	err := cmd.Run()
	u := usage{seconds: time.Since(start).Seconds()}
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 3) {
		return usage{}, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, &output)
	}
	if r, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		u.peakBytes = r.Maxrss * 1024 // getrusage(2): in KiB
	}
	return u, nil
}
