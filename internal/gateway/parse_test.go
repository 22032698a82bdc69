package gateway

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
)

// every has a rule of each kind.
const every = `gateway:
  engine: netfilter                       # netfilter | ebpf
  expect: {flows: 200k, rate: 5000/s}     # sizes conntrack through plan; optional
  interfaces: {wan: eth0, lan: [eth1, br0]}
  mss: clamp
  flowtable: on                           # the kernel's own fast path, where it has one
  limits: {connections-per-source: 2000}
  nat:
    - masquerade: {from: 192.168.0.0/16, except-to: [10.0.0.0/8], out: wan}
    - snat: {from: 192.168.0.2, to: 203.0.113.7}
    - snat: {from: 10.0.0.0/16, to: [203.0.113.8-203.0.113.15], ports: 1024-65535, random: fully, persistent: true}
    - snat: {from: 10.2.0.0/24, to: [203.0.113.32/27], ports: keep}      # dynamic pool, no port translation
    - dnat: {on: 203.0.113.7, port: tcp/8080, to: 172.17.0.2:80, hairpin: true, local: true}
    - static: {inside: 192.168.0.3, outside: 203.0.113.9}               # 1:1, both directions
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - notrack: {on: 203.0.113.10}
  ipv6:
    - netmap: {inside: fd00:1::/64, outside: 2001:db8:1::/64, stateless: on}
    - dnat: {on: wan, port: udp/53, to: "[fd00::2]:5353"}
`

