package read

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/testutil"
)

// describe writes a rule without what is by chance: handle and target.
func describe(r snapshot.NATRule) string {
	cond := conditionsOf(r.NATCondition)
	for _, c := range r.Unless {
		cond = append(cond, "unless("+strings.Join(conditionsOf(c), " ")+")")
	}
	if r.PortsFromMap {
		cond = append(cond, "ports=map")
	}
	if r.Partial {
		cond = append(cond, "partial")
	}
	return fmt.Sprintf("%s %d, %s: %s [%s]", r.Hook, r.Priority, strings.TrimSuffix(r.Place(), " of iptables-legacy"), r.Text, strings.Join(cond, " "))
}

func conditionsOf(c snapshot.NATCondition) (words []string) {
	add := func(name string, there bool, v any) {
		if there {
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	add("proto", c.Protocol != "", c.Protocol)
	add("dport", c.DestinationPort != 0, c.DestinationPort)
	add("src", c.FromSource.IsValid(), c.FromSource)
	add("dst", c.ToDestination.IsValid(), c.ToDestination)
	add("in", c.InInterface != "", c.InInterface)
	add("out", c.OutInterface != "", c.OutInterface)
	add("local", c.LocalDestination, c.LocalDestination)
	return words
}

func describeAll(rules []snapshot.NATRule) []string {
	lines := []string{}
	for _, r := range rules {
		lines = append(lines, describe(r))
	}
	return lines
}

const readable = `table ip shop {
	map m { type inet_service : ipv4_addr; elements = { 80 : 198.18.0.1 }; }
	chain sub { snat to 203.0.113.1; }
	chain deep { ip saddr 198.18.7.0/24 masquerade; return; }
	chain twice { masquerade random; }
	chain mapped { tcp dport 22 redirect; }
	chain unused { masquerade persistent; }
	chain post {
		type nat hook postrouting priority srcnat;
		oifname "d0" meta l4proto tcp masquerade to :1024-2047 fully-random comment "mine"
		oifname "d*" ip saddr 198.18.0.0/16 udp dport 53 counter snat to 203.0.113.5-203.0.113.9:1000-2000 persistent
		snat ip prefix to ip saddr map { 198.18.1.0/24 : 203.0.113.0/24 }
		meta l4proto { tcp, udp } masquerade to :5000-6000
		oif lo masquerade random,persistent
		tcp dport 80 jump sub
		oifname "d1" jump deep
		oifname "d2" jump twice
		jump twice
		ip saddr != 198.18.3.0/24 ip protocol icmp masquerade
		ip daddr 198.18.3.0/24 return
		ip daddr 198.18.0.0/31 masquerade
	}
	chain pre {
		type nat hook prerouting priority dstnat;
		tcp dport 8080 dnat to 198.18.0.2:80
		dnat to tcp dport map @m
		iifname vmap { "a" : jump mapped, "b" : goto mapped }
		tcp dport 81 dnat to 198.18.0.2:7000-7010
	}
}
table ip6 shop {
	chain post {
		type nat hook postrouting priority 101;
		ip6 saddr 2001:db8::/61 masquerade random
		meta l4proto udp snat to [2001:db8::1]-[2001:db8::3]:1000-2000
		ip6 daddr 2001:db8::7 snat to 2001:db8::1
	}
}
table inet both {
	chain post {
		type nat hook postrouting priority 90;
		ip daddr 198.18.3.4 udp dport 53 masquerade
		meta nfproto ipv6 masquerade
		meta l4proto sctp masquerade to :1000
		ip saddr 198.18.9.9 snat ip to 203.0.113.7
	}
}
table ip asleep {
	flags dormant;
	chain post { type nat hook postrouting priority 90; masquerade; }
}
table ip plain {
	chain post { type filter hook postrouting priority 90; accept; }
}
`

var readableRules = []string{
	"prerouting -100, ip shop pre: dnat to 198.18.0.2:80 [proto=tcp dport=8080]",
	"prerouting -100, ip shop pre: dnat to … [proto=tcp partial]",
	"prerouting -100, ip shop mapped: redirect [proto=tcp dport=22 partial]",
	"prerouting -100, ip shop pre: dnat to 198.18.0.2:7000-7010 [proto=tcp dport=81 partial]",
	"postrouting 90, inet both post: masquerade [proto=udp dport=53 dst=198.18.3.4/32]",
	"postrouting 90, inet both post: masquerade [src=::/0]",
	"postrouting 90, inet both post: masquerade to :1000 [proto=sctp]",
	"postrouting 90, inet both post: snat ip to 203.0.113.7 [src=198.18.9.9/32]",
	"postrouting 100, ip shop post: masquerade to :1024-2047 fully-random [proto=tcp out=d0]",
	"postrouting 100, ip shop post: snat to 203.0.113.5-203.0.113.9:1000-2000 persistent [proto=udp dport=53 src=198.18.0.0/16 out=d*]",
	"postrouting 100, ip shop post: snat prefix to … [partial]",
	"postrouting 100, ip shop post: masquerade to :5000-6000 [partial]",
	"postrouting 100, ip shop post: masquerade random,persistent [out=lo]",
	"postrouting 100, ip shop sub: snat to 203.0.113.1 [proto=tcp dport=80]",
	"postrouting 100, ip shop deep: masquerade [src=198.18.7.0/24 out=d1]",
	"postrouting 100, ip shop twice: masquerade random [partial]",
	"postrouting 100, ip shop post: masquerade [proto=icmp unless(src=198.18.3.0/24)]",
	"postrouting 100, ip shop post: masquerade [dst=198.18.0.0/31]",
	"postrouting 101, ip6 shop post: masquerade random [src=2001:db8::/61]",
	"postrouting 101, ip6 shop post: snat to [2001:db8::1]-[2001:db8::3]:1000-2000 [proto=udp]",
	"postrouting 101, ip6 shop post: snat to 2001:db8::1 [dst=2001:db8::7/128]",
}

func TestReadNftables(t *testing.T) {
	testutil.NeedFeature(t, testutil.NATPrefix)
	w := newWorld(t)
	w.nft(readable)
	rules := w.rules()
	if d := cmp.Diff(readableRules, describeAll(rules)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	seen := map[string]bool{}
	for _, r := range rules {
		changeable := r.TranslatesSource() && !strings.Contains(r.Text, "…")
		if r.Source != "nftables" || r.Handle == 0 || (r.Target != "") != changeable || r.Target != "" && seen[r.Target] {
			t.Errorf("%s: source %q, handle %d, target %q", describe(r), r.Source, r.Handle, r.Target)
		}
		seen[r.Target] = true
	}
}

// iptablesRules are loaded by iptables-nft and iptables-legacy alike.
var iptablesRules = []string{
	"iptables -N MINE",
	"iptables -N JUMPED",
	"iptables -A POSTROUTING -o d0 -j MASQUERADE --random",
	"iptables -A POSTROUTING -s 198.18.0.0/16 -p tcp -j MASQUERADE --to-ports 1024-2047 --random-fully",
	"iptables -A POSTROUTING -s 198.18.0.0/16 ! -o d0 -p udp --dport 53 -m comment --comment x -j SNAT --to-source 203.0.113.1-203.0.113.4:1000-2000 --random-fully --persistent",
	"iptables -A POSTROUTING -o d+ -p udp --sport 53 -j SNAT --to-source 203.0.113.1",
	"iptables -A POSTROUTING -o d1 -p tcp -j MINE",
	"iptables -A MINE -d 198.18.5.5 -j MASQUERADE",
	"iptables -A MINE -m mark --mark 7 -j RETURN",
	"iptables -A MINE -p tcp -j MASQUERADE",
	"iptables -A POSTROUTING -s 198.18.8.0/24 -g JUMPED",
	"iptables -A JUMPED -j NETMAP --to 203.0.113.0/24",
	"iptables -A POSTROUTING -o d9 -j MASQUERADE",
	"iptables -A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 198.18.0.2:8080",
	"iptables -A PREROUTING -i eth+ -p tcp --dport 81:90 -j REDIRECT --to-ports 3128",
	"iptables -A PREROUTING -d 198.18.5.0/24 -j NETMAP --to 198.18.6.0/24",
	"iptables -A PREROUTING -m addrtype --dst-type LOCAL -j REDIRECT",
	"iptables -N BOTH",
	"iptables -A BOTH -p udp --dport 5353 -j DNAT --to-destination 198.18.0.3:53",
	"iptables -A PREROUTING -i eth0 -j BOTH",
	"iptables -A OUTPUT -d 198.18.9.9 -j BOTH",
	"iptables -A OUTPUT -d 198.18.5.0/25 -j DNAT --to-destination 198.18.0.2",
	"ip6tables -A POSTROUTING -o d0 -p udp -j MASQUERADE --to-ports 100-200",
	"ip6tables -A POSTROUTING -s 2001:db8::/64 -j SNAT --to-source 2001:db8::1-2001:db8::9",
	"ip6tables -A PREROUTING -p tcp --dport 80 -j DNAT --to-destination [2001:db8::2]:8080",
	"ip6tables -A PREROUTING -d 2001:db8::/64 -j NETMAP --to 2001:db8:1::/64",
	"ip6tables -A PREROUTING -p udp -j REDIRECT --to-ports 53",
}

var iptablesRead = []string{
	"prerouting -100, ip nat PREROUTING: dnat to 198.18.0.2:8080 [proto=tcp dport=80]",
	"prerouting -100, ip nat PREROUTING: redirect to :3128 [proto=tcp in=eth* partial]",
	"prerouting -100, ip nat PREROUTING: dnat prefix to 198.18.6.0/24 [dst=198.18.5.0/24]",
	"prerouting -100, ip nat PREROUTING: redirect [local=true]",
	"prerouting -100, ip nat BOTH: dnat to 198.18.0.3:53 [proto=udp dport=5353 in=eth0]",
	"prerouting -100, ip6 nat PREROUTING: dnat to [2001:db8::2]:8080 [proto=tcp dport=80]",
	"prerouting -100, ip6 nat PREROUTING: dnat prefix to 2001:db8:1::/64 [dst=2001:db8::/64]",
	"prerouting -100, ip6 nat PREROUTING: redirect to :53 [proto=udp]",
	"output -100, ip nat BOTH: dnat to 198.18.0.3:53 [proto=udp dport=5353 dst=198.18.9.9/32]",
	"output -100, ip nat OUTPUT: dnat to 198.18.0.2 [dst=198.18.5.0/25]",
	"postrouting 100, ip nat POSTROUTING: masquerade random [out=d0]",
	"postrouting 100, ip nat POSTROUTING: masquerade to :1024-2047 fully-random [proto=tcp src=198.18.0.0/16]",
	"postrouting 100, ip nat POSTROUTING: snat to 203.0.113.1-203.0.113.4:1000-2000 fully-random,persistent [proto=udp dport=53 src=198.18.0.0/16 unless(out=d0)]",
	"postrouting 100, ip nat POSTROUTING: snat to 203.0.113.1 [proto=udp out=d* partial]",
	"postrouting 100, ip nat MINE: masquerade [proto=tcp dst=198.18.5.5/32 out=d1]",
	"postrouting 100, ip nat MINE: masquerade [proto=tcp out=d1 partial]",
	"postrouting 100, ip nat JUMPED: snat prefix to 203.0.113.0/24 [src=198.18.8.0/24]",
	"postrouting 100, ip nat POSTROUTING: masquerade [out=d9 unless(src=198.18.8.0/24)]",
	"postrouting 100, ip6 nat POSTROUTING: masquerade to :100-200 [proto=udp out=d0]",
	"postrouting 100, ip6 nat POSTROUTING: snat to 2001:db8::1-2001:db8::9 [src=2001:db8::/64]",
}

func TestReadIptables(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			for _, line := range iptablesRules {
				words := strings.Fields(line)
				w.run("", append([]string{words[0] + "-" + kind, "-t", "nat"}, words[1:]...)...)
			}
			rules := w.rules()
			if d := cmp.Diff(iptablesRead, describeAll(rules)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			for _, r := range rules {
				// NETMAP is the one that iptables-nft has and natkit does not change.
				changeable := kind == "nft" && r.TranslatesSource() && !strings.Contains(r.Text, "prefix")
				if r.Source != "iptables-"+kind || (r.Target != "") != changeable {
					t.Errorf("%s: source %q, target %q", describe(r), r.Source, r.Target)
				}
			}
		})
	}
}

// TestReadBehindExceptions: packets that a chain of exceptions lets through do not come
// to the rules behind the jump; those that it returns do.
func TestReadBehindExceptions(t *testing.T) {
	w := newWorld(t)
	w.nft(`table ip nat {
	chain inner { ip saddr 198.18.1.0/24 accept; }
	chain exceptions { jump inner; }
	chain back { ip saddr 198.18.2.0/24 return; }
	chain pre {
		type nat hook prerouting priority dstnat;
		jump back
		ip daddr 198.18.0.1 udp dport 53 dnat to 198.18.0.2
		jump exceptions
		ip daddr 198.18.0.1 udp dport 54 dnat to 198.18.0.2
	}
}`)
	want := []string{
		"prerouting -100, ip nat pre: dnat to 198.18.0.2 [proto=udp dport=53 dst=198.18.0.1/32]",
		"prerouting -100, ip nat pre: dnat to 198.18.0.2 [proto=udp dport=54 dst=198.18.0.1/32 partial]",
	}
	if d := cmp.Diff(want, describeAll(w.rules())); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestReadPortBlocks: each client has ports of its own, which only the map knows.
func TestReadPortBlocks(t *testing.T) {
	w := newWorld(t)
	w.nft(`table ip nat {
	chain post {
		type nat hook postrouting priority srcnat;
		ip protocol tcp snat ip to ip saddr map { 198.18.0.2 : 203.0.113.1 . 20000-20511 }
		ip protocol udp snat to ip saddr map { 198.18.0.2 : 203.0.113.1 }
	}
}`)
	want := []string{
		"postrouting 100, ip nat post: snat to 203.0.113.1:20000-20511 [proto=tcp src=198.18.0.2/32]",
		"postrouting 100, ip nat post: snat to 203.0.113.1 [proto=udp src=198.18.0.2/32]",
	}
	if d := cmp.Diff(want, describeAll(w.rules())); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestReadPortsThatDoNotCount: masquerade looks at ports only with the flag, which
// nft sets and this library does not.
func TestReadPortsThatDoNotCount(t *testing.T) {
	w := newWorld(t)
	conn, err := nftables.New(nftables.WithNetNSFd(w.ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: "n", Family: nftables.TableFamilyIPv4})
	chain := conn.AddChain(&nftables.Chain{Name: "c", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Immediate{Register: 1, Data: []byte{4, 0}},
		&expr.Masq{ToPorts: true, RegProtoMin: 1, RegProtoMax: 1},
	}})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if r := w.one("masquerade"); r.FirstPort != 0 {
		t.Errorf("the rule is read as %q", r.Text)
	}
}

// TestReadMakesNoTable: to ask for a table of iptables would make it.
func TestReadMakesNoTable(t *testing.T) {
	w := newWorld(t)
	if rules := w.rules(); rules == nil || len(rules) != 0 {
		t.Errorf("a new namespace has the rules %+v", rules)
	}
	err := w.ns.Do(func() error {
		names, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
		if len(names) > 0 {
			t.Errorf("there are now the tables %q", names)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestReadHere reads the namespace that natkit runs in, which has no handle.
func TestReadHere(t *testing.T) {
	w := newWorld(t)
	w.nft("table ip n {\n chain c {\n type nat hook postrouting priority 100\n masquerade\n }\n }\n")
	want := w.one("masquerade")
	r, err := NAT(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range r.Rules {
		if rule.Target == want.Target {
			t.Error("NAT(nil) returns another namespace's rules")
		}
	}
}
