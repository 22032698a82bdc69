package apply

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/host"
	"github.com/natkit/natkit/internal/gateway/look"
	"github.com/natkit/natkit/internal/gateway/observe"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

// customers is a gateway with two of them that have the same addresses, and checks sources strictly:
//
//	red  10.0.0.2, 10.5.0.2, fd00::2 ── lan0 gateway wan0 203.0.113.7, 2001:db8::7 ── 203.0.113.1, 2001:db8::1 internet
//	blue the same                    ── lan1                      203.0.113.8
type customers struct {
	*world
	red, blue, internet *netns.Handle
}

var zonesText = hairpins(`gateway:
  interfaces: {wan: wan0, lan: [{interface: lan0, zone: red}, {interface: lan1, zone: blue}]}
  nat:
    - masquerade: {}
    - dnat: {on: 203.0.113.7, port: [tcp/80, udp/80], to: "10.0.0.2:8000", zone: red, hairpin: on, local: on}
    - dnat: {on: 203.0.113.8, port: [tcp/80, udp/80], to: "10.0.0.2:8000", zone: blue, hairpin: on, local: on}
  ipv6:
    - masquerade: {}
    - dnat: {on: "2001:db8::7", port: [tcp/80, udp/80], to: "[fd00::2]:8000", zone: red}
    - dnat: {on: "2001:db8::7", port: [tcp/81, udp/81], to: "[fd00::2]:8000", zone: blue}
`)

// hairpins are left out where the kernel has none.
func hairpins(text string) string {
	if testutil.Hairpin.Probe() != nil {
		return strings.ReplaceAll(text, "hairpin: on, ", "")
	}
	return text
}

func newCustomers(t *testing.T) *customers {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "ip")
	testutil.NeedFeature(t, testutil.IPv6)
	t.Parallel()
	return newCustomersIn(t)
}

func newCustomersIn(t *testing.T) *customers {
	t.Helper()
	p := &customers{world: &world{t: t, ns: testutil.Namespace(t, "gateway")}, red: testutil.Namespace(t, "red"), blue: testutil.Namespace(t, "blue"), internet: testutil.Namespace(t, "internet")}
	for _, ns := range []*netns.Handle{p.ns, p.red, p.blue, p.internet} {
		p.in(ns, "ip link set lo up", "sysctl -qw net.ipv6.conf.default.accept_ra=0 net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
	}
	for i, c := range []*netns.Handle{p.red, p.blue} {
		name := fmt.Sprintf("lan%d", i)
		testutil.Veth(t, testutil.End{Netns: p.ns, Name: name, Addresses: []string{"10.0.0.1/24", "fd00::1/64"}},
			testutil.End{Netns: c, Name: "eth0", Addresses: []string{"10.0.0.2/24", "fd00::2/64", "10.5.0.2/32"}})
		p.in(c, "ip route add default via 10.0.0.1", "ip -6 route add default via fd00::1")
		p.in(p.ns, fmt.Sprintf("ip route add 10.5.0.0/16 via 10.0.0.2 dev %s metric %d", name, i+1))
		p.echo(c, "10.0.0.2:8000", []string{"red", "blue"}[i])
		p.echo(c, "[fd00::2]:8000", []string{"red", "blue"}[i])
	}
	testutil.Veth(t, testutil.End{Netns: p.ns, Name: "wan0", Addresses: []string{"203.0.113.7/24", "203.0.113.8/24", "2001:db8::7/64"}},
		testutil.End{Netns: p.internet, Name: "a0", Addresses: []string{"203.0.113.1/24", "2001:db8::1/64"}})
	p.in(p.ns, "ip route add default via 203.0.113.1", "ip -6 route add default via 2001:db8::1",
		"sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.lan0.rp_filter=0")
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	p.Host = Host{Netns: p.ns, Apply: apply.Options{Journal: j, Root: t.TempDir()}}
	for _, at := range []string{"203.0.113.1:7000", "[2001:db8::1]:7000"} {
		p.echo(p.internet, at, "internet")
	}
	p.echo(p.ns, "10.0.0.1:53", "gateway")
	return p
}

func (p *customers) in(ns *netns.Handle, lines ...string) string {
	p.t.Helper()
	return (&providers{world: p.world}).in(ns, lines...)
}

// echo answers "NAME SOURCE QUESTION", by TCP and UDP.
func (p *customers) echo(ns *netns.Handle, at, name string) {
	p.t.Helper()
	var l net.Listener
	var u net.PacketConn
	err := ns.Do(func() (err error) {
		if l, err = net.Listen("tcp", at); err == nil {
			u, err = net.ListenPacket("udp", at)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close(); u.Close() })
	answer := func(from net.Addr, question []byte) []byte {
		return fmt.Appendf(nil, "%s %s %s", name, netip.MustParseAddrPort(from.String()).Addr().Unmap(), question)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 100)
				for n, err := c.Read(b); err == nil; n, err = c.Read(b) {
					c.Write(answer(c.RemoteAddr(), b[:n]))
				}
			}()
		}
	}()
	go func() {
		b := make([]byte, 100)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			u.WriteTo(answer(from, b[:n]), from)
		}
	}()
}

