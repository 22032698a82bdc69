// Package host reads what the gateway has to know of a machine: interfaces, the
// administrator's own session, other programs' rules, the connection table, routes.
// It changes nothing.
package host

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/natkit/natkit/internal/collect"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Options say what to read.
type Options struct {
	// Proc is the root of procfs; empty means /proc.
	Proc string
	// PID is the process whose session is searched for, by it and its parents; 0 means
	// none. A program gives its own.
	PID int
	// Targets are hosts whose outgoing interfaces are read.
	Targets []netip.Addr
	// Routing has default routes and rules of policy routing read.
	Routing bool
	// Inside are interfaces of zones, whose routes are read then.
	Inside []string
	// Bypassed has IPsec policies and queueing disciplines read.
	Bypassed bool
}

// OptionsFor says what to read for a file; pid is as in Options.
func OptionsFor(c *gateway.Config, pid int) Options {
	return Options{PID: pid, Targets: c.Targets(), Routing: c.Routes(), Inside: c.Zoned(), Bypassed: c.Engine == gateway.EngineEBPF}
}

func (o Options) proc() string {
	if o.Proc == "" {
		return "/proc"
	}
	return o.Proc
}

// Read returns the facts of a namespace (nil: this one). What cannot be read is missing
// in them, and Unknown says why; an error means that there are none.
func Read(ctx context.Context, ns *netns.Handle, o Options) (gateway.Facts, error) {
	f := gateway.Facts{Known: true, Enter: netns.Way(ns)}
	var err error
	if f.Interfaces, err = Interfaces(ns); err != nil {
		return gateway.Facts{}, fmt.Errorf("read the host: %w", err)
	}
	if f.Local, err = local(ns, &f); err != nil {
		unknown(&f, "local routes", err)
	}
	if f.Initial, err = initial(ns, o.proc()); err != nil {
		unknown(&f, "whether this is the initial network namespace", err)
	}
	if o.PID != 0 {
		f.Sessions = ofHost(sessions(o.proc(), o.PID), f.Interfaces)
	}
	if f.Foreign, err = Foreign(ns); err != nil {
		unknown(&f, "other programs' rules", err)
	}
	settings(&f, collect.ReadSettings(ctx, collect.Options{Netns: ns}))
	if err := Forwarding(ns, &f); err != nil {
		unknown(&f, "forwarding", err)
	}
	if f.Ways, err = ways(ns, &f, o.Targets); err != nil {
		unknown(&f, "routes", err)
	}
	if o.Routing {
		if err := Policies(ns, &f, o.Inside); err != nil {
			unknown(&f, "policy routing", err)
		}
	}
	if o.Bypassed {
		if err := bypassed(ns, &f); err != nil {
			unknown(&f, "what programs pass by", err)
		}
	}
	return f, ctx.Err()
}

func unknown(f *gateway.Facts, what string, err error) {
	f.Unknown = append(f.Unknown, fmt.Sprintf("%s: %v", what, err))
}

func settings(f *gateway.Facts, s *snapshot.Snapshot) {
	f.Kernel, f.Conntrack, f.Sysctls = s.Kernel, s.ConntrackSize, s.Sysctls
	for _, part := range []string{"conntrack_size", "sysctls"} {
		if why := s.PartError(part); why != "" {
			f.Unknown = append(f.Unknown, why)
		}
	}
}

