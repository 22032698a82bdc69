package tune

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Routing changes a rule or the routes of a table of policy routing in the network namespace of the
// transaction. Target is a RoutingTarget's text, the value what is there as ip(8) writes it; empty for nothing.
const Routing Kind = "routing"

// RoutingProtocol is the protocol (rtm_protocol, FRA_PROTOCOL) of rules and routes that natkit makes: those of
// other programs are never changed.
const RoutingProtocol = 110

// RoutingTarget is a rule of a priority, or a table.
type RoutingTarget struct {
	V6     bool
	Table  bool
	Number uint32
}

// String is "ip rule 20000" or "ip -6 route table 27001".
func (t RoutingTarget) String() string {
	text := "ip "
	if t.V6 {
		text += "-6 "
	}
	if t.Table {
		return text + fmt.Sprintf("route table %d", t.Number)
	}
	return text + fmt.Sprintf("rule %d", t.Number)
}

// ParseRoutingTarget reads what RoutingTarget.String writes.
func ParseRoutingTarget(text string) (t RoutingTarget, err error) {
	rest, ok := strings.CutPrefix(text, "ip ")
	rest, t.V6 = strings.CutPrefix(rest, "-6 ")
	number, isRule := strings.CutPrefix(rest, "rule ")
	if !isRule {
		number, t.Table = strings.CutPrefix(rest, "route table ")
	}
	n, err := strconv.ParseUint(number, 10, 31)
	t.Number = uint32(n)
	// Those that every namespace has are no plan's: local, main, default, and their rules.
	const main, mainRule, defaultRule = 256, 32766, 32767
	reserved := t.Table && n < main || !t.Table && (n == 0 || n == mainRule || n == defaultRule)
	if !ok || err != nil || reserved || t.String() != text {
		return RoutingTarget{}, fmt.Errorf("routing %q: expected a rule such as ip rule 20000, or a table such as ip route table 27001", text)
	}
	return t, nil
}

// RoutingRule looks packets up in a table by their mark.
type RoutingRule struct {
	// Mark of the bits in Mask; with Except those that have another one.
	Mark, Mask uint32
	Except     bool
	// Table is looked up; with Specific it is main, and its default routes do not count.
	Table    uint32
	Specific bool
	// Own is for packets of the host's own alone.
	Own bool
}

// String is what `ip rule` prints after "from all".
func (r RoutingRule) String() string {
	text := fmt.Sprintf("fwmark 0x%x/0x%x", r.Mark, r.Mask)
	if r.Own {
		text += " iif lo"
	}
	if r.Specific {
		text += " lookup main suppress_prefixlength 0"
	} else {
		text += fmt.Sprintf(" lookup %d", r.Table)
	}
	if r.Except {
		return "not " + text
	}
	return text
}

// ParseRoutingRule reads what RoutingRule.String writes.
func ParseRoutingRule(text string) (r RoutingRule, err error) {
	var rest string
	rest, r.Except = strings.CutPrefix(text, "not ")
	before, after, own := strings.Cut(rest, " iif lo ")
	if r.Own = own; own {
		rest = before + " " + after
	}
	if rest, r.Specific = strings.CutSuffix(rest, " lookup main suppress_prefixlength 0"); r.Specific {
		_, err = fmt.Sscanf(rest, "fwmark 0x%x/0x%x", &r.Mark, &r.Mask)
	} else {
		_, err = fmt.Sscanf(rest, "fwmark 0x%x/0x%x lookup %d", &r.Mark, &r.Mask, &r.Table)
	}
	if err != nil || r.Mask == 0 || r.String() != text {
		return RoutingRule{}, fmt.Errorf("routing rule %q: expected one such as fwmark 0x1000000/0xf000000 lookup 27001", text)
	}
	return r, nil
}

// RoutingRoute is a route.
type RoutingRoute struct {
	// To is the destination; not valid where it is a default route.
	To netip.Prefix
	// Via is the next hop; not valid where the other end of Dev is. OnLink takes it for a neighbour though no
	// network of Dev has it.
	Via    netip.Addr
	Dev    string
	OnLink bool
}

// String is what `ip route` prints.
func (r RoutingRoute) String() string {
	text := "default"
	if r.To.IsValid() {
		text = r.To.String()
	}
	if r.Via.IsValid() {
		text += " via " + r.Via.String()
	}
	text += " dev " + r.Dev
	if r.OnLink {
		text += " onlink"
	}
	return text
}

// ParseRoutingRoute reads what RoutingRoute.String writes.
func ParseRoutingRoute(text string) (r RoutingRoute, err error) {
	f := strings.Fields(text)
	if len(f) > 0 && f[0] != "default" {
		r.To, err = netip.ParsePrefix(f[0])
	}
	if err == nil && len(f) > 3 && f[1] == "via" {
		if r.Via, err = netip.ParseAddr(f[2]); err == nil {
			f = append(f[:1:1], f[3:]...)
		}
	}
	if len(f) == 4 && f[3] == "onlink" {
		r.OnLink, f = true, f[:3]
	}
	if len(f) == 3 {
		r.Dev = f[2]
	}
	if err != nil || r.Dev == "" || len(r.Dev) > 15 || r.String() != text {
		return RoutingRoute{}, fmt.Errorf("route %q: expected one such as default via 203.0.113.1 dev eth0", text)
	}
	return r, nil
}

// RoutingRoutes are those of a table, one for each destination.
type RoutingRoutes []RoutingRoute

// String is what ParseRoutingRoutes reads: routes in order, with "; " between them.
func (r RoutingRoutes) String() string {
	texts := make([]string, len(r))
	for i := range r {
		texts[i] = r[i].String()
	}
	return JoinRoutes(texts)
}

// JoinRoutes is RoutingRoutes.String of routes that are text.
func JoinRoutes(texts []string) string {
	texts = slices.Sorted(slices.Values(texts))
	return strings.Join(texts, routeSeparator)
}

const routeSeparator = "; "

// ParseRoutingRoutes reads what RoutingRoutes.String writes.
func ParseRoutingRoutes(text string) (all RoutingRoutes, err error) {
	for _, one := range strings.Split(text, routeSeparator) {
		r, err := ParseRoutingRoute(one)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(o RoutingRoute) bool { return o.To == r.To }) {
			return nil, fmt.Errorf("routes %q: expected one for each destination", text)
		}
		all = append(all, r)
	}
	return all, nil
}

// AreLeftOf reports whether routes are some of those that natkit made, where the others are gone: with their interface, or by
// hand. Both are texts of RoutingRoutes; nobody else makes routes of natkit's protocol.
func AreLeftOf(routes, made string) bool {
	all := strings.Split(made, routeSeparator)
	return routes != "" && !slices.ContainsFunc(strings.Split(routes, routeSeparator), func(one string) bool { return !slices.Contains(all, one) })
}

// validateRouting accepts what natkit writes: an undo acts as root on it.
func (c Change) validateRouting() error {
	t, err := ParseRoutingTarget(c.Target)
	if err != nil {
		return err
	}
	for _, v := range []string{c.Before, c.After} {
		switch {
		case v == "":
		case t.Table:
			_, err = ParseRoutingRoutes(v)
		default:
			_, err = ParseRoutingRule(v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Target, err)
		}
	}
	return nil
}
