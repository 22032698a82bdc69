package apply

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/engine"
	"github.com/natkit/natkit/internal/gateway/engine/netfilter"
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

// providers is a gateway with two of them, whose checks of sources are strict:
//
//	client 192.168.0.2-99 ── lan0 gateway wan0 203.0.113.7  ── 203.0.113.1 (a0)  internet
//	                                      wan1 198.51.100.7 ── 198.51.100.1 (b0) 192.0.2.1, 2001:db8:f::1
type providers struct {
	*world
	client, internet *netns.Handle
}

const dividedText = `gateway:
  interfaces: {wan: [{interface: wan0, weight: 3}, {interface: wan1, via: [198.51.100.1, "2001:db8:b::1"]}], lan: lan0}
  nat:
    - masquerade: {}
    - dnat: {on: wan, port: tcp/8080, to: "192.168.0.2:80"}
  ipv6:
    - masquerade: {}
`

// clients are the hosts inside.
const clients = 40

func newProviders(t *testing.T) *providers {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "ip")
	testutil.NeedFeature(t, testutil.IPv6)
	t.Parallel()
	p := &providers{world: &world{t: t, ns: testutil.Namespace(t, "gateway")}, client: testutil.Namespace(t, "client"), internet: testutil.Namespace(t, "internet")}
	for _, ns := range []*netns.Handle{p.ns, p.client, p.internet} {
		p.in(ns, "ip link set lo up", "sysctl -qw net.ipv6.conf.default.accept_ra=0 net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0")
	}
	testutil.Veth(t, testutil.End{Netns: p.ns, Name: "lan0", Addresses: []string{"192.168.0.1/24", "fd00:1::1/64"}},
		testutil.End{Netns: p.client, Name: "eth0", Addresses: []string{"192.168.0.2/24", "fd00:1::2/64"}})
	testutil.Veth(t, testutil.End{Netns: p.ns, Name: "wan0", Addresses: []string{"203.0.113.7/24", "2001:db8:a::7/64"}},
		testutil.End{Netns: p.internet, Name: "a0", Addresses: []string{"203.0.113.1/24", "2001:db8:a::1/64"}})
	testutil.Veth(t, testutil.End{Netns: p.ns, Name: "wan1", Addresses: []string{"198.51.100.7/24", "2001:db8:b::7/64"}},
		testutil.End{Netns: p.internet, Name: "b0", Addresses: []string{"198.51.100.1/24", "2001:db8:b::1/64"}})
	for i := 3; i < clients+2; i++ {
		p.in(p.client, fmt.Sprintf("ip addr add 192.168.0.%d/24 dev eth0", i), fmt.Sprintf("ip addr add fd00:1::%x/64 dev eth0", i))
	}
	p.in(p.client, "ip route add default via 192.168.0.1", "ip -6 route add default via fd00:1::1")
	p.in(p.internet, "ip addr add 192.0.2.1/32 dev lo", "ip addr add 2001:db8:f::1/128 dev lo")
	p.in(p.ns, "ip route add default via 203.0.113.1", "ip -6 route add default via 2001:db8:a::1",
		"sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.wan1.rp_filter=1")
	j, err := journal.At(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	p.Host = Host{Netns: p.ns, Apply: apply.Options{Journal: j, Root: t.TempDir()}}
	p.serveTCP(p.internet, "tcp", "[::]:7000")
	return p
}

// in runs commands in a namespace.
func (p *providers) in(ns *netns.Handle, lines ...string) (out string) {
	p.t.Helper()
	for _, line := range lines {
		f := strings.Fields(line)
		err := ns.Do(func() error {
			text, err := exec.Command(f[0], f[1:]...).CombinedOutput()
			out += string(text)
			return err
		})
		if err != nil {
			p.t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	return out
}

// serveTCP has each connection get the address that it comes from.
func (p *providers) serveTCP(ns *netns.Handle, network, address string) {
	p.t.Helper()
	var l net.Listener
	err := ns.Do(func() (err error) { l, err = net.Listen(network, address); return err })
	if err != nil {
		p.t.Fatal(err)
	}
	done := make(chan struct{})
	p.t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprint(c, host)
			c.Close()
		}
	}()
}

// ask connects, and returns what it is told.
func ask(ns *netns.Handle, from, to string) (told string, err error) {
	d := net.Dialer{}
	if from != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	}
	return askWith(d, ns, to)
}

// askBy is ask, from a socket that is bound to an interface.
func askBy(ns *netns.Handle, name, to string) (told string, err error) {
	return askWith(net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		bad := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), name) })
		return errors.Join(bad, err)
	}}, ns, to)
}

