//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/doctor"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

// treatment is what --fix did; Remaining are the ids of the findings after it.
type treatment struct {
	*doctor.Treatment
	Remaining []string `json:"remaining"`
}

// addLive adds what is read of a running host besides its namespace.
func (d *doctorVerb) addLive(look *collect.RecordOptions) {
	if look.Netns == nil {
		if host, err := netns.OfHost(); host || err != nil {
			look.Others = &collect.SurveyOptions{Refused: err}
		}
	}
	look.Names = d.env.hostNames(time.Second)
	if d.trace {
		look.Trace = doctor.Trace(look.Netns)
	}
}

func (d *doctorVerb) diagnose(ctx context.Context, look collect.RecordOptions) (*diagnose.Report, error) {
	rec, r, err := doctor.Look(ctx, look)
	look.Progress("")
	d.env.detailParts(rec)
	return r, err
}

func (d *doctorVerb) treat(ctx context.Context, look collect.RecordOptions, first *diagnose.Report) (*treatment, error) {
	journal, err := d.env.journal()
	if err != nil {
		return nil, err
	}
	opt := apply.Options{Journal: journal, Confirm: d.change.confirm, Persist: d.change.persist}
	text := d.env.Stdout
	if d.env.asJSON {
		text = io.Discard
	}
	done, err := doctor.Treat(ctx, first, doctor.Options{
		Look:  func(ctx context.Context) (*diagnose.Report, error) { return d.diagnose(ctx, look) },
		Apply: opt,
		Agree: func(plan tune.Plan) (bool, error) {
			doc, err := d.planned(plan, opt)
			if err != nil || d.env.asJSON {
				return err == nil, err
			}
			fmt.Fprintln(text)
			return d.env.agree(ctx, doc, d.change.yes)
		},
		Applied: func(a *apply.Applied) {
			tx := a.Transaction()
			io.WriteString(text, d.env.style().Fit(appliedText(&tx, "natkit tune undo "+tx.ID, "natkit tune confirm "+tx.ID)))
		},
		Round: func(r doctor.Round) {
			fmt.Fprint(text, "\nAfter the change\n\n")
			_ = d.text(r.After, "")
		},
	})
	if err != nil {
		return nil, err
	}
	return &treatment{done, done.Last(first).IDs()}, nil
}

func (d *doctorVerb) planned(plan tune.Plan, opt apply.Options) (doc *changeDocument, err error) {
	doc = planOf(&plan, d.change.confirm)
	if d.change.persist {
		doc.Files, doc.Warnings, err = planFiles(plan, opt)
	}
	return doc, err
}
