package host

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/apply"
)

// inside runs fn in a namespace; nil is the calling process's.
func inside(ns *netns.Handle, fn func() error) error {
	if ns == nil {
		return fn()
	}
	return ns.Do(fn)
}

// Interfaces are those of a namespace (nil: this one), in order of their indexes.
func Interfaces(ns *netns.Handle) ([]gateway.Interface, error) {
	var all []gateway.Interface
	err := inside(ns, func() error {
		links, err := whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		addresses, err := whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		bridges, err := bridges()
		if err != nil {
			return err
		}
		for _, l := range links {
			i := link(l.Attrs(), addresses)
			i.Bridge = bridges[i.Index]
			all = append(all, i)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b gateway.Interface) int { return cmp.Compare(a.Index, b.Index) })
	return all, err
}

// attempts bound how often a list is read that changes meanwhile.
const attempts = 10

// whole reads until nothing changed meanwhile (NLM_F_DUMP_INTR); of the last attempt
// what it got.
func whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range attempts {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, nil
}

func link(l *netlink.LinkAttrs, addresses []netlink.Addr) gateway.Interface {
	i := gateway.Interface{Name: l.Name, Index: l.Index, Up: l.Flags&net.FlagUp != 0, MTU: l.MTU}
	for _, a := range addresses {
		if a.LinkIndex != l.Index || a.IPNet == nil || a.Flags&unix.IFA_F_TENTATIVE != 0 {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if ok {
			i.Addresses = append(i.Addresses, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return i
}

// Initial reports whether a namespace (nil: this one) is the host's own.
func Initial(ns *netns.Handle) (bool, error) { return initial(ns, "/proc") }

// initial reports whether the namespace is the host's own.
func initial(ns *netns.Handle, proc string) (bool, error) {
	here, err := netns.InodeOf(nil)
	if err != nil {
		return false, err
	}
	at := apply.IsInitialNetns(here, proc)
	if ns == nil || ns.Inode() == here {
		return at, nil
	}
	return !at && apply.IsInitialNetns(ns.Inode(), proc), nil
}
