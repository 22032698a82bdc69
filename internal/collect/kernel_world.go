//go:build linux

package collect

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/bpf/plane"
	natnetlink "github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelWorld asks the kernel, in the namespace of the calling thread.
type kernelWorld struct{ conn *socket.Conn }

func (k *kernelWorld) close() { k.conn.Close() }

// file reads /proc/net of the thread: that of the process is its first thread's.
func (k *kernelWorld) file(path string) ([]byte, error) {
	if name, is := strings.CutPrefix(path, "/proc/net/"); is {
		path = "/proc/thread-self/net/" + name
	}
	return os.ReadFile(path)
}

func (k *kernelWorld) neighbours() (map[hop]neighbour, error) {
	entries, err := socket.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	all := map[hop]neighbour{}
	for _, n := range entries {
		if address, ok := netip.AddrFromSlice(n.IP); ok {
			all[hop{n.LinkIndex, address.Unmap()}] = neighbour{n.State, n.HardwareAddr}
		}
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
		own := ownAddress{link: a.LinkIndex, prefix: netip.PrefixFrom(ip.Unmap(), bits), secondary: a.Flags&unix.IFA_F_SECONDARY != 0,
			deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0, universe: a.Scope == int(netlink.SCOPE_UNIVERSE)}
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

func (k *kernelWorld) mappings() (mappings, error) {
	pins, err := plane.PinsIn(nil)
	if err != nil {
		return nil, err
	}
	m, err := pins.Mappings()
	if m == nil || err != nil {
		return nil, err
	}
	return m, nil
}

func isUnicast(address net.HardwareAddr) bool {
	return len(address) == 6 && address[0]&1 == 0 && !slices.Equal(address, make(net.HardwareAddr, 6))
}

// sockets lists listening TCP sockets, with their accept queues, or UDP sockets without a
// peer (inet_diag_msg_attrs_fill; struct inet_diag_req_v2 and inet_diag_msg, include/uapi/linux/inet_diag.h).
func (k *kernelWorld) sockets(protocol string) (open []snapshot.AcceptQueue, err error) {
	listeners, err := socket.Listeners(protocol)
	for _, l := range listeners {
		open = append(open, snapshot.AcceptQueue{Socket: l.Local, Waiting: l.Waiting, Limit: l.Limit})
	}
	return open, err
}

// interfaces lists them (rtnl_fill_ifinfo).
func (k *kernelWorld) interfaces() (all []*link, err error) {
	messages, err := k.conn.Ask(unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg))
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, m := range messages {
		if len(m.Body) < unix.SizeofIfInfomsg {
			continue
		}
		attrs, err := natnetlink.ParseAttrs(m.Body[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		info := attrs.Nested(unix.IFLA_LINKINFO)
		l := &link{index: int(binary.NativeEndian.Uint32(m.Body[4:])), flags: binary.NativeEndian.Uint32(m.Body[8:]), state: -1,
			master: int(native(attrs, unix.IFLA_MASTER)), name: attrs.Text(unix.IFLA_IFNAME), kind: info.Text(unix.IFLA_INFO_KIND)}
		if info.Text(unix.IFLA_INFO_SLAVE_KIND) == "bridge" {
			if state := info.Nested(unix.IFLA_INFO_SLAVE_DATA).Get(unix.IFLA_BRPORT_STATE); len(state) == 1 {
				l.state = int(state[0])
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// native is a number in the host's byte order; 0 if it is missing.
func native(a natnetlink.Attrs, kind uint16) uint32 {
	if b := a.Get(kind); len(b) >= 4 {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

// routingRules lists them (fib_nl_fill_rule).
func (k *kernelWorld) routingRules() (all []routingRule, err error) {
	messages, err := k.conn.Ask(unix.RTM_GETRULE, unix.NLM_F_DUMP, make([]byte, unix.SizeofRtMsg))
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	for _, m := range messages {
		if len(m.Body) < unix.SizeofRtMsg || m.Body[0] != unix.AF_INET && m.Body[0] != unix.AF_INET6 {
			continue
		}
		attrs, err := natnetlink.ParseAttrs(m.Body[unix.SizeofRtMsg:])
		if err != nil {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		rule := routingRule{
			v6: m.Body[0] == unix.AF_INET6, action: m.Body[7], invert: binary.NativeEndian.Uint32(m.Body[8:])&unix.FIB_RULE_INVERT != 0,
			priority: native(attrs, unix.FRA_PRIORITY), table: native(attrs, unix.FRA_TABLE),
			in: attrs.Text(unix.FRA_IIFNAME), out: attrs.Text(unix.FRA_OIFNAME),
			from: prefixFrom(attrs.Get(unix.FRA_SRC), m.Body[2]), to: prefixFrom(attrs.Get(unix.FRA_DST), m.Body[1]),
			mark: native(attrs, unix.FRA_FWMARK), mask: native(attrs, unix.FRA_FWMASK),
		}
		if p := attrs.Get(unix.FRA_IP_PROTO); len(p) == 1 {
			rule.protocol = p[0]
		}
		for kind, ports := range map[uint16]*[2]uint16{unix.FRA_SPORT_RANGE: &rule.sport, unix.FRA_DPORT_RANGE: &rule.dport} {
			if p := attrs.Get(kind); len(p) == 4 {
				ports[0], ports[1] = binary.NativeEndian.Uint16(p), binary.NativeEndian.Uint16(p[2:])
			}
		}
		all = append(all, rule)
	}
	return all, nil
}

func prefixFrom(address []byte, bits uint8) netip.Prefix {
	a, _ := netip.AddrFromSlice(address)
	return netip.PrefixFrom(a, int(bits))
}

// refused are the errors by which the kernel says that it does not send a packet on: no route, one that
// refuses (fib_props), a source that cannot come in there (fib_validate_source).
var refused = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EXDEV}

// route sends one request (inet_rtm_getroute, inet6_rtm_getroute). Linux 4.18 and later know protocol
// and ports, of TCP and UDP; earlier ones pass over them.
func (k *kernelWorld) route(r *router, f flow) (route snapshot.Route, err error) {
	const lookupTable, fibMatch = 0x1000, 0x2000 // RTM_F_LOOKUP_TABLE, RTM_F_FIB_MATCH
	bits, family := uint8(f.to.Addr().BitLen()), uint8(unix.AF_INET)
	if f.to.Addr().Is6() {
		family = unix.AF_INET6
	}
	body := []byte{family, bits, 0, 0, 0, 0, 0, 0}
	body = binary.NativeEndian.AppendUint32(body, lookupTable)
	body = natnetlink.AppendAttr(body, unix.RTA_DST, f.to.Addr().AsSlice())
	if f.from.Addr().IsValid() {
		body[2] = bits
		body = natnetlink.AppendAttr(body, unix.RTA_SRC, f.from.Addr().AsSlice())
	}
	if f.in != "" {
		if r.named[f.in] == nil {
			return route, errors.New("no such interface")
		}
		body = natnetlink.AppendAttr(body, unix.RTA_IIF, binary.NativeEndian.AppendUint32(nil, uint32(r.named[f.in].index)))
	}
	if f.mark != 0 {
		body = natnetlink.AppendAttr(body, unix.RTA_MARK, binary.NativeEndian.AppendUint32(nil, f.mark))
	}
	if f.protocol == unix.IPPROTO_TCP || f.protocol == unix.IPPROTO_UDP {
		body = natnetlink.AppendU8(body, unix.RTA_IP_PROTO, f.protocol)
		for kind, port := range map[uint16]uint16{unix.RTA_SPORT: f.from.Port(), unix.RTA_DPORT: f.to.Port()} {
			if port != 0 {
				body = natnetlink.AppendAttr(body, kind, binary.BigEndian.AppendUint16(nil, port))
			}
		}
	}
	answers, err := k.conn.Ask(unix.RTM_GETROUTE, 0, body)
	if err == nil && f.packet != nil { // the same with all next hops
		binary.NativeEndian.PutUint32(body[8:], lookupTable|fibMatch)
		if all, err := k.conn.Ask(unix.RTM_GETROUTE, 0, body); err == nil && len(all) > 0 {
			defer func() { route.Hops = r.hops(all[0].Body, f) }()
		}
	}
	var errno unix.Errno
	switch {
	case errors.As(err, &errno) && slices.Contains(refused, errno):
		route.Error = errno.Error()
		if route.Policy = r.refusal(f, &route); errno == unix.EINVAL && route.Policy == "" && r.foreign(f) {
			route.Error = unix.EXDEV.Error()
		}
		return route, nil
	case err != nil || len(answers) == 0:
		return route, cmp.Or(err, errors.New("no answer"))
	}
	return r.parse(f, answers[0].Body)
}

func (r *router) parse(f flow, body []byte) (route snapshot.Route, err error) {
	if len(body) < unix.SizeofRtMsg {
		return route, errors.New("a route is cut short")
	}
	attrs, err := natnetlink.ParseAttrs(body[unix.SizeofRtMsg:])
	if err != nil {
		return route, err
	}
	route.Table = native(attrs, unix.RTA_TABLE)
	if errno, refuses := refusingTypes[body[7]]; refuses {
		route.Error = errno.Error()
	} else if body[7] == unix.RTN_LOCAL {
		route.Local = true
	} else {
		index := int(native(attrs, unix.RTA_OIF))
		route.NextHop = f.to.Addr()
		if l := r.links[index]; l != nil {
			route.Out = l.name
		}
		if gw, ok := netip.AddrFromSlice(attrs.Get(unix.RTA_GATEWAY)); ok {
			route.NextHop = gw.Unmap()
		} else if via := attrs.Get(unix.RTA_VIA); len(via) > 2 { // struct rtvia
			if gw, ok := netip.AddrFromSlice(via[2:]); ok {
				route.NextHop = gw
			}
		}
		r.reach(index, &route)
	}
	route.Policy = r.policy(f, &route)
	return route, nil
}

// hops are the next hops of a route with several (struct rtnexthop; fib_add_nexthop).
func (r *router) hops(body []byte, f flow) (all []snapshot.Route) {
	if len(body) < unix.SizeofRtMsg {
		return nil
	}
	attrs, err := natnetlink.ParseAttrs(body[unix.SizeofRtMsg:])
	if err != nil {
		return nil
	}
	rest := attrs.Get(unix.RTA_MULTIPATH)
	for len(rest) >= unix.SizeofRtNexthop && len(all) < mostHops {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofRtNexthop || size > len(rest) {
			break
		}
		hop := snapshot.Route{NextHop: f.to.Addr(), Table: native(attrs, unix.RTA_TABLE)}
		index := int(binary.NativeEndian.Uint32(rest[4:]))
		if l := r.links[index]; l != nil {
			hop.Out = l.name
		}
		own, err := natnetlink.ParseAttrs(rest[unix.SizeofRtNexthop:size])
		if gw, ok := netip.AddrFromSlice(own.Get(unix.RTA_GATEWAY)); ok && err == nil {
			hop.NextHop = gw.Unmap()
		}
		r.reach(index, &hop)
		all, rest = append(all, hop), rest[min((size+3)&^3, len(rest)):]
	}
	return all
}
