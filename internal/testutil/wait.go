package testutil

import (
	"os"
	"strconv"
	"time"
)

// timeFactor is set where everything takes longer than on a real machine: by the VM
// of `make test-vm`, the processor of which may be emulated.
const timeFactor = "NATKIT_TIME_FACTOR"

// Patience is how long a test waits at most for what takes up to d on a real
// machine. It is for deadlines that keep a broken test from hanging; what a test
// asserts about time is not stretched.
func Patience(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv(timeFactor)); err == nil && n > 1 {
		return d * time.Duration(n)
	}
	return d
}