func mustPrefixes(t testing.TB, texts ...string) (all Prefixes) {
	t.Helper()
	for _, text := range texts {
		p, err := parsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func mustRanges(t testing.TB, texts ...string) (all Ranges) {
	t.Helper()
	for _, text := range texts {
		r, err := parseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func mustAddress(t testing.TB, text string) Address {
	t.Helper()
	a, err := parseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return Address{a}
}

func TestParse(t *testing.T) {
	f, err := Parse("every.yaml", []byte(every))
	if err != nil {
		t.Fatal(err)
	}
	address := func(text string) Address { return mustAddress(t, text) }
	sources := func(from string) Sources { return Sources{From: mustPrefixes(t, from)} }
	want := Config{
		Engine:     EngineNetfilter,
		Expect:     Expect{Flows: 200_000, Rate: 5000},
		Interfaces: Interfaces{WAN: WANs{{Interface: "eth0"}}, LAN: LANs{{Interface: "eth1"}, {Interface: "br0"}}},
		MSS:        MSS{Clamp: true},
		Flowtable:  true,
		Limits:     Limits{ConnectionsPerSource: 2000},
		NAT: []Rule{
			{Masquerade: &Masquerade{Sources: Sources{From: mustPrefixes(t, "192.168.0.0/16"), ExceptTo: mustPrefixes(t, "10.0.0.0/8"), Out: Names{"wan"}}}},
			{SNAT: &SNAT{Sources: sources("192.168.0.2"), To: mustRanges(t, "203.0.113.7")}},
			{SNAT: &SNAT{Sources: sources("10.0.0.0/16"), To: mustRanges(t, "203.0.113.8-203.0.113.15"),
				Choice: Choice{Ports: Ports{First: 1024, Last: 65535}, Random: RandomFully}, Persistent: new(Switch(true))}},
			{SNAT: &SNAT{Sources: sources("10.2.0.0/24"), To: mustRanges(t, "203.0.113.32-203.0.113.63"), Choice: Choice{Ports: Ports{Keep: true}}}},
			{DNAT: &DNAT{On: On{Address: address("203.0.113.7").Addr}, Port: Services{{"tcp", 8080, 8080}},
				To: Backends{{Address: address("172.17.0.2").Addr, Port: 80}}, Hairpin: true, Local: true}},
			{Static: &Static{Inside: address("192.168.0.3"), Outside: address("203.0.113.9")}},
			{Netmap: &Netmap{Inside: mustPrefixes(t, "10.1.0.0/24")[0], Outside: mustPrefixes(t, "198.51.100.0/24")[0]}},
			{Notrack: &Notrack{On: address("203.0.113.10")}},
		},
		IPv6: []Rule{
			{Netmap: &Netmap{Inside: mustPrefixes(t, "fd00:1::/64")[0], Outside: mustPrefixes(t, "2001:db8:1::/64")[0], Stateless: true}},
			{DNAT: &DNAT{On: On{Name: RoleWAN}, Port: Services{{"udp", 53, 53}}, To: Backends{{Address: address("fd00::2").Addr, Port: 5353}}}},
		},
	}
	if diff := cmp.Diff(want, f.Config, cmp.Comparer(func(a, b Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b Address) bool { return a == b }), cmp.Comparer(func(a, b nat.AddrRange) bool { return a == b }),
		cmp.Comparer(func(a, b On) bool { return a == b }), cmp.Comparer(func(a, b nat.Backend) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if p := f.place("nat", 3, "snat", "to", 0); p.Line != 12 || p.Column != 38 {
		t.Errorf("place %+v", p)
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct{ name, rule, want string }{
		{"a word beside the kind", "snat: {to: 203.0.113.1, prefer: 1}", "3:29: prefer is no part of the kind's mapping: write it beside the kind, in a line of its own below it"},
		{"a long note", "{masquerade: {}, name: a, note: " + strings.Repeat("x", 100) + "}", "3:37: note: it has 101 bytes, with the name: at most 100 are kept with the kernel's rules"},
		{"quotation marks in a note", `{masquerade: {}, note: 'the "old" one'}`, `3:28: expected a line of text, found "the \"old\" one": leave out quotation marks, backslashes and what does not print`},
		{"a rate of nothing", "{masquerade: {}, log: {rate: 5}}", `3:34: expected a number per second such as 5000/s, found "5"`},
		{"log what", "{masquerade: {}, log: maybe}", `3:27: expected on, off, or a mapping such as {rate: 5/s, prefix: "web: "}, found "maybe"`},
		{"a word of log", "{masquerade: {}, log: {level: 3}}", `3:28: unknown field "level"; expected one of: rate, prefix`},
		{"hours without an end", "masquerade: {utc-hours: 08:00}", `3:29: expected hours of the day (UTC) such as 08:00-18:00, or 22:00-06:00 over midnight, found "08:00"`},
		{"hours that are none", "masquerade: {utc-hours: 08:00-25:00}", `3:29: expected hours of the day (UTC) such as 08:00-18:00, or 22:00-06:00 over midnight, found "08:00-25:00"`},
		{"all hours", "masquerade: {utc-hours: [00:00-24:00]}", `3:30: expected hours of the day (UTC) such as 08:00-18:00, or 22:00-06:00 over midnight, found "00:00-24:00": that is all day: leave it out`},
		{"a day", "masquerade: {except-utc-days: [mon, tus]}", `3:41: expected days of the week (UTC) such as mon or mon-fri, found "tus": did you mean "tue"?`},
		{"all days", "masquerade: {utc-days: sat-fri}", `3:28: expected days of the week (UTC) such as mon or mon-fri, found "sat-fri": these are all days: leave it out`},
		{"a day twice", "masquerade: {utc-days: [sat-mon, sunday]}", `3:38: expected days of the week (UTC) such as mon or mon-fri, found "sunday": it is there twice`},
		{"nothing", "masquerade:", "3:5: expected one of masquerade, snat, dnat, static, netmap, notrack, nat64, nat46 and a mapping after it"},
		{"two kinds", "{notrack: {on: 203.0.113.1}, snat: {to: 203.0.113.1}}", "3:5: expected one kind in a rule, found snat and notrack; begin another rule with -"},
		{"kind", "snatt: {to: 203.0.113.1}", `3:5: unknown field "snatt" (did you mean "snat"?); expected one of: masquerade, snat, dnat, static, netmap, notrack, nat64, nat46, name, note, log, prefer, enabled`},
		{"no value", "masquerade: {from: }", "3:24: expected a value, found nothing"},
		{"null", "notrack: {on: null}", "3:19: expected a value, found nothing"},
		{"field", "snat: {fro: 10.0.0.0/8}", `3:12: unknown field "fro" (did you mean "from"?); expected one of: from, only-to, port, except-to, out, except-out, to, ports, random, persistent, except-from, except-port, in, except-in, zone, mark, except…`},
		{"missing", "dnat: {on: wan}", "3:11: dnat.to is required"},
		{"host bits", "masquerade: {from: 10.0.0.1/8}", `3:24: expected an address or a prefix such as 192.168.0.0/16, found "10.0.0.1/8": bits of a host are set; the prefix is 10.0.0.0/8`},
		{"no prefix", "masquerade: {from: 10.0.0.0/33}", `3:24: expected an address or a prefix such as 192.168.0.0/16, found "10.0.0.0/33"`},
		{"item", "masquerade: {from: [10.0.0.0/8, ten]}", `3:37: expected an address or a prefix such as 192.168.0.0/16, found "ten"`},
		{"no items", "masquerade: {from: []}", `3:24: expected at least one item, found an empty list`},
		{"prefix for an address", "static: {inside: 10.0.0.0/24, outside: 203.0.113.0/24}",
			`3:22: expected an address such as 203.0.113.7, found "10.0.0.0/24": one address is meant here; netmap is for prefixes`},
		{"one address as a prefix", "static: {inside: 10.0.0.2/32, outside: 203.0.113.9}",
			`3:22: expected an address such as 203.0.113.7, found "10.0.0.2/32": write 10.0.0.2`},
		{"on an interface's address", "dnat: {on: 203.0.113.1/24, to: 10.0.0.1}", `3:16: expected ` + onWords + `, found "203.0.113.1/24": one address is meant here; netmap is for prefixes`},
		{"on a prefix of one", "dnat: {on: 203.0.113.1/32, to: 10.0.0.1}", `3:16: expected ` + onWords + `, found "203.0.113.1/32": write 203.0.113.1`},
		{"mapped", "notrack: {on: \"::ffff:203.0.113.1\"}", `3:19: expected an address such as 203.0.113.7, found "::ffff:203.0.113.1": write it 203.0.113.1`},
		{"zone", "notrack: {on: fe80::1%eth0}", `3:19: expected an address such as 203.0.113.7, found "fe80::1%eth0": an address of a zone cannot be translated; leave out %eth0`},
		{"range backwards", "snat: {to: 203.0.113.9-203.0.113.7}", `3:16: expected ` + rangeWords + `, found "203.0.113.9-203.0.113.7": the end comes before the beginning`},
		{"range of two families", "snat: {to: 203.0.113.9-2001:db8::1}", `3:16: expected ` + rangeWords + `, found "203.0.113.9-2001:db8::1": one end is of IPv4, the other of IPv6`},
		{"port 0", "dnat: {on: wan, port: tcp/0, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/0": ports are 1 to 65535`},
		{"port too large", "dnat: {on: wan, port: tcp/65536, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/65536": ports are 1 to 65535`},
		{"ports with a comma", "dnat: {on: wan, port: \"tcp/80,443\", to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/80,443": several are a list: [tcp/80, tcp/443]`},
		{"ports with a colon", "dnat: {on: wan, port: \"tcp/80:90\", to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/80:90": a range has a hyphen: write 80-90`},
		{"source ports with a colon", "snat: {to: 203.0.113.1, ports: \"1024:65535\"}", `3:36: expected ports such as 1024-65535, or keep, found "1024:65535": a range has a hyphen: write 1024-65535`},
		{"ports backwards", "dnat: {on: wan, port: tcp/20-10, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/20-10": the end comes before the beginning`},
		{"port without protocol", "dnat: {on: wan, port: 8080, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "8080": a port needs its protocol: write tcp/8080 or udp/8080 (an IP protocol's number is ip/47)`},
		{"ports of icmp", "dnat: {on: wan, port: icmp/8, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "icmp/8": icmp has no ports`},
		{"no brackets", "dnat: {on: wan, to: \"fd00::2:80000\"}", `3:25: expected an address with or without a port, such as 172.17.0.2:80 or "[fd00::2]:80", found "fd00::2:80000": write "[fd00::2]:80000"`},
		{"to port 0", "dnat: {on: wan, to: 10.0.0.1:0}", `3:25: expected an address with or without a port, such as 172.17.0.2:80 or "[fd00::2]:80", found "10.0.0.1:0": ports are 1 to 65535`},
		{"to a range of ports", "dnat: {on: wan, to: 10.0.0.1:400-300}", `3:25: expected an address with or without a port, such as 172.17.0.2:80 or "[fd00::2]:80", found "10.0.0.1:400-300": the end comes before the beginning`},
		{"cut address", "dnat: {on: 203.0.113, to: 10.0.0.1}", `3:16: expected ` + onWords + `, found "203.0.113": neither an address nor a name`},
		{"alias of an address", "masquerade: {out: \"eth0:1\"}", `3:23: expected ` + nameWords + `, found "eth0:1": neither an address nor a name`},
		{"long name", "masquerade: {out: aaaaaaaaaaaaaaaa}", `3:23: expected ` + nameWords + `, found "aaaaaaaaaaaaaaaa": a name has at most 15 characters, and no space, comma, slash or colon`},
		{"twice", "masquerade: {out: [wan, wan]}", `3:29: expected ` + nameWords + `, found "wan": it is there twice`},
		{"protocol's number", "dnat: {on: wan, port: 80, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "80": a port needs its protocol: write tcp/80 or udp/80 (an IP protocol's number is ip/47)`},
		{"protocol behind", "dnat: {on: wan, port: 80/tcp, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "80/tcp": write tcp/80`},
		{"protocol behind a range", "dnat: {on: wan, port: 80-90/UDP, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "80-90/UDP": write udp/80-90`},
		{"colon", "dnat: {on: wan, port: tcp:80, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp:80": write tcp/80`},
		{"service", "dnat: {on: wan, port: http, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "http": a service needs its protocol: write tcp/http, udp/http or tcp+udp/http`},
		{"service of udp", "dnat: {on: wan, port: DNS, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "DNS": a service needs its protocol: write tcp/dns, udp/dns or tcp+udp/dns`},
		{"a name that is no service", "dnat: {on: wan, port: tcp/htps, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/htps": unknown service "htps": did you mean https? of others write the number of the port`},
		{"a name with a hyphen that is no service", "dnat: {on: wan, port: tcp/ms-sql-s, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/ms-sql-s": unknown service "ms-sql-s": write the number of its port, such as 8080`},
		{"a name that begins with a service", "dnat: {on: wan, port: tcp/ftp-data, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/ftp-data": unknown service "ftp-data": write the number of its port, such as 8080`},
		{"a name with a hyphen of one port", "dnat: {on: wan, port: tcp/80, to: \":ms-sql-s\"}", `3:39: expected an address with or without a port, such as 172.17.0.2:80 or "[fd00::2]:80", found ":ms-sql-s": unknown service "ms-sql-s": write the number of its port, such as 8080`},
		{"a range that begins with a number", "dnat: {on: wan, port: tcp/80-htps, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tcp/80-htps": unknown service "htps": did you mean https? of others write the number of the port`},
		{"a name near no service", "dnat: {on: wan, port: [tcp/80, udp/nosuch], to: 10.0.0.1}", `3:36: expected ` + portWords + `, found "udp/nosuch": unknown service "nosuch": write the number of its port, such as 8080`},
		{"own port among hosts", "dnat: {on: wan, port: tcp/80, to: [\":80\", 10.0.0.1:80]}", "3:47: the gateway's own port stands alone: it is not one of several hosts to choose from"},
		{"a range to several", "dnat: {on: wan, port: tcp/80-90, to: [10.0.0.1:80-90, 10.0.0.2:80-90]}", "3:59: a range of ports becomes that of one host: with several in to each keeps its port"},
		{"a large range", "dnat: {on: wan, port: tcp/1-5000, to: 10.0.0.1:10001-15000}", "3:43: a range of ports becomes another of at most 4096"},
		{"mark without bits", "snat: {mark: 0x10/0, to: 10.0.0.1}", `3:18: expected ` + markWords + `, found "0x10/0": no bit counts: every packet has such a mark`},
		{"mark beyond its bits", "snat: {mark: 0x11/0x10, to: 10.0.0.1}", `3:18: expected ` + markWords + `, found "0x11/0x10": the value has bits that do not count`},
		{"user by name", "snat: {user: squid, to: 10.0.0.1}", `3:18: expected ` + idWords + `, found "squid": write its number, which 'id -u squid' prints (of a group: 'getent group squid')`},
		{"dscp", "snat: {dscp: af99, to: 10.0.0.1}", `3:18: expected ` + dscpWords + `, found "af99"`},
		{"near a protocol", "dnat: {on: wan, port: tpc/80, to: 10.0.0.1}", `3:27: expected ` + portWords + `, found "tpc/80": did you mean "tcp"?`},
		{"a port twice", "dnat: {on: wan, port: [tcp/80, tcp+udp/80], to: 10.0.0.1}", `3:36: expected ` + portWords + `, found "tcp+udp/80": it is there twice`},
		{"no host", "dnat: {on: wan, to: []}", "3:25: expected at least one item, found an empty list"},
		{"weight 0", "dnat: {on: wan, to: [{address: 10.0.0.1, weight: 0}, 10.0.0.2]}", `3:54: expected a weight from 1 to 1000, found "0"`},
		{"no address", "dnat: {on: wan, to: [{weight: 2}]}", "3:26: expected address: an address with or without a port, such as 172.17.0.2:80 or \"[fd00::2]:80\""},
		{"some with a port", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2:80]}", "3:50: either each of several hosts has a port, or none has one"},
		{"balance", "dnat: {on: wan, to: [10.0.0.1, 10.0.0.2], balance: rr}", `3:56: expected round-robin or hash, found "rr"`},
		{"health alone", "dnat: {on: wan, port: tcp/80, to: 10.0.0.1, health: {tcp: on}}", `3:57: health requires several hosts in to: a host that is alone is not replaced by another`},
		{"health both", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {tcp: on, http: /}}", `3:69: health requires tcp: on or http: /path, and not both`},
		{"health of UDP", "dnat: {on: wan, port: udp/53, to: [10.0.0.1, 10.0.0.2], health: {tcp: on}}", `3:69: health requires port: the rule does not say which port of TCP to check`},
		{"health of many ports", "dnat: {on: wan, port: tcp/80-90, to: [10.0.0.1, 10.0.0.2], health: {tcp: on}}", `3:72: health requires port: the rule does not say which port of TCP to check`},
		{"health timeout", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {tcp: on, timeout: 3s}}", `3:88: timeout 3s is longer than interval 2s`},
		{"health unit", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {tcp: on, interval: 5}}", `3:89: expected a time such as 500ms, 2s or 1m, found "5": a time needs its unit: write 5s`},
		{"health url", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {http: \"http://x/\"}}", `3:76: expected a path such as /health, found "http://x/": write the path alone, such as /health: address and port are those of each host, and TLS is not spoken`},
		{"health escape", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {http: /%zz}}", `3:76: expected a path such as /health, found "/%zz": a percent sign begins two hexadecimal digits, such as %20`},
		{"health rise", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {tcp: on, rise: 0}}", `3:85: expected a number from 1 to 100, found "0"`},
		{"health word", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], health: {tcp: on, fail: 2}}", `3:79: unknown field "fail" (did you mean "fall"?); expected one of: tcp, http, port, interval, timeout, rise, fall`},
		{"all-down", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], all-down: refuse}", `3:71: expected reject or last, found "refuse"`},
		{"all-down alone", "dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], all-down: reject}", `3:71: all-down requires health: without checks no host is known to be down`},
		{"port or group", "dnat: {on: wan, to: fd02::10:80}", `3:25: expected ` + endpointWords + `, found "fd02::10:80": write "[fd02::10]:80" for that port, or "[fd02::10:80]" for the address`},
		{"brackets of IPv4", "dnat: {on: wan, to: \"[10.0.0.1]:80\"}", `3:25: expected ` + endpointWords + `, found "[10.0.0.1]:80": write "10.0.0.1:80"`},
		{"on with a port", "dnat: {on: \"203.0.113.7:80\", to: 10.0.0.1}", `3:16: expected ` + onWords + `, found "203.0.113.7:80": a port has a field of its own: write on: 203.0.113.7, port: tcp/80`},
		{"a star before the end", "masquerade: {out: w*n}", `3:23: expected ` + nameWords + `, found "w*n": one * stands at the end of a name`},
		{"all interfaces", "masquerade: {out: '*'}", `3:23: expected ` + nameWords + `, found "*": these are all: leave it out`},
		{"a group by name", "masquerade: {in: group guests}", `3:22: expected ` + nameWords + `, found "group guests": write group and the number of a link group, such as group 10`},
		{"names and groups", "masquerade: {in: [eth0, group 10]}", `3:29: expected ` + nameWords + `, found "group 10": names of interfaces and link groups are not asked for together: write one rule for each, or put the interface…`},
		{"pattern of iptables", "dnat: {on: ppp+, to: 10.0.0.1}", `3:16: expected ` + onWords + `, found "ppp+": write ppp*`},
		{"near fully", "masquerade: {random: fuly}", `3:26: expected on, off or fully, found "fuly": did you mean "fully"?`},
		{"near keep", "masquerade: {ports: kepe}", `3:25: expected ` + portsWords + `, found "kepe": did you mean "keep"?`},
		{"off", "snat: {to: 203.0.113.1, persistent: No}", `3:41: expected on or off, found "No": write off`},
		{"random", "masquerade: {random: very}", `3:26: expected on, off or fully, found "very"`},
		{"switch", "snat: {to: 203.0.113.1, persistent: yes}", `3:41: expected on or off, found "yes": write on`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("f", []byte("gateway:\n  nat:\n  - "+tt.rule+"\n"))
			var syntax *document.SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("error %T %v", err, err)
			}
			if diff := cmp.Diff("f:"+tt.want, err.Error()); diff != "" {
				t.Error(diff)
			}
			if !strings.HasSuffix(syntax.Excerpt, "^") {
				t.Errorf("excerpt %q", syntax.Excerpt)
			}
		})
	}
}

func TestParseErrorsOutsideRules(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "f:1:1: expected a gateway file, found an empty document",
		"nat: []":                                `f:1:1: unknown field "nat"; expected one of: gateway`,
		"gateway:":                               "f:1:9: expected a mapping below the key gateway",
		"gateway: {engine: dpdk}":                `f:1:19: expected an engine: netfilter, ebpf, found "dpdk"`,
		"gateway: {engine: netfliter}":           `f:1:19: expected an engine: netfilter, ebpf, found "netfliter": did you mean "netfilter"?`,
		"gateway: {mss: clmap}":                  `f:1:16: expected clamp, or a number of bytes such as 1360, found "clmap": did you mean "clamp"?`,
		"gateway: {intefaces: {wan: eth0}}":      `f:1:11: unknown field "intefaces" (did you mean "interfaces"?); expected one of: include, define, engine, acknowledge-bypass, xdp, expect, interfaces, marks, zone-marks, mss, flowtable, accounting, limits, he…`,
		"gateway: {expect: {flows: 200G}}":       `f:1:27: expected a number such as 200000, 200k or 2M, found "200G"`,
		"gateway: {expect: {flows: 9999999999}}": `f:1:27: expected a number such as 200000, 200k or 2M, found "9999999999"`,
		"gateway: {expect: {rate: 5000}}":        `f:1:26: expected a number per second such as 5000/s, found "5000"`,
		"gateway: {ttl: 0}":                      `f:1:16: expected a number from 1 to 255, found "0"`,
		"gateway: {ttl: 256}":                    `f:1:16: expected a number from 1 to 255, found "256"`,
		"gateway: {helpers: [ftp, tfpt]}":        `f:1:26: expected ftp, tftp, sip or pptp, found "tfpt": did you mean "tftp"?`,
		"gateway: {helpers: [ftp, ftp]}":         `f:1:26: expected ftp, tftp, sip or pptp, found "ftp": it is there twice`,
		"gateway: {mss: 100}":                    `f:1:16: expected clamp, or a number of bytes such as 1360, found "100": a segment has 536 to 65495 bytes`,
		"gateway: {ipv6: …}":                     "f:1:17: expected a list, found text",
	} {
		_, err := Parse("f", []byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%q:\ngot  %v\nwant %s", text, err, want)
		}
	}
}

// TestParseEmptyKey: a key whose rules are all commented out does not mean that there is nothing to do.
func TestParseEmptyKey(t *testing.T) {
	for _, text := range []string{"gateway:\n  nat:\n", "gateway:\n  ipv6:\n  # - masquerade: {}\n", "gateway:\n  interfaces:\n  nat: [masquerade: {}]\n"} {
		if _, err := Parse("f", []byte(text)); err == nil || !strings.Contains(err.Error(), "found nothing") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestParseRef(t *testing.T) {
	for _, r := range []Ref{{"nat", 0, "snat", "", ""}, {"ipv6", 123, "netmap", "office-2", ""}, {"nat", 1, "dnat", "web", "moves in May (or June)"}, {"nat", 1, "dnat", "", "geschützt"}} {
		if got, ok := ParseRef(r.Label()); !ok || got != r {
			t.Errorf("%v: %v, %v", r, got, ok)
		}
	}
	for _, text := range []string{"", "nat", "nat[1]", "nat[x] snat", "nat[01] snat", "nat[-1 snat", "10 entries of @snat", "nat[1] snat (open", "nat[1] snat ()"} {
		if got, ok := ParseRef(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestMarshal(t *testing.T) {
	f, err := Parse("every.yaml", []byte(every))
	if err != nil {
		t.Fatal(err)
	}
	const want = `gateway:
  engine: netfilter
  expect: {flows: 200k, rate: 5k/s}
  interfaces: {wan: eth0, lan: [eth1, br0]}
  mss: clamp
  flowtable: on
  limits: {connections-per-source: 2k}
  nat:
    - masquerade: {from: 192.168.0.0/16, except-to: 10.0.0.0/8, out: wan}
    - snat: {from: 192.168.0.2, to: 203.0.113.7}
    - snat: {from: 10.0.0.0/16, to: 203.0.113.8/29, ports: 1024-65535, random: fully, persistent: on}
    - snat: {from: 10.2.0.0/24, to: 203.0.113.32/27, ports: keep}
    - dnat: {on: 203.0.113.7, port: tcp/8080, to: 172.17.0.2:80, hairpin: on, local: on}
    - static: {inside: 192.168.0.3, outside: 203.0.113.9}
    - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}
    - notrack: {on: 203.0.113.10}
  ipv6:
    - netmap: {inside: fd00:1::/64, outside: 2001:db8:1::/64, stateless: on}
    - dnat: {on: wan, port: udp/53, to: "[fd00::2]:5353"}
`
	if diff := cmp.Diff(want, string(Marshal(&f.Config))); diff != "" {
		t.Error(diff)
	}
}

// Every field, and every value that YAML could misunderstand, comes back as it was.
func TestMarshalParse(t *testing.T) {
	for _, text := range []string{
		"gateway: {}",
		"gateway: {ipv6: [masquerade: {from: [fd00::/8, 2001:db8::5, ::5], except-to: [fd00:1:2::/64, 'fd00::']}]}",
		"gateway: {interfaces: {wan: [\"null\", \"-a\", \"a#b\", \"1e5\", \"0x1\", \"!x*\", \"a'b\", \"on\", \"~\", \"{}\", \".a\", \"a-\", \"_\"]}}",
		"gateway: {mss: 1360, accounting: on, expect: {flows: 1}, nat: [masquerade: {ports: 4000, random: on}]}",
		"gateway: {ipv6: [static: {inside: 'fd00::', outside: '::2', stateless: on}, netmap: {inside: '::/0', outside: '::/0'}, snat: {to: ['::5-::7', '::8-::9'], persistent: off}]}",
		"gateway: {nat: [static: {inside: 1.1.1.1, outside: 2.2.2.2, hairpin: on, local: on}, notrack: {on: 1.1.1.1, port: udp/7-9}, dnat: {on: wan, from: [10.0.0.0/8], port: icmp, to: 1.1.1.1}]}",
		"gateway: {nat: [dnat: {on: wan, port: tcp/80, to: [10.0.0.1, 10.0.0.2], balance: hash, health: {http: '/a?b=c#', port: 81, interval: 1m30s, timeout: 500ms, rise: 3, fall: 100}, all-down: reject}]}",
		"gateway: {ipv6: [dnat: {on: wan, port: ip/89, to: '[fd02::10:80]'}, dnat: {on: wan, port: ip/6, to: 'fd00:1:2:3:4:5:6:80'}]}",
	} {
		marshalsBack(t, text)
	}
}

func marshalsBack(t *testing.T, text string) {
	t.Helper()
	f, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	written := Marshal(&f.Config)
	again, err := Parse("g", written)
	if err != nil {
		t.Fatalf("%s\nbecame\n%s%v", text, written, err)
	}
	if !reflect.DeepEqual(f.Config, again.Config) {
		t.Errorf("%s\nbecame\n%s", text, written)
	}
}

// Every service is known by its name, also where that has a hyphen, and begins and ends a range.
func TestServiceNames(t *testing.T) {
	for name, port := range services {
		if p, err := parsePort("tcp/" + name); err != nil || p != (Port{"tcp", port, port}) {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if p, err := parsePort("tcp/ssh-http"); err != nil || p != (Port{"tcp", 22, 80}) {
		t.Errorf("a range: %v, %v", p, err)
	}
}