// dial connects from a source address and port.
func (p *customers) dial(ns *netns.Handle, network, from, to string) net.Conn {
	p.t.Helper()
	d := net.Dialer{Timeout: testutil.Patience(20 * time.Second), Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	if from != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from))
		}
	}
	var c net.Conn
	if err := ns.Do(func() (err error) { c, err = d.Dial(network, to); return err }); err != nil {
		p.t.Fatalf("%s from %s to %s: %v", network, from, to, err)
	}
	p.t.Cleanup(func() { c.Close() })
	return c
}

// asks sends a question, and compares the answer with what it may be.
func (p *customers) asks(c net.Conn, question string, wants ...string) {
	p.t.Helper()
	c.SetDeadline(time.Now().Add(testutil.Patience(20 * time.Second)))
	b := make([]byte, 200)
	_, err := c.Write([]byte(question))
	n := 0
	if err == nil {
		n, err = c.Read(b)
	}
	if got, _ := strings.CutSuffix(string(b[:n]), " "+question); err != nil || !slices.Contains(wants, got) {
		p.t.Errorf("%s: %q, %v, want one of %q", question, got, err, wants)
	}
}

// both has both customers ask a server at the same time, from one address and port, several times.
func (p *customers) both(network, from, to, want string) {
	p.t.Helper()
	red, blue := p.dial(p.red, network, from, to), p.dial(p.blue, network, from, to)
	for i := range 3 {
		p.asks(red, fmt.Sprintf("red%d", i), want)
		p.asks(blue, fmt.Sprintf("blue%d", i), want)
	}
}

// ping sends an echo request of an identifier, and returns what the reply has.
func (p *customers) ping(ns *netns.Handle, to, text string) string {
	p.t.Helper()
	var c net.PacketConn
	if err := ns.Do(func() (err error) { c, err = net.ListenPacket("ip4:icmp", "0.0.0.0"); return err }); err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	request := append([]byte{8, 0, 0, 0, 0, 77, 0, 1}, text...)
	binary.BigEndian.PutUint16(request[2:], frame.SumOf(request))
	if _, err := c.WriteTo(request, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
		p.t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(testutil.Patience(20 * time.Second)))
	b := make([]byte, 200)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil || n >= 8 && b[0] == 0 && binary.BigEndian.Uint16(b[4:]) == 77 {
			return fmt.Sprint(string(b[min(n, 8):n]), map[bool]string{true: "", false: " error"}[err == nil])
		}
	}
}

// everything is what of the host's routing natkit changes, or might.
func (p *customers) everything() string {
	p.t.Helper()
	testutil.Eventually(p.t, "link-local addresses", func() bool { // the kernel adds them, with routes, when a carrier has come
		routes := p.in(p.ns, "ip -6 route show table all")
		return !slices.ContainsFunc([]string{"lan0", "lan1", "wan0"}, func(name string) bool {
			return !slices.ContainsFunc(strings.Split(routes, "\n"), func(line string) bool {
				return strings.HasPrefix(line, "local fe80:") && strings.Contains(line, " dev "+name+" ")
			})
		})
	})
	return p.in(p.ns, "ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all", "sysctl -a --pattern ^net.ipv[46].(ip_forward|conf)")
}

// TestZones: two customers with the same addresses reach the same server from the same port at the same time, and
// the gateway itself; each is reached by an address outside, from outside, from the other one, from itself, and from
// the gateway; an undo leaves nothing.
func TestZones(t *testing.T) {
	p := newCustomers(t)
	before := p.everything()
	r := p.prepare(wish(zonesText))
	a, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	p.customersWork("203.0.113.7", false)
	p.explains(r)
	if s, err := look.New(look.Options{Netns: p.ns, Store: p.store(), Journal: p.Apply.Journal}).Look(t.Context()); err != nil || len(s.Zones) != 2 || s.Zones[0].Flows < 6 || s.Zones[1].Flows < 6 || s.Flows.Untranslated+s.Flows.Stale+s.Flows.Stranger > 0 {
		t.Errorf("status: %+v %+v, %v", s.Zones, s.Flows, err)
	}
	if again := p.prepare(wish(zonesText)); len(again.Plan.Changes) > 0 {
		t.Errorf("the same again: %+v", again.Plan.Changes)
	}
	if _, err := p.Undo(a.ID()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the undo:\n%s", diff)
	}
}

