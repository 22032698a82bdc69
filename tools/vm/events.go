package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// testSink turns the output of test binaries into the events of `go test -json`, by
// Go's own test2json, for testsum.
type testSink struct {
	tree     tree
	packages []string // import paths, by job
	events   io.Writer
	convert  *exec.Cmd
	input    io.WriteCloser
}

func (t *testSink) started(job int) error {
	// Not bound to a context: it ends with its input, and its output for a stopped run
	// is wanted.
	t.convert = exec.Command(t.tree.root+"/scripts/go", "tool", "test2json", "-t", "-p", t.packages[job])
	t.convert.Stdout, t.convert.Stderr = t.events, os.Stderr
	t.convert.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if t.input, err = t.convert.StdinPipe(); err == nil {
		err = t.convert.Start()
	}
	if err != nil {
		return fmt.Errorf("start test2json: %w", err)
	}
	return nil
}

func (t *testSink) output(_ int, text []byte) error {
	_, err := t.input.Write(text)
	return err
}

// ended reports, as `go test` does, why a binary failed that a panic or a signal ended.
func (t *testSink) ended(_, code int) error {
	if code > 1 {
		fmt.Fprintf(t.input, "FAIL\nexit status %d\n", code)
	}
	return t.close()
}

// close ends the current package; without an end in its output it failed.
func (t *testSink) close() error {
	if t.convert == nil {
		return nil
	}
	t.input.Close()
	err := t.convert.Wait()
	t.convert = nil
	if err != nil {
		return fmt.Errorf("test2json: %w", err)
	}
	return nil
}

// summary is a running testsum.
type summary struct {
	cmd    *exec.Cmd
	events io.WriteCloser
}

// startSummary starts testsum. It is not in the terminal's process group: it sums
// up also what an interrupt cut short.
func startSummary(program string, verbose bool) (*summary, error) {
	s := &summary{cmd: exec.Command(program)}
	if verbose {
		s.cmd.Args = append(s.cmd.Args, "-v")
	}
	s.cmd.Stdout, s.cmd.Stderr = os.Stdout, os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if s.events, err = s.cmd.StdinPipe(); err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start testsum: %w", err)
	}
	return s, nil
}

func (s *summary) end() error {
	s.events.Close()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("testsum: %w", err)
	}
	return nil
}
