package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// run runs a program in a namespace.
func run(t *testing.T, ns *netns.Handle, stdin string, args ...string) {
	t.Helper()
	testutil.NeedProgram(t, args[0])
	err := ns.Do(func() error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w\n%s", args, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wire makes an interface that is up, with addresses.
func wire(t *testing.T, ns *netns.Handle, name string, addresses ...string) {
	t.Helper()
	err := ns.Do(func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1400}, PeerName: name + "-far"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if a.IP.To4() == nil {
				a.Flags = unix.IFA_F_NODAD
			}
			if err := netlink.AddrAdd(link, a); err != nil {
				return err
			}
		}
		far, err := netlink.LinkByName(link.PeerName)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(link), netlink.LinkSetUp(far))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestReadTellsInterfacesAndSettings(t *testing.T) {
	ns := testutil.Namespace(t)
	wire(t, ns, "wan0", "203.0.113.7/24", "203.0.113.8/24", "2001:db8::7/64")
	run(t, ns, "", "ip", "route", "add", "local", "203.0.113.192/26", "dev", "wan0")
	f, err := Read(t.Context(), ns, Options{PID: os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"203.0.113.192/26"}, texts(f.Local)); diff != "" {
		t.Error(diff)
	}
	if !f.Known || f.Initial || len(f.Sessions) > 0 {
		t.Errorf("known %v, initial %v, sessions %v", f.Known, f.Initial, f.Sessions)
	}
	i := slices.IndexFunc(f.Interfaces, func(i gateway.Interface) bool { return i.Name == "wan0" })
	if i < 0 {
		t.Fatalf("wan0 is missing in %+v", f.Interfaces)
	}
	wan := f.Interfaces[i]
	wan.Addresses = slices.DeleteFunc(wan.Addresses, func(p netip.Prefix) bool { return p.Addr().IsLinkLocalUnicast() })
	want := gateway.Interface{Name: "wan0", Index: wan.Index, Up: true, MTU: 1400, Addresses: []netip.Prefix{
		netip.MustParsePrefix("203.0.113.7/24"), netip.MustParsePrefix("203.0.113.8/24"), netip.MustParsePrefix("2001:db8::7/64")}}
	if diff := cmp.Diff(want, wan, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if f.Sysctls["net.ipv4.ip_forward"] != "0" || f.Sysctls["net.netfilter.nf_conntrack_max"] == "" {
		t.Errorf("sysctls %v", f.Sysctls)
	}
	if f.Conntrack == nil || f.Conntrack.EntryBytes == 0 {
		t.Errorf("conntrack %+v; unknown: %v", f.Conntrack, f.Unknown)
	}
}

func texts(prefixes []netip.Prefix) (all []string) {
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return all
}

const others = `table inet firewalld {
	chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept; jump more; jump more; }
	chain more { tcp dport 22 accept; meta mark 1 drop; }
}
table inet natkit {
	chain postrouting { type nat hook postrouting priority 120; masquerade; }
}
table inet asleep {
	flags dormant
	chain f { type filter hook forward priority 0; policy drop; }
}
table ip mine {
	chain out { type nat hook postrouting priority srcnat; oifname "eth0" snat to 203.0.113.1; }
}
`

func TestForeignTellsOthersChains(t *testing.T) {
	ns := testutil.Namespace(t)
	run(t, ns, others, "nft", "-f", "-")
	for _, line := range []string{
		"iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER", "iptables-nft -A DOCKER-USER -j RETURN", "iptables-nft -P FORWARD DROP",
		"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE",
		"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -m state --state ESTABLISHED -j ACCEPT",
		"iptables-legacy -t mangle -A FORWARD -j MARK --set-mark 1",
		"iptables-legacy -t nat -A POSTROUTING -o eth9 -j MASQUERADE",
	} {
		run(t, ns, "", strings.Fields(line)...)
	}
	all, err := Foreign(ns)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range all {
		if c.Rules == 0 && c.Policy == "accept" { // iptables makes all chains of a table
			continue
		}
		text := fmt.Sprintf("%s %s: %s %s %s, %s %s %d, %s, %d rules", c.Source, c.Owner, c.Family, c.Table, c.Chain, c.Type, c.Hook, c.Priority, c.Policy, c.Rules)
		for _, r := range c.NAT {
			text += ": " + r.Text
		}
		got = append(got, text)
	}
	slices.Sort(got)
	want := []string{
		"iptables-legacy : ip filter FORWARD, filter forward 0, drop, 1 rules",
		"iptables-legacy : ip mangle FORWARD, filter forward -150, accept, 1 rules",
		"iptables-legacy : ip nat POSTROUTING, nat postrouting 100, accept, 1 rules: masquerade",
		"iptables-nft : ip nat POSTROUTING, nat postrouting 100, accept, 1 rules: masquerade",
		"iptables-nft docker: ip filter FORWARD, filter forward 0, drop, 2 rules",
		"nftables : ip mine out, nat postrouting 100, accept, 1 rules: snat to 203.0.113.1",
		"nftables firewalld: inet firewalld filter_FORWARD, filter forward 10, accept, 4 rules",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestForeignByElement: a rule that looks into sets, maps or ranges is there once for each
// element, with its conditions.
func TestForeignByElement(t *testing.T) {
	ns := testutil.Namespace(t)
	run(t, ns, `table ip mine {
	chain pre { type nat hook prerouting priority -100;
		tcp dport {80, 8080} dnat to 10.0.0.1
		udp dport 5000-5600 dnat to 10.0.0.2
		dnat to tcp dport map {25: 10.0.0.3, 143: 10.0.0.4}
		tcp dport vmap {22: jump on, 23: accept}
		udp dport 53 dnat to 10.0.0.6
	}
	chain on { udp dport 53 dnat to 10.0.0.9; tcp dport 20-30 dnat to 10.0.0.5; }
}`, "nft", "-f", "-")
	run(t, ns, "", strings.Fields("iptables-legacy -t nat -A PREROUTING -p tcp -m multiport --dports 1,3:4 -j DNAT --to 10.0.0.7")...)
	run(t, ns, "", strings.Fields("iptables-legacy -t nat -A PREROUTING -p udp --dport 6:7 -j DNAT --to 10.0.0.8")...)
	all, err := Foreign(ns)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range all {
		for _, r := range c.NAT {
			got = append(got, fmt.Sprintf("%s/%d-%d %s partial=%v unless=%v", r.Protocol, r.DestinationPort, r.LastDestinationPort, r.First, r.Partial, len(r.Unless)))
		}
	}
	slices.Sort(got)
	want := []string{
		"tcp/1-0 10.0.0.7 partial=false unless=0", "tcp/143-0 10.0.0.4 partial=false unless=0",
		"tcp/22-0 10.0.0.5 partial=false unless=0", "tcp/25-0 10.0.0.3 partial=false unless=0",
		"tcp/3-4 10.0.0.7 partial=false unless=0", "tcp/80-0 10.0.0.1 partial=false unless=0", "tcp/8080-0 10.0.0.1 partial=false unless=0",
		"udp/5000-5600 10.0.0.2 partial=false unless=0", "udp/53-0 10.0.0.6 partial=false unless=0", "udp/6-7 10.0.0.8 partial=false unless=0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestReadTellsWays: of hosts that are on no network here, the interface that leads there.
func TestReadTellsWays(t *testing.T) {
	ns := testutil.Namespace(t)
	wire(t, ns, "lan0", "192.168.0.1/24")
	wire(t, ns, "wan0", "203.0.113.7/24")
	for _, line := range []string{"ip route add default via 203.0.113.1", "ip route add 10.0.0.0/8 via 192.168.0.9", "ip route add blackhole 198.19.0.0/16"} {
		run(t, ns, "", strings.Fields(line)...)
	}
	addr := netip.MustParseAddr
	f, err := Read(t.Context(), ns, Options{Targets: []netip.Addr{addr("192.168.0.2"), addr("203.0.113.20"), addr("198.51.100.9"), addr("10.1.1.1"), addr("198.19.0.1")}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"198.51.100.9": "wan0", "10.1.1.1": "lan0"}, inWords(f.Ways)); diff != "" {
		t.Error(diff)
	}
}

func inWords(ways map[netip.Addr]string) map[string]string {
	all := map[string]string{}
	for a, name := range ways {
		all[a.String()] = name
	}
	return all
}

func TestRouted(t *testing.T) {
	ns := testutil.Namespace(t)
	wire(t, ns, "lan0", "192.168.0.1/24")
	wire(t, ns, "wan0", "203.0.113.7/24")
	if err := ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"ip link set lo up", "ip route add default via 203.0.113.1", "ip route add blackhole 198.18.0.0/16", "ip route add unreachable 198.19.0.0/16"} {
		run(t, ns, "", strings.Fields(line)...)
	}
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		name string
		way  Way
		want Route
	}{
		{"out of the house", Way{Source: addr("192.168.0.2"), Destination: addr("198.51.100.9"), In: "lan0"},
			Route{Out: "wan0", Gateway: addr("203.0.113.1"), Table: 254}},
		{"to the gateway", Way{Source: addr("192.168.0.2"), Destination: addr("203.0.113.7"), In: "lan0"}, Route{Local: true, Out: "lo"}},
		{"of the gateway", Way{Destination: addr("198.51.100.9")}, Route{Out: "wan0", Gateway: addr("203.0.113.1"), Source: addr("203.0.113.7"), Table: 254}},
		{"blackhole", Way{Destination: addr("198.18.0.1")}, Route{Unreachable: true, Reason: "the route says blackhole"}},
		{"unreachable", Way{Destination: addr("198.19.0.1")}, Route{Unreachable: true, Reason: "the route says unreachable"}},
		{"martian", Way{Source: addr("192.168.0.2"), Destination: addr("127.0.0.1"), In: "lan0"}, Route{Unreachable: true,
			Reason: "the route says blackhole, or what comes in by lan0 cannot have the source 192.168.0.2 or the destination 127.0.0.1 (martian)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Routed(ns, tt.way)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want.Out == "lo" { // kernels report its interface and table in different ways
				got.Out, got.Table = "lo", 0
			}
			if !tt.want.Source.IsValid() {
				got.Source = netip.Addr{}
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	if _, err := Routed(ns, Way{Destination: addr("198.51.100.9"), In: "nosuch"}); err == nil {
		t.Error("an interface that is not there")
	}
}

// TestBypassed: IPsec policies and queueing disciplines that interfaces do not have by themselves are read where they are
// asked for.
func TestBypassed(t *testing.T) {
	testutil.NeedRoot(t)
	ns := testutil.Namespace(t)
	wire(t, ns, "wan0", "203.0.113.7/24")
	read := func(asked bool) gateway.Facts {
		f, err := Read(t.Context(), ns, Options{Bypassed: asked})
		if err != nil || len(f.Unknown) > 0 {
			t.Fatal(f.Unknown, err)
		}
		return f
	}
	if f := read(true); f.IPsecPolicies != 0 || f.Qdiscs != nil {
		t.Errorf("%d policies, %v", f.IPsecPolicies, f.Qdiscs)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	err = ns.Do(func() error {
		link, err := netlink.LinkByName("wan0")
		if err != nil {
			return err
		}
		index := link.Attrs().Index
		return errors.Join(
			netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}, QdiscType: "pfifo"}),
			netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}, QdiscType: "clsact"}),
			netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
				Fd: program.FD(), Name: "of_another", DirectAction: true}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if f := read(true); !slices.Equal(f.Qdiscs, []gateway.Qdisc{{Interface: "wan0", Kind: "pfifo"}}) {
		t.Errorf("%v", f.Qdiscs)
	}
	if f := read(true); !slices.Equal(f.Filters, []gateway.Filter{{Interface: "wan0", Way: "ingress", Kind: "bpf of_another"}}) {
		t.Errorf("%v", f.Filters)
	}
	if f := read(false); f.Qdiscs != nil || f.Filters != nil {
		t.Errorf("not asked for: %v, %v", f.Qdiscs, f.Filters)
	}
	if err := ns.Do(func() error {
		_, any, _ := net.ParseCIDR("198.51.100.0/24")
		return netlink.XfrmPolicyAdd(&netlink.XfrmPolicy{Src: any, Dst: any, Dir: netlink.XFRM_DIR_FWD})
	}); err != nil {
		t.Fatal(err)
	}
	if f := read(true); f.IPsecPolicies != 1 {
		t.Errorf("%d policies", f.IPsecPolicies)
	}
}
