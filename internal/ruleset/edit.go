package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
	"github.com/natkit/natkit/internal/unix"
)

// Edit is where a rule has the ports and options of its translation.
type Edit struct {
	Rule *KernelRule
	at   int // the expression that translates
	// portMin and portMax are the immediates that load the ports, -1 if there are none;
	// the same for a single port.
	portMin, portMax int
	// xt is the range of an x_tables target, blob its structure.
	xt   *XTRange
	blob []byte
}

// Editable returns nil if a rule does not translate the source, or in a way in which
// natkit cannot change it: twice, by NETMAP, or to ports from a map.
func Editable(r *KernelRule) *Edit {
	e := Edit{Rule: r, at: -1, portMin: -1, portMax: -1}
	for i, x := range r.Exprs {
		_, xt := XTKinds[x.Data.Text(unix.NFTA_TARGET_NAME)]
		_, native := NATAttrsOf[x.Name]
		if x.Name == "target" && xt || native {
			if e.at >= 0 {
				return nil
			}
			e.at = i
		}
	}
	if e.at < 0 || !e.find() {
		return nil
	}
	return &e
}

func (e *Edit) find() bool {
	x := e.Rule.Exprs[e.at]
	if x.Name == "target" {
		name := x.Data.Text(unix.NFTA_TARGET_NAME)
		e.blob = x.Data.Get(unix.NFTA_TARGET_INFO)
		n, ok := ParseXTRange(name, x.Data.U32(unix.NFTA_TARGET_REV), e.blob, e.Rule.Key.Family == unix.NFPROTO_IPV6)
		e.xt = &n
		return ok && (name == "MASQUERADE" || name == "SNAT")
	}
	n := NATAttrsOf[x.Name]
	switch {
	case x.Name == "redir", x.Name == "nat" && x.Data.U32(unix.NFTA_NAT_TYPE) != unix.NFT_NAT_SNAT, x.Data.U32(n.Flags)&unix.NF_NAT_RANGE_NETMAP != 0:
		return false
	case !x.Data.Has(n.PortMin):
		return true
	}
	e.portMin = e.loader(x.Data.U32(n.PortMin))
	e.portMax = e.portMin
	if x.Data.Has(n.PortMax) {
		e.portMax = e.loader(x.Data.U32(n.PortMax))
	}
	return e.portMin >= 0 && e.portMax >= 0
}

// loader is the immediate that a register has its value from; -1 if it is not among those
// right before the translation, which nothing else reads.
func (e *Edit) loader(register uint32) int {
	for i := e.at - 1; i >= 0; i-- {
		x := e.Rule.Exprs[i]
		switch dreg := x.Data.U32(unix.NFTA_IMMEDIATE_DREG); {
		case x.Name == "counter":
		case x.Name != "immediate" || dreg == 0:
			return -1
		case slot(dreg) == slot(register):
			return i
		}
	}
	return -1
}

func (e *Edit) portImmediate(i int) bool { return i >= 0 && (i == e.portMin || i == e.portMax) }

// Options returns the rule's present options.
func (e *Edit) Options() (o nat.Options) {
	x := e.Rule.Exprs[e.at]
	flags := x.Data.U32(NATAttrsOf[x.Name].Flags)
	switch {
	case e.xt != nil:
		flags, o.Ports = e.xt.Flags, e.xt.Ports
	case e.portMin >= 0:
		at := func(i int) uint16 {
			return port(e.Rule.Exprs[i].Data.Nested(unix.NFTA_IMMEDIATE_DATA).Get(unix.NFTA_DATA_VALUE))
		}
		o.Ports = nat.Ports{First: at(e.portMin), Last: at(e.portMax)}
	}
	o.SetFlags(flags)
	return o
}

// Protocols are those that the rule is for; none if it is for all, or if they are not
// known. Those of a set are in its elements, which elements returns by its name.
func (r *KernelRule) Protocols(elements func(set string) ([]Element, error)) (all []uint8, err error) {
	m, rule := r.read()
	if rule.Match.Protocol != 0 {
		return []uint8{rule.Match.Protocol}, nil
	}
	if m.protoSet == "" {
		return nil, nil
	}
	list, err := elements(m.protoSet)
	for _, e := range list {
		if len(e.key) == 0 || e.flags != 0 { // an interval
			return nil, err
		}
		all = append(all, e.key[0])
	}
	return all, err
}

func (r *KernelRule) read() (*machine, *Rule) {
	m := &machine{family: familyNames[r.Key.Family]}
	return m, m.read(r)
}

