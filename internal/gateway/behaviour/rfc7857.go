package behaviour

import "slices"

// rfc7857 is Updates to Network Address Translation (NAT) Behavioral Requirements; its
// requirements have no names but those of its sections.
func rfc7857() []Case {
	cases := slices.Concat(updatesOfTCP(), updatesOfMapping(), updatesOfRefresh(), updatesOfHeaders())
	for i := range cases {
		cases[i].RFC = 7857
	}
	return cases
}

const pairedSinglePort = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8-203.0.113.15, ports: 5000-5000}
`

func updatesOfTCP() []Case {
	return []Case{{
		ID: "rfc7857-2", Requirement: "2", Level: Should,
		Asks:       "sessions of TCP are tracked by a state machine (figure 1)",
		Untestable: "its transitions have a line each: REQ-2 and REQ-5 of RFC 5382, and 2.2",
	}, {
		ID: "rfc7857-2-1", Requirement: "2.1", Level: Should, Want: []Outcome{"separate"},
		Asks: "the times of connections that open and of those that close can be set separately",
		Run:  separateTimers,
	}, {
		ID: "rfc7857-2-1-less", Requirement: "2.1", Level: May, Want: []Outcome{"as set"},
		Asks: "an administrator may set them to less than 4 min",
		Run:  allTimers,
	}, {
		ID: "rfc7857-2-1-default", Requirement: "2.1", Level: Should, Want: []Outcome{"at least 4m0s"},
		Asks:   "by default they are 4 min at least",
		Run:    shortestTransitory,
		Expect: onNetfilter("30 s", "the shortest of the kernel's defaults, nf_conntrack_tcp_timeout_last_ack; each is the administrator's to raise (rfc5382-req-5-…)"),
	}, {
		ID: "rfc7857-2-2", Requirement: "2.2", Level: Must, Want: []Outcome{Passes},
		Asks: "a RST of a connection is translated, from either side",
		Run:  resetsPass,
	}, {
		ID: "rfc7857-2-2-wait", Requirement: "2.2", Level: Should, Want: []Outcome{"at least 4m0s"},
		Asks:   "the session stays for 4 min behind a RST, unless packets follow",
		Run:    func(p *Play) (Outcome, error) { return keptFor(p, stageOf(TCPClose).reach, leastTransitory) },
		Expect: onNetfilter("10 s", "that is the kernel's default; net.netfilter.nf_conntrack_tcp_timeout_close is the administrator's to raise"),
	}}
}

func updatesOfMapping() []Case {
	return []Case{{
		ID: "rfc7857-3", Requirement: "3", Level: May, Want: []Outcome{"overlapped", "not overlapped"},
		Asks: "connections with different destinations may have one external port (port overlapping)",
		Run:  overlapped,
	}, {
		ID: "rfc7857-4", Requirement: "4", Level: Should, Want: []Outcome{Dropped}, Gateway: pairedSinglePort,
		Asks: "with paired pooling, new sessions of a host whose external address has no port left are dropped, not given another address",
		Run:  pairedExhausted,
	}, {
		ID: "rfc7857-4-soft", Requirement: "4", Level: May,
		Asks: "an administrator may have them given another address then (soft pairing)",
		Expect: onNetfilter("", "the kernel chooses the address before the port and tries no second one (find_best_ips_proto, then nf_nat_l4proto_unique_tuple); "+
			"a host has as many ports for a destination as one address"),
	}, {
		ID: "rfc7857-4-protocols", Requirement: "4", Level: Should, Want: []Outcome{"paired"}, Gateway: pairedPool,
		Asks: "the pairing holds for TCP, too: a host has one external address for UDP, TCP and ICMP (RFC 6888: MUST)",
		Run:  pairedProtocols,
	}, {
		ID: "rfc7857-5", Requirement: "5", Level: Should, Want: []Outcome{"protocol-dependent"},
		Asks: "mappings are each protocol's own: a port that TCP has is there for another host's UDP",
		Run:  mappingOfProtocol,
	}, {
		ID: "rfc7857-6", Requirement: "6", Level: Should, Want: []Outcome{"protocol-dependent"},
		Asks: "filters are, too: a mapping of UDP does not let TCP in, nor one of TCP UDP",
		Run:  filterOfProtocol,
	}}
}

func updatesOfRefresh() []Case {
	return append([]Case{{
		ID: "rfc7857-7", Requirement: "7", Level: Should, Want: []Outcome{"not refreshed"},
		Asks: "what is not let in from outside does not refresh a mapping",
		Run:  refusedInbound,
	}}, append(bothFamilies(Case{
		ID: "rfc7857-7-1", Requirement: "7.1", Level: Should, Want: []Outcome{"not refreshed"},
		Asks: "an ICMP error from inside about what came in does not refresh the mapping"}, outboundError), Case{
		ID: "rfc7857-7-1-rst", Requirement: "7.1", Level: Should, Want: []Outcome{"not refreshed"},
		Asks: "nor does a RST from inside",
		Run:  outboundReset,
	})...)
}

func updatesOfHeaders() []Case {
	return []Case{{
		ID: "rfc7857-8", Requirement: "8", Level: May,
		Asks:       "port parity need not be kept",
		Untestable: "it allows either; measured as REQ-4 of RFC 4787",
	}, {
		ID: "rfc7857-8-asked", Requirement: "8", Level: Should,
		Asks:   "hosts can ask for it explicitly (by PCP, RFC 7753)",
		Expect: onNetfilter("", "`pcp` has no such option"),
	}, {
		ID: "rfc7857-9", Requirement: "9", Level: Should, Want: []Outcome{"not predictable"},
		Asks: "a port that has to be changed becomes one that cannot be guessed (RFC 6056, section 4)",
		Run:  changedPorts,
	}, {
		ID: "rfc7857-9-fully", Requirement: "9", Level: Natkit, Want: []Outcome{"not predictable"}, Gateway: randomFully,
		Asks: "with random: fully every port does",
		Run:  everyPort,
	}, {
		ID: "rfc7857-10", Requirement: "10", Level: Should, Want: []Outcome{"different identifications"},
		Asks: "fragments of two hosts with one identification and one destination leave with different ones (RFC 6864, section 5.3.1)",
		Run:  identifications,
		Expect: onNetfilter("the same identification",
			"the kernel keeps the identification of each host; fragments of two packets can meet at the destination, where the checksum detects it"),
	}, {
		ID: "rfc7857-11", Requirement: "11", Level: May, Want: []Outcome{"deleted", "kept"},
		Asks: "the mapping of an echo may be deleted once the last session that uses it is",
		Run:  endedQuery,
	}, {
		ID: "rfc7857-12", Requirement: "12", Level: Must, Want: []Outcome{Passes}, Gateway: basicNAT,
		Asks: "an echo from outside to a static address reaches the host inside and is answered (which REQ-7 of RFC 5508 implies)",
		Run:  inboundQuery,
	}}
}

const randomFully = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {random: fully}
`
