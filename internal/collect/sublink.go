package collect

import (
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sublinkOf is a hardware address that an interface takes frames for besides its own, and that no interface of this
// namespace has: that of a macvlan in another one, as of a container, which this host does not reach by the interface
// itself (macvlan_start_xmit knows the other macvlans alone). Empty where there is none.
func sublinkOf(device string) string {
	links, err := netlink.LinkList()
	if err != nil {
		return ""
	}
	index, own := 0, []string{}
	for _, l := range links {
		a := l.Attrs()
		if own = append(own, a.HardwareAddr.String()); a.Name == device && l.Type() != "bridge" {
			index = a.Index
		}
	}
	if index == 0 {
		return ""
	}
	entries, _ := netlink.NeighList(index, unix.AF_BRIDGE) // ndo_dflt_fdb_dump: the addresses of its filter
	for _, e := range entries {
		if e.Flags&netlink.NTF_SELF != 0 && isUnicast(e.HardwareAddr) && len(e.IP) == 0 && !slices.Contains(own, e.HardwareAddr.String()) {
			return e.HardwareAddr.String()
		}
	}
	return ""
}

func isUnicast(address net.HardwareAddr) bool {
	return len(address) == 6 && address[0]&1 == 0 && !slices.Equal(address, make(net.HardwareAddr, 6))
}
