package run

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"github.com/natkit/natkit/internal/tune"
)

// keepPlans is how long a plan is kept that nobody names: a natkit that has just
// stored it may be about to apply it.
const keepPlans = time.Hour

// forget deletes the plans that no transaction of the journal names, nor the table of
// any namespace. Failing is no harm: the next one does it.
func (h Host) forget() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	unlock, err := h.Apply.Journal.Lock(ctx)
	if err != nil {
		return
	}
	defer unlock()
	used, err := h.journaled()
	if err != nil {
		return
	}
	var tables map[string]bool
	_, _ = h.store().Collect(h.now().Add(-keepPlans), func(digest string) bool {
		if used[digest] {
			return true
		}
		if tables == nil { // looked at only where there is something to delete
			tables = h.inForce()
		}
		return tables[everything] || tables[digest]
	})
}

func (h Host) now() time.Time {
	if h.Apply.Clock != nil {
		return h.Apply.Clock.Now()
	}
	return time.Now()
}

// journaled are the digests that transactions name. A file that cannot be read may
// name any.
func (h Host) journaled() (map[string]bool, error) {
	all, damaged, err := h.Apply.Journal.List()
	if err != nil {
		return nil, err
	}
	if len(damaged) > 0 {
		return nil, damaged[0]
	}
	used := map[string]bool{}
	for _, tx := range all {
		for _, c := range tx.Changes {
			for _, value := range []string{c.Before, c.After} {
				if digest, _ := tune.GatewayDigest(value); digest != "" {
					used[digest] = true
				}
			}
		}
	}
	return used, nil
}

// everything, among the digests, keeps them all.
const everything = "*"

// inForce are the digests that the tables of all network namespaces name. Where one
// cannot be looked at, nothing is forgotten.
func (h Host) inForce() map[string]bool {
	if !netns.SeesAll() {
		return map[string]bool{everything: true}
	}
	err := privilege.Check(
		privilege.Need{Any: []int{unix.CAP_SYS_ADMIN}, Why: "to enter network namespaces"},
		privilege.Need{Any: []int{unix.CAP_SYS_PTRACE}, Why: "to find them"})
	if err != nil {
		return map[string]bool{everything: true}
	}
	found := map[string]bool{}
	err = netns.Each(func(ns *netns.Handle) error {
		state, err := h.Apply.Engines.Read(ns, nil)
		if err == nil {
			found[state.Digest] = true
		}
		return err
	})
	if err != nil {
		found[everything] = true
	}
	return found
}
