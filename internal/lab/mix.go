package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/document"
	"github.com/natkit/natkit/internal/nat"
)

// Mix describes the connections that a table is filled with. ParseMix makes one;
// it is valid then. Its JSON form can be read by ParseMix again.
type Mix struct {
	// Name is what `natkit lab fill --mix` calls it: lower-case words with dashes.
	Name string `yaml:"name" json:"name" check:"required name"`
	// Title is one line, About a few.
	Title string `yaml:"title" json:"title" check:"required"`
	About string `yaml:"about" json:"about,omitempty"`
	Parts []Part `yaml:"parts" json:"parts" check:"len=1..64"`
}

// Part is connections of one kind.
type Part struct {
	Name string `yaml:"name" json:"name" check:"required name"`
	// Share is the part's weight among all that have one. Count, instead, is a
	// fixed number of entries, made before those that have a share.
	Share int   `yaml:"share" json:"share,omitempty" check:"1..1000"`
	Count int64 `yaml:"count" json:"count,omitempty" check:"1..4194304"`

	// Protocol is one of mixProtocols; ICMP is that of the addresses' family.
	Protocol string `yaml:"protocol" json:"protocol" check:"required mixprotocol"`
	// State is TCP's, and only TCP has one.
	State string `yaml:"state" json:"state,omitempty" check:"state"`
	// Status is Unreplied, Replied or Assured; empty is what State usually has.
	Status string `yaml:"status" json:"status,omitempty" check:"status"`
	// Timeout is the time that entries have left, spread evenly over the range;
	// empty is what the kernel gives such connections by default.
	Timeout Span `yaml:"timeout" json:"timeout,omitzero"`

	Sources Sources `yaml:"sources" json:"sources"`
	// SourcePorts are the identifiers of ICMP and the first keys of GRE.
	SourcePorts Ports `yaml:"source_ports" json:"source_ports,omitzero"`
	// Destinations are without a port where the protocol is ICMP.
	Destinations []Endpoint `yaml:"destinations" json:"destinations" check:"len=1..64"`
	// Order of sources and ports is Random, where empty, or Sequential: host by
	// host, then port by port. Where NAT chooses ports it has none.
	Order string  `yaml:"order" json:"order,omitempty" check:"order"`
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
	DNAT []Endpoint `yaml:"dnat" json:"dnat,omitempty" check:"len=0..64"`
	SNAT *SNAT      `yaml:"snat" json:"snat,omitempty"`
}

// SNAT gives a connection one of the addresses To, always the same to a client,
// and a port of its own for each destination.
type SNAT struct {
	To []Endpoint `yaml:"to" json:"to" check:"len=1..64"`
	// Ports are those that NAT may use; 1024-65535 where empty.
	Ports Ports `yaml:"ports" json:"ports,omitzero"`
	// Order is how they lie: Preserve (where empty), the client's port, as the
	// kernel's MASQUERADE does while that is free; Random, as with --random-fully;
	// Sequential, one after the other for each destination.
	Order string `yaml:"order" json:"order,omitempty" check:"snatorder"`
}

// Sources are the first Hosts addresses of Prefix that hosts can have, or, where
// Hosts is 0, all.
type Sources struct {
	Prefix Endpoint `yaml:"prefix" json:"prefix" check:"required"`
	Hosts  int      `yaml:"hosts" json:"hosts,omitempty" check:"1..1048576"`
}

// mixProtocols are those whose tuples have something like ports.
var mixProtocols = []string{"tcp", "udp", "icmp", "sctp", "gre"}

// tcpStates are the names of TCP's states in the order of their numbers, from 1.
var tcpStates = func() (names []string) {
	for state := conntrack.TCPSynSent; state <= conntrack.TCPSynSent2; state++ {
		names = append(names, state.String())
	}
	return names
}()

func (p *Part) tcpState() conntrack.TCPState {
	return conntrack.TCPState(slices.Index(tcpStates, p.State) + 1)
}

func (p *Part) isTCP() bool { return p.Protocol == "tcp" }

func (p *Part) hasPorts() bool { return p.Protocol != "icmp" }

// errForm: a text is not in the written form, which package document names.
var errForm = errors.New("not in the written form")

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

// Expected is the written form.
func (s Span) Expected() string {
	return "a time in whole seconds from 1s to 480h, such as 120s, or a range such as 30s-2m"
}

