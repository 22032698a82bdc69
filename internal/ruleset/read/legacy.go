package read

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/privilege"
	"golang.org/x/sys/unix"
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
		s.rule.Protocol = nat.ProtocolName(uint8(proto))
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

// Options of getsockopt(2), the same for both versions of IP (ip_tables.h).
const (
	optInfo    = 64 // IPT_SO_GET_INFO
	optEntries = 65 // IPT_SO_GET_ENTRIES
	// entriesHeader is where the rules begin in struct ipt_get_entries.
	entriesHeader = 40
	// legacyMax is more than any table has: a rule takes a hundred bytes and more.
	legacyMax = 256 << 20
)

// legacySource is one version's table.
type legacySource struct {
	names  string // below /proc, tells which tables are there
	domain int
	level  int
	layout layout
}

var legacySources = []legacySource{
	{"/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, layoutIP4},
	{"/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, layoutIP6},
}

// readLegacy tells the rules of iptables-legacy. To ask for a table that is not
// there would load its module and make it.
func readLegacy(ns *netns.Handle, ways *budget) ([]found, error) {
	tables, err := legacyTables(ns, "nat")
	var all []found
	for _, t := range tables {
		all = append(all, t.rules(ways)...)
	}
	return all, err
}

// legacyTables are the tables of these names, of both versions of IP.
func legacyTables(ns *netns.Handle, names ...string) ([]*ruleTable, error) {
	var all []*ruleTable
	read := func() error {
		for _, s := range legacySources {
			for _, name := range names {
				t, err := s.read(name)
				if err != nil {
					return err
				}
				if t != nil {
					all = append(all, t)
				}
			}
		}
		return nil
	}
	err := ns.Do(read)
	return all, err
}

// read is one version's table of that name in the calling thread's namespace; nil where
// there is none.
func (s legacySource) read(name string) (*ruleTable, error) {
	names, err := s.tables()
	if err != nil || !slices.Contains(names, name) {
		return nil, err
	}
	info, blob, err := s.ask(name)
	if err != nil {
		return nil, err
	}
	return parseLegacy(s.layout, name, info, blob)
}

// tables are those that there are, in the calling thread's namespace.
func (s legacySource) tables() ([]string, error) {
	names, err := os.ReadFile(s.names)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the kernel has no iptables, or not loaded
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("read %s: %w", s.names, privilege.Denied(err, privilege.ReadAll))
	case err != nil:
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// ask reads a table that is there.
func (s legacySource) ask(table string) (tableInfo, []byte, error) {
	fd, err := unix.Socket(s.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return tableInfo{}, nil, fmt.Errorf("read table %s (%s): open a raw socket: %w", table, s.layout.family, privilege.Denied(err, privilege.NetRaw))
	}
	defer unix.Close(fd)
	info, blob, err := s.table(fd, table)
	if err != nil {
		return info, nil, fmt.Errorf("read table %s (%s): %w", table, s.layout.family, err)
	}
	return info, blob, nil
}

// table asks until the size that the kernel told is the one that it has.
func (s legacySource) table(fd int, name string) (info tableInfo, blob []byte, err error) {
	for range attempts {
		b := make([]byte, infoBytes)
		copy(b[:xtHeader-1], name)
		if err = getsockopt(fd, s.level, optInfo, b); err != nil {
			break
		}
		if info, err = parseInfo(b); err != nil {
			return info, nil, err
		}
		if info.size > legacyMax {
			return info, nil, fmt.Errorf("its rules take %d bytes, more than natkit reads", info.size)
		}
		b = make([]byte, entriesHeader+int(info.size))
		copy(b[:xtHeader-1], name)
		binary.NativeEndian.PutUint32(b[32:], info.size)
		if err = getsockopt(fd, s.level, optEntries, b); !errors.Is(err, unix.EAGAIN) {
			blob = b[entriesHeader:]
			break
		}
	}
	if errors.Is(err, unix.EPERM) {
		err = privilege.Denied(err, privilege.NetAdmin)
	}
	return info, blob, err
}

// getsockopt fills b, which also says what is asked for.
func getsockopt(fd, level, option int, b []byte) error {
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// legacyBaseChains are those of iptables-legacy's tables that are there.
func legacyBaseChains(ns *netns.Handle) ([]BaseChain, error) {
	var all []BaseChain
	read := func() error {
		for _, s := range legacySources {
			names, err := s.tables()
			if err != nil {
				return err
			}
			for _, name := range names {
				info, blob, err := s.ask(name)
				if err != nil {
					return err
				}
				chains, err := parseLegacyBase(s.layout, name, info, blob)
				if err != nil {
					return err
				}
				all = append(all, chains...)
			}
		}
		return nil
	}
	err := ns.Do(read)
	return all, err
}

func parseLegacyBase(l layout, name string, info tableInfo, blob []byte) ([]BaseChain, error) {
	t, err := parseLegacy(l, name, info, blob)
	if err != nil {
		return nil, err
	}
	g := &graph{steps: map[string][]step{}}
	for _, c := range t.order {
		g.steps[c.name] = c.steps[:max(len(c.steps)-1, 0)] // the last one is the policy, or the return
	}
	kind := "filter"
	if name == "nat" {
		kind = "nat"
	}
	var all []BaseChain
	for _, c := range t.order {
		for _, at := range c.bases {
			b := BaseChain{Source: "iptables-legacy", Family: l.family, Table: name, Name: c.name, Type: kind,
				Hook: hookNames[at.hook], Priority: at.priority, Policy: info.policy(l, at.hook, blob)}
			b.reach(g)
			all = append(all, b)
		}
	}
	return all, nil
}

// policy is the verdict of a hook's last rule; empty where the blob is too short.
func (i tableInfo) policy(l layout, hook int, blob []byte) string {
	const accept = -2 // -NF_ACCEPT-1
	at := int(i.underflow[hook]) + l.size + xtHeader
	if at < 0 || at+4 > len(blob) {
		return ""
	}
	if int32(binary.NativeEndian.Uint32(blob[at:])) == accept {
		return "accept"
	}
	return "drop"
}

// legacyPriority is NF_IP_PRI_* of a table's chain (uapi/linux/netfilter_ipv4.h).
func legacyPriority(table string, hook int) int32 {
	switch table {
	case "raw":
		return -300
	case "mangle":
		return -150
	case "nat":
		return natPriority(hook)
	case "security":
		return 50
	}
	return 0
}

// match is a condition of x_tables.
func (s *step) match(name string, revision uint32, data []byte) {
	switch {
	case name == "comment":
		text, _, _ := bytes.Cut(data, []byte{0})
		s.comment = string(text)
	case name == "addrtype" && isLocalDestination(revision, data):
		s.rule.LocalDestination, s.cause = true, name
	case name == "multiport" && revision == 1 && len(data) >= 48:
		s.multiport(data)
	case name == "tcp" && revision == 0 && len(data) >= 12:
		if data[9] == tcpSYN|tcpRST && data[10] == tcpSYN && data[11] == 0 { // flags looked at, and set
			s.further.SYN = true
		} else if data[9] != 0 {
			s.rule.Partial, s.cause = true, "tcp flags"
		}
		s.ports(data, data[8] == 0 && data[11] == 0) // option, inverted
	case name == "udp" && revision == 0 && len(data) >= 9:
		s.ports(data, data[8] == 0)
	default:
		s.rule.Partial, s.cause = true, name
		s.rule.Marked = s.rule.Marked || name == "mark" || name == "connmark"
	}
}

// isLocalDestination reads struct xt_addrtype_info and xt_addrtype_info_v1: masks of
// types for the source and the destination, then flags of 32 bits that invert and limit
// them (two, or one).
func isLocalDestination(revision uint32, data []byte) bool {
	const local = 1 << unix.RTN_LOCAL
	size := map[uint32]int{0: 12, 1: 8}[revision]
	return size != 0 && len(data) >= size &&
		binary.NativeEndian.Uint16(data) == 0 && binary.NativeEndian.Uint16(data[2:]) == local &&
		len(bytes.Trim(data[4:size], "\x00")) == 0
}

// multiport reads struct xt_multiport_v1: what is compared (0: sources, 1: destinations), how
// many ports, 15 of them, which begin a range, inverted.
func (s *step) multiport(data []byte) {
	const rangesAt, invertedAt = 32, 47
	count := int(data[1])
	ports := map[byte]*[]nat.Ports{0: &s.further.SourcePorts, 1: &s.further.Ports}[data[0]]
	if ports == nil || data[invertedAt] != 0 || count > 15 || len(*ports) > 0 {
		s.rule.Partial, s.cause = true, "multiport"
		return
	}
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[2+2*i:]) }
	for i := 0; i < count; i++ {
		p := nat.Ports{First: port(i), Last: port(i)}
		if data[rangesAt+i] != 0 && i+1 < count {
			i++
			p.Last = port(i)
		}
		*ports = append(*ports, p)
	}
}

// ports is what struct xt_tcp and struct xt_udp begin with: source and destination
// ports, from and to, in the machine's byte order. plain says that the match has
// no other condition.
func (s *step) ports(data []byte, plain bool) {
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(data[2*i:]) }
	anySource := port(0) == 0 && port(1) == 0xffff
	anyDest := port(2) == 0 && port(3) == 0xffff
	if !anySource {
		s.further.SourcePorts = append(s.further.SourcePorts, nat.Ports{First: port(0), Last: port(1)})
	}
	switch {
	case !plain:
		s.rule.Partial = true
	case anyDest:
	case port(2) == port(3):
		s.setPort(port(2))
	default:
		s.further.Ports = append(s.further.Ports, nat.Ports{First: port(2), Last: port(3)})
	}
}

// setPort notes a destination port; 0, which no connection has, is no value for it.
func (s *step) setPort(port uint16) {
	if port == 0 || s.rule.DestinationPort != 0 && s.rule.DestinationPort != port {
		s.rule.Partial = true
		return
	}
	s.rule.DestinationPort = port
}
