package collect

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset/read"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// waysIn asks a namespace with wan0, lan0 and guest0, which have a neighbour each, about its filters. Sockets
// of UDP are open there.
func waysIn(t *testing.T, commands string, sockets ...string) *snapshot.Ways {
	t.Helper()
	testutil.NeedRoot(t)
	testutil.ShareHost(t) // the limit of neighbours
	for _, program := range []string{"ip", "iptables-nft", "nft"} {
		testutil.NeedProgram(t, program)
	}
	ns := testutil.Namespace(t)
	run := func(line string) {
		t.Helper()
		args := strings.Fields(line)
		if err := ns.Do(func() error {
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %s", line, out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	run("ip link set lo up")
	for i, name := range []string{"wan0", "lan0", "guest0"} {
		run(fmt.Sprintf("ip link add %s type veth peer name p%d", name, i))
		run(fmt.Sprintf("ip link set p%d up", i))
		run("ip link set " + name + " up")
		run(fmt.Sprintf("ip addr add 198.18.%d.1/24 dev %s", i, name))
		run(fmt.Sprintf("ip addr add 2001:db8:%d::1/64 dev %s nodad", i, name))
		run(fmt.Sprintf("ip neigh add 198.18.%d.30 lladdr 02:00:00:00:00:%02d dev %s nud reachable", i, i+1, name))
	}
	for line := range strings.SplitSeq(commands, " && ") {
		run(strings.TrimSpace(line))
	}
	for _, s := range sockets {
		if err := ns.Do(func() error {
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s)))
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return waysOf(t, ns)
}

func waysOf(t *testing.T, ns *netns.Handle) (found *snapshot.Ways) {
	t.Helper()
	rules, err := read.NAT(ns)
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() (err error) {
		o := newObservation(newLive(Options{}))
		o.NATRules = rules
		found, err = o.ways()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// judged are the ways of a kind that do not pass: "lan0 tcp 443".
func judged(all *snapshot.Ways, kind string, filter func(*snapshot.Way) *snapshot.Filter) string {
	var list []string
	for i := range all.All {
		w := &all.All[i]
		if f := filter(w); w.Kind == kind && f != nil && !f.Passes {
			name := w.In + ">" + w.Out + " " + w.Protocol
			if w.Port != 0 {
				name += fmt.Sprint(" ", w.Port)
			}
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func first(w *snapshot.Way) *snapshot.Filter   { return w.Filter }
func answers(w *snapshot.Way) *snapshot.Filter { return w.AnswerFilter }
func later(w *snapshot.Way) *snapshot.Filter   { return w.LaterFilter }

const masquerade = "iptables-nft -t nat -A POSTROUTING -o wan0 -j MASQUERADE && "

// TestWaysOfSources: what networks send is asked about at each hook, and so is what comes back.
func TestWaysOfSources(t *testing.T) {
	const all = "guest0>wan0 icmp, guest0>wan0 tcp, guest0>wan0 tcp 443, guest0>wan0 tcp 50000, guest0>wan0 tcp 80, guest0>wan0 udp, guest0>wan0 udp 53"
	for _, c := range []struct {
		commands string
		filter   func(*snapshot.Way) *snapshot.Filter
		want     string
	}{
		{masquerade + "iptables-nft -P FORWARD DROP && iptables-nft -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT && iptables-nft -A FORWARD -i lan0 -j ACCEPT", first, all},
		{"iptables-nft -t nat -A POSTROUTING -s 198.18.2.0/24 -o wan0 -j MASQUERADE && iptables-nft -A FORWARD -s 198.18.2.0/24 -j DROP", first, all},
		{masquerade + "iptables-nft -A FORWARD -i guest0 -p tcp -m multiport --dports 25,443 -j DROP", first, "guest0>wan0 tcp 443"},
		{masquerade + "iptables-nft -t mangle -A POSTROUTING -o wan0 -s 198.18.2.0/24 -j DROP", first, all},
		{masquerade + "iptables-nft -A FORWARD -s 198.18.2.30 -j ACCEPT && iptables-nft -A FORWARD -i guest0 -j DROP", first, ""},
		{masquerade + "iptables-nft -A FORWARD -d 198.18.2.0/24 -p udp -j DROP", answers, "guest0>wan0 udp, guest0>wan0 udp 53"},
		{masquerade + "iptables-nft -A FORWARD -i guest0 -p tcp ! --syn -j DROP", later, "guest0>wan0 tcp"},
		{masquerade + "iptables-nft -A OUTPUT -o wan0 -p tcp --dport 443 -j DROP", first, ""},
	} {
		if got := judged(waysIn(t, c.commands), snapshot.WaySource, c.filter); got != c.want {
			t.Errorf("%s: %q, want %q", c.commands, got, c.want)
		}
	}
	if got := judged(waysIn(t, masquerade+"iptables-nft -A OUTPUT -o wan0 -p tcp --dport 443 -j DROP"), snapshot.WayOwn, first); got != ">wan0 tcp 443" {
		t.Errorf("own: %q", got)
	}
	for _, w := range waysIn(t, masquerade+"iptables-nft -t nat -A POSTROUTING -s 198.18.2.0/24 -o wan0 -j MASQUERADE").All {
		if w.Kind == snapshot.WaySource && (w.Explicit != (w.In == "guest0") || w.Host != netip.MustParseAddr("198.18.1.30") && w.Host != netip.MustParseAddr("198.18.2.30")) {
			t.Errorf("%+v", w)
		}
	}
}

// TestWaysServed: sockets that networks ask, and that no other network reaches.
func TestWaysServed(t *testing.T) {
	for _, c := range []struct {
		commands, socket, want string
		elsewhere              bool
	}{
		{masquerade + "iptables-nft -P INPUT DROP", "0.0.0.0:53", "guest0> udp 53, lan0> udp 53", false},
		{masquerade + "iptables-nft -A INPUT -i lan0 -j DROP", "0.0.0.0:53", "lan0> udp 53", true},
		{masquerade + "iptables-nft -A INPUT -i lan0 -j DROP", "198.18.1.1:5353", "lan0> udp 5353", false},
		{masquerade + "iptables-nft -A INPUT -i lan0 -j DROP", "0.0.0.0:5353", "", false},
		{masquerade + "iptables-nft -A INPUT -i wan0 -j DROP", "0.0.0.0:53", "", false},
	} {
		all := waysIn(t, c.commands, c.socket)
		if got := judged(all, snapshot.WayServed, first); got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.commands, c.socket, got, c.want)
		}
		for _, w := range all.All {
			if w.Kind == snapshot.WayServed && w.Elsewhere != c.elsewhere {
				t.Errorf("%s, %s: elsewhere %v", c.commands, c.socket, w.Elsewhere)
			}
		}
	}
}

// TestWaysOfBridges: what goes from port to port passes the rules of IP where br_netfilter leads it there.
func TestWaysOfBridges(t *testing.T) {
	const bridge = "ip link add br0 type bridge && ip link set br0 up && ip link add v0 master br0 up type veth peer name w0 && ip link add v1 master br0 up type veth peer name w1 && "
	const drops = "iptables-nft -P FORWARD DROP && iptables-nft -A FORWARD -i br0 ! -o br0 -j ACCEPT"
	for _, c := range []struct{ commands, want string }{
		{bridge + "nft add table bridge b && nft add chain bridge b f { type filter hook forward priority 0 ; policy drop ; }", "br0>br0 tcp, br0>br0 udp"},
		{bridge + "nft add table bridge b && nft add chain bridge b f { type filter hook forward priority 0 ; policy drop ; } && nft add rule bridge b f ether type ip accept", ""},
	} {
		if got := judged(waysIn(t, c.commands), snapshot.WayBridge, first); got != c.want {
			t.Errorf("%s: %q, want %q", c.commands, got, c.want)
		}
	}
	testutil.NeedFeature(t, testutil.BridgeNetfilter)
	for value, want := range map[int]string{0: "", 1: "br0>br0 tcp, br0>br0 udp"} {
		got := judged(waysIn(t, fmt.Sprintf("%ssysctl -qw net.bridge.bridge-nf-call-iptables=%d && %s", bridge, value, drops)), snapshot.WayBridge, first)
		if got != want {
			t.Errorf("br_netfilter %d: %q, want %q", value, got, want)
		}
	}
}

// TestWaysOfNeighbours: neighbour discovery is asked about where IPv6 is forwarded and not dropped as a whole.
func TestWaysOfNeighbours(t *testing.T) {
	const forwards = masquerade + "sysctl -qw net.ipv6.conf.all.forwarding=1 && "
	for _, c := range []struct{ commands, want string }{
		{forwards + "ip6tables-nft -A INPUT -i lan0 -p icmpv6 -j DROP", "lan0> neighbour advertisement, lan0> neighbour solicitation"},
		{forwards + "ip6tables-nft -A OUTPUT -o lan0 -p icmpv6 --icmpv6-type 136 -j DROP", ">lan0 neighbour advertisement"},
		{forwards + "ip6tables-nft -P INPUT DROP && ip6tables-nft -P FORWARD DROP", ""},
		{masquerade + "ip6tables-nft -P INPUT DROP", ""},
		{forwards + "nft add table inet f && nft add chain inet f i { type filter hook input priority 0 ; policy drop ; } && nft add rule inet f i icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept", ""},
	} {
		if got := judged(waysIn(t, c.commands), snapshot.WayNeighbours, first); got != c.want {
			t.Errorf("%s: %q, want %q", c.commands, got, c.want)
		}
	}
}

// TestQueueWithoutReader: what a rule leaves to a program is dropped where none reads the queue, unless
// the rule says that it is passed over then.
func TestQueueWithoutReader(t *testing.T) {
	const all = "guest0>wan0 icmp, guest0>wan0 tcp, guest0>wan0 tcp 443, guest0>wan0 tcp 50000, guest0>wan0 tcp 80, guest0>wan0 udp, guest0>wan0 udp 53"
	for commands, want := range map[string]string{
		masquerade + "iptables-nft -A FORWARD -i guest0 -j NFQUEUE --queue-num 7":                all,
		masquerade + "iptables-nft -A FORWARD -i guest0 -j NFQUEUE --queue-num 7 --queue-bypass": "",
	} {
		if got := judged(waysIn(t, commands), snapshot.WaySource, first); got != want {
			t.Errorf("%s: %q, want %q", commands, got, want)
		}
	}
}
