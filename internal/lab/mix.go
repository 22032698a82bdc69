package lab

import (
	"embed"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/suggest"
	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"
)

// Mix describes the connections that a table is filled with. ParseMix makes one;
// it is valid then. Its JSON form can be read by ParseMix again.
type Mix struct {
	// Name is what `natkit lab fill --mix` calls it: lower-case words with dashes.
	Name string `yaml:"name" json:"name"`
	// Title is one line, About a few.
	Title string `yaml:"title" json:"title"`
	About string `yaml:"about" json:"about,omitempty"`
	Parts []Part `yaml:"parts" json:"parts"`
}

// Part is connections of one kind.
type Part struct {
	Name string `yaml:"name" json:"name"`
	// Share is the part's weight among all that have one. Count, instead, is a
	// fixed number of entries, made before those that have a share.
	Share int   `yaml:"share" json:"share,omitempty"`
	Count int64 `yaml:"count" json:"count,omitempty"`

	Protocol Protocol `yaml:"protocol" json:"protocol"`
	// State is TCP's, and only TCP has one.
	State State `yaml:"state" json:"state,omitzero"`
	// Status is Unreplied, Replied or Assured; empty is what State usually has.
	Status string `yaml:"status" json:"status,omitempty"`
	// Timeout is the time that entries have left, spread evenly over the range;
	// empty is what the kernel gives such connections by default.
	Timeout Span `yaml:"timeout" json:"timeout,omitzero"`

	Sources Sources `yaml:"sources" json:"sources"`
	// SourcePorts are the identifiers of ICMP and the first keys of GRE.
	SourcePorts Ports `yaml:"source_ports" json:"source_ports,omitzero"`
	// Destinations are without a port where the protocol is ICMP.
	Destinations []Endpoint `yaml:"destinations" json:"destinations"`
	// Order of sources and ports is Random, where empty, or Sequential: host by
	// host, then port by port. Where NAT chooses ports it has none.
	Order string  `yaml:"order" json:"order,omitempty"`
	NAT   *MixNAT `yaml:"nat" json:"nat,omitempty"`
}

// What the tracker has seen of a connection; conntrack(8) prints [UNREPLIED],
// nothing, [ASSURED].
const (
	Unreplied = "unreplied"
	Replied   = "replied"
	Assured   = "assured"
)

// Orders: of Part.Order the first two, of SNAT.Order all.
const (
	Random     = "random"
	Sequential = "sequential"
	Preserve   = "preserve"
)

// MixNAT is how the connections of a part are translated; both may be set.
type MixNAT struct {
	// DNAT are the servers behind the destinations.
	DNAT []Endpoint `yaml:"dnat" json:"dnat,omitempty"`
	SNAT *SNAT      `yaml:"snat" json:"snat,omitempty"`
}

// SNAT gives a connection one of the addresses To, always the same to a client,
// and a port of its own for each destination.
type SNAT struct {
	To []Endpoint `yaml:"to" json:"to"`
	// Ports are those that NAT may use; 1024-65535 where empty.
	Ports Ports `yaml:"ports" json:"ports,omitzero"`
	// Order is how they lie: Preserve (where empty), the client's port, as the
	// kernel's MASQUERADE does while that is free; Random, as with --random-fully;
	// Sequential, one after the other for each destination.
	Order string `yaml:"order" json:"order,omitempty"`
}

// Sources are the first Hosts addresses of Prefix that hosts can have, or, where
// Hosts is 0, all.
type Sources struct {
	Prefix Endpoint `yaml:"prefix" json:"prefix"`
	Hosts  int      `yaml:"hosts" json:"hosts,omitempty"`
}

// Protocol is a protocol by its name; ICMP is that of the addresses' family.
type Protocol struct{ Number uint8 }

// mixProtocols are those whose tuples have something like ports.
var mixProtocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_SCTP, unix.IPPROTO_GRE}

