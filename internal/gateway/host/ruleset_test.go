package host

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/iptables"
	"github.com/natkit/natkit/internal/testutil"
)

// nftRules are rules as people write them for nft, each chain for itself.
const nftRules = `
table inet nat {
	chain post {
		type nat hook postrouting priority srcnat;
		ip saddr 192.168.0.0/16 oifname "eth0" masquerade fully-random
		ip saddr 192.169.0.0/16 oifname "eth0" masquerade fully-random
		ip saddr 10.1.0.0/16 ip daddr != 10.0.0.0/8 oif lo counter snat to 203.0.113.8-203.0.113.15 persistent
		ip6 saddr fd00:1::/64 oifname "eth0" snat to 2001:db8::7
		ip saddr 172.16.0.0/12 meta mark 1 masquerade
		ip saddr 172.16.5.0/24 masquerade
		oifname "eth9" masquerade
	}
	chain pre {
		type nat hook prerouting priority dstnat;
		ip daddr 203.0.113.7 tcp dport 8080 dnat to 192.168.0.2:80 comment "web"
		ip daddr 203.0.113.7 udp dport 5000-5100 dnat to 192.168.0.2
		ip daddr 203.0.113.9 jump sub
		ip daddr 203.0.113.7 tcp dport { 22, 23 } dnat ip to 192.168.0.3
		ip daddr 203.0.113.7 tcp dport 24 dnat to 192.168.0.3
	}
	chain sub { tcp dport 25 dnat ip to 192.168.0.4; }
}
table ip firewalld { chain p { type nat hook postrouting priority 110; ip saddr 192.168.9.0/24 masquerade; }; }
table inet natkit { chain p { type nat hook postrouting priority 120; ip saddr 1.2.3.4 masquerade; }; }
table ip raw { chain p { type filter hook prerouting priority raw; ip daddr 10.0.0.1 notrack; }; }
`

// TestRulesetOfNftables imports rules of nft as the kernel has them.
func TestRulesetOfNftables(t *testing.T) {
	ns := testutil.Namespace(t)
	run(t, ns, nftRules, "nft", "-f", "-")
	set, err := Ruleset(ns)
	if err != nil {
		t.Fatal(err)
	}
	r, err := iptables.Import(set)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rule := range r.Config.NAT {
		got = append(got, gateway.MarshalRule(rule))
	}
	for _, rule := range r.Config.IPv6 {
		got = append(got, "6 "+gateway.MarshalRule(rule))
	}
	for _, n := range r.Notes {
		got = append(got, fmt.Sprintf("%s %d %s: %s", n.Kind, n.Rules, n.Text, n.Reason))
	}
	want := []string{
		"dnat: {on: 203.0.113.7, port: tcp/8080, to: 192.168.0.2:80}",
		"dnat: {on: 203.0.113.7, port: udp/5000-5100, to: 192.168.0.2}",
		"dnat: {on: 203.0.113.9, port: tcp/25, to: 192.168.0.4}",
		"masquerade: {from: 192.169.0.0/16, out: eth0, random: fully}",
		"snat: {from: 10.1.0.0/16, except-to: 10.0.0.0/8, out: lo, to: 203.0.113.8/29}",
		"6 snat: {from: fd00:1::/64, out: eth0, to: 2001:db8::7}",
		"6 masquerade: {out: eth9}",
		"untranslated 1 table ip raw: has rules that keep the tracker off or bound TCP segments, which are imported from the text of iptables-save alone",
		"untranslated 1 inet nat pre: -d 203.0.113.7/32 -p tcp (lookup in a set or map) dnat ip to 192.168.0.3: natkit has no word for the condition (lookup in a set or map)",
		`untranslated 1 inet nat pre: -d 203.0.113.7/32 -p tcp --dports 24 dnat ip to 192.168.0.3: "inet nat pre: -d 203.0.113.7/32 -p tcp (lookup in a set or map) dnat ip to 192.168.0.3", which is not translated, gets some of its packets first`,
		`untranslated 1 inet nat post: -s 192.168.0.0/16 -o eth0 masquerade fully-random: "ip firewalld p: -s 192.168.9.0/24 masquerade", which is firewalld's, would get some of its packets first: natkit's rules come after those of other programs`,
		"untranslated 1 inet nat post: -s 172.16.0.0/12 (one that natkit does not know) masquerade: natkit has no word for the condition (one that natkit does not know)",
		`untranslated 1 inet nat post: -s 172.16.5.0/24 masquerade: "inet nat post: -s 172.16.0.0/12 (one that natkit does not know) masquerade", which is not translated, gets some of its packets first`,
		`untranslated 1 inet nat post: -o eth9 masquerade: "inet nat post: -s 172.16.0.0/12 (one that natkit does not know) masquerade", which is not translated, gets some of its packets first`,
		"left_alone 1 ip firewalld p: -s 192.168.9.0/24 masquerade: is firewalld's",
		"left_alone 1 inet natkit p: -s 1.2.3.4/32 masquerade: is natkit's",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("imported (-want +got):\n%s", diff)
	}
}
