// Command vm boots another kernel in qemu with an initramfs of this checkout's
// tests, and ends with their exit code. scripts/test-vm fetches the kernel and
// calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// order is what to do, from flags.
type order struct {
	tree      tree
	kernelDir string
	work      string // directory for what is built
	run       string
	half      int // 1 or 2: of the default list; 0: all
	timeout   time.Duration
	accel     string
	memoryMiB int
	verbose   bool
}

func main() {
	// qemu dies with the thread that started it; this one lives as long as main.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "vm: %v\n", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	o, err := parseFlags(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return exitUsage, err
	}
	sel, err := parseRun(o.run)
	if err != nil {
		return exitUsage, err
	}
	o.work, err = os.MkdirTemp("", "natkit-vm-")
	if err != nil {
		return exitVM, err
	}
	defer os.RemoveAll(o.work)
	return o.conduct(ctx, sel)
}

func parseFlags(args []string) (order, error) {
	var o order
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	flags.StringVar(&o.tree.root, "root", ".", "the checkout")
	flags.StringVar(&o.kernelDir, "kernel", "", "directory of an unpacked kernel package")
	flags.StringVar(&o.run, "run", "", "packages with flags of go test, or a command line; empty for the default list")
	flags.IntVar(&o.half, "half", 0, "1 or 2: every second package of the default list; 0: all")
	timeout := flags.String("timeout", "20m", "end after this time")
	flags.StringVar(&o.accel, "accel", "auto", "auto, kvm or tcg (emulation)")
	flags.IntVar(&o.memoryMiB, "memory", 2048, "MiB of the VM")
	flags.BoolVar(&o.verbose, "v", false, "show the console, and the output of tests that pass")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.timeout, err = parseTimeout(*timeout); err != nil {
		return o, err
	}
	if o.tree.root, err = filepath.Abs(o.tree.root); err != nil {
		return o, err
	}
	if o.half < 0 || o.half > 2 {
		return o, fmt.Errorf("HALF=%d: not one of 1, 2", o.half)
	}
	if o.kernelDir == "" || flags.NArg() > 0 {
		return o, errors.New("usage: vm -kernel DIR [-run RUN] … (scripts/test-vm calls it)")
	}
	if o.accel != "auto" && o.accel != kvm.name && o.accel != tcg.name {
		return o, fmt.Errorf("ACCEL=%s: not one of auto, kvm, tcg", o.accel)
	}
	return o, nil
}

// accelerators are those to try, in order. That KVM is there does not mean that it
// works: in a VM it may be half of it.
func (o order) accelerators() []accelerator {
	switch o.accel {
	case kvm.name:
		return []accelerator{kvm}
	case tcg.name:
		return []accelerator{tcg}
	}
	if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
		return []accelerator{kvm, tcg}
	}
	return []accelerator{tcg}
}
