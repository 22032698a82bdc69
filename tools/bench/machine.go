package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/units"
)

// Machine is where figures were taken.
type Machine struct {
	CPU          string `json:"cpu_model"`
	CPUs         int    `json:"cpus"`
	MemoryBytes  uint64 `json:"memory_bytes"`
	Kernel       string `json:"kernel"`
	Distribution string `json:"distribution"`
	// Load1m is the load average of the minute before the first run.
	Load1m float64 `json:"load_1m"`
	// Busy lists other activity on the machine.
	Busy []string `json:"busy,omitempty"`
}

// busyLoad is the load average per CPU from which on a machine is not quiet.
const busyLoad = 0.5

func (m Machine) String() string {
	return fmt.Sprintf("%s, %s, %s, %s, Linux %s",
		m.CPU, units.Plural(m.CPUs, "CPU", "CPUs"), units.Bytes(m.MemoryBytes), m.Distribution, m.Kernel)
}

// Describe returns the time, the commit of the source in the working directory, and the
// machine.
func Describe(ctx context.Context) (Origin, error) {
	m, err := readMachine()
	return Origin{Date: time.Now().UTC().Truncate(time.Second), Commit: commit(ctx), Machine: m}, err
}

func readMachine() (Machine, error) {
	m := Machine{CPU: runtime.GOARCH, CPUs: runtime.NumCPU(), Distribution: "unknown distribution"}
	var info unix.Sysinfo_t
	var name unix.Utsname
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("read the machine's memory and load: sysinfo: %w", err)
	}
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("read the kernel's release: uname: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	m.MemoryBytes = uint64(info.Totalram) * uint64(info.Unit)
	m.Load1m = significant(float64(info.Loads[0]) / (1 << 16)) // SI_LOAD_SHIFT
	// Not every architecture names its CPU, nor every system itself.
	if model := field("/proc/cpuinfo", "model name", ":"); model != "" {
		m.CPU = model
	}
	if name := field("/etc/os-release", "PRETTY_NAME", "="); name != "" {
		m.Distribution = strings.Trim(name, `"`)
	}
	m.Busy = busy(m.Load1m, m.CPUs)
	return m, nil
}

// field is the first value of a name in a file of lines; empty where there is none.
func field(path, name, separator string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, separator); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// busy returns what may disturb the runs: load, and labs.
func busy(load float64, cpus int) []string {
	var found []string
	if load > busyLoad*float64(cpus) {
		found = append(found, fmt.Sprintf("load average %.2f with %s", load, units.Plural(cpus, "CPU", "CPUs")))
	}
	dir := os.Getenv("NATKIT_RUN_DIR")
	up, _ := build.States(dir) // what cannot be read is not up
	for _, s := range up {
		found = append(found, "lab "+s.Name+" is up")
	}
	lock, err := build.Lock(dir)
	switch {
	case err == nil:
		lock.Close()
	case !errors.Is(err, fs.ErrPermission): // without permission to lock it is not known
		found = append(found, err.Error())
	}
	return found
}

// commit is that of the working directory, and says where the source differs from
// it, by new files too; documents may, as figures are written into them.
func commit(ctx context.Context) string {
	git := func(args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*"}, args...)...).Output()
	}
	head, err := git("rev-parse", "HEAD")
	if err != nil {
		return "unknown" // an archive of the source, or no git
	}
	text := string(bytes.TrimSpace(head))
	if changed, err := git("status", "--porcelain", "--untracked-files=all", "--", ":/", ":(top,exclude)docs"); err != nil || len(changed) > 0 {
		text += "-dirty"
	}
	return text
}

// versions runs commands that print a program's version.
func versions(ctx context.Context, commands [][]string) ([]string, error) {
	all := []string{}
	for _, args := range commands {
		// wrk exits with 1 after its version; a missing program has no output.
		out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
		line, _, _ := strings.Cut(string(out), "\n")
		if line == "" {
			return nil, fmt.Errorf("%s: no version: %w", strings.Join(args, " "), err)
		}
		all = append(all, programVersion(line))
	}
	return all, nil
}

// programVersion cuts a program's first line down to name and version.
func programVersion(line string) string {
	line = strings.NewReplacer("nginx version: ", "", "This is ", "", " -- version", "").Replace(line)
	for _, end := range []string{" [", " <", " ("} {
		line, _, _ = strings.Cut(line, end)
	}
	return line
}