func (p Protocol) String() string { return nat.ProtocolName(p.Number) }

// MarshalText is the written form.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Protocol) UnmarshalYAML(n *yaml.Node) error {
	var names []string
	for _, number := range mixProtocols {
		names = append(names, nat.ProtocolName(number))
	}
	return scalar(n, "one of: "+strings.Join(names, ", "), func(text string) error {
		for i, name := range names {
			if name == text {
				p.Number = mixProtocols[i]
				return nil
			}
		}
		return fmt.Errorf("unknown protocol")
	})
}

// State is a TCP state under the kernel's name.
type State struct{ conntrack.TCPState }

// MarshalText is the written form.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalYAML reads it and keeps the place for an error.
func (s *State) UnmarshalYAML(n *yaml.Node) error {
	var names []string
	for state := conntrack.TCPSynSent; state <= conntrack.TCPSynSent2; state++ {
		names = append(names, state.String())
	}
	return scalar(n, "one of: "+strings.Join(names, ", "), func(text string) error {
		for i, name := range names {
			if strings.EqualFold(name, text) {
				s.TCPState = conntrack.TCPSynSent + conntrack.TCPState(i)
				return nil
			}
		}
		return fmt.Errorf("unknown state")
	})
}

// Span is a range of whole seconds, both ends included.
type Span struct{ First, Last uint32 }

func (s Span) String() string {
	first, last := time.Duration(s.First)*time.Second, time.Duration(s.Last)*time.Second
	if first == last {
		return first.String()
	}
	return first.String() + "-" + last.String()
}

// MarshalText is the written form.
func (s Span) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// maxTimeout is below what the kernel can hold of a timeout: 2^31 ticks, of which
// a second has up to 1,000.
const maxTimeout = 480 * time.Hour

// UnmarshalYAML reads it and keeps the place for an error.
func (s *Span) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a time in whole seconds from 1s to 480h, such as 120s, or a range such as 30s-2m", func(text string) error {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := wholeSeconds(first)
		b, errB := wholeSeconds(last)
		if errA != nil || errB != nil || a > b {
			return fmt.Errorf("not a range")
		}
		*s = Span{a, b}
		return nil
	})
}

func wholeSeconds(text string) (uint32, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err == nil && (d < time.Second || d > maxTimeout || d%time.Second != 0) {
		err = fmt.Errorf("out of range")
	}
	return uint32(d / time.Second), err
}

// Ports is nat.Ports in its written form, in YAML and in JSON.
type Ports nat.Ports

// Len is the number of ports, 0 of the zero value.
func (p Ports) Len() int64 { return int64(nat.Ports(p).Len()) }

func (p Ports) String() string { return nat.Ports(p).String() }

// MarshalText is the written form.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalYAML reads it and keeps the place for an error. As identifiers of ICMP they may
// begin with 0.
func (p *Ports) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "a port or a range such as 1024-65535", func(text string) error {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
		b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
		if errA != nil || errB != nil || b == 0 || a > b {
			return fmt.Errorf("not a range")
		}
		*p = Ports{First: uint16(a), Last: uint16(b)}
		return nil
	})
}

// Endpoint is an address, or all that hosts can have in a prefix, and a port; 0
// is none.
type Endpoint struct {
	netip.Prefix
	Port uint16
}

func (e Endpoint) String() string {
	text := e.Prefix.String()
	if e.IsSingleIP() {
		text = e.Addr().String()
	}
	if e.Port == 0 {
		return text
	}
	if e.Addr().Is6() {
		text = "[" + text + "]"
	}
	return fmt.Sprintf("%s:%d", text, e.Port)
}

// MarshalText is the written form.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalYAML reads it and keeps the place for an error.
func (e *Endpoint) UnmarshalYAML(n *yaml.Node) error {
	return scalar(n, "an address or prefix, and a port where the protocol has ports, such as 203.0.113.1:443, 203.0.113.0/24:443, [2001:db8::/112]:443", func(text string) (err error) {
		*e, err = parseEndpoint(text)
		return err
	})
}

