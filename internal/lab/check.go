package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/natkit/natkit/internal/capacity"
	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/load"
)

// faults keeps the first problem only: one clear line is worth more than ten.
type faults struct{ first *document.Problem }

func (c *faults) fail(path []any, format string, args ...any) {
	if c.first == nil {
		c.first = document.NewProblem(path, format, args...)
	}
}

// checker checks what the tags of single fields cannot express.
type checker struct {
	s *Scenario
	faults
}

func at(steps ...any) []any { return steps }

func (s *Scenario) check() *document.Problem {
	c := &checker{s: s}
	c.unique()
	if c.first == nil {
		c.first = document.Check(s, s.rules())
	}
	if c.first != nil {
		return c.first
	}
	for i := range s.Topology.Links {
		c.link(i)
	}
	if c.bridgeAndServer(); c.first == nil {
		c.loads()
	}
	for i := 0; i < len(s.Stages) && c.first == nil; i++ {
		c.stage(i)
	}
	if c.s.Compare != nil {
		c.compare(at("compare"))
	}
	c.expect()
	return c.first
}

// rules are those that the tags of a scenario's fields name.
func (s *Scenario) rules() map[string]document.Rule {
	var nodes, stages, findings []string
	for _, n := range s.Topology.Nodes {
		nodes = append(nodes, n.Name)
	}
	for _, st := range s.Stages {
		stages = append(stages, st.Name)
	}
	for _, r := range diagnose.Rules() {
		findings = append(findings, r.ID)
	}
	return map[string]document.Rule{
		"name": nameRule, "label": labelRule, "sysctl": sysctlRule, "hostvalue": hostValueRule, "lab": inLabsRule, "port": portRule,
		"node": document.OneOf(nodes...), "stage": document.OneOf(stages...), "finding": document.OneOf(findings...),
		"effect": document.OneOf(Effects...), "host": document.OneOf(HostSysctls...), "counter": document.OneOf(Counters...),
		"kind": document.OneOf(loadKinds...), "trace": document.OneOf(TraceDrops, TraceProfile), "apply": document.OneOf(ApplyRemedy),
		"mixprotocol": document.OneOf(mixProtocols...), "state": document.OneOf(tcpStates...),
		"hook": document.OneOf(dropHooks...), "protocol": document.OneOf("tcp", "udp"),
		"close":  document.OneOf(load.CloseServer, load.CloseClient, load.CloseReset),
		"status": document.OneOf(Unreplied, Replied, Assured), "order": document.OneOf(Random, Sequential),
		"snatorder": document.OneOf(Preserve, Random, Sequential),
	}
}

// nameRule keeps names fit for file names and for the command line.
func nameRule(v any) string {
	name := v.(string)
	ok := len(name) <= 40 && name != "" && name[0] != '-'
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-')
	}
	if ok {
		return ""
	}
	return "lower-case letters, digits and dashes, at most 40"
}

func labelRule(v any) string {
	if len(v.(string)) > 60 || strings.ContainsFunc(v.(string), func(r rune) bool { return r < ' ' || r > '~' }) {
		return "at most 60 printable ASCII characters"
	}
	return ""
}

// inLabsRule keeps packets in the lab.
func inLabsRule(v any) string {
	if a, ok := v.(netip.AddrPort); ok {
		if a.Port() == 0 || !inLabs(a.Addr()) {
			return "an address in " + networks() + " and a port"
		}
	} else if !inLabs(v.(netip.Addr)) {
		return "an address in " + networks()
	}
	return ""
}

func portRule(v any) string {
	if p := v.(gateway.Port); p.First == 0 || p.Last > p.First || p.Protocol != "tcp" && p.Protocol != "udp" {
		return "a protocol and port such as tcp/8080"
	}
	return ""
}

