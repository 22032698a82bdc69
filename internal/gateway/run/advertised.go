package run

import (
	"path"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/tune"
)

// Values of accept_ra (Documentation/networking/ip-sysctl.rst). With the usual one a
// router takes no router advertisements, and a host that becomes a router loses the
// routes that it has by them at once (ipv6_accept_ra, rt6_purge_dflt_routers).
const (
	acceptAsHost   = "1"
	acceptAsRouter = "2"
)

// isAccept tells the sysctl accept_ra of an interface from others.
func isAccept(name string) bool {
	return strings.HasPrefix(name, "net.ipv6.conf.") && strings.HasSuffix(name, ".accept_ra")
}

// advertised finds the interfaces that have to go on taking router advertisements where
// the plan makes a router of the host, and those that natkit has set so.
func (h Host) advertised(now *Present, p *gateway.Plan) error {
	names, err := h.becomeRouters(now, p)
	if err != nil {
		return err
	}
	for name := range now.Held {
		if isAccept(name) {
			names = append(names, name)
		}
	}
	if err := h.do(func() error { return host.ReadSysctls(h.proc(), names, now.Sysctls) }); err != nil {
		return err
	}
	slices.Sort(names)
	now.Advertised = slices.DeleteFunc(slices.Compact(names), func(name string) bool {
		value, there := now.Sysctls[name]
		return !there || !now.Held[name] && value != acceptAsHost
	})
	return nil
}

// becomeRouters are the names of accept_ra of interfaces that have, or may come to have,
// something by router advertisements; none where the host is a router without natkit.
func (h Host) becomeRouters(now *Present, p *gateway.Plan) (names []string, err error) {
	if !p.IPv6 || now.Sysctls[Forward6] != "0" && !now.Held[Forward6] {
		return nil, nil
	}
	interfaces, err := host.Advertised(h.Netns, p.WAN)
	for _, i := range interfaces {
		// An interface whose name is no part of a sysctl's is left as it is.
		if name, err := tune.SysctlName("net/ipv6/conf/" + i + "/accept_ra"); err == nil {
			names = append(names, name)
		}
	}
	return names, err
}

// advertisements lets interfaces take router advertisements as before; where the host
// is no router any more, as its administrator had it.
func (c *collector) advertisements(router bool) {
	for _, name := range c.now.Advertised {
		file, _ := tune.SysctlPath(name) // one that was read
		c.turn(name, acceptAsRouter, router, path.Base(path.Dir(file))+" goes on taking its IPv6 routes and addresses from router advertisements, as routers do with 2 only")
	}
}
