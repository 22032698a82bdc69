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

// here is a host with two interfaces, of which the administrator uses port 22.
func here() Facts {
	return Facts{
		Known: true, Initial: true, Flowtable: Support{OK: true},
		Interfaces: []Interface{
			{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.7/24"), netip.MustParsePrefix("2001:db8::7/64")}},
			{Name: "eth1", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
			{Name: "br0", Addresses: []netip.Prefix{netip.MustParsePrefix("172.17.0.1/16")}},
		},
		Sessions: []Session{{netip.MustParseAddrPort("198.18.0.1:50000"), netip.MustParseAddrPort("203.0.113.7:22")}},
	}
}

// TestCheckKernel: what a kernel lacks is said before it is applied.
func TestCheckKernel(t *testing.T) {
	rules := []string{"dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2, hairpin: on}", "static: {inside: 10.0.0.3, outside: 203.0.113.9, hairpin: off}"}
	facts := here()
	facts.Interfaces[0].Addresses = append(facts.Interfaces[0].Addresses, netip.MustParsePrefix("203.0.113.9/24"))
	for release, want := range map[string][]string{
		"5.4.0-216-generic": {"4 on refuse no-hairpin: dnat: hairpin needs Linux 5.5, this is 5.4.0-216-generic"},
		"5.5.0":             nil,
		"":                  nil,
	} {
		facts.Kernel.Release = release
		runChecks(t, facts, []checkCase{{release, inFile(rules...), want}})
	}
}

// TestCheckSeveral: a pattern or a link group that is for nothing yet is no fault.
func TestCheckSeveral(t *testing.T) {
	facts := here()
	facts.Interfaces[2].Group = 10
	runChecks(t, facts, []checkCase{{"several", "gateway:\n  interfaces: {wan: [ppp*, eth0], lan: group 10}\n  nat:\n  - masquerade: {in: lan, except-in: group 11, out: [eth*, wg*]}\n", []string{
		"2 ppp* notice interface-missing: no interface is ppp* yet: its rules have no effect until one appears",
		"4 group notice interface-missing: masquerade: no interface is group 11 yet: its rules have no effect until one appears",
		"4 wg* notice interface-missing: masquerade: no interface is wg* yet: its rules have no effect until one appears"}}})
}

// TestCheckEngine: an engine needs bits of marks that rules do not ask for.
func TestCheckEngine(t *testing.T) {
	rule := inFile("static: {inside: 10.0.0.3, outside: 203.0.113.9}")
	away := "5 203.0.113.9 warn address-missing: static: 203.0.113.9 is on the network of eth0, and no interface here has it: no host answers for it there"
	with := func(words string) string { return strings.Replace(rule, "gateway:", "gateway:\n  "+words, 1) }
	runChecks(t, here(), []checkCase{
		{"netfilter", with("engine: netfilter"), []string{away}},
		{"ebpf", with("engine: ebpf"), []string{away}},
		{"for nothing", with("acknowledge-bypass: on"), []string{"2 on notice bypass-unused: acknowledge-bypass: without engine: ebpf nothing is passed by", away}},
	})
	for text, want := range map[string]bool{"engine: ebpf": true, "engine: ebpf\n  marks: 0xc000000": false, "engine: netfilter": false} {
		findings := check(t, strings.Replace(inFile("masquerade: {mark: 0x1000000/0x1000000}"), "gateway:", "gateway:\n  "+text, 1), Facts{})
		if got := slices.ContainsFunc(findings, func(f Finding) bool { return f.ID == "mark-collides" }); got != want {
			t.Errorf("%s: %v", text, findings)
		}
	}
}

// TestCheckTargets: a host inside that is this one, or to which the way leads out, is reported.
func TestCheckTargets(t *testing.T) {
	facts := here()
	facts.Ways = map[netip.Addr]string{netip.MustParseAddr("198.18.0.9"): "eth0", netip.MustParseAddr("10.9.0.9"): "eth1"}
	for rule, want := range map[string]string{
		"dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}":             "",
		"dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.1}":             "target-is-gateway",
		"dnat: {on: 203.0.113.7, port: tcp/80, to: \"203.0.113.7:8080\"}": "target-is-gateway",
		"static: {outside: 203.0.113.7, inside: 172.17.0.1}":              "target-is-gateway",
		"dnat: {on: 203.0.113.7, port: tcp/80, to: 203.0.113.20}":         "target-outside",
		"dnat: {on: 203.0.113.7, port: tcp/80, to: \"198.18.0.9:8080\"}":  "target-outside",
		"dnat: {on: 203.0.113.7, port: tcp/80, to: 10.9.0.9}":             "",
		"dnat: {on: 203.0.113.7, port: tcp/80, to: 10.9.0.10}":            "",
	} {
		got := ""
		for _, f := range check(t, inFile(rule), facts) {
			if strings.HasPrefix(f.ID, "target-") {
				got += f.ID
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", rule, got, want)
		}
	}
}

func TestCheckHost(t *testing.T) {
	const cut = "it takes your own session from 198.18.0.1:50000 to 203.0.113.7 port 22"
	runChecks(t, here(), []checkCase{
		{"fine", inFile("masquerade: {from: 10.0.0.0/8}", "dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}"), nil},
		{"on the network", inFile("static: {inside: 10.0.0.2, outside: 203.0.113.9}"),
			[]string{"4 203.0.113.9 warn address-missing: static: 203.0.113.9 is on the network of eth0, and no interface here has it: no host answers for it there"}},
		{"elsewhere", inFile("snat: {from: 10.0.0.2, to: 198.51.100.9}"),
			[]string{"4 198.51.100.9 warn address-missing: snat: no interface here has 198.51.100.9: its packets come only if a router sends them here"}},
		{"elsewhere, for many", inFile("dnat: {on: 198.51.100.9, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 198.51.100.9, port: tcp/81, to: 10.0.0.2}"),
			[]string{"4 198.51.100.9 warn address-missing: dnat: no interface here has 198.51.100.9: its packets come only if a router sends them here"}},
		{"a prefix elsewhere", inFile("netmap: {inside: 10.0.0.0/24, outside: 198.51.100.0/24}"), nil},
		{"a prefix on the network", inFile("snat: {from: 10.0.0.2, to: 203.0.113.4/30}"),
			[]string{"4 203.0.113.4/30 warn address-missing: snat: 203.0.113.4-203.0.113.7 lies on the network of eth0, and this host does not have 3 addresses of it: no host answers for them there"}},
		{"all of the network", inFile("netmap: {inside: 10.8.0.0/16, outside: 172.17.0.0/16}"),
			[]string{"4 172.17.0.0/16 warn address-missing: netmap: 172.17.0.0/16 covers all of 172.17.0.0/16, the network of br0, including the addresses of its router and other hosts"}},
		{"network address", inFile("static: {inside: 10.0.0.2, outside: 203.0.113.0}"),
			[]string{"4 203.0.113.0 refuse subnet-end: static: 203.0.113.0 is the network's own or the broadcast address of 203.0.113.0/24 on eth0"}},
		{"broadcast address", inFile("snat: {from: 10.0.0.2, to: 203.0.113.255}"),
			[]string{"4 203.0.113.255 refuse subnet-end: snat: 203.0.113.255 is the network's own or the broadcast address of 203.0.113.0/24 on eth0"}},
		{"broadcast address in a pool", inFile("snat: {from: 10.0.0.0/24, to: 203.0.113.254-203.0.113.255}"),
			[]string{"4 203.0.113.254-203.0.113.255 refuse subnet-end: snat: 203.0.113.255 of 203.0.113.254-203.0.113.255 is the network's own or the broadcast address of 203.0.113.0/24 on eth0"}},
		{"all of the network in a pool", inFile("snat: {from: 10.0.0.2, to: [198.51.100.9-198.51.100.10, 203.0.112.0/23]}"),
			[]string{"4 203.0.112.0/23 refuse subnet-end: snat: 203.0.113.0 of 203.0.112.0-203.0.113.255 is the network's own or the broadcast address of 203.0.113.0/24 on eth0"}},
		{"broadcast address inside", inFile("static: {inside: 10.0.0.255, outside: 10.0.0.1}"),
			[]string{"4 10.0.0.255 refuse subnet-end: static: 10.0.0.255 is the network's own or the broadcast address of 10.0.0.0/24 on eth1"}},
		{"network address as a target", inFile("dnat: {on: 203.0.113.7, port: tcp/80, to: 172.17.0.0}"),
			[]string{"4 172.17.0.0 refuse subnet-end: dnat: 172.17.0.0 is the network's own or the broadcast address of 172.17.0.0/16 on br0"}},
		{"broadcast address among targets", inFile("dnat: {on: 203.0.113.7, port: tcp/80, to: [10.0.0.2, 10.0.0.255]}"),
			[]string{"4 10.0.0.255 refuse subnet-end: dnat: 10.0.0.255 is the network's own or the broadcast address of 10.0.0.0/24 on eth1"}},
		{"broadcast addresses of a netmap", inFile("netmap: {inside: 10.0.0.192/26, outside: 198.51.100.192/26}"), nil},
		{"no such interface", inFile("masquerade: {from: 10.0.0.0/8, out: eth9}", "masquerade: {from: 10.0.0.0/9, out: [eth9]}"),
			[]string{"4 eth9 warn interface-missing: masquerade: interface eth9 does not exist: its rules have no effect until it appears"}},
		{"session by dnat", inFile("dnat: {on: wan, port: tcp/20-22, to: 10.0.0.2}"), []string{"4 wan refuse cuts-own-session: dnat: " + cut}},
		{"session by all of dnat", inFile("dnat: {on: 203.0.113.7, to: 10.0.0.2}"), []string{"4 203.0.113.7 refuse cuts-own-session: dnat: " + cut}},
		{"session of another client", inFile("dnat: {on: wan, port: tcp/22, from: 198.18.1.0/24, to: 10.0.0.2}"), nil},
		{"another port", inFile("dnat: {on: wan, port: udp/22, to: 10.0.0.2}"), nil},
		{"a more specific rule that spares it", inFile("dnat: {on: 203.0.113.7, to: 10.0.0.2}", "dnat: {on: wan, port: tcp/22, to: 203.0.113.7}"),
			[]string{"5 203.0.113.7 warn target-is-gateway: dnat: 203.0.113.7 is an address of this host itself: what is sent there goes no further than to its own programs"}},
		{"session by static", inFile("static: {inside: 10.0.0.2, outside: 203.0.113.7}"), []string{"4 203.0.113.7 refuse cuts-own-session: static: " + cut}},
		{"session by netmap", inFile("netmap: {inside: 10.0.0.0/30, outside: 203.0.113.4/30}"),
			[]string{"4 203.0.113.4/30 warn address-missing: netmap: 203.0.113.4/30 lies on the network of eth0, and this host does not have 3 addresses of it: no host answers for them there",
				"4 203.0.113.4/30 refuse cuts-own-session: netmap: " + cut}},
		{"session by stateless", inFile("static: {inside: 10.0.0.2, outside: 203.0.113.7, stateless: on}"), []string{"4 203.0.113.7 refuse cuts-own-session: static: " + cut,
			"4 203.0.113.7 warn takes-own-address: static: what comes for 203.0.113.7 goes inside: eth0 has no other address, so that this host gets no answers by it"}},
		{"own address by stateless", "gateway:\n  interfaces: {wan: eth0}\n  ipv6:\n  - netmap: {inside: 'fd00:1::/64', outside: '2001:db8::/64', stateless: on}\n",
			[]string{"4 2001:db8::/64 warn address-missing: netmap: 2001:db8::/64 covers all of 2001:db8::/64, the network of eth0, including the addresses of its router and other hosts",
				"4 2001:db8::/64 warn takes-own-address: netmap: what comes for 2001:db8::7 goes inside: eth0 has no other address, so that this host gets no answers by it"}},
		{"masquerade by stateless", inFile("masquerade: {from: 10.0.0.0/8}", "netmap: {inside: 172.17.0.0/29, outside: 203.0.113.0/29, stateless: on}"),
			[]string{"5 203.0.113.0/29 warn address-missing: netmap: 203.0.113.0/29 lies on the network of eth0, and this host does not have 7 addresses of it: no host answers for them there",
				"5 203.0.113.0/29 refuse cuts-own-session: netmap: " + cut,
				"5 203.0.113.0/29 refuse notrack-answers: netmap: masquerade in line 4 gives 203.0.113.7 to connections, and answers to it would go inside without being tracked"}},
		{"session by notrack", inFile("notrack: {on: 203.0.113.7, port: tcp}"), []string{"4 203.0.113.7 refuse cuts-own-session: notrack: " + cut}},
		{"session by static with hairpin", inFile("static: {inside: 10.0.0.2, outside: 203.0.113.7, hairpin: on}"), []string{"4 203.0.113.7 refuse cuts-own-session: static: " + cut}},
		{"session's answers", inFile("snat: {from: 203.0.113.0/24, to: 203.0.113.7}", "masquerade: {}"), nil},
		{"session's answers under another address", inFile("snat: {to: 198.51.100.9}"),
			[]string{"4 snat: warn own-session-source: snat: connections of 203.0.113.7 itself are translated, too: your own session from 198.18.0.1:50000 to 203.0.113.7 port 22 ends if the tracker does not know it yet and an answer comes first",
				"4 198.51.100.9 warn address-missing: snat: no interface here has 198.51.100.9: its packets come only if a router sends them here"}},
		{"answers that are excepted", inFile("masquerade: {except-to: 198.18.0.0/15}"), nil},
		{"masquerade by other ports", inFile("masquerade: {from: 10.0.0.0/8, ports: 1024-65535}", "notrack: {on: 203.0.113.7, port: udp/123}"), nil},
		{"masquerade by notrack", inFile("masquerade: {from: 10.0.0.0/8}", "notrack: {on: 203.0.113.7, port: udp}"),
			[]string{"5 203.0.113.7 refuse notrack-answers: notrack: masquerade in line 4 gives 203.0.113.7 to connections, and answers to it that are not tracked do not find back"}},
		{"a server beside masquerade", inFile("masquerade: {from: 10.0.0.0/8}", "notrack: {on: 203.0.113.7, port: udp/53}"),
			[]string{"5 203.0.113.7 warn notrack-low-port: notrack: masquerade in line 4 leaves hosts inside their source port: who sends from udp/53 there gets no answers, as those to 203.0.113.7 are not tracked"}},
		{"an interface without an address", inFile6("dnat: {on: br0, port: tcp/80, to: 'fd00::1'}"),
			[]string{"4 br0 warn address-waits: dnat: br0 has no IPv6 address that others can reach: the rule waits for one"}},
		{"network address inside", inFile("masquerade: {from: 10.0.0.0/24}"), nil},
	})
}

// What the advice does is the end of the finding.
func TestCheckAddressMissingAdvice(t *testing.T) {
	facts := here()
	for _, c := range []struct{ rule, advice string }{
		{"snat: {from: 10.0.0.0/24, to: 203.0.113.192/28}", "sudo ip route add local 203.0.113.192/28 dev eth0"},
		{"snat: {from: 10.0.0.0/24, to: 203.0.113.41-203.0.113.44}", "sudo ip route add local 203.0.113.41/32 dev eth0\nsudo ip route add local 203.0.113.42/31 dev eth0\nsudo ip route add local 203.0.113.44/32 dev eth0"},
		{"static: {inside: 10.0.0.2, outside: 203.0.113.50}", "sudo ip addr add 203.0.113.50/32 dev eth0"},
		{"netmap: {inside: 10.0.0.0/30, outside: 203.0.113.4/30}", "sudo ip route add local 203.0.113.4/30 dev eth0"},
	} {
		var advice []string
		for _, f := range check(t, inFile(c.rule), facts) {
			if f.ID == "address-missing" {
				advice = append(advice, f.Advice)
			}
		}
		if diff := cmp.Diff([]string{c.advice}, advice); diff != "" {
			t.Errorf("%s: %s", c.rule, diff)
		}
		for _, m := range regexp.MustCompile(`route add local (\S+)`).FindAllStringSubmatch(c.advice, -1) {
			facts.Local = append(facts.Local, netip.MustParsePrefix(m[1]))
		}
		for _, m := range regexp.MustCompile(`addr add (\S+)`).FindAllStringSubmatch(c.advice, -1) {
			facts.Interfaces[0].Addresses = append(facts.Interfaces[0].Addresses, netip.MustParsePrefix(m[1]))
		}
		for _, f := range check(t, inFile(c.rule), facts) {
			if f.ID == "address-missing" {
				t.Errorf("%s: still %s", c.rule, f.Message)
			}
		}
	}
}

// Who comes from inside is not cut by what holds for the outer interface.
func TestCheckSessionFromInside(t *testing.T) {
	facts := here()
	facts.Sessions = []Session{{netip.MustParseAddrPort("10.0.0.9:50000"), netip.MustParseAddrPort("203.0.113.7:22")}}
	runChecks(t, facts, []checkCase{
		{"outer", inFile("dnat: {on: wan, port: tcp/22, to: 10.0.0.2}"), nil},
		{"outer, stateless", inFile("static: {inside: 10.0.0.2, outside: 203.0.113.7, stateless: on}"),
			[]string{"4 203.0.113.7 warn takes-own-address: static: what comes for 203.0.113.7 goes inside: eth0 has no other address, so that this host gets no answers by it"}},
		{"inside, too", inFile("dnat: {on: wan, port: tcp/22, to: 10.0.0.2, hairpin: on}"),
			[]string{"4 wan refuse cuts-own-session: dnat: it takes your own session from 10.0.0.9:50000 to 203.0.113.7 port 22"}},
	})
}

func TestCheckHostWithout(t *testing.T) {
	facts := here()
	facts.Flowtable, facts.Initial = Support{Reason: "this kernel has none"}, false
	runChecks(t, facts, []checkCase{
		{"flowtable", "gateway:\n  flowtable: on\n  expect: {flows: 1k}\n",
			[]string{"2 on warn no-flowtable: flowtable: this kernel has none",
				"3 1k warn expect-in-namespace: the size of the connection table belongs to the host: from this network namespace it cannot be changed"}},
	})
}

// docker is what Docker with one published port adds to a host.
func docker() []Foreign {
	nat := func(hook string, priority int32, rules ...snapshot.NATRule) Foreign {
		return Foreign{Source: "iptables-nft", Owner: "docker", Family: "ip", Table: "nat", Chain: strings.ToUpper(hook), Type: "nat", Hook: hook, Priority: priority, Policy: "accept", NAT: rules}
	}
	rule := snapshot.NATRule{Source: "iptables-nft", Family: "ip", Table: "nat"}
	masquerade, dnat := rule, rule
	masquerade.Chain, masquerade.Kind, masquerade.FromSource, masquerade.Partial = "POSTROUTING", snapshot.NATMasquerade, netip.MustParsePrefix("172.17.0.0/16"), true
	masquerade.Text = "masquerade"
	dnat.Chain, dnat.Kind, dnat.Protocol, dnat.DestinationPort = "DOCKER", snapshot.NATDest, "tcp", 8080
	dnat.First, dnat.Last, dnat.FirstPort, dnat.LastPort = netip.MustParseAddr("172.17.0.2"), netip.MustParseAddr("172.17.0.2"), 80, 80
	dnat.Text = "dnat to 172.17.0.2:80"
	return []Foreign{
		{Source: "iptables-nft", Owner: "docker", Family: "ip", Table: "filter", Chain: "FORWARD", Type: "filter", Hook: "forward", Policy: "drop"},
		nat("prerouting", -100, dnat), nat("postrouting", 100, masquerade),
	}
}

func TestCheckForeign(t *testing.T) {
	facts := here()
	facts.Foreign = docker()
	const forward = "0  warn foreign-forward-drop: docker's chain FORWARD of table ip filter (iptables-nft) drops what its rules do not accept, what this gateway forwards too"
	runChecks(t, facts, []checkCase{
		{"only IPv6", inFile6("masquerade: {from: 'fd00::/8'}"), nil},
		{"the same rules", inFile("masquerade: {from: 172.17.0.0/16}", "dnat: {on: wan, port: tcp/8080, to: 172.17.0.2:80}"), []string{forward}},
		{"another address", inFile("snat: {from: 172.17.0.0/16, to: 203.0.113.7}"),
			[]string{"4 172.17.0.0/16 warn foreign-rule-first: snat: docker's rule in ip nat POSTROUTING (iptables-nft: masquerade) comes first and may give connections from 172.17.0.0/16 the interface's address", forward}},
		{"the same port", inFile("dnat: {on: wan, port: tcp/8000-9000, to: 10.0.0.2}"),
			[]string{"4 wan warn foreign-rule-first: dnat: docker's rule in ip nat DOCKER (iptables-nft: dnat to 172.17.0.2:80) comes first and takes tcp/8080 of 203.0.113.7 to 172.17.0.2:80", forward}},
		{"another port", inFile("dnat: {on: wan, port: tcp/80, to: 10.0.0.2}"), []string{forward}},
	})
	facts.Foreign = facts.Foreign[1:]
	for i := range facts.Foreign {
		facts.Foreign[i].Priority += 1000 // after ours
	}
	runChecks(t, facts, []checkCase{{"later", inFile("dnat: {on: wan, port: tcp/8080, to: 10.0.0.2}"), nil}})
}