// TestZonesVRF: the same with each customer in a VRF, whose table natkit takes. The gateway's own services are reached
// where they heed VRFs (tcp_l3mdev_accept, udp_l3mdev_accept).
func TestZonesVRF(t *testing.T) {
	testutil.NeedFeature(t, testutil.VRF)
	p := newCustomers(t)
	p.intoVRFs()
	before := p.everything()
	r := p.prepare(wish(zonesText))
	for _, z := range r.Gateway.Zones {
		if z.VRF != "vrf-"+z.Name {
			t.Errorf("%+v", z)
		}
	}
	a, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	p.in(p.ns, "ip addr add 10.0.0.3/24 dev lan0") // a host of the other one may have it
	p.in(p.blue, "ip addr add 10.0.0.3/24 dev eth0")
	p.asks(p.dial(p.blue, "tcp", "10.0.0.3:4000", "203.0.113.1:7000"), "blue", "internet 203.0.113.7")
	p.in(p.ns, "ip addr del 10.0.0.3/24 dev lan0")
	p.customersWork("203.0.113.7", true)
	p.explains(r)
	if again := p.prepare(wish(zonesText)); len(again.Plan.Changes) > 0 {
		t.Errorf("the same again: %+v", again.Plan.Changes)
	}
	if _, err := p.Undo(a.ID()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the undo:\n%s", diff)
	}
}

// intoVRFs puts each customer's interface into a VRF.
func (p *customers) intoVRFs() {
	p.t.Helper()
	p.in(p.ns, "sysctl -qw net.ipv4.tcp_l3mdev_accept=1 net.ipv4.udp_l3mdev_accept=1 net.ipv4.raw_l3mdev_accept=1 net.ipv6.conf.all.keep_addr_on_down=1")
	for i, name := range []string{"red", "blue"} {
		table, lan := fmt.Sprint(i+10), fmt.Sprintf("lan%d", i)
		p.in(p.ns, "ip link add vrf-"+name+" type vrf table "+table, "ip link set vrf-"+name+" up", "ip link set "+lan+" master vrf-"+name,
			"ip route add 10.5.0.0/16 via 10.0.0.2 vrf vrf-"+name)
	}
}

// TestZonesVRFFastPath: the kernel's fast path leads to the right VRF.
func TestZonesVRFFastPath(t *testing.T) {
	testutil.NeedFeature(t, testutil.VRF)
	testutil.NeedFeature(t, testutil.FlowTable)
	p := newCustomers(t)
	p.intoVRFs()
	if _, err := p.prepare(wish(zonesText+"  flowtable: on\n")).Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.customersWork("203.0.113.7", true)
}

// TestZonesFastPath: the kernel's fast path keeps customers apart as well.
func TestZonesFastPath(t *testing.T) {
	testutil.NeedFeature(t, testutil.FlowTable)
	p := newCustomers(t)
	if _, err := p.prepare(wish(zonesText+"  flowtable: on\n")).Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.customersWork("203.0.113.7", false)
}

// TestZonesLimit: a limit of connections counts hosts of one address apart.
func TestZonesLimit(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	p := newCustomers(t)
	if _, err := p.prepare(wish(zonesText+"  limits: {connections-per-source: 1}\n")).Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.both("udp", "10.0.0.2:4000", "203.0.113.1:7000", "internet 203.0.113.7")
	c := p.dial(p.blue, "udp", "10.0.0.2:4001", "203.0.113.1:7000")
	if _, err := c.Write([]byte("second")); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "a dropped connection", func() bool {
		return strings.Contains(p.in(p.ns, "nft list chain inet natkit forward"), "counter packets 1 ")
	})
}

