package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune"
)

// Way is what a packet is asked about. Source, In and Mark may be left out.
type Way struct {
	Source, Destination netip.Addr
	// In is the interface that it comes in by; empty for the host's own packets.
	In   string
	Mark uint32
}

// Route is where a packet goes.
type Route struct {
	// Local: to the host itself. Unreachable: nowhere, Reason says why.
	Local       bool
	Unreachable bool
	Reason      string
	// Out is the interface, Gateway the next hop (not valid where it is the
	// destination itself), Source the address that the host's own packets get.
	Out             string
	Gateway, Source netip.Addr
	Table           int
}

// Routes asks the kernel (RTM_GETROUTE) for the ways of packets in a namespace, policy
// routing and the check of the source (rp_filter) included.
type Routes struct {
	netlink *netlink.Handle
	// names are those of interfaces by index.
	names map[int]string
}

// OpenRoutes asks in a namespace (nil: this one), until Close.
func OpenRoutes(ns *netns.Handle) (*Routes, error) {
	r := &Routes{names: map[int]string{}}
	err := ns.Do(func() (err error) {
		r.netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask for routes: %w", err)
	}
	return r, nil
}

// Close ends it.
func (r *Routes) Close() { r.netlink.Close() }

// Routed asks for one way in a namespace (nil: this one).
func Routed(ns *netns.Handle, w Way) (Route, error) {
	r, err := OpenRoutes(ns)
	if err != nil {
		return Route{}, err
	}
	defer r.Close()
	return r.Of(w)
}

// Of returns the route of a packet.
func (r *Routes) Of(w Way) (Route, error) {
	route, err := r.of(w)
	if err != nil {
		return Route{}, fmt.Errorf("ask for the route to %s: %w", w.Destination, err)
	}
	return route, nil
}

// Follow is Of, for what follows a packet.
func (r *Routes) Follow(w observe.Lookup) (observe.Hop, error) {
	to, err := r.Of(Way{Source: w.Source, Destination: w.Destination, In: w.In, Mark: w.Mark})
	h := observe.Hop{Local: to.Local, Out: to.Out, Gateway: to.Gateway, Source: to.Source}
	if to.Unreachable {
		h.Unreachable = to.Reason
	}
	if w.Mark != 0 && err == nil && !to.Local {
		h.Default, err = r.byDefault(w.Destination, w.Mark)
	}
	return h, err
}

// byDefault reports whether a default route leads to a destination, or none at all.
func (r *Routes) byDefault(to netip.Addr, mark uint32) (bool, error) {
	routes, err := r.netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Mark: mark, FIBMatch: true})
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return true, nil
	case unreachable(err, Way{Destination: to}) != "":
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for the route to %s: %w", to, err)
	case len(routes) == 0:
		return false, nil
	case routes[0].Dst == nil:
		return true, nil
	}
	bits, _ := routes[0].Dst.Mask.Size()
	return bits == 0, nil
}

func (r *Routes) of(w Way) (Route, error) {
	o := &netlink.RouteGetOptions{Iif: w.In, Mark: w.Mark}
	if w.Source.IsValid() {
		o.SrcAddr = w.Source.AsSlice()
	}
	routes, err := r.netlink.RouteGetWithOptions(w.Destination.AsSlice(), o)
	if why := unreachable(err, w); why != "" {
		return Route{Unreachable: true, Reason: why}, nil
	}
	if err != nil {
		return Route{}, err
	}
	if len(routes) == 0 {
		return Route{}, errors.New("the kernel returned none")
	}
	k := routes[0]
	// What comes in for a broadcast address stays here as well.
	out := Route{Local: k.Type == unix.RTN_LOCAL || w.In != "" && k.Type == unix.RTN_BROADCAST, Table: k.Table, Out: r.name(k.LinkIndex)}
	out.Gateway, _ = netip.AddrFromSlice(k.Gw)
	out.Source, _ = netip.AddrFromSlice(k.Src)
	out.Gateway, out.Source = out.Gateway.Unmap(), out.Source.Unmap()
	return out, nil
}

// name is that of an interface; empty where it is gone.
func (r *Routes) name(index int) string {
	if name, known := r.names[index]; known {
		return name
	}
	if link, err := r.netlink.LinkByIndex(index); err == nil {
		r.names[index] = link.Attrs().Name
	}
	return r.names[index]
}

// local are the prefixes of IPv4 that routes make the host's own, without the addresses of
// the interfaces in f.
func local(ns *netns.Handle, f *gateway.Facts) (all []netip.Prefix, err error) {
	err = ns.Do(func() error {
		routes, err := socket.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		})
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			a, _ := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			if p := netip.PrefixFrom(a.Unmap(), bits); !a.IsLoopback() && !(p.IsSingleIP() && f.Has(p.Addr())) {
				all = append(all, p)
			}
		}
		return err
	})
	return all, err
}

