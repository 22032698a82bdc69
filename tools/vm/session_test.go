package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/natkit/natkit/tools/vm/plan"
)

// follow feeds a session with what a VM writes, and ends the VM unless it goes on.
func follow(t *testing.T, shown string, limit time.Duration, goesOn bool, events ...plan.Event) (code int, out string, err error) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{events: read, console: &console{}, started: time.Now(), ended: make(chan struct{})}
	t.Cleanup(func() { read.Close() })
	_, _ = r.console.Write([]byte(shown))
	var stdout bytes.Buffer
	s := &session{plan: plan.Plan{Jobs: []plan.Job{{Name: "first"}, {Name: "second"}}}, sink: plainSink{&stdout}, running: r, limit: limit, notes: io.Discard}
	for _, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := write.Write(append(line, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	if goesOn {
		t.Cleanup(func() { write.Close() })
	} else {
		write.Close()
		close(r.ended)
	}
	code, err = s.follow(t.Context())
	return code, stdout.String(), err
}

var (
	ready  = plan.Event{Kind: plan.Ready, Text: []byte("6.1.0-test"), Uptime: 1.5}
	begun  = plan.Event{Kind: plan.Started}
	said   = plan.Event{Kind: plan.Output, Text: []byte("hello\n"), Uptime: 2}
	passed = plan.Event{Kind: plan.Ended}
	done   = plan.Event{Kind: plan.Done}
)

func TestSession(t *testing.T) {
	const panicked = "[    2.0] Linux\n[    3.0] Kernel panic - not syncing: sysrq\n[    3.1]  more\n"
	for _, tt := range []struct {
		name    string
		console string
		goesOn  bool
		events  []plan.Event
		code    int
		err     string // parts of it, by "…"; empty for none
		out     string
	}{
		{"passes", "Linux\n", true, []plan.Event{ready, begun, said, passed, done}, 0, "", "hello\n"},
		{"the first failure counts", "Linux\n", true, []plan.Event{ready, begun, {Kind: plan.Ended, Code: 3}, {Kind: plan.Started, Job: 1}, {Kind: plan.Ended, Job: 1, Code: 1}, done}, 3, "", ""},
		{"panics", panicked, false, []plan.Event{ready, begun, said}, exitVM, "without an exit code during first: [    3.0] Kernel panic - not syncing: sysrq…more", "hello\n"},
		{"panics at once", panicked, false, nil, exitVM, "while it started…Kernel panic", ""},
		{"ends between jobs", "Linux\n", false, []plan.Event{ready, begun, passed}, exitVM, "without a word", ""},
		{"hangs", "Linux\nlast words\n", true, []plan.Event{ready, begun, said}, exitTimeout, "stopped after 50ms (TIMEOUT= gives more time) during first…last words", "hello\n"},
		{"trouble", "Linux\n", true, []plan.Event{{Kind: plan.Trouble, Text: []byte("no lo")}, done}, exitVM, "set up the VM: no lo", ""},
		{"never starts", "", false, nil, exitVM, "the kernel did not start: qemu ended", ""},
		{"unknown job", "Linux\n", true, []plan.Event{ready, {Kind: plan.Output, Job: 7}}, exitVM, "job 7", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, err := follow(t, tt.console, 50*time.Millisecond, tt.goesOn, tt.events...)
			if code != tt.code || (err == nil) != (tt.err == "") || out != tt.out {
				t.Fatalf("code %d, error %v, output %q", code, err, out)
			}
			for part := range strings.SplitSeq(tt.err, "…") {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q: %v", part, err)
				}
			}
		})
	}
}

func TestSessionEndsWithItsContext(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &session{running: &running{events: read, console: &console{}}, limit: time.Minute, notes: io.Discard}
	if code, err := s.follow(ctx); code != exitSignal || err == nil {
		t.Errorf("%d %v", code, err)
	}
}

// TestNotEvents: a firmware's output on the port is passed on, and is no failure.
func TestNotEvents(t *testing.T) {
	var notes bytes.Buffer
	s := &session{notes: &notes, sink: plainSink{io.Discard}}
	if err := s.event([]byte("\x1b[2JSeaBIOS\n")); err != nil || !strings.Contains(notes.String(), "SeaBIOS") {
		t.Errorf("%v %q", err, notes.String())
	}
}

func TestConsoleKeepsTheEnd(t *testing.T) {
	c := &console{}
	for range 100 {
		_, _ = c.Write([]byte("line\r\n"))
	}
	_, _ = c.Write([]byte("la"))
	_, _ = c.Write([]byte("st\npart"))
	tail := c.tail()
	if n := strings.Count(tail, "\n"); n != keptLines+1 || !strings.HasSuffix(tail, "    last\n    part\n") {
		t.Errorf("%d lines: %q", n, tail)
	}
	if c.verdict() != "its kernel stopped or started again without a word" {
		t.Errorf("verdict %q", c.verdict())
	}
}

// TestCrashedOnce: only an emulated machine gets a second chance, and only one.
func TestCrashedOnce(t *testing.T) {
	crash := fmt.Errorf("%w: double fault", errCrashed)
	for name, tt := range map[string]struct {
		accel accelerator
		errs  []error
		boots int
		err   error
	}{
		"runs":             {tcg, []error{nil}, 1, nil},
		"crashes":          {tcg, []error{crash, nil}, 2, nil},
		"crashes again":    {tcg, []error{crash, crash, nil}, 2, errCrashed},
		"crashes with KVM": {kvm, []error{crash, nil}, 1, errCrashed},
		"does not start":   {tcg, []error{errNoStart, nil}, 1, errNoStart},
	} {
		boots := 0
		_, err := tt.accel.crashedOnce(func() (int, error) {
			boots++
			return 0, tt.errs[boots-1]
		})
		if boots != tt.boots || !errors.Is(err, tt.err) {
			t.Errorf("%s: booted %d times, %v", name, boots, err)
		}
	}
}
