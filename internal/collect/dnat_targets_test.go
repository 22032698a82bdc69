package collect

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

func TestTargetsOf(t *testing.T) {
	dnat := func(protocol, first, last string, port uint16) snapshot.NATRule {
		return snapshot.NATRule{Kind: snapshot.NATDest, First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last), FirstPort: port, LastPort: port, NATCondition: snapshot.NATCondition{Protocol: protocol, DestinationPort: 80}}
	}
	got := targetsOf(&snapshot.NATRules{Rules: []snapshot.NATRule{
		dnat("tcp", "198.18.0.2", "198.18.0.3", 8080), dnat("tcp", "198.18.0.3", "198.18.0.3", 8080), dnat("udp", "2001:db8::1", "2001:db8::1", 0),
		dnat("tcp", "198.18.0.0", "198.18.0.255", 0), // a prefix
		{Kind: snapshot.NATRedirect, FirstPort: 8080, LastPort: 8080, NATCondition: snapshot.NATCondition{Protocol: "tcp"}}, {Kind: snapshot.NATMasquerade},
		{Kind: snapshot.NATDest, FirstPort: 1, LastPort: 9, First: netip.MustParseAddr("198.18.0.9"), Last: netip.MustParseAddr("198.18.0.9")},
		{Kind: snapshot.NATDest, NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80}, Drawn: []snapshot.Drawn{{Address: netip.MustParseAddr("198.18.0.7"), Numbers: 1}, {Address: netip.MustParseAddr("198.18.0.8"), Port: 8080, Numbers: 2}}},
	}})
	want := []snapshot.DNATTarget{
		{Rule: 0, Protocol: "tcp", Address: netip.MustParseAddr("198.18.0.2"), Port: 8080},
		{Rule: 0, Protocol: "tcp", Address: netip.MustParseAddr("198.18.0.3"), Port: 8080},
		{Rule: 2, Protocol: "udp", Address: netip.MustParseAddr("2001:db8::1"), Port: 80},
		{Rule: 4, Protocol: "tcp", Port: 8080},
		{Rule: 7, Protocol: "tcp", Address: netip.MustParseAddr("198.18.0.7"), Port: 80},
		{Rule: 7, Protocol: "tcp", Address: netip.MustParseAddr("198.18.0.8"), Port: 8080},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Error(d)
	}
}

