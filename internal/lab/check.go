package lab

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
)

// maxStage bounds every duration in a scenario.
const maxStage = 10 * time.Minute

// problem is a fault of meaning and the path to it in the YAML.
type problem struct {
	path    []any
	message string
}

// faults keeps the first problem only: one clear line is worth more than ten.
type faults struct{ first *problem }

// checker looks at a scenario.
type checker struct {
	s *Scenario
	faults
}

func (c *faults) fail(path []any, format string, args ...any) {
	if c.first == nil {
		c.first = &problem{slices.Clone(path), fmt.Sprintf(format, args...)}
	}
}

func at(steps ...any) []any { return steps }

func (s *Scenario) check() *problem {
	c := &checker{s: s}
	c.head()
	c.nodes()
	c.links()
	c.bridgeAndServer()
	c.loads()
	for i := range s.Stages {
		c.stage(i)
	}
	if len(s.Stages) == 0 {
		c.fail(at("stages"), "expected stages: a list with at least one stage")
	}
	c.expect()
	return c.first
}

func (c *checker) head() {
	if !validName(c.s.Name) {
		c.fail(at("name"), "expected name: lower-case letters, digits and dashes, at most 40, found %q", c.s.Name)
	}
	if c.s.Title == "" {
		c.fail(at("title"), "expected title: one line about the scenario")
	}
}

// validName keeps names fit for file names and for the command line.
func validName(name string) bool {
	ok := name != "" && len(name) <= 40 && name[0] != '-'
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	return ok
}

func (c *checker) nodes() {
	seen := map[string]bool{}
	for i, n := range c.s.Topology.Nodes {
		path := at("topology", "nodes", i)
		switch {
		case !validName(n.Name):
			c.fail(append(path, "name"), "expected a node's name: lower-case letters, digits and dashes, at most 40, found %q", n.Name)
		case seen[n.Name]:
			c.fail(append(path, "name"), "node %q is there twice", n.Name)
		}
		seen[n.Name] = true
		for _, name := range sortedKeys(n.Sysctls) {
			c.sysctl(append(path, "sysctls", name), name)
		}
	}
	if len(c.s.Topology.Nodes) < 2 {
		c.fail(at("topology", "nodes"), "expected topology.nodes: a list with at least two nodes")
	}
}

// hooksLwtunnel is one switch for all namespaces of the host though each has a file
// for it, and it cannot be switched off again (nf_hooks_lwtunnel_sysctl_handler,
// net/netfilter/nf_hooks_lwtunnel.c).
const hooksLwtunnel = "net.netfilter.nf_hooks_lwtunnel"

// shared are values of the whole host that a namespace could write before Linux 5.13,
// which made them, and all such, read-only there (ensure_safe_net_sysctl,
// net/sysctl_net.c), besides HostSysctls.
var shared = []string{"net.netfilter.nf_conntrack_expect_max", "net.ipv4.tcp_allowed_congestion_control"}

// sysctl keeps a scenario inside its namespaces.
func (c *checker) sysctl(path []any, name string) {
	switch {
	case !validSysctl(name):
		c.fail(path, "sysctl %q: expected a name that begins with net., which a namespace has for itself", name)
	case name == hooksLwtunnel:
		c.fail(path, "sysctl %q: it holds for the whole host and cannot be set back", name)
	case slices.Contains(shared, name):
		c.fail(path, "sysctl %q: it holds for the whole host", name)
	case slices.Contains(HostSysctls, name):
		c.fail(path, "sysctl %q: it holds for the whole host; set it by host: of a stage, which requires --allow-host", name)
	}
}

// validSysctl: names outside net.* belong to the host. Slashes and empty parts could
// lead elsewhere.
func validSysctl(name string) bool {
	parts := strings.Split(name, ".")
	return len(parts) >= 3 && parts[0] == "net" && !slices.Contains(parts, "") && !strings.Contains(name, "/")
}

func (c *checker) node(path []any, name string) {
	known := func(n NodeSpec) bool { return n.Name == name }
	if slices.ContainsFunc(c.s.Topology.Nodes, known) {
		return
	}
	names := make([]string, len(c.s.Topology.Nodes))
	for i, n := range c.s.Topology.Nodes {
		names[i] = n.Name
	}
	if name == "" {
		c.fail(path, "expected %s: a node, one of: %s", field(path), strings.Join(names, ", "))
		return
	}
	c.fail(path, "unknown node %q; expected one of: %s", name, strings.Join(names, ", "))
}