func parseEndpoint(text string) (Endpoint, error) {
	address, port := text, ""
	if inner, rest, bracketed := strings.Cut(strings.TrimPrefix(text, "["), "]"); bracketed && text[0] == '[' {
		var ok bool
		if port, ok = strings.CutPrefix(rest, ":"); !ok {
			return Endpoint{}, fmt.Errorf("no port after the bracket")
		}
		address = inner
	} else if strings.Count(text, ":") == 1 {
		address, port, _ = strings.Cut(text, ":")
	}
	var e Endpoint
	if port != "" || address != text {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Endpoint{}, fmt.Errorf("port %q", port)
		}
		e.Port = uint16(n)
	}
	var err error
	if strings.Contains(address, "/") {
		e.Prefix, err = netip.ParsePrefix(address)
	} else {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(address); err == nil {
			e.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
	}
	if err != nil || !usable(e.Addr()) {
		return Endpoint{}, fmt.Errorf("not an address: %v", err)
	}
	e.Prefix = e.Masked()
	return e, nil
}

// usable leaves out what no packet of a connection has for an address, and forms
// (zones, IPv4 in IPv6) that the kernel knows by another name.
func usable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.Is4In6() && a.Zone() == ""
}

// DefaultMix is established connections that the kernel does not evict.
const DefaultMix = "established"

//go:embed mixes/*.yaml
var mixFiles embed.FS

// ParseMix reads one mix, refuses what it does not know, and checks that it makes
// sense. Its errors are *SyntaxError and begin with file, line and column.
func ParseMix(filename string, source []byte) (*Mix, error) {
	return parse(filename, "mix", source, (*Mix).check)
}

// Mixes are those that natkit brings along, in order of their names.
var Mixes = sync.OnceValue(func() []*Mix {
	entries, err := mixFiles.ReadDir("mixes")
	if err != nil {
		panic(err) // the files are part of the program
	}
	var all []*Mix
	for _, e := range entries {
		m, err := ParseMix(e.Name(), mixText(strings.TrimSuffix(e.Name(), ".yaml")))
		if err != nil {
			panic(err) // a test parses them all
		}
		all = append(all, m)
	}
	return all
})

func mixText(name string) []byte {
	text, err := mixFiles.ReadFile("mixes/" + name + ".yaml")
	if err != nil {
		panic(err)
	}
	return text
}

// FindMix is the mix of that name among those that natkit brings along.
func FindMix(name string) (*Mix, error) {
	all := Mixes()
	i := slices.IndexFunc(all, func(m *Mix) bool { return m.Name == name })
	if i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = m.Name
	}
	return nil, fmt.Errorf("unknown mix %q%s; there are: %s", name, suggest.Hint(name, names), strings.Join(names, ", "))
}

// Source is the text that the mix natkit brings along is written in, comments
// included.
func (m *Mix) Source() []byte { return mixText(m.Name) }

// Bounds of a mix; what is made of its parts is kept in memory.
const (
	maxParts     = 64
	maxShare     = 1000
	maxEndpoints = 64
	maxSNAT      = 1024
)

// mixChecker looks at a mix.
type mixChecker struct {
	m *Mix
	faults
}

func (m *Mix) check() *problem {
	c := &mixChecker{m: m}
	if !validName(m.Name) {
		c.fail(at("name"), "expected name: lower-case letters, digits and dashes, at most 40, found %q", m.Name)
	}
	if m.Title == "" {
		c.fail(at("title"), "expected title: one line about the mix")
	}
	if n := len(m.Parts); n < 1 || n > maxParts {
		c.fail(at("parts"), "expected parts: a list with 1 to %d parts, found %d", maxParts, n)
		return c.first
	}
	for i := range m.Parts {
		c.part(i)
	}
	c.strangers()
	if c.first != nil {
		return c.first
	}
	_, p := m.compile(0)
	return p
}

