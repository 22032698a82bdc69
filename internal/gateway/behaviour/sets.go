package behaviour

import "fmt"

// setsGateway has a set of addresses of both families, and one of ports.
func setsGateway(addresses, ports string) string {
	return fmt.Sprintf(`
interfaces: {wan: wan, lan: [lan, dmz]}
sets:
  partners: {addresses: [%s]}
  web: {ports: [%s]}
nat:
  - masquerade: {except-to: $partners}
  - snat: {only-to: $partners, port: [$web, udp/9000], to: 203.0.113.8}
  - dnat: {on: 203.0.113.7, port: $web, from: $partners, to: 192.168.0.2}
ipv6:
  - masquerade: {}
  - snat: {only-to: $partners, to: "2001:db8:1::8"}
`, addresses, ports)
}

const (
	somePartners = `198.18.0.8/30, 198.18.1.20-198.18.1.29, "2001:db8:f:1::/64"`
	someWeb      = "udp/5000, udp/8000-8010"
)

// sets are cases of sets of addresses and ports.
func sets() []Case {
	return []Case{
		{ID: "set", Untranslated: true, Requirement: "sets", Asks: "rules are for what is in a set: prefixes, ranges, ports, of the rule's family",
			Gateway: setsGateway(somePartners, someWeb),
			Run: allSteps(outAs(insideA, "203.0.113.8:4000"), outTo(insideA, outsideX.port(8010), "203.0.113.8:4000"), outTo(insideA, outsideX.port(9000), "203.0.113.8:4000"),
				outTo(insideA, outsideX.port(8011), "192.168.0.2:4000"), outTo(insideA, at(Y, "198.18.1.29:5000"), "203.0.113.8:4000"),
				outTo(insideA, at(Y, "198.18.1.30:5000"), "203.0.113.1:4000"), outTo(insideA6, outsideX6, "[2001:db8:1::8]:4000"), outTo(insideA6, outsideY6, "[2001:db8:1::1]:4000"),
				inTo("203.0.113.7:8005", at(A, "192.168.0.2:8005")), notIn("203.0.113.7:8011"), notInFrom(at(X, "198.18.0.16:5000"), "203.0.113.7:8005"))},
		{ID: "set-changed", Requirement: "sets", Asks: "when elements come and go, new flows follow them, and old ones go on as they are",
			Gateway: setsGateway("198.18.0.8/30", someWeb), Untranslated: true,
			Run: allSteps(outAs(insideA, "203.0.113.8:4000"), outTo(insideA, outsideY, "203.0.113.1:4000"), inTo("203.0.113.7:8005", at(A, "192.168.0.2:8005")),
				changedTo(setsGateway("198.18.1.0/24", "udp/5000, udp/8011")),
				outAs(insideA, "203.0.113.8:4000"), outTo(insideA, outsideY, "203.0.113.1:4000"), outAs(insideB, "203.0.113.1:4000"), outTo(insideB, outsideY, "203.0.113.8:4000"),
				inFrom(outsideY, "203.0.113.7:8011", at(A, "192.168.0.2:8011")), notInFrom(outsideX.port(5001), "203.0.113.7:8005"))},
		{ID: "set-exceptions", Untranslated: true, Requirement: "sets", Asks: "what is in a set is left alone",
			Gateway: "interfaces: {wan: wan, lan: [lan, dmz]}\nsets:\n  quiet: {addresses: [192.168.0.3, 198.18.1.0/24]}\n  plain: {ports: [udp/53]}\nnat:\n  - masquerade: {except-from: $quiet, except-to: [$quiet, 198.18.0.99], except-port: $plain}\n",
			Run: allSteps(outAs(insideA, "203.0.113.1:4000"), outAs(insideB, "192.168.0.3:4000"), outTo(insideA, outsideY, "192.168.0.2:4000"),
				outTo(insideA, at(X, "198.18.0.99:5000"), "192.168.0.2:4000"), outTo(insideA, outsideX.port(53), "192.168.0.2:4000"))},
	}
}

// changedTo applies another file.
func changedTo(file string) step {
	return func(p *Play) (Outcome, error) { return bothWays, p.change(file) }
}
