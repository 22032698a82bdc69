package build

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/netns"
)

// apply does one step of a plan.
func (l *Lab) apply(step lab.Step) error {
	if add, ok := step.(lab.AddNode); ok {
		return l.openNode(add.Node)
	}
	n := l.Node(step.In())
	switch step := step.(type) {
	case lab.AddVeth:
		near, far := step[0], step[1]
		return n.links.AddVeth(netns.VethEnd{Name: near.Name, MAC: near.MAC}, l.Node(far.Node).links, netns.VethEnd{Name: far.Name, MAC: far.MAC})
	case lab.AddBridge:
		return n.addBridge(step)
	case lab.AddAddress:
		return n.links.AddAddress(step.Interface, step.Address)
	case lab.AddNeighbour:
		return n.links.AddNeighbour(step.Interface, step.Address, step.MAC)
	case lab.AddRoute:
		return n.links.AddRoute(step.Network, step.Via)
	case lab.SetSysctl:
		return n.setSysctl(step)
	}
	return fmt.Errorf("unknown step %T", step)
}

// setSysctl sets a value in a node, but none that is the same file outside, which holds
// for the whole host.
func (n *Node) setSysctl(s lab.SetSysctl) error {
	path := sysctlPath(s.Name)
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

const bridgeSysctl = "net.bridge.bridge-nf-call-iptables"

// addBridge turns br_netfilter on for this bridge only: by its own attribute,
// and, since Linux 5.4 has a switch for each namespace, by the lab's.
func (n *Node) addBridge(b lab.AddBridge) error {
	if err := n.needBridgeNetfilter(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = b.Name, b.MAC
	// Snooping would send and wait for multicast queries.
	snooping := false
	if err := n.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return err
	}
	bridge, err := n.links.LinkByName(b.Name)
	if err != nil {
		return err
	}
	port, err := n.links.LinkByName(b.Port)
	if err != nil {
		return err
	}
	if err := n.links.LinkSetMaster(port, bridge); err != nil {
		return err
	}
	if err := n.callIptables(bridge.Attrs().Index); err != nil {
		return fmt.Errorf("turn on nf_call_iptables: %w", err)
	}
	sysctl := lab.SetSysctl{Node: n.Name, Name: bridgeSysctl, Value: "1", Optional: true}
	return errors.Join(n.setSysctl(sysctl), n.links.SetUp(b.Name))
}

// needBridgeNetfilter refuses without br_netfilter instead of loading it: the
// module would make the bridges of the host itself pass through iptables. Before
// Linux 5.4 the switch is in the host's namespace only.
func (n *Node) needBridgeNetfilter() error {
	exists := func() error {
		_, err := os.Stat(sysctlPath(bridgeSysctl))
		return err
	}
	if exists() == nil || n.Netns.Do(exists) == nil {
		return nil
	}
	return errors.New("br_netfilter is not loaded; `modprobe br_netfilter` loads it (the host's own bridges then pass through iptables too)")
}

// Attributes of a bridge link (include/uapi/linux/if_link.h).
const (
	iflaInfoKind         = 1
	iflaInfoData         = 2
	iflaBrNfCallIptables = 36
)

// callIptables sets IFLA_BR_NF_CALL_IPTABLES, for which the link library has no field.
func (n *Node) callIptables(index int) error {
	ae := mdnetlink.NewAttributeEncoder()
	ae.Nested(unix.IFLA_LINKINFO, func(info *mdnetlink.AttributeEncoder) error {
		info.String(iflaInfoKind, "bridge")
		info.Nested(iflaInfoData, func(data *mdnetlink.AttributeEncoder) error {
			data.Uint8(iflaBrNfCallIptables, 1)
			return nil
		})
		return nil
	})
	attributes, err := ae.Encode()
	if err != nil {
		return err
	}
	conn, err := mdnetlink.Dial(unix.NETLINK_ROUTE, &mdnetlink.Config{NetNS: n.Netns.Fd()})
	if err != nil {
		return err
	}
	defer conn.Close()
	// struct ifinfomsg with the index as its only content.
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:8], uint32(index))
	_, err = conn.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: unix.RTM_NEWLINK, Flags: mdnetlink.Request | mdnetlink.Acknowledge},
		Data:   append(header, attributes...),
	})
	return err
}
