package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
)

// State is what is attached in a network namespace.
type State struct {
	// Digests are those of the programs: one, or several where an exchange was interrupted. That of programs of another
	// version is empty.
	Digests []string
	// Modes are how they are attached, by interface; Missing are the hooks without a program of an interface that has
	// one at others.
	Modes   map[int]Mode
	Missing map[int][]string
	// Others are the numbers of others' XDP programs, which keep natkit's at tc alone, by interface.
	Others map[int]ebpf.ProgramID
	// Known are the interfaces that the programs know: those that they were attached to, as far as nothing took them off.
	// Of these the value is Interface.WantsXDP.
	Known map[int]bool
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
	planeReasonNEIGHBOUR_ASKED:    "sent when the neighbour is resolved",
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
	planeReasonDROPPED_UNMAPPED:   "half translated, and no mapping for its source any more",
	planeReasonDROPPED_UNMAPPABLE: "half translated, and its source is one that RFC 6296 cannot map",
	planeReasonDROPPED_HEADER:     "no room for an Ethernet header",
}

func (r Reason) String() string { return reasons[r] }

// Dropped reports whether the programs drop the packets that it is counted for; all others go on.
func (r Reason) Dropped() bool { return r >= Reason(planeReasonDROPPED_UNMAPPED) }

// Present reports whether anything is pinned.
func (p Pins) Present() (bool, error) {
	s, err := p.open(false)
	if err != nil {
		return false, err
	}
	defer s.close()
	links, loads, err := s.list()
	return len(links)+len(loads) > 0, err
}

// Visible is Present, with an error where this process may not see whether anything is.
func (p Pins) Visible() (bool, error) {
	s, err := p.open(false)
	if err != nil {
		return false, err
	}
	defer s.close()
	dir := s.dir
	if dir == "" { // none is mounted, or what is above it is root's alone
		dir = ownRoot
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrPermission) {
		return false, fmt.Errorf("look for pinned programs in %s: %w", s.path, netns.Denied(err, netns.WriteAll))
	}
	return p.Present()
}

// Read returns what is attached in the network namespace that the thread is in.
func (p Pins) Read() (*State, error) {
	shelf, err := p.open(false)
	if err != nil {
		return nil, err
	}
	defer shelf.close()
	attached, err := shelf.attached()
	if err != nil {
		return nil, err
	}
	s := &State{Modes: map[int]Mode{}, Missing: map[int][]string{}, Others: map[int]ebpf.ProgramID{}, Known: map[int]bool{}}
	programs := map[ebpf.ProgramID]bool{}
	for index, at := range attached {
		s.Modes[index] = TC
		for _, name := range []string{hookIn, hookOut, hookXDP} {
			id, pinned := at[name]
			if id == 0 && (pinned || name != hookXDP) {
				s.Missing[index] = append(s.Missing[index], name)
			}
			if mode, other := modeOf(index); name == hookXDP && id != 0 {
				s.Modes[index] = mode
			} else if name == hookXDP && other != 0 {
				s.Others[index] = other
			}
			if id != 0 {
				programs[id] = true
			}
		}
	}
	return s, shelf.readLoads(s, programs)
}

// attached are the programs of hooks, by interface; 0 where what is pinned for one is not attached any more.
func (s *shelf) attached() (map[int]map[string]ebpf.ProgramID, error) {
	all := map[int]map[string]ebpf.ProgramID{}
	add := func(index int, name string, id ebpf.ProgramID) {
		if all[index] == nil {
			all[index] = map[string]ebpf.ProgramID{}
		}
		all[index][name] = id
	}
	links, _, err := s.list()
	if err != nil {
		return nil, err
	}
	for _, pin := range links {
		name, number, _ := strings.Cut(pin, "-")
		index, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		id, err := s.programAt(pin, name, index)
		if err == nil {
			add(index, name, id)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the link that is pinned at %s: %w", filepath.Join(s.path, pin), netns.Denied(err, netns.WriteAll))
		}
	}
	return all, eachFilter(func(index int, name string, f *netlink.BpfFilter) { add(index, name, ebpf.ProgramID(f.Id)) })
}

