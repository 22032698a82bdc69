package read

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/testutil"
)

// outcome is what rules do to a packet on its way: "passes", "drops", "part" where that differs among packets
// of a connection, "unsure" where more would have to be known; and "named" where it depends on the source.
func (w *world) outcome(p *ruleset.Packet, hooks ...string) string {
	w.t.Helper()
	tables, err := Judged(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	j := ruleset.Judge(tables, p, hooks...)
	words := map[string]bool{}
	for _, d := range j.Drops {
		word := "drops"
		switch {
		case d.Doubt&ruleset.DoubtPacket != 0:
			word = "unsure"
		case d.Doubt != 0:
			word = "part"
		}
		if d.Limits {
			word += " limits"
		}
		if d.Named {
			word += " named"
		}
		words[word] = true
	}
	if j.Passes {
		words["passes"] = true
	}
	var all []string
	for _, word := range []string{"drops", "drops named", "part", "part limits", "part named", "unsure", "unsure named", "passes"} {
		if words[word] {
			all = append(all, word)
		}
	}
	return strings.Join(all, " ")
}

// web is the first packet of a client to a published port; rules before the translation see port 80.
func web() *ruleset.Packet {
	p := published("wan0", "198.51.100.7")
	p.Src, p.DstPort = netip.Addr{}, 8080
	p.OriginalDst, p.OriginalPort = netip.MustParseAddr("203.0.113.1"), 80
	p.First = &nat.Packet{Protocol: 6, Dst: p.OriginalDst, DstPort: 80, In: "wan0"}
	return &p
}

var through = []string{"ingress", "prerouting", "forward", "postrouting", "egress"}

// TestConditionsIptables: what Judge knows of matches and targets of iptables.
func TestConditionsIptables(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		for _, c := range []struct{ commands, want string }{
			{"-t mangle -A PREROUTING -p tcp --dport 80 -j MARK --set-mark 9;-A FORWARD -m mark --mark 9 -j DROP", "drops"},
			{"-t mangle -A PREROUTING -p tcp --dport 8080 -j MARK --set-mark 9;-A FORWARD -m mark --mark 9 -j DROP", "passes"},
			{"-t mangle -A PREROUTING -j MARK --set-xmark 0x10/0x10;-A FORWARD -m mark ! --mark 0x10/0x10 -j DROP", "passes"},
			{"-t mangle -A PREROUTING -s 198.51.100.0/24 -j MARK --set-mark 9;-A FORWARD -m mark --mark 9 -j DROP", "unsure passes"},
			{"-t mangle -A PREROUTING -j CONNMARK --set-mark 5;-A FORWARD -m connmark --mark 5 -j DROP", "drops"},
			{"-t mangle -A PREROUTING -j CONNMARK --set-mark 5;-t mangle -A PREROUTING -j CONNMARK --restore-mark;-A FORWARD -m mark --mark 5 -j DROP", "drops"},
			{"-A FORWARD -m conntrack --ctorigdstport 80 -j DROP", "drops"},
			{"-A FORWARD -m conntrack --ctorigdstport 8080 -j DROP", "passes"},
			{"-A FORWARD -m conntrack --ctorigdst 203.0.113.0/24 -j DROP", "drops"},
			{"-A FORWARD -m conntrack ! --ctorigdst 203.0.113.0/24 -j DROP", "passes"},
			{"-A FORWARD -m conntrack --ctdir REPLY -j DROP", "passes"},
			{"-A FORWARD -m conntrack --ctstate NEW --ctdir ORIGINAL -j DROP", "drops"},
			{"-A FORWARD -p tcp ! --dport 8080 -j DROP", "passes"},
			{"-A FORWARD -p tcp ! --dport 80 -j DROP", "drops"},
			{"-A FORWARD -p tcp -m multiport ! --dports 80,443 -j DROP", "drops"},
			{"-A FORWARD -m iprange --dst-range 192.168.1.5-192.168.1.50 -j DROP", "drops"},
			{"-A FORWARD -m iprange --dst-range 192.168.1.11-192.168.1.50 -j DROP", "passes"},
			{"-A FORWARD -m iprange ! --src-range 198.51.100.1-198.51.100.9 -j DROP", "unsure passes"},
			{"-A FORWARD -m length --length 1000:65535 -j DROP", "part passes"},
			{"-A FORWARD -m statistic --mode random --probability 0.5 -j DROP", "part passes"},
			{"-A FORWARD -i wan0 -m ttl --ttl-lt 5 -j DROP", "part named passes"},
			{"-P FORWARD DROP;-A FORWARD -p tcp -m limit --limit 1/s -j ACCEPT", "part limits passes"},
			{"-P FORWARD DROP;-A FORWARD -s 198.51.100.0/24 -j ACCEPT", "unsure passes"},
			{"-N X;-A X -j DROP;-A FORWARD -i wan0 -j X", "drops named"},
			{"-t raw -A PREROUTING -p tcp --dport 80 -j DROP", "drops"},
			{"-t raw -A PREROUTING -p tcp --dport 8080 -j DROP", "passes"},
			{"-t mangle -A POSTROUTING -p tcp --dport 8080 -j DROP", "drops"},
			{"-t mangle -A PREROUTING -p tcp --dport 80 -j TTL --ttl-set 1", "drops"},
			{"-t mangle -A PREROUTING -p tcp --dport 80 -j TTL --ttl-set 64", "passes"},
			{"-t mangle -A POSTROUTING -p tcp --dport 8080 -j TTL --ttl-set 1", "passes"},
			{"-A FORWARD -p tcp --tcp-option 8 -j DROP", "part passes"},
			{"-A FORWARD -p tcp -m string --string GET --algo bm -j DROP", "part passes"},
			{"-A FORWARD -p icmp -j DROP", "passes"},
			{"-A FORWARD -p tcp --tcp-flags ALL ACK -j DROP", "passes"},
		} {
			w := newWorld(t)
			for line := range strings.SplitSeq(c.commands, ";") {
				w.run("", append([]string{"iptables-" + kind}, strings.Fields(line)...)...)
			}
			if got := w.outcome(web(), through...); got != c.want {
				t.Errorf("%s: %s: %q, want %q", kind, c.commands, got, c.want)
			}
		}
	}
}

