package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/netns"
)

const (
	// programLimit bounds the run of a program.
	programLimit = 5 * time.Minute
	// programGrace is how long a program may take to clean up after it has received
	// the signal to end.
	programGrace = 20 * time.Second
)

// Program is a command to run as a subject, or for one.
type Program struct {
	Args []string
	// Stdin is what it reads.
	Stdin string
	// Accept are exit codes besides 0 that mean success.
	Accept []int
	// Netns is where the program starts; nil is the namespace of this process.
	Netns *netns.Handle
}

// Usage is what one run of a program took.
type Usage struct {
	Seconds float64
	// CPUSeconds is the time that all CPUs together were not idle meanwhile: the
	// program's, the kernel's and all other processes'.
	CPUSeconds float64
	// OwnSeconds is the CPU time of the program and of those it waited for.
	OwnSeconds float64
	// PeakBytes is the greatest memory of the program and of those it waited for.
	PeakBytes int64
}

// Run runs the program to its end. Interrupted, it gets SIGTERM and time to clean
// up.
func (p Program) Run(ctx context.Context) (stdout []byte, u Usage, err error) {
	err = p.Netns.Do(func() error { // the program starts in the thread's namespace
		stdout, u, err = p.run(ctx)
		return err
	})
	return stdout, u, err
}

func (p Program) run(ctx context.Context) ([]byte, Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, programLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = programGrace
	if p.Stdin != "" {
		cmd.Stdin = strings.NewReader(p.Stdin)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	before, err := machineBusy()
	if err != nil {
		return nil, Usage{}, err
	}
	start := time.Now()
	err = cmd.Run()
	u := Usage{Seconds: time.Since(start).Seconds()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil, Usage{}, fmt.Errorf("%s: %w after %.0f s", strings.Join(p.Args, " "), ctx.Err(), u.Seconds)
	case errors.As(err, &exit) && slices.Contains(p.Accept, exit.ExitCode()):
	case err != nil:
		return nil, Usage{}, fmt.Errorf("%s: %w\n%s%s", strings.Join(p.Args, " "), err, &stdout, &stderr)
	}
	after, err := machineBusy()
	u.CPUSeconds = after - before
	u.OwnSeconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if r, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		u.PeakBytes = r.Maxrss * 1024 // getrusage(2): in KiB
	}
	return stdout.Bytes(), u, err
}

// machineBusy is the time in seconds that all CPUs together have not been idle.
func machineBusy() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(text))
}

// parseBusy adds up /proc/stat's first line without idle and iowait (proc(5));
// guest time is contained in user time.
func parseBusy(text string) (float64, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read /proc/stat: unexpected first line %q", line)
	}
	ticks := 0.0
	for _, column := range []int{1, 2, 3, 6, 7} { // user nice system irq softirq
		n, err := strconv.ParseFloat(fields[column], 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		ticks += n
	}
	return ticks / 100, nil // USER_HZ is 100 on every Linux
}
