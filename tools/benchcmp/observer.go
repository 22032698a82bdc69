package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// observer looks on, by eBPF, while packets pass: a program with arguments or, with
// attach, this process. With neither there is none.
type observer struct {
	name   string
	args   []string
	attach func() (io.Closer, error)
	// counted is that attach starts a process, on a terminal, whose work is counted.
	counted bool
}

// watch is an observer at work.
type watch struct {
	attached io.Closer // in this process; what follows is of another one
	cmd      *exec.Cmd
	stderr   *strings.Builder
	programs []*ebpf.Program
	ended    chan error
	// took is the time from its start until its programs were loaded, or it was attached.
	took time.Duration
}

// observerLimit bounds the start and the end of an observer.
const observerLimit = 20 * time.Second

// start returns when the observer's programs are loaded.
func (o observer) start(ctx context.Context) (*watch, error) {
	if o.attach != nil {
		began := time.Now()
		attached, err := o.attach()
		w := &watch{attached: attached, stderr: &strings.Builder{}, took: time.Since(began)}
		if t, ok := attached.(*onTerminal); ok && err == nil {
			w.cmd = t.cmd
		}
		return w, err
	}
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
	if err := w.begin(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.name, err)
	}
	if err := w.await(before); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: %s", o.name, err, strings.TrimSpace(w.stderr.String())), w.stop())
	}
	w.took = time.Since(began)
	return w, nil
}

// begin starts the program from a thread that lives as long as it: with the thread
// the kernel would end it (PR_SET_PDEATHSIG).
func (w *watch) begin() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := w.cmd.Start()
		started <- err
		if err == nil {
			w.ended <- w.cmd.Wait()
		}
	}()
	return <-started
}

// await polls for programs that are newer than an ID, and then for no more to come.
func (w *watch) await(before ebpf.ProgramID) error {
	for deadline := time.Now().Add(observerLimit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-w.ended:
			w.ended <- err
			return fmt.Errorf("ended early: %v", err)
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

// gather opens every program that is newer than an ID, until ctx is done.
func (w *watch) gather(ctx context.Context, newest ebpf.ProgramID) error {
	for ctx.Err() == nil {
		programs, err := programsAfter(newest)
		w.programs = append(w.programs, programs...)
		if err != nil {
			return err
		}
		for _, p := range programs {
			info, err := p.Info()
			if err != nil {
				return fmt.Errorf("read %v: %w", p, err)
			}
			newest, _ = info.ID()
		}
		_ = wait(ctx, 20*time.Millisecond)
	}
	return nil
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
	if w.attached != nil {
		return w.attached.Close()
	}
	w.close()
	if err := w.cmd.Process.Signal(unix.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case err := <-w.ended:
		return w.ending(err)
	case <-time.After(observerLimit):
		return errors.Join(errors.New("did not end in "+observerLimit.String()), w.cmd.Process.Kill())
	}
}

// ending accepts what SIGINT makes of programs: an end without an error, or its
// exit code. One that was killed did not look on until the end.
func (w *watch) ending(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && (!exit.Exited() || exit.ExitCode() == 1) {
		return fmt.Errorf("%v: %w: %s", w.cmd.Args, err, strings.TrimSpace(w.stderr.String()))
	}
	return nil
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

// attachNothing attaches a program that does nothing where packets are dropped.
func attachNothing() (io.Closer, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "kfree_skb", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load an empty program: %w", err)
	}
	defer p.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		return nil, fmt.Errorf("attach an empty program: %w", err)
	}
	return l, nil
}
