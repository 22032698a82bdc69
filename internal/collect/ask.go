//go:build linux

package collect

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	natnetlink "github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// asked is what the kernel was asked for once for a snapshot.
type asked struct {
	// tables are what judged has read, routes is what asksRoutes has opened, host what readHost has read.
	tables []*ruleset.Table
	routes *router
	host   *host
	// lookedUp is what lookUp has read.
	lookedUp *lookups
}

// release closes what was opened.
func (a *asked) release() {
	if a.routes != nil {
		a.routes.close()
		a.routes = nil
	}
	if k := a.lookedUp; k != nil && k.mappings != nil {
		_ = k.mappings.Close()
	}
}

func askAcceptQueues() (*[]snapshot.AcceptQueue, error) {
	all, err := openSockets("tcp")
	all = slices.DeleteFunc(all, func(q snapshot.AcceptQueue) bool { return q.Waiting == 0 })
	free := func(q snapshot.AcceptQueue) int64 { return int64(q.Limit) - int64(q.Waiting) }
	slices.SortStableFunc(all, func(a, b snapshot.AcceptQueue) int {
		return cmp.Or(cmp.Compare(free(a), free(b)), a.Socket.Compare(b.Socket))
	})
	all = all[:min(len(all), mostQueues)]
	return &all, err
}

func (o *observation) askICMPErrors() (*snapshot.Filter, error) {
	tables, err := o.judged()
	if err != nil {
		return nil, err
	}
	k := &lookups{tables: tables, judged: mostJudged}
	const unreachable, tooLarge = 3, 4 // ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED
	return k.filter(&ruleset.Packet{Conn: ruleset.ConnRelated, Packet: nat.Packet{Protocol: unix.IPPROTO_ICMP}, ICMP: true, Type: unreachable, Code: tooLarge}, "output", "postrouting"), nil
}

// askReversePaths asks, for each interface, for the route to a public address that leads out of
// it: that is a default route, also one of a table for the interface's own address.
func askReversePaths() (*[]snapshot.ReversePath, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	all := strictFilter("all")
	paths := []snapshot.ReversePath{}
	for _, l := range links[:min(len(links), mostPaths)] {
		// The effective value is the larger one, and 2 is loose (IN_DEV_RPFILTER).
		if mode := max(all, strictFilter(l.Name)); mode != 1 || l.Flags&net.FlagUp == 0 || l.Flags&net.FlagLoopback != 0 {
			continue
		}
		options := &netlink.RouteGetOptions{OifIndex: l.Index, SrcAddr: firstIPv4(&l), FIBMatch: true}
		routes, err := netlink.RouteGetWithOptions(net.IPv4(1, 0, 0, 1), options)
		path := snapshot.ReversePath{Interface: l.Name, Default: err == nil && len(routes) > 0}
		if !path.Default {
			path.Selected = selectedWay(l.Index, l.Name)
		}
		paths = append(paths, path)
	}
	return &paths, nil
}

