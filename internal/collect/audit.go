package collect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

// readAudit compares the rules with each other, and the addresses that they give with those of the
// host.
func (o *observation) readAudit(context.Context) (err error) {
	if o.NATRules == nil || len(o.NATRules.Rules)+len(o.NATRules.Unreached) == 0 {
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
	if err = k.answersHere(a.Untracked); err != nil {
		return nil, err
	}
	h, listed := k.host, ruleset.ListedBy(k.tables)
	a.Interfaces = h.shown(o.NATRules)
	a.Elsewhere, a.Silent = h.elsewhere(o.NATRules), h.silent(o.NATRules, listed)
	a.SinglePorts = singlePorts(o.NATRules, listed)
	a.Stranded, a.Absent = h.stranded(o.NATRules), h.absent(o.NATRules)
	if slices.ContainsFunc(a.Refusals, func(r snapshot.Refusal) bool { return r.Why == snapshot.RefusalInvalid && r.Packets > 0 }) {
		a.Beyond = h.beyond()
	}
	if err = k.router.readForwarding(a.Interfaces); err != nil {
		return nil, fmt.Errorf("compare the rules with the host: %w", err)
	}
	return a, nil
}

// mostRoutes bounds the routes that are read for those by inner routers: there are hosts with all of the Internet's.
const mostRoutes = 2000

// beyond are the networks behind routers on inner networks with other hosts.
func (h *host) beyond() (all []snapshot.BeyondNetwork) {
	uplinks := map[string]bool{}
	routes, whole := h.router.mainRoutes(mostRoutes)
	if !whole {
		return nil
	}
	for _, r := range routes {
		switch l := h.router.named[r.device]; {
		case r.to.Bits() == 0:
			uplinks[r.device] = true
		case r.via.IsValid() && l != nil && len(all) < mostReported && h.hasOthers(l.index, r.via):
			all = append(all, snapshot.BeyondNetwork{Network: r.to, Router: r.via, Interface: l.name})
		}
	}
	return slices.DeleteFunc(all, func(b snapshot.BeyondNetwork) bool { return uplinks[b.Interface] })
}

// hasOthers reports whether hosts beside a router were there lately on the network of an interface.
func (h *host) hasOthers(link int, router netip.Addr) bool {
	for at, n := range h.router.sortedNeighbours() {
		if at.link == link && at.address.Is4() && at.address != router && n.State&reachable != 0 {
			return true
		}
	}
	return false
}

// host is the interfaces of a namespace.
type host struct {
	all []snapshot.Interface
	// indexes are those in all, by the kernel's.
	indexes map[int]int
	// asks are those on whose network hosts ask who has an address (ARP, neighbour discovery).
	asks map[string]bool
	// proxies are addresses of IPv6 that this host answers for though it does not have them (ip -6
	// neigh add proxy; ndisc_recv_ns).
	proxies map[netip.Addr]bool
	// duplicates are addresses of IPv6 that the kernel does not use: another host has them, or it waits
	// for an answer to its question whether one does (IFA_F_DADFAILED, IFA_F_TENTATIVE).
	duplicates map[netip.Addr]string
	router     *router
}

// readHost reads the interfaces and addresses of a snapshot once.
func (o *observation) readHost() (*host, error) {
	if o.host != nil {
		return o.host, nil
	}
	k, err := o.asksRoutes()
	if err != nil {
		return nil, err
	}
	h := &host{indexes: map[int]int{}, asks: map[string]bool{}, duplicates: map[netip.Addr]string{}, router: k}
	for _, l := range k.sorted() {
		h.indexes[l.index] = len(h.all)
		h.all = append(h.all, snapshot.Interface{Name: l.name, Up: l.flags&unix.IFF_UP != 0, NoARP: k.noARP(l), Bridge: l.kind == "bridge"})
		h.asks[l.name] = l.flags&unix.IFF_BROADCAST != 0
	}
	addresses, err := k.addresses()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		if i, known := h.indexes[a.link]; known {
			h.all[i].Addresses = append(h.all[i].Addresses, a.prefix)
			if a.unused != "" {
				h.duplicates[a.prefix.Addr()] = a.unused
			}
		}
	}
	if h.proxies, err = k.proxies(); err != nil {
		return nil, err
	}
	o.host = h
	return h, nil
}

