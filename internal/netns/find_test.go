package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestFind: a namespace of 'ip netns', one that a process is in and one that is only held are found
// once each, and opened as long as they are there.
func TestFind(t *testing.T) {
	testutil.NeedProgram(t, "ip")
	held := testutil.Namespace(t)
	name := fmt.Sprintf("natkit-find-%d", time.Now().UnixNano())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
	in := testutil.Namespace(t)
	cmd := exec.Command("sleep", "600")
	if err := in.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })

	found, cut, missed := netns.Find(time.Time{})
	if cut {
		t.Error("a search without an end was cut short")
	}
	of := func(inode uint64) netns.Found {
		t.Helper()
		i := slices.IndexFunc(found, func(f netns.Found) bool { return f.Inode == inode })
		if i < 0 {
			t.Fatalf("namespace %d is not among %+v (%v)", inode, found, missed)
		}
		if slices.ContainsFunc(found[i+1:], func(f netns.Found) bool { return f.Inode == inode }) {
			t.Errorf("namespace %d is found twice", inode)
		}
		return found[i]
	}
	named, err := netns.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	if f := of(named.Inode()); f.Name != name {
		t.Errorf("named: %+v", f)
	}
	if f := of(in.Inode()); f.PID != cmd.Process.Pid || f.Name != "" {
		t.Errorf("of process %d: %+v", cmd.Process.Pid, f)
	}
	if f := of(held.Inode()); f.PID != 0 || f.Name != "" || f.Path == "" {
		t.Errorf("held: %+v", f)
	}
	for _, ns := range []*netns.Handle{named, in, held} {
		h, err := of(ns.Inode()).Open()
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	gone := of(held.Inode())
	gone.Inode = 1
	if _, err := gone.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another one at its place: %v", err)
	}
	gone.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
	if _, err := gone.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another file at its descriptor: %v", err)
	}
	if found, cut, _ := netns.Find(time.Now().Add(-time.Second)); !cut || len(found) > len(netns.Names())+1 {
		t.Errorf("without time %d are found, cut: %v", len(found), cut)
	}
}

// TestOfHost: a namespace that was made is not the host's, or, where the first process may not be looked at, that
// is said.
func TestOfHost(t *testing.T) {
	ns := testutil.Namespace(t)
	testutil.Inside(t, ns, func() error {
		if is, err := netns.OfHost(); is {
			t.Errorf("a new namespace is the host's, %v", err)
		}
		return nil
	})
}
