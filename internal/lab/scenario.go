package lab

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/snapshot"
)

// Scenario is a topology, the load that runs through it stage by stage, and the expected
// result. Parse returns valid ones only; package document describes the tags.
type Scenario struct {
	// Name is its argument of `natkit lab run`.
	Name string `yaml:"name" check:"required name"`
	// Title is one line, About a few.
	Title    string   `yaml:"title" check:"required"`
	About    string   `yaml:"about"`
	Topology Topology `yaml:"topology"`
	// Load is that of every stage that has none of its own.
	Load Load `yaml:"load"`
	// FixedRate is set where the fault is the amount: with loads of another rate it is not there.
	FixedRate bool `yaml:"fixed_rate"`
	// OnRequest keeps it out of `natkit lab run --all`: it takes minutes, or gigabytes.
	OnRequest bool `yaml:"on_request"`
	// Stages run in this order.
	Stages []Stage `yaml:"stages" check:"len=1.."`
	// Compare has some of them run several times, in turn, and compares how fast they forward.
	Compare *Compare `yaml:"compare"`
	Expect  Expect   `yaml:"expect"`

	// UseBridge is set by With: the topology's bridge is part of the lab.
	UseBridge bool `yaml:"-"`
}

// Topology is nodes (network namespaces) and the veth links between them.
type Topology struct {
	Nodes []NodeSpec `yaml:"nodes" check:"len=2.."`
	Links []Link     `yaml:"links" check:"len=1.."`
	// Bridge puts one node behind a bridge, where a run asks for it (--bridge).
	Bridge *Bridge `yaml:"bridge"`
	Server Server  `yaml:"server"`
}

// NodeSpec is one network namespace.
type NodeSpec struct {
	Name string `yaml:"name" check:"required name"`
	// Forward makes it a router (net.ipv4.ip_forward).
	Forward bool `yaml:"forward"`
	// Sysctls are set inside the node: net.* names that are per namespace.
	Sysctls map[string]string `yaml:"sysctls" check:"keys=sysctl"`
}

// Link is a veth pair between two nodes.
type Link [2]End

// End is one end of a link; its interface gets the address.
type End struct {
	Node    string       `yaml:"node" check:"required node"`
	Address netip.Prefix `yaml:"address" check:"required"`
	// MTU is that of the interface for what it sends; 0 is 1500.
	MTU int `yaml:"mtu" check:"576..9000"`
}

// Bridge puts the interface of Node that leads to Toward into a bridge with
// br_netfilter on, as Docker does; the bridge gets the interface's address.
type Bridge struct {
	Node   string `yaml:"node" check:"required node"`
	Toward string `yaml:"toward" check:"required node"`
	// Always builds it without --bridge.
	Always bool `yaml:"always"`
}

// Server is where the web server listens, and, unless they are 0, the servers that
// answer datagrams and that hold connections.
type Server struct {
	Node string `yaml:"node" check:"required node"`
	Port uint16 `yaml:"port" check:"required"`
	UDP  uint16 `yaml:"udp"`
	// Hold are the ports of `natkit bench serve --tcp`.
	Hold Ports `yaml:"hold"`
	// Addresses are further ones of the web server.
	Addresses Addresses `yaml:"addresses" check:"len=0..256"`
	// KeepAlive leaves connections open if the client asks for it; without it the
	// server closes each after one request.
	KeepAlive bool `yaml:"keep_alive"`
}

// Stage is one run of the load. It states all that holds while it runs: what an
// earlier stage had and this one does not name is removed before, and every node's
// connection table starts empty, apart from this stage's fill, unless KeepEntries is set.
type Stage struct {
	Name string `yaml:"name" check:"required name"`
	// About describes briefly what is special.
	About string `yaml:"about"`
	// URL is requested by loads of kind http.
	URL string `yaml:"url"`
	// Loads replace the scenario's load; all run at once.
	Loads []Load `yaml:"loads"`
	NAT   []NAT  `yaml:"nat"`
	// Gateway is a gateway file in force in a node.
	Gateway *Gateway `yaml:"gateway"`
	// Redirect has a program forward all frames between two interfaces of a node.
	Redirect *Redirect `yaml:"redirect"`
	Fill     *Fill     `yaml:"fill"`
	// Listeners listen while the stage lasts, and never accept.
	Listeners []Listener `yaml:"listeners"`
	// KeepEntries keeps the connection tables of the stages before.
	KeepEntries bool `yaml:"keep_entries"`
	// Sysctls are values in nodes while the stage lasts, by node and name.
	Sysctls map[string]map[string]string `yaml:"sysctls" check:"keys=node,sysctl"`
	// Host are values of the whole host while the stage lasts, which need consent;
	// see HostSysctls.
	Host map[string]string `yaml:"host" check:"keys=host hostvalue"`
	// Optional leaves the stage out where that consent is missing, instead of the scenario.
	Optional bool `yaml:"optional"`
	// Limit bounds the stage in time; 0 means until all requests are done.
	Limit  time.Duration `yaml:"limit" check:"0s..10m"`
	Doctor *Doctor       `yaml:"doctor"`
	// Trace is recorded while the load runs: TraceDrops in the watched node,
	// TraceProfile of the whole machine.
	Trace []string `yaml:"trace" check:"trace"`
	// Apply is empty or ApplyRemedy.
	Apply string `yaml:"apply" check:"apply"`
	// Apart gives the stage a lab of its own, so that other stages leave nothing behind,
	// such as sockets in TIME_WAIT. Consecutive stages that are apart run at the same time.
	Apart bool `yaml:"apart"`
	// Remedy is tried by the stage against the fault of another.
	Remedy *Remedy `yaml:"remedy"`
}

