package snapshot

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
)

// ConntrackStat holds the connection tracker's counters, one map per CPU, under
// the kernel's own names (drop, early_drop, insert_failed, chaintoolong,
// clash_resolve, …). A counter that this kernel does not have is absent.
type ConntrackStat struct {
	// Source is "ctnetlink" (IPCTNL_MSG_CT_GET_STATS_CPU) or
	// "/proc/net/stat/nf_conntrack".
	Source string              `json:"source"`
	PerCPU []map[string]uint64 `json:"per_cpu"`
}

// Total sums a counter over the CPUs; false where the kernel does not have it.
// The kernel keeps each as an unsigned 32-bit number that wraps.
func (c *ConntrackStat) Total(name string) (uint64, bool) {
	if c == nil {
		return 0, false
	}
	var sum uint64
	found := false
	for _, cpu := range c.PerCPU {
		if v, ok := cpu[name]; ok {
			sum += v
			found = true
		}
	}
	return sum, found
}

// Delta returns how much a counter grew on all CPUs since before, wrap-around of a
// CPU's 32-bit counter included.
func (c *ConntrackStat) Delta(before *ConntrackStat, name string) (uint64, bool) {
	if c == nil || before == nil || len(c.PerCPU) != len(before.PerCPU) {
		return 0, false
	}
	var sum uint64
	found := false
	for i, cpu := range c.PerCPU {
		now, ok := cpu[name]
		then, okThen := before.PerCPU[i][name]
		if ok && okThen {
			sum += uint64(uint32(now) - uint32(then))
			found = true
		}
	}
	return sum, found
}

// ConntrackSize is what entries and hash buckets cost.
type ConntrackSize struct {
	// EntryBytes is one slab object of struct nf_conn, alignment included.
	EntryBytes uint64 `json:"entry_bytes"`
	// ExtensionBytes is the kmalloc object that holds NAT, accounting and other
	// extensions (NF_CT_EXT_PREALLOC, 128 bytes since 4.19).
	ExtensionBytes uint64 `json:"extension_bytes"`
	// BucketBytes is one hash bucket (struct hlist_nulls_head): a pointer.
	BucketBytes uint64 `json:"bucket_bytes"`
	// SlabBytes is what the nf_conntrack slab holds now, all namespaces together;
	// 0 where unknown.
	SlabBytes uint64 `json:"slab_bytes"`
	// ActiveEntries are the objects of that slab that are in use, about: SlabBytes has
	// those that were freed lately, too. 0 where unknown.
	ActiveEntries uint64 `json:"active_entries,omitempty"`
	// ExtensionSlabBytes is what the slab that extensions are taken from
	// (kmalloc-128) holds now, objects of others included; 0 where unknown.
	ExtensionSlabBytes uint64 `json:"extension_slab_bytes"`
	// Source is where EntryBytes was read: /proc/slabinfo, /sys/kernel/slab/…,
	// BTF, or "assumed".
	Source string `json:"source"`
	// ExtensionSource is the source of ExtensionBytes.
	ExtensionSource string `json:"extension_source,omitempty"`
}

// PerEntry is the memory that one tracked connection takes, in bytes.
func (s ConntrackSize) PerEntry() uint64 { return s.EntryBytes + s.ExtensionBytes }

// RemainingStep is the width in seconds of one element of ConntrackTable.Remaining.
const RemainingStep = 5

