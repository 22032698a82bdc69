package read

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// audited compares the rules with each other. The server is behind lan0.
func (w world) audited() *snapshot.Audit {
	w.t.Helper()
	tables, err := Judged(w.ns)
	if err != nil {
		w.t.Fatal(err)
	}
	return ruleset.Audit(tables, func(netip.Addr) string { return "lan0" })
}

// TestAuditShadowed: which rules can never match, by the part of their text that names them.
func TestAuditShadowed(t *testing.T) {
	const dnat = "-t nat -A PREROUTING -p tcp --dport 80 -j DNAT --to 192.168.1.10"
	for _, c := range []struct{ name, commands, want string }{
		{"a wider one before", "-t nat -A PREROUTING -p tcp -j DNAT --to 192.168.1.11;" + dnat, "--dport 80"},
		{"behind it", dnat + ";-t nat -A PREROUTING -p tcp -j DNAT --to 192.168.1.11", ""},
		{"the same again", dnat + ";" + dnat, ""},
		{"accept", "-t nat -A PREROUTING -p tcp -m multiport --dports 79:81 -j ACCEPT;" + dnat, "--dport 80"},
		{"some of it", "-t nat -A PREROUTING -p tcp -s 198.51.100.0/24 -j ACCEPT;" + dnat, ""},
		{"in a chain", "-t nat -N X;-t nat -A X -j ACCEPT;-t nat -A PREROUTING -j X;" + dnat, "--dport 80"},
		{"returned before", "-t nat -N X;-t nat -A X -p tcp --dport 80 -j RETURN;-t nat -A X -j ACCEPT;-t nat -A PREROUTING -j X;" + dnat, ""},
		{"others returned", "-t nat -N X;-t nat -A X -p udp -j RETURN;-t nat -A X -j ACCEPT;-t nat -A PREROUTING -j X;" + dnat, "--dport 80"},
		{"within a chain", "-t nat -N X;-t nat -A X -p tcp -j RETURN;-t nat -A X -p tcp --dport 80 -j DNAT --to 192.168.1.10;-t nat -A PREROUTING -j X", "--dport 80"},
		{"gone to another chain", "-t nat -N X;-t nat -A X -p udp -j ACCEPT;-t nat -A PREROUTING -g X;" + dnat, ""},
		{"a mark", "-t nat -A PREROUTING -p tcp -m mark --mark 7 -j ACCEPT;" + dnat, ""},
		{"by chance", "-t nat -A PREROUTING -p tcp -m statistic --mode random --probability 0.5 -j DNAT --to 192.168.1.11;" + dnat, ""},
		{"of two ways one is open", "-t nat -N X;-t nat -A X -p tcp --dport 80 -j DNAT --to 192.168.1.10;-t nat -A PREROUTING -i a -j ACCEPT;-t nat -A PREROUTING -i a -j X;-t nat -A PREROUTING -i b -j X", ""},
		{"of Docker", "-t nat -N DOCKER;-t nat -A PREROUTING -p tcp -j DNAT --to 192.168.1.11;-t nat -A PREROUTING -j DOCKER;-t nat -A DOCKER -p tcp --dport 80 -j DNAT --to 172.17.0.2", ""},
		{"masquerade before SNAT", "-t nat -A POSTROUTING -o wan0 -j MASQUERADE;-t nat -A POSTROUTING -s 192.168.1.0/24 -o wan0 -j SNAT --to 203.0.113.7", "SNAT"},
	} {
		for _, kind := range []string{"nft", "legacy"} {
			w := newWorld(t)
			for line := range strings.SplitSeq(c.commands, ";") {
				w.run("", append([]string{"iptables-" + kind}, strings.Fields(line)...)...)
			}
			got := w.audited().Shadowed
			if (len(got) == 1) != (c.want != "") || len(got) == 1 && !strings.Contains(got[0].Text, c.want) {
				t.Errorf("%s by %s: %+v, want %q", c.name, kind, got, c.want)
			}
		}
	}
	for commands, alike := range map[string]bool{
		dnat + ";" + dnat + "1": true,
		"-t nat -A PREROUTING -p tcp -j DNAT --to 192.168.1.11;" + dnat: false,
	} {
		w := newWorld(t)
		for line := range strings.SplitSeq(commands, ";") {
			w.run("", append([]string{"iptables-nft"}, strings.Fields(line)...)...)
		}
		if got := w.audited().Shadowed; len(got) != 1 || got[0].Alike != alike {
			t.Errorf("%s: %+v, alike %t wanted", commands, got, alike)
		}
	}
	w := newWorld(t)
	w.nft(`table inet a { chain c { type nat hook postrouting priority 90; oifname "wan0" accept; oifname "wan1" masquerade; }; }
		table ip b { chain c { type nat hook postrouting priority 100; oifname "wan0" masquerade; oifname "wan1" snat to 203.0.113.7; }; }
		table ip6 c { chain c { type nat hook postrouting priority 100; oifname "wan2" masquerade; }; }
		table ip d { chain c { type nat hook postrouting priority 101; oifname "wan2" snat to 203.0.113.7; }; }`)
	var got []string
	for _, s := range w.audited().Shadowed {
		got = append(got, s.Text)
	}
	// accept ends one chain only, a translation all; another family is another packet.
	if d := cmp.Diff([]string{"ip b c: oifname wan1 snat to 203.0.113.7"}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestAuditUntracked: what is exempt from tracking in which direction.
func TestAuditUntracked(t *testing.T) {
	const dnat, masquerade = "-t nat -A PREROUTING -i wan0 -p tcp --dport 80 -j DNAT --to 192.168.1.10:8080", "-t nat -A POSTROUTING -o wan0 -j MASQUERADE"
	const raw = "-t raw -A PREROUTING "
	for _, c := range []struct{ name, commands, want string }{
		{"answers", dnat + ";" + raw + "-i lan0 -p tcp --sport 8080 -j CT --notrack", "dnat answers tcp 8080"},
		{"answers of another port", dnat + ";" + raw + "-p tcp --sport 8081 -j CT --notrack", ""},
		{"answers by another interface", dnat + ";" + raw + "-i wan0 -p tcp --sport 8080 -j CT --notrack", ""},
		{"what comes in", dnat + ";" + raw + "-p tcp --dport 80 -j CT --notrack", "dnat"},
		{"SYNs, for SYNPROXY", dnat + ";" + raw + "-p tcp --dport 80 --syn -j CT --notrack", "dnat SYNs"},
		{"unless accepted before", dnat + ";" + raw + "-s 198.51.100.0/24 -j ACCEPT;" + raw + "-p tcp --dport 80 -j CT --notrack", ""},
		{"behind the tracker", dnat + ";-t mangle -A PREROUTING -p tcp --dport 80 -j ACCEPT", ""},
		{"a name server beside", masquerade + ";" + raw + "-p udp --dport 53 -j CT --notrack;-t raw -A OUTPUT -p udp --sport 53 -j CT --notrack", "masquerade questions, back by 1"},
		{"questions, and no answers", masquerade + ";" + raw + "-p udp --dport 53 -j CT --notrack", "masquerade questions, back by 0"},
		{"questions that get no answer", masquerade + ";" + raw + "-p udp --dport 514 -j CT --notrack", ""},
		{"questions of the outside", masquerade + ";" + raw + "-i wan0 -p udp --dport 53 -j CT --notrack", ""},
		{"both directions", masquerade + ";" + raw + "-p udp --dport 53 -j CT --notrack;" + raw + "-p udp --sport 53 -j CT --notrack", "masquerade questions, back by 1"},
		{"a part of the answers", masquerade + ";" + raw + "-p tcp --sport 443 -j CT --notrack", "masquerade part answers tcp 443"},
		{"all that comes in by the outside", masquerade + ";" + raw + "-i wan0 -j CT --notrack", "masquerade answers  0"},
		{"a zone for the answers", dnat + ";" + raw + "-i lan0 -j CT --zone 5", "dnat zone answers tcp 8080"},
		{"a zone for what comes in", dnat + ";" + raw + "-i wan0 -j CT --zone 5", "dnat zone answers tcp 8080"},
		{"a zone for what comes in, and its answers in none", dnat + ";" + raw + "-i wan0 -j CT --zone-orig 5", ""},
		{"a zone for both", dnat + ";" + raw + "-i lan0 -j CT --zone 5;" + raw + "-i wan0 -j CT --zone 5", ""},
		{"a zone for some of the answers", dnat + ";" + raw + "-i lan0 -d 198.51.100.0/24 -j CT --zone 5", ""},
		{"a zone elsewhere", dnat + ";" + raw + "-i tenant0 -j CT --zone 5", ""},
		{"all", masquerade + ";" + raw + "-j CT --notrack", "masquerade"},
	} {
		for _, kind := range []string{"nft", "legacy"} {
			w := newWorld(t)
			for line := range strings.SplitSeq(c.commands, ";") {
				w.run("", append([]string{"iptables-" + kind}, strings.Fields(line)...)...)
			}
			var got string
			for _, u := range w.audited().Untracked {
				got += u.Kind
				if u.Questions {
					got += " questions, back by " + strconv.Itoa(len(u.Back))
				}
				if u.Part {
					got += " part"
				}
				if u.SYNs {
					got += " SYNs"
				}
				if u.OtherZone {
					got += " zone"
				}
				if u.Answers {
					got += " answers " + u.Protocol + " " + strconv.Itoa(int(u.FirstPort))
				}
			}
			if got != c.want {
				t.Errorf("%s by %s: %q, want %q", c.name, kind, got, c.want)
			}
		}
	}
}

// TestAuditZones: zones by nftables.
func TestAuditZones(t *testing.T) {
	for rule, want := range map[string]int{
		`iifname "lan0" ct zone set 5`: 1, `iifname "lan0" ct original zone set 5`: 0, `iifname "lan0" ct reply zone set 5`: 0,
		`iifname "wan0" ct zone set 5`: 1, `iifname "wan0" ct original zone set 5`: 0, `iifname "wan0" ct reply zone set 5`: 1, `ct zone set 5`: 0,
	} {
		w := newWorld(t)
		w.nft(`table ip t { chain raw { type filter hook prerouting priority -300; ` + rule + `; };
			chain pre { type nat hook prerouting priority -100; iifname "wan0" tcp dport 80 dnat to 192.168.1.10:8080; }; }`)
		if got := w.audited().Untracked; len(got) != want || want == 1 && !got[0].OtherZone {
			t.Errorf("%s: %+v", rule, got)
		}
	}
}

// TestAuditRefusals: which rules refuse for a reason, with their counters.
func TestAuditRefusals(t *testing.T) {
	w := newWorld(t)
	w.run("", "iptables-nft", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
	w.run("", "iptables-nft", "-A", "FORWARD", "-c", "5", "6", "-p", "tcp", "--syn", "-m", "connlimit", "--connlimit-above", "9", "-j", "REJECT")
	w.run("", "iptables-nft", "-A", "INPUT", "-m", "limit", "--limit", "9/s", "-j", "DROP")
	w.run("", "iptables-nft", "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
	w.run("", "iptables-nft", "-A", "FORWARD", "-c", "4", "6", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
	w.run("", "iptables-nft", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
	w.run("", "iptables-nft", "-N", "KUBE-SERVICES")
	w.run("", "iptables-nft", "-A", "KUBE-SERVICES", "-d", "10.96.0.10", "-m", "comment", "--comment", "a/b:c has no endpoints", "-j", "REJECT")
	w.nft(`table inet t { set m { type ipv4_addr; flags dynamic; }
		chain c { type filter hook forward priority 0; limit rate over 1/second counter packets 7 bytes 8 drop; limit rate 1/second accept; tcp dport 80 drop; ct state invalid counter packets 3 bytes 9 drop;
		add @m { ip saddr limit rate over 9/second } counter packets 9 bytes 9 drop; ct count over 9 reject; }; }`)
	var got []string
	for _, r := range w.audited().Refusals {
		counter := "-"
		if r.Counted {
			counter = strconv.FormatUint(r.Packets, 10)
		}
		got = append(got, r.Why+" "+counter)
	}
	if d := cmp.Diff([]string{"limit 5", "invalid 4", "no-endpoints 0", "limit 7", "invalid 3", "limit 9", "limit -"}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
