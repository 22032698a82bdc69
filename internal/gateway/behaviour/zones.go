package behaviour

import "fmt"

// zoned makes a file in which the networks of A and of C are zones of their own.
func zoned(lines string) string {
	return "interfaces: {wan: wan, lan: [{interface: lan, zone: red}, {interface: dmz, zone: blue}]}\nnat:\n" + lines
}

// The hosts of both zones with one address.
var red, blue = at(A, "10.1.0.2:4000"), at(C, "10.1.0.2:4000")

// zones are cases of networks inside with the same addresses.
func zones() []Case {
	const each = "  - dnat: {on: 203.0.113.7, port: udp/80, to: \"10.1.0.2:8000\", zone: red, hairpin: on}\n  - dnat: {on: 203.0.113.8, port: udp/80, to: \"10.1.0.2:8000\", zone: blue, hairpin: on}\n"
	return []Case{
		{ID: "zone-masquerade", Requirement: "zone", Asks: "hosts with the same address and port share an address outside, and each gets its own answers",
			Gateway: zoned("  - masquerade: {}\n"), Run: sharedByZones},
		{ID: "zone-snat", Requirement: "zone", Asks: "a rule is for the hosts of one zone",
			Gateway: zoned("  - masquerade: {}\n  - snat: {from: 10.1.0.0/24, zone: blue, to: 203.0.113.8}\n"),
			Run:     allSteps(outAs(red, "203.0.113.1:4000"), outAs(blue, "203.0.113.8:4000"), outAs(red, "203.0.113.1:4000"))},
		{ID: "zone-dnat", Requirement: "zone", Asks: "a forward leads to the host of its zone, also from inside",
			Gateway: zoned(each + "  - masquerade: {}\n"),
			Run: allSteps(inTo("203.0.113.7:80", red.port(8000)), inFrom(outsideX.port(5001), "203.0.113.8:80", blue.port(8000)),
				hairpinAs(blue, "203.0.113.7:80", red.port(8000)), hairpinAs(red, "203.0.113.8:80", blue.port(8000)))},
		{ID: "zone-netmap", Requirement: "zone", Asks: "each zone's network has another one outside, for flows that either side begins",
			Gateway: zoned("  - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24, zone: red}\n  - netmap: {inside: 10.1.0.0/24, outside: 192.0.2.0/24, zone: blue}\n"),
			Run: allSteps(outAs(red, "198.51.100.2:4000"), outAs(blue, "192.0.2.2:4000"),
				inTo("198.51.100.2:77", red.port(77)), inFrom(outsideX.port(5001), "192.0.2.2:77", blue.port(77)))},
	}
}

// sharedByZones has two hosts with one address and port talk to one destination.
func sharedByZones(p *Play) (Outcome, error) {
	first, err := p.both(red, outsideX)
	if err != nil {
		return "", err
	}
	second, err := p.both(blue, outsideX)
	if err != nil {
		return "", err
	}
	again, err := p.both(red, outsideX)
	ok := first.Addr() == WANAddress.Addr() && second.Addr() == first.Addr() && second != first && again == first
	return yes(ok, bothWays, Outcome(fmt.Sprintf("seen as %v, the other as %v, then as %v", first, second, again))), err
}
