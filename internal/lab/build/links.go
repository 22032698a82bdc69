package build

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
)

// apply does one step of a plan.
func (l *Lab) apply(s lab.Step) error {
	if s.Kind == lab.AddNode {
		return l.openNode(s.Node)
	}
	n := l.Node(s.Node)
	switch s.Kind {
	case lab.AddVeth:
		return n.links.AddVeth(netns.VethEnd{Name: s.Name, MAC: s.MAC}, l.Node(s.Peer.Node).links, netns.VethEnd{Name: s.Peer.Name, MAC: s.Peer.MAC})
	case lab.AddBridge:
		return n.addBridge(s)
	case lab.SetMTU:
		return n.links.SetMTU(s.Name, s.MTU)
	case lab.SetWire:
		return errors.Join(n.Netns.CompleteChecksums(s.Name), n.Netns.SetGRO(s.Name, true))
	case lab.AddAddress:
		return n.links.AddAddress(s.Name, s.Address)
	case lab.AddNeighbour:
		return n.links.AddNeighbour(s.Name, s.Address.Addr(), s.Peer.MAC)
	case lab.AddRoute:
		return n.links.AddRoute(s.Address, s.Via)
	}
	return n.setSysctl(s.Sysctl)
}

// setSysctl sets a value in a node, but none that is the same file outside, which holds
// for the whole host.
func (n *Node) setSysctl(s lab.Sysctl) error {
	path := sysctlPath(s.Key)
	outside, err := os.OpenFile(path, unix.O_PATH, 0) // which keeps its inode from being given again
	if err == nil {
		defer outside.Close()
	}
	before, _ := os.ReadFile(path)
	two := false
	err = n.Netns.Do(func() error {
		if err := refuseSame(outside, path); err != nil {
			return err
		}
		inside, err := os.ReadFile(path)
		two = err != nil || !bytes.Equal(inside, before)
		return os.WriteFile(path, []byte(s.Value), 0)
	})
	if err == nil && !two {
		return refuseShared(path, before, s.Value)
	}
	switch {
	case s.Optional && errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w (this kernel has no such value in a namespace)", err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w (a value of the whole host is not changed from a lab)", err)
	}
	return err
}

// refuseSame refuses a path at which, in this namespace, the file from outside is.
func refuseSame(outside *os.File, path string) error {
	if outside == nil {
		return nil
	}
	there, err := outside.Stat()
	if err != nil {
		return err
	}
	if here, err := os.Stat(path); err != nil || os.SameFile(there, here) {
		return cmp.Or(err, errOfHost)
	}
	return nil
}

var errOfHost = errors.New("it is a value of the whole host, which a lab must not change")

// refuseShared puts a value back that two files are of, so that it came to be outside,
// too: modules had such before Linux 5.13, which made them read-only in a namespace
// (ensure_safe_net_sysctl, net/sysctl_net.c).
func refuseShared(path string, before []byte, wrote string) error {
	after, err := os.ReadFile(path)
	if err != nil || bytes.Equal(after, before) || strings.TrimSpace(string(after)) != wrote {
		return nil
	}
	return errors.Join(errOfHost, os.WriteFile(path, before, 0))
}

func sysctlPath(name string) string {
	return "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
}

func (n *Node) addBridge(s lab.Step) error {
	if err := n.needBridgeNetfilter(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = s.Name, s.MAC
	// Snooping would send and wait for multicast queries.
	snooping := false
	if err := n.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return err
	}
	bridge, err := n.links.LinkByName(s.Name)
	if err != nil {
		return err
	}
	port, err := n.links.LinkByName(s.Peer.Name)
	if err != nil {
		return err
	}
	return errors.Join(n.links.LinkSetMaster(port, bridge), n.links.SetUp(s.Name))
}

// needBridgeNetfilter refuses without br_netfilter instead of loading it: the
// module would make the bridges of the host itself pass through iptables.
func (n *Node) needBridgeNetfilter() error {
	err := n.Netns.Do(func() error {
		_, err := os.Stat(sysctlPath(lab.BridgeSysctl))
		return err
	})
	if err != nil {
		return errors.New("br_netfilter is not loaded; `modprobe br_netfilter` loads it (the host's own bridges then pass through iptables too)")
	}
	return nil
}
