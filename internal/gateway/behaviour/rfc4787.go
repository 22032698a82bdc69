package behaviour

import (
	"maps"

	"github.com/natkit/natkit/internal/gateway"
)

// Netfilter is the name by which cases declare deviations of the kernel's own NAT.
const Netfilter = string(gateway.EngineNetfilter)

// EBPF is that of the programs, behind which is netfilter.
const EBPF = string(gateway.EngineEBPF)

// The kinds of mapping and filtering (RFC 4787, sections 4.1 and 5).
const (
	EndpointIndependent     Outcome = "endpoint-independent"
	AddressDependent        Outcome = "address-dependent"
	AddressAndPortDependent Outcome = "address-and-port-dependent"
)

// onNetfilter declares a deviation of netfilter.
func onNetfilter(o Outcome, reason string) map[string]Expectation {
	return map[string]Expectation{Netfilter: {Outcome: o, Reason: reason}}
}

// metByEBPF is a deviation of netfilter that the programs do not have.
func metByEBPF(declared map[string]Expectation, reason string) map[string]Expectation {
	all := maps.Clone(declared)
	all[EBPF] = Expectation{Meets: true, Reason: reason}
	return all
}

// rfc4787 is Network Address Translation (NAT) Behavioral Requirements for Unicast
// UDP.
func rfc4787() []Case {
	cases := append(rfc4787Mapping(), rfc4787Timers()...)
	cases = append(cases, rfc4787Filtering()...)
	cases = append(cases, rfc4787ICMP()...)
	for i := range cases {
		cases[i].RFC = 4787
	}
	return cases
}

