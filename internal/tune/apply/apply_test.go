package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

func TestApplyAndUndo(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	a := mustApply(t, plan(sysctl(someValue, "100", "1000"), sysctl(otherValue, "200", "2000")), opt)
	h.want(t, someValue, "1000")
	h.want(t, otherValue, "2000")
	if tx := mustLoad(t, opt, a.ID()); states(tx) != "applied applied" || !tx.Complete || tx.BootID != "boot-a" || tx.Owner.PID != os.Getpid() {
		t.Errorf("journal: %+v", tx)
	}
	tx, err := a.Undo()
	if err != nil || states(tx) != "undone undone" {
		t.Errorf("undo: %+v, %v", tx, err)
	}
	h.want(t, someValue, "100")
	h.want(t, otherValue, "200")
	if _, err := Undo(a.ID(), opt); err == nil || !strings.Contains(err.Error(), "undone before") {
		t.Errorf("undone twice: %v", err)
	}
}

func TestApplyRefusesBeforeAnythingIsChanged(t *testing.T) {
	good := sysctl(someValue, "100", "1000")
	cases := []struct {
		name string
		plan tune.Plan
		edit func(*Options)
		want string
	}{
		{"host changed", plan(good, sysctl(otherValue, "199", "2000")), nil, "the host has changed since"},
		{"no such value", plan(good, sysctl("net.netfilter.nf_conntrack_max", "1", "2")), nil, "modprobe nf_conntrack"},
		{"near a value", plan(good, sysctl(someValue+"s", "1", "2")), nil, "did you mean " + someValue + "?"},
		{"unknown kind", plan(good, tune.Change{Kind: "ethtool", Target: "eth0"}), nil, "cannot change things of that kind"},
		{"twice", plan(good, sysctl(someValue, "100", "5")), nil, "changed twice"},
		{"lifeline and confirm", plan(good), func(o *Options) { o.Lifeline, o.Confirm = true, time.Second }, "lifeline"},
		{"no journal", plan(good), func(o *Options) { o.Journal = nil }, "no journal"},
		{"journal cannot be written", plan(good), func(o *Options) { o.Journal, _ = journal.At("/dev/null/journal") }, "nothing was changed"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			opt := h.options(t)
			if c.edit != nil {
				c.edit(&opt)
			}
			a, err := Apply(t.Context(), c.plan, opt)
			if err == nil || !strings.Contains(err.Error(), c.want) || a != nil {
				t.Errorf("%v, %v; want an error with %q", a, err, c.want)
			}
			h.want(t, someValue, "100")
			h.want(t, otherValue, "200")
			if files, _ := filepath.Glob(filepath.Join(h.dir, "journal", "*.json")); len(files) != 0 {
				t.Errorf("the journal holds %v", files)
			}
		})
	}
}

// scripted is an Applier with a kernel's whims.
type scripted struct {
	values   map[string]string
	refuse   map[string]error // by value
	change   func(string) string
	readOnly bool
	log      []string
}

func (s *scripted) Read(target string) (string, error) {
	v, ok := s.values[target]
	if !ok {
		return "", fs.ErrNotExist
	}
	return v, nil
}

func (s *scripted) Write(target, value string) error {
	s.log = append(s.log, target+"="+value)
	if err := s.refuse[value]; err != nil {
		return err
	}
	if s.change != nil {
		value = s.change(value)
	}
	s.values[target] = value
	return nil
}

func (s *scripted) Writable(string) error {
	if s.readOnly {
		return fs.ErrPermission
	}
	return nil
}

func (s *scripted) Honours(_, asked, got string) bool {
	return asked == got || got == asked+"0" // "rounds up" by a zero
}
func (s *scripted) Durable() bool { return false }

const fakeKind tune.Kind = "fake"

func scriptedPlan() tune.Plan {
	return plan(tune.Change{Kind: fakeKind, Target: "a", Before: "1", After: "2"},
		tune.Change{Kind: fakeKind, Target: "b", Before: "1", After: "3"})
}