// selectedWay is the routing rule for packets of a mark, or that come in by an interface, that leads to a default
// route out of this one: fib_validate_source asks without either, unless src_valid_mark is set.
func selectedWay(index int, device string) string {
	for _, name := range []string{"all", device} {
		if text, _ := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/src_valid_mark"); strings.TrimSpace(string(text)) != "0" {
			return ""
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	rules, ruleErr := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil || ruleErr != nil {
		return ""
	}
	for _, r := range rules {
		if r.Mark == 0 && r.IifName == "" || r.Src != nil || r.Invert {
			continue
		}
		for _, route := range routes {
			if everywhere := route.Dst == nil || route.Dst.IP.IsUnspecified(); route.Table == r.Table && everywhere {
				word := fmt.Sprintf("fwmark %#x", r.Mark)
				if r.Mark == 0 {
					word = "iif " + r.IifName
				}
				return fmt.Sprintf("%d: %s lookup %d", r.Priority, word, r.Table)
			}
		}
	}
	return ""
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

func askNATRules() (*snapshot.NATRules, error) { return read.NAT(nil) }

// Generic netlink of IPVS (include/uapi/linux/ip_vs.h).
const (
	ipvsFamily        = "IPVS"
	ipvsVersion       = 1
	ipvsGetConfig     = 13 // IPVS_CMD_GET_CONFIG
	ipvsTimeoutTCP    = 4  // IPVS_CMD_ATTR_TIMEOUT_TCP
	ipvsTimeoutTCPFin = 5
	ipvsTimeoutUDP    = 6
)

// askIPVSTimeouts asks for the family by name, which loads no module: /proc/net/ip_vs is
// there.
func askIPVSTimeouts() (*snapshot.IPVSTimeouts, error) {
	c, err := socket.Dial(nil, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("read the timeouts of IPVS: %w", err)
	}
	defer c.Close()
	answers, err := c.AskGeneric(ipvsFamily, ipvsVersion, ipvsGetConfig, 0, nil)
	if err == nil && len(answers) != 1 {
		err = natnetlink.ErrTruncated
	}
	if err != nil {
		return nil, fmt.Errorf("read the timeouts of IPVS: %w", netns.Denied(err, netns.NetAdmin))
	}
	return timeoutsOf(answers[0]), nil
}

func timeoutsOf(a natnetlink.Attrs) *snapshot.IPVSTimeouts {
	seconds := func(kind uint16) int64 {
		if b := a.Get(kind); len(b) == 4 {
			return int64(binary.NativeEndian.Uint32(b))
		}
		return 0
	}
	return &snapshot.IPVSTimeouts{TCP: seconds(ipvsTimeoutTCP), TCPFin: seconds(ipvsTimeoutTCPFin), UDP: seconds(ipvsTimeoutUDP)}
}

// Sockets lists the TCP and UDP sockets of a namespace (nil: this one), by
// sock_diag. Those in TIME_WAIT are among them: they have their port still.
func Sockets(ns *netns.Handle) (all []ports.Socket, err error) {
	read := func() error {
		for _, kind := range []struct {
			name   string
			proto  uint8
			list   func(family uint8) ([]*netlink.Socket, error)
			family uint8
		}{
			{"TCP", unix.IPPROTO_TCP, netlink.SocketDiagTCP, unix.AF_INET}, {"TCP over IPv6", unix.IPPROTO_TCP, netlink.SocketDiagTCP, unix.AF_INET6},
			{"UDP", unix.IPPROTO_UDP, netlink.SocketDiagUDP, unix.AF_INET}, {"UDP over IPv6", unix.IPPROTO_UDP, netlink.SocketDiagUDP, unix.AF_INET6},
		} {
			sockets, err := kind.list(kind.family)
			if err != nil {
				return fmt.Errorf("list sockets of %s: %w (needs CONFIG_INET_DIAG)", kind.name, err)
			}
			for _, s := range sockets {
				all = append(all, ports.Socket{Proto: kind.proto,
					Local: endpoint(s.ID.Source, s.ID.SourcePort), Remote: endpoint(s.ID.Destination, s.ID.DestinationPort)})
			}
		}
		return nil
	}
	err = ns.Do(read)
	return all, err
}

func endpoint(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}

// Release is the running kernel's.
func Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// newRouter reads what is the same for all packets.
func newRouter() (*router, error) {
	r := &router{links: map[int]*link{}, named: map[string]*link{}, neighbours: map[hop]neighbour{}, known: map[string]snapshot.Route{}}
	all, err := socket.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_UNSPEC) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range all {
		if address, ok := netip.AddrFromSlice(n.IP); ok {
			r.neighbours[hop{n.LinkIndex, address.Unmap()}] = neighbour{n.State, n.HardwareAddr}
		}
	}
	if r.conn, err = socket.Dial(nil, unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if err = r.readLinks(); err == nil {
		err = r.readRules()
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// asksRoutes is the router of a snapshot, which collect closes.
func (o *observation) asksRoutes() (_ *router, err error) {
	if o.routes == nil {
		if o.routes, err = newRouter(); err == nil {
			o.routes.tables, err = o.judged()
		}
	}
	return o.routes, err
}

func (n *reading) askRoutes(all []failed) (*map[string]snapshot.Route, error) {
	var known map[string]snapshot.Route
	err := n.src.inside(func() error {
		k, err := newRouter()
		if err != nil {
			return err
		}
		defer k.close()
		k.tables = n.tables
		for i := range all {
			k.bothWays(n.Audit, &all[i])
		}
		known = k.known
		return nil
	})
	return &known, err
}

// ask lists the TCP sockets with a port of the range (struct inet_diag_req_v2 and inet_diag_msg,
// include/uapi/linux/inet_diag.h).
func (r localPorts) ask() (*snapshot.OwnPorts, error) {
	c, err := socket.Dial(nil, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	uses := ownUses{}
	for family, size := range map[byte]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		answers, err := c.Ask(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, r.request(family))
		if err != nil {
			return nil, fmt.Errorf("list sockets of TCP: %w (needs CONFIG_INET_DIAG)", err)
		}
		for _, a := range answers {
			uses.add(r, a, size)
		}
	}
	return uses.worst(r.ports()), nil
}

// request asks for the sockets in all states but LISTEN whose port is of the range: two
// instructions for the kernel (inet_diag_bc_run), of which each leads behind the end, which
// refuses, where it does not hold.
func (r localPorts) request(family byte) []byte {
	const listen, bytecode, ge, le = 10, 1, 2, 3
	request := make([]byte, 56)
	request[0], request[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(request[4:], 0xfff&^(1<<listen))
	op := func(code, yes byte, no uint16) {
		request = binary.NativeEndian.AppendUint16(append(request, code, yes), no)
	}
	request = binary.NativeEndian.AppendUint16(request, 4+16)
	request = binary.NativeEndian.AppendUint16(request, bytecode)
	op(ge, 8, 20)
	op(0, 0, r.first)
	op(le, 8, 12)
	op(0, 0, r.last)
	return request
}

// ownUse is a pair of addresses; ownUses the ports in use of each, and whether in TIME_WAIT.
type ownUse struct {
	local netip.Addr
	to    netip.AddrPort
}

type ownUses map[ownUse]map[uint16]bool

func (u ownUses) add(r localPorts, m natnetlink.Message, size int) {
	const state, port, peer, local, remote, end, timeWait = 1, 4, 6, 8, 24, 40, 6
	if len(m.Body) < end {
		return
	}
	own := binary.BigEndian.Uint16(m.Body[port:])
	from, _ := netip.AddrFromSlice(m.Body[local : local+size])
	to, _ := netip.AddrFromSlice(m.Body[remote : remote+size])
	if own < r.first || own > r.last || r.reserved[own] || to.IsUnspecified() {
		return
	}
	key := ownUse{from.Unmap(), netip.AddrPortFrom(to.Unmap(), binary.BigEndian.Uint16(m.Body[peer:]))}
	if u[key] == nil {
		u[key] = map[uint16]bool{}
	}
	u[key][own] = m.Body[state] == timeWait
}

func (u ownUses) worst(ports int64) *snapshot.OwnPorts {
	all := &snapshot.OwnPorts{Ports: ports, Uses: []snapshot.OwnPortUse{}}
	for key, used := range u {
		one := snapshot.OwnPortUse{Local: key.local, Destination: key.to, Used: int64(len(used))}
		for _, timeWait := range used {
			if timeWait {
				one.TimeWait++
			}
		}
		all.Uses = append(all.Uses, one)
	}
	slices.SortFunc(all.Uses, func(a, b snapshot.OwnPortUse) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), a.Destination.Compare(b.Destination), a.Local.Compare(b.Local))
	})
	all.Uses = all.Uses[:min(len(all.Uses), mostOwnUses)]
	return all
}