func askWith(d net.Dialer, ns *netns.Handle, to string) (told string, err error) {
	d.Timeout = testutil.Patience(20 * time.Second)
	err = ns.Do(func() error {
		c, err := d.Dial("tcp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		told = string(b)
		return err
	})
	return told, err
}

const (
	server4, server6 = "192.0.2.1", "2001:db8:f::1"
)

// asks has a client connect to the internet, and returns the address that it is seen under.
func (p *providers) asks(from string) string {
	p.t.Helper()
	to := net.JoinHostPort(server4, "7000")
	if strings.Contains(from, ":") {
		to = net.JoinHostPort(server6, "7000")
	}
	told, err := ask(p.client, from, to)
	if err != nil {
		p.t.Errorf("from %s: %v", from, err)
	}
	return told
}

// seenUnder are the gateway's addresses by uplink.
var seenUnder = map[bool][]string{false: {"203.0.113.7", "198.51.100.7"}, true: {"2001:db8:a::7", "2001:db8:b::7"}}

// shares has all clients connect, compares with what is computed of up, and returns how many are on each uplink.
func (p *providers) shares(plan *gateway.Plan, up func(int) bool) (shares [2]int) {
	p.t.Helper()
	slots := plan.Slots(up)
	for i := range clients {
		for _, from := range []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", 2+i))} {
			on := slots[gateway.SlotOf(from, len(slots))]
			shares[on]++
			if got, want := p.asks(from.String()), seenUnder[from.Is6()][on]; got != want {
				p.t.Errorf("%s is seen under %q, want %s", from, got, want)
			}
		}
	}
	return shares
}

func all(int) bool { return true }

// everything is what of the host's routing natkit changes, or might.
func (p *providers) everything() string {
	return p.in(p.ns, "ip rule", "ip -6 rule", "ip route show table all", "ip -6 route show table all", "sysctl -a --pattern ^net.ipv[46].(ip_forward|conf)")
}

// TestUplinks: hosts inside are divided by weight and stay on their uplink; who comes in by one gets answers by it,
// from hosts inside and from the gateway itself, though sources are checked strictly; explain foretells it; an undo
// leaves nothing.
func TestUplinks(t *testing.T) {
	p := newProviders(t)
	before := p.everything()
	r := p.prepare(wish(dividedText))
	a, err := r.Apply(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if shares := p.shares(r.Gateway, all); shares[0] <= shares[1] || shares[1] == 0 {
		t.Errorf("shares of 3 and 1: %v", shares)
	}
	p.serveTCP(p.client, "tcp4", ":80")
	p.serveTCP(p.ns, "tcp", "[::]:9000")
	for _, to := range []string{"203.0.113.7:8080", "198.51.100.7:8080", "203.0.113.7:9000", "198.51.100.7:9000"} {
		if got, err := ask(p.internet, server4, to); err != nil || !strings.HasSuffix(got, server4) {
			t.Errorf("from outside to %s: %q, %v", to, got, err)
		}
	}
	for _, to := range []string{"[2001:db8:a::7]:9000", "[2001:db8:b::7]:9000"} {
		if got, err := ask(p.internet, server6, to); err != nil || got != server6 {
			t.Errorf("from outside to %s: %q, %v", to, got, err)
		}
	}
	p.explained(r.Gateway)
	p.reported()
	if again := p.prepare(wish(dividedText)); len(again.Plan.Changes) > 0 {
		t.Errorf("the same again: %+v", again.Plan.Changes)
	}
	if _, err := p.Undo(a.ID()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the undo:\n%s", diff)
	}
}

// reported compares with what status says.
func (p *providers) reported() {
	p.t.Helper()
	s, err := look.New(look.Options{Netns: p.ns, Store: p.store(), Journal: p.Apply.Journal}).Look(p.t.Context())
	if err != nil || len(s.Uplinks) != 2 {
		p.t.Fatalf("%+v, %v", s, err)
	}
	for i, share := range []float64{0.75, 0.25} {
		if u := s.Uplinks[i]; u.Share != share || u.Down != "" || u.Flows < 3 {
			p.t.Errorf("%+v", u)
		}
	}
	if s.Flows.Untranslated > 0 {
		p.t.Errorf("untranslated: %d", s.Flows.Untranslated)
	}
}

// explained compares with what explain says, of the plan in force.
func (p *providers) explained(plan *gateway.Plan) {
	p.t.Helper()
	facts, err := host.Read(p.t.Context(), p.ns, host.Options{Routing: true})
	if err != nil {
		p.t.Fatal(err)
	}
	routes, err := host.OpenRoutes(p.ns)
	if err != nil {
		p.t.Fatal(err)
	}
	defer routes.Close()
	slots := plan.Slots(all)
	for i := range clients {
		packet := nat.Packet{Protocol: unix.IPPROTO_TCP, Src: netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + i)}), Dst: netip.MustParseAddr(server4), SrcPort: 40000, DstPort: 7000, In: "lan0"}
		on := slots[gateway.SlotOf(packet.Src, len(slots))]
		e, err := observe.Follow(plan, facts, routes.Follow, packet)
		if err != nil {
			p.t.Fatal(err)
		}
		if e.Uplink != plan.Uplinks[on].Interface || e.Out != e.Uplink || e.Source.String() != seenUnder[false][on]+":40000" {
			p.t.Errorf("%s: on %q by %s as %s, want %s: %+v", packet.Src, e.Uplink, e.Out, e.Source, plan.Uplinks[on].Interface, e.Steps)
		}
	}
	for _, c := range []struct{ to, in, uplink string }{
		{"198.51.100.7:8080", "wan1", "wan1"}, {"203.0.113.7:9000", "wan0", "wan0"},
	} {
		to := netip.MustParseAddrPort(c.to)
		e, err := observe.Follow(plan, facts, routes.Follow, nat.Packet{Protocol: unix.IPPROTO_TCP, Src: netip.MustParseAddr(server4), SrcPort: 40000, Dst: to.Addr(), DstPort: to.Port(), In: c.in})
		if err != nil || e.Uplink != c.uplink || e.ReplyLost != "" || e.Fate == observe.Unreachable {
			p.t.Errorf("to %s: %+v, %v", c.to, e, err)
		}
	}
	// A more specific route of main comes before an uplink.
	e, err := observe.Follow(plan, facts, routes.Follow, nat.Packet{Protocol: unix.IPPROTO_TCP, Src: netip.MustParseAddr("192.168.0.2"), Dst: netip.MustParseAddr("198.51.100.1"), SrcPort: 40000, DstPort: 80, In: "lan0"})
	if err != nil || e.Out != "wan1" {
		p.t.Errorf("to a provider's network: by %s, %v", e.Out, err)
	}
}