// Accepts returns why a rule for these protocols (none: for all) cannot have the options,
// or could not be given back those that it has. iptables and nft take a range of ports
// only behind a condition on protocols that have ports.
func (e *Edit) Accepts(o nat.Options, protocols []uint8) error {
	other := func(p uint8) bool { return !nat.HasPorts(p) }
	if (o.Ports.First != 0) != (e.Options().Ports.First != 0) && (len(protocols) == 0 || slices.ContainsFunc(protocols, other)) {
		return errors.New("it is not only for protocols that have ports, and iptables and nft take a range of ports nowhere else: make rules for tcp and udp in the program that loads them, or change only its options (fully-random)")
	}
	if e.xt != nil && e.Rule.Exprs[e.at].Data.Text(unix.NFTA_TARGET_NAME) == "MASQUERADE" && o.Persistent {
		return errors.New("iptables' MASQUERADE has no option persistent")
	}
	return nil
}

// Message is the rule with other options, in its place: the body of an NFT_MSG_NEWRULE
// with NLM_F_REPLACE. All other expressions are as the kernel returned them, counters
// included. lookups are the data of those that look into another set.
func (e *Edit) Message(o nat.Options, lookups map[string]func(netlink.Attrs) []byte) ([]byte, error) {
	exprs, err := e.expressions(o, lookups)
	if err != nil {
		return nil, err
	}
	var b []byte
	for _, a := range e.Rule.Attrs {
		switch a.Kind {
		case unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_USERDATA:
			b = append(b, a.Raw...)
		}
	}
	return netlink.AppendAttr(e.appendCompat(b), unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, exprs), nil
}

// appendCompat adds the protocol that the rule is for, which matches and targets of
// x_tables ask for and the kernel does not return (NFTA_RULE_COMPAT).
func (e *Edit) appendCompat(b []byte) []byte {
	m, rule := e.Rule.read()
	if !rule.XT || m.proto == 0 {
		return b
	}
	flags := uint32(0)
	if m.protoNot {
		flags = unix.NFT_RULE_COMPAT_F_INV
	}
	b, at := netlink.BeginNest(b, unix.NFTA_RULE_COMPAT)
	return netlink.EndNest(netlink.AppendU32(netlink.AppendU32(b, unix.NFTA_RULE_COMPAT_PROTO, uint32(m.proto)), unix.NFTA_RULE_COMPAT_FLAGS, flags), at)
}

func (e *Edit) expressions(o nat.Options, lookups map[string]func(netlink.Attrs) []byte) (b []byte, err error) {
	for i, x := range e.Rule.Exprs {
		switch lookup := lookups[x.Data.Text(unix.NFTA_LOOKUP_SET)]; {
		case e.portImmediate(i):
		case i == e.at && e.xt != nil:
			b = appendExpr(b, x.Name, ReplaceAttr(x.Data, unix.NFTA_TARGET_INFO, e.withRange(o)))
		case i == e.at:
			if b, err = e.appendTranslation(b, o); err != nil {
				return nil, err
			}
		case x.Name == "lookup" && lookup != nil:
			b = appendExpr(b, x.Name, lookup(x.Data))
		default:
			b = netlink.AppendAttr(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, x.Raw)
		}
	}
	return b, nil
}

// withRange is the target's structure with other ports and options.
func (e *Edit) withRange(o nat.Options) []byte {
	b := bytes.Clone(e.blob)
	binary.NativeEndian.PutUint32(b[e.xt.FlagsAt:], e.xt.Flags&^nat.OptionFlags|o.Flags())
	binary.BigEndian.PutUint16(b[e.xt.PortsAt:], o.Ports.First)
	binary.BigEndian.PutUint16(b[e.xt.PortsAt+2:], o.Ports.Last)
	return b
}

// appendTranslation appends nat or masq, behind the immediates that load its ports.
func (e *Edit) appendTranslation(b []byte, o nat.Options) ([]byte, error) {
	x := e.Rule.Exprs[e.at]
	n := NATAttrsOf[x.Name]
	var data []byte
	for _, a := range x.Data {
		if a.Kind != n.PortMin && a.Kind != n.PortMax && a.Kind != n.Flags {
			data = append(data, a.Raw...)
		}
	}
	if flags := x.Data.U32(n.Flags)&^nat.OptionFlags | o.Flags(); flags != 0 {
		data = netlink.AppendU32(data, n.Flags, flags)
	}
	free := e.freeRegisters(n)
	load := func(kind uint16, port uint16) {
		value := netlink.AppendU16(nil, unix.NFTA_DATA_VALUE, port)
		b = appendExpr(b, "immediate", netlink.AppendAttr(netlink.AppendU32(nil, unix.NFTA_IMMEDIATE_DREG, free[0]), unix.NFTA_IMMEDIATE_DATA|unix.NLA_F_NESTED, value))
		data = netlink.AppendU32(data, kind, free[0])
		free = free[1:]
	}
	if o.Ports.First != 0 {
		if len(free) < 2 {
			return nil, fmt.Errorf("rule %d of %s: no register is free for ports", e.Rule.Handle, e.Rule.Chain)
		}
		load(n.PortMin, o.Ports.First)
		if o.Ports.Last != o.Ports.First {
			load(n.PortMax, o.Ports.Last)
		}
	}
	return appendExpr(b, x.Name, data), nil
}

