package collect

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// flow is a packet that the kernel is asked for the route of: one that comes in by an interface, or, where
// that is empty, one of this host.
type flow struct {
	protocol uint8
	from, to netip.AddrPort
	in       string
	// packet is what rules are asked about, of a connection of which all next hops and marks are of
	// interest; nil for one like the flow. mark is what they give to it.
	packet *ruleset.Packet
	mark   uint32
}

func (f flow) String() string { return fmt.Sprintf("%d %s > %s in %s", f.protocol, f.from, f.to, f.in) }

// router asks the kernel for routes, and knows what it was asked before.
type router struct {
	// world is nil for a bundle.
	world
	links      map[int]*link
	named      map[string]*link
	neighbours map[hop]neighbour
	// sortedHops are the keys of neighbours in order, once they were asked for.
	sortedHops []hop
	// tables are the rules that mark packets; marking bounds how many of them are asked.
	tables  []*ruleset.Table
	marking int
	// rules are the routing rules in the order in which they are asked, those of every host left out.
	rules []routingRule
	// known are the answers by flow; of a bundle there are no others.
	known map[string]snapshot.Route
	// forwarding has which interfaces forward, by the file that says so.
	forwarding map[string]bool
}

// hop is a neighbour on an interface.
type hop struct {
	link    int
	address netip.Addr
}

// newRouter reads what is the same for all packets.
func newRouter(w world) (*router, error) {
	r := &router{world: w, links: map[int]*link{}, named: map[string]*link{}, known: map[string]snapshot.Route{}, forwarding: map[string]bool{}}
	var err error
	if r.neighbours, err = w.neighbours(); err != nil {
		return nil, err
	}
	links, err := w.interfaces()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		r.links[l.index], r.named[l.name] = l, l
	}
	rules, err := w.routingRules()
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		if rule.priority != 0 && rule.priority != 32766 && rule.priority != 32767 {
			r.rules = append(r.rules, rule)
		}
	}
	return r, nil
}

// asksRoutes is the router of a snapshot, which collect closes.
func (o *observation) asksRoutes() (_ *router, err error) {
	if o.routes != nil {
		return o.routes, nil
	}
	w, err := o.src.world()
	if err != nil {
		return nil, err
	}
	if o.routes, err = newRouter(w); err == nil {
		o.routes.tables, err = o.judged()
	}
	if o.routes == nil {
		w.close()
	}
	return o.routes, err
}

func (r *router) close() { r.world.close() }

// link is an interface.
type link struct {
	index, master int
	name          string
	flags         uint32
	kind          string
	// state is that of a bridge's port (BR_STATE_*), -1 of what is none.
	state int
}

// sorted are the interfaces in the order of their numbers.
func (r *router) sorted() []*link {
	return slices.SortedFunc(maps.Values(r.links), func(a, b *link) int { return cmp.Compare(a.index, b.index) })
}

// sortedNeighbours are the entries in the order of their addresses.
func (r *router) sortedNeighbours() iter.Seq2[hop, neighbour] {
	if len(r.sortedHops) != len(r.neighbours) {
		r.sortedHops = slices.SortedFunc(maps.Keys(r.neighbours), func(a, b hop) int { return cmp.Or(cmp.Compare(a.link, b.link), a.address.Compare(b.address)) })
	}
	return func(yield func(hop, neighbour) bool) {
		for _, at := range r.sortedHops {
			if !yield(at, r.neighbours[at]) {
				return
			}
		}
	}
}

// noARP reports whether an interface neither asks nor answers who has an address, though hosts on its
// network do, and no permanent entries replace that.
func (r *router) noARP(l *link) bool {
	if l.flags&(unix.IFF_NOARP|unix.IFF_BROADCAST|unix.IFF_UP) != unix.IFF_NOARP|unix.IFF_BROADCAST|unix.IFF_UP ||
		!slices.Contains([]string{"", "veth", "vlan", "bridge", "bond", "team", "macvlan"}, l.kind) || l.master != 0 {
		return false
	}
	for at, n := range r.neighbours {
		if at.link == l.index && n.State == unix.NUD_PERMANENT {
			return false
		}
	}
	return true
}

// routingRule is one of ip-rule(8).
type routingRule struct {
	priority   uint32
	v6, invert bool
	from, to   netip.Prefix
	in, out    string
	mark, mask uint32
	protocol   uint8
	// sport and dport are the first and the last port; 0 for any.
	sport, dport [2]uint16
	table        uint32
	// action is that of FR_ACT_*.
	action uint8
}

