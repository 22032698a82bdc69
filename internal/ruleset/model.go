// Package ruleset is the rules of netfilter that other programs made, in one model:
// tables, chains, rules with a match and a target. It reads what nf_tables and
// iptables-legacy answer, what iptables-save and nft print, follows packets through
// jumps, and knows which program a rule belongs to. It works on bytes and text; package
// read below it asks the kernel.
package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// GatewayFamily and GatewayTable name the table that natkit keeps for a gateway. Its
// rules are changed by the gateway's file only.
const (
	GatewayFamily = "inet"
	GatewayTable  = "natkit"
)

// Ruleset is the tables of a text or of a network namespace.
type Ruleset struct {
	Tables []*Table
	// Notes are about what could not be read as a rule.
	Notes []Note
	// Off are rules that a configuration has and that are disabled, each in tables of its own.
	Off []*Ruleset
	// Foreign is true if the text has neither tables nor rules.
	Foreign bool
}

// Table is a table of one family.
type Table struct {
	// Source is "nftables" or "iptables-legacy"; of a text "iptables-nft" as well, or "iptables" where it does not say
	// which variant printed it, or empty.
	Source string
	// Family is "ip", "ip6" or "inet".
	Family, Name string
	Chains       []*Chain
	// Short is true if elements of sets are missing because there are too many.
	Short bool
	// Readers are the queues that a program reads; nil where that is not known.
	Readers map[uint16]bool
	// named are the first of the Chains, as many as found, by name.
	named map[string]*Chain
	found int
}

// Chain is a list of rules; Hook is empty if it is reached by jumps only.
type Chain struct {
	Name string
	// Hook is "prerouting", "input", "forward", "output" or "postrouting", HookIngress or HookEgress
	// for those of an interface, or one of these behind "bridge " for those of a bridge.
	Hook string
	// Priority orders chains at a hook, lower first.
	Priority int32
	// Type is "nat", "filter" or "route". Of a chain that is not of type nat those rules
	// count that disable tracking or limit the MSS.
	Type string
	// Policy is "accept" or "drop"; empty if it is not known. Packets is how many it decided
	// on, Counted whether that is known.
	Policy  string
	Packets uint64
	Counted bool
	// Devices are the interfaces that it is for; nil for all.
	Devices []string
	Rules   []*Rule
}

// Rule is one rule.
type Rule struct {
	// Line counts from 1; 0 if the rule is not from a text.
	Line int
	// Handle is the kernel's number, 0 if it has none. Rules with the same line or handle
	// are parts of one, such as those for the elements of a set.
	Handle uint64
	// Text is the rule in the words of the program that it is from.
	Text    string
	Comment string
	// Packets is what the rule's counter counted; Counted is false if it has none, or one that
	// counts before the rule's last condition.
	Packets uint64
	Counted bool
	// ID names the rule for a change of its options; empty if natkit cannot change it.
	ID string
	// XT is true if nf_tables holds it as a match or target of x_tables.
	XT     bool
	Match  Match
	Target Target
	// Marks are those that it sets, whatever its target.
	Marks []SetMark
	// Log is how it logs packets beside its target; nil: not at all.
	Log *Log
}

// Log is what a rule logs of the packets that it matches.
type Log struct {
	// Prefix begins each line.
	Prefix string
	// Options are the others, in the words of nft.
	Options []string
}

