package snapshot

import (
	"net/netip"
	"strings"
)

// NATRules are the rules of one namespace that translate addresses, in the order
// in which a packet meets them: by hook, by priority of the chain, by place.
type NATRules struct {
	Rules []NATRule `json:"rules"`
	// TooMany is true where more ways lead through chains and maps than natkit follows: rules may
	// be missing, and those that are Partial lack their conditions.
	TooMany bool `json:"too_many_to_follow,omitempty"`
}

// What NATRule.Kind may be.
const (
	NATMasquerade = "masquerade"
	NATSource     = "snat"
	NATDest       = "dnat"
	NATRedirect   = "redirect"
)

// OtherProtocols is what NATRule.Protocol says of a rule that comes after one alike
// which is for the protocols that have ports.
const OtherProtocols = "other"

// NATRule is one rule that translates the source (masquerade, snat) or the
// destination (dnat, redirect), as far as it concerns addresses and ports.
type NATRule struct {
	// Gateway names the rule of the gateway's file that it is of, "nat[3] snat"; empty
	// where it is not of natkit's own table.
	Gateway string `json:"gateway_rule,omitempty"`
	// Target identifies the rule for a change of its options: tune's kind NATRule
	// takes it. Empty where natkit cannot change the rule: it is of iptables-legacy or
	// of the gateway, translates the destination, or by a map or a whole prefix.
	Target string `json:"target,omitempty"`
	// Source is "nftables", "iptables-nft" or "iptables-legacy".
	Source string `json:"source"`
	// Family is "ip", "ip6" or "inet".
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	Handle uint64 `json:"handle,omitempty"`
	// Hook is "prerouting", "input", "output" or "postrouting"; of a chain that
	// others jump to, theirs. Priority is the base chain's.
	Hook     string `json:"hook"`
	Priority int32  `json:"priority"`
	// Kind is one of NATMasquerade, NATSource, NATDest, NATRedirect.
	Kind string `json:"kind"`
	// First and Last bound the addresses that are given; not valid for masquerade
	// and redirect, where the interface decides, and where only ports are given.
	First netip.Addr `json:"first_address,omitzero"`
	Last  netip.Addr `json:"last_address,omitzero"`
	// FirstPort and LastPort bound the ports; 0 leaves them to the kernel.
	FirstPort uint16 `json:"first_port,omitempty"`
	LastPort  uint16 `json:"last_port,omitempty"`
	// PortsFromMap is true where ports are given that are not constant, as those of
	// the port blocks of a carrier's NAT: which ones, natkit does not know.
	PortsFromMap bool `json:"ports_from_map,omitempty"`
	// Random, FullyRandom and Persistent are NF_NAT_RANGE_PROTO_RANDOM,
	// NF_NAT_RANGE_PROTO_RANDOM_FULLY and NF_NAT_RANGE_PERSISTENT.
	Random      bool `json:"random,omitempty"`
	FullyRandom bool `json:"fully_random,omitempty"`
	Persistent  bool `json:"persistent,omitempty"`
	// Protocol is what the rule is restricted to, by name; empty means any,
	// OtherProtocols those that the rule before it is not for.
	Protocol string `json:"protocol,omitempty"`
	// DestinationPort, where not 0, is the only one that the rule matches; or, with
	// LastDestinationPort, the first of a range.
	DestinationPort     uint16 `json:"destination_port,omitempty"`
	LastDestinationPort uint16 `json:"last_destination_port,omitempty"`
	// FromSource and ToDestination restrict the addresses; not valid means any.
	FromSource    netip.Prefix `json:"from_source,omitzero"`
	ToDestination netip.Prefix `json:"to_destination,omitzero"`
	// OutInterface and InInterface restrict the interface; empty means any.
	OutInterface string `json:"out_interface,omitempty"`
	InInterface  string `json:"in_interface,omitempty"`
	// LocalDestination restricts the rule to destinations that are this host's own
	// (addrtype --dst-type LOCAL, fib daddr type local).
	LocalDestination bool `json:"local_destination,omitempty"`
	// Unless are conditions of which none may hold: inverted ones (! -i docker0), and
	// those under which a rule before this one lets packets leave the chain.
	Unless []NATCondition `json:"unless,omitempty"`
	// Marked is true where the rule asks for a mark, which others give to packets or
	// connections.
	Marked bool `json:"marked,omitempty"`
	// OriginalDestination is true where the rule asks what the destination was before it
	// was translated, as those do that send connections back inside: what leaves for
	// elsewhere is not meant.
	OriginalDestination bool `json:"original_destination,omitempty"`
	// Partial is true where the rule has conditions that are not in these fields.
	Partial bool `json:"partial,omitempty"`
	// Ways are the rule once for each way that several rules lead to it: it is for
	// packets of any of them, and itself Partial.
	Ways []NATRule `json:"-"`
	// Text is the translation in nft's words: "masquerade to :1024-2047 fully-random".
	Text string `json:"text"`
}

// NATCondition is what a rule may ask of a packet; fields are as in NATRule.
type NATCondition struct {
	Protocol            string       `json:"protocol,omitempty"`
	DestinationPort     uint16       `json:"destination_port,omitempty"`
	LastDestinationPort uint16       `json:"last_destination_port,omitempty"`
	FromSource          netip.Prefix `json:"from_source,omitzero"`
	ToDestination       netip.Prefix `json:"to_destination,omitzero"`
	OutInterface        string       `json:"out_interface,omitempty"`
	InInterface         string       `json:"in_interface,omitempty"`
	LocalDestination    bool         `json:"local_destination,omitempty"`
}

// Condition is what the rule's own fields ask, without Unless.
func (r *NATRule) Condition() NATCondition {
	return NATCondition{
		Protocol: r.Protocol, DestinationPort: r.DestinationPort, LastDestinationPort: r.LastDestinationPort,
		FromSource: r.FromSource, ToDestination: r.ToDestination,
		OutInterface: r.OutInterface, InInterface: r.InInterface, LocalDestination: r.LocalDestination,
	}
}

// TranslatesSource reports whether the rule is about sources.
func (r *NATRule) TranslatesSource() bool { return r.Kind == NATMasquerade || r.Kind == NATSource }

// Place says where the rule is: "ip nat POSTROUTING", or "nat[3] snat of the gateway".
func (r *NATRule) Place() string {
	if r.Gateway != "" {
		return r.Gateway + " of the gateway"
	}
	return strings.Join([]string{r.Family, r.Table, r.Chain}, " ")
}