// absent are the interfaces that rules for what comes in name, and that are not there.
func (h *host) absent(rules *snapshot.NATRules) (all []string) {
	for i := range rules.Rules {
		name := rules.Rules[i].InInterface
		if name != "" && h.router.named[name] == nil && !strings.HasSuffix(name, "*") && !slices.Contains(all, name) && len(all) < mostReported {
			all = append(all, name)
		}
	}
	return all
}

// listedFor is what a rule lists.
func listedFor(listed map[ruleset.RuleID]ruleset.Listed, r *snapshot.NATRule) ruleset.Listed {
	if r.Handle == 0 {
		return ruleset.Listed{}
	}
	return listed[ruleset.RuleID{Family: r.Family, Table: r.Table, Handle: r.Handle}]
}

// singlePorts are the rules that are for several ports, of which none is of a range.
func singlePorts(rules *snapshot.NATRules, listed map[ruleset.RuleID]ruleset.Listed) (all []int) {
	for i := range rules.Rules {
		ports := listedFor(listed, &rules.Rules[i]).Ports
		if rules.Rules[i].DestinationPort == 0 && len(ports) > 0 && !slices.ContainsFunc(ports, func(p nat.Ports) bool { return p.Len() != 1 }) {
			all = append(all, i)
		}
	}
	return all
}

// silent are the addresses that rules are for, or give to sources, and that nobody answers for on the
// network that asks for them.
func (h *host) silent(rules *snapshot.NATRules, listed map[ruleset.RuleID]ruleset.Listed) (all []snapshot.SilentAddress) {
	seen := map[netip.Addr]bool{}
	for i := range rules.Rules {
		r := &rules.Rules[i]
		var addresses []netip.Addr
		switch {
		case r.Hook == "prerouting" && !r.TranslatesSource() && r.ToDestination.IsSingleIP():
			addresses = []netip.Addr{r.ToDestination.Addr()}
		case r.Hook == "prerouting" && !r.TranslatesSource():
			addresses = listedFor(listed, r).Addresses
		case r.Kind == snapshot.NATSource && r.First == r.Last:
			addresses = []netip.Addr{r.First}
		}
		for _, address := range addresses {
			if !address.IsValid() || seen[address] || len(all) >= mostTargets {
				continue
			}
			seen[address] = true
			if s := h.silence(address); s.Why != "" && (s.Why != snapshot.AddressAbsent || r.Hook == "prerouting") {
				s.Rule, s.Address, s.Shared = i, address, len(addresses) > 1
				all = append(all, s)
			}
		}
	}
	return all
}

// silence has no reason where this host answers for an address, or nobody asks.
func (h *host) silence(address netip.Addr) (s snapshot.SilentAddress) {
	at := h.holder(address)
	on := h.network(address, at)
	switch {
	case at == "":
		by, here := h.route(address)
		if here || by == "" {
			return s
		}
		s = snapshot.SilentAddress{Interface: by, Why: snapshot.AddressAbsent, Standby: h.router.standsBy()}
		s.Neighbour = h.router.neighbours[hop{h.router.named[by].index, address}].HardwareAddr.String()
	case h.duplicates[address] != "":
		if l := h.router.named[at]; h.duplicates[address] == snapshot.AddressDuplicate || l.flags&unix.IFF_RUNNING != 0 {
			s = snapshot.SilentAddress{Interface: at, Why: h.duplicates[address]}
		}
	case on == "" || !h.asks[on]:
	case address.Is6() && on != at && !h.proxies[address]:
		s = snapshot.SilentAddress{Interface: on, Why: snapshot.AddressIgnored, On: at}
	case address.Is4() && (h.router.ignoresARP(on) >= 8 || on != at && h.router.ignoresARP(on) >= 1):
		s = snapshot.SilentAddress{Interface: on, Why: snapshot.AddressIgnored, On: at, Ignores: h.router.ignoresARP(on)}
	}
	return s
}

// network is the interface on whose network an address is, with others: at, which has it, before the others.
func (h *host) network(address netip.Addr, at string) (on string) {
	for _, l := range h.all {
		for _, p := range l.Addresses {
			if l.Up && !p.IsSingleIP() && p.Contains(address) && (on == "" || l.Name == at) {
				on = l.Name
			}
		}
	}
	return on
}

// holder is the interface that has an address.
func (h *host) holder(address netip.Addr) string {
	for _, l := range h.all {
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == address }) {
			return l.Name
		}
	}
	return ""
}

// ignoresARP is the effective arp_ignore of an interface (IN_DEV_ARP_IGNORE).
func (r *router) ignoresARP(device string) (most int) {
	for _, name := range []string{"all", device} {
		value, err := r.file("/proc/sys/net/ipv4/conf/" + name + "/arp_ignore")
		if n, bad := strconv.Atoi(strings.TrimSpace(string(value))); err == nil && bad == nil {
			most = max(most, n)
		}
	}
	return most
}

