package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchLinks has a value whenever an interface or an address of the namespace has
// changed, or may have.
func (h Host) watchLinks(ctx context.Context) (<-chan struct{}, error) {
	events, err := h.watch(ctx, unix.NETLINK_ROUTE, func([]syscall.NetlinkMessage) bool { return true },
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("watch interfaces and addresses: %w", err)
	}
	return events, nil
}

// watchTables has a value whenever a table of nf_tables was deleted in the namespace, or
// may have been. A transaction that writes rules costs one look at its messages.
func (h Host) watchTables(ctx context.Context) (<-chan struct{}, error) {
	events, err := h.watch(ctx, unix.NETLINK_NETFILTER, func(all []syscall.NetlinkMessage) bool {
		return slices.ContainsFunc(all, func(m syscall.NetlinkMessage) bool {
			return m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE
		})
	}, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("watch tables of nf_tables: %w", err)
	}
	return events, nil
}

// watch has a value when the kernel has told a group something that matters, or more than
// the socket's buffer held: several times before it is taken are one. It ends with ctx.
func (h Host) watch(ctx context.Context, protocol int, matters func([]syscall.NetlinkMessage) bool, groups ...uint) (<-chan struct{}, error) {
	var socket *nl.NetlinkSocket
	err := h.do(func() (err error) {
		socket, err = nl.Subscribe(protocol, groups...)
		return err
	})
	if err != nil {
		return nil, err
	}
	// The timeout lets the goroutine see the end: closing the socket does not wake it.
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: 1}); err != nil {
		socket.Close()
		return nil, err
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer socket.Close()
		for ctx.Err() == nil {
			messages, from, err := socket.Receive()
			switch {
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), err == nil && (from.Pid != 0 || !matters(messages)):
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS):
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, nil
}
