package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/conntrack/match"
	"github.com/natkit/natkit/internal/netns"
)

// snatGate is a gateway that gives the connections of its clients one address: two
// namespaces, and a link each way. What leaves it is dropped by a host that neither
// owns the address nor forwards.
//
//	clients 198.18.0.0/24 ── in │ gateway │ out ── 198.19.0.1:9
//	                             203.0.113.7
type snatGate struct {
	gateway, clients *netns.Handle
	// raw sends packets with any source.
	raw int
}

var (
	gateAddress = netip.MustParseAddr("203.0.113.7")
	gateServer  = netip.MustParseAddrPort("198.19.0.1:9")
	// The holder's connections are there before, the caller's come and go.
	gateHolder = netip.MustParseAddr("198.18.0.10")
	gateCaller = netip.MustParseAddr("198.18.0.11")
)

// callerMark marks the caller's connections, so that they can be deleted.
const callerMark = 11

func newSNATGate() (g *snatGate, err error) {
	g = &snatGate{raw: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make a gateway: %w", err), g.close())
			g = nil
		}
	}()
	if g.gateway, err = netns.New("gateway"); err != nil {
		return g, err
	}
	if g.clients, err = netns.New("clients"); err != nil {
		return g, err
	}
	if err := g.connect(); err != nil {
		return g, err
	}
	if err := g.gateway.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }); err != nil {
		return g, err
	}
	return g, g.clients.Do(func() error {
		g.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
}

func (g *snatGate) close() error {
	if g.raw >= 0 {
		unix.Close(g.raw)
	}
	return errors.Join(g.gateway.Close(), g.clients.Close())
}

// connect makes the two links, with neighbours that need no ARP.
func (g *snatGate) connect() error {
	if err := g.link("in", "198.18.0.1/24", "198.18.0.2/24"); err != nil {
		return err
	}
	if err := g.link("out", "198.19.0.2/24", ""); err != nil {
		return err
	}
	in, err := routeSocket(g.clients)
	if err != nil {
		return err
	}
	defer in.Close()
	return in.RouteAdd(&netlink.Route{Gw: net.IPv4(198, 18, 0, 1)})
}

// routeSocket speaks of the links of a namespace.
func routeSocket(ns *netns.Handle) (h *netlink.Handle, err error) {
	err = ns.Do(func() error {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return h, err
}

// link makes a veth pair of one name in both namespaces.
func (g *snatGate) link(name, here, there string) error {
	inside, err := routeSocket(g.gateway)
	if err != nil {
		return err
	}
	defer inside.Close()
	outside, err := routeSocket(g.clients)
	if err != nil {
		return err
	}
	defer outside.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(g.clients.Fd())}
	if err := inside.LinkAdd(pair); err != nil {
		return fmt.Errorf("make a link: %w", err)
	}
	macs, indices := [2]net.HardwareAddr{}, [2]int{}
	for i, end := range []struct {
		*netlink.Handle
		address string
	}{{inside, here}, {outside, there}} {
		l, err := end.LinkByName(name)
		if err == nil && end.address != "" {
			var addr *netlink.Addr
			if addr, err = netlink.ParseAddr(end.address); err == nil {
				err = end.AddrAdd(l, addr)
			}
		}
		if err == nil {
			err = end.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("set up a link: %w", err)
		}
		macs[i], indices[i] = l.Attrs().HardwareAddr, l.Attrs().Index
	}
	if there == "" {
		return neighbour(inside, indices[0], gateServer.Addr(), macs[1])
	}
	return neighbour(outside, indices[1], netip.MustParsePrefix(here).Addr(), macs[0])
}

func neighbour(h *netlink.Handle, link int, addr netip.Addr, mac net.HardwareAddr) error {
	return h.NeighSet(&netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac})
}

// rule has the gateway give its address, with options as nft has them behind it.
func (g *snatGate) rule(ctx context.Context, options string) error {
	text := fmt.Sprintf(`add table ip gate
delete table ip gate
table ip gate {
  chain marks { type filter hook prerouting priority mangle; ip saddr %s ct mark set %d; }
  chain post { type nat hook postrouting priority srcnat; oifname "out" meta l4proto udp snat to %s%s; }
}
`, gateCaller, callerMark, gateAddress, options)
	return g.gateway.Do(func() error {
		cmd := exec.CommandContext(ctx, "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("load rules into the gateway: %w: %s", err, out)
		}
		return nil
	})
}

// hold gives the holder connections with these ports, which it keeps.
func (g *snatGate) hold(ctx context.Context, held []uint16) error {
	i := 0
	_, err := dump.Insert(ctx, g.gateway, func(e *conntrack.Entry) bool {
		if i == len(held) {
			return false
		}
		p := held[i]
		i++
		orig := conntrack.Tuple{Src: gateHolder, Dst: gateServer.Addr(), Proto: unix.IPPROTO_UDP, SrcPort: p, DstPort: gateServer.Port()}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Timeout: 3600, Status: conntrack.SeenReply | conntrack.Assured}
		e.Reply.Dst = gateAddress
		return true
	})
	return err
}

// release ends all connections, or the caller's alone.
func (g *snatGate) release(ctx context.Context, marks ...uint32) error {
	for _, mark := range marks {
		if err := dump.Delete(ctx, g.gateway, match.Filter{Mark: mark, MarkMask: ^uint32(0)}); err != nil {
			return err
		}
	}
	return nil
}

// called is what became of the caller's connections.
type called struct{ sent, made, failed int64 }

// call sends the first packet of a connection from each port, and waits until the
// gateway has made or refused all of them.
func (g *snatGate) call(from []uint16) (called, error) {
	before, err := g.counts()
	if err != nil {
		return called{}, err
	}
	to := &unix.SockaddrInet4{Addr: gateServer.Addr().As4()}
	for _, p := range from {
		if err := unix.Sendto(g.raw, datagram(p), 0, to); err != nil {
			return called{}, fmt.Errorf("send to the gateway: %w", err)
		}
	}
	for wait := time.Microsecond; ; wait *= 2 {
		now, err := g.counts()
		if err != nil {
			return called{}, err
		}
		c := called{sent: int64(len(from)), made: now.made - before.made, failed: now.failed - before.failed}
		if c.made+c.failed >= c.sent {
			return c, nil
		}
		if wait > 4*time.Second {
			return c, fmt.Errorf("of %d connections the gateway made %d and refused %d", c.sent, c.made, c.failed)
		}
		time.Sleep(wait)
	}
}

// counts are the gateway's entries and insert_failed.
func (g *snatGate) counts() (called, error) {
	u, err := dump.Count(g.gateway)
	if err != nil {
		return called{}, err
	}
	stats, err := dump.Stats(g.gateway)
	c := called{made: u.Entries}
	for _, cpu := range stats {
		c.failed += int64(cpu["insert_failed"])
	}
	return c, err
}

// datagram is a packet of the caller from a port: IPv4, UDP without a checksum, one
// byte. The kernel fills in the header's checksum.
func datagram(port uint16) []byte {
	b := make([]byte, 29)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], gateCaller.AsSlice())
	copy(b[16:], gateServer.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[20:], port)
	binary.BigEndian.PutUint16(b[22:], gateServer.Port())
	binary.BigEndian.PutUint16(b[24:], 9)
	return b
}
