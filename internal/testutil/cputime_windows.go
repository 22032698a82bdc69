package testutil

import (
	"testing"
	"time"

	"golang.org/x/sys/windows"
)

// cpuTick is what CPUTime counts in: the interrupts of the clock.
const cpuTick = 16 * time.Millisecond

// CPUTime returns the CPU time of this process, including the kernel's for its system
// calls.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var created, ended, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(windows.CurrentProcess(), &created, &ended, &kernel, &user); err != nil {
		t.Fatal(err)
	}
	const unit = 100 // nanoseconds (FILETIME)
	ticks := func(f windows.Filetime) int64 { return int64(f.HighDateTime)<<32 | int64(f.LowDateTime) }
	return time.Duration((ticks(kernel) + ticks(user)) * unit)
}
