package apply

import (
	"context"
	"maps"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/units"
	"golang.org/x/sys/unix"
)

// uplinks is what a keeper knows of those of its plan.
type uplinks struct {
	// routes has a value when a default route or a rule of policy routing has come or gone; nil where no plan had
	// uplinks yet: on a router with all routes of the internet each message costs.
	routes <-chan struct{}
	// plan and facts are those of the last apply.
	plan  *gateway.Plan
	facts *gateway.Facts
	// without are uplinks that new connections are kept from, with the reason, as last steered and logged; nil before.
	without map[string]string
}

// ready follows an apply: it watches, and has new connections leave by the uplinks that there are.
func (u *uplinks) ready(ctx context.Context, k *keeper, r *Ready) {
	if u.routes == nil && len(r.Gateway.Uplinks)+len(r.Gateway.Zones) > 0 {
		var err error
		if u.routes, err = k.Host.watchRoutes(ctx); err != nil {
			k.log("%v; next hops are read again when an address changes", err)
		}
	}
	u.plan, u.facts = r.Gateway, &r.Facts
	u.steer(ctx, k)
}

// steer has new connections leave by the uplinks that there are, if these are others than before.
func (u *uplinks) steer(ctx context.Context, k *keeper) {
	without := map[string]string{}
	for i := range u.plan.Uplinks {
		one := &u.plan.Uplinks[i]
		if why := u.facts.WhyDown(one, u.plan); why != "" {
			without[one.Interface] = why
		}
	}
	if u.without != nil && maps.Equal(without, u.without) || k.suspended {
		return
	}
	err := k.Host.Engines.Steer(k.Host.Netns, u.plan, func(one *gateway.Uplink, v6 bool) bool { return !u.facts.UplinkDown(one, v6) })
	if err != nil {
		k.log("%v", err)
		return
	}
	for i := range u.plan.Uplinks {
		switch name := u.plan.Uplinks[i].Interface; {
		case without[name] == u.without[name]:
		case without[name] == "":
			k.log("wan %s is up: new connections leave by it again", name)
		default:
			k.log("wan %s is down: %s; new connections leave by %s", name, without[name], others(u.plan, without))
			if len(without) < len(u.plan.Uplinks) {
				u.renew(ctx, k, i)
			}
		}
	}
	u.without = without
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

// watchRoutes has a value whenever a default route or a rule of policy routing has changed, or may have, or
// another route that no routing protocol has made: zones follow these.
func (h Host) watchRoutes(ctx context.Context) (<-chan struct{}, error) {
	return h.watch(ctx, "default routes", unix.NETLINK_ROUTE, func(m netlink.Message) bool {
		isRoute := m.Type == unix.RTM_NEWROUTE || m.Type == unix.RTM_DELROUTE
		const bits, protocol = 1, 5 // rtm_dst_len, rtm_protocol of struct rtmsg
		return !isRoute || len(m.Body) <= protocol || m.Body[bits] == 0 || m.Body[protocol] <= unix.RTPROT_STATIC
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
}
