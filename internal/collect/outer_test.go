package collect

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestPublicInterface: without a default route the outer interface is the only one with a public address.
func TestPublicInterface(t *testing.T) {
	at := func(name, address string) snapshot.Interface {
		return snapshot.Interface{Name: name, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}
	}
	wan, lan, second := at("wan0", "198.51.100.1/24"), at("lan0", "192.168.1.1/24"), at("wan1", "203.0.113.1/24")
	for _, c := range []struct {
		all  []snapshot.Interface
		want string
	}{{[]snapshot.Interface{lan, wan}, "wan0"}, {[]snapshot.Interface{lan}, ""}, {[]snapshot.Interface{wan, lan, second}, ""}} {
		if got := (&host{all: c.all}).public(false); got != c.want {
			t.Errorf("%+v: %q, want %q", c.all, got, c.want)
		}
	}
}