// programAt is the program of a link, 0 where it is not attached any more.
func (s *shelf) programAt(pin, name string, index int) (ebpf.ProgramID, error) {
	if _, err := net.InterfaceByIndex(index); err != nil {
		return 0, fs.ErrNotExist // gone, and the link with it
	}
	l, err := link.LoadPinnedLink(s.at(pin), nil)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil || !isAttached(index, name, info) {
		return 0, err
	}
	return info.Program, nil
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

// readLoads reads the maps of what the attached programs were loaded with; where none is attached, those of the last Load.
func (s *shelf) readLoads(state *State, attached map[ebpf.ProgramID]bool) error {
	_, loads, err := s.list()
	if err != nil {
		return err
	}
	unknown := len(attached)
	for i, n := range loads {
		load, used := strconv.Itoa(n), len(attached) == 0 && i == len(loads)-1
		for id := range s.programIDs(load) {
			if attached[id] {
				used = true
				unknown--
			}
		}
		if used {
			if err := state.readLoad(s, load); err != nil {
				return fmt.Errorf("read the maps that are pinned in %s: %w", filepath.Join(s.path, load), netns.Denied(err, netns.BPF, netns.WriteAll))
			}
		}
	}
	if unknown > 0 {
		state.Digests = append(state.Digests, "")
	}
	slices.Sort(state.Digests)
	state.Digests = slices.Compact(state.Digests)
	return nil
}

func (s *State) readLoad(from *shelf, load string) error {
	var about planeAbout
	if err := withMap(from.at(load, pinAbout), func(m *ebpf.Map) error { return m.Lookup(uint32(0), &about) }); err != nil {
		return err
	}
	if about.Version != mapsVersion {
		s.Digests = append(s.Digests, "")
		return nil
	}
	s.Digests = append(s.Digests, strings.TrimRight(string(about.Digest[:]), "\x00"))
	return errors.Join(
		withMap(from.at(load, planeMapRules), func(m *ebpf.Map) error {
			s.Rules = append(s.Rules, make([]Count, max(0, int(m.MaxEntries())-len(s.Rules)))...)
			return addCounts(m, s.Rules)
		}),
		withMap(from.at(load, planeMapReasons), func(m *ebpf.Map) error { return addCounts(m, s.Reasons[:]) }),
		withMap(from.at(load, planeMapInterfaces), func(m *ebpf.Map) error {
			var index uint32
			var is planeInterface
			all := m.Iterate()
			for all.Next(&index, &is) {
				s.Known[int(index)] = is.Flags&wantsXDP != 0
			}
			return all.Err()
		}))
}

// withMap opens a map; one that is not there is of no use.
func withMap(path string, fn func(*ebpf.Map) error) error {
	return withMapFor(path, true, fn)
}

func withMapFor(path string, reads bool, fn func(*ebpf.Map) error) error {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: reads})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	return fn(m)
}

// addCounts adds what all CPUs have counted.
func addCounts(m *ebpf.Map, to []Count) error {
	var cpus []planeCount
	for i := range min(m.MaxEntries(), uint32(len(to))) {
		if err := m.Lookup(i, &cpus); err != nil {
			return err
		}
		for _, c := range cpus {
			to[i].add(c)
		}
	}
	return nil
}

// Forget has what is attached ask the routes and neighbours again for every flow, instead of using for up to
// Config.Keep what it knows: something of them has changed.
func (p Pins) Forget() error {
	if err := permit.Change("have the eBPF programs of a gateway ask again"); err != nil {
		return err
	}
	s, err := p.open(false)
	if err != nil {
		return err
	}
	defer s.close()
	_, loads, err := s.list()
	for _, load := range loads {
		err = errors.Join(err, withMapFor(s.at(strconv.Itoa(load), pinChanging), false, forget))
	}
	return err
}

// forget increments epoch, which is all that the map has.
func forget(m *ebpf.Map) error {
	var epoch uint32
	if err := m.Lookup(uint32(0), &epoch); err != nil {
		return err
	}
	return m.Put(uint32(0), epoch+1)
}

// Drops is what programs dropped for one reason in one network namespace.
type Drops struct {
	// Netns is the inode.
	Netns  uint64
	Reason Reason
	Count
}

// ReadDrops returns what the programs in force dropped so far, of a network namespace, or of all that have pins.
func ReadDrops(ns *netns.Handle) (all []Drops, err error) {
	root, err := PinsOf("").open(false)
	if err != nil {
		return nil, err
	}
	defer root.close()
	wanted := ""
	if ns != nil {
		id, err := netns.IDOf(ns)
		if err != nil {
			return nil, err
		}
		wanted = NameOf(id)
	}
	names, err := os.ReadDir(root.dir)
	if root.dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned programs: %w", netns.Denied(err, netns.WriteAll))
	}
	for _, e := range names {
		var id netns.ID
		if _, err := fmt.Sscanf(e.Name(), "netns-%d-%d", &id.Inode, &id.Cookie); err != nil || wanted != "" && e.Name() != wanted {
			continue
		}
		some, err := PinsOf(e.Name()).drops(id.Inode)
		if err != nil {
			return nil, err
		}
		for _, d := range some {
			all = addDrops(all, d)
		}
	}
	return all, nil
}

// addDrops adds counters to those of the same inode and reason: pins outlive their network namespace (Sweep), and the kernel
// gives its inode to the next one.
func addDrops(all []Drops, d Drops) []Drops {
	i := slices.IndexFunc(all, func(o Drops) bool { return o.Netns == d.Netns && o.Reason == d.Reason })
	if i < 0 {
		return append(all, d)
	}
	all[i].Packets, all[i].Bytes = all[i].Packets+d.Packets, all[i].Bytes+d.Bytes
	return all
}

func (p Pins) drops(inode uint64) (all []Drops, err error) {
	s, err := p.open(false)
	if err != nil {
		return nil, err
	}
	defer s.close()
	_, loads, err := s.list()
	if err != nil {
		return nil, err
	}
	var sums [planeReasonREASONS]Count
	for _, n := range loads {
		if err := withMap(s.at(strconv.Itoa(n), planeMapReasons), func(m *ebpf.Map) error { return addCounts(m, sums[:]) }); err != nil {
			return nil, fmt.Errorf("read the counters that are pinned in %s: %w", s.path, netns.Denied(err, netns.BPF, netns.WriteAll))
		}
	}
	for i, c := range sums {
		if Reason(i).Dropped() && c.Packets > 0 {
			all = append(all, Drops{inode, Reason(i), c})
		}
	}
	return all, nil
}