// Match is the conditions of a rule; the zero value matches every packet. From, To, In
// and Out have one element at most: a rule with several becomes several. From is all
// addresses of a version of IP if the rule is for that version only.
type Match struct {
	nat.Match
	// SYN matches TCP segments with SYN and without RST.
	SYN bool
	// Unknown are conditions that natkit has no field for, in their own words; Marked and
	// BeforeNAT are true if one of them is about a mark of the packet or connection, or
	// about the destination before translation.
	Unknown           []string
	Marked, BeforeNAT bool
	// Nearly is in what its fields differ from the conditions.
	Nearly []string
	// Limits is true if one of them is about how many packets or connections there are.
	Limits bool
	// Conn, Flags, Sets and Conditions are those of the Unknown conditions that Judge can decide on,
	// about the packet's connection, TCP flags, elements of sets and all else; Opaque is true if there are
	// others.
	Conn  []ConnCondition
	Flags []FlagCondition
	// A map that values are taken from is among Sets: what is none of its keys does not meet it.
	Sets       []SetCondition
	Conditions []Condition
	Opaque     bool
	// Part is true if some packets of a connection may meet it and others not, Random if chance
	// decides on that, Loose if one of the conditions by which it does is none of Conditions.
	Part, Random, Loose bool
	// Share is how many packets of 1<<31 meet it by chance or in turn (xt_statistic), beside the other conditions; 0 for
	// all.
	Share uint32
}

// Kind is what a rule does with a packet.
type Kind string

// Pass continues with the next rule; Ends is an unknown target, after which nothing is
// certain.
const (
	Pass       Kind = "pass"
	Accept     Kind = "accept"
	Drop       Kind = "drop"
	Return     Kind = "return"
	Jump       Kind = "jump"
	Goto       Kind = "goto"
	Masquerade Kind = "masquerade"
	SNAT       Kind = "snat"
	DNAT       Kind = "dnat"
	Netmap     Kind = "netmap"
	Redirect   Kind = "redirect"
	Notrack    Kind = "notrack"
	Zone       Kind = "zone"
	MSS        Kind = "mss"
	Ends       Kind = "ends"
)

// Target is what a rule does, and with what.
type Target struct {
	Kind Kind
	// Name is the target's own: "MASQUERADE".
	Name string
	// Chains are where Jump and Goto lead, more than one with a verdict map.
	Chains []string
	// First and Last bound the addresses; not valid if the target gives none. Those of
	// Netmap are a prefix.
	First, Last netip.Addr
	// Options has the ports that are given; zero if the kernel chooses.
	nat.Options
	// Base is the port that becomes the first one given, as each of a range becomes the one at its place; 0 where
	// ports are not shifted.
	Base uint16
	// AddrsVary and PortsVary are true if they are not constant, as those from a map.
	AddrsVary, PortsVary bool
	// Missing are the numbers of Draws ones that have no element in the map that addresses are from, so that what
	// draws one is not translated; empty where each has one.
	Missing string
	Draws   uint32
	// Drawn are the destinations in that map; none where they are not known. Hashed is true where a hash of the packet
	// chooses, and not chance or turns.
	Drawn  []snapshot.Drawn
	Hashed bool
	// Clamp is MSS's; Bytes if it is a number.
	Clamp bool
	Bytes uint16
	// Zone and AnswerZone are those of conntrack that Zone sets, of a packet as the first one and
	// as an answer.
	Zone, AnswerZone uint16
	// Rejects is true of a Drop that answers.
	Rejects bool
	// Hops is how many hops a packet may take from here on, if SetsHops.
	Hops     uint8
	SetsHops bool
	// Queue are the numbers of the queues that a program decides on packets of, with Queued; Bypass is
	// true where they pass without one.
	Queue          nat.Ports
	Queued, Bypass bool
	// Unknown are options that natkit has no field for.
	Unknown []string
	// Besides is what the rule does before Kind: a rule of nft may have several statements.
	Besides Kind
	// verdicts decide for Ends, if they are a verdict map of which the elements are known.
	verdicts *verdictMap
}

// does makes it do something, after what it does already.
func (t *Target) does(kind Kind) {
	if t.Kind != "" && t.Kind != Pass {
		t.Besides = t.Kind
	}
	t.Kind = kind
}

// Translates reports whether a packet that matches gets its address from this rule, and
// from no later one.
func (t *Target) Translates() bool {
	switch t.Kind {
	case Masquerade, SNAT, DNAT, Netmap, Redirect, Ends:
		return true
	}
	return false
}

