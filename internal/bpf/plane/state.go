package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netlink/socket"
)

// systemRoot is where a bpf file system is mounted as a rule (systemd), ownRoot where natkit mounts one otherwise.
const (
	systemRoot = "/sys/fs/bpf"
	ownRoot    = "/run/natkit/bpf"
)

// Root is the directory for pins of all network namespaces. There may be nothing yet.
func Root() (string, error) {
	var fs unix.Statfs_t
	for _, root := range []string{systemRoot, ownRoot} {
		if err := unix.Statfs(root, &fs); err == nil && fs.Type == unix.BPF_FS_MAGIC {
			return filepath.Join(root, "natkit"), nil
		}
	}
	if err := os.MkdirAll(ownRoot, 0o700); err != nil {
		return "", fmt.Errorf("make a directory for a bpf file system: %w", err)
	}
	if err := unix.Mount("bpf", ownRoot, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=700"); err != nil {
		return "", fmt.Errorf("mount a bpf file system at %s: %w", ownRoot, err)
	}
	return filepath.Join(ownRoot, "natkit"), nil
}

// State is what is attached in a network namespace.
type State struct {
	// Digests are those of the programs: one, or several where an exchange was interrupted.
	Digests []string
	// Modes are how they are attached, by interface; Missing are the hooks without a program of an interface that has
	// one at others.
	Modes   map[int]Mode
	Missing map[int][]string
	// Rules are the counters of mappings, Reasons those of packets that were not forwarded.
	Rules   []Count
	Reasons [planeReasonREASONS]Count
}

// Count is how much came.
type Count struct{ Packets, Bytes uint64 }

func (c *Count) add(o planeCount) { c.Packets, c.Bytes = c.Packets+o.Packets, c.Bytes+o.Bytes }

// Reason is why packets that a mapping is for were not forwarded by the programs.
type Reason int

// reasons are the words for them.
var reasons = [planeReasonREASONS]string{
	planeReasonTO_STACK_NEIGHBOUR: "given to the stack: neighbour not resolved",
	planeReasonTO_STACK_ROUTE:     "given to the stack: no route",
	planeReasonTO_STACK_TTL:       "given to the stack: TTL exceeded",
	planeReasonTO_STACK_MTU:       "given to the stack: larger than the MTU",
	planeReasonTO_STACK_OPTIONS:   "given to the stack: IP options",
	planeReasonTO_STACK_FRAGMENT:  "given to the stack: fragments that it puts together",
	planeReasonPASSED_HAIRPIN:     "left to netfilter: hairpin of a host without a mapping",
	planeReasonPASSED_LOCAL:       "left to netfilter: the destination is this host",
	planeReasonPASSED_INTERFACE:   "left to netfilter: no programs at the outgoing interface",
	planeReasonPASSED_RP_FILTER:   "left to netfilter: reverse path filter",
	planeReasonPASSED_FRAGMENT:    "left to netfilter: fragment without its first one",
	planeReasonPASSED_UNMAPPABLE:  "left to netfilter: address that RFC 6296 cannot map",
}

func (r Reason) String() string { return reasons[r] }

// Present reports whether anything is attached.
func (p Pins) Present() (bool, error) {
	names, err := p.names()
	if err != nil || len(names) > 0 {
		return len(names) > 0, err
	}
	found := false
	err = eachFilter(func(int, string, *netlink.BpfFilter) { found = true })
	return found, err
}

