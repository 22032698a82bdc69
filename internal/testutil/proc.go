//go:build linux

package testutil

import (
	"errors"

	"golang.org/x/sys/unix"
)

// OwnProc mounts the /proc of the caller's PID namespace in its mount namespace, which are
// both its own. That the one above keeps its /proc is asked of /proc alone: the root of a
// chroot is no mount point.
func OwnProc() error {
	return errors.Join(unix.Mount("", "/proc", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
}
