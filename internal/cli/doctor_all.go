//go:build linux

package cli

import (
	"context"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
)

// runAll examines every network namespace. The exit code is the worst: findings, then what could not
// be checked.
func (d *doctorVerb) runAll(ctx context.Context) error {
	progress := d.env.progress()
	sum := diagnose.Report{}
	n := 0
	progress.Show("examining all network namespaces for " + d.window.String())
	missed, err := doctor.All(ctx, collect.RecordOptions{Options: collect.Options{Names: d.env.hostNames(addressesAge)}, For: d.window}, func(r *diagnose.Report, of int) error {
		n++
		progress.Clear()
		defer progress.Update("examined %d of %d network namespaces", n, of)
		return d.next(&sum, r, n == 1)
	})
	progress.Clear()
	if missed != nil {
		d.env.note("there may be other network namespaces: %v", missed)
	}
	if err != nil {
		return err
	}
	return verdict(ctx, &sum)
}
