package apply

import (
	"context"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/units"
	"golang.org/x/sys/unix"
)

// uplinks is what a keeper knows of those of its plan.
type uplinks struct {
	// routes has a value when a default route, one of a zone or a rule of policy routing has come or gone; nil where no plan
	// had uplinks or zones yet: on a router with all routes of the internet each message costs.
	routes chan struct{}
	// zones are what tells routes of zones.
	zones atomic.Pointer[zoneRoutes]
	// plan and facts are those of the last apply.
	plan  *gateway.Plan
	facts *gateway.Facts
	// without are uplinks that new connections are kept from, with the reason, as last steered and logged; nil before.
	without map[string]string
	// lacks are those that take new connections of one family alone, and why.
	lacks map[string]string
	// refused is the last error of steering, as logged; retry is true where it has to be tried again.
	refused string
	retry   bool
}

// ready follows an apply: it watches, and has new connections leave by the uplinks that there are.
func (u *uplinks) ready(ctx context.Context, k *keeper, r *Ready) {
	if u.routes == nil && len(r.Gateway.Uplinks)+len(r.Gateway.Zones) > 0 {
		var err error
		if u.routes, err = k.Host.watchRoutes(ctx, &u.zones); err != nil {
			k.log("%v; next hops are read again when an address changes", err)
		}
	}
	former := u.zones.Swap(zoneRoutesOf(r.Gateway, &r.Facts))
	if u.routes != nil && len(r.Gateway.Zones) > 0 && !u.zones.Load().equal(former) {
		signalOn(u.routes) // one may have come or gone since they were read, when its messages did not matter yet
	}
	u.plan, u.facts = r.Gateway, &r.Facts
	u.steer(ctx, k)
}

// steer has new connections leave by the uplinks that there are, if these are others than before. What fails is tried again
// with the periodic check.
func (u *uplinks) steer(ctx context.Context, k *keeper) {
	without, lacks := map[string]string{}, map[string]string{}
	for i := range u.plan.Uplinks {
		one := &u.plan.Uplinks[i]
		if why := u.facts.WhyDown(one, u.plan); why != "" {
			without[one.Interface] = why
		}
		if why := u.facts.Lacks(one, u.plan); why != "" {
			lacks[one.Interface] = why
		}
	}
	if !u.retry && u.without != nil && maps.Equal(without, u.without) && maps.Equal(lacks, u.lacks) || k.suspended {
		return
	}
	err := k.Host.Engines.Steer(k.Host.Netns, u.plan, func(one *gateway.Uplink, v6 bool) bool { return !u.facts.UplinkDown(one, u.plan, v6) })
	if u.retry = err != nil; u.retry {
		if text := err.Error(); text != u.refused {
			u.refused = text
			k.log("%s; it is tried again every %s", text, usualLook)
		}
		return
	}
	u.refused = ""
	for i := range u.plan.Uplinks {
		name := u.plan.Uplinks[i].Interface
		switch up := without[name] == "" && u.without[name] == ""; {
		case lacks[name] == u.lacks[name]:
		case lacks[name] != "":
			k.log("wan %s: %s; new connections of that family leave by others", name, lacks[name])
		case up:
			k.log("wan %s is up in both families: new connections leave by it again", name)
		}
		switch {
		case without[name] == u.without[name]:
		case without[name] == "" && lacks[name] != "": // said above
		case without[name] == "":
			k.log("wan %s is up: new connections leave by it again", name)
		default:
			k.log("wan %s is down: %s; new connections leave by %s", name, without[name], others(u.plan, without))
			if len(without) < len(u.plan.Uplinks) {
				u.renew(ctx, k, i)
			}
		}
	}
	u.without, u.lacks = without, lacks
}

// renew has what the gateway itself sends by UDP by way of an uplink that is down begin anew, by another one.
func (u *uplinks) renew(ctx context.Context, k *keeper, uplink int) {
	stale, err := k.Host.OwnUDP(ctx, u.plan, u.facts, uplink)
	if err != nil || len(stale.Keys) == 0 {
		return
	}
	if deleted, err := k.Host.Flush(ctx, stale); err == nil && deleted.Deleted > 0 {
		k.log("wan %s: %s of the gateway's own by UDP begin anew by another one", u.plan.Uplinks[uplink].Interface, units.Plural(deleted.Deleted, "connection", "connections"))
	}
}

