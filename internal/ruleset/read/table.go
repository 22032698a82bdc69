package read

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"github.com/natkit/natkit/internal/netns"
	"golang.org/x/sys/unix"
)

// Table is all of one table of nf_tables, as the kernel tells it.
type Table struct {
	// Generation is that of the whole rule set: it grows with each transaction.
	Generation uint32
	// Owned: one socket alone may change it. Dormant: its chains are at no hook.
	Owned, Dormant bool
	Chains         []TableChain
	Rules          []TableRule
	Sets           []TableSet
	Flowtables     []string
}

// Content, of chains, rules, sets and elements, is what the kernel tells of them
// without what packets, time and other rules change: handles, counters, use counts,
// expirations.

// TableChain is a chain.
type TableChain struct {
	Name    string
	Content []byte
}

// TableRule is a rule, in its chain's order.
type TableRule struct {
	Chain, Comment string
	Content        []byte
	Count
}

// TableSet is a set or a map. The elements of Dynamic ones come from packets, and are
// not read; Anonymous ones belong to one rule, and their names are the kernel's.
type TableSet struct {
	Name      string
	Content   []byte
	Dynamic   bool
	Anonymous bool
	Elements  []TableElement
}

// TableElement is an element of a set or a map.
type TableElement struct {
	Comment string
	Content []byte
	Count
}

// Count is what a counter counted; Counted is false where there is none.
type Count struct {
	Counted        bool
	Packets, Bytes uint64
}

// TableNamed reads one table of a namespace (nil: this one) with its sets and
// elements, all of the same generation; nil where there is none. Needs CAP_NET_ADMIN
// in that namespace.
func TableNamed(ns *netns.Handle, family, name string) (*Table, error) {
	key, err := keyOf(family, name)
	if err != nil {
		return nil, err
	}
	return over(ns, func(c conn) (t *Table, err error) {
		generation, there, err := c.settled(func() (err error) { t, err = c.tableOnce(key); return err })
		switch {
		case err != nil:
			return nil, fmt.Errorf("read table %s: %w", key, err)
		case !there || t == nil:
			return nil, nil
		}
		t.Generation = generation
		return t, nil
	})
}

// HasTable reports whether there is such a table in a namespace (nil: this one). Needs
// CAP_NET_ADMIN in that namespace.
func HasTable(ns *netns.Handle, family, name string) (bool, error) {
	key, err := keyOf(family, name)
	if err != nil {
		return false, err
	}
	return over(ns, func(c conn) (bool, error) {
		_, err := c.ask(unix.NFT_MSG_GETTABLE, key.family, 0, appendText(nil, nftTableName, key.name))
		absent := errors.Is(err, unix.ENOENT) || errors.Is(explain(err), errAbsent)
		if err != nil && !absent {
			return false, fmt.Errorf("look for table %s: %w", key, explain(err))
		}
		return !absent, nil
	})
}

func keyOf(family, name string) (tableKey, error) {
	for number, text := range familyNames {
		if text == family {
			return tableKey{number, name}, nil
		}
	}
	return tableKey{}, fmt.Errorf("read table %s %s: natkit does not know this family", family, name)
}

// Numbers of nf_tables.h that only reading of a whole table needs.
const (
	nftChainHandle, nftChainUse, nftChainN = 2, 6, 8 // NFTA_CHAIN_COUNTERS
	nftChainID                             = 11
	nftRulePosition                        = 6
	nftRuleID, nftRulePositionID           = 9, 10
	nftSetDynamic                          = 0x20 // NFT_SET_EVAL
	nftElemTimeout, nftElemExpiration      = 4, 5
	nftElemUserdata, nftElemExpr           = 6, 7
	nftElemExpressions                     = 11
	nftCounterBytes, nftCounterPackets     = 1, 2
	nftFlowtableName                       = 2
	userdataComment                        = 0 // NFTNL_UDATA_RULE_COMMENT and _SET_ELEM_COMMENT
)