func withScripted(t *testing.T, s *scripted) Options {
	s.values = map[string]string{"a": "1", "b": "1"}
	opt := newFakeHost(t).options(t)
	opt.Appliers = map[tune.Kind]Applier{fakeKind: s}
	return opt
}

func TestFailureUndoesWhatWasDone(t *testing.T) {
	for name, s := range map[string]*scripted{
		"write fails":         {refuse: map[string]error{"3": errors.New("no")}},
		"reads back another":  {change: func(v string) string { return strings.ReplaceAll(v, "3", "7") }},
		"nothing is writable": {readOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			opt := withScripted(t, s)
			if _, err := Apply(t.Context(), scriptedPlan(), opt); err == nil {
				t.Fatal("no error")
			}
			if s.values["a"] != "1" {
				t.Errorf("a is left at %s", s.values["a"])
			}
			if s.readOnly && s.log != nil {
				t.Errorf("wrote %v", s.log)
			}
		})
	}
}

func TestCancelUndoesWhatWasDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &scripted{change: func(v string) string { cancel(); return v }}
	opt := withScripted(t, s)
	if _, err := Apply(ctx, scriptedPlan(), opt); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "1"}, s.values); diff != "" {
		t.Error(diff)
	}
}

func TestFailedUndoIsSaidAndStaysOpen(t *testing.T) {
	s := &scripted{refuse: map[string]error{"3": errors.New("no"), "1": errors.New("stuck")}}
	opt := withScripted(t, s)
	_, err := Apply(t.Context(), scriptedPlan(), opt)
	if err == nil || !strings.Contains(err.Error(), "natkit tune undo t0001") {
		t.Fatalf("%v", err)
	}
	s.refuse = nil
	// Its owner, this process, is alive, so that only the owner may try again.
	tx, err := undoByID("t0001", opt.withDefaults(), nil)
	if err != nil || s.values["a"] != "1" || states(tx) != "undone undone" {
		t.Errorf("second try: %v %v %s", err, s.values, states(tx))
	}
}

func TestRoundedValueIsRememberedAndUndone(t *testing.T) {
	s := &scripted{change: func(v string) string {
		return strings.TrimSuffix(v+"0", "10") + strings.Repeat("1", strings.Count(v, "1"))
	}}
	opt := withScripted(t, s)
	a := mustApply(t, scriptedPlan(), opt)
	if got := a.Changes()[0].After; got != "20" || s.values["a"] != "20" {
		t.Errorf("After %s, value %s; want 20, what the kernel made of 2", got, s.values["a"])
	}
	if note := mustLoad(t, opt, a.ID()).Changes[0].Note; !strings.Contains(note, "rounded 2 to 20") {
		t.Errorf("note %q", note)
	}
	if _, err := a.Undo(); err != nil || s.values["a"] != "1" {
		t.Errorf("undo: %v, value %s", err, s.values["a"])
	}
}

func TestUndoWritesOnlyWhatIsStillOurs(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	a := mustApply(t, plan(sysctl(someValue, "100", "1000"), sysctl(otherValue, "200", "2000")), opt)
	h.set(t, someValue, "777")
	tx, err := Undo(a.ID(), opt)
	if err != nil || states(tx) != "left undone" || !strings.Contains(tx.Changes[0].Note, `is "777"`) {
		t.Errorf("%s %+v %v", states(tx), tx.Changes[0], err)
	}
	h.want(t, someValue, "777")
	h.want(t, otherValue, "200")

	a = mustApply(t, plan(sysctl(otherValue, "200", "2000")), opt)
	if err := os.Remove(filepath.Join(h.procRoot(), "sys/net/core/netdev_max_backlog")); err != nil {
		t.Fatal(err)
	}
	if tx, err = Undo(a.ID(), opt); err != nil || states(tx) != "left" {
		t.Errorf("a value that disappeared: %s %v", states(tx), err)
	}
}

