package nat

import (
	"net/netip"
	"testing"
)

func TestLastAddr(t *testing.T) {
	for prefix, want := range map[string]string{
		"198.18.0.2/24": "198.18.0.255", "198.18.1.1/30": "198.18.1.3", "198.18.128.0/17": "198.18.255.255", "198.18.0.1/15": "198.19.255.255",
		"0.0.0.0/0": "255.255.255.255", "192.0.2.1/32": "192.0.2.1", "2001:db8::1/64": "2001:db8::ffff:ffff:ffff:ffff",
		"::/0": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := LastAddr(netip.MustParsePrefix(prefix)); got.String() != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
	if got := LastAddr(netip.Prefix{}); got.IsValid() {
		t.Errorf("of no prefix: %s", got)
	}
}

func TestPrefix(t *testing.T) {
	for ends, want := range map[[2]string]string{
		{"192.0.2.0", "192.0.2.255"}: "192.0.2.0/24", {"192.0.2.7", "192.0.2.7"}: "192.0.2.7/32",
		{"0.0.0.0", "255.255.255.255"}: "0.0.0.0/0", {"2001:db8::", "2001:db8::ff"}: "2001:db8::/120",
		{"192.0.2.1", "192.0.2.254"}: "", {"192.0.2.128", "192.0.3.127"}: "", {"192.0.2.9", "192.0.2.8"}: "",
		{"192.0.2.0", "2001:db8::"}: "", {"", ""}: "", {"192.0.2.1", ""}: "",
	} {
		first, _ := netip.ParseAddr(ends[0])
		last, _ := netip.ParseAddr(ends[1])
		p := (AddrRange{first, last}).Prefix()
		if got := p.String(); p.IsValid() != (want != "") || p.IsValid() && got != want {
			t.Errorf("%v: %s, want %q", ends, got, want)
		}
	}
}

func TestReplace(t *testing.T) {
	for _, c := range []struct{ addr, into, want string }{
		{"10.1.2.3", "198.51.100.0/24", "198.51.100.3"},
		{"10.1.2.3", "198.51.100.9/22", "198.51.102.3"},
		{"10.1.2.3", "198.51.100.9/32", "198.51.100.9"},
		{"10.1.2.3", "0.0.0.0/0", "10.1.2.3"},
		{"fd00:1:2:3::4", "2001:db8::/44", "2001:db8:2:3::4"},
		{"10.1.2.3", "2001:db8::/64", "invalid IP"},
	} {
		if got := Replace(netip.MustParseAddr(c.addr), netip.MustParsePrefix(c.into)); got.String() != c.want {
			t.Errorf("%s into %s: %s, want %s", c.addr, c.into, got, c.want)
		}
	}
}

func TestPrefixesString(t *testing.T) {
	all := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::1/128")}
	if got, want := PrefixesString(all), "192.0.2.1, 192.0.2.0/24, 2001:db8::1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPrefixes(t *testing.T) {
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
		if got := PrefixesString(AddrRange{netip.MustParseAddr(c.first), netip.MustParseAddr(c.last)}.Prefixes()); got != c.want {
			t.Errorf("Cover(%s, %s) = %s, want %s", c.first, c.last, got, c.want)
		}
	}
}