// ask returns the route of a packet; false where it is not known.
func (r *router) ask(f flow) (snapshot.Route, bool) {
	if route, known := r.known[f.String()]; known || r.world == nil {
		return route, known
	}
	all := f.packet != nil
	mark, unknown := r.marked(f)
	f.mark = mark
	route, err := r.route(r, f)
	if err != nil {
		return route, false
	}
	route.Mark = mark
	for _, rule := range r.rules {
		route.Doubtful = route.Doubtful || rule.mask&unknown != 0
	}
	for _, other := range append(r.marks(), 0) {
		if other == mark || !route.Doubtful && (!all || other == 0) {
			continue
		}
		f.mark = other
		if m, err := r.route(r, f); err == nil && (m.Out != route.Out || m.Error != route.Error || m.NextHop != route.NextHop) {
			route.Marked = append(route.Marked, snapshot.MarkedRoute{Mark: other, Route: m})
		}
	}
	r.known[f.String()] = route
	return route, true
}

// marked returns the mark that rules give to what comes in, and the bits that are not known of it.
func (r *router) marked(f flow) (mark, unknown uint32) {
	if f.in == "" || len(r.marks()) == 0 {
		return 0, 0
	}
	if f.packet == nil {
		f.packet = packetOf(f, ruleset.ConnNew)
	}
	if !r.judge(f.packet, "prerouting") {
		return 0, 1<<32 - 1
	}
	return f.packet.Marked()
}

// judge has rules mark a packet; false where too many were asked before.
func (r *router) judge(p *ruleset.Packet, hooks ...string) bool {
	if !r.afford(hooks...) {
		return false
	}
	ruleset.Judge(r.tables, p, hooks...)
	return true
}

// afford reports whether the rules may be asked once more, and counts that.
func (r *router) afford(hooks ...string) bool {
	if r.marking == 0 && len(r.tables) > 0 {
		r.marking = mostJudged
	}
	for _, t := range r.tables {
		for _, c := range t.Chains {
			r.marking -= len(c.Rules) * len(hooks)
		}
	}
	return r.marking >= 0
}

// packetOf is the packet of a flow that rules are asked about.
func packetOf(f flow, state ruleset.ConnBits) *ruleset.Packet {
	return &ruleset.Packet{Conn: state, Packet: nat.Packet{
		Protocol: f.protocol, Src: f.from.Addr(), SrcPort: f.from.Port(), Dst: f.to.Addr(), DstPort: f.to.Port(), In: f.in,
	}}
}

// mostMarks bounds the marks that are tried, mostHops the next hops of a route.
const (
	mostMarks = 16
	mostHops  = 16
)

// marks are those that routing rules are for.
func (r *router) marks() (all []uint32) {
	for _, rule := range r.rules {
		if rule.mark != 0 && !slices.Contains(all, rule.mark) && len(all) < mostMarks {
			all = append(all, rule.mark)
		}
	}
	return all
}

// foreign reports whether the reverse path filter drops a packet, for which kernels since 6.14 answer EINVAL as
// for a blackhole: it is strict, and the way back to the source is by another interface (__fib_validate_source).
func (r *router) foreign(f flow) bool {
	if f.in == "" || !f.from.Addr().Is4() || max(r.strictFilter("all"), r.strictFilter(f.in)) != 1 {
		return false
	}
	back, err := r.route(r, flow{to: netip.AddrPortFrom(f.from.Addr(), 0)})
	return err == nil && back.Out != f.in
}

// refusal is the text of the rule by which a packet is refused: one that refuses itself, or the only one that
// leads such packets to another table, where others are sent on.
func (r *router) refusal(f flow, route *snapshot.Route) string {
	if text := r.policy(f, route); text != "" || f.in == "" {
		return text
	}
	var led []*routingRule
	for i := range r.rules {
		if r.rules[i].selects(f) {
			led = append(led, &r.rules[i])
		}
	}
	others, err := r.route(r, flow{to: f.to})
	if len(led) != 1 || err != nil || others.Error == route.Error || r.foreign(f) {
		return ""
	}
	return led[0].String()
}

// refusingTypes are types of routes with the error of what is sent there (fib_props). IPv6 answers with
// the route.
var refusingTypes = map[uint8]unix.Errno{unix.RTN_BLACKHOLE: unix.EINVAL, unix.RTN_UNREACHABLE: unix.EHOSTUNREACH, unix.RTN_PROHIBIT: unix.EACCES}

