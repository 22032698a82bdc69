package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/nat"
)

// router is a host with one interface outside and one inside.
var router = Facts{Known: true, Flowtable: Support{OK: true}, Interfaces: []Interface{
	{Name: "lo", Index: 1, Up: true, Addresses: prefixes("127.0.0.1/8", "::1/128")},
	{Name: "eth0", Index: 2, Up: true, MTU: 1500, Addresses: prefixes("203.0.113.1/24", "203.0.113.2/24", "2001:db8::1/64", "fe80::1/64")},
	{Name: "eth1", Index: 3, Up: true, MTU: 1500, Addresses: prefixes("192.168.0.1/24")},
}}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

const roles = `
  interfaces: {wan: eth0, lan: eth1}`

// parse reads what stands below the key gateway.
func parse(t testing.TB, body string) *Config {
	t.Helper()
	f, err := Parse("test.yaml", []byte("gateway:"+body+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return &f.Config
}

func compile(t testing.TB, body string, facts Facts) *Plan {
	t.Helper()
	p, err := Compile(parse(t, body), facts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// lines are the entries of a plan, one on each line, in order.
func lines(p *Plan) string {
	var b strings.Builder
	for i, list := range [][]Entry{p.Destinations, p.Sources, p.Stateless, p.Untracked} {
		for _, e := range list {
			fmt.Fprintf(&b, "%s %s[%d]: %s\n", []string{"dst", "src", "pair", "raw"}[i], e.Rule.List, e.Rule.Index, &e)
		}
	}
	for _, w := range p.Waiting {
		fmt.Fprintf(&b, "wait %s: %s\n", w.Rule, w.Interface)
	}
	return b.String()
}

var compileCases = []struct {
	name, body string
	want       string
}{
	{"what a static asks for, both ways", roles + `
  nat:
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, only-to: [198.18.0.0/24, 198.18.1.1], port: [tcp/443, udp/443], except-mark: 1, utc-days: mon, hairpin: on}
    - static: {inside: 192.168.0.3, outside: 203.0.113.10, except-to: 198.18.7.0/24, except-port: tcp/25, in: [wan, tun0], except-out: lan, dscp: ef}`, `
dst nat[0]: on 203.0.113.9 tcp/443 from 198.18.1.1 not mark 0x1 utc-days mon becomes 192.168.0.3
dst nat[0]: on 203.0.113.9 udp/443 from 198.18.1.1 not mark 0x1 utc-days mon becomes 192.168.0.3
dst nat[0]: on 203.0.113.9 tcp/443 from 198.18.0.0/24 not mark 0x1 utc-days mon becomes 192.168.0.3
dst nat[0]: on 203.0.113.9 udp/443 from 198.18.0.0/24 not mark 0x1 utc-days mon becomes 192.168.0.3
dst nat[1]: on 203.0.113.10 except tcp/25 except from 198.18.7.0/24 in eth0, tun0 dscp ef becomes 192.168.0.3
src nat[0]: originally to 203.0.113.9 tcp/443 from 198.18.1.1 not mark 0x1 utc-days mon becomes 203.0.113.9
src nat[0]: originally to 203.0.113.9 udp/443 from 198.18.1.1 not mark 0x1 utc-days mon becomes 203.0.113.9
src nat[0]: originally to 203.0.113.9 tcp/443 from 198.18.0.0/24 not mark 0x1 utc-days mon becomes 203.0.113.9
src nat[0]: originally to 203.0.113.9 udp/443 from 198.18.0.0/24 not mark 0x1 utc-days mon becomes 203.0.113.9
src nat[0]: tcp/443 from 192.168.0.3 out eth0 not mark 0x1 utc-days mon only to 198.18.1.1 becomes 203.0.113.9
src nat[0]: udp/443 from 192.168.0.3 out eth0 not mark 0x1 utc-days mon only to 198.18.1.1 becomes 203.0.113.9
src nat[0]: tcp/443 from 192.168.0.3 out eth0 not mark 0x1 utc-days mon only to 198.18.0.0/24 becomes 203.0.113.9
src nat[0]: udp/443 from 192.168.0.3 out eth0 not mark 0x1 utc-days mon only to 198.18.0.0/24 becomes 203.0.113.9
src nat[1]: except tcp/25 from 192.168.0.3 except to 198.18.7.0/24 not out eth1 dscp ef becomes 203.0.113.10
`},
	{"patterns stand for what there is, groups for their members", `
  interfaces: {wan: "eth*", lan: group 0}
  flowtable: on
  nat:
    - masquerade: {from: 192.168.0.0/16, in: lan, except-in: "ppp*"}
    - dnat: {on: wan, port: tcp/80, to: 192.168.0.2}
    - dnat: {on: "wg*", port: tcp/80, to: 192.168.0.2}
    - dnat: {on: group 0, in: group 7, port: tcp/81, to: 192.168.0.2}`, `
dst nat[3]: on 192.168.0.1 tcp/81 in group 7 becomes 192.168.0.2
dst nat[3]: on 203.0.113.1 tcp/81 in group 7 becomes 192.168.0.2
dst nat[3]: on 203.0.113.2 tcp/81 in group 7 becomes 192.168.0.2
dst nat[1]: on 192.168.0.1 tcp/80 in eth* becomes 192.168.0.2
dst nat[1]: on 203.0.113.1 tcp/80 in eth* becomes 192.168.0.2
dst nat[1]: on 203.0.113.2 tcp/80 in eth* becomes 192.168.0.2
src nat[0]: from 192.168.0.0/16 in group 0 not in ppp* out eth* becomes the interface's address
wait nat[2] dnat: wg*
`},
	{"times of UTC, and hairpins with the conditions of their rule", roles + `
  nat:
    - snat: {from: 192.168.0.0/16, utc-hours: [22:00-06:00, 12:00-13:30], except-utc-days: [sun, sat], to: 203.0.113.8}
    - masquerade: {from: 192.168.0.0/16, utc-days: mon-wed, except-utc-hours: 18:00-24:00}
    - dnat: {on: 203.0.113.7, port: [tcp/80-82, udp/53], except-port: [tcp/81, udp/53], mark: 1, except-from: 192.168.0.5, to: "192.168.0.2:8080", hairpin: on}
    - dnat: {on: 203.0.113.8, except-port: tcp/25, utc-days: sun, to: 192.168.0.2, hairpin: on}`, `
dst nat[2]: on 203.0.113.7 udp/53 except tcp/81, udp/53 except from 192.168.0.5 mark 0x1 becomes 192.168.0.2:8080
dst nat[2]: on 203.0.113.7 tcp/80-82 except tcp/81, udp/53 except from 192.168.0.5 mark 0x1 becomes 192.168.0.2:8080
dst nat[3]: on 203.0.113.8 except tcp/25 utc-days sun becomes 192.168.0.2
src nat[2]: originally to 203.0.113.7 tcp/80,82 except from 192.168.0.5 mark 0x1 becomes 203.0.113.7
src nat[3]: originally to 203.0.113.8 except tcp/25 utc-days sun becomes 203.0.113.8
src nat[0]: from 192.168.0.0/16 out eth0 utc-hours 00:00-06:00, 12:00-13:30, 22:00-24:00 not utc-days sun, sat becomes 203.0.113.8
src nat[1]: from 192.168.0.0/16 out eth0 not utc-hours 18:00-24:00 utc-days mon, tue, wed becomes the interface's address
`},
	{"conditions make entries by protocols and lengths, the most specific first", roles + `
  nat:
    - masquerade: {from: 192.168.0.0/16}
    - snat: {from: [192.168.0.0/16, 192.168.7.0/24], only-to: [198.18.0.1, 198.18.0.0/24], port: [udp/53, tcp/53], to: 203.0.113.8}
    - snat: {from: 192.168.0.0/16, mark: 0x10/0xf0, except-dscp: [ef, 3], to: 203.0.113.9}
    - snat: {from: 192.168.0.0/16, user: 33, to: 203.0.113.10}
      prefer: 2
    - masquerade: {from: 192.168.0.0/16, in: lan, except-from: 192.168.0.2, except-port: tcp/25}
    - snat: {from: 192.168.9.0/24, to: 203.0.113.11}
      enabled: off`, `
src nat[1]: tcp/53 from 192.168.7.0/24 out eth0 only to 198.18.0.1 becomes 203.0.113.8
src nat[1]: udp/53 from 192.168.7.0/24 out eth0 only to 198.18.0.1 becomes 203.0.113.8
src nat[1]: tcp/53 from 192.168.0.0/16 out eth0 only to 198.18.0.1 becomes 203.0.113.8
src nat[1]: udp/53 from 192.168.0.0/16 out eth0 only to 198.18.0.1 becomes 203.0.113.8
src nat[1]: tcp/53 from 192.168.7.0/24 out eth0 only to 198.18.0.0/24 becomes 203.0.113.8
src nat[1]: udp/53 from 192.168.7.0/24 out eth0 only to 198.18.0.0/24 becomes 203.0.113.8
src nat[1]: tcp/53 from 192.168.0.0/16 out eth0 only to 198.18.0.0/24 becomes 203.0.113.8
src nat[1]: udp/53 from 192.168.0.0/16 out eth0 only to 198.18.0.0/24 becomes 203.0.113.8
src nat[4]: except tcp/25 from 192.168.0.0/16 except from 192.168.0.2 in eth1 out eth0 becomes the interface's address
src nat[2]: from 192.168.0.0/16 out eth0 mark 0x10/0xf0 not dscp ef, 3 becomes 203.0.113.9
src nat[3]: from 192.168.0.0/16 out eth0 user 33 becomes 203.0.113.10
src nat[0]: from 192.168.0.0/16 out eth0 becomes the interface's address
`},
	{"what a rule asks for comes before the interfaces that it is for by default", roles + `
  nat:
    - dnat: {on: 203.0.113.1, port: tcp/80, to: 192.168.0.2, local: on}
    - dnat: {on: 203.0.113.1, port: tcp/80, user: 33, to: 192.168.0.3}
    - dnat: {on: 203.0.113.1, port: tcp/80, mark: 4, to: 192.168.0.4}
    - dnat: {on: 203.0.113.1, port: tcp/80, in: lan, to: 192.168.0.5}`, `
dst nat[3]: on 203.0.113.1 tcp/80 in eth1 becomes 192.168.0.5
dst nat[1]: on 203.0.113.1 tcp/80 user 33 becomes 192.168.0.3 local
dst nat[2]: on 203.0.113.1 tcp/80 in eth0 mark 0x4 becomes 192.168.0.4
dst nat[0]: on 203.0.113.1 tcp/80 in eth0 becomes 192.168.0.2 local
`},
	{"a range of ports is translated to another range", roles + `
  nat:
    - dnat: {on: 203.0.113.1, port: tcp/8000-8002, to: "192.168.0.2:9000-9002"}
    - dnat: {on: 203.0.113.1, port: [tcp/80, tcp/443, udp/443], to: 192.168.0.3, from: 198.18.0.0/16}
    - dnat: {on: any, in: lan, port: tcp/http, except-from: 192.168.0.2, to: ":3128"}
    - dnat: {on: any, user: 33, port: tcp+udp/53, to: 192.168.0.53}`, `
dst nat[1]: on 203.0.113.1 udp/443 from 198.18.0.0/16 in eth0 becomes 192.168.0.3
dst nat[1]: on 203.0.113.1 tcp/80,443 from 198.18.0.0/16 in eth0 becomes 192.168.0.3
dst nat[0]: on 203.0.113.1 tcp/8000-8002 in eth0 becomes 192.168.0.2:9000-9002
dst nat[2]: on 0.0.0.0/0 tcp/80 except from 192.168.0.2 in eth1 becomes this host's port 3128
dst nat[3]: on 0.0.0.0/0 tcp/53 user 33 becomes 192.168.0.53 local
dst nat[3]: on 0.0.0.0/0 udp/53 user 33 becomes 192.168.0.53 local
`},
	{"masquerade leaves by the WAN where nothing is said", roles + `
  nat:
    - masquerade: {from: 192.168.0.0/16, except-to: 10.0.0.0/8}`, `
src nat[0]: from 192.168.0.0/16 except to 10.0.0.0/8 out eth0 becomes the interface's address
`},
	{"any interface where none has a role", `
  nat:
    - masquerade: {}`, `
src nat[0]: from 0.0.0.0/0 becomes the interface's address
`},
	{"any source of IPv6 is distinguished from one of IPv4", `
  ipv6:
    - masquerade: {}`, `
src ipv6[0]: from ::/0 becomes the interface's address
`},
	{"the longest prefix first, each length of a rule on its own", roles + `
  nat:
    - snat: {from: [10.0.0.0/8, 192.168.1.0/24, 192.168.2.0/24], to: 203.0.113.8, ports: 1024-65535, random: fully}
    - snat: {from: 10.0.0.0/16, to: 203.0.113.9, persistent: true}`, `
src nat[0]: from 192.168.1.0/24, 192.168.2.0/24 out eth0 becomes 203.0.113.8 ports 1024-65535 random fully
src nat[1]: from 10.0.0.0/16 out eth0 becomes 203.0.113.9
src nat[0]: from 10.0.0.0/8 out eth0 becomes 203.0.113.8 ports 1024-65535 random fully
`},
	{"more conditions before fewer", `
  interfaces: {wan: [eth0, eth2]}
  nat:
    - snat: {from: 10.0.0.0/16, to: 203.0.113.8}
    - snat: {from: 10.0.0.0/16, to: 203.0.113.9, except-to: 198.51.100.0/24}
    - snat: {from: 10.0.0.0/16, to: 203.0.113.10, out: eth2}`, `
src nat[2]: from 10.0.0.0/16 out eth2 becomes 203.0.113.10
src nat[1]: from 10.0.0.0/16 except to 198.51.100.0/24 out eth0, eth2 becomes 203.0.113.9
src nat[0]: from 10.0.0.0/16 out eth0, eth2 becomes 203.0.113.8
`},
	{"a pool is a set of addresses", roles + `
  nat:
    - snat: {from: 10.0.0.0/24, to: [203.0.113.40, 203.0.113.8-203.0.113.15, 203.0.113.16/30], ports: keep}`, `
src nat[0]: from 10.0.0.0/24 out eth0 becomes 203.0.113.8-203.0.113.19, 203.0.113.40 ports keep persistent
`},
	{"a host has one address of a pool, unless the rule says otherwise", roles + `
  nat:
    - snat: {from: 10.0.0.0/24, to: 203.0.113.8/30, persistent: off}
    - snat: {from: 10.0.1.0/24, to: 203.0.113.8/30, persistent: on}
    - snat: {from: 10.0.2.0/24, to: 203.0.113.8/30}
    - snat: {from: 10.0.3.0/24, to: 203.0.113.12/31}
    - notrack: {on: 203.0.113.13}`, `
src nat[0]: from 10.0.0.0/24 out eth0 becomes 203.0.113.8-203.0.113.11
src nat[1]: from 10.0.1.0/24 out eth0 becomes 203.0.113.8-203.0.113.11 persistent
src nat[2]: from 10.0.2.0/24 out eth0 becomes 203.0.113.8-203.0.113.11 persistent
src nat[3]: from 10.0.3.0/24 out eth0 becomes 203.0.113.12
raw nat[4]: to and from 203.0.113.13 not tracked
`},
	{"destinations: port, protocol, address, prefix, and from before anybody", roles + `
  nat:
    - netmap: {inside: 10.1.0.0/24, outside: 203.0.113.0/24}
    - static: {inside: 192.168.0.3, outside: 203.0.113.7, local: true}
    - dnat: {on: 203.0.113.7, port: udp, to: 192.168.0.4}
    - dnat: {on: 203.0.113.7, port: tcp/80-90, to: 192.168.0.5}
    - dnat: {on: 203.0.113.7, port: tcp/80, to: "192.168.0.6:8080"}
    - dnat: {on: 203.0.113.7, port: tcp/80, from: 198.51.100.0/24, to: 192.168.0.7}`, `
dst nat[5]: on 203.0.113.7 tcp/80 from 198.51.100.0/24 in eth0 becomes 192.168.0.7
dst nat[4]: on 203.0.113.7 tcp/80 in eth0 becomes 192.168.0.6:8080
dst nat[3]: on 203.0.113.7 tcp/80-90 in eth0 becomes 192.168.0.5
dst nat[2]: on 203.0.113.7 udp in eth0 becomes 192.168.0.4
dst nat[1]: on 203.0.113.7 in eth0 becomes 192.168.0.3 local
dst nat[0]: on 203.0.113.0/24 in eth0 becomes 10.1.0.0/24
src nat[1]: from 192.168.0.3 out eth0 becomes 203.0.113.7
src nat[0]: from 10.1.0.0/24 out eth0 becomes 203.0.113.0/24
`},
	{"on a role is on its present addresses", roles + `
  nat:
    - dnat: {on: wan, port: tcp/22, to: 192.168.0.2}
  ipv6:
    - dnat: {on: eth0, port: tcp/22, to: "fd00::2"}`, `
dst ipv6[0]: on 2001:db8::1 tcp/22 in eth0 becomes fd00::2
dst nat[0]: on 203.0.113.1 tcp/22 in eth0 becomes 192.168.0.2
dst nat[0]: on 203.0.113.2 tcp/22 in eth0 becomes 192.168.0.2
`},
	{"an interface that is not there is waited for", roles + `
  nat:
    - dnat: {on: ppp0, port: tcp/22, to: 192.168.0.2}
    - masquerade: {out: ppp0}`, `
src nat[1]: from 0.0.0.0/0 out ppp0 becomes the interface's address
wait nat[0] dnat: ppp0
`},
	{"an address inside is asked for from inside", roles + `
  nat:
    - dnat: {on: 192.168.0.1, port: udp/53, to: 192.168.0.53}`, `
dst nat[0]: on 192.168.0.1 udp/53 becomes 192.168.0.53
`},
	{"hairpin: own address, own pool, the address asked for", roles + `
  nat:
    - dnat: {on: 203.0.113.1, port: tcp/80, to: "192.168.0.2:8080", hairpin: true}
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, hairpin: true}
    - snat: {from: 192.168.0.4, to: 203.0.113.10}
    - snat: {from: 192.168.0.5, to: 192.168.7.7, out: lan}
    - masquerade: {from: 192.168.0.0/24}`, `
dst nat[0]: on 203.0.113.1 tcp/80 becomes 192.168.0.2:8080
dst nat[1]: on 203.0.113.9 becomes 192.168.0.3
src nat[1]: originally to 0.0.0.0/0 from 192.168.0.3 becomes 203.0.113.9
src nat[2]: originally to 0.0.0.0/0 from 192.168.0.4 becomes 203.0.113.10
src nat[0]: originally to 203.0.113.1 tcp/80 becomes 203.0.113.1
src nat[1]: originally to 203.0.113.9 becomes 203.0.113.9
src nat[1]: from 192.168.0.3 out eth0 becomes 203.0.113.9
src nat[2]: from 192.168.0.4 out eth0 becomes 203.0.113.10
src nat[3]: from 192.168.0.5 out eth1 becomes 192.168.7.7
src nat[4]: from 192.168.0.0/24 out eth0 becomes the interface's address
`},
	{"stateless: pairs; NPTv6 is neutral, one address is not", roles + `
  nat:
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, stateless: true}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24, stateless: true}
    - notrack: {on: 203.0.113.10, port: udp/53}
  ipv6:
    - netmap: {inside: "fd00:1::/48", outside: "2001:db8:1::/48", stateless: true}
    - static: {inside: "fd00::3", outside: "2001:db8::3", stateless: true}
    - netmap: {inside: "fd00:2::/64", outside: "2001:db8:2::/64"}`, `
dst ipv6[2]: on 2001:db8:2::/64 in eth0 becomes fd00:2::/64
src ipv6[2]: from fd00:2::/64 out eth0 becomes 2001:db8:2::/64
pair ipv6[1]: fd00::3 is outside 2001:db8::3 out eth0 stateless
pair ipv6[0]: fd00:1::/48 is outside 2001:db8:1::/48 out eth0 stateless checksum-neutral (RFC 6296)
pair nat[0]: 192.168.0.3 is outside 203.0.113.9 out eth0 stateless
pair nat[1]: 10.1.0.0/24 is outside 198.51.100.0/24 out eth0 stateless
raw nat[2]: to and from 203.0.113.10 udp/53 not tracked
`},
}

func TestCompile(t *testing.T) {
	for _, c := range compileCases {
		t.Run(c.name, func(t *testing.T) {
			want := strings.TrimPrefix(c.want, "\n")
			if diff := cmp.Diff(want, lines(compile(t, c.body, router))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCompileSettings(t *testing.T) {
	body := `
  expect: {flows: 200k, rate: 5000/s}
  interfaces: {wan: [eth1, eth0]}
  mss: clamp
  flowtable: on
  accounting: on
  limits: {connections-per-source: 2000}
  nat:
    - masquerade: {}`
	p := compile(t, body, router)
	want := &Plan{Schema: PlanSchema, Engine: EngineNetfilter, WAN: []string{"eth0", "eth1"},
		Sources:   p.Sources,
		MSS:       MSS{Clamp: true},
		Flowtable: []string{"eth0", "eth1"}, ConnectionsPerSource: 2000,
		IPv4: true, Accounting: true, Expect: Expect{Flows: 200000, Rate: 5000}}
	if diff := cmp.Diff(want, p, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestFlowtableInterfaces(t *testing.T) {
	on := "\n  flowtable: on"
	absent := router
	absent.Flowtable = Support{Reason: "no module"}
	for _, c := range []struct {
		name, body string
		facts      Facts
		want       []string
	}{
		{"all but lo", on, router, []string{"eth0", "eth1"}},
		{"not those that are missing", on + "\n  interfaces: {wan: [eth0, ppp0]}", router, []string{"eth0"}},
		{"all that are named where the host was not read", on + "\n  interfaces: {wan: [eth0, ppp0]}", Facts{}, []string{"eth0", "ppp0"}},
		{"none where the kernel has no flowtable", on, absent, nil},
		{"none where it is off", "\n  mss: clamp", router, nil},
	} {
		if diff := cmp.Diff(c.want, compile(t, c.body, c.facts).Flowtable); diff != "" {
			t.Error(c.name, diff)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{masquerade: {out: wan}}`, `nat[0] masquerade: no interface has the role wan: name it below interfaces`},
		{`{dnat: {on: 203.0.113.1, to: "192.168.0.2:80"}}`, `nat[0] dnat: to 192.168.0.2:80 has a port: port must name a protocol that has ports, such as tcp/80`},
		{`{dnat: {on: 203.0.113.1, to: 192.168.0.2, hairpin: true}}`, `nat[0] dnat: hairpin needs to know what is inside: name the wan interfaces, or the lan ones, below interfaces`},
		{`{snat: {from: "fd00::/8", to: 203.0.113.1}}`, `nat[0] snat: from fd00:: is IPv6: such rules stand below ipv6`},
		{`{netmap: {inside: 10.0.0.0/24, outside: 198.51.100.0/25}}`, `nat[0] netmap: inside 10.0.0.0/24 and outside 198.51.100.0/25 differ in length: each address needs one of its own`},
		{`{static: {inside: 10.0.0.1, outside: 198.51.100.1, stateless: true, local: true}}`, `nat[0] static: stateless has no connections: hairpin and local need one, leave them or stateless out`},
	} {
		_, err := Compile(parse(t, "\n  nat:\n    - "+c.body), router)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s\n got: %v\nwant: %s", c.body, err, c.want)
		}
	}
	v6 := `{netmap: {inside: "fd00::/120", outside: "2001:db8::/120", stateless: true}}`
	if _, err := Compile(parse(t, "\n  ipv6:\n    - "+v6), router); err == nil || !strings.Contains(err.Error(), "at most /64") {
		t.Errorf("a prefix too long for NPTv6: %v", err)
	}
}

// TestSeveral: a flowtable has the interfaces that there are; packets are compared with their names.
func TestSeveral(t *testing.T) {
	facts := router
	facts.Interfaces = slices.Clone(facts.Interfaces)
	facts.Interfaces[2].Group = 10
	p := compile(t, `
  interfaces: {wan: "eth0*", lan: group 10}
  flowtable: on
  nat: [masquerade: {in: lan, out: [wan, "ppp*"]}]`, facts)
	if !slices.Equal(p.Flowtable, []string{"eth0", "eth1"}) {
		t.Error(p.Flowtable)
	}
	on := p.On(&facts)
	e := on.Sources[0]
	if !slices.Equal(e.In, []string{"eth1", "group 10"}) || !slices.Equal(e.Out, []string{"eth0", "eth0*", "ppp*"}) || !on.Inside("eth1") || on.Inside("eth0") || p.Inside("eth1") {
		t.Errorf("%q %q %q", e.In, e.Out, on.LAN)
	}
	if !slices.Equal(p.Sources[0].In, []string{"group 10"}) {
		t.Errorf("the plan has changed: %q", p.Sources[0].In)
	}
}

// TestStaticText: the rule in one line has what it asks for on both ways.
func TestStaticText(t *testing.T) {
	p := compile(t, roles+`
  nat:
    - static: {inside: 192.168.0.3, outside: 203.0.113.9, only-to: 198.18.0.0/24, port: [tcp/443, udp/443], mark: 1, hairpin: on}
    - static: {inside: 192.168.0.3, outside: 203.0.113.10, except-to: 198.18.7.0/24, in: [wan, tun0], except-out: lan}`, router)
	for i, want := range []string{
		"192.168.0.3 is outside 203.0.113.9 only to 198.18.0.0/24 tcp/443, udp/443 mark 0x1 out eth0 hairpin",
		"192.168.0.3 is outside 203.0.113.10 except to 198.18.7.0/24 in eth0, tun0 not out eth1",
	} {
		if got := TextsOf(p)[i].Text; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestHelperServices: a helper is for what becomes a connection to its service.
func TestHelperServices(t *testing.T) {
	p := compile(t, roles+`
  helpers: [sip, ftp]
  nat:
    - dnat: {on: 203.0.113.1, port: tcp/2121, to: "192.168.0.2:21"}
    - dnat: {on: 203.0.113.2, port: tcp/20-25, to: 192.168.0.2}
    - dnat: {on: 203.0.113.3, port: tcp/6000-6010, to: "192.168.0.2:15-25"}
    - dnat: {on: 203.0.113.4, to: 192.168.0.2}
    - dnat: {on: 203.0.113.5, port: udp/21, to: 192.168.0.2}
    - dnat: {on: 203.0.113.6, port: tcp/21, to: "192.168.0.2:2121"}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}`, router)
	got := map[string]string{}
	for _, s := range p.HelperServices() {
		for i := range p.Destinations {
			if ports, some := s.AskedFor(&p.Destinations[i]); some && s.Helper == "ftp" {
				got[p.Destinations[i].On().String()] = nat.ServiceString(s.Protocol, ports)
			}
		}
	}
	want := map[string]string{"203.0.113.1/32": "tcp/2121", "203.0.113.2/32": "tcp/21", "203.0.113.3/32": "tcp/6006", "203.0.113.4/32": "tcp/21", "198.51.100.0/24": "tcp/21"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSortEntries: entries are moved in their places as a stable sort of copies has them.
func TestSortEntries(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 4))
	byPrefer := func(a, b *Entry) int { return a.Prefer - b.Prefer }
	for n := range 200 {
		list := make([]Entry, n)
		for i := range list {
			list[i].Prefer, list[i].Rule.Index = r.IntN(1+n/2), i
		}
		want := slices.Clone(list)
		slices.SortStableFunc(want, func(a, b Entry) int { return byPrefer(&a, &b) })
		sortEntries(list, byPrefer)
		if !reflect.DeepEqual(list, want) {
			t.Fatalf("%d entries: %v, want %v", n, list, want)
		}
	}
}

// TestCheckPlan: the plan that is handed over is the one that Compile makes; of a file that is refused before there is none.
func TestCheckPlan(t *testing.T) {
	for rule, there := range map[string]bool{"dnat: {on: 203.0.113.7, port: tcp/80, to: 10.0.0.1}": true, "snat: {from: 10.0.0.1, to: 224.0.0.1}": false} {
		f, err := Parse("f", []byte(inFile(rule)))
		if err != nil {
			t.Fatal(err)
		}
		var got *Plan
		CheckPlan(f, hostWithDocker(), func(p *Plan) { got = p })
		if (got != nil) != there {
			t.Fatalf("%s: %v", rule, got)
		}
		if !there {
			continue
		}
		if want, err := Compile(&f.Config, hostWithDocker()); err != nil || Digest(got) != Digest(want) {
			t.Errorf("%s: %v, %v; want %v", rule, got, err, want)
		}
	}
}

// Rules that are off are in the plan in the words of the file, whatever they mean, and with no entry.
func TestRulesOff(t *testing.T) {
	f := withSetFiles(t, nil, `gateway:
  interfaces: {wan: eth0}
  sets: {hosts: {addresses: 10.0.0.1}}
  nat:
    - masquerade: {from: 10.0.0.0/8}
    - snat: {from: $hosts, to: 127.0.0.1}
      enabled: off
      note: until May
  ipv6:
    - dnat: {on: ppp7, port: tcp/80, to: 'fd00::1'}
      enabled: off
      log: on
`)
	if found := Check(f, Facts{}); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	p, err := Compile(&f.Config, Facts{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Off{
		{Ref{List: "nat", Index: 1, Kind: "snat", Note: "until May"}, `{from: "$hosts", to: 127.0.0.1}`},
		{Ref{List: "ipv6", Index: 0, Kind: "dnat"}, "{on: ppp7, port: tcp/80, to: fd00::1}"},
	}
	if diff := cmp.Diff(want, p.Off); diff != "" {
		t.Error(diff)
	}
	if texts := TextsOf(p); len(texts) != 1 || len(p.Sets) != 0 {
		t.Errorf("%+v, %+v", texts, p.Sets)
	}
}
