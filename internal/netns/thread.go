package netns

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs fn on an operating-system thread that ends with it, so that what fn changes
// of the thread (namespaces, file table, credentials, CPUs) reaches nothing else of the
// process, and waits for it. What fn starts with `go`
// runs elsewhere.
//
// The runtime destroys a thread whose goroutine ends while locked to it, except
// the process's first one, which it parks for good. That one stands for the
// process: /proc/PID/ns and /proc/PID/fd are its namespaces and its file table. So
// fn never runs there: the first thread is held until fn has run on another.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(fn)
			return
		}
		done <- fn() // never unlocked
	}()
	return <-done
}
