package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// inFile is a file with rules of IPv4, one on a line, the first in line 4.
func inFile(rules ...string) string {
	text := "gateway:\n  interfaces: {wan: eth0, lan: [eth1, br0]}\n  nat:\n"
	for _, r := range rules {
		text += "  - " + r + "\n"
	}
	return text
}

// inFile6 has rules of IPv6.
func inFile6(rules ...string) string { return strings.Replace(inFile(rules...), "nat:", "ipv6:", 1) }

// found writes findings for comparison: line, the word there, severity, id, message.
func found(text string, findings []Finding) (lines []string) {
	source := strings.Split(text, "\n")
	for _, f := range findings {
		at := ""
		if f.Line > 0 {
			at = strings.FieldsFunc(source[f.Line-1][f.Column-1:], func(r rune) bool { return strings.ContainsRune(" ,]}'", r) })[0]
		}
		lines = append(lines, fmt.Sprintf("%d %s %s %s: %s", f.Line, at, f.Severity, f.ID, f.Message))
	}
	return lines
}

func check(t *testing.T, text string, facts Facts) []Finding {
	t.Helper()
	f, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return checkFile(t, f, facts)
}

// checkFile is Check; what is wrong with its findings themselves is a failure.
func checkFile(t *testing.T, f *File, facts Facts) []Finding {
	t.Helper()
	findings, page := Check(f, facts), documented(t)
	refused := false
	for _, x := range findings {
		if page[x.ID] == "" {
			t.Errorf("%s is not on the page", x.ID)
		}
		refused = refused || x.Severity == Refuse
		if x.Advice == "" {
			t.Errorf("%s has no advice", x.ID)
		}
		if (x.Line > 0) != (x.Excerpt != "") {
			t.Errorf("%s in line %d has the excerpt %q", x.ID, x.Line, x.Excerpt)
		}
	}
	if _, err := Compile(&f.Config, facts); err != nil && !refused {
		t.Errorf("what check takes compile refuses: %v", err)
	}
	return findings
}

type checkCase struct {
	name, text string
	want       []string
}

func runChecks(t *testing.T, facts Facts, cases []checkCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, found(tt.text, check(t, tt.text, facts))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCheckRule(t *testing.T) {
	runChecks(t, Facts{}, []checkCase{
		{"fine", inFile("masquerade: {from: 10.0.0.0/8}", "dnat: {on: wan, port: tcp/80, to: 10.0.0.2, hairpin: on}"), nil},
		{"IPv6 below nat", inFile("snat: {from: 10.0.0.0/8, to: 2001:db8::1}"),
			[]string{"4 2001:db8::1 refuse wrong-family: snat: 2001:db8::1 is not IPv4, which the rules below nat are for"}},
		{"IPv4 below ipv6", inFile6("static: {inside: 10.0.0.1, outside: 2001:db8::1}"),
			[]string{"4 10.0.0.1 refuse wrong-family: static: 10.0.0.1 is not IPv6, which the rules below ipv6 are for"}},
		{"ICMP of IPv4", inFile6("dnat: {on: wan, port: icmp, to: 'fd00::1'}"), []string{"4 icmp refuse wrong-family: dnat: icmp is of IPv4"}},
		{"ICMP of IPv6", inFile("notrack: {on: 203.0.113.1, port: icmpv6}"), []string{"4 icmpv6 refuse wrong-family: notrack: icmpv6 is of IPv6"}},
		{"loopback", inFile("dnat: {on: wan, port: tcp/53, to: 127.0.0.1}"),
			[]string{"4 127.0.0.1 refuse unusable-address: dnat: 127.0.0.1 is a loopback address, which no packet from or to another host carries"}},
		{"part of a pool", inFile("snat: {to: [203.0.113.1, 223.255.255.255-224.0.0.1]}"),
			[]string{"4 223.255.255.255-224.0.0.1 refuse unusable-address: snat: 224.0.0.0 of 223.255.255.255-224.0.0.1 is a multicast address, which connection tracking does not translate"}},
		{"broadcast", inFile("static: {inside: 10.0.0.1, outside: 255.255.255.255}"),
			[]string{"4 255.255.255.255 refuse unusable-address: static: 255.255.255.255 is a reserved or the broadcast address (RFC 1112, RFC 919), which no host has"}},
		{"everybody", inFile("masquerade: {from: 0.0.0.0/0}"), nil},
		{"multicast sources", inFile("masquerade: {from: 239.0.0.0/8}"),
			[]string{"4 239.0.0.0/8 refuse unusable-address: masquerade: 239.0.0.0/8 is a multicast address, which connection tracking does not translate"}},
		{"multicast destinations may be excepted", inFile("masquerade: {from: 10.0.0.0/8, except-to: 10.0.0.0/7}"), nil},
		{"link-local", inFile6("snat: {to: 'fe80::1'}"), []string{"4 fe80::1 refuse unusable-address: snat: fe80::1 is a link-local address, which no router forwards"}},
		{"keep and random", inFile("snat: {from: 10.0.0.1, to: 203.0.113.1, ports: keep, random: fully}"),
			[]string{"4 fully refuse keep-random: snat: ports are kept, and chosen at random"}},
		{"port without protocol", inFile("dnat: {on: wan, to: 10.0.0.1:80}"),
			[]string{"4 10.0.0.1:80 refuse port-without-protocol: dnat: to 10.0.0.1:80 has a port, but the rule is not for a protocol that has ports"}},
		{"range to one port", inFile("dnat: {on: wan, port: udp/5000-5100, to: 10.0.0.1:80}"),
			[]string{"4 10.0.0.1:80 warn ports-to-one: dnat: the 101 ports of udp/5000-5100 all go to the one port of 10.0.0.1:80"}},
		{"protocol to one port", inFile("dnat: {on: wan, port: udp, to: 10.0.0.1:80}"),
			[]string{"4 10.0.0.1:80 warn ports-to-one: dnat: every port of udp goes to the one port of 10.0.0.1:80"}},
		{"to itself", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 203.0.113.1:80}"), []string{"4 203.0.113.1:80 refuse translates-to-itself: dnat: 203.0.113.1 becomes itself"}},
		{"to another port of its own", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 203.0.113.1:8080}"), nil},
		{"static to itself", inFile("static: {inside: 203.0.113.1, outside: 203.0.113.1}"), []string{"4 203.0.113.1 refuse translates-to-itself: static: 203.0.113.1 becomes itself"}},
		{"stateless hairpin", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1, stateless: on, hairpin: on}"),
			[]string{"4 on refuse stateless-needs-tracker: static: hairpin needs connections, and stateless has none"}},
		{"stateless local", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1, stateless: on, local: on}"),
			[]string{"4 on refuse stateless-needs-tracker: static: local needs connections, and stateless has none"}},
		{"netmap of other length", inFile("netmap: {inside: 10.0.0.0/16, outside: 203.0.113.0/24}"),
			[]string{"4 203.0.113.0/24 refuse netmap-lengths: netmap: inside is a /16, outside a /24: every address inside needs one of its own outside"}},
		{"NPTv6 too long", inFile6("netmap: {inside: 'fd00::/120', outside: '2001:db8::/120', stateless: on}"),
			[]string{"4 fd00::/120 refuse nptv6-prefix: netmap: /120 is too long for NPTv6, which keeps checksums right in the last 64 bits (RFC 6296, 3.5)"}},
	})
}

