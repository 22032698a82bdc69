// Package plane translates and forwards packets by eBPF programs at interfaces, without a table of connections: where a
// packet goes and as what follows from fixed mappings, and from the host's routes (bpf_fib_lookup).
//
// Three programs work together. At XDP, frames with plain headers are forwarded. What that one leaves comes to the
// program at tc, which reads all headers; what cannot be forwarded at once has its destination translated there and is
// given to the stack with a mark, and the program at tc of the way out translates its source. Packets that no mapping is
// for are not touched.
package plane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/permit"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -fno-strict-aliasing -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -type mapping -type kept -type kept_ipv6 -type mac -type service -type prefix -type interface -type count -type reason -type way -target bpfel  plane plane.bpf.c

// Marks are the bits of packets' marks by which the programs at the way in and out, and netfilter, know what is half
// translated: Mask has two bits, Owned and Hairpin are two values of them, both bits are Owned with a source to translate.
type Marks struct{ Mask, Owned, Hairpin uint32 }

// MarksOf are those of a mask of two bits.
func MarksOf(mask uint32) Marks {
	low := uint32(1) << bits.TrailingZeros32(mask)
	return Marks{mask, low, mask &^ low}
}

// Config is what programs are loaded for.
type Config struct {
	Tables
	Interfaces []Interface
	Marks      Marks
	// Digest is what State.Digest returns as long as the programs are attached: 64 hexadecimal digits, or nothing.
	Digest string
	// Slots is how many decisions each CPU remembers, a power of two; 0 is as many as slotBytes allow.
	Slots uint32
	// Keep is how long a decision about a flow is used before the routes and neighbours are asked again.
	Keep time.Duration
}

// DefaultKeep is Config.Keep where it is 0.
const DefaultKeep = time.Second

// mapsVersion is MAPS_VERSION.
const mapsVersion = 1

// Programs are loaded, with their maps. They belong to no interface yet.
type Programs struct {
	planeObjects
	About *ebpf.Map `ebpf:".rodata.about"`
	// Changing has what user space changes while they are attached: epoch (keep.h).
	Changing *ebpf.Map `ebpf:".bss"`
	marks    Marks
	// interfaces are those that they know, as they know them.
	interfaces []Interface
}

// Load loads the programs with maps of their own. It fills these, so that it fails where they are too small, before
// anything is attached.
func Load(c Config) (*Programs, error) {
	if err := permit.Change("load the eBPF programs of a gateway"); err != nil {
		return nil, err
	}
	if err := CheckPrivilege(); err != nil {
		return nil, err
	}
	if c.Rules > MaxRules {
		return nil, fmt.Errorf("load the programs: %d rules are more than the %d that they count", c.Rules, MaxRules)
	}
	spec, err := loadPlane()
	if err != nil {
		return nil, err
	}
	in, out := entriesOf(c.Destinations, c.Elsewhere), entriesOf(c.Sources, nil)
	for name, n := range map[string]int{
		planeMapDestinations: in.mostHosts(), planeMapDestinationServices: len(in.services), planeMapDestinationPrefixes: len(in.prefixes),
		planeMapSources: out.mostHosts(), planeMapSourceServices: len(out.services), planeMapSourcePrefixes: len(out.prefixes),
		planeMapInterfaces: len(c.Interfaces), planeMapMacs: c.macs(), planeMapRules: int(c.Rules) + 1,
	} {
		spec.Maps[name].MaxEntries = uint32(max(1, n))
	}
	spec.Maps[planeMapInterfaces].Flags |= unix.BPF_F_NO_PREALLOC // Attach changes entries: none may become another one's while it is read
	slots := c.slots()
	spec.Maps[planeMapDecisions].MaxEntries = slots * uint32(possibleCPUs())
	if c.hasIPv6() {
		spec.Maps[planeMapDecisionsIpv6].MaxEntries = slots * uint32(possibleCPUs())
	}
	jiffies, err := inJiffies(c.Keep)
	if err != nil {
		return nil, err
	}
	about := planeAbout{Version: mapsVersion}
	copy(about.Digest[:], c.Digest)
	if err := bpf.Prepare(spec, map[string]any{
		planeVarIdentity:               about,
		planeVarHasServices:            len(in.services)+len(out.services) > 0,
		planeVarHasDestinationPrefixes: len(in.prefixes) > 0,
		planeVarHasSourcePrefixes:      len(out.prefixes) > 0,
		planeVarLastSlot:               slots - 1,
		planeVarSeed:                   rand.Uint64(),
		planeVarKeepJiffies:            jiffies,
		planeVarMarkMask:               c.Marks.Mask,
		planeVarMarkOwned:              c.Marks.Owned,
		planeVarMarkHairpin:            c.Marks.Hairpin,
	}); err != nil {
		return nil, err
	}
	p := &Programs{marks: c.Marks}
	if err := spec.LoadAndAssign(p, nil); err != nil {
		return nil, c.refused(err)
	}
	filled := make(chan error) // the two directions at once: a million entries of one take a second
	go func() { filled <- in.fill(p.Destinations, p.DestinationServices, p.DestinationPrefixes) }()
	err = out.fill(p.Sources, p.SourceServices, p.SourcePrefixes)
	if err := errors.Join(<-filled, err, p.fillInterfaces(c.Interfaces)); err != nil {
		return nil, errors.Join(c.refused(err), p.Close())
	}
	return p, nil
}

