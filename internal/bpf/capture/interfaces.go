package capture

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// mostInterfaces have a program each: to attach one holds the lock of all network configuration for some
// milliseconds (synchronize_rcu in tcx_link_prog_attach).
const mostInterfaces = 16

var errTooMany = fmt.Errorf("more than %d interfaces", mostInterfaces)

// interfaces are those of a namespace, each with a tcx program, which ends with its link.
type interfaces struct {
	ns      *netns.Handle
	program *ebpf.Program
	links   map[int]link.Link
	// events is a netlink socket on which the kernel announces changes.
	events int
}

func watchInterfaces(ns *netns.Handle) (*interfaces, error) {
	i := &interfaces{ns: ns, links: map[int]link.Link{}, events: -1}
	err := ns.Do(func() (err error) {
		if i.events, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return unix.Bind(i.events, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK})
	})
	if err != nil {
		i.close()
		return nil, fmt.Errorf("watch for interfaces: %w", err)
	}
	return i, nil
}

// changed reports whether interfaces may have changed since the last call.
func (i *interfaces) changed() (changed bool) {
	var b [1 << 12]byte
	for {
		_, _, err := unix.Recvfrom(i.events, b[:], 0)
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return changed
		}
		changed = true
	}
}

// install has all interfaces run a program, from now on, in the place of the former one.
func (i *interfaces) install(program *ebpf.Program) error {
	for index, l := range i.links {
		if l.Update(program) != nil { // it is gone
			l.Close()
			delete(i.links, index)
		}
	}
	i.program = program
	return i.attach()
}

// attach gives interfaces that have come the program, before those of others, which may drop packets.
func (i *interfaces) attach() error {
	return i.ns.Do(func() error {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		if len(all) > mostInterfaces {
			return errTooMany
		}
		gone := i.links
		defer func() {
			for _, l := range gone {
				l.Close()
			}
		}()
		i.links = map[int]link.Link{}
		for _, n := range all {
			var err error
			l := gone[n.Index]
			delete(gone, n.Index)
			if l == nil {
				l, err = link.AttachTCX(link.TCXOptions{Interface: n.Index, Program: i.program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
			}
			switch {
			case err == nil:
				i.links[n.Index] = l
			case !errors.Is(err, unix.ENODEV): // it has gone again
				return err
			}
		}
		return nil
	})
}

func (i *interfaces) detach() {
	for _, l := range i.links {
		l.Close()
	}
	clear(i.links)
}

func (i *interfaces) close() {
	if i == nil {
		return
	}
	i.detach()
	if i.events >= 0 {
		unix.Close(i.events)
	}
}
