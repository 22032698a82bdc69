package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

// lost are the ways in which a journal becomes unusable while natkit relies on it.
var lost = []struct {
	name string
	lose func(t *testing.T, h fakeHost, opt Options)
	// unsaved is what Applied.Undo says although the values are back.
	unsaved string
}{
	{"deleted", func(t *testing.T, _ fakeHost, opt Options) { remove(t, opt.Journal.Dir()) }, ""},
	{"damaged", func(t *testing.T, h fakeHost, _ Options) { h.write(t, "journal/t0001.json", "{") }, ""},
	{"others may write", func(t *testing.T, _ fakeHost, opt Options) {
		if err := os.Chmod(opt.Journal.Dir(), 0o777); err != nil {
			t.Fatal(err)
		}
	}, "others could forge"},
	{"another's", func(t *testing.T, _ fakeHost, opt Options) {
		remove(t, opt.Journal.Dir())
		opt.Confirm, opt.Lifeline = 0, false
		if a := mustApply(t, plan(sysctl(otherValue, "200", "2000")), opt); a.ID() != "t0001" {
			t.Fatal(a.ID())
		}
	}, ""},
	{"read-only", func(t *testing.T, _ fakeHost, opt Options) {
		testutil.NeedRoot(t)
		dir := opt.Journal.Dir()
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	}, "read-only file system"},
}

// remove takes a folder away all at once, whoever writes in it.
func remove(t *testing.T, dir string) {
	t.Helper()
	if err := os.Rename(dir, filepath.Join(t.TempDir(), "removed")); err != nil {
		t.Fatal(err)
	}
}

func TestGuardUndoesWithoutAUsableJournal(t *testing.T) {
	for _, c := range lost {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			opt := h.options(t)
			brief := h.brief(t)
			brief.Lifeline = true
			brief.Plan.Changes = brief.Plan.Changes[:1]
			helper := startHelper(t, self, brief)
			guard := guardOf(t, opt, helper.applied(t))
			c.lose(t, h, opt)
			helper.kill(t)
			within(t, time.Second, "value back", func() bool { return h.get(t, someValue) == "100" })
			waitGuard(t, guard)
			wantOther(t, h, opt, c.name)
		})
	}
}

func TestDeadlineHoldsWithoutAUsableJournal(t *testing.T) {
	for _, c := range lost {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			opt := h.options(t)
			opt.Confirm = 700 * time.Millisecond
			a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
			t.Cleanup(func() { syscall.Kill(a.guard.cmd.Process.Pid, syscall.SIGKILL) })
			c.lose(t, h, opt)
			if err := a.Confirm(); c.name == "another's" && (err == nil || !strings.Contains(err.Error(), "another's by now")) {
				t.Errorf("confirmed another's: %v", err)
			} else if err == nil {
				t.Error("confirmed without a journal")
			}
			within(t, 2*time.Second, "value back", func() bool { return h.get(t, someValue) == "100" })
			a.guard.reap()
			wantOther(t, h, opt, c.name)
		})
	}
}

func TestOwnerUndoesWithoutAUsableJournal(t *testing.T) {
	for _, c := range lost {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHost(t)
			opt := h.options(t)
			opt.Lifeline = true
			a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
			c.lose(t, h, opt)
			tx, err := a.Undo()
			if tx == nil || states(tx) != "undone" {
				t.Errorf("%+v", tx)
			}
			if (err != nil) != (c.unsaved != "") || err != nil && (!errors.Is(err, ErrUnsaved) || !strings.Contains(err.Error(), c.unsaved)) {
				t.Errorf("%v; want %q", err, c.unsaved)
			}
			h.want(t, someValue, "100")
			if a.guard.process.Alive("/proc") {
				t.Error("the guard outlives the undo")
			}
			wantOther(t, h, opt, c.name)
		})
	}
}

// The guard would otherwise undo a second time, including values set since.
func TestUndoEndsTheGuardAlsoWhereItCannotBeSaved(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	opt.Confirm = time.Minute
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	guard := guardOf(t, opt, a.ID())
	reaped := make(chan struct{})
	go func() { a.guard.cmd.Wait(); close(reaped) }()
	lost[len(lost)-1].lose(t, h, opt) // read-only
	if tx, err := Undo(a.ID(), opt); !errors.Is(err, ErrUnsaved) || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	if guard.Alive("/proc") {
		t.Error("the guard outlives the undo")
		syscall.Kill(guard.PID, syscall.SIGKILL)
	}
	<-reaped
	h.want(t, someValue, "100")
}

// wantOther checks that the other transaction of the same id is as it was.
func wantOther(t *testing.T, h fakeHost, opt Options, name string) {
	t.Helper()
	if name != "another's" {
		return
	}
	h.want(t, otherValue, "2000")
	if tx := mustLoad(t, opt, "t0001"); states(tx) != "applied" || tx.Changes[0].Target != otherValue {
		t.Errorf("the other's: %+v", tx)
	}
}

// While another natkit works, the undo waits for it.
func TestOwnerDoesNotUndoUnderAnothersHands(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	unlock, err := opt.Journal.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { _, err := a.Undo(); done <- err }()
	select {
	case err := <-done:
		t.Errorf("undone while locked: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	h.want(t, someValue, "1000")
	unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
	h.want(t, someValue, "100")
}

// The files are taken back and the deadline holds, as a reboot would undo what
// the journal does not know to be confirmed.
func TestConfirmOnAFullDiskIsNoConfirmation(t *testing.T) {
	testutil.NeedRoot(t)
	h := newFakeHost(t)
	dir := filepath.Join(h.dir, "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	opt := h.options(t)
	opt.Journal, _ = journal.At(filepath.Join(dir, "journal"))
	opt.Confirm = time.Minute
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 1<<20), 0o600) // fails when it is full
	if err := a.Confirm(); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "is not confirmed and will be undone at") {
		t.Errorf("%v", err)
	}
	if tx := mustLoad(t, opt, a.ID()); !tx.Unconfirmed() || !a.guard.process.Alive("/proc") {
		t.Errorf("%+v", tx)
	}
	if tx, err := a.Undo(); !errors.Is(err, ErrUnsaved) || states(tx) != "undone" {
		t.Errorf("%+v, %v", tx, err)
	}
	h.want(t, someValue, "100")
}
