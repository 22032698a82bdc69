package socket

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Listener is a socket that waits for others: one of TCP in LISTEN, or one of UDP without a peer. Waiting and Limit
// are the connections that wait for accept(2) and their limit, Inode is that of the descriptor.
type Listener struct {
	Local          netip.AddrPort
	Waiting, Limit uint32
	Inode          uint32
}

// Places in struct inet_diag_req_v2 and inet_diag_msg (include/uapi/linux/inet_diag.h), and states of sockets
// (include/net/tcp_states.h).
const (
	diagRequestBytes = 56
	diagPort         = 4
	diagAddress      = 8
	diagWaiting      = 56
	diagLimit        = 60
	diagInode        = 68
	diagBytes        = 72
	tcpListen        = 10
	tcpClose         = 7
)

// Listeners lists those of a protocol, "tcp" or "udp", of both versions of IP.
func Listeners(protocol string) (all []Listener, err error) {
	number, state := byte(unix.IPPROTO_TCP), tcpListen
	if protocol == "udp" {
		number, state = unix.IPPROTO_UDP, tcpClose
	}
	c, err := Dial(nil, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for family, size := range map[byte]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		request := make([]byte, diagRequestBytes)
		request[0], request[1] = family, number
		binary.NativeEndian.PutUint32(request[4:], 1<<state)
		answers, err := c.Ask(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, request)
		if err != nil {
			return nil, fmt.Errorf("list sockets of %s: %w (needs CONFIG_INET_DIAG)", protocol, err)
		}
		for _, a := range answers {
			if len(a.Body) < diagBytes {
				continue
			}
			addr, _ := netip.AddrFromSlice(a.Body[diagAddress : diagAddress+size])
			all = append(all, Listener{
				Local:   netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(a.Body[diagPort:])),
				Waiting: binary.NativeEndian.Uint32(a.Body[diagWaiting:]), Limit: binary.NativeEndian.Uint32(a.Body[diagLimit:]),
				Inode: binary.NativeEndian.Uint32(a.Body[diagInode:]),
			})
		}
	}
	return all, nil
}
