package lab

import (
	"cmp"
	"net/netip"
)

// Load is something that runs through a lab. What its fields mean depends on Kind.
type Load struct {
	// Kind is one of the constants below; LoadHTTP where empty.
	Kind string `yaml:"kind"`
	From string `yaml:"from"`
	// To is where udp, packets and hold go; http goes to the stage's URL.
	To AddrPort `yaml:"to"`
	// Concurrency is the number of requests (http) or datagrams (udp without a rate)
	// that wait for an answer at once, or of connections (hold).
	Concurrency int `yaml:"concurrency"`
	// Requests, datagrams or packets in all; 0 means until For is over.
	Requests int64 `yaml:"requests"`
	// Timeout of a request or datagram.
	Timeout Duration `yaml:"timeout"`
	// Rate in datagrams, packets or new connections per second.
	Rate float64 `yaml:"rate"`
	// For bounds the load in time.
	For Duration `yaml:"for"`
	// Flows are the sources, each an address with a port, that send in turn.
	Flows int `yaml:"flows"`
	// Sources are addresses; those of http, udp and hold are given to the node. Empty
	// leaves it to the run (http: others in each stage) or to the kernel.
	Sources Addresses `yaml:"sources"`
	// SourcePorts are taken in an order that Seed determines; empty leaves them to the
	// kernel, and of packets means 1024-65535.
	SourcePorts Ports  `yaml:"source_ports"`
	Seed        uint64 `yaml:"seed"`
	// Batch cuts http into pieces; nil leaves it whole.
	Batch *Batch `yaml:"batch"`
	// Close says who closes a connection of http first: one of load.CloseMode, the server
	// where empty.
	Close string `yaml:"close"`
	// KeepAlive is how many requests of http a connection carries; one where it is 0.
	KeepAlive int `yaml:"keep_alive"`
	// Servers are addresses that http goes to in turn instead of to the URL's.
	Servers Addresses `yaml:"servers"`
	// TCP are the flags of packets, such as syn; they are UDP where it is empty.
	TCP string `yaml:"tcp"`
	// Workers is the number of CPUs that send; 0 leaves it to natkit.
	Workers int `yaml:"workers"`
	// Exchange is what kind exchange has besides.
	Exchange *Exchange `yaml:"exchange"`
}

// What Load.Kind may be.
const (
	// LoadHTTP requests pages, one connection each.
	LoadHTTP = "http"
	// LoadUDP sends datagrams that the server answers (topology.server.udp).
	LoadUDP = "udp"
	// LoadPackets sends packets that nobody has to answer, made by an eBPF program.
	LoadPackets = "packets"
	// LoadHold opens TCP connections and leaves them open, without data.
	LoadHold = "hold"
	// LoadExchange makes connections, or sends datagrams, one after the other, and has
	// the server tell who it saw.
	LoadExchange = "exchange"
	// LoadNone waits.
	LoadNone = "none"
)

// Batch is a piece of a load. The next one begins when all requests of the last are over
// and the connection table of ForgottenBy has no entry of their connections any more: a
// NAT gives their ports away again from then on.
type Batch struct {
	Requests    int64  `yaml:"requests"`
	ForgottenBy string `yaml:"forgotten_by"`
	// Patience bounds the waiting: the next batch then begins all the same.
	Patience Duration `yaml:"patience"`
}

var loadKinds = []string{LoadHTTP, LoadUDP, LoadPackets, LoadHold, LoadExchange, LoadNone}

// Is compares the kind.
func (l Load) Is(kind string) bool { return cmp.Or(l.Kind, LoadHTTP) == kind }

// FlowCount is how many sources send. Where that is not given, it is one for each
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

// Requests is how many a stage's load of kind http makes in all.
func (s *Scenario) Requests(st *Stage) int64 {
	n := int64(0)
	for _, l := range s.LoadsOf(st) {
		if l.Is(LoadHTTP) {
			n += l.Requests
		}
	}
	return n
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
func (s *Scenario) StageSources(i int) []netip.Addr {
	end, peer := s.loadEnds()
	addr := end.Address.Addr()
	if addr.Less(peer.Address.Addr()) {
		addr = peer.Address.Addr()
	}
	var sources []netip.Addr
	for j := range i + 1 {
		for range s.sourcesNeeded(&s.Stages[j]) {
			addr = addr.Next()
			if j == i {
				sources = append(sources, addr)
			}
		}
	}
	return sources
}

// sourcesNeeded is how many addresses natkit chooses for a stage.
func (s *Scenario) sourcesNeeded(st *Stage) int64 {
	for _, l := range s.LoadsOf(st) {
		if l.Is(LoadHTTP) && len(l.Sources) == 0 && l.From == s.loadNode() {
			return (l.Requests + requestsPerSource - 1) / requestsPerSource
		}
	}
	return 0
}

// loadNode is the node that the first HTTP load comes from.
func (s *Scenario) loadNode() string {
	for i := range s.Stages {
		for _, l := range s.LoadsOf(&s.Stages[i]) {
			if l.Is(LoadHTTP) {
				return l.From
			}
		}
	}
	return ""
}

// loadEnds are the two ends of the first link of that node.
func (s *Scenario) loadEnds() (own, peer End) { return s.firstLink(s.loadNode()) }

func (s *Scenario) firstLink(node string) (own, peer End) {
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node == node {
				return e, l[1-j]
			}
		}
	}
	return End{}, End{}
}
