package behaviour

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// policyForms are rules with further conditions, beside some without.
var policyForms4 = []string{
	"snat: {from: FROM, except-out: OUT, to: POOL}", "dnat: {on: any, in: OUT, only-to: [203.0.113.9, 198.18.1.0/24], port: PORT, to: TARGET}",
	"dnat: {on: any, from: FROM, except-to: EXCEPT, port: PORT, to: TARGET}",
	"masquerade: {from: FROM}", "snat: {from: FROM, to: POOL}", "dnat: {on: ON, port: PORT, to: TARGET, hairpin: BOOL}", "static: {inside: HOST, outside: ON, hairpin: BOOL}", "static: {inside: HOST, outside: ON}",
	"snat: {from: FROM, only-to: EXCEPT, to: POOL}", "snat: {from: FROM, port: SERVICES, to: POOL}", "snat: {only-to: EXCEPT, port: SERVICES, to: POOL, ports: PORTS}",
	"masquerade: {from: FROM, in: OUT}", "masquerade: {from: FROM, except-in: OUT}", "masquerade: {except-from: FROM, except-port: SERVICES}",
	"snat: {from: FROM, mark: MARK, to: POOL}", "snat: {from: FROM, except-mark: MARK, to: POOL}", "snat: {mark: MARK, to: [POOL, 203.0.113.90-203.0.113.95]}",
	"snat: {from: FROM, dscp: CLASS, to: POOL}", "snat: {from: FROM, except-dscp: CLASS, to: POOL}", "masquerade: {dscp: CLASS, mark: MARK, only-to: EXCEPT}",
	"snat: {user: 0, to: POOL}", "snat: {except-user: 1-4294967295, except-group: [7, 9-11], to: POOL}", "snat: {user: [1, 5-9], to: POOL}", "masquerade: {except-user: 0}",
	"dnat: {on: ON, port: SERVICES, to: TARGET, except-from: CLIENTS}", "dnat: {on: ON, port: udp/50-60, to: \"TARGET:5050-5060\", hairpin: BOOL}",
	"dnat: {on: wan, port: SERVICES, to: TARGET, hairpin: BOOL}", "dnat: {on: ON, port: SERVICES, mark: MARK, to: TARGET}", "dnat: {on: ON, except-dscp: CLASS, to: TARGET, local: BOOL}",
	"dnat: {on: ON, in: OUT, to: TARGET}", "dnat: {on: ON, except-in: OUT, except-port: SERVICES, to: TARGET}", "dnat: {on: any, in: OUT, port: SERVICES, to: TARGET}",
	"dnat: {on: any, user: 0, port: SERVICES, to: TARGET}", "dnat: {on: ON, user: 3, port: udp/53, to: TARGET}", "dnat: {on: any, in: lan, except-from: 192.168.0.2, port: SERVICES, to: \":5353\"}",
	"dnat: {on: ON, port: udp/40-1040, to: \"TARGET:2040-3040\"}",
	"snat: {from: SET, to: POOL}", "masquerade: {from: [SET, 192.168.0.2], except-to: EXCEPT}", "snat: {from: FROM, only-to: [SET, 198.18.1.1], port: $web, to: POOL}",
	"masquerade: {from: FROM, except-from: SET, except-to: SET, except-port: $web}", "snat: {from: SET, except-to: $none, port: [$web, tcp/80], to: POOL}",
	"dnat: {on: ON, port: [$web, udp/53], from: SET, to: TARGET, hairpin: BOOL}", "dnat: {on: ON, except-from: SET, port: $web, to: TARGET, hairpin: BOOL, local: BOOL}",
	"dnat: {on: ON, port: $web, to: \"TARGET:9090\", hairpin: BOOL}", "dnat: {on: any, in: OUT, port: $web, except-to: SET, to: TARGET}", "dnat: {on: any, in: OUT, only-to: [SET, 203.0.113.9], to: TARGET}",
	"dnat: {on: ON, port: SERVICES, mark: MARK, to: [192.168.0.2, 192.168.0.3], health: {tcp: on, port: 9}}", "dnat: {on: ON, port: udp/53, to: [192.168.0.2, 192.168.0.3], balance: hash, health: {tcp: on, port: 9}, all-down: last, local: BOOL}",
	"masquerade: {from: FROM, in: SEVERAL}", "masquerade: {from: FROM, except-in: SEVERAL}", "snat: {from: FROM, out: SEVERAL, to: POOL}", "snat: {from: FROM, except-out: SEVERAL, to: POOL}",
	"dnat: {on: ON, in: SEVERAL, to: TARGET}", "dnat: {on: ON, except-in: SEVERAL, port: SERVICES, to: TARGET}", "dnat: {on: \"w*\", port: PORT, to: TARGET, hairpin: BOOL}", "dnat: {on: group 0, port: SERVICES, to: TARGET}",
	"static: {inside: HOST, outside: ON, port: SERVICES, hairpin: BOOL}", "static: {inside: HOST, outside: ON, only-to: EXCEPT, except-port: PORT, local: BOOL}",
	"static: {inside: HOST, outside: ON, except-to: EXCEPT, mark: MARK, hairpin: BOOL}", "static: {inside: HOST, outside: ON, in: SEVERAL, except-out: OUT}", "static: {inside: HOST, outside: ON, except-in: OUT, out: SEVERAL, except-dscp: CLASS}",
	"static: {inside: HOST, outside: ON, utc-hours: HOURS, except-mark: MARK, port: PORT}",
	"static: {pairs: $floating, local: BOOL}", "static: {pairs: $floating, port: SERVICES, except-to: SET}", "static: {pairs: $floating, stateless: true}", "static: {pairs: $floating, except-port: $web, mark: MARK}",
	"static: {inside: HOST, outside: ON, only-to: [SET, 198.18.1.1], except-port: $web, hairpin: BOOL}", "static: {inside: HOST, outside: ON, port: [$web, udp/53], except-to: SET}",
	"snat: {from: FROM, utc-hours: HOURS, to: POOL}", "masquerade: {except-utc-hours: HOURS, utc-days: DAYS}", "snat: {from: FROM, except-utc-days: DAYS, dscp: CLASS, to: POOL}",
	"dnat: {on: ON, port: SERVICES, utc-hours: HOURS, to: TARGET, hairpin: BOOL}", "dnat: {on: ON, except-utc-hours: HOURS, except-utc-days: DAYS, to: TARGET, local: BOOL}",
	"dnat: {on: ON, port: SERVICES, except-port: PORT, mark: MARK, to: TARGET, hairpin: BOOL}", "{snat: {from: FROM, port: SERVICES, to: POOL}, note: it says what it logs, log: on}",
}