// throughUplinks are what has to answer through each uplink: what the file names, or the next hop, of IPv4 where there is
// one. An uplink without either is up where it leads anywhere.
func throughUplinks(p *gateway.Plan, facts *gateway.Facts) map[string]health.Target {
	all := map[string]health.Target{}
	for i := range p.Uplinks {
		u := &p.Uplinks[i]
		t := health.Target{Through: u.Interface, Mark: u.Mark, Check: nat.Check{Interval: gateway.DefaultInterval, Timeout: gateway.DefaultTimeout, Rise: gateway.DefaultRise, Fall: gateway.DefaultFall}}
		if u.Probe != nil {
			t.At = u.Probe.AddrPort
			all[u.Interface] = t
			continue
		}
		for _, v6 := range []bool{false, true} {
			if hop, ok := facts.NextHop(u, v6); ok && hop.Via.IsValid() && (v6 && p.IPv6 || !v6 && p.IPv4) {
				t.At = netip.AddrPortFrom(hop.Via, 0)
				all[u.Interface] = t
				break
			}
		}
	}
	return all
}

// downUplinks are those through which nothing answers, and why.
func downUplinks(p *gateway.Plan, facts *gateway.Facts, c *health.Checker) map[string]string {
	down := map[string]string{}
	for name, t := range throughUplinks(p, facts) {
		if s, ok := c.State(t); ok && !s.Up {
			down[name] = (&health.Reported{At: t.At}).Name() + ": " + s.Why()
		}
	}
	return down
}

// others are the uplinks that are left.
func others(p *gateway.Plan, without map[string]string) string {
	var names []string
	for _, u := range p.Uplinks {
		if without[u.Interface] == "" {
			names = append(names, u.Interface)
		}
	}
	if len(names) == 0 {
		return "it all the same, as all others are down"
	}
	return strings.Join(names, ", ")
}

// zoneRoutes tells the routes that tables of zones follow: by an interface of a zone, or to where one of these led when they
// were last read, as another may have taken its place.
type zoneRoutes struct {
	links map[uint32]bool
	to    map[netip.Prefix]bool
}

// zoneRoutesOf are those of the zones whose tables natkit makes.
func zoneRoutesOf(p *gateway.Plan, facts *gateway.Facts) *zoneRoutes {
	z := &zoneRoutes{map[uint32]bool{}, map[netip.Prefix]bool{}}
	for i := range p.Zones {
		if p.Zones[i].VRF != "" {
			continue
		}
		for _, one := range facts.Interfaces {
			if slices.Contains(p.Zones[i].Interfaces, one.Name) {
				z.links[uint32(one.Index)] = true
			}
		}
		for _, v6 := range []bool{false, true} {
			for _, r := range facts.RoutesTo(&p.Zones[i], v6) {
				z.to[r.To] = true
			}
		}
	}
	return z
}

func (z *zoneRoutes) equal(o *zoneRoutes) bool {
	return o != nil && maps.Equal(z.links, o.links) && maps.Equal(z.to, o.to)
}

// rtmsgSize is that of struct rtmsg (linux/rtnetlink.h), which begins with family, dst_len, src_len, tos, table and protocol.
const rtmsgSize = 12

// follow reports whether a message is of such a route, whoever made it; that natkit itself makes one changes nothing.
func (z *zoneRoutes) follow(m netlink.Message) bool {
	if z == nil || m.Type == unix.RTM_NEWROUTE && m.Body[5] == tune.RoutingProtocol {
		return false
	}
	attrs, err := netlink.ParseAttrs(m.Body[rtmsgSize:])
	if err != nil {
		return true
	}
	if link := attrs.Get(unix.RTA_OIF); len(link) == 4 && z.links[binary.NativeEndian.Uint32(link)] {
		return true
	}
	to, _ := netip.AddrFromSlice(attrs.Get(unix.RTA_DST))
	return z.to[netip.PrefixFrom(to, int(m.Body[1]))]
}

// watchRoutes has a value whenever a default route, one of zones or a rule of policy routing has changed, or may have.
func (h Host) watchRoutes(ctx context.Context, zones *atomic.Pointer[zoneRoutes]) (chan struct{}, error) {
	return h.watch(ctx, "routes", unix.NETLINK_ROUTE, func(m netlink.Message) bool {
		isRoute := m.Type == unix.RTM_NEWROUTE || m.Type == unix.RTM_DELROUTE
		return !isRoute || len(m.Body) < rtmsgSize || m.Body[1] == 0 || zones.Load().follow(m)
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
}