// field names the last two keys of a path, as load.from.
func field(path []any) string {
	var keys []string
	for _, step := range path {
		if key, ok := step.(string); ok {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys[max(0, len(keys)-2):], ".")
}

func (c *checker) links() {
	addresses := map[netip.Addr]bool{}
	for i, l := range c.s.Topology.Links {
		path := at("topology", "links", i)
		for j, e := range l {
			c.node(append(path, j, "node"), e.Node)
			where, addr := append(path, j, "address"), e.Address.Addr()
			switch {
			case !e.Address.IsValid():
				c.fail(where, "expected address: one of %s with its prefix length", networks())
			case !inLabs(addr) || e.Address.Bits() < Network.Bits()+1 || addr.Is6() && e.Address.Bits() < Network6.Bits()+1:
				c.fail(where, "address %s is not in %s, where all lab addresses are", e.Address, networks())
			case e.Address.Bits() > addr.BitLen()-2 || !hostIn(e.Address.Prefix, addr):
				c.fail(where, "address %s cannot be a host's in its subnet", e.Address)
			case e.Address.Overlaps(FillSources):
				c.fail(where, "address %s lies in %s, which fills are made of", e.Address, FillSources)
			case addresses[addr]:
				c.fail(where, "address %s is there twice", addr)
			}
			addresses[addr] = true
		}
		if l[0].Node == l[1].Node {
			c.fail(append(path, 1, "node"), "a link joins two different nodes, found %q twice", l[0].Node)
		}
		if l[0].Address.Masked() != l[1].Address.Masked() {
			c.fail(append(path, 1, "address"), "address %s is not in the subnet of the link's other end, %s", l[1].Address, l[0].Address.Masked())
		}
		for _, other := range c.s.Topology.Links[:i] {
			if other[0].Address.IsValid() && l[0].Address.Overlaps(other[0].Address.Prefix) {
				c.fail(append(path, 0, "address"), "subnet %s overlaps with another link's, %s", l[0].Address.Masked(), other[0].Address.Masked())
			}
		}
	}
	if len(c.s.Topology.Links) == 0 {
		c.fail(at("topology", "links"), "expected topology.links: a list with at least one link")
	}
}

func (c *checker) bridgeAndServer() {
	if b := c.s.Topology.Bridge; b != nil {
		path := at("topology", "bridge")
		c.node(append(path, "node"), b.Node)
		c.node(append(path, "toward"), b.Toward)
		if !slices.ContainsFunc(c.s.Topology.Links, c.s.bridged) {
			c.fail(path, "no link between %s and %s for the bridge", b.Node, b.Toward)
		}
	}
	c.node(at("topology", "server", "node"), c.s.Topology.Server.Node)
	if c.s.Topology.Server.Port == 0 {
		c.fail(at("topology", "server", "port"), "expected server.port: 1 to 65535")
	}
	end, _ := c.s.firstLink(c.s.Topology.Server.Node)
	for _, a := range c.s.Topology.Server.Addresses {
		switch {
		case end.Address.IsValid() && !hostIn(end.Address.Prefix, a):
			c.fail(at("topology", "server", "addresses"), "address %s: expected one of a host in %s, which %s is in", a, end.Address.Masked(), c.s.Topology.Server.Node)
		case c.taken(c.s.Topology.Server.Node, a):
			c.fail(at("topology", "server", "addresses"), "address %s: another node has it", a)
		}
	}
	if n := len(c.s.Topology.Server.Addresses); n > maxSources {
		c.fail(at("topology", "server", "addresses"), "expected at most %d addresses, found %d", maxSources, n)
	}
	if !c.s.ServerAddr().Addr().IsValid() {
		c.fail(at("topology", "server", "node"), "node %q has no link, so nobody can reach its server", c.s.Topology.Server.Node)
	}
}

func (c *checker) duration(path []any, name string, d Duration, required bool) {
	switch {
	case d.Duration == 0 && required:
		c.fail(path, "expected %s: a duration such as 2s", name)
	case d.Duration < 0 || d.Duration > maxStage:
		c.fail(path, "%s %s: expected a duration between 0s and %s", name, d, maxStage)
	}
}

func (c *checker) stage(i int) {
	st, path := c.s.Stages[i], at("stages", i)
	if !validName(st.Name) {
		c.fail(append(path, "name"), "expected a stage's name: lower-case letters, digits and dashes, at most 40, found %q", st.Name)
	}
	if first, _ := c.s.Stage(st.Name); first != &c.s.Stages[i] {
		c.fail(append(path, "name"), "stage %q is there twice", st.Name)
	}
	if slices.ContainsFunc(c.s.LoadsOf(&st), func(l Load) bool { return l.Is(LoadHTTP) }) || st.URL != "" {
		c.url(append(path, "url"), st)
	}
	for j, rule := range st.NAT {
		c.nat(append(path, "nat", j), rule)
	}
	if st.Gateway != nil {
		c.gateway(append(path, "gateway"), st.Gateway)
	}
	if st.Fill != nil {
		c.fill(append(path, "fill"), st.Fill)
	}
	c.settings(path, st)
	c.apart(path, st)
	if st.Remedy != nil {
		c.remedy(append(path, "remedy"), i, st.Remedy)
	}
	c.duration(append(path, "limit"), "limit", st.Limit, false)
	if st.Doctor != nil {
		c.doctor(append(path, "doctor"), st.Doctor)
	}
	for j, what := range st.Trace {
		if what != TraceDrops && what != TraceProfile || slices.Contains(st.Trace[:j], what) {
			c.fail(append(path, "trace", j), "trace %q: expected %s or %s, each once", what, TraceDrops, TraceProfile)
		}
	}
	looked := func(earlier Stage) bool { return earlier.Doctor != nil }
	switch {
	case st.Apply != "" && st.Apply != ApplyRemedy:
		c.fail(append(path, "apply"), "apply %q: expected %s", st.Apply, ApplyRemedy)
	case st.Apply == ApplyRemedy && !slices.ContainsFunc(c.s.Stages[:i], looked):
		c.fail(append(path, "apply"), "no stage before %q has a doctor whose remedy could be applied", st.Name)
	}
}

func (c *checker) url(path []any, st Stage) {
	if st.URL == "" {
		c.fail(path, "stage %q: expected url: such as http://198.19.0.2/", st.Name)
		return
	}
	u, err := url.Parse(st.URL)
	if err != nil || u.Scheme != "http" {
		c.fail(path, "url %q: expected http://ADDRESS[:PORT]/…", st.URL)
		return
	}
	addr, err := netip.ParseAddr(u.Hostname())
	port := u.Port()
	if port == "" {
		port = "80"
	}
	n, portErr := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || !inLabs(addr):
		c.fail(path, "url %q: expected an address in %s, so that no load leaves the lab", st.URL, networks())
	case portErr != nil || n == 0:
		c.fail(path, "url %q: expected a port from 1 to 65535", st.URL)
	}
}

