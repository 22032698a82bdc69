package snapshot

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PartLinks is the name of the part that Snapshot.Links is.
const PartLinks = "links"

// Links are the interfaces with what they and their queues counted since they were made.
type Links struct {
	All []Link `json:"links"`
	// Queues are the queueing disciplines and their classes; without those that queue nothing
	// (noqueue).
	Queues []Queue `json:"queues,omitempty"`
	// TooMany is true where some of either were left out.
	TooMany bool `json:"too_many,omitempty"`
}

// Link is an interface with its counters (struct rtnl_link_stats64).
type Link struct {
	Name       string `json:"name"`
	MTU        int    `json:"mtu"`
	RXPackets  uint64 `json:"rx_packets"`
	RXDropped  uint64 `json:"rx_dropped_packets"`
	RXErrors   uint64 `json:"rx_errors_packets"`
	RXMissed   uint64 `json:"rx_missed_packets"`
	TXPackets  uint64 `json:"tx_packets"`
	TXDropped  uint64 `json:"tx_dropped_packets"`
	TXErrors   uint64 `json:"tx_errors_packets"`
	XDPProgram uint32 `json:"xdp_program_id,omitempty"`
}

// Queue is a queueing discipline of an interface, or a class of one.
type Queue struct {
	Interface string `json:"interface"`
	Kind      string `json:"kind"`
	// Handle is as tc shows it: "1:", of a class "1:10". Class is true for these.
	Handle string `json:"handle"`
	Class  bool   `json:"class,omitempty"`
	// Packets and Bytes went through; Dropped did not. Overlimits counts when it held some back.
	Packets    uint64 `json:"packets"`
	Bytes      uint64 `json:"bytes"`
	Dropped    uint64 `json:"dropped_packets"`
	Overlimits uint64 `json:"overlimits"`
	// Waiting is what is in it, in bytes; 0 for those that do not queue.
	Waiting uint64 `json:"waiting_bytes"`
	// Filters are those of it that may drop, where it dropped anything.
	Filters []QueueFilter `json:"filters,omitempty"`
}

// QueueFilter is a filter of tc that may drop packets.
type QueueFilter struct {
	// Text is what it asks and does, in words of tc.
	Text string `json:"text"`
	// Known is true where all that it asks is in the fields below.
	Known           bool         `json:"known,omitempty"`
	Protocol        string       `json:"protocol,omitempty"`
	SourcePort      uint16       `json:"source_port,omitempty"`
	DestinationPort uint16       `json:"destination_port,omitempty"`
	From            netip.Prefix `json:"from,omitzero"`
	To              netip.Prefix `json:"to,omitzero"`
	// Dropped are the packets that its action dropped, if Counted: a program that drops by itself
	// (bpf direct-action) does not.
	Dropped uint64 `json:"dropped_packets,omitempty"`
	Counted bool   `json:"counted,omitempty"`
}

// Filtering reports whether the queue is a place for filters only: what it drops, they drop.
func (q *Queue) Filtering() bool { return q.Kind == "ingress" || q.Kind == "clsact" }

// String names the queue: "tbf 1: of wan0".
func (q *Queue) String() string {
	if q.Class {
		return fmt.Sprintf("class %s %s of %s", q.Kind, q.Handle, q.Interface)
	}
	return fmt.Sprintf("%s %s of %s", q.Kind, q.Handle, q.Interface)
}

// Counter returns a counter of an interface or a queue by its name: "dev wan0 rx_dropped", "qdisc tbf 1: of
// wan0 dropped". It is false where there is no such one.
func (l *Links) Counter(name string) (uint64, bool) {
	kind, rest, _ := strings.Cut(name, " ")
	at := strings.LastIndexByte(rest, ' ')
	if at < 0 {
		return 0, false
	}
	of, counter := rest[:at], rest[at+1:]
	if kind == "dev" {
		i := slices.IndexFunc(l.All, func(d Link) bool { return d.Name == of })
		if i < 0 {
			return 0, false
		}
		n, known := l.All[i].counters()[counter]
		return n, known
	}
	i := slices.IndexFunc(l.Queues, func(q Queue) bool { return q.String() == of })
	if i < 0 {
		return 0, false
	}
	q := &l.Queues[i]
	n, known := map[string]uint64{"packets": q.Packets, "dropped": q.Dropped}[counter]
	return n, known
}

func (l *Link) counters() map[string]uint64 {
	return map[string]uint64{
		"rx_packets": l.RXPackets, "rx_dropped": l.RXDropped, "rx_errors": l.RXErrors, "rx_missed": l.RXMissed,
		"tx_packets": l.TXPackets, "tx_dropped": l.TXDropped, "tx_errors": l.TXErrors,
	}
}

// atStart has the same interfaces and queues, which counted nothing.
func (l *Links) atStart() *Links {
	start := &Links{TooMany: l.TooMany}
	for _, one := range l.All {
		start.All = append(start.All, Link{Name: one.Name, MTU: one.MTU, XDPProgram: one.XDPProgram})
	}
	for _, q := range l.Queues {
		start.Queues = append(start.Queues, Queue{Interface: q.Interface, Kind: q.Kind, Handle: q.Handle, Class: q.Class, Filters: q.Filters})
	}
	return start
}