// Outside reports whether it does something that rules outside of NAT's chains do for NAT: keep the tracker off, or limit
// the MSS.
func (t *Target) Outside() bool {
	return t.Kind == Notrack || t.Kind == MSS || t.Besides == Notrack || t.Besides == MSS
}

// Prefix returns the prefix that Netmap maps to; not valid if it is not known.
func (t *Target) Prefix() netip.Prefix { return (nat.AddrRange{First: t.First, Last: t.Last}).Prefix() }

// What may become of a rule that is not in the file.
const (
	// Untranslated: the file does not do what this rule does.
	Untranslated = "untranslated"
	// LeftAlone: it is another program's, or does not translate.
	LeftAlone = "left_alone"
	// Differs: the file does nearly what this rule does.
	Differs = "differs"
	// Redundant: another rule does the same to its packets.
	Redundant = "redundant"
	// Unreachable: no packet reaches it.
	Unreachable = "unreachable"
)

// Note is the reason why a rule is not in the file.
type Note struct {
	// Line is 0 if the rule is not from a text, or if there are several.
	Line   int    `json:"line,omitempty"`
	Text   string `json:"text,omitempty"`
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	// Rules is how many rules it is about.
	Rules int `json:"rules"`
}

// NoWord begins the reasons for what a gateway file cannot express.
const NoWord = "natkit does not import "

// Chain returns the chain of a name, which is created if it is missing.
func (t *Table) Chain(name string) *Chain {
	if c := t.Find(name); c != nil {
		return c
	}
	c := &Chain{Name: name}
	t.Chains = append(t.Chains, c)
	return c
}

// Find returns the chain of a name, or nil.
func (t *Table) Find(name string) *Chain {
	if t.named == nil {
		t.named = map[string]*Chain{}
	}
	for ; t.found < len(t.Chains); t.found++ {
		if c := t.Chains[t.found]; t.named[c.Name] == nil {
			t.named[c.Name] = c
		}
	}
	return t.named[name]
}

// IsNAT reports whether the table has a chain that translates.
func (t *Table) IsNAT() bool {
	return slices.ContainsFunc(t.Chains, func(c *Chain) bool { return c.Hook != "" && c.Type == "nat" })
}

// Concerns reports whether packets that reach one of its base chains may be translated,
// exempted from tracking, or have their MSS limited.
func (t *Table) Concerns() bool {
	w := walker{table: t}
	known := map[*Chain]bool{}
	return t.IsNAT() || slices.ContainsFunc(t.Chains, func(c *Chain) bool {
		return c.Hook != "" && w.reaches(c, known, func(_ *Chain, r *Rule) bool { return r.Target.Outside() })
	})
}

// IsGateway reports whether it is the table of natkit's gateway.
func (t *Table) IsGateway() bool { return t.Family == GatewayFamily && t.Name == GatewayTable }

// IsIptables reports whether iptables-legacy or iptables-nft keeps the table: one of
// iptables' own names, without a base chain that iptables does not have.
func (t *Table) IsIptables() bool {
	names := builtinChains[t.Name]
	return strings.HasPrefix(t.Source, "iptables") || (t.Family == "ip" || t.Family == "ip6") && names != nil &&
		!slices.ContainsFunc(t.Chains, func(c *Chain) bool { return c.Hook != "" && !slices.Contains(names, c.Name) })
}

// Program returns "nftables", "iptables-nft", "iptables-legacy", or "iptables" where a text does not say which variant.
func (t *Table) Program() string {
	xt := func(c *Chain) bool { return slices.ContainsFunc(c.Rules, func(r *Rule) bool { return r.XT }) }
	if t.Source == "nftables" && (t.IsIptables() || slices.ContainsFunc(t.Chains, xt)) {
		return "iptables-nft"
	}
	return t.Source
}

