package read

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/snapshot"
	"golang.org/x/sys/unix"
)

// BaseChain is a chain at a hook of IPv4 or IPv6, of any type, and what it leads to.
type BaseChain struct {
	// Source is as in snapshot.NATRule.
	Source, Family, Table, Name string
	// Type is "filter", "nat" or "route"; of iptables, "nat" for the table of that
	// name, else "filter".
	Type string
	Hook string
	// Priority orders chains at a hook, lower first.
	Priority int32
	// Policy is what becomes of packets that no rule with conditions decides: "accept",
	// "drop" or "reject", by the chain's policy or by the first rule that is for all.
	Policy string
	// Accepts are the conditions of rules that accept, where the chain refuses what no
	// rule does: a thousand at most. What a rule before them takes is not left out.
	Accepts []snapshot.NATRule
	// Rules counts those of the chain and of all chains that it leads to, each once.
	Rules int
	// Chains are the names of all that it leads to.
	Chains []string
	// NAT are those of them that translate, in the order in which packets meet them: once
	// for each way that rules lead to them.
	NAT []snapshot.NATRule
	// TooMany is true where more ways and elements of sets lead to rules than natkit
	// follows: some of NAT may be missing, and those that are Partial lack conditions.
	TooMany bool
}

// BaseChains are all of a namespace (nil: this one) but those of dormant tables and of
// natkit's own, in no order. Needs CAP_NET_ADMIN in that namespace. No module of iptables is loaded
// by it.
func BaseChains(ns *netns.Handle) ([]BaseChain, error) {
	all, err := nftBaseChains(ns)
	if err != nil {
		return nil, fmt.Errorf("read chains of nftables: %w", err)
	}
	legacy, err := legacyBaseChains(ns)
	if err != nil {
		return nil, fmt.Errorf("read chains of iptables-legacy: %w", err)
	}
	translating, ways, err := byElement(ns)
	if err != nil {
		return nil, fmt.Errorf("read NAT rules: %w", err)
	}
	all = append(all, legacy...)
	for i := range all {
		all[i].NAT = all[i].of(translating)
		all[i].TooMany = all[i].Type == "nat" && ways.lost[lostBase{all[i].Family, all[i].Table, all[i].Name}]
	}
	return all, nil
}

// byElement tells what Read does, but a rule that looks into sets and maps once for each
// element, and one for ranges of ports once for each of them. natkit's own table is left
// out.
func byElement(ns *netns.Handle) ([]snapshot.NATRule, *budget, error) {
	ways := newBudget()
	all, err := over(ns, func(c conn) (all []found, err error) {
		names, err := links(ns)
		if err != nil {
			return nil, fmt.Errorf("list interfaces: %w", err)
		}
		var tables []*kernelTable
		nat := func(c kernelChain) bool { return c.translates() && !c.key().isGateway() }
		if _, _, err := c.settled(func() (err error) { ways = newBudget(); tables, err = c.withSets(nat, ways); return err }); err != nil {
			return nil, err
		}
		for _, t := range tables {
			all = append(all, t.stepByElement(names, ways).byPorts().rules(ways)...)
		}
		return all, nil
	})
	if err != nil {
		return nil, nil, err
	}
	legacy, err := legacyTables(ns, "nat")
	for _, t := range legacy {
		all = append(all, t.byPorts().rules(ways)...)
	}
	return inHookOrder(all), ways, err
}

// byPorts is the table with a step for each range of destination ports.
func (t *ruleTable) byPorts() *ruleTable {
	for _, c := range t.order {
		if !slices.ContainsFunc(c.steps, func(s step) bool { return s.hasPorts() }) {
			continue
		}
		var steps []step
		for i := range c.steps {
			steps = append(steps, c.steps[i].byPorts()...)
		}
		c.steps = steps
	}
	return t
}

// hasPorts reports whether ranges of destination ports are all that the rule's own fields
// do not have.
func (s *step) hasPorts() bool {
	f := &s.further
	return !s.unknown && len(f.Ports) > 0 && len(f.SourcePorts) == 0 && !f.SYN && s.rule.DestinationPort == 0
}

