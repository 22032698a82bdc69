package path

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/natkit/natkit/internal/bpf/match"
)

var doNothing = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}

// only are the restrictions that the programs check before the filter.
type only struct{ netns, ifindex uint32 }

// load loads the programs into the kernel, those of path_result not.
func (t *Tracer) load(opt Options, o only) error {
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
		if err := match.Install(p, opt.Filter); err != nil {
			return fmt.Errorf("install the filter: %w", err)
		}
	}
	values := map[string]any{
		pathVarOnlyNetns: o.netns, pathVarOnlyIfindex: o.ifindex, pathVarLimit: uint64(opt.Packets),
		pathVarHasFilter: opt.Filter != nil, pathVarMulti: t.att.multi, pathVarHasReason: t.types.reasons().Carried,
	}
	if err := set(spec, values); err != nil {
		return err
	}
	if t.coll, err = ebpf.NewCollection(spec); err != nil {
		return fmt.Errorf("load the eBPF programs: %w", err)
	}
	return nil
}

func set(spec *ebpf.CollectionSpec, values map[string]any) error {
	for name, v := range values {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s of the eBPF programs: %w", name, err)
		}
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
		err = errors.Join(err, t.att.attachAll(p[name], withArg(s.steps, arg)))
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
