package gateway

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/nat"
)

// TestNeutral has the example of RFC 6296, appendix A of which gives the words.
func TestNeutral(t *testing.T) {
	pair := func(inside, outside string, neutral bool) Entry {
		return Entry{Match: nat.Match{From: prefixes(inside)}, Action: nat.Action{Kind: nat.Pair, Prefix: netip.MustParsePrefix(outside), Neutral: neutral}}
	}
	p := pair("fd01:203:405::/48", "2001:db8:1::/48", true)
	in, out := netip.MustParseAddr("fd01:203:405:1::1234"), netip.MustParseAddr("2001:db8:1:d550::1234")
	if got := p.Outward(in); got != out {
		t.Errorf("outward: %s, want %s", got, out)
	}
	if got := p.Inward(out); got != in {
		t.Errorf("inward: %s, want %s", got, in)
	}
	long := pair("fd01:203:405:1::/64", "2001:db8:1:2::/64", true)
	for _, a := range []string{"fd01:203:405:1::1234", "fd01:203:405:1:ffff::1", "fd01:203:405:1:1:2:3:4"} {
		a := netip.MustParseAddr(a)
		got := long.Outward(a)
		if !long.Outside().Contains(got) || fold(nat.Host(got)) != fold(nat.Host(a)) || long.Inward(got) != a {
			t.Errorf("%s becomes %s, and %s again", a, got, long.Inward(got))
		}
	}
	if got := long.Outward(netip.MustParseAddr("fd01:203:405:1:ffff:ffff:ffff:ffff")); got.IsValid() {
		t.Errorf("an address without a word to change: %s", got)
	}
	plain := pair("10.1.0.0/24", "198.51.100.0/24", false)
	if got := plain.Outward(netip.MustParseAddr("10.1.0.7")); got != netip.MustParseAddr("198.51.100.7") {
		t.Errorf("plain: %s", got)
	}
}
