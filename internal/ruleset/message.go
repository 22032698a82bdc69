package ruleset

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// TableKey identifies a table of nf_tables.
type TableKey struct {
	Family uint8 // NFPROTO_*
	Name   string
}

var familyNames = map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev"}

// KeyOf returns the key of a table by the name of its family.
func KeyOf(family, name string) (TableKey, error) {
	for number, text := range familyNames {
		if text == family {
			return TableKey{number, name}, nil
		}
	}
	return TableKey{}, fmt.Errorf("table %s %s: unknown family", family, name)
}

func (k TableKey) String() string { return familyNames[k.Family] + " " + k.Name }

// GatewayPairs is the one of maps of its pairs, followed by the family as well.
const GatewayPairs = "pairs"

// GatewaySet is the word that names of a gateway's sets of addresses and services begin with, and then "4-", "6-" or "-".
const GatewaySet = "set"

// RoomOfRead is the declared size of such a set up to which its elements are read. The kernel walks a set anew for each
// message of a dump (nf_tables_dump_set): a million elements take it 20 s.
const RoomOfRead = 1 << 15

// IsGatewaySet reports whether a set of the gateway's table is one of its plan.
func IsGatewaySet(name string) bool {
	for _, prefix := range []string{GatewaySet + "-", GatewaySet + "4-", GatewaySet + "6-", GatewayPairs + "4-", GatewayPairs + "6-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// IsGateway reports whether it is the table of natkit's gateway.
func (k TableKey) IsGateway() bool { return k == TableKey{unix.NFPROTO_INET, GatewayTable} }

// Body splits a message of nf_tables into the family of its nfgenmsg and its attributes.
func Body(msg []byte) (family uint8, all netlink.Attrs, err error) {
	if len(msg) < netlink.SizeofNetfilter {
		return 0, nil, netlink.ErrTruncated
	}
	all, err = netlink.ParseAttrs(msg[netlink.SizeofNetfilter:])
	return msg[0], all, err
}

// KernelChain is a chain as nf_tables returns it; Hook is negative unless it is a base
// chain.
type KernelChain struct {
	Key      TableKey
	Name     string
	Type     string
	Hook     int // NF_INET_*, NF_BR_*, NF_NETDEV_*
	Priority int32
	// Devices are the interfaces that it is for; nil for all.
	Devices []string
	Policy  string
	// Packets are those that the policy decided on, if Counted.
	Packets uint64
	Counted bool
}

// ParseChain parses the body of an NFT_MSG_NEWCHAIN.
func ParseChain(msg []byte) (KernelChain, error) {
	family, a, err := Body(msg)
	if err != nil {
		return KernelChain{}, fmt.Errorf("parse chain: %w", err)
	}
	c := KernelChain{Key: TableKey{family, a.Text(unix.NFTA_CHAIN_TABLE)}, Name: a.Text(unix.NFTA_CHAIN_NAME), Type: a.Text(unix.NFTA_CHAIN_TYPE), Hook: -1}
	if hook := a.Nested(unix.NFTA_CHAIN_HOOK); hook.Has(unix.NFTA_HOOK_HOOKNUM) {
		c.Hook = int(hook.U32(unix.NFTA_HOOK_HOOKNUM))
		c.Priority = int32(hook.U32(unix.NFTA_HOOK_PRIORITY))
		c.Policy = map[uint32]string{verdictDrop: "drop", verdictAccept: "accept"}[a.U32(unix.NFTA_CHAIN_POLICY)]
		c.Packets, c.Counted = a.Nested(unix.NFTA_CHAIN_COUNTERS).U64(unix.NFTA_COUNTER_PACKETS), a.Has(unix.NFTA_CHAIN_COUNTERS)
		c.Devices = devices(hook)
	}
	return c, nil
}

// devices are the names of a chain's interfaces (NFTA_HOOK_DEV, NFTA_HOOK_DEVS).
func devices(hook netlink.Attrs) (names []string) {
	const list = 4 // NFTA_HOOK_DEVS, since Linux 5.4
	if one := hook.Text(unix.NFTA_HOOK_DEV); one != "" {
		names = append(names, one)
	}
	all, _ := netlink.ParseAttrs(hook.Get(list))
	for _, a := range all {
		names = append(names, cString(a.Data))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// IsBase reports whether it is a base chain of a family of IP.
func (c *KernelChain) IsBase() bool {
	family := c.Key.Family
	return c.Hook >= 0 && (family == unix.NFPROTO_INET || family == unix.NFPROTO_IPV4 || family == unix.NFPROTO_IPV6)
}

// IsJudged reports whether it is a base chain that packets of IP come to, of an interface or a bridge, too.
func (c *KernelChain) IsJudged() bool { return c.Hook >= 0 && c.hook() != "" }

// hook is the name of the chain's hook; empty for one that natkit does not know.
func (c *KernelChain) hook() string {
	const inetIngress = 5 // NF_INET_INGRESS
	switch {
	case c.AtIP():
		return HookNames[c.Hook]
	case c.Key.Family == unix.NFPROTO_BRIDGE && c.Hook < len(HookNames):
		return BridgeHook + HookNames[c.Hook]
	case c.Key.Family == unix.NFPROTO_NETDEV && c.Hook == 0, c.Key.Family == unix.NFPROTO_INET && c.Hook == inetIngress:
		return HookIngress
	case c.Key.Family == unix.NFPROTO_NETDEV && c.Hook == 1:
		return HookEgress
	}
	return ""
}

// AtIP reports whether it is a base chain at a hook of IPv4 or IPv6.
func (c *KernelChain) AtIP() bool {
	return c.IsBase() && c.Hook < len(HookNames)
}

// IsNAT reports whether it is such a chain of type nat.
func (c *KernelChain) IsNAT() bool { return c.AtIP() && c.Type == "nat" }

// KernelRule is a rule as nf_tables returns it.
type KernelRule struct {
	Key    TableKey
	Chain  string
	Handle uint64
	Exprs  []KernelExpr
	Attrs  netlink.Attrs
}

// KernelExpr is an expression; Raw is the content of its NFTA_LIST_ELEM.
type KernelExpr struct {
	Name string
	Data netlink.Attrs
	Raw  []byte
}

// attributes of enum nft_expr_attributes, and what else unix has no names for.
const (
	ExprName, ExprData = 1, 2
	catchall           = 2  // NFT_SET_ELEM_CATCHALL
	setElemKeyEnd      = 10 // NFTA_SET_ELEM_KEY_END
)

// ParseExprs parses a list of expressions (NFTA_RULE_EXPRESSIONS).
func ParseExprs(b []byte) (all []KernelExpr, err error) {
	list, err := netlink.ParseAttrs(b)
	if err != nil {
		return nil, err
	}
	for _, elem := range list {
		e, err := netlink.ParseAttrs(elem.Data)
		if err != nil {
			return nil, err
		}
		all = append(all, KernelExpr{e.Text(ExprName), e.Nested(ExprData), elem.Data})
	}
	return all, nil
}

// ParseRule parses the body of an NFT_MSG_NEWRULE.
func ParseRule(msg []byte) (*KernelRule, error) {
	family, a, err := Body(msg)
	if err != nil {
		return nil, fmt.Errorf("parse rule: %w", err)
	}
	r := &KernelRule{Key: TableKey{family, a.Text(unix.NFTA_RULE_TABLE)}, Chain: a.Text(unix.NFTA_RULE_CHAIN), Handle: a.U64(unix.NFTA_RULE_HANDLE), Attrs: a}
	if r.Exprs, err = ParseExprs(a.Get(unix.NFTA_RULE_EXPRESSIONS)); err != nil {
		return nil, fmt.Errorf("parse rule %d of %s: %w", r.Handle, r.Chain, err)
	}
	return r, nil
}

// Element is an element of a set or map, or the end of an interval.
type Element struct {
	key, last []byte // last of concatenations alone
	flags     uint32
	data      netlink.Attrs
	comment   string
}

func (e Element) isEnd() bool      { return e.flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 }
func (e Element) isCatchall() bool { return e.flags&catchall != 0 }

// ParseElements parses NFTA_SET_ELEM_LIST_ELEMENTS.
func ParseElements(b []byte) (all []Element, err error) {
	elems, err := netlink.ParseAttrs(b)
	if err != nil {
		return nil, err
	}
	for _, elem := range elems {
		a, err := netlink.ParseAttrs(elem.Data)
		if err != nil {
			return nil, err
		}
		all = append(all, Element{
			key: a.Nested(unix.NFTA_SET_ELEM_KEY).Get(unix.NFTA_DATA_VALUE), last: a.Nested(setElemKeyEnd).Get(unix.NFTA_DATA_VALUE),
			flags: a.U32(unix.NFTA_SET_ELEM_FLAGS), data: a.Nested(unix.NFTA_SET_ELEM_DATA), comment: CommentOf(a.Get(unix.NFTA_SET_ELEM_USERDATA)),
		})
	}
	return all, nil
}

// CommentOf returns the comment in user data, which are type, length and value each.
func CommentOf(data []byte) string {
	const comment = 0 // NFTNL_UDATA_RULE_COMMENT, NFTNL_UDATA_SET_ELEM_COMMENT
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == comment {
			return string(bytes.TrimRight(value, "\x00"))
		}
		data = data[2+len(value):]
	}
	return ""
}

const (
	verdictDrop   = 0
	verdictAccept = 1
)

// verdict parses NFTA_DATA_VERDICT; without one it is NFT_CONTINUE.
func verdict(data netlink.Attrs) (code int32, chain string) {
	v := data.Nested(unix.NFTA_DATA_VERDICT)
	if !v.Has(unix.NFTA_VERDICT_CODE) {
		return -1, ""
	}
	return int32(v.U32(unix.NFTA_VERDICT_CODE)), v.Text(unix.NFTA_VERDICT_CHAIN)
}

// interval is the keys from first to last, which are the same except in a set of
// intervals, and a map's value.
type interval struct {
	first, last []byte
	value       netlink.Attrs
	comment     string
}

// intervals are those of a set, by key; none if one element is for all else. Those of
// addresses become prefixes.
func intervals(elements []Element, interv, addresses bool) (all []interval) {
	if slices.ContainsFunc(elements, Element.isCatchall) {
		return nil
	}
	keys := slices.Clone(elements)
	slices.SortStableFunc(keys, func(a, b Element) int {
		return cmp.Or(bytes.Compare(a.key, b.key), int(b.flags&unix.NFT_SET_ELEM_INTERVAL_END)-int(a.flags&unix.NFT_SET_ELEM_INTERVAL_END))
	})
	for i, k := range keys {
		switch {
		case k.isEnd():
		case len(k.last) == len(k.key): // of several fields
			all = append(all, interval{k.key, k.last, k.data, k.comment})
		case interv:
			whole := k.upTo(keys[i+1:])
			var parts []interval
			if addresses {
				parts = addressIntervals(whole)
			}
			if len(parts) == 0 {
				parts = []interval{whole}
			}
			all = append(all, parts...)
		default:
			all = append(all, interval{k.key, k.key, k.data, k.comment})
		}
	}
	return all
}

// upTo is the interval that ends before the next key.
func (k *Element) upTo(next []Element) interval {
	last := bytes.Repeat([]byte{0xff}, len(k.key))
	if len(next) > 0 && len(next[0].key) == len(k.key) {
		last = before(next[0].key)
	}
	return interval{k.key, last, k.data, k.comment}
}

// addressIntervals are the prefixes in one of addresses; none of something else.
func addressIntervals(e interval) (all []interval) {
	a, ok := netip.AddrFromSlice(e.first)
	z, ok2 := netip.AddrFromSlice(e.last)
	if !ok || !ok2 {
		return nil
	}
	for _, p := range (nat.AddrRange{First: a, Last: z}).Prefixes() {
		all = append(all, interval{p.Addr().AsSlice(), nat.LastAddr(p).AsSlice(), e.value, e.comment})
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
