package behaviour

// bothWays is the outcome of a kind of NAT that does what it is for.
const bothWays Outcome = "both ways"

// kinds are the kinds of rules that a gateway file has, their conditions and the settings beside them, each with traffic
// in both directions.
func kinds() []Case {
	cases := append(kindsOfSources(), kindsOfDestinations()...)
	cases = append(cases, kindsOfPairs()...)
	cases = append(cases, kindsOfIPv6()...)
	for _, more := range [][]Case{conditions(), sets(), severalHosts(), zones(), uplinks(), settings()} {
		cases = append(cases, more...)
	}
	for i := range cases {
		cases[i].Level = Natkit
		if len(cases[i].Want) == 0 {
			cases[i].Want = []Outcome{bothWays}
		}
	}
	return cases
}

// rules makes a gateway file of rules of IPv4.
func rules(lines string) string {
	return "interfaces: {wan: wan, lan: [lan, dmz]}\nnat:\n" + lines
}

func rules6(lines string) string {
	return "interfaces: {wan: wan, lan: [lan, dmz]}\nipv6:\n" + lines
}

func kindsOfSources() []Case {
	return []Case{
		{ID: "kind-masquerade", Requirement: "masquerade", Asks: "hosts inside get the address of the interface by which they leave",
			Run: outAs(insideA, "203.0.113.1:4000")},
		{ID: "kind-snat", Untranslated: true, Requirement: "snat", Asks: "a host gets a given address; another stays as it is",
			Gateway: rules("  - snat: {from: 192.168.0.2, to: 203.0.113.7}"),
			Run:     allSteps(outAs(insideA, "203.0.113.7:4000"), outAs(insideB, "192.168.0.3:4000"))},
		{ID: "kind-snat-specific", Requirement: "snat", Asks: "the most specific rule wins, whatever the order in the file",
			Gateway: rules("  - masquerade: {from: 192.168.0.0/16}\n  - snat: {from: 192.168.0.0/24, to: 203.0.113.8}\n  - snat: {from: 192.168.0.2, to: 203.0.113.7}\n  - masquerade: {}"),
			Run:     allSteps(outAs(insideA, "203.0.113.7:4000"), outAs(insideB, "203.0.113.8:4000"), outAs(at(C, "172.17.0.2:4000"), "203.0.113.1:4000"))},
		{ID: "kind-snat-ports", Requirement: "snat", Asks: "ports below 1024 become ones of the given range; those in it stay",
			Gateway: rules("  - snat: {from: 192.168.0.0/24, to: 203.0.113.7, ports: 1024-65535}"),
			Run:     lowPorts},
		{ID: "kind-notrack", Untranslated: true, Requirement: "notrack", Asks: "what an address sends and gets is neither translated nor tracked",
			Gateway: rules("  - masquerade: {}\n  - notrack: {on: 192.168.0.4}"),
			Run:     allSteps(outAs(at(A, "192.168.0.4:4000"), "192.168.0.4:4000"), untracked, outAs(insideA, "203.0.113.1:4000"))},
		{ID: "kind-notrack-port", Untranslated: true, Requirement: "notrack", Asks: "with a port only that one is left alone",
			Gateway: rules("  - masquerade: {}\n  - notrack: {on: 192.168.0.4, port: udp/53}"),
			Run:     notrackPort},
	}
}

