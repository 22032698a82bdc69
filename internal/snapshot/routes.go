package snapshot

import "net/netip"

// PartRoutes is the name of the part that the Routes of services, of connections that were followed and of
// targets are.
const PartRoutes = "routes"

// Route is what the kernel does with a packet that comes in by an interface, as it is asked (RTM_GETROUTE):
// routing rules, VRFs and the reverse path filter are in it.
type Route struct {
	// Error is why it is not sent on; empty where it is.
	Error string `json:"error,omitempty"`
	// Local is true where it is for this host.
	Local bool `json:"local,omitempty"`
	// Out is the interface that it leaves by, NextHop the neighbour on it.
	Out     string     `json:"out,omitempty"`
	NextHop netip.Addr `json:"next_hop,omitzero"`
	// Neighbour is the state of the neighbour's entry, empty where there is none.
	Neighbour string `json:"neighbour,omitempty"`
	// Hardware is the address in a permanent entry.
	Hardware string `json:"hardware,omitempty"`
	// Table is the routing table, Policy the rule (ip rule) that leads to it or refuses, where that is
	// not one of those that every host has.
	Table  uint32 `json:"table,omitempty"`
	Policy string `json:"policy,omitempty"`
	// Broken is why nothing gets through Out; empty where nothing is known.
	Broken string `json:"broken,omitempty"`
	// Ports are the ports of Out, a bridge, that forward nothing, with why, where the neighbour does not
	// answer.
	Ports []string `json:"ports,omitempty"`
	// Hops are the next hops of a route with several, of which each connection takes one.
	Hops []Route `json:"hops,omitempty"`
	// Mark is what rules give to the packet, as far as that counts for routing rules; Doubtful is true where
	// they may give another one.
	Mark     uint32 `json:"mark,omitempty"`
	Doubtful bool   `json:"doubtful_mark,omitempty"`
	// Unseen is what filters do to what follows a TCP connection's first packet where its answer does not pass this
	// host, which is INVALID; nil where it was not asked: it leaves by the interface that it came in by.
	Unseen *Filter `json:"unseen_filter,omitempty"`
	// Marked are the routes that other marks lead to for which there are routing rules, where they differ.
	Marked []MarkedRoute `json:"marked,omitempty"`
}

// MarkedRoute is the route of the same packet with a mark.
type MarkedRoute struct {
	Mark  uint32 `json:"mark"`
	Route `json:"route"`
}

// Routes are those of a connection's packets, both ways.
type Routes struct {
	// In is the interface that its first packet comes in by.
	In string `json:"in"`
	// Client is the one that was asked about, an example where no connection is known.
	Client   netip.Addr `json:"client"`
	Question *Route     `json:"question,omitempty"`
	// AnswerIn is the interface that the answer comes in by, and Answer its way to the client.
	AnswerIn string `json:"answer_in,omitempty"`
	Answer   *Route `json:"answer,omitempty"`
}