// hostOnly are values of the whole host that a namespace has files for, and why: the first
// is a switch that cannot be set back (nf_hooks_lwtunnel_sysctl_handler,
// net/netfilter/nf_hooks_lwtunnel.c); the others a namespace could write before Linux 5.13
// (ensure_safe_net_sysctl, net/sysctl_net.c).
var hostOnly = map[string]string{
	"net.netfilter.nf_hooks_lwtunnel":         "one that is per namespace; this one holds for the whole host and cannot be set back",
	"net.netfilter.nf_conntrack_expect_max":   "one that is per namespace; this one holds for the whole host",
	"net.ipv4.tcp_allowed_congestion_control": "one that is per namespace; this one holds for the whole host",
	HostSysctls[0]: hostBelow, HostSysctls[1]: hostBelow,
}

const hostBelow = "one that is per namespace; this one holds for the whole host: set it by host: of a stage, which requires --allow-host"

// sysctlRule keeps a scenario inside its namespaces: names outside net.* belong to the
// host; slashes and empty parts could lead elsewhere.
func sysctlRule(v any) string {
	name := v.(string)
	parts := strings.Split(name, ".")
	if len(parts) < 3 || parts[0] != "net" || slices.Contains(parts, "") || strings.Contains(name, "/") {
		return "a name that begins with net., which is per namespace"
	}
	return hostOnly[name]
}

// maxHostValue bounds the values of the whole host: that number of buckets takes 128 MiB.
const maxHostValue = 16 << 20

func hostValueRule(v any) string {
	if n, err := strconv.ParseInt(v.(string), 10, 64); err != nil || n < capacity.BucketStep || n > maxHostValue {
		return fmt.Sprintf("%d to %d", capacity.BucketStep, maxHostValue)
	}
	return ""
}

// unique comes first: that names are those of one node or stage is what rules depend on.
func (c *checker) unique() {
	for i, n := range c.s.Topology.Nodes {
		if slices.IndexFunc(c.s.Topology.Nodes, func(o NodeSpec) bool { return o.Name == n.Name }) < i {
			c.fail(at("topology", "nodes", i, "name"), "node %q is there twice", n.Name)
		}
	}
	for i, st := range c.s.Stages {
		if first, _ := c.s.Stage(st.Name); first != &c.s.Stages[i] {
			c.fail(at("stages", i, "name"), "stage %q is there twice", st.Name)
		}
	}
}

func (c *checker) link(i int) {
	l, path := c.s.Topology.Links[i], at("topology", "links", i)
	for j, e := range l {
		where, addr := append(path, j, "address"), e.Address.Addr()
		switch {
		case !inLabs(addr) || e.Address.Bits() < Network.Bits()+1 || addr.Is6() && e.Address.Bits() < Network6.Bits()+1:
			c.fail(where, "address %s is not in %s, where all lab addresses are", e.Address, networks())
		case e.Address.Bits() > addr.BitLen()-2 || !hostIn(e.Address, addr):
			c.fail(where, "address %s cannot be a host's in its subnet", e.Address)
		case e.Address.Overlaps(FillSources):
			c.fail(where, "address %s lies in %s, which fills are made of", e.Address, FillSources)
		}
	}
	switch {
	case l[0].Node == l[1].Node:
		c.fail(append(path, 1, "node"), "a link joins two different nodes, found %q twice", l[0].Node)
	case l[0].Address == l[1].Address:
		c.fail(append(path, 1, "address"), "address %s is there twice", l[1].Address.Addr())
	case l[0].Address.Masked() != l[1].Address.Masked():
		c.fail(append(path, 1, "address"), "address %s is not in the subnet of the link's other end, %s", l[1].Address, l[0].Address.Masked())
	}
	for _, other := range c.s.Topology.Links[:i] {
		if l[0].Address.Overlaps(other[0].Address) {
			c.fail(append(path, 0, "address"), "subnet %s overlaps with another link's, %s", l[0].Address.Masked(), other[0].Address.Masked())
		}
	}
}

