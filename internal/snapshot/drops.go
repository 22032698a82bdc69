package snapshot

import (
	"cmp"
	"slices"
	"time"
)

// DropEvent is one dropped packet.
type DropEvent struct {
	Time time.Time `json:"time"`
	// Function and Offset are the place in the kernel, Module its module.
	Function string `json:"function"`
	Offset   uint64 `json:"offset_bytes"`
	Module   string `json:"module,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Protocol string `json:"protocol"`
	// Cause is one of DropCause's, where return values tell.
	Cause string `json:"nat_cause,omitempty"`
	// Source and Destination are addresses, with the port where there is one.
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	// TCPFlags is such as "SYN,ACK".
	TCPFlags string `json:"tcp_flags,omitempty"`
	// Length is the IP packet's, or else that of the skb.
	Length    uint32 `json:"length_bytes"`
	Interface string `json:"interface,omitempty"`
	Netns     uint64 `json:"netns"`
}

// Since is what was dropped after an earlier look of the same tracer: sites and
// counts, not flows, stacks and causes.
func (d *Drops) Since(before *Drops) *Drops {
	had := make(map[DropSite]uint64, len(before.Sites))
	for _, s := range before.Sites {
		packets := s.Packets
		s.Packets = 0
		had[s] = packets
	}
	later := &Drops{
		Seconds: d.Seconds - before.Seconds, Source: d.Source, Packets: d.Packets - before.Packets,
		Harmless: d.Harmless - before.Harmless, Lost: d.Lost - before.Lost, LostEvents: d.LostEvents - before.LostEvents,
	}
	for _, s := range d.Sites {
		packets := s.Packets
		s.Packets = 0
		if s.Packets = packets - had[s]; s.Packets > 0 {
			later.Sites = append(later.Sites, s)
		}
	}
	SortSites(later.Sites)
	return later
}

// SortSites puts those with most packets first.
func SortSites(sites []DropSite) {
	slices.SortFunc(sites, func(a, b DropSite) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Function, b.Function), cmp.Compare(a.Offset, b.Offset),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Netns, b.Netns))
	})
}
