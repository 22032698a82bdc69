package drops

import (
	"fmt"
	"maps"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/netns"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -type event -type header -target bpfel  drops drops.bpf.c

// prepare sets the switches of the programs and the sizes of their maps.
func (t *Tracer) prepare() (*ebpf.CollectionSpec, error) {
	s, err := loadDrops()
	if err != nil {
		return nil, err
	}
	if err := t.sizeMaps(s); err != nil {
		return nil, err
	}
	values, err := t.switches()
	if err != nil {
		return nil, err
	}
	if err := bpf.Prepare(s, values); err != nil {
		return nil, err
	}
	return s, t.makeMaps(s)
}

func (t *Tracer) switches() (map[string]any, error) {
	inode, ifindex, err := bpf.Scope(t.opt.Netns, t.opt.Interface)
	if err != nil {
		return nil, err
	}
	values := map[string]any{
		dropsVarHasReason:   t.names.reasons.Carried,
		dropsVarHasFilter:   t.opt.Filter != nil,
		dropsVarHasEvents:   t.opt.Events != nil,
		dropsVarHasStacks:   t.opt.StackSample > 0,
		dropsVarHeadersEach: uint32(t.opt.Headers.Each),
		dropsVarHeadersAll:  uint32(t.opt.Headers.All),
		dropsVarOnlyNetns:   inode,
		dropsVarOnlyIfindex: ifindex,
		dropsVarFlowSample:  uint32(max(t.opt.FlowSample, 0)),
		dropsVarStackSample: uint32(max(t.opt.StackSample, 0)),
		dropsVarConsumed:    t.names.consumed,
		dropsVarClosed:      t.names.closed,
		dropsVarUnspecified: t.names.unspecified,
	}
	if t.opt.spilled > 0 {
		values[dropsVarSetShift] = uint32(63) // two sets
	}
	if !t.opt.Harmless {
		values[dropsVarHarmless] = t.names.harmless
		values[dropsVarHideHarmless] = true
	}
	return values, nil
}

// sizeMaps leaves of maps that nothing will be written to only what the verifier
// wants to see.
func (t *Tracer) sizeMaps(s *ebpf.CollectionSpec) error {
	none := func(name string) {
		s.Maps[name] = &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	}
	if t.opt.Headers.All == 0 {
		none(dropsMapHeaders)
		s.Maps[dropsMapWindows].MaxEntries = 1
	} else if err := features.HaveMapType(ebpf.RingBuf); err != nil {
		return fmt.Errorf("headers of dropped packets need the ring buffer of Linux 5.8: %w", err)
	} else {
		s.Maps[dropsMapHeaders].MaxEntries = t.opt.Headers.bytes()
	}
	if t.opt.Events == nil {
		none(dropsMapEvents)
	} else if err := features.HaveMapType(ebpf.RingBuf); err != nil {
		return fmt.Errorf("events of single drops need the ring buffer of Linux 5.8: %w; without --events they are counted", err)
	} else if t.opt.smallRing {
		s.Maps[dropsMapEvents].MaxEntries = uint32(os.Getpagesize())
	}
	if t.opt.spilled > 0 {
		s.Maps[dropsMapSpilled].MaxEntries = t.opt.spilled
	}
	if t.opt.FlowSample <= 0 {
		s.Maps[dropsMapFlows].Type, s.Maps[dropsMapFlows].MaxEntries = ebpf.Hash, 1
	}
	if t.opt.StackSample <= 0 {
		s.Maps[dropsMapStacks].MaxEntries, s.Maps[dropsMapStackCounts].MaxEntries = 1, 1
	}
	return nil
}

// makeMaps makes those that the programs share.
func (t *Tracer) makeMaps(s *ebpf.CollectionSpec) error {
	for name, spec := range s.Maps {
		if name[0] == '.' { // the switches, which each program has for itself
			continue
		}
		m, err := ebpf.NewMap(spec)
		if err != nil {
			return fmt.Errorf("make eBPF map %s: %w", name, err)
		}
		t.maps[name] = m
		t.later(m)
	}
	return nil
}

// load loads one program; the tracer closes it.
func (t *Tracer) load(all *ebpf.CollectionSpec, name string) (*ebpf.Program, error) {
	s := all.Copy()
	maps.DeleteFunc(s.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
	if t.opt.Filter != nil && (name == dropsProgDropsTyped || name == dropsProgDropsRaw) {
		if err := bpf.Install(s.Programs[name], t.opt.Filter); err != nil {
			return nil, err
		}
	}
	c, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: maps.Clone(t.maps), Cache: t.opt.Types})
	if err != nil {
		return nil, err
	}
	p := c.DetachProgram(name)
	c.Close()
	t.later(p)
	return p, nil
}

// links names interfaces by namespace and index, for the reader of events and for Read at the
// same time. Names are kept for a second, as numbers are used again.
type links struct {
	mu    sync.Mutex
	names map[device]string
	read  time.Time
}

// device is an interface of a namespace.
type device struct{ inode, index uint32 }

const linksAge = time.Second

// name is empty where the namespace or the interface is gone, or there was none.
func (l *links) name(inode, index uint32) string {
	if index == 0 || inode == 0 {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.read) > linksAge {
		l.list()
	}
	return l.names[device{inode, index}]
}

// expire has the next name list the interfaces: one that came since then has a name too.
func (l *links) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = time.Time{}
}

func (l *links) list() {
	l.names = map[device]string{}
	// What cannot be read is gone in the meantime.
	_ = netns.Each(func(h *netns.Handle) error {
		_ = h.Do(func() error {
			interfaces, err := net.Interfaces()
			for _, i := range interfaces {
				l.names[device{uint32(h.Inode()), uint32(i.Index)}] = i.Name
			}
			return err
		})
		return nil
	})
	l.read = time.Now()
}
