package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Rule is a translation of the packets that match.
type Rule struct {
	Match
	Action Action `json:"action"`
}

// Kind is what a rule does.
type Kind string

const (
	// Masquerade gives the source the address of the interface by which a packet leaves,
	// SNAT another one. DNAT gives the destination another one, Redirect that of the
	// interface by which a packet comes in.
	Masquerade Kind = "masquerade"
	SNAT       Kind = "snat"
	DNAT       Kind = "dnat"
	Redirect   Kind = "redirect"
	// Pair gives sources in From an address in Prefix, and destinations in Prefix one in
	// From.
	Pair Kind = "pair"
	// Notrack keeps the tracker from packets to To and Ports, and from those that come
	// from there.
	Notrack Kind = "notrack"
)

// TranslatesSource reports whether a kind is about sources.
func (k Kind) TranslatesSource() bool { return k == Masquerade || k == SNAT }

// Random is how a port is chosen; empty for the source port, where it is free.
type Random string

const (
	// RandomPorts is NF_NAT_RANGE_PROTO_RANDOM, RandomFully NF_NAT_RANGE_PROTO_RANDOM_FULLY.
	RandomPorts Random = "random"
	RandomFully Random = "fully"
)

// Balance is how one of several backends is chosen.
type Balance string

const (
	// BalanceHash sends a client to the same backend each time, BalanceRoundRobin each
	// new connection to the next one.
	BalanceHash       Balance = "hash"
	BalanceRoundRobin Balance = "round-robin"
)

// AllDown is what new connections get while the checks of all backends fail.
type AllDown string

const (
	// AllDownLast leaves the choice as it was while some were up, AllDownReject answers with an RST or ICMP's port
	// unreachable.
	AllDownLast   AllDown = "last"
	AllDownReject AllDown = "reject"
)

// Check asks a backend whether it is up.
type Check struct {
	// Path is what HTTP asks for; where it is empty, a connection of TCP is all.
	Path string `json:"http,omitempty"`
	// Port is that of the check, 0 for the backend's own.
	Port     uint16        `json:"port,omitempty"`
	Interval time.Duration `json:"interval_ns"`
	Timeout  time.Duration `json:"timeout_ns"`
	// Rise and Fall are how many checks in a row change the state, to up and to down.
	Rise int `json:"rise"`
	Fall int `json:"fall"`
}

// At is where a backend is checked.
func (c *Check) At(b Backend) netip.AddrPort {
	return netip.AddrPortFrom(b.Address, cmp.Or(c.Port, b.Port))
}

// String is "checked by tcp every 2s (timeout 1s, rise 2, fall 3)"; empty for nil.
func (c *Check) String() string {
	if c == nil {
		return ""
	}
	how := "tcp"
	if c.Path != "" {
		how = "http " + c.Path
	}
	if c.Port != 0 {
		how += fmt.Sprintf(" at port %d", c.Port)
	}
	return fmt.Sprintf("checked by %s every %s (timeout %s, rise %d, fall %d)", how, c.Interval, c.Timeout, c.Rise, c.Fall)
}

// Backend is an endpoint that a destination becomes.
type Backend struct {
	Address netip.Addr `json:"address"`
	// Port is 0 where the port stays. Where Last is not 0, the ports of the rule, as many as from Port to Last,
	// become each the one at its place.
	Port uint16 `json:"port,omitempty"`
	Last uint16 `json:"last_port,omitempty"`
	// Weight is how often it is chosen compared to others; 0 is 1.
	Weight uint32 `json:"weight,omitempty"`
}

// String is "10.0.0.1", "10.0.0.1:80", "10.0.0.1:9000-9010", "[fd00::1]:80" or, without an address, ":3128".
func (b Backend) String() string {
	ports := Ports{b.Port, max(b.Port, b.Last)}.String()
	switch {
	case b.Port == 0:
		return b.Address.String()
	case !b.Address.IsValid():
		return ":" + ports
	case b.Address.Is6():
		return "[" + b.Address.String() + "]:" + ports
	}
	return b.Address.String() + ":" + ports
}

// PortOf is what a port becomes that is one of a rule's.
func (b Backend) PortOf(port uint16, of []Ports) uint16 {
	switch {
	case b.Port == 0:
		return port
	case b.Last == 0 || len(of) == 0:
		return b.Port
	}
	return b.Port + port - of[0].First
}

// Share is Weight, at least 1.
func (b Backend) Share() uint32 { return max(1, b.Weight) }

