package collect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/conntrack/dump"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
	"golang.org/x/sys/unix"
)

// gatewayOf is a namespace with two uplinks and an inner network, by lines of ip(8) and more of them.
func gatewayOf(t *testing.T, more ...string) *netns.Handle {
	t.Helper()
	ns, beyond := testutil.Namespace(t), testutil.Namespace(t, "beyond")
	for name, address := range map[string]string{"wan0": "198.18.0.1/24", "wan1": "198.18.1.1/24", "lan0": "192.168.1.1/24"} {
		testutil.Veth(t, testutil.End{Netns: ns, Name: name, Addresses: []string{address}}, testutil.End{Netns: beyond, Name: name})
	}
	testutil.Sysctl(t, ns, "net/ipv4/ip_forward", "1")
	for _, name := range []string{"all", "wan0", "wan1", "lan0"} {
		testutil.Sysctl(t, ns, "net/ipv4/conf/"+name+"/rp_filter", "0")
	}
	testutil.Run(t, ns, "", "ip", "route", "add", "default", "via", "198.18.0.254")
	for _, line := range more {
		testutil.Run(t, ns, "", "ip", strings.Fields(line)...)
	}
	return ns
}

// TestRoutes asks a real kernel for routes as packets would go.
func TestRoutes(t *testing.T) {
	testutil.NeedProgram(t, "ip")
	testutil.NeedFeature(t, testutil.Tun)
	ns := gatewayOf(t, "link set lo up",
		"rule add from 192.168.1.66 prohibit pref 100", "rule add from 192.168.1.67 iif lan0 lookup 67 pref 101", "route add blackhole default table 67",
		"rule add ipproto tcp sport 8080 lookup 68 pref 102", "route add default via 198.18.1.254 table 68",
		"rule add fwmark 0x2/0xf lookup 68 pref 103", "route add blackhole 198.51.100.0/24", "route add unreachable 198.51.101.0/24", "route add prohibit 198.51.102.0/24",
		"route add 203.0.113.0/24 nexthop via 198.18.0.253 nexthop via 198.18.1.253", "neigh add 198.18.0.254 dev wan0 lladdr 02:00:00:00:00:01 nud permanent",
		"neigh add 198.18.1.254 dev wan1 nud failed", "tuntap add tun0 mode tun", "addr add 10.9.0.1/24 dev tun0", "link set tun0 up", "route add 10.10.0.0/16 via 10.9.0.2",
		"-6 addr add 2001:db8::1/64 dev wan0 nodad", "-6 addr add 2001:db8:2::1/64 dev lan0 nodad", "-6 rule add from 2001:db8:2::66 unreachable pref 200", "-6 route add prohibit 2001:db8:5::/48")
	testutil.Sysctl(t, ns, "net/ipv4/conf/wan1/rp_filter", "1")
	for name, c := range map[string]struct {
		protocol     uint8
		from, to, in string
		want         string
	}{
		"by default":                       {0, "192.168.1.10:0", "8.8.8.8:0", "lan0", "wan0 198.18.0.254 PERMANENT 02:00:00:00:00:01; mark 0x2 wan1"},
		"by protocol and port":             {unix.IPPROTO_TCP, "192.168.1.10:8080", "8.8.8.8:0", "lan0", "wan1 198.18.1.254 FAILED [102: from all ipproto tcp sport 8080 lookup 68]"},
		"another protocol":                 {unix.IPPROTO_UDP, "192.168.1.10:8080", "8.8.8.8:0", "lan0", "wan0 198.18.0.254 PERMANENT 02:00:00:00:00:01; mark 0x2 wan1"},
		"a rule refuses":                   {0, "192.168.1.66:0", "8.8.8.8:0", "lan0", "permission denied [100: from 192.168.1.66 prohibit]"},
		"the table of a rule refuses":      {0, "192.168.1.67:0", "8.8.8.8:0", "lan0", "invalid argument [101: from 192.168.1.67 iif lan0 lookup 67]"},
		"a blackhole":                      {0, "192.168.1.10:0", "198.51.100.1:0", "lan0", "invalid argument; mark 0x2 wan1"},
		"unreachable":                      {0, "192.168.1.10:0", "198.51.101.1:0", "lan0", "no route to host; mark 0x2 wan1"},
		"prohibit":                         {0, "192.168.1.10:0", "198.51.102.1:0", "lan0", "permission denied; mark 0x2 wan1"},
		"a strict reverse path filter":     {0, "9.9.9.9:0", "192.168.1.10:0", "wan1", "invalid cross-device link"},
		"a loose one":                      {0, "9.9.9.9:0", "192.168.1.10:0", "wan0", "lan0 192.168.1.10; mark 0x2 wan1"},
		"a strict one, and a neighbour":    {0, "198.18.1.9:0", "192.168.1.10:0", "wan1", "lan0 192.168.1.10; mark 0x2 wan1"},
		"one of two next hops":             {0, "192.168.1.10:0", "203.0.113.9:0", "lan0", "hops wan0 wan1; mark 0x2 wan1"},
		"for this host":                    {0, "192.168.1.10:0", "198.18.0.1:0", "lan0", "local"},
		"a tunnel without a program":       {0, "192.168.1.10:0", "10.10.0.1:0", "lan0", "tun0 10.9.0.2 has no carrier; mark 0x2 wan1"},
		"of this host":                     {0, "198.18.0.1:0", "192.168.1.10:0", "", "lan0 192.168.1.10; mark 0x2 wan1"},
		"IPv6":                             {0, "[2001:db8:2::10]:0", "[2001:db8::9]:0", "lan0", "wan0 2001:db8::9"},
		"IPv6, a rule refuses":             {0, "[2001:db8:2::66]:0", "[2001:db8::9]:0", "lan0", "no route to host [200: from 2001:db8:2::66 unreachable]"},
		"IPv6, a route refuses":            {0, "[2001:db8:2::10]:0", "[2001:db8:5::9]:0", "lan0", "permission denied"},
		"IPv6, none":                       {0, "[2001:db8:2::10]:0", "[2000::1]:0", "lan0", "network is unreachable"},
		"an interface that does not exist": {0, "192.168.1.10:0", "8.8.8.8:0", "ppp0", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Inside(t, ns, func() error {
				w, err := newLive(Options{}).world()
				if err != nil {
					return err
				}
				r, err := newRouter(w)
				if err != nil {
					return err
				}
				defer r.close()
				f := flow{protocol: c.protocol, from: netip.MustParseAddrPort(c.from), to: netip.MustParseAddrPort(c.to), in: c.in}
				f.packet = packetOf(f, ruleset.ConnNew)
				route, known := r.ask(f)
				got := describe(route)
				if !known {
					got = "unknown"
				}
				if d := cmp.Diff(c.want, got); d != "" {
					t.Errorf("(-want +got)\n%s", d)
				}
				again, _ := (&router{known: r.known}).ask(f) // as of a bundle
				if d := cmp.Diff(route, again, cmpopts.EquateComparable(netip.Addr{})); d != "" {
					t.Errorf("asked again: %s", d)
				}
				return nil
			})
		})
	}
}

