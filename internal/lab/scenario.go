package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/natkit/natkit/internal/snapshot"
)

// Scenario is a topology, the load that runs through it stage by stage, and
// what must come of it. Parse makes one; it is valid then.
type Scenario struct {
	// Name is what `natkit lab run` calls it: lower-case words with dashes.
	Name string `yaml:"name"`
	// Title is one line, About a few.
	Title    string   `yaml:"title"`
	About    string   `yaml:"about"`
	Topology Topology `yaml:"topology"`
	Load     Load     `yaml:"load"`
	// Stages run in this order.
	Stages []Stage `yaml:"stages"`
	Expect Expect  `yaml:"expect"`

	// UseBridge is set by With: the topology's bridge is part of the lab.
	UseBridge bool `yaml:"-"`
}

// Topology is nodes (network namespaces) and the veth links between them.
type Topology struct {
	Nodes []NodeSpec `yaml:"nodes"`
	Links []Link     `yaml:"links"`
	// Bridge puts one node behind a bridge, where a run asks for it (--bridge).
	Bridge *Bridge `yaml:"bridge"`
	Server Server  `yaml:"server"`
}

// NodeSpec is one network namespace.
type NodeSpec struct {
	Name string `yaml:"name"`
	// Forward makes it a router (net.ipv4.ip_forward).
	Forward bool `yaml:"forward"`
	// Sysctls are set inside the node; only net.* names, which a namespace has
	// for itself.
	Sysctls map[string]string `yaml:"sysctls"`
}

// Link is a veth pair between two nodes.
type Link [2]End

// UnmarshalYAML reads a list: the library panics where one is longer than an array.
func (l *Link) UnmarshalYAML(decode func(any) error) error {
	var ends []End
	if err := decode(&ends); err != nil {
		return err
	}
	if len(ends) != len(l) {
		return fmt.Errorf("expected a link: a list of %d ends, found %d", len(l), len(ends))
	}
	*l = Link(ends)
	return nil
}

// End is one end of a link; its interface gets the address.
type End struct {
	Node    string `yaml:"node"`
	Address Prefix `yaml:"address"`
}

// Bridge puts the interface of Node that leads to Toward into a bridge with
// br_netfilter on, as Docker does; the bridge gets the interface's address.
type Bridge struct {
	Node   string `yaml:"node"`
	Toward string `yaml:"toward"`
}

// Server says where the web server listens.
type Server struct {
	Node string `yaml:"node"`
	Port uint16 `yaml:"port"`
}

// Load is the load of every stage.
type Load struct {
	From        string   `yaml:"from"`
	Concurrency int      `yaml:"concurrency"`
	Requests    int64    `yaml:"requests"`
	Timeout     Duration `yaml:"timeout"`
}

// Stage is one run of the load. It states all that holds while it runs: what an
// earlier stage had and this one does not name is taken away before, and every
// node's connection table starts empty, apart from this stage's fill.
type Stage struct {
	Name string `yaml:"name"`
	// About says what is special, in a few words.
	About string `yaml:"about"`
	URL   string `yaml:"url"`
	NAT   []NAT  `yaml:"nat"`
	Fill  *Fill  `yaml:"fill"`
	// Limit bounds the stage in time; 0 means until all requests are done.
	Limit  Duration `yaml:"limit"`
	Doctor *Doctor  `yaml:"doctor"`
	// Trace is what is recorded while the load runs: TraceDrops in the namespace
	// that the stage is about, TraceProfile of the whole machine.
	Trace []string `yaml:"trace"`
	// Apply is empty or ApplyRemedy.
	Apply string `yaml:"apply"`
}

// What Stage.Trace may name.
const (
	TraceDrops   = snapshot.PartDrops
	TraceProfile = snapshot.PartProfile
)

// ApplyRemedy in Stage.Apply: what the doctor of the stage before found is
// cured by its own remedy before this stage starts.
const ApplyRemedy = "remedy"

// NAT is one rule in a node. Exactly one kind of rule is set.
type NAT struct {
	Node string `yaml:"node"`
	DNAT *DNAT  `yaml:"dnat"`
}

// DNAT sends what arrives for one of the node's own addresses at Port to To.
type DNAT struct {
	Port Port     `yaml:"port"`
	To   AddrPort `yaml:"to"`
}

