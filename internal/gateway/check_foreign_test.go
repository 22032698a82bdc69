package gateway

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/snapshot"
)

// TestCheckForeignConditions: a rule of others with exceptions, or for this host's own
// addresses alone, is in the way of those only that it is for.
func TestCheckForeignConditions(t *testing.T) {
	facts := here()
	facts.Foreign = docker()[1:2]
	rule := &facts.Foreign[0].NAT[0]
	rule.LocalDestination = true
	rule.Unless = []snapshot.NATCondition{{InInterface: "docker0"}}
	const takes = "4 203.0.113.7 warn foreign-rule-first: dnat: docker's rule in ip nat DOCKER (iptables-nft: dnat to 172.17.0.2:80) comes first and takes tcp/8080 of 203.0.113.7 to 172.17.0.2:80"
	ours := inFile("dnat: {on: 203.0.113.7, port: tcp/8080, to: 10.0.0.2}")
	elsewhere := inFile("dnat: {on: 203.0.113.200, port: tcp/8080, to: 10.0.0.2}")
	runChecks(t, facts, []checkCase{{"its own address", ours, []string{takes}}})
	without := func(name, file string) {
		t.Helper()
		for _, line := range found(file, check(t, file, facts)) {
			if strings.Contains(line, "foreign-rule-first") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	without("routed here", elsewhere)
	rule.Unless[0].InInterface = "eth0"
	without("not from outside", ours)
	rule.Unless = []snapshot.NATCondition{{Protocol: "tcp", ToDestination: netip.MustParsePrefix("203.0.113.0/24")}}
	without("not for the network", ours)
}

// TestCheckForeignRange: a rule of others for a range of ports is in the way of those in it.
func TestCheckForeignRange(t *testing.T) {
	facts := here()
	facts.Foreign = docker()[1:2]
	rule := &facts.Foreign[0].NAT[0]
	rule.DestinationPort, rule.LastDestinationPort = 8000, 8100
	for port, want := range map[string]int{"tcp/7999": 0, "tcp/8000": 1, "tcp/8050": 1, "tcp/8090-8200": 1, "tcp/8101": 0, "udp/8050": 0, "tcp": 1} {
		n := 0
		for _, f := range check(t, inFile("dnat: {on: 203.0.113.7, port: "+port+", to: 10.0.0.2}"), facts) {
			if f.ID == "foreign-rule-first" {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d findings, want %d", port, n, want)
		}
	}
}

// TestCheckForeignTooMany: of a chain that comes first and was not followed to its end,
// nothing that it may take is left unsaid.
func TestCheckForeignTooMany(t *testing.T) {
	for _, c := range []struct {
		hook     string
		priority int32
		rule     string
		warned   bool
	}{
		{"prerouting", -100, "dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}", true},
		{"prerouting", 0, "dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}", false},
		{"prerouting", -100, "masquerade: {from: 10.0.0.0/8}", false},
		{"postrouting", 100, "masquerade: {from: 10.0.0.0/8}", true},
	} {
		facts := here()
		facts.Foreign = []Foreign{{Source: "nftables", Family: "ip", Table: "t", Chain: "c", Type: "nat", Hook: c.hook, Priority: c.priority, TooMany: true}}
		warned := slices.ContainsFunc(check(t, inFile(c.rule), facts), func(f Finding) bool { return f.ID == "foreign-too-many" })
		if warned != c.warned {
			t.Errorf("%+v: warned: %v", c, warned)
		}
	}
}

// TestCheckAdmitted: a chain that refuses is warned of until rules let through what begins
// inside, and something that comes in.
func TestCheckAdmitted(t *testing.T) {
	out := func(name, in string) snapshot.NATRule {
		return snapshot.NATRule{NATCondition: snapshot.NATCondition{InInterface: in, OutInterface: name}}
	}
	answers := snapshot.NATRule{Partial: true, NATCondition: snapshot.NATCondition{OutInterface: "eth1"}}
	file := strings.Replace(inFile("masquerade: {from: 10.0.0.0/8}"), "lan: [eth1, br0]", "lan: eth1", 1)
	for _, c := range []struct {
		name     string
		accepts  []snapshot.NATRule
		admitted bool
	}{
		{"nothing", nil, false},
		{"answers alone", []snapshot.NATRule{answers}, false},
		{"the way out alone", []snapshot.NATRule{out("eth0", "eth1")}, false},
		{"both", []snapshot.NATRule{answers, out("eth0", "eth1")}, true},
		{"by any interface", []snapshot.NATRule{answers, out("eth0", "")}, true},
		{"another network", []snapshot.NATRule{answers, out("eth0", "br0")}, false},
		{"out by conditions that are not known", []snapshot.NATRule{answers, {Partial: true}}, false},
		{"one port", []snapshot.NATRule{answers, {NATCondition: snapshot.NATCondition{Protocol: "tcp", DestinationPort: 80}}}, false},
		{"with an exception", []snapshot.NATRule{answers, {Unless: []snapshot.NATCondition{{InInterface: "br0"}}}}, false},
	} {
		facts := here()
		facts.Foreign = []Foreign{{Source: "nftables", Family: "inet", Table: "t", Chain: "c", Type: "filter", Hook: "forward", Policy: "reject", Accepts: c.accepts}}
		want := []string{"0  warn foreign-forward-drop: chain c of table inet t (nftables) rejects what its rules do not accept, what this gateway forwards too"}
		if c.admitted {
			want = nil
		}
		if diff := cmp.Diff(want, found(file, check(t, file, facts))); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// TestForeignAdvice: commands that can be pasted, in the words of whose chain it is.
func TestForeignAdvice(t *testing.T) {
	for _, c := range []struct {
		foreign Foreign
		rule    string
		want    string
	}{
		{Foreign{Owner: "docker", Source: "iptables-nft", Family: "ip", Chain: "FORWARD"}, "masquerade: {from: 10.0.0.0/8}",
			"iptables -I DOCKER-USER -i eth1 -o eth0 -j ACCEPT\niptables -I DOCKER-USER -o eth1 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT"},
		{Foreign{Source: "iptables-legacy", Family: "ip", Chain: "FORWARD"}, "netmap: {inside: 10.0.0.0/24, outside: 198.51.100.0/24, stateless: on}",
			"iptables -I FORWARD -i eth1 -o eth0 -j ACCEPT\niptables -I FORWARD -o eth1 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT,UNTRACKED -j ACCEPT"},
		{Foreign{Source: "nftables", Family: "inet", Table: "t", Chain: "c"}, "masquerade: {from: 10.0.0.0/8}",
			"nft insert rule inet t c iifname eth1 oifname eth0 accept\nnft insert rule inet t c oifname eth1 ct state established,related accept\nnft insert rule inet t c oifname eth1 ct status dnat accept"},
		{Foreign{Owner: "ufw", Source: "iptables-nft", Family: "ip", Chain: "FORWARD"}, "masquerade: {from: 10.0.0.0/8}",
			"ufw route allow in on eth1 out on eth0"},
		{Foreign{Owner: "ufw", Source: "iptables-nft", Family: "ip", Chain: "FORWARD"}, "dnat: {on: 203.0.113.7, port: tcp/8080, to: '10.0.0.2:80'}",
			"ufw route allow in on eth1 out on eth0\nufw route allow in on eth0 out on eth1 to 10.0.0.2 port 80 proto tcp"},
		{Foreign{Owner: "ufw", Source: "iptables-nft", Family: "ip", Chain: "FORWARD"}, "dnat: {on: 203.0.113.7, port: udp/5000-5010, to: 10.0.0.2}",
			"ufw route allow in on eth1 out on eth0\nufw route allow in on eth0 out on eth1 to 10.0.0.2 port 5000:5010 proto udp"},
		{Foreign{Owner: "ufw", Source: "iptables-nft", Family: "ip", Chain: "FORWARD"}, "static: {inside: 10.0.0.2, outside: 203.0.113.7}",
			"ufw route allow in on eth1 out on eth0\nufw route allow in on eth0 out on eth1 to 10.0.0.2"},
	} {
		plan := compile(t, "\n  interfaces: {wan: eth0, lan: eth1}\n  nat: [{"+c.rule+"}]", here())
		if got := c.foreign.admit(plan); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.rule, got, c.want)
		}
	}
}

// TestForeignAdviceForAll: each interface inside has its commands, up to a few.
func TestForeignAdviceForAll(t *testing.T) {
	docker := Foreign{Owner: "docker", Source: "iptables-nft", Family: "ip", Chain: "FORWARD"}
	for roles, want := range map[string]int{"wan: eth0, lan: eth1": 2, "wan: eth0, lan: [eth1, br0]": 4, "wan: [eth0, ppp0], lan: eth1": 3, "wan: eth0, lan: [a, b, c, d, e]": 3} {
		plan := compile(t, "\n  interfaces: {"+roles+"}\n  nat: [{masquerade: {from: 10.0.0.0/8}}]", here())
		if got := strings.Split(docker.admit(plan), "\n"); len(got) != want {
			t.Errorf("%s: %d lines: %q", roles, len(got), got)
		}
	}
}

// TestCheckCommandsEnter: each command of an advice runs in the network namespace that was
// checked.
func TestCheckCommandsEnter(t *testing.T) {
	const enter = "ip netns exec gw"
	commands := regexp.MustCompile(`(?:ip(?: -6)? (?:link|addr|route|neigh)|nft insert|ip6?tables -|firewall-cmd --|ufw route)`)
	rules := []string{
		"masquerade: {from: 10.0.0.0/8, out: eth9}", "dnat: {on: 203.0.113.7, port: tcp/80, to: 203.0.113.20}", "static: {inside: 10.0.0.3, outside: 203.0.113.9}",
		"snat: {from: 10.1.0.0/24, to: 203.0.113.64/28}", "dnat: {on: 198.51.100.1, port: tcp/81, to: 10.0.0.2}",
	}
	seen := map[string]bool{}
	for _, owner := range []string{"", "docker", "ufw", "firewalld"} {
		facts := here()
		facts.Enter = enter
		facts.Foreign = append(docker()[1:2], Foreign{Source: "nftables", Family: "inet", Table: "t", Chain: "c", Type: "filter", Hook: "forward", Policy: "drop", Owner: owner})
		facts.Foreign[0].Owner = owner
		if owner == "docker" {
			facts.Foreign[1].Source = "iptables-nft"
		}
		for _, f := range check(t, inFile(append(rules, "dnat: {on: 203.0.113.7, port: tcp/8080, to: 10.0.0.2}")...), facts) {
			for _, at := range commands.FindAllStringIndex(f.Advice, -1) {
				seen[f.ID] = true
				if !strings.HasSuffix(f.Advice[:at[0]], enter+" ") {
					t.Errorf("%s, %q: %s", f.ID, owner, f.Advice)
				}
			}
		}
	}
	if len(seen) != 5 { // address-missing, target-outside, interface-missing, foreign-rule-first, foreign-forward-drop
		t.Errorf("findings with commands: %v", seen)
	}
}
