package snapshot

import "net/netip"

// PartAudit is the name of the part that Snapshot.Audit is.
const PartAudit = "audit"

// Audit is what speaks against rules that translate addresses, whatever the traffic: other rules,
// and the host's addresses. It is nil where no rule translates.
type Audit struct {
	// Interfaces are those with addresses that others can reach, and those that rules
	// masquerade over.
	Interfaces []Interface `json:"interfaces"`
	// Elsewhere are the addresses that rules give to sources and that are not this host's.
	Elsewhere []GivenElsewhere `json:"given_elsewhere,omitempty"`
	// Silent are the addresses that nobody answers for on the network that asks for them.
	Silent []SilentAddress `json:"silent,omitempty"`
	// Absent are the interfaces that rules for what comes in name, and that do not exist.
	Absent []string `json:"absent_interfaces,omitempty"`
	// Stranded are hosts for whose packets there is a rule that translates sources, and no way out.
	Stranded []StrandedHost `json:"stranded,omitempty"`
	// Shadowed are rules that no packet comes to.
	Shadowed []ShadowedRule `json:"shadowed,omitempty"`
	// Untracked are rules whose packets, or the answers to them, are not tracked.
	Untracked []UntrackedRule `json:"untracked,omitempty"`
	// Beyond are networks behind routers on inner networks; they are read where a rule drops what is INVALID.
	Beyond []BeyondNetwork `json:"beyond,omitempty"`
	// SinglePorts are the indexes in NATRules.Rules of those that are for several destination ports, of which
	// none is of a range.
	SinglePorts []int `json:"single_ports,omitempty"`
	// Refusals are rules that drop for a reason of their own.
	Refusals []Refusal `json:"refusals,omitempty"`
	// Iptables are the tables of iptables, of both of its variants, that have rules.
	Iptables []IptablesTable `json:"iptables,omitempty"`
	// MSSFree is true where no rule limits the MSS; false in bundles of older natkit.
	MSSFree bool `json:"mss_not_limited,omitempty"`
	// TooMany is true where more rules were to be compared than natkit compares.
	TooMany bool `json:"too_many_to_compare,omitempty"`
}

// Interface is one of the host's.
type Interface struct {
	Name string `json:"name"`
	Up   bool   `json:"up"`
	// ForwardingOff is true where net.ipv4.conf.NAME.forwarding is 0, though that of another one
	// is not.
	ForwardingOff bool `json:"forwarding_off,omitempty"`
	// NoARP is true where it neither asks nor answers who has an address, though its network needs
	// that (IFF_NOARP), and there are no permanent entries.
	NoARP bool `json:"no_arp,omitempty"`
	// Bridge is true of one whose ports are interfaces of this host.
	Bridge bool `json:"bridge,omitempty"`
	// Addresses are those with a wider scope than the link, with the length of their network.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
}

// BeyondNetwork is a network that a route leads to by a router on the network of an interface that has other hosts,
// too, and no default route.
type BeyondNetwork struct {
	Network   netip.Prefix `json:"network"`
	Router    netip.Addr   `json:"router"`
	Interface string       `json:"interface"`
}

// GivenElsewhere is an address that is given to sources and that no interface or local route of
// this host has.
type GivenElsewhere struct {
	// Rule is the index in NATRules.Rules of the first rule that gives it.
	Rule    int        `json:"rule"`
	Address netip.Addr `json:"address"`
	// Last is the last one where it is the first of more than are asked for one by one, as of a prefix, of which
	// this host has none and no route leads inside.
	Last netip.Addr `json:"last,omitzero"`
	// OnLink is the interface on whose network it is and by which the rule's packets leave, so that
	// others ask there who has it, and this host does not answer: it is no proxy for it. Empty
	// where it is on no such network.
	OnLink string `json:"on_link,omitempty"`
}

// Why nobody answers for an address.
const (
	// AddressAbsent: no interface and no local route has it.
	AddressAbsent = "absent"
	// AddressIgnored: it is on another interface, and arp_ignore leaves that out; over IPv6, no interface answers
	// for the addresses of others (ndisc_recv_ns).
	AddressIgnored = "ignored"
	// AddressDuplicate: another host had it (IFA_F_DADFAILED). AddressTentative: the kernel still asks.
	AddressDuplicate = "duplicate"
	AddressTentative = "tentative"
)

// SilentAddress is one that a rule translates connections to, or gives to sources.
type SilentAddress struct {
	// Rule is the index in NATRules.Rules of the first rule.
	Rule    int        `json:"rule"`
	Address netip.Addr `json:"address"`
	// Interface is the one on whose network others ask who has it.
	Interface string `json:"interface"`
	Why       string `json:"why"`
	// On is the interface that has it, Ignores the effective arp_ignore of Interface.
	On      string `json:"on,omitempty"`
	Ignores int    `json:"arp_ignore,omitempty"`
	// Neighbour is the hardware address of the host that has it, where one is known.
	Neighbour string `json:"neighbour,omitempty"`
	// Shared is true where the rule is for other addresses as well, so that its counter says nothing of this one.
	Shared bool `json:"shared,omitempty"`
	// Standby is true where another host may have it by design.
	Standby bool `json:"standby,omitempty"`
}

// StrandedHost is a neighbour whose packets to elsewhere the kernel does not send on.
type StrandedHost struct {
	// Rule is the index in NATRules.Rules of a rule that would translate them.
	Rule int        `json:"rule"`
	Host netip.Addr `json:"host"`
	In   string     `json:"in"`
	To   netip.Addr `json:"to"`
	Route
}

