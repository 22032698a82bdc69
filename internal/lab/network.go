package lab

import (
	"fmt"
	"net/netip"

	"github.com/natkit/natkit/internal/prefix"
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

// hostIn reports whether a host of the subnet can have the address.
func hostIn(subnet netip.Prefix, a netip.Addr) bool {
	return subnet.Contains(a) && a != subnet.Masked().Addr() && a != prefix.Last(subnet)
}
