package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

const self = "/proc/self/exe"

func TestLifelineUndoesWhenItsOwnerIsKilled(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	brief := h.brief(t)
	brief.Lifeline = true
	helper := startHelper(t, self, brief)
	id := helper.applied(t)
	guard := guardOf(t, opt, id)
	h.want(t, someValue, "1000")
	if _, err := Undo(id, opt); err == nil || !strings.Contains(err.Error(), "undoes it when it ends") {
		t.Errorf("undo of what a running natkit holds: %v", err)
	}
	helper.kill(t)
	took := within(t, time.Second, "values back", func() bool {
		return h.get(t, someValue) == "100" && h.get(t, otherValue) == "200"
	})
	t.Logf("values back %s after the kill", took)
	waitGuard(t, guard)
	if tx := mustLoad(t, opt, id); states(tx) != "undone undone" {
		t.Errorf("journal: %s", states(tx))
	}
}

func TestLifelineEndsWithItsOwnersUndo(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	opt.Lifeline = true
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	guard := guardOf(t, opt, a.ID())
	if _, err := a.Undo(); err != nil {
		t.Error(err)
	}
	if guard.Alive("/proc") {
		t.Error("the guard outlives the undo")
	}
	h.want(t, someValue, "100")
}

func TestLifelineAlsoWithoutAJournal(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	brief := h.brief(t)
	brief.Lifeline = true
	helper := startHelper(t, self, brief)
	guard := guardOf(t, opt, helper.applied(t))
	if err := os.RemoveAll(brief.JournalDir); err != nil {
		t.Fatal(err)
	}
	helper.kill(t)
	within(t, time.Second, "value back", func() bool { return h.get(t, someValue) == "100" })
	waitGuard(t, guard)
	if _, err := os.Stat(brief.JournalDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the guard made the journal again: %v", err)
	}
}

// Killed at any moment, whether the guard stands or not, the journal is written
// or not, one value is written or both: within a second all is as before.
func TestKilledAtAnyMoment(t *testing.T) {
	for i := range 12 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			h := newFakeHost(t)
			opt := h.options(t)
			brief := h.brief(t)
			brief.Lifeline = true
			if i%2 == 1 {
				brief.Lifeline, brief.Confirm, brief.Persist = false, time.Minute, true
			}
			// One whose owner died before it wrote the guard down still ends its work, before
			// the directories go in which it writes.
			t.Cleanup(func() {
				all, _, _ := opt.Journal.List()
				for _, tx := range all {
					endGuard(t, tx.Guard)
				}
				within(t, 5*time.Second, "all guards to leave", func() bool { return !guardsLeft(t) })
			})
			helper := startHelper(t, self, brief)
			time.Sleep(time.Duration(i) * 3 * time.Millisecond) // the moment is the point
			helper.kill(t)
			if h.get(t, someValue) == "" || h.get(t, otherValue) == "" {
				return // killed in the middle of a write, which empties a file first, but no sysctl
			}
			within(t, time.Second, "values back or held by a deadline", func() bool {
				all, _, _ := opt.Journal.List()
				if len(all) == 1 && all[0].Unconfirmed() && all[0].Complete && all[0].Guard.Alive("/proc") {
					return true
				}
				return h.get(t, someValue) == "100" && h.get(t, otherValue) == "200"
			})
			all, damaged, err := opt.Journal.List()
			if err != nil || len(damaged) != 0 {
				t.Fatalf("journal: %v %v", damaged, err)
			}
			for _, tx := range all {
				endGuard(t, tx.Guard)
			}
			opt.Clock = laterClock{2 * time.Minute}
			if _, err := Clean(opt); err != nil {
				t.Error(err)
			}
			h.want(t, someValue, "100")
			h.want(t, otherValue, "200")
		})
	}
}

// guardsLeft looks for guards that run this test's program.
func guardsLeft(t testing.TB) bool {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	own, exeErr := os.Readlink(self)
	if err != nil || exeErr != nil || len(processes) == 0 {
		t.Fatal(processes, err, exeErr)
	}
	for _, p := range processes {
		if exe, err := os.Readlink(p + "/exe"); err != nil || exe != own {
			continue
		}
		if args, err := os.ReadFile(p + "/cmdline"); err == nil && strings.HasPrefix(string(args), "nk-guard\x00") {
			return true
		}
	}
	return false
}

// endGuard asks a guard in deadline mode to keep its promise now.
func endGuard(t testing.TB, p journal.Process) {
	t.Helper()
	if p.Alive("/proc") {
		syscall.Kill(p.PID, syscall.SIGTERM)
		waitGuard(t, p)
	}
}

