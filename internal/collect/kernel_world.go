//go:build linux

package collect

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// file reads /proc/net of the thread: that of the process is its first thread's.
func (k *kernelWorld) file(path string) ([]byte, error) {
	if name, is := strings.CutPrefix(path, "/proc/net/"); is {
		path = "/proc/thread-self/net/" + name
	}
	return os.ReadFile(path)
}

func (k *kernelWorld) neighbours() ([]netlink.Neigh, error) {
	all, err := socket.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	return all, nil
}

func (k *kernelWorld) proxies() (map[netip.Addr]bool, error) {
	neighbours, err := socket.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighProxyList(0, netlink.FAMILY_V6) })
	if err != nil {
		return nil, fmt.Errorf("list proxied neighbours: %w", err)
	}
	all := map[netip.Addr]bool{}
	for _, n := range neighbours {
		ip, _ := netip.AddrFromSlice(n.IP)
		all[ip] = true
	}
	return all, nil
}

func (k *kernelWorld) addresses() (all []ownAddress, err error) {
	addresses, err := socket.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.Scope >= int(netlink.SCOPE_LINK) {
			continue
		}
		bits, _ := a.Mask.Size()
		own := ownAddress{link: a.LinkIndex, prefix: netip.PrefixFrom(ip.Unmap(), bits)}
		switch {
		case a.Flags&unix.IFA_F_DADFAILED != 0:
			own.unused = snapshot.AddressDuplicate
		case a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0:
			own.unused = snapshot.AddressTentative
		}
		all = append(all, own)
	}
	return all, nil
}

func (k *kernelWorld) mainRoutes(most int) (all []mainRoute, whole bool) {
	names := map[int]string{}
	links, err := net.Interfaces()
	for _, l := range links {
		names[l.Index] = l.Name
	}
	if err != nil {
		return nil, false
	}
	left := most
	err = netlink.RouteListFilteredIter(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
		one := mainRoute{to: netip.PrefixFrom(netip.IPv4Unspecified(), 0), device: names[r.LinkIndex]}
		if r.Dst != nil {
			network, _ := netip.AddrFromSlice(r.Dst.IP.To4())
			bits, _ := r.Dst.Mask.Size()
			one.to = netip.PrefixFrom(network, bits)
		}
		one.via, _ = netip.AddrFromSlice(r.Gw.To4())
		all = append(all, one)
		for _, h := range r.MultiPath {
			one.via, _ = netip.AddrFromSlice(h.Gw.To4())
			one.device = names[h.LinkIndex]
			all = append(all, one)
		}
		left--
		return left > 0
	})
	return all, err == nil && left > 0
}

func (k *kernelWorld) leadsOut(l *link) (bool, error) {
	options := &netlink.RouteGetOptions{OifIndex: l.index, FIBMatch: true}
	if own, err := net.InterfaceByIndex(l.index); err == nil {
		options.SrcAddr = firstIPv4(own)
	}
	routes, err := netlink.RouteGetWithOptions(net.IPv4(1, 0, 0, 1), options)
	return err == nil && len(routes) > 0, nil
}

func firstIPv4(l *net.Interface) net.IP {
	addresses, _ := l.Addrs()
	for _, a := range addresses {
		if p, ok := a.(*net.IPNet); ok && p.IP.To4() != nil {
			return p.IP
		}
	}
	return nil
}

func (k *kernelWorld) defaultTables(l *link) (tables []uint32) {
	routes, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.index}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			tables = append(tables, uint32(r.Table))
		}
	}
	return tables
}

// sublinkOf: that of a macvlan in another one, as of a container, which this host does not reach by the interface
// itself (macvlan_start_xmit knows the other macvlans alone). Empty where there is none.
func (k *kernelWorld) sublinkOf(device string) string {
	links, err := socket.Whole(netlink.LinkList)
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

// sockets lists listening TCP sockets, with their accept queues, or UDP sockets without a
// peer (inet_diag_msg_attrs_fill; struct inet_diag_req_v2 and inet_diag_msg, include/uapi/linux/inet_diag.h).
func (k *kernelWorld) sockets(protocol string) (open []snapshot.AcceptQueue, err error) {
	const tcpListen, tcpClose, bytes, port, address, waiting, limit = 10, 7, 56, 4, 8, 56, 60
	number, state := byte(unix.IPPROTO_TCP), tcpListen
	if protocol == "udp" {
		number, state = unix.IPPROTO_UDP, tcpClose
	}
	c, err := socket.Dial(nil, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for family, size := range map[byte]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		request := make([]byte, bytes)
		request[0], request[1] = family, number
		binary.NativeEndian.PutUint32(request[4:], 1<<state)
		answers, err := c.Ask(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, request)
		if err != nil {
			return nil, fmt.Errorf("list sockets of %s: %w (needs CONFIG_INET_DIAG)", protocol, err)
		}
		for _, a := range answers {
			if len(a.Body) >= limit+4 {
				addr, _ := netip.AddrFromSlice(a.Body[address : address+size])
				open = append(open, snapshot.AcceptQueue{
					Socket:  netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(a.Body[port:])),
					Waiting: binary.NativeEndian.Uint32(a.Body[waiting:]), Limit: binary.NativeEndian.Uint32(a.Body[limit:]),
				})
			}
		}
	}
	return open, nil
}
