package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natkit/natkit/internal/tune/journal"
)

// Confirm makes a transaction that waits for confirmation stay. Its files
// (Options.Persist at Apply) are written now; where that fails it is not
// confirmed and its deadline still holds. Its guard has ended when it returns.
func Confirm(id string, opt Options) (*journal.Transaction, error) {
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	tx, err := onTransaction("confirm", id, opt, confirmable, func(tx *journal.Transaction) error {
		if err := writeFiles(tx, opt); err != nil {
			return fmt.Errorf("confirm %s: %w; it is not confirmed and will be undone at %s", id, err,
				tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly))
		}
		tx.Confirm.Confirmed = true
		return opt.Journal.Save(tx)
	})
	if err == nil {
		retireGuard(tx)
	}
	return tx, err
}

func confirmable(tx *journal.Transaction, view journal.View) error {
	switch status := view.Status(tx); {
	case tx.Confirm == nil:
		return fmt.Errorf("it needs no confirmation (%s)", status)
	case tx.Finished():
		return fmt.Errorf("too late, it is undone (%s)", status)
	case tx.Confirm.Confirmed:
		return errors.New("it was confirmed before")
	case status == journal.StatusVoid:
		return errors.New("too late, the machine was rebooted since")
	case status == journal.StatusOverdue:
		return fmt.Errorf("too late, its time ended at %s", tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly))
	case status != journal.StatusPending:
		return fmt.Errorf("it does not wait for confirmation (%s)", status)
	}
	return nil
}

// writeFiles writes the files that were held back until now, or none of them.
func writeFiles(tx *journal.Transaction, opt Options) error {
	held := func(c journal.Change) bool { return c.Durable }
	for _, c := range tx.Changes {
		if held(c) && c.State == journal.Planned {
			if err := expectBefore(opt.Appliers[c.Kind], c.Change); err != nil {
				return err
			}
		}
	}
	err := writeChanges(context.Background(), tx, opt, held)
	if err == nil {
		return nil
	}
	for i := range tx.Changes {
		c := &tx.Changes[i]
		if !c.Durable || !c.Open() {
			continue
		}
		if undoErr := undoOne(tx, c, opt); undoErr != nil {
			return fmt.Errorf("%w; taking it back: %w", err, undoErr)
		}
		if c.State == journal.Undone {
			c.State, c.Note = journal.Planned, ""
		}
	}
	if saveErr := opt.Journal.Save(tx); saveErr != nil {
		return fmt.Errorf("%w; %w", err, saveErr)
	}
	return err
}
