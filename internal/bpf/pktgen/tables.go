package pktgen

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sizes of struct flow4 and struct flow6.
const (
	flow4Len = 12
	flow6Len = 36
)

// tables are the maps that the generators and the receiver share.
type tables struct {
	spec  *ebpf.CollectionSpec
	flows *ebpf.Map
	// expected are the tuples that arrivals are compared with; nil stands for flows.
	expected *ebpf.Map
	// learned are the tuples of replies to what arrived; nil where the run does not learn.
	learned *ebpf.Map
	// runID marks the run's packets; it is random, in network byte order.
	runID uint32
}

// newTables makes the table of all flows.
func newTables(flows packets.Flows) (*tables, error) {
	if err := flows.Check(); err != nil {
		return nil, err
	}
	spec, err := programs()
	if err != nil {
		return nil, err
	}
	t := &tables{spec: spec, runID: rand.Uint32()}
	if t.flows, err = t.makeFlows(flows, putFlow); err != nil {
		return nil, err
	}
	return t, nil
}

// programs reads the objects that natkit carries.
func programs() (*ebpf.CollectionSpec, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("allow locked memory for eBPF maps (before Linux 5.11): %w", netns.Denied(err, netns.Resource))
	}
	spec, err := loadPktgen()
	if err != nil {
		return nil, fmt.Errorf("read the generator's programs: %w", err)
	}
	return spec, nil
}

func (t *tables) close() error {
	errs := []error{t.flows.Close()}
	for _, m := range []*ebpf.Map{t.expected, t.learned} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// makeFlows makes a map with a place for each flow, into which put writes its tuple; nil leaves
// them empty.
func (t *tables) makeFlows(flows packets.Flows, put func([]byte, frame.Tuple)) (*ebpf.Map, error) {
	size := uint32(flow4Len)
	if flows.IPv6() {
		size = flow6Len
	}
	for _, name := range []string{pktgenMapFlows, pktgenMapLearned, pktgenMapTracks} {
		t.spec.Maps[name].MaxEntries = uint32(flows.Count)
	}
	t.spec.Maps[pktgenMapFlows].ValueSize, t.spec.Maps[pktgenMapLearned].ValueSize = size, size
	table, err := newFlows(t.spec.Maps[pktgenMapFlows])
	if err == nil && put != nil {
		if err = fillFlows(table, flows, put); err != nil {
			table.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make a table of %d flows: %w", flows.Count, errnoText(err))
	}
	return table, nil
}

func newFlows(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	if err := checkMemory(int64(spec.MaxEntries) * int64(spec.ValueSize+24)); err != nil {
		return nil, err
	}
	return ebpf.NewMap(spec)
}

// fillFlows writes the table through a mapping; array values are aligned to eight bytes.
func fillFlows(table *ebpf.Map, flows packets.Flows, put func([]byte, frame.Tuple)) error {
	stride := (int(table.ValueSize()) + 7) &^ 7
	page := os.Getpagesize()
	length := (flows.Count*stride + page - 1) / page * page
	memory, err := unix.Mmap(table.FD(), 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map the table: %w", err)
	}
	for i, tuple := range flows.All {
		put(memory[i*stride:], tuple)
	}
	return unix.Munmap(memory)
}

// putFlow writes struct flow4 or struct flow6.
func putFlow(b []byte, t frame.Tuple) {
	src, dst := t.Src.Addr().AsSlice(), t.Dst.Addr().AsSlice()
	copy(b, src)
	copy(b[len(src):], dst)
	ports := b[2*len(src):]
	binary.BigEndian.PutUint16(ports, t.Src.Port())
	binary.BigEndian.PutUint16(ports[2:], t.Dst.Port())
}

// checkMemory refuses more than a quarter of the available memory: the kernel would kill
// processes rather than fail.
func checkMemory(bytes int64) error {
	available, err := collect.AvailableMemory()
	if err != nil {
		return err
	}
	if bytes > available/4 && bytes > 64<<20 {
		return fmt.Errorf("they take %d MiB, more than a quarter of the %d MiB that are available; use fewer flows", bytes>>20, available>>20)
	}
	return nil
}

// set fills variables of a copy of the spec.
func set(spec *ebpf.CollectionSpec, values map[string]any) error {
	for name, value := range values {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("the program has no variable %s", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set the program's %s: %w", name, err)
		}
	}
	return nil
}

// loadGenerator makes the programs that send.
func (t *tables) loadGenerator(spec *ebpf.CollectionSpec, objects any) error {
	return loadPrograms(spec, objects, map[string]*ebpf.Map{pktgenMapFlows: t.flows})
}

// loadReceiver makes those that receive.
func (t *tables) loadReceiver(spec *ebpf.CollectionSpec, objects any) error {
	maps := map[string]*ebpf.Map{pktgenMapFlows: cmp.Or(t.expected, t.flows)}
	if t.learned != nil {
		maps[pktgenMapLearned] = t.learned
	}
	return loadPrograms(spec, objects, maps)
}

func loadPrograms(spec *ebpf.CollectionSpec, objects any, maps map[string]*ebpf.Map) error {
	err := spec.LoadAndAssign(objects, &ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return fmt.Errorf("load the generator's programs: %w", errnoText(err))
	}
	return nil
}

// errnoText explains an errno of loading.
func errnoText(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return netns.Denied(err, netns.BPF, netns.NetAdmin)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%w (not enough memory for the number of flows; use fewer)", err)
	}
	return err
}

// words are 12 bytes of MAC addresses as the program's variable wants them.
func words(dst, src []byte) (w [3]uint32) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&w)), 12)
	copy(b, dst[:6])
	copy(b[6:], src[:6])
	return w
}