// TestConditionsNftables: the same of nf_tables, at interfaces and bridges, too.
func TestConditionsNftables(t *testing.T) {
	const forward = "table inet t { chain c { type filter hook forward priority 0; "
	for _, c := range []struct{ name, rules, want string }{
		{"a mark", "table inet t { chain m { type filter hook prerouting priority mangle; tcp dport 80 meta mark set 7; }; chain c { type filter hook forward priority 0; meta mark 7 drop; }; }", "drops"},
		{"a mark of others", "table inet t { chain m { type filter hook prerouting priority mangle; tcp dport 81 meta mark set 7; }; chain c { type filter hook forward priority 0; meta mark 7 drop; }; }", "passes"},
		{"a connection's mark", forward + "ct mark 0 drop; }; }", "drops"},
		{"a mark that is copied", forward + "ct mark set 3; meta mark set ct mark; meta mark 3 drop; }; }", "drops"},
		{"the first destination", forward + "ct original ip daddr 203.0.113.1 tcp dport 8080 ct original proto-dst 80 drop; }; }", "drops"},
		{"another one", forward + "tcp dport 8080 ct original proto-dst 81 drop; }; }", "passes"},
		{"answers", forward + "ct direction reply drop; }; }", "passes"},
		{"by chance", forward + "numgen random mod 3 == 0 drop; }; }", "part passes"},
		{"by length", forward + "meta length > 1000 drop; }; }", "part passes"},
		{"by TTL", forward + "ip ttl < 5 drop; }; }", "part passes"},
		{"more than a rate", forward + "limit rate over 5/second drop; }; }", "part limits passes"},
		{"at the interface", "table netdev t { chain c { type filter hook ingress device wan0 priority 0; tcp dport 80 drop; }; }", "drops"},
		{"at another interface", "table netdev t { chain c { type filter hook ingress device lan0 priority 0; tcp dport 80 drop; }; }", "passes"},
		{"ARP at the interface", "table netdev t { chain c { type filter hook ingress device wan0 priority 0; meta protocol arp drop; }; }", "passes"},
		{"on its way out", "table netdev t { chain c { type filter hook egress device lan0 priority 0; ip daddr 192.168.1.10 drop; }; }", "drops"},
		{"a later chain", "table inet t { chain a { type filter hook forward priority 0; accept; }; chain b { type filter hook forward priority 1; drop; }; }", "drops"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.rules, "hook egress") {
				testutil.NeedFeature(t, testutil.Egress)
			}
			w := newWorld(t)
			w.run("", "ip", "link", "add", "wan0", "type", "veth", "peer", "name", "lan0")
			w.nft(c.rules)
			if got := w.outcome(web(), through...); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestConditionsOfAnswers: what rules ask of answers, of types of ICMP, and of frames.
func TestConditionsOfAnswers(t *testing.T) {
	first := web()
	answer := first.Answer(ruleset.Packet{Conn: ruleset.ConnEstablished | ruleset.ConnDNAT, Flags: 0x12, Packet: nat.Packet{
		Protocol: 6, Src: first.Dst, SrcPort: 8080, In: "lan0", Out: "wan0", OriginalDst: first.OriginalDst, OriginalPort: 80}})
	echo := &ruleset.Packet{ICMP: true, Type: 8, Conn: ruleset.ConnNew, Packet: nat.Packet{Protocol: 1, In: "lan0", Out: "wan0"}}
	solicitation := &ruleset.Packet{V6: true, ICMP: true, Type: 135, Conn: ruleset.ConnUntracked, Packet: nat.Packet{Protocol: 58, In: "lan0"}}
	for _, c := range []struct {
		name, rules string
		packet      *ruleset.Packet
		hook, want  string
	}{
		{"answers", "table inet t { chain c { type filter hook forward priority 0; ct direction reply drop; }; }", answer, "forward", "drops"},
		{"flags", "table inet t { chain c { type filter hook forward priority 0; tcp flags & (syn | ack) == (syn | ack) drop; }; }", answer, "forward", "drops"},
		{"to the published port", "table inet t { chain c { type filter hook forward priority 0; tcp sport 8080 ct original proto-dst 80 drop; }; }", answer, "forward", "drops"},
		{"echo", "table ip t { chain c { type filter hook forward priority 0; icmp type echo-request drop; }; }", echo, "forward", "drops"},
		{"echo replies", "table ip t { chain c { type filter hook forward priority 0; icmp type echo-reply drop; }; }", echo, "forward", "passes"},
		{"all but echo", "table ip t { chain c { type filter hook forward priority 0; icmp type != echo-request drop; }; }", echo, "forward", "passes"},
		{"types in a set", "table inet t { chain c { type filter hook input priority 0; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }; }", solicitation, "input", "passes"},
		{"other types in a set", "table inet t { chain c { type filter hook input priority 0; policy drop; icmpv6 type { echo-request, nd-neighbor-advert } accept; }; }", solicitation, "input", "drops"},
		{"frames", "table bridge t { chain c { type filter hook forward priority 0; policy drop; ether type arp accept; }; }", echo, "bridge forward", "drops"},
		{"frames of ARP", "table bridge t { chain c { type filter hook forward priority 0; ether type arp drop; }; }", echo, "bridge forward", "passes"},
		{"frames of IP", "table bridge t { chain c { type filter hook forward priority 0; ether type ip drop; }; }", echo, "bridge forward", "drops"},
	} {
		w := newWorld(t)
		w.nft(c.rules)
		if got := w.outcome(c.packet, c.hook); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	w := newWorld(t)
	w.run("", "ip6tables-nft", "-A", "INPUT", "-p", "icmpv6", "--icmpv6-type", "135", "-j", "DROP")
	if got := w.outcome(solicitation, "input"); got != "drops" {
		t.Errorf("ip6tables: %q", got)
	}
}

// TestConditionsOfNow: elements that expire count as long as they are there, if the kernel says how many
// there are.
func TestConditionsOfNow(t *testing.T) {
	testutil.NeedRoot(t)
	testutil.NeedFeature(t, testutil.SetCount)
	w := newWorld(t)
	w.nft("table inet t { set s { type inet_service; flags timeout; elements = { 8080 timeout 1h }; }; chain c { type filter hook forward priority 0; tcp dport @s drop; }; }")
	if got := w.outcome(web(), through...); got != "drops" {
		t.Errorf("%q", got)
	}
}