func kindsOfDestinations() []Case {
	return []Case{
		{ID: "kind-dnat-port", Requirement: "dnat", Asks: "a port of an address leads to a port of a host inside, no other port does",
			Gateway: rules("  - masquerade: {}\n  - dnat: {on: 203.0.113.7, port: udp/8080, to: \"192.168.0.2:80\"}"),
			Run:     allSteps(inTo("203.0.113.7:8080", at(A, "192.168.0.2:80")), notIn("203.0.113.7:8081"))},
		{ID: "kind-dnat-range", Requirement: "dnat", Asks: "a range of ports leads to a host, ports as they are",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/5000-5100, to: 192.168.0.2}"),
			Run:     allSteps(inTo("203.0.113.7:5000", at(A, "192.168.0.2:5000")), inTo("203.0.113.7:5100", at(A, "192.168.0.2:5100")), notIn("203.0.113.7:5101"))},
		{ID: "kind-dnat-address", Requirement: "dnat", Asks: "a whole address leads to a host",
			Gateway: rules("  - dnat: {on: 203.0.113.7, to: 192.168.0.2}"),
			Run:     inTo("203.0.113.7:1234", at(A, "192.168.0.2:1234"))},
		{ID: "kind-dnat-specific", Requirement: "dnat", Asks: "a port is more specific than an address, whatever the order in the file",
			Gateway: rules("  - dnat: {on: 203.0.113.7, to: 192.168.0.2}\n  - dnat: {on: 203.0.113.7, port: udp/53, to: \"192.168.0.3:5353\"}"),
			Run:     allSteps(inTo("203.0.113.7:53", at(B, "192.168.0.3:5353")), inTo("203.0.113.7:54", at(A, "192.168.0.2:54")))},
		{ID: "kind-dnat-from", Requirement: "dnat", Asks: "only the named clients are forwarded",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/53, from: 198.18.1.0/24, to: 192.168.0.2}"),
			Run:     allSteps(inFrom(outsideY, "203.0.113.7:53", at(A, "192.168.0.2:53")), notIn("203.0.113.7:53"))},
		{ID: "kind-dnat-wan", Requirement: "dnat", Asks: "`on: wan` is the present address of the interface",
			Gateway: rules("  - dnat: {on: wan, port: udp/53, to: \"172.17.0.2:5353\"}"),
			Run:     inTo("203.0.113.1:53", at(C, "172.17.0.2:5353"))},
		{ID: "kind-dnat-ports", Requirement: "dnat", Asks: "several ports, ranges and protocols lead to a host, ports as they are",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: [udp/53, udp/5000-5002, tcp/80], to: 192.168.0.2}"),
			Run: allSteps(inTo("203.0.113.7:53", at(A, "192.168.0.2:53")), inTo("203.0.113.7:5002", at(A, "192.168.0.2:5002")),
				opensTo("203.0.113.7:80", at(A, "192.168.0.2:80")), notIn("203.0.113.7:5003"), notIn("203.0.113.7:80"))},
		{ID: "kind-dnat-shifted", Requirement: "dnat", Asks: "a range of ports leads to another one, each port to the one at its place",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/5000-5010, to: \"192.168.0.2:6100-6110\"}"),
			Run:     allSteps(inTo("203.0.113.7:5000", at(A, "192.168.0.2:6100")), inTo("203.0.113.7:5010", at(A, "192.168.0.2:6110")), notIn("203.0.113.7:5011"))},
		{ID: "kind-dnat-own-port", Requirement: "dnat, REDIRECT", Asks: "`to: \":3128\"` leads to a program on the gateway, which answers as whoever was asked",
			Gateway: rules("  - masquerade: {}\n  - dnat: {on: any, in: lan, port: udp/53, to: \":3128\"}\n  - dnat: {on: wan, port: udp/8053, to: \":3128\"}"),
			Run: allSteps(redirected(insideA, "198.18.0.10:53", 3128), redirected(at(C, "172.17.0.2:4000"), "198.18.1.20:53", 3128),
				redirected(outsideX, "203.0.113.1:8053", 3128), outAs(insideA, "203.0.113.1:4000"))},
		{ID: "kind-dnat-any", Requirement: "dnat, on: any", Asks: "whatever address hosts inside ask leads to a host, but for those that are left alone (a transparent proxy)",
			Gateway: rules("  - masquerade: {}\n  - dnat: {on: any, in: lan, port: udp/53, except-from: 192.168.0.3, to: \"172.17.0.2:5353\"}"),
			Run: allSteps(inFrom(insideA, "198.18.0.10:53", at(C, "172.17.0.2:5353")), inFrom(insideA.port(4001), "198.18.1.20:53", at(C, "172.17.0.2:5353")),
				outTo(insideB, outsideX.port(53), "203.0.113.1:4000"), outAs(insideA, "203.0.113.1:4000"))},
		{ID: "kind-dnat-any-only-to", Requirement: "dnat, on: any", Asks: "with `only-to` and `except-to` it is some addresses that lead there",
			Gateway: rules("  - masquerade: {}\n  - dnat: {on: any, in: lan, only-to: 198.18.0.0/15, except-to: 198.18.0.0/24, port: udp/53, to: 172.17.0.2}"),
			Run:     allSteps(inFrom(insideA, "198.18.1.20:53", at(C, "172.17.0.2:53")), outTo(insideA, outsideX.port(53), "203.0.113.1:4000"))},
		{ID: "kind-dnat-round-robin", Requirement: "dnat", Asks: "new connections go to several hosts in turn, to each as often as its weight says, and stay there",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/8080, to: [{address: \"192.168.0.2:80\", weight: 3}, \"192.168.0.3:81\"]}"),
			Run:     balanced("203.0.113.7:8080", map[end]int{at(A, "192.168.0.2:80"): 9, at(B, "192.168.0.3:81"): 3})},
		{ID: "kind-dnat-hash", Requirement: "dnat", Asks: "with `balance: hash` each client stays with one of several hosts, and each host has clients",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/8080, to: [192.168.0.2, 192.168.0.3], balance: hash}"),
			Run:     byClient("203.0.113.7:8080", at(A, "192.168.0.2:8080"), at(B, "192.168.0.3:8080"))},
		{ID: "kind-dnat-hairpin", Requirement: "dnat", Asks: "hosts in the same network and in another one inside reach a forward by its outside address, and are seen under that",
			Gateway: forwardHairpin, Run: allSteps(hairpinTo(insideB), hairpinTo(at(C, "172.17.0.2:4000")), hairpinTo(insideA))},
		{ID: "kind-dnat-local", Requirement: "dnat", Asks: "programs on the gateway reach a forward with `local`",
			Gateway: rules("  - dnat: {on: 203.0.113.7, port: udp/8080, to: \"192.168.0.2:80\", local: true}"),
			Run:     localTo("203.0.113.7:8080", at(A, "192.168.0.2:80"))},
	}
}

