package ebpf

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
)

// testHost has two interfaces outside and two inside.
func testHost() gateway.Facts {
	at := func(index int, name string, addresses ...string) gateway.Interface {
		i := gateway.Interface{Name: name, Index: index, Up: true, MTU: 1500}
		for _, a := range addresses {
			i.Addresses = append(i.Addresses, netip.MustParsePrefix(a))
		}
		return i
	}
	return gateway.Facts{Known: true, Sysctls: map[string]string{"net.ipv4.ip_local_port_range": "32768\t60999"},
		Local: []netip.Prefix{netip.MustParsePrefix("203.0.113.11/32")},
		Interfaces: []gateway.Interface{at(2, "wan0", "203.0.113.1/24", "203.0.113.2/24", "2001:db8::1/64"), at(3, "wan1", "198.18.0.1/24"),
			at(4, "lan0", "10.0.0.1/24", "fd00::1/64"), at(5, "lan1", "10.0.1.1/24")}}
}

func planOf(t testing.TB, text string, facts gateway.Facts) *gateway.Plan {
	t.Helper()
	f, err := gateway.Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := gateway.Compile(&f.Config, facts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestClaim: of each rule of a file whether programs carry it out, and otherwise a part of the reason.
func TestClaim(t *testing.T) {
	const yes = ""
	facts := testHost()
	facts.Local = append(facts.Local, netip.MustParsePrefix("203.0.113.8/29"), netip.MustParsePrefix("203.0.113.32/27"))
	for _, tt := range []struct {
		name, words string
		rules, want []string
	}{
		{name: "fixed", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "static: {inside: 10.0.0.3, outside: 203.0.113.9, hairpin: on}",
			"static: {inside: 10.0.1.2, outside: 203.0.113.32}",
			"dnat: {on: 203.0.113.12, port: tcp/80, to: \"10.0.0.9:8080\"}", "dnat: {on: 203.0.113.11, port: udp/5000-5003, to: \"10.0.0.9:6000-6003\", hairpin: on}", "dnat: {on: 203.0.113.13, to: 10.0.0.10}",
			"dnat: {on: 203.0.113.12, port: [tcp/22, udp/53, sctp/7], to: 10.0.0.11}"},
			want: []string{yes, yes, yes, yes, yes, yes, yes}},
		{name: "stateless", rules: []string{"static: {inside: 10.0.0.4, outside: 203.0.113.10, stateless: on}", "netmap: {inside: 10.0.1.16/28, outside: 203.0.113.48/28, stateless: on}", "static: {inside: 10.0.0.2, outside: 203.0.113.8}",
			"static: {inside: 10.0.0.3, outside: 203.0.113.11, hairpin: on}"}, want: []string{yes, yes, yes, "it is for hosts inside, too"}},
		{name: "of connections", rules: []string{"masquerade: {from: 10.0.0.0/24}", "snat: {from: 10.0.1.0/24, to: 203.0.113.9}", "notrack: {on: 203.0.113.2, port: udp/53}"},
			want: []string{"only the tracker", "only the tracker", "for the tracker alone"}},
		{name: "a prefix", rules: []string{"netmap: {inside: 10.0.1.0/28, outside: 203.0.113.32/28}", "static: {inside: 10.0.1.2, outside: 203.0.113.34}", "static: {inside: 10.0.1.3, outside: 203.0.113.60}"}, want: []string{"answer by nat[2]", "answer by nat[0]", "answer by nat[0]"}},
		{name: "conditions", rules: []string{"dnat: {on: 203.0.113.8, port: tcp/1, from: 198.51.100.0/24, to: 10.0.0.2}", "dnat: {on: 203.0.113.8, port: tcp/2, except-from: 198.51.100.0/24, to: 10.0.0.2}",
			"dnat: {on: 203.0.113.8, port: tcp/3, mark: 0x10, to: 10.0.0.2}", "dnat: {on: 203.0.113.8, port: tcp/4, dscp: ef, to: 10.0.0.2}", "dnat: {on: 203.0.113.8, port: tcp/5, utc-days: mon, to: 10.0.0.2}",
			"static: {inside: 10.0.0.4, outside: 203.0.113.9, port: tcp/80}", "dnat: {on: any, in: lan, port: tcp/80, to: 10.0.1.5}"},
			want: []string{"from 198.51.100.0/24", "except from", "mark 0x10", "dscp ef", "utc-days mon", "tcp/80", "all of 0.0.0.0/0"}},
		{name: "actions", rules: []string{"dnat: {on: 203.0.113.8, port: tcp/1, to: [10.0.0.2, 10.0.0.3]}", "dnat: {on: 203.0.113.8, port: tcp/2, to: \":3128\"}", "{dnat: {on: 203.0.113.8, port: tcp/3, to: 10.0.0.4}, log: on}",
			"dnat: {on: 203.0.113.8, port: tcp/5-6, to: \"10.0.0.5:80\"}", "dnat: {on: 203.0.113.8, port: udplite/5, to: 10.0.0.6}", "dnat: {on: 203.0.113.8, port: sctp/5, to: \"10.0.0.7:6\"}",
			"dnat: {on: 203.0.113.8, port: tcp/1000-9000, to: 10.0.0.8}", "static: {inside: 10.0.0.9, outside: 203.0.113.9, in: lan0}"},
			want: []string{"several hosts", "gateway itself", "log is", "several ports", "udplite", "SCTP", "more than 4096", "in by lan0, out by wan0, wan1"}},
		{name: "an address that masquerade gives", rules: []string{"masquerade: {from: 10.0.0.0/24, out: wan0}", "dnat: {on: 203.0.113.1, port: tcp/8443, to: 10.0.0.2}", "static: {inside: 10.0.0.3, outside: 203.0.113.2}"},
			want: []string{"only", "nat[0] masquerade may give 203.0.113.1 tcp port 8443 to another connection", yes}},
		{name: "bounded", rules: []string{"masquerade: {from: 10.0.0.0/24, ports: 40000-50000}", "dnat: {on: 203.0.113.1, port: tcp/8443, to: 10.0.0.2}", "dnat: {on: 203.0.113.1, port: tcp/33000, to: 10.0.0.2}", "dnat: {on: 203.0.113.1, port: icmp, to: 10.0.0.2}"},
			want: []string{"only", yes, "ip_local_port_range 32768-60999", "answers to its own connections"}},
		{name: "a pool", rules: []string{"snat: {from: 10.0.0.0/24, to: 203.0.113.8-203.0.113.9, ports: 1024-65535}", "static: {inside: 10.0.0.2, outside: 203.0.113.9}", "dnat: {on: 203.0.113.8, port: tcp/443, to: 10.0.0.3}", "dnat: {on: 203.0.113.8, port: tcp/4430, to: 10.0.0.3}"},
			want: []string{"only", "may give 203.0.113.9", yes, "may give 203.0.113.8 tcp port 4430"}},
		{name: "answers of several", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "dnat: {on: 203.0.113.9, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.9, port: tcp/81, to: \"10.0.0.3:80\"}", "dnat: {on: 203.0.113.10, port: tcp/81, to: \"10.0.0.3:80\"}",
			"static: {inside: 10.0.0.4, outside: 203.0.113.12}", "dnat: {on: 203.0.113.12, port: tcp/80, to: 10.0.0.4}"},
			want: []string{"answer by nat[1]", "answer by nat[0]", "answer by nat[3]", "answer by nat[2]", yes, yes}},
		{name: "one that is left", rules: []string{"{static: {inside: 10.0.0.2, outside: 203.0.113.8}, log: on}", "dnat: {on: 203.0.113.9, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.8, port: tcp/22, to: 10.0.0.3}"},
			want: []string{"log is", "answer by nat[0]", "static may give 203.0.113.8 tcp port 22"}},
		{name: "one that wins", rules: []string{"{dnat: {on: 203.0.113.8, port: tcp/22, to: 10.0.0.3}, log: on}", "static: {inside: 10.0.0.2, outside: 203.0.113.8}"},
			want: []string{"log is", "takes precedence"}},
		{name: "a transparent proxy", rules: []string{"dnat: {on: any, in: lan, port: tcp/80, to: \":3128\"}", "static: {inside: 10.0.0.2, outside: 203.0.113.8}"},
			want: []string{"gateway itself", "before they have its address"}},
		{name: "not tracked", rules: []string{"notrack: {on: 203.0.113.8, port: udp/53}", "dnat: {on: 203.0.113.8, port: tcp/22, to: 10.0.0.3}", "notrack: {on: 198.51.100.1}"},
			want: []string{"tracker", "also those to and from its hosts", "tracker"}},
		{name: "a pair", rules: []string{"netmap: {inside: 10.0.0.0/29, outside: 203.0.113.8/29, stateless: on}", "static: {inside: 10.0.0.2, outside: 203.0.113.40}"},
			want: []string{yes, "comes first"}},
		{name: "without roles", words: "interfaces: {}", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "masquerade: {from: 10.0.1.0/24}"},
			want: []string{"every interface", "only"}},
		{name: "twice", words: "interfaces: {wan: wan0}", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "masquerade: {from: 198.51.100.0/24, out: lan0}", "static: {inside: 10.0.1.2, outside: 203.0.113.9}"},
			want: []string{"also translates the source", "only", yes}},
		{name: "mss", words: "interfaces: {wan: wan0}\n  mss: clamp", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "dnat: {on: 203.0.113.9, port: udp/53, to: 10.0.0.3}"}, want: []string{"mss", yes}},
		{name: "ttl", words: "interfaces: {wan: wan0}\n  ttl: 64", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}"}, want: []string{"ttl"}},
		{name: "limits", words: "limits: {connections-per-source: 5}", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}"}, want: []string{"connections-per-source"}},
		{name: "helpers", words: "interfaces: {wan: wan0}\n  helpers: ftp", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "dnat: {on: 203.0.113.9, port: tcp/80, to: 10.0.0.3}"}, want: []string{"helpers", yes}},
		{name: "several uplinks", words: "interfaces: {wan: [{interface: wan0}, {interface: wan1}]}", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}"}, want: []string{"several wan interfaces"}},
		{name: "zones", words: "interfaces: {wan: wan0, lan: [{interface: lan0, zone: a}]}", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}"}, want: []string{"zones"}},
		{name: "pcp", words: "interfaces: {wan: wan0, lan: lan0}\n  pcp: on", rules: []string{"masquerade: {}", "static: {inside: 10.0.0.2, outside: 203.0.113.8}"}, want: []string{"only", "pcp"}},
		{name: "by wan", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8, in: wan0, out: wan0}", "static: {inside: 10.0.0.2, outside: 198.18.0.8, in: wan1, out: wan1}"},
			want: []string{"same addresses", yes}},
		{name: "masked", words: "interfaces: {lan: [lan0, lan1]}", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8, hairpin: on, out: wan1}"}, want: []string{"another address inside"}},
		{name: "a part of another host", rules: []string{"static: {inside: 10.0.0.2, outside: 203.0.113.8}", "dnat: {on: 203.0.113.8, port: tcp/22, to: 10.0.0.3}", "dnat: {on: 203.0.113.8, port: tcp/80, to: 10.0.0.2}"},
			want: []string{"another host", "another host", "answer by nat[0]"}},
		{name: "pairs", words: "interfaces: {wan: [wan0, wan1], lan: [lan0, lan1]}\n  sets: {p: {pairs: [203.0.113.40 10.0.0.40, 203.0.113.41 10.0.0.41]}, q: {pairs: [203.0.113.50 10.0.0.50]}, r: {pairs: [203.0.113.54 10.0.0.54]}}",
			rules: []string{"static: {pairs: $p}", "static: {pairs: $q, stateless: on}", "static: {pairs: $r, port: tcp/80}", "static: {inside: 10.0.0.2, outside: 203.0.113.8}", "snat: {from: 10.0.0.60, to: 203.0.113.60}"},
			want:  []string{yes, yes, "tcp/80", yes, "only the tracker"}},
		{name: "pairs beside others", words: "interfaces: {wan: [wan0, wan1], lan: [lan0, lan1]}\n  sets: {p: {pairs: [203.0.113.40 10.0.0.40, 203.0.113.41 10.0.0.41]}, q: {pairs: [203.0.113.50 10.0.0.50, 203.0.113.1 10.0.0.51]}}",
			rules: []string{"static: {pairs: $p}", "dnat: {on: 203.0.113.41, port: tcp/80, to: 10.0.0.77}", "static: {pairs: $q}", "masquerade: {from: 10.0.0.0/24}"},
			want:  []string{"nat[1] dnat leads some of its packets to another host", "another host", "203.0.113.1 is an address of the host itself", "only"}},
		{name: "pairs that are left", words: "interfaces: {wan: [wan0, wan1], lan: [lan0, lan1]}\n  sets: {p: {pairs: [203.0.113.40 10.0.0.40, 203.0.113.41 10.0.0.41]}}",
			rules: []string{"{static: {pairs: $p}, log: on}", "dnat: {on: 203.0.113.9, port: tcp/80, to: 10.0.0.41}", "dnat: {on: 203.0.113.10, port: tcp/80, to: 10.0.0.42}"},
			want:  []string{"log is", "what 10.0.0.41 tcp port 80 sends may be an answer by nat[0]", yes}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			words := tt.words
			if words == "" {
				words = "interfaces: {wan: [wan0, wan1], lan: [lan0, lan1]}"
			}
			p := planOf(t, "gateway:\n  engine: ebpf\n  "+words+"\n  nat:\n  - "+strings.Join(tt.rules, "\n  - ")+"\n", facts)
			mine, rest, notes := Engine{}.Claim(p, facts)
			because := map[int]string{}
			for _, n := range notes {
				because[n.Rule.Index] = n.Because
			}
			claimed := 0
			for i, want := range tt.want {
				if want == yes {
					claimed++
				}
				if got := because[i]; want == yes && got != "" || !strings.Contains(got, want) {
					t.Errorf("%s: %q, want %q", tt.rules[i], got, want)
				}
			}
			if of := func(p *gateway.Plan) int {
				if p == nil {
					return 0
				}
				return len(p.Refs())
			}; of(mine) != claimed || of(rest) != len(tt.want)-claimed && (of(rest) > 0 || claimed > 0) {
				t.Errorf("%d and %d, want %d and %d", of(mine), of(rest), claimed, len(tt.want)-claimed)
			}
		})
	}
	foreign := func(n snapshot.NATRule) string {
		facts := testHost()
		n.Family, n.Table, n.Chain = "ip", "nat", "DOCKER"
		facts.Foreign = []gateway.Foreign{{Type: "nat", Hook: "prerouting", Family: "ip", NAT: []snapshot.NATRule{n}}}
		p := planOf(t, "gateway:\n  engine: ebpf\n  interfaces: {wan: wan0}\n  nat:\n  - static: {inside: 10.0.0.2, outside: 203.0.113.2}\n", facts)
		_, _, notes := Engine{}.Claim(p, facts)
		if len(notes) == 0 {
			return yes
		}
		return notes[0].Because
	}
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		name string
		rule snapshot.NATRule
		want string
	}{
		{"a published port", snapshot.NATRule{Kind: snapshot.NATDest, First: addr("172.17.0.2"), Last: addr("172.17.0.2"), FirstPort: 80, NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 8081, LocalDestination: true}}, "takes precedence"},
		{"of another address", snapshot.NATRule{Kind: snapshot.NATDest, First: addr("172.17.0.2"), Last: addr("172.17.0.2"), NATCondition: snapshot.NATCondition{Protocol: "tcp", ToDestination: netip.MustParsePrefix("203.0.113.1/32")}}, yes},
		{"to its host", snapshot.NATRule{Kind: snapshot.NATDest, First: addr("10.0.0.2"), Last: addr("10.0.0.2"), NATCondition: snapshot.NATCondition{Protocol: "tcp", ToDestination: netip.MustParsePrefix("203.0.113.1/32")}}, "may be an answer by another program's"},
		{"containers", snapshot.NATRule{Kind: snapshot.NATMasquerade, NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.1.0/24")}}, yes},
		{"its host", snapshot.NATRule{Kind: snapshot.NATMasquerade, NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.0.0/24")}}, "takes precedence"},
		{"its address", snapshot.NATRule{Kind: snapshot.NATSource, First: addr("203.0.113.2"), Last: addr("203.0.113.2"), NATCondition: snapshot.NATCondition{FromSource: netip.MustParsePrefix("10.0.1.0/24")}}, "may give 203.0.113.2"},
	} {
		if got := foreign(tt.rule); !strings.Contains(got, tt.want) || tt.want == yes && got != yes {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	p := planOf(t, "gateway: {nat: [static: {inside: 10.0.0.2, outside: 203.0.113.8}]}", testHost())
	if mine, rest, notes := (Engine{}).Claim(p, testHost()); mine != nil || rest != p || notes != nil {
		t.Error("claimed though the file does not ask for it")
	}
}
