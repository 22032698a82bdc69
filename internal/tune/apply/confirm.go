package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/natkit/natkit/internal/tune/journal"
)

// Confirm makes a transaction that waits for confirmation stay. Its files
// (Options.Persist at Apply) are written now; where that fails it is not
// confirmed and its deadline still holds. Its guard has ended when it returns.
func Confirm(id string, opt Options) (*journal.Transaction, error) {
	return confirm(id, opt, func(*journal.Transaction) bool { return true })
}

// confirm refuses where the id is not, or no longer, that of the one that is meant.
func confirm(id string, opt Options, meant func(*journal.Transaction) bool) (*journal.Transaction, error) {
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	allowed := func(tx *journal.Transaction, view journal.View) error {
		if !meant(tx) {
			return fmt.Errorf("%w any more: its id is another's by now; its deadline still holds", fs.ErrNotExist)
		}
		return confirmable(tx, view)
	}
	tx, err := onTransaction("confirm", id, opt, allowed, func(tx *journal.Transaction) error {
		if err := writeFiles(tx, opt); err != nil {
			return notConfirmed(tx, err)
		}
		tx.Confirm.Confirmed = true
		if err := opt.Journal.Save(tx); err != nil {
			return notConfirmed(tx, errors.Join(err, takeFilesBack(tx, opt)))
		}
		return nil
	})
	if err == nil {
		retireGuard(tx)
	}
	return tx, err
}

func notConfirmed(tx *journal.Transaction, err error) error {
	tx.Confirm.Confirmed = false
	return fmt.Errorf("confirm %s: %w; it is not confirmed and will be undone at %s", tx.ID, err,
		tx.Confirm.DeadlineAt.Local().Format(time.TimeOnly))
}

func confirmable(tx *journal.Transaction, view journal.View) error {
	switch status := view.Status(tx); {
	case tx.Confirm == nil:
		return fmt.Errorf("it needs no confirmation (%s)", status)
	case tx.Finished():
		return fmt.Errorf("too late (%s)", status)
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
	if undoErr := takeFilesBack(tx, opt); undoErr != nil {
		return fmt.Errorf("%w; %w", err, undoErr)
	}
	if saveErr := opt.Journal.Save(tx); saveErr != nil {
		return fmt.Errorf("%w; %w", err, saveErr)
	}
	return err
}

// takeFilesBack makes files that were written be planned again.
func takeFilesBack(tx *journal.Transaction, opt Options) error {
	u := &undoing{tx: tx, opt: opt, heirs: map[string]*journal.Transaction{}, handed: map[*journal.Change]journal.State{}}
	for i := range tx.Changes {
		c := &tx.Changes[i]
		if !c.Durable || !c.Open() {
			continue
		}
		if err := u.undoOne(c); err != nil {
			return fmt.Errorf("taking it back: %w", err)
		}
		if c.State == journal.Undone {
			c.State, c.Note = journal.Planned, ""
		}
	}
	return u.bequeath()
}
