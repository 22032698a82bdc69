// Package observe says what a gateway does to packets and connections: it follows one
// packet through the hooks of a host (Follow), attributes entries of the connection table
// to the rules of a plan (Attribute), and holds how a gateway fares (Status). It computes;
// routes and tables are handed in.
package observe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/nat"
)

// Schema names the JSON form of a Trace.
const Schema = "natkit.gateway-explain/1"

// Trace is the way of a connection's first packet, and of its answer.
type Trace struct {
	Schema string `json:"schema"`
	// Plan is the digest of the plan that was asked.
	Plan   string     `json:"plan"`
	Packet nat.Packet `json:"packet"`
	// Steps are in the order in which the packet comes to them.
	Steps []Step `json:"steps"`
	Fate  Fate   `json:"fate"`
	// Untracked: the packet has no connection; each one is handled alone.
	Untracked bool   `json:"untracked,omitempty"`
	Out       string `json:"out,omitempty"`
	// Uplink is the WAN interface that the connection is on; empty where connections are not divided among several.
	Uplink string `json:"uplink,omitempty"`
	// Unless are what natkit does not know of that would make something else of it: rules
	// that may be for it, chains that drop what they do not accept.
	Unless []string `json:"unless,omitempty"`
	// Source and Destination are what the other side sees.
	Source      Given `json:"source_becomes"`
	Destination Given `json:"destination_becomes"`
	// Reply are the steps of the answer.
	Reply []Step `json:"reply,omitempty"`
	// ReplyLost says why an answer does not come back as one; empty where it does.
	ReplyLost string `json:"reply_lost,omitempty"`
	// Near are rules that do not translate it, though they are about its addresses;
	// NearMore is how many others there are.
	Near     []NearMiss `json:"near_misses,omitempty"`
	NearMore int        `json:"more_near_misses,omitempty"`
	Notes    []string   `json:"notes,omitempty"`
}

// Fate is what becomes of a packet.
type Fate string

const (
	// Forwarded: it leaves by Trace.Out. Local: it is for the gateway itself.
	Forwarded Fate = "forwarded"
	Local     Fate = "local"
	// Unreachable: no route leads on.
	Unreachable Fate = "unreachable"
	// Dropped: a rule that is for it cannot translate it, the host does not forward it, or a
	// bridge does not send it back.
	Dropped Fate = "dropped"
)

// Step is one place that the packet comes to.
type Step struct {
	// Hook is the kernel's: "prerouting", "forward"…; "routing" is the decision.
	Hook string `json:"hook"`
	// Priority orders chains at a hook.
	Priority int32 `json:"priority"`
	// Chain is "inet natkit prerouting" or another program's; empty for the kernel
	// itself. Owner is a guess whose it is.
	Chain string `json:"chain,omitempty"`
	Owner string `json:"owner,omitempty"`
	// Rule is natkit's that acts here.
	Rule *gateway.Ref `json:"rule,omitempty"`
	// Does says what happens.
	Does string `json:"does"`
	// Unsure: natkit does not follow this chain's rules, or not all conditions.
	Unsure bool `json:"unsure,omitempty"`
}

// Given is what an address and a port become.
type Given struct {
	// Rule is nil where they stay, or are another program's doing.
	Rule *gateway.Ref `json:"rule,omitempty"`
	// Addresses are what the kernel chooses from: mostly one.
	Addresses nat.AddrRanges `json:"addresses"`
	// Port is the one that is given if it is free; 0 where there is none such.
	Port uint16 `json:"port,omitempty"`
	// First and Last bound what is given where Port is not free, or there is none. Both
	// are 0 where Port is given or the packet is dropped.
	First uint16 `json:"first_port,omitempty"`
	Last  uint16 `json:"last_port,omitempty"`
	// echo: what is called a port is the identifier of an echo request.
	echo bool
}

// port is what Port is called.
func (g Given) port() string {
	if g.echo {
		return "identifier"
	}
	return "port"
}

// Allows reports whether an address and port are as foretold.
func (g Given) Allows(addr netip.Addr, port uint16) bool {
	in := g.Addresses.Contains(addr)
	if port == g.Port {
		return in
	}
	return in && g.First <= port && port <= g.Last && g.Last > 0
}

// String is what is certain of it: an address, or several.
func (g Given) String() string {
	switch {
	case len(g.Addresses) == 1 && g.Addresses[0].IsSingle():
		return endpoint{g.Addresses[0].First, g.Port}.String()
	case len(g.Addresses) == 0 && g.Port != 0:
		return fmt.Sprintf("(no address yet) %s %d", g.port(), g.Port)
	case len(g.Addresses) == 0:
		return "(no address yet)"
	case g.Port != 0:
		return fmt.Sprintf("%s %s %d", g.Addresses, g.port(), g.Port)
	}
	return g.Addresses.String()
}

