package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/natkit/natkit/tools/vm/plan"
)

// modules that are not loaded automatically: their sysctls, and the device of tun, must
// exist before they are used.
var modules = []string{"nf_conntrack", "nf_conntrack_netlink", "br_netfilter", "tun"}

// sysctls are what a machine that does NAT has. The kernel's own maximum follows
// from the memory, and is too low for the tests.
var sysctls = []plan.Sysctl{
	{Name: "net/netfilter/nf_conntrack_buckets", Value: "262144"},
	{Name: "net/netfilter/nf_conntrack_max", Value: "262144"},
}

// conduct builds, boots and follows.
func (o order) conduct(ctx context.Context, sel selection) (int, error) {
	kernel, err := findKernel(o.kernelDir)
	if err == nil {
		_, err = findQemu()
	}
	if err != nil {
		return exitVM, err
	}
	began := time.Now()
	a, jobs, packages, err := o.prepare(ctx, kernel, sel)
	if ctx.Err() != nil {
		return exitSignal, errors.New("stopped by a signal")
	}
	if err != nil {
		return exitVM, err
	}
	note("built in %.1f s", time.Since(began).Seconds())
	for i, accel := range o.accelerators() {
		code, err := accel.crashedOnce(func() (int, error) {
			return o.boot(ctx, kernel, accel, a, jobs, packages)
		})
		if errors.Is(err, errNoStart) && i < len(o.accelerators())-1 {
			note("with %s %v: emulating the processor instead", accel.name, err)
			continue
		}
		return code, err
	}
	return exitVM, errors.New("no accelerator left")
}

// crashedOnce boots an emulated machine again whose kernel crashed: qemu 7.2 breaks a
// processor that it emulates now and then (a double fault, with registers that no kernel
// has). A crash that the jobs cause comes again.
func (a accelerator) crashedOnce(boot func() (int, error)) (int, error) {
	code, err := boot()
	if a.name != tcg.name || !errors.Is(err, errCrashed) {
		return code, err
	}
	note("%v", err)
	note("the emulated processor may have failed, not the kernel: once more")
	return boot()
}

// prepare builds the programs and puts the VM's files together, but for the plan.
// packages are the import paths of the jobs, where these are tests.
func (o order) prepare(ctx context.Context, kernel kernelFiles, sel selection) (a archive, jobs []plan.Job, packages []string, err error) {
	a = archive{}
	initProgram, natkit := filepath.Join(o.work, "init"), filepath.Join(o.work, "natkit")
	if err = o.tree.build(ctx, "./tools/vm/init", initProgram); err != nil {
		return
	}
	if err = o.tree.build(ctx, "./cmd/natkit", natkit); err != nil {
		return
	}
	if sel.command == "" {
		jobs, packages, err = o.addTests(ctx, a, sel)
	} else {
		jobs = []plan.Job{{Name: sel.command, Dir: o.tree.root, Argv: []string{"/bin/bash", "-c", sel.command}}}
	}
	if err != nil {
		return
	}
	err = errors.Join(a.addSystem(initProgram), a.addKernel(kernel), a.addPrograms(), a.addSources(o.tree.root), a.addProgram("/usr/local/bin/natkit", natkit))
	return
}

// addProgram adds one that was built.
func (a archive) addProgram(name, from string) error {
	info, err := os.Stat(from)
	if err == nil {
		a.addFile(name, from, info)
	}
	return err
}