// Read returns what is attached in the network namespace that the thread is in. Needs CAP_SYS_ADMIN, to open maps by
// their numbers.
func (p Pins) Read() (*State, error) {
	s := &State{Modes: map[int]Mode{}, Missing: map[int][]string{}}
	hooks := map[int]map[string]ebpf.ProgramID{}
	add := func(index int, name string, id ebpf.ProgramID) {
		if hooks[index] == nil {
			hooks[index] = map[string]ebpf.ProgramID{}
		}
		hooks[index][name] = id
	}
	names, err := p.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := p.readLink(name, s, add); err != nil {
			return nil, fmt.Errorf("read the pinned link %s: %w", name, err)
		}
	}
	if err := eachFilter(func(index int, name string, f *netlink.BpfFilter) { add(index, name, ebpf.ProgramID(f.Id)) }); err != nil {
		return nil, err
	}
	programs := map[ebpf.ProgramID]bool{}
	for index, at := range hooks {
		for _, name := range []string{hookIn, hookOut} {
			if at[name] == 0 {
				s.Missing[index] = append(s.Missing[index], name)
			}
		}
		if s.Modes[index] == "" {
			s.Modes[index] = TC
		}
		for _, id := range at {
			programs[id] = true
		}
	}
	return s, s.readMaps(programs)
}

// readLink adds the program of a link that is attached to an interface.
func (p Pins) readLink(pin string, s *State, add func(index int, name string, id ebpf.ProgramID)) error {
	l, err := link.LoadPinnedLink(filepath.Join(p.dir, pin), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return err
	}
	index, _ := interfaceOf(info)
	if index == 0 {
		return nil // it went with its interface
	}
	name, _, _ := strings.Cut(pin, "-")
	if name == hookXDP {
		s.Modes[int(index)] = XDP
		if i, err := netlink.LinkByIndex(int(index)); err == nil && i.Attrs().Xdp != nil && i.Attrs().Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
			s.Modes[int(index)] = XDPGeneric
		}
	}
	add(int(index), name, info.Program)
	return nil
}

// eachFilter calls fn for natkit's filters at tc, by interface and hook.
func eachFilter(fn func(index int, name string, f *netlink.BpfFilter)) error {
	links, err := socket.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list the interfaces: %w", err)
	}
	for _, l := range links {
		for _, name := range []string{hookIn, hookOut} {
			f, err := filterOf(l, name)
			if err != nil {
				return fmt.Errorf("list the filters at tc of %s: %w", l.Attrs().Name, err)
			}
			if f != nil {
				fn(l.Attrs().Index, name, f)
			}
		}
	}
	return nil
}

// readMaps reads the maps of programs, each once.
func (s *State) readMaps(programs map[ebpf.ProgramID]bool) error {
	seen := map[ebpf.MapID]bool{}
	for id := range programs {
		err := eachMap(id, func(id ebpf.MapID, m *ebpf.Map, name string) error {
			if seen[id] {
				return nil
			}
			seen[id] = true
			return s.readMap(m, name)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read the maps of program %d: %w", id, err)
		}
	}
	slices.Sort(s.Digests)
	s.Digests = slices.Compact(s.Digests)
	return nil
}

func eachMap(id ebpf.ProgramID, fn func(ebpf.MapID, *ebpf.Map, string) error) error {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		about, err := m.Info()
		if err == nil {
			err = fn(id, m, about.Name)
		}
		if err := errors.Join(err, m.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) readMap(m *ebpf.Map, name string) error {
	var about planeAbout
	var cpus []planeCount
	switch name {
	case ".rodata.about":
		if err := m.Lookup(uint32(0), &about); err != nil {
			return err
		}
		s.Digests = append(s.Digests, strings.TrimRight(string(about.Digest[:]), "\x00"))
	case planeMapRules:
		s.Rules = append(s.Rules, make([]Count, max(0, int(m.MaxEntries())-len(s.Rules)))...)
		for i := range m.MaxEntries() {
			if err := m.Lookup(i, &cpus); err != nil {
				return err
			}
			for _, c := range cpus {
				s.Rules[i].add(c)
			}
		}
	case planeMapReasons:
		for i := range min(m.MaxEntries(), uint32(len(s.Reasons))) {
			if err := m.Lookup(i, &cpus); err != nil {
				return err
			}
			for _, c := range cpus {
				s.Reasons[i].add(c)
			}
		}
	}
	return nil
}
