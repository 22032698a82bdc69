package drops

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// TestMain starts a tracer as nobody where TestWithoutPrivilege asks for it.
func TestMain(m *testing.M) {
	if os.Getenv("NATKIT_TEST_AS_NOBODY") == "" {
		os.Exit(m.Run())
	}
	if _, err := Start(context.Background(), Options{}); err != nil {
		os.Stdout.WriteString(err.Error())
	}
}

// TestWithoutPrivilege: one line says which capabilities are missing, and what for.
func TestWithoutPrivilege(t *testing.T) {
	testutil.NeedRoot(t)
	self, err := os.Open("/proc/self/exe") // uid 65534 may not read its directory
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "NATKIT_TEST_AS_NOBODY=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const want = "trace drops: needs CAP_BPF or CAP_SYS_ADMIN (to load eBPF programs) and CAP_PERFMON or CAP_SYS_ADMIN " +
		"(to attach eBPF programs to the kernel's tracepoints); run it as root, or with CAP_BPF and CAP_PERFMON"
	if got := strings.TrimSpace(string(out)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