// byPorts is the step once for each range of destination ports.
func (s *step) byPorts() (all []step) {
	if !s.hasPorts() {
		return []step{*s}
	}
	for _, p := range s.further.Ports {
		one := *s
		one.rule.DestinationPort, one.rule.Partial = max(p.First, 1), false
		if p.Last > p.First {
			one.rule.LastDestinationPort = p.Last
		}
		all = append(all, one)
	}
	return all
}

// of are the rules that packets meet by this chain.
func (b *BaseChain) of(rules []snapshot.NATRule) []snapshot.NATRule {
	leads := map[string]bool{b.Name: true}
	for _, name := range b.Chains {
		leads[name] = true
	}
	var mine []snapshot.NATRule
	for _, r := range rules {
		same := r.Family == b.Family && r.Table == b.Table && r.Hook == b.Hook && r.Priority == b.Priority
		if same && leads[r.Chain] && (r.Source == "iptables-legacy") == (b.Source == "iptables-legacy") {
			if len(r.Ways) == 0 {
				mine = append(mine, r)
			}
			mine = append(mine, r.Ways...)
		}
	}
	return mine
}

func nftBaseChains(ns *netns.Handle) ([]BaseChain, error) {
	return over(ns, func(c conn) (all []BaseChain, err error) {
		_, _, err = c.settled(func() (err error) { all, err = c.baseChains(); return err })
		return all, err
	})
}

// policies are nft's words for NFTA_CHAIN_POLICY.
var policies = map[uint32]string{0: "drop", 1: "accept"}

func (c conn) baseChains() ([]BaseChain, error) {
	chains, err := c.chains()
	if err != nil {
		return nil, err
	}
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	graphs := map[tableKey]*graph{}
	var all []BaseChain
	for _, chain := range chains {
		key := chain.key()
		if chain.hook < 0 || key.isGateway() || familyNames[chain.family] == "" || flags[key]&nftTableDormant != 0 {
			continue
		}
		if graphs[key] == nil {
			if graphs[key], err = c.graph(key); err != nil {
				return nil, err
			}
		}
		all = append(all, chain.base(graphs[key]))
	}
	return all, nil
}

func (c kernelChain) base(g *graph) BaseChain {
	b := BaseChain{
		Source: "nftables", Family: familyNames[c.family], Table: c.table, Name: c.name,
		Type: c.kind, Hook: "ingress", Priority: c.priority, Policy: policies[c.policy],
	}
	if c.hook < len(hookNames) {
		b.Hook = hookNames[c.hook]
	}
	b.reach(g)
	if g.xt {
		b.Source = "iptables-nft"
	}
	return b
}

// reach notes what the table's other chains make of this one.
func (b *BaseChain) reach(g *graph) {
	b.Rules, b.Chains = g.reach(b.Name)
	if decision := g.decides(b.Name, map[string]bool{}); decision != "" {
		b.Policy = decision
	}
	if b.Policy != "accept" {
		b.Accepts = g.accepts(b.Name)
	}
}

// element is one of a set or a map that packets do not change. It has the keys from first
// to last, which are the same but for an interval, and a map's value.
type element struct {
	first, last []byte
	value       attrs
}

const (
	nftSetTimeout      = 0x10 // NFT_SET_TIMEOUT
	nftSetInterval     = 4    // NFT_SET_INTERVAL
	nftElemIntervalEnd = 1    // NFT_SET_ELEM_INTERVAL_END
	nftElemCatchall    = 2    // NFT_SET_ELEM_CATCHALL
	nftElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
)