// TestCheckConditions: what a rule asks for besides addresses.
func TestCheckConditions(t *testing.T) {
	runChecks(t, Facts{}, []checkCase{
		{"on any", inFile("dnat: {on: any, port: tcp/80, to: ':3128'}"), []string{"4 any refuse takes-everything: dnat: on any takes what comes from everywhere, and for everybody"}},
		{"on any, with from", inFile("dnat: {on: any, from: 10.0.0.0/8, port: tcp/80, to: ':3128'}"), nil},
		{"hairpin to itself", inFile("dnat: {on: wan, port: tcp/80, to: ':3128', hairpin: on}"), []string{"4 on refuse hairpin-to-itself: dnat: what becomes the gateway's own port comes back to no host inside"}},
		{"hairpin on any", inFile("dnat: {on: any, in: lan, to: 10.0.0.1, hairpin: on}"), []string{"4 on refuse hairpin-on-any: dnat: hairpin is about an address of the gateway"}},
		{"shifted", inFile("dnat: {on: wan, port: tcp/8000-8010, to: '10.0.0.1:9000-9010'}"), nil},
		{"shifted by other ports", inFile("dnat: {on: wan, port: tcp/8000-8010, to: '10.0.0.1:9000-9011'}"), []string{"4 10.0.0.1:9000-9011 refuse ports-differ: dnat: to 10.0.0.1:9000-9011 has 12 ports: port has to be one range of as many"}},
		{"shifted without ports", inFile("dnat: {on: wan, port: tcp, to: '10.0.0.1:9000-9011'}"), []string{"4 10.0.0.1:9000-9011 refuse ports-differ: dnat: to 10.0.0.1:9000-9011 has 12 ports: port has to be one range of as many"}},
		{"all to one", inFile("dnat: {on: wan, port: tcp/8000-8010, to: '10.0.0.1:9000'}"), []string{"4 10.0.0.1:9000 warn ports-to-one: dnat: the 11 ports of tcp/8000-8010 all go to the one port of 10.0.0.1:9000"}},
		{"redirected without a protocol", inFile("dnat: {on: wan, to: ':3128'}"), []string{"4 :3128 refuse port-without-protocol: dnat: to :3128 has a port, but the rule is not for a protocol that has ports"}},
		{"own programs by an interface", inFile("snat: {user: 33, in: lan, to: 203.0.113.1}"), []string{"4 lan refuse own-programs-come-in: snat: what programs on the gateway send comes in by no interface: with user or group no packet matches"}},
		{"many excepted", inFile("masquerade: {except-port: tcp/1-2000}"), []string{"4 tcp/1-2000 refuse too-many-excepted: masquerade: except-port tcp/1-2000 is 2000 ports"}},
		{"a log of what is not tracked", inFile("{notrack: {on: 203.0.113.10}, log: on}", "{static: {inside: 10.0.0.1, outside: 203.0.113.9, stateless: on}, log: {rate: 1/s}}"), []string{
			"4 on refuse log-needs-tracker: notrack: log is about the first packet of a connection, and what is not tracked has none",
			"5 {rate: refuse log-needs-tracker: static: log is about the first packet of a connection, and what is not tracked has none"}},
		{"a name and a note", inFile("{notrack: {on: 203.0.113.10}, log: on, name: voice, note: until May}", "{static: {inside: 10.0.0.1, outside: 10.0.0.1}, note: a slip}"), []string{
			"4 on refuse log-needs-tracker: notrack voice (until May): log is about the first packet of a connection, and what is not tracked has none",
			"5 10.0.0.1 refuse translates-to-itself: static (a slip): 10.0.0.1 becomes itself"}},
		{"other families", inFile("nat46: {prefix: '64:ff9b::/96'}", "nat64: {prefix: '64:ff9b::/96', from: 'fd00::/8', to: 203.0.113.8}"), []string{
			"4 nat46: refuse no-family-change: nat46: netfilter does not translate between IPv6 and IPv4, and no engine of this version does",
			"5 nat64: refuse no-family-change: nat64: netfilter does not translate between IPv6 and IPv4, and no engine of this version does"}},
		{"fields of other families", inFile("nat46: {prefix: 10.0.0.0/8, from: 10.0.0.1, to: 203.0.113.8}", "nat64: {prefix: '64:ff9b::/96', from: [10.0.0.1, 'fd00::/8'], to: '2001:db8::1'}"), []string{
			"4 nat46: refuse no-family-change: nat46: netfilter does not translate between IPv6 and IPv4, and no engine of this version does",
			"4 10.0.0.0/8 refuse wrong-family: nat46: 10.0.0.0-10.255.255.255 is not IPv6, which prefix of nat46 has",
			"4 203.0.113.8 refuse wrong-family: nat46: 203.0.113.8 is not IPv6, which to of nat46 has",
			"5 nat64: refuse no-family-change: nat64: netfilter does not translate between IPv6 and IPv4, and no engine of this version does",
			"5 10.0.0.1 refuse wrong-family: nat64: 10.0.0.1 is not IPv6, which from of nat64 has",
			"5 2001:db8::1 refuse wrong-family: nat64: 2001:db8::1 is not IPv4, which to of nat64 has"}},
		{"shadowed beside a rule that is refused", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.1}", "snat: {from: 10.1.0.0/16, to: 127.0.0.1}", "{snat: {from: 10.0.0.0/8, out: eth2, to: 203.0.113.1}, prefer: 1}", "masquerade: {from: 10.0.0.0/8, out: eth2}"), []string{
			"5 127.0.0.1 refuse unusable-address: snat: 127.0.0.1 is a loopback address, which no packet from or to another host carries",
			"7 10.0.0.0/8 refuse rule-never-matches: masquerade: it can never match: snat in line 6 matches first whatever it is for"}},
		{"shadowed beside rules that overlap", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.1}", "masquerade: {from: 10.0.0.0/8}", "{snat: {from: 10.0.0.0/8, out: eth2, to: 203.0.113.1}, prefer: 1}", "masquerade: {from: 10.0.0.0/8, out: eth2}"), []string{
			"5 10.0.0.0/8 refuse rules-overlap: masquerade: snat in line 4 translates the source of 10.0.0.0/8 too, and neither takes precedence",
			"7 10.0.0.0/8 refuse rule-never-matches: masquerade: it can never match: snat in line 6 matches first whatever it is for"}},
		{"times of which one is never", inFile("masquerade: {utc-hours: 08:00-18:00, except-utc-hours: [06:00-12:00, 12:00-20:00]}"), []string{
			"4 masquerade: refuse rule-never-matches: masquerade: it can never match: what it excepts is all that it asks for"}},
		{"times that meet", inFile("snat: {from: 10.0.0.0/8, utc-hours: 22:00-06:00, to: 203.0.113.8}", "snat: {from: 10.0.0.0/8, utc-hours: 05:59-22:00, to: 203.0.113.9}"), []string{
			"5 10.0.0.0/8 refuse rules-overlap: snat: snat in line 4 translates the source of 10.0.0.0/8 too, and neither takes precedence"}},
		{"times that do not", inFile("snat: {from: 10.0.0.0/8, utc-hours: 22:00-06:00, to: 203.0.113.8}", "snat: {from: 10.0.0.0/8, utc-hours: 06:00-22:00, to: 203.0.113.9}"), nil},
		{"groups beside names", "gateway:\n  interfaces: {wan: eth0, lan: [group 10, group 11]}\n  nat:\n  - masquerade: {in: [lan, eth7]}\n  - dnat: {on: wan, in: lan, to: 10.0.0.1}\n", []string{
			"4 [lan refuse names-and-groups: masquerade: in: names of interfaces and link groups are not asked for together: write one rule for each, or put the interfaces into the group (ip link set dev NAME group N)"}},
		{"stateless by a group", "gateway:\n  interfaces: {wan: group 10}\n  nat:\n  - static: {inside: 10.0.0.1, outside: 203.0.113.9, stateless: on}\n", []string{
			"4 on refuse stateless-by-group: static: stateless asks the routes for the interface by which a packet will leave, which they name without its link group"}},
		{"both roles by a pattern", "gateway:\n  interfaces: {wan: \"ppp*\", lan: [eth0, ppp7]}\n  nat: [masquerade: {}]\n", []string{"2 ppp7 refuse both-roles: ppp7 is a wan and a lan interface"}},
		{"by a pattern and by one of it", inFile("snat: {from: 10.0.0.0/8, out: ppp*, to: 203.0.113.8}", "snat: {from: 10.0.0.0/8, out: ppp0, to: 203.0.113.9}", "snat: {from: 10.0.0.0/8, out: group 3, to: 203.0.113.9}"), []string{
			"6 10.0.0.0/8 refuse rules-overlap: snat: snat in line 4 translates the source of 10.0.0.0/8 too, and neither takes precedence"}},
		{"groups are apart", inFile("snat: {from: 10.0.0.0/8, out: group 4, to: 203.0.113.8}", "snat: {from: 10.0.0.0/8, out: group 3, to: 203.0.113.9}"), nil},
		{"a static that holds one way", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.9, user: 33}", "static: {inside: 10.0.0.2, outside: 203.0.113.10, except-from: 10.0.0.0/8}"), []string{
			"4 static: refuse not-both-ways: static: what comes from outside has no user, so that user and group hold one way only",
			"5 10.0.0.0/8 refuse not-both-ways: static: from is one end on the way out and the other one on the way in"}},
		{"a static without connections", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.9, stateless: on, port: tcp/80}"), []string{
			"4 on refuse stateless-needs-tracker: static: what a rule asks for is asked of the first packet of a connection, and stateless has none"}},
		{"statics that differ in what they ask for", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.9, port: tcp/80}", "static: {inside: 10.0.0.2, outside: 203.0.113.9, port: tcp/81, only-to: 198.18.0.0/15}"), nil},
		{"a static for more of the same", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.9, port: tcp/80}", "static: {inside: 10.0.0.2, outside: 203.0.113.9}"), nil},
		{"two statics", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.9, mark: 1}", "static: {inside: 10.0.0.2, outside: 203.0.113.9, mark: 1}"), []string{
			"5 203.0.113.9 refuse rules-overlap: static: static in line 4 translates 203.0.113.9 too, and neither takes precedence"}},
		{"helpers and a TTL without roles", "gateway:\n  helpers: ftp\n  ttl: 64\n  nat: [snat: {only-to: 198.18.0.0/15, to: 203.0.113.8}]\n", []string{
			"2 ftp refuse helpers-without-roles: helpers: they are for connections from inside, but the file names no interfaces that lead there",
			"3 64 refuse ttl-without-wan: ttl: it is for packets that leave by wan, and no interface has that role"}},
		{"helpers, and a TTL on the fast path", "gateway:\n  interfaces: {wan: eth0}\n  flowtable: on\n  helpers: [sip, ftp]\n  ttl: 64\n  nat: [masquerade: {}]\n", []string{
			"4 [sip notice helpers-open: helpers: the kernel reads what clients and servers write, and lets in the connections that they announce, as RELATED: who controls one of the two can have a port of a host inside opened",
			"5 64 warn ttl-and-flowtable: ttl: packets on the fast path come to no chain, and keep theirs"}},
		{"a misspelt role", inFile("masquerade: {out: wann}", "masquerade: {from: 10.0.0.0/8, out: ppp0}"), []string{
			"4 wann warn interface-missing: masquerade: interface wann does not exist, as far as is known: its rules have no effect until it appears"}},
		{"a name twice", inFile("{masquerade: {}, name: all}", "{dnat: {on: wan, port: tcp/80, to: 10.0.0.1}, name: all}"), []string{"5 all refuse name-twice: all is the name of masquerade in line 4 as well"}},
		{"of the other family", inFile("masquerade: {only-to: 'fd00::/8'}"), []string{"4 fd00::/8 refuse wrong-family: masquerade: fd00::/8 is not IPv4, which the rules below nat are for"}},
		{"icmp of the other family", inFile("masquerade: {except-port: [tcp/80, icmpv6]}"), []string{"4 icmpv6 refuse wrong-family: masquerade: icmpv6 is of IPv6"}},
		{"an interface without a role", "gateway:\n  nat:\n  - masquerade: {in: lan}\n", []string{"3 masquerade: warn any-interface: masquerade: no interface has the role wan, so that this holds for packets by whatever interface they leave, between hosts inside too",
			"3 lan refuse role-empty: masquerade: no interface has the role lan"}},
	})
}

