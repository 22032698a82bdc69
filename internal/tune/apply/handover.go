package apply

import (
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// handOver lets a later transaction that changed the same thing from what this
// one wrote take over what was before: two labs that end in any order then leave
// the host as the first one found it. Where wanted is given, a later one must want
// that value: if none began where this one ended, as somebody else changed it in
// between, there is nothing to hand over, and the value is the later one's.
func (u *undoing) handOver(c *journal.Change, wanted *string) bool {
	l, ok := u.heir(*c, wanted)
	if !ok {
		return false
	}
	if !l.Follows(c.After) {
		c.State, c.Note = journal.Undone, "somebody else changed it since, and "+l.in.ID+" wrote it again"
		return true
	}
	l.Before, l.Along = c.Before, c.Along
	u.heirs[l.in.ID] = l.in
	u.handed[c] = c.State
	c.State, c.Note = journal.Undone, "handed over to "+l.in.ID+", which changed it again"
	if wanted != nil && tune.SameValue(l.After, *wanted) {
		c.Note = "handed over to " + l.in.ID + ", which wants the same value"
	}
	return true
}

// heir is the later change that takes over what was before c; one that does not follow c
// only has the value that is wanted.
func (u *undoing) heir(c journal.Change, wanted *string) (laterChange, bool) {
	later := u.after(c)
	wants := func(l laterChange) bool { return wanted != nil && tune.SameValue(l.After, *wanted) }
	follows := func(l laterChange) bool { return l.Follows(c.After) }
	owner := slices.IndexFunc(later, wants)
	if wanted != nil && owner < 0 {
		return laterChange{}, false
	}
	heir := slices.IndexFunc(later, func(l laterChange) bool { return follows(l) && wants(l) })
	if heir < 0 { // whose successor wants it
		heir = slices.IndexFunc(later, follows)
	}
	if heir < 0 {
		heir = owner
	}
	if heir < 0 {
		return laterChange{}, false
	}
	return later[heir], true
}

// bequeath writes down what others have taken over. Where that fails, it is still this
// transaction's.
func (u *undoing) bequeath() error {
	for _, in := range u.heirs {
		if err := u.opt.Journal.Save(in); err != nil {
			for c, former := range u.handed {
				c.State, c.Note = former, ""
			}
			return fmt.Errorf("hand values of %s over to %s: %w", u.tx.ID, in.ID, err)
		}
	}
	return nil
}

// laterChange is a change of the same thing, and the transaction that it is in.
type laterChange struct {
	*journal.Change
	in *journal.Transaction
}

// after are the open changes of the same thing in later transactions, oldest first.
func (u *undoing) after(c journal.Change) []laterChange {
	if u.later == nil {
		u.readLater()
	}
	return slices.DeleteFunc(slices.Clone(u.later[c.Key()]), func(l laterChange) bool {
		return !c.Durable && (l.in.BootID != u.tx.BootID || !l.in.In(*l.Change).Is(u.tx.In(c)))
	})
}

func (u *undoing) readLater() {
	u.later = map[string][]laterChange{}
	all, _, err := u.opt.Journal.List()
	if err != nil {
		return
	}
	// Where the journal was deleted, all in it are later ones.
	self := slices.IndexFunc(all, u.tx.Is)
	for _, in := range all[self+1:] {
		for i := range in.Changes {
			if l := &in.Changes[i]; l.Open() && u.reaches(in, in.In(*l)) == nil {
				u.later[l.Key()] = append(u.later[l.Key()], laterChange{l, in})
			}
		}
	}
}
