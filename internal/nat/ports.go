// Package nat is the vocabulary of address translation: protocols, ports, ranges of
// addresses, the packets that a rule matches, and what it does to them. It imports no other
// package of natkit.
package nat

import (
	"fmt"
	"strconv"
	"strings"
)

// Ports are those from First to Last, both included. The zero value stands for none, or
// for those that the kernel chooses, as its owner says.
type Ports struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// AllPorts are those that a packet may have, 0 among them.
var AllPorts = Ports{0, 65535}

// ParsePorts reads "PORT" or "FIRST-LAST", from 1 to 65535.
func ParsePorts(text string) (Ports, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if errA != nil || errB != nil || a == 0 || a > b {
		return Ports{}, fmt.Errorf("ports %q: expected FIRST-LAST, from 1 to 65535", text)
	}
	return Ports{uint16(a), uint16(b)}, nil
}

// Len is the number of ports, 0 of the zero value.
func (p Ports) Len() int {
	if p == (Ports{}) {
		return 0
	}
	return int(p.Last) - int(p.First) + 1
}

// Contains reports whether a port is one of them.
func (p Ports) Contains(port uint16) bool { return p.First <= port && port <= p.Last }

// Covers reports whether all ports of o are among them.
func (p Ports) Covers(o Ports) bool { return p.First <= o.First && o.Last <= p.Last }

// Common returns the ports that both have; false where there are none.
func (p Ports) Common(o Ports) (Ports, bool) {
	c := Ports{max(p.First, o.First), min(p.Last, o.Last)}
	return c, c.First <= c.Last
}

// Without returns the ranges of p that none of the others has.
func (p Ports) Without(others []Ports) []Ports {
	left := []Ports{p}
	for _, o := range others {
		var next []Ports
		for _, l := range left {
			both, ok := l.Common(o)
			if !ok {
				next = append(next, l)
				continue
			}
			if l.First < both.First {
				next = append(next, Ports{First: l.First, Last: both.First - 1})
			}
			if both.Last < l.Last {
				next = append(next, Ports{First: both.Last + 1, Last: l.Last})
			}
		}
		left = next
	}
	return left
}

// String is "80", "1024-65535", or empty for the zero value.
func (p Ports) String() string {
	switch {
	case p == Ports{}:
		return ""
	case p.First == p.Last:
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// ServiceString is a protocol and its ports, "tcp/80", "udp/5000-5100,6000" or "icmp"; a
// protocol without a name is "ip/89". It is empty where all are meant.
func ServiceString(protocol uint8, ports []Ports) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = p.String()
	}
	list := strings.Join(texts, ",")
	switch name := ProtocolName(protocol); {
	case protocol == 0:
		return list
	case list != "":
		return name + "/" + list
	case protocolNames[protocol] == "":
		return "ip/" + name
	default:
		return name
	}
}

// IsOneWay reports whether UDP to a port is not meant to be answered on the same ports:
// tunnels, whose source port is a hash of the flow inside and whose packets back go to
// the same destination port, and what only reports, often from a new port each time.
func IsOneWay(port uint16) bool {
	switch port {
	case 4789, 8472, 6081, 4754, 6635: // VXLAN (RFC 7348, and Linux' own), Geneve, GRE and MPLS in UDP
		return true
	case 162, 514, 8125, 12201, 25826: // SNMP traps, syslog, StatsD, GELF, collectd
		return true
	case 2055, 4739, 6343, 9995, 9996: // NetFlow, IPFIX, sFlow
		return true
	}
	return false
}

// AnswersAlways reports whether every UDP question to a port gets an answer: DNS, NTP, QUIC, IKE,
// RADIUS, STUN, SIP, WireGuard.
func AnswersAlways(port uint16) bool {
	switch port {
	case 53, 123, 443, 500, 4500, 1812, 1813, 3478, 5060, 51820:
		return true
	}
	return false
}
