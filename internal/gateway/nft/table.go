package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/natrules"
)

// table is all that natkit writes, in the order in which it is written.
type table struct {
	chains    []chain
	sets      []*set
	rules     []rule
	flowtable *flowtable
	// handNetmap: prefixes are put together by expressions of every kernel.
	handNetmap bool
	// shared are the sets that rules would otherwise have one each of, by content; nil
	// where they have.
	shared map[string]*set
}

// chain is a base chain where kind is not empty.
type chain struct {
	name, kind string
	hook       uint32
	priority   int32
}

// set is a set or a map.
type set struct {
	name  string // empty for one that belongs to one rule alone
	id    uint32
	flags uint32 // NFT_SET_*
	// key and data are types that nft(8) shows elements by; data is its zero value
	// for a set.
	key, data nftables.SetDatatype
	// hostOrder: the key is in the host's byte order (names of interfaces).
	hostOrder bool
	// ranges: the data are intervals.
	ranges   bool
	size     uint32
	counted  bool
	elements []element
	about    string
	there    bool // and stays
}

type element struct {
	key, data []byte
	end       bool // of an interval (NFT_SET_ELEM_INTERVAL_END)
	comment   string
}

type rule struct {
	chain   string
	exprs   []expression
	comment string
}

type flowtable struct {
	name    string
	devices []string
	counted bool
}

// add gives a set its number within the transaction.
func (t *table) add(s *set) *set {
	s.id = uint32(len(t.sets) + 1)
	t.sets = append(t.sets, s)
	return s
}

// reference is what rules call the set by; the kernel numbers those without a name.
func (s *set) reference() string {
	switch {
	case s.name != "":
		return s.name
	case s.flags&unix.NFT_SET_MAP != 0:
		return "__map%d"
	}
	return "__set%d"
}

