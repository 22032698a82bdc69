// Package read reads the rules of a network namespace that translate
// addresses (nftables, iptables-nft and iptables-legacy alike), by the kernel's own interfaces,
// and changes ports and options of one of them in place.
package read

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
)

// tableKey is what a table is known by.
type tableKey struct {
	family uint8
	name   string
}

func (t tableKey) String() string { return familyNames[t.family] + " " + t.name }

// attempts bound how often the rules are read anew while others change them.
const attempts = 10

// NAT tells the rules of a namespace (nil: this one) that translate addresses, in
// the order in which packets meet them. A rule that packets come to from several
// hooks is there for each. Needs CAP_NET_ADMIN in that namespace. No module of
// iptables is loaded by it.
func NAT(ns *netns.Handle) (*snapshot.NATRules, error) {
	inode, err := netns.InodeOf(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules: %w", err)
	}
	set, err := readNft(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules of nftables: %w", err)
	}
	set.identify(inode)
	ways := newBudget()
	all := set.found(ways)
	legacy, err := readLegacy(ns, ways)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules of iptables-legacy: %w", err)
	}
	return &snapshot.NATRules{Rules: inHookOrder(append(all, legacy...)), TooMany: ways.spent()}, nil
}

// ruleset is the part of nf_tables' rule set that concerns NAT, at one generation.
type ruleset struct {
	generation uint32
	tables     []kernelTable
	links      map[uint32]string
}

// kernelTable is a table with NAT chains. targets names the rules of which natkit
// can change the options.
type kernelTable struct {
	key      tableKey
	owned    bool // one socket alone may change it
	chains   []kernelChain
	rules    []*kernelRule
	verdicts map[string][]string
	// maps are those by which sources are translated.
	maps map[string][]mapElement
	// sets are those whose elements stay, for Chains alone.
	sets    map[string][]element
	targets map[*kernelRule]string
}

func readNft(ns *netns.Handle) (*ruleset, error) {
	set, err := over(ns, func(c conn) (*ruleset, error) {
		names, err := links(ns)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		return c.ruleset(names)
	})
	if set == nil && err == nil {
		set = &ruleset{}
	}
	return set, err
}

func (c conn) ruleset(names map[uint32]string) (set *ruleset, err error) {
	generation, there, err := c.settled(func() (err error) { set, err = c.once(); return err })
	switch {
	case err != nil:
		return nil, err
	case !there:
		return &ruleset{}, nil
	}
	set.generation, set.links = generation, names
	return set, nil
}