func (c *checker) bridgeAndServer() {
	if b := c.s.Topology.Bridge; b != nil && !slices.ContainsFunc(c.s.Topology.Links, c.s.bridged) {
		c.fail(at("topology", "bridge"), "no link between %s and %s for the bridge", b.Node, b.Toward)
	}
	server := c.s.Topology.Server
	if len(c.s.faces(server.Node)) == 0 {
		c.fail(at("topology", "server", "node"), "node %q has no link, so its server cannot be reached", server.Node)
	}
	c.own(at("topology", "server", "addresses"), server.Node, server.Addresses)
}

// own checks addresses that a node gets at its first link.
func (c *checker) own(path []any, node string, addresses Addresses) {
	end, _ := c.s.firstLink(node)
	for _, a := range addresses {
		if end.Address.IsValid() && !hostIn(end.Address, a) {
			c.fail(path, "address %s: expected one of a host in %s, which %s is in", a, end.Address.Masked(), node)
		}
		for _, l := range c.s.Topology.Links {
			if slices.ContainsFunc(l[:], func(e End) bool { return e.Node != node && e.Address.Addr() == a }) {
				c.fail(path, "address %s: another node has it", a)
			}
		}
	}
}

func (c *checker) stage(i int) {
	st, path := c.s.Stages[i], at("stages", i)
	if st.URL != "" || slices.ContainsFunc(c.s.LoadsOf(&st), Load.isHTTP) {
		c.url(append(path, "url"), st)
	}
	for j, rule := range st.NAT {
		c.nat(append(path, "nat", j), rule)
	}
	for j, l := range st.Listeners {
		if l.Events == (l.Port != 0) {
			c.fail(append(path, "listeners", j), "expected a listener with port: 81, or events: true")
		}
	}
	if st.Gateway != nil {
		c.gateway(append(path, "gateway"), st.Gateway)
	}
	if st.Redirect != nil {
		c.redirect(append(path, "redirect"), st)
	}
	if st.Fill != nil {
		c.fill(append(path, "fill"), st.Fill)
	}
	if st.Optional && len(st.Host) == 0 {
		c.fail(append(path, "optional"), "optional requires host: a stage is left out where the consent to change the host is missing")
	}
	c.apart(path, st)
	if r := st.Remedy; r != nil && !slices.ContainsFunc(c.s.Stages[:i], func(s Stage) bool { return s.Name == r.Against }) {
		c.fail(append(path, "remedy", "against"), "against %q: expected a stage before this one", r.Against)
	}
	if d := st.Doctor; d != nil && d.When != nil && len(document.Given(d.When)) == 0 {
		c.fail(append(path, "doctor", "when"), "expected when with one or more of: entries: 1000, requests: 1000, counters: {drop: 1}")
	}
	if len(st.Trace) > 1 && st.Trace[0] == st.Trace[1] || len(st.Trace) > 2 {
		c.fail(append(path, "trace"), "expected each of the traces once")
	}
	if examined := func(earlier Stage) bool { return earlier.Doctor != nil }; st.Apply == ApplyRemedy && !slices.ContainsFunc(c.s.Stages[:i], examined) {
		c.fail(append(path, "apply"), "no stage before %q has a doctor whose remedy could be applied", st.Name)
	}
}

func (c *checker) url(path []any, st Stage) {
	target, err := load.ParseTarget(st.URL)
	if err != nil {
		c.fail(path, "%s", err)
		return
	}
	if to, err := netip.ParseAddrPort(target.HostPort()); err != nil || inLabsRule(to) != "" {
		c.fail(path, "url %q: expected %s, so that no load leaves the lab", st.URL, inLabsRule(netip.AddrPort{}))
	}
}

// notApart are fields that stages which run at the same time would share.
var notApart = []string{"fill", "keep_entries", "host", "apply", "trace"}

// maxApart bounds the labs that stand at the same time.
const maxApart = 16

