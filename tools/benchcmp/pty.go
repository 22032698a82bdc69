package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// onTerminal is a program that runs on a terminal whose output is discarded.
type onTerminal struct {
	cmd    *exec.Cmd
	master *os.File
	ended  chan error

	mu    sync.Mutex
	drawn bytes.Buffer
}

// startOnTerminal starts a program in a namespace, on a terminal of 80×24, and waits
// until it has drawn a text.
func startOnTerminal(ns *netns.Handle, shows string, args ...string) (*onTerminal, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer slave.Close()
	t := &onTerminal{cmd: exec.Command(args[0], args[1:]...), master: master, ended: make(chan error, 1)}
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = slave, slave, slave
	t.cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	// Should this process end first, the terminal hangs up.
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := ns.Do(t.cmd.Start); err != nil {
		return nil, errors.Join(err, master.Close())
	}
	go func() { t.ended <- t.cmd.Wait() }()
	go io.Copy(t, master) // ends with the terminal
	if err := t.await(shows); err != nil {
		return nil, errors.Join(fmt.Errorf("%v: %w", args, err), t.Close())
	}
	return t, nil
}

// openTerminal is pty(7) without a library of C.
func openTerminal() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			master.Close()
		}
	}()
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}

// keptOutput of a program is enough to find a text in.
const keptOutput = 64 << 10

// Write takes what the program draws.
func (t *onTerminal) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drawn.Len() > keptOutput {
		t.drawn.Reset()
	}
	return t.drawn.Write(b)
}

func (t *onTerminal) has(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Contains(t.drawn.Bytes(), []byte(text))
}

func (t *onTerminal) await(text string) error {
	for deadline := time.Now().Add(observerLimit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-t.ended:
			t.ended <- err
			return fmt.Errorf("ended early: %v", err)
		default:
		}
		if t.has(text) {
			return nil
		}
	}
	return fmt.Errorf("did not draw %q in %s", text, observerLimit)
}

// Close ends the program as a person does.
func (t *onTerminal) Close() error {
	defer t.master.Close()
	// It may have ended: then nothing is wrong with the terminal.
	_, _ = t.master.WriteString("q")
	select {
	case err := <-t.ended:
		return err
	case <-time.After(observerLimit):
		return errors.Join(errors.New("did not end in "+observerLimit.String()), t.cmd.Process.Kill())
	}
}
