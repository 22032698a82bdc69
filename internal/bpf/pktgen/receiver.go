package pktgen

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/load/packets"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// receiver is the sink, attached.
type receiver struct {
	port    Port
	objects receiverObjects
	link    link.Link
	notes   []string
}

type receiverObjects struct {
	Sink     *ebpf.Program `ebpf:"chosen"` // that of sinkFor
	Counters *ebpf.Map     `ebpf:"counters"`
	Strays   *ebpf.Map     `ebpf:"strays"`
}

func attachReceiver(port Port, cfg packets.Config, t *tables) (*receiver, error) {
	index, err := interfaceIndex(port)
	if err != nil {
		return nil, fmt.Errorf("receive on %v: %w", port, err)
	}
	r := &receiver{port: port}
	err = r.open(index, link.XDPDriverMode, cfg, t)
	if errors.Is(err, unix.EOPNOTSUPP) {
		r.notes = append(r.notes, genericNote(port))
		err = r.open(index, link.XDPGenericMode, cfg, t)
	}
	if err != nil {
		return nil, fmt.Errorf("receive on %v: %w", port, err)
	}
	return r, nil
}

// open loads the programs and attaches one. In generic mode several CPUs may run it at once.
func (r *receiver) open(index int, mode link.XDPAttachFlags, cfg packets.Config, t *tables) (err error) {
	if err := r.objects.load(cfg, t, mode == link.XDPGenericMode || concurrent(r.port)); err != nil {
		return err
	}
	if r.link, err = attachMode(r.port.Netns, index, r.objects.Sink, mode); err != nil {
		return errors.Join(err, r.objects.close())
	}
	return nil
}

func (o *receiverObjects) load(cfg packets.Config, t *tables, concurrent bool) error {
	counted := uint16(frame.EtherTypeIPv4)
	if cfg.Spec.IPv6 {
		counted = frame.EtherTypeIPv6
	}
	if cfg.Bare {
		counted = bareType
	}
	spec := t.spec.Copy()
	if err := set(spec, map[string]any{
		pktgenVarRunId: t.runID, pktgenVarCounted: bits.ReverseBytes16(counted), pktgenVarConcurrent: concurrent,
		pktgenVarVerifyChecksums: cfg.Verify, pktgenVarExpects: cfg.Expect.Given(), pktgenVarLearns: t.learned != nil,
		pktgenVarExpectSource: expected(cfg.Expect.Source), pktgenVarExpectDestination: expected(cfg.Expect.Destination),
	}); err != nil {
		return err
	}
	spec.Programs["chosen"] = spec.Programs[sinkFor(cfg)]
	return t.loadReceiver(spec, o)
}

// sinkFor names the receiver of such packets.
func sinkFor(cfg packets.Config) string {
	switch spec, udp := cfg.Spec, cfg.Spec.Protocol == unix.IPPROTO_UDP; {
	case cfg.Bare:
		return pktgenProgCount
	case udp && spec.IPv6:
		return pktgenProgSinkUdp6
	case udp:
		return pktgenProgSinkUdp4
	case spec.IPv6:
		return pktgenProgSinkTcp6
	}
	return pktgenProgSinkTcp4
}

func (o *receiverObjects) close() error {
	return errors.Join(o.Sink.Close(), o.Counters.Close(), o.Strays.Close())
}

func (r *receiver) close() error { return errors.Join(r.link.Close(), r.objects.close()) }

func (r *receiver) counters() (sum pktgenSinkCounters, err error) {
	var cpus []pktgenSinkCounters
	if err := r.objects.Counters.Lookup(uint32(0), &cpus); err != nil {
		return sum, fmt.Errorf("read the receiver's counters: %w", err)
	}
	for _, c := range cpus {
		sum.Received += c.Received
		sum.Octets += c.Octets
		sum.Reordered += c.Reordered
		sum.Duplicated += c.Duplicated
		sum.Late += c.Late
		sum.Misdelivered += c.Misdelivered
		sum.BadIpChecksum += c.BadIpChecksum
		sum.BadChecksum += c.BadChecksum
		sum.PartialChecksum += c.PartialChecksum
		sum.Other += c.Other
	}
	return sum, nil
}

// interfaceIndex finds an interface that is up.
func interfaceIndex(port Port) (index int, err error) {
	err = port.Netns.Do(func() error {
		i, err := net.InterfaceByName(port.Interface)
		if err != nil {
			return fmt.Errorf("no such interface there ('ip link' lists them)")
		}
		if i.Flags&net.FlagUp == 0 {
			return fmt.Errorf("the interface is down (ip link set %s up)", port.Interface)
		}
		index = i.Index
		return nil
	})
	return index, err
}

