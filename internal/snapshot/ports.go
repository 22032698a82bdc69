package snapshot

// Ports is how far the ports of the addresses that NAT gives are used up.
type Ports struct {
	// Sampled entries were looked at; Complete is true where that was all.
	Sampled  int64 `json:"sampled"`
	Complete bool  `json:"complete"`
	// Probing says how this kernel looks for a free port: PortProbeRandom or
	// PortProbeAll.
	Probing string `json:"probing"`
	// Evicts is whether this kernel, by its release, takes the port of a TCP
	// connection that has ended and whose sequence numbers the new one is past.
	Evicts bool `json:"evicts_closed_tcp"`
	// Translated entries have another source than the one that sent.
	Translated int64 `json:"translated"`
	// Seconds lie between the dumps that the rates are from; 0 where there was one.
	Seconds float64 `json:"seconds"`
	// Pools are the most pressed ones, worst first; Total is how many there are.
	// LeftOut more, small ones, found no room in memory.
	Pools   []PortPool `json:"pools"`
	Total   int64      `json:"pools_total"`
	LeftOut int64      `json:"pools_left_out,omitempty"`
}

// How the kernel looks for a free port.
const (
	// PortProbeRandom: 128, 64, 32, 16 and 8 consecutive ports from random starts
	// (nf_nat_l4proto_unique_tuple since Linux 5.0).
	PortProbeRandom = "random-windows"
	// PortProbeAll: the whole range, one after the other.
	PortProbeAll = "whole-range"
)

// PortPool is the ports of one address towards one destination: two connections
// to it may not have the same one.
type PortPool struct {
	// Address is the one that the destination sees; Destination is an address with
	// port, as the connection leaves this machine (after a DNAT).
	Address     string `json:"address"`
	Protocol    string `json:"protocol"`
	Destination string `json:"destination"`
	Zone        uint16 `json:"zone,omitempty"`
	// FirstPort and LastPort bound what the kernel may take, RangeSource says which
	// rule or rule of the kernel decides that. Class is "" or, where privileged source
	// ports keep to themselves, "privileged" (1-511) or "reserved" (600-1023).
	FirstPort   uint16 `json:"first_port"`
	LastPort    uint16 `json:"last_port"`
	RangeSource string `json:"range_source"`
	Class       string `json:"class,omitempty"`
	// Rule is the index in NATRules.Rules of the rule that gave the address; -1
	// where none was found. Draws is whether that rule draws a port for every new
	// connection (random, fully-random).
	Rule  int  `json:"rule"`
	Draws bool `json:"draws"`

	// Used ports of the range, of them in TIME_WAIT; scaled to the whole table where
	// that was sampled. Local of the used ones belong to sockets of this machine.
	Used     int64 `json:"used"`
	TimeWait int64 `json:"time_wait"`
	Local    int64 `json:"local"`
	// ClientClosed of those in TIME_WAIT were closed by their client first, so that the
	// server does not hold them.
	ClientClosed int64   `json:"client_closed,omitempty"`
	Share        float64 `json:"share"`
	// NewPerSecond is the rate of new connections that live, or keep their port,
	// from one dump to the other; EndedPerSecond of those that are gone. Both are 0
	// where RateKnown is false. SecondsLeft until the range is used up at these
	// rates; -1 for never, or not known.
	RateKnown      bool    `json:"rate_known"`
	NewPerSecond   float64 `json:"new_per_second"`
	EndedPerSecond float64 `json:"ended_per_second"`
	SecondsLeft    float64 `json:"seconds_left"`
	// Users are the sources with most ports.
	Users []Talker `json:"users"`

	// FailsIfTaken is the chance, 0 to 1, that a new connection fails now whose
	// preferred port is taken; TakenShare how often that is so; Fails the chance of
	// any new connection. Known is false where the table was sampled, so that the
	// layout of the used ports is not known; then they are 0. Where Ports.Evicts,
	// FailsIfTaken is that of a connection past the sequence numbers of all ended
	// ones, the least, and FailsIfKept that of one which is past none, the most;
	// elsewhere they are equal.
	Known        bool    `json:"chance_known"`
	FailsIfTaken float64 `json:"fails_if_taken"`
	FailsIfKept  float64 `json:"fails_if_taken_without_eviction"`
	TakenShare   float64 `json:"taken_share"`
	TakenFrom    string  `json:"taken_share_from,omitempty"`
	Fails        float64 `json:"fails"`
	// FailsScattered is what FailsIfTaken would be if as many used ports lay in the
	// range by chance.
	FailsScattered float64 `json:"fails_if_taken_scattered"`
	// Alternatives are there where they were asked for and the pool is pressed.
	Alternatives []PortAlternative `json:"alternatives,omitempty"`
}

// Len is the number of ports of the range.
func (p *PortPool) Len() int64 { return int64(p.LastPort) - int64(p.FirstPort) + 1 }

// What PortAlternative.What may be.
const (
	PortsFullyRandom    = "fully-random"
	PortsLongerRange    = "longer-range"
	PortsAnotherAddress = "another-address"
)

// PortAlternative is what the chance of any new connection to fail would be with
// another rule: at once, with the used ports as they are, and once as many lie in
// the range by chance.
type PortAlternative struct {
	What       string  `json:"what"`
	FailsNow   float64 `json:"fails_now"`
	FailsLater float64 `json:"fails_later"`
}

// SharedAddress is an address that NAT gives and sockets of this machine use too:
// their ports are out of the same range.
type SharedAddress struct {
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	// Listening sockets and UDP ones without a peer are bound to the address, or to
	// all addresses (Wildcard); Connected ones have it as theirs.
	Listening int64 `json:"listening"`
	Wildcard  int64 `json:"wildcard"`
	Connected int64 `json:"connected"`
}
