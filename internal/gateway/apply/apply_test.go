package apply

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

func TestApplyOverAndBack(t *testing.T) {
	w := newWorld(t)
	a, first := w.apply(masqueradeText, 0)
	w.want(a)
	w.wantSysctl(Forward4, "1")
	b, second := w.apply(snatText, 0)
	w.want(b)
	w.wantSysctl(Accounting, "1")
	if tx, err := w.Undo(second); err != nil || !tx.Finished() {
		t.Fatalf("%+v, %v", tx, err)
	}
	w.want(a)
	w.wantSysctl(Forward4, "1")
	w.wantSysctl(Accounting, "0")
	if _, err := w.Undo(first); err != nil {
		t.Fatal(err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

// TestRefusalHasItsLine: what the kernel refuses of a rule is reported with that rule's place.
func TestRefusalHasItsLine(t *testing.T) {
	file, err := gateway.Parse("test", []byte("gateway:\n  nat:\n    - masquerade: {}\n    - notrack: {on: 203.0.113.7}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r := &Ready{file: file}
	for about, want := range map[string]string{"nat[1] notrack": "line 4: ", "2 entries of @4-pool": "", "nat[7] snat": ""} {
		err := fmt.Errorf("apply: %w", &netfilter.Refused{About: about, Why: "too long"})
		if got := r.located(err); got.Error() != want+err.Error() {
			t.Errorf("%s: %v", about, got)
		}
	}
}

// The older one of two is undone first: what it would put back becomes the newer one's.
func TestUndoOfTheOlderFirst(t *testing.T) {
	w := newWorld(t)
	_, first := w.apply(masqueradeText, 0)
	b, second := w.apply(snatText, 0)
	if _, err := w.Undo(first); err != nil {
		t.Fatal(err)
	}
	w.want(b)
	w.wantSysctl(Forward4, "1")
	if _, err := w.Undo(second); err != nil {
		t.Fatal(err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
	w.wantSysctl(Accounting, "0")
}

// What only the former file needed goes back with it, and comes again with the undo.
func TestApplyLessOver(t *testing.T) {
	w := newWorld(t)
	_, first := w.apply(snatText, 0)
	_, second := w.apply(masqueradeText, 0)
	w.wantSysctl(Accounting, "0")
	w.wantSysctl(Forward4, "1")
	if _, err := w.Undo(second); err != nil {
		t.Fatal(err)
	}
	w.wantSysctl(Accounting, "1")
	if _, err := w.Undo(first); err != nil {
		t.Fatal(err)
	}
	w.wantSysctl(Accounting, "0")
	w.wantSysctl(Forward4, "0")
}

func TestSameAgainIsNothing(t *testing.T) {
	w := newWorld(t)
	w.apply(snatText, 0)
	generation := w.generation()
	r := w.prepare(wish(snatText))
	if len(r.Plan.Changes) != 0 || len(r.Already) == 0 {
		t.Errorf("%+v", r.Prepared)
	}
	if now := w.generation(); now != generation {
		t.Errorf("the rule set was written: generation %d, then %d", generation, now)
	}
}

func TestUndoneWithoutConfirmation(t *testing.T) {
	w := newWorld(t)
	a, _ := w.apply(masqueradeText, 0)
	b, id := w.apply(snatText, later)
	w.want(b)
	w.expire(id)
	w.want(a)
	w.wantSysctl(Accounting, "0")
}

func TestConfirmed(t *testing.T) {
	w := newWorld(t)
	b, id := w.apply(snatText, time.Minute)
	if _, err := apply.Confirm(id, w.options(w.keeps())); err != nil {
		t.Fatal(err)
	}
	w.want(b)
	if tx := w.load(id); tx.Unconfirmed() || tx.Guard.Alive("/proc") {
		t.Errorf("%+v", tx)
	}
}

func TestChangedByHand(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	b, id := w.apply(snatText, 0)
	w.ip("nft add rule inet natkit postrouting ip saddr 10.9.9.9 accept")
	w.want(tune.GatewayChanged(b))
	if _, err := w.Prepare(t.Context(), wish(masqueradeText)); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "instead of") {
		t.Errorf("apply: %v", err)
	}
	// All of it or nothing: forwarding stays with the rules.
	before := w.load(id)
	if _, err := w.Undo(id); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("undo: %v", err)
	}
	// What is advised can be done as it stands there, and not to another's rules.
	inode, err := w.Inode()
	if err != nil {
		t.Fatal(err)
	}
	for _, advice := range []string{"'natkit tune undo --force " + id + "'", fmt.Sprintf("'nft delete table inet natkit' in network namespace %d", inode)} {
		if _, err := w.Undo(id); err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("undo: %v; want %s", err, advice)
		}
	}
	w.want(tune.GatewayChanged(b))
	w.wantSysctl(Forward4, "1")
	if diff := cmp.Diff(before, w.load(id)); diff != "" {
		t.Error(diff)
	}
	// Knowingly; an undo then restores the plan without the foreign rule.
	over := wish(masqueradeText)
	over.Overwrite = true
	r := w.prepare(over)
	if _, err := r.Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w.want(r.Digest)
	open, err := w.Transactions()
	if err != nil || len(open) != 2 {
		t.Fatalf("%v, %v", open, err)
	}
	noted := func(c journal.Change) bool { return c.Kind == tune.Gateway && c.Note != "" }
	if tx, err := w.Undo(open[1].ID); err != nil || !slices.ContainsFunc(tx.Changes, noted) {
		t.Fatalf("%+v, %v", tx, err)
	}
	w.want(b)
	if _, err := w.Undo(id); err != nil {
		t.Fatal(err)
	}
	w.want(tune.GatewayNone)
	w.wantSysctl(Forward4, "0")
}

// The changed rules are removed by hand: then the rest goes back too.
func TestChangedAndRemovedByHand(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	_, id := w.apply(masqueradeText, 0)
	w.ip("nft add rule inet natkit postrouting ip saddr 10.9.9.9 accept")
	if _, err := w.Undo(id); !errors.Is(err, ErrChanged) {
		t.Errorf("undo: %v", err)
	}
	w.ip("nft delete table inet natkit")
	if tx, err := w.Undo(id); err != nil || !tx.Finished() {
		t.Errorf("%+v, %v", tx, err)
	}
	w.wantSysctl(Forward4, "0")
}

// With force the rest goes back, and the changed rules are left.
// The same plan over changed rules, which are changed again: the undo does not take these
// for what was before.
func TestOverwrittenAndChangedAgain(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	a, _ := w.apply(masqueradeText, 0)
	w.ip("nft add rule inet natkit postrouting ip saddr 10.9.9.9 accept")
	over := wish(masqueradeText)
	over.Overwrite = true
	applied, err := w.prepare(over).Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w.want(a)
	w.ip("nft add rule inet natkit postrouting ip saddr 10.8.8.8 accept")
	if _, err := w.Undo(applied.ID()); !errors.Is(err, ErrChanged) {
		t.Errorf("undo: %v", err)
	}
	if tx := w.load(applied.ID()); tx.Finished() {
		t.Errorf("%+v", tx)
	}
	w.want(tune.GatewayChanged(a))
}

// The changed rules are removed by hand, as the refused undo advises: then the plan before
// is in force again.
func TestRemovedByHandOverAPlan(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	a, first := w.apply(masqueradeText, 0)
	_, second := w.apply(snatText, 0)
	w.ip("nft add rule inet natkit postrouting ip saddr 10.9.9.9 accept")
	if _, err := w.Undo(second); !errors.Is(err, ErrChanged) {
		t.Errorf("undo: %v", err)
	}
	w.ip("nft delete table inet natkit")
	if tx, err := w.Undo(second); err != nil || tx.Changes[len(tx.Changes)-1].State != journal.Undone {
		t.Errorf("%+v, %v", tx, err)
	}
	w.want(a)
	w.wantSysctl(Accounting, "0")
	w.wantSysctl(Forward4, "1")
	// What a later transaction replaced becomes that one's, as ever.
	_, third := w.apply(snatText, 0)
	w.ip("nft delete table inet natkit")
	if tx, err := w.Undo(first); err != nil || !tx.Finished() || w.load(third).Finished() {
		t.Errorf("%+v, %v", tx, err)
	}
	w.want(tune.GatewayNone)
}

func TestChangedByHandAndForced(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	digest, id := w.apply(masqueradeText, 0)
	w.ip("nft add rule inet natkit postrouting ip saddr 10.9.9.9 accept")
	opt := w.Apply
	opt.Force = true
	tx, err := apply.Undo(id, opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range tx.Changes {
		if left := c.State == journal.Left; left != (c.Kind == tune.Gateway) {
			t.Errorf("%s %s: %s, %s", c.Kind, c.Target, c.State, c.Note)
		}
	}
	w.want(tune.GatewayChanged(digest))
	w.wantSysctl(Forward4, "0")
}

func TestForeignTableIsLeftAlone(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	w.ip("nft add table inet natkit")
	over := wish(masqueradeText)
	over.Overwrite, over.Force = true, true
	there := fmt.Sprintf("'nft delete table inet natkit' in network namespace %d", w.ns.Inode())
	if _, err := w.Prepare(t.Context(), over); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), there) {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayForeign)
	w.wantSysctl(Forward4, "0")
}

// A table of that name comes between the plan and its application.
func TestForeignTableThatComes(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := newWorld(t)
	r := w.prepare(wish(masqueradeText))
	w.ip("nft add table inet natkit")
	if _, err := r.Apply(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayForeign)
	w.wantSysctl(Forward4, "0")
}

// Of two natkits at once one applies, the other one says that the host has changed.
// TestSixAtOnce: one is first, and the others say so, whether they wanted the same or not,
// and also where a sysctl of theirs is what is found changed.
func TestSixAtOnce(t *testing.T) {
	w := newWorld(t)
	var ready []*Ready
	for range 2 {
		ready = append(ready, w.prepare(wish(masqueradeText)), w.prepare(wish(snatText)), w.prepare(wish(snatText+"    - masquerade: {}\n")))
	}
	errs := make([]error, len(ready))
	var wg sync.WaitGroup
	for i, r := range ready {
		wg.Go(func() { _, errs[i] = r.Apply(t.Context(), 0) })
	}
	wg.Wait()
	winner := slices.Index(errs, nil)
	if winner < 0 {
		t.Fatalf("%v", errs)
	}
	for i, err := range errs {
		if i != winner && !errors.Is(err, ErrAnotherFirst) {
			t.Errorf("%d: %v", i, err)
		}
	}
	w.want(ready[winner].Digest)
}

func TestRefusedByCheck(t *testing.T) {
	w := newWorld(t)
	twice := masqueradeText + "    - masquerade: {from: 192.168.0.0/16}\n"
	var refused Refused
	if _, err := w.Prepare(t.Context(), wish(twice)); !errors.As(err, &refused) || refused.Findings[0].Line == 0 {
		t.Errorf("%v", err)
	}
	w.want(tune.GatewayNone)
	// With force it is done as far as it goes, and undone like all others.
	forced := wish(twice)
	forced.Force = true
	r := w.prepare(forced)
	a, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w.want(r.Digest)
	if _, err := w.Undo(a.ID()); err != nil {
		t.Error(err)
	}
	w.want(tune.GatewayNone)
}

func TestPlanThatIsLost(t *testing.T) {
	w := newWorld(t)
	a, _ := w.apply(masqueradeText, 0)
	if err := os.RemoveAll(w.store().Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Prepare(t.Context(), wish(snatText)); err == nil || !strings.Contains(err.Error(), "could not be put back") {
		t.Errorf("%v", err)
	}
	w.want(a)
}

// What is only looked at leaves nothing in the store.
func TestPreparingStoresNothing(t *testing.T) {
	w := newWorld(t)
	w.prepare(wish(snatText))
	if kept, err := w.plans(); err != nil || len(kept) != 0 {
		t.Errorf("%v, %v", kept, err)
	}
}

// Unreferenced plans go after a while; those that the journal or a table names stay.
func TestForgottenPlans(t *testing.T) {
	w := newWorld(t)
	a, _ := w.apply(masqueradeText, 0)
	b, err := w.store().Put(w.prepare(wish(snatText)).Gateway)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * keepPlans)
	for _, digest := range []string{a, b} {
		if err := os.Chtimes(filepath.Join(w.store().Dir(), digest+".json"), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if !netns.SeesAll() { // a namespace that is not seen from here may have such a table
		w.forget()
		if kept, err := w.plans(); err != nil || len(kept) != 2 {
			t.Errorf("%v, %v; want both kept", kept, err)
		}
		return
	}
	// All are kept while the rules of any namespace cannot be read, those of other tests too.
	within(t, 10*time.Second, "an unreferenced plan is deleted", func() bool {
		w.forget()
		kept, err := w.plans()
		return err == nil && !slices.Contains(kept, b)
	})
	if kept, err := w.plans(); err != nil || len(kept) != 1 || kept[0] != a {
		t.Errorf("%v, %v; want %s alone", kept, err, a)
	}
	// Without a journal the table still names it.
	if err := os.RemoveAll(w.Apply.Journal.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(w.store().Dir(), a+".json"), old, old); err != nil {
		t.Fatal(err)
	}
	w.forget()
	if kept, err := w.plans(); err != nil || len(kept) != 1 {
		t.Errorf("%v, %v", kept, err)
	}
}

func examplePlan(edit func(*gateway.Plan)) *gateway.Plan {
	p := &gateway.Plan{
		Schema: gateway.PlanSchema, Engine: gateway.EngineNetfilter, IPv4: true,
		Sources: []gateway.Entry{{Rule: gateway.Ref{List: "nat", Kind: "masquerade"}, Match: nat.Match{From: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}}, Action: nat.Action{Kind: nat.Masquerade}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// plans are the digests of the plans and texts in the store.
func (w *world) plans() ([]string, error) {
	entries, err := os.ReadDir(w.store().Dir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		if digest, ext, _ := strings.Cut(e.Name(), "."); ext == "json" || ext == "yaml" {
			all = append(all, digest)
		}
	}
	return all, err
}

// inForce is what netfilter has in force.
func inForce(value string) map[gateway.Engine]string {
	return map[gateway.Engine]string{gateway.EngineNetfilter: value}
}

// freshHost is one that forwards nothing, with a table of 262,144 entries of which ten
// are used.
func freshHost(edit func(*Present)) Present {
	now := Present{
		Netns: 42, Initial: true, Values: inForce(tune.GatewayNone), SlabKnown: true, Held: map[string]bool{},
		Sysctls: snapshot.Sysctls{Forward4: "0", Forward6: "0", Accounting: "0", timeWait: "120",
			snapshot.ConntrackMax: "262144", snapshot.ConntrackBuckets: "262144"},
		Facts: tune.Facts{Entries: 10, Max: 262144, Buckets: 262144, MemoryBytes: 64 << 30, Cost: capacity.Cost{EntryBytes: 448, BucketBytes: 8}},
	}
	if edit != nil {
		edit(&now)
	}
	return now
}

// steps are changes as text, digests cut short.
func steps(p Prepared) []string {
	var out []string
	for _, c := range p.Plan.Changes {
		out = append(out, fmt.Sprintf("%s %s %s → %s", c.Kind, c.Target, c.Shown(c.Before), c.Shown(c.After)))
	}
	return out
}

func TestPlanInOrder(t *testing.T) {
	p := examplePlan(func(p *gateway.Plan) {
		p.IPv6, p.Accounting, p.Expect = true, true, gateway.Expect{Flows: 200000, Rate: 5000}
	})
	digest := gateway.Digest(p)
	in := func(edit func(*Present)) Present { return freshHost(edit) }
	all := []string{
		"sysctl net.netfilter.nf_conntrack_acct 0 → 1",
		"sysctl net.netfilter.nf_conntrack_max 262144 → 1048576",
		"sysctl net.netfilter.nf_conntrack_buckets 262144 → 1048576",
		"gateway netns 42 netfilter none → " + digest[:12],
		"sysctl net.ipv4.ip_forward 0 → 1",
		"sysctl net.ipv6.conf.all.forwarding 0 → 1",
	}
	without := func(words ...string) []string {
		var out []string
		for _, line := range all {
			keep := true
			for _, w := range words {
				keep = keep && !strings.Contains(line, w)
			}
			if keep {
				out = append(out, line)
			}
		}
		return out
	}
	cases := []struct {
		name string
		now  Present
		want []string
		note string
	}{
		{"fresh", in(nil), all, ""},
		{"forwards already", in(func(n *Present) { n.Sysctls[Forward4] = "1" }), without("ip_forward"), ""},
		{"the resize would stall", in(func(n *Present) { n.Facts.Entries = 1_000_000 }), without("buckets"),
			"nf_conntrack_buckets stays: a resize would hold up all packets of the host for 450 ms; when it is idle, 'natkit tune apply net.netfilter.nf_conntrack_buckets=1048576'"},
		{"entries elsewhere are not known", in(func(n *Present) { n.SlabKnown = false }), without("buckets"), "is not known"},
		{"not the host's own namespace", in(func(n *Present) { n.Initial = false }), without("_max", "buckets"),
			"net.netfilter.nf_conntrack_max = 1048576, which can only be written in the host's own network namespace"},
		{"little memory", in(func(n *Present) { n.Facts.MemoryBytes = 1 << 30 }), []string{all[0], "sysctl net.netfilter.nf_conntrack_max 262144 → 524288", all[3], all[4], all[5]},
			"would need a larger table than a quarter of the memory can hold; its limit is 524,288"},
		{"no tracker", in(func(n *Present) {
			delete(n.Sysctls, snapshot.ConntrackMax)
			delete(n.Sysctls, Accounting)
			n.Facts.Max = 0
		}),
			without("_max", "buckets", "acct"), "nf_conntrack_max is missing"},
		{"large enough", in(func(n *Present) {
			n.Facts.Max, n.Facts.Buckets = 2<<20, 2<<20
			n.Sysctls[snapshot.ConntrackMax], n.Sysctls[snapshot.ConntrackBuckets] = "2097152", "2097152"
		}), without("_max", "buckets"), ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Plan(p, gateway.Digest(p), c.now, Origin)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, steps(got)); d != "" {
				t.Error(d)
			}
			if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
			if err := got.Plan.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPlanOverAnother(t *testing.T) {
	p := examplePlan(nil)
	digest, other := gateway.Digest(p), strings.Repeat("ab", 32)
	forwards := func(value string, held bool) Present {
		return freshHost(func(n *Present) { n.Values, n.Sysctls[Forward4], n.Held[Forward4] = inForce(value), "1", held })
	}
	cases := []struct {
		name string
		now  Present
		want []string
	}{
		{"the same", forwards(digest, false), nil},
		{"the same, and natkit set the sysctl", forwards(digest, true), nil},
		{"another's, and natkit set the sysctl", forwards(other, true), []string{
			"gateway netns 42 netfilter abababababab → " + digest[:12], "sysctl net.ipv4.ip_forward 1 → 1"}},
		{"another's, and the administrator set it", forwards(other, false), []string{"gateway netns 42 netfilter abababababab → " + digest[:12]}},
		{"another's, which counted", freshHost(func(n *Present) {
			n.Values, n.Sysctls[Forward4], n.Sysctls[Accounting], n.Sysctls[Forward6] = inForce(other), "1", "1", "1"
			n.Held = map[string]bool{Forward4: true, Accounting: true}
			n.Original = map[string]string{Forward4: "0", Accounting: "0"}
		}), []string{"sysctl net.netfilter.nf_conntrack_acct 1 → 0",
			"gateway netns 42 netfilter abababababab → " + digest[:12], "sysctl net.ipv4.ip_forward 1 → 1"}},
		{"changed by hand", forwards(tune.GatewayChanged(digest), false), []string{
			"gateway netns 42 netfilter " + digest[:12] + " changed → " + digest[:12]}},
		{"the same, and forwarding was turned off", freshHost(func(n *Present) { n.Values = inForce(digest) }), []string{
			"gateway netns 42 netfilter " + digest[:12] + " → " + digest[:12], "sysctl net.ipv4.ip_forward 0 → 1"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Plan(p, gateway.Digest(p), c.now, Origin)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, steps(got)); d != "" {
				t.Error(d)
			}
		})
	}
	if _, err := Plan(p, gateway.Digest(p), freshHost(func(n *Present) { n.Values = inForce(tune.GatewayForeign) }), Origin); err == nil {
		t.Error("a table of another program is overwritten")
	}
}

func TestDurableKeepsForwardingOut(t *testing.T) {
	p := examplePlan(func(p *gateway.Plan) { p.Accounting, p.Expect = true, gateway.Expect{Flows: 800000} })
	got, err := Plan(p, gateway.Digest(p), freshHost(nil), Origin)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, c := range tune.Persistent(got.lasting) {
		files = append(files, string(c.Kind)+" "+c.Target)
	}
	want := []string{"sysctl.d net.netfilter.nf_conntrack_max", "sysctl.d net.netfilter.nf_conntrack_buckets", "modprobe.d nf_conntrack.hashsize", "modules-load.d nf_conntrack"}
	if d := cmp.Diff(want, files); d != "" {
		t.Error(d)
	}
}