func (c *checker) apart(path []any, st Stage) {
	if !st.Apart {
		return
	}
	for _, key := range document.Given(st) {
		if slices.Contains(notApart, key) {
			c.fail(append(path, key), "stage %q is apart: expected no %s, which stages that run at the same time would share", st.Name, key)
		}
	}
	i := slices.IndexFunc(c.s.Stages, func(s Stage) bool { return s.Name == st.Name })
	n := slices.IndexFunc(c.s.Stages[i:], func(s Stage) bool { return !s.Apart })
	if n < 0 {
		n = len(c.s.Stages) - i
	}
	if n > maxApart {
		c.fail(append(path, "apart"), "expected at most %d stages that are apart after each other, found %d", maxApart, n)
	}
}

func (c *checker) expect() {
	e := c.s.Expect
	if e.Finding != "" && !e.allowsListed(e.Finding) {
		c.fail(at("expect", "findings"), "expected findings with %s among them: they are all that doctor may report", e.Finding)
	}
	if st, ok := c.s.Stage(e.Cured); ok && (st.Doctor == nil && st.Apply == "" || e.Finding == "") {
		c.fail(at("expect", "cured"), "expected a finding, and doctor or a remedy in stage %q", e.Cured)
	}
	examined := slices.ContainsFunc(c.s.Stages, func(st Stage) bool { return st.Doctor != nil })
	if !examined && (e.Finding != "" || e.Findings != nil) {
		c.fail(at("expect", "finding"), "a finding is expected, but no stage has a doctor")
	}
}

func (c *checker) loads() {
	for i := range c.s.Stages {
		own := c.s.Stages[i].Loads
		for j, l := range own {
			c.load(at("stages", i, "loads", j), l, c.s.Stages[i].Limit > 0)
		}
		if first := slices.IndexFunc(own, Load.isHTTP); first >= 0 && slices.ContainsFunc(own[first+1:], Load.isHTTP) {
			c.fail(at("stages", i, "loads"), "expected at most one load of kind http in a stage; sources can be a range of addresses")
		}
	}
	needed := slices.ContainsFunc(c.s.Stages, func(st Stage) bool { return len(st.Loads) == 0 })
	if l := c.s.Load; needed || len(l.Sources) > 0 || l.From != "" || l.Kind != "" {
		unlimited := func(st Stage) bool { return len(st.Loads) == 0 && st.Limit == 0 }
		c.load(at("load"), l, !slices.ContainsFunc(c.s.Stages, unlimited))
	}
}

// kindFields are the fields that loads of a kind need, and those that only they may have.
var kindFields = map[string]struct{ needs, only string }{
	LoadHTTP:     {"from concurrency requests timeout", "batch close keep_alive servers"},
	LoadUDP:      {"from to", ""},
	LoadPackets:  {"from to", "tcp arrive"},
	LoadHold:     {"from to concurrency", "ports keep verify"},
	LoadExchange: {"from to requests exchange", "exchange"},
	LoadNone:     {"for", ""},
}

const (
	maxHeld    = 4 << 20
	maxSources = 256
	// maxExchanges bounds the connections of one load: they are made one by one.
	maxExchanges = 1000
)

// load checks one of a stage; limited reports whether all stages that have it end by time.
func (c *checker) load(path []any, l Load, limited bool) {
	kind, given := cmp.Or(l.Kind, LoadHTTP), document.Given(l)
	for need := range strings.FieldsSeq(kindFields[kind].needs) {
		if !slices.Contains(given, need) {
			c.fail(append(path, need), "load.%s is required with kind %s", need, kind)
		}
	}
	for _, other := range loadKinds {
		for only := range strings.FieldsSeq(kindFields[other].only) {
			if other != kind && slices.Contains(given, only) {
				c.fail(append(path, only), "load.%s requires kind %s", only, other)
			}
		}
	}
	ways := int64(max(len(l.Sources), 1)) * l.SourcePorts.Len()
	if l.SourcePorts != (Ports{}) && int64(l.Flows) > ways {
		c.fail(append(path, "flows"), "flows %d: the sources and source_ports make only %d", l.Flows, ways)
	}
	if c.first != nil {
		return
	}
	c.loadSources(append(path, "sources"), l)
	switch {
	case l.isHTTP():
		c.httpLoad(path, l)
	case l.Is(LoadHold) && l.Concurrency > maxHeld:
		c.fail(append(path, "concurrency"), "expected load.concurrency: 1 to %d connections, found %d", maxHeld, l.Concurrency)
	case l.Is(LoadHold):
		c.hold(path, l, limited)
	case l.Is(LoadExchange):
		c.exchange(path, l)
	case (l.Is(LoadUDP) || l.Is(LoadPackets)) && l.Requests == 0 && l.For == 0:
		c.fail(path, "load.requests or load.for is required: without one of them the load never ends")
	case l.Is(LoadPackets) && l.Rate == 0 && l.Arrive == nil:
		c.fail(append(path, "rate"), "load.rate is required with kind %s, unless they are counted where they arrive", kind)
	case l.Is(LoadPackets) && l.Arrive != nil:
		c.arrive(append(path, "arrive"), l)
	case l.Is(LoadUDP) && c.s.Topology.Server.UDP == 0:
		c.fail(path, "kind udp requires topology.server.udp: the port at which datagrams are answered")
	}
}

