// Package iptables reads NAT rules as iptables and nftables have them, and tells
// which of them a gateway file says exactly. What it is not sure of it leaves
// out, with the reason.
package convert

import (
	"net/netip"

	"github.com/natkit/natkit/internal/nat"
)

// Ruleset is what a text or a kernel has, table by table.
type Ruleset struct {
	Tables []*Table
	// Notes are about what could not even be read as a rule.
	Notes []Note
	// Foreign is true where the text has lines and none of them is of rules.
	Foreign bool
	// tooMany is true where commands change a chain more often than is followed.
	tooMany bool
}

// Table is one table of one family; a table that is for both comes twice.
type Table struct {
	// Version is 4 or 6.
	Version int
	Name    string
	// Owner is the program that keeps the whole table, where one does.
	Owner  string
	Chains []*Chain
	// named are the first of the Chains, as many as are found there, by name.
	named map[string]*Chain
	found int
}

// Chain is a list of rules; Hook is empty where others jump to it.
type Chain struct {
	Name string
	// Hook is "prerouting", "input", "forward", "output" or "postrouting".
	Hook string
	// Priority orders chains at a hook, lower first.
	Priority int32
	// Filter is true of chains that are not NAT's: of their rules those count that keep
	// the tracker off or bound segments.
	Filter bool
	Rules  []*Rule
}

// Rule is one line.
type Rule struct {
	// Line is counted from 1; 0 where the rule is not from a text.
	Line int
	// Handle is the kernel's number of it, 0 where it has none. Rules with the same line or
	// handle are parts of one, such as those for the elements of a set.
	Handle uint64
	// Text is the rule in its own words.
	Text    string
	Comment string
	Match   Match
	Target  Target
}

// Match is the conditions of a rule; the zero value is every packet.
type Match struct {
	// From and To are not valid where any address is meant.
	From, To       netip.Prefix
	NotFrom, NotTo []netip.Prefix
	// In and Out are names; one that ends in "*" means all that begin so.
	In, Out       string
	NotIn, NotOut []string
	Protocol      string
	// Ports are the destination's, SourcePorts the source's; any where empty.
	Ports, SourcePorts []nat.Ports
	// ToLocal asks for a destination that is an address of the host.
	ToLocal bool
	// SYN asks for TCP segments with SYN and without RST.
	SYN bool
	// Unknown are conditions that natkit has no word for, each in its own words.
	Unknown []string
}

// Kind is what a rule does with a packet.
type Kind string

// Pass lets the packet go on to the next rule; Ends is an unknown target, after
// which nothing is sure.
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
	MSS        Kind = "mss"
	Ends       Kind = "ends"
)

// Target is what a rule does, and with what.
type Target struct {
	Kind Kind
	// Name is the target's own: "MASQUERADE".
	Name string
	// Chain is where Jump and Goto lead, more than one with a verdict map.
	Chains []string
	// First and Last bound the addresses; not valid where none is given.
	First, Last netip.Addr
	// Prefix is Netmap's.
	Prefix netip.Prefix
	// Ports are those that are given; zero where the kernel chooses.
	Ports               nat.Ports
	Random, RandomFully bool
	Persistent          bool
	// Clamp is MSS's; Bytes where it is a number.
	Clamp bool
	Bytes uint16
	// Unknown are options that natkit has no word for.
	Unknown []string
}

// translates reports whether a packet that matches gets its address from this rule,
// and from no later one.
func (t Target) translates() bool {
	switch t.Kind {
	case Masquerade, SNAT, DNAT, Netmap, Redirect, Ends:
		return true
	}
	return false
}

// What may become of a rule that is not in the file.
const (
	// Untranslated: the file does not do what this rule does.
	Untranslated = "untranslated"
	// LeftAlone: it is another program's, or does not translate.
	LeftAlone = "left_alone"
	// Differs: the file does nearly what this rule does.
	Differs = "differs"
	// Redundant: another rule does the same to its packets, and nothing is lost without it.
	Redundant = "redundant"
	// Unreachable: no packet comes to it, and nothing is lost without it.
	Unreachable = "unreachable"
)

// Note says why a rule is not in the file.
type Note struct {
	// Line is 0 where the rule is not from a text, or where there are several.
	Line   int    `json:"line,omitempty"`
	Text   string `json:"text,omitempty"`
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	// Rules is how many rules it is about.
	Rules int `json:"rules"`
}

// chain is the one of that name, made where it is not there.
func (t *Table) chain(name string) *Chain {
	if c := t.find(name); c != nil {
		return c
	}
	c := &Chain{Name: name, Hook: builtin(t.Name, name), Priority: priorities[t.Name], Filter: t.Name != "nat"}
	t.Chains = append(t.Chains, c)
	return c
}

func (t *Table) find(name string) *Chain {
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

// hooks are iptables' own chains.
var hooks = map[string]string{
	"PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward",
	"OUTPUT": "output", "POSTROUTING": "postrouting",
}

// chainsOf are the own chains of each table.
var chainsOf = map[string][]string{
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"raw":    {"PREROUTING", "OUTPUT"},
	"filter": {"INPUT", "FORWARD", "OUTPUT"}, "security": {"INPUT", "FORWARD", "OUTPUT"},
}

// priorities order tables at a hook; those of nat are alone at theirs.
var priorities = map[string]int32{"raw": -300, "mangle": -150, "filter": 0, "security": 50}

func builtin(table, chain string) string {
	for _, name := range chainsOf[table] {
		if name == chain {
			return hooks[name]
		}
	}
	return ""
}
