package lab

import (
	"fmt"
	"net/netip"
)

// Network is where all IPv4 addresses of labs come from: RFC 2544 sets it aside for
// benchmarks, so that it collides with nothing real. Network6 is that of IPv6, set
// aside for documentation (RFC 3849).
var (
	Network  = netip.MustParsePrefix("198.18.0.0/15")
	Network6 = netip.MustParsePrefix("2001:db8::/32")
)

func networks() string { return fmt.Sprintf("%s or %s", Network, Network6) }

func inLabs(a netip.Addr) bool { return Network.Contains(a) || Network6.Contains(a) }

// hostIn tells whether a host of the subnet can have the address.
func hostIn(subnet netip.Prefix, a netip.Addr) bool {
	return subnet.Contains(a) && a != subnet.Masked().Addr() && a != lastAddr(subnet)
}

// lastAddr is a subnet's last address; with IPv4 the one for broadcasts.
func lastAddr(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(a); bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(a)
	return last
}
