package packets

import (
	"fmt"
	"net/netip"
)

// own are the prefixes that are not globally reachable in the registries of RFC 6890, as of 2025.
var own = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // this host (RFC 1122)
	netip.MustParsePrefix("10.0.0.0/8"),      // private (RFC 1918)
	netip.MustParsePrefix("100.64.0.0/10"),   // shared, behind a carrier's NAT (RFC 6598)
	netip.MustParsePrefix("127.0.0.0/8"),     // loopback
	netip.MustParsePrefix("169.254.0.0/16"),  // link-local (RFC 3927)
	netip.MustParsePrefix("172.16.0.0/12"),   // private
	netip.MustParsePrefix("192.0.0.0/29"),    // the B4 side of DS-Lite, CLAT (RFC 7335)
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation (RFC 5737)
	netip.MustParsePrefix("192.168.0.0/16"),  // private
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks (RFC 2544)
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("::/128"),          // this host
	netip.MustParsePrefix("::1/128"),         // loopback
	netip.MustParsePrefix("100::/64"),        // discard (RFC 6666)
	netip.MustParsePrefix("2001:2::/48"),     // benchmarks (RFC 5180)
	netip.MustParsePrefix("2001:db8::/32"),   // documentation (RFC 3849)
	netip.MustParsePrefix("3fff::/20"),       // documentation (RFC 9637)
	netip.MustParsePrefix("fc00::/7"),        // unique local (RFC 4193)
	netip.MustParsePrefix("fe80::/10"),       // link-local
}

// nat64 is the well-known prefix of NAT64 (RFC 6052), with an IPv4 address in the last four
// bytes.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Public reports whether packets to addr may reach other people's machines: every address that is
// not reserved for private networks, the link, the host, benchmarks or documentation.
// 64:ff9b:1::/48 is public, too: a local NAT64 (RFC 8215) translates it to IPv4 addresses that
// depend on its prefix. So are multicast, unassigned addresses (240/4) and the zero Addr, which
// no load needs.
func Public(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("") // no prefix contains an address with a zone
	if nat64.Contains(addr) {
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	for _, prefix := range own {
		if prefix.Contains(addr) {
			return false
		}
	}
	return true
}

// PublicError refuses a public address, for which only the user may decide.
func PublicError(what string, where fmt.Stringer) error {
	return fmt.Errorf("%s %v: a public address, which load may harm: give --i-own-this-network if it and all on the way there are yours", what, where)
}

// PublicPrefix reports whether a prefix has any address that is Public.
func PublicPrefix(p netip.Prefix) bool {
	if nat64.Bits() <= p.Bits() && nat64.Contains(p.Addr()) {
		b := p.Addr().As16()
		p = netip.PrefixFrom(netip.AddrFrom4([4]byte(b[12:])), p.Bits()-nat64.Bits())
	}
	for _, prefix := range own {
		if prefix.Bits() <= p.Bits() && prefix.Contains(p.Addr()) {
			return false
		}
	}
	return true
}
