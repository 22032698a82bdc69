//go:build linux

package collect

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/natkit/natkit/internal/bpf/plane"
	natnetlink "github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netlink/socket"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ports"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func askPrograms() (*snapshot.Programs, error) {
	all := &snapshot.Programs{Interfaces: []snapshot.ProgramInterface{}}
	pins, err := plane.PinsIn(nil)
	if err != nil {
		return nil, err
	}
	if there, err := pins.Visible(); err != nil || !there {
		return all, err
	}
	is, err := pins.Read()
	if err != nil {
		return nil, err
	}
	found, err := plane.ReadInterfaces()
	if err != nil {
		return nil, err
	}
	for i := range found {
		f := &found[i]
		wants, known := is.Known[f.Index]
		all.Interfaces = append(all.Interfaces, snapshot.ProgramInterface{
			Name: f.Name, Mode: string(is.Modes[f.Index]), Known: known, Missing: is.Missing[f.Index],
			WantsXDP: wants, OtherXDP: uint32(is.Others[f.Index]), NativeXDP: f.Native(), MTU: f.MTU,
		})
	}
	for i, c := range is.Reasons {
		if r := plane.Reason(i); c.Packets > 0 {
			all.Reasons = append(all.Reasons, snapshot.ProgramReason{Reason: r.String(), Dropped: r.Dropped(), Packets: c.Packets, Bytes: c.Bytes})
		}
	}
	return all, nil
}

func askNATRules() (*snapshot.NATRules, error) { return read.NAT(nil) }

// Generic netlink of IPVS (include/uapi/linux/ip_vs.h).
const (
	ipvsFamily        = "IPVS"
	ipvsVersion       = 1
	ipvsGetConfig     = 13 // IPVS_CMD_GET_CONFIG
	ipvsTimeoutTCP    = 4  // IPVS_CMD_ATTR_TIMEOUT_TCP
	ipvsTimeoutTCPFin = 5
	ipvsTimeoutUDP    = 6
)

// askIPVSTimeouts asks for the family by name, which loads no module: /proc/net/ip_vs is
// there.
func askIPVSTimeouts() (*snapshot.IPVSTimeouts, error) {
	c, err := socket.Dial(nil, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("read the timeouts of IPVS: %w", err)
	}
	defer c.Close()
	answers, err := c.AskGeneric(ipvsFamily, ipvsVersion, ipvsGetConfig, 0, nil)
	if err == nil && len(answers) != 1 {
		err = natnetlink.ErrTruncated
	}
	if err != nil {
		return nil, fmt.Errorf("read the timeouts of IPVS: %w", netns.Denied(err, netns.NetAdmin))
	}
	return timeoutsOf(answers[0]), nil
}

func timeoutsOf(a natnetlink.Attrs) *snapshot.IPVSTimeouts {
	seconds := func(kind uint16) int64 {
		if b := a.Get(kind); len(b) == 4 {
			return int64(binary.NativeEndian.Uint32(b))
		}
		return 0
	}
	return &snapshot.IPVSTimeouts{TCP: seconds(ipvsTimeoutTCP), TCPFin: seconds(ipvsTimeoutTCPFin), UDP: seconds(ipvsTimeoutUDP)}
}

// ask lists the TCP sockets with a port of the range (struct inet_diag_req_v2 and inet_diag_msg,
// include/uapi/linux/inet_diag.h).
func (r localPorts) ask() (*snapshot.OwnPorts, error) {
	c, err := socket.Dial(nil, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	uses := ownUses{}
	for family, size := range map[byte]int{unix.AF_INET: 4, unix.AF_INET6: 16} {
		answers, err := c.Ask(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, r.request(family))
		if err != nil {
			return nil, fmt.Errorf("list sockets of TCP: %w (needs CONFIG_INET_DIAG)", err)
		}
		for _, a := range answers {
			uses.addMessage(r, a, size)
		}
	}
	return uses.worst(r.ports()), nil
}

// Sockets lists the TCP and UDP sockets of a namespace (nil: this one), by
// sock_diag. Those in TIME_WAIT are among them: they have their port still.
func Sockets(ns *netns.Handle) (all []ports.Socket, err error) {
	read := func() error {
		for _, kind := range []struct {
			name   string
			proto  uint8
			list   func(family uint8) ([]*netlink.Socket, error)
			family uint8
		}{
			{"TCP", unix.IPPROTO_TCP, netlink.SocketDiagTCP, unix.AF_INET}, {"TCP over IPv6", unix.IPPROTO_TCP, netlink.SocketDiagTCP, unix.AF_INET6},
			{"UDP", unix.IPPROTO_UDP, netlink.SocketDiagUDP, unix.AF_INET}, {"UDP over IPv6", unix.IPPROTO_UDP, netlink.SocketDiagUDP, unix.AF_INET6},
		} {
			sockets, err := kind.list(kind.family)
			if err != nil {
				return fmt.Errorf("list sockets of %s: %w (needs CONFIG_INET_DIAG)", kind.name, err)
			}
			for _, s := range sockets {
				all = append(all, ports.Socket{Proto: kind.proto,
					Local: endpoint(s.ID.Source, s.ID.SourcePort), Remote: endpoint(s.ID.Destination, s.ID.DestinationPort)})
			}
		}
		return nil
	}
	err = ns.Do(read)
	return all, err
}

func endpoint(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}

// Release is the running kernel's.
func Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read the kernel's release: %w", err)
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}