func (c conn) once() (*ruleset, error) {
	all, err := c.chains()
	if err != nil {
		return nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	set := &ruleset{}
	for _, key := range natTables(all) {
		if flags[key]&nftTableDormant != 0 { // its chains are at no hook
			continue
		}
		t, err := c.tableOf(key, all)
		if err != nil {
			return nil, err
		}
		t.owned = flags[key]&nftTableOwner != 0
		if err := c.sourceMaps(t); err != nil {
			return nil, err
		}
		set.tables = append(set.tables, *t)
	}
	return set, nil
}

// tableOf is a table with its chains, rules and verdict maps.
func (c conn) tableOf(key tableKey, chains []kernelChain) (t *kernelTable, err error) {
	t = &kernelTable{key: key, verdicts: map[string][]string{}, maps: map[string][]mapElement{}, targets: map[*kernelRule]string{}}
	for _, chain := range chains {
		if (tableKey{chain.family, chain.table}) == key {
			t.chains = append(t.chains, chain)
		}
	}
	if t.rules, err = c.rules(key); err != nil {
		return nil, err
	}
	return t, c.verdictMaps(t)
}

// natTables are the tables that have a base chain of type nat, each once.
func natTables(all []kernelChain) []tableKey {
	var keys []tableKey
	seen := map[tableKey]bool{}
	for _, c := range all {
		key := tableKey{c.family, c.table}
		if c.translates() && !seen[key] {
			keys, seen[key] = append(keys, key), true
		}
	}
	return keys
}

// verdictMaps reads the maps by which rules of the table jump.
func (c conn) verdictMaps(t *kernelTable) error {
	for _, r := range t.rules {
		for _, e := range r.exprs {
			if e.name != "lookup" || !e.data.has(nftLookupDreg) || e.data.u32(nftLookupDreg) != 0 {
				continue
			}
			name := e.data.text(nftLookupSet)
			if _, known := t.verdicts[name]; known {
				continue
			}
			chains, err := c.verdicts(t.key, name)
			if err != nil {
				return err
			}
			t.verdicts[name] = chains
		}
	}
	return nil
}

// found are the rules that translate, table by table.
func (s *ruleset) found(ways *budget) []found {
	var all []found
	for i := range s.tables {
		all = append(all, s.tables[i].found(s.links, ways)...)
	}
	return all
}

func (t *kernelTable) found(links map[uint32]string, ways *budget) []found {
	table := t.structure(links)
	t.expand(table, ways)
	return table.rules(ways)
}

// structure is the table made for following packets through it.
func (t *kernelTable) structure(links map[uint32]string) *ruleTable {
	table := newTable(familyNames[t.key.family], t.key.name)
	for _, c := range t.chains {
		chain := table.chain(c.name)
		if c.translates() {
			chain.bases = append(chain.bases, base{c.hook, c.priority})
		}
	}
	m := machine{family: table.family, links: links, verdicts: func(set string) []string { return t.verdicts[set] }}
	for _, r := range t.rules {
		s := m.readStep(r)
		s.rule.Target = t.targets[r]
		chain := table.chain(r.chain)
		chain.steps = append(chain.steps, s)
	}
	return table
}

// NATTable is a table that has chains of NAT, or others that concern it, with all that
// leads packets through it.
type NATTable struct {
	// Source is "nftables" or "iptables-legacy"; tables of iptables-nft are nftables'.
	Source, Family, Name string
	Chains               []NATChain
}

// IsIptables reports whether it is a table of iptables-legacy or iptables-nft.
func (t *NATTable) IsIptables() bool {
	return t.Source == "iptables-legacy" || t.Family != "inet" && slices.Contains(iptablesTables, t.Name)
}

// NATChain is a chain; Hooks are empty where others jump to it.
type NATChain struct {
	Name  string
	Hooks []NATHook
	Steps []NATStep
}

// NATHook is where packets enter a base chain.
type NATHook struct {
	Hook     string
	Priority int32
	// NAT is true where it is a chain of NAT.
	NAT bool
}

// NATStep is a rule, one that translates or another. Of Rule only conditions,
// translation, Source and Handle are set; Partial is true for ranges of ports, too.
type NATStep struct {
	Rule    snapshot.NATRule
	Further Further
	// Unknown is true where it has conditions that neither has; Cause is one of them.
	Unknown bool
	Cause   string
	// Version is 4 or 6 where the rule asks for a version of IP.
	Version uint8
	// Translates, Prefix: one prefix for another; Shifts: ports by an offset.
	Translates, Prefix, Shifts bool
	// To are the chains that the rule sends packets to. Leaves is true where they do
	// not come to the next rule, Ends where they leave the base chain, Refuses where they
	// end so.
	To                    []string
	Leaves, Ends, Refuses bool
	// Notrack keeps the tracker off; MSS bounds the segments that SYNs ask for, to that
	// many bytes, or, by ClampMSS, to what the route's MTU takes.
	Notrack  bool
	MSS      uint16
	ClampMSS bool
	// Other is the name of a target that is none of these; Comment the rule's own.
	Other, Comment string
}

// Tables tells the tables of a namespace (nil: this one) that have chains of NAT, or
// others with rules that keep the tracker off or bound segments. It tells them rule by
// rule, as Read tells only those that translate, and a rule that looks into sets once
// for each element. Needs CAP_NET_ADMIN there.
func Tables(ns *netns.Handle) ([]NATTable, error) {
	all, err := nftChains(ns)
	if err != nil {
		return nil, fmt.Errorf("read rules of nftables: %w", err)
	}
	legacy, err := legacyTables(ns, "raw", "mangle", "nat", "filter")
	if err != nil {
		return nil, fmt.Errorf("read rules of iptables-legacy: %w", err)
	}
	for _, t := range legacy {
		table := t.exported(func(string) bool { return t.name == "nat" })
		table.Source = "iptables-legacy"
		all = append(all, table)
	}
	return slices.DeleteFunc(all, func(t NATTable) bool { return len(t.Chains) == 0 }), nil
}

// exported is the table; nat tells which of its base chains are those of NAT. It is
// empty where neither they nor what the others do concern a gateway.
func (t *ruleTable) exported(nat func(chain string) bool) NATTable {
	table, concerns := NATTable{Source: "nftables", Family: t.family, Name: t.name}, false
	for _, c := range t.order {
		chain := NATChain{Name: c.name}
		for _, b := range c.bases {
			chain.Hooks = append(chain.Hooks, NATHook{Hook: hookNames[b.hook], Priority: b.priority, NAT: nat(c.name)})
			concerns = concerns || nat(c.name) || t.besidesNAT(c, map[*ruleChain]bool{})
		}
		for i := range c.steps {
			chain.Steps = append(chain.Steps, c.steps[i].exported())
		}
		table.Chains = append(table.Chains, chain)
	}
	if !concerns {
		return NATTable{}
	}
	return table
}

func (s *step) besidesNAT() bool { return s.notrack || s.clampMSS || s.mss != 0 }

// besidesNAT reports whether a chain has, or leads to, a rule that a gateway has words
// for although it does not translate.
func (t *ruleTable) besidesNAT(c *ruleChain, seen map[*ruleChain]bool) bool {
	if c == nil || seen[c] {
		return false
	}
	seen[c] = true
	return slices.ContainsFunc(c.steps, func(s step) bool {
		return s.besidesNAT() ||
			slices.ContainsFunc(s.to, func(name string) bool { return t.besidesNAT(t.chains[name], seen) })
	})
}

func (s *step) exported() NATStep {
	return NATStep{Rule: s.rule, Further: s.further, Unknown: s.unknown, Cause: s.cause, Version: s.version,
		Translates: s.translates, Prefix: s.netmap || s.prefix, Shifts: s.shifts,
		To: s.to, Leaves: s.leaves, Ends: s.ends, Refuses: s.refuses != "",
		Notrack: s.notrack, MSS: s.mss, ClampMSS: s.clampMSS, Other: s.other, Comment: s.comment}
}

// kernelRule is a rule as the kernel tells it, each expression with its own bytes.
type kernelRule struct {
	family       uint8
	table, chain string
	handle       uint64
	exprs        []kernelExpr
	attrs        attrs
}

type kernelExpr struct {
	name string
	data attrs
	raw  []byte // the content of its NFTA_LIST_ELEM
}

// kernelChain is a chain; hook is -1 where it is not a base chain.
type kernelChain struct {
	family      uint8
	table, name string
	kind        string
	hook        int
	priority    int32
	policy      uint32
}

// body takes the nfgenmsg off a message: family, version, resource.
func body(msg []byte) (family uint8, all attrs, err error) {
	if len(msg) < 4 {
		return 0, nil, errGarbled
	}
	all, err = parseAttrs(msg[4:])
	return msg[0], all, err
}

func parseChain(msg []byte) (kernelChain, error) {
	family, a, err := body(msg)
	if err != nil {
		return kernelChain{}, fmt.Errorf("parse chain: %w", err)
	}
	c := kernelChain{family: family, table: a.text(nftChainTable), name: a.text(nftChainName), kind: a.text(nftChainType), hook: -1}
	if hook := a.nested(nftChainHook); hook.has(nftHookNum) {
		c.hook = int(hook.u32(nftHookNum))
		c.priority, c.policy = int32(hook.u32(nftHookPriority)), a.u32(nftChainPolicy)
	}
	return c, nil
}

func (c kernelChain) key() tableKey { return tableKey{c.family, c.table} }

func (c kernelChain) translates() bool {
	return c.kind == "nat" && c.hook >= 0 && c.hook < len(hookNames) && familyNames[c.family] != ""
}

func parseRule(msg []byte) (*kernelRule, error) {
	family, a, err := body(msg)
	if err != nil {
		return nil, fmt.Errorf("parse rule: %w", err)
	}
	r := &kernelRule{family: family, table: a.text(nftRuleTable), chain: a.text(nftRuleChain), handle: a.u64(nftRuleHandle), attrs: a}
	list, err := parseAttrs(a.get(nftRuleExprs))
	if err != nil {
		return nil, fmt.Errorf("parse rule %d of %s: %w", r.handle, r.chain, err)
	}
	for _, elem := range list {
		e, err := parseAttrs(elem.data)
		if err != nil {
			return nil, fmt.Errorf("parse rule %d of %s: %w", r.handle, r.chain, err)
		}
		r.exprs = append(r.exprs, kernelExpr{e.text(nftExprName), e.nested(nftExprData), elem.data})
	}
	return r, nil
}

// parseVerdicts are the chains that the elements of a verdict map lead to.
func parseVerdicts(msg []byte) ([]string, error) {
	_, a, err := body(msg)
	if err != nil {
		return nil, fmt.Errorf("parse elements of a map: %w", err)
	}
	var chains []string
	for _, elem := range a.nested(nftSetElemListElems) {
		e, err := parseAttrs(elem.data)
		if err != nil {
			return nil, fmt.Errorf("parse elements of a map: %w", err)
		}
		if _, chain := verdict(e.nested(nftSetElemData)); chain != "" {
			chains = append(chains, chain)
		}
	}
	return chains, nil
}

// verdict takes NFTA_DATA_VERDICT apart; without one it is NFT_CONTINUE.
func verdict(data attrs) (code int32, chain string) {
	v := data.nested(nftDataVerdict)
	if !v.has(nftVerdictCode) {
		return -1, ""
	}
	return int32(v.u32(nftVerdictCode)), v.text(nftVerdictChain)
}

func beUint16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// attr is one netlink attribute; raw is the whole of it, header and padding included.
type attr struct {
	kind      uint16
	data, raw []byte
}

// attrs are the attributes of a message or of a nested attribute, in their order.
type attrs []attr

// typeMask takes NLA_F_NESTED and NLA_F_NET_BYTEORDER off a type (NLA_TYPE_MASK).
const typeMask = 0x3fff

var errGarbled = errors.New("the kernel's answer is garbled: an attribute is longer than what holds it")

// parseAttrs takes b apart; what it returns lies in b.
func parseAttrs(b []byte) (attrs, error) {
	var all attrs
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return nil, errGarbled
		}
		a := attr{kind: binary.NativeEndian.Uint16(b[2:]) & typeMask, data: b[4:n]}
		if whole := (n + 3) &^ 3; whole <= len(b) {
			a.raw, b = b[:whole], b[whole:]
		} else { // the last one may come without padding
			a.raw, b = append(bytes.Clone(b), make([]byte, whole-len(b))...), nil
		}
		all = append(all, a)
	}
	return all, nil
}

