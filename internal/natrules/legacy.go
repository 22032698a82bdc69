package natrules

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
)

// layout says where struct ipt_entry and struct ip6t_entry have their fields
// (include/uapi/linux/netfilter_ipv4/ip_tables.h and its twin), as 64-bit kernels
// lay them out. Both begin with source, destination and their masks.
type layout struct {
	family                   string
	addr                     int // bytes of an address
	proto, flags, inverted   int
	targetOffset, nextOffset int
	size                     int
}

var (
	layoutIP4 = layout{family: "ip", addr: 4, proto: 80, flags: 82, inverted: 83, targetOffset: 88, nextOffset: 90, size: 112}
	layoutIP6 = layout{family: "ip6", addr: 16, proto: 128, flags: 131, inverted: 132, targetOffset: 140, nextOffset: 142, size: 168}
)

const (
	nameBytes      = 16 // IFNAMSIZ
	xtHeader       = 32 // struct xt_entry_match and xt_entry_target: size, name, revision
	legacyReturn   = -5 // XT_RETURN
	legacyDrop     = -1 // -NF_DROP-1
	legacyGoto     = 2  // IPT_F_GOTO; of IPv6 it is 4
	legacyGotoIP6  = 4
	legacyFragment = 1 // IPT_F_FRAG
	legacyTOS      = 2 // IP6T_F_TOS
)

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	validHooks uint32
	entry      [5]uint32
	// underflow is where the policy of each built-in chain stands.
	underflow [5]uint32
	size      uint32
}

// infoBytes is the size of struct ipt_getinfo: a name of 32 bytes, the valid
// hooks, five entries and five ends of them, the number of rules, their size.
const infoBytes = 84

func parseInfo(b []byte) (tableInfo, error) {
	if len(b) < infoBytes {
		return tableInfo{}, errGarbled
	}
	var i tableInfo
	i.validHooks = binary.NativeEndian.Uint32(b[32:])
	for hook := range i.entry {
		i.entry[hook] = binary.NativeEndian.Uint32(b[36+4*hook:])
		i.underflow[hook] = binary.NativeEndian.Uint32(b[56+4*hook:])
	}
	i.size = binary.NativeEndian.Uint32(b[80:])
	return i, nil
}

// entry is one rule of a blob.
type entry struct {
	l      layout
	offset int
	b      []byte // of the rule alone
	target int    // where its target begins
}

var errLegacy = errors.New("a rule's size does not fit what holds it")

func (l layout) entries(blob []byte) ([]entry, error) {
	var all []entry
	for at := 0; at < len(blob); {
		rest := blob[at:]
		if len(rest) < l.size {
			return nil, errLegacy
		}
		target := int(binary.NativeEndian.Uint16(rest[l.targetOffset:]))
		next := int(binary.NativeEndian.Uint16(rest[l.nextOffset:]))
		if target < l.size || next < target+xtHeader || next > len(rest) {
			return nil, errLegacy
		}
		all = append(all, entry{l, at, rest[:next], target})
		at += next
	}
	return all, nil
}

// extension is a match or a target.
type extension struct {
	name     string
	revision uint32
	data     []byte
}