func (n NAT) String() string {
	return fmt.Sprintf("%s: DNAT %s to %s", n.Node, n.DNAT.Port, n.DNAT.To)
}

// Fill fills a node's connection table until Free places are left below the
// maximum that the host had when the scenario began.
type Fill struct {
	Node string `yaml:"node"`
	Free int64  `yaml:"free"`
	// Mix is one of those that natkit brings along, DefaultMix where empty.
	Mix  string `yaml:"mix"`
	Seed uint64 `yaml:"seed"`
}

func (f *Fill) mix() string { return cmp.Or(f.Mix, DefaultMix) }

// Filler makes the entries of the fill. The scenario must have passed Parse.
func (f *Fill) Filler() (*Filler, error) {
	mix, err := FindMix(f.mix())
	if err != nil {
		return nil, err
	}
	return mix.Filler(f.Seed, FillMark), nil
}

// Doctor looks at a node, After the stage's start, For so long.
type Doctor struct {
	Node  string   `yaml:"node"`
	After Duration `yaml:"after"`
	For   Duration `yaml:"for"`
}

// Expect is what a run must show.
type Expect struct {
	// Finding is the id that doctor must name.
	Finding string `yaml:"finding"`
	// Complete is the stage that must complete all its requests.
	Complete string `yaml:"complete"`
	Rate     *Rate  `yaml:"rate"`
}

// Rate: the requests per second of Stage are at least AtLeast times those of Of.
type Rate struct {
	Stage   string  `yaml:"stage"`
	AtLeast float64 `yaml:"at_least"`
	Of      string  `yaml:"of"`
}

// Overrides replace what a scenario says; zero values leave it.
type Overrides struct {
	Concurrency int
	Requests    int64
	Timeout     time.Duration
	Bridge      bool
}

// With is a copy of the scenario with the overrides in it.
func (s *Scenario) With(o Overrides) (*Scenario, error) {
	c := *s
	c.Stages = slices.Clone(s.Stages)
	switch {
	case o.Concurrency < 0:
		return nil, fmt.Errorf("concurrency %d: must be 1 or more", o.Concurrency)
	case o.Requests < 0:
		return nil, fmt.Errorf("requests %d: must be 1 or more", o.Requests)
	case o.Timeout < 0:
		return nil, fmt.Errorf("timeout %s: must be more than 0", o.Timeout)
	case o.Bridge && s.Topology.Bridge == nil:
		return nil, fmt.Errorf("scenario %s has no bridge in its topology", s.Name)
	}
	if o.Concurrency > 0 {
		c.Load.Concurrency = o.Concurrency
	}
	if o.Requests > 0 {
		c.Load.Requests = o.Requests
	}
	if o.Timeout > 0 {
		c.Load.Timeout = Duration{o.Timeout}
	}
	c.UseBridge = s.UseBridge || o.Bridge
	return &c, c.checkSources()
}

// Stage finds a stage by name.
func (s *Scenario) Stage(name string) (*Stage, bool) {
	i := slices.IndexFunc(s.Stages, func(st Stage) bool { return st.Name == name })
	if i < 0 {
		return nil, false
	}
	return &s.Stages[i], true
}

// ServerAddr is the first address of the server's node, and the server's port.
func (s *Scenario) ServerAddr() netip.AddrPort {
	addrs := s.Addresses(s.Topology.Server.Node)
	if len(addrs) == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addrs[0], s.Topology.Server.Port)
}

// Addresses are all of a node, in the order of the links.
func (s *Scenario) Addresses(node string) []netip.Addr {
	var all []netip.Addr
	for _, l := range s.Topology.Links {
		for _, e := range l {
			if e.Node == node {
				all = append(all, e.Address.Addr())
			}
		}
	}
	return all
}

// requestsPerSource is how many connections one source address makes in a stage.
// A server keeps each in TIME_WAIT for a minute, and there are 64,512 ports.
const requestsPerSource = 50_000

