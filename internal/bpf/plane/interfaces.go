package plane

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/netlink/socket"
	vnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Found is an interface of a host that packets are routed by.
type Found struct {
	Interface
	Name  string
	Group uint32
	MTU   int
	// Kind is the driver's name for it; empty for hardware ("device").
	Kind string
	// Features are what its driver does with XDP (NETDEV_XDP_ACT_…, Linux 6.3), where Known.
	Features uint64
	Known    bool
	// VLANs reports whether there are VLAN interfaces on it.
	VLANs bool
}

// Features of drivers (include/uapi/linux/netdev.h).
const (
	FeatureBasic    = 1 << 0 // NETDEV_XDP_ACT_BASIC
	FeatureRedirect = 1 << 1 // NETDEV_XDP_ACT_REDIRECT
	FeatureNDOXmit  = 1 << 2 // NETDEV_XDP_ACT_NDO_XMIT
	featuresAttach  = FeatureBasic | FeatureRedirect
)

const procConf = "/proc/sys/net/ipv4/conf"

// Native reports whether an XDP program runs in its driver; true also where that is not known.
func (f *Found) Native() bool {
	if f.Known {
		return f.Features&featuresAttach == featuresAttach
	}
	return f.Kind == "device" || f.Kind == "veth" || f.Kind == "bond" || f.Kind == "tuntap"
}

// senders are drivers whose ndo_xdp_xmit is as old as Linux 5.15.
var senders = []string{"bnxt_en", "ena", "i40e", "ice", "igb", "igc", "ixgbe", "mlx5_core", "mvneta", "mvpp2", "qede", "sfc", "tun", "virtio_net"}

// sends reports whether a driver takes redirected frames, on a kernel that does not say so (before Linux 6.3). That of a veth
// does where the other end has NAPI, which cannot be seen: frames are lost where it has not.
func sends(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	about, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	return err == nil && slices.Contains(senders, unix.ByteSliceToString(about.Driver[:]))
}

// ReadInterfaces reads those of the network namespace that the thread is in, without the loopback and those that belong
// to a bridge, a bond or a team, which has their packets. Their Roles are 0.
func ReadInterfaces() ([]Found, error) {
	links, err := socket.Whole(vnl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	features := readFeatures()
	all, err := rpFilter("all")
	if err != nil {
		return nil, err
	}
	var found []Found
	for _, l := range links {
		a := l.Attrs()
		if a.EncapType == "loopback" || l.Type() == "lo" || a.Name == "lo" || isPart(a, links) {
			continue
		}
		own, err := rpFilter(a.Name)
		if err != nil {
			continue // gone
		}
		f := Found{Interface: Interface{Index: a.Index, MAC: a.HardwareAddr, RPFilter: max(own, all), NoEthernet: a.EncapType != "ether"},
			Name: a.Name, Group: a.Group, MTU: a.MTU, Kind: l.Type()}
		f.Features, f.Known = features[uint32(a.Index)]
		f.Redirect = f.Features&FeatureNDOXmit != 0
		f.VLANs = slices.ContainsFunc(links, func(o vnl.Link) bool { return o.Type() == "vlan" && o.Attrs().ParentIndex == a.Index })
		found = append(found, f)
	}
	return found, nil
}

func isPart(a *vnl.LinkAttrs, links []vnl.Link) bool {
	for _, l := range links {
		if l.Attrs().Index == a.MasterIndex {
			return l.Type() == "bridge" || l.Type() == "bond" || l.Type() == "team" || l.Type() == "openvswitch"
		}
	}
	return false
}

// rpFilter reads an interface's; that of a name with a dot or a slash too.
func rpFilter(name string) (RPFilter, error) {
	text, err := os.ReadFile(filepath.Join(procConf, name, "rp_filter"))
	if err != nil {
		return 0, fmt.Errorf("read rp_filter of %s: %w", name, err)
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 8)
	return RPFilter(v), err
}

// The generic netlink family of network devices (include/uapi/linux/netdev.h, Linux 6.3).
const (
	netdevFamily      = "netdev"
	netdevVersion     = 1
	netdevGet         = 1 // NETDEV_CMD_DEV_GET
	netdevIfindex     = 1 // NETDEV_A_DEV_IFINDEX
	netdevXDPFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
)

// readFeatures returns what drivers do with XDP, by interface; nothing where the kernel does not say so.
func readFeatures() map[uint32]uint64 {
	c, err := socket.Dial(nil, unix.NETLINK_GENERIC)
	if err != nil {
		return nil
	}
	defer c.Close()
	answers, err := c.AskGeneric(netdevFamily, netdevVersion, netdevGet, unix.NLM_F_DUMP, nil)
	if err != nil {
		return nil
	}
	all := map[uint32]uint64{}
	for _, a := range answers {
		index, features := a.Get(netdevIfindex), a.Get(netdevXDPFeatures)
		if len(index) == 4 && len(features) == 8 {
			all[binary.NativeEndian.Uint32(index)] = binary.NativeEndian.Uint64(features)
		}
	}
	return all
}
