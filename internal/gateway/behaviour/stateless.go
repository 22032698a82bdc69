package behaviour

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/frame"
)

const (
	statelessPair = `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - static: {inside: 192.168.0.2, outside: 203.0.113.9, stateless: true}
  - netmap: {inside: 10.1.0.0/24, outside: 198.51.100.0/24, stateless: true}
  - masquerade: {from: 192.168.0.0/24}
`
	statelessPairs = floating + `
interfaces: {wan: wan, lan: [lan, dmz]}
nat:
  - static: {pairs: $floating, stateless: true}
  - masquerade: {from: 192.168.0.0/24}
`
	statelessPrefix = `
interfaces: {wan: wan, lan: [lan, dmz]}
ipv6:
  - netmap: {inside: "fd03::/48", outside: "2001:db8:3::/48", stateless: true}
`
)

// stateless are cases of translation without the tracker, which knows nothing then of
// protocols and of ICMP errors.
func stateless() []Case {
	const asks = "Destination Unreachable about a packet that was translated without state comes with the inside address, outside and in what it quotes"
	cases := []Case{
		{ID: "stateless-static-icmp", Requirement: "static, stateless", Asks: asks, Gateway: statelessPair,
			Run: statelessError(insideA, outsideX)},
		{ID: "stateless-netmap-icmp", Requirement: "netmap, stateless", Asks: "the same of a prefix", Gateway: statelessPair,
			Run: statelessError(at(B, "10.1.0.3:4000"), outsideX)},
		{ID: "rfc6296-icmp", RFC: 6296, Requirement: "4.3", Asks: asks, Gateway: statelessPrefix,
			Run: statelessError(at(A, "[fd03:0:0:7::2]:4000"), outsideX6)},
		{ID: "stateless-protocols", Requirement: "static, stateless", Asks: "UDP, TCP, echos and protocols that the gateway does not know pass both ways, checksums right",
			Gateway: statelessPair, Run: statelessProtocols},
		{ID: "stateless-pairs-icmp", Requirement: "static, pairs, stateless", Asks: "the same of a set of pairs", Gateway: statelessPairs, Run: statelessError(insideA, outsideX)},
		{ID: "stateless-pairs-protocols", Requirement: "static, pairs, stateless", Asks: "UDP, TCP, echos and protocols that the gateway does not know pass both ways, checksums right",
			Gateway: statelessPairs, Run: statelessProtocols},
		{ID: "stateless-beside-tracked", Requirement: "static, stateless", Asks: "other hosts are masqueraded beside it",
			Gateway: statelessPair, Run: allSteps(outAs(insideA, "203.0.113.9:4000"), outAs(insideB, "203.0.113.1:4000"), inTo("203.0.113.9:77", at(A, "192.168.0.2:77")))},
	}
	for i := range cases {
		cases[i].Level = Natkit
		cases[i].Want = []Outcome{bothWays}
	}
	return cases
}

// statelessError answers a packet from inside by an ICMP error.
func statelessError(from, to end) step {
	return func(p *Play) (Outcome, error) {
		got, err := p.Exchange(from.host, to.host, UDPPacket(from.AddrPort, to.AddrPort, "quoted"))
		if err != nil {
			return "", err
		}
		// Not Play's Send, for which a wrong checksum in a quoted packet is a fault.
		arrivals, err := p.World.Send(to.host, unreachablePort(to, got))
		if err != nil || len(arrivals) != 1 || arrivals[0].At != from.host {
			return Outcome("arrived: " + arrivals.String()), err
		}
		var inner frame.Frame
		if err := arrivals[0].Frame.Quoted(&inner); err != nil {
			return "", err
		}
		f := &arrivals[0].Frame
		ok := f.IPChecksumOK() && !bad(f) && inner.IPChecksumOK() && f.Destination == from.Addr() && inner.Tuple() == frame.Tuple{Src: from.AddrPort, Dst: to.AddrPort}
		if ok && bad(&inner) {
			return "both ways, but for the checksum of the quoted UDP", nil
		}
		return yes(ok, bothWays, Outcome("came as "+line(f))), nil
	}
}

// portUnreachable quotes the whole packet.
func unreachablePort(from end, about *Arrival) []byte {
	to, ip := about.Frame.Source, frame.IP{Source: from.Addr(), Destination: about.Frame.Source}
	h := frame.ICMP{Type: 3, Code: 3}
	if ip.Protocol = unix.IPPROTO_ICMP; to.Is6() {
		ip.Protocol, h = unix.IPPROTO_ICMPV6, frame.ICMP{Type: 1, Code: 4}
	}
	return ip.Append(nil, frame.AppendICMP(nil, from.Addr(), to, h, about.Packet))
}

// statelessProtocols has A and X send each other one packet of each protocol, either
// side first: there is nothing that either would have to open.
func statelessProtocols(p *Play) (Outcome, error) {
	outside := ap("203.0.113.9:4000")
	for name, build := range protocols {
		for _, way := range []struct{ from, to, seenFrom, seenTo end }{
			{insideA, outsideX, end{A, outside}, outsideX}, {outsideX, end{A, outside}, outsideX, insideA},
		} {
			got, err := p.Exchange(way.from.host, way.to.host, build(way.from, way.to))
			if Lost(err) {
				return Outcome(fmt.Sprintf("%s from %s is lost", name, way.from.host)), nil
			} else if err != nil {
				return "", err
			}
			if got.Frame.Source != way.seenFrom.Addr() || got.Frame.Destination != way.seenTo.Addr() {
				return Outcome(fmt.Sprintf("%s came as %s", name, line(&got.Frame))), nil
			}
		}
	}
	return untracked(p)
}

// protocols are packets by what they are called.
var protocols = map[string]func(from, to end) []byte{
	"UDP": func(from, to end) []byte { return UDPPacket(from.AddrPort, to.AddrPort, "") },
	"TCP": func(from, to end) []byte {
		t := frame.Tuple{Src: from.AddrPort, Dst: to.AddrPort}
		return packetOf(from, to, unix.IPPROTO_TCP, frame.AppendTCP(nil, t, frame.TCP{Flags: frame.ACK, Window: 1000}, []byte("data")))
	},
	"an echo":      func(from, to end) []byte { return ping(from.Addr(), to.Addr(), 7, 1).bytes() },
	"protocol 253": func(from, to end) []byte { return packetOf(from, to, 253, []byte("opaque protocol")) },
}

func packetOf(from, to end, protocol uint8, payload []byte) []byte {
	return frame.IP{Source: from.Addr(), Destination: to.Addr(), Protocol: protocol}.Append(nil, payload)
}
