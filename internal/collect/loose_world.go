package collect

import (
	"cmp"
	"errors"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/loose"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// textWorld answers what becomes of packets from what ip, ss and sysctl printed.
type textWorld struct {
	*texts
	// index are the numbers of interfaces.
	index map[string]int
}

func (t *texts) world() (world, error) {
	w := &textWorld{t, map[string]int{}}
	for i, l := range t.Links {
		w.index[l.Name] = cmp.Or(l.Index, math.MaxInt16+i)
	}
	return w, nil
}

func (w *textWorld) close() {}

func (w *textWorld) file(path string) ([]byte, error) {
	data, there := w.Files[path]
	if !there {
		return nil, fs.ErrNotExist
	}
	return data, nil
}

// linkFlags are the words of ip for them, RUNNING excepted: it prints NO-CARRIER instead (print_link_flags).
var linkFlags = map[string]uint32{"UP": unix.IFF_UP, "BROADCAST": unix.IFF_BROADCAST, "LOOPBACK": unix.IFF_LOOPBACK, "POINTOPOINT": unix.IFF_POINTOPOINT, "NOARP": unix.IFF_NOARP}

// portStates are those of a bridge's port (BR_STATE_*).
var portStates = []string{"disabled", "listening", "learning", "forwarding", "blocking"}

func (w *textWorld) interfaces() (all []*link, err error) {
	if !w.HasLinks {
		return nil, errLacks{"interfaces", "'ip -s -d link' or 'ip -d addr'"}
	}
	for _, l := range w.Links {
		one := &link{index: w.index[l.Name], master: w.index[l.Master], name: l.Name, kind: l.Kind, state: slices.Index(portStates, l.PortState), flags: unix.IFF_RUNNING}
		for _, f := range l.Flags {
			one.flags |= linkFlags[f]
			if f == "NO-CARRIER" {
				one.flags &^= unix.IFF_RUNNING
			}
		}
		all = append(all, one)
	}
	return all, nil
}

func (w *textWorld) neighbours() (map[hop]neighbour, error) {
	all := map[hop]neighbour{}
	for _, n := range w.Neighbours {
		index, known := w.index[n.Interface]
		if n.Proxy || !known {
			continue
		}
		var one neighbour
		for state, name := range neighbourStates {
			if name == n.State {
				one.State = state
			}
		}
		one.HardwareAddr, _ = net.ParseMAC(n.Hardware)
		all[hop{index, n.Addr.Unmap()}] = one
	}
	return all, nil
}

func (w *textWorld) proxies() (map[netip.Addr]bool, error) {
	all := map[netip.Addr]bool{}
	for _, n := range w.Neighbours {
		if n.Proxy && n.Is6() {
			all[n.Addr] = true
		}
	}
	return all, nil
}

func (w *textWorld) addresses() (all []ownAddress, err error) {
	if !w.HasAddresses {
		return nil, errLacks{"addresses", "'ip -d addr'"}
	}
	for _, a := range w.Addresses {
		index, known := w.index[a.Interface]
		if !known || a.Scope != "global" && a.Scope != "site" {
			continue
		}
		own := ownAddress{link: index, prefix: a.Prefix, deprecated: slices.Contains(a.Flags, "deprecated"), universe: a.Scope == "global",
			secondary: slices.Contains(a.Flags, "secondary") || slices.Contains(a.Flags, "temporary")}
		switch {
		case slices.Contains(a.Flags, "dadfailed"):
			own.unused = snapshot.AddressDuplicate
		case slices.Contains(a.Flags, "tentative") && !slices.Contains(a.Flags, "optimistic"):
			own.unused = snapshot.AddressTentative
		}
		all = append(all, own)
	}
	return all, nil
}

// tableNumber is that of a table (RT_TABLE_*); 0 of one with a name that only that host knows.
func tableNumber(name string) uint32 {
	switch name {
	case "local":
		return unix.RT_TABLE_LOCAL
	case "main", "":
		return unix.RT_TABLE_MAIN
	case "default":
		return unix.RT_TABLE_DEFAULT
	}
	n, _ := strconv.ParseUint(name, 10, 32)
	return uint32(n)
}

func (w *textWorld) routingRules() (all []routingRule, err error) {
	actions := map[string]uint8{"blackhole": unix.FR_ACT_BLACKHOLE, "unreachable": unix.FR_ACT_UNREACHABLE, "prohibit": unix.FR_ACT_PROHIBIT, "": unix.FR_ACT_TO_TBL}
	for _, r := range w.RoutingRules {
		one := routingRule{priority: r.Priority, v6: r.V6, invert: r.Not, from: r.From, to: r.To, in: r.In, out: r.Out,
			mark: r.Mark, mask: r.Mask, protocol: r.Protocol, sport: r.SPort, dport: r.DPort, action: actions[r.Action]}
		if r.Table != "" {
			one.table = tableNumber(r.Table)
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b routingRule) int { return cmp.Compare(a.priority, b.priority) })
	return all, nil
}

// route finds the route as the kernel does: by the rules in the order of their priority, in a table by the longest
// prefix and the lowest metric (fib_rules_lookup, fib_table_lookup, ip_route_input_slow).
func (w *textWorld) route(r *router, f flow) (route snapshot.Route, err error) {
	if !w.HasRoutes {
		return route, errLacks{"routes", "'ip route show table all'"}
	}
	if f.in != "" && r.named[f.in] == nil {
		return route, errors.New("no such interface")
	}
	found, table, refused := w.lookup(r, f)
	route.Table = table
	switch {
	case refused != 0:
		route.Error = refused.Error()
	case found.Type == "local":
		route.Local = true
	default:
		w.sendOn(r, f, found, &route)
	}
	if route.Error == "" && !route.Local && f.in != "" {
		if why := w.notFrom(r, f); why != 0 {
			route = snapshot.Route{Error: why.Error()}
		}
	}
	route.Policy = r.refusal(f, &route)
	return route, nil
}

// sendOn fills in the next hop, the first one of several that is not dead.
func (w *textWorld) sendOn(r *router, f flow, found *loose.Route, route *snapshot.Route) {
	for _, h := range found.Hops {
		hop := snapshot.Route{NextHop: f.to.Addr(), Out: h.Device, Table: route.Table}
		if h.Via.IsValid() {
			hop.NextHop = h.Via
		}
		r.reach(w.index[h.Device], &hop)
		if len(found.Hops) > 1 && f.packet != nil && len(route.Hops) < mostHops {
			route.Hops = append(route.Hops, hop)
		}
		if route.Out == "" && !h.Dead {
			route.NextHop, route.Out, route.Neighbour, route.Hardware, route.Broken, route.Ports = hop.NextHop, hop.Out, hop.Neighbour, hop.Hardware, hop.Broken, hop.Ports
		}
	}
}

// notFrom is why a packet that comes in by an interface is not sent on: that does not forward (IN_DEV_FORWARD), or its
// reverse path filter is strict and answers leave by another one (__fib_validate_source).
func (w *textWorld) notFrom(r *router, f flow) unix.Errno {
	if off, err := r.notForwarded(f.to.Addr().Is6(), f.in); f.to.Addr().Is4() && err == nil && off != "" {
		return unix.EHOSTUNREACH
	}
	if !f.from.Addr().Is4() || max(r.strictFilter("all"), r.strictFilter(f.in)) != 1 {
		return 0
	}
	back, _, refused := w.lookup(r, flow{to: netip.AddrPortFrom(f.from.Addr(), 0)})
	if refused == 0 && back.Type == "unicast" && slices.ContainsFunc(back.Hops, func(h loose.Hop) bool { return h.Device == f.in }) {
		return 0
	}
	return unix.EXDEV
}

// refusing are types of routes with the error of what is sent there (fib_props).
var refusing = map[string]unix.Errno{"unreachable": unix.EHOSTUNREACH, "blackhole": unix.EINVAL, "prohibit": unix.EACCES}

// lookup follows the routing rules.
func (w *textWorld) lookup(r *router, f flow) (found *loose.Route, table uint32, refused unix.Errno) {
	v6 := f.to.Addr().Is6()
	rules := slices.Concat([]routingRule{{table: unix.RT_TABLE_LOCAL, v6: v6}}, r.rules,
		[]routingRule{{priority: 32766, table: unix.RT_TABLE_MAIN, v6: v6}, {priority: 32767, table: unix.RT_TABLE_DEFAULT, v6: v6}})
	slices.SortStableFunc(rules, func(a, b routingRule) int { return cmp.Compare(a.priority, b.priority) })
	for i := range rules {
		rule := &rules[i]
		if !rule.selects(f) {
			continue
		}
		if errno, refuses := refusingTypes[rule.action]; refuses {
			return nil, 0, errno
		}
		best := w.longest(rule.table, f.to.Addr())
		switch {
		case best == nil || best.Type == "throw":
			continue
		case refusing[best.Type] != 0:
			return nil, rule.table, refusing[best.Type]
		}
		return best, rule.table, 0
	}
	return nil, 0, unix.ENETUNREACH
}

func (w *textWorld) longest(table uint32, to netip.Addr) (best *loose.Route) {
	for i := range w.Routes {
		r := &w.Routes[i]
		if !r.To.Contains(to) || tableNumber(r.Table) != table || r.From.IsValid() && r.From.Bits() > 0 || r.Type == "broadcast" || r.Type == "multicast" || r.Type == "anycast" || r.Type == "nat" {
			continue
		}
		if r.Type == "unicast" && !slices.ContainsFunc(r.Hops, func(h loose.Hop) bool { return !h.Dead }) {
			continue
		}
		if best == nil || r.To.Bits() > best.To.Bits() || r.To.Bits() == best.To.Bits() && r.Metric < best.Metric {
			best = r
		}
	}
	return best
}

func (w *textWorld) mainRoutes(most int) (all []mainRoute, whole bool) {
	for _, r := range w.Routes {
		if !r.To.Addr().Is4() || r.Type != "unicast" || tableNumber(r.Table) != unix.RT_TABLE_MAIN {
			continue
		}
		if most--; most <= 0 {
			return all, false
		}
		for _, h := range r.Hops {
			all = append(all, mainRoute{r.To, h.Via, h.Device})
		}
	}
	return all, w.HasRoutes
}

func (w *textWorld) leadsOut(l *link) (bool, error) {
	if !w.HasRoutes {
		return false, errLacks{"routes", "'ip route show table all'"}
	}
	from := netip.Addr{}
	for _, a := range w.Addresses {
		if a.Interface == l.name && a.Addr().Is4() && !from.IsValid() {
			from = a.Addr()
		}
	}
	f := flow{from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(public(false), 0)}
	rules, _ := w.routingRules()
	rules = append(rules, routingRule{table: unix.RT_TABLE_MAIN}, routingRule{table: unix.RT_TABLE_DEFAULT})
	tables := w.defaultTables(l)
	return slices.ContainsFunc(rules, func(r routingRule) bool { return r.selects(f) && slices.Contains(tables, r.table) }), nil
}

func (w *textWorld) defaultTables(l *link) (tables []uint32) {
	for _, r := range w.Routes {
		out := slices.ContainsFunc(r.Hops, func(h loose.Hop) bool { return h.Device == l.name })
		if r.To.Addr().Is4() && r.To.Bits() == 0 && r.Type == "unicast" && out {
			tables = append(tables, tableNumber(r.Table))
		}
	}
	return tables
}

func (w *textWorld) sockets(protocol string) (open []snapshot.AcceptQueue, err error) {
	there := false
	for _, s := range w.Sockets {
		waits := s.Protocol == "tcp" && s.State == "LISTEN" || s.Protocol == "udp" && s.State == "UNCONN"
		if s.Protocol != protocol || !waits {
			continue
		}
		there = true
		if i := slices.IndexFunc(open, func(o snapshot.AcceptQueue) bool { return o.Socket == s.Local }); i >= 0 && s.Limit == 0 {
			continue // two programs printed it
		}
		open = append(open, snapshot.AcceptQueue{Socket: s.Local, Waiting: s.Queue, Limit: s.Limit})
	}
	if !there && !w.ListedSockets(protocol) {
		return nil, errLacks{"listening sockets of " + protocol, "'ss -tuna'"}
	}
	return open, nil
}

// sublinkOf: no text has the filter of an interface.
func (w *textWorld) sublinkOf(string) string { return "" }

// mappings: no text has them.
func (w *textWorld) mappings() (mappings, error) { return nil, nil }

// ownPorts counts the ports of own connections.
func (t *texts) ownPorts() (*snapshot.OwnPorts, error) {
	if !t.HasSockets {
		return nil, errLacks{"own connections", "'ss -tan'"}
	}
	r, err := parseLocalPorts(string(t.Files[sysctlRoot+"net/ipv4/ip_local_port_range"]), string(t.Files[sysctlRoot+"net/ipv4/ip_local_reserved_ports"]))
	if err != nil {
		return nil, err
	}
	uses := ownUses{}
	for _, s := range t.Sockets {
		if s.Protocol == "tcp" && s.State != "LISTEN" {
			uses.add(r, s.Local, s.Remote, s.State == "TIME-WAIT")
		}
	}
	return uses.worst(r.ports()), nil
}

// linksOf are the interfaces and queues with their counters.
func (t *texts) linksOf() (*snapshot.Links, error) {
	if !t.HasLinkCounters && !t.HasQueues {
		return nil, errLacks{"counters of interfaces and queues", "'ip -s link' and 'tc -s qdisc'"}
	}
	l := &snapshot.Links{All: []snapshot.Link{}, TooMany: len(t.Links) > mostLinks}
	for _, one := range t.Links[:min(len(t.Links), mostLinks)] {
		l.All = append(l.All, one.Link)
	}
	l.Queues = t.Queues[:min(len(t.Queues), mostQueuesRead)]
	return l, nil
}

// asked are the answers that the collectors find with the world of the texts.
var asked = []string{"dnat_targets.json", "audit.json", "ways.json", "icmp_errors.json", "routes.json", "reverse_paths.json", "accept_queues.json"}

func isAsked(member string) bool {
	return slices.ContainsFunc(asked, func(a string) bool { return strings.EqualFold(a, member) })
}
