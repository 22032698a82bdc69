package host

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/tune"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FamilyOf is the family of rules and routes.
func FamilyOf(v6 bool) int {
	if v6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// OthersMade begins the value of what another program made: no plan has it.
const OthersMade = "another program's: "

// Routing returns what is at a target of policy routing (tune.RoutingTarget) in the thread's namespace, as
// tune.RoutingRule or RoutingRoutes write it; what is not natkit's begins with OthersMade.
func Routing(target string) (string, error) {
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
		err = fmt.Errorf("%w: this kernel has no policy routing, which several WANs and zones need (CONFIG_IP_MULTIPLE_TABLES, CONFIG_IPV6_MULTIPLE_TABLES)", err)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", target, err)
	}
	isTheirs := func(text string) bool { return strings.HasPrefix(text, OthersMade) }
	if len(texts) > 1 && (!t.Table || slices.ContainsFunc(texts, isTheirs)) {
		return OthersMade + strings.Join(texts, "; "), nil
	}
	return tune.JoinRoutes(texts), nil
}

func rulesOf(t tune.RoutingTarget) (texts []string, err error) {
	all, err := socket.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(FamilyOf(t.V6)) })
	for _, r := range all {
		if uint32(r.Priority) == t.Number {
			texts = append(texts, ruleText(&r))
		}
	}
	return texts, err
}

// ruleText is what a rule is as one of natkit's.
func ruleText(r *netlink.Rule) string {
	ours := tune.RoutingRule{Mark: r.Mark, Except: r.Invert, Specific: r.Table == unix.RT_TABLE_MAIN && r.SuppressPrefixlen == 0, Own: r.IifName == "lo"}
	if r.Mask != nil {
		ours.Mask = *r.Mask
	}
	if !ours.Specific {
		ours.Table = uint32(r.Table)
	}
	plain := r.Src == nil && r.Dst == nil && (ours.Own || r.IifName == "") && r.OifName == "" && r.Tos == 0 && r.UIDRange == nil && r.IPProto == 0 &&
		(ours.Specific || r.SuppressPrefixlen < 0) && r.SuppressIfgroup < 0 && r.Goto < 0
	if r.Protocol != tune.RoutingProtocol || !plain {
		return OthersMade + ours.String()
	}
	return ours.String()
}

func routesOf(t tune.RoutingTarget) (texts []string, err error) {
	all, err := socket.Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(FamilyOf(t.V6), &netlink.Route{Table: int(t.Number)}, netlink.RT_FILTER_TABLE)
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
	if !isDefault(r) {
		ours.To = prefixOf(r.Dst)
	}
	if r.Protocol != tune.RoutingProtocol || r.Type != unix.RTN_UNICAST || len(r.MultiPath) > 0 {
		return OthersMade + foreignRoute(r, ours)
	}
	return ours.String()
}

// foreignRoute is another program's route as ip(8) writes it; first is its next hop, where it has one.
func foreignRoute(r *netlink.Route, first tune.RoutingRoute) string {
	text := map[int]string{unix.RTN_UNREACHABLE: "unreachable ", unix.RTN_BLACKHOLE: "blackhole ", unix.RTN_PROHIBIT: "prohibit ", unix.RTN_THROW: "throw "}[r.Type]
	first.To = netip.Prefix{}
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

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

// isDefault reports whether a route is for every destination.
func isDefault(r *netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	bits, _ := r.Dst.Mask.Size()
	return bits == 0
}
