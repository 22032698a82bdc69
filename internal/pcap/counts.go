package pcap

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/packet"
)

// counts are those of Stats that are made while reading.
type counts struct {
	reasons   [reasons]int64
	first     [reasons]int64 // frame number
	protocols [256]int64
	udpTunnel [len(udpTunnels)]int64
	fragments int64
	later     int64
}

// tunnels are the protocols of IP that carry packets of another network.
var tunnels = []struct {
	protocol uint8
	name     string
}{
	{unix.IPPROTO_IPIP, "IP in IP"}, {unix.IPPROTO_IPV6, "IPv6 in IP"}, {unix.IPPROTO_GRE, "GRE"},
	{unix.IPPROTO_ESP, "ESP"}, {115, "L2TP"},
}

// udpTunnels are those over UDP, by their usual ports.
var udpTunnels = [...]struct {
	port uint16
	name string
}{
	{4789, "VXLAN"}, {8472, "VXLAN (port 8472)"}, {6081, "Geneve"}, {2152, "GTP-U"},
	{4500, "ESP in UDP"}, {1701, "L2TP"}, {51820, "WireGuard"},
}

func (c *counts) undecoded(p *Packet) {
	c.reasons[p.Reason]++
	if c.first[p.Reason] == 0 {
		c.first[p.Reason] = p.Number
	}
}

func (c *counts) frame(f *packet.Frame) {
	c.protocols[f.Protocol]++
	if f.Fragment.Is() {
		c.fragments++
		if f.Fragment.Offset != 0 {
			c.later++
		}
	}
	if f.Transport == unix.IPPROTO_UDP {
		c.udp(f.UDP.DestinationPort)
	}
}

func (c *counts) udp(port uint16) {
	for i := range udpTunnels {
		if udpTunnels[i].port == port {
			c.udpTunnel[i]++
		}
	}
}

// fill puts the counts into s.
func (c *counts) fill(s *Stats) {
	s.Fragments, s.LaterFragments = c.fragments, c.later
	s.Undecoded = []ReasonCount{}
	for r, n := range c.reasons {
		if n > 0 {
			s.Undecoded = append(s.Undecoded, ReasonCount{Reason(r), n, c.first[r]})
		}
	}
	slices.SortStableFunc(s.Undecoded, func(a, b ReasonCount) int { return cmp.Compare(b.Packets, a.Packets) })
	c.fillNamed(s)
}

func (c *counts) fillNamed(s *Stats) {
	carried, inner := map[string]int64{}, map[string]int64{}
	for protocol, n := range c.protocols {
		if n > 0 {
			carried[protocolName(uint8(protocol))] += n
		}
	}
	for _, t := range tunnels {
		if n := c.protocols[t.protocol]; n > 0 {
			inner[t.name] += n
		}
	}
	for i, t := range udpTunnels {
		if c.udpTunnel[i] > 0 {
			inner[t.name] += c.udpTunnel[i]
		}
	}
	s.Protocols, s.Tunnels = sortedCounts(carried), sortedCounts(inner)
}

// protocolName is the word that conntrack and getprotobynumber(3) have for it.
func protocolName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	case unix.IPPROTO_SCTP:
		return "sctp"
	case unix.IPPROTO_GRE:
		return "gre"
	case unix.IPPROTO_ESP:
		return "esp"
	case unix.IPPROTO_IGMP:
		return "igmp"
	case unix.IPPROTO_IPIP:
		return "ipip"
	case unix.IPPROTO_IPV6:
		return "ipv6"
	case unix.IPPROTO_UDPLITE:
		return "udplite"
	case unix.IPPROTO_DCCP:
		return "dccp"
	}
	return fmt.Sprintf("protocol %d", protocol)
}