// attach attaches a program to an interface, in the driver if possible, until the link is closed;
// note reports that it was not.
func attach(port Port, index int, program *ebpf.Program) (l link.Link, note string, err error) {
	l, err = attachMode(port.Netns, index, program, link.XDPDriverMode)
	if errors.Is(err, unix.EOPNOTSUPP) {
		note = genericNote(port)
		l, err = attachMode(port.Netns, index, program, link.XDPGenericMode)
	}
	return l, note, err
}

func genericNote(port Port) string {
	return fmt.Sprintf("the driver of %v runs no XDP programs: the stack does it instead, at a higher cost for each packet", port)
}

func attachMode(ns *netns.Handle, index int, program *ebpf.Program, mode link.XDPAttachFlags) (l link.Link, err error) {
	if err := permit.Change("attach an XDP program"); err != nil {
		return nil, err
	}
	err = ns.Do(func() error {
		l, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: index, Flags: mode})
		return err
	})
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("attach an XDP program: %w (there is one already: 'ip link' shows it)", err)
	case errors.Is(err, unix.ERANGE): // veth_xdp_set; drivers of network cards return other errors
		return nil, fmt.Errorf("attach an XDP program: %w (the MTU of the other end is too great for one: at most about 3,500 bytes)", err)
	case err != nil:
		return nil, fmt.Errorf("attach an XDP program: %w", errnoText(err))
	}
	return l, nil
}

// concurrent reports whether several CPUs may receive at once: not with a single queue, whose
// NAPI runs on one CPU at a time.
func concurrent(port Port) bool {
	queues := 0
	err := port.Netns.Do(func() (err error) {
		queues, err = receiveQueues(port.Interface)
		return err
	})
	return err != nil || queues != 1
}

// ethtoolChannels is struct ethtool_channels (include/uapi/linux/ethtool.h).
type ethtoolChannels struct {
	cmd                                    uint32
	maxRx, maxTx, maxOther, maxCombined    uint32
	rxCount, txCount, otherCount, combined uint32
}

// ifreqData is struct ifreq with a pointer in its union.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// receiveQueues is the number of receive queues in use (ETHTOOL_GCHANNELS).
func receiveQueues(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	channels := ethtoolChannels{cmd: unix.ETHTOOL_GCHANNELS}
	request := ifreqData{data: unsafe.Pointer(&channels)}
	copy(request.name[:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&channels)
	if errno != 0 {
		return 0, errno
	}
	return int(channels.rxCount + channels.combined), nil
}

// Values of enum expectation.
const (
	expectAny uint8 = iota
	expectSame
	expectIn
	expectMapped
)

// expected returns an end for the program: the address must be net where mask is set, and
// elsewhere as sent (mapped) or anything (in).
func expected(end packets.End) (x pktgenExpected) {
	switch end.Address {
	case packets.Same:
		x.Address = expectSame
	case packets.Netmap:
		x.Address = expectMapped
	case packets.Inside:
		x.Address = expectIn
	}
	if end.Prefix.IsValid() {
		x.Net, x.Mask = prefixWords(end.Prefix)
	}
	switch end.Port {
	case packets.Same:
		x.Port = expectSame
	case packets.Inside:
		x.Port, x.PortMin, x.PortMax = expectIn, end.Ports.First, end.Ports.Last
	}
	return x
}

// prefixWords are a prefix and its mask as they lie in a packet.
func prefixWords(p netip.Prefix) (net, mask [4]uint32) {
	m := unsafe.Slice((*byte)(unsafe.Pointer(&mask)), 16)
	for i := range p.Bits() {
		m[i/8] |= 0x80 >> (i % 8)
	}
	return addressWords(p.Masked().Addr()), mask
}

// addressWords are an address as it lies in a packet.
func addressWords(a netip.Addr) (words [4]uint32) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words)), 16), a.AsSlice())
	return words
}

// peer is the other end of a veth.
type peer struct {
	port    Port
	index   int
	mtu     int
	mac     net.HardwareAddr
	up      bool
	hasXDP  bool // in the driver, which makes it have NAPI
	generic bool // in the stack, which does not
	promisc bool
	master  bool   // it is a port of a bridge or another device
	close   func() // lets go of the namespace
}

// passage is the other end of a veth, made to take redirected frames: without a program or NAPI
// it silently drops them (veth_xdp_xmit: rcu_access_pointer(rq->napi)).
type passage struct {
	from Egress
	peer *peer // nil where it has nothing to do
	// pass is the passing program that was attached there; nil where the receiver's comes, or
	// another program's serves.
	pass   *Attached
	relies bool // on another program's
	note   string
}

