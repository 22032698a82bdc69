package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
)

// readUndecoded dumps the connection table of a namespace and looks at nothing of it
// but the headers of its messages, which it counts: what no reader can be faster than.
func readUndecoded(ns *netns.Handle) (entries int64, err error) {
	fd := -1
	err = ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("open ctnetlink socket: %w", err)
	}
	defer unix.Close(fd)
	// struct nlmsghdr and struct nfgenmsg, for every family.
	request := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+4)
	request = binary.NativeEndian.AppendUint16(request, unix.NFNL_SUBSYS_CTNETLINK<<8|1) // IPCTNL_MSG_CT_GET
	request = binary.NativeEndian.AppendUint16(request, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request = append(request, make([]byte, 8+4)...)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("ask for the connection table: %w", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return entries, fmt.Errorf("read the connection table: %w", err)
		}
		more, end, err := countMessages(buf[:n])
		entries += more
		if err != nil || end {
			return entries, err
		}
	}
}

// countMessages counts those of a datagram, and reports whether it is the last one.
func countMessages(b []byte) (n int64, end bool, err error) {
	for len(b) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(b))
		switch kind := binary.NativeEndian.Uint16(b[4:]); {
		case length < unix.NLMSG_HDRLEN || length > len(b):
			return n, true, errors.New("read the connection table: a message is cut off")
		case kind == unix.NLMSG_DONE:
			return n, true, nil
		case kind == unix.NLMSG_ERROR:
			return n, true, errors.New("read the connection table: the kernel refused")
		}
		n++
		b = b[min((length+3)&^3, len(b)):]
	}
	return n, false, nil
}
