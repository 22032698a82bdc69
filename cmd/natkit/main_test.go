package main

import (
	"os"
	"os/signal"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A second signal that comes with the first does not end natkit: its handler stays until the
// time for that is over.
func TestSignalsThatComeTogether(t *testing.T) {
	others := make(chan os.Signal, 2) // keeps the test alive once natkit's handler is gone
	signal.Notify(others, unix.SIGTERM)
	defer signal.Stop(others)
	over := make(chan func(), 1)
	ctx, stop := untilSignal(func(f func()) { over <- f })
	defer stop()
	for range 2 {
		if err := unix.Kill(unix.Getpid(), unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-others
	}
	<-ctx.Done()
	(<-over)()
	if oneSignal <= 0 {
		t.Error("a second signal ends natkit while it is about to end by the first")
	}
}

// A hang-up ends natkit, unless nohup(1) has it ignored.
func TestHangUp(t *testing.T) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP) // not ignored, whatever runs the tests (nohup)
	if !slices.Contains(ending(), os.Signal(unix.SIGHUP)) {
		t.Error("a hang-up does not end natkit")
	}
	signal.Ignore(unix.SIGHUP)
	defer signal.Reset(unix.SIGHUP)
	if slices.Contains(ending(), os.Signal(unix.SIGHUP)) {
		t.Error("an ignored hang-up ends natkit")
	}
}
