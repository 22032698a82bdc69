package drops

import (
	"fmt"
	"maps"
	"net"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"github.com/natkit/natkit/internal/bpf/match"
	"github.com/natkit/natkit/internal/netns"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -type event -target bpfel  drops drops.bpf.c

// prepare sets the switches of the programs and the sizes of their maps.
func (t *Tracer) prepare() (*ebpf.CollectionSpec, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("allow memory for eBPF maps (before Linux 5.11): %w", netns.Denied(err, netns.Resource))
	}
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
	for name, value := range values {
		if err := s.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	return s, t.makeMaps(s)
}

func (t *Tracer) switches() (map[string]any, error) {
	ifindex, err := t.ifindex()
	if err != nil {
		return nil, err
	}
	values := map[string]any{
		dropsVarHasReason:   t.names.reasons.Carried,
		dropsVarHasFilter:   t.opt.Filter != nil,
		dropsVarHasEvents:   t.opt.Events != nil,
		dropsVarHasStacks:   t.opt.StackSample > 0,
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
	if t.opt.Netns != nil {
		values[dropsVarOnlyNetns] = uint32(t.opt.Netns.Inode())
	}
	if t.opt.Interface != "" && t.opt.Netns == nil {
		own, err := netns.Current()
		if err != nil {
			return nil, err
		}
		defer own.Close()
		values[dropsVarOnlyNetns] = uint32(own.Inode())
	}
	return values, nil
}

// ifindex is that of the interface asked for; 0 for all.
func (t *Tracer) ifindex() (index uint32, err error) {
	if t.opt.Interface == "" {
		return 0, nil
	}
	find := func() error {
		i, err := net.InterfaceByName(t.opt.Interface)
		if err != nil {
			return fmt.Errorf("find interface %q: %w; 'ip link' shows them", t.opt.Interface, err)
		}
		index = uint32(i.Index)
		return nil
	}
	err = t.opt.Netns.Do(find)
	return index, err
}

// sizeMaps leaves of maps that nothing will be written to only what the verifier
// wants to see.
func (t *Tracer) sizeMaps(s *ebpf.CollectionSpec) error {
	if t.opt.Events == nil {
		s.Maps[dropsMapEvents] = &ebpf.MapSpec{Name: dropsMapEvents, Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
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
		if err := match.Install(s.Programs[name], t.opt.Filter); err != nil {
			return nil, err
		}
	}
	c, err := ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: maps.Clone(t.maps)})
	if err != nil {
		return nil, err
	}
	p := c.DetachProgram(name)
	c.Close()
	t.later(p)
	return p, nil
}

// interfaces finds interfaces' names, asking each namespace once. Its handles keep
// namespaces alive: it serves one call of Read.
type interfaces struct {
	handles []*netns.Handle
	listed  bool
	known   map[uint32]map[uint32]string
}

func newInterfaces() *interfaces { return &interfaces{known: map[uint32]map[uint32]string{}} }

func (i *interfaces) close() { netns.CloseAll(i.handles) }

// name is empty where the namespace or the interface is gone, or there was none.
func (i *interfaces) name(inode, index uint32) string {
	if index == 0 || inode == 0 {
		return ""
	}
	if _, ok := i.known[inode]; !ok {
		i.known[inode] = i.read(inode)
	}
	return i.known[inode][index]
}

func (i *interfaces) read(inode uint32) map[uint32]string {
	if !i.listed {
		i.listed = true
		i.handles, _ = netns.All()
	}
	for _, h := range i.handles {
		if uint32(h.Inode()) == inode {
			return linkNames(h)
		}
	}
	return nil
}

// linkNames are the names of a namespace's interfaces by their index.
func linkNames(ns *netns.Handle) map[uint32]string {
	names := map[uint32]string{}
	err := ns.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			names[uint32(l.Index)] = l.Name
		}
		return err
	})
	if err != nil {
		return nil // gone in the meantime
	}
	return names
}

// device is an interface of a namespace.
type device struct{ inode, index uint32 }

// lasting is interfaces over time, without handles: those that come later are found,
// though not asked for more than once a second, which is also how long one that was
// renamed keeps its name.
type lasting struct {
	names map[device]string
	read  time.Time
}

const linksAge = time.Second

func (l *lasting) name(inode, index uint32) string {
	if index == 0 || inode == 0 {
		return ""
	}
	if time.Since(l.read) > linksAge {
		l.names, l.read = map[device]string{}, time.Now()
	}
	name, ok := l.names[device{inode, index}]
	if !ok {
		name = l.readLinks(inode)[index]
		l.names[device{inode, index}] = name
	}
	return name
}

// readLinks opens the namespace for a moment.
func (l *lasting) readLinks(inode uint32) map[uint32]string {
	i := newInterfaces()
	defer i.close()
	names := i.read(inode)
	for index, name := range names {
		l.names[device{inode, index}] = name
	}
	return names
}