// describe is a route in a line.
func describe(r snapshot.Route) string {
	var parts []string
	add := func(text string) {
		if text != "" {
			parts = append(parts, text)
		}
	}
	add(r.Error)
	add(map[bool]string{true: "local"}[r.Local])
	if len(r.Hops) > 0 {
		text := "hops"
		for _, h := range r.Hops {
			text += " " + h.Out
		}
		add(text)
	} else if r.Out != "" {
		add(r.Out + " " + r.NextHop.String())
		add(r.Neighbour)
		add(r.Hardware)
	}
	add(r.Broken)
	add(strings.Join(r.Ports, " "))
	if r.Policy != "" {
		add("[" + r.Policy + "]")
	}
	text := strings.Join(parts, " ")
	for _, m := range r.Marked {
		text += fmt.Sprintf("; mark %#x %s", m.Mark, m.Out)
	}
	return text
}

// TestFailedRoutes: the routes of connections without an answer are in a recording, and in its bundle.
func TestFailedRoutes(t *testing.T) {
	for _, program := range []string{"ip", "nft"} {
		testutil.NeedProgram(t, program)
	}
	testutil.ShareHost(t)
	ns := gatewayOf(t, "rule add from 192.168.1.10 prohibit pref 100")
	testutil.Nft(t, ns, `table ip t { chain c { type nat hook prerouting priority -100; iifname wan1 tcp dport 80 dnat to 192.168.1.10:8080; }; chain s { type nat hook postrouting priority 100; oifname wan0 masquerade; }; }`)
	port := uint16(1024)
	taken, err := dump.Insert(t.Context(), ns, func(e *conntrack.Entry) bool {
		orig := conntrack.Tuple{Src: netip.MustParseAddr("9.9.9.9"), Dst: netip.MustParseAddr("198.18.1.1"), Proto: unix.IPPROTO_TCP, SrcPort: port, DstPort: 80}
		reply := conntrack.Tuple{Src: netip.MustParseAddr("192.168.1.10"), Dst: orig.Src, Proto: unix.IPPROTO_TCP, SrcPort: 8080, DstPort: port}
		*e = conntrack.Entry{Family: unix.AF_INET, Orig: orig, Reply: reply, Status: conntrack.SeenReply, TCPState: conntrack.TCPSynRecv, Timeout: 55}
		port++
		return port <= 1024+9
	})
	if err != nil || taken != 9 {
		t.Fatalf("inserted %d entries: %v", taken, err)
	}
	check := func(rec *snapshot.Recording) {
		t.Helper()
		services := rec.Flows.Services.All
		i := slices.IndexFunc(services, func(s snapshot.Service) bool { return s.Kind == snapshot.ServiceDNAT })
		if i < 0 || services[i].Routes == nil || services[i].Routes.Answer == nil {
			t.Fatalf("no ways of %+v: %+v", services, rec.Last().Parts)
		}
		w := services[i].Routes
		got := []string{w.In, describe(*w.Question), w.AnswerIn, describe(*w.Answer)}
		if d := cmp.Diff([]string{"wan1", "lan0 192.168.1.10", "lan0", "permission denied [100: from 192.168.1.10 prohibit]"}, got); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
	var bundle strings.Builder
	rec, err := WriteBundle(t.Context(), &bundle, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	check(rec)
	if rec, err = ReadBundle(strings.NewReader(bundle.String()), nil); err != nil {
		t.Fatal(err)
	}
	check(rec)
}

// TestUnreached: which addresses and interfaces of rules nobody answers for, and which hosts are not routed.
func TestUnreached(t *testing.T) {
	for _, program := range []string{"ip", "nft"} {
		testutil.NeedProgram(t, program)
	}
	ns := gatewayOf(t, "link set lo up", "addr add 198.18.0.5/32 dev lo", "addr add 203.0.113.5/32 dev lo", "addr add 198.18.0.6/32 dev wan1", "addr add 198.18.0.55/32 dev lo", "addr add 198.18.0.56/32 dev lo",
		"addr add 2001:db8:18::1/64 dev wan0 nodad", "addr add 2001:db8:18::5/128 dev lo", "addr add 2001:db8:18::6/128 dev lo", "neigh add proxy 2001:db8:18::6 dev wan0",
		"neigh add 192.168.1.66 dev lan0 lladdr 02:00:00:00:00:02 nud reachable", "neigh add 192.168.1.67 dev lan0 lladdr 02:00:00:00:00:03 nud reachable",
		"neigh add 192.168.1.68 dev lan0 nud failed", "rule add from 192.168.1.66 blackhole pref 100", "rule add from 192.168.1.68 blackhole pref 101",
		"route add local 198.18.0.8 dev lo", "neigh add 198.18.0.9 dev wan0 lladdr 02:00:00:00:00:09 nud permanent", "link set wan1 arp off")
	testutil.Sysctl(t, ns, "net/ipv4/conf/wan0/arp_ignore", "1")
	var rules strings.Builder
	for _, address := range []string{"198.18.0.1", "198.18.0.5", "203.0.113.5", "198.18.0.6", "198.18.0.7", "198.18.0.8", "198.18.0.9", "203.0.113.9"} {
		fmt.Fprintf(&rules, "ip daddr %s tcp dport 80 dnat to 192.168.1.10; ", address)
	}
	testutil.Nft(t, ns, `table ip t { chain c { type nat hook prerouting priority -100; iifname ppp0 tcp dport 80 dnat to 192.168.1.10; iifname "wg*" tcp dport 80 dnat to 192.168.1.10; `+rules.String()+
		`ip daddr { 198.18.0.1, 198.18.0.55 } tcp dport { 21, 443 } dnat to 192.168.1.10; dnat to ip daddr . tcp dport map { 198.18.0.56 . 25 : 192.168.1.10 . 25 }; `+
		`}; chain s { type nat hook postrouting priority 100; oifname wan0 masquerade; }; }
		table ip6 t { chain c { type nat hook prerouting priority -100; ip6 daddr { 2001:db8:18::1, 2001:db8:18::5, 2001:db8:18::6 } tcp dport 80-90 dnat to fd00::10; }; }`)
	s, err := Read(t.Context(), Options{Netns: ns})
	if err != nil || s.Audit == nil {
		t.Fatalf("%v: %+v", err, s)
	}
	got := map[string]string{}
	for _, a := range s.Audit.Silent {
		got[a.Address.String()] = strings.TrimSpace(a.Why + " " + a.Interface + " " + a.On + " " + a.Neighbour)
	}
	want := map[string]string{"198.18.0.5": "ignored wan0 lo", "198.18.0.6": "ignored wan0 wan1", "198.18.0.55": "ignored wan0 lo", "198.18.0.56": "ignored wan0 lo", "2001:db8:18::5": "ignored wan0 lo",
		"198.18.0.7": "absent wan0", "198.18.0.9": "absent wan0  02:00:00:00:00:09"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("addresses (-want +got)\n%s", d)
	}
	for _, a := range s.Audit.Silent {
		if several := slices.Contains([]string{"198.18.0.55", "2001:db8:18::5"}, a.Address.String()); a.Shared != several {
			t.Errorf("%s: shared %t", a.Address, a.Shared)
		}
	}
	// Of the rules for ports 80, of one with a set of two ports and one with a range, the second alone.
	if i := s.Audit.SinglePorts; len(i) != 2 || s.NATRules.Rules[i[0]].Text != "dnat to 192.168.1.10" {
		t.Errorf("rules for single ports: %v", i)
	}
	if d := cmp.Diff([]string{"ppp0"}, s.Audit.Absent); d != "" {
		t.Errorf("interfaces (-want +got)\n%s", d)
	}
	if len(s.Audit.Stranded) != 1 || s.Audit.Stranded[0].Host.String() != "192.168.1.66" || !strings.Contains(s.Audit.Stranded[0].Policy, "100:") {
		t.Errorf("not routed: %+v", s.Audit.Stranded)
	}
	for _, l := range s.Audit.Interfaces {
		if l.NoARP != (l.Name == "wan1") {
			t.Errorf("%s: NOARP is %v", l.Name, l.NoARP)
		}
	}
}

// TestRouteMarks: the route is that of the mark which rules give, and answers have the one that is restored from
// their connection.
func TestRouteMarks(t *testing.T) {
	for _, program := range []string{"ip", "nft"} {
		testutil.NeedProgram(t, program)
	}
	ns := gatewayOf(t, "rule add fwmark 2 lookup 68 pref 103", "route add default via 198.18.1.254 table 68")
	for _, c := range []struct{ rules, answer string }{
		{``, "wan0 198.18.0.254; mark 0x2 wan1"},
		{`iifname wan1 ct state new ct mark set 2; iifname lan0 meta mark set ct mark`, "wan1 198.18.1.254 [103: from all fwmark 0x2 lookup 68]"},
		{`iifname wan1 ct state new ct mark set 3; iifname lan0 meta mark set ct mark`, "wan0 198.18.0.254; mark 0x2 wan1"},
		{`iifname lan0 tcp sport 8080 meta mark set 2`, "wan1 198.18.1.254 [103: from all fwmark 0x2 lookup 68]"},
		{`iifname lan0 meta mark set jhash ip saddr mod 4`, "doubtful wan0 198.18.0.254; mark 0x2 wan1"},
	} {
		testutil.Nft(t, ns, `table ip t; delete table ip t; table ip t { chain c { type filter hook prerouting priority -150; `+c.rules+`; }; }`)
		testutil.Inside(t, ns, func() error {
			o := &observation{src: newLive(Options{}), Snapshot: &snapshot.Snapshot{}}
			k, err := o.asksRoutes()
			if err != nil {
				return err
			}
			defer k.close()
			audit := &snapshot.Audit{Interfaces: []snapshot.Interface{{Name: "wan1", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.18.1.1/24")}}}}
			both := k.bothWays(audit, &failed{protocol: unix.IPPROTO_TCP, client: netip.MustParseAddr("9.9.9.9"),
				service: netip.MustParseAddrPort("198.18.1.1:80"), target: netip.MustParseAddrPort("192.168.1.10:8080")})
			answer := describe(*both.Answer)
			if both.Answer.Doubtful {
				answer = "doubtful " + answer
			}
			if both.In != "wan1" || both.AnswerIn != "lan0" || answer != c.answer {
				t.Errorf("%s: in by %s, answer in by %s, %q, want %q", c.rules, both.In, both.AnswerIn, answer, c.answer)
			}
			return nil
		})
	}
}
