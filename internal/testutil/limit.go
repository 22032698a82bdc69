package testutil

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// RaiseConntrackMax changes the host's limit of tracked connections, never down, and
// puts it back. The test has taken LockHost.
func RaiseConntrackMax(t testing.TB, limit int) {
	t.Helper()
	const path = "/proc/sys/net/netfilter/nf_conntrack_max"
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var now int
	if _, err := fmt.Sscan(string(before), &now); err != nil || now >= limit || now == 0 { // 0 is no limit
		return
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, before, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(path, fmt.Append(nil, limit), 0); err != nil {
		t.Fatal(err)
	}
}

// CPUTime is what this process has used, in the kernel too, which works for it in its
// system calls. The clock does not tell it on a machine that does other things as well.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
