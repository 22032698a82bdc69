package snapshot

import (
	"net/netip"
	"slices"
)

// PartWays is the name of the part that Snapshot.Ways is.
const PartWays = "ways"

// Ways is what filters do to traffic that this host translates, serves or bridges, beside what DNATTargets
// has.
type Ways struct {
	All []Way `json:"ways"`
	// TooMany is true where the rules were not asked about all: they are too many.
	TooMany bool `json:"too_many_to_ask,omitempty"`
	// NoSockets is why they were not asked about what programs of this host serve.
	NoSockets string `json:"no_sockets,omitempty"`
}

// What Way.Kind may be.
const (
	// WaySource: what hosts of a network send to the outside, with a translated source.
	WaySource = "source"
	// WayOwn: what programs of this host send to the outside.
	WayOwn = "own"
	// WayErrors: ICMP errors that say to hosts of a network that their packets are too large.
	WayErrors = "errors"
	// WayServed: what hosts of such a network send to a program of this host.
	WayServed = "served"
	// WayBridge: what the ports of a bridge send to each other or, without Out, to this host.
	WayBridge = "bridge"
	// WayNeighbours: the messages by which IPv6 finds the hosts of a network.
	WayNeighbours = "neighbours"
)

// PassivePort stands for those that servers of FTP name for data connections (PASV, EPSV).
const PassivePort = 50000

// Way is traffic of one kind.
type Way struct {
	Kind string `json:"kind"`
	// Rule is an index in NATRules.Rules, of a rule that translates the sources; Explicit is true
	// where it names the network, and no other one.
	Rule     int  `json:"rule"`
	Explicit bool `json:"explicit,omitempty"`
	// Resolver is true where a program of this host takes DNS from the network.
	Resolver bool `json:"resolver,omitempty"`
	// Network is where it comes from, Host one of it that was there lately; not valid where none is
	// known.
	Network netip.Prefix `json:"network,omitzero"`
	Host    netip.Addr   `json:"host,omitzero"`
	In      string       `json:"in,omitempty"`
	Out     string       `json:"out,omitempty"`
	// V6 is the version of IP where Network is not known.
	V6 bool `json:"v6,omitempty"`
	// Protocol and Port are of the destination; 0 is any port. Of WayNeighbours Protocol is the
	// message.
	Protocol string `json:"protocol,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	// Socket is the one that would take it, of WayServed; Elsewhere is true where it takes what
	// comes from other networks.
	Socket    netip.AddrPort `json:"socket,omitzero"`
	Elsewhere bool           `json:"elsewhere,omitempty"`
	// Filter is what rules do to the first packet, AnswerFilter to its answer, LaterFilter to those that
	// follow, both ways; nil where they were not asked.
	Filter       *Filter `json:"filter,omitempty"`
	AnswerFilter *Filter `json:"answer_filter,omitempty"`
	LaterFilter  *Filter `json:"later_filter,omitempty"`
	// Programs and Bypassed are as those of a DNATTarget.
	Programs bool    `json:"by_programs,omitempty"`
	Bypassed *Filter `json:"bypassed_filter,omitempty"`
}

// wayKey is what a way has in both snapshots.
type wayKey struct {
	kind, in, out, protocol string
	network                 netip.Prefix
	port                    uint16
	socket                  netip.AddrPort
	v6                      bool
}

func (w *Way) key() wayKey {
	return wayKey{w.Kind, w.In, w.Out, w.Protocol, w.Network, w.Port, w.Socket, w.V6}
}

// Before returns the way of the same traffic in an earlier reading; nil where there is none.
func (w *Ways) Before(of *Way) *Way {
	if w == nil {
		return nil
	}
	key := of.key()
	for i := range w.All {
		if one := &w.All[i]; one.Network == key.network && one.In == key.in && one.key() == key {
			return one
		}
	}
	return nil
}

// Grown returns how much the counters of the places of a filter grew since before, each: 0 where they are
// not known.
func (f *Filter) Grown(before *Filter) []uint64 {
	if before == nil {
		return make([]uint64, len(f.Drops))
	}
	return GrownPlaces(f.Drops, before.Drops)
}

// Unused is a filter before its places counted anything.
func (f *Filter) Unused() *Filter {
	unused := *f
	unused.Drops = slices.Clone(f.Drops)
	for i := range unused.Drops {
		unused.Drops[i].Packets = 0
	}
	return &unused
}
