package netfilter_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/behaviour"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLimit: a source has its connections and no more, another one its own.
func TestLimit(t *testing.T) {
	b := newBed(t, netfilter.Apply, "  limits: {connections-per-source: 3}\n  nat: [{masquerade: {}}]\n  ipv6: [{masquerade: {}}]\n")
	for _, f := range []struct{ first, second, x string }{
		{"192.168.0.2:%d", "192.168.0.4:%d", "198.18.0.10:53"}, {"[fd00:1::2]:%d", "[fd00:1::4]:%d", "[2001:db8:f:1::10]:53"}} {
		for n := range 5 {
			got := b.udp(behaviour.A, behaviour.X, fmt.Sprintf(f.first, 1000+n), f.x)
			if got.Src.IsValid() != (n < 3) {
				t.Errorf("connection %d of %s: %v", n+1, f.first, got)
			}
		}
		if got := b.udp(behaviour.A, behaviour.X, fmt.Sprintf(f.second, 1000), f.x); !got.Src.IsValid() {
			t.Errorf("another source is limited, too")
		}
	}
	for n := range 3 { // without an answer it is new for the tracker with each packet
		b.udp(behaviour.A, behaviour.X, "192.168.0.2:1009", "198.18.0.10:53")
		if got := b.udp(behaviour.A, behaviour.X, fmt.Sprintf("192.168.0.2:%d", 1000+n), "198.18.0.10:53"); !got.Src.IsValid() {
			t.Errorf("connection %d, of those within the limit, is dropped while another one is refused", n+1)
		}
	}
	if n := b.counted(netfilter.LimitComment); n != 7 {
		t.Errorf("counted %d drops, not 7", n)
	}
	more := func(what string, limit int, passes bool) {
		t.Helper()
		b.use(fmt.Sprintf("  limits: {connections-per-source: %d}\n  nat: [{masquerade: {from: 192.168.0.0/24}}, {static: {inside: 192.168.0.62, outside: 203.0.113.9}}]\n", limit))
		if got := b.udp(behaviour.A, behaviour.X, "192.168.0.2:4000", "198.18.0.10:53"); got.Src.IsValid() != passes {
			t.Errorf("%s: a connection more: %v", what, got)
		}
	}
	more("applied again", 3, false)
	more("and again", 3, false)
	more("with a higher limit", 4, true)
}

// TestMSS: the MSS of SYNs is lowered to what fits, never raised.
func TestMSS(t *testing.T) {
	b := newBed(t, netfilter.Apply, "  mss: 1200\n  nat: [{masquerade: {}}]\n")
	for said, want := range map[uint16]uint16{1460: 1200, 1000: 1000} {
		if got := b.syn(said); got != want {
			t.Errorf("a SYN with %d becomes %d, not %d", said, got, want)
		}
	}
	b.use("  mss: clamp\n  nat: [{masquerade: {}}]\n")
	if err := b.World.MTU(behaviour.WAN, 1300); err != nil {
		t.Fatal(err)
	}
	if got := b.syn(1460); got != 1260 {
		t.Errorf("a SYN with 1460 over an MTU of 1300 becomes %d, not 1260", got)
	}
}

// syn sends a SYN with a maximum segment size and gives the one that arrives.
func (b *bed) syn(mss uint16) uint16 {
	b.Helper()
	sourcePort++
	t := frame.Tuple{Src: netip.AddrPortFrom(netip.MustParseAddr("192.168.0.2"), sourcePort), Dst: netip.MustParseAddrPort("198.18.0.10:80")}
	h := frame.TCP{Flags: frame.SYN, Window: 1000, Options: []byte{2, 4, byte(mss >> 8), byte(mss)}}
	got := b.send(behaviour.A, behaviour.X, frame.IP{Source: t.Src.Addr(), Destination: t.Dst.Addr(), Protocol: unix.IPPROTO_TCP}.Append(nil, frame.AppendTCP(nil, t, h, nil)))
	i := -1
	if len(got) == 1 {
		i = slices.Index(got[0].TCP.Options, 2)
	}
	if i != 0 {
		b.Fatalf("SYN: %+v", got)
	}
	return uint16(got[0].TCP.Options[2])<<8 | uint16(got[0].TCP.Options[3])
}

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
				b.apply(fmt.Sprintf(`gateway:
  interfaces: %s
  nat: [dnat: {on: 203.0.113.7, port: udp/8080, to: "192.168.0.3:80", hairpin: on, local: on}]
`, roles))
				b.seen(b.client, "192.168.0.2", "203.0.113.7")
				b.seen(b.gateway, "192.168.0.1", "192.168.0.1")
			})
		}
	}
}

