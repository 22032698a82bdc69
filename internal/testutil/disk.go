//go:build linux

package testutil

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk is a directory on a tmpfs of a size (64k, 1m), which is mounted nowhere and ends with the test.
func SmallDisk(t testing.TB, size string) string {
	t.Helper()
	NeedRoot(t)
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatalf("open tmpfs: %v", err)
	}
	defer unix.Close(fs)
	err = errors.Join(unix.FsconfigSetString(fs, "size", size), unix.FsconfigSetString(fs, "mode", "0700"), unix.FsconfigCreate(fs))
	if err != nil {
		t.Fatalf("make a tmpfs: %v", err)
	}
	disk, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Close(disk) })
	return fmt.Sprintf("/proc/self/fd/%d/", disk)
}
