package apply

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routing makes rules and routes of policy routing, each in the thread's network namespace. They go with a reboot.
type routing struct{}

func familyOf(v6 bool) int {
	if v6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// othersMade begins the value of what another program made: no plan has it.
const othersMade = "another program's: "

// Read returns what is there, as tune.RoutingRule or RoutingRoute write it; what is not natkit's begins with
// othersMade.
func (routing) Read(target string) (string, error) {
	t, err := tune.ParseRoutingTarget(target)
	if err != nil {
		return "", err
	}
	var texts []string
	if t.Table {
		texts, err = routesOf(t)
	} else {
		texts, err = rulesOf(t)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w: this kernel has no policy routing, which several WANs need (CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES)", err)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", target, err)
	}
	if len(texts) > 1 {
		return othersMade + strings.Join(texts, "; "), nil
	}
	return strings.Join(texts, ""), nil
}

func rulesOf(t tune.RoutingTarget) (texts []string, err error) {
	all, err := socket.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(familyOf(t.V6)) })
	for _, r := range all {
		if uint32(r.Priority) == t.Number {
			texts = append(texts, ruleText(&r))
		}
	}
	return texts, err
}

// ruleText is what a rule is as one of natkit's.
func ruleText(r *netlink.Rule) string {
	ours := tune.RoutingRule{Mark: r.Mark, Except: r.Invert, Specific: r.Table == unix.RT_TABLE_MAIN && r.SuppressPrefixlen == 0}
	if r.Mask != nil {
		ours.Mask = *r.Mask
	}
	if !ours.Specific {
		ours.Table = uint32(r.Table)
	}
	plain := r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && r.Tos == 0 && r.UIDRange == nil && r.IPProto == 0 &&
		(ours.Specific || r.SuppressPrefixlen < 0) && r.SuppressIfgroup < 0 && r.Goto < 0
	if r.Protocol != tune.RoutingProtocol || !plain {
		return othersMade + ours.String()
	}
	return ours.String()
}

func routesOf(t tune.RoutingTarget) (texts []string, err error) {
	all, err := socket.Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(familyOf(t.V6), &netlink.Route{Table: int(t.Number)}, netlink.RT_FILTER_TABLE)
	})
	for _, r := range all {
		if t.V6 && r.Type == unix.RTN_UNREACHABLE && r.Priority == math.MaxUint32 { // the kernel's own, of an empty table
			continue
		}
		texts = append(texts, routeText(&r))
	}
	return texts, err
}

// routeText is what a route is as one of natkit's.
func routeText(r *netlink.Route) string {
	ours := hopOf(r.LinkIndex, r.Gw, r.Flags)
	if !isDefault(r) || r.Protocol != tune.RoutingProtocol || r.Type != unix.RTN_UNICAST || len(r.MultiPath) > 0 {
		return othersMade + foreignRoute(r, ours)
	}
	return ours.String()
}

// foreignRoute is another program's route as ip(8) writes it; first is its next hop, where it has one.
func foreignRoute(r *netlink.Route, first tune.RoutingRoute) string {
	text := map[int]string{unix.RTN_UNREACHABLE: "unreachable ", unix.RTN_BLACKHOLE: "blackhole ", unix.RTN_PROHIBIT: "prohibit ", unix.RTN_THROW: "throw "}[r.Type]
	to := "default"
	if !isDefault(r) {
		to = r.Dst.String()
	}
	switch {
	case text != "":
		return text + to
	case len(r.MultiPath) > 0:
		for _, hop := range r.MultiPath {
			to += " nexthop" + strings.TrimPrefix(hopOf(hop.LinkIndex, hop.Gw, hop.Flags).String(), "default")
		}
		return to
	}
	return to + strings.TrimPrefix(first.String(), "default")
}

// hopOf is a default route by a next hop.
func hopOf(link int, gw net.IP, flags int) tune.RoutingRoute {
	r := tune.RoutingRoute{Dev: fmt.Sprintf("#%d", link), OnLink: flags&int(netlink.FLAG_ONLINK) != 0}
	if i, err := net.InterfaceByIndex(link); err == nil {
		r.Dev = i.Name
	}
	if via, ok := netip.AddrFromSlice(gw); ok {
		r.Via = via.Unmap()
	}
	return r
}

// isDefault reports whether a route is for every destination.
func isDefault(r *netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	bits, _ := r.Dst.Mask.Size()
	return bits == 0
}