// TestCheckInbound: rules about sources know by which interface a connection came in since Linux 5.5.
func TestCheckInbound(t *testing.T) {
	old := router
	old.Kernel.Release = "5.4.0-42-generic"
	runChecks(t, old, []checkCase{{"in", inFile("masquerade: {from: 192.168.0.0/24, in: eth1}"),
		[]string{"2 br0 warn interface-missing: interface br0 does not exist: its rules have no effect until it appears", "4 eth1 refuse no-inbound-interface: masquerade: the interface by which a connection came in is known to rules about sources since Linux 5.5, this is 5.4.0-42-generic"}}})
}

func TestCheckInterfaces(t *testing.T) {
	runChecks(t, Facts{}, []checkCase{
		{"no role", "gateway:\n  nat:\n  - masquerade: {from: 10.0.0.0/8, out: wan}\n",
			[]string{"3 wan refuse role-empty: masquerade: no interface has the role wan"}},
		{"no role for destinations", "gateway:\n  nat:\n  - dnat: {on: lan, port: tcp/80, to: 10.0.0.1}\n",
			[]string{"3 lan refuse role-empty: dnat: no interface has the role lan"}},
		{"both", "gateway: {interfaces: {wan: eth0, lan: [eth1, eth0]}}", []string{"1 eth0 refuse both-roles: eth0 is a wan and a lan interface"}},
		{"hairpin without", "gateway:\n  nat:\n  - dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1, hairpin: on}\n",
			[]string{"3 on refuse hairpin-without-roles: dnat: hairpin is for hosts inside, but the file names no interfaces that lead there"}},
		{"any", "gateway:\n  nat:\n  - masquerade: {from: 10.0.0.0/8}\n  - snat: {from: 10.0.0.1, to: 203.0.113.1}\n",
			[]string{"3 masquerade: warn any-interface: masquerade: no interface has the role wan, so that this holds for packets by whatever interface they leave, between hosts inside too"}},
		{"named", "gateway:\n  nat:\n  - masquerade: {from: 10.0.0.0/8, out: eth0}\n", nil},
		{"inside", inFile("masquerade: {from: 10.0.0.0/8, out: [eth0, br0]}"),
			[]string{"4 br0 warn out-is-lan: masquerade: br0 leads inside: hosts there see the address of the gateway in place of that of who connects"}},
	})
}

