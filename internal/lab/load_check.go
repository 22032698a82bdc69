package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/prefix"
)

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
	c.exchange(path, l)
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
	case !l.Is(LoadHTTP) && (l.Batch != nil || l.Close != "" || l.KeepAlive != 0 || len(l.Servers) > 0):
		c.fail(path, "expected load.batch, load.close, load.keep_alive and load.servers only with kind http")
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

// taken reports whether another node than this one has an address.
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
	c.connections(path, l)
	if c.first != nil {
		return
	}
	if err := c.s.checkSources(); err != nil {
		c.fail(append(path, "requests"), "%s", err)
	}
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
	if needed > 1<<16 || !end.Address.Contains(last) || last == prefix.Last(end.Address.Prefix) {
		return fmt.Errorf("%d requests in %d stages need %d source addresses (%d connections each), more than %s has room for; fewer requests, or a larger subnet at %s",
			requests, len(s.Stages), needed, requestsPerSource, end.Address.Masked(), s.loadNode())
	}
	return nil
}