func (c *mixChecker) part(i int) {
	p, path := &c.m.Parts[i], at("parts", i)
	if !validName(p.Name) {
		c.fail(append(path, "name"), "expected a part's name: lower-case letters, digits and dashes, at most 40, found %q", p.Name)
	}
	for _, other := range c.m.Parts[:i] {
		if other.Name == p.Name {
			c.fail(append(path, "name"), "part %q is there twice", p.Name)
		}
	}
	switch {
	case p.Count == 0 && (p.Share < 1 || p.Share > maxShare):
		c.fail(append(path, "share"), "expected share: a weight from 1 to %d, or count: a number of entries; found share %d", maxShare, p.Share)
	case p.Count != 0 && p.Share != 0:
		c.fail(append(path, "count"), "expected share or count, found both")
	case p.Count < 0 || p.Count > MaxFill:
		c.fail(append(path, "count"), "expected count: 1 to %d, found %d", MaxFill, p.Count)
	}
	c.kind(p, path)
	c.ends(p, path)
	if p.NAT != nil {
		c.nat(p, append(path, "nat"))
	}
}

func (c *mixChecker) kind(p *Part, path []any) {
	tcp := p.Protocol.Number == unix.IPPROTO_TCP
	switch {
	case p.Protocol.Number == 0:
		c.fail(append(path, "protocol"), "expected protocol: such as tcp")
	case tcp && p.State.TCPState == 0:
		c.fail(append(path, "state"), "expected state: that of TCP, such as ESTABLISHED")
	case !tcp && p.State.TCPState != 0:
		c.fail(append(path, "state"), "state %s: only tcp has states", p.State)
	}
	switch p.Status {
	case "", Unreplied, Replied, Assured:
	default:
		c.fail(append(path, "status"), "status %q: expected one of: %s, %s, %s", p.Status, Unreplied, Replied, Assured)
	}
}

func (c *mixChecker) ends(p *Part, path []any) {
	from := append(path[:len(path):len(path)], "sources")
	sources := p.Sources.Prefix
	switch {
	case !sources.IsValid():
		c.fail(from, "expected sources: {prefix: 198.18.128.0/17, hosts: 500}")
		return
	case sources.Port != 0:
		c.fail(append(from, "prefix"), "prefix %s: expected no port; source_ports has them", sources)
	case p.Sources.Hosts < 0, uint64(p.Sources.Hosts) > hosts(sources.Prefix).n:
		c.fail(append(from, "hosts"), "hosts %d: %s has addresses for 1 to %d", p.Sources.Hosts, sources, hosts(sources.Prefix).n)
	case p.Sources.Hosts > maxPool, p.Sources.Hosts == 0 && hosts(sources.Prefix).n > maxPool:
		c.fail(append(from, "hosts"), "expected hosts: at most %d", maxPool)
	}
	c.endpoints(append(path, "destinations"), p, p.Destinations, true)
	switch {
	case p.Order != "" && p.Order != Random && p.Order != Sequential:
		c.fail(append(path, "order"), "order %q: expected %s or %s", p.Order, Random, Sequential)
	case p.Order != "" && p.NAT != nil && p.NAT.SNAT != nil:
		c.fail(append(path, "order"), "expected no order beside snat, whose ports have one")
	}
}