// TestZonesHealth: a check asks the host of its zone.
func TestZonesHealth(t *testing.T) {
	p := newCustomers(t)
	r := p.prepare(wish(`gateway:
  interfaces: {wan: wan0, lan: [{interface: lan0, zone: red}, {interface: lan1, zone: blue}]}
  nat:
    - dnat: {on: 203.0.113.7, port: tcp/80, to: ["10.0.0.2:8000", "10.0.0.2:9000"], zone: red, health: {tcp: on}}
    - dnat: {on: 203.0.113.8, port: tcp/80, to: ["10.0.0.2:8000", "10.0.0.2:9000"], zone: blue, health: {tcp: on}}
`))
	if _, err := r.Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.echo(p.blue, "10.0.0.2:9000", "blue")
	for ref, targets := range targetsOf(r.Gateway) {
		for i, target := range targets {
			err := p.probe(t.Context(), target)
			if down := ref.Index == 0 && i == 1; down != errors.Is(err, unix.ECONNREFUSED) || !down && err != nil {
				t.Errorf("%s: %v", target, err)
			}
		}
	}
}

// customersWork tries what both customers do, who are seen outside under one address. Connections of both customers to the
// gateway, whose ports clash, need a kernel that keeps their sockets apart, or VRFs.
func (p *customers) customersWork(seen string, inVRFs bool) {
	p.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		p.both(network, "10.0.0.2:4000", "203.0.113.1:7000", "internet "+seen)
		p.both(network, "10.5.0.2:4000", "203.0.113.1:7000", "internet "+seen)
		if network == "udp" || inVRFs || testutil.PortClash.Probe() == nil {
			p.both(network, "10.0.0.2:4001", "10.0.0.1:53", "gateway 10.0.0.2")
		} else {
			p.asks(p.dial(p.red, network, "10.0.0.2:4002", "10.0.0.1:53"), "red", "gateway 10.0.0.2")
			p.asks(p.dial(p.blue, network, "10.0.0.2:4003", "10.0.0.1:53"), "blue", "gateway 10.0.0.2")
		}
		p.both(network, "[fd00::2]:4000", "[2001:db8::1]:7000", "internet 2001:db8::7")
		for to, name := range map[string]string{"[2001:db8::7]:80": "red", "[2001:db8::7]:81": "blue"} {
			p.asks(p.dial(p.internet, network, "[2001:db8::1]:5000", to), "outside", name+" 2001:db8::1")
		}
		for to, name := range map[string]string{"203.0.113.7:80": "red", "203.0.113.8:80": "blue"} {
			p.asks(p.dial(p.internet, network, "203.0.113.1:5000", to), "outside", name+" 203.0.113.1")
			if testutil.Hairpin.Probe() != nil {
				continue
			}
			p.asks(p.dial(p.red, network, "", to), "from red", name+" "+strings.TrimSuffix(to, ":80"))
			p.asks(p.dial(p.blue, network, "", to), "from blue", name+" "+strings.TrimSuffix(to, ":80"))
			own := []string{name + " 203.0.113.7"}
			if inVRFs { // some kernels do not take the address for the host's own there, and so the connection for a hairpin
				own = append(own, name+" "+strings.TrimSuffix(to, ":80"))
			}
			p.asks(p.dial(p.ns, network, "", to), "from the gateway", own...)
		}
	}
	for range 2 {
		for text, ns := range map[string]*netns.Handle{"red": p.red, "blue": p.blue} {
			for _, to := range []string{"203.0.113.1", "10.0.0.1"} {
				if got := p.ping(ns, to, text); got != text {
					p.t.Errorf("ping %s from %s: %q", to, text, got)
				}
			}
		}
	}
}

// explains compares with what explain says.
func (p *customers) explains(r *Ready) {
	p.t.Helper()
	facts, err := host.Read(p.t.Context(), p.ns, host.Options{Routing: true, Inside: r.Gateway.Zoned()})
	if err != nil {
		p.t.Fatal(err)
	}
	routes, err := host.OpenRoutes(p.ns)
	if err != nil {
		p.t.Fatal(err)
	}
	defer routes.Close()
	for _, c := range []struct{ in, src, dst, out, becomes, to string }{
		{"lan1", "10.0.0.2:4000", "203.0.113.1:7000", "wan0", "203.0.113.7:4000", "203.0.113.1:7000"},
		{"lan1", "10.5.0.2:4000", "203.0.113.1:7000", "wan0", "203.0.113.7:4000", "203.0.113.1:7000"},
		{"wan0", "203.0.113.1:5000", "203.0.113.8:80", "lan1", "203.0.113.1:5000", "10.0.0.2:8000"},
		{"wan0", "203.0.113.1:5000", "203.0.113.7:80", "lan0", "203.0.113.1:5000", "10.0.0.2:8000"},
		{"lan1", "10.0.0.2:4000", "10.0.0.1:53", "", "10.0.0.2:4000", "10.0.0.1:53"},
		{"lan1", "10.0.0.2:4000", "203.0.113.7:80", "lan0", "203.0.113.7:4000", "10.0.0.2:8000"}, // a hairpin
	} {
		if c.out == "lan0" && c.in == "lan1" && testutil.Hairpin.Probe() != nil {
			continue
		}
		src, dst := netip.MustParseAddrPort(c.src), netip.MustParseAddrPort(c.dst)
		e, err := observe.Follow(r.Gateway, facts, routes.Follow, nat.Packet{Protocol: unix.IPPROTO_TCP, Src: src.Addr(), SrcPort: src.Port(), Dst: dst.Addr(), DstPort: dst.Port(), In: c.in})
		if err != nil || e.Out != c.out || e.Source.String() != c.becomes || e.Destination.String() != c.to || e.ReplyLost != "" {
			p.t.Errorf("%+v: out %s, %s, %s, %q, %v: %+v", c, e.Out, e.Source, e.Destination, e.ReplyLost, err, e.Steps)
		}
	}
}