// freeRegisters are those of NFT_REG_1 to NFT_REG_4 that do not hold addresses. Nothing
// reads the others after a translation, which ends the rule.
func (e *Edit) freeRegisters(n NATAttrs) []uint32 {
	a := e.Rule.Exprs[e.at].Data
	free := []uint32{1, 2, 3, 4}
	for _, kind := range []uint16{n.AddrMin, n.AddrMax} {
		if kind != 0 && a.Has(kind) {
			used := slot(a.U32(kind))/4 + 1
			free = slices.DeleteFunc(free, func(r uint32) bool { return r == used })
		}
	}
	return free
}

func appendExpr(b []byte, name string, data []byte) []byte {
	e := netlink.AppendAttr(netlink.AppendText(nil, ExprName, name), ExprData|unix.NLA_F_NESTED, data)
	return netlink.AppendAttr(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, e)
}

// ReplaceAttr writes attributes out again, one of them with other content.
func ReplaceAttr(a netlink.Attrs, kind uint16, data []byte) (b []byte) {
	for _, x := range a {
		if x.Kind == kind {
			b = netlink.AppendAttr(b, kind, data)
		} else {
			b = append(b, x.Raw...)
		}
	}
	return b
}

// Identify sets IDs for a network namespace. Of rules that are alike the second one of a
// chain, by age, has the suffix "#2": a program that misses its own rule since natkit
// changed it adds another one, often in front. The gateway's rules are changed by its file.
func (d *Dump) Identify(inode uint64) {
	d.IDs = map[*KernelRule]string{}
	if d.Key.IsGateway() {
		return
	}
	times := map[string]int{}
	byAge := func(a, b *KernelRule) int { return cmp.Compare(a.Handle, b.Handle) }
	for _, r := range slices.SortedFunc(slices.Values(d.Rules), byAge) {
		e := Editable(r)
		if e == nil {
			continue
		}
		name := fmt.Sprintf("netns %d %s %s %s %08x", inode, familyNames[d.Key.Family], url.PathEscape(d.Key.Name), url.PathEscape(r.Chain), e.fingerprint())
		if times[name]++; times[name] > 1 {
			name += fmt.Sprintf("#%d", times[name])
		}
		d.IDs[r] = name
	}
}

// fingerprint is a hash over a rule's expressions without counters, and without ports and
// options of its translation.
func (e *Edit) fingerprint() uint32 {
	h := fnv.New32a()
	for i, x := range e.Rule.Exprs {
		if e.portImmediate(i) {
			continue
		}
		h.Write([]byte(x.Name))
		h.Write([]byte{0})
		switch n := NATAttrsOf[x.Name]; {
		case i != e.at:
			h.Write(x.Stateless())
		case e.xt != nil:
			h.Write(append(Without(x.Data, unix.NFTA_TARGET_INFO), e.withRange(nat.Options{})...))
		default:
			h.Write(binary.BigEndian.AppendUint32(Without(x.Data, n.PortMin, n.PortMax, n.Flags), x.Data.U32(n.Flags)&unix.NF_NAT_RANGE_NETMAP))
		}
	}
	return h.Sum32()
}

// Stateless is an expression's data without what packets change in it.
func (x *KernelExpr) Stateless() []byte {
	switch x.Name {
	case "counter", "last":
		return nil
	case "quota":
		return Without(x.Data, unix.NFTA_QUOTA_CONSUMED)
	case "lookup": // an anonymous set has another number in every rule
		name := strings.TrimRight(x.Data.Text(unix.NFTA_LOOKUP_SET), "0123456789")
		if name == "__set" || name == "__map" {
			return append(Without(x.Data, unix.NFTA_LOOKUP_SET), name...)
		}
	}
	return Without(x.Data)
}

// Without writes attributes out again, except some, for comparisons.
func Without(a netlink.Attrs, kinds ...uint16) (b []byte) {
	for _, x := range a {
		if !slices.Contains(kinds, x.Kind) {
			b = binary.BigEndian.AppendUint16(b, x.Kind)
			b = append(b, x.Data...)
		}
	}
	return b
}
