package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/tools/vm/plan"
)

// outputAfterEnd is how long a job's output is read after its end.
const outputAfterEnd = 2 * time.Second

// work carries out the plan. Its exit code is 0 if everything was reported to the
// conductor, failures of jobs included.
func work() int {
	t, err := newSender()
	if err != nil {
		fmt.Fprintf(os.Stderr, "init: %v\n", err)
		return 1
	}
	p, err := readPlan()
	if err == nil {
		err = setUp(t, p)
	}
	if err != nil {
		t.send(plan.Event{Kind: plan.Trouble, Text: []byte(err.Error())})
	} else {
		t.send(plan.Event{Kind: plan.Ready, Text: []byte(release())})
		for i, job := range p.Jobs {
			t.run(i, job)
		}
	}
	t.send(plan.Event{Kind: plan.Done})
	return t.close()
}

func readPlan() (plan.Plan, error) {
	var p plan.Plan
	text, err := os.ReadFile(plan.Path)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	return p, nil
}

// setUp does what a distribution's start-up does. A module that this kernel does not
// have, or a value that it does not accept, is reported and no reason to stop: the tests
// declare what they need.
func setUp(t *sender, p plan.Plan) error {
	if err := unix.Sethostname([]byte("natkit-vm")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set up lo: %w", err)
	}
	for _, m := range p.Modules {
		if err := load(m); err != nil {
			t.send(plan.Event{Kind: plan.Output, Text: []byte("VM: " + err.Error() + "\n")})
		}
	}
	for _, s := range p.Sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", s.Name), []byte(s.Value), 0); err != nil {
			t.send(plan.Event{Kind: plan.Output, Text: []byte("VM: " + err.Error() + "\n")})
		}
	}
	return nil
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(u.Release[:])
}

// sender sends events. Jobs may leave processes behind that still write, so it has
// a lock.
type sender struct {
	mu   sync.Mutex
	port *os.File
	err  error
}

// newSender opens the port and switches off what a terminal would change in bytes.
func newSender() (*sender, error) {
	port, err := os.OpenFile(plan.Port, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	attr, err := unix.IoctlGetTermios(int(port.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the settings of %s: %w", plan.Port, err)
	}
	attr.Oflag &^= unix.OPOST
	attr.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	attr.Cflag = attr.Cflag&^unix.CBAUD | unix.B4000000
	if err := unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, attr); err != nil {
		return nil, fmt.Errorf("set up %s: %w", plan.Port, err)
	}
	return &sender{port: port}, nil
}

func (t *sender) send(e plan.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err == nil {
		e.Uptime = float64(now.Nano()) / 1e9
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = t.port.Write(append(line, '\n'))
	}
	t.err = errors.Join(t.err, err)
}

// close waits until all has left the port.
func (t *sender) close() int {
	const drain = 1 // TCSBRK with an argument is tcdrain(3) (ioctl_tty(2))
	err := errors.Join(t.err, unix.IoctlSetInt(int(t.port.Fd()), unix.TCSBRK, drain))
	if err != nil {
		fmt.Fprintf(os.Stderr, "init: write to %s: %v\n", plan.Port, err)
		return 1
	}
	return 0
}

func (t *sender) run(i int, job plan.Job) {
	t.send(plan.Event{Kind: plan.Started, Job: i})
	code, err := t.runProgram(i, job)
	if err != nil {
		t.send(plan.Event{Kind: plan.Output, Job: i, Text: []byte("VM: " + err.Error() + "\n")})
	}
	t.send(plan.Event{Kind: plan.Ended, Job: i, Code: code})
}

// runProgram hands the output on as it comes. It waits for the program, not for
// others that inherited its output.
func (t *sender) runProgram(i int, job plan.Job) (int, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 126, err
	}
	cmd := exec.Command(job.Argv[0], job.Argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = job.Dir, job.Env, write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		read.Close()
		return 127, fmt.Errorf("start %s: %w", job.Name, err)
	}
	copied := make(chan struct{})
	go func() { defer close(copied); t.copy(i, read) }()
	err = cmd.Wait()
	t.lastWords(read, copied)
	return exitCode(cmd.ProcessState), ignoreExit(err)
}

func (t *sender) copy(i int, r io.Reader) {
	buf := make([]byte, 8<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			t.send(plan.Event{Kind: plan.Output, Job: i, Text: buf[:n]})
		}
		if err != nil {
			return
		}
	}
}

// lastWords waits for the output's end, but not for long where another process
// keeps the pipe open.
func (t *sender) lastWords(read *os.File, copied <-chan struct{}) {
	defer read.Close()
	_ = read.SetReadDeadline(time.Now().Add(outputAfterEnd))
	<-copied
}

func exitCode(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}

// ignoreExit drops the error of a failed program: its exit code reports it.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