// floating is a set of pairs.
const floating = "sets: {floating: {pairs: [203.0.113.9 192.168.0.2, 203.0.113.8 192.168.0.3, \"2001:db8:1::9 fd00:1::2\"]}}\n"

func kindsOfPairs() []Case {
	const outside = "203.0.113.9:4000"
	return []Case{
		{ID: "kind-static", Requirement: "static", Asks: "an address outside stands for a host, for flows that either side begins",
			Gateway: rules("  - static: {inside: 192.168.0.2, outside: 203.0.113.9}"),
			Run:     allSteps(outAs(insideA, outside), inTo("203.0.113.9:77", at(A, "192.168.0.2:77")))},
		{ID: "kind-static-hairpin", Requirement: "static", Asks: "hosts inside reach it by its outside address",
			Gateway: rules("  - static: {inside: 192.168.0.2, outside: 203.0.113.7, hairpin: true}\n  - masquerade: {}"),
			Run:     allSteps(hairpinAs(insideB, "203.0.113.7:80", at(A, "192.168.0.2:80")), outAs(insideA, "203.0.113.7:4000"))},
		{ID: "kind-static-local", Requirement: "static", Asks: "programs on the gateway reach it with `local`",
			Gateway: rules("  - static: {inside: 192.168.0.2, outside: 203.0.113.9, local: true}"),
			Run:     localTo("203.0.113.9:80", at(A, "192.168.0.2:80"))},
		{ID: "kind-static-narrow", Untranslated: true, Requirement: "static", Asks: "with a service and `except-to` it stands for the host in these connections alone, whichever side begins",
			Gateway: rules("  - static: {inside: 192.168.0.2, outside: 203.0.113.9, port: [udp/77, udp/5000], except-to: 198.18.1.0/24}"),
			Run: allSteps(outAs(insideA, outside), outTo(insideA, outsideX.port(5001), "192.168.0.2:4000"), outTo(insideA, outsideY, "192.168.0.2:4000"),
				inTo("203.0.113.9:77", at(A, "192.168.0.2:77")), notIn("203.0.113.9:78"), notInFrom(outsideY, "203.0.113.9:77"))},
		{ID: "kind-static-stateless", Requirement: "static, stateless", Asks: "the same packet by packet, without a mapping",
			Gateway: rules("  - static: {inside: 192.168.0.2, outside: 203.0.113.9, stateless: true}"),
			Run:     allSteps(outAs(insideA, outside), inTo("203.0.113.9:77", at(A, "192.168.0.2:77")), untracked)},
		{ID: "kind-static-pairs", Requirement: "static, pairs", Asks: "each address outside of a set of pairs stands for its host, and for no other",
			Gateway: floating + rules("  - static: {pairs: $floating}"),
			Run: allSteps(outAs(insideA, outside), outAs(insideB, "203.0.113.8:4000"), inTo("203.0.113.9:77", at(A, "192.168.0.2:77")),
				inTo("203.0.113.8:77", at(B, "192.168.0.3:77")), notIn("203.0.113.7:77"))},
		{ID: "kind-static-pairs-local", Requirement: "static, pairs", Asks: "programs on the gateway reach them with `local`",
			Gateway: floating + rules("  - static: {pairs: $floating, local: true}"),
			Run:     localTo("203.0.113.8:80", at(B, "192.168.0.3:80"))},
		{ID: "kind-static-pairs-stateless", Requirement: "static, pairs, stateless", Asks: "the same packet by packet, without a mapping",
			Gateway: floating + rules("  - static: {pairs: $floating, stateless: true}"),
			Run: allSteps(outAs(insideA, outside), outAs(insideB, "203.0.113.8:4000"), inTo("203.0.113.9:77", at(A, "192.168.0.2:77")),
				inTo("203.0.113.8:77", at(B, "192.168.0.3:77")), untracked)},
		{ID: "kind-static-pairs-beside", Requirement: "static, pairs", Asks: "a forward of a port comes before them, and other hosts are masqueraded",
			Gateway: floating + rules("  - static: {pairs: $floating}\n  - dnat: {on: 203.0.113.9, port: udp/8080, to: \"172.17.0.2:80\"}\n  - masquerade: {}"),
			Run: allSteps(inTo("203.0.113.9:8080", at(C, "172.17.0.2:80")), inTo("203.0.113.9:77", at(A, "192.168.0.2:77")), outAs(insideB, "203.0.113.8:4000"),
				outAs(at(C, "172.17.0.2:4000"), "203.0.113.1:4000"))},
		{ID: "kind-netmap", Requirement: "netmap", Asks: "a prefix stands for a prefix, hosts keep their bits, either side begins",
			Gateway: rules("  - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24}"),
			Run: allSteps(outAs(at(A, "10.1.0.2:4000"), "198.51.100.2:4000"), outAs(at(B, "10.1.0.3:4000"), "198.51.100.3:4000"),
				inTo("198.51.100.2:77", at(A, "10.1.0.2:77")), inTo("198.51.100.3:77", at(B, "10.1.0.3:77")))},
		{ID: "kind-netmap-stateless", Requirement: "netmap, stateless", Asks: "the same packet by packet, without a mapping",
			Gateway: rules("  - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24, stateless: true}"),
			Run: allSteps(outAs(at(A, "10.1.0.2:4000"), "198.51.100.2:4000"), outAs(at(B, "10.1.0.3:4000"), "198.51.100.3:4000"),
				inTo("198.51.100.2:77", at(A, "10.1.0.2:77")), inTo("198.51.100.3:77", at(B, "10.1.0.3:77")), untracked)},
	}
}