// MaxRules is the largest number of a counter (struct kept).
const MaxRules = 1<<16 - 1

// slotBytes bounds the memory of decisions of all CPUs, with and without IPv6; leastSlots is how many each has in any case.
const (
	slotBytes            = 256 << 20
	leastSlots, allSlots = 1 << 12, 1 << 16
)

// slots is Config.Slots: the kernel has memory for each CPU that may ever come (num_possible_cpus).
func (c *Config) slots() uint32 {
	n := c.Slots
	if n == 0 {
		bytes := int(unsafe.Sizeof(planeKept{}))
		if c.hasIPv6() {
			bytes += int(unsafe.Sizeof(planeKeptIpv6{}))
		}
		for n = allSlots; n > leastSlots && int(n)*bytes*max(1, possibleCPUs()) > slotBytes; n /= 2 {
		}
	}
	return n
}

func possibleCPUs() int {
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return runtime.NumCPU()
	}
	return n
}

func (c *Config) hasIPv6() bool {
	is6 := func(m Mapping) bool { return m.Match.Addr().Is6() }
	return slices.ContainsFunc(c.Destinations, is6) || slices.ContainsFunc(c.Sources, is6)
}

// inJiffies is a time in the kernel's ticks: CLOCK_MONOTONIC_COARSE moves once in each (hrtimer_get_res).
func inJiffies(d time.Duration) (uint32, error) {
	var tick unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &tick); err != nil {
		return 0, fmt.Errorf("read the kernel's tick: %w", err)
	}
	if d == 0 {
		d = DefaultKeep
	}
	return uint32(max(1, d.Nanoseconds()/max(1, tick.Nano()))), nil
}

// entries are the contents of the maps of one direction. Hosts, of which there may be millions, stay in the table until they
// are written.
type entries struct {
	table    []Mapping
	hosts    int
	services map[planeService]planeMapping
	prefixes map[planePrefix]planeMapping
	// beside has the flags of addresses that have services, or are left alone; some are hosts as well.
	beside map[planeAddress]uint8
}

// The flags of a mapping (tables.h).
const (
	maps     = 1 << 0
	services = 1 << 1
	neutral  = 1 << 2
)

// entriesOf returns the entries of a table, which has one mapping for each address, service and prefix, and of addresses that
// are left alone where it has none for them.
func entriesOf(table []Mapping, left []netip.Prefix) *entries {
	e := &entries{table: table, services: map[planeService]planeMapping{}, prefixes: map[planePrefix]planeMapping{}, beside: map[planeAddress]uint8{}}
	e.leave(left)
	for i := range table {
		switch m := &table[i]; {
		case m.Protocol != 0:
			e.serve(m)
		case m.Hosts != nil:
			e.hosts += m.Hosts.Len
		case m.isHost():
			e.hosts++
		default:
			e.prefixes[prefixOf(m.Match)] = m.value()
		}
	}
	return e
}

func (m *Mapping) isHost() bool { return m.Protocol == 0 && m.Match.IsSingleIP() }

// mostHosts bounds the entries of the map of hosts.
func (e *entries) mostHosts() int { return e.hosts + len(e.beside) }

func (e *entries) serve(m *Mapping) {
	a := addressOf(m.Match.Addr())
	e.beside[a] |= services
	e.services[planeService{Address: a, Port: swapped(m.Port), Protocol: m.Protocol}] = m.value()
}

// leave adds addresses without a mapping of their own.
func (e *entries) leave(prefixes []netip.Prefix) {
	for _, p := range prefixes {
		if p.IsSingleIP() {
			e.beside[addressOf(p.Addr())] |= 0
		} else {
			e.prefixes[prefixOf(p)] = planeMapping{}
		}
	}
}

func prefixOf(p netip.Prefix) planePrefix {
	return planePrefix{Length: uint32(p.Bits() + 128 - p.Addr().BitLen()), Address: addressOf(p.Masked().Addr())}
}

func (m *Mapping) value() planeMapping {
	bits := m.Match.Bits() + 128 - m.Match.Addr().BitLen()
	v := planeMapping{To: addressOf(m.To.Masked().Addr()), Stay: hostMask(bits), Roles: uint32(m.Roles), Rule: m.Rule, Port: swapped(m.ToPort), Flags: maps}
	if m.Neutral {
		v.Flags |= neutral
		v.Word = 4
		if m.Match.Bits() <= 48 {
			v.Word = 3
		}
		v.Adjust = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, difference(m.Match, m.To)))
	}
	return v
}

