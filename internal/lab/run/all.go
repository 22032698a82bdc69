package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
)

// AllOptions say how to run a series of scenarios.
type AllOptions struct {
	Options
	// Row, where set, is told of each scenario when it is over.
	Row func(lab.AccuracyRow)
}

// All runs scenarios one after the other and compares what doctor found with what
// was wrong. A scenario that cannot be run is in the result; an error is returned
// where the series was interrupted, or where host values could not be put back: then
// nothing more is run.
func All(ctx context.Context, scenarios []*lab.Scenario, o AllOptions) (*lab.Accuracy, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if err := build.CheckPrivilege(); err != nil {
		return nil, fmt.Errorf("run scenarios: %w", err)
	}
	lock, err := build.Lock(o.Dir) // once for all: no other lab comes between
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	o.locked = true
	began := o.Clock()
	a := &lab.Accuracy{Schema: lab.AccuracySchema, Version: o.Version, Started: began.UTC(), CPUs: runtime.NumCPU(), Scenarios: []lab.AccuracyRow{}, Kernel: release()}
	for _, r := range diagnose.Rules() {
		a.Rules = append(a.Rules, r.ID)
	}
	ordered := lab.Matrix(scenarios)
	for i, sc := range ordered {
		row, err := oneOf(ctx, sc, o, fmt.Sprintf("%d/%d %s: ", i+1, len(ordered), sc.Name))
		if err != nil {
			return nil, err
		}
		a.Add(row)
		if o.Row != nil {
			o.Row(row)
		}
	}
	a.Seconds = o.Clock().Sub(began).Seconds()
	return a, nil
}

// release is the kernel's; empty where it does not tell.
func release() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(text))
}

func oneOf(ctx context.Context, sc *lab.Scenario, o AllOptions, prefix string) (lab.AccuracyRow, error) {
	if sc.NeedsHost() && !o.AllowHost {
		return lab.RowLeft(sc, "it changes values of the whole host: --allow-host allows it"), nil
	}
	one := o.Options
	one.Progress = func(text string) { o.Progress(prefix + text) }
	began := o.Clock()
	r, err := Run(ctx, sc, one)
	var back *restoreError
	switch {
	case err == nil:
		return lab.RowOf(sc, r), nil
	case ctx.Err() != nil, errors.As(err, &back):
		return lab.AccuracyRow{}, err
	}
	return lab.RowOfError(sc, err, o.Clock().Sub(began).Seconds()), nil
}
