package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/natkit/natkit/tools/vm/plan"
)

// Exit codes besides those of the tests (0 and 1) and of a command.
const (
	exitUsage   = 2
	exitTimeout = 124 // as timeout(1)
	exitVM      = 125 // the VM did not do its work
	exitSignal  = 130
)

// bootLimit is the time for a kernel to be ready. An emulated one needs 4 s.
const bootLimit = 90 * time.Second

// errNoStart: not even the kernel's first line came.
var errNoStart = errors.New("the kernel did not start")

// errCrashed: the kernel ran, and stopped without having got to the plan's end.
var errCrashed = errors.New("the VM ended without an exit code")

// session follows one run of a machine.
type session struct {
	plan    plan.Plan
	sink    sink
	running *running
	limit   time.Duration
	notes   io.Writer

	ready, done bool
	job         int
	spoke       bool // the first job has written something
	code        int
}

// sink receives the output of jobs.
type sink interface {
	started(job int) error
	output(job int, text []byte) error
	ended(job, code int) error
}

// follow reads events until the VM ends, and returns the exit code. It is an error if the
// VM did not complete the plan.
func (s *session) follow(ctx context.Context) (int, error) {
	lines := readLines(s.running.events)
	boot := time.NewTimer(bootLimit)
	limit := time.NewTimer(s.limit)
	life := time.NewTimer(lifeLimit)
	for !s.done {
		select {
		case line, more := <-lines:
			if !more {
				return s.noEnd()
			}
			if err := s.event(line); err != nil {
				return exitVM, err
			}
		case <-life.C:
			if !s.running.console.kernelSpoke() {
				return exitVM, fmt.Errorf("%w: nothing from the kernel for %v; %s", errNoStart, lifeLimit, s.running.console.qemuSaid())
			}
		case <-boot.C:
			if !s.ready {
				return exitVM, fmt.Errorf("the VM was not ready after %v; the console's last lines:\n%s", bootLimit, s.running.console.tail())
			}
		case <-limit.C:
			return exitTimeout, fmt.Errorf("stopped after %v (TIMEOUT= gives more time)%s; the console's last lines:\n%s",
				s.limit, s.during(), s.running.console.tail())
		case <-ctx.Done():
			return exitSignal, errors.New("stopped by a signal")
		}
	}
	return s.code, nil
}

// lifeLimit is the time for the kernel to write its first line.
const lifeLimit = 10 * time.Second

// noEnd: qemu closed the port without the last event.
func (s *session) noEnd() (int, error) {
	<-s.running.ended
	console := s.running.console
	if !console.kernelSpoke() {
		return exitVM, fmt.Errorf("%w: qemu ended (%v): %s", errNoStart, s.running.err, console.qemuSaid())
	}
	return exitVM, fmt.Errorf("%w%s: %s; the console's last lines:\n%s%s",
		errCrashed, s.during(), console.verdict(), console.tail(), console.qemuSaid())
}

func (s *session) during() string {
	switch {
	case !s.ready:
		return " while it started"
	case s.job < len(s.plan.Jobs):
		return " during " + s.plan.Jobs[s.job].Name
	}
	return ""
}

func (s *session) event(line []byte) error {
	var e plan.Event
	if err := json.Unmarshal(line, &e); err != nil {
		// Firmware or a dying kernel may write there too.
		fmt.Fprintf(s.notes, "vm: not an event: %q\n", bytes.TrimSpace(line))
		return nil
	}
	if e.Job < 0 || e.Job >= max(1, len(s.plan.Jobs)) {
		return fmt.Errorf("the VM reports job %d of %d", e.Job, len(s.plan.Jobs))
	}
	switch e.Kind {
	case plan.Ready:
		s.ready = true
		fmt.Fprintf(s.notes, "vm: Linux %s is up %.1f s after its start, %.1f s after qemu's\n", e.Text, e.Uptime, s.elapsed())
	case plan.Started:
		s.job = e.Job
		return s.sink.started(e.Job)
	case plan.Output:
		return s.output(e)
	case plan.Ended:
		s.judge(e.Code)
		return s.sink.ended(e.Job, e.Code)
	case plan.Trouble:
		return fmt.Errorf("set up the VM: %s", e.Text)
	case plan.Done:
		s.done = true
	}
	return nil
}

func (s *session) output(e plan.Event) error {
	if !s.ready {
		_, err := s.notes.Write(e.Text)
		return err
	}
	if !s.spoke {
		s.spoke = true
		fmt.Fprintf(s.notes, "vm: first line of the first job %.1f s after the kernel's start, %.1f s after qemu's\n", e.Uptime, s.elapsed())
	}
	return s.sink.output(e.Job, e.Text)
}

func (s *session) elapsed() float64 { return time.Since(s.running.started).Seconds() }

// judge keeps the first exit code that is not zero.
func (s *session) judge(code int) {
	if s.code == 0 {
		s.code = code
	}
}

// plainSink prints what a command writes.
type plainSink struct{ out io.Writer }

func (plainSink) started(int) error                 { return nil }
func (p plainSink) output(_ int, text []byte) error { _, err := p.out.Write(text); return err }
func (plainSink) ended(int, int) error              { return nil }

// note writes to standard error.
func note(format string, args ...any) { fmt.Fprintf(os.Stderr, "vm: "+format+"\n", args...) }
