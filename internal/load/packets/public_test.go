package packets

import (
	"net/netip"
	"testing"
)

func TestPublic(t *testing.T) {
	for _, s := range []string{
		"8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255",
		"172.32.0.0", "192.0.0.9", "192.169.0.0", "198.17.255.255", "198.20.0.0", "203.0.112.255",
		"224.0.0.1", "240.0.0.1", "255.255.255.255",
		"2001:4860:4860::8888", "2001:db7::1", "2002:a00:1::", "ff02::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "::2",
		"64:ff9b:1::8.8.8.8", "64:ff9b:1:808:8:800::",
	} {
		if !Public(netip.MustParseAddr(s)) {
			t.Errorf("%s is not public", s)
		}
	}
	if !Public(netip.Addr{}) {
		t.Error("the zero address is not public")
	}
}

func TestNotPublic(t *testing.T) {
	for _, s := range []string{
		"0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.1.1", "172.16.0.1", "172.31.255.255",
		"192.0.0.2", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.7",
		"::", "::1", "fe80::1%eth0", "fd00::1", "2001:db8::1", "3fff::1", "2001:2::1", "100::1",
		"::ffff:10.0.0.1", "64:ff9b::198.18.0.1",
	} {
		if Public(netip.MustParseAddr(s)) {
			t.Errorf("%s is public", s)
		}
	}
}

func TestPublicPrefix(t *testing.T) {
	for text, want := range map[string]bool{
		"10.1.0.0/16": false, "10.0.0.0/8": false, "10.0.0.0/7": true, "0.0.0.0/0": true, "0.0.0.0/1": true,
		"192.0.2.0/24": false, "192.0.2.0/23": true, "198.18.0.0/15": false, "8.8.8.8/32": true,
		"2001:db8::/32": false, "2001:db8::/31": true, "::/0": true, "::/1": true, "fd00::/16": false,
		"64:ff9b::/96": true, "64:ff9b::808:0/112": true, "64:ff9b::a00:0/104": false, "64:ff9b::/95": true,
	} {
		if got := PublicPrefix(netip.MustParsePrefix(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
