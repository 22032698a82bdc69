package path

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/bpf"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -target amd64,arm64 -type event -type kind path path.bpf.c

// attachment are the links of a run.
type attachment struct {
	multi bool
	links []link.Link
	// functions are watched, skipped are those that the kernel refused.
	functions []target
	skipped   []target
	// tries bounds the search for those that kprobe.multi refuses.
	tries int
	// traceable has the names that the kernel offers; empty where they could not be read.
	traceable map[string]bool
	// progress receives status messages; it is never nil.
	progress func(string)
}

// canMulti reports whether the kernel watches many functions by one request.
func canMulti() bool { return features.HaveBPFLinkKprobeMulti() == nil }

// kprobePMU is there where the kernel has kprobes for perf_event_open(2). Without it
// package link would write to tracefs, which outlives a killed process.
const kprobePMU = "/sys/bus/event_source/devices/kprobe/type"

// checkKprobes returns an error, of one line, that names what the kernel lacks for kprobes.
func checkKprobes() error {
	if _, err := os.Stat(kprobePMU); err != nil {
		return errors.New("this kernel cannot run eBPF programs in its functions, it was built without kprobes: path needs " +
			"CONFIG_KPROBE_EVENTS and CONFIG_BPF_EVENTS and Linux 5.8 or later, and CONFIG_FPROBE and Linux 5.18 to watch many functions")
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: doNothing})
	if err != nil {
		return fmt.Errorf("load a program for kprobes: %w (needs CONFIG_BPF_EVENTS)", err)
	}
	defer p.Close()
	l, err := link.Kprobe("ip_rcv", p, nil)
	if err != nil {
		return fmt.Errorf("attach a program to a function of the kernel: %w (is /proc/sys/kernel/kprobes switched off, or the kernel locked down?)", err)
	}
	return l.Close()
}

// maxTries bounds the requests to attach a program: each function that the kernel
// refuses costs some ten of them.
const maxTries = 400

// attachAll lets a program run in each of the functions.
func (a *attachment) attachAll(p *ebpf.Program, list []target) error {
	if !a.multi {
		return a.attachEach(p, list)
	}
	return a.attachMulti(p, a.offered(list))
}

// offered leaves out what the kernel does not offer to be traced, and counts it as refused.
// Where it offers nothing all is kept.
func (a *attachment) offered(list []target) []target {
	if len(a.traceable) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(t target) bool {
		if !a.traceable[t.Name] {
			a.skipped = append(a.skipped, t)
		}
		return !a.traceable[t.Name]
	})
}

// attachMulti attaches at once; where the kernel refuses, it halves the list until those are
// alone that are refused (functions without a place for a probe).
func (a *attachment) attachMulti(p *ebpf.Program, list []target) error {
	if len(list) == 0 {
		return nil
	}
	addrs := make([]uintptr, len(list))
	for i, t := range list {
		addrs[i] = uintptr(t.Addr)
	}
	a.tries++
	l, err := link.KprobeMulti(p, link.KprobeMultiOptions{Addresses: addrs})
	switch {
	case err == nil:
		a.links = append(a.links, l)
		a.functions = append(a.functions, list...)
		return nil
	case a.tries > maxTries:
		return fmt.Errorf("watch functions: the kernel refuses too many of them: %w", err)
	case len(list) == 1:
		a.skipped = append(a.skipped, list...)
		return nil
	}
	half := len(list) / 2
	return errors.Join(a.attachMulti(p, list[:half]), a.attachMulti(p, list[half:]))
}

// attachEach attaches one after the other.
func (a *attachment) attachEach(p *ebpf.Program, list []target) error {
	for _, t := range list {
		l, err := link.Kprobe(t.Name, p, nil)
		if err != nil {
			a.skipped = append(a.skipped, t)
			continue
		}
		a.links = append(a.links, l)
		a.functions = append(a.functions, t)
		a.progress(fmt.Sprintf("attached to %d functions", len(a.functions)))
	}
	return nil
}

// Closed at once, probes wait for the same grace period of the kernel instead of one
// each, which is some 20 ms.
const closers = 32

func (a *attachment) close() error {
	links := make(chan link.Link)
	errs := make([]error, closers)
	var all sync.WaitGroup
	for i := range closers {
		all.Go(func() {
			for l := range links {
				errs[i] = errors.Join(errs[i], l.Close())
			}
		})
	}
	for _, l := range slices.Backward(a.links) {
		links <- l
	}
	close(links)
	all.Wait()
	a.links = nil
	return errors.Join(errs...)
}

var doNothing = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}

// load loads the programs into the kernel, those of path_result not.
func (t *Tracer) load(opt Options, inode, ifindex uint32) error {
	spec, err := loadPath()
	if err != nil {
		return fmt.Errorf("read the eBPF programs: %w", err)
	}
	delete(spec.Programs, pathProgPathResult)
	for name, p := range spec.Programs {
		if t.att.multi && p.Type == ebpf.Kprobe {
			p.AttachType = ebpf.AttachTraceKprobeMulti
		}
		if stepsOf[name] == 0 {
			continue
		}
		if err := bpf.Install(p, opt.Filter); err != nil {
			return fmt.Errorf("install the filter: %w", err)
		}
	}
	values := map[string]any{
		pathVarOnlyNetns: inode, pathVarOnlyIfindex: ifindex, pathVarLimit: uint64(opt.Packets),
		pathVarHasFilter: opt.Filter != nil, pathVarMulti: t.att.multi, pathVarHasReason: t.types.reasons().Carried,
	}
	if err := bpf.Prepare(spec, values); err != nil {
		return err
	}
	if t.coll, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Cache: t.types.cache}); err != nil {
		return fmt.Errorf("load the eBPF programs: %w", err)
	}
	return nil
}

// stepsOf are the programs by the argument that the skb is, from 1.
var stepsOf = map[string]int{
	pathProgPathArg1: 1, pathProgPathArg2: 2, pathProgPathArg3: 3, pathProgPathArg4: 4, pathProgPathArg5: 5,
}

// attach starts the watching. What frees and copies comes first, so that no packet
// is followed beyond its end.
func (t *Tracer) attach(s selected) error {
	if err := t.attachEnds(); err != nil {
		return err
	}
	p := t.coll.Programs
	err := errors.Join(t.att.attachAll(p[pathProgPathFreed], s.freed), t.att.attachAll(p[pathProgPathClone], s.copied))
	t.att.functions = nil // those are no steps
	for name, arg := range stepsOf {
		list := slices.DeleteFunc(slices.Clone(s.steps), func(t target) bool { return t.arg != arg })
		err = errors.Join(err, t.att.attachAll(p[name], list))
	}
	if err == nil && len(t.att.functions) == 0 {
		err = errors.New("watch functions: the kernel refuses all of them (blacklisted, or not traceable)")
	}
	return err
}

// attachEnds listens for drops and other frees.
func (t *Tracer) attachEnds() error {
	for _, name := range []string{pathProgPathDropped, pathProgPathConsumed} {
		l, err := link.AttachTracing(link.TracingOptions{Program: t.coll.Programs[name]})
		if err != nil {
			return fmt.Errorf("attach to the tracepoints skb:kfree_skb and skb:consume_skb: %w", err)
		}
		t.att.links = append(t.att.links, l)
	}
	return nil
}
