package prefix

import (
	"net/netip"
	"testing"
)

func TestCover(t *testing.T) {
	for _, c := range []struct{ first, last, want string }{
		{"10.0.0.0", "10.0.0.255", "10.0.0.0/24"},
		{"10.0.0.1", "10.0.0.1", "10.0.0.1"},
		{"10.0.3.0", "10.0.4.7", "10.0.3.0/24, 10.0.4.0/29"},
		{"10.0.0.1", "10.0.0.6", "10.0.0.1, 10.0.0.2/31, 10.0.0.4/31, 10.0.0.6"},
		{"0.0.0.0", "255.255.255.255", "0.0.0.0/0"},
		{"255.255.255.254", "255.255.255.255", "255.255.255.254/31"},
		{"fd00::", "fd00::1:ffff", "fd00::/111"},
		{"10.0.0.2", "10.0.0.1", ""},
		{"10.0.0.2", "fd00::", ""},
	} {
		if got := List(Cover(netip.MustParseAddr(c.first), netip.MustParseAddr(c.last))); got != c.want {
			t.Errorf("Cover(%s, %s) = %s, want %s", c.first, c.last, got, c.want)
		}
	}
}