// endpoints checks a list of addresses that connections of the part have.
func (c *mixChecker) endpoints(path []any, p *Part, list []Endpoint, ports bool) {
	if len(list) < 1 || len(list) > maxEndpoints {
		c.fail(path, "expected %s: a list of 1 to %d addresses, found %d", field(path), maxEndpoints, len(list))
	}
	ports = ports && p.Protocol.Number != unix.IPPROTO_ICMP
	for i, e := range list {
		here := append(path[:len(path):len(path)], i)
		switch {
		case e.Addr().Is4() != p.Sources.Prefix.Addr().Is4():
			c.fail(here, "%s is not of the same family as %s", e, p.Sources.Prefix)
		case ports && e.Port == 0:
			c.fail(here, "%s: expected a port, such as %s", e, Endpoint{e.Prefix, 443})
		case !ports && e.Port != 0:
			c.fail(here, "%s: expected no port here", e)
		case hosts(e.Prefix).n > maxPool:
			c.fail(here, "%s: expected at most %d addresses", e, maxPool)
		case c.first == nil && poolsOf(list[:i]).overlaps(poolsOf(list[i:i+1]), true):
			c.fail(here, "%s has addresses that stand before it in the list", e)
		}
	}
}

func (c *mixChecker) nat(p *Part, path []any) {
	n := p.NAT
	if len(n.DNAT) == 0 && n.SNAT == nil {
		c.fail(path, "expected nat with dnat: [203.0.113.10:80], or snat: {to: [203.0.113.1]}, or both")
	}
	if len(n.DNAT) > 0 {
		c.endpoints(append(path, "dnat"), p, n.DNAT, true)
		if c.first == nil && poolsOf(n.DNAT).overlaps(poolsOf(p.Destinations), true) {
			c.fail(append(path, "dnat"), "a destination is among the servers behind it: expected others, or no NAT")
		}
	}
	if n.SNAT == nil {
		return
	}
	path = append(path, "snat")
	c.endpoints(append(path[:len(path):len(path)], "to"), p, n.SNAT.To, false)
	switch n.SNAT.Order {
	case "", Preserve, Random, Sequential:
	default:
		c.fail(append(path, "order"), "order %q: expected one of: %s, %s, %s", n.SNAT.Order, Preserve, Random, Sequential)
	}
	if to := poolsOf(n.SNAT.To); c.first == nil && to.len() > maxSNAT {
		c.fail(append(path, "to"), "expected at most %d addresses, found %d", maxSNAT, to.len())
	} else if c.first == nil && to.overlaps(endpoints{{pool: p.Sources.pool()}}, false) {
		c.fail(append(path, "to"), "an address of SNAT is among the clients': expected others")
	}
}

// strangers makes sure that no client is a server too: a reply could then be
// another connection's request.
func (c *mixChecker) strangers() {
	for i := range c.m.Parts {
		for k := range c.m.Parts {
			if c.first != nil {
				return
			}
			clients := endpoints{{pool: c.m.Parts[i].Sources.pool()}}
			servers := c.m.Parts[k].Destinations
			if n := c.m.Parts[k].NAT; n != nil {
				servers = append(servers[:len(servers):len(servers)], n.DNAT...)
			}
			if clients.overlaps(poolsOf(servers), false) {
				c.fail(at("parts", i, "sources"), "sources %s: some of them are destinations of part %q", c.m.Parts[i].Sources.Prefix, c.m.Parts[k].Name)
			}
		}
	}
}

// setAside are the addresses that belong to nobody: for benchmarks (RFC 2544) and
// for documentation (RFC 5737, 3849, 9637).
var setAside = []netip.Prefix{
	Network, netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("3fff::/20"),
}

// Foreign are addresses of the mix that somebody may really have: packets of such
// connections would meet the entries.
func (m *Mix) Foreign() []Endpoint {
	var all []Endpoint
	for _, p := range m.Parts {
		ends := append([]Endpoint{p.Sources.Prefix}, p.Destinations...)
		if p.NAT != nil {
			ends = append(ends, p.NAT.DNAT...)
			if p.NAT.SNAT != nil {
				ends = append(ends, p.NAT.SNAT.To...)
			}
		}
		for _, e := range ends {
			if !isSetAside(e.Prefix) {
				all = append(all, e)
			}
		}
	}
	return all
}

func isSetAside(p netip.Prefix) bool {
	for _, a := range setAside {
		if a.Bits() <= p.Bits() && a.Contains(p.Addr()) {
			return true
		}
	}
	return false
}