// StageSources are the addresses that the load of the i-th stage comes from, and
// that of no other. The server keeps the connections of the stage before in
// TIME_WAIT; the client's TCP timestamps start elsewhere for each pair of
// addresses (secure_tcp_ts_off in net/core/secure_seq.c), so that from the same source but to
// another destination (no NAT, then DNAT) the server would take new connections
// for old ones and reject them by PAWS (RFC 7323).
func (s *Scenario) StageSources(i int) []netip.Addr {
	end, peer := s.loadEnds()
	n := int((s.Load.Requests + requestsPerSource - 1) / requestsPerSource)
	addr := end.Address.Addr()
	if addr.Less(peer.Address.Addr()) {
		addr = peer.Address.Addr()
	}
	var sources []netip.Addr
	for k := 0; k < (i+1)*n; k++ {
		addr = addr.Next()
		if k >= i*n {
			sources = append(sources, addr)
		}
	}
	return sources
}

// loadEnds are the two ends of the first link of the node that the load comes from.
func (s *Scenario) loadEnds() (own, peer End) {
	for _, l := range s.Topology.Links {
		for j, e := range l {
			if e.Node == s.Load.From {
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
	sources := s.StageSources(len(s.Stages) - 1)
	if last := sources[len(sources)-1]; !end.Address.Contains(last) || last == lastAddr(end.Address.Prefix) {
		return fmt.Errorf("%d requests in each of %d stages need %d source addresses (%d connections each), more than %s has room for; fewer requests, or a larger subnet at %s",
			s.Load.Requests, len(s.Stages), len(s.Stages)*len(sources), requestsPerSource, end.Address.Masked(), s.Load.From)
	}
	return nil
}

// Lines describes the topology for people, one line per link.
func (s *Scenario) Lines() []string {
	lines := make([]string, len(s.Topology.Links))
	for i, l := range s.Topology.Links {
		dash := " — "
		if s.UseBridge && s.bridged(l) {
			dash = " — bridge (br_netfilter) — "
			if s.Topology.Bridge.Node == l[1].Node {
				l[0], l[1] = l[1], l[0]
			}
		}
		lines[i] = fmt.Sprintf("%s %s%s%s %s", l[0].Node, l[0].Address, dash, l[1].Node, l[1].Address)
	}
	return lines
}

func (s *Scenario) bridged(l Link) bool {
	b := s.Topology.Bridge
	return b != nil && (b.Node == l[0].Node && b.Toward == l[1].Node || b.Node == l[1].Node && b.Toward == l[0].Node)
}

// Duration is a time.Duration written as 1500ms, 2s, 1m.
type Duration struct{ time.Duration }

// UnmarshalYAML reads it and keeps the place for an error.
func (d *Duration) UnmarshalYAML(n ast.Node) error {
	return scalar(n, "a duration such as 500ms, 2s or 1m", func(text string) (err error) {
		d.Duration, err = time.ParseDuration(text)
		return err
	})
}

// MarshalText is the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Prefix is an interface's address with the length of its subnet.
type Prefix struct{ netip.Prefix }

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Prefix) UnmarshalYAML(n ast.Node) error {
	return scalar(n, "an IPv4 address with prefix length such as 198.18.0.1/24", func(text string) (err error) {
		p.Prefix, err = netip.ParsePrefix(text)
		if err == nil && !p.Addr().Is4() {
			err = fmt.Errorf("not IPv4")
		}
		return err
	})
}

// AddrPort is an address and a port.
type AddrPort struct{ netip.AddrPort }

// UnmarshalYAML reads it and keeps the place for an error.
func (a *AddrPort) UnmarshalYAML(n ast.Node) error {
	return scalar(n, "an IPv4 address and port such as 198.19.0.2:80", func(text string) (err error) {
		a.AddrPort, err = netip.ParseAddrPort(text)
		if err == nil && (!a.Addr().Is4() || a.Port() == 0) {
			err = fmt.Errorf("not IPv4 with a port")
		}
		return err
	})
}

// Port is a transport protocol and a port number, written as tcp/8080.
type Port struct {
	// Protocol is "tcp" or "udp".
	Protocol string
	Number   uint16
}

func (p Port) String() string { return fmt.Sprintf("%s/%d", p.Protocol, p.Number) }

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Port) UnmarshalYAML(n ast.Node) error {
	return scalar(n, "a protocol and port such as tcp/8080", func(text string) error {
		proto, number, ok := strings.Cut(text, "/")
		v, err := strconv.ParseUint(number, 10, 16)
		if !ok || err != nil || v == 0 || proto != "tcp" && proto != "udp" {
			return fmt.Errorf("not a port")
		}
		*p = Port{Protocol: proto, Number: uint16(v)}
		return nil
	})
}