// NearMiss is a rule that does not translate a packet, and why.
type NearMiss struct {
	Rule gateway.Ref `json:"rule"`
	// Text says what the rule is for.
	Text string   `json:"text"`
	Why  []string `json:"why"`
}

// Lookup is what a route is asked for. In is empty for the gateway's own packets.
type Lookup struct {
	Source, Destination netip.Addr
	In                  string
	// Mark is the packet's; 0 also where it means nothing.
	Mark uint32
}

// Hop is where a packet goes. Unreachable says why nowhere; Local is the host itself.
type Hop struct {
	Local       bool
	Unreachable string
	Out         string
	// Gateway is the next hop, not valid where it is the destination; Source what the
	// host's own packets get.
	Gateway, Source netip.Addr
	// Default is that the route is for every destination, or there is none at all; known of lookups with a mark.
	Default bool
}

// Router asks a host for the way of a packet.
type Router func(Lookup) (Hop, error)

// Follow traces a packet through a host that carries out a plan. Facts supply other
// programs' chains and the interfaces' addresses, route the host's routes. An error is
// of route.
func Follow(p *gateway.Plan, facts gateway.Facts, route Router, packet nat.Packet) (*Trace, error) {
	w := newWalk(p.Leased().On(&facts), &facts, route, packet)
	w.e.Plan = gateway.Digest(p)
	if err := w.walk(); err != nil {
		return nil, err
	}
	return w.e, nil
}

// as is an endpoint that stays as it is.
func as(e endpoint) Given {
	return Given{Addresses: []nat.AddrRange{{First: e.addr, Last: e.addr}}, Port: e.port}
}

// endpoint is an address and a port, 0 where there is none.
type endpoint struct {
	addr netip.Addr
	port uint16
}

func (e endpoint) String() string {
	if e.port == 0 {
		return e.addr.String()
	}
	return netip.AddrPortFrom(e.addr, e.port).String()
}

// errArrow: a shell takes the arrow apart, into an argument "-" and a file that it
// writes to.
var errArrow = errors.New(`packet: the shell took "> ADDRESS" for a file to write to: put the packet into quotes, "tcp 192.168.0.2:4000 -> 198.51.100.9:443", or leave the arrow out`)

const packetWords = `expected PROTOCOL SOURCE -> DESTINATION such as "tcp 192.168.0.2:4000 -> 198.51.100.9:443" or "icmp 192.168.0.2 -> 198.51.100.9"`

// ParsePacket reads "tcp 192.168.0.2:4000 -> 198.51.100.9:443", given as one word or
// as several; the arrow may be missing.
func ParsePacket(words []string) (nat.Packet, error) {
	fields := strings.Fields(strings.NewReplacer("→", " -> ", "->", " -> ").Replace(strings.Join(words, " ")))
	if len(fields) > 0 && fields[len(fields)-1] == "-" {
		return nat.Packet{}, errArrow
	}
	fields = slices.DeleteFunc(fields, func(f string) bool { return f == "->" || f == "to" })
	if len(fields) != 3 {
		return nat.Packet{}, fmt.Errorf("packet %q: %s", strings.Join(words, " "), packetWords)
	}
	number, err := nat.ParseProtocol(fields[0])
	if err != nil {
		return nat.Packet{}, fmt.Errorf("packet: %w", err)
	}
	src, err := parseEndpoint(fields[1])
	if err != nil {
		return nat.Packet{}, err
	}
	dst, err := parseEndpoint(fields[2])
	if err != nil {
		return nat.Packet{}, err
	}
	p := nat.Packet{Protocol: number, Src: src.addr, Dst: dst.addr, SrcPort: src.port, DstPort: dst.port}
	return whole(p)
}

func parseEndpoint(text string) (endpoint, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		a, err = netip.ParseAddr(strings.Trim(text, "[]"))
		ap = netip.AddrPortFrom(a, 0)
	}
	switch a := ap.Addr(); {
	case err != nil:
		return endpoint{}, fmt.Errorf("packet: %q is no address and port; %s", text, packetWords)
	case a.Zone() != "":
		return endpoint{}, fmt.Errorf("packet: %q: what belongs to one link is not forwarded; leave out %%%s", text, a.Zone())
	default:
		return endpoint{a.Unmap(), ap.Port()}, nil
	}
}

// usualPort is the source port where none is given: a client's.
const usualPort = 40000

