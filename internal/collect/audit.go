package collect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// readAudit compares the rules with each other, and the addresses that they give with those of the
// host.
func (o *observation) readAudit(context.Context) (err error) {
	if o.NATRules == nil || len(o.NATRules.Rules) == 0 {
		return errNone
	}
	o.Audit, err = answer(o, question{"rules against the host", "audit.json"}, o.audit)
	if errors.As(err, new(errNotRecorded)) {
		return errNone
	}
	return err
}

func (o *observation) audit() (*snapshot.Audit, error) {
	k, err := o.lookUp()
	if err != nil {
		return nil, err
	}
	a := ruleset.Audit(k.tables, func(to netip.Addr) string {
		if o.DNATTargets != nil {
			for _, t := range o.DNATTargets.Targets {
				if t.Address == to {
					return t.Interface
				}
			}
		}
		return ""
	})
	a.Interfaces = k.host.shown(o.NATRules)
	if err = readForwarding(a.Interfaces); err == nil {
		a.Elsewhere, err = k.host.elsewhere(o.NATRules)
	}
	if err != nil {
		return nil, fmt.Errorf("compare the rules with the host: %w", err)
	}
	return a, nil
}

// host is the interfaces of a namespace.
type host struct {
	all     []snapshot.Interface
	indexes map[int]int // in all, by the kernel's
	// asks are those on whose network hosts ask who has an address (ARP, neighbour discovery).
	asks map[string]bool
	// proxies are addresses of IPv6 that this host answers for though it does not have them (ip -6
	// neigh add proxy; ndisc_recv_ns).
	proxies map[netip.Addr]bool
}

func readHost() (*host, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	h := &host{indexes: map[int]int{}, asks: map[string]bool{}, proxies: map[netip.Addr]bool{}}
	for i, l := range links {
		h.indexes[l.Index] = i
		h.all = append(h.all, snapshot.Interface{Name: l.Name, Up: l.Flags&net.FlagUp != 0})
		h.asks[l.Name] = l.Flags&net.FlagBroadcast != 0
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP)
		i, known := h.indexes[a.LinkIndex]
		if ok && known && a.Scope < int(netlink.SCOPE_LINK) {
			bits, _ := a.Mask.Size()
			h.all[i].Addresses = append(h.all[i].Addresses, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	neighbours, err := netlink.NeighProxyList(0, netlink.FAMILY_V6)
	if err != nil {
		return nil, fmt.Errorf("list proxied neighbours: %w", err)
	}
	for _, n := range neighbours {
		ip, _ := netip.AddrFromSlice(n.IP)
		h.proxies[ip] = true
	}
	return h, nil
}

// shown are the interfaces with addresses, and those that rules masquerade over.
func (h *host) shown(rules *snapshot.NATRules) []snapshot.Interface {
	return slices.DeleteFunc(slices.Clone(h.all), func(i snapshot.Interface) bool {
		return len(i.Addresses) == 0 && !slices.ContainsFunc(rules.Rules, func(r snapshot.NATRule) bool {
			return r.Kind == snapshot.NATMasquerade && nat.InName(r.OutInterface, i.Name)
		})
	})
}

// readForwarding finds out by which interfaces nothing comes in to be forwarded (ip_route_input_slow),
// on a host that forwards.
func readForwarding(links []snapshot.Interface) error {
	if off, err := notForwarded(false, ""); err != nil || off != "" {
		return err
	}
	for i := range links {
		off, err := notForwarded(false, links[i].Name)
		if err != nil {
			return err
		}
		links[i].ForwardingOff = off != ""
	}
	return nil
}

// elsewhere are the addresses that rules give to sources and that this host does not have.
func (h *host) elsewhere(rules *snapshot.NATRules) (all []snapshot.GivenElsewhere, err error) {
	seen, asked := map[netip.Addr]bool{}, 0
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.Kind != snapshot.NATSource {
			continue
		}
		for _, address := range addressesOf(r) {
			if !address.IsValid() || seen[address] || h.has(address) {
				continue
			}
			if asked++; asked > mostTargets {
				return all, nil
			}
			seen[address] = true
			by, here, err := h.route(address)
			if err != nil {
				return nil, err
			}
			if r.OutInterface != "" && !nat.InName(r.OutInterface, by) {
				by = ""
			}
			if !here {
				all = append(all, snapshot.GivenElsewhere{Rule: i, Address: address, OnLink: by})
			}
		}
	}
	return all, nil
}

func (h *host) has(address netip.Addr) bool {
	return slices.ContainsFunc(h.all, func(i snapshot.Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == address })
	})
}

// route finds out whether a route makes an address the host's own (ip route add local), and on which
// interface's network it is; on none where the host is a proxy for it, or where nobody asks for
// addresses there.
func (h *host) route(address netip.Addr) (onLink string, here bool, err error) {
	routes, err := netlink.RouteGet(address.AsSlice())
	if errors.As(err, new(unix.Errno)) || err == nil && len(routes) == 0 {
		return "", false, nil // none, or a blackhole
	}
	if err != nil {
		return "", false, err
	}
	r := &routes[0]
	i, known := h.indexes[r.LinkIndex]
	switch {
	case r.Type == unix.RTN_LOCAL:
		return "", true, nil
	case r.Type != unix.RTN_UNICAST || len(r.Gw) > 0 || r.Via != nil || !known || h.proxies[address]:
		return "", false, nil
	}
	link := &h.all[i]
	on := slices.ContainsFunc(link.Addresses, func(p netip.Prefix) bool { return p.Contains(address) })
	if !on || !link.Up || !h.asks[link.Name] || address.Is4() && proxies(link.Name) {
		return "", false, nil
	}
	return link.Name, false, nil
}

// proxies reports whether an interface answers for addresses of its own network that are not the
// host's (arp_fwd_pvlan): elsewhere a proxy of IPv4 answers only for what a route leads out of by
// another interface (arp_process).
func proxies(device string) bool {
	return slices.ContainsFunc([]string{"all", device}, func(name string) bool {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/proxy_arp_pvlan")
		return err == nil && strings.TrimSpace(string(value)) != "0"
	})
}