// Hooks that are none of IP's; BridgeHook is before the name of a bridge's.
const (
	HookIngress = "ingress"
	HookEgress  = "egress"
	BridgeHook  = "bridge "
)

// HookNames are those of NF_INET_*, in their order; bridges have them, too (NF_BR_*).
var HookNames = []string{"prerouting", "input", "forward", "output", "postrouting"}

// builtinChains are the built-in chains of each table of iptables.
var builtinChains = map[string][]string{
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"raw":    {"PREROUTING", "OUTPUT"},
	"filter": {"INPUT", "FORWARD", "OUTPUT"}, "security": {"INPUT", "FORWARD", "OUTPUT"},
}

// IsBuiltin reports whether iptables has a table of that name.
func IsBuiltin(table string) bool { return builtinChains[table] != nil }

// priorities order tables of iptables at a hook (NF_IP_PRI_*).
var priorities = map[string]int32{"raw": -300, "mangle": -150, "filter": 0, "security": 50}

// builtin returns a chain of a table of iptables, with its hook if it is built in.
func (t *Table) builtin(name string) *Chain {
	if c := t.Find(name); c != nil || !slices.Contains(builtinChains[t.Name], name) {
		return t.Chain(name)
	}
	c := t.Chain(name)
	c.Hook, c.Priority, c.Type = strings.ToLower(name), priorities[t.Name], "filter"
	if t.Name == "nat" {
		c.Type, c.Priority = "nat", 100 // NF_IP_PRI_NAT_SRC
		if c.Hook == "prerouting" || c.Hook == "output" {
			c.Priority = -100 // NF_IP_PRI_NAT_DST
		}
	}
	return c
}

// BaseChain is a chain at a hook, and what it leads to.
type BaseChain struct {
	// Source is what Program returns; Owner a guess by names:
	// "docker", "kubernetes", "firewalld", or empty.
	Source string `json:"source"`
	Owner  Owner  `json:"owner,omitempty"`
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Type is "filter", "nat" or "route"; of iptables-legacy "nat" or "filter".
	Type string `json:"type"`
	Hook string `json:"hook"`
	// Priority orders chains at a hook, lower first.
	Priority int32 `json:"priority"`
	// Policy is what becomes of packets that no rule with conditions decides: "accept",
	// "drop" or "reject", by the chain's policy or a rule that matches all.
	Policy string `json:"policy,omitempty"`
	// Accepts are the conditions of its rules that accept, if the policy is another; 1,000
	// at most. What rules before them take is not subtracted.
	Accepts []snapshot.NATRule `json:"accepts,omitempty"`
	// Rules is how many rules it leads to, each once.
	Rules int `json:"rules"`
	// NAT are its rules that translate, once for each path that leads to them.
	NAT []snapshot.NATRule `json:"nat,omitempty"`
	// TooMany is true if more leads to them than natkit follows: some may be missing.
	TooMany bool `json:"too_many_to_follow,omitempty"`
}

// BaseChains are those of a table; bySet is the same table with a rule for each element
// of sets.
func (t *Table) BaseChains(bySet *Table, budget *Budget) (all []BaseChain) {
	for _, c := range t.Chains {
		if c.Hook == "" {
			continue
		}
		b := BaseChain{Source: t.Program(), Family: t.Family, Table: t.Name, Chain: c.Name,
			Type: c.Type, Hook: c.Hook, Priority: c.Priority, Policy: t.policyOf(c)}
		var names []string
		b.Rules, names = t.reach(c)
		b.Owner = ownerOfNames(t.Name, append([]string{c.Name}, names...)...)
		if b.Policy != "accept" {
			b.Accepts = t.accepts(c)
		}
		if b.Type == "nat" {
			b.NAT, b.TooMany = bySet.translations(bySet.Find(c.Name), budget)
		}
		all = append(all, b)
	}
	return all
}
