package gateway

import (
	"cmp"
	"net/netip"
	"slices"
)

// host is the prefix of one address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// anywhere is every address of a family.
func anywhere(bits int) netip.Prefix {
	if bits == 32 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// HasPorts reports whether NAT can give a protocol another port
// (nf_nat_l4proto_unique_tuple).
func HasPorts(protocol string) bool {
	switch protocol {
	case "tcp", "udp", "udplite", "sctp", "dccp":
		return true
	}
	return false
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(cmp.Compare(b.Bits(), a.Bits()), a.Addr().Compare(b.Addr()))
}

// byLength groups sorted prefixes by their length; one empty group where there are
// none, which means any.
func byLength(sorted []netip.Prefix) (groups [][]netip.Prefix) {
	if len(sorted) == 0 {
		return [][]netip.Prefix{nil}
	}
	for len(sorted) > 0 {
		n := slices.IndexFunc(sorted, func(p netip.Prefix) bool { return p.Bits() != sorted[0].Bits() })
		if n < 0 {
			n = len(sorted)
		}
		groups, sorted = append(groups, sorted[:n:n]), sorted[n:]
	}
	return groups
}

// JoinRanges sorts ranges and joins those that meet: a pool is a set of addresses,
// however it is written.
func JoinRanges(ranges []Range) (out []Range) {
	ranges = slices.Clone(ranges)
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	for _, r := range ranges {
		last := len(out) - 1
		switch {
		case last >= 0 && (r.First.Compare(out[last].Last) <= 0 || out[last].Last.Next() == r.First):
			if r.Last.Compare(out[last].Last) > 0 {
				out[last].Last = r.Last
			}
		default:
			out = append(out, r)
		}
	}
	return out
}