// Listener is a socket at a node whose program hangs: one of TCP at Port, for which the kernel
// sets up a connection more than Backlog, which then wait for accept(2), and drops all others; or,
// with Events, a subscriber of conntrack's events that reads none.
type Listener struct {
	Node    string `yaml:"node" check:"required node"`
	Port    uint16 `yaml:"port"`
	Backlog int    `yaml:"backlog" check:"1..65535"`
	Events  bool   `yaml:"events"`
}

// What Stage.Trace may name.
const (
	TraceDrops   = snapshot.PartDrops
	TraceProfile = snapshot.PartProfile
)

// ApplyRemedy in Stage.Apply: what the doctor of the stage before found is
// cured by its own remedy before this stage starts.
const ApplyRemedy = "remedy"

// Overrides replace values of a scenario's load, and of loads of requests in its stages, and
// the engine of its gateway files; zero values leave it.
type Overrides struct {
	// Connections is for loads that hold connections until all stand; see Scenario.scale.
	Connections int
	Concurrency int
	Requests    int64
	Timeout     time.Duration
	// Rate is for loads of requests and datagrams that have one; they last as long as before.
	Rate   int64
	Bridge bool
	Engine gateway.Engine
}

// With returns a copy of the scenario with the overrides in it.
func (s *Scenario) With(o Overrides) (*Scenario, error) {
	if o.Bridge && s.Topology.Bridge == nil {
		return nil, fmt.Errorf("scenario %s has no bridge in its topology", s.Name)
	}
	if o.Rate > 0 && !s.HasRate() {
		return nil, fmt.Errorf("scenario %s has no load with a rate, or is about that rate", s.Name)
	}
	hasGateway := func(st Stage) bool { return st.Gateway != nil }
	if o.Engine != "" && !slices.ContainsFunc(s.Stages, hasGateway) {
		return nil, fmt.Errorf("scenario %s has no gateway file", s.Name)
	}
	if o.Engine != "" && s.Compare != nil {
		return nil, fmt.Errorf("scenario %s compares engines", s.Name)
	}
	if o.Connections > 0 && s.Connections() == 0 {
		return nil, fmt.Errorf("scenario %s has no load that holds connections until all of them stand", s.Name)
	}
	c := *s
	c.Stages = slices.Clone(s.Stages)
	c.UseBridge = s.UseBridge || o.Bridge
	c.Load = o.of(c.Load).at(float64(o.Rate))
	for i := range c.Stages {
		c.Stages[i].Gateway = c.Stages[i].Gateway.by(o.Engine)
		c.Stages[i].Loads = slices.Clone(c.Stages[i].Loads)
		for j, l := range c.Stages[i].Loads {
			if l.isHTTP() {
				l = o.of(l)
			}
			c.Stages[i].Loads[j] = l.at(float64(o.Rate))
		}
	}
	if o.Connections > 0 {
		c.scale(float64(o.Connections) / float64(s.Connections()))
	}
	if p := c.check(); p != nil {
		return nil, errors.New(p.Message)
	}
	return &c, nil
}

// of is a load with the overrides in it.
func (o Overrides) of(l Load) Load {
	l.Concurrency = cmp.Or(o.Concurrency, l.Concurrency)
	l.Requests = cmp.Or(o.Requests, l.Requests)
	l.Timeout = cmp.Or(o.Timeout, l.Timeout)
	return l
}

