package lab

import (
	"embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/suggest"
	"go.yaml.in/yaml/v4"
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
	// Load is that of every stage that has none of its own.
	Load Load `yaml:"load"`
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
	// Always: it is there without being asked for.
	Always bool `yaml:"always"`
}

// Server says where the web server listens, and, unless UDP is 0, the server that
// answers datagrams.
type Server struct {
	Node string `yaml:"node"`
	Port uint16 `yaml:"port"`
	UDP  uint16 `yaml:"udp"`
	// Addresses are more of them, at which the web server listens, too.
	Addresses Addresses `yaml:"addresses"`
	// KeepAlive leaves connections open where a client asks for it; without it the
	// server closes each after one request.
	KeepAlive bool `yaml:"keep_alive"`
}

// Stage is one run of the load. It states all that holds while it runs: what an
// earlier stage had and this one does not name is taken away before, and every
// node's connection table starts empty, apart from this stage's fill, unless
// KeepEntries is set.
type Stage struct {
	Name string `yaml:"name"`
	// About says what is special, in a few words.
	About string `yaml:"about"`
	// URL is what loads of kind http request.
	URL string `yaml:"url"`
	// Loads replace the scenario's load; all run at once.
	Loads []Load `yaml:"loads"`
	NAT   []NAT  `yaml:"nat"`
	// Gateway is a gateway file in force in a node.
	Gateway *Gateway `yaml:"gateway"`
	Fill    *Fill    `yaml:"fill"`
	// KeepEntries leaves what the stages before have put into the connection tables.
	KeepEntries bool `yaml:"keep_entries"`
	// Sysctls are values in nodes while the stage lasts, by node and name.
	Sysctls map[string]map[string]string `yaml:"sysctls"`
	// Host are values of the whole host while the stage lasts, which need consent;
	// see HostSysctls.
	Host map[string]string `yaml:"host"`
	// Limit bounds the stage in time; 0 means until all requests are done.
	Limit  Duration `yaml:"limit"`
	Doctor *Doctor  `yaml:"doctor"`
	// Trace is what is recorded while the load runs: TraceDrops in the namespace
	// that the stage is about, TraceProfile of the whole machine.
	Trace []string `yaml:"trace"`
	// Apply is empty or ApplyRemedy.
	Apply string `yaml:"apply"`
	// Apart gives the stage a lab of its own, so that it meets nothing of other stages,
	// such as their sockets in TIME_WAIT. Stages that are apart and follow each other run
	// at the same time.
	Apart bool `yaml:"apart"`
	// Remedy says what the stage tries against the fault of another.
	Remedy *Remedy `yaml:"remedy"`
}

// What Stage.Trace may name.
const (
	TraceDrops   = snapshot.PartDrops
	TraceProfile = snapshot.PartProfile
)

// ApplyRemedy in Stage.Apply: what the doctor of the stage before found is
// cured by its own remedy before this stage starts.
const ApplyRemedy = "remedy"

// Overrides replace what a scenario's load says, and loads of requests in its stages;
// zero values leave it.
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
	c.Load = o.of(c.Load)
	for i := range c.Stages {
		loads := slices.Clone(c.Stages[i].Loads)
		for j, l := range loads {
			if l.Is(LoadHTTP) {
				loads[j] = o.of(l)
			}
		}
		c.Stages[i].Loads = loads
	}
	c.UseBridge = s.UseBridge || o.Bridge
	if err := c.checkOverridden(o); err != nil {
		return nil, err
	}
	return &c, c.checkSources()
}

// checkOverridden finds what a load would refuse when its lab stands: more requests at
// once than there are.
func (s *Scenario) checkOverridden(o Overrides) error {
	if o == (Overrides{Bridge: o.Bridge}) {
		return nil
	}
	for i := range s.Stages {
		for _, l := range s.LoadsOf(&s.Stages[i]) {
			if l.Is(LoadHTTP) && l.Requests > 0 && int64(l.Concurrency) > l.Requests {
				return fmt.Errorf("stage %s: %d requests are fewer than the %d in flight at once: give more of them (-n) or fewer at once (-c)",
					s.Stages[i].Name, l.Requests, l.Concurrency)
			}
		}
	}
	return nil
}