// TestDNATTargets asks a real kernel about targets with and without a route, a neighbour
// and a listener, and a bundle about the same.
func TestDNATTargets(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedProgram(t, "nft")
	testutil.NeedProgram(t, "ip")
	ns := testutil.Namespace(t)
	run := func(args ...string) {
		t.Helper()
		if err := ns.Do(func() error {
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", args, out)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	run("ip", "link", "set", "lo", "up")
	run("ip", "link", "add", "dum", "type", "veth", "peer", "name", "other")
	run("ip", "link", "set", "other", "up")
	run("ip", "addr", "add", "198.18.0.1/24", "dev", "dum")
	run("ip", "link", "set", "dum", "up")
	run("ip", "neigh", "add", "198.18.0.9", "dev", "dum", "nud", "failed")
	run("ip", "route", "add", "198.19.0.0/24", "via", "198.18.0.9")
	testutil.Sysctl(t, ns, "net/ipv4/conf/other/route_localnet", "1")
	run("nft", `table ip t { chain c { type nat hook prerouting priority -100;
		tcp dport 1 dnat to 198.18.0.9:80; tcp dport 2 dnat to 198.19.0.5:80; tcp dport 3 dnat to 198.18.99.9:80;
		tcp dport 4 dnat to 198.18.0.1:1; udp dport 5 redirect to :5000; tcp dport 6 redirect to :5000;
		tcp dport 7 redirect to :5001; tcp dport 8 dnat to 127.0.0.1:5001;
		iifname "oth*" tcp dport 9 dnat to 127.0.0.3:5001; iifname "dum" tcp dport 9 dnat to 127.0.0.4:5001; }; chain o { type nat hook output priority -100;
		tcp dport 7 redirect to :5001; tcp dport 9 dnat to 127.0.0.2:5002; }; }
		table ip6 t { chain c { type nat hook prerouting priority -100; tcp dport 6 redirect to :5000; }; }`)
	if err := ns.Do(func() error {
		for _, address := range []string{"0.0.0.0:5000", "127.0.0.1:5001"} {
			listener, err := net.Listen("tcp4", address)
			if err != nil {
				return err
			}
			t.Cleanup(func() { listener.Close() })
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"198.18.0.9": "FAILED by 198.18.0.9", "198.19.0.5": "FAILED by 198.18.0.9", "198.18.99.9": "no route",
		"198.18.0.1": "closed", "udp 5000 ip prerouting": "closed", "tcp 5000 ip prerouting": "open", "tcp 5000 ip6 prerouting": "closed",
		"tcp 5001 ip prerouting": "closed", "tcp 5001 ip output": "open", "127.0.0.1": "open", "127.0.0.2": "closed",
		"127.0.0.3": "closed", "127.0.0.4": "martian", // by an interface that lets them in, and by one that does not
	}
	check := func(s *snapshot.Snapshot) {
		t.Helper()
		got := map[string]string{}
		for _, target := range s.DNATTargets.Targets {
			r := s.NATRules.Rules[target.Rule]
			name := fmt.Sprintf("%s %d %s %s", target.Protocol, target.Port, r.Family, r.Hook)
			if target.Address.IsValid() {
				name = target.Address.String()
			}
			switch {
			case target.Martian:
				got[name] = "martian"
			case target.NoRoute != "":
				got[name] = "no route"
			case target.Listening != nil:
				got[name] = map[bool]string{true: "open", false: "closed"}[*target.Listening]
			default:
				got[name] = target.Neighbour + " by " + target.NextHop.String()
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	var bundle strings.Builder
	rec, err := WriteBundle(t.Context(), &bundle, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	check(rec.Last())
	if rec, err = ReadBundle(strings.NewReader(bundle.String()), nil); err != nil {
		t.Fatal(err)
	}
	check(rec.Last())
}

// TestNotForwarded: where no interface forwards it is all of it that is off.
func TestNotForwarded(t *testing.T) {
	testutil.NeedProgram(t, "ip")
	ns := gatewayOf(t)
	for _, c := range []struct{ all, wan, lan, want string }{
		{"1", "1", "1", ""}, {"1", "0", "1", "net.ipv4.conf.wan0.forwarding"}, {"0", "0", "0", "net.ipv4.ip_forward"}, {"0", "0", "1", "net.ipv4.conf.wan0.forwarding"},
	} {
		testutil.Sysctl(t, ns, "net/ipv4/ip_forward", c.all) // sets all others
		testutil.Sysctl(t, ns, "net/ipv4/conf/wan0/forwarding", c.wan)
		testutil.Sysctl(t, ns, "net/ipv4/conf/lan0/forwarding", c.lan)
		if err := ns.Do(func() error {
			w, err := newLive(Options{}).world()
			if err != nil {
				return err
			}
			defer w.close()
			r, err := newRouter(w)
			if err != nil {
				return err
			}
			got, err := r.notForwarded(false, "wan0")
			if got != c.want {
				t.Errorf("%v: %q", c, got)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOfSeveral: filters are asked about each port of a rule for several, by the address that a packet was for as well.
func TestOfSeveral(t *testing.T) {
	testutil.NeedProgram(t, "ip")
	testutil.NeedProgram(t, "nft")
	ns := gatewayOf(t)
	testutil.Nft(t, ns, `table ip t {
	chain pre { type nat hook prerouting priority dstnat; tcp dport { 25, 443, 587 } dnat to 192.168.1.10; }
	chain f { type filter hook forward priority 0; policy drop; ct state established accept; ip daddr 192.168.1.10 tcp dport { 25, 443 } accept; ip daddr 192.168.1.1 tcp dport 587 accept; }
}`)
	rec, err := WriteBundle(t.Context(), &strings.Builder{}, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	all := rec.Last().DNATTargets.Targets
	if len(all) != 2 || !all[0].Filter.Passes || all[1].Port != 587 || !all[1].OfSeveral || all[1].Filter.Passes || all[1].Filter.AcceptsBefore == nil {
		t.Errorf("%+v %+v", all, rec.Last().NATRules.Rules)
	}
}

// TestBeside: filters are asked about each protocol of a rule for several.
func TestBeside(t *testing.T) {
	testutil.NeedProgram(t, "ip")
	testutil.NeedProgram(t, "nft")
	ns := gatewayOf(t)
	testutil.Nft(t, ns, `table ip t {
	chain pre { type nat hook prerouting priority dstnat; iifname wan0 meta l4proto { tcp, udp } th dport 443 dnat to 192.168.1.10; }
	chain f { type filter hook forward priority 0; policy drop; tcp dport 443 accept; ct state established accept; }
}`)
	rec, err := WriteBundle(t.Context(), &strings.Builder{}, RecordOptions{Options: Options{Netns: ns}})
	if err != nil {
		t.Fatal(err)
	}
	all := rec.Last().DNATTargets.Targets
	if len(all) != 2 || !all[0].Filter.Passes || all[1].Protocol != "udp" || !all[1].Beside || all[1].Filter.Passes {
		t.Errorf("%+v %+v", all, rec.Last().NATRules.Rules)
	}
}
