//go:build linux

package testutil

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// LockHost keeps a test that changes a host-wide value (nf_conntrack_max), or that measures
// the host, apart from all that take LockHost or ShareHost, across packages and processes,
// until the test ends.
func LockHost(t testing.TB) {
	t.Helper()
	lockHost(t, unix.LOCK_EX)
}

// ShareHost keeps those away that take LockHost, until the test ends: the host's limits have
// room for what the test makes.
func ShareHost(t testing.TB) {
	t.Helper()
	lockHost(t, unix.LOCK_SH)
}

func lockHost(t testing.TB, how int) {
	t.Helper()
	f, err := os.OpenFile(HostLock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatalf("lock the host for a test: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	err = unix.Flock(int(f.Fd()), how)
	if err == nil && noted() != nil {
		// One that had the lock was killed.
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil {
			putBack(t, noted())
			err = unix.Flock(int(f.Fd()), how)
		}
	}
	if err != nil {
		t.Fatalf("lock the host for a test: %v", err)
	}
	if how == unix.LOCK_EX {
		noteHost(t)
	}
}

// Files of all test processes of the machine; benchmarks take the lock, too, and scripts/test reads the second one. What
// that says root writes, so that only root may write it.
const (
	HostLock  = "/run/lock/natkit-test.lock"
	hostNotes = "/run/natkit-test.values" // a file and its value on each line, while a test has the lock
)

// noteHost records the values that tests may change, for the next test that takes the lock
// after one was killed, and checks in the end that this test restored them.
func noteHost(t testing.TB) {
	var notes strings.Builder
	for _, name := range []string{"nf_conntrack_max", "nf_conntrack_buckets"} {
		path := "/proc/sys/net/netfilter/" + name
		if value, err := os.ReadFile(path); err == nil {
			fmt.Fprintf(&notes, "%s %s\n", path, bytes.TrimSpace(value))
		}
	}
	if err := os.WriteFile(hostNotes, []byte(notes.String()), 0o600); err != nil {
		t.Fatalf("note the host's values for a test: %v", err)
	}
	t.Cleanup(func() {
		if changed := putBack(t, noted()); changed != "" {
			t.Errorf("the test left %s changed", changed)
		}
	})
}

// noted returns the values of the host that a test noted, nil where none has the lock.
func noted() []string {
	notes, err := os.ReadFile(hostNotes)
	if err != nil {
		return nil
	}
	return strings.Split(string(notes), "\n")
}

// putBack writes values where they are others, removes the note, and returns what it wrote.
func putBack(t testing.TB, notes []string) (changed string) {
	for _, note := range notes {
		path, value, _ := strings.Cut(note, " ")
		is, err := os.ReadFile(path)
		if err != nil || string(bytes.TrimSpace(is)) == value {
			continue
		}
		changed += path + " "
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			t.Errorf("put a value of the host back: %v", err)
		}
	}
	os.Remove(hostNotes)
	return changed
}

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