// of is a load with the overrides in it.
func (o Overrides) of(l Load) Load {
	if o.Concurrency > 0 {
		l.Concurrency = o.Concurrency
	}
	if o.Requests > 0 {
		l.Requests = o.Requests
	}
	if o.Timeout > 0 {
		l.Timeout = Duration{o.Timeout}
	}
	return l
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

//go:embed scenarios/*.yaml
var files embed.FS

// Scenarios are those that natkit brings along, in order of their names.
var Scenarios = sync.OnceValue(func() []*Scenario {
	entries, err := files.ReadDir("scenarios")
	if err != nil {
		panic(err) // the files are part of the program
	}
	var all []*Scenario
	for _, e := range entries {
		text, err := files.ReadFile("scenarios/" + e.Name())
		if err != nil {
			panic(err)
		}
		s, err := Parse(e.Name(), text)
		if err != nil {
			panic(err) // a test parses them all
		}
		all = append(all, s)
	}
	return all
})

// Find is the scenario of that name among those that natkit brings along.
func Find(name string) (*Scenario, error) {
	var names []string
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return nil, fmt.Errorf("unknown scenario %q%s; there are: %s; a file of your own needs a path such as ./%s.yaml",
		name, suggest.Hint(name, names), strings.Join(names, ", "), name)
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

// parse reads one document of type T, which people call what.
func parse[T any](filename, what string, source []byte, check func(*T) *problem) (*T, error) {
	read := new(T)
	text := document.Source{File: filename, What: what, Text: source, Limit: MaxSource}
	err := text.Decode(read, func() *document.Problem {
		if p := check(read); p != nil {
			return &document.Problem{Path: p.path, Message: p.message}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return read, nil
}

// scalar hands a plain value's text to read. Any failure becomes "expected …".
func scalar(n *yaml.Node, expected string, read func(string) error) error {
	return document.Scalar(n, expected, read)
}

// oneLine keeps what a file contains from flooding or steering the terminal.
func oneLine(message string) string { return document.OneLine(message) }

// HostSysctls are the values of the whole host that a stage may change (Stage.Host):
// they hold for every network namespace, so that a fault that they make cannot be
// had otherwise.
var HostSysctls = []string{snapshot.ConntrackMax, snapshot.ConntrackBuckets}

// Bounds of a value of the whole host: a table of connections costs 8 bytes for
// each bucket, and every bucket is visited when their number changes.
const (
	leastHostValue = 512
	mostHostValue  = MaxFill
)

// NeedsHost reports whether a stage changes values of the whole host.
func (s *Scenario) NeedsHost() bool {
	return slices.ContainsFunc(s.Stages, func(st Stage) bool { return len(st.Host) > 0 })
}

// settings checks what a stage sets in nodes and on the host.
func (c *checker) settings(path []any, st Stage) {
	for _, node := range sortedKeys(st.Sysctls) {
		where := append(path[:len(path):len(path)], "sysctls", node)
		c.node(where, node)
		for _, name := range sortedKeys(st.Sysctls[node]) {
			c.sysctl(append(where, name), name)
		}
	}
	for _, name := range sortedKeys(st.Host) {
		where := append(path[:len(path):len(path)], "host", name)
		if !slices.Contains(HostSysctls, name) {
			c.fail(where, "value %q: expected one of: %s", name, strings.Join(HostSysctls, ", "))
		}
		if n, err := strconv.ParseInt(st.Host[name], 10, 64); err != nil || n < leastHostValue || n > mostHostValue {
			c.fail(where, "%s %q: expected a number from %d to %d", name, st.Host[name], leastHostValue, mostHostValue)
		}
	}
}
