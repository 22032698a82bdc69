package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// bootFolder is a /proc with a boot id of its own, in which the world's namespace is
// the initial one.
func (w *world) bootFolder(id string) string {
	w.t.Helper()
	root := w.t.TempDir()
	link := func(target, name string) {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
			w.t.Fatal(err)
		}
	}
	link("/proc/sys/net", "sys/net")
	link("/proc/thread-self", "thread-self")
	link("/proc/self", strconv.Itoa(os.Getpid()))
	link("net:["+strconv.FormatUint(w.ns.Inode(), 10)+"]", "1/ns/net")
	file := filepath.Join(root, "sys/kernel/random/boot_id")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(id+"\n"), 0o644)); err != nil {
		w.t.Fatal(err)
	}
	return root
}

// After a power failure between apply and confirm nothing is in force: the rules and
// the sysctls went with the memory, and the file was not yet written.
func TestPowerFailureBeforeConfirmation(t *testing.T) {
	w := newWorld(t)
	w.Apply.ProcRoot = w.bootFolder("boot-a")
	keep := wish(snatText)
	keep.Persist = true
	a, err := w.prepare(keep).Apply(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.Apply.Root, "etc/natkit/gateway.yaml")
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written before the confirmation: %v", err)
	}
	guard := w.load(a.ID()).Guard
	t.Cleanup(func() { endGuard(t, guard) })
	w.Apply.ProcRoot = w.bootFolder("boot-b")
	w.ip("ip link set lo down") // the namespace stands for another boot: rules stay where a test cannot reboot
	view, err := journal.NewView(w.Apply.ProcRoot, journal.SystemClock{})
	if err != nil {
		t.Fatal(err)
	}
	if got := view.Status(w.load(a.ID())); got != journal.StatusVoid {
		t.Errorf("status %s", got)
	}
	if _, err := apply.Confirm(a.ID(), w.Apply); err == nil || !strings.Contains(err.Error(), "rebooted") {
		t.Errorf("confirm: %v", err)
	}
	undone, err := apply.Clean(w.options(w.keeps()))
	if err != nil || len(undone) != 1 || !undone[0].Finished() {
		t.Errorf("clean: %+v, %v", undone, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file came: %v", err)
	}
}

// endGuard ends the guard of another boot, whose deadline this test does not wait for.
func endGuard(t *testing.T, guard journal.Process) {
	if p, err := os.FindProcess(guard.PID); err == nil && guard.Alive("/proc") {
		p.Kill()
		within(t, 30*time.Second, "end of the guard", func() bool { return !guard.Alive("/proc") })
	}
}

func TestPersistAndUndo(t *testing.T) {
	w := newWorld(t)
	w.Apply.ProcRoot = w.bootFolder("boot-a")
	file := filepath.Join(w.Apply.Root, "etc/natkit/gateway.yaml")
	former := []byte("# by hand\n" + masqueradeText)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, former, 0o644)); err != nil {
		t.Fatal(err)
	}
	keep := wish(snatText)
	keep.Persist = true
	a, err := w.prepare(keep).Apply(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	wantFile(t, file, string(former))
	if _, err := apply.Confirm(a.ID(), w.Apply); err != nil {
		t.Fatal(err)
	}
	wantFile(t, file, snatText)
	if again := w.prepare(keep); len(again.Plan.Changes) != 0 {
		t.Errorf("the same again: %+v", again.Plan)
	}
	if _, err := w.Undo(a.ID()); err != nil {
		t.Fatal(err)
	}
	wantFile(t, file, string(former))
	w.want(tune.GatewayNone)
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: %q, %v; want %q", path, got, err, want)
	}
}

func TestPersistElsewhereIsRefused(t *testing.T) {
	w := newWorld(t)
	keep := wish(snatText)
	keep.Persist = true
	if _, err := w.Prepare(t.Context(), keep); err == nil || !strings.Contains(err.Error(), "not the host's own") {
		t.Errorf("%v", err)
	}
}
