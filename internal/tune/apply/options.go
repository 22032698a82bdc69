package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/store"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// lockPatience is how long natkit waits for another one to finish with the host.
const lockPatience = 10 * time.Second

// Options say how a plan is applied and where the host is.
type Options struct {
	Journal *journal.Journal
	// ProcRoot and Root are "/proc" and "/" where empty.
	ProcRoot, Root string
	// Confirm undoes the plan after this time unless it is confirmed; a guard
	// process sees to it. Files (Persist) are then only written at confirmation,
	// so that a reboot undoes by itself.
	Confirm time.Duration
	// Persist makes the changes hold after a boot.
	Persist bool
	// Lifeline undoes the plan within a second of this process' death.
	Lifeline bool
	// Guarded undoes the plan where this process dies before all of it is in force.
	// Without it the next Clean does.
	Guarded bool
	// Force undoes also what a running natkit holds, and gives up what an undo would
	// refuse to touch: rules that somebody changed, and what is in a network namespace
	// that cannot be found.
	Force bool
	// Clock is the system's where nil.
	Clock journal.Clock
	// Engines put gateways in force; nil stands for those of this version.
	Engines engine.Set
	// Plans are gateway plans by digest that need not be read from the store, though they
	// are there.
	Plans map[string]*gateway.Plan
	// Appliers replaces the standard ones where not nil.
	Appliers map[tune.Kind]Applier
}

func (o Options) withDefaults() Options {
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	o.Root = cmp.Or(o.Root, "/")
	if o.Clock == nil {
		o.Clock = journal.SystemClock{}
	}
	if o.Appliers == nil {
		o.Appliers = standard(o.ProcRoot, o.Root, o.store(), o.Engines, o.Plans)
	}
	return o
}

// store has the plans and configurations of gateways; nil where there is no journal.
func (o Options) store() *store.Store {
	if o.Journal == nil {
		return nil
	}
	return store.Beside(o.Journal.Dir())
}

func (o Options) check() error {
	switch {
	case o.Journal == nil:
		return errors.New("apply: no journal is given")
	case o.Lifeline && (o.Confirm != 0 || o.Persist):
		return errors.New("apply: what ends with its process (lifeline) can be neither confirmed nor persisted")
	case o.Confirm < 0:
		return fmt.Errorf("apply: time to confirm %s is negative", o.Confirm)
	}
	return nil
}

func (o Options) view() (journal.View, error) { return journal.NewView(o.ProcRoot, o.Clock) }

func (o Options) lock(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	return o.Journal.Lock(ctx)
}