// TestHairpinToItself: where the bridge hands packets to netfilter, a host does not reach
// itself by the address outside unless its port sends back what came in by it; explain
// reports which it is.
func TestHairpinToItself(t *testing.T) {
	testutil.NeedFeature(t, testutil.BridgeNetfilter)
	testutil.NeedFeature(t, testutil.Hairpin)
	for _, c := range []struct {
		filtered string
		hairpin  bool
		fate     observe.Fate
	}{{"0", false, observe.Forwarded}, {"1", false, observe.Dropped}, {"1", true, observe.Forwarded}} {
		t.Run(fmt.Sprintf("bridge-nf-call-iptables=%s hairpin mode %v", c.filtered, c.hairpin), func(t *testing.T) {
			b := newBridged(t, c.filtered)
			if c.hairpin {
				b.do(b.gateway, func() error { return errors.Join(sendsBack("port1"), sendsBack("port2")) })
			}
			p := b.apply(`gateway:
  interfaces: {wan: wan, lan: br0}
  nat:
    - dnat: {on: 203.0.113.7, port: udp/8080, to: "192.168.0.3:80", hairpin: on}
    - dnat: {on: 203.0.113.7, port: udp/8081, to: "192.168.0.2:80", hairpin: on}
`)
			facts, err := host.Read(t.Context(), b.gateway, host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			routes, err := host.OpenRoutes(b.gateway)
			if err != nil {
				t.Fatal(err)
			}
			defer routes.Close()
			packet, err := observe.ParsePacket([]string{"udp 192.168.0.2:4000 -> 203.0.113.7:8081"})
			if err != nil {
				t.Fatal(err)
			}
			packet.In = "br0"
			way, err := observe.Follow(p, facts, routes.Follow, packet)
			if err != nil {
				t.Fatal(err)
			}
			if way.Fate != c.fate {
				t.Errorf("foretold: %s, want %s: %+v", way.Fate, c.fate, way.Steps)
			}
			if reached := b.reachesItself(); reached != (c.fate == observe.Forwarded) {
				t.Errorf("reached: %v, foretold: %s", reached, way.Fate)
			}
		})
	}
}

func sendsBack(port string) error {
	link, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	return netlink.LinkSetHairpin(link, true)
}

func (b *bridged) apply(text string) *gateway.Plan {
	b.Helper()
	f, err := gateway.Parse("bridged", []byte(text))
	if err != nil {
		b.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, gateway.Facts{})
	if err != nil {
		b.Fatal(err)
	}
	if err := netfilter.Apply(b.gateway, p); err != nil {
		b.Fatal(err)
	}
	return p
}

// reachesItself reports whether what the client sends to its own rule comes back to it before
// the answer to what it then asks the server.
func (b *bridged) reachesItself() (reached bool) {
	b.Helper()
	b.seen(b.client, "192.168.0.2", "203.0.113.7") // the ports forward by now
	b.do(b.client, func() error {
		listener, err := net.ListenPacket("udp4", "192.168.0.2:80")
		if err != nil {
			return err
		}
		defer listener.Close()
		c, err := net.Dial("udp4", "203.0.113.7:8081")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 5 {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			b.seen(b.client, "192.168.0.2", "203.0.113.7")
		}
		if err := listener.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil { // it is there, or does not come
			return err
		}
		_, _, err = listener.ReadFrom(make([]byte, 1))
		reached = err == nil
		return nil
	})
	return reached
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
