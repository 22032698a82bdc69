package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

func TestDescribe(t *testing.T) {
	t.Setenv("NATKIT_RUN_DIR", t.TempDir())
	o, err := Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if m := o.Machine; m.Kernel != strings.TrimSpace(string(release)) || m.CPUs < 1 || m.CPU == "" || m.MemoryBytes < 1<<20 || m.Load1m < 0 {
		t.Errorf("got %+v", m)
	}
	if o.Date.IsZero() || o.Commit == "" {
		t.Errorf("got %+v", o)
	}
}

// TestCommit: a file that is not committed makes another program, unless it is a
// document.
func TestCommit(t *testing.T) {
	testutil.NeedProgram(t, "git")
	t.Chdir(t.TempDir())
	if got := commit(t.Context()); got != "unknown" {
		t.Errorf("without a repository: %q", got)
	}
	for _, args := range []string{"init -q", "-c user.name=a -c user.email=a@example.com commit -q --allow-empty -m empty"} {
		if out, err := exec.Command("git", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	clean := commit(t.Context())
	if len(clean) != 40 {
		t.Errorf("commit %q", clean)
	}
	for _, step := range []struct{ file, want string }{{"docs/figures.md", clean}, {"internal/new.go", clean + "-dirty"}} {
		if err := os.MkdirAll(filepath.Dir(step.file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(step.file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := commit(t.Context()); got != step.want {
			t.Errorf("with a new %s: %q, want %q", step.file, got, step.want)
		}
	}
}

func TestBusy(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("NATKIT_RUN_DIR", dir)
	if got := busy(1, 2); got != nil {
		t.Errorf("a quiet machine is called busy: %q", got)
	}
	if got := busy(1.01, 2); len(got) != 1 || got[0] != "load average 1.01 with 2 CPUs" {
		t.Errorf("load: %q", got)
	}
	lock, err := build.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if got := busy(0, 2); len(got) != 1 || !strings.HasPrefix(got[0], "another lab is running (pid ") {
		t.Errorf("a lab runs: %q", got)
	}
}

func TestField(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cpuinfo")
	if err := os.WriteFile(path, []byte("processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"model name": "A: B", "model": ""} {
		if got := field(path, name, ":"); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := field(path+"x", "model name", ":"); got != "" {
		t.Errorf("no file gave %q", got)
	}
}

func TestProgramVersion(t *testing.T) {
	for line, want := range map[string]string{
		"nginx version: nginx/1.22.1":                                  "nginx/1.22.1",
		"This is ApacheBench, Version 2.3 <$Revision$>":                "ApacheBench, Version 2.3",
		"wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer": "wrk debian/4.1.0-3+b2",
		"strace -- version 6.1":                                        "strace 6.1",
		"conntrack v1.4.7 (conntrack-tools)":                           "conntrack v1.4.7",
	} {
		if got := programVersion(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
