package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
	"github.com/natkit/natkit/internal/units"
)

// apply puts a configuration in force, if anything has to be changed for that, and
// says what came of it.
func (k *keeper) apply(ctx context.Context, text []byte, files *inputs, reason string) error {
	r, err := k.Host.Prepare(ctx, Wish{Name: k.File, Text: text, Files: files, Overwrite: true, Origin: OriginService})
	if errors.As(err, new(Refused)) { // other mistakes of a file name it
		return fmt.Errorf("%s: %w", k.File, err)
	}
	if err != nil {
		return err
	}
	if reason == addressesChanged && k.plan != nil && r.Before == tune.GatewayNone && k.undoAtWork(ctx) {
		return nil
	}
	checker := k.hosts.prepare(k, r)
	if len(r.Changed) > 0 {
		k.log("rules that were changed by hand are replaced: %s", strings.Join(r.Changed, "; "))
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
	k.uplinks.ready(ctx, k, r)
	k.text, k.files = text, files
	k.plan, k.digest, k.reported, k.off, k.suspended = r.Gateway, r.Digest, "", "", false
	k.adopt()
	k.hosts.begin(k, r.Gateway, checker)
	k.leases.ready(ctx, k, r)
	k.logWaiting(r)
	k.logNotes(r, reason)
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
	if err := k.Host.Engines.Apply(k.Host.Netns, r.Gateway, k.Host.store()); err != nil {
		return err
	}
	if err := r.steer(); err != nil {
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
	if steps := rerouted(&tx, r.now.Held); reason == addressesChanged && steps != "" {
		reason = "routing changed: " + steps
	}
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

// rerouted says which rules and routes a transaction put back, or has otherwise than before; held are those that natkit
// made before. Empty where the rules of the plan are others as well.
func rerouted(tx *journal.Transaction, held map[string]bool) string {
	var steps []string
	for _, c := range tx.Changes {
		switch {
		case c.Before == c.After:
		case c.Kind == tune.Gateway:
			return ""
		case c.Kind != tune.Routing:
		case c.After == "":
			steps = append(steps, c.Target+" removed")
		case c.Before == "" && held[c.Target]:
			steps = append(steps, c.Target+" put back")
		default:
			steps = append(steps, c.Target+" is "+c.After+" now")
		}
	}
	return strings.Join(steps, ", ")
}

// adopt finds the transaction that put in force what a service before this one, or
// another natkit, applied.
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
		if err := k.Host.Netns.Do(func() error { _, err := k.Host.undo(tx.ID); return err }); err != nil {
			k.log("hand %s over to %s: %v", tx.ID, newest, err)
		}
	}
}

// leftAlone reports whether what the service applied was undone by another process: it stays
// so until the file changes or a reload.
func (k *keeper) leftAlone() bool {
	if k.owner == nil || k.suspended {
		return k.suspended
	}
	now, err := k.Host.Apply.Journal.Reload(k.owner)
	if errors.Is(err, fs.ErrNotExist) || err != nil || !now.Finished() {
		return false
	}
	k.suspended = true
	k.log("%s was undone by another process: the gateway stays so until the file changes or %s", k.owner.ID, k.runner.Reload())
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

// compare checks whether the rules are as the service applied them. Those that were removed,
// as by a flush of the whole rule set, are put in force again: to remove a gateway, undo it or
// have its service do so. Others are left, which is logged once.
func (k *keeper) compare(ctx context.Context) {
	if k.leftAlone() {
		return
	}
	state, err := k.Host.State()
	if err != nil {
		k.log("read the rules: %v", err)
		return
	}
	switch value := Value(state); value {
	case k.reported:
	case k.digest:
		k.reported, k.removed = "", 0
	case tune.GatewayNone:
		if k.failed || k.undoAtWork(ctx) { // failed: it was tried just now
			return
		}
		k.logRemoved()
		k.again(ctx, "rules removed")
	default:
		k.reported = value
		what := "they are " + tune.Change{Kind: tune.Gateway}.Shown(value)
		if len(state.Changes) > 0 {
			what = strings.Join(state.Changes, "; ")
		}
		k.log("the rules are not as they were applied: %s; they are left so until the next change or %s", what, k.runner.Reload())
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

// tellOrphans says how many connections keep a translation that no rule gives any more.
func (k *keeper) tellOrphans(ctx context.Context, former *gateway.Plan) {
	stale, err := k.Host.Orphans(ctx, former, k.plan)
	if err != nil {
		k.log("read the connections of former rules: %v", err)
		return
	}
	if len(stale.Keys) > 0 {
		what := map[bool]string{true: "cut, as there is no NAT any more", false: "with a translation that no rule gives any more, which they keep"}[stale.Cut]
		k.log("%s %s: %s", units.Plural(len(stale.Keys), "connection", "connections"), what, stale.Words())
	}
}

// Words names the rules with the number of their connections, most first.
func (s Stale) Words() string {
	refs := make([]gateway.Ref, 0, len(s.Rules))
	for ref := range s.Rules {
		refs = append(refs, ref)
	}
	sort.Slice(refs, func(i, j int) bool {
		if s.Rules[refs[i]] != s.Rules[refs[j]] {
			return s.Rules[refs[i]] > s.Rules[refs[j]]
		}
		return refs[i].String() < refs[j].String()
	})
	const most = 5
	var words []string
	for i, ref := range refs {
		if i == most {
			words = append(words, fmt.Sprintf("and of %s more", units.Plural(len(refs)-most, "rule", "rules")))
			break
		}
		words = append(words, fmt.Sprintf("%s (%s)", ref, units.Count(s.Rules[ref])))
	}
	return strings.Join(words, ", ")
}

// logWaiting logs which interfaces a configuration names that do not exist, and which of
// them do now.
func (k *keeper) logWaiting(r *Ready) {
	missing := gateway.MissingInterfaces(r.Gateway, r.Facts)
	there := func(name string) bool {
		return slices.ContainsFunc(r.Facts.Interfaces, func(i gateway.Interface) bool { return i.Name == name })
	}
	for _, name := range k.waiting {
		if there(name) {
			k.log("%s is there", name)
		}
	}
	more := slices.DeleteFunc(slices.Clone(missing), func(name string) bool { return slices.Contains(k.waiting, name) })
	if len(more) > 0 {
		k.log("waiting for %s: what the file says of it counts as soon as it is there", strings.Join(more, ", "))
	}
	k.waiting = missing
}

// logRemoved counts how often the rules were removed, and logs once that it goes on.
func (k *keeper) logRemoved() {
	switch k.removed++; {
	case k.removed < mostQuick:
		k.log("the rules were removed; undo the gateway to remove them permanently")
	case k.removed == mostQuick:
		k.log("the rules are removed repeatedly: until they stay they are put in force again every %s only", usualLook)
	}
}

// logNotes logs what there is to know of a configuration, and of it what it did not log of the one before: a set may change
// every minute.
func (k *keeper) logNotes(r *Ready, reason string) {
	if reason == addressesChanged {
		return
	}
	lines := slices.Clone(r.Notes)
	for _, f := range r.Findings {
		if f.ID != "interface-missing" { // logWaiting has done so
			lines = append(lines, fmt.Sprintf("%s: %s", f.Severity, f.Placed()))
		}
	}
	for _, line := range lines {
		if !slices.Contains(k.noted, line) {
			k.log("%s", line)
		}
	}
	k.noted = lines
}

// logForwarding logs once that a sysctl which the gateway needs was turned off, as by
// reloading a file of sysctl.d.
func (k *keeper) logForwarding() {
	now := snapshot.Sysctls{}
	if err := k.Host.Netns.Do(func() error { return host.ReadSysctls(k.Host.proc(), []string{Forward4, Forward6}, now) }); err != nil {
		k.log("read the forwarding sysctls: %v", err)
		return
	}
	var off []string
	if k.plan.IPv4 && now[Forward4] == "0" {
		off = append(off, Forward4)
	}
	if k.plan.IPv6 && now[Forward6] == "0" {
		off = append(off, Forward6)
	}
	if text := strings.Join(off, " and "); text != k.off {
		if k.off = text; text != "" {
			k.log("nothing is forwarded: %s set to 0; it is left so until the next change or %s", text, k.runner.Reload())
		}
	}
}

// fileLook is the interval of checks of the configuration. A check is one system call; it
// detects a file that was replaced, a link that leads elsewhere, and changes on file systems
// without events.
const fileLook = time.Second

// fileWatch reports when a file, or one of those that it names, has other content. What is being written is left
// until it stays the same between two checks.
type fileWatch struct{ files map[string]*watched }

// watched is a file: read is of it as it was last taken, seen as it was last checked; nil if it was missing.
type watched struct{ read, seen fs.FileInfo }

// look reports whether a file has changed since it was last taken, and none changes any longer.
func (w *fileWatch) look() bool {
	changed, moving := false, false
	for path, f := range w.files {
		before := f.seen
		f.seen = statOf(path)
		changed = changed || !unchanged(f.seen, f.read)
		moving = moving || !unchanged(f.seen, before)
	}
	if !changed || moving {
		return false
	}
	for _, f := range w.files {
		f.read = f.seen
	}
	return true
}

// take says which files were read, and what they were before that.
func (w *fileWatch) take(files map[string]fs.FileInfo) {
	w.files = map[string]*watched{}
	for path, info := range files {
		w.files[path] = &watched{info, info}
	}
}

// inputs read the files that a configuration names, and keep what they read: it is read again only with the
// configuration itself.
type inputs struct {
	disk.Files
	texts map[string]input
	lists map[string]listing
	// infos are the files before they were read.
	infos map[string]fs.FileInfo
}

type input struct {
	text []byte
	err  error
}

type listing struct {
	names []string
	err   error
}

// newInputs begins with the configuration itself, which is read next.
func newInputs(file string) *inputs {
	return &inputs{texts: map[string]input{}, lists: map[string]listing{}, infos: map[string]fs.FileInfo{file: statOf(file)}}
}

// Read is gateway.Files'.
func (i *inputs) Read(path string, limit int) ([]byte, error) {
	got, known := i.texts[path]
	if !known {
		i.infos[path] = statOf(path)
		got.text, got.err = i.Files.Read(path, limit)
		i.texts[path] = got
	}
	return got.text, got.err
}

// List is gateway.Files'.
func (i *inputs) List(dir string) ([]string, error) {
	got, known := i.lists[dir]
	if !known {
		i.infos[dir] = statOf(dir)
		got.names, got.err = i.Files.List(dir)
		i.lists[dir] = got
	}
	return got.names, got.err
}

func statOf(path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// unchanged reports whether a file was neither written nor replaced in between.
func unchanged(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