// TestUplinksPrefixes: with a prefix of each provider (NPTv6, without the tracker) a host has the one of its uplink, and
// with a prefix for prefix by connections as well.
func TestUplinksPrefixes(t *testing.T) {
	p := newProviders(t)
	p.in(p.internet, "ip -6 route add 2001:db8:a1::/64 via 2001:db8:a::7", "ip -6 route add 2001:db8:b1::/64 via 2001:db8:b::7")
	for _, stateless := range []string{"on", "off"} {
		text := strings.ReplaceAll(`gateway:
  interfaces: {wan: [{interface: wan0}, {interface: wan1, via: "2001:db8:b::1"}], lan: lan0}
  ipv6:
    - netmap: {inside: "fd00:1::/64", outside: "2001:db8:a1::/64", out: wan0, stateless: X}
    - netmap: {inside: "fd00:1::/64", outside: "2001:db8:b1::/64", out: wan1, stateless: X}
`, "X", stateless)
		r := p.prepare(wish(text))
		a, err := r.Apply(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		slots, seen := r.Gateway.Slots(all), [2]int{}
		for i := range clients {
			from := netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", 2+i))
			on := slots[gateway.SlotOf(from, len(slots))]
			seen[on]++
			if got := p.asks(from.String()); !strings.HasPrefix(got, []string{"2001:db8:a1:", "2001:db8:b1:"}[on]) {
				t.Errorf("stateless %s: %s is seen under %q, on uplink %d", stateless, from, got, on)
			}
		}
		if seen[0] == 0 || seen[1] == 0 {
			t.Errorf("shares %v", seen)
		}
		if _, err := p.Undo(a.ID()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUplinksPlan: what a plan changes is listed rule by rule and route by route.
func TestUplinksPlan(t *testing.T) {
	p := newProviders(t)
	var got []string
	for _, c := range p.prepare(wish(dividedText)).Plan.Changes {
		if c.Kind == tune.Routing || isByMark(c.Target) {
			got = append(got, c.Target+": "+c.Before+" → "+c.After)
		}
	}
	const rules = ` rule 20000:  → not fwmark 0x0/0xf000000 lookup main suppress_prefixlength 0
 rule 20001:  → fwmark 0x1000000/0xf000000 lookup 27001
 rule 20002:  → fwmark 0x2000000/0xf000000 lookup 27002
 rule 33001:  → fwmark 0x0/0xf000000 iif lo lookup 27001
 rule 33002:  → fwmark 0x0/0xf000000 iif lo lookup 27002`
	want := []string{"ip route table 27001:  → default via 203.0.113.1 dev wan0", "ip route table 27002:  → default via 198.51.100.1 dev wan1"}
	for _, rule := range strings.Split(rules, "\n") {
		want = append(want, "ip"+rule)
	}
	want = append(want, "ip -6 route table 27001:  → default via 2001:db8:a::1 dev wan0", "ip -6 route table 27002:  → default via 2001:db8:b::1 dev wan1")
	for _, rule := range strings.Split(rules, "\n") {
		want = append(want, "ip -6"+rule)
	}
	want = append(want, "net.ipv4.conf.wan0.src_valid_mark: 0 → 1", "net.ipv4.conf.wan1.src_valid_mark: 0 → 1")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// What another program has there is left alone.
	p.in(p.ns, "ip rule add pref 20001 fwmark 0x5 lookup 100")
	if _, err := p.Prepare(t.Context(), wish(dividedText)); err == nil || !strings.Contains(err.Error(), "20001") {
		t.Errorf("a rule of another program: %v", err)
	}
}

// TestForeignRoutes: routes of other programs in natkit's tables are shown as ip(8) writes them, and left alone.
func TestForeignRoutes(t *testing.T) {
	p := newProviders(t)
	for _, c := range []struct{ route, want string }{
		{"default via 203.0.113.77 dev wan0", "default via 203.0.113.77 dev wan0"},
		{"192.0.2.0/24 dev wan1", "192.0.2.0/24 dev wan1"},
		{"unreachable default", "unreachable default"},
		{"default nexthop via 203.0.113.1 dev wan0 nexthop via 198.51.100.1 dev wan1", "default nexthop via 203.0.113.1 dev wan0 nexthop via 198.51.100.1 dev wan1"},
	} {
		p.in(p.ns, "ip route add table 27001 "+c.route)
		var got string
		err := p.ns.Do(func() (err error) { got, err = routing{}.Read("ip route table 27001"); return err })
		if got != host.OthersMade+c.want || err != nil {
			t.Errorf("%s: %q, %v", c.route, got, err)
		}
		p.in(p.ns, "ip route flush table 27001")
	}
}

// TestServiceFollowsUplinks: an uplink whose interface goes gets no new connections until it is back; a rule and a route
// that another program removes are put back; the end leaves nothing.
func TestServiceFollowsUplinks(t *testing.T) {
	p := newProviders(t)
	before := p.everything()
	s := p.serve(dividedText)
	plan, err := p.InForce()
	if err != nil || plan == nil {
		t.Fatalf("%v, %v", plan, err)
	}
	s.waitSaid("checking 2 WANs")
	p.in(p.ns, "ip link set wan1 down")
	s.waitSaid("wan wan1 is down: no next hop of IPv4 and IPv6 is known; new connections leave by wan0")
	p.shares(plan, func(i int) bool { return i == 0 })
	p.in(p.ns, "ip link set wan1 up", "ip addr add 2001:db8:b::7/64 dev wan1")
	s.waitSaid("wan wan1 is up")
	p.shares(plan, all)
	for _, one := range []struct{ remove, look, want string }{
		{"ip rule del pref 20001", "ip rule", "20001:"},
		{"ip -6 route flush table 27001", "ip -6 route show table all", "table 27001"},
	} {
		p.in(p.ns, one.remove)
		within(t, 30*time.Second, one.want+" again", func() bool { return strings.Contains(p.in(p.ns, one.look), one.want) })
	}
	s.waitSaid("routing changed: ip rule 20001 put back: ")
	s.waitSaid("routing changed: ip -6 route table 27001 put back: ")
	// Another next hop comes by DHCP; the rules stay as they are.
	digest := s.value()
	p.in(p.internet, "ip addr add 203.0.113.99/24 dev a0")
	p.in(p.ns, "ip route replace default via 203.0.113.99")
	within(t, 30*time.Second, "the new next hop", func() bool {
		return strings.Contains(p.in(p.ns, "ip route show table 27001"), "via 203.0.113.99")
	})
	s.waitSaid("routing changed: ip route table 27001 is default via 203.0.113.99 dev wan0 now: ")
	s.want(digest)
	p.in(p.ns, "ip route replace default via 203.0.113.1")
	within(t, 30*time.Second, "the former next hop", func() bool {
		return strings.Contains(p.in(p.ns, "ip route show table 27001"), "via 203.0.113.1 ")
	})
	s.end()
	s.begin(func(s *Service) { s.UndoOnExit = true })
	s.end()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the end:\n%s", diff)
	}
}

// talk opens a connection that stays, and returns what asks through it.
func (p *providers) talk(from string) func() error { return p.talkOf(p.client, from) }

func (p *providers) talkOf(ns *netns.Handle, from string) func() error {
	p.t.Helper()
	var c net.Conn
	err := ns.Do(func() (err error) {
		d := net.Dialer{Timeout: testutil.Patience(20 * time.Second)}
		if from != "" {
			d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
		}
		c, err = d.Dial("tcp", server4+":7001")
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	return func() error {
		c.SetDeadline(time.Now().Add(testutil.Patience(20 * time.Second)))
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(c, make([]byte, 1))
		return err
	}
}

// repeat answers each byte on port 7001 of the internet.
func (p *providers) repeat() {
	var l net.Listener
	if err := p.internet.Do(func() (err error) { l, err = net.Listen("tcp4", ":7001"); return err }); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
}

// TestServiceFailover: behind a WAN whose provider is dead beyond its router, and one whose router is dead, hosts get
// another one for new connections; those that there are stay where they are, and go on when it is back.
func TestServiceFailover(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	p := newProviders(t)
	p.repeat()
	s := p.serve(strings.Replace(dividedText, "via: [198", "probe: 192.0.2.1, via: [198", 1))
	plan, err := p.InForce()
	if err != nil || plan == nil {
		t.Fatalf("%v, %v", plan, err)
	}
	p.shares(plan, all)
	slots, talks := plan.Slots(all), [2]func() error{}
	for i := range clients {
		a := netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + i)})
		if on := slots[gateway.SlotOf(a, len(slots))]; talks[on] == nil {
			talks[on] = p.talk(a.String())
		}
	}
	p.in(p.internet, "nft add table ip dead", "nft add chain ip dead in { type filter hook input priority 0 ; }", "nft add rule ip dead in iifname b0 ip daddr 192.0.2.1 drop")
	s.waitSaid("wan wan1 is down: 192.0.2.1: no answer within 1s; new connections leave by wan0")
	p.shares(plan, func(i int) bool { return i == 0 })
	if err := talks[0](); err != nil {
		t.Errorf("a connection of the other WAN: %v", err)
	}
	status, err := look.New(look.Options{Netns: p.ns, Store: p.store(), Journal: p.Apply.Journal}).Look(t.Context())
	if err != nil || len(status.Uplinks) != 2 || status.Uplinks[0].Share != 1 || !strings.HasPrefix(status.Uplinks[1].Down, "192.0.2.1: ") {
		t.Errorf("%+v, %v", status, err)
	}
	p.in(p.internet, "nft delete table ip dead")
	s.waitSaid("wan wan1 is up: new connections leave by it again")
	p.shares(plan, all)
	for i, talk := range talks {
		if err := talk(); err != nil {
			t.Errorf("the connection by wan%d: %v", i, err)
		}
	}
	p.in(p.internet, "ip addr del 203.0.113.1/24 dev a0")
	s.waitSaid("wan wan0 is down: 203.0.113.1: ")
	p.shares(plan, func(i int) bool { return i == 1 })
	if err := talks[1](); err != nil {
		t.Errorf("a connection of the other WAN: %v", err)
	}
	p.in(p.internet, "ip addr add 203.0.113.1/24 dev a0")
	s.waitSaid("wan wan0 is up")
	p.shares(plan, all)
	s.end()
}

// TestUplinkWithoutCarrier: a WAN whose cable is pulled gets no new connections at once, after apply alone and under
// run, with the reason; its routes stay for the connections that it has.
func TestUplinkWithoutCarrier(t *testing.T) {
	p := newProviders(t)
	p.in(p.internet, "ip link set b0 down")
	const why = "wan1 has no carrier"
	within(t, 30*time.Second, why, func() bool {
		r := p.prepare(wish(dividedText))
		return r.Facts.WhyDown(&r.Gateway.Uplinks[1], r.Gateway) == why
	})
	r := p.prepare(wish(dividedText))
	if _, err := r.Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.shares(r.Gateway, func(i int) bool { return i == 0 })
	p.in(p.internet, "ip link set b0 up", "ip -6 addr replace 2001:db8:b::1/64 dev b0")
	for _, router := range []string{"198.51.100.1:9", "[2001:db8:b::1]:9"} {
		within(t, 30*time.Second, "an answer of "+router, func() bool { return p.answers(router) })
	}
	s := p.serve(dividedText)
	p.shares(r.Gateway, all)
	p.in(p.internet, "ip link set b0 down")
	s.waitSaid("wan wan1 is down: wan1 has no carrier; new connections leave by wan0")
	p.shares(r.Gateway, func(i int) bool { return i == 0 })
	if routes := p.in(p.ns, "ip route show table 27002"); !strings.Contains(routes, "via 198.51.100.1") {
		t.Errorf("routes of the connections that are there: %q", routes)
	}
	s.end()
}

// answers reports whether a host outside answers the gateway, be it that nothing listens there.
func (p *providers) answers(address string) bool {
	err := p.ns.Do(func() error {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	return err == nil || errors.Is(err, unix.ECONNREFUSED)
}

// status is what `natkit gateway status` reports.
func (p *providers) status() *observe.Status {
	p.t.Helper()
	s, err := look.New(look.Options{Netns: p.ns, Store: p.store(), Journal: p.Apply.Journal}).Look(p.t.Context())
	if err != nil || len(s.Uplinks) != 2 {
		p.t.Fatalf("%+v, %v", s, err)
	}
	return s
}

// follow is what explain says of a host inside, of the plan in force.
func (p *providers) follow(plan *gateway.Plan, from netip.Addr) *observe.Trace {
	p.t.Helper()
	return p.followFrom(plan, from, "lan0")
}

func (p *providers) followFrom(plan *gateway.Plan, from netip.Addr, in string) *observe.Trace {
	p.t.Helper()
	facts, err := host.Read(p.t.Context(), p.ns, host.Options{Routing: true})
	if err != nil {
		p.t.Fatal(err)
	}
	if facts.Steering, err = p.Steering(plan); err != nil {
		p.t.Fatal(err)
	}
	routes, err := host.OpenRoutes(p.ns)
	if err != nil {
		p.t.Fatal(err)
	}
	defer routes.Close()
	e, err := observe.Follow(plan, facts, routes.Follow, nat.Packet{Protocol: unix.IPPROTO_TCP, Src: from, Dst: netip.MustParseAddr(server4), SrcPort: 40000, DstPort: 7000, In: in})
	if err != nil {
		p.t.Fatal(err)
	}
	return e
}

// clientOf is a host inside that is on an uplink while all are up.
func (p *providers) clientOf(plan *gateway.Plan, uplink int) netip.Addr {
	p.t.Helper()
	slots := plan.Slots(all)
	for i := range clients {
		if a := netip.AddrFrom4([4]byte{192, 168, 0, byte(2 + i)}); slots[gateway.SlotOf(a, len(slots))] == uplink {
			return a
		}
	}
	p.t.Fatalf("no client is on uplink %d", uplink)
	return netip.Addr{}
}

// TestUplinksAfterService: where a service ended while a WAN was down, status and explain follow the kernel's map, and
// an apply of the same file uses the WAN again, which one undo takes back with all else.
func TestUplinksAfterService(t *testing.T) {
	p := newProviders(t)
	before := p.everything()
	s := p.serve(dividedText)
	plan, err := p.InForce()
	if err != nil || plan == nil {
		t.Fatalf("%v, %v", plan, err)
	}
	p.in(p.internet, "ip addr del 203.0.113.1/24 dev a0")
	s.waitSaid("wan wan0 is down: 203.0.113.1: ")
	s.end()
	p.in(p.internet, "ip addr add 203.0.113.1/24 dev a0")
	st := p.status()
	if u := st.Uplinks[0]; u.Share != 0 || u.Down != "" || !strings.HasPrefix(u.Out, "out since ") || !strings.Contains(u.Out, "203.0.113.1: ") || st.Uplinks[1].Share != 1 || st.Uplinks[1].Out != "" {
		t.Errorf("%+v", st.Uplinks)
	}
	from := p.clientOf(plan, 0)
	if e, got := p.follow(plan, from), p.asks(from.String()); e.Uplink != "wan1" || got != seenUnder[false][1] {
		t.Errorf("%s is on %s as it is explained, and seen under %s: %+v", from, e.Uplink, got, e.Steps)
	}
	r := p.prepare(wish(dividedText))
	i := slices.IndexFunc(r.Plan.Changes, func(c tune.Change) bool { return c.Kind == tune.Gateway })
	if i < 0 || r.Plan.Changes[i].Before != r.Digest || !strings.HasPrefix(r.Plan.Changes[i].Why, "new connections leave by wan0, wan1") {
		t.Fatalf("%+v", r.Plan.Changes)
	}
	generation := p.generation()
	if _, err := r.Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if now := p.generation(); now != generation+1 {
		t.Errorf("%d transactions of nf_tables instead of one", now-generation)
	}
	p.shares(plan, all)
	if u := p.status().Uplinks[0]; u.Share != 0.75 || u.Out != "" {
		t.Errorf("%+v", u)
	}
	if again := p.prepare(wish(dividedText)); len(again.Plan.Changes) > 0 {
		t.Errorf("the same again: %+v", again.Plan.Changes)
	}
	p.undoEverything()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the undo:\n%s", diff)
	}
}

// undoEverything takes back what is open, the newest first.
func (p *providers) undoEverything() {
	p.t.Helper()
	open, err := p.Transactions()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, tx := range slices.Backward(open) {
		if _, err := p.Undo(tx.ID); err != nil {
			p.t.Error(err)
		}
	}
}

// TestRoutingChangedByHand: status names what of natkit's policy routing was removed or replaced, explain says by what
// connections leave then, and apply and run put it back.
func TestRoutingChangedByHand(t *testing.T) {
	p := newProviders(t)
	before := p.everything()
	p.in(p.internet, "ip addr add 198.51.100.99/24 dev b0")
	put := func() {
		t.Helper()
		if _, err := p.prepare(wish(dividedText)).Apply(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	put()
	plan, err := p.InForce()
	if err != nil || plan == nil {
		t.Fatalf("%v, %v", plan, err)
	}
	from, intact := p.clientOf(plan, 1), p.everything()
	cases := []struct {
		by            []string
		change        string
		uplink, leave string
	}{
		{[]string{"ip rule del pref 20002"}, "ip rule 20002: is nothing instead of fwmark 0x2000000/0xf000000 lookup 27002", "wan1", "wan0"},
		{[]string{"ip route flush table 27002"}, "ip route table 27002: is nothing instead of default via 198.51.100.1 dev wan1", "wan1", "wan0"},
		{[]string{"ip route replace table 27002 default via 198.51.100.99"}, "ip route table 27002: is another program's: default via 198.51.100.99 dev wan1 instead of default via 198.51.100.1 dev wan1", "wan1", "wan1"},
		{[]string{"ip -6 rule del pref 20000"}, "ip -6 rule 20000: is nothing instead of not fwmark 0x0/0xf000000 lookup main suppress_prefixlength 0", "wan1", "wan1"},
	}
	for _, c := range cases {
		p.in(p.ns, c.by...)
		if st := p.status(); st.Integrity != gateway.RulesChanged || !slices.Equal(st.Changes, []string{c.change}) {
			t.Errorf("after %q: %s, %q", c.by, st.Integrity, st.Changes)
		}
		if e := p.follow(plan, from); e.Uplink != c.uplink || e.Out != c.leave {
			t.Errorf("after %q: on %s, by %s: %+v", c.by, e.Uplink, e.Out, e.Steps)
		}
		put()
		if st := p.status(); st.Integrity != gateway.RulesIntact || len(st.Changes) > 0 {
			t.Errorf("after apply: %s, %q", st.Integrity, st.Changes)
		}
		if diff := cmp.Diff(strings.Split(intact, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
			t.Errorf("%q put back:\n%s", c.by, diff)
		}
	}
	p.in(p.ns, "ip addr del 198.51.100.7/24 dev wan1") // that takes the route along, and is no change by hand
	if st := p.status(); st.Integrity != gateway.RulesIntact || st.Uplinks[1].Lacks != "wan1 has no address of IPv4" {
		t.Errorf("without an address: %s, %q, %+v", st.Integrity, st.Changes, st.Uplinks)
	}
	p.in(p.ns, "ip addr add 198.51.100.7/24 dev wan1")
	put()
	intact = p.everything()
	// An undo of what put it back leaves it to the transaction that made it.
	open, err := p.Transactions()
	if err != nil || len(open) != 2+len(cases) {
		t.Fatalf("%d transactions, %v", len(open), err)
	}
	for _, tx := range slices.Backward(open[1:]) {
		if _, err := p.Undo(tx.ID); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(strings.Split(intact, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
			t.Errorf("%s undone:\n%s", tx.ID, diff)
		}
	}
	s := p.serve(dividedText)
	for _, c := range cases {
		p.in(p.ns, c.by...)
		within(t, 30*time.Second, "as before "+c.by[0], func() bool { return p.everything() == intact })
	}
	s.end()
	p.undoEverything()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the undo:\n%s", diff)
	}
}

// own has a program on the gateway connect, and returns the address that it is seen under.
func (p *providers) own(from string) string {
	p.t.Helper()
	to := net.JoinHostPort(server4, "7000")
	if strings.Contains(from, ":") {
		to = net.JoinHostPort(server6, "7000")
	}
	if from == "::" || from == "0.0.0.0" {
		from = ""
	}
	told, err := ask(p.ns, from, to)
	if err != nil {
		p.t.Errorf("the gateway's own from %q: %v", from, err)
	}
	return told
}

// TestOwnConnections: new connections of programs on the gateway follow the host's routes, and leave by a WAN that is up
// where these lead to one that is down, has gone, or nowhere; those that there are stay.
func TestOwnConnections(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	p := newProviders(t)
	p.repeat()
	before := p.everything()
	s := p.serve(dividedText)
	s.waitSaid("checking 2 WANs")
	want := func(what string, v4, v6 string) {
		t.Helper()
		if got := p.own("0.0.0.0"); got != v4 {
			t.Errorf("%s: seen under %s, want %s", what, got, v4)
		}
		if got := p.own("::"); got != v6 {
			t.Errorf("%s: seen under %s, want %s", what, got, v6)
		}
	}
	first, second := func(v6 bool) string { return seenUnder[v6][0] }, func(v6 bool) string { return seenUnder[v6][1] }
	want("both up", first(false), first(true))
	stays, datagrams := p.talkOf(p.ns, ""), p.datagrams()
	within(t, 30*time.Second, "an answer by UDP from the first", func() bool { return datagrams() == first(false) })
	p.in(p.internet, "ip addr del 203.0.113.1/24 dev a0")
	s.waitSaid("wan wan0 is down: 203.0.113.1: ")
	want("the first does not answer", second(false), second(true))
	if got := p.own("203.0.113.7"); got != second(false) {
		t.Errorf("bound to the address of the first: seen under %s", got)
	}
	within(t, 30*time.Second, "an answer by UDP by the second", func() bool { return datagrams() == second(false) })
	if st := p.status(); st.Flows.Stranger > 0 {
		t.Errorf("%d connections of others", st.Flows.Stranger)
	}
	goes := p.talkOf(p.ns, "")
	if e := p.followOwn(); e.Uplink != "wan1" || e.Out != "wan1" || e.Source.Addresses.String() != second(false) {
		t.Errorf("explain: on %q by %q as %s: %+v", e.Uplink, e.Out, e.Source, e.Steps)
	}
	p.in(p.internet, "nft add table ip deaf", "nft add chain ip deaf in { type filter hook input priority 0 ; }", "nft add rule ip deaf in iifname a0 ip protocol icmp drop", "ip addr add 203.0.113.1/24 dev a0")
	p.in(p.ns, "ip neigh flush dev wan0")
	if got, err := askBy(p.ns, "wan0", server4+":7000"); err != nil || got != first(false) {
		t.Errorf("bound to the interface of the first: seen under %q, %v", got, err)
	}
	p.in(p.internet, "nft delete table ip deaf")
	s.waitSaid("wan wan0 is up")
	want("the first is back", first(false), first(true))
	if err := goes(); err != nil {
		t.Errorf("the connection that began by the second: %v", err)
	}
	if err := stays(); err != nil {
		t.Errorf("the connection that began by the first: %v", err)
	}
	if e := p.followOwn(); e.Uplink != "" || e.Out != "wan0" || e.Source.Rule == nil && e.Source.Addresses.String() != first(false) {
		t.Errorf("explain: on %q by %q as %s: %+v", e.Uplink, e.Out, e.Source, e.Steps)
	}
	p.in(p.ns, "ip route del default", "ip -6 route del default") // its next hop is that of the file, or none
	s.waitSaid("wan wan0 is down: no next hop")
	want("no default route", second(false), second(true))
	p.in(p.ns, "ip route add default via 203.0.113.1", "ip -6 route add default via 2001:db8:a::1")
	s.waitAgain("wan wan0 is up", 2)
	p.in(p.internet, "ip link set a0 down")
	s.waitSaid("wan wan0 is down: wan0 has no carrier")
	want("no carrier", second(false), second(true))
	p.in(p.internet, "ip link set a0 up", "ip -6 addr replace 2001:db8:a::1/64 dev a0")
	s.end()
	p.undoEverything()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
		t.Errorf("after the undo:\n%s", diff)
	}
}

// datagrams has a program on the gateway send from one port, and returns what sends one and returns the address that it
// is seen under; empty where no answer comes.
func (p *providers) datagrams() func() string {
	p.t.Helper()
	listen := func(ns *netns.Handle, address string) (c net.PacketConn) {
		if err := ns.Do(func() (err error) { c, err = net.ListenPacket("udp4", address); return err }); err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { c.Close() })
		return c
	}
	server, own := listen(p.internet, server4+":7002"), listen(p.ns, ":4500")
	go func() {
		for buf := make([]byte, 100); ; {
			_, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			server.WriteTo([]byte(host), from)
		}
	}()
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(server4 + ":7002"))
	return func() string {
		buf := make([]byte, 100)
		own.SetDeadline(time.Now().Add(100 * time.Millisecond))
		own.WriteTo([]byte("x"), to)
		n, _, _ := own.ReadFrom(buf)
		return string(buf[:n])
	}
}

// followOwn is what explain says of a program on the gateway, of the plan in force.
func (p *providers) followOwn() *observe.Trace {
	p.t.Helper()
	plan, err := p.InForce()
	if err != nil || plan == nil {
		p.t.Fatalf("%v, %v", plan, err)
	}
	return p.followFrom(plan, netip.MustParseAddr("203.0.113.7"), "")
}

// TestUplinksKilled kills natkit at random moments while it applies: what is left behind is taken back, or all of it is
// in force and an undo takes it back; routes, rules and sysctls are then as before.
func TestUplinksKilled(t *testing.T) {
	p := newProviders(t)
	before := p.everything()
	seed := number(t, killSeedEnv, uint64(time.Now().UnixNano()))
	t.Logf("%s=%d", killSeedEnv, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	k := &kills{t: t, world: p.world}
	began := time.Now()
	if out, err := p.start(helperBrief{Text: dividedText}).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	takes := time.Since(began)
	for round := range int(number(t, killsEnv, 6)) {
		if round > 0 {
			cmd := p.start(helperBrief{Text: dividedText})
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(random.Int64N(int64(takes))))
			killHard(t, cmd)
			within(t, 30*time.Second, "end of the guard", func() bool { return !k.guarded() })
		}
		if err := p.ns.Do(func() error { _, err := apply.Clean(p.options(p.keeps())); return err }); err != nil {
			t.Error(err)
		}
		open, err := p.Transactions()
		if err != nil {
			t.Fatal(err)
		}
		for _, tx := range open {
			if _, err := p.Undo(tx.ID); err != nil {
				t.Error(err)
			}
		}
		if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(p.everything(), "\n")); diff != "" {
			t.Fatalf("round %d: %d transactions were open\n%s", round, len(open), diff)
		}
	}
}

// unsteered is an engine that cannot divide connections anew while it refuses.
type unsteered struct {
	netfilter.Engine
	refuses error
}

func (e *unsteered) Steer(ns *netns.Handle, p *gateway.Plan, out [2][]bool) error {
	if e.refuses != nil {
		return e.refuses
	}
	return e.Engine.Steer(ns, p, out)
}

// TestSteerAgain: what the kernel refused when an uplink went is done with the periodic check, and logged once.
func TestSteerAgain(t *testing.T) {
	p := newProviders(t)
	r := p.prepare(wish(dividedText))
	if _, err := r.Apply(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	e := &unsteered{refuses: unix.ENOBUFS}
	p.Host.Engines = engine.Set{e}
	var said []string
	k := newKeeper(&Service{Host: p.Host, File: "gateway.yaml", Log: func(line string) { said = append(said, line) }}, &manager{})
	k.plan, k.digest = r.Gateway, r.Digest
	k.uplinks.plan, k.uplinks.facts = r.Gateway, &r.Facts
	r.Facts.Down = map[string]string{"wan1": "no answer"}
	k.uplinks.steer(t.Context(), k)
	k.usual(t.Context())
	k.usual(t.Context())
	if len(said) != 1 || !strings.Contains(said[0], unix.ENOBUFS.Error()) {
		t.Errorf("%q", said)
	}
	used := func() []bool {
		t.Helper()
		s, err := p.Steering(r.Gateway)
		if err != nil {
			t.Fatal(err)
		}
		return s.Used[0]
	}
	if got := used(); !slices.Equal(got, []bool{true, true}) {
		t.Errorf("used before: %v", got)
	}
	e.refuses = nil
	k.usual(t.Context())
	if got := used(); !slices.Equal(got, []bool{true, false}) {
		t.Errorf("used: %v, %q", got, said)
	}
	if k.usual(t.Context()); len(said) != 2 || !strings.Contains(said[1], "wan wan1 is down: no answer") {
		t.Errorf("%q", said)
	}
}
