package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/units"
)

// apply puts a configuration in force, if anything has to be changed for that, and
// says what came of it.
func (k *keeper) apply(ctx context.Context, text []byte, reason string) error {
	r, err := k.Host.Prepare(ctx, Wish{Name: k.File, Text: text, Overwrite: true, Origin: OriginService})
	if errors.As(err, new(Refused)) { // other mistakes of a file name it
		return fmt.Errorf("%s: %w", k.File, err)
	}
	if err != nil {
		return err
	}
	if reason == addressesChanged && k.plan != nil && r.Before == tune.GatewayNone && k.undoAtWork(ctx) {
		return nil
	}
	if len(r.Changed) > 0 {
		k.log("rules that somebody changed by hand are replaced: %s", strings.Join(r.Changed, "; "))
	}
	former := k.plan
	switch devices := fastPath(r.Gateway, r.Facts.Interfaces); {
	case len(r.Plan.Changes) > 0:
		err = k.carryOut(ctx, r, reason)
	case k.plan != nil && devices != k.devices:
		err = k.rewrite(ctx, r, reason, devices)
	case reason != addressesChanged:
		k.log("%s: nothing to change, %s in force", reason, r.Digest[:12])
	}
	if err != nil {
		return err
	}
	k.devices = fastPath(r.Gateway, r.Facts.Interfaces)
	k.text, k.plan, k.digest, k.told, k.off, k.suspended = text, r.Gateway, r.Digest, "", "", false
	k.adopt()
	k.tellWaiting(r)
	k.tellNotes(r, reason)
	if former != nil && len(r.Plan.Changes) > 0 {
		k.tellOrphans(ctx, former)
	}
	return nil
}

// rewrite writes the same rules again: the kernel's fast path has the interfaces that
// there were when the rules were written.
func (k *keeper) rewrite(ctx context.Context, r *Ready, reason, devices string) error {
	unlock, err := k.Host.Apply.Journal.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.Host.Apply.Engines.Apply(k.Host.Netns, r.Gateway); err != nil {
		return err
	}
	k.log("%s: the kernel's fast path is between %s now", reason, devices)
	return nil
}

// fastPath are the interfaces of the flowtable that there are.
func fastPath(p *gateway.Plan, have []gateway.Interface) string {
	var there []string
	for _, i := range have {
		if slices.Contains(p.Flowtable, i.Name) {
			// One that was replaced by another of its name is not in it any more.
			there = append(there, fmt.Sprintf("%s (%d)", i.Name, i.Index))
		}
	}
	return strings.Join(there, ", ")
}

func (k *keeper) carryOut(ctx context.Context, r *Ready, reason string) error {
	began := time.Now()
	applied, err := r.Apply(ctx, 0)
	if err != nil {
		return err
	}
	tx := applied.Transaction()
	k.owner = &tx
	k.supersede(tx.ID)
	k.log("%s: %s in force as %s: %s, in %s", reason, r.Digest[:12], tx.ID, summary(r.Gateway), units.Roughly(time.Since(began).Seconds()))
	for _, c := range tx.Changes {
		if c.Kind == tune.Gateway && c.Note != "" {
			k.log("%s", c.Note)
		}
	}
	return nil
}

// adopt finds the transaction that put in force what a service before this one, or
// somebody else, applied.
func (k *keeper) adopt() {
	if k.owner != nil {
		if now, err := k.Host.Apply.Journal.Reload(k.owner); err != nil || !now.Finished() {
			return
		}
	}
	open, err := k.Host.Transactions()
	if k.owner = nil; err == nil && len(open) > 0 {
		k.owner = open[len(open)-1]
	}
}

// supersede has the newest transaction take over what the service's former ones would
// put back, so that an undo goes to what was before the service began. What root applied in
// between is root's to take back, and what was before it as well.
func (k *keeper) supersede(newest string) {
	open, err := k.Host.Transactions()
	if err != nil {
		k.log("read the journal: %v", err)
		return
	}
	for _, tx := range slices.Backward(open) {
		if tx.ReadOnly() {
			return
		}
		if tx.Origin != OriginService || tx.ID == newest || !tx.Complete || tx.Unconfirmed() {
			continue
		}
		if _, err := k.Host.Undo(tx.ID); err != nil {
			k.log("hand %s over to %s: %v", tx.ID, newest, err)
		}
	}
}

// leftAlone is true where somebody undid what the service applied: until the file
// changes or a reload, it stays so.
func (k *keeper) leftAlone() bool {
	if k.owner == nil || k.suspended {
		return k.suspended
	}
	now, err := k.Host.Apply.Journal.Reload(k.owner)
	if errors.Is(err, fs.ErrNotExist) || err != nil || !now.Finished() {
		return false
	}
	k.suspended = true
	k.log("%s was undone by somebody: the gateway is left so until the file changes or 'systemctl reload'", k.owner.ID)
	return true
}

// undoAtWork waits for who works with the host: an undo takes rules away before the
// journal says so. True where it was one, or is not through yet.
func (k *keeper) undoAtWork(ctx context.Context) bool {
	wait, cancel := context.WithTimeout(ctx, undoPatience)
	defer cancel()
	unlock, err := k.Host.Apply.Journal.Lock(wait)
	if err != nil {
		return true
	}
	unlock()
	return k.leftAlone()
}

// compare looks whether the rules are as the service applied them. Those that somebody
// removed, as a flush of the whole rule set does, are put in force again: a gateway that
// is to go is undone, or its service told to. Others are left, and it says so once.
func (k *keeper) compare(ctx context.Context) {
	if k.leftAlone() {
		return
	}
	state, err := k.Host.State()
	if err != nil {
		k.log("look at the rules: %v", err)
		return
	}
	switch value := apply.GatewayValue(state); value {
	case k.told:
	case k.digest:
		k.told, k.removed = "", 0
	case tune.GatewayNone:
		if k.failed || k.undoAtWork(ctx) { // failed: it was tried just now
			return
		}
		k.tellRemoved()
		k.again(ctx, "rules removed")
	default:
		k.told = value
		what := "they are " + tune.Change{Kind: tune.Gateway}.Shown(value)
		if len(state.Changes) > 0 {
			what = strings.Join(state.Changes, "; ")
		}
		k.log("the rules are not as they were applied: %s; they are left so until the next change or 'systemctl reload'", what)
	}
}

// drop deletes the connections that had an address that went.
func (k *keeper) drop(ctx context.Context, addresses []netip.Addr) {
	if len(addresses) == 0 || k.plan == nil || k.suspended {
		return
	}
	stale, err := k.Host.Lost(ctx, k.plan, addresses)
	if err == nil && len(stale.Keys) == 0 {
		return
	}
	deleted, flushErr := k.Host.Flush(ctx, stale)
	if err = errors.Join(err, flushErr); err != nil {
		k.log("remove connections of %s, which went: %v", addressWords(addresses), err)
		return
	}
	k.log("%s went: removed %s that it translated%s", addressWords(addresses), units.Plural(deleted.Deleted, "connection", "connections"), busy(deleted.Busy))
}

func busy(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %s are in the kernel's fast path and end by themselves", units.Count(n))
}

// undoAll takes back what the service applied, newest first.
func (k *keeper) undoAll() error {
	open, err := k.Host.Transactions()
	errs := []error{err}
	for _, tx := range slices.Backward(open) {
		if tx.Origin != OriginService {
			continue
		}
		_, err := k.Host.Undo(tx.ID)
		errs = append(errs, err)
		if err == nil {
			k.log("undid %s", tx.ID)
		}
	}
	return errors.Join(errs...)
}
