package read

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/ruleset"
	"golang.org/x/sys/unix"
)

// Table is the whole of one table of nf_tables, as the kernel returns it.
type Table struct {
	// Generation is that of the whole rule set: it grows with each transaction.
	Generation uint32
	// Owned: one socket alone may change it. Dormant: its chains are at no hook.
	Owned, Dormant bool
	Chains         []TableChain
	Rules          []TableRule
	Sets           []TableSet
	Flowtables     []string
	Objects        []TableObject
}

// TableObject is an object with a name, such as a helper of the tracker; Kind is NFT_OBJECT_*.
type TableObject struct {
	TableChain
	Kind uint32
}

// TableChain is a chain. Content, as of rules, sets and elements, is what the kernel
// returns without what packets, time and other rules change: handles, counters, use
// counts, expirations.
type TableChain struct {
	Name    string
	Content []byte
}

// TableRule is a rule, in its chain's order.
type TableRule struct {
	Chain string
	TableElement
}

// TableSet is a set or a map. The elements of Dynamic ones come from packets, and are
// not read; Anonymous ones belong to one rule, and their names are the kernel's.
type TableSet struct {
	TableChain
	Dynamic   bool
	Anonymous bool
	Elements  []TableElement
	// Of a set of a gateway's plan (ruleset.GatewaySet), which may have a million elements, there are their number and
	// the sum of their hashes in place of them.
	Count int
	Sum   [sha256.Size]byte
	// Unread is true for one that may have more than are read (ruleset.RoomOfRead), or was written without a bound.
	Unread bool
}

// add adds an element to Count and Sum.
func (s *TableSet) add(element []byte) {
	s.Count++
	carry := 0
	for i, b := range sha256.Sum256(element) {
		carry += int(s.Sum[i]) + int(b)
		s.Sum[i] = byte(carry)
		carry >>= 8
	}
}

