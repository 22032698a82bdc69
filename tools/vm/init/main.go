// Command init is process 1 of a test VM: it sets the machine up, runs the jobs of
// its plan, reports their outcome over the second serial port, and switches the
// machine off. Called as modprobe it loads a kernel module, for the kernel too.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// workerEnv marks the process that does the work. Process 1 itself only waits for
// children, its own and those that others left behind.
const workerEnv = "NATKIT_VM_WORKER"

func main() {
	switch {
	case filepath.Base(os.Args[0]) == "modprobe":
		os.Exit(modprobe(os.Args[1:]))
	case os.Getenv(workerEnv) != "":
		os.Exit(work())
	case os.Getpid() == 1:
		first()
	default:
		fmt.Fprintln(os.Stderr, "init: this is the first process of a test VM ('make test-vm')")
		os.Exit(2)
	}
}

// first never returns: the kernel panics when process 1 ends.
func first() {
	err := mountAll()
	if err == nil {
		err = superviseWorker()
	}
	if err != nil {
		fmt.Printf("init: %v\n", err)
	}
	unix.Sync()
	// qemu is started with an option to exit instead of rebooting.
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		fmt.Printf("init: switch the VM off: %v\n", err)
	}
	select {}
}

func superviseWorker() error {
	p, err := os.StartProcess("/proc/self/exe", []string{"init"}, &os.ProcAttr{
		Dir: "/", Env: []string{workerEnv + "=1"}, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the worker: %w", err)
		case pid == p.Pid && status.ExitStatus() != 0:
			return fmt.Errorf("the worker ended with %v", status)
		case pid == p.Pid:
			return nil
		}
	}
}
