package apply

import (
	"slices"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

// handOver lets a later transaction that changed the same thing from what this
// one wrote take over what was before: two labs that end in any order then leave
// the host as the first one found it. Where wanted is given, a later one must want
// that value: if none began where this one ended, as somebody else changed it in
// between, there is nothing to hand over, and the value is the later one's.
func handOver(tx *journal.Transaction, c *journal.Change, opt Options, wanted *string) bool {
	later, err := changesAfter(tx, *c, opt)
	if err != nil {
		return false
	}
	wants := func(l laterChange) bool { return wanted != nil && tune.SameValue(l.After, *wanted) }
	follows := func(l laterChange) bool { return l.Follows(c.After) }
	owner := slices.IndexFunc(later, wants)
	if wanted != nil && owner < 0 {
		return false
	}
	heir := slices.IndexFunc(later, func(l laterChange) bool { return follows(l) && wants(l) })
	if heir < 0 { // whose successor wants it
		heir = slices.IndexFunc(later, follows)
	}
	if heir < 0 && wanted != nil {
		c.State, c.Note = journal.Undone, "somebody else changed it since, and "+later[owner].in.ID+" wrote it again"
		return true
	}
	if heir < 0 {
		return false
	}
	l := later[heir]
	l.Before, l.Along = c.Before, c.Along
	if opt.Journal.Save(l.in) != nil {
		return false
	}
	c.State, c.Note = journal.Undone, "handed over to "+l.in.ID+", which changed it again"
	if wants(l) {
		c.Note = "handed over to " + l.in.ID + ", which wants the same value"
	}
	return true
}

// laterChange is a change of the same thing, and the transaction that it is in.
type laterChange struct {
	*journal.Change
	in *journal.Transaction
}

// changesAfter are the open ones of transactions after tx, oldest first.
func changesAfter(tx *journal.Transaction, c journal.Change, opt Options) (found []laterChange, err error) {
	all, _, err := opt.Journal.List()
	// Where the journal was deleted, all in it are later ones.
	self := slices.IndexFunc(all, tx.Is)
	for _, later := range all[self+1:] {
		elsewhere := later.Netns != tx.Netns && !c.NamesNetns()
		if !c.Durable && (later.BootID != tx.BootID || elsewhere) {
			continue
		}
		for i := range later.Changes {
			if l := &later.Changes[i]; l.Open() && l.Key() == c.Key() {
				found = append(found, laterChange{l, later})
			}
		}
	}
	return found, err
}
