package prefix

import (
	"net/netip"
	"testing"
)

func TestLast(t *testing.T) {
	for prefix, want := range map[string]string{
		"198.18.0.2/24": "198.18.0.255", "198.18.1.1/30": "198.18.1.3", "198.18.128.0/17": "198.18.255.255", "198.18.0.1/15": "198.19.255.255",
		"0.0.0.0/0": "255.255.255.255", "192.0.2.1/32": "192.0.2.1", "2001:db8::1/64": "2001:db8::ffff:ffff:ffff:ffff",
		"::/0": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := Last(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
	if got := Last(netip.Prefix{}); got.IsValid() {
		t.Errorf("of no prefix: %s", got)
	}
}

func TestBetween(t *testing.T) {
	for ends, want := range map[[2]string]string{
		{"192.0.2.0", "192.0.2.255"}: "192.0.2.0/24", {"192.0.2.7", "192.0.2.7"}: "192.0.2.7/32",
		{"0.0.0.0", "255.255.255.255"}: "0.0.0.0/0", {"2001:db8::", "2001:db8::ff"}: "2001:db8::/120",
		{"192.0.2.1", "192.0.2.254"}: "", {"192.0.2.128", "192.0.3.127"}: "", {"192.0.2.9", "192.0.2.8"}: "",
		{"192.0.2.0", "2001:db8::"}: "", {"", ""}: "", {"192.0.2.1", ""}: "",
	} {
		first, _ := netip.ParseAddr(ends[0])
		last, _ := netip.ParseAddr(ends[1])
		p := Between(first, last)
		if got := p.String(); p.IsValid() != (want != "") || p.IsValid() && got != want {
			t.Errorf("%v: %s, want %q", ends, got, want)
		}
	}
}