// Writable refuses what another program made.
func (r routing) Writable(target string) error {
	now, err := r.Read(target)
	if err == nil && strings.HasPrefix(now, othersMade) {
		err = fmt.Errorf("%s is %s, and is left alone", target, now)
	}
	return err
}

func (r routing) Write(target, value string) error {
	t, err := tune.ParseRoutingTarget(target)
	if err != nil {
		return err
	}
	if err := r.Writable(target); err != nil {
		return err
	}
	if t.Table {
		err = writeRoute(t, value)
	} else {
		err = r.writeRule(t, value)
	}
	if err != nil {
		return fmt.Errorf("%s: set %q: %w", target, value, err)
	}
	return nil
}

// writeRule adds the new rule before the old one goes: packets find one of them.
func (r routing) writeRule(t tune.RoutingTarget, value string) error {
	former, err := r.Read(t.String())
	if err != nil {
		return err
	}
	for _, step := range []struct {
		text string
		do   func(*netlink.Rule) error
	}{{value, netlink.RuleAdd}, {former, netlink.RuleDel}} {
		if step.text == "" {
			continue
		}
		parsed, err := tune.ParseRoutingRule(step.text)
		if err != nil {
			return err
		}
		k := netlink.NewRule()
		k.Family, k.Priority, k.Protocol = familyOf(t.V6), int(t.Number), tune.RoutingProtocol
		k.Mark, k.Mask, k.Invert, k.Table = parsed.Mark, &parsed.Mask, parsed.Except, int(parsed.Table)
		if parsed.Specific {
			k.Table, k.SuppressPrefixlen = unix.RT_TABLE_MAIN, 0
		}
		if err := step.do(k); err != nil {
			return err
		}
	}
	return nil
}

func writeRoute(t tune.RoutingTarget, value string) error {
	k := netlink.Route{Family: familyOf(t.V6), Table: int(t.Number), Protocol: tune.RoutingProtocol, Type: unix.RTN_UNICAST, Dst: everywhere(t.V6)}
	if value == "" {
		if err := netlink.RouteDel(&k); !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	}
	parsed, err := tune.ParseRoutingRoute(value)
	if err != nil {
		return err
	}
	link, err := net.InterfaceByName(parsed.Dev)
	if err != nil {
		return err
	}
	k.LinkIndex, k.Scope = link.Index, unix.RT_SCOPE_UNIVERSE
	if parsed.Via.IsValid() {
		k.Gw = parsed.Via.AsSlice()
	} else if !t.V6 {
		k.Scope = unix.RT_SCOPE_LINK
	}
	if parsed.OnLink {
		k.SetFlag(netlink.FLAG_ONLINK)
	}
	return netlink.RouteReplace(&k)
}

