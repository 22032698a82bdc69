package read

import (
	"errors"
	"fmt"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
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
	key, err := ruleset.KeyOf(family, name)
	if err != nil {
		return nil, err
	}
	return over(ns, func(c Conn) (t *Table, err error) {
		generation, there, err := c.Settled(func() (err error) { t, err = c.tableOnce(key); return err })
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
	key, err := ruleset.KeyOf(family, name)
	if err != nil {
		return false, err
	}
	return over(ns, func(c Conn) (bool, error) {
		_, err := c.ask(unix.NFT_MSG_GETTABLE, key.Family, 0, netlink.AppendText(nil, 1, key.Name))
		absent := errors.Is(err, unix.ENOENT) || errors.Is(explain(err), errAbsent)
		if err != nil && !absent {
			return false, fmt.Errorf("look for table %s: %w", key, explain(err))
		}
		return !absent, nil
	})
}

// Numbers of nf_tables.h that unix has no names for.
const (
	chainID         = 11 // NFTA_CHAIN_ID
	rulePositionID  = 10 // NFTA_RULE_POSITION_ID
	setHandle       = 16 // NFTA_SET_HANDLE
	setType         = 19 // NFTA_SET_TYPE
	setCount        = 20 // NFTA_SET_COUNT
	elemExpressions = 11 // NFTA_SET_ELEM_EXPRESSIONS
	flowtableName   = 2  // NFTA_FLOWTABLE_NAME
)

func (c Conn) tableOnce(key ruleset.TableKey) (*Table, error) {
	flags, err := c.tables()
	if err != nil {
		return nil, err
	}
	f, there := flags[key]
	if !there {
		return nil, nil
	}
	t := &Table{Owned: f&tableOwner != 0, Dormant: f&unix.NFT_TABLE_F_DORMANT != 0}
	for _, read := range []func(ruleset.TableKey, *Table) error{c.tableChains, c.tableRules, c.tableSets, c.tableFlowtables} {
		if err := read(key, t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (c Conn) tableChains(key ruleset.TableKey, t *Table) error {
	all, err := c.dump(key, unix.NFT_MSG_GETCHAIN, nil)
	if err != nil {
		return fmt.Errorf("chains: %w", err)
	}
	for _, a := range all {
		t.Chains = append(t.Chains, TableChain{
			Name: a.Text(unix.NFTA_CHAIN_NAME), Content: ruleset.Without(a, unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_USE, unix.NFTA_CHAIN_COUNTERS, chainID),
		})
	}
	return nil
}

func (c Conn) tableRules(key ruleset.TableKey, t *Table) error {
	all, err := c.dump(key, unix.NFT_MSG_GETRULE, nil)
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

func tableRule(a netlink.Attrs) (TableRule, error) {
	r := TableRule{Chain: a.Text(unix.NFTA_RULE_CHAIN), Comment: ruleset.CommentOf(a.Get(unix.NFTA_RULE_USERDATA))}
	list, err := netlink.ParseAttrs(a.Get(unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return r, err
	}
	r.Content = ruleset.Without(a, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION, unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_RULE_ID, rulePositionID)
	for _, elem := range list {
		e, err := netlink.ParseAttrs(elem.Data)
		if err != nil {
			return r, err
		}
		x := ruleset.KernelExpr{Name: e.Text(ruleset.ExprName), Data: e.Nested(ruleset.ExprData)}
		r.Content = append(append(append(r.Content, x.Name...), 0), x.Stateless()...)
		if x.Name == "counter" {
			r.count(x.Data)
		}
	}
	return r, nil
}

func (n *Count) count(counter netlink.Attrs) {
	n.Counted = true
	n.Packets += counter.U64(unix.NFTA_COUNTER_PACKETS)
	n.Bytes += counter.U64(unix.NFTA_COUNTER_BYTES)
}

func (c Conn) tableSets(key ruleset.TableKey, t *Table) error {
	all, err := c.dump(key, unix.NFT_MSG_GETSET, nil)
	if err != nil {
		return fmt.Errorf("sets: %w", err)
	}
	for _, a := range all {
		flags := a.U32(unix.NFTA_SET_FLAGS)
		s := TableSet{
			Name: a.Text(unix.NFTA_SET_NAME), Dynamic: flags&unix.NFT_SET_EVAL != 0, Anonymous: flags&unix.NFT_SET_ANONYMOUS != 0,
			Content: ruleset.Without(a, unix.NFTA_SET_NAME, unix.NFTA_SET_ID, setHandle, setType, setCount),
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

func (c Conn) tableElements(key ruleset.TableKey, set string) ([]TableElement, error) {
	lists, err := c.RawElements(key, set)
	if err != nil {
		return nil, err
	}
	var all []TableElement
	for _, list := range lists {
		elems, err := netlink.ParseAttrs(list)
		if err != nil {
			return nil, err
		}
		for _, elem := range elems {
			a, err := netlink.ParseAttrs(elem.Data)
			if err != nil {
				return nil, err
			}
			all = append(all, tableElement(a))
		}
	}
	return all, nil
}

func tableElement(a netlink.Attrs) TableElement {
	e := TableElement{
		Comment: ruleset.CommentOf(a.Get(unix.NFTA_SET_ELEM_USERDATA)),
		Content: ruleset.Without(a, unix.NFTA_SET_ELEM_TIMEOUT, unix.NFTA_SET_ELEM_EXPIRATION, unix.NFTA_SET_ELEM_EXPR, elemExpressions),
	}
	if x := a.Nested(unix.NFTA_SET_ELEM_EXPR); x.Text(ruleset.ExprName) == "counter" {
		e.count(x.Nested(ruleset.ExprData))
	}
	for _, item := range a.Nested(elemExpressions) {
		if x, err := netlink.ParseAttrs(item.Data); err == nil && x.Text(ruleset.ExprName) == "counter" {
			e.count(x.Nested(ruleset.ExprData))
		}
	}
	return e
}

func (c Conn) tableFlowtables(key ruleset.TableKey, t *Table) error {
	all, err := c.dump(key, unix.NFT_MSG_GETFLOWTABLE, nil)
	if err != nil { // kernels without flowtables refuse the message: they have none
		return nil
	}
	for _, a := range all {
		t.Flowtables = append(t.Flowtables, a.Text(flowtableName))
	}
	return nil
}