const pairedPool = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - snat: {from: 192.168.0.0/24, to: 203.0.113.8-203.0.113.15}
`

// byConnection is what REQ-1 gets from the kernel.
var byConnection = onNetfilter(AddressAndPortDependent,
	"a connection is the kernel's unit of NAT, not an endpoint: it keeps the source's earlier port where it can (find_appropriate_src), and takes another where a second host has that port at the same destination")

func rfc4787Mapping() []Case {
	return []Case{
		{ID: "rfc4787-req-1", Requirement: "REQ-1", Level: Must,
			Asks: "an inside address and port has the same mapping for all destinations, also where other hosts use the same port",
			Run:  four.of(mappingUnderContention), Want: []Outcome{EndpointIndependent},
			Expect: byConnection},
		{ID: "rfc4787-req-1-ipv6", Requirement: "REQ-1", Level: Must,
			Asks: "the same with NAT66",
			Run:  six.of(mappingUnderContention), Want: []Outcome{EndpointIndependent}, Expect: byConnection},
		{ID: "rfc4787-req-1-quiet", Requirement: "REQ-1", Level: Must,
			Asks: "an inside address and port has the same mapping for all destinations, where no other host uses the port",
			Run:  four.of(mappingAlone), Want: []Outcome{EndpointIndependent}},
		{ID: "rfc4787-req-1-quiet-ipv6", Requirement: "REQ-1", Level: Must,
			Asks: "with NAT66 it is the same, where no other host uses the port",
			Run:  six.of(mappingAlone), Want: []Outcome{EndpointIndependent}},
		{ID: "rfc4787-req-2", Requirement: "REQ-2", Level: Should,
			Asks:    "a host has one address of the pool for all that it does (paired)",
			Gateway: pairedPool, Run: four.of(pooling), Want: []Outcome{"paired"}},
		{ID: "rfc4787-req-2-ipv6", Requirement: "REQ-2", Level: Should,
			Asks:    "the same with NAT66",
			Gateway: rules6("  - snat: {from: \"fd00:1::/64\", to: \"2001:db8:1::10-2001:db8:1::17\"}"), Run: six.of(pooling), Want: []Outcome{"paired"}},
		{ID: "rfc4787-req-3", Requirement: "REQ-3", Level: Must,
			Asks: "no outside port serves two hosts at one time (no port overloading)",
			Run:  overloading, Want: []Outcome{"no overloading"},
			Expect: onNetfilter("overloading",
				"one port serves several connections as long as their destinations differ: that is why one address carries more than 64,512 of them")},
		{ID: "rfc4787-req-3-preservation", Requirement: "4.2.1", Level: Natkit,
			Asks: "an unused source port stays as it is (port preservation)",
			Run:  preservation, Want: []Outcome{"preserved"}},
		{ID: "rfc4787-req-3a", Requirement: "REQ-3 a", Level: Should,
			Asks: "a port below 1024 is mapped below 1024, any other above, also where it is taken",
			Run:  portRanges, Want: []Outcome{"in its range"}},
		{ID: "rfc4787-req-4", Requirement: "REQ-4", Level: Should,
			Asks: "even ports are mapped to even ones, odd to odd ones (port parity)",
			Run:  parity, Want: []Outcome{"preserved"},
			Expect: onNetfilter("not preserved",
				"a port that is taken is replaced by any free one; RFC 7857, section 8, allows that")},
		{ID: "rfc4787-req-11", Requirement: "REQ-11", Level: Must,
			Asks: "mapping and filtering do not change with time or conditions",
			Run:  determinism, Want: []Outcome{"the same alone and under contention"},
			Expect: onNetfilter("endpoint-independent alone, address-and-port-dependent under contention",
				"ports are kept where no other host has them at the same destination, and only there")},
	}
}

func rfc4787Timers() []Case {
	return []Case{
		{ID: "rfc4787-req-5", Requirement: "REQ-5", Level: Must,
			Asks: "no mapping expires in less than two minutes",
			Run:  lifeOfOneWay, Want: []Outcome{"two minutes or more"},
			Expect: onNetfilter("30 s before an answer",
				"net.netfilter.nf_conntrack_udp_timeout is 30 s; an administrator can raise it")},
		{ID: "rfc4787-req-5-stream", Requirement: "REQ-5", Level: Must,
			Asks: "no mapping that has been answered for a while expires in less than two minutes",
			Run:  lifeOfStream, Want: []Outcome{"two minutes or more"}},
		{ID: "rfc4787-req-5a", Requirement: "REQ-5 a", Level: May,
			Asks: "mappings to well-known ports may have shorter timers of their own", Expect: onNetfilter("", "one pair of timers serves all ports of UDP; a timeout policy (ct timeout) is for rules of one's own")},
		{ID: "rfc4787-req-5b", Requirement: "REQ-5 b", Level: May,
			Asks: "the timer is configurable, and a mapping ends by it",
			Run:  expiry, Want: []Outcome{"as configured"}},
		{ID: "rfc4787-req-5c", Requirement: "REQ-5 c", Level: Should,
			Asks: "by default it is five minutes or more",
			Run:  defaultLife, Want: []Outcome{"five minutes or more"},
			Expect: onNetfilter("2 minutes", "net.netfilter.nf_conntrack_udp_timeout_stream is 120 s by default")},
		{ID: "rfc4787-req-6", Requirement: "REQ-6", Level: Must,
			Asks: "what goes out keeps the mapping alive",
			Run:  refreshOut, Want: []Outcome{"refreshed"}},
		{ID: "rfc4787-req-6a", Requirement: "REQ-6 a", Level: May,
			Asks: "what comes in may keep it alive",
			Run:  refreshIn, Want: []Outcome{"refreshed", "not refreshed"}},
		{ID: "rfc4787-req-7", Requirement: "REQ-7", Level: Must,
			Asks:       "a gateway that gets its outside address automatically (DHCP) gives the inside no addresses that conflict with it, or translates between both all the same",
			Untestable: "the gateway gives addresses to neither side"},
	}
}

const forwardHairpin = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {}
  - dnat: {on: 203.0.113.7, port: udp/8000, to: "192.168.0.2:80", hairpin: true}
`