// TestZonesPrefixes: what has one address or prefix outside for one inside, and a pool, of each zone.
func TestZonesPrefixes(t *testing.T) {
	p := newCustomers(t)
	p.in(p.internet, "ip route add 198.18.1.0/24 via 203.0.113.7", "ip route add 198.18.2.0/24 via 203.0.113.7")
	for _, text := range []string{
		"netmap: {inside: 10.0.0.0/24, outside: 198.18.1.0/24, zone: red}|netmap: {inside: 10.0.0.0/24, outside: 198.18.2.0/24, zone: blue}",
		"static: {inside: 10.0.0.2, outside: 198.18.1.2, zone: red}|static: {inside: 10.0.0.2, outside: 198.18.2.2, zone: blue}",
	} {
		file := "gateway:\n  interfaces: {wan: wan0, lan: [{interface: lan0, zone: red}, {interface: lan1, zone: blue}]}\n  nat:\n"
		for _, rule := range strings.Split(text, "|") {
			file += "    - " + rule + "\n"
		}
		a, err := p.prepare(wish(file)).Apply(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		red, blue := p.dial(p.red, "udp", "10.0.0.2:4000", "203.0.113.1:7000"), p.dial(p.blue, "udp", "10.0.0.2:4000", "203.0.113.1:7000")
		p.asks(red, "red", "internet 198.18.1.2")
		p.asks(blue, "blue", "internet 198.18.2.2")
		for at, name := range map[string]string{"198.18.1.2": "red", "198.18.2.2": "blue"} {
			p.asks(p.dial(p.internet, "tcp", "", at+":8000"), "outside", name+" 203.0.113.1")
		}
		if _, err := p.Undo(a.ID()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRoutesOfTables: routes of a table come and go, those without a next hop as well.
func TestRoutesOfTables(t *testing.T) {
	w := newWorld(t)
	err := w.ns.Do(func() error {
		for _, family := range []struct{ target, first, second string }{
			{"ip route table 27001", "default dev wan0", "10.0.0.0/24 dev lan0; 10.5.0.0/16 via 192.168.0.9 dev lan0; default via 203.0.113.1 dev wan0"},
			{"ip -6 route table 27001", "default dev wan0", "fd00::/64 dev lan0; fd05::/48 dev lan0"},
		} {
			for _, value := range []string{family.first, family.second, family.first, ""} {
				if err := (routing{}).Write(family.target, value); err != nil {
					return err
				}
				if got, err := (routing{}).Read(family.target); err != nil || got != value {
					t.Errorf("%s: %q, %v, want %q", family.target, got, err, value)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestZonesPlan: what a plan changes is listed; routes by the interfaces of zones follow the main table.
func TestZonesPlan(t *testing.T) {
	p := newCustomers(t)
	changes := func() (got []string) {
		for _, c := range p.prepare(wish(zonesText)).Plan.Changes {
			if strings.HasPrefix(c.Target, "ip r") || isReversePath(c.Target) {
				got = append(got, c.Target+": "+c.Before+" → "+c.After)
			}
		}
		return got
	}
	want := []string{
		"ip route table 26001:  → 10.0.0.0/24 dev lan0; 10.5.0.0/16 via 10.0.0.2 dev lan0",
		"ip route table 26002:  → 10.0.0.0/24 dev lan1; 10.5.0.0/16 via 10.0.0.2 dev lan1",
		"ip rule 501:  → fwmark 0x10000000/0xf0000000 lookup 26001",
		"ip rule 502:  → fwmark 0x20000000/0xf0000000 lookup 26002",
		"net.ipv4.conf.lan0.rp_filter: 0 → 2",
		"net.ipv4.conf.lan1.rp_filter: 1 → 2",
	}
	if p.sysctl("net.ipv4.conf.lan1.rp_filter") == "0" { // what a new interface has is the host's
		want[5] = strings.Replace(want[5], "1 →", "0 →", 1)
	}
	if diff := cmp.Diff(want, changes()); diff != "" {
		t.Error(diff)
	}
	if _, err := p.prepare(wish(zonesText)).Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.in(p.ns, "ip route del 10.5.0.0/16 dev lan1 metric 2", "ip route add 10.6.0.0/16 via 10.0.0.2 dev lan1")
	changed := slices.DeleteFunc(changes(), func(c string) bool { return !strings.Contains(c, "26002") || strings.Contains(c, "rule") })
	if diff := cmp.Diff([]string{"ip route table 26002: 10.0.0.0/24 dev lan1; 10.5.0.0/16 via 10.0.0.2 dev lan1 → 10.0.0.0/24 dev lan1; 10.6.0.0/16 via 10.0.0.2 dev lan1"}, changed); diff != "" {
		t.Error(diff)
	}
	if _, err := p.prepare(wish(zonesText)).Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := p.in(p.ns, "ip route show table 26002"); strings.Contains(got, "10.5.0.0") || !strings.Contains(got, "10.6.0.0") {
		t.Errorf("table 26002:\n%s", got)
	}
}

// TestZonesTuned: how sources are checked is left as it is where the check is not strict, also where natkit has tuned it so.
func TestZonesTuned(t *testing.T) {
	p := newCustomers(t)
	p.in(p.ns, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan0.rp_filter=1 net.ipv4.conf.lan1.rp_filter=1")
	tuned := tune.Plan{Origin: "tune", Changes: []tune.Change{{Kind: tune.Sysctl, Target: "net.ipv4.conf.lan0.rp_filter", Before: "1", After: "0"}}}
	if err := p.ns.Do(func() error { _, err := apply.Apply(t.Context(), tuned, p.options(p.keeps())); return err }); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{zonesText, zonesText + "  mss: 1400\n"} { // what a gateway has set it holds
		if _, err := p.prepare(wish(text)).Apply(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		p.wantSysctl("net.ipv4.conf.lan0.rp_filter", "0")
		p.wantSysctl("net.ipv4.conf.lan1.rp_filter", "2")
	}
}

// TestUndoOfRoutesThatAreLeft: what is left of a zone's routes is natkit's, whoever removed the others, and also where an apply
// put them back.
func TestUndoOfRoutesThatAreLeft(t *testing.T) {
	p := newCustomers(t)
	before := p.everything()
	apply := func() string {
		t.Helper()
		a, err := p.prepare(wish(zonesText)).Apply(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return a.ID()
	}
	undo := func(id string) {
		t.Helper()
		if _, err := p.Undo(id); err != nil {
			t.Error(err)
		}
	}
	gone := []string{"ip route del 10.5.0.0/16 table 26002"}
	first := apply()
	p.in(p.ns, gone...)
	undo(first)
	if diff := cmp.Diff(before, p.everything()); diff != "" {
		t.Errorf("one undone (-before +now):\n%s", diff)
	}
	first = apply()
	p.in(p.ns, gone...)
	second := apply()
	undo(second)
	undo(first)
	if diff := cmp.Diff(before, p.everything()); diff != "" {
		t.Errorf("both undone (-before +now):\n%s", diff)
	}
}

// TestServiceFollowsZones: routes of a zone follow its interface and the main table, and what is removed is put back.
func TestServiceFollowsZones(t *testing.T) {
	p := newCustomers(t)
	before := p.everything()
	s := p.serve(zonesText)
	table := func(want string) {
		t.Helper()
		within(t, time.Minute, want, func() bool {
			got := strings.Fields(strings.ReplaceAll(p.in(p.ns, "ip route show table 26002"), " proto 110", ""))
			return strings.Join(got, " ") == want
		})
	}
	table("10.0.0.0/24 dev lan1 scope link 10.5.0.0/16 via 10.0.0.2 dev lan1")
	p.in(p.ns, "ip link set lan1 down")
	table("")
	p.in(p.ns, "ip link set lan1 up", "ip -6 addr replace fd00::1/64 dev lan1 nodad")
	table("10.0.0.0/24 dev lan1 scope link")
	p.in(p.ns, "ip route add 10.5.0.0/16 via 10.0.0.2 dev lan1 metric 2")
	table("10.0.0.0/24 dev lan1 scope link 10.5.0.0/16 via 10.0.0.2 dev lan1")
	p.in(p.ns, "ip rule del pref 502", "ip route flush table 26002")
	table("10.0.0.0/24 dev lan1 scope link 10.5.0.0/16 via 10.0.0.2 dev lan1")
	within(t, time.Minute, "the rule", func() bool { return strings.Contains(p.in(p.ns, "ip rule"), "502:") })
	p.both("udp", "10.0.0.2:4000", "203.0.113.1:7000", "internet 203.0.113.7")
	p.both("udp", "10.5.0.2:4000", "203.0.113.1:7000", "internet 203.0.113.7")
	// A routing protocol's come and go in the same way, and one by another interface takes the place of one of the zone.
	const two = "10.0.0.0/24 dev lan1 scope link 10.5.0.0/16 via 10.0.0.2 dev lan1"
	p.in(p.ns, "ip route add 10.6.0.0/16 via 10.0.0.2 dev lan1 proto bgp")
	table(two + " 10.6.0.0/16 via 10.0.0.2 dev lan1")
	p.in(p.ns, "ip route del 10.6.0.0/16 proto bgp")
	table(two)
	p.in(p.ns, "ip route add 10.6.0.0/16 via 10.0.0.2 dev lan1 proto bgp")
	table(two + " 10.6.0.0/16 via 10.0.0.2 dev lan1")
	p.in(p.ns, "ip route replace 10.6.0.0/16 via 203.0.113.1 proto bgp")
	table(two)
	p.in(p.ns, "ip route del 10.6.0.0/16", "ip route flush table 26002")
	table(two)
	s.end()
	s.begin(func(s *Service) { s.UndoOnExit = true })
	s.end()
	if diff := cmp.Diff(sorted(before), sorted(p.everything())); diff != "" {
		t.Errorf("after the end:\n%s", diff)
	}
}

// sorted are lines in order: the kernel lists routes of an interface that was down last.
func sorted(text string) []string { return slices.Sorted(strings.SplitSeq(text, "\n")) }

// TestZonesAndUplinks: customers with the same addresses behind two providers.
func TestZonesAndUplinks(t *testing.T) {
	p := newCustomers(t)
	testutil.Veth(t, testutil.End{Netns: p.ns, Name: "wan1", Addresses: []string{"198.51.100.7/24"}},
		testutil.End{Netns: p.internet, Name: "b0", Addresses: []string{"198.51.100.1/24"}})
	p.in(p.internet, "ip addr add 192.0.2.1/32 dev lo")
	p.echo(p.internet, "192.0.2.1:7000", "internet")
	r := p.prepare(wish(`gateway:
  interfaces: {wan: [{interface: wan0}, {interface: wan1, via: 198.51.100.1}], lan: [{interface: lan0, zone: red}, {interface: lan1, zone: blue}]}
  nat:
    - masquerade: {}
    - dnat: {on: wan, port: [tcp/80, udp/80], to: "10.0.0.2:8000", zone: red}
    - dnat: {on: wan, port: [tcp/81, udp/81], to: "10.0.0.2:8000", zone: blue}
`))
	a, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	slots := r.Gateway.Slots(all)
	for _, network := range []string{"tcp", "udp"} {
		for i, from := range []string{"10.0.0.2", "10.5.0.2"} {
			seen := seenUnder[false][slots[gateway.SlotOf(netip.MustParseAddr(from), len(slots))]]
			p.both(network, fmt.Sprintf("%s:%d", from, 4000+i), "192.0.2.1:7000", "internet "+seen)
		}
		for to, name := range map[string]string{"203.0.113.7:80": "red", "198.51.100.7:80": "red", "203.0.113.7:81": "blue", "198.51.100.7:81": "blue"} {
			p.asks(p.dial(p.internet, network, "192.0.2.1:5000", to), "outside", name+" 192.0.2.1")
		}
	}
	if got := p.in(p.ns, "ip rule"); strings.Index(got, "502:") > strings.Index(got, "20000:") {
		t.Errorf("rules of uplinks come before those of zones:\n%s", got)
	}
	if s, err := look.New(look.Options{Netns: p.ns, Store: p.store(), Journal: p.Apply.Journal}).Look(t.Context()); err != nil || s.Integrity != gateway.RulesIntact {
		t.Errorf("status: %s %q, %v", s.Integrity, s.Changes, err)
	}
	p.in(p.ns, "ip rule del pref 502")
	if s, err := look.New(look.Options{Netns: p.ns, Store: p.store(), Journal: p.Apply.Journal}).Look(t.Context()); err != nil || s.Integrity != gateway.RulesChanged {
		t.Errorf("status without a rule: %s %q, %v", s.Integrity, s.Changes, err)
	}
	if _, err := p.Undo(a.ID()); err != nil {
		t.Fatal(err)
	}
}

// acknowledge has what was read be acknowledged at once: a packet that comes between new rules and the end of the former
// connection begins one under another port.
func acknowledge(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRezone: a connection that is there when its interface enters a zone, or leaves it, goes on.
func TestRezone(t *testing.T) {
	p := newCustomers(t)
	plain := "gateway:\n  interfaces: {wan: wan0, lan: [lan0, lan1]}\n  nat: [masquerade: {}]\n"
	var ids []string
	apply := func(text string) string {
		t.Helper()
		a, err := p.prepare(wish(text)).Apply(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, a.ID())
		return fmt.Sprint(a.Transaction().Changes)
	}
	apply(plain)
	c, own := p.dial(p.red, "tcp", "10.0.0.2:4000", "203.0.113.1:7000"), p.dial(p.ns, "tcp", "10.0.0.1:4001", "10.0.0.2:8000")
	p.asks(c, "plain", "internet 203.0.113.7")
	acknowledge(t, c)
	goesOn := func(step, notes string, moves bool) {
		t.Helper()
		if deleted := strings.Contains(notes, "deleted 1 connection of hosts that entered or left a zone"); deleted != moves {
			t.Errorf("%s: %s", step, notes)
		}
		p.asks(c, step, "internet 203.0.113.7")
		p.asks(own, step, "red 10.0.0.1")
		acknowledge(t, c)
	}
	for i, text := range []string{zonesText, zonesText + "  mss: 1400\n", plain} {
		goesOn(fmt.Sprint("apply ", i), apply(text), i != 1)
	}
	for i := len(ids) - 1; i > 0; i-- {
		tx, err := p.Undo(ids[i])
		if err != nil {
			t.Fatal(err)
		}
		goesOn(fmt.Sprint("undo ", i), fmt.Sprint(tx.Changes), i != 2)
	}
	a, err := p.prepare(wish(zonesText)).Apply(t.Context(), later)
	if err != nil {
		t.Fatal(err)
	}
	goesOn("unconfirmed", fmt.Sprint(a.Transaction().Changes), true)
	p.expire(a.ID())
	goesOn("rolled back", "", false)
	// Hosts of an interface that is down have no route at that time.
	p.in(p.ns, "ip link set lan0 down", "ip link set lan1 down")
	apply(zonesText)
	p.in(p.ns, "ip link set lan0 up", "ip link set lan1 up")
	apply(zonesText)
	p.asks(c, "up again", "internet 203.0.113.7")
}

// TestZonesFragments: fragments of two customers with one address, identifier and destination are not put together.
func TestZonesFragments(t *testing.T) {
	p := newCustomers(t)
	if _, err := p.prepare(wish(zonesText)).Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	type customer struct {
		raw    int
		answer net.Conn
		text   string
	}
	all := []customer{{text: strings.Repeat("red!", 8)}, {text: strings.Repeat("blue", 8)}}
	for i, ns := range []*netns.Handle{p.red, p.blue} {
		all[i].answer = p.dial(ns, "udp", "10.0.0.2:4000", "203.0.113.1:7000")
		err := ns.Do(func() (err error) {
			all[i].raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(all[i].raw) })
	}
	const each = 16 // bytes of data in a fragment, the first of which is the header of UDP
	for at := 0; at < 8+32; at += each {
		for _, c := range all {
			datagram := append([]byte{4000 >> 8, 4000 & 0xff, 7000 >> 8, 7000 & 0xff, 0, 40, 0, 0}, c.text...)
			packet := []byte{0x45, 0, 0, 0, 0x12, 0x34, 0, byte(at / 8), 64, unix.IPPROTO_UDP, 0, 0, 10, 0, 0, 2, 203, 0, 113, 1}
			if at+each < len(datagram) {
				packet[6] = 0x20 // more fragments
			}
			packet = append(packet, datagram[at:min(at+each, len(datagram))]...)
			if err := unix.Sendto(c.raw, packet, 0, &unix.SockaddrInet4{Addr: [4]byte{203, 0, 113, 1}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range all {
		c.answer.SetDeadline(time.Now().Add(testutil.Patience(20 * time.Second)))
		b := make([]byte, 200)
		n, err := c.answer.Read(b)
		if want := "internet 203.0.113.7 " + c.text; string(b[:n]) != want || err != nil {
			t.Errorf("%q, %v, want %q", b[:n], err, want)
		}
	}
}
