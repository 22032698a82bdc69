package netns_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// TestFirstThreadStaysAsItIs gives many functions a file table of their own, all at
// once, so that one of them would get the process's first thread, which is idle.
// What the process opens afterwards must still be among its files.
func TestFirstThreadStaysAsItIs(t *testing.T) {
	const functions = 50
	var all, started sync.WaitGroup
	started.Add(functions)
	for range functions {
		all.Go(func() {
			err := netns.OnThread(func() error {
				started.Done()
				started.Wait() // each keeps its thread until all have one
				if unix.Gettid() == unix.Getpid() {
					return errors.New("runs on the process's first thread")
				}
				return unix.Unshare(unix.CLONE_FILES)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()))
	if err != nil || to != os.DevNull {
		t.Errorf("an open file of the process is not in its /proc directory: %q, %v", to, err)
	}
}

func TestError(t *testing.T) {
	want := errors.New("failed")
	if err := netns.OnThread(func() error { return want }); err != want {
		t.Errorf("%v", err)
	}
}
