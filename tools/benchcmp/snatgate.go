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

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
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
	in, err := g.clients.Links()
	if err != nil {
		return err
	}
	defer in.Close()
	return in.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("198.18.0.1"))
}

// link makes a veth pair of one name in both namespaces.
func (g *snatGate) link(name, here, there string) error {
	inside, err := g.gateway.Links()
	if err != nil {
		return err
	}
	defer inside.Close()
	outside, err := g.clients.Links()
	if err != nil {
		return err
	}
	defer outside.Close()
	own := netns.VethEnd{Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	peer := netns.VethEnd{Name: name, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	address := netip.MustParsePrefix(here)
	err = inside.AddVeth(own, outside, peer)
	if err == nil {
		err = inside.AddAddress(name, address)
	}
	switch {
	case err != nil:
		return fmt.Errorf("make a link: %w", err)
	case there == "":
		return inside.AddNeighbour(name, gateServer.Addr(), peer.MAC)
	}
	return errors.Join(outside.AddAddress(name, netip.MustParsePrefix(there)), outside.AddNeighbour(name, address.Addr(), own.MAC))
}

// rule has the gateway give its address, with options as nft has them behind it.
func (g *snatGate) rule(ctx context.Context, options string) error {
	text := fmt.Sprintf(`add table ip gate
delete table ip gate
table ip gate {
  chain marks { type filter hook prerouting priority mangle; ip saddr %s ct mark set %d; }
  chain post { type nat hook postrouting priority srcnat; oifname "out" meta l4proto { tcp, udp } snat to %s%s; }
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

// hold gives the holder connections with these ports, which it keeps; state is that
// of each TCP one.
func (g *snatGate) hold(ctx context.Context, proto uint8, held []uint16, state func(i int) conntrack.TCPState) error {
	i := 0
	_, err := dump.Insert(ctx, g.gateway, func(e *conntrack.Entry) bool {
		if i == len(held) {
			return false
		}
		orig := conntrack.Tuple{Src: gateHolder, Dst: gateServer.Addr(), Proto: proto, SrcPort: held[i], DstPort: gateServer.Port()}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: orig.Mirror(), Timeout: 3600, Status: conntrack.SeenReply | conntrack.Assured}
		e.Reply.Dst = gateAddress
		if proto == unix.IPPROTO_TCP {
			e.TCPState = state(i)
		}
		i++
		return true
	})
	return err
}

// release ends all connections, or the caller's alone.
func (g *snatGate) release(ctx context.Context, marks ...uint32) error {
	for _, mark := range marks {
		if _, err := dump.Delete(ctx, g.gateway, &conntrack.Filter{Mark: mark, MarkMask: ^uint32(0)}); err != nil {
			return err
		}
	}
	return nil
}

// called is what became of the caller's connections.
type called struct{ sent, made, failed int64 }

// call sends the first packet of a connection from each port, and waits until the
// gateway has made or refused all of them. make builds the packet.
func (g *snatGate) call(ctx context.Context, from []uint16, make func(port uint16) []byte) (called, error) {
	refused, err := g.refused()
	if err != nil {
		return called{}, err
	}
	to := &unix.SockaddrInet4{Addr: gateServer.Addr().As4()}
	for _, p := range from {
		if err := unix.Sendto(g.raw, make(p), 0, to); err != nil {
			return called{}, fmt.Errorf("send to the gateway: %w", err)
		}
	}
	c := called{sent: int64(len(from))}
	for wait := time.Microsecond; wait < 8*time.Second; wait *= 2 {
		now, err := g.refused()
		if err != nil {
			return c, err
		}
		if c.failed = now - refused; c.failed < c.sent {
			c.made, err = g.callers(ctx)
		}
		if err != nil || c.made+c.failed >= c.sent {
			return c, err
		}
		time.Sleep(wait)
	}
	return c, fmt.Errorf("of %d connections the gateway made %d and refused %d", c.sent, c.made, c.failed)
}

// refused is the gateway's insert_failed. What too long chains refuse is in it, too,
// and spoils everything.
func (g *snatGate) refused() (n int64, err error) {
	stats, err := dump.Stats(g.gateway)
	for _, cpu := range stats {
		n += int64(cpu["insert_failed"])
		if cpu["chaintoolong"] > 0 {
			err = errors.New("the gateway refused connections for too long hash chains: raise nf_conntrack_buckets")
		}
	}
	return n, err
}

// callers counts the caller's connections; those of others may go meanwhile, as
// new ones take their ports.
func (g *snatGate) callers(ctx context.Context) (n int64, err error) {
	f := &conntrack.Filter{Mark: callerMark, MarkMask: ^uint32(0)}
	_, err = dump.Each(ctx, g.gateway, f, func(*conntrack.Entry) error {
		n++
		return nil
	})
	return n, err
}

// datagram is a packet of the caller from a port: IPv4, UDP without a checksum, one
// byte. The kernel fills in the header's checksum.
func datagram(port uint16) []byte {
	b := fromCaller(unix.IPPROTO_UDP, 29, port)
	binary.BigEndian.PutUint16(b[24:], 9)
	return b
}

// syn makes first packets of TCP connections with a sequence number.
func syn(sequence uint32) func(port uint16) []byte {
	return func(port uint16) []byte {
		b := fromCaller(unix.IPPROTO_TCP, 40, port)
		binary.BigEndian.PutUint32(b[24:], sequence)
		b[32], b[33] = 5<<4, 1<<1 // five words, SYN
		binary.BigEndian.PutUint16(b[34:], 1<<15)
		// The tracker checks the checksum: of the addresses, protocol and length too.
		sum := uint32(unix.IPPROTO_TCP + 20)
		for i := 12; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum&0xffff + sum>>16
		binary.BigEndian.PutUint16(b[36:], ^uint16(sum&0xffff+sum>>16))
		return b
	}
}

func fromCaller(proto uint8, length int, port uint16) []byte {
	b := make([]byte, length)
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], gateCaller.AsSlice())
	copy(b[16:], gateServer.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[20:], port)
	binary.BigEndian.PutUint16(b[22:], gateServer.Port())
	return b
}