// messages replaces the table, was being the one that there is and of which something
// is kept. Without it the table is made where there was none, so that it can be
// deleted; all of that is one transaction.
func (t *table) messages(was *natrules.Table) ([]message, error) {
	all := []message{tableMessage(unix.NFT_MSG_NEWTABLE), tableMessage(unix.NFT_MSG_DELTABLE), tableMessage(unix.NFT_MSG_NEWTABLE)}
	if was != nil {
		all = t.emptied(was)
	}
	for _, c := range t.chains {
		all = append(all, c.message())
	}
	if t.flowtable != nil {
		all = append(all, t.flowtable.message())
	}
	for _, s := range t.sets {
		if !s.there {
			all = append(all, s.messages()...)
		}
	}
	for _, r := range t.rules {
		m, err := r.message()
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func tableMessage(kind uint16) message {
	m := message{kind: kind, about: "the gateway", exprs: []string{"table"}}
	if kind == unix.NFT_MSG_NEWTABLE {
		m.flags = unix.NLM_F_CREATE
	}
	m.body.text(unix.NFTA_TABLE_NAME, Table)
	return m
}

func (c chain) message() message {
	m := message{kind: unix.NFT_MSG_NEWCHAIN, flags: unix.NLM_F_CREATE, about: "chain " + c.name}
	m.body.text(unix.NFTA_CHAIN_TABLE, Table)
	m.body.text(unix.NFTA_CHAIN_NAME, c.name)
	if c.kind == "" {
		return m
	}
	m.exprs = []string{"chain " + c.kind}
	hook := m.body.begin(unix.NFTA_CHAIN_HOOK)
	m.body.u32(unix.NFTA_HOOK_HOOKNUM, c.hook)
	m.body.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
	m.body.end(hook)
	m.body.u32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
	m.body.text(unix.NFTA_CHAIN_TYPE, c.kind)
	return m
}

func (r rule) message() (message, error) {
	m := message{kind: unix.NFT_MSG_NEWRULE, flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, about: r.comment, rule: &r}
	m.body.text(unix.NFTA_RULE_TABLE, Table)
	m.body.text(unix.NFTA_RULE_CHAIN, r.chain)
	list := m.body.begin(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r.exprs {
		b, err := marshal(e)
		if err != nil {
			return m, fmt.Errorf("write the rule for %s: %w", r.comment, err)
		}
		m.body.bytes(unix.NFTA_LIST_ELEM|nlaNested, b)
	}
	m.body.end(list)
	if r.comment != "" {
		m.body.bytes(unix.NFTA_RULE_USERDATA, comment(r.comment))
	}
	return m, nil
}

// NFTA_SET_*, NFTA_SET_ELEM_*, NFTNL_UDATA_SET_* that golang.org/x/sys/unix does not
// name (linux/netfilter/nf_tables.h, libnftnl/udata.h).
const (
	nftaSetExpr            = 17
	udataSetKeyByteorder   = 0
	udataSetDataByteorder  = 1
	udataSetDataInterval   = 6
	byteorderHost          = 1
	byteorderBig           = 2
	elementsPerMessageSize = 32 << 10 // of 64 KiB that an attribute can have
)

func (s *set) messages() []message {
	all := []message{s.header()}
	for rest := s.elements; len(rest) > 0; {
		m := message{kind: unix.NFT_MSG_NEWSETELEM, flags: unix.NLM_F_CREATE, about: s.about}
		m.body.text(unix.NFTA_SET_ELEM_LIST_TABLE, Table)
		m.body.text(unix.NFTA_SET_ELEM_LIST_SET, s.reference())
		m.body.u32(unix.NFTA_SET_ELEM_LIST_SET_ID, s.id)
		list := m.body.begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(rest) > 0 && len(m.body) < elementsPerMessageSize {
			m.elements = append(m.elements, placed{len(m.body), rest[0].comment})
			rest[0].append(&m.body)
			rest = rest[1:]
		}
		m.body.end(list)
		all = append(all, m)
	}
	return all
}

func (s *set) header() message {
	m := message{kind: unix.NFT_MSG_NEWSET, flags: unix.NLM_F_CREATE, about: s.about, exprs: []string{"set"}}
	m.body.text(unix.NFTA_SET_TABLE, Table)
	m.body.text(unix.NFTA_SET_NAME, s.reference())
	m.body.u32(unix.NFTA_SET_FLAGS, s.flags)
	m.body.u32(unix.NFTA_SET_KEY_TYPE, s.key.GetNFTMagic())
	m.body.u32(unix.NFTA_SET_KEY_LEN, s.key.Bytes)
	if s.flags&unix.NFT_SET_MAP != 0 {
		length := s.data.Bytes
		if s.ranges {
			length *= 2
		}
		m.body.u32(unix.NFTA_SET_DATA_TYPE, s.data.GetNFTMagic())
		m.body.u32(unix.NFTA_SET_DATA_LEN, length)
	}
	if s.size > 0 {
		desc := m.body.begin(unix.NFTA_SET_DESC)
		m.body.u32(unix.NFTA_SET_DESC_SIZE, s.size)
		m.body.end(desc)
	}
	m.body.u32(unix.NFTA_SET_ID, s.id)
	m.body.bytes(unix.NFTA_SET_USERDATA, s.userdata())
	if s.counted { // kernels before 5.7 take no notice
		b, err := expr.Marshal(familyInet, &expr.Counter{})
		if err == nil {
			m.body.bytes(nftaSetExpr|nlaNested, b)
		}
	}
	return m
}

// userdata tells nft(8) how to show the elements.
func (s *set) userdata() []byte {
	order := uint32(byteorderBig)
	if s.hostOrder {
		order = byteorderHost
	}
	u := putUint32(nil, udataSetKeyByteorder, order)
	if s.flags&unix.NFT_SET_MAP != 0 {
		u = putUint32(u, udataSetDataByteorder, byteorderBig)
	}
	if s.ranges {
		u = putUint32(u, udataSetDataInterval, 1)
	}
	return u
}

func putUint32(u []byte, kind userdata.Type, v uint32) []byte {
	return append(u, append([]byte{byte(kind), 4}, binary.NativeEndian.AppendUint32(nil, v)...)...)
}

func (e element) append(a *attrs) {
	item := a.begin(unix.NFTA_LIST_ELEM)
	if e.end {
		a.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	key := a.begin(unix.NFTA_SET_ELEM_KEY)
	a.bytes(unix.NFTA_DATA_VALUE, e.key)
	a.end(key)
	if e.data != nil {
		data := a.begin(unix.NFTA_SET_ELEM_DATA)
		a.bytes(unix.NFTA_DATA_VALUE, e.data)
		a.end(data)
	}
	if e.comment != "" {
		a.bytes(unix.NFTA_SET_ELEM_USERDATA, comment(e.comment)) // NFTNL_UDATA_SET_ELEM_COMMENT is 0 as well
	}
	a.end(item)
}

func (f *flowtable) message() message {
	m := message{kind: nftables.NFT_MSG_NEWFLOWTABLE, flags: unix.NLM_F_CREATE, about: "flowtable", exprs: []string{"flowtable"}}
	m.body.text(nftables.NFTA_FLOWTABLE_TABLE, Table)
	m.body.text(nftables.NFTA_FLOWTABLE_NAME, f.name)
	hook := m.body.begin(nftables.NFTA_FLOWTABLE_HOOK)
	m.body.u32(nftables.NFTA_FLOWTABLE_HOOK_NUM, unix.NF_NETDEV_INGRESS)
	m.body.u32(nftables.NFTA_FLOWTABLE_PRIORITY, 0)
	devices := m.body.begin(nftables.NFTA_FLOWTABLE_DEVS)
	for _, name := range f.devices {
		m.body.text(nftables.NFTA_DEVICE_NAME, name)
	}
	m.body.end(devices)
	m.body.end(hook)
	if f.counted {
		m.body.u32(nftables.NFTA_FLOWTABLE_FLAGS, uint32(nftables.FlowtableFlagsCounter))
	}
	return m
}