// constantSets reads the sets and maps that rules of a table look into, but for those
// whose elements come and go by themselves, those that have one for all else, and those
// that are too large to make steps of, or too many altogether.
func (c conn) constantSets(t *kernelTable, ways *budget) (map[string][]element, error) {
	asked, concerning := map[string]bool{}, t.concerning()
	for _, r := range t.rules {
		for _, e := range r.exprs {
			if e.name == "lookup" && concerning[r] {
				asked[e.data.text(nftLookupSet)] = true
			}
		}
	}
	all := map[string][]element{}
	if len(asked) == 0 {
		return all, nil
	}
	sets, err := c.dumped(t.key, unix.NFT_MSG_GETSET, appendText(nil, setTable, t.key.name))
	if err != nil {
		return nil, fmt.Errorf("read sets of table %s: %w", t.key, err)
	}
	for _, a := range sets {
		name, flags := a.text(setName), a.u32(setFlagBits)
		count := int(a.u32(setCount)) // not told before Linux 6.16
		if !asked[name] || flags&(nftSetDynamic|nftSetTimeout) != 0 || count > mostPicked || !ways.takes(max(count, 1)) {
			continue
		}
		lists, err := c.copyElements(t.key, name)
		if err != nil {
			return nil, fmt.Errorf("read set %s of table %s: %w", name, t.key, err)
		}
		elements := elementsOf(lists, flags&nftSetInterval != 0)
		if len(elements) <= mostPicked && ways.takes(max(len(elements)-count, 0)) {
			all[name] = elements
		}
	}
	return all, nil
}

// told is an element as the kernel tells it: of an interval its first key, or, as an
// element of its own, the key after its last.
type told struct {
	key, last []byte
	end       bool
	value     attrs
}

// elementsOf are those of a set, by key; none where one of them is for all else, or garbled.
func elementsOf(lists [][]byte, interval bool) (all []element) {
	var keys []told
	for _, list := range lists {
		elems, err := parseAttrs(list)
		if err != nil {
			return nil
		}
		for _, elem := range elems {
			a, err := parseAttrs(elem.data)
			flags := a.u32(nftSetElemFlags)
			if err != nil || flags&nftElemCatchall != 0 {
				return nil
			}
			keys = append(keys, told{key: a.nested(nftSetElemKey).get(nftDataValue), last: a.nested(nftElemKeyEnd).get(nftDataValue),
				end: flags&nftElemIntervalEnd != 0, value: a.nested(nftSetElemData)})
		}
	}
	slices.SortStableFunc(keys, func(a, b told) int {
		if order := bytes.Compare(a.key, b.key); order != 0 || a.end == b.end {
			return order
		}
		return map[bool]int{true: -1, false: 1}[a.end] // it ends where the next one begins
	})
	for i, k := range keys {
		switch {
		case k.end:
		case len(k.last) == len(k.key): // of several fields
			all = append(all, element{k.key, k.last, k.value})
		case interval:
			all = append(all, k.upTo(keys[i+1:])...)
		default:
			all = append(all, element{k.key, k.key, k.value})
		}
	}
	return all
}

// upTo is the interval that ends before the next key. Those of addresses become
// prefixes, which is what conditions are made of.
func (k *told) upTo(next []told) []element {
	last := bytes.Repeat([]byte{0xff}, len(k.key))
	if len(next) > 0 && len(next[0].key) == len(k.key) {
		last = before(next[0].key)
	}
	if all := addresses(k.key, last, k.value); len(all) > 0 {
		return all
	}
	return []element{{k.key, last, k.value}}
}

// addresses are the prefixes from one address to another; none of something else.
func addresses(first, last []byte, value attrs) (all []element) {
	a, ok := netip.AddrFromSlice(first)
	z, ok2 := netip.AddrFromSlice(last)
	if !ok || !ok2 {
		return nil
	}
	for _, p := range (nat.AddrRange{First: a, Last: z}).Prefixes() {
		all = append(all, element{p.Addr().AsSlice(), nat.LastAddr(p).AsSlice(), value})
	}
	return all
}

