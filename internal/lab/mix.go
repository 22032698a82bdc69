package lab

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
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

func (p Protocol) String() string { return conntrack.ProtocolName(p.Number) }

// MarshalText is the written form.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalYAML reads it and keeps the place for an error.
func (p *Protocol) UnmarshalYAML(n *yaml.Node) error {
	var names []string
	for _, number := range mixProtocols {
		names = append(names, conntrack.ProtocolName(number))
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

// Ports is a range of ports, both ends included.
type Ports struct{ First, Last uint16 }

// Len is the number of ports; the zero value has port 0.
func (p Ports) Len() int64 { return int64(p.Last) - int64(p.First) + 1 }

func (p Ports) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// MarshalText is the written form.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalYAML reads it and keeps the place for an error.
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
		*p = Ports{uint16(a), uint16(b)}
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