// TableElement is an element of a set or a map, or a rule, with what its counter counted;
// Counted is false if it has none.
type TableElement struct {
	Comment        string
	Content        []byte
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
	objectName      = 2  // NFTA_OBJ_NAME
	objectType      = 3  // NFTA_OBJ_TYPE
	objectUse       = 5  // NFTA_OBJ_USE
	objectHandle    = 6  // NFTA_OBJ_HANDLE
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
	for _, part := range []struct {
		what string
		msg  int
		add  func(netlink.Attrs) error
	}{
		{"chains", unix.NFT_MSG_GETCHAIN, t.addChain},
		{"rules", unix.NFT_MSG_GETRULE, t.addRule},
		{"sets", unix.NFT_MSG_GETSET, func(a netlink.Attrs) error { return c.addSet(t, key, a) }},
		{"flowtables", unix.NFT_MSG_GETFLOWTABLE, func(a netlink.Attrs) error {
			t.Flowtables = append(t.Flowtables, a.Text(flowtableName))
			return nil
		}},
		{"objects", unix.NFT_MSG_GETOBJ, func(a netlink.Attrs) error {
			t.Objects = append(t.Objects, TableObject{TableChain{a.Text(objectName), ruleset.Without(a, objectUse, objectHandle)}, a.U32(objectType)})
			return nil
		}},
	} {
		all, err := c.of(key, part.msg, nil)
		if part.msg == unix.NFT_MSG_GETFLOWTABLE { // kernels without flowtables refuse the message
			err = nil
		}
		for i := 0; i < len(all) && err == nil; i++ {
			err = part.add(all[i])
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return t, nil
}

func (t *Table) addChain(a netlink.Attrs) error {
	t.Chains = append(t.Chains, TableChain{a.Text(unix.NFTA_CHAIN_NAME),
		ruleset.Without(a, unix.NFTA_CHAIN_HANDLE, unix.NFTA_CHAIN_USE, unix.NFTA_CHAIN_COUNTERS, chainID)})
	return nil
}

func (t *Table) addRule(a netlink.Attrs) error {
	r := TableRule{a.Text(unix.NFTA_RULE_CHAIN), TableElement{Comment: ruleset.CommentOf(a.Get(unix.NFTA_RULE_USERDATA)),
		Content: ruleset.Without(a, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION, unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_RULE_ID, rulePositionID)}}
	exprs, err := ruleset.ParseExprs(a.Get(unix.NFTA_RULE_EXPRESSIONS))
	for _, x := range exprs {
		r.Content = append(append(append(r.Content, x.Name...), 0), x.Stateless()...)
		r.count(x.Name, x.Data)
	}
	t.Rules = append(t.Rules, r)
	return err
}

func (e *TableElement) count(name string, a netlink.Attrs) {
	if name == "counter" {
		e.Counted = true
		e.Packets += a.U64(unix.NFTA_COUNTER_PACKETS)
		e.Bytes += a.U64(unix.NFTA_COUNTER_BYTES)
	}
}

func (c Conn) addSet(t *Table, key ruleset.TableKey, a netlink.Attrs) error {
	flags := a.U32(unix.NFTA_SET_FLAGS)
	s := TableSet{Dynamic: flags&unix.NFT_SET_EVAL != 0, Anonymous: flags&unix.NFT_SET_ANONYMOUS != 0,
		TableChain: TableChain{a.Text(unix.NFTA_SET_NAME), ruleset.Without(a, unix.NFTA_SET_NAME, unix.NFTA_SET_ID, setHandle, setType, setCount)}}
	var lists [][]byte
	var err error
	room := a.Nested(unix.NFTA_SET_DESC).U32(unix.NFTA_SET_DESC_SIZE)
	s.Unread = ruleset.IsGatewaySet(s.Name) && (room == 0 || room > ruleset.RoomOfRead)
	if !s.Dynamic && !s.Unread { // there may be as many as hosts inside
		if lists, err = c.RawElements(key, s.Name); err != nil {
			return fmt.Errorf("elements of %s: %w", s.Name, err)
		}
	}
	for _, list := range lists {
		elements, err := netlink.ParseAttrs(list)
		if err != nil {
			return err
		}
		for _, elem := range elements {
			if ruleset.IsGatewaySet(s.Name) {
				s.add(elem.Data)
				continue
			}
			a, err := netlink.ParseAttrs(elem.Data)
			if err != nil {
				return err
			}
			s.Elements = append(s.Elements, tableElement(a))
		}
	}
	t.Sets = append(t.Sets, s)
	return nil
}

func tableElement(a netlink.Attrs) TableElement {
	e := TableElement{
		Comment: ruleset.CommentOf(a.Get(unix.NFTA_SET_ELEM_USERDATA)),
		Content: ruleset.Without(a, unix.NFTA_SET_ELEM_TIMEOUT, unix.NFTA_SET_ELEM_EXPIRATION, unix.NFTA_SET_ELEM_EXPR, elemExpressions),
	}
	list, _ := ruleset.ParseExprs(a.Get(elemExpressions))
	for _, x := range list {
		e.count(x.Name, x.Data)
	}
	x := a.Nested(unix.NFTA_SET_ELEM_EXPR)
	e.count(x.Text(ruleset.ExprName), x.Nested(ruleset.ExprData))
	return e
}

// Map reads the elements of a map in a namespace (nil: this one): the value of each key, all of one generation. It is
// nil where there is no such map. Needs CAP_NET_ADMIN in that namespace.
func Map(ns *netns.Handle, family, table, name string) (values map[string][]byte, generation uint32, err error) {
	key, err := ruleset.KeyOf(family, table)
	if err != nil {
		return nil, 0, err
	}
	values, err = over(ns, func(c Conn) (all map[string][]byte, err error) {
		generation, _, err = c.Settled(func() (err error) {
			lists, err := c.RawElements(key, name)
			if err != nil {
				all = nil
				return unless(err, unix.ENOENT)
			}
			all = map[string][]byte{}
			return eachElement(lists, func(key, value []byte, _ netlink.Attrs) { all[string(key)] = value })
		})
		if err != nil {
			return nil, fmt.Errorf("read map %s of table %s: %w", name, key, err)
		}
		return all, nil
	})
	return values, generation, err
}

// Jump is the value of an element whose verdict is a jump to a chain.
func Jump(chain string) string { return "jump " + chain }

// verdictOf is the value of an element with a verdict.
func verdictOf(v netlink.Attrs) []byte {
	code, chain := int32(v.U32(unix.NFTA_VERDICT_CODE)), v.Text(unix.NFTA_VERDICT_CHAIN)
	if code == unix.NFT_JUMP {
		return []byte(Jump(chain))
	}
	return fmt.Appendf(nil, "verdict %d %s", code, chain)
}

// Timed is an element of a map that ends.
type Timed struct {
	Key, Value []byte
	// Left is how long it stays.
	Left time.Duration
}

// Expiring reads the elements of a map that end by themselves, in a namespace (nil: this one); none where there is no such
// map. Needs CAP_NET_ADMIN in that namespace.
func Expiring(ns *netns.Handle, family, table, name string) ([]Timed, error) {
	key, err := ruleset.KeyOf(family, table)
	if err != nil {
		return nil, err
	}
	return over(ns, func(c Conn) (all []Timed, err error) {
		_, _, err = c.Settled(func() error {
			all = nil
			lists, err := c.RawElements(key, name)
			if err != nil {
				return unless(err, unix.ENOENT)
			}
			return eachElement(lists, func(key, value []byte, a netlink.Attrs) {
				if left := a.U64(unix.NFTA_SET_ELEM_EXPIRATION); left > 0 && left < math.MaxInt64/uint64(time.Millisecond) {
					all = append(all, Timed{key, value, time.Duration(left) * time.Millisecond})
				}
			})
		})
		if err != nil {
			return nil, fmt.Errorf("read map %s of table %s: %w", name, key, err)
		}
		return all, nil
	})
}

// eachElement hands over the elements of a map.
func eachElement(lists [][]byte, do func(key, value []byte, a netlink.Attrs)) error {
	for _, list := range lists {
		elements, err := netlink.ParseAttrs(list)
		if err != nil {
			return err
		}
		for _, elem := range elements {
			a, err := netlink.ParseAttrs(elem.Data)
			if err != nil {
				return err
			}
			data := a.Nested(unix.NFTA_SET_ELEM_DATA)
			value := data.Get(unix.NFTA_DATA_VALUE)
			if v := data.Nested(unix.NFTA_DATA_VERDICT); value == nil && len(v) > 0 {
				value = verdictOf(v)
			}
			do(a.Nested(unix.NFTA_SET_ELEM_KEY).Get(unix.NFTA_DATA_VALUE), value, a)
		}
	}
	return nil
}
