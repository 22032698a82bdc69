// Package explain follows one packet through the hooks and chains of a host that carries
// out a gateway's plan by netfilter: which rule is for it, what it becomes, and how an
// answer comes back.
package explain

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/gateway"
)

// Schema names the JSON form of a Way.
const Schema = "natkit.gateway-explain/1"

// Way is the way of a connection's first packet, and of its answer.
type Way struct {
	Schema string `json:"schema"`
	// Plan is the digest of the plan that was asked.
	Plan   string `json:"plan"`
	Packet Packet `json:"packet"`
	// Steps are in the order in which the packet comes to them.
	Steps []Step `json:"steps"`
	Fate  Fate   `json:"fate"`
	// Untracked: the packet has no connection; each one is looked at by itself.
	Untracked bool   `json:"untracked,omitempty"`
	Out       string `json:"out,omitempty"`
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
	// Forwarded: it leaves by Way.Out. Local: it is for the gateway itself.
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
	Addresses []gateway.Range `json:"addresses"`
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
	in := false
	for _, r := range g.Addresses {
		in = in || r.Contains(addr)
	}
	if port == g.Port {
		return in
	}
	return in && g.First <= port && port <= g.Last && g.Last > 0
}

// String is what is certain of it: an address, or several.
func (g Given) String() string {
	switch {
	case len(g.Addresses) == 1 && g.Addresses[0].First == g.Addresses[0].Last:
		return endpoint{g.Addresses[0].First, g.Port}.String()
	case len(g.Addresses) == 0 && g.Port != 0:
		return fmt.Sprintf("(no address yet) %s %d", g.port(), g.Port)
	case len(g.Addresses) == 0:
		return "(no address yet)"
	case g.Port != 0:
		return fmt.Sprintf("%s %s %d", gateway.Ranges(g.Addresses), g.port(), g.Port)
	}
	return gateway.Ranges(g.Addresses).String()
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
}

// Hop is where a packet goes. Unreachable says why nowhere; Local is the host itself.
type Hop struct {
	Local       bool
	Unreachable string
	Out         string
	// Gateway is the next hop, not valid where it is the destination; Source what the
	// host's own packets get.
	Gateway, Source netip.Addr
}

// Router asks a host for the way of a packet.
type Router func(Lookup) (Hop, error)

// Follow tells the way of a packet through a host that carries out a plan. Facts bring
// other programs' chains and the interfaces' addresses, route the host's routes. An
// error is of route.
func Follow(p *gateway.Plan, facts gateway.Facts, route Router, packet Packet) (*Way, error) {
	w := newWalk(p, &facts, route, packet)
	w.e.Plan = gateway.Digest(p)
	if err := w.walk(); err != nil {
		return nil, err
	}
	return w.e, nil
}

// as is an endpoint that stays as it is.
func as(e endpoint) Given {
	return Given{Addresses: []gateway.Range{{First: e.addr, Last: e.addr}}, Port: e.port}
}