// whole puts in what may be left out, and refuses what cannot be.
func whole(p nat.Packet) (nat.Packet, error) {
	name := nat.ProtocolName(p.Protocol)
	switch {
	case p.Src.BitLen() != p.Dst.BitLen():
		return p, fmt.Errorf("packet: %s and %s are not of one family", p.Src, p.Dst)
	case p.Src.IsUnspecified() || isGroup(p.Src):
		return p, fmt.Errorf("packet: %s is the source of nothing that is forwarded", p.Src)
	case p.Dst.IsUnspecified() || isGroup(p.Dst):
		return p, fmt.Errorf("packet: %s is no host's: what is sent there is not forwarded", p.Dst)
	case nat.IsICMP(p.Protocol) && (name == "icmp") != p.Src.Is4():
		return p, fmt.Errorf("packet: %s is not for %s", name, p.Src)
	case nat.IsICMP(p.Protocol):
		p.DstPort = p.SrcPort
	case !nat.HasPorts(p.Protocol) && p.SrcPort+p.DstPort != 0:
		return p, fmt.Errorf("packet: %s has no ports", name)
	case nat.HasPorts(p.Protocol) && p.DstPort == 0:
		return p, fmt.Errorf("packet: %s needs a destination port: %s", name, endpoint{p.Dst, 443})
	case nat.HasPorts(p.Protocol) && p.SrcPort == 0:
		p.SrcPort = usualPort
	}
	return p, nil
}

// isGroup reports whether an address is that of many hosts: multicast or broadcast.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// give is what an action makes of the packet's source. The kernel chooses as
// nf_nat_core.c does (get_unique_tuple).
func (w *walk) give(a *nat.Action) Given {
	g := Given{Addresses: w.addresses(a), echo: nat.IsICMP(w.packet.Protocol)}
	g.Port, g.First, g.Last = givenPort(a, w.packet, w.src.port)
	return g
}

func (w *walk) addresses(a *nat.Action) nat.AddrRanges {
	switch {
	case a.Kind == nat.Masquerade:
		return w.masqueraded()
	case a.Prefix.IsValid():
		return nat.AddrRanges{nat.OneAddr(nat.Replace(w.src.addr, a.Prefix))}
	}
	return slices.Clone(a.To)
}

// masqueraded is the address that masquerade gives: in IPv4 that of the interface in the
// network of the next hop, otherwise the first one (inet_select_addr); in IPv6 one of
// the global ones, by RFC 6724 (ipv6_dev_get_saddr).
func (w *walk) masqueraded() (all nat.AddrRanges) {
	next := w.dst.addr
	if w.hop.Gateway.IsValid() {
		next = w.hop.Gateway
	}
	for _, p := range w.facts.AddressesOf(w.e.Out) {
		if p.Addr().BitLen() != next.BitLen() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		r := nat.OneAddr(p.Addr())
		if next.Is4() && p.Contains(next) {
			return []nat.AddrRange{r}
		}
		all = append(all, r)
	}
	if next.Is4() && len(all) > 1 {
		return all[:1]
	}
	return all
}

// givenPort is the port that is given if it is free, and the bounds of what is given
// otherwise.
func givenPort(a *nat.Action, p nat.Packet, port uint16) (given, first, last uint16) {
	switch {
	case !nat.HasPorts(p.Protocol) && !nat.IsICMP(p.Protocol):
		return 0, 0, 0
	case a.Keep:
		return port, 0, 0
	}
	first, last = bounds(a, p, port)
	if a.Random != "" || port < first || port > last {
		return 0, first, last
	}
	return port, first, last
}

// bounds are the rule's, or those of the kernel for the class of the port
// (nf_nat_l4proto_unique_tuple).
func bounds(a *nat.Action, p nat.Packet, port uint16) (first, last uint16) {
	switch {
	case a.Ports != (nat.Ports{}):
		return a.Ports.First, a.Ports.Last
	case nat.IsICMP(p.Protocol):
		return 0, 65535
	case port < 512:
		return 1, 511
	case port < 1024:
		// From 600 on where another one has to be found; the port itself may be less.
		return min(port, 600), 1023
	}
	return 1024, 65535
}

// words says what is given, and from what where the kernel chooses.
func (w *walk) words(g Given, a *nat.Action) string {
	if len(g.Addresses) == 0 {
		return "the interface's address, which it does not have yet"
	}
	text, taken, unknown := g.String(), "that "+g.port(), g.echo && g.Port == 0
	if unknown {
		taken = "its " + g.port()
	}
	if len(g.Addresses) > 1 || !g.Addresses[0].IsSingle() {
		text = "one of " + text
	}
	switch stays := g.Port != 0 || unknown && a.Random == "" && a.Ports.Len() == 0; {
	case a.Keep && (stays || unknown):
		return text + fmt.Sprintf("; if %s is taken towards this destination the packet is dropped", taken)
	case stays && g.Last > 0:
		return text + fmt.Sprintf("; if %s is taken towards this destination, another of %d-%d", taken, g.First, g.Last)
	case unknown && a.Random == "":
		return text + fmt.Sprintf(" with %s where that is one of %d-%d and free, otherwise another of them", taken, g.First, g.Last)
	case g.Last > 0:
		return text + fmt.Sprintf(" with a free %s of %d-%d, at random", g.port(), g.First, g.Last)
	}
	return text
}
