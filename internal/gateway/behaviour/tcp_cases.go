package behaviour

import (
	"slices"

	"github.com/natkit/natkit/internal/frame"
)

// rfc5382 is NAT Behavioral Requirements for TCP.
func rfc5382() []Case {
	return slices.Concat(tcpMapping(), tcpHairpin(), tcpOpening(), tcpUnsolicited(), tcpLifeCycle(), tcpResets(), tcpTimers(), tcpErrors())
}

// Outcomes that several cases have.
const (
	Passes     Outcome = "passes"
	Dropped    Outcome = "dropped"
	Translated Outcome = "translated"
	Untouched  Outcome = "untouched"
)

// publishedA forwards one TCP port from outside to A, with hairpin, and masquerades.
const publishedA = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - masquerade: {}
  - dnat: {on: 203.0.113.1, port: tcp/8080, to: "192.168.0.2:80", hairpin: true}
ipv6:
  - masquerade: {}
`

var (
	publicA = ap("203.0.113.1:8080")
	serverA = at(A, "192.168.0.2:80")
	insideC = at(C, "172.17.0.2:4000")
)

func tcpMapping() []Case {
	return []Case{{
		ID: "rfc5382-req-1", RFC: 5382, Requirement: "REQ-1", Level: Must,
		Asks: "connections from one inside address and port have one external address and port, whatever their destinations",
		Run:  tcpMappingOf,
		Want: []Outcome{EndpointIndependent},
	}, {
		ID: "rfc5382-req-1-contended", RFC: 5382, Requirement: "REQ-1", Level: Must,
		Asks: "that holds, too, where another host inside has the same port and one of the destinations",
		Run: func(p *Play) (Outcome, error) {
			if _, err := tcpSeenAs(p, insideB, outsideX.port(444)); err != nil {
				return verdict("", err)
			}
			return tcpMappingOf(p)
		},
		Want: []Outcome{EndpointIndependent},
		Expect: onNetfilter(AddressAndPortDependent,
			"a mapping belongs to one connection: the port of an earlier one is taken again where the new tuple is free (find_appropriate_src), and another one where it is not"),
	}, {
		ID: "rfc5382-req-7", RFC: 5382, Requirement: "REQ-7", Level: Must,
		Asks:   "two inside endpoints never have the same external address and port (no port overloading)",
		Run:    tcpOverloading,
		Want:   []Outcome{"none shared"},
		Expect: onNetfilter("shared for different destinations", "only the whole tuple has to be unique, which lets one address hold more than 64,512 connections"),
	}, {
		ID: "tcp-port-preserved", Level: Natkit,
		Asks: "a connection keeps its source port where no other one has it",
		Run: func(p *Play) (Outcome, error) {
			seen, err := tcpSeenAs(p, insideA, outsideX)
			if err != nil {
				return "", err
			}
			return yes(seen.Port() == insideA.Port(), "kept", "changed"), nil
		},
		Want: []Outcome{"kept"},
	}}
}

func tcpHairpin() []Case {
	return []Case{{
		ID: "rfc5382-req-8", RFC: 5382, Requirement: "REQ-8", Level: Must,
		Asks:    "a host inside reaches another one by the external address of a forwarded port (hairpinning)",
		Gateway: publishedA,
		Run: func(p *Play) (Outcome, error) {
			c := hairpinned(p)
			return verdict(Passes, inTurn(func() error { return c.open(&c.outside) }, c.talk, func() error { return c.close(&c.outside) }))
		},
		Want: []Outcome{Passes},
	}, {
		ID: "rfc5382-req-8-a", RFC: 5382, Requirement: "REQ-8 a", Level: Must,
		Asks:    "it is seen there under the external address and port, not its own",
		Gateway: publishedA,
		Run: func(p *Play) (Outcome, error) {
			c := hairpinned(p)
			if err := c.open(&c.outside); err != nil {
				return verdict("", err)
			}
			return yes(c.inside.peer.Addr() == publicA.Addr(), "external", "internal"), nil
		},
		Want: []Outcome{"external"},
	}, {
		ID: "rfc5382-req-8-dynamic", RFC: 5382, Requirement: "REQ-8", Level: Must,
		Asks: "that works for the mapping of a connection, too, not only for forwarded ports",
		Run: func(p *Play) (Outcome, error) {
			first, err := dial(p)
			if err != nil {
				return verdict("", err)
			}
			c := toInside(p, insideC, first.outside.peer, insideA)
			return verdict(Passes, c.open(&c.outside))
		},
		Want: []Outcome{Passes},
		Expect: onNetfilter("syn from outside: instead rst+ack to c",
			"a mapping lets in what its own destination sends; anybody else reaches the gateway's own TCP by its address"),
	}}
}

func hairpinned(p *Play) *connection { return toInside(p, insideC, publicA, serverA) }

func tcpOpening() []Case {
	return []Case{{
		ID: "rfc5382-req-2", RFC: 5382, Requirement: "REQ-2", Level: Must,
		Asks: "a connection from inside opens, carries data both ways and closes",
		Run: func(p *Play) (Outcome, error) {
			c := between(p, insideA, outsideX)
			return verdict(Passes, c.whole(&c.inside))
		},
		Want: []Outcome{Passes},
	}, {
		ID: "rfc5382-req-2-ipv6", RFC: 5382, Requirement: "REQ-2", Level: Must,
		Asks: "so does one of IPv6 (NAT66)",
		Run: func(p *Play) (Outcome, error) {
			c := between(p, insideA6, outsideX6)
			return verdict(Passes, c.whole(&c.inside))
		},
		Want: []Outcome{Passes},
	}, {
		ID: "rfc5382-req-2-external", RFC: 5382, Requirement: "REQ-2", Level: Must,
		Asks:    "so does one from outside to a forwarded port",
		Gateway: publishedA,
		Run: func(p *Play) (Outcome, error) {
			c := toInside(p, outsideX, publicA, serverA)
			return verdict(Passes, c.whole(&c.outside))
		},
		Want: []Outcome{Passes},
	}, {
		ID: "rfc5382-req-2-a", RFC: 5382, Requirement: "REQ-2 a", Level: Must,
		Asks: "both ends may open at the same time: their SYNs cross (simultaneous open)",
		Run:  simultaneousOpen,
		Want: []Outcome{Passes},
	}}
}

func tcpUnsolicited() []Case {
	return []Case{{
		ID: "rfc5382-req-3", RFC: 5382, Requirement: "REQ-3", Level: Should,
		Asks: "a mapping admits connections from anybody, or from any port of an address that was called",
		Run:  tcpFiltering,
		Want: []Outcome{EndpointIndependent, AddressDependent},
		Expect: onNetfilter(AddressAndPortDependent,
			"a mapping is one connection's; what is to be reached from outside is forwarded by a rule"),
	}, {
		ID: "rfc5382-req-3-a", RFC: 5382, Requirement: "REQ-3 a", Level: May,
		Asks:   "the filtering behaviour may be configurable",
		Expect: onNetfilter("", "the kernel has one kind"),
	}, {
		ID: "rfc5382-req-3-b", RFC: 5382, Requirement: "REQ-3 b", Level: May,
		Asks:       "filtering of TCP may differ from that of UDP",
		Untestable: "it allows either; both are measured, REQ-3 here and REQ-8 of RFC 4787",
	}, {
		ID: "rfc5382-req-4", RFC: 5382, Requirement: "REQ-4", Level: Must,
		Asks: "an unsolicited SYN from outside is not answered for 6 s, and then at most by ICMP port unreachable",
		Run:  unsolicitedSYN,
		Want: []Outcome{"silent", "port unreachable after 6 s"},
		Expect: onNetfilter("answered at once: rst+ack",
			"the external address is the gateway's own, whose TCP refuses SYNs to ports without a listener; dropping them is up to the firewall"),
	}, {
		ID: "rfc5382-req-4-outbound", RFC: 5382, Requirement: "REQ-4", Level: Must,
		Asks: "if the inside sends its own SYN meanwhile, the connection opens by it, with the mapping that it would have had",
		Run:  crossedByUnsolicited,
		Want: []Outcome{"opens with its own port"},
	}, {
		ID: "rfc5382-req-4-a", RFC: 5382, Requirement: "REQ-4 a", Level: Must,
		Asks:       "where an answer is against the security policy, there is none",
		Untestable: "that policy is the firewall's rules, of which a gateway file has none",
	}, {
		ID: "rfc5382-req-6", RFC: 5382, Requirement: "REQ-6", Level: Should,
		Asks: "no application level gateway of TCP is on by default, FTP's neither (which may be): its PORT goes through as it is",
		Run:  ftpCommand,
		Want: []Outcome{Untouched},
	}}
}

// whole is a connection from the first to the last packet.
func (c *connection) whole(first *side) error {
	return inTurn(func() error { return c.open(first) }, c.talk, c.talk, func() error { return c.close(first) })
}

func simultaneousOpen(p *Play) (Outcome, error) {
	c := between(p, insideA, outsideX)
	return verdict(Passes, inTurn(
		func() error { return c.say(&c.inside, frame.SYN, "") },
		func() error { c.outside.got = 0; return c.say(&c.outside, frame.SYN, "") },
		func() error { c.inside.next--; return c.say(&c.inside, frame.SYN|frame.ACK, "") },
		func() error { c.outside.next--; return c.say(&c.outside, frame.SYN|frame.ACK, "") },
		c.talk,
		func() error { return c.close(&c.outside) },
	))
}