// newTemplate returns the common beginning of all packets, with zeros where they differ. run is
// in network byte order, as in memory.
func newTemplate(spec *packets.Spec, link frame.Link, run uint32) pktgenTemplate {
	var mark [4]byte
	binary.NativeEndian.PutUint32(mark[:], run)
	none := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	if spec.IPv6 {
		none = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	length := spec.HeaderLen()
	b := packets.Build(nil, link, spec, frame.Tuple{Src: none, Dst: none},
		packets.Token{Run: binary.BigEndian.Uint32(mark[:])}, length, 0)
	t := pktgenTemplate{Length: uint32(length), Token: uint32(length - packets.TokenLen)}
	t.L4 = t.Token - frame.UDPLen
	if spec.Protocol == unix.IPPROTO_TCP {
		t.L4 = t.Token - frame.TCPLen
	}
	t.L3 = t.L4 - frame.IPv4Len
	if spec.IPv6 {
		t.L3 = t.L4 - frame.IPv6Len
	}
	t.sums(b, spec)
	t.fill(b)
	return t
}

// sums clears the fields that differ and adds up the rest.
func (t *pktgenTemplate) sums(b []byte, spec *packets.Spec) {
	ip, transport := b[t.L3:t.L4], b[t.L4:]
	if spec.IPv6 {
		clear(ip[4:6]) // payload length
	} else {
		clear(ip[2:4])   // total length
		clear(ip[10:12]) // checksum
		t.IpSum = sumWords(ip)
	}
	if spec.Protocol == unix.IPPROTO_TCP {
		clear(transport[4:12])  // sequence and acknowledgement numbers
		clear(transport[16:18]) // checksum
	} else {
		clear(transport[4:8]) // length, checksum
	}
	t.TransportSum = sumWords(transport) + sumWords([]byte{0, spec.Protocol})
}

// fill copies the template; the last word may be cut.
func (t *pktgenTemplate) fill(b []byte) {
	padded := make([]byte, 8*len(t.Words))
	copy(padded, b)
	for i := range t.Words {
		t.Words[i] = binary.NativeEndian.Uint64(padded[8*i:])
	}
}

// sumWords adds 16-bit words as they lie in memory; b has an even length.
func sumWords(b []byte) (sum uint32) {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.NativeEndian.Uint16(b[i:]))
	}
	return sum
}

// anchor keeps a program attached to an unused interface in a namespace of its own. Otherwise
// each BPF_PROG_TEST_RUN patches the kernel's XDP dispatcher and waits for all CPUs
// (bpf_prog_change_xdp, called by bpf_prog_test_run_xdp): about 24 ms.
type anchor struct {
	ns   *netns.Handle
	link link.Link
}

func newAnchor(program *ebpf.Program) (*anchor, error) {
	ns, err := netns.New("generator")
	if err != nil {
		return nil, err
	}
	a := &anchor{ns: ns}
	if err := a.attach(program); err != nil {
		return nil, errors.Join(fmt.Errorf("attach the generator to an interface of its own: %w", err), ns.Close())
	}
	return a, nil
}

func (a *anchor) attach(program *ebpf.Program) error {
	return a.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "anchor"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
			return err
		}
		l, err := netlink.LinkByName("anchor")
		if err != nil {
			return err
		}
		a.link, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
}

func (a *anchor) close() error { return errors.Join(a.link.Close(), a.ns.Close()) }
