package pktgen

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// peer is the other end of the sender's veth.
type peer struct {
	port    Port
	index   int
	mtu     int
	mac     net.HardwareAddr
	up      bool
	hasXDP  bool // in the driver, which makes it have NAPI
	generic bool // in the stack, which does not
	promisc bool
	close   func() // lets go of the namespace
}

// ensurePeerTakesFrames attaches a passing program to a veth's peer that has none.
// Without a program or NAPI a veth drops every frame that is redirected to it, and
// counts it nowhere that people look (veth_xdp_xmit: rcu_access_pointer(rq->napi)).
func (r *run) ensurePeerTakesFrames(sink *Port) error {
	if r.from.Kind != "veth" {
		return nil
	}
	p, err := findPeer(r.from)
	if err != nil {
		return fmt.Errorf("find the other end of %v: %w", r.from.Port, err)
	}
	if p == nil {
		r.notes = append(r.notes, fmt.Sprintf("the other end of %v lies in a namespace that is not found: without an XDP program or NAPI there, frames are dropped", r.from.Port))
		return nil
	}
	r.closers = append(r.closers, func() error { p.close(); return nil })
	if !p.up {
		return fmt.Errorf("send by %v: its other end %v is down (ip link set %s up)", r.from.Port, p.port, p.port.Interface)
	}
	if err := checkMTU(p.port, p.mtu, r.cfg.Spec); err != nil {
		return err
	}
	same, err := samePort(sink, p.port)
	switch {
	case err != nil || same: // the sink's program comes
		return err
	case p.generic:
		return fmt.Errorf("send by %v: its other end %v has an XDP program in generic mode, with which it drops redirected frames, and takes none beside it (ip link set %s xdpgeneric off)",
			r.from.Port, p.port, p.port.Interface)
	case p.hasXDP: // somebody else's
		r.relies = p
		return nil
	}
	return r.attachPass(p)
}

func (r *run) attachPass(p *peer) error {
	var objects struct {
		Pass *ebpf.Program `ebpf:"pass"`
	}
	if err := r.tables.load(r.tables.spec.Copy(), &objects); err != nil {
		return err
	}
	l, err := attach(p.port.Netns, p.index, objects.Pass)
	if err != nil {
		return errors.Join(fmt.Errorf("make %v take redirected frames: %w", p.port, err), objects.Pass.Close())
	}
	r.closers, r.passing = append(r.closers, objects.Pass.Close, l.Close), true
	r.notes = append(r.notes, fmt.Sprintf("%v had no XDP program and would have dropped the frames: one that passes everything was attached for the time of the run", p.port))
	return nil
}

// samePort reports whether two interfaces are the same; a nil one is no other.
func samePort(a *Port, b Port) (bool, error) {
	if a == nil || a.Interface != b.Interface {
		return false, nil
	}
	var inodes [2]uint64
	for i, ns := range []*netns.Handle{a.Netns, b.Netns} {
		if ns == nil {
			current, err := netns.Current()
			if err != nil {
				return false, err
			}
			defer current.Close()
			ns = current
		}
		inodes[i] = ns.Inode()
	}
	return inodes[0] == inodes[1], nil
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
	err = in(from, func() error {
		id, err = netlink.GetNetNsIdByFd(of.Fd())
		return err
	})
	return id, err
}

func readPeer(ns *netns.Handle, index int, close func()) (*peer, error) {
	p := &peer{index: index, close: close}
	err := in(ns, func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer handle.Close()
		l, err := handle.LinkByIndex(index)
		if err != nil {
			return err
		}
		a := l.Attrs()
		p.port, p.mac, p.mtu, p.up = Port{Netns: ns, Interface: a.Name}, a.HardwareAddr, a.MTU, a.Flags&net.FlagUp != 0
		attached := a.Xdp != nil && a.Xdp.Attached
		p.generic = attached && a.Xdp.AttachMode == nl.XDP_ATTACHED_SKB
		p.hasXDP, p.promisc = attached && !p.generic, a.Promisc > 0
		return nil
	})
	if err != nil {
		close()
		return nil, err
	}
	return p, nil
}
