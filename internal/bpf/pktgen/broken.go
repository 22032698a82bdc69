package pktgen

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// broken tells what is no longer there of that on which a run depends. The programs
// do not notice: what is sent counts as sent, and as lost from then on.
func (r *run) broken() error {
	if err := stillUp(r.from.Port, r.from.Index); err != nil {
		return fmt.Errorf("send by %v: %w while the run was under way: the counts from then on tell nothing", r.from.Port, err)
	}
	if r.sink != nil {
		if err := r.sink.broken(); err != nil {
			return fmt.Errorf("receive on %v: %w while the run was under way: what was lost from then on says nothing of the way", r.sink.port, err)
		}
	}
	if r.relies == nil {
		return nil
	}
	p, err := readPeer(r.relies.port.Netns, r.relies.index, func() {})
	if err != nil {
		return nil // where the other end has gone, so has the sender's
	}
	if !p.hasXDP {
		return fmt.Errorf("send by %v: the XDP program of its other end %v was removed while the run was under way, and the frames were dropped from then on; start the run again", r.from.Port, p.port)
	}
	return nil
}

func (r *receiver) broken() error {
	info, err := r.link.Info()
	if err != nil || info.XDP() == nil {
		return nil // that cannot be asked
	}
	index := int(info.XDP().Ifindex)
	if index == 0 {
		return errors.New("the interface, or the program on it, was removed")
	}
	return stillUp(r.port, index)
}

// stillUp finds an interface that is down, or gone.
func stillUp(port Port, index int) error {
	return in(port.Netns, func() error {
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return nil // that cannot be asked
		}
		defer handle.Close()
		l, err := handle.LinkByIndex(index)
		switch {
		case errors.As(err, &netlink.LinkNotFoundError{}):
			return errors.New("the interface was removed")
		case err == nil && l.Attrs().Flags&net.FlagUp == 0:
			return errors.New("the interface went down")
		case err == nil && (l.Attrs().OperState == netlink.OperDown || l.Attrs().OperState == netlink.OperLowerLayerDown):
			return errors.New("the interface lost its carrier")
		}
		return nil
	})
}