func parseExtension(b []byte) (extension, error) {
	if len(b) < xtHeader {
		return extension{}, errLegacy
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < xtHeader || size > len(b) {
		return extension{}, errLegacy
	}
	name, _, _ := bytes.Cut(b[2:31], []byte{0})
	return extension{string(name), uint32(b[31]), b[xtHeader:size]}, nil
}

// chainName is the name of the chain that begins with this entry: a target ERROR
// that no packet comes to marks it.
func (e entry) chainName() (string, bool) {
	x, err := parseExtension(e.b[e.target:])
	if err != nil || x.name != "ERROR" {
		return "", false
	}
	name, _, _ := bytes.Cut(x.data, []byte{0})
	return string(name), true
}

// builtin are the names of a table's own chains by hook.
var builtin = [...]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// parseLegacy reads the blob of a table (IPT_SO_GET_ENTRIES).
func parseLegacy(l layout, name string, info tableInfo, blob []byte) (*ruleTable, error) {
	all, err := l.entries(blob)
	if err != nil {
		return nil, fmt.Errorf("parse table %s (%s): %w", name, l.family, err)
	}
	t := newTable(l.family, name)
	first := map[int]string{} // the chain that begins at an offset
	for hook, at := range info.entry {
		if info.validHooks>>hook&1 == 1 {
			first[int(at)] = builtin[hook]
			c := t.chain(builtin[hook])
			c.bases = append(c.bases, base{hook, legacyPriority(name, hook)})
		}
	}
	for i, e := range all {
		if chain, ok := e.chainName(); ok && i+1 < len(all) {
			first[all[i+1].offset] = chain
		}
	}
	current := ""
	for _, e := range all {
		if chain := first[e.offset]; chain != "" {
			current = chain
		}
		if _, marker := e.chainName(); marker || current == "" {
			current = ""
			continue
		}
		s, err := e.step(first)
		if err != nil {
			return nil, fmt.Errorf("parse table %s (%s): %w", name, l.family, err)
		}
		c := t.chain(current)
		c.steps = append(c.steps, s)
	}
	return t, nil
}

// natPriority is NF_IP_PRI_NAT_DST or NF_IP_PRI_NAT_SRC.
func natPriority(hook int) int32 {
	if hook == 0 || hook == 3 {
		return -100
	}
	return 100
}

func (e entry) step(first map[int]string) (step, error) {
	var s step
	s.rule.Source = "iptables-legacy"
	e.conditions(&s)
	for at := e.l.size; at < e.target; {
		x, err := parseExtension(e.b[at:e.target])
		if err != nil {
			return s, err
		}
		s.match(x.name, x.revision, x.data)
		at += xtHeader + len(x.data)
	}
	x, err := parseExtension(e.b[e.target:])
	if err != nil {
		return s, err
	}
	if x.name == "" {
		e.standard(&s, x.data, first)
	} else {
		s.target(x.name, x.revision, x.data, e.l.family)
	}
	s.close()
	return s, nil
}

// standard is a verdict: where it is not negative, the offset of a chain.
func (e entry) standard(s *step, data []byte, first map[int]string) {
	if len(data) < 4 {
		s.rule.Partial = true
		return
	}
	v := int32(binary.NativeEndian.Uint32(data))
	switch chain := first[int(v)]; {
	case v == legacyDrop:
		s.refuse("drop")
	case v < 0:
		s.leaves, s.ends = true, v != legacyReturn
	case chain != "":
		s.to = []string{chain}
		s.leaves = e.isGoto()
	}
}

func (e entry) isGoto() bool {
	flag := byte(legacyGoto)
	if e.l.family == "ip6" {
		flag = legacyGotoIP6
	}
	return e.b[e.l.flags]&flag != 0
}

// conditions are addresses, interfaces and protocol, which every rule has room for.
func (e entry) conditions(s *step) {
	a := e.l.addr
	if p := prefixOf(e.b[:a], e.b[2*a:3*a]); p.Bits() != 0 {
		s.setPrefix(&s.rule.FromSource, p)
	}
	if p := prefixOf(e.b[a:2*a], e.b[3*a:4*a]); p.Bits() != 0 {
		s.setPrefix(&s.rule.ToDestination, p)
	}
	names := e.b[4*a:]
	s.rule.InInterface = legacyInterface(names, names[2*nameBytes:])
	s.rule.OutInterface = legacyInterface(names[nameBytes:], names[3*nameBytes:])
	if proto := binary.NativeEndian.Uint16(e.b[e.l.proto:]); proto != 0 {
		s.rule.Protocol = conntrack.ProtocolName(uint8(proto))
	}
	flags := e.b[e.l.flags]
	if e.l.family == "ip" && flags&legacyFragment != 0 || e.l.family == "ip6" && flags&legacyTOS != 0 {
		s.rule.Partial, s.cause = true, "fragments or type of service"
	}
	if inverted := e.b[e.l.inverted]; inverted != 0 {
		s.invert(inverted)
	}
}

// invert takes back the conditions that mean the contrary (IPT_INV_*).
func (s *step) invert(flags byte) {
	r, not := &s.rule, &s.further
	if flags&0x01 != 0 {
		not.NotIn, r.InInterface = append(not.NotIn, r.InInterface), ""
	}
	if flags&0x02 != 0 {
		not.NotOut, r.OutInterface = append(not.NotOut, r.OutInterface), ""
	}
	if flags&0x08 != 0 {
		not.NotFrom, r.FromSource = append(not.NotFrom, r.FromSource), netip.Prefix{}
	}
	if flags&0x10 != 0 {
		not.NotTo, r.ToDestination = append(not.NotTo, r.ToDestination), netip.Prefix{}
	}
	if flags&0x40 != 0 {
		r.Protocol = ""
	}
	if flags&^0x1b != 0 {
		r.Partial, s.cause = true, "a protocol inverted"
	}
}

// legacyInterface is a name of which the mask tells how much is compared.
func legacyInterface(name, mask []byte) string {
	compared := 0
	for compared < nameBytes && mask[compared] != 0 {
		compared++
	}
	n, _, exact := bytes.Cut(name[:compared], []byte{0})
	if compared == 0 || exact || compared == nameBytes {
		return string(n)
	}
	return string(n) + "*"
}
