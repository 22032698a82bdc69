package filter

import (
	"fmt"
	"net/netip"
)

// Expr is a filter: a Term, or two or one Expr combined. Nil matches every packet.
type Expr struct {
	Op Op
	// Left is an operand of And, Or and Not, Right one of And and Or.
	Left, Right *Expr
	// Term is what to ask where Op is Is.
	Term Term
}

// Op says how an Expr is combined.
type Op uint8

const (
	Is Op = iota
	And
	Or
	Not
)

// Term is one question about a packet.
type Term struct {
	Kind Kind
	// Proto qualifies Hosts and Nets by IPv4 or IPv6, and Ports by TCP or UDP; it is
	// all that a Protocol asks.
	Proto Protocol
	// Direction tells which address or port is asked.
	Direction Direction
	// Net has the address of a Host as well, with all of its bits.
	Net netip.Prefix
	// FirstPort and LastPort are inclusive.
	FirstPort, LastPort uint16
}

// Kind is what a Term asks.
type Kind uint8

const (
	// OfProtocol asks for Proto alone.
	OfProtocol Kind = iota
	// Host asks for an address. That of IPv4 may also be in ARP and RARP.
	Host
	// Network asks for the prefix of an address.
	Network
	// Port asks for a port of TCP, UDP or SCTP.
	Port
	// PortRange asks for several.
	PortRange
)

// Protocol restricts a Term.
type Protocol uint8

const (
	AnyProtocol Protocol = iota
	IPv4
	IPv6
	TCP
	UDP
	// ICMP is that of IPv4.
	ICMP
)

// Direction says where the address or port may be.
type Direction uint8

const (
	Either Direction = iota
	Source
	Destination
	Both
)

var (
	kindWords      = map[Kind]string{Host: "host", Network: "net", Port: "port", PortRange: "portrange"}
	protocolWords  = map[Protocol]string{IPv4: "ip", IPv6: "ip6", TCP: "tcp", UDP: "udp", ICMP: "icmp"}
	directionWords = map[Direction]string{Source: "src", Destination: "dst", Both: "src and dst"}
)

// String is the filter in words that Parse reads, and pcap-filter(7) too, each with
// its qualifiers.
func (e *Expr) String() string {
	switch {
	case e == nil:
		return ""
	case e.Op == Not:
		return "not " + e.Left.operand()
	case e.Op == And:
		return e.Left.String() + " and " + e.Right.operand()
	case e.Op == Or:
		return e.Left.String() + " or " + e.Right.operand()
	}
	return e.Term.String()
}

// operand puts into parentheses what would else be combined in another order: and
// and or bind equally, from the left.
func (e *Expr) operand() string {
	if e.Op == And || e.Op == Or {
		return "(" + e.String() + ")"
	}
	return e.String()
}

func (t Term) String() string {
	if t.Kind == OfProtocol {
		return protocolWords[t.Proto]
	}
	text := ""
	if t.Proto != AnyProtocol {
		text = protocolWords[t.Proto] + " "
	}
	if t.Direction != Either {
		text += directionWords[t.Direction] + " "
	}
	return text + kindWords[t.Kind] + " " + t.value()
}

func (t Term) value() string {
	switch t.Kind {
	case Host:
		return t.Net.Addr().String()
	case Network:
		return t.Net.String()
	case Port:
		return fmt.Sprint(t.FirstPort)
	}
	return fmt.Sprintf("%d-%d", t.FirstPort, t.LastPort)
}