// byTuple is what REQ-8 gets from the kernel.
var byTuple = onNetfilter(AddressAndPortDependent,
	"answers are found by the whole tuple; what should be reachable is forwarded by dnat or static")

func rfc4787Filtering() []Case {
	return []Case{
		{ID: "rfc4787-req-8", Requirement: "REQ-8", Level: Should,
			Asks: "others than the one that was addressed reach the mapping: all of them, or all ports of that address",
			Run:  four.of(filtering), Want: []Outcome{EndpointIndependent, AddressDependent},
			Expect: byTuple},
		{ID: "rfc4787-req-8-ipv6", Requirement: "REQ-8", Level: Should,
			Asks: "the same with NAT66",
			Run:  six.of(filtering), Want: []Outcome{EndpointIndependent, AddressDependent}, Expect: byTuple},
		{ID: "rfc4787-req-8a", Requirement: "REQ-8 a", Level: May,
			Asks: "the filtering behaviour may be configurable", Expect: onNetfilter("", "the kernel has one kind")},
		{ID: "rfc4787-req-9", Requirement: "REQ-9", Level: Must,
			Asks: "a host inside reaches another one by the other's mapping (hairpinning)",
			Run:  hairpinDynamic, Want: []Outcome{"delivered"},
			Expect: onNetfilter("not delivered", "follows from the filtering: a mapping belongs to one destination. By dnat and static with hairpin it is delivered")},
		{ID: "rfc4787-req-9-forwarded", Requirement: "REQ-9", Level: Must,
			Asks:    "a host inside reaches another one by an address and port that are forwarded to it",
			Gateway: forwardHairpin, Run: hairpinForwarded, Want: []Outcome{"delivered"}},
		{ID: "rfc4787-req-9a", Requirement: "REQ-9 a", Level: Must,
			Asks:    "the host that is reached so sees an external source address, and its answers come back under the address that was asked",
			Gateway: forwardHairpin, Run: hairpinSource, Want: []Outcome{"external"}},
		{ID: "rfc4787-req-10", Requirement: "REQ-10", Level: Should,
			Asks: "no application level gateway of UDP is on: payloads stay as they are, no other flow is let in",
			Run:  noALG, Want: []Outcome{"off"}},
		{ID: "rfc4787-req-10a", Requirement: "REQ-10 a", Level: Should,
			Asks:    "an administrator can enable and disable each application level gateway (here TFTP's)",
			Gateway: helped("tftp"), Run: switchedHelper, Want: []Outcome{"on, and off"}},
	}
}

func rfc4787ICMP() []Case {
	return []Case{
		{ID: "rfc4787-req-12", Requirement: "REQ-12", Level: Must,
			Asks: "no ICMP message ends a mapping",
			Run:  icmpKeepsMapping, Want: []Outcome{"kept"}},
		{ID: "rfc4787-req-12a", Requirement: "REQ-12 a", Level: Should,
			Asks: "ICMP errors are not filtered by their source address",
			Run:  icmpFromRouter, Want: []Outcome{"delivered"}},
		{ID: "rfc4787-req-12b", Requirement: "REQ-12 b", Level: Should,
			Asks: "Destination Unreachable is translated, in what it quotes as well",
			Run:  icmpUnreachable, Want: []Outcome{"translated"}},
		{ID: "rfc4787-req-13", Requirement: "REQ-13", Level: Must,
			Asks: "a packet with DF that is too big for the way out is answered by Fragmentation Needed",
			Run:  tooBig, Want: []Outcome{"answered, with the MTU"}},
		{ID: "rfc4787-req-13a", Requirement: "REQ-13 a", Level: Must,
			Asks: "one without DF is fragmented, and the fragments come in order (SHOULD)",
			Run:  fragmentsOut, Want: []Outcome{"fragmented, in order"}},
	}
}