// UnmarshalText reads the written form.
func (s *Span) UnmarshalText(text []byte) error {
	first, last, isRange := strings.Cut(string(text), "-")
	if !isRange {
		last = first
	}
	a, errA := wholeSeconds(first)
	b, errB := wholeSeconds(last)
	if *s = (Span{a, b}); errA != nil || errB != nil || a > b {
		return errForm
	}
	return nil
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

// Expected is the written form.
func (p Ports) Expected() string { return "a port or a range such as 1024-65535" }

// UnmarshalText reads the written form. Identifiers of ICMP may begin with 0.
func (p *Ports) UnmarshalText(text []byte) error {
	rest, zero := strings.CutPrefix(string(text), "0-")
	ports, err := nat.ParsePorts(rest)
	if zero && strings.Contains(rest, "-") {
		return errForm
	} else if zero {
		ports.First = 0
	}
	*p = Ports(ports)
	return err
}

// Endpoint is an address, or all that hosts can have in a prefix, and a port; 0
// is none.
type Endpoint struct {
	netip.Prefix
	Port uint16
}

func (e Endpoint) String() string {
	text := nat.PrefixString(e.Prefix)
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

// Expected is the written form.
func (e Endpoint) Expected() string {
	return "an address or prefix, and a port where the protocol has ports, such as 203.0.113.1:443, 203.0.113.0/24:443, [2001:db8::/112]:443"
}

// UnmarshalText reads the written form.
func (e *Endpoint) UnmarshalText(text []byte) (err error) {
	*e, err = parseEndpoint(string(text))
	return err
}

func parseEndpoint(text string) (e Endpoint, err error) {
	address := text
	if at := strings.LastIndex(text, ":"); at >= 0 && (text[0] == '[' || strings.Count(text, ":") == 1) {
		if inner, bracketed := strings.CutPrefix(text[:at], "["); bracketed && !strings.HasSuffix(inner, "]") {
			return e, errForm
		}
		port, err := strconv.ParseUint(text[at+1:], 10, 16)
		if err != nil || port == 0 {
			return e, errForm
		}
		address, e.Port = strings.Trim(text[:at], "[]"), uint16(port)
	}
	if !strings.Contains(address, "/") {
		a, err := netip.ParseAddr(address)
		if err != nil {
			return e, err
		}
		e.Prefix = nat.Host(a)
	} else if e.Prefix, err = netip.ParsePrefix(address); err != nil {
		return e, err
	}
	if !usable(e.Addr()) {
		return e, errForm
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

// ParseMix reads one mix, refuses what it does not know, and checks that it makes
// sense. Its errors are *SyntaxError and begin with file, line and column.
func ParseMix(filename string, source []byte) (*Mix, error) {
	return parse(filename, "mix", source, (*Mix).check)
}

// Mixes are the built-in ones, in order of their names.
var Mixes = sync.OnceValue(func() []*Mix { return builtIn("mixes", ParseMix) })

// FindMix returns the built-in mix of that name.
func FindMix(name string) (*Mix, error) {
	return find(Mixes(), "mix", name, func(m *Mix) string { return m.Name })
}

// Source is the text of a built-in mix, comments included.
func (m *Mix) Source() []byte { return builtInText("mixes", m.Name+".yaml") }

// maxSNAT bounds the addresses of SNAT in a part.
const maxSNAT = 1024

// mixChecker checks what the tags of single fields cannot express.
type mixChecker struct {
	m *Mix
	faults
}

func (m *Mix) check() *document.Problem {
	c := &mixChecker{m: m}
	if c.first = document.Check(m, (&Scenario{}).rules()); c.first != nil {
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
	for _, other := range c.m.Parts[:i] {
		if other.Name == p.Name {
			c.fail(append(path, "name"), "part %q is there twice", p.Name)
		}
	}
	switch {
	case (p.Count == 0) == (p.Share == 0):
		c.fail(append(path, "share"), "expected share: a weight from 1 to 1000, or count: a number of entries; found %d and %d", p.Share, p.Count)
	case p.isTCP() && p.State == "":
		c.fail(append(path, "state"), "state is required with protocol tcp, such as ESTABLISHED")
	case !p.isTCP() && p.State != "":
		c.fail(append(path, "state"), "state %s requires protocol tcp", p.State)
	}
	c.ends(p, path)
	if p.NAT != nil {
		c.nat(p, append(path, "nat"))
	}
}

func (c *mixChecker) ends(p *Part, path []any) {
	sources := p.Sources.Prefix
	from := append(path[:len(path):len(path)], "sources")
	switch n := poolOf(sources).n; {
	case sources.Port != 0:
		c.fail(append(from, "prefix"), "prefix %s: expected no port; source_ports has them", sources)
	case uint64(p.Sources.Hosts) > n:
		c.fail(append(from, "hosts"), "hosts %d: %s has addresses for 1 to %d", p.Sources.Hosts, sources, n)
	case p.Sources.Hosts == 0 && n > maxPool:
		c.fail(append(from, "hosts"), "expected hosts: at most %d", maxPool)
	case p.Order != "" && p.NAT != nil && p.NAT.SNAT != nil:
		c.fail(append(path, "order"), "expected no order beside snat, whose ports have one")
	}
	c.endpoints(append(path, "destinations"), p, p.Destinations, true)
}

// endpoints checks a list of addresses that connections of the part have.
func (c *mixChecker) endpoints(path []any, p *Part, list []Endpoint, ports bool) {
	ports = ports && p.hasPorts()
	for i, e := range list {
		here := append(path[:len(path):len(path)], i)
		switch {
		case e.Addr().Is4() != p.Sources.Prefix.Addr().Is4():
			c.fail(here, "%s is not of the same family as %s", e, p.Sources.Prefix)
		case ports && e.Port == 0:
			c.fail(here, "%s: expected a port, such as %s", e, Endpoint{e.Prefix, 443})
		case !ports && e.Port != 0:
			c.fail(here, "%s: expected no port here", e)
		case poolOf(e).n > maxPool:
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
	c.endpoints(append(path, "dnat"), p, n.DNAT, true)
	if c.first == nil && poolsOf(n.DNAT).overlaps(poolsOf(p.Destinations), true) {
		c.fail(append(path, "dnat"), "a destination is among the servers behind it: expected others, or no NAT")
	}
	if n.SNAT == nil {
		return
	}
	where := append(path, "snat", "to")
	c.endpoints(where, p, n.SNAT.To, false)
	switch to := poolsOf(n.SNAT.To); {
	case c.first != nil:
	case to.len() > maxSNAT:
		c.fail(where, "expected at most %d addresses, found %d", maxSNAT, to.len())
	case to.overlaps(pools{p.Sources.pool()}, false):
		c.fail(where, "an address of SNAT is among the clients': expected others")
	}
}

// strangers makes sure that no client is a server too: a reply could then be
// another connection's request.
func (c *mixChecker) strangers() {
	for i := range c.m.Parts {
		for k := range c.m.Parts {
			if clients := (pools{c.m.Parts[i].Sources.pool()}); c.first == nil && clients.overlaps(poolsOf(c.m.Parts[k].servers()), false) {
				c.fail(at("parts", i, "sources"), "sources %s: some of them are destinations of part %q", c.m.Parts[i].Sources.Prefix, c.m.Parts[k].Name)
			}
		}
	}
}

// servers are the destinations and what is behind them.
func (p *Part) servers() []Endpoint {
	if p.NAT == nil {
		return p.Destinations
	}
	return slices.Concat(p.Destinations, p.NAT.DNAT)
}

// setAside are the addresses that no host has: for benchmarks (RFC 2544) and
// for documentation (RFC 5737, 3849, 9637).
var setAside = []netip.Prefix{
	Network, netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	Network6, netip.MustParsePrefix("3fff::/20"),
}

// Foreign returns addresses of the mix that may be in real use: packets of such
// connections would match the entries.
func (m *Mix) Foreign() (all []Endpoint) {
	for _, p := range m.Parts {
		ends := append([]Endpoint{p.Sources.Prefix}, p.servers()...)
		if p.NAT != nil && p.NAT.SNAT != nil {
			ends = append(ends, p.NAT.SNAT.To...)
		}
		for _, e := range ends {
			covers := func(a netip.Prefix) bool { return a.Bits() <= e.Bits() && a.Contains(e.Addr()) }
			if !slices.ContainsFunc(setAside, covers) {
				all = append(all, e)
			}
		}
	}
	return all
}

// seen is the part's status, or what such connections usually have.
func (p *Part) seen() string {
	switch {
	case p.Status != "":
		return p.Status
	case !p.isTCP(), p.tcpState() == conntrack.TCPSynRecv:
		return Replied
	case p.tcpState() == conntrack.TCPSynSent, p.tcpState() == conntrack.TCPSynSent2:
		return Unreplied
	}
	return Assured
}

var statusBits = map[string]conntrack.Status{
	Unreplied: conntrack.Confirmed,
	Replied:   conntrack.Confirmed | conntrack.SeenReply,
	Assured:   conntrack.Confirmed | conntrack.SeenReply | conntrack.Assured,
}

// tcpTimeouts are the kernel's defaults, in seconds (tcp_timeouts,
// net/netfilter/nf_conntrack_proto_tcp.c).
var tcpTimeouts = map[conntrack.TCPState]uint32{
	conntrack.TCPSynSent: 120, conntrack.TCPSynRecv: 60, conntrack.TCPEstablished: 432000,
	conntrack.TCPFinWait: 120, conntrack.TCPCloseWait: 60, conntrack.TCPLastAck: 30,
	conntrack.TCPTimeWait: 120, conntrack.TCPClose: 10, conntrack.TCPSynSent2: 120,
}

// usualTimeout returns the kernel's default timeout of such connections
// (nf_conntrack_proto_udp.c, _gre.c, _icmp.c, _sctp.c).
func (p *Part) usualTimeout() Span {
	seconds := uint32(30) // ICMP; UDP and GRE before they are assured
	switch assured := p.seen() == Assured; {
	case p.isTCP():
		seconds = tcpTimeouts[p.tcpState()]
	case p.Protocol == "sctp":
		seconds = 210
	case p.Protocol == "udp" && assured:
		seconds = 120
	case p.Protocol == "gre" && assured:
		seconds = 180
	}
	return Span{seconds, seconds}
}

// Kind describes the part's entries briefly, as conntrack(8) shows
// them.
func (p *Part) Kind() string {
	kind := strings.TrimSpace(p.Protocol + " " + p.State)
	switch p.seen() {
	case Unreplied:
		kind += " [UNREPLIED]"
	case Assured:
		kind += " [ASSURED]"
	}
	if p.NAT != nil && len(p.NAT.DNAT) > 0 {
		kind += " DNAT"
	}
	if p.NAT != nil && p.NAT.SNAT != nil {
		kind += " SNAT"
	}
	return kind
}
