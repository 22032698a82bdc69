package apply

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune/journal"
)

// helper is a running process that applied something.
type helper struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

// startHelper runs exe, which is a copy of, or the link to, the test binary.
func startHelper(t testing.TB, exe string, b helperBrief) *helper {
	t.Helper()
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if b.Contained {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &helper{cmd, stdin, bufio.NewReader(stdout)}
	t.Cleanup(func() { h.kill(t) })
	if b.ProcRoot != "/proc" {
		knowProcess(t, b.ProcRoot, cmd.Process.Pid)
	}
	// Only now does it find itself under its ProcRoot.
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	return h
}

// applied waits until the helper has applied its plan.
func (h *helper) applied(t testing.TB) (id string) {
	t.Helper()
	line, err := h.stdout.ReadString('\n')
	id, ok := strings.CutPrefix(strings.TrimSpace(line), "applied ")
	if err != nil || !ok {
		t.Fatalf("helper: %q, %v", line, err)
	}
	return id
}

// kill is kill -9. A second call does nothing.
func (h *helper) kill(t testing.TB) {
	t.Helper()
	if h.cmd.ProcessState != nil {
		return
	}
	if err := h.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	h.cmd.Wait()
}

func (h fakeHost) brief(t testing.TB) helperBrief {
	t.Helper()
	b := helperBrief{JournalDir: filepath.Join(h.dir, "journal"), ProcRoot: h.procRoot(), Root: h.root()}
	b.Plan = plan(sysctl(someValue, "100", "1000"), sysctl(otherValue, "200", "2000"))
	return b
}

// guardOf is the guard of a transaction, which must run, and must be gone at the
// end of the test.
func guardOf(t testing.TB, opt Options, id string) journal.Process {
	t.Helper()
	guard := mustLoad(t, opt, id).Guard
	if !guard.Alive("/proc") {
		t.Fatalf("the guard %+v does not run", guard)
	}
	t.Cleanup(func() {
		if guard.Alive("/proc") {
			t.Errorf("guard %d is left over", guard.PID)
			syscall.Kill(guard.PID, syscall.SIGKILL)
		}
	})
	return guard
}

func gone(p journal.Process) func() bool { return func() bool { return !p.Alive("/proc") } }

// waitGuard lets a guard come to its end before the test's folder is removed.
func waitGuard(t testing.TB, p journal.Process) {
	t.Helper()
	within(t, testutil.Patience(5*time.Second), fmt.Sprintf("end of guard %d", p.PID), gone(p))
}