// Two transactions over one value may end in any order; the host ends as the
// first found it.
func TestStackedTransactions(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}, {0, 2, 1}, {2, 0, 1}} {
		for _, values := range [][]string{{"100", "200", "300", "400"}, {"100", "200", "100", "300"}, {"100", "200", "300", "100"}, {"100", "200", "300", "200"}} {
			t.Run(fmt.Sprint(order, values), func(t *testing.T) {
				h := newFakeHost(t)
				opt := h.options(t)
				var stack []*Applied
				for i := range 3 {
					stack = append(stack, mustApply(t, plan(sysctl(someValue, values[i], values[i+1])), opt))
				}
				for _, i := range order {
					if tx, err := stack[i].Undo(); err != nil || states(tx) != "undone" {
						t.Errorf("undo of %s: %+v, %v", stack[i].ID(), tx, err)
					}
				}
				h.want(t, someValue, "100")
			})
		}
	}
}

func TestUndoInAnotherNetworkNamespaceIsRefused(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	h.netns(t, "thread-self", 1)
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	h.netns(t, "thread-self", 2)
	if _, err := Undo(a.ID(), opt); err == nil || !strings.Contains(err.Error(), "network namespace 1") {
		t.Errorf("%v", err)
	}
	h.want(t, someValue, "1000")
	h.netns(t, "thread-self", 1)
	if _, err := Undo(a.ID(), opt); err != nil {
		t.Error(err)
	}
	h.want(t, someValue, "100")
}