// standsBy reports whether addresses may be another host's by design: a program speaks VRRP (protocol 112),
// or may bind to addresses that are not here.
func (r *router) standsBy() bool {
	value, _ := r.file("/proc/sys/net/ipv4/ip_nonlocal_bind")
	sockets, err := r.file("/proc/net/raw")
	return err != nil || strings.TrimSpace(string(value)) == "1" || strings.Contains(string(sockets), ":0070 ")
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
func (r *router) readForwarding(links []snapshot.Interface) error {
	if off, err := r.notForwarded(false, ""); err != nil || off != "" {
		return err
	}
	for i := range links {
		off, err := r.notForwarded(false, links[i].Name)
		if err != nil {
			return err
		}
		links[i].ForwardingOff = off != ""
	}
	return nil
}

// elsewhere are the addresses that rules give to sources and that this host does not have.
func (h *host) elsewhere(rules *snapshot.NATRules) (all []snapshot.GivenElsewhere) {
	seen, asked := map[netip.Addr]bool{}, 0
	for i := range rules.Rules {
		r := &rules.Rules[i]
		if r.Kind != snapshot.NATSource {
			continue
		}
		if h.isForeign(r) && !seen[r.First] && len(all) < mostTargets {
			seen[r.First] = true
			all = append(all, snapshot.GivenElsewhere{Rule: i, Address: r.First, Last: r.Last})
		}
		for _, address := range addressesOf(r) {
			if !address.IsValid() || seen[address] || h.holder(address) != "" {
				continue
			}
			if asked++; asked > mostTargets {
				return all
			}
			seen[address] = true
			by, here := h.route(address)
			if r.OutInterface != "" && !nat.InName(r.OutInterface, by) {
				by = ""
			}
			if !here {
				all = append(all, snapshot.GivenElsewhere{Rule: i, Address: address, OnLink: by})
			}
		}
	}
	return all
}

// isForeign reports whether a rule gives more addresses than are asked for one by one, of which no interface has any
// and that no route leads to but such as lead out like all the rest.
func (h *host) isForeign(r *snapshot.NATRule) bool {
	if !r.First.IsValid() || !r.Last.IsValid() || len(addressesOf(r)) > 0 {
		return false
	}
	for _, l := range h.all {
		for _, p := range l.Addresses {
			if r.First.Compare(p.Addr()) <= 0 && p.Addr().Compare(r.Last) <= 0 || p.Contains(r.First) {
				return false
			}
		}
	}
	route, known := h.router.ask(flow{to: netip.AddrPortFrom(r.First, 0)})
	switch {
	case !known || route.Local:
		return false
	case route.Error != "":
		return route.Error == unix.ENETUNREACH.Error()
	}
	return r.OutInterface != "" && nat.InName(r.OutInterface, route.Out) && route.NextHop != r.First
}

// route finds out whether a route makes an address the host's own (ip route add local), and on which
// interface's network it is; on none where the host is a proxy for it, or where nobody asks for
// addresses there.
func (h *host) route(address netip.Addr) (onLink string, here bool) {
	route, _ := h.router.ask(flow{to: netip.AddrPortFrom(address, 0)})
	i := slices.IndexFunc(h.all, func(l snapshot.Interface) bool { return l.Name == route.Out })
	switch {
	case route.Local:
		return "", true
	case i < 0 || route.NextHop != address || h.proxies[address]:
		return "", false // none, or a blackhole, or a router's
	}
	link := &h.all[i]
	on := slices.ContainsFunc(link.Addresses, func(p netip.Prefix) bool { return p.Contains(address) })
	if !on || !link.Up || !h.asks[link.Name] || address.Is4() && h.router.proxiesARP(link.Name) {
		return "", false
	}
	return link.Name, false
}

// proxiesARP reports whether an interface answers for addresses of its own network that are not the
// host's (arp_fwd_pvlan): elsewhere a proxy of IPv4 answers only for what a route leads out of by
// another interface (arp_process).
func (r *router) proxiesARP(device string) bool {
	return slices.ContainsFunc([]string{"all", device}, func(name string) bool {
		value, err := r.file("/proc/sys/net/ipv4/conf/" + name + "/proxy_arp_pvlan")
		return err == nil && strings.TrimSpace(string(value)) != "0"
	})
}
