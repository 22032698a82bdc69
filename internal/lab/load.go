package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/units"
)

// Load is something that runs through a lab. What its fields mean depends on Kind.
type Load struct {
	// Kind is one of the constants below; LoadHTTP where empty.
	Kind string `yaml:"kind" check:"kind"`
	From string `yaml:"from" check:"node"`
	// To is where udp, packets and hold go; http goes to the stage's URL.
	To netip.AddrPort `yaml:"to" check:"lab"`
	// Concurrency is the number of requests (http) or datagrams (udp without a rate)
	// that wait for an answer at once, or of connections (hold).
	Concurrency int `yaml:"concurrency" check:"1.."`
	// Requests, datagrams or packets in all; 0 means until For is over.
	Requests int64 `yaml:"requests" check:"1.."`
	// Timeout of a request or datagram.
	Timeout time.Duration `yaml:"timeout" check:"0s..10m"`
	// Rate in datagrams, packets or new connections per second.
	Rate float64 `yaml:"rate" check:"0..1000000"`
	// For bounds the load in time.
	For time.Duration `yaml:"for" check:"0s..10m"`
	// Flows are the sources, each an address with a port, that send in turn.
	Flows int `yaml:"flows" check:"1..1048576"`
	// Sources are addresses; those of http, udp and hold are given to the node. Empty
	// leaves it to the run (http: others in each stage) or to the kernel.
	Sources Addresses `yaml:"sources"`
	// SourcePorts are taken in an order that Seed determines; empty leaves them to the
	// kernel, and of packets means 1024-65535.
	SourcePorts Ports  `yaml:"source_ports"`
	Seed        uint64 `yaml:"seed"`
	// Batch cuts http into pieces; nil leaves it whole.
	Batch *Batch `yaml:"batch"`
	// Close is the side that closes a connection of http first: one of load.CloseMode, the server
	// where empty.
	Close string `yaml:"close" check:"close"`
	// KeepAlive is how many requests of http a connection carries; one where it is 0.
	KeepAlive int `yaml:"keep_alive" check:"1..1000000"`
	// Servers are addresses that http goes to in turn instead of to the URL's.
	Servers Addresses `yaml:"servers" check:"len=0..256 lab"`
	// TCP are the flags of packets, such as syn; they are UDP where it is empty.
	TCP string `yaml:"tcp"`
	// Workers is the number of CPUs that send; 0 leaves it to natkit.
	Workers int `yaml:"workers" check:"1..64"`
	// Arrive has packets counted where they arrive; nil counts what is sent.
	Arrive *Arrive `yaml:"arrive"`
	// Ports of the server, of hold, are so many from that of To on; one where it is 0.
	Ports int `yaml:"ports" check:"1..1024"`
	// Keep is how long hold without For keeps its connections once all of them stand, and Verify on how
	// many, chosen at random, the server must return a byte before they are closed.
	Keep   time.Duration `yaml:"keep" check:"0s..10m"`
	Verify int           `yaml:"verify" check:"1..1000000"`
	// Exchange is what kind exchange has besides.
	Exchange *Exchange `yaml:"exchange"`
}

// What Load.Kind may be.
const (
	// LoadHTTP requests pages, one connection each.
	LoadHTTP = "http"
	// LoadUDP sends datagrams that the server answers (topology.server.udp).
	LoadUDP = "udp"
	// LoadPackets sends packets that need no answer, made by an eBPF program.
	LoadPackets = "packets"
	// LoadHold opens TCP connections and leaves them open, without data.
	LoadHold = "hold"
	// LoadExchange makes connections, or sends datagrams, one after the other, to a
	// server that answers with the source that it saw.
	LoadExchange = "exchange"
	// LoadNone waits.
	LoadNone = "none"
)

// Batch is a piece of a load. The next one begins when all requests of the last are over
// and the connection table of ForgottenBy has no entry of their connections any more: a
// NAT gives their ports away again from then on.
type Batch struct {
	Requests    int64  `yaml:"requests" check:"required 1.."`
	ForgottenBy string `yaml:"forgotten_by" check:"required node"`
	// Patience bounds the waiting: the next batch then begins all the same.
	Patience time.Duration `yaml:"patience" check:"required 0s..10m"`
}

var loadKinds = []string{LoadHTTP, LoadUDP, LoadPackets, LoadHold, LoadExchange, LoadNone}

// Is compares the kind.
func (l Load) Is(kind string) bool { return cmp.Or(l.Kind, LoadHTTP) == kind }

func (l Load) isHTTP() bool { return l.Is(LoadHTTP) }

// FlowCount returns the number of sources that send. If it is not given, it is one for each
// address and port, as far as these are.
func (l Load) FlowCount() int {
	if l.Flows == 0 && l.SourcePorts != (Ports{}) {
		return max(len(l.Sources), 1) * int(l.SourcePorts.Len())
	}
	return max(l.Flows, 1)
}

// LoadsOf are the loads of a stage: its own, or the scenario's.
func (s *Scenario) LoadsOf(st *Stage) []Load {
	if len(st.Loads) > 0 {
		return st.Loads
	}
	return []Load{s.Load}
}

// Client is the node that loads come from, the first one where nothing is sent.
func (s *Scenario) Client() string {
	for i := range s.Stages {
		for _, l := range s.LoadsOf(&s.Stages[i]) {
			if l.From != "" {
				return l.From
			}
		}
	}
	return s.Topology.Nodes[0].Name
}