// ConntrackTable summarises the entries of the namespace's table. Numbers count
// the Sampled entries, not the table; Share turns one into a share.
type ConntrackTable struct {
	// Sampled entries were decoded. The dump walks the hash table in order of a
	// keyed hash, so its beginning is an unbiased sample.
	Sampled int64 `json:"sampled"`
	// Complete is true where the whole table was read.
	Complete bool `json:"complete"`

	ByProtocol map[string]int64 `json:"by_protocol"`
	ByTCPState map[string]int64 `json:"by_tcp_state"`
	Assured    int64            `json:"assured"`
	Unreplied  int64            `json:"unreplied"`
	SNAT       int64            `json:"snat"`
	DNAT       int64            `json:"dnat"`
	Offloaded  int64            `json:"offloaded"`

	// Remaining counts entries by class (as in Flows.PerSecond) and by the
	// seconds left until they expire: element i counts i*RemainingStep up to but
	// not including (i+1)*RemainingStep. Entries with more than 600 s left are
	// not in it. The age of an entry in its state is the state's timeout less this.
	Remaining map[string][]int64 `json:"remaining"`

	TopSources  []Talker `json:"top_sources"`
	TopServices []Talker `json:"top_services"`

	// Unanswered and Idle are nil in recordings of a natkit that did not count them;
	// Idle also where the timeout is not known.
	Unanswered *Unanswered      `json:"unanswered,omitempty"`
	Idle       *IdleEstablished `json:"idle_established,omitempty"`
}

// Talker is an address, or a service (protocol, address and port), with the
// number of its entries among the sampled ones: exact up to 65,536 different
// ones, with more too low by at most Sampled/65,537.
type Talker struct {
	Who     string `json:"who"`
	Entries int64  `json:"entries"`
}

// NATRules are the rules of one namespace that translate addresses, in the order
// in which a packet meets them: by hook, by priority of the chain, by place.
type NATRules struct {
	Rules []NATRule `json:"rules"`
	// TooMany is true where more ways lead through chains and maps than natkit follows: rules may
	// be missing, and those that are Partial lack their conditions.
	TooMany bool `json:"too_many_to_follow,omitempty"`
	// Unreached are rules of chains that no base chain leads to (any more), with the hook at which they
	// would translate.
	Unreached []UnreachedRule `json:"unreached,omitempty"`
}

// UnreachedRule is a rule that no packet comes to, as nothing leads to the chain From.
type UnreachedRule struct {
	NATRule
	From string `json:"from_chain"`
	// Owner is the program that keeps the chain; empty if none is known.
	Owner string `json:"owner,omitempty"`
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
	// Source is "nftables", "iptables-nft" or "iptables-legacy"; "iptables" of a text that does not say which variant.
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
	// NATCondition is what the rule asks of a packet, without Unless.
	NATCondition
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
	// FirstOfSeveral and LastOfSeveral bound the destination ports of a rule that is for several, and so
	// Partial; 0 of one that is not, and in bundles of older natkit.
	FirstOfSeveral uint16 `json:"first_of_destination_ports,omitempty"`
	LastOfSeveral  uint16 `json:"last_of_destination_ports,omitempty"`
	// SeveralPorts are all of them, in no order; none of what has one, or none, and in bundles of older natkit.
	SeveralPorts []nat.Ports `json:"several_destination_ports,omitempty"`
	// Ways are the rule once for each way that several rules lead to it: it is for
	// packets of any of them, and itself Partial.
	Ways []NATRule `json:"-"`
	// Missing are the numbers of Draws ones by which a map chooses the address, and that have no element in it;
	// Chance is true of a rule for a part of the connections, by chance or in turn.
	Missing string `json:"missing,omitempty"`
	Draws   uint32 `json:"draws,omitempty"`
	Chance  bool   `json:"chance,omitempty"`
	// Drawn are the destinations in that map, Hashed is true where a hash of the packet chooses one.
	Drawn  []Drawn `json:"drawn,omitempty"`
	Hashed bool    `json:"hashed,omitempty"`
	// Listens is true where a program of this host takes what these leave over.
	Listens bool `json:"listens,omitempty"`
	// Text is the translation in nft's words: "masquerade to :1024-2047 fully-random".
	Text string `json:"text"`
	// Packets are the first packets of connections that the rule was for, if Counted: those
	// that were dropped later, and sent again, each time.
	Packets uint64 `json:"packets,omitempty"`
	Counted bool   `json:"counted,omitempty"`
}

