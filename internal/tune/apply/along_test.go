package apply

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

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