var policyForms6 = []string{
	"masquerade: {from: \"fd00:1::/64\"}", "snat: {from: \"fd00:1::/64\", only-to: \"2001:db8:f:1::/64\", port: SERVICES, to: \"2001:db8:1::7\"}",
	"snat: {mark: MARK, dscp: CLASS, to: \"2001:db8:1::7\", ports: PORTS}", "snat: {from: \"fd00:1::2\", except-dscp: CLASS, to: \"2001:db8:1::9\"}",
	"dnat: {on: \"2001:db8:1::7\", port: SERVICES, to: \"fd00:2::2\", hairpin: BOOL}", "dnat: {on: \"2001:db8:1::7\", except-mark: MARK, port: udp/50-60, to: \"[fd00:2::2]:150-160\"}",
	"static: {inside: \"fd00:1::3\", outside: \"2001:db8:1::9\", port: SERVICES, only-to: \"2001:db8:f::/48\", except-mark: MARK, hairpin: BOOL}",
	"snat: {from: \"fd00:1::/64\", utc-days: DAYS, except-utc-hours: HOURS, to: \"2001:db8:1::9\"}",
	"dnat: {on: any, in: dmz, port: SERVICES, to: \":5353\"}", "masquerade: {except-from: \"fd00:1::2\", in: [lan, dmz], except-port: SERVICES}",
	"static: {pairs: $floating}", "static: {pairs: $floating, port: SERVICES, local: BOOL}",
	"snat: {from: SET, except-to: SET, to: \"2001:db8:1::7\"}", "masquerade: {from: [SET, \"fd00:2::2\"], port: $web}", "dnat: {on: \"2001:db8:1::9\", except-from: SET, port: [$web, icmp], to: \"fd00:2::2\", hairpin: BOOL}",
}

