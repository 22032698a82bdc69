package gateway

import (
	"net/netip"
	"testing"
)

// TestNeutral has the example of RFC 6296, appendix A of which gives the words.
func TestNeutral(t *testing.T) {
	p := Pair{Neutral: true, Inside: netip.MustParsePrefix("fd01:203:405::/48"), Outside: netip.MustParsePrefix("2001:db8:1::/48")}
	in, out := netip.MustParseAddr("fd01:203:405:1::1234"), netip.MustParseAddr("2001:db8:1:d550::1234")
	if got := p.Outward(in); got != out {
		t.Errorf("outward: %s, want %s", got, out)
	}
	if got := p.Inward(out); got != in {
		t.Errorf("inward: %s, want %s", got, in)
	}
	long := Pair{Neutral: true, Inside: netip.MustParsePrefix("fd01:203:405:1::/64"), Outside: netip.MustParsePrefix("2001:db8:1:2::/64")}
	for _, a := range []string{"fd01:203:405:1::1234", "fd01:203:405:1:ffff::1", "fd01:203:405:1:1:2:3:4"} {
		a := netip.MustParseAddr(a)
		got := long.Outward(a)
		if !long.Outside.Contains(got) || fold(host(got)) != fold(host(a)) || long.Inward(got) != a {
			t.Errorf("%s becomes %s, and %s again", a, got, long.Inward(got))
		}
	}
	if got := long.Outward(netip.MustParseAddr("fd01:203:405:1:ffff:ffff:ffff:ffff")); got.IsValid() {
		t.Errorf("an address without a word to change: %s", got)
	}
	plain := Pair{Inside: netip.MustParsePrefix("10.1.0.0/24"), Outside: netip.MustParsePrefix("198.51.100.0/24")}
	if got := plain.Outward(netip.MustParseAddr("10.1.0.7")); got != netip.MustParseAddr("198.51.100.7") {
		t.Errorf("plain: %s", got)
	}
}