// reach finds out what is known of the neighbour and the interface.
func (r *router) reach(index int, route *snapshot.Route) {
	n, known := r.neighbours[hop{index, route.NextHop}]
	if known {
		route.Neighbour = neighbourStates[n.State]
	}
	if known && n.State == unix.NUD_PERMANENT && len(n.HardwareAddr) > 0 {
		route.Hardware = n.HardwareAddr.String()
	}
	l := r.links[index]
	if l != nil && l.kind == "bridge" && known && n.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0 {
		route.Ports = r.closedPorts(l)
	}
	switch {
	case l == nil:
	case l.flags&unix.IFF_UP == 0:
		route.Broken = "is down"
	case l.flags&unix.IFF_RUNNING == 0:
		route.Broken = "has no carrier"
	case l.kind == "dummy":
		route.Broken = "is of type dummy, which drops all that it is sent"
	}
}

// closedPorts are the ports of a bridge that forward nothing, with why.
func (r *router) closedPorts(bridge *link) (all []string) {
	states := []string{"disabled", "listening", "learning", "forwarding", "blocking"} // BR_STATE_*
	const forwarding = 3
	for _, l := range r.sorted() {
		switch {
		case l.master != bridge.index || len(all) >= mostHops:
		case l.flags&unix.IFF_UP == 0:
			all = append(all, l.name+" (down)")
		case l.flags&unix.IFF_RUNNING == 0:
			all = append(all, l.name+" (no carrier)")
		case l.state >= 0 && l.state < len(states) && l.state != forwarding:
			all = append(all, l.name+" ("+states[l.state]+")")
		}
	}
	return all
}

// policy is the text of the rule that led to a route, or refused; empty where none but the usual ones did.
func (r *router) policy(f flow, route *snapshot.Route) string {
	for i := range r.rules {
		rule := &r.rules[i]
		if !rule.selects(f) {
			continue
		}
		errno, refuses := refusingTypes[rule.action]
		if refuses && rule.v6 && errno == unix.EHOSTUNREACH && route.Error == unix.ENETUNREACH.Error() {
			route.Error = errno.Error() // IPv6 has no route for it (fib6_rule_action)
		}
		if refuses && route.Error == errno.Error() || !refuses && route.Table != 0 && rule.table == route.Table {
			return rule.String()
		}
	}
	return ""
}

// selects reports whether a rule is for a packet (fib_rule_match, fib4_rule_match).
func (r *routingRule) selects(f flow) bool {
	within := func(p netip.Prefix, a netip.Addr) bool { return !p.IsValid() || p.Contains(a) }
	ports := func(p [2]uint16, port uint16) bool { return p[0] == 0 || p[0] <= port && port <= p[1] }
	met := within(r.from, f.from.Addr()) && within(r.to, f.to.Addr()) && (r.in == "" || r.in == cmp.Or(f.in, loopback)) &&
		f.mark&r.mask == r.mark && (r.protocol == 0 || r.protocol == f.protocol) &&
		ports(r.sport, f.from.Port()) && ports(r.dport, f.to.Port()) && r.out == ""
	return r.v6 == f.to.Addr().Is6() && met != r.invert
}

// String is the rule as ip(8) lists it.
func (r *routingRule) String() string {
	parts := []string{fmt.Sprintf("%d:", r.priority)}
	add := func(there bool, format string, args ...any) {
		if there {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(r.invert, "not")
	add(true, "from %s", prefixText(r.from))
	add(r.to.IsValid(), "to %s", prefixText(r.to))
	add(r.mask != 0 && r.mask != 1<<32-1, "fwmark %#x/%#x", r.mark, r.mask)
	add(r.mask == 1<<32-1, "fwmark %#x", r.mark)
	add(r.in != "", "iif %s", r.in)
	add(r.protocol != 0, "ipproto %s", nat.ProtocolName(r.protocol))
	add(r.sport[0] != 0, "sport %s", nat.Ports{First: r.sport[0], Last: r.sport[1]})
	add(r.dport[0] != 0, "dport %s", nat.Ports{First: r.dport[0], Last: r.dport[1]})
	action := map[uint8]string{unix.FR_ACT_BLACKHOLE: "blackhole", unix.FR_ACT_UNREACHABLE: "unreachable", unix.FR_ACT_PROHIBIT: "prohibit"}[r.action]
	add(true, "%s", cmp.Or(action, fmt.Sprintf("lookup %d", r.table)))
	return strings.Join(parts, " ")
}

func prefixText(p netip.Prefix) string {
	switch {
	case !p.IsValid():
		return "all"
	case p.IsSingleIP():
		return p.Addr().String()
	}
	return p.String()
}
