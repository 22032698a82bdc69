package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// machine is the VM as qemu makes it: two processors, no disk, no network card.
type machine struct {
	kernel, initrd string
	memoryMiB      int
	cpus           int
	accel          accelerator
	verbose        bool
}

// accelerator is how qemu runs the guest's instructions.
type accelerator struct {
	name string
	args []string
	// slower is the factor by which tests wait longer (testutil.Patience). Emulated,
	// the tests take 2 to 5 times as long as on the host.
	slower int
	// kernel is what the kernel is started with besides kernelLine.
	kernel string
}

var (
	kvm = accelerator{"kvm", []string{"-accel", "kvm", "-cpu", "host"}, 2, ""}
	// One thread for both processors: with one for each, the emulator runs code that
	// the kernel has just patched on the other (static keys, as when the first rule is
	// hooked in while packets pass), and the kernel panics: "Oops: int3".
	// The TSC is the host's, and how fast it is the kernel measures while it starts: on a
	// busy host wrongly by more than ten times, and with it all its time. The HPET is given.
	tcg = accelerator{"tcg", []string{"-accel", "tcg,thread=single", "-cpu", "max"}, 5, " clocksource=hpet"}
)

// kernelLine is what the kernel is started with. panic=-1 starts it again at once
// when it panics, which ends qemu; an oops is a panic here. Of the others each
// spares an emulated processor work that no test is about: mitigations of
// processor faults, cleared memory, audit records, grace periods of RCU that are
// waited for in turn when namespaces go.
const kernelLine = "console=ttyS0 panic=-1 oops=panic mitigations=off init_on_alloc=0 audit=0 apparmor=0 " +
	"random.trust_cpu=on rcupdate.rcu_expedited=1 tsc=nowatchdog printk.devkmsg=on ipv6.disable=0"

func (m machine) args() []string {
	args := append([]string{}, m.accel.args...)
	return append(args,
		"-m", fmt.Sprint(m.memoryMiB), "-smp", fmt.Sprint(m.cpus),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "file,id=events,path=/dev/fd/3", "-serial", "chardev:events",
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", kernelLine+m.accel.kernel)
}

// running is a started machine.
type running struct {
	cmd     *exec.Cmd
	events  *os.File
	console *console
	started time.Time
	ended   chan struct{} // closed when qemu has ended and its console is read
	err     error         // of qemu; after ended
}

func findQemu() (string, error) {
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", errors.New("start the VM: qemu-system-x86_64 is not installed ('scripts/setup vm' as root, or: apt-get install qemu-system-x86)")
	}
	return program, nil
}

// start starts qemu, which dies with ctx, and with the calling thread.
func (m machine) start(ctx context.Context) (*running, error) {
	program, err := findQemu()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the VM: %w", err)
	}
	defer write.Close()
	r := &running{events: read, console: &console{verbose: m.verbose}, ended: make(chan struct{})}
	r.cmd = exec.CommandContext(ctx, program, m.args()...)
	r.cmd.ExtraFiles = []*os.File{write}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	r.cmd.Stdout, r.cmd.Stderr = r.console, r.console.errors()
	r.cmd.WaitDelay = 5 * time.Second
	r.started = time.Now()
	if err := r.cmd.Start(); err != nil {
		read.Close()
		return nil, fmt.Errorf("start the VM: %w", err)
	}
	go func() {
		defer close(r.ended)
		r.err = r.cmd.Wait()
	}()
	return r, nil
}

// stop kills qemu if it has not ended on its own within patience, and waits for it.
func (r *running) stop(patience time.Duration) {
	select {
	case <-r.ended:
	case <-time.After(patience):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
	r.events.Close()
}

// console keeps the last lines of the kernel's console, and those of qemu itself.
type console struct {
	mu      sync.Mutex
	verbose bool
	part    string
	last    []string
	crash   string          // the first line that reports a failure of the kernel
	own     strings.Builder // qemu's messages
}

const keptLines = 40

// crashLine are the kernel's words for its own failures.
var crashLine = regexp.MustCompile(`Kernel panic|Oops:|BUG:|general protection fault|rcu_.*detected stalls|soft lockup|Out of memory`)

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := c.part + strings.ReplaceAll(string(p), "\r", "")
	lines := strings.Split(text, "\n")
	c.part = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		if c.verbose {
			fmt.Fprintln(os.Stderr, "console: "+line)
		}
		c.last = append(c.last, line)
		if c.crash == "" && crashLine.MatchString(line) {
			c.crash = line
		}
	}
	c.last = c.last[max(0, len(c.last)-keptLines):]
	return len(p), nil
}

// errors returns the writer for qemu's own messages.
func (c *console) errors() io.Writer { return qemuErrors{c} }

type qemuErrors struct{ c *console }

func (q qemuErrors) Write(p []byte) (int, error) {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.c.own.Write(p)
}

// kernelSpoke reports whether the kernel has written anything yet.
func (c *console) kernelSpoke() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.last) > 0
}

// qemuSaid is the first line of qemu's own messages.
func (c *console) qemuSaid() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	line, _, _ := strings.Cut(c.own.String(), "\n")
	return line
}

// verdict returns the kernel's last message about its end.
func (c *console) verdict() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crash == "" {
		return "its kernel stopped or started again without a word"
	}
	return strings.TrimSpace(c.crash)
}

// tail returns the last output of the console.
func (c *console) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var text strings.Builder
	for _, line := range append(c.last, c.part) {
		if line != "" {
			text.WriteString("    " + line + "\n")
		}
	}
	return text.String()
}

// readLines gives the lines of r until it ends.
func readLines(r io.Reader) <-chan []byte {
	lines := make(chan []byte)
	go func() {
		defer close(lines)
		in := bufio.NewReaderSize(r, 64<<10)
		for {
			line, err := in.ReadBytes('\n')
			if len(line) > 0 {
				lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	return lines
}