func TestCheckOverlaps(t *testing.T) {
	const tail = " too, and neither takes precedence"
	runChecks(t, Facts{}, []checkCase{
		{"same sources", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.1}", "masquerade: {from: [172.16.0.0/12, 10.0.0.0/8]}"),
			[]string{"5 [172.16.0.0/12 refuse rules-overlap: masquerade: snat in line 4 translates the source of 10.0.0.0/8" + tail}},
		{"everybody twice", inFile("masquerade: {}", "masquerade: {}"), []string{"5 masquerade: refuse rules-overlap: masquerade: masquerade in line 4 translates the source of everybody" + tail}},
		{"everybody and all addresses", inFile("masquerade: {}", "snat: {from: 0.0.0.0/0, to: 203.0.113.1}"),
			[]string{"5 0.0.0.0/0 refuse rules-overlap: snat: masquerade in line 4 translates the source of everybody" + tail}},
		{"by other interfaces", inFile("masquerade: {from: 10.0.0.0/8, out: eth0}", "masquerade: {from: 10.0.0.0/8, out: eth9}"), nil},
		{"longer prefix", inFile("masquerade: {from: 10.0.0.0/8}", "masquerade: {from: 10.0.0.0/9}"), nil},
		{"inside twice", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1}", "static: {inside: 10.0.0.1, outside: 203.0.113.2}"),
			[]string{"5 10.0.0.1 refuse rules-overlap: static: static in line 4 translates the source of 10.0.0.1" + tail}},
		{"outside twice", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1}", "static: {inside: 10.0.0.2, outside: 203.0.113.1}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: static: static in line 4 translates 203.0.113.1" + tail}},
		{"outside twice, one for hairpins", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1, hairpin: on}", "static: {inside: 10.0.0.2, outside: 203.0.113.1}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: static: static in line 4 translates 203.0.113.1" + tail}},
		{"same port", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.2}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: dnat: dnat in line 4 translates tcp/80 of 203.0.113.1" + tail}},
		{"ranges", inFile("dnat: {on: 203.0.113.1, port: tcp/80-90, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/85-95, to: 10.0.0.2}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: dnat: dnat in line 4 translates tcp/85-90 of 203.0.113.1" + tail}},
		{"port in a range", inFile("dnat: {on: 203.0.113.1, port: tcp/80-90, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/85, to: 10.0.0.2}"), nil},
		{"two protocols", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: udp/80, to: 10.0.0.2}"), nil},
		{"clients", inFile("dnat: {on: 203.0.113.1, port: tcp/80, from: 198.18.0.0/16, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.2}"), nil},
		{"names", inFile("dnat: {on: wan, port: tcp/80, to: 10.0.0.1}", "dnat: {on: eth0, port: tcp/80, to: 10.0.0.2}"),
			[]string{"5 eth0 refuse rules-overlap: dnat: dnat in line 4 translates tcp/80 of the interface's address" + tail}},
		{"other names", inFile("dnat: {on: eth1, port: tcp/80, to: 10.0.0.1}", "dnat: {on: eth0, port: tcp/80, to: 10.0.0.2}"), nil},
		{"stateless", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1, stateless: on}", "static: {inside: 10.0.0.2, outside: 203.0.113.1, stateless: on}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: static: static in line 4 translates 203.0.113.1" + tail}},
		{"notrack", inFile("notrack: {on: 203.0.113.1, port: udp/53}", "notrack: {on: 203.0.113.1, port: udp/53}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: notrack: notrack in line 4 leaves udp/53 of 203.0.113.1 untracked" + tail}},
		{"IPv6", inFile6("masquerade: {from: 'fd00::/8'}", "snat: {from: 'fd00::/8', to: '2001:db8::1'}"),
			[]string{"5 fd00::/8 refuse rules-overlap: snat: masquerade in line 4 translates the source of fd00::/8" + tail}},
		{"one asks for a mark", inFile("snat: {from: 10.0.0.0/8, mark: 0x1, to: 203.0.113.1}", "masquerade: {from: 10.0.0.0/8}"), nil},
		{"a mark and a DSCP", inFile("snat: {from: 10.0.0.0/8, mark: 0x1, to: 203.0.113.1}", "snat: {from: 10.0.0.0/8, dscp: ef, to: 203.0.113.2}"),
			[]string{"5 10.0.0.0/8 refuse rules-overlap: snat: snat in line 4 translates the source of 10.0.0.0/8" + tail}},
		{"other marks", inFile("snat: {from: 10.0.0.0/8, mark: 0x1/0x1, to: 203.0.113.1}", "snat: {from: 10.0.0.0/8, mark: 0x0/0x1, to: 203.0.113.2}"), nil},
		{"marks of other bits", inFile("snat: {from: 10.0.0.0/8, mark: 0x1/0x1, to: 203.0.113.1}", "snat: {from: 10.0.0.0/8, mark: 0x2/0x2, to: 203.0.113.2}"),
			[]string{"5 10.0.0.0/8 refuse rules-overlap: snat: snat in line 4 translates the source of 10.0.0.0/8" + tail}},
		{"preferred", inFile("{snat: {from: 10.0.0.0/8, mark: 0x1, to: 203.0.113.1}, prefer: 1}", "snat: {from: 10.0.0.0/8, dscp: ef, to: 203.0.113.2}"), nil},
		{"disabled", inFile("{masquerade: {}, enabled: off}", "masquerade: {}"), nil},
		{"one of several services", inFile("dnat: {on: 203.0.113.1, port: [tcp/80, udp/443], to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: [tcp/443, udp/443], to: 10.0.0.2}"),
			[]string{"5 203.0.113.1 refuse rules-overlap: dnat: dnat in line 4 translates udp/443 of 203.0.113.1" + tail}},
		{"by the interface that each comes by", inFile("dnat: {on: any, in: eth1, port: tcp/80, to: ':3128'}", "dnat: {on: any, in: br0, port: tcp/80, to: ':3129'}"), nil},
		{"redirects", inFile("dnat: {on: any, in: lan, port: [tcp/80, tcp/81], to: ':3128'}", "dnat: {on: any, in: lan, port: [tcp/80, tcp/82], to: ':3129'}"),
			[]string{"5 any refuse rules-overlap: dnat: dnat in line 4 translates tcp/80 of 0.0.0.0/0" + tail}},
		{"some of the destinations", inFile("snat: {from: 10.0.0.0/8, only-to: [198.18.0.0/24, 198.18.1.0/24], to: 203.0.113.1}", "snat: {from: 10.0.0.0/8, only-to: [198.18.1.0/24, 198.18.2.0/24], to: 203.0.113.2}"),
			[]string{"5 10.0.0.0/8 refuse rules-overlap: snat: snat in line 4 translates the source of 10.0.0.0/8" + tail}},
		{"beside the default, by another interface", inFile("dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.7, in: lan, port: tcp/80, to: 10.0.0.3}"), nil},
		{"beside the default, but for an interface", inFile("dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.7, except-in: eth0, port: tcp/80, to: 10.0.0.3}"), nil},
		{"beside the default, own programs", inFile("dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2, local: on}", "dnat: {on: 203.0.113.7, user: 33, port: tcp/80, to: 10.0.0.3}"), nil},
		{"beside the default, a mark and hairpin", inFile("dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.7, mark: 4, hairpin: on, port: tcp/80, to: 10.0.0.3}"), nil},
		{"by the interface that each leaves by", inFile("snat: {from: 10.0.0.0/8, except-out: br0, to: 203.0.113.1}", "{snat: {from: 10.0.0.0/8, except-out: br1, to: 203.0.113.2}, prefer: 1}"), nil},
		{"any but for some", inFile("dnat: {on: any, only-to: 198.18.0.0/24, port: tcp/80, to: 10.0.0.1}", "dnat: {on: any, in: lan, except-to: 198.18.0.0/15, port: tcp/80, to: 10.0.0.2}"), nil},
		{"of other users", inFile("snat: {user: 33, to: 203.0.113.1}", "snat: {user: [34, 40-50], to: 203.0.113.2}"), nil},
		{"both families", inFile("masquerade: {}") + "  ipv6:\n  - masquerade: {}\n", nil},
	})
}