// ShadowedRule is a rule that translates, and whose packets another one takes before.
type ShadowedRule struct {
	RulePlace
	By RulePlace `json:"by"`
	// Kind is what the rule does (NATRule.Kind).
	Kind string `json:"kind"`
	// Alike is true where its conditions are those of By, no narrower: it is a leftover, or By is.
	Alike bool `json:"alike,omitempty"`
	// Address is the only one that the rule gives, where By masquerades over the interface
	// Masqueraded.
	Address     netip.Addr `json:"address,omitzero"`
	Masqueraded string     `json:"masqueraded,omitempty"`
}

// UntrackedRule is a rule that translates, and By the one that exempts its packets from tracking,
// or the answers to them.
type UntrackedRule struct {
	RulePlace
	By RulePlace `json:"by"`
	// Kind is what the rule does (NATRule.Kind).
	Kind    string `json:"kind"`
	Answers bool   `json:"answers,omitempty"`
	// Part is true where By is for some of the answers only.
	Part bool `json:"part,omitempty"`
	// Questions is true where By is for some of the packets, those of Asked, all of which get answers; Back are the
	// rules that may exempt these, and Here is true where a program of this host gives them.
	Questions bool        `json:"questions,omitempty"`
	Back      []RulePlace `json:"back,omitempty"`
	Here      bool        `json:"here,omitempty"`
	// SYNs is true where By is for SYNs, which SYNPROXY may answer; they have Protocol and the ports.
	SYNs bool `json:"syns,omitempty"`
	// OtherZone is true where By does not exempt, and puts one direction into another zone of
	// conntrack than the other one is in.
	OtherZone bool `json:"other_zone,omitempty"`
	// The answers are of Protocol from FirstPort to LastPort of From, as far as these are there.
	Protocol  string       `json:"protocol,omitempty"`
	FirstPort uint16       `json:"first_port,omitempty"`
	LastPort  uint16       `json:"last_port,omitempty"`
	From      netip.Prefix `json:"from,omitzero"`
	// Asked are the packets that the rule translates, as they come in.
	Asked *Asked `json:"asked,omitempty"`
}

// Asked are packets of Protocol to ports from FirstPort to LastPort of To and from From, as far as these are there.
type Asked struct {
	Protocol  string       `json:"protocol,omitempty"`
	From      netip.Prefix `json:"from,omitzero"`
	To        netip.Prefix `json:"to,omitzero"`
	FirstPort uint16       `json:"first_port,omitempty"`
	LastPort  uint16       `json:"last_port,omitempty"`
}

// Has reports whether what a client asks a service for is among the packets.
func (a *Asked) Has(protocol string, client netip.Addr, service netip.AddrPort) bool {
	return (a.Protocol == "" || a.Protocol == protocol) && (!a.From.IsValid() || a.From.Contains(client)) &&
		(!a.To.IsValid() || a.To.Contains(service.Addr())) && (a.FirstPort == 0 || a.FirstPort <= service.Port() && service.Port() <= a.LastPort)
}

// Why a rule of Refusals drops.
const (
	// RefusalLimit: there are too many, or they come too fast.
	RefusalLimit = "limit"
	// RefusalNoEndpoints: the service of Kubernetes has no endpoints.
	RefusalNoEndpoints = "no-endpoints"
	// RefusalInvalid: they do not fit their connection, as far as the tracker saw it (INVALID).
	RefusalInvalid = "invalid"
)

// Refusal is a rule on the way of forwarded packets that drops or rejects some.
type Refusal struct {
	RulePlace
	Why     string `json:"why"`
	Comment string `json:"comment,omitempty"`
}

// IptablesTable is a table of iptables with rules.
type IptablesTable struct {
	// Program is "iptables-nft" or "iptables-legacy"; "iptables" of a text that does not say which variant.
	Program string `json:"program"`
	Family  string `json:"family"`
	Table   string `json:"table"`
	// Translating and Forwarding count rules that translate, and rules for what is forwarded, with
	// a policy that drops.
	Translating int `json:"translating"`
	Forwarding  int `json:"forwarding"`
}

// Interface returns the one of a name; nil where there is none.
func (a *Audit) Interface(name string) *Interface {
	for i := range a.Interfaces {
		if a.Interfaces[i].Name == name {
			return &a.Interfaces[i]
		}
	}
	return nil
}

// Near returns the interface on whose network an address is, and whether the address is the
// host's own; nil where it is on none.
func (a *Audit) Near(address netip.Addr) (at *Interface, own bool) {
	for i := range a.Interfaces {
		for _, p := range a.Interfaces[i].Addresses {
			if p.Addr() == address {
				return &a.Interfaces[i], true
			}
			if p.Contains(address) && at == nil {
				at = &a.Interfaces[i]
			}
		}
	}
	return at, false
}

// GrownPlaces returns what the counter of each place grew by since before, in which it is found by its
// text and its turn among those that are alike; 0 where it does not count, or is new.
func GrownPlaces(now, before []RulePlace) []uint64 {
	type place struct {
		text   string
		handle uint64
		nth    int
	}
	each := func(all []RulePlace, do func(i int, p place)) {
		alike := map[place]int{}
		for i, r := range all {
			p := place{r.Text, r.Handle, 0}
			alike[p]++
			p.nth = alike[p]
			do(i, p)
		}
	}
	counted := map[place]uint64{}
	each(before, func(i int, p place) {
		if before[i].Counted {
			counted[p] = before[i].Packets
		}
	})
	grown := make([]uint64, len(now))
	each(now, func(i int, p place) {
		if then, known := counted[p]; known && now[i].Counted && then <= now[i].Packets {
			grown[i] = now[i].Packets - then
		}
	})
	return grown
}
