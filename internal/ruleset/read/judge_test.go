package read

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"

	"github.com/natkit/natkit/internal/testutil"
)

// judged asks the forward chains about a new connection to a published port: "passes", the
// places that drop it, or both where that is not known.
func (w *world) judged(p ruleset.Packet) string {
	w.t.Helper()
	tables, err := Judged(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	var words []string
	j := ruleset.Judge(tables, &p, "forward")
	for _, d := range j.Drops {
		words = append(words, d.Text())
	}
	if j.Passes {
		words = append(words, "passes")
	}
	return strings.Join(words, " | ")
}

// published is the first packet of a client to a server behind a DNAT.
func published(in, from string) ruleset.Packet {
	p := ruleset.Packet{Conn: ruleset.ConnNew | ruleset.ConnDNAT, Flags: 0x02, Packet: nat.Packet{
		Protocol: 6, Dst: netip.MustParseAddr("192.168.1.10"), DstPort: 80, SrcPort: 40000, In: in, Out: "lan0",
	}}
	if from != "" {
		p.Src = netip.MustParseAddr(from)
	}
	return p
}

func TestJudgeIptables(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		for _, c := range []struct{ commands, in, from, want string }{
			{"-P FORWARD DROP", "wan0", "", "iptables -t filter -P FORWARD DROP"},
			{"-P FORWARD DROP;-A FORWARD -i lan0 -o wan0 -j ACCEPT;-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "wan0", "", "iptables -t filter -P FORWARD DROP"},
			{"-P FORWARD DROP;-A FORWARD -m conntrack --ctstate NEW -j ACCEPT", "wan0", "", "passes"},
			{"-P FORWARD DROP;-A FORWARD -m conntrack ! --ctstate NEW -j ACCEPT", "wan0", "", "iptables -t filter -P FORWARD DROP"},
			{"-P FORWARD DROP;-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT", "wan0", "", "passes"},
			{"-P FORWARD DROP;-A FORWARD -m state --state ESTABLISHED -j ACCEPT", "wan0", "", "iptables -t filter -P FORWARD DROP"},
			{"-P FORWARD DROP;-A FORWARD -s 198.51.100.0/24 -j ACCEPT", "wan0", "", "iptables -t filter -P FORWARD DROP | passes"},
			{"-P FORWARD DROP;-A FORWARD -s 198.51.100.0/24 -j ACCEPT", "wan0", "198.51.100.7", "passes"},
			{"-P FORWARD DROP;-A FORWARD ! -s 198.51.100.0/24 -j ACCEPT", "wan0", "198.51.100.7", "iptables -t filter -P FORWARD DROP"},
			{"-P FORWARD DROP;-A FORWARD -i wan0 -j ACCEPT", "", "", "iptables -t filter -P FORWARD DROP | passes"},
			{"-A FORWARD -p tcp -m multiport --dports 79:81,443 -j REJECT", "wan0", "", "iptables -t filter -A FORWARD -p tcp -m multiport --dports 79:81,443 -j REJECT"},
			{"-N X;-A X -d 192.168.1.10 -j DROP;-A X -j RETURN;-A FORWARD -j X", "wan0", "", "iptables -t filter -A X -d 192.168.1.10/32 -j DROP"},
			{"-N X;-A X -d 192.168.1.10 -j RETURN;-A X -j DROP;-A FORWARD -j X", "wan0", "", "passes"},
			{"-N X;-A X -p udp -j RETURN;-A FORWARD -g X;-A FORWARD -j DROP", "wan0", "", "passes"},
			{"-A FORWARD -m limit --limit 1/s -j ACCEPT;-A FORWARD -j DROP", "wan0", "", "iptables -t filter -A FORWARD -j DROP | passes"},
			{"-A FORWARD -p tcp --syn -j DROP", "wan0", "", "iptables -t filter -A FORWARD -p tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP"},
			{"-A FORWARD -p tcp ! --syn -j DROP", "wan0", "", "passes"},
			{"-t mangle -A FORWARD -i wan0 -j DROP", "wan0", "", "iptables -t mangle -A FORWARD -i wan0 -j DROP"},
		} {
			w := newWorld(t)
			for line := range strings.SplitSeq(c.commands, ";") {
				w.run("", append([]string{"iptables-" + kind}, strings.Fields(line)...)...)
			}
			want := c.want
			if kind == "legacy" {
				want = strings.Replace(want, "iptables ", "iptables-legacy ", 1)
			}
			if got := w.judged(published(c.in, c.from)); got != want {
				t.Errorf("%s: %s: %q, want %q", kind, c.commands, got, want)
			}
		}
	}
}

func TestJudgeNftables(t *testing.T) {
	const base = "type filter hook forward priority 0; "
	for _, c := range []struct{ name, rules, want string }{
		{"policy", "policy drop; ct state established,related accept; iifname \"lan0\" accept", "policy"},
		{"states in a set", "policy drop; ct state { established, related } accept", "policy"},
		{"new in a set", "policy drop; ct state { new, related } accept", "passes"},
		{"one state", "policy drop; ct state new accept", "passes"},
		{"status", "policy drop; ct status dnat accept", "passes"},
		{"not translated", "ct status dnat accept; drop", "passes"},
		{"state map", "ct state vmap { established : accept, related : accept, new : drop }", "rule"},
		{"state map without it", "policy drop; ct state vmap { established : accept, invalid : drop }; tcp dport 80 accept", "passes"},
		{"ports in a set", "policy drop; tcp dport { 22, 80, 8000-8010 } accept", "passes"},
		{"other ports", "policy drop; tcp dport { 22, 443, 8000-8010 } accept", "policy"},
		{"none of the ports", "tcp dport != { 22, 443 } drop", "rule"},
		{"interfaces in a set", "policy drop; iifname { \"wan0\", \"wan1\" } oifname \"lan0\" accept", "passes"},
		{"address and port", "policy drop; ip daddr . tcp dport { 192.168.1.10 . 80, 192.168.1.11 . 81 } accept", "passes"},
		{"another address and port", "policy drop; ip daddr . tcp dport { 192.168.1.10 . 81, 192.168.1.11 . 80 } accept", "policy"},
		{"interface map", "policy drop; iifname vmap { \"wan0\" : jump sub, \"lan0\" : accept }", "rule"},
		{"interface map with one for all else", "iifname vmap { \"lan0\" : accept, * : drop }", "rule | passes"},
		{"prefixes", "policy drop; ip daddr { 192.168.0.0/23, 10.0.0.0/8 } accept", "passes"},
		{"sources that are not known", "policy drop; ip saddr { 198.51.100.0/24 } accept", "policy | passes"},
		{"a limit", "limit rate over 10/second drop", "rule | passes"},
		{"a mark", "meta mark 7 drop", "passes"},
		{"IPv6", "policy drop; meta nfproto ipv6 accept", "policy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.rules, "* :") {
				testutil.NeedFeature(t, testutil.OtherElement)
			}
			w := newWorld(t)
			w.nft("table inet t {\n chain sub { tcp dport 80 drop; }\n chain c { " + base + c.rules + "; }\n}")
			got := strings.ReplaceAll(w.judged(published("wan0", "")), "inet t c: policy drop", "policy")
			for _, part := range strings.Split(got, " | ") {
				if strings.HasPrefix(part, "inet t ") {
					got = strings.Replace(got, part, "rule", 1)
				}
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestCounters: a rule's counter counts what its conditions are met by.
func TestCounters(t *testing.T) {
	w := newWorld(t)
	w.nft(`table ip t {
	chain c {
		type filter hook output priority 0;
		counter packets 7 bytes 8 drop
		ip daddr 198.18.0.9 counter packets 9 bytes 9 drop
		counter packets 11 bytes 8 ip daddr 198.18.0.9 drop
		drop
	}
}`)
	tables, err := Judged(w.ns)
	if err != nil {
		t.Fatal(err)
	}
	type count struct {
		Packets uint64
		Counted bool
	}
	var got []count
	for _, r := range tables[0].Chains[0].Rules {
		got = append(got, count{r.Packets, r.Counted})
	}
	if d := cmp.Diff([]count{{7, true}, {9, true}, {}, {}}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for _, kind := range []string{"nft", "legacy"} {
		w := newWorld(t)
		w.run("", "iptables-"+kind, "-A", "OUTPUT", "-c", "5", "6", "-j", "DROP")
		if tables, err = Judged(w.ns); err != nil {
			t.Fatal(err)
		}
		var rule *ruleset.Rule
		for _, table := range tables {
			for _, c := range table.Chains {
				if c.Name == "OUTPUT" && table.Name == "filter" {
					rule = c.Rules[0]
				}
			}
		}
		if rule == nil || rule.Packets != 5 || !rule.Counted {
			t.Errorf("%s: %+v", kind, rule)
		}
	}
}
