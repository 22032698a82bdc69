package apply

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/tune"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routing makes rules and routes of policy routing, each in the thread's network namespace. They go with a reboot.
type routing struct {
	// wrote reports whether natkit's journal has what it wrote at a target; nil: it does not matter.
	wrote func(target string) bool
}

// wrote reports whether an open transaction of the namespace has a rule or route of a target.
func (h Host) wrote(target string) bool {
	now := Present{}
	return h.held(&now) == nil && now.Held[target]
}

// Read returns what is there, as tune.RoutingRule or RoutingRoutes write it; what is not natkit's begins with
// host.OthersMade. A default route that took the place of one of natkit's counts as nothing: natkit's may be put back.
func (r routing) Read(target string) (string, error) {
	value, err := host.Routing(target)
	other, others := strings.CutPrefix(value, host.OthersMade)
	if route, bad := tune.ParseRoutingRoute(other); others && bad == nil && !route.To.IsValid() && r.wrote != nil && r.wrote(target) {
		return "", err
	}
	return value, err
}

// Writable refuses what another program made.
func (r routing) Writable(target string) error {
	now, err := r.Read(target)
	if err == nil && strings.HasPrefix(now, host.OthersMade) {
		err = fmt.Errorf("%s is %s, and is left alone", target, now)
	}
	return err
}

func (r routing) Write(target, value string) error {
	if err := permit.ChangeOf("write routing", target); err != nil {
		return err
	}
	t, err := tune.ParseRoutingTarget(target)
	if err != nil {
		return err
	}
	if err := r.Writable(target); err != nil {
		return err
	}
	if t.Table {
		err = r.writeRoutes(t, value)
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
		k.Family, k.Priority, k.Protocol = host.FamilyOf(t.V6), int(t.Number), tune.RoutingProtocol
		k.Mark, k.Mask, k.Invert, k.Table = parsed.Mark, &parsed.Mask, parsed.Except, int(parsed.Table)
		if parsed.Own {
			k.IifName = "lo"
		}
		if parsed.Specific {
			k.Table, k.SuppressPrefixlen = unix.RT_TABLE_MAIN, 0
		}
		if err := step.do(k); err != nil {
			return err
		}
	}
	return nil
}

// writeRoutes replaces those of a table; the new ones come before others go.
func (r routing) writeRoutes(t tune.RoutingTarget, value string) error {
	former, err := r.Read(t.String())
	if err != nil {
		return err
	}
	var routes [2]tune.RoutingRoutes // as they are to be, as they are
	for i, text := range []string{value, former} {
		if text == "" {
			continue
		}
		if routes[i], err = tune.ParseRoutingRoutes(text); err != nil {
			return err
		}
	}
	for _, one := range routes[0] {
		if err := writeRoute(t, one); err != nil {
			return fmt.Errorf("%s: %w", one, err)
		}
	}
	for _, old := range routes[1] {
		if slices.ContainsFunc(routes[0], func(o tune.RoutingRoute) bool { return o.To == old.To }) {
			continue
		}
		k := routeOf(t, old)
		if err := netlink.RouteDel(&k); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("%s: %w", old, err)
		}
	}
	return nil
}

// routeOf is one of natkit's, without its next hop: the kernel deletes one of its scope only.
func routeOf(t tune.RoutingTarget, r tune.RoutingRoute) netlink.Route {
	k := netlink.Route{Family: host.FamilyOf(t.V6), Table: int(t.Number), Protocol: tune.RoutingProtocol, Type: unix.RTN_UNICAST, Dst: everywhere(t.V6), Scope: unix.RT_SCOPE_UNIVERSE}
	if !r.Via.IsValid() && !t.V6 {
		k.Scope = unix.RT_SCOPE_LINK
	}
	if r.To.IsValid() {
		k.Dst = &net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), r.To.Addr().BitLen())}
	}
	return k
}

