package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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
	// TCP are the flags of packets, such as syn; they are UDP where it is empty.
	TCP string `yaml:"tcp"`
	// Workers is the number of CPUs that send; 0 leaves it to natkit.
	Workers int `yaml:"workers"`
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
	// LoadNone waits.
	LoadNone = "none"
)

var loadKinds = []string{LoadHTTP, LoadUDP, LoadPackets, LoadHold, LoadNone}

// Is compares the kind.
func (l Load) Is(kind string) bool { return cmp.Or(l.Kind, LoadHTTP) == kind }

// Flow count where none is given: one for each address and port, as far as these
// are given.
func (l Load) flows() int {
	if l.Flows == 0 && l.SourcePorts != (Ports{}) {
		return max(len(l.Sources), 1) * int(l.SourcePorts.Len())
	}
	return max(l.Flows, 1)
}

// FlowCount is how many sources send.
func (l Load) FlowCount() int { return l.flows() }

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

// checkSources fails where the subnet has no room for a source address of its own
// for each stage.
func (s *Scenario) checkSources() error {
	end, _ := s.loadEnds()
	if len(s.Stages) == 0 || !end.Address.IsValid() {
		return nil
	}
	needed, requests := int64(0), int64(0)
	for i := range s.Stages {
		needed += s.sourcesNeeded(&s.Stages[i])
		requests += s.Requests(&s.Stages[i])
	}
	last := end.Address.Addr()
	if needed <= 1<<16 {
		for i := range s.Stages {
			if sources := s.StageSources(i); len(sources) > 0 {
				last = sources[len(sources)-1]
			}
		}
	}
	if needed > 1<<16 || !end.Address.Contains(last) || last == lastAddr(end.Address.Prefix) {
		return fmt.Errorf("%d requests in %d stages need %d source addresses (%d connections each), more than %s has room for; fewer requests, or a larger subnet at %s",
			requests, len(s.Stages), needed, requestsPerSource, end.Address.Masked(), s.loadNode())
	}
	return nil
}

func (c *checker) loads() {
	for i := range c.s.Stages {
		st := &c.s.Stages[i]
		for j, l := range st.Loads {
			c.load(at("stages", i, "loads", j), l)
		}
		isHTTP := func(l Load) bool { return l.Is(LoadHTTP) }
		if own := slices.IndexFunc(st.Loads, isHTTP); own >= 0 && slices.ContainsFunc(st.Loads[own+1:], isHTTP) {
			c.fail(at("stages", i, "loads"), "expected at most one load of kind http in a stage; sources can be a range of addresses")
		}
	}
	unused := func(st Stage) bool { return len(st.Loads) > 0 }
	if zero := len(c.s.Load.Sources) == 0 && c.s.Load.From == "" && c.s.Load.Kind == ""; zero && len(c.s.Stages) > 0 && !slices.ContainsFunc(c.s.Stages, func(st Stage) bool { return !unused(st) }) {
		return
	}
	c.load(at("load"), c.s.Load)
}

func (c *checker) load(path []any, l Load) {
	if l.Kind != "" && !slices.Contains(loadKinds, l.Kind) {
		c.fail(append(path, "kind"), "kind %q: expected one of: %s", l.Kind, strings.Join(loadKinds, ", "))
		return
	}
	c.loadBounds(path, l)
	if l.Is(LoadNone) {
		c.duration(append(path, "for"), "load.for", l.For, true)
		return
	}
	c.node(append(path, "from"), l.From)
	c.loadSources(append(path, "sources"), l)
	if l.Is(LoadHTTP) {
		c.httpLoad(path, l)
		return
	}
	if !l.To.IsValid() || !inLabs(l.To.Addr()) {
		c.fail(append(path, "to"), "expected load.to: an address in %s and a port", networks())
	}
	switch {
	case l.Is(LoadHold):
		c.duration(append(path, "for"), "load.for", l.For, true)
		if l.Concurrency < 1 || l.Concurrency > maxHeld {
			c.fail(append(path, "concurrency"), "expected load.concurrency: 1 to %d connections, found %d", maxHeld, l.Concurrency)
		}
	case l.Requests == 0 && l.For.Duration == 0:
		c.fail(path, "expected load.requests or load.for: without one of them the load never ends")
	case l.Is(LoadPackets) && l.Rate == 0:
		c.fail(append(path, "rate"), "expected load.rate: packets per second")
	case l.Is(LoadUDP) && c.s.Topology.Server.UDP == 0:
		c.fail(path, "expected topology.server.udp: the port at which datagrams are answered")
	}
}