func TestPersistMergesAndUndoes(t *testing.T) {
	h := newFakeHost(t)
	h.write(t, "root/etc/sysctl.d/90-natkit.conf", "# by hand\n"+someValue+" = 50\nnet.a = 1")
	before := h.file(tune.SysctlConf)
	opt := h.options(t)
	opt.Persist = true
	first := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	second := mustApply(t, plan(sysctl(otherValue, "200", "2000")), opt)
	text := h.file(tune.SysctlConf)
	for _, want := range []string{"# by hand\n", "net.a = 1\n", someValue + " = 1000\n", otherValue + " = 2000\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	for _, a := range []*Applied{first, second} { // the older first
		if _, err := Undo(a.ID(), opt); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(before, h.file(tune.SysctlConf)); diff != "" {
		t.Error(diff)
	}
	if left, _ := filepath.Glob(filepath.Join(h.root(), "etc/*/.natkit-*")); len(left) != 0 {
		t.Errorf("temporary files %v are left", left)
	}
}

func TestPersistOfConntrackValues(t *testing.T) {
	h := newFakeHost(t)
	h.set(t, "net.netfilter.nf_conntrack_buckets", "512")
	opt := h.options(t)
	opt.Persist = true
	a := mustApply(t, plan(sysctl("net.netfilter.nf_conntrack_buckets", "512", "1024")), opt)
	for kind, want := range map[tune.Kind]string{
		tune.SysctlConf:   "net.netfilter.nf_conntrack_buckets = 1024\n",
		tune.ModulesLoad:  "\nnf_conntrack\n",
		tune.ModuleOption: "\noptions nf_conntrack hashsize=1024\n",
	} {
		if !strings.Contains(h.file(kind), want) {
			t.Errorf("%s: %q", kind, h.file(kind))
		}
	}
	if _, err := a.Undo(); err != nil {
		t.Error(err)
	}
	for _, kind := range []tune.Kind{tune.SysctlConf, tune.ModulesLoad, tune.ModuleOption} {
		if _, err := os.Stat(filepath.Join(h.root(), tune.ConfPath(kind))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", tune.ConfPath(kind), err)
		}
	}
}

func TestAfterARebootOnlyFilesAreUndone(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	plain := mustApply(t, plan(sysctl(otherValue, "200", "2000")), opt)
	opt.Persist = true
	kept := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	h.boot(t, "boot-b") // the values are as natkit wrote them, but were set by another program
	opt.Persist = false

	cleaned, err := Clean(opt)
	if err != nil || len(cleaned) != 1 || cleaned[0].ID != plain.ID() || states(cleaned[0]) != "undone" {
		t.Errorf("clean: %+v, %v", cleaned, err)
	}
	h.want(t, otherValue, "2000")
	if h.file(tune.SysctlConf) == "" {
		t.Error("clean took a persisted value out")
	}
	tx, err := Undo(kept.ID(), opt)
	if err != nil || states(tx) != "undone undone" || h.file(tune.SysctlConf) != "" {
		t.Errorf("undo: %+v, %v, file %q", tx, err, h.file(tune.SysctlConf))
	}
	h.want(t, someValue, "1000")
}

func TestOverriding(t *testing.T) {
	h := newFakeHost(t)
	set := someValue + " = 5"
	h.write(t, "root/etc/sysctl.d/10-a.conf", set)       // earlier: loses
	h.write(t, "root/etc/sysctl.d/90-natkit.conf", set)  // our own
	h.write(t, "root/etc/sysctl.d/99-x.conf", "# "+set)  // a comment
	h.write(t, "root/usr/lib/sysctl.d/95-pkg.conf", set) // by name, whatever the folder
	h.write(t, "root/etc/sysctl.conf", "net/core/somaxconn=5")
	want := []string{filepath.Join(h.root(), "usr/lib/sysctl.d/95-pkg.conf"), filepath.Join(h.root(), "etc/sysctl.conf")}
	if diff := cmp.Diff(want, Overriding(h.root(), someValue)); diff != "" {
		t.Error(diff)
	}
}

func TestHonoursBuckets(t *testing.T) {
	const buckets = "net.netfilter.nf_conntrack_buckets"
	page := os.Getpagesize() / 8
	cases := []struct {
		name, asked, got string
		want             bool
	}{
		{buckets, "1000", "1024", true}, {buckets, "1000", "1000", true}, {buckets, "1", fmt.Sprint(page), true},
		{buckets, "1000", "512", false}, {buckets, "1000", fmt.Sprint(1000 + page), false}, {buckets, "x", "1", false},
		{someValue, "1000", "1024", false}, {someValue, "0x10", "16", true},
	}
	for _, c := range cases {
		if got := (sysctls{}).Honours(c.name, c.asked, c.got); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

const forward4, forward6 = "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"

// apart is a network namespace in which an administrator has set single interfaces
// another way than all of them.
type apart struct {
	*testing.T
	ns  *netns.Handle
	opt Options
}

func newApart(t *testing.T) *apart {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "ip")
	testutil.NeedFeature(t, testutil.IPv6)
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	a := &apart{t, testutil.Namespace(t), Options{Journal: j, Root: t.TempDir()}}
	a.do(func() error {
		return exec.Command("ip", "link", "add", "one", "type", "veth", "peer", "name", "two.7").Run()
	})
	return a
}

func (a *apart) do(fn func() error) {
	a.Helper()
	if err := a.ns.Do(fn); err != nil {
		a.Fatal(err)
	}
}

// set takes "name=value"s.
func (a *apart) set(all string) {
	a.Helper()
	for _, assignment := range strings.Fields(all) {
		name, value, _ := strings.Cut(assignment, "=")
		a.do(func() error { return sysctls{"/proc"}.Write(name, value) })
	}
}

func (a *apart) want(all string) {
	a.Helper()
	for _, assignment := range strings.Fields(all) {
		name, value, _ := strings.Cut(assignment, "=")
		a.do(func() error {
			got, err := sysctls{"/proc"}.Read(name)
			if got != value {
				a.Errorf("%s is %s, want %s", name, got, value)
			}
			return err
		})
	}
}

func (a *apart) apply(changes ...tune.Change) *Applied {
	a.Helper()
	var applied *Applied
	a.do(func() (err error) {
		applied, err = Apply(a.Context(), plan(changes...), a.opt)
		return err
	})
	return applied
}

func (a *apart) undo(applied *Applied) {
	a.Helper()
	a.do(func() error {
		tx, err := applied.Undo()
		if err == nil && !tx.Finished() {
			a.Errorf("%+v", tx)
		}
		return err
	})
}

const (
	exceptions = "net.ipv4.conf.one.forwarding=1 net.ipv4.conf.two/7.forwarding=0 net.ipv4.conf.all.accept_redirects=0 " +
		"net.ipv6.conf.one.forwarding=0 net.ipv6.conf.two/7.forwarding=1 net.ipv6.conf.default.forwarding=1"
	router = "net.ipv4.conf.one.forwarding=1 net.ipv4.conf.two/7.forwarding=1 net.ipv4.conf.all.accept_redirects=0 " +
		"net.ipv6.conf.one.forwarding=1 net.ipv6.conf.two/7.forwarding=1 net.ipv6.conf.default.forwarding=1"
	forwards = " net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
	hosts    = " net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0"
)

func bothOn() []tune.Change {
	return []tune.Change{sysctl(forward4, "0", "1"), sysctl(forward6, "0", "1")}
}

// TestUndoPutsBackWhatWasSetAlong: what single interfaces had before forwarding was
// turned on, they have after it was turned off.
func TestUndoPutsBackWhatWasSetAlong(t *testing.T) {
	a := newApart(t)
	a.set(exceptions)
	applied := a.apply(bothOn()...)
	a.want(router + forwards)
	a.undo(applied)
	a.want(exceptions + hosts)
}

// TestUndoLeavesWhatSomebodyChose: of single interfaces, too, what is not as natkit's
// change made it stays.
func TestUndoLeavesWhatSomebodyChose(t *testing.T) {
	a := newApart(t)
	a.set(exceptions)
	applied := a.apply(bothOn()...)
	a.set("net.ipv4.conf.one.forwarding=0 net.ipv4.conf.all.accept_redirects=1 net.ipv6.conf.two/7.forwarding=0")
	a.undo(applied)
	a.want("net.ipv4.conf.one.forwarding=0 net.ipv4.conf.all.accept_redirects=1 net.ipv6.conf.two/7.forwarding=0 " +
		"net.ipv6.conf.default.forwarding=1" + hosts)
}

// TestUndoKilledInBetween: an undo that was killed when the switches were back, and
// nothing else, is finished by the next one.
func TestUndoKilledInBetween(t *testing.T) {
	a := newApart(t)
	a.set(exceptions)
	applied := a.apply(bothOn()...)
	a.set(hosts)
	a.want("net.ipv4.conf.one.forwarding=0 net.ipv4.conf.all.accept_redirects=1 net.ipv6.conf.two/7.forwarding=0")
	a.undo(applied)
	a.want(exceptions + hosts)
}

// TestUndoWithoutTheInterface: the values of one that is gone are not missed.
func TestUndoWithoutTheInterface(t *testing.T) {
	a := newApart(t)
	a.set(exceptions)
	applied := a.apply(bothOn()...)
	a.do(func() error { return exec.Command("ip", "link", "delete", "two.7").Run() })
	a.undo(applied)
	a.want("net.ipv4.conf.all.accept_redirects=0" + hosts)
}

// TestAlongIsHandedOver: the one that is undone last puts back what was before the first
// one, in whatever order.
func TestAlongIsHandedOver(t *testing.T) {
	a := newApart(t)
	a.set(exceptions)
	first := a.apply(bothOn()...)
	second := a.apply(sysctl(forward4, "1", "1"), sysctl(forward6, "1", "1"))
	a.undo(first)
	a.want(router + forwards)
	a.undo(second)
	a.want(exceptions + hosts)
}

// TestUndoOfWhatWasHeld: a value that stays as it is, is not written, as the kernel would
// set others along with it.
func TestUndoOfWhatWasHeld(t *testing.T) {
	a := newApart(t)
	a.apply(bothOn()...)
	held := a.apply(sysctl(forward4, "1", "1"), sysctl(forward6, "1", "1"))
	const chosen = "net.ipv4.conf.one.forwarding=0 net.ipv6.conf.one.forwarding=0"
	a.set(chosen)
	a.undo(held)
	a.want(chosen + forwards)
}
