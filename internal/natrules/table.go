package natrules

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
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

// ReadTable reads one table of a namespace (nil: this one) with its sets and
// elements, all of the same generation; nil where there is none. Needs CAP_NET_ADMIN
// in that namespace.
func ReadTable(ns *netns.Handle, family, name string) (*Table, error) {
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