func (c *checker) loadSources(path []any, l Load) {
	if !l.Is(LoadPackets) {
		if len(l.Sources) > maxSources {
			c.fail(path, "expected at most %d sources, found %d", maxSources, len(l.Sources))
		}
		c.own(path, l.From, l.Sources)
		return
	}
	for _, a := range l.Sources {
		if what := inLabsRule(a); what != "" {
			c.fail(path, "source %s: expected %s", a, what)
		}
	}
}

func (c *checker) exchange(path []any, l Load) {
	e := l.Exchange
	switch a := e.Server.Address; {
	case l.Requests > maxExchanges:
		c.fail(append(path, "requests"), "expected load.requests: 1 to %d, found %d", maxExchanges, l.Requests)
	case l.Rate != 0 || l.Flows != 0 || l.For != 0:
		c.fail(path, "expected no rate, flows or for: exchanges follow one another")
	case e.KeptPorts && e.SeenPorts != (Ports{}):
		c.fail(append(path, "exchange", "kept_ports"), "seen_ports and kept_ports are mutually exclusive")
	case a.IsValid() && a.BitLen() != l.To.Addr().BitLen():
		c.fail(append(path, "exchange", "server", "address"), "address %s: expected one of the family of load.to", a)
	}
}

func (c *checker) httpLoad(path []any, l Load) {
	switch {
	case (l.KeepAlive > 1 || l.Close != "" && l.Close != string(load.CloseServer)) && !c.s.Topology.Server.KeepAlive:
		c.fail(path, "close and keep_alive require topology.server.keep_alive: true, as the server closes each connection first without it")
	case l.Batch != nil && l.Rate > 0:
		c.fail(append(path, "batch"), "batch and rate are mutually exclusive: what starts on a schedule does not wait for a batch")
	case int64(l.Concurrency) > l.Requests:
		c.fail(append(path, "requests"), "%d requests are fewer than the %d in flight at once: give more of them (-n) or fewer at once (-c)", l.Requests, l.Concurrency)
	}
	if err := c.s.checkSources(); c.first == nil && err != nil {
		c.fail(append(path, "requests"), "%s", err)
	}
}

// checkSources fails where the subnet has no room for a source address of its own
// for each stage.
func (s *Scenario) checkSources() error {
	end, _ := s.firstLink(s.loadNode())
	needed := s.sourcesNeeded(s.Stages)
	if !end.Address.IsValid() || needed == 0 || needed <= 1<<16 && hostIn(end.Address, s.sourcesAfter().At(uint64(needed))) {
		return nil
	}
	requests := int64(0)
	for i := range s.Stages {
		requests += s.Requests(&s.Stages[i])
	}
	return fmt.Errorf("%d requests in %d stages need %d source addresses (%d connections each), more than %s has room for; fewer requests, or a larger subnet at %s",
		requests, len(s.Stages), needed, requestsPerSource, end.Address.Masked(), s.loadNode())
}