func everywhere(v6 bool) *net.IPNet {
	if v6 {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
}

func (routing) Honours(_, asked, got string) bool { return asked == got }

func (routing) Durable() bool { return false }

// step is a rule or a route that a plan needs, and why.
type routingStep struct{ target, value, why string }

// routingOf are the rules and routes of a plan's uplinks, in the order in which they are made: as long as packets
// have no mark nothing follows from them.
func routingOf(p *gateway.Plan, facts *gateway.Facts) (all []routingStep) {
	if len(p.Uplinks) == 0 {
		return nil
	}
	for _, v6 := range []bool{false, true} {
		if v6 && !p.IPv6 || !v6 && !p.IPv4 {
			continue
		}
		rule := func(n int, r tune.RoutingRule, why string) {
			t := tune.RoutingTarget{V6: v6, Number: uint32(gateway.UplinkRule + n)}
			all = append(all, routingStep{t.String(), r.String(), why})
		}
		for i := range p.Uplinks {
			u := &p.Uplinks[i]
			if hop, ok := facts.NextHop(u, v6); ok {
				t := tune.RoutingTarget{V6: v6, Table: true, Number: u.Table}
				all = append(all, routingStep{t.String(), tune.RoutingRoute{Via: hop.Via, Dev: u.Interface, OnLink: hop.OnLink}.String(), "the way out of connections on " + u.Interface})
			}
		}
		rule(0, tune.RoutingRule{Mask: p.Marks, Except: true, Specific: true}, "routes that are more specific than a default route come first")
		for i, u := range p.Uplinks {
			rule(i+1, tune.RoutingRule{Mark: u.Mark, Mask: p.Marks, Table: u.Table}, "connections on "+u.Interface+" leave by it")
		}
	}
	return all
}

// uplinks finds the rules and routes that a plan needs, and those that natkit made before, as they are now; and the
// interfaces that have to take marks into account where they check sources (rp_filter is strict).
func (h Host) uplinks(now *Present, p *gateway.Plan, facts *gateway.Facts) error {
	now.Wanted, now.Routes, now.ByMark = routingOf(p, facts), map[string]string{}, map[string]bool{}
	targets := make([]string, 0, len(now.Wanted))
	for _, step := range now.Wanted {
		targets = append(targets, step.target)
	}
	var names []string
	for name := range now.Held {
		if isByMark(name) {
			now.ByMark[name] = false
		}
		if _, err := tune.ParseRoutingTarget(name); err == nil {
			targets = append(targets, name)
		}
	}
	for _, u := range p.Uplinks {
		names = append(names, reversePath(u.Interface), byMark(u.Interface))
	}
	if len(names) > 0 {
		names = append(names, reversePath("all"), byMark("all"))
	}
	return h.Netns.Do(func() error {
		sysctls := snapshot.Sysctls{}
		if err := host.ReadSysctls(h.proc(), append(names, slices.Collect(maps.Keys(now.ByMark))...), sysctls); err != nil {
			return err
		}
		for _, u := range p.Uplinks {
			strict := max(sysctls[reversePath("all")], sysctls[reversePath(u.Interface)]) == "1" // the greater one counts (IN_DEV_RPFILTER)
			if name := byMark(u.Interface); p.IPv4 && strict && sysctls[byMark("all")] == "0" && sysctls[name] != "" {
				now.ByMark[name] = true
			}
		}
		for name := range now.ByMark {
			if value, there := sysctls[name]; there {
				now.Sysctls[name] = value
			} else {
				delete(now.ByMark, name)
			}
		}
		for _, target := range targets {
			value, err := routing{}.Read(target)
			if err != nil {
				return err
			}
			now.Routes[target] = value
		}
		return nil
	})
}

// reversePath is the sysctl by which what comes in by an interface has to be on the way back to its source; byMark has
// that way looked up with the packet's mark (net.ipv4.conf.IFACE.src_valid_mark).
func reversePath(name string) string { return "net.ipv4.conf." + sysctlWord(name) + ".rp_filter" }
func byMark(name string) string      { return "net.ipv4.conf." + sysctlWord(name) + ".src_valid_mark" }

func isByMark(name string) bool {
	return strings.HasPrefix(name, "net.ipv4.conf.") && strings.HasSuffix(name, ".src_valid_mark")
}

// sysctlWord is the name of an interface within that of a sysctl.
func sysctlWord(name string) string { return strings.ReplaceAll(name, ".", "/") }

// routing adds the rules and routes that the plan needs, before packets get marks.
func (c *collector) routing() error {
	for _, step := range c.now.Wanted {
		change := tune.Change{Kind: tune.Routing, Target: step.target, Before: c.now.Routes[step.target], After: step.value, Why: step.why}
		switch {
		case strings.HasPrefix(change.Before, othersMade):
			return fmt.Errorf("gateway plan: %s is %s: give that another number (%s)", step.target, change.Before, taken)
		case change.Before != change.After:
			c.add(change)
		case c.now.Held[step.target]:
			change.Why = heldWhy
			c.add(change)
		default:
			c.out.Already = append(c.out.Already, step.target+" is "+step.value+" already")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.now.ByMark)) {
		if c.now.ByMark[name] {
			c.turn(name, on, true, "what comes in by a wan interface is checked against the way back of its mark: rp_filter is strict here")
		}
	}
	return nil
}

// taken says which numbers natkit's own have.
var taken = fmt.Sprintf("natkit has rules from %d and tables from %d on", gateway.UplinkRule, gateway.UplinkTable+1)

// unrouting removes the rules and routes that only the gateway before needed, once packets have no marks of them.
func (c *collector) unrouting() {
	for _, name := range slices.Sorted(maps.Keys(c.now.ByMark)) {
		if !c.now.ByMark[name] {
			c.turn(name, on, false, "")
		}
	}
	for _, target := range slices.Backward(slices.Sorted(maps.Keys(c.now.Routes))) { // rules before the tables that they lead to
		needed := slices.ContainsFunc(c.now.Wanted, func(s routingStep) bool { return s.target == target })
		if before := c.now.Routes[target]; !needed && c.now.Held[target] && before != "" && !strings.HasPrefix(before, othersMade) {
			c.add(tune.Change{Kind: tune.Routing, Target: target, Before: before, Why: "the gateway before needed it, this one does not"})
		}
	}
}