// at is a load at another rate and for as long as before, with as many requests at once as then wait
// where none is answered; 0 leaves it, as does one without a rate.
func (l Load) at(rate float64) Load {
	if rate == 0 || l.Rate == 0 || !l.isHTTP() && !l.Is(LoadUDP) {
		return l
	}
	if l.Requests > 0 {
		l.Requests = max(1, int64(math.Round(float64(l.Requests)*rate/l.Rate)))
	}
	if l.Rate = rate; l.Concurrency > 0 {
		l.Concurrency = max(l.Concurrency, int(math.Ceil(rate*l.Timeout.Seconds())))
		if l.Requests > 0 {
			l.Concurrency = min(l.Concurrency, int(l.Requests))
		}
	}
	return l
}

// HasRate reports whether any of its loads of requests and datagrams has a rate, which may be another one.
func (s *Scenario) HasRate() bool {
	return !s.FixedRate && slices.ContainsFunc(s.Stages, func(st Stage) bool {
		return slices.ContainsFunc(s.LoadsOf(&st), func(l Load) bool { return l.Rate > 0 && (l.isHTTP() || l.Is(LoadUDP)) })
	})
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
func (s *Scenario) Addresses(node string) (all []netip.Addr) {
	for _, f := range s.faces(node) {
		all = append(all, f.own.Address.Addr())
	}
	return all
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

//go:embed scenarios/*.yaml mixes/*.yaml
var files embed.FS

// Scenarios are the built-in ones, in order of their names.
var Scenarios = sync.OnceValue(func() []*Scenario { return builtIn("scenarios", Parse) })

// builtIn reads the documents of a directory, which are part of the program.
func builtIn[T any](dir string, parse func(filename string, source []byte) (*T, error)) (all []*T) {
	entries, err := files.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		one, err := parse(e.Name(), builtInText(dir, e.Name()))
		if err != nil {
			panic(err) // a test parses them all
		}
		all = append(all, one)
	}
	return all
}

func builtInText(dir, name string) []byte {
	text, err := files.ReadFile(dir + "/" + name)
	if err != nil {
		panic(err)
	}
	return text
}

// find returns the one of a name; the error has those that there are.
func find[T any](all []*T, what, wanted string, name func(*T) string) (*T, error) {
	names := make([]string, len(all))
	for i, one := range all {
		if names[i] = name(one); names[i] == wanted {
			return one, nil
		}
	}
	return nil, fmt.Errorf("unknown %s %q%s; there are: %s", what, wanted, document.Hint(wanted, names), strings.Join(names, ", "))
}

// Find returns the built-in scenario of that name.
func Find(name string) (*Scenario, error) {
	s, err := find(Scenarios(), "scenario", name, func(s *Scenario) string { return s.Name })
	if err != nil {
		return nil, fmt.Errorf("%w; a file of your own ends in .yaml or .yml", err)
	}
	return s, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// MaxSource bounds the text of a scenario or a mix, in bytes; real ones take two or
// three thousand.
const MaxSource = 32 << 10

// SyntaxError is a fault in a scenario's or a mix's text: where, and what was expected.
type SyntaxError = document.SyntaxError

// Parse reads one scenario, refuses what it does not know, and checks that it
// makes sense. Its errors are *SyntaxError and begin with file, line and column.
func Parse(filename string, source []byte) (*Scenario, error) {
	s, err := parse(filename, "scenario", source, (*Scenario).check)
	if err == nil && s.Topology.Bridge != nil {
		s.UseBridge = s.Topology.Bridge.Always
	}
	return s, err
}

// parse reads one document of type T.
func parse[T any](filename, what string, source []byte, check func(*T) *document.Problem) (*T, error) {
	read := new(T)
	text := document.Source{File: filename, What: what, Text: source, Limit: MaxSource}
	if err := text.Decode(read, func() *document.Problem { return check(read) }); err != nil {
		return nil, err
	}
	return read, nil
}

// HostSysctls are the values of the whole host that a stage may change (Stage.Host).
// They hold for every network namespace.
var HostSysctls = []string{snapshot.ConntrackMax, snapshot.ConntrackBuckets}

// NeedsHost reports whether a stage that cannot be left out changes values of the whole host.
func (s *Scenario) NeedsHost() bool {
	return slices.ContainsFunc(s.Stages, func(st Stage) bool { return len(st.Host) > 0 && !st.Optional })
}

// WithoutHost returns the scenario without the optional stages that change values of the whole host, and these.
func (s *Scenario) WithoutHost() (rest *Scenario, left []Stage) {
	c := *s
	c.Stages = nil
	for _, st := range s.Stages {
		if st.Optional {
			left = append(left, st)
		} else {
			c.Stages = append(c.Stages, st)
		}
	}
	return &c, left
}