// ways are the interfaces by which hosts are reached that are on no network of the
// interfaces.
func ways(ns *netns.Handle, f *gateway.Facts, targets []netip.Addr) (map[netip.Addr]string, error) {
	targets = slices.DeleteFunc(slices.Clone(targets), f.Near)
	if len(targets) == 0 {
		return nil, nil
	}
	routes, err := OpenRoutes(ns)
	if err != nil {
		return nil, err
	}
	defer routes.Close()
	all := map[netip.Addr]string{}
	for _, a := range targets {
		to, err := routes.Of(Way{Destination: a})
		if err != nil {
			return nil, err
		}
		if !to.Unreachable && !to.Local {
			all[a] = to.Out
		}
	}
	return all, nil
}

// Policies reads the default routes of the main table, others by interfaces of zones (inside), and the rules of policy
// routing that are not natkit's and ask for a mark or have a number.
func Policies(ns *netns.Handle, f *gateway.Facts, inside []string) error {
	return ns.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			v6 := family == netlink.FAMILY_V6
			routes, err := socket.Whole(func() ([]netlink.Route, error) {
				return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: nil}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
			})
			if err != nil {
				return fmt.Errorf("list default routes: %w", err)
			}
			for _, r := range routes {
				f.Defaults = append(f.Defaults, defaults(r, v6)...)
			}
			if err := within(f, inside, family); err != nil {
				return err
			}
			rules, err := socket.Whole(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
			if err != nil {
				return fmt.Errorf("list rules of policy routing: %w", err)
			}
			for _, r := range rules {
				if r.Protocol == tune.RoutingProtocol || r.Protocol == unix.RTPROT_KERNEL {
					continue
				}
				one := gateway.PolicyRule{V6: v6, Priority: r.Priority, Mark: r.Mark, Table: r.Table}
				if r.Mask != nil {
					one.Mask = *r.Mask
				}
				f.Rules = append(f.Rules, one)
			}
		}
		return nil
	})
}

// within reads the routes by interfaces of zones that are no default ones: those of the main table, or of their VRF's.
func within(f *gateway.Facts, inside []string, family int) error {
	for _, name := range inside {
		link, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read interface %s: %w", name, err)
		}
		table := unix.RT_TABLE_MAIN
		if v := f.VRFOf(name); v != nil {
			table = int(v.Table)
		}
		routes, err := socket.Whole(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: table, LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return fmt.Errorf("list routes by %s: %w", name, err)
		}
		for _, r := range routes {
			if r.Dst == nil || r.Type != unix.RTN_UNICAST {
				continue
			}
			via, _ := netip.AddrFromSlice(r.Gw)
			if to := prefixOf(r.Dst); to.Bits() > 0 && !to.Addr().IsLinkLocalUnicast() && !to.Addr().IsMulticast() {
				f.Inside = append(f.Inside, gateway.RouteInside{Interface: name, To: to, Via: via.Unmap()})
			}
		}
	}
	return nil
}

// defaults are the next hops of a default route.
func defaults(r netlink.Route, v6 bool) (all []gateway.DefaultRoute) {
	hops := r.MultiPath
	if len(hops) == 0 {
		hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw, Via: r.Via}}
	}
	for _, h := range hops {
		d := gateway.DefaultRoute{V6: v6, Metric: r.Priority}
		if link, err := netlink.LinkByIndex(h.LinkIndex); err == nil {
			d.Interface = link.Attrs().Name
		}
		if via, ok := netip.AddrFromSlice(h.Gw); ok {
			d.Via = via.Unmap()
		}
		if d.Interface != "" && h.Via == nil && (r.Type == unix.RTN_UNICAST || r.Type == unix.RTN_UNSPEC) {
			all = append(all, d)
		}
	}
	return all
}

// unreachable are the refusals that are answers: fib_lookup's errors, and EXDEV of
// fib_validate_source (rp_filter).
func unreachable(err error, w Way) string {
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return "there is no route (network unreachable)"
	case errors.Is(err, unix.EHOSTUNREACH) && w.In != "":
		return "the route says unreachable, or the host does not forward what comes in by " + w.In
	case errors.Is(err, unix.EHOSTUNREACH):
		return "the route says unreachable"
	case errors.Is(err, unix.EACCES):
		return "the route says prohibit"
	case errors.Is(err, unix.EXDEV):
		return fmt.Sprintf("rp_filter: the way back to %s is not by %s", w.Source, w.In)
	case errors.Is(err, unix.EINVAL) && w.In != "":
		return fmt.Sprintf("the route says blackhole, or what comes in by %s cannot have the source %s or the destination %s (martian)", w.In, w.Source, w.Destination)
	case errors.Is(err, unix.EINVAL):
		return "the route says blackhole"
	}
	return ""
}
