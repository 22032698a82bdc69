package cli

import (
	"context"
	"fmt"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// runAll examines every network namespace. The exit code is the worst: findings, then what could not
// be checked.
func (d *doctorVerb) runAll(ctx context.Context) error {
	progress := d.env.progress()
	sum := diagnose.Report{}
	n := 0
	progress.Show("examining all network namespaces for " + d.window.String())
	missed, err := doctor.All(ctx, collect.RecordOptions{For: d.window}, func(r *diagnose.Report, of int) error {
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

// next prints one of several reports, and adds what decides the exit code to sum.
func (d *doctorVerb) next(sum, r *diagnose.Report, first bool) error {
	sum.Findings, sum.Incomplete = append(sum.Findings, r.Findings...), append(sum.Incomplete, r.Incomplete...)
	if d.env.asJSON {
		return report.JSONLine(d.env.Stdout, r)
	}
	if !first {
		fmt.Fprintln(d.env.Stdout)
	}
	if r.Owner != nil {
		fmt.Fprintln(d.env.Stdout, d.env.style().Paint(report.Bold, report.Clean(r.Owner.String())))
	}
	return report.Doctor(d.env.Stdout, d.env.style(), r, d.env.verbose, "")
}

// runFrom diagnoses what a bundle has: one recording, or several network namespaces.
func (d *doctorVerb) runFrom(ctx context.Context) error {
	reports, err := d.reports(ctx)
	if err != nil {
		return err
	}
	if len(reports) == 1 {
		if d.env.asJSON {
			err = report.JSON(d.env.Stdout, reports[0])
		} else {
			err = d.text(reports[0], "")
		}
		if err != nil {
			return err
		}
		return verdict(ctx, reports[0])
	}
	sum := diagnose.Report{}
	for i, r := range reports {
		if err := d.next(&sum, r, i == 0); err != nil {
			return err
		}
	}
	return verdict(ctx, &sum)
}

func (d *doctorVerb) reports(ctx context.Context) (all []*diagnose.Report, err error) {
	err = d.env.eachRecorded(ctx, recorded{name: d.from, host: d.of, memory: int64(d.memory) << 20}, func(rec *snapshot.Recording) error {
		r := diagnose.Run(rec, diagnose.Rules())
		r.Owner = rec.Owner
		all = append(all, &r)
		return nil
	})
	return all, err
}
