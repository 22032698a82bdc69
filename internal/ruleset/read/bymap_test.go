package read

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/natkit/natkit/internal/testutil"
)

// TestReadManyPortBlocks: only the addresses of a large map are reported.
func TestReadManyPortBlocks(t *testing.T) {
	w := newWorld(t)
	var elements []string
	for i := range 256 + 1 {
		elements = append(elements, fmt.Sprintf("198.18.%d.%d : 203.0.113.%d . %d-%d", i>>8, i&255, i%8, 1024+i*64, 1087+i*64))
	}
	w.nft(`table ip nat {
	chain post {
		type nat hook postrouting priority srcnat;
		ip protocol tcp snat ip to ip saddr map { ` + strings.Join(elements, ", ") + ` }
		ip saddr & 255.255.255.0 == 198.18.9.0 snat to numgen inc mod 2 map { 0 : 203.0.113.8, 1 : 203.0.113.9 }
		snat ip to ip saddr . ip daddr map { 198.18.0.2 . 198.18.0.3 : 203.0.113.77 }
	}
}`)
	want := []string{
		"postrouting 100, ip nat post: snat to … [proto=tcp ports=map partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.8 [src=198.18.9.0/24 partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.9 [src=198.18.9.0/24 partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.77 [src=198.18.0.2/32 dst=198.18.0.3/32]",
	}
	rules := w.rules()
	if d := cmp.Diff(want, describeAll(rules)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if r := rules[0]; r.First.String() != "203.0.113.0" || r.Last.String() != "203.0.113.7" {
		t.Errorf("the map gives %s to %s", r.First, r.Last)
	}
}

// TestReadOwnTable: rules of the gateway are those of its file, and nothing else is to
// change them.
func TestReadOwnTable(t *testing.T) {
	w := newWorld(t)
	w.nft(`table inet natkit {
	map source {
		type ipv4_addr : ipv4_addr
		elements = { 198.18.0.2 comment "nat[1] snat" : 203.0.113.1, 198.18.0.3 comment "nat[2] snat" : 203.0.113.2 }
	}
	chain post {
		type nat hook postrouting priority 120;
		oifname "wan0" snat ip to ip saddr map @source comment "2 entries of @source"
		ip saddr 198.18.9.0/24 meta l4proto { tcp, udp } snat ip to 203.0.113.3:2000-3000 comment "nat[3] snat"
		ip saddr 198.18.9.0/24 snat ip to 203.0.113.3 comment "nat[3] snat"
		snat ip6 to ip6 saddr & ffff:ffff:ffff:ffff:: map { 2001:db8:1:: : 2001:db8::1 } comment "ipv6[0] snat"
		masquerade
	}
}`)
	want := []string{
		"postrouting 120, nat[1] snat of the gateway: snat ip to 203.0.113.1 [src=198.18.0.2/32 out=wan0]",
		"postrouting 120, nat[2] snat of the gateway: snat ip to 203.0.113.2 [src=198.18.0.3/32 out=wan0]",
		"postrouting 120, nat[3] snat of the gateway: snat ip to 203.0.113.3:2000-3000 [src=198.18.9.0/24 partial]",
		"postrouting 120, nat[3] snat of the gateway: snat ip to 203.0.113.3 [proto=other src=198.18.9.0/24]",
		"postrouting 120, ipv6[0] snat of the gateway: snat ip6 to 2001:db8::1 [src=2001:db8:1::/64]",
		"postrouting 120, inet natkit post: masquerade []",
	}
	rules := w.rules()
	if d := cmp.Diff(want, describeAll(rules)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	for _, r := range rules {
		if r.Target != "" {
			t.Errorf("%s: %s can be changed as %s", r.Place(), r.Text, r.Target)
		}
	}
}

// TestReadOriginalDestination: rules about what comes back inside.
func TestReadOriginalDestination(t *testing.T) {
	w := newWorld(t)
	w.nft(`table inet natkit {
	chain post {
		type nat hook postrouting priority 120;
		ct status dnat ct original ip daddr 203.0.113.7 meta l4proto tcp ct original proto-dst 8080 snat ip to 203.0.113.7 comment "nat[0] dnat"
		ct status dnat ct original ip6 daddr 2001:db8::7 snat ip6 to 2001:db8::7 comment "ipv6[0] dnat"
		ct original ip saddr 192.168.0.2 snat ip to 203.0.113.8
		ct reply ip daddr 203.0.113.9 snat ip to 203.0.113.9
		ct status dnat masquerade
	}
}`)
	var got []bool
	for _, r := range w.rules() {
		got = append(got, r.OriginalDestination)
	}
	if d := cmp.Diff([]bool{true, true, false, false, false}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestReadIntervalMaps: intervals of addresses become prefixes, those of numbers stay one
// rule each; what is for all other keys is a rule too.
func TestReadIntervalMaps(t *testing.T) {
	testutil.NeedFeature(t, testutil.OtherElement)
	w := newWorld(t)
	w.nft(`table ip nat {
	chain post {
		type nat hook postrouting priority srcnat;
		snat to numgen random mod 11 map { 0-2 : 203.0.113.8, 3-10 : 203.0.113.9 }
		snat to jhash ip saddr mod 100 map { 1-9 : 203.0.113.10, 11-98 : 203.0.113.11 }
		snat to ip saddr map { 198.18.0.1-198.18.0.3 : 203.0.113.12 }
		snat to ip saddr map { 198.18.1.1 : 203.0.113.13, 198.18.1.2 : 203.0.113.14, * : 203.0.113.15 }
	}
}`)
	want := []string{
		"postrouting 100, ip nat post: snat to 203.0.113.8 [partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.9 [partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.10 [partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.11 [partial]",
		"postrouting 100, ip nat post: snat to 203.0.113.12 [src=198.18.0.1/32]",
		"postrouting 100, ip nat post: snat to 203.0.113.12 [src=198.18.0.2/31]",
		"postrouting 100, ip nat post: snat to 203.0.113.13 [src=198.18.1.1/32]",
		"postrouting 100, ip nat post: snat to 203.0.113.14 [src=198.18.1.2/32]",
		"postrouting 100, ip nat post: snat to 203.0.113.15 [partial]",
	}
	if d := cmp.Diff(want, describeAll(w.rules())); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
