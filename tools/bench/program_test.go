package bench

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

func sh(script string) Program { return Program{Args: []string{"sh", "-c", script}} }

func TestProgram(t *testing.T) {
	out, u, err := sh("echo yes; echo no >&2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").Run(t.Context())
	if err != nil || string(out) != "yes\n" {
		t.Fatalf("got %q, %v", out, err)
	}
	if u.Seconds <= 0 || u.PeakBytes < 100<<10 || u.CPUSeconds < 0 {
		t.Errorf("took %+v", u)
	}
}

func TestProgramExitCodes(t *testing.T) {
	findings := sh("exit 3")
	if _, _, err := findings.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "sh -c exit 3: exit status 3") {
		t.Errorf("exit code 3 gave %v", err)
	}
	findings.Accept = []int{3}
	if _, _, err := findings.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := sh("echo why >&2; exit 1").Run(t.Context()); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("the error does not show the output: %v", err)
	}
	if _, _, err := (Program{Args: []string{"/nonexistent"}}).Run(t.Context()); err == nil {
		t.Error("a program that is not there ran")
	}
}

// TestProgramCleansUp: an interrupted program may end on its own, and its result then is
// no success.
func TestProgramCleansUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	p := Program{Accept: []int{3}, Args: []string{"sh", "-c",
		`trap 'echo clean >"$1/end"; exit 3' TERM; echo >"$1/begun"; while :; do sleep 0.01; done`, "sh", dir}}
	done := make(chan error)
	go func() {
		_, _, err := p.Run(ctx)
		done <- err
	}()
	await(t, func() bool { return exists(dir + "/begun") })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if !exists(dir + "/end") {
		t.Error("the program did not receive the signal to end")
	}
}

func TestProgramInNamespace(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("bench")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	p := Program{Args: []string{"cat", "/proc/net/dev"}, Netns: ns}
	out, _, err := p.Run(t.Context())
	if err != nil || strings.Count(string(out), ":") != 1 || !strings.Contains(string(out), "lo:") {
		t.Errorf("%v, interfaces:\n%s", err, out)
	}
}

func TestParseBusy(t *testing.T) {
	got, err := parseBusy("cpu  100 20 300 99999 8888 7 50 3 2 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
	if want := 4.77; err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, text := range []string{"", "intr 1 2 3 4 5 6 7 8 9\n", "cpu 1 2\n", "cpu 1 2 x 4 5 6 7 8\n"} {
		if got, err := parseBusy(text); err == nil {
			t.Errorf("%q gave %v", text, got)
		}
	}
}

func await(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("waited a minute in vain")
		}
		time.Sleep(time.Millisecond)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
