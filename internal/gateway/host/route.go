package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
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

// Routed asks the kernel (RTM_GETROUTE) for the way of a packet in a namespace (nil:
// this one), policy routing and the check of the source (rp_filter) included.
func Routed(ns *netns.Handle, w Way) (Route, error) {
	var r Route
	err := inside(ns, func() (err error) {
		r, err = routed(w)
		return err
	})
	if err != nil {
		return Route{}, fmt.Errorf("ask for the route to %s: %w", w.Destination, err)
	}
	return r, nil
}

func routed(w Way) (Route, error) {
	o := &netlink.RouteGetOptions{Iif: w.In, Mark: w.Mark}
	if w.Source.IsValid() {
		o.SrcAddr = w.Source.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(w.Destination.AsSlice(), o)
	if why := unreachable(err, w); why != "" {
		return Route{Unreachable: true, Reason: why}, nil
	}
	if err != nil {
		return Route{}, err
	}
	if len(routes) == 0 {
		return Route{}, errors.New("the kernel tells none")
	}
	k := routes[0]
	r := Route{Local: k.Type == unix.RTN_LOCAL, Table: k.Table}
	r.Gateway, _ = netip.AddrFromSlice(k.Gw)
	r.Source, _ = netip.AddrFromSlice(k.Src)
	r.Gateway, r.Source = r.Gateway.Unmap(), r.Source.Unmap()
	if out, err := netlink.LinkByIndex(k.LinkIndex); err == nil {
		r.Out = out.Attrs().Name
	}
	return r, nil
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