// HTTP returns a stage's load of kind http; false where it has none.
func (s *Scenario) HTTP(st *Stage) (Load, bool) {
	loads := s.LoadsOf(st)
	i := slices.IndexFunc(loads, Load.isHTTP)
	if i < 0 {
		return Load{}, false
	}
	return loads[i], true
}

// Requests returns the total number of requests of a stage's load of kind http.
func (s *Scenario) Requests(st *Stage) int64 {
	l, _ := s.HTTP(st)
	return l.Requests
}

// requestsPerSource is how many connections one source address makes in a stage.
// A server keeps each in TIME_WAIT for a minute, and there are 64,512 ports.
const requestsPerSource = 50_000

// StageSources are the addresses that the HTTP load of the i-th stage comes from,
// and that of no other. The server keeps the connections of the stage before in
// TIME_WAIT; the client's TCP timestamps start elsewhere for each pair of
// addresses (secure_tcp_ts_off in net/core/secure_seq.c), so that from the same source but to
// another destination (no NAT, then DNAT) the server would take new connections
// for old ones and reject them by PAWS (RFC 7323).
func (s *Scenario) StageSources(i int) (sources []netip.Addr) {
	first, after := s.sourcesNeeded(s.Stages[:i]), s.sourcesAfter()
	for k := range s.sourcesNeeded(s.Stages[i : i+1]) {
		sources = append(sources, after.At(uint64(first+k+1)))
	}
	return sources
}

// sourcesAfter is the address that those of stages come after: the greater one of the ends
// of the load's link.
func (s *Scenario) sourcesAfter() nat.AddrRange {
	own, peer := s.firstLink(s.loadNode())
	if own.Address.Addr().Less(peer.Address.Addr()) {
		return nat.OneAddr(peer.Address.Addr())
	}
	return nat.OneAddr(own.Address.Addr())
}

// sourcesNeeded returns the number of addresses natkit chooses for stages.
func (s *Scenario) sourcesNeeded(stages []Stage) (n int64) {
	for i := range stages {
		if l, ok := s.HTTP(&stages[i]); ok && len(l.Sources) == 0 && l.From == s.loadNode() {
			n += (l.Requests + requestsPerSource - 1) / requestsPerSource
		}
	}
	return n
}

// loadNode is the node that the first HTTP load comes from.
func (s *Scenario) loadNode() string {
	for i := range s.Stages {
		if l, ok := s.HTTP(&s.Stages[i]); ok {
			return l.From
		}
	}
	return ""
}

func (s *Scenario) firstLink(node string) (own, peer End) {
	for _, f := range s.faces(node) {
		return f.own, f.peer
	}
	return End{}, End{}
}

// Asked describes briefly what a load sends.
func (l Load) Asked() string {
	var parts []string
	add := func(given bool, format string, args ...any) {
		if given {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	switch {
	case l.Is(LoadNone):
		return "nothing for " + l.For.String()
	case l.Is(LoadHold):
		add(true, "%s held to %s", units.Plural(l.Concurrency, "connection", "connections"), l.To)
		add(l.Ports > 1, "%s from it on", units.Plural(l.Ports, "port", "ports"))
		add(len(l.Sources) > 1, "from %s", units.Plural(len(l.Sources), "address", "addresses"))
		add(l.Verify > 0, "a byte through %s at the end", units.Count(l.Verify))
	case l.Is(LoadHTTP):
		add(true, "%s, %s concurrent", units.Plural(l.Requests, "request", "requests"), units.Count(l.Concurrency))
		if l.Batch != nil {
			add(true, "in batches of %s", units.Count(l.Batch.Requests))
		}
		add(len(l.Sources) > 0, "from %s", units.Plural(len(l.Sources), "address", "addresses"))
		add(len(l.Servers) > 0, "to %s", units.Plural(len(l.Servers), "address", "addresses"))
		add(l.KeepAlive > 1, "%s for each connection", units.Plural(l.KeepAlive, "request", "requests"))
		add(l.Close != "", "closed by %s", l.Close)
	case l.Is(LoadExchange):
		add(true, "%s, %s to %s", l.Exchange.Name, units.Plural(l.Requests, l.Exchange.protocol()+" exchange", l.Exchange.protocol()+" exchanges"), l.To)
	default:
		add(true, "%s to %s", l.what(), l.To)
		add(l.Requests > 0, "%s in all", units.Count(l.Requests))
		add(l.Flows > 0 || l.SourcePorts != (Ports{}), "%s", units.Plural(l.FlowCount(), "flow", "flows"))
		add(l.Rate > 0, "%s/s", units.Rate(l.Rate))
		if l.Arrive != nil {
			add(l.Rate == 0, "as fast as they go")
			add(true, "counted at %s", l.Arrive.Node)
		}
	}
	add(l.For > 0, "for %s", l.For)
	add(l.Timeout > 0, "timeout %s", l.Timeout)
	return strings.Join(parts, ", ")
}

func (l Load) what() string {
	switch {
	case l.Is(LoadUDP):
		return "datagrams"
	case l.TCP != "":
		return "TCP packets (" + l.TCP + ")"
	}
	return "UDP packets"
}