// openPassage attaches a passing program to a veth's peer that has none, unless the sink's comes
// there. fits checks the peer first.
func openPassage(from Egress, sink *Port, fits func(*peer) error) (*passage, error) {
	p := &passage{from: from}
	if from.Kind != "veth" {
		return p, nil
	}
	var err error
	if p.peer, err = findPeer(from); err != nil {
		return nil, fmt.Errorf("find the other end of %v: %w", from.Port, err)
	}
	if p.peer == nil {
		p.note = fmt.Sprintf("the other end of %v lies in a namespace that is not found: without an XDP program or NAPI there, frames are dropped", from.Port)
		return p, nil
	}
	if err := p.attach(sink, fits); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *passage) attach(sink *Port, fits func(*peer) error) error {
	end := p.peer
	if !end.up {
		return fmt.Errorf("send by %v: its other end %v is down (ip link set %s up)", p.from.Port, end.port, end.port.Interface)
	}
	if err := fits(end); err != nil {
		return err
	}
	same, err := samePort(sink, end.port)
	switch {
	case err != nil || same: // the sink's program comes
		return err
	case end.generic:
		return fmt.Errorf("send by %v: its other end %v has an XDP program in generic mode, with which it drops redirected frames, and takes none beside it (ip link set %s xdpgeneric off)",
			p.from.Port, end.port, end.port.Interface)
	case end.hasXDP:
		p.relies = true
		return nil
	}
	if p.pass, err = attachProgram(end.port, end.index, pktgenProgPass, nil); err != nil {
		return fmt.Errorf("make %v take redirected frames: %w", end.port, err)
	}
	p.note = fmt.Sprintf("%v had no XDP program and would have dropped the frames: one that passes everything was attached for the time of the run", end.port)
	return nil
}

// broken reports that the program on which the passage relies has gone.
func (p *passage) broken() error {
	if !p.relies {
		return nil
	}
	end, err := readPeer(p.peer.port.Netns, p.peer.index, func() {})
	if err == nil && !end.hasXDP { // where the other end cannot be read, the sender's has gone as well
		return fmt.Errorf("send by %v: the XDP program of its other end %v was removed while the run was under way, and the frames were dropped from then on; start the run again", p.from.Port, p.peer.port)
	}
	return nil
}

func (p *passage) close() (err error) {
	if p.pass != nil {
		err = p.pass.Close()
	}
	if p.peer != nil {
		p.peer.close()
	}
	return err
}

// samePort reports whether two interfaces are the same; nil is none.
func samePort(a *Port, b Port) (bool, error) {
	if a == nil || a.Interface != b.Interface {
		return false, nil
	}
	one, err := netns.InodeOf(a.Netns)
	if err != nil {
		return false, err
	}
	other, err := netns.InodeOf(b.Netns)
	return one == other, err
}

// findPeer finds a veth's other end; nil where its namespace is not found.
func findPeer(e Egress) (*peer, error) {
	if e.peerNamespace < 0 { // the same namespace
		return readPeer(e.Netns, e.peerIndex, func() {})
	}
	for _, ns := range e.neighbours {
		if id, err := idOf(e.Netns, ns); err == nil && id == e.peerNamespace {
			return readPeer(ns, e.peerIndex, func() {})
		}
	}
	all, err := netns.All()
	if err != nil {
		return nil, err
	}
	for i, ns := range all {
		id, err := idOf(e.Netns, ns)
		if err != nil || id != e.peerNamespace {
			continue
		}
		netns.CloseAll(append(all[:i:i], all[i+1:]...))
		return readPeer(ns, e.peerIndex, func() { ns.Close() })
	}
	netns.CloseAll(all)
	return nil, nil
}

// idOf is the number by which one namespace calls another (RTM_GETNSID).
func idOf(from, of *netns.Handle) (id int, err error) {
	err = from.Do(func() error {
		id, err = netlink.GetNetNsIdByFd(of.Fd())
		return err
	})
	return id, err
}

func readPeer(ns *netns.Handle, index int, close func()) (*peer, error) {
	p := &peer{index: index, close: close}
	err := links(ns, func(handle *netlink.Handle) error {
		l, err := handle.LinkByIndex(index)
		if err != nil {
			return err
		}
		a := l.Attrs()
		p.port, p.mac, p.mtu, p.up = Port{Netns: ns, Interface: a.Name}, a.HardwareAddr, a.MTU, a.Flags&net.FlagUp != 0
		attached := a.Xdp != nil && a.Xdp.Attached
		p.generic = attached && a.Xdp.AttachMode == nl.XDP_ATTACHED_SKB
		p.hasXDP, p.promisc, p.master = attached && !p.generic, a.Promisc > 0, a.MasterIndex != 0
		return nil
	})
	if err != nil {
		close()
		return nil, err
	}
	return p, nil
}