// policySets are the sets that these name: of single addresses, of intervals, of both families, and of nothing.
const policySets = `sets:
  hosts: {addresses: [192.168.0.2, 192.168.0.5, 172.17.0.3, 198.18.0.1, 198.18.1.20, 203.0.113.9, "fd00:1::2", "2001:db8:f:1::10"]}
  nets: {addresses: [192.168.0.2-192.168.0.3, 192.168.0.4, 10.1.0.0/24, 198.18.0.0/24, 198.18.1.1, 203.0.113.0/29, "fd00:2::/64", "fd00:1::3", "2001:db8:f:2::/64"]}
  wide: {addresses: [0.0.0.0/1, 198.18.0.0/15, 203.0.113.7, "::/1"]}
  far: {addresses: [240.0.0.0-255.255.255.255, 192.168.0.3, "fd00::/16", "ff00::/8"]}
  none: {addresses: [198.51.100.77]}
  web: {ports: [tcp/80, udp/55, tcp/8000-8100]}
  floating: {pairs: [203.0.113.9 192.168.0.4, 203.0.113.7 172.17.0.3, 203.0.113.60 192.168.0.2, "2001:db8:1::9 fd00:1::3"]}
`

// markedClasses are the marks that the gateway gives packets by their DSCP.
var markedClasses = map[uint8]uint32{8: 0x10, 16: 0x25, 46: 0x1}

// TestExplainPolicy is TestExplain for rules that ask for more than addresses: the gateway marks packets by their
// DSCP.
func TestExplainPolicy(t *testing.T) {
	testutil.NeedProgram(t, "nft")
	w := explainedWorld(t)
	testutil.Run(t, w.gateway, `table inet marker {
		chain in { type filter hook prerouting priority -310; ip dscp cs1 meta mark set 0x10; ip dscp cs2 meta mark set 0x25; ip dscp ef meta mark set 0x1
			ip6 dscp cs1 meta mark set 0x10; ip6 dscp cs2 meta mark set 0x25; ip6 dscp ef meta mark set 0x1; }
	}`, "nft", "-f", "-")
	settings := []string{"", "ttl: 64"}
	if testutil.NATHelpers.Probe() == nil {
		settings = append(settings, "helpers: [tftp, sip, ftp]")
	}
	facts := Facts()
	for i, group := range map[string]string{LAN: "7", DMZ: "8"} {
		testutil.Run(t, w.gateway, "", "ip", "link", "set", "dev", i, "group", group)
	}
	facts.Interfaces[0].Group, facts.Interfaces[1].Group = 7, 8
	s := sample{t: t, world: w, r: rand.New(rand.NewPCG(19, 2)), facts: facts, roles: []string{"wan: wan, lan: [lan, dmz]", "wan: wan, lan: [lan, dmz]", "wan: \"w*\", lan: [\"la*\", dmz]", "wan: group 0, lan: [group 8, group 7]", "wan: [\"wan*\", ppp0]", "lan: [group 7]"}, settings: settings, seen: map[string]int{}, forms4: possible(policyForms4), forms6: possible(policyForms6), classes: []uint8{0, 8, 16, 46}, sets: policySets}
	for range sampleFiles {
		s.file()
	}
	t.Logf("%d packets: %v", s.port, s.seen)
	for _, kind := range []string{"masquerade", "snat", "dnat", "static", "none", "local", "answered", "program", "hairpin"} {
		if s.seen[kind] < 3 && (kind != "hairpin" || testutil.Hairpin.Probe() == nil) {
			t.Errorf("the sample says little: %d of %s", s.seen[kind], kind)
		}
	}
}

// possible are the forms whose rules the kernel can have: before Linux 5.5 postrouting does not know where packets came in.
func possible(forms []string) []string {
	if testutil.Hairpin.Probe() == nil {
		return forms
	}
	return slices.DeleteFunc(slices.Clone(forms), func(form string) bool {
		return strings.Contains(form, "hairpin") || strings.Contains(form, "in: ") && !strings.HasPrefix(form, "dnat")
	})
}

// giveClass gives a packet a DSCP.
func giveClass(b []byte, point uint8) {
	if b[0]>>4 == 6 {
		binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)&^0x0fc0|uint16(point)<<6)
		return
	}
	b[1] = point << 2
	b[10], b[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < int(b[0]&0xf)*4; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
}
