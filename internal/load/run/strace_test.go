package run

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// loadHelper makes this test binary a load generator: its value is the server.
const loadHelper = "NATKIT_LOAD_TEST_URL"

func TestMain(m *testing.M) {
	if url := os.Getenv(loadHelper); url != "" {
		cfg := testConfig(url, 2000, 20)
		r, err := HTTP(context.Background(), cfg, Options{})
		if err != nil || r.Completed != 2000 {
			fmt.Fprintln(os.Stderr, err, r)
			os.Exit(1)
		}
		fmt.Println(r.SystemCalls)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestSystemCallsAreCounted compares with strace's count of the calls that the
// workers make; Go's runtime makes a few of them too.
func TestSystemCallsAreCounted(t *testing.T) {
	strace := testutil.NeedProgram(t, "strace")
	addr := startServe(t, ServeConfig{})
	table := filepath.Join(t.TempDir(), "table")
	const calls = "trace=socket,connect,bind,sendto,recvfrom,shutdown,close,setsockopt,getsockopt,epoll_ctl,epoll_pwait,epoll_pwait2"
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-c", "-o", table, "-e", calls, os.Args[0])
	cmd.Env = append(os.Environ(), loadHelper+"="+addr.String())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	reported, err := strconv.Atoi(regexp.MustCompile(`(?m)^\d+$`).FindString(string(out)))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^100\.00\s+\S+\s+\d+\s+(\d+)\s.*total$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no total in:\n%s", text)
	}
	traced, _ := strconv.Atoi(string(m[1]))
	if reported > traced || traced-reported > 100 {
		t.Errorf("reported %d system calls, strace saw %d:\n%s", reported, traced, text)
	}
	t.Logf("%.2f system calls per request", float64(reported)/2000)
}
