//go:build unix

package testutil

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTick is what CPUTime counts in, where that is much.
const cpuTick = time.Duration(0)

// CPUTime returns the CPU time of this process, including the kernel's for its system
// calls. Elapsed time is no measure of it on a machine that does other work as well.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