// Bounds of a load.
const (
	maxRate    = 1_000_000
	maxFlows   = 1 << 20
	maxHeld    = 10_000
	maxSources = 256
)

func (c *checker) loadBounds(path []any, l Load) {
	c.duration(append(path, "for"), "load.for", l.For, false)
	c.duration(append(path, "timeout"), "load.timeout", l.Timeout, false)
	switch {
	case l.Requests < 0:
		c.fail(append(path, "requests"), "expected load.requests: 1 or more, found %d", l.Requests)
	case l.Concurrency < 0:
		c.fail(append(path, "concurrency"), "expected load.concurrency: 1 or more, found %d", l.Concurrency)
	case !(l.Rate >= 0 && l.Rate <= maxRate):
		c.fail(append(path, "rate"), "expected load.rate: up to %d a second, found %g", maxRate, l.Rate)
	case l.Flows < 0 || l.Flows > maxFlows:
		c.fail(append(path, "flows"), "expected load.flows: 1 to %d, found %d", maxFlows, l.Flows)
	case l.Workers < 0 || l.Workers > 64:
		c.fail(append(path, "workers"), "expected load.workers: 1 to 64, found %d", l.Workers)
	case l.TCP != "" && !l.Is(LoadPackets):
		c.fail(append(path, "tcp"), "expected load.tcp only with kind packets")
	}
	ways := int64(max(len(l.Sources), 1)) * l.SourcePorts.Len()
	if l.SourcePorts != (Ports{}) && int64(l.Flows) > ways {
		c.fail(append(path, "flows"), "flows %d: the sources and source_ports make only %d", l.Flows, ways)
	}
}

func (c *checker) loadSources(path []any, l Load) {
	if len(l.Sources) > maxSources && !l.Is(LoadPackets) {
		c.fail(path, "expected at most %d sources, found %d", maxSources, len(l.Sources))
	}
	end, _ := c.s.firstLink(l.From)
	for _, a := range l.Sources {
		switch {
		case l.Is(LoadPackets) && !inLabs(a):
			c.fail(path, "source %s: expected an address in %s", a, networks())
		case !l.Is(LoadPackets) && end.Address.IsValid() && !hostIn(end.Address.Prefix, a):
			c.fail(path, "source %s: expected an address of a host in %s, which %s is in", a, end.Address.Masked(), l.From)
		case !l.Is(LoadPackets) && c.taken(l.From, a):
			c.fail(path, "source %s: another node has it", a)
		}
	}
}

// taken tells whether another node than this one has an address.
func (c *checker) taken(node string, a netip.Addr) bool {
	for _, l := range c.s.Topology.Links {
		for _, e := range l {
			if e.Node != node && e.Address.IsValid() && e.Address.Addr() == a {
				return true
			}
		}
	}
	return false
}

func (c *checker) httpLoad(path []any, l Load) {
	if l.Concurrency < 1 {
		c.fail(append(path, "concurrency"), "expected load.concurrency: 1 or more, found %d", l.Concurrency)
	}
	if l.Requests < 1 {
		c.fail(append(path, "requests"), "expected load.requests: 1 or more, found %d", l.Requests)
	}
	c.duration(append(path, "timeout"), "load.timeout", l.Timeout, true)
	if c.first != nil {
		return
	}
	if err := c.s.checkSources(); err != nil {
		c.fail(append(path, "requests"), "%s", err)
	}
}