type laterClock struct{ by time.Duration }

func (c laterClock) Now() time.Time          { return time.Now().Add(c.by) }
func (c laterClock) Boottime() time.Duration { return journal.SystemClock{}.Boottime() + c.by }

// The guard must not be found by who looks for natkit, wherever the binary lies.
func TestGuardIsNotCalledNatkit(t *testing.T) {
	pgrep := testutil.NeedProgram(t, "pgrep")
	h := newFakeHost(t)
	opt := h.options(t)
	exe := filepath.Join(t.TempDir(), "natkit-1.0", "natkit")
	copyFile(t, exe)
	brief := h.brief(t)
	brief.Lifeline = true
	helper := startHelper(t, exe, brief)
	guard := guardOf(t, opt, helper.applied(t))

	for _, args := range [][]string{{"natkit"}, {"-f", "natkit"}} {
		out, err := exec.Command(pgrep, args...).Output()
		found := strings.Fields(string(out))
		if err != nil || !slices.Contains(found, strconv.Itoa(helper.cmd.Process.Pid)) {
			t.Errorf("pgrep %v does not find the owner: %v, %v", args, found, err)
		}
		if slices.Contains(found, strconv.Itoa(guard.PID)) {
			t.Errorf("pgrep %v finds the guard", args)
		}
	}
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", guard.PID))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, path := range append(names, fmt.Sprintf("/proc/%d/cmdline", guard.PID)) {
		b, err := os.ReadFile(path)
		if got := strings.TrimRight(string(b), "\n\x00"); err != nil || got != guardName {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	checkDetached(t, guard.PID)

	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGTERM} {
		if err := syscall.Kill(guard.PID, sig); err != nil {
			t.Errorf("%s: %v", sig, err)
		}
	}
	h.want(t, someValue, "1000")
	helper.kill(t)
	within(t, time.Second, "value back", func() bool { return h.get(t, someValue) == "100" })
	waitGuard(t, guard)
}

func checkDetached(t *testing.T, pid int) {
	t.Helper()
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Errorf("the guard is in session %d, %v; want its own", sid, err)
	}
	for fd := range 3 {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
		if want := fd > 0; err != nil || (to == "/dev/null") != want {
			t.Errorf("fd %d is %s, %v", fd, to, err)
		}
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || cwd != "/" {
		t.Errorf("the guard works in %s, %v, and keeps it from being unmounted", cwd, err)
	}
}

func copyFile(t *testing.T, to string) {
	t.Helper()
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, b, 0o755)); err != nil {
		t.Fatal(err)
	}
}

func TestDeadlineUndoesAfterItsOwnersDeath(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	brief := h.brief(t)
	brief.Confirm, brief.Persist = 3*time.Second, true
	helper := startHelper(t, self, brief)
	id := helper.applied(t)
	guard := guardOf(t, opt, id)
	helper.kill(t)
	// `natkit tune apply | tee` ends although the guard lives.
	if rest, err := io.ReadAll(helper.stdout); err == nil && len(rest) > 0 {
		t.Errorf("more output: %q", rest)
	}
	tx := mustLoad(t, opt, id)
	alive, value := guard.Alive("/proc"), h.get(t, someValue)
	early := (journal.SystemClock{}).Boottime() < time.Duration(tx.Confirm.BoottimeNS) // a busy machine may be late
	if early && (!alive || value != "1000") {
		t.Errorf("before the deadline: guard alive %v, value %s", alive, value)
	}
	if h.file(tune.SysctlConf) != "" {
		t.Error("the file is written before the confirmation: a reboot would not undo")
	}
	within(t, 5*time.Second, "value back", func() bool { return h.get(t, someValue) == "100" })
	if late := (journal.SystemClock{}).Boottime() - time.Duration(tx.Confirm.BoottimeNS); late < 0 {
		t.Errorf("undone %s before the deadline", -late)
	}
	waitGuard(t, guard)
	if _, err := Confirm(id, opt); err == nil || !strings.Contains(err.Error(), "too late") {
		t.Errorf("confirmed after the deadline: %v", err)
	}
}

