package host

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// usualQdiscs are those that interfaces have by themselves (net/sched/sch_generic.c, CONFIG_DEFAULT_NET_SCH).
var usualQdiscs = []string{"noqueue", "noop", "mq", "fq_codel", "pfifo_fast"}

// bypassed adds to the facts of a namespace (nil: this one) what packets that an XDP program redirects pass by, besides
// other programs' rules.
func bypassed(ns *netns.Handle, f *gateway.Facts) error {
	return ns.Do(func() error {
		policies, err := socket.Whole(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_ALL) })
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) { // no CONFIG_XFRM_USER
			err = nil
		}
		if err != nil {
			return fmt.Errorf("list IPsec policies: %w", err)
		}
		f.IPsecPolicies = len(policies)
		qdiscs, err := socket.Whole(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
		if err != nil {
			return fmt.Errorf("list queueing disciplines: %w", err)
		}
		for _, q := range qdiscs {
			at := q.Attrs()
			if i, err := net.InterfaceByIndex(at.LinkIndex); err == nil && at.Parent == netlink.HANDLE_ROOT && !slices.Contains(usualQdiscs, q.Type()) {
				f.Qdiscs = append(f.Qdiscs, gateway.Qdisc{Interface: i.Name, Kind: q.Type()})
			}
		}
		filters, err := plane.ReadFilters()
		for _, x := range filters {
			f.Filters = append(f.Filters, gateway.Filter(x))
		}
		return err
	})
}
