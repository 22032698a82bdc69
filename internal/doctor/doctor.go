// Package doctor examines a network namespace and cures what it finds: examine,
// apply, examine again.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
)

// maxRounds bounds applying and measuring again. While a table is full, what is
// offered beyond it cannot be seen, so one round may not be enough; each doubles
// the limit at least.
const maxRounds = 4

// Origin is what doctor's changes are called in the journal.
const Origin = "doctor"

// Look records a namespace and applies the rules.
func Look(ctx context.Context, o collect.RecordOptions) (*snapshot.Recording, *diagnose.Report, error) {
	rec, err := collect.Record(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	report := diagnose.Run(rec, diagnose.Rules())
	return rec, &report, nil
}

// Round is one time of applying, and what was seen afterwards.
type Round struct {
	// Transaction is the journal's ID, for `natkit tune undo`.
	Transaction string        `json:"transaction"`
	Changes     []tune.Change `json:"changes"`
	// ConfirmBy is when the change is undone unless it is confirmed; nil where it
	// stays.
	ConfirmBy *time.Time       `json:"confirm_by,omitempty"`
	After     *diagnose.Report `json:"after"`
}

// Treatment is a series of rounds.
type Treatment struct {
	Rounds []Round `json:"rounds"`
}

// Last is the newest report: of the last round, or the given one where there was
// no round.
func (t *Treatment) Last(first *diagnose.Report) *diagnose.Report {
	if len(t.Rounds) == 0 {
		return first
	}
	return t.Rounds[len(t.Rounds)-1].After
}

// Changes returns all changes, each target once, from its first value to
// its last.
func (t *Treatment) Changes() []tune.Change {
	var all []tune.Change
	at := map[string]int{}
	for _, r := range t.Rounds {
		for _, c := range r.Changes {
			if i, ok := at[c.Key()]; ok {
				c.Before = all[i].Before
				all[i] = c
				continue
			}
			at[c.Key()] = len(all)
			all = append(all, c)
		}
	}
	return all
}

// Options are the options of a treatment.
type Options struct {
	// Look is how the effect of a round is seen: a report taken after it.
	Look  func(context.Context) (*diagnose.Report, error)
	Apply apply.Options
	// Origin is written into the journal; empty means "doctor".
	Origin string
	// Applied, where set, receives each change as soon as it is made.
	Applied func(*apply.Applied)
	// Agree is asked before each round; false ends the treatment.
	Agree func(tune.Plan) (bool, error)
	// Round, where set, receives each round when it is over.
	Round func(Round)
}

// Treat applies the automatic remedies of a report and examines again, until there
// are none left, but no more than maxRounds times, and once only where the change
// waits for a confirmation: what may be rolled back is nothing to build on.
// What was applied before an error is in the Treatment, and stays.
func Treat(ctx context.Context, report *diagnose.Report, o Options) (*Treatment, error) {
	t := &Treatment{Rounds: []Round{}}
	if o.Origin == "" {
		o.Origin = Origin
	}
	rounds := maxRounds
	if o.Apply.Confirm > 0 {
		rounds = 1
	}
	for range rounds {
		plan := report.Plan(o.Origin)
		if len(plan.Changes) == 0 {
			return t, nil
		}
		if agreed, err := o.Agree(plan); err != nil || !agreed {
			return t, err
		}
		applied, err := apply.Apply(ctx, plan, o.Apply)
		if err != nil {
			return t, err
		}
		if o.Applied != nil {
			o.Applied(applied)
		}
		round := Round{Transaction: applied.ID(), Changes: applied.Changes()}
		if c := applied.Transaction().Confirm; c != nil {
			round.ConfirmBy = &c.DeadlineAt
		}
		t.Rounds = append(t.Rounds, round)
		report, err = o.Look(ctx)
		if err != nil {
			return t, fmt.Errorf("examine again after the change (it stays; undo it with 'natkit tune undo %s'): %w", applied.ID(), err)
		}
		t.Rounds[len(t.Rounds)-1].After = report
		if o.Round != nil {
			o.Round(t.Rounds[len(t.Rounds)-1])
		}
	}
	return t, nil
}
