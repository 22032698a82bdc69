package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/ruleset/edit"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/journal"
)

const (
	someValue  = "net.core.somaxconn"
	otherValue = "net.core.netdev_max_backlog"
	realMax    = "net.netfilter.nf_conntrack_max"
)

// fakeHost is a folder in the place of /proc and /, with a journal.
type fakeHost struct{ dir string }

func newFakeHost(t *testing.T) fakeHost {
	t.Helper()
	h := fakeHost{t.TempDir()}
	h.set(t, someValue, "100")
	h.set(t, otherValue, "200")
	h.boot(t, "boot-a")
	h.netns(t, "thread-self", 4026531840)
	h.netns(t, "1", 4026531840)
	return h
}

// netns puts a process of the fake /proc into a network namespace.
func (h fakeHost) netns(t testing.TB, process string, inode int) {
	t.Helper()
	link := filepath.Join(h.procRoot(), process, "ns/net")
	os.Remove(link)
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(fmt.Sprintf("net:[%d]", inode), link)); err != nil {
		t.Fatal(err)
	}
}

func (h fakeHost) procRoot() string { return filepath.Join(h.dir, "proc") }
func (h fakeHost) root() string     { return filepath.Join(h.dir, "root") }

func (h fakeHost) options(t testing.TB) Options {
	t.Helper()
	knowProcess(t, h.procRoot(), os.Getpid())
	j, err := journal.At(filepath.Join(h.dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	return Options{Journal: j, ProcRoot: h.procRoot(), Root: h.root()}
}

// knowProcess makes a running process visible below the fake /proc.
func knowProcess(t testing.TB, procRoot string, pid int) {
	t.Helper()
	number := strconv.Itoa(pid)
	err := os.Symlink("/proc/"+number, filepath.Join(procRoot, number))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}

func (h fakeHost) boot(t testing.TB, id string) { h.write(t, "proc/sys/kernel/random/boot_id", id) }

func (h fakeHost) set(t testing.TB, name, value string) {
	h.write(t, "proc/sys/"+strings.ReplaceAll(name, ".", "/"), value)
}

func (h fakeHost) write(t testing.TB, path, text string) {
	t.Helper()
	path = filepath.Join(h.dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func (h fakeHost) get(t testing.TB, name string) string {
	t.Helper()
	v, err := ReadSysctl(h.procRoot(), name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (h fakeHost) want(t testing.TB, name, value string) {
	t.Helper()
	if got := h.get(t, name); got != value {
		t.Errorf("%s is %s, want %s", name, got, value)
	}
}

// file is the text of a file under the fake /; empty where it is absent.
func (h fakeHost) file(kind tune.Kind) string {
	b, _ := os.ReadFile(filepath.Join(h.root(), tune.ConfPath(kind)))
	return string(b)
}

func plan(changes ...tune.Change) tune.Plan { return tune.Plan{Origin: "test", Changes: changes} }

func sysctl(name, before, after string) tune.Change {
	return tune.Change{Kind: tune.Sysctl, Target: name, Before: before, After: after}
}

func mustApply(t testing.TB, p tune.Plan, opt Options) *Applied {
	t.Helper()
	a, err := Apply(t.Context(), p, opt)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func mustLoad(t testing.TB, opt Options, id string) *journal.Transaction {
	t.Helper()
	tx, err := opt.Journal.Load(id)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// states is the state of each change in one word each.
func states(tx *journal.Transaction) string {
	var out []string
	for _, c := range tx.Changes {
		out = append(out, string(c.State))
	}
	return strings.Join(out, " ")
}

// within waits for a condition that an idle machine meets within the limit; a busy one
// may take much longer.
func within(t testing.TB, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > testutil.Patience(max(limit, time.Minute)) {
			t.Fatalf("%s: not within %s", what, time.Since(start))
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(start)
}

// helperBrief is what a helper process applies: the test binary again, in the
// place of natkit, so that it can be killed.
type helperBrief struct {
	JournalDir, ProcRoot, Root string
	Plan                       tune.Plan
	Confirm                    time.Duration
	Persist, Lifeline          bool
	// Contained is a process 1 of a PID namespace, which mounts its own /proc.
	Contained bool
}

const helperEnv = "APPLY_TEST_HELPER"

func init() {
	Init(func(Options) map[tune.Kind]Applier { return map[tune.Kind]Applier{tune.NATRule: edit.Applier{}} })
}

func TestMain(m *testing.M) {
	if text := os.Getenv(helperEnv); text != "" {
		os.Exit(helperMain(text))
	}
	os.Exit(m.Run())
}

// helperMain waits for a byte on stdin, applies, says "applied ID" or the error,
// and stays until its stdin ends.
func helperMain(text string) int {
	os.Stdin.Read(make([]byte, 1))
	var b helperBrief
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		fmt.Println(err)
		return 2
	}
	if b.Contained {
		if err := testutil.OwnProc(); err != nil {
			fmt.Println(err)
			return 2
		}
	}
	j, err := journal.At(b.JournalDir)
	if err != nil {
		fmt.Println(err)
		return 2
	}
	a, err := Apply(context.Background(), b.Plan, Options{
		Journal: j, ProcRoot: b.ProcRoot, Root: b.Root,
		Confirm: b.Confirm, Persist: b.Persist, Lifeline: b.Lifeline,
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("applied", a.ID())
	os.Stdin.Read(make([]byte, 1))
	return 0
}