// addTests compiles the selected tests and makes a job of each package.
func (o order) addTests(ctx context.Context, a archive, sel selection) (jobs []plan.Job, packages []string, err error) {
	all, err := o.tree.list(ctx, sel.packages)
	if err != nil {
		return nil, nil, err
	}
	list := choose(all, len(sel.packages) > 0)
	if len(sel.packages) == 0 {
		list = halfOf(list, o.half)
		tellLeftOut(os.Stderr)
	}
	binaries, err := o.tree.compileTests(ctx, list, o.work)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range list {
		inVM := "/vm/tests/" + strings.ReplaceAll(c.pkg.short(), "/", "-") + ".test"
		if err := a.addProgram(inVM, binaries[c.pkg.ImportPath]); err != nil {
			return nil, nil, err
		}
		argv := []string{inVM, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + o.packageTimeout().String()}
		if len(c.skip) > 0 {
			argv = append(argv, "-test.skip="+skipPattern(c.skip))
		}
		jobs = append(jobs, plan.Job{Name: c.pkg.short(), Dir: c.pkg.Dir, Argv: append(argv, sel.testFlags...)})
		packages = append(packages, c.pkg.ImportPath)
	}
	return jobs, packages, nil
}

// packageTimeout ends a package's tests with Go's stacks of what hangs, before the
// VM is ended.
func (o order) packageTimeout() time.Duration { return o.timeout * 8 / 10 }

func (o order) boot(ctx context.Context, kernel kernelFiles, accel accelerator, a archive, jobs []plan.Job, packages []string) (int, error) {
	p := plan.Plan{Modules: modules, Sysctls: sysctls, Jobs: withEnv(jobs, environment(accel))}
	m := machine{kernel: kernel.image, initrd: filepath.Join(o.work, "initrd"), memoryMiB: o.memoryMiB, cpus: 2, accel: accel, verbose: o.verbose}
	if err := a.addPlan(p); err != nil {
		return exitVM, err
	}
	size, err := a.save(m.initrd)
	if err != nil {
		return exitVM, fmt.Errorf("write the initramfs: %w", err)
	}
	note("booting Linux %s: %s, %d CPUs, %d MiB, initramfs of %d MB", kernel.release, accel.name, m.cpus, m.memoryMiB, size/1e6)
	running, err := m.start(ctx)
	if err != nil {
		return exitVM, err
	}
	s := &session{plan: p, running: running, limit: o.timeout, notes: os.Stderr}
	if len(packages) == 0 {
		s.sink = plainSink{os.Stdout}
		return o.finish(ctx, s)
	}
	return o.summed(ctx, s, packages)
}

// summed follows tests, through testsum.
func (o order) summed(ctx context.Context, s *session, packages []string) (int, error) {
	program := filepath.Join(o.work, "testsum")
	if err := o.tree.build(ctx, "./tools/testsum", program); err != nil {
		s.running.stop(0)
		return exitVM, err
	}
	sum, err := startSummary(program, o.verbose)
	if err != nil {
		s.running.stop(0)
		return exitVM, err
	}
	tests := &testSink{tree: o.tree, packages: packages, events: sum.events}
	s.sink = tests
	code, err := o.finish(ctx, s)
	if errors.Is(err, errNoStart) { // nothing ran
		_ = sum.cmd.Process.Kill()
		_ = sum.end()
		return code, err
	}
	err = errors.Join(tests.close(), sum.end(), err)
	if err != nil && code == 0 {
		code = exitVM
	}
	return code, err
}

func (o order) finish(ctx context.Context, s *session) (int, error) {
	code, err := s.follow(ctx)
	patience := time.Duration(0)
	if err == nil {
		patience = 5 * time.Second
	}
	s.running.stop(patience)
	return code, err
}

// environment is that of `sudo make test`, and what testutil wants to know of the VM.
func environment(accel accelerator) []string {
	return []string{
		"PATH=" + vmPath, "HOME=/root", "TERM=dumb", "LANG=C.UTF-8", "USER=root", "CI=true", "NO_COLOR=1",
		"NATKIT_NO_SKIP=1", "NATKIT_VM=1", fmt.Sprintf("NATKIT_TIME_FACTOR=%d", accel.slower),
	}
}

func withEnv(jobs []plan.Job, env []string) []plan.Job {
	var with []plan.Job
	for _, j := range jobs {
		j.Env = env
		with = append(with, j)
	}
	return with
}
