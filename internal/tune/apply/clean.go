package apply

import (
	"errors"
	"slices"

	"github.com/natkit/natkit/internal/tune/journal"
)

// Clean undoes every transaction that nobody else will: the owner died, the
// deadline passed without the guard, or a reboot made it void; of a service that is not
// root only its own. It goes on after errors and returns what it undid.
func Clean(opt Options) ([]*journal.Transaction, error) {
	opt = opt.withDefaults()
	if err := opt.check(); err != nil {
		return nil, err
	}
	all, damaged, err := opt.Journal.List()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.Join(damaged...)
	}
	view, err := opt.view()
	if err != nil {
		return nil, err
	}
	var undone []*journal.Transaction
	errs := damaged
	// Newest first, so that values changed twice go back all the way.
	for _, tx := range slices.Backward(all) {
		if !view.Status(tx).Abandoned() || tx.ReadOnly() {
			continue
		}
		tx, err := undoByID(tx.ID, opt, abandoned)
		if errors.Is(err, errMeanwhile) {
			continue
		}
		errs = append(errs, err)
		if err == nil {
			undone = append(undone, tx)
		}
	}
	return undone, errors.Join(errs...)
}

func abandoned(tx *journal.Transaction, view journal.View) error {
	if !view.Status(tx).Abandoned() {
		return errMeanwhile
	}
	expire(tx)
	return nil
}
