package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// gatewayPlan gives sources of a prefix the address of the interface.
func gatewayPlan(t *testing.T, from string) *gateway.Plan {
	t.Helper()
	f, err := gateway.Parse("gateway.yaml", []byte("gateway:\n  nat:\n    - masquerade: {from: "+from+", out: wan0}\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, gateway.Facts{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// gatewayHost is a namespace with a journal, and a store with two plans.
func gatewayHost(t *testing.T) (ns *netns.Handle, opt apply.Options, digests [2]string) {
	t.Helper()
	testutil.NeedRoot(t)
	ns, err := netns.New("gateway")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	plans := engine.StoreBeside(j.Dir())
	for i, from := range []string{"10.0.0.0/8", "192.168.0.0/16"} {
		if digests[i], err = plans.Put(gatewayPlan(t, from)); err != nil {
			t.Fatal(err)
		}
	}
	return ns, apply.Options{Journal: j, Root: t.TempDir()}, digests
}

func plan(changes ...tune.Change) tune.Plan { return tune.Plan{Origin: "test", Changes: changes} }

func sysctl(name, before, after string) tune.Change {
	return tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: after}
}

func mustApply(t *testing.T, p tune.Plan, opt apply.Options) *apply.Applied {
	t.Helper()
	a, err := apply.Apply(t.Context(), p, opt)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// states are those of all changes, in order.
func states(tx *journal.Transaction) string {
	var out []string
	for _, c := range tx.Changes {
		out = append(out, string(c.State))
	}
	return strings.Join(out, " ")
}

func gatewayChange(ns *netns.Handle, before, after string) tune.Change {
	return tune.Change{Kind: tune.Gateway, Target: tune.GatewayTarget(ns.Inode(), "netfilter"), Before: before, After: after}
}

// The namespace is another than the one that natkit runs in, and is found by the target.
func TestGatewayElsewhere(t *testing.T) {
	ns, opt, digests := gatewayHost(t)
	applier := Appliers(opt)[tune.Gateway]
	target := tune.GatewayTarget(ns.Inode(), "netfilter")
	want := func(value string) {
		t.Helper()
		if got, err := applier.Read(target); err != nil || got != value {
			t.Errorf("%q, %v; want %q", got, err, value)
		}
	}
	first := mustApply(t, plan(gatewayChange(ns, tune.GatewayNone, digests[0])), opt)
	want(digests[0])
	second := mustApply(t, plan(gatewayChange(ns, digests[0], digests[1])), opt)
	want(digests[1])
	for i, a := range []*apply.Applied{second, first} {
		if tx, err := apply.Undo(a.ID(), opt); err != nil || states(tx) != "undone" {
			t.Errorf("%+v, %v", tx, err)
		}
		want([]string{digests[0], tune.GatewayNone}[i])
	}
}

// A plan that is not in the store is no reason to leave something half done.
func TestGatewayWithoutItsPlan(t *testing.T) {
	ns, opt, _ := gatewayHost(t)
	_, err := apply.Apply(t.Context(), plan(gatewayChange(ns, tune.GatewayNone, strings.Repeat("ab", 32))), opt)
	if err == nil || !strings.Contains(err.Error(), "is missing") || !strings.Contains(err.Error(), "as it was") {
		t.Errorf("%v", err)
	}
}

// A plan that is at hand is not read back from the store.
func TestGatewayWithItsPlanAtHand(t *testing.T) {
	ns, opt, _ := gatewayHost(t)
	p := gatewayPlan(t, "172.16.0.0/12")
	digest := gateway.Digest(p)
	h := Host{Apply: opt}
	plans := h.keeps()
	plans.plans[digest] = p
	opt = h.options(plans)
	mustApply(t, plan(gatewayChange(ns, tune.GatewayNone, digest)), opt)
}

// What was read of the store once is not read again.
func TestPlansAreReadOnce(t *testing.T) {
	_, opt, digests := gatewayHost(t)
	plans := Host{Apply: opt}.keeps()
	first, err := plans.Get(digests[0])
	if err != nil {
		t.Fatal(err)
	}
	if again := plans.Plan(digests[0]); again != first {
		t.Errorf("another one: %p, %p", first, again)
	}
	if _, err := plans.of(strings.Repeat("ab", 32)); err == nil || !strings.Contains(err.Error(), "could not be put back") {
		t.Errorf("%v", err)
	}
}

// From another namespace, rules and sysctls go back together: without the rules, a host
// that forwards would let packets out as they are.
func TestGatewayUndoneFromElsewhere(t *testing.T) {
	ns, opt, digests := gatewayHost(t)
	a := applyInside(t, ns, digests[0], opt)
	if tx, err := apply.Undo(a.ID(), opt); err != nil || states(tx) != "undone undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	// So does what a natkit has left that was killed.
	a = applyInside(t, ns, digests[0], opt)
	tx := a.Transaction()
	tx.Complete = false
	if err := opt.Journal.Save(&tx); err != nil {
		t.Fatal(err)
	}
	if undone, err := apply.Clean(opt); err != nil || len(undone) != 1 || states(undone[0]) != "undone undone" {
		t.Errorf("%+v, %v", undone, err)
	}
	var forward string
	err := ns.Do(func() (err error) { forward, err = apply.ReadSysctl("/proc", "net.ipv4.ip_forward"); return err })
	if err != nil || forward != "0" {
		t.Errorf("forwarding %q, %v", forward, err)
	}
}

// applyInside applies a plan and turns forwarding on.
func applyInside(t *testing.T, ns *netns.Handle, digest string, opt apply.Options) (a *apply.Applied) {
	t.Helper()
	err := ns.Do(func() (err error) {
		a, err = apply.Apply(t.Context(), plan(gatewayChange(ns, tune.GatewayNone, digest),
			sysctl("net.ipv4.ip_forward", "0", "1")), opt)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The namespace ends before the undo: there is nothing to take back, of sysctls neither.
func TestGatewayOfANamespaceThatIsGone(t *testing.T) {
	ns, opt, digests := gatewayHost(t)
	a := applyInside(t, ns, digests[0], opt)
	tx := a.Transaction()
	made := tx.Made()
	ns.Close()
	within(t, testutil.Patience(5e9), "end of the namespace", func() bool {
		ns, err := netns.Open(made)
		if err == nil {
			ns.Close()
		}
		return errors.Is(err, os.ErrNotExist)
	})
	undone, err := apply.Undo(a.ID(), opt)
	if err != nil || !undone.Finished() {
		t.Errorf("%+v, %v", undone, err)
	}
	if note := undone.Changes[1].Note; !strings.Contains(note, "is gone") {
		t.Errorf("%q", note)
	}
}

// A namespace that came later has the number of one that is gone: what is set there is
// not what natkit set, though the values are alike.
func TestGatewayOfANamespaceWhoseNumberIsAnothers(t *testing.T) {
	ns, opt, digests := gatewayHost(t)
	a := applyInside(t, ns, digests[0], opt)
	testutil.NeedFeature(t, testutil.NetnsCookie)
	tx := a.Transaction()
	tx.NetnsCookie++
	tx.Changes[0].NetnsCookie++
	if err := opt.Journal.Save(&tx); err != nil {
		t.Fatal(err)
	}
	if tx, err := apply.Undo(a.ID(), opt); err != nil || states(tx) != "left left" || !strings.Contains(tx.Changes[1].Note, "is gone") {
		t.Errorf("%+v, %v", tx, err)
	}
	var forward string
	err := ns.Do(func() (err error) { forward, err = apply.ReadSysctl("/proc", "net.ipv4.ip_forward"); return err })
	if err != nil || forward != "1" {
		t.Errorf("forwarding %q, %v", forward, err)
	}
}

func TestGatewayFile(t *testing.T) {
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	opt := apply.Options{Journal: j, Root: t.TempDir()}
	digest, err := engine.StoreBeside(j.Dir()).PutText([]byte("gateway: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(opt.Root, "etc/natkit/gateway.yaml")
	change := tune.Change{Kind: tune.GatewayFile, Target: tune.GatewayFileTarget, After: digest}
	a := mustApply(t, plan(change), opt)
	if text, err := os.ReadFile(file); err != nil || string(text) != "gateway: {}\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.WriteFile(file, []byte("gateway: {mss: clamp}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if tx, err := apply.Undo(a.ID(), opt); err != nil || states(tx) != "left" {
		t.Errorf("an edited file: %+v, %v", tx, err)
	}
	change.Before = engine.TextDigest([]byte("gateway: {mss: clamp}\n"))
	if err := errors.Join(os.Remove(file), os.Symlink("/dev/null", file)); err != nil {
		t.Fatal(err)
	}
	if _, err := apply.Apply(t.Context(), plan(change), opt); err == nil {
		t.Error("a link was replaced")
	}
}
