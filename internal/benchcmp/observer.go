package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// observer is a program that looks on, by eBPF, while packets pass; without
// arguments there is none.
type observer struct {
	name string
	args []string
}

// watch is an observer at work.
type watch struct {
	cmd      *exec.Cmd
	stderr   *strings.Builder
	programs []*ebpf.Program
	ended    chan error
	// took is the time from its start until its programs were loaded.
	took time.Duration
}

// observerLimit bounds the start and the end of an observer.
const observerLimit = 20 * time.Second

// start returns when the observer's programs are loaded.
func (o observer) start(ctx context.Context) (*watch, error) {
	if len(o.args) == 0 {
		return nil, nil
	}
	before, err := newestProgram()
	if err != nil {
		return nil, err
	}
	w := &watch{cmd: exec.CommandContext(ctx, o.args[0], o.args[1:]...), stderr: &strings.Builder{}, ended: make(chan error, 1)}
	w.cmd.Stdout, w.cmd.Stderr = io.Discard, w.stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.name, err)
	}
	go func() { w.ended <- w.cmd.Wait() }()
	if err := w.await(before); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", o.name, err, strings.TrimSpace(w.stderr.String())), w.stop())
	}
	w.took = time.Since(began)
	return w, nil
}

// await polls for programs that are newer than an ID, and then for no more to come.
func (w *watch) await(before ebpf.ProgramID) error {
	for deadline := time.Now().Add(observerLimit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-w.ended:
			w.ended <- err
			return fmt.Errorf("ended by itself: %v", err)
		default:
		}
		programs, err := programsAfter(before)
		if err != nil {
			return err
		}
		settled := len(programs) > 0 && len(programs) == len(w.programs)
		w.close()
		if w.programs = programs; settled {
			return nil
		}
	}
	return errors.New("loaded no eBPF program in " + observerLimit.String())
}

func (w *watch) close() {
	for _, p := range w.programs {
		p.Close()
	}
	w.programs = nil
}

// statistics sums up the runs of its programs; BPF_ENABLE_STATS must be on.
func (w *watch) statistics() (runs uint64, spent time.Duration, err error) {
	for _, p := range w.programs {
		s, err := p.Stats()
		if err != nil {
			return 0, 0, fmt.Errorf("read the run time of %v: %w", p, err)
		}
		runs, spent = runs+s.RunCount, spent+s.Runtime
	}
	return runs, spent, nil
}

// peakBytes is the most memory that the process has had in RAM (VmHWM).
func (w *watch) peakBytes() (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	var kib float64
	if _, err := fmt.Sscanf(rest, "%f kB", &kib); !found || err != nil {
		return 0, errors.New("no VmHWM in the status of a process")
	}
	return kib * 1024, nil
}

// stop ends the observer as Ctrl-C would, and waits until its programs are gone.
func (w *watch) stop() error {
	if w == nil {
		return nil
	}
	w.close()
	if err := w.cmd.Process.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-w.ended:
		return nil
	case <-time.After(observerLimit):
		return errors.Join(errors.New("did not end in "+observerLimit.String()), w.cmd.Process.Kill())
	}
}

func newestProgram() (ebpf.ProgramID, error) {
	id := ebpf.ProgramID(0)
	for {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return id, nil
		}
		if err != nil {
			return 0, fmt.Errorf("list the eBPF programs: %w", err)
		}
		id = next
	}
}

func programsAfter(id ebpf.ProgramID) (programs []*ebpf.Program, err error) {
	for {
		id, err = ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return programs, nil
		}
		if err != nil {
			return programs, fmt.Errorf("list the eBPF programs: %w", err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // one that a loader only tried
		}
		if err != nil {
			return programs, fmt.Errorf("open eBPF program %d: %w", id, err)
		}
		programs = append(programs, p)
	}
}