func TestCheckShadows(t *testing.T) {
	runChecks(t, Facts{}, []checkCase{
		{"by two halves", inFile("masquerade: {from: 10.0.0.0/24}", "snat: {from: 10.0.0.0/25, to: 203.0.113.1}", "snat: {from: 10.0.0.128/25, to: 203.0.113.2}"),
			[]string{"4 10.0.0.0/24 refuse rule-never-matches: masquerade: it can never match: snat in line 5 and snat in line 6 match first whatever it is for"}},
		{"half is left", inFile("masquerade: {from: 10.0.0.0/24}", "snat: {from: 10.0.0.0/25, to: 203.0.113.1}"), nil},
		{"one of them by another interface", inFile("masquerade: {from: 10.0.0.0/24}", "snat: {from: 10.0.0.0/25, to: 203.0.113.1}", "snat: {from: 10.0.0.128/25, to: 203.0.113.2, out: eth9}"), nil},
		{"by static", inFile("snat: {from: 10.0.0.1, to: 203.0.113.1}", "static: {inside: 10.0.0.1, outside: 203.0.113.2}"),
			[]string{"4 10.0.0.1 refuse rule-never-matches: snat: it can never match: static in line 5 matches first whatever it is for"}},
		{"static on the way out", inFile("static: {inside: 10.0.0.1, outside: 203.0.113.1}", "static: {inside: 10.0.0.1, outside: 203.0.113.2, stateless: on}"),
			[]string{"4 10.0.0.1 refuse rule-never-matches: static: on the way out it can never match: static in line 5 matches first whatever it is for"}},
		{"by netmap", inFile("snat: {from: 10.0.0.0/25, to: 203.0.113.1}", "netmap: {inside: 10.0.0.0/24, outside: 198.51.100.0/24}"),
			[]string{"4 10.0.0.0/25 refuse rule-never-matches: snat: it can never match: netmap in line 5 matches first whatever it is for"}},
		{"the rest of except-to", inFile("masquerade: {from: 10.0.0.0/8, except-to: 10.0.0.0/8}", "snat: {from: 10.0.0.0/8, to: 10.255.0.1}"), nil},
		{"ports by ports", inFile("dnat: {on: 203.0.113.1, port: tcp/80-82, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.1, port: tcp/81-82, to: 10.0.0.3}"),
			[]string{"4 203.0.113.1 refuse rule-never-matches: dnat: it can never match: dnat in line 5 and dnat in line 6 match first whatever it is for"}},
		{"ports by ports that begin before", inFile("dnat: {on: 203.0.113.1, port: tcp/82-84, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/81-82, to: 10.0.0.2}", "dnat: {on: 203.0.113.1, port: tcp/83-84, to: 10.0.0.3}"),
			[]string{"4 203.0.113.1 refuse rule-never-matches: dnat: it can never match: dnat in line 5 and dnat in line 6 match first whatever it is for"}},
		{"ports of another protocol", inFile("dnat: {on: 203.0.113.1, port: tcp/80-82, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.2}", "dnat: {on: 203.0.113.1, port: udp/81-82, to: 10.0.0.3}"), nil},
		{"clients by clients", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}", "dnat: {on: 203.0.113.1, port: tcp/80, from: [0.0.0.0/1, 128.0.0.0/1], to: 10.0.0.2}"),
			[]string{"4 203.0.113.1 refuse rule-never-matches: dnat: it can never match: dnat in line 5 matches first whatever it is for"}},
		{"prefix by addresses", inFile("netmap: {inside: 10.0.0.0/31, outside: 203.0.113.2/31}", "dnat: {on: 203.0.113.2, to: 10.0.0.5}", "dnat: {on: 203.0.113.3, to: 10.0.0.5}"),
			[]string{"4 203.0.113.2/31 refuse rule-never-matches: netmap: on the way in it can never match: dnat in line 5 and dnat in line 6 match first whatever it is for"}},
		{"dnat by notrack", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}", "notrack: {on: 203.0.113.1}"),
			[]string{"4 203.0.113.1 refuse rule-never-matches: dnat: it can never match: notrack in line 5 matches first whatever it is for",
				"5 203.0.113.1 warn notrack-before: notrack: tcp/80 of 203.0.113.1 is not tracked, so that dnat in line 4 does not translate it"}},
		{"a part of dnat by notrack", inFile("dnat: {on: 203.0.113.1, port: tcp/80-90, to: 10.0.0.1}", "notrack: {on: 203.0.113.1, port: tcp/85-99}"),
			[]string{"5 203.0.113.1 warn notrack-before: notrack: tcp/85-90 of 203.0.113.1 is not tracked, so that dnat in line 4 does not translate it"}},
		{"clients but for some, and those", inFile("masquerade: {from: 10.0.0.0/24}", "snat: {from: 10.0.0.0/24, except-from: 10.0.0.7, to: 203.0.113.1}"), nil},
		{"the gateway's own programs, and others", inFile("dnat: {on: any, from: 0.0.0.0/0, to: 10.0.0.1}", "dnat: {on: any, user: 0-4294967295, to: 10.0.0.2}"), nil},
		{"the gateway's own programs, and others as specific", inFile("dnat: {on: any, user: 33, except-dscp: cs1, to: 10.0.0.1}", "dnat: {on: any, mark: 1, dscp: ef, to: 10.0.0.2}"), nil},
		{"the gateway's own programs, and all", inFile("dnat: {on: any, from: 0.0.0.0/0, to: 10.0.0.1, local: on}", "dnat: {on: any, user: 33, to: 10.0.0.2}"),
			[]string{"5 any refuse rule-never-matches: dnat: it can never match: dnat in line 4 matches first whatever it is for"}},
		{"a destination of another rule", inFile("snat: {from: 10.0.0.0/24, only-to: 198.18.0.1, port: tcp/80, to: 203.0.113.1}", "snat: {from: 10.0.0.0/24, only-to: 198.18.0.0/24, to: 203.0.113.2}"), nil},
		{"a mark by fewer of its bits", inFile("snat: {from: 10.0.0.0/24, mark: 0x3, to: 203.0.113.1}", "snat: {from: 10.0.0.0/25, mark: 0x1/0x1, to: 203.0.113.2}", "snat: {from: 10.0.0.128/25, mark: 0x2/0x2, to: 203.0.113.2}"),
			[]string{"4 10.0.0.0/24 refuse rule-never-matches: snat: it can never match: snat in line 5 and snat in line 6 match first whatever it is for"}},
		{"dnat by stateless", inFile("dnat: {on: 203.0.113.1, port: tcp/80, to: 10.0.0.1}", "static: {inside: 10.0.0.2, outside: 203.0.113.1, stateless: on}"),
			[]string{"4 203.0.113.1 refuse rule-never-matches: dnat: it can never match: static in line 5 matches first whatever it is for"}},
	})
}