// Interfaces are those of a namespace (nil: this one), in order of their indexes.
func Interfaces(ns *netns.Handle) ([]gateway.Interface, error) {
	var all []gateway.Interface
	err := ns.Do(func() error {
		links, err := socket.Whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		addresses, err := socket.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		bridges, err := bridges()
		if err != nil {
			return err
		}
		vrfs := map[int]*gateway.VRF{}
		for _, l := range links {
			if v, is := l.(*netlink.Vrf); is {
				vrfs[v.Index] = &gateway.VRF{Name: v.Name, Table: v.Table}
			}
		}
		for _, l := range links {
			i := link(l.Attrs(), addresses)
			i.VRF = vrfs[l.Attrs().MasterIndex]
			i.Bridge = bridges[i.Index]
			all = append(all, i)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b gateway.Interface) int { return cmp.Compare(a.Index, b.Index) })
	return all, err
}

func link(l *netlink.LinkAttrs, addresses []netlink.Addr) gateway.Interface {
	i := gateway.Interface{Name: l.Name, Index: l.Index, Up: l.Flags&net.FlagUp != 0, MTU: l.MTU, Group: l.Group, PointToPoint: l.Flags&net.FlagPointToPoint != 0}
	i.NoCarrier = i.Up && l.RawFlags&unix.IFF_LOWER_UP == 0
	for _, a := range addresses {
		if a.LinkIndex != l.Index || a.IPNet == nil || a.Flags&unix.IFA_F_TENTATIVE != 0 {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if ok {
			i.Addresses = append(i.Addresses, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return i
}

// Initial reports whether a namespace (nil: this one) is the host's own.
func Initial(ns *netns.Handle) (bool, error) { return initial(ns, "/proc") }

// initial reports whether the namespace is the host's own.
func initial(ns *netns.Handle, proc string) (bool, error) {
	here, err := netns.InodeOf(nil)
	if err != nil {
		return false, err
	}
	at := apply.IsInitialNetns(here, proc)
	if ns == nil || ns.Inode() == here {
		return at, nil
	}
	return !at && apply.IsInitialNetns(ns.Inode(), proc), nil
}

// The sysctls by which all bridges of a namespace take what they carry through netfilter;
// they are there where br_netfilter is.
const (
	bridgeSysctl4 = "net.bridge.bridge-nf-call-iptables"
	bridgeSysctl6 = "net.bridge.bridge-nf-call-ip6tables"
)

// bridges are those of the thread's namespace that take what they carry through netfilter,
// by index.
func bridges() (map[int]*gateway.Bridge, error) {
	sysctls := snapshot.Sysctls{}
	if err := ReadSysctls("/proc", []string{bridgeSysctl4, bridgeSysctl6}, sysctls); err != nil || len(sysctls) == 0 {
		return nil, err
	}
	messages, err := socket.Whole(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	all, ports := map[int]*gateway.Bridge{}, map[int]*gateway.Bridge{}
	for _, m := range messages {
		if err := bridgeOf(m, sysctls, all, ports); err != nil {
			return nil, fmt.Errorf("list bridges: %w", err)
		}
	}
	for index, p := range ports {
		if b := all[index]; b != nil {
			b.OneWay, b.Hairpin = p.OneWay, p.Hairpin
		}
	}
	return all, nil
}

// bridgeOf notes a link that is a bridge, or a port of one.
func bridgeOf(m []byte, sysctls snapshot.Sysctls, all, ports map[int]*gateway.Bridge) error {
	attrs, err := nl.ParseRouteAttrAsMap(m[unix.SizeofIfInfomsg:])
	if err != nil {
		return err
	}
	info, err := nl.ParseRouteAttrAsMap(attrs[unix.IFLA_LINKINFO].Value)
	if err != nil {
		return err
	}
	isBridge := func(kind uint16) bool { return text(info[kind].Value) == "bridge" }
	on := func(data uint16, option uint16) bool { return firstByte(info[data], option) != 0 }
	if isBridge(nl.IFLA_INFO_KIND) {
		b := &gateway.Bridge{
			IPv4: sysctls[bridgeSysctl4] == "1" || on(nl.IFLA_INFO_DATA, nl.IFLA_BR_NF_CALL_IPTABLES),
			IPv6: sysctls[bridgeSysctl6] == "1" || on(nl.IFLA_INFO_DATA, nl.IFLA_BR_NF_CALL_IP6TABLES),
		}
		if b.IPv4 || b.IPv6 {
			all[int(nl.DeserializeIfInfomsg(m).Index)] = b
		}
	}
	if isBridge(nl.IFLA_INFO_SLAVE_KIND) && len(attrs[unix.IFLA_MASTER].Value) == 4 {
		master := int(nl.NativeEndian().Uint32(attrs[unix.IFLA_MASTER].Value))
		if ports[master] == nil {
			ports[master] = &gateway.Bridge{}
		}
		list := &ports[master].OneWay
		if on(nl.IFLA_INFO_SLAVE_DATA, nl.IFLA_BRPORT_MODE) {
			list = &ports[master].Hairpin
		}
		*list = append(*list, text(attrs[unix.IFLA_IFNAME].Value))
	}
	return nil
}

func text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// firstByte is that of an attribute within another; 0 where it is not there.
func firstByte(nested syscall.NetlinkRouteAttr, kind uint16) byte {
	all, err := nl.ParseRouteAttrAsMap(nested.Value)
	if err != nil || len(all[kind].Value) == 0 {
		return 0
	}
	return all[kind].Value[0]
}

// Advertised are the interfaces of a namespace (nil: this one) that have IPv6 routes or
// addresses which the kernel took from router advertisements, and those of outside that
// may come to: as at boot, they have no address of their own.
func Advertised(ns *netns.Handle, outside []string) (names []string, err error) {
	err = ns.Do(func() error {
		links, err := socket.Whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		addresses, err := socket.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		routes, err := socket.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, l := range links {
			at := l.Attrs()
			if at.Flags&net.FlagLoopback == 0 && advertised(at, addresses, routes, slices.ContainsFunc(outside, gateway.Interface{Name: at.Name, Group: at.Group}.Is)) {
				names = append(names, at.Name)
			}
		}
		return nil
	})
	return names, err
}

func advertised(l *netlink.LinkAttrs, addresses []netlink.Addr, routes []netlink.Route, outside bool) bool {
	if slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == l.Index }) {
		return true
	}
	for _, a := range addresses {
		if a.LinkIndex != l.Index || a.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		outside = false
		if a.Flags&unix.IFA_F_MANAGETEMPADDR != 0 { // of all that come so (addrconf_prefix_rcv_add_addr)
			return true
		}
	}
	return outside
}
