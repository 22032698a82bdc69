package read

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/ruleset"
)

// TestFilter: the rule that would have accepted a packet, below the one that drops it.
func TestFilter(t *testing.T) {
	for _, c := range []struct{ commands, accepts string }{
		{"-A FORWARD -i wan0 -j DROP;-A FORWARD -p tcp --dport 80 -j ACCEPT", "iptables -t filter -A FORWARD -p tcp --dport 80 -j ACCEPT"},
		{"-A FORWARD -i wan0 -j DROP;-A FORWARD -p tcp --dport 81 -j ACCEPT", ""},
		{"-A FORWARD -i wan0 -j DROP;-A FORWARD -j ACCEPT", ""}, // for all, no rule for it
		{"-A FORWARD -p tcp --dport 80 -j ACCEPT;-A FORWARD -i wan0 -j DROP", ""},
	} {
		w := newWorld(t)
		for line := range strings.SplitSeq(c.commands, ";") {
			w.run("", append([]string{"iptables-nft"}, strings.Fields(line)...)...)
		}
		tables, err := Judged(w.ns)
		if err != nil {
			t.Fatal(err)
		}
		p := published("wan0", "198.51.100.7")
		got := ""
		if f := ruleset.Filter(tables, &p, "forward", "postrouting"); f.Accepts != nil {
			got = f.Accepts.Text
		}
		if got != c.accepts {
			t.Errorf("%s: %q, want %q", c.commands, got, c.accepts)
		}
	}
}

// TestDestination: what rules make of the destination of one packet.
func TestDestination(t *testing.T) {
	for _, c := range []struct{ commands, want string }{
		{"-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10:8080", "192.168.1.10:8080"},
		{"-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10", "192.168.1.10:80"},
		{"-t nat -A PREROUTING -i lan0 -p tcp --dport 80 -j DNAT --to-destination 192.168.1.10", ""},
		{"-t nat -A PREROUTING -s 198.51.100.8 -j ACCEPT;-t nat -N X;-t nat -A PREROUTING -p tcp -j X;-t nat -A X -p tcp --dport 80 -j DNAT --to-destination 192.168.1.11", "192.168.1.11:80"},
		{"-t nat -A PREROUTING -s 198.51.100.7 -j ACCEPT;-t nat -A PREROUTING -p tcp -j DNAT --to-destination 192.168.1.11", ""},
		{"-t nat -A PREROUTING -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 192.168.1.11;-t nat -A PREROUTING -p tcp -j DNAT --to-destination 192.168.1.12", ""}, // not known
		{"-t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 8080", "203.0.113.1:8080"},
		{"nft iifname wan0 meta l4proto { tcp, udp } th dport 80 dnat to 192.168.1.10", "192.168.1.10:80"},
		{"nft iifname wan0 meta l4proto { sctp, udp } th dport 80 dnat to 192.168.1.10", ""},
		{"nft iifname wan0 th dport { 80, 443 } dnat to 192.168.1.10", "192.168.1.10:80"},
		{"nft iifname wan0 meta l4proto . th dport { tcp . 80, udp . 53 } dnat to 192.168.1.10", "192.168.1.10:80"},
		{"nft iifname wan0 dnat ip to meta l4proto . th dport map { tcp . 80 : 192.168.1.10 }", ""},
	} {
		w := newWorld(t)
		for line := range strings.SplitSeq(c.commands, ";") {
			if rule, nft := strings.CutPrefix(line, "nft "); nft {
				w.run("table ip lb { chain pre { type nat hook prerouting priority -100; "+rule+"\n}\n}\n", "nft", "-f", "-")
				continue
			}
			w.run("", append([]string{"iptables-nft"}, strings.Fields(line)...)...)
		}
		tables, err := Judged(w.ns)
		if err != nil {
			t.Fatal(err)
		}
		p := &ruleset.Packet{Conn: ruleset.ConnNew, Flags: 2, Packet: nat.Packet{
			Protocol: 6, Src: netip.MustParseAddr("198.51.100.7"), SrcPort: 40000, Dst: netip.MustParseAddr("203.0.113.1"), DstPort: 80, In: "wan0"}}
		got := ""
		if to := ruleset.Destination(tables, "prerouting", p, netip.MustParseAddr("203.0.113.1")); to.IsValid() {
			got = to.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.commands, got, c.want)
		}
	}
}

// TestDeletable: what is printed of a rule is what iptables deletes it by, in both variants.
func TestDeletable(t *testing.T) {
	for _, command := range []string{"iptables-nft", "iptables-legacy"} {
		for _, target := range []string{"NOTRACK", "CT --notrack"} {
			w := newWorld(t)
			w.run("", strings.Fields(command+" -t raw -A PREROUTING -d 10.96.0.10/32 -p udp --dport 53 -j "+target)...)
			w.run("", strings.Fields(strings.Replace(w.only(), "iptables", command, 1))...)
		}
	}
}

// only is how the one rule is deleted.
func (w world) only() (how string) {
	w.t.Helper()
	tables, err := Judged(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, table := range tables {
		table.Describe()
		for _, c := range table.Chains {
			for _, r := range c.Rules {
				how = strings.Replace(r.Text, " -A ", " -D ", 1)
			}
		}
	}
	return how
}

// TestCountedPer: of what a limit has one count each.
func TestCountedPer(t *testing.T) {
	const hash = "-m hashlimit --hashlimit-name a --hashlimit-above 5/sec"
	for rule, want := range map[string]string{
		hash + " --hashlimit-mode dstip":         "(hashlimit per destination)",
		hash + " --hashlimit-mode srcip,dstport": "(hashlimit per source and destination port)",
		hash:                                     "(hashlimit of all together)",
		"-m connlimit --connlimit-above 9":       "(connlimit per source)",
		"-m connlimit --connlimit-above 9 --connlimit-daddr": "(connlimit per destination)",
		"-m limit --limit 5/sec":                             "(limit)",
	} {
		for _, command := range []string{"iptables-nft", "iptables-legacy"} {
			w := newWorld(t)
			w.run("", strings.Fields(command+" -A FORWARD -p tcp "+rule+" -j DROP")...)
			if got := w.only(); !strings.Contains(got, want) {
				t.Errorf("%s %s: %q, want %s", command, rule, got, want)
			}
		}
	}
}