func (c conn) tableOnce(key tableKey) (*Table, error) {
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	f, there := flags[key]
	if !there {
		return nil, nil
	}
	t := &Table{Owned: f&nftTableOwner != 0, Dormant: f&nftTableDormant != 0}
	for _, read := range []func(tableKey, *Table) error{c.tableChains, c.tableRules, c.tableSets, c.tableFlowtables} {
		if err := read(key, t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// dumped asks for all of a kind that belongs to the table; kernels that do not choose
// tell more. Attribute 1 is the table's name in all of these messages.
func (c conn) dumped(key tableKey, msg int, request []byte) ([]attrs, error) {
	answers, err := c.ask(msg, key.family, netlink.Dump, request)
	if err != nil {
		return nil, err
	}
	var all []attrs
	for _, m := range answers {
		family, a, err := body(m.Data)
		if err != nil {
			return nil, err
		}
		if family == key.family && a.text(1) == key.name {
			all = append(all, a)
		}
	}
	return all, nil
}

func (c conn) tableChains(key tableKey, t *Table) error {
	all, err := c.dumped(key, unix.NFT_MSG_GETCHAIN, appendText(nil, nftChainTable, key.name))
	if err != nil {
		return fmt.Errorf("chains: %w", err)
	}
	for _, a := range all {
		t.Chains = append(t.Chains, TableChain{
			Name: a.text(nftChainName), Content: without(a, nftChainHandle, nftChainUse, nftChainN, nftChainID),
		})
	}
	return nil
}

func (c conn) tableRules(key tableKey, t *Table) error {
	all, err := c.dumped(key, unix.NFT_MSG_GETRULE, appendText(nil, nftRuleTable, key.name))
	if err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	for _, a := range all {
		r, err := tableRule(a)
		if err != nil {
			return fmt.Errorf("rules: %w", err)
		}
		t.Rules = append(t.Rules, r)
	}
	return nil
}

func tableRule(a attrs) (TableRule, error) {
	r := TableRule{Chain: a.text(nftRuleChain), Comment: commentOf(a.get(nftRuleUserdata))}
	list, err := parseAttrs(a.get(nftRuleExprs))
	if err != nil {
		return r, err
	}
	r.Content = without(a, nftRuleHandle, nftRulePosition, nftRuleExprs, nftRuleID, nftRulePositionID)
	for _, elem := range list {
		e, err := parseAttrs(elem.data)
		if err != nil {
			return r, err
		}
		x := kernelExpr{name: e.text(nftExprName), data: e.nested(nftExprData)}
		r.Content = append(append(append(r.Content, x.name...), 0), stateless(x)...)
		if x.name == "counter" {
			r.count(x.data)
		}
	}
	return r, nil
}

func (n *Count) count(counter attrs) {
	n.Counted = true
	n.Packets += counter.u64(nftCounterPackets)
	n.Bytes += counter.u64(nftCounterBytes)
}

// commentOf finds the comment in user data: type, length, value each.
func commentOf(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == userdataComment {
			for len(value) > 0 && value[len(value)-1] == 0 {
				value = value[:len(value)-1]
			}
			return string(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

func (c conn) tableSets(key tableKey, t *Table) error {
	all, err := c.dumped(key, unix.NFT_MSG_GETSET, appendText(nil, setTable, key.name))
	if err != nil {
		return fmt.Errorf("sets: %w", err)
	}
	for _, a := range all {
		flags := a.u32(setFlagBits)
		s := TableSet{
			Name: a.text(setName), Dynamic: flags&nftSetDynamic != 0, Anonymous: flags&setAnonymous != 0,
			Content: without(a, setName, setID, setHandle, setType, setCount),
		}
		if s.Dynamic { // there may be as many as hosts inside
			t.Sets = append(t.Sets, s)
			continue
		}
		if s.Elements, err = c.tableElements(key, s.Name); err != nil {
			return fmt.Errorf("elements of %s: %w", s.Name, err)
		}
		t.Sets = append(t.Sets, s)
	}
	return nil
}

func (c conn) tableElements(key tableKey, set string) ([]TableElement, error) {
	lists, err := c.copyElements(key, set)
	if err != nil {
		return nil, err
	}
	var all []TableElement
	for _, list := range lists {
		elems, err := parseAttrs(list)
		if err != nil {
			return nil, err
		}
		for _, elem := range elems {
			a, err := parseAttrs(elem.data)
			if err != nil {
				return nil, err
			}
			all = append(all, tableElement(a))
		}
	}
	return all, nil
}

func tableElement(a attrs) TableElement {
	e := TableElement{
		Comment: commentOf(a.get(nftElemUserdata)),
		Content: without(a, nftElemTimeout, nftElemExpiration, nftElemExpr, nftElemExpressions),
	}
	if x := a.nested(nftElemExpr); x.text(nftExprName) == "counter" {
		e.count(x.nested(nftExprData))
	}
	for _, item := range a.nested(nftElemExpressions) {
		if x, err := parseAttrs(item.data); err == nil && x.text(nftExprName) == "counter" {
			e.count(x.nested(nftExprData))
		}
	}
	return e
}

func (c conn) tableFlowtables(key tableKey, t *Table) error {
	all, err := c.dumped(key, unix.NFT_MSG_GETFLOWTABLE, appendText(nil, 1, key.name))
	if err != nil { // kernels without flowtables refuse the message: they have none
		return nil
	}
	for _, a := range all {
		t.Flowtables = append(t.Flowtables, a.text(nftFlowtableName))
	}
	return nil
}