// before is the number below one that is not 0.
func before(key []byte) []byte {
	b := bytes.Clone(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return b
}

// newSet stands for an anonymous set in a rule that takes another's place: such a
// set belongs to one rule (nf_tables_bind_set: EBUSY), so that the new one needs a
// copy, as nft makes one.
type newSet struct {
	id      uint32
	name    string // what the kernel makes a name of: "__set%d"
	message []byte // of NFT_MSG_NEWSET
	// elements are of NFT_MSG_NEWSETELEM, for each message that the kernel told them in.
	elements [][]byte
}

const (
	setTable, setName, setFlagBits, setID, setHandle = 1, 2, 3, 10, 16
	setAnonymous                                     = 1 // NFT_SET_ANONYMOUS
	setType, setCount                                = 19, 20
	elemListSetID                                    = 4
	lookupSetID                                      = 4
)

// lookup is a lookup's data, in the new set.
func (s newSet) lookup(a attrs) []byte {
	return appendU32(replaceAttr(a, nftLookupSet, append([]byte(s.name), 0)), lookupSetID, s.id)
}

// copySets prepares copies of the anonymous sets that a rule looks into, by name.
func (c conn) copySets(r *kernelRule) (map[string]newSet, error) {
	sets := map[string]newSet{}
	for _, x := range r.exprs {
		name := x.data.text(nftLookupSet)
		if x.name != "lookup" || sets[name].id != 0 {
			continue
		}
		s, err := c.copySet(tableKey{r.family, r.table}, name)
		if err != nil {
			return nil, fmt.Errorf("copy set %s of table %s: %w", name, r.table, err)
		}
		if s != nil {
			s.id = uint32(len(sets) + 1)
			s.message = appendU32(s.message, setID, s.id)
			sets[name] = *s
		}
	}
	return sets, nil
}

// copySet is nil for a set that has a name of its own, which rules share.
func (c conn) copySet(t tableKey, name string) (*newSet, error) {
	request := appendText(appendText(nil, setTable, t.name), setName, name)
	answers, err := c.ask(unix.NFT_MSG_GETSET, t.family, 0, request)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 {
		return nil, unix.ENOENT
	}
	_, a, err := body(answers[0].Data)
	if err != nil || a.u32(setFlagBits)&setAnonymous == 0 {
		return nil, err
	}
	s := &newSet{name: strings.TrimRight(name, "0123456789") + "%d"}
	for _, x := range a {
		switch x.kind {
		case setName:
			s.message = appendText(s.message, setName, s.name)
		case setID, setHandle, setType, setCount:
		default:
			s.message = append(s.message, x.raw...)
		}
	}
	s.elements, err = c.copyElements(t, name)
	return s, err
}

func (c conn) copyElements(t tableKey, name string) ([][]byte, error) {
	request := appendText(appendText(nil, nftSetElemListTable, t.name), nftSetElemListSet, name)
	answers, err := c.ask(unix.NFT_MSG_GETSETELEM, t.family, netlink.Dump, request)
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, m := range answers {
		_, a, err := body(m.Data)
		if err != nil {
			return nil, err
		}
		all = append(all, a.get(nftSetElemListElems))
	}
	return all, nil
}

// messages make the set in a transaction, before the rule.
func (s newSet) messages(t tableKey) []message {
	all := []message{{unix.NFT_MSG_NEWSET, t.family, netlink.Create, s.message}}
	for _, elements := range s.elements {
		b := appendText(appendText(nil, nftSetElemListTable, t.name), nftSetElemListSet, s.name)
		b = appendU32(b, elemListSetID, s.id)
		b = appendAttr(b, nftSetElemListElems|nlaNested, elements)
		all = append(all, message{unix.NFT_MSG_NEWSETELEM, t.family, netlink.Create, b})
	}
	return all
}

// protocols are those that a rule is for; none where it is for all, or where they
// cannot be told.
func (c conn) protocols(t tableKey, r *kernelRule) ([]string, error) {
	m := machine{family: familyNames[t.family], verdicts: func(string) []string { return nil }}
	switch s := m.readStep(r); {
	case s.rule.Protocol != "":
		return []string{s.rule.Protocol}, nil
	case s.protocols == "":
		return nil, nil
	default:
		lists, err := c.copyElements(t, s.protocols)
		return protocolsOf(lists), err
	}
}

// protocolsOf are the elements of a set of protocols; none where one is an interval.
func protocolsOf(lists [][]byte) []string {
	var names []string
	for _, list := range lists {
		elems, _ := parseAttrs(list)
		for _, elem := range elems {
			e, _ := parseAttrs(elem.data)
			key := e.nested(nftSetElemKey).get(nftDataValue)
			if len(key) == 0 || e.u32(nftSetElemFlags) != 0 {
				return nil
			}
			names = append(names, nat.ProtocolName(key[0]))
		}
	}
	return names
}