func TestConfirmKeepsAndEndsTheGuard(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	brief := h.brief(t)
	brief.Confirm, brief.Persist = time.Minute, true
	helper := startHelper(t, self, brief)
	id := helper.applied(t)
	guard := guardOf(t, opt, id)
	helper.kill(t)
	tx, err := Confirm(id, opt) // another process than the one that applied
	if err != nil || states(tx) != "applied applied applied applied" {
		t.Fatalf("%+v, %v", tx, err)
	}
	if guard.Alive("/proc") {
		t.Error("the guard outlives the confirmation")
	}
	h.want(t, someValue, "1000")
	if !strings.Contains(h.file(tune.SysctlConf), someValue+" = 1000\n") {
		t.Errorf("file: %q", h.file(tune.SysctlConf))
	}
	if _, err := Confirm(id, opt); err == nil || !strings.Contains(err.Error(), "confirmed before") {
		t.Errorf("confirmed twice: %v", err)
	}
	if _, err := Undo(id, opt); err != nil {
		t.Error(err)
	}
	h.want(t, someValue, "100")
	if h.file(tune.SysctlConf) != "" {
		t.Error("the file is left")
	}
}

// Nothing is left that could put values back later, when they may be natkit's own
// again.
func TestUndoEndsTheGuard(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	brief := h.brief(t)
	brief.Confirm = time.Minute
	helper := startHelper(t, self, brief)
	id := helper.applied(t)
	guard := guardOf(t, opt, id)
	helper.kill(t)
	if _, err := Undo(id, opt); err != nil {
		t.Fatal(err)
	}
	if guard.Alive("/proc") {
		t.Error("the guard outlives the undo")
	}
	h.want(t, someValue, "100")
}

func TestConfirmThatCannotPersistLeavesTheDeadline(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	opt.Confirm, opt.Persist = time.Minute, true
	a := mustApply(t, plan(sysctl(someValue, "100", "1000"), sysctl(otherValue, "200", "2000")), opt)
	guard := guardOf(t, opt, a.ID())
	h.write(t, "root/etc/sysctl.d/90-natkit.conf", otherValue+" = 3")
	if err := a.Confirm(); err == nil || !strings.Contains(err.Error(), "not confirmed") {
		t.Fatalf("%v", err)
	}
	if got := h.file(tune.SysctlConf); got != otherValue+" = 3\n" {
		t.Errorf("file %q", got)
	}
	if tx := mustLoad(t, opt, a.ID()); !tx.Unconfirmed() || states(tx) != "applied applied planned planned" || !guard.Alive("/proc") {
		t.Errorf("journal %+v", tx)
	}
	if _, err := a.Undo(); err != nil {
		t.Error(err)
	}
	h.want(t, someValue, "100")
}

func TestCleanStandsInForAKilledGuard(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	brief := h.brief(t)
	brief.Confirm = time.Minute
	helper := startHelper(t, self, brief)
	id := helper.applied(t)
	guard := guardOf(t, opt, id)
	syscall.Kill(guard.PID, syscall.SIGKILL)
	helper.kill(t)
	within(t, testutil.Patience(5*time.Second), "guard's end", gone(guard))
	if done, err := Clean(opt); len(done) != 0 || err != nil {
		t.Errorf("before the deadline: %v, %v", done, err)
	}
	h.want(t, someValue, "1000")
	opt.Clock = laterClock{2 * time.Minute}
	if done, err := Clean(opt); len(done) != 1 || err != nil || states(done[0]) != "undone undone" {
		t.Errorf("after the deadline: %v, %v", done, err)
	}
	h.want(t, someValue, "100")
}

func TestGuardToldToEndKeepsItsPromiseFirst(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	opt.Confirm = time.Minute
	a := mustApply(t, plan(sysctl(someValue, "100", "1000")), opt)
	guard := guardOf(t, opt, a.ID())
	if err := syscall.Kill(guard.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	within(t, 2*time.Second, "value back", func() bool { return h.get(t, someValue) == "100" })
	a.guard.reap()
}

func TestNoGuardNoChange(t *testing.T) {
	h := newFakeHost(t)
	opt := h.options(t)
	if _, err := startGuard(t.Context(), opt.withDefaults(), "t0404"); err == nil || !strings.Contains(err.Error(), "t0404") {
		t.Errorf("guard of a transaction that does not exist: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	opt.Lifeline = true
	a, err := Apply(ctx, plan(sysctl(someValue, "100", "1000")), opt)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "guard process") || a != nil {
		t.Errorf("%v, %v", a, err)
	}
	h.want(t, someValue, "100")
	if tx := mustLoad(t, opt, "t0001"); states(tx) != "undone" || tx.Guard.PID != 0 {
		t.Errorf("journal: %+v", tx)
	}
}
