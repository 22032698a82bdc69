package nft_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/nft"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// TestBridgedHairpin: a host of a bridge that reaches another one of it by the address
// outside is seen under that, also where the bridge hands packets to netfilter and so
// takes them to the other host itself. A connection of the gateway is seen as it is.
func TestBridgedHairpin(t *testing.T) {
	testutil.NeedFeature(t, testutil.BridgeNetfilter)
	testutil.NeedFeature(t, testutil.Hairpin)
	for _, roles := range []string{"{wan: wan}", "{lan: br0}", "{wan: wan, lan: br0}"} {
		for _, filtered := range []string{"0", "1"} {
			t.Run(roles+" bridge-nf-call-iptables="+filtered, func(t *testing.T) {
				b := newBridged(t, filtered)
				f, err := gateway.Parse("bridged", fmt.Appendf(nil, `gateway:
  interfaces: %s
  nat: [dnat: {on: 203.0.113.7, port: udp/8080, to: "192.168.0.3:80", hairpin: on, local: on}]
`, roles))
				if err != nil {
					t.Fatal(err)
				}
				p, err := gateway.Compile(&f.Config, gateway.Facts{})
				if err != nil {
					t.Fatal(err)
				}
				if err := nft.Apply(b.gateway, p); err != nil {
					t.Fatal(err)
				}
				b.seen(b.client, "192.168.0.2", "203.0.113.7")
				b.seen(b.gateway, "192.168.0.1", "192.168.0.1")
			})
		}
	}
}

// bridged are a client (192.168.0.2) and a server (192.168.0.3) at two ports of the
// gateway's bridge. The server answers with the address that it sees.
type bridged struct {
	*testing.T
	gateway, client, server *netns.Handle
}

func newBridged(t *testing.T, filtered string) *bridged {
	t.Helper()
	b := &bridged{t, testutil.Namespace(t), testutil.Namespace(t), testutil.Namespace(t)}
	b.do(b.gateway, func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		return errors.Join(netlink.LinkAdd(br), configure("br0", "192.168.0.1/24"),
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan"}, PeerName: "none"}),
			configure("none", ""), configure("wan", "203.0.113.7/24"), configure("lo", ""),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(filtered), 0),
			b.port(br, "port1", b.client), b.port(br, "port2", b.server))
	})
	for ns, address := range map[*netns.Handle]string{b.client: "192.168.0.2/24", b.server: "192.168.0.3/24"} {
		b.do(ns, func() error {
			return errors.Join(configure("eth0", address), netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("192.168.0.1")}))
		})
	}
	b.serve()
	return b
}

func (b *bridged) do(ns *netns.Handle, fn func() error) {
	b.Helper()
	if err := ns.Do(fn); err != nil {
		b.Fatal(err)
	}
}

// port is a port of the bridge, and the host's end of its wire.
func (b *bridged) port(br *netlink.Bridge, name string, host *netns.Handle) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: br.Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(host.Fd())}
	return errors.Join(netlink.LinkAdd(veth), configure(name, ""))
}

func configure(name, address string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

func (b *bridged) serve() {
	b.do(b.server, func() error {
		c, err := net.ListenPacket("udp4", "192.168.0.3:80")
		if err != nil {
			return err
		}
		b.Cleanup(func() { c.Close() })
		go func() {
			for {
				_, from, err := c.ReadFrom(make([]byte, 1))
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
			}
		}()
		return nil
	})
}

// seen wants the server to see one that asks for the address outside, from an address of
// its own, as another. A bridge's port takes no packets before it is forwarding: what is
// lost is sent again.
func (b *bridged) seen(ns *netns.Handle, from, as string) {
	b.Helper()
	b.do(ns, func() error {
		c, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}).Dial("udp4", "203.0.113.7:8080")
		if err != nil {
			return err
		}
		defer c.Close()
		answer := make([]byte, 100)
		for end := time.Now().Add(testutil.Patience(20 * time.Second)); time.Now().Before(end); {
			if err := errors.Join(c.SetReadDeadline(time.Now().Add(200*time.Millisecond)), second(c.Write([]byte("?")))); err != nil {
				return err
			}
			n, err := c.Read(answer)
			if err != nil {
				continue
			}
			if got := string(answer[:n]); got != as {
				b.Errorf("%s is seen as %s, not %s", from, got, as)
			}
			return nil
		}
		return errors.New("no answer")
	})
}

func second(_ int, err error) error { return err }
