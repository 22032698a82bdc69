package natrules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/natkit/natkit/internal/prefix"
	"github.com/natkit/natkit/internal/snapshot"
)

// setFlags takes the options out of NF_NAT_RANGE_* flags.
func setFlags(r *snapshot.NATRule, flags uint32) {
	r.Random = flags&rangeRandom != 0
	r.FullyRandom = flags&rangeFullyRandom != 0
	r.Persistent = flags&rangePersistent != 0
}

// words are nft's for the translation; inner is what it puts in place of an
// address and ports that are not constant.
func words(r *snapshot.NATRule, family string, netmap bool, inner string) string {
	text := r.Kind
	if family == "inet" && r.First.IsValid() {
		text += map[bool]string{true: " ip", false: " ip6"}[r.First.Is4()]
	}
	if netmap {
		text += " prefix"
	}
	if to := target(r, netmap) + inner; to != "" {
		text += " to " + to
	}
	if options := optionWords(r); options != "" {
		text += " " + options
	}
	return text
}

func optionWords(r *snapshot.NATRule) string {
	var on []string
	for _, o := range []struct {
		on   bool
		name string
	}{{r.Random, "random"}, {r.FullyRandom, "fully-random"}, {r.Persistent, "persistent"}} {
		if o.on {
			on = append(on, o.name)
		}
	}
	return strings.Join(on, ",")
}

func target(r *snapshot.NATRule, netmap bool) string {
	ports := ""
	if r.FirstPort != 0 {
		ports = fmt.Sprintf(":%d", r.FirstPort)
		if r.LastPort != r.FirstPort {
			ports += fmt.Sprintf("-%d", r.LastPort)
		}
	}
	switch {
	case !r.First.IsValid():
		return ports
	case netmap:
		if p := prefix.Between(r.First, r.Last); p.IsValid() {
			return p.String()
		}
	}
	one := func(a netip.Addr) string {
		if a.Is6() && ports != "" {
			return "[" + a.String() + "]"
		}
		return a.String()
	}
	if r.Last == r.First {
		return one(r.First) + ports
	}
	return one(r.First) + "-" + one(r.Last) + ports
}

// prefixOf is an address with a netmask; not valid where the mask has holes.
func prefixOf(addr, mask []byte) netip.Prefix {
	a, ok := netip.AddrFromSlice(addr)
	if !ok || len(mask) != len(addr) {
		return netip.Prefix{}
	}
	bits, ended := 0, false
	for _, m := range mask {
		for bit := 7; bit >= 0; bit-- {
			switch set := m>>bit&1 == 1; {
			case set && ended:
				return netip.Prefix{}
			case set:
				bits++
			default:
				ended = true
			}
		}
	}
	return netip.PrefixFrom(a, bits)
}

// natRange is what the three structures of ranges in x_tables have in common.
type natRange struct {
	flags                 uint32
	first, last           netip.Addr
	firstPort, lastPort   uint16
	flagsAt, portsAt, end int // offsets in the structure
}

// parseCompatRange reads struct nf_nat_ipv4_multi_range_compat: a count, which
// is 1, then flags, addresses and ports.
func parseCompatRange(b []byte) (natRange, bool) {
	if len(b) < 20 || binary.NativeEndian.Uint32(b) != 1 {
		return natRange{}, false
	}
	n := natRange{flags: binary.NativeEndian.Uint32(b[4:]), flagsAt: 4, portsAt: 16, end: 20}
	n.setAddrs(b[8:12], b[12:16])
	n.setPorts(b)
	return n, true
}

// parseRange reads struct nf_nat_range, with which nf_nat_range2 begins.
func parseRange(b []byte, ip6 bool) (natRange, bool) {
	if len(b) < 40 {
		return natRange{}, false
	}
	n := natRange{flags: binary.NativeEndian.Uint32(b), portsAt: 36, end: 40}
	size := 4
	if ip6 {
		size = 16
	}
	n.setAddrs(b[4:4+size], b[20:20+size])
	n.setPorts(b)
	return n, true
}

func (n *natRange) setAddrs(first, last []byte) {
	if n.flags&rangeMapIPs != 0 {
		n.first, _ = netip.AddrFromSlice(first)
		n.last, _ = netip.AddrFromSlice(last)
	}
}

func (n *natRange) setPorts(b []byte) {
	if n.flags&rangePorts != 0 {
		n.firstPort, n.lastPort = beUint16(b[n.portsAt:]), beUint16(b[n.portsAt+2:])
	}
}

// xtRange finds the range in a target's data by what its revision holds there
// (xt_nat.c, xt_MASQUERADE.c, xt_REDIRECT.c, xt_NETMAP.c).
func xtRange(name string, revision uint32, data []byte, ip6 bool) (natRange, bool) {
	switch {
	case revision == 0 && !ip6:
		return parseCompatRange(data)
	case revision == 0 && name != "SNAT" && name != "DNAT", (revision == 1 || revision == 2) && (name == "SNAT" || name == "DNAT"):
		return parseRange(data, ip6)
	}
	return natRange{}, false
}

// xtKinds are the targets of x_tables that translate.
var xtKinds = map[string]string{
	"MASQUERADE": snapshot.NATMasquerade, "SNAT": snapshot.NATSource,
	"DNAT": snapshot.NATDest, "REDIRECT": snapshot.NATRedirect, "NETMAP": snapshot.NATDest,
}

// target makes the step one that translates as an x_tables target does. What the
// data hold that is not known makes it partial.
func (s *step) target(name string, revision uint32, data []byte, family string) {
	kind, known := xtKinds[name]
	if name == "REJECT" {
		s.refuse("reject")
	}
	if !known {
		s.other = name
		s.besides(name, data)
		return // LOG, MARK and the like let the packet pass on
	}
	s.translates, s.rule.Kind = true, kind
	n, ok := xtRange(name, revision, data, family == "ip6")
	r := &s.rule
	if !ok {
		r.Partial, r.Text = true, kind
		return
	}
	r.First, r.Last, r.FirstPort, r.LastPort = n.first, n.last, n.firstPort, n.lastPort
	setFlags(r, n.flags)
	s.netmap, s.shifts = name == "NETMAP", n.flags&rangeOffset != 0
	r.Text = words(r, family, s.netmap, "")
}