// Drawn is a destination that a rule draws among others, by so many of its numbers. Port is 0 where it is kept.
type Drawn struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`
	Numbers uint32     `json:"numbers"`
}

// NATCondition is what a rule may ask of a packet.
type NATCondition struct {
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
}

// Grown returns what the counter of each rule grew by since earlier rules, in which it is found by
// its place; 0 where it does not count, or is new.
func (n *NATRules) Grown(before *NATRules) []uint64 {
	grown, _ := n.Compared(before)
	return grown
}

// Compared is Grown, with whether each rule counted at both times: one that is new, or whose counter was set back, is not known by
// what it grew by.
func (n *NATRules) Compared(before *NATRules) (grown []uint64, known []bool) {
	grown, known = make([]uint64, len(n.Rules)), make([]bool, len(n.Rules))
	if before == nil {
		return grown, known
	}
	type place struct {
		source, family, table, chain, hook, text string
		handle                                   uint64
		NATCondition
		nth int // of those that are alike
	}
	places := func(rules []NATRule, each func(i int, p place)) {
		alike := map[place]int{}
		for i := range rules {
			r := &rules[i]
			p := place{r.Source, r.Family, r.Table, r.Chain, r.Hook, r.Text, r.Handle, r.NATCondition, 0}
			alike[p]++
			p.nth = alike[p]
			each(i, p)
		}
	}
	counted := map[place]uint64{}
	places(before.Rules, func(i int, p place) {
		if before.Rules[i].Counted {
			counted[p] = before.Rules[i].Packets
		}
	})
	places(n.Rules, func(i int, p place) {
		r := &n.Rules[i]
		if then, is := counted[p]; is && r.Counted && then <= r.Packets {
			grown[i], known[i] = r.Packets-then, true
		}
	})
	return grown, known
}

// TranslatesSource reports whether the rule is about sources.
func (r *NATRule) TranslatesSource() bool { return r.Kind == NATMasquerade || r.Kind == NATSource }

// Place returns where the rule is: "ip nat POSTROUTING", or "nat[3] snat of the gateway".
func (r *NATRule) Place() string {
	if r.Gateway != "" {
		return r.Gateway + " of the gateway"
	}
	place := strings.Join([]string{r.Family, r.Table, r.Chain}, " ")
	if r.Source == "iptables-legacy" {
		place += " of iptables-legacy"
	}
	return place
}

// Ports is how far the ports of the addresses that NAT gives are used up.
type Ports struct {
	// Sampled entries were read; Complete is true where that was all.
	Sampled  int64 `json:"sampled"`
	Complete bool  `json:"complete"`
	// Probing is how this kernel searches for a free port: PortProbeRandom or
	// PortProbeAll.
	Probing string `json:"probing"`
	// Evicts is whether this kernel, by its release, takes the port of a TCP
	// connection that has ended and whose sequence numbers the new one is past.
	Evicts bool `json:"evicts_closed_tcp"`
	// Translated entries have another source than the one that sent.
	Translated int64 `json:"translated"`
	// Seconds lie between the dumps that the rates are from; 0 where there was one.
	Seconds float64 `json:"seconds"`
	// Pools are the most pressed ones, worst first; Total is how many there are.
	// LeftOut more, small ones, found no room in memory.
	Pools   []PortPool `json:"pools"`
	Total   int64      `json:"pools_total"`
	LeftOut int64      `json:"pools_left_out,omitempty"`
}

// Replace puts pools that were read exactly into the place of those that a sample gave.
func (p *Ports) Replace(exact []PortPool) {
	type key struct {
		address, protocol, destination, class string
		zone, first, last                     uint16
	}
	of := func(p *PortPool) key {
		return key{p.Address, p.Protocol, p.Destination, p.Class, p.Zone, p.FirstPort, p.LastPort}
	}
	known := map[key]bool{}
	for i := range exact {
		known[of(&exact[i])] = true
	}
	before := len(p.Pools)
	p.Pools = slices.DeleteFunc(p.Pools, func(pool PortPool) bool { return known[of(&pool)] })
	p.Total += int64(len(exact) - (before - len(p.Pools)))
	p.Pools = append(p.Pools, exact...)
	slices.SortFunc(p.Pools, func(a, b PortPool) int { return a.Compare(&b) })
}

// How the kernel searches for a free port.
const (
	// PortProbeRandom: 128, 64, 32, 16 and 8 consecutive ports from random starts
	// (nf_nat_l4proto_unique_tuple since Linux 5.0).
	PortProbeRandom = "random-windows"
	// PortProbeAll: the whole range, one after the other.
	PortProbeAll = "whole-range"
)

// PortPool is the ports of one address towards one destination: two connections
// to it may not have the same one.
type PortPool struct {
	// Address is the one that the destination sees; Destination is an address with
	// port, as the connection leaves this machine (after a DNAT).
	Address     string `json:"address"`
	Protocol    string `json:"protocol"`
	Destination string `json:"destination"`
	Zone        uint16 `json:"zone,omitempty"`
	// FirstPort and LastPort bound what the kernel may take, RangeSource says which
	// rule or rule of the kernel decides that. Class is "" or, where privileged source
	// ports keep to themselves, "privileged" (1-511) or "reserved" (600-1023).
	FirstPort   uint16 `json:"first_port"`
	LastPort    uint16 `json:"last_port"`
	RangeSource string `json:"range_source"`
	Class       string `json:"class,omitempty"`
	// Rule is the index in NATRules.Rules of the rule that gave the address; -1
	// where none was found. Draws is whether that rule draws a port for every new
	// connection (random, fully-random).
	Rule  int  `json:"rule"`
	Draws bool `json:"draws"`

	// Used ports of the range, of them in TIME_WAIT; scaled to the whole table where
	// that was sampled. Local of the used ones belong to sockets of this machine.
	Used     int64 `json:"used"`
	TimeWait int64 `json:"time_wait"`
	Local    int64 `json:"local"`
	// ClientClosed of those in TIME_WAIT were closed by their client first, so that the
	// server does not hold them.
	ClientClosed int64   `json:"client_closed,omitempty"`
	Share        float64 `json:"share"`
	// NewPerSecond is the rate of new connections that live, or keep their port,
	// from one dump to the other; EndedPerSecond of those that are gone. Both are 0
	// where RateKnown is false. SecondsLeft until the range is used up at these
	// rates; -1 for never, or not known.
	RateKnown      bool    `json:"rate_known"`
	NewPerSecond   float64 `json:"new_per_second"`
	EndedPerSecond float64 `json:"ended_per_second"`
	SecondsLeft    float64 `json:"seconds_left"`
	// Users are the sources with most ports.
	Users []Talker `json:"users"`
	// Exact is true where all entries of the pool were read though the table was sampled.
	Exact bool `json:"exact,omitempty"`

	// FailsIfTaken is the chance, 0 to 1, that a new connection fails now whose
	// preferred port is taken; TakenShare how often that is so; Fails the chance of
	// any new connection. Known is false where the table was sampled, so that the
	// layout of the used ports is not known; then they are 0. Where Ports.Evicts,
	// FailsIfTaken is that of a connection past the sequence numbers of all ended
	// ones, the least, and FailsIfKept that of one which is past none, the most;
	// elsewhere they are equal.
	Known        bool    `json:"chance_known"`
	FailsIfTaken float64 `json:"fails_if_taken"`
	FailsIfKept  float64 `json:"fails_if_taken_without_eviction"`
	TakenShare   float64 `json:"taken_share"`
	TakenFrom    string  `json:"taken_share_from,omitempty"`
	Fails        float64 `json:"fails"`
	// FailsScattered is what FailsIfTaken would be if as many used ports lay in the
	// range by chance.
	FailsScattered float64 `json:"fails_if_taken_scattered"`
	// Alternatives are there where they were asked for and the pool is pressed.
	Alternatives []PortAlternative `json:"alternatives,omitempty"`
}

// Len is the number of ports of the range.
func (p *PortPool) Len() int64 { return int64(p.LastPort) - int64(p.FirstPort) + 1 }

// FewestPorts is the least number that makes a pool. A rule with fewer is there to let one program keep its port (SIP, IPsec): all
// of them in use is what it is for.
const FewestPorts = 16

// IsMapping reports whether the pool is no more than the ports of one program.
func (p *PortPool) IsMapping() bool { return p.Len() < FewestPorts }

// Compare orders the pool first in which a new connection is most likely to fail, and the ports of single programs, all of which may
// be in use, behind all pools.
func (p *PortPool) Compare(o *PortPool) int {
	switch {
	case p.IsMapping() == o.IsMapping():
	case p.IsMapping():
		return 1
	default:
		return -1
	}
	return cmp.Or(cmp.Compare(o.Fails, p.Fails), cmp.Compare(o.FailsIfTaken, p.FailsIfTaken), cmp.Compare(o.Share, p.Share),
		cmp.Compare(o.Used, p.Used), cmp.Compare(p.Address, o.Address), cmp.Compare(p.Protocol, o.Protocol),
		cmp.Compare(p.Destination, o.Destination), cmp.Compare(p.FirstPort, o.FirstPort), cmp.Compare(p.Zone, o.Zone))
}

// IsPressed reports whether a pool whose range a rule gives, other than the ports of one program, has at least that share of its
// ports in use.
func (p *Ports) IsPressed(share float64, rules *NATRules) bool {
	return slices.ContainsFunc(p.Pools, func(pool PortPool) bool {
		return !pool.IsMapping() && pool.Share >= share && rules != nil && pool.Rule >= 0 && pool.Rule < len(rules.Rules) && rules.Rules[pool.Rule].FirstPort != 0
	})
}

// What PortAlternative.What may be.
const (
	PortsFullyRandom    = "fully-random"
	PortsLongerRange    = "longer-range"
	PortsAnotherAddress = "another-address"
)

// PortAlternative is what the chance of any new connection to fail would be with
// another rule: at once, with the used ports as they are, and once as many lie in
// the range by chance.
type PortAlternative struct {
	What       string  `json:"what"`
	FailsNow   float64 `json:"fails_now"`
	FailsLater float64 `json:"fails_later"`
}

// SharedAddress is an address that NAT gives and sockets of this machine use too:
// their ports are out of the same range.
type SharedAddress struct {
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	// Listening sockets and UDP ones without a peer are bound to the address, or to
	// all addresses (Wildcard); Connected ones have it as theirs.
	Listening int64 `json:"listening"`
	Wildcard  int64 `json:"wildcard"`
	Connected int64 `json:"connected"`
}

// Names reports whether the rule is for several destination ports, and this is one of them: not of nearly all there
// are, of which filters may let pass those that are meant.
func (r *NATRule) Names(port uint16) bool {
	return slices.ContainsFunc(r.SeveralPorts, func(p nat.Ports) bool { return p.Contains(port) && p.Len() < 1<<15 })
}

// IsForOneOf reports whether the rule is for several destination ports, and this is one of them.
func (r *NATRule) IsForOneOf(port uint16) bool {
	return slices.ContainsFunc(r.SeveralPorts, func(p nat.Ports) bool { return p.Contains(port) })
}

// MayMatchPort reports whether a packet to a destination port may match the rule. Bundles of older natkit have the first and the
// last of several ports alone.
func (r *NATRule) MayMatchPort(port uint16) bool {
	switch {
	case r.DestinationPort != 0:
		return r.DestinationPort <= port && port <= max(r.DestinationPort, r.LastDestinationPort)
	case len(r.SeveralPorts) > 0:
		return r.IsForOneOf(port)
	}
	return r.LastOfSeveral == 0 || r.FirstOfSeveral <= port && port <= r.LastOfSeveral
}

// Ports is the range that the rule gives, which the kernel also takes the wrong way round.
func (r *NATRule) Ports() nat.Ports {
	return nat.Ports{First: min(r.FirstPort, r.LastPort), Last: max(r.FirstPort, r.LastPort)}
}
