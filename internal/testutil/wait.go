package testutil

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// timeFactor is set where everything takes longer than on a real machine: by the VM
// of `make test-vm`, the processor of which may be emulated.
const timeFactor = "NATKIT_TIME_FACTOR"

// Patience returns how long a test waits at most for what takes up to d on a real
// machine. It is for deadlines that keep a broken test from hanging: no test asserts how
// long something takes, benchmarks do.
func Patience(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(timeFactor)); err == nil && n > 1 {
		return d * time.Duration(n)
	}
	return d
}

// Eventually waits for a condition. The deadline only keeps a broken test from hanging: it
// is far from what the slowest and busiest machine takes.
func Eventually(t testing.TB, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience(time.Minute)); !met(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}
