package run

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchLinks has a value whenever an interface or an address of the namespace has
// changed, or may have: several changes are one. It ends with ctx.
func (h Host) watchLinks(ctx context.Context) (<-chan struct{}, error) {
	var socket *nl.NetlinkSocket
	err := h.do(func() (err error) {
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch interfaces and addresses: %w", err)
	}
	// The timeout lets the goroutine see the end: closing the socket does not wake it.
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: 1}); err != nil {
		socket.Close()
		return nil, fmt.Errorf("watch interfaces and addresses: %w", err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer socket.Close()
		for ctx.Err() == nil {
			_, from, err := socket.Receive()
			switch {
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), err == nil && from.Pid != 0:
				continue
			case err != nil && !errors.Is(err, unix.ENOBUFS): // more than the buffer held: something changed
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