func (c *checker) stageName(path []any, name string) {
	if _, ok := c.s.Stage(name); ok {
		return
	}
	names := make([]string, len(c.s.Stages))
	for i, st := range c.s.Stages {
		names[i] = st.Name
	}
	c.fail(path, "unknown stage %q; expected one of: %s", name, strings.Join(names, ", "))
}

// closeModes are what Load.Close may be.
var closeModes = []string{string(load.CloseServer), string(load.CloseClient), string(load.CloseReset)}

// connections checks what an http load does with its connections.
func (c *checker) connections(path []any, l Load) {
	switch {
	case l.Close != "" && !slices.Contains(closeModes, l.Close):
		c.fail(append(path, "close"), "close %q: expected one of: %s", l.Close, strings.Join(closeModes, ", "))
	case l.KeepAlive < 0 || l.KeepAlive > maxKept:
		c.fail(append(path, "keep_alive"), "expected load.keep_alive: 1 to %d requests for each connection, found %d", maxKept, l.KeepAlive)
	case l.keeps() && !c.s.Topology.Server.KeepAlive:
		c.fail(path, "expected topology.server.keep_alive: true, as the server closes each connection first without it")
	case len(l.Servers) > maxSources:
		c.fail(append(path, "servers"), "expected at most %d addresses in load.servers, found %d", maxSources, len(l.Servers))
	}
	for _, a := range l.Servers {
		if !inLabs(a) {
			c.fail(append(path, "servers"), "address %s: expected one in %s, so that no load leaves the lab", a, networks())
		}
	}
	if l.Batch != nil {
		c.batch(append(path, "batch"), l)
	}
}

// maxKept is as much as one connection can be told to carry.
const maxKept = 1_000_000

// keeps reports whether the load needs a server that leaves connections open.
func (l Load) keeps() bool {
	return l.KeepAlive > 1 || l.Close != "" && l.Close != string(load.CloseServer)
}

func (c *checker) batch(path []any, l Load) {
	b := l.Batch
	c.node(append(path, "forgotten_by"), b.ForgottenBy)
	c.duration(append(path, "patience"), "batch.patience", b.Patience, true)
	switch {
	case b.Requests < 1:
		c.fail(append(path, "requests"), "expected batch.requests: 1 or more, found %d", b.Requests)
	case l.Rate > 0:
		c.fail(path, "expected load.batch or load.rate, found both: what starts on a schedule does not wait for a batch")
	}
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
	if needed > 1<<16 || !end.Address.Contains(last) || last == nat.LastAddr(end.Address.Prefix) {
		return fmt.Errorf("%d requests in %d stages need %d source addresses (%d connections each), more than %s has room for; fewer requests, or a larger subnet at %s",
			requests, len(s.Stages), needed, requestsPerSource, end.Address.Masked(), s.loadNode())
	}
	return nil
}