// Action is what a rule gives the packets that match.
type Action struct {
	Kind Kind `json:"kind"`
	// To are the addresses to choose from. Prefix, in their place, replaces the prefix of
	// the address, whose host bits stay.
	To     AddrRanges   `json:"to,omitempty"`
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// Pairs, in their place, is the set of pairs, one of Match.Members, that has for each address the one on the other side.
	Pairs string `json:"pairs,omitempty"`
	// Stateless translates packet by packet, without the tracker.
	Stateless bool `json:"stateless,omitempty"`
	// Neutral chooses the address so that checksums stay right (RFC 6296).
	Neutral bool `json:"neutral,omitempty"`
	// Backends are what a destination becomes: one, or one of several by Balance.
	Backends []Backend `json:"backends,omitempty"`
	Balance  Balance   `json:"balance,omitempty"`
	// Check is how backends are checked; nil: not at all. AllDown is for new connections while no backend is up.
	Check   *Check  `json:"check,omitempty"`
	AllDown AllDown `json:"all_down,omitempty"`
	// Zone is that of the backends, or of the prefix that a destination gets; empty where the host's own routes lead
	// there.
	Zone string `json:"zone,omitempty"`
	// Ports bound the port that is given; the zero value leaves it to the kernel. Keep
	// gives the source port or drops the packet.
	Ports  Ports  `json:"ports,omitzero"`
	Keep   bool   `json:"keep,omitempty"`
	Random Random `json:"random,omitempty"`
	// Persistent gives a source the same one of several addresses for every destination
	// (NF_NAT_RANGE_PERSISTENT).
	Persistent bool `json:"persistent,omitempty"`
}

// Shifts reports whether each of a range of ports becomes the one at its place.
func (a *Action) Shifts() bool {
	return slices.ContainsFunc(a.Backends, func(b Backend) bool { return b.Last != 0 })
}

// String describes the rule: "from 10.0.0.0/8 out eth0 becomes 203.0.113.7".
func (r *Rule) String() string {
	switch r.Action.Kind {
	case Notrack:
		return "to and from " + strings.TrimPrefix(r.Match.String(), "on ") + " not tracked"
	case Pair:
		asks := r.Match
		asks.From, asks.Out, asks.NotOut, asks.To, asks.Members = nil, nil, nil, nil, r.withoutTo()
		pair := joinWords(PrefixesString(r.From), "is outside", PrefixString(r.Action.Prefix))
		if r.Action.Pairs != "" {
			pair = "the pairs of $" + r.Action.Pairs
			asks.Members = slices.DeleteFunc(asks.Members, func(x Member) bool { return x.Pairs })
		}
		return joinWords(pair, listed("only to", places(r.To, r.named(To, false))),
			asks.String(), r.Text(Out), onlyIf(r.Action.Stateless, "stateless"),
			onlyIf(r.Action.Neutral, "checksum-neutral (RFC 6296)"))
	}
	m := r.Match
	if to := places(m.To, m.named(To, false)); to != "" && r.Action.Kind.TranslatesSource() {
		m.To = nil
		m.Members = m.withoutTo()
		return joinWords(m.String(), "only to", to, "becomes", r.Action.String())
	}
	return joinWords(m.String(), "becomes", r.Action.String())
}

// String describes the translation: "203.0.113.7 ports 1024-65535 random".
func (a *Action) String() string {
	return joinWords(a.given(), listed("zone", a.Zone), onlyIf(a.Keep, "ports keep"), onlyIf(a.Ports != Ports{} && a.Kind != Redirect, "ports "+a.Ports.String()),
		map[Random]string{RandomPorts: "random", RandomFully: "random fully"}[a.Random], onlyIf(a.Persistent, "persistent"),
		a.Health())
}

// Health says how the backends are checked, and what happens while none is up; empty where they are not.
func (a *Action) Health() string {
	return joinWords(a.Check.String(), onlyIf(a.AllDown == AllDownReject, "rejected while all are down"))
}

func (a *Action) given() string {
	switch {
	case a.Kind == Masquerade:
		return "the interface's address"
	case a.Kind == Redirect:
		return "this host's port " + a.Ports.String()
	case a.Pairs != "" && a.Kind.TranslatesSource():
		return "its address outside"
	case a.Pairs != "":
		return "its address inside"
	case a.Prefix.IsValid():
		return PrefixString(a.Prefix)
	case len(a.Backends) == 1:
		return a.Backends[0].String()
	case len(a.Backends) > 1:
		texts := make([]string, len(a.Backends))
		for i, b := range a.Backends {
			texts[i] = b.String() + onlyIf(b.Weight > 1, fmt.Sprintf(" weight %d", b.Weight))
		}
		return strings.Join(texts, ", ") + " by " + string(a.Balance)
	}
	return a.To.String()
}

func joinWords(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), " ")
}