func TestCheckPools(t *testing.T) {
	const keep = " whose ports are kept: no more hosts than addresses can use the same source port to one destination at a time; others fail, and are counted"
	runChecks(t, Facts{}, []checkCase{
		{"fewer addresses than hosts", inFile("snat: {from: [10.2.0.0/24, 10.3.0.1], to: [203.0.113.32/27, 203.0.113.33], ports: keep}"),
			[]string{"4 [203.0.113.32/27 warn keep-pool-small: snat: 32 addresses for 255 hosts" + keep}},
		{"as many", inFile("snat: {from: 10.2.0.0/27, to: 203.0.113.33-203.0.113.62, ports: keep}"), nil},
		{"everybody", inFile("snat: {to: 203.0.113.33, ports: keep}"), []string{"4 203.0.113.33 warn keep-pool-small: snat: 1 address for any number of hosts" + keep}},
		{"IPv6", inFile6("snat: {from: 'fd00::/64', to: '2001:db8::1', ports: keep}"), []string{"4 2001:db8::1 warn keep-pool-small: snat: 1 address for 2^63 hosts or more" + keep}},
		{"held", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.8/29}", "notrack: {on: 203.0.113.10}", "static: {inside: 10.0.0.5, outside: 203.0.113.9, stateless: on}"),
			[]string{"4 203.0.113.8/29 warn pool-held: snat: 203.0.113.9 is not given: it is that of static in line 6, and answers would not find back",
				"4 203.0.113.8/29 warn pool-held: snat: 203.0.113.10 is not given: it is that of notrack in line 5, and answers would not find back"}},
		{"a port that is not given", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.8/29}", "notrack: {on: 203.0.113.10, port: udp/53}"), nil},
		{"a port that is given", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.10, ports: 50-60}", "notrack: {on: 203.0.113.10, port: udp/53}"),
			[]string{"4 203.0.113.10 refuse pool-held: snat: nothing is left to give: notrack in line 5 has the addresses, and answers to them would not find back"}},
		{"shared", inFile("snat: {from: 10.0.0.0/8, to: 203.0.113.1-203.0.113.9}", "netmap: {inside: 172.16.0.0/30, outside: 203.0.113.8/30}"),
			[]string{"4 203.0.113.1-203.0.113.9 warn pool-shared: snat: 203.0.113.8-203.0.113.9 is also that of netmap in line 5: its host may find its own ports given away"}},
		{"too many connections", "gateway:\n  expect: {flows: 200k}\n" + strings.TrimPrefix(inFile("snat: {from: 10.0.0.0/8, to: [203.0.113.1, 203.0.113.2]}", "masquerade: {from: 172.16.0.0/12}"), "gateway:\n"),
			[]string{"2 200k warn pool-small: 200,000 connections are expected, and the rules have 193,536 ports to give for each protocol and destination: more than those cannot go to one address and port"}},
		{"enough", "gateway:\n  expect: {flows: 190k}\n" + strings.TrimPrefix(inFile("snat: {from: 10.0.0.0/8, to: [203.0.113.1, 203.0.113.2]}", "masquerade: {from: 172.16.0.0/12}"), "gateway:\n"), nil},
		{"one host for all", "gateway: {expect: {flows: 1k}, limits: {connections-per-source: 2k}}",
			[]string{"1 2k warn limit-without-effect: one host may have 2,000 connections, and 1,000 are expected of all together: it bounds nothing"}},
	})
}