func kindsOfIPv6() []Case {
	return []Case{
		{ID: "kind-nat66-masquerade", Requirement: "masquerade, NAT66", Asks: "hosts inside get the IPv6 address of the interface by which they leave",
			Run: outTo(insideA6, outsideX6, "[2001:db8:1::1]:4000")},
		{ID: "kind-nat66-snat", Untranslated: true, Requirement: "snat, NAT66", Asks: "a host gets a given IPv6 address",
			Gateway: rules6("  - snat: {from: \"fd00:1::2\", to: \"2001:db8:1::7\"}"),
			Run:     allSteps(outTo(insideA6, outsideX6, "[2001:db8:1::7]:4000"), outTo(insideB6, outsideX6, "[fd00:1::3]:4000"))},
		{ID: "kind-nat66-dnat", Requirement: "dnat, NAT66", Asks: "a port of an IPv6 address leads to a host inside",
			Gateway: rules6("  - dnat: {on: \"2001:db8:1::7\", port: udp/8080, to: \"[fd00:1::2]:80\"}"),
			Run:     inFrom(outsideX6, "[2001:db8:1::7]:8080", at(A, "[fd00:1::2]:80"))},
		{ID: "kind-nat66-shifted", Requirement: "dnat, NAT66", Asks: "a range of ports leads to another one, each port to the one at its place",
			Gateway: rules6("  - dnat: {on: \"2001:db8:1::7\", port: udp/5000-5010, to: \"[fd00:1::2]:6100-6110\"}"),
			Run:     allSteps(inFrom(outsideX6, "[2001:db8:1::7]:5000", at(A, "[fd00:1::2]:6100")), inFrom(outsideX6, "[2001:db8:1::7]:5010", at(A, "[fd00:1::2]:6110")))},
		{ID: "kind-nat66-any", Requirement: "dnat, on: any, NAT66", Asks: "whatever IPv6 address hosts inside ask leads to a host",
			Gateway: rules6("  - dnat: {on: any, in: lan, port: udp/53, to: \"[fd00:2::2]:5353\"}"),
			Run:     inFrom(insideA6, "[2001:db8:f:1::10]:53", at(C, "[fd00:2::2]:5353"))},
		{ID: "kind-nat66-round-robin", Requirement: "dnat, NAT66", Asks: "new connections go to several hosts inside in turn",
			Gateway: rules6("  - dnat: {on: \"2001:db8:1::7\", port: udp/8080, to: [\"[fd00:1::2]:80\", \"[fd00:1::3]:81\"]}"),
			Run:     balanced("[2001:db8:1::7]:8080", map[end]int{at(A, "[fd00:1::2]:80"): 6, at(B, "[fd00:1::3]:81"): 6})},
		{ID: "kind-nat66-hairpin", Requirement: "dnat, NAT66", Asks: "hosts inside reach a forward by its outside IPv6 address",
			Gateway: rules6("  - dnat: {on: \"2001:db8:1::7\", port: udp/8080, to: \"[fd00:1::2]:80\", hairpin: true}"),
			Run:     hairpinAs(insideB6, "[2001:db8:1::7]:8080", at(A, "[fd00:1::2]:80"))},
		{ID: "kind-nat66-static", Requirement: "static, NAT66", Asks: "an IPv6 address outside stands for a host, for flows that either side begins",
			Gateway: rules6("  - static: {inside: \"fd00:1::2\", outside: \"2001:db8:1::9\"}"),
			Run: allSteps(outTo(insideA6, outsideX6, "[2001:db8:1::9]:4000"),
				inFrom(outsideX6, "[2001:db8:1::9]:77", at(A, "[fd00:1::2]:77")))},
		{ID: "kind-nat66-static-pairs", Requirement: "static, pairs, NAT66", Asks: "each IPv6 address outside of a set of pairs stands for its host",
			Gateway: floating + rules6("  - static: {pairs: $floating}"),
			Run: allSteps(outTo(insideA6, outsideX6, "[2001:db8:1::9]:4000"),
				inFrom(outsideX6, "[2001:db8:1::9]:77", at(A, "[fd00:1::2]:77")))},
		{ID: "kind-nat66-netmap", Requirement: "netmap, NAT66", Asks: "a prefix stands for a prefix, tracked, either side begins",
			Gateway: rules6("  - netmap: {inside: \"fd00:1::/64\", outside: \"2001:db8:2::/64\"}"),
			Run: allSteps(outTo(insideA6, outsideX6, "[2001:db8:2::2]:4000"),
				inFrom(outsideX6, "[2001:db8:2::3]:77", at(B, "[fd00:1::3]:77")))},
	}
}
