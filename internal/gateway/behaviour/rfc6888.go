package behaviour

import "strings"

// rfc6888 is Common Requirements for Carrier-Grade NATs, as far as they concern a
// gateway that does not know subscribers but addresses.
func rfc6888() []Case {
	cases := append(rfc6888Ports(), rfc6888Limits()...)
	cases = append(cases, rfc6888Untestable()...)
	for i := range cases {
		cases[i].RFC = 6888
	}
	return cases
}

const (
	scatteredPool = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: [203.0.113.8-203.0.113.9, 203.0.113.64/30, 203.0.113.77]}
`
	onePort = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8, ports: 5000-5000}
`
	fourPorts = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8, ports: 5000-5003}
`
	randomPorts = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8, ports: 1024-65535, random: fully}
`
	limited = `
interfaces: {wan: wan, lan: [lan, dmz]}
limits: {connections-per-source: 5}
nat:
  - masquerade: {}
`
	limitedForward = `
interfaces: {wan: wan, lan: [lan, dmz]}
limits: {connections-per-source: 5}
nat:
  - masquerade: {}
  - dnat: {on: 203.0.113.7, port: udp/8000, to: "192.168.0.2:80"}
`
	exceptSome = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {except-to: [198.18.1.0/24]}
`
)

func rfc6888Ports() []Case {
	return []Case{
		{ID: "rfc6888-req-2", Requirement: "REQ-2", Level: Must,
			Asks:    "by default a host has one address of the pool for all that it does (paired)",
			Gateway: pairedPool, Run: four.of(pooling), Want: []Outcome{"paired"}},
		{ID: "rfc6888-req-2-ranges", Requirement: "REQ-2", Level: Must,
			Asks:    "also where the pool has gaps",
			Gateway: scatteredPool, Run: four.of(pooling), Want: []Outcome{"paired"}},
		{ID: "rfc6888-req-2-other", Requirement: "REQ-2", Level: May,
			Asks:   "an administrator may change that for an application's protocol",
			Expect: onNetfilter("", "`persistent: off` is for a rule, and a rule about sources is for all protocols")},
		{ID: "rfc6888-req-3", Requirement: "REQ-3", Level: Must,
			Asks:    "a pool can be made of addresses that do not follow each other",
			Gateway: scatteredPool, Run: scattered, Want: []Outcome{"all ranges are used"}},
		{ID: "rfc6888-req-6", Requirement: "REQ-6", Level: Must,
			Asks:    "translation can be turned off for destinations",
			Gateway: exceptSome, Untranslated: true, Run: turnedOff, Want: []Outcome{"turned off"}},
		{ID: "rfc6888-req-7", Requirement: "REQ-7", Level: Should,
			Asks: "the filtering is endpoint-independent, or address-dependent where that breaks nothing",
			Run:  four.of(filtering), Want: []Outcome{EndpointIndependent, AddressDependent},
			Expect: onNetfilter(AddressAndPortDependent, "as RFC 4787, REQ-8")},
		{ID: "rfc6888-req-8", Requirement: "REQ-8", Level: Should,
			Asks:    "a port is given to another host after 120 s at the earliest, or at once where only the new destination reaches it",
			Gateway: onePort, Run: reallocation,
			Want: []Outcome{"not before 120 s", "at once, and only the new destination reaches it"}},
		{ID: "rfc6888-req-13", Requirement: "REQ-13", Level: Should,
			Asks:    "ports are used as far as they go",
			Gateway: fourPorts, Run: utilization, Want: []Outcome{"every port, for every destination again", "every port"}},
		{ID: "rfc6888-req-15", Requirement: "REQ-15", Level: Should,
			Asks:    "ports are hard to guess, where the file asks for that (`random: fully`)",
			Gateway: randomPorts, Run: guessing, Want: []Outcome{"random"}},
	}
}

func rfc6888Limits() []Case {
	return []Case{
		{ID: "rfc6888-req-4", Requirement: "REQ-4", Level: Must,
			Asks:    "what one subscriber, here a host, takes of outside ports can be limited (`connections-per-source`)",
			Gateway: limited, Run: perSource, Want: []Outcome{"limited, others are not touched, and free again after it"}},
		{ID: "rfc6888-req-5", Requirement: "REQ-5", Level: Should,
			Asks:    "the state that one host takes can be limited, whatever protocol",
			Gateway: limited, Run: perSourceAnyProtocol, Want: []Outcome{"limited over all protocols"}},
		{ID: "rfc6888-req-4a", Requirement: "REQ-4 a", Level: Must,
			Asks:    "the limit is the administrator's to set (and so is that of state: REQ-5 a, SHOULD)",
			Gateway: strings.Replace(limited, "5", "3", 1), Run: otherLimit, Want: []Outcome{"3"}},
		{ID: "rfc6888-req-11a", Requirement: "REQ-11 a", Level: Must,
			Asks:    "a packet for which there is no mapping to be had is dropped",
			Gateway: fourPorts, Run: exhaustedDrop, Want: []Outcome{"dropped"}},
		{ID: "rfc6888-req-11b", Requirement: "REQ-11 b", Level: Should,
			Asks:    "and answered by ICMP Host Unreachable",
			Gateway: fourPorts, Run: exhaustedAnswer, Want: []Outcome{"answered"},
			Expect: onNetfilter("not answered", "the tracker silently drops what it cannot enter into its table (insert_failed); `natkit gateway status` and `natkit ports` report it")},
		{ID: "rfc6888-req-11d", Requirement: "REQ-11 d", Level: Must,
			Asks:    "no mapping is removed to make room where the ports are used up",
			Gateway: fourPorts, Run: exhaustedKeeps, Want: []Outcome{"kept"}},
	}
}

func rfc6888Untestable() []Case {
	not := func(id, requirement string, level Level, asks, why string) Case {
		return Case{ID: id, Requirement: requirement, Level: level, Asks: asks, Untestable: why}
	}
	without := func(id, requirement string, level Level, asks, why string) Case {
		return Case{ID: id, Requirement: requirement, Level: level, Asks: asks, Expect: onNetfilter("", why)}
	}
	return []Case{
		not("rfc6888-req-1", "REQ-1", Must, "the requirements of each transport protocol are met", "it is the sum of the other tables"),
		without("rfc6888-req-4c", "REQ-4 c", Should, "the rate of new mappings of one host can be limited", "a gateway file limits numbers, not rates"),
		without("rfc6888-req-4b", "REQ-4 b", May, "the limit may be one for each protocol", "it is one for all"),
		without("rfc6888-req-5b", "REQ-5 b", Should, "the rate at which state is made can be limited", "as REQ-4 c"),
		{ID: "rfc6888-req-9", Requirement: "REQ-9", Level: Must, Asks: "subscribers control mappings by a protocol (PCP, with `pcp: on`)",
			Gateway: "pcp: on\n" + rules("  - masquerade: {}\n  - dnat: {on: wan, port: udp/5001, to: \"192.168.0.3:81\"}"), Run: leased, Want: []Outcome{bothWays}},
		not("rfc6888-req-10", "REQ-10", Should, "the NAT is manageable by standards (NAT MIB)", "not by packets: natkit reports status as JSON, and does not implement SNMP"),
		not("rfc6888-req-11c", "REQ-11 c", Should, "management is notified of exhaustion", "not by packets: `natkit gateway status --json` and `natkit ports --json` have the numbers"),
		not("rfc6888-req-11d-table", "REQ-11 d", Must, "no mapping is removed to make room where the table is full", "nf_conntrack_max is one value for the host, which no test changes. The tracker does remove connections then that have seen no answer (early_drop)"),
		not("rfc6888-req-12", "REQ-12", Should, "destinations are not logged", "natkit logs no connections"),
		not("rfc6888-req-14", "REQ-14", Should, "port allocation keeps the log small", "natkit logs no connections"),
	}
}