func writeRoute(t tune.RoutingTarget, parsed tune.RoutingRoute) error {
	k := routeOf(t, parsed)
	link, err := net.InterfaceByName(parsed.Dev)
	if err != nil {
		return err
	}
	k.LinkIndex = link.Index
	if parsed.Via.IsValid() {
		k.Gw = parsed.Via.AsSlice()
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

// uplinks finds the rules and routes that a plan needs, and those that natkit made before, as they are now; and the
// interfaces that have to check sources in another way, as rp_filter is strict: those of uplinks take marks into account;
// those of zones are loose, as ARP is checked without a mark.
func (h Host) uplinks(now *Present, p *gateway.Plan, facts *gateway.Facts) error {
	now.Wanted, now.Routes, now.ByMark, now.Loose = p.Routing(facts), map[string]string{}, map[string]bool{}, map[string]bool{}
	targets := make([]string, 0, len(now.Wanted))
	for _, step := range now.Wanted {
		targets = append(targets, step.Target)
	}
	var names []string
	for name := range now.Held {
		if isByMark(name) {
			now.ByMark[name] = false
		}
		if isReversePath(name) {
			now.Loose[name] = false
		}
		if _, err := tune.ParseRoutingTarget(name); err == nil {
			targets = append(targets, name)
		}
	}
	for _, u := range p.Uplinks {
		names = append(names, reversePath(u.Interface), byMark(u.Interface))
	}
	var loose []string
	for i := range p.Zones {
		if z := &p.Zones[i]; z.VRF == "" && p.IPv4 {
			for _, name := range z.Interfaces {
				loose = append(loose, reversePath(name))
			}
		}
	}
	if names = append(names, loose...); len(names) > 0 {
		names = append(names, reversePath("all"), byMark("all"))
	}
	return h.Netns.Do(func() error {
		sysctls := snapshot.Sysctls{}
		if err := host.ReadSysctls(h.proc(), slices.Concat(names, slices.Collect(maps.Keys(now.ByMark)), slices.Collect(maps.Keys(now.Loose))), sysctls); err != nil {
			return err
		}
		for _, u := range p.Uplinks {
			strict := max(sysctls[reversePath("all")], sysctls[reversePath(u.Interface)]) == "1" // the greater one counts (IN_DEV_RPFILTER)
			if name := byMark(u.Interface); p.IPv4 && strict && sysctls[byMark("all")] == "0" && sysctls[name] != "" {
				now.ByMark[name] = true
			}
		}
		for _, name := range loose {
			_, ours := now.Original[name] // by a gateway; another transaction may have another reason
			if max(sysctls[reversePath("all")], sysctls[name]) == "1" || ours {
				now.Loose[name] = true
			}
		}
		for _, switches := range []map[string]bool{now.ByMark, now.Loose} {
			for name := range switches {
				if value, there := sysctls[name]; there {
					now.Sysctls[name] = value
				} else {
					delete(switches, name)
				}
			}
		}
		for _, target := range targets {
			value, err := routing{func(target string) bool { return now.Held[target] }}.Read(target)
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

func isReversePath(name string) bool {
	return strings.HasPrefix(name, "net.ipv4.conf.") && strings.HasSuffix(name, ".rp_filter")
}

// sysctlWord is the name of an interface within that of a sysctl.
func sysctlWord(name string) string { return strings.ReplaceAll(name, ".", "/") }

// routing adds the rules and routes that the plan needs, before packets get marks.
func (c *collector) routing() error {
	for _, step := range c.now.Wanted {
		change := tune.Change{Kind: tune.Routing, Target: step.Target, Before: c.now.Routes[step.Target], After: step.Value, Why: step.Why}
		switch {
		case strings.HasPrefix(change.Before, host.OthersMade):
			return fmt.Errorf("gateway plan: %s is %s: give that another number (%s)", step.Target, change.Before, taken)
		case change.Before != change.After:
			c.add(change)
		case c.now.Held[step.Target]:
			change.Why = heldWhy
			c.add(change)
		default:
			c.out.Already = append(c.out.Already, step.Target+" is "+step.Value+" already")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.now.ByMark)) {
		if c.now.ByMark[name] {
			c.turn(name, on, true, "what comes in by a wan interface is checked against the way back of its mark: rp_filter is strict here")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.now.Loose)) {
		if c.now.Loose[name] {
			c.turn(name, loosely, true, "another zone may have the same addresses: the main table has one way back to them")
		}
	}
	return nil
}

// taken says which numbers natkit's own have.
var taken = fmt.Sprintf("natkit has rules from %d and %d on, and tables from %d and %d on", gateway.ZoneRule+1, gateway.UplinkRule, gateway.ZoneTable+1, gateway.UplinkTable+1)

// loosely is rp_filter's value that lets in what has any way back by the interface.
const loosely = "2"

// unrouting removes the rules and routes that only the gateway before needed, once packets have no marks of them.
func (c *collector) unrouting() {
	for _, name := range slices.Sorted(maps.Keys(c.now.ByMark)) {
		if !c.now.ByMark[name] {
			c.turn(name, on, false, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.now.Loose)) {
		if !c.now.Loose[name] {
			c.turn(name, loosely, false, "")
		}
	}
	for _, target := range slices.Backward(slices.Sorted(maps.Keys(c.now.Routes))) { // rules before the tables that they lead to
		needed := slices.ContainsFunc(c.now.Wanted, func(s gateway.RoutingStep) bool { return s.Target == target })
		if before := c.now.Routes[target]; !needed && c.now.Held[target] && before != "" && !strings.HasPrefix(before, host.OthersMade) {
			c.add(tune.Change{Kind: tune.Routing, Target: target, Before: before, Why: "the gateway before needed it, this one does not"})
		}
	}
}