// addressOf is an address as the programs have them: IPv4 as ::ffff:a.b.c.d.
func addressOf(a netip.Addr) (out planeAddress) {
	bytes := a.As16()
	for i := range out.W {
		out.W[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return out
}

func hostMask(bits int) (out planeAddress) {
	var bytes [16]byte
	for i := bits; i < 128; i++ {
		bytes[i/8] |= 0x80 >> (i % 8)
	}
	for i := range out.W {
		out.W[i] = binary.NativeEndian.Uint32(bytes[4*i:])
	}
	return out
}

// swapped is a port in network byte order.
func swapped(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

// difference is what a checksum over an address changes by where one prefix takes the place of another, as what a word
// of the address has to take up (RFC 6296, 3.1).
func difference(from, to netip.Prefix) uint16 {
	return addOnes(sum(from), ^sum(to))
}

func sum(p netip.Prefix) (sum uint16) {
	bytes := p.Masked().Addr().As16()
	for i := 0; i < 16; i += 2 {
		sum = addOnes(sum, binary.BigEndian.Uint16(bytes[i:]))
	}
	return sum
}

func addOnes(a, b uint16) uint16 {
	sum := uint32(a) + uint32(b)
	return uint16(sum + sum>>16)
}

func (e *entries) fill(hosts, services, prefixes *ebpf.Map) error {
	return errors.Join(e.fillHosts(hosts), fill(services, e.services), fill(prefixes, e.prefixes))
}

// hostsAtOnce are written by one system call; their list stays in the caches.
const hostsAtOnce = 1 << 12

func (e *entries) fillHosts(m *ebpf.Map) error {
	beside := make(map[planeAddress]planeMapping, len(e.beside))
	for a, flags := range e.beside {
		beside[a] = planeMapping{Flags: flags}
	}
	if err := fill(m, beside); err != nil {
		return err
	}
	keys, values := make([]planeAddress, 0, hostsAtOnce), make([]planeMapping, 0, hostsAtOnce)
	for h := range Each(e.table) {
		if !h.isHost() {
			continue
		}
		if len(keys) == hostsAtOnce {
			if err := write(m, keys, values); err != nil {
				return err
			}
			keys, values = keys[:0], values[:0]
		}
		a, v := addressOf(h.Match.Addr()), h.value()
		v.Flags |= e.beside[a]
		keys, values = append(keys, a), append(values, v)
	}
	return write(m, keys, values)
}

func fill[K comparable, V any](m *ebpf.Map, all map[K]V) error {
	keys, values := make([]K, 0, len(all)), make([]V, 0, len(all))
	for k, v := range all {
		keys, values = append(keys, k), append(values, v)
	}
	return write(m, keys, values)
}

// write writes all entries by one system call.
func write[K, V any](m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := m.BatchUpdate(keys, values, nil); err == nil || !errors.Is(err, ebpf.ErrNotSupported) {
		return err
	}
	for i := range keys {
		if err := m.Put(keys[i], values[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Programs) fillInterfaces(all []Interface) error {
	p.interfaces = slices.Clone(all)
	m := map[uint32]planeInterface{}
	for n := range all {
		i := &all[n]
		m[uint32(i.Index)] = i.value()
		if len(i.MAC) == 6 && i.Index < maxMACs {
			if err := p.Macs.Put(uint32(i.Index), planeMac{Address: [6]uint8(i.MAC), Known: 1}); err != nil {
				return err
			}
		}
	}
	return fill(p.Interfaces, m)
}

// maxMACs bounds the map of MAC addresses, whose keys are numbers of interfaces: of those above, frames are left to the
// program at tc.
const maxMACs = 1 << 16

// macs is how large it is.
func (c *Config) macs() int {
	n := 1
	for _, i := range c.Interfaces {
		n = max(n, i.Index+1)
	}
	return min(n, maxMACs)
}

func (i *Interface) value() planeInterface {
	v := planeInterface{Roles: uint32(i.Roles), RpFilter: uint8(i.RPFilter)}
	if i.NoEthernet {
		v.Flags |= noEthernet
	}
	if i.Redirect {
		v.Flags |= redirect
	}
	if i.WantsXDP {
		v.Flags |= wantsXDP
	}
	return v
}

const (
	noEthernet = 1 << 0
	redirect   = 1 << 1
	wantsXDP   = 1 << 2
)

// Close unloads what is not attached or pinned.
func (p *Programs) Close() error {
	return errors.Join(p.planeObjects.Close(), p.About.Close(), p.Changing.Close())
}
