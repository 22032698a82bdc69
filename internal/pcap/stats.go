package pcap

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/natkit/natkit/internal/frame"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// Stats is what a file is and how much of it could be used.
type Stats struct {
	Format string `json:"format"` // "pcap" or "pcapng"
	// Compression is "gzip", or empty.
	Compression string `json:"compression,omitempty"`
	// FileBytes were read, after decompression.
	FileBytes int64 `json:"file_bytes"`
	Packets   int64 `json:"packets"`
	// Bytes is the length of all packets on the wire, CapturedBytes that in the file.
	Bytes         int64 `json:"bytes"`
	CapturedBytes int64 `json:"captured_bytes"`
	// First and Last are the earliest and the latest time of a packet.
	First time.Time `json:"first_time,omitzero"`
	Last  time.Time `json:"last_time,omitzero"`
	// OutOfOrder packets are earlier than one before them.
	OutOfOrder int64       `json:"packets_out_of_time_order"`
	Interfaces []Interface `json:"interfaces"`
	// Cut packets are not there in full: the capture has only their start.
	Cut int64 `json:"packets_cut"`
	// Fragments of IP packets; LaterFragments have no ports and no connection here.
	Fragments      int64 `json:"fragments"`
	LaterFragments int64 `json:"fragments_without_ports"`
	// Undecoded packets by reason, the most frequent first.
	Undecoded []ReasonCount `json:"undecoded"`
	// Tunnels are packets that carry another network's packets, which are not parsed.
	Tunnels []NamedCount `json:"tunnels"`
	// Protocols are the packets by what IP carries.
	Protocols []NamedCount `json:"protocols"`
	Damage    []Damage     `json:"damage"`
	// DamageMore places are not in Damage, whose length is bounded.
	DamageMore int64 `json:"damage_more,omitempty"`
}

// Duration is the time between the earliest and the latest packet.
func (s *Stats) Duration() time.Duration { return s.Last.Sub(s.First) }

// Interface is where packets were captured.
type Interface struct {
	// Name is untrusted text of the file; empty if it has none.
	Name     string `json:"name,omitempty"`
	LinkType int    `json:"link_type"` // the number of LINKTYPE_… (tcpdump.org/linktypes.html)
	LinkName string `json:"link_type_name"`
	Packets  int64  `json:"packets"`
	// HeadersAlone: of TCP the file has its SYNs, FINs and RSTs alone.
	HeadersAlone bool `json:"headers_alone,omitempty"`
	// Dropped is the capture's own loss (isb_ifdrop, isb_osdrop); Began and Ended are when it ran
	// (isb_starttime, isb_endtime), often before the first packet and after the last.
	Dropped int64     `json:"dropped_by_capture,omitempty"`
	Began   time.Time `json:"capture_began,omitzero"`
	Ended   time.Time `json:"capture_ended,omitzero"`
}

// ReasonCount is how many packets were not understood, and why.
type ReasonCount struct {
	Reason  Reason `json:"reason"`
	Packets int64  `json:"packets"`
	// First is the number of the first one.
	First int64 `json:"first_frame"`
}

// NamedCount is how many packets there were of a kind.
type NamedCount struct {
	Name    string `json:"name"`
	Packets int64  `json:"packets"`
}

// Damage is a place where the file is broken.
type Damage struct {
	// Offset is that of the place in the file (after decompression), in bytes.
	Offset int64 `json:"offset_bytes"`
	// After is the number of the last packet before it. Wireshark stops there; later numbers are
	// natkit's own.
	After int64  `json:"after_frame"`
	What  string `json:"what"`
	// Skipped bytes precede the next packet; Ended is set if there is none.
	Skipped int64 `json:"skipped_bytes"`
	Ended   bool  `json:"ended,omitempty"`
}

// maxDamage bounds the list of broken places.
const maxDamage = 100

// sortedCounts has the most frequent first.
func sortedCounts(counts map[string]int64) []NamedCount {
	list := make([]NamedCount, 0, len(counts))
	for name, n := range counts {
		list = append(list, NamedCount{name, n})
	}
	slices.SortFunc(list, func(a, b NamedCount) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// counts are those of Stats that are made while reading.
type counts struct {
	reasons    map[Reason]*ReasonCount
	protocols  [256]int64
	udpTunnels map[string]int64
	fragments  int64
	later      int64
}

// tunnels are the protocols of IP that carry packets of another network, udpTunnels the usual
// ports of those over UDP.
var (
	tunnels = map[uint8]string{
		unix.IPPROTO_IPIP: "IP in IP", unix.IPPROTO_IPV6: "IPv6 in IP", unix.IPPROTO_GRE: "GRE", unix.IPPROTO_ESP: "ESP", 115: "L2TP",
	}
	udpTunnels = map[uint16]string{
		4789: "VXLAN", 8472: "VXLAN (port 8472)", 6081: "Geneve", 2152: "GTP-U", 4500: "ESP in UDP", 1701: "L2TP", 51820: "WireGuard",
	}
)

func (c *counts) undecoded(p *Packet) {
	r := c.reasons[p.Reason]
	if r == nil {
		r = &ReasonCount{Reason: p.Reason, First: p.Number}
		c.reasons[p.Reason] = r
	}
	r.Packets++
}

func (c *counts) frame(f *frame.Frame) {
	c.protocols[f.Protocol]++
	if f.Fragment.Is() {
		c.fragments++
		if f.Fragment.Offset != 0 {
			c.later++
		}
	}
	if f.Transport == unix.IPPROTO_UDP {
		if name := udpTunnels[f.UDP.DestinationPort]; name != "" {
			c.udpTunnels[name]++
		}
	}
}

// fill puts the counts into s.
func (c *counts) fill(s *Stats) {
	s.Fragments, s.LaterFragments = c.fragments, c.later
	s.Undecoded = []ReasonCount{}
	for _, r := range c.reasons {
		s.Undecoded = append(s.Undecoded, *r)
	}
	slices.SortFunc(s.Undecoded, func(a, b ReasonCount) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason))
	})
	carried, inner := map[string]int64{}, maps.Clone(c.udpTunnels)
	for protocol, n := range c.protocols {
		if n == 0 {
			continue
		}
		carried[protocolName(uint8(protocol))] += n
		if name := tunnels[uint8(protocol)]; name != "" {
			inner[name] += n
		}
	}
	s.Protocols, s.Tunnels = sortedCounts(carried), sortedCounts(inner)
}

// protocolName returns the name of nat.ProtocolName, with "protocol" before a number.
func protocolName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_IPIP:
		return "ipip"
	case unix.IPPROTO_IPV6:
		return "ipv6"
	}
	name := nat.ProtocolName(protocol)
	if name == strconv.Itoa(int(protocol)) {
		return "protocol " + name
	}
	return name
}