func (a attrs) get(kind uint16) []byte {
	for _, x := range a {
		if x.kind == kind {
			return x.data
		}
	}
	return nil
}

func (a attrs) has(kind uint16) bool { return a.get(kind) != nil }

// text is a string without the NUL that ends it.
func (a attrs) text(kind uint16) string {
	s, _, _ := bytes.Cut(a.get(kind), []byte{0})
	return string(s)
}

// u32 is a number in network byte order, as nf_tables keeps all of its own; 0
// where it is not there.
func (a attrs) u32(kind uint16) uint32 {
	if b := a.get(kind); len(b) >= 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a attrs) u64(kind uint16) uint64 {
	if b := a.get(kind); len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// nested are the attributes within one; none where it is not there or garbled.
func (a attrs) nested(kind uint16) attrs {
	inner, err := parseAttrs(a.get(kind))
	if err != nil {
		return nil
	}
	return inner
}

// nlaNested is NLA_F_NESTED.
const nlaNested = 0x8000

func appendAttr(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendText(b []byte, kind uint16, s string) []byte {
	return appendAttr(b, kind, append([]byte(s), 0))
}

func appendU32(b []byte, kind uint16, v uint32) []byte {
	return appendAttr(b, kind, binary.BigEndian.AppendUint32(nil, v))
}
