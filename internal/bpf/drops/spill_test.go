package drops

import (
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// TestFullTables drops packets of more protocols than there are places for: none is
// lost from the sum, and what is in no site is counted.
func TestFullTables(t *testing.T) {
	n := newNetwork(t)
	testutil.Nft(t, n.gateway, "table ip f { chain c { type filter hook prerouting priority raw; ip saddr 198.18.0.2 drop; }; }")
	roomy := start(t, Options{Netns: n.gateway, spilled: 1000})
	tight := start(t, Options{Netns: n.gateway, spilled: 20})
	const first, last, each = 100, 199, 3
	for protocol := first; protocol <= last; protocol++ {
		p := udp(clientIP, serverIP, 64, 0)
		p[9] = byte(protocol)
		raw(t, n.client, p, each)
	}
	const count = (last - first + 1) * each
	d := until(t, roomy, count)
	if d.Packets != count || d.Lost != 0 || len(d.Sites) != last-first+1 {
		t.Errorf("%d drops at %d sites, %d lost; want %d at %d", d.Packets, len(d.Sites), d.Lost, count, last-first+1)
	}
	for _, s := range d.Sites {
		if s.Packets != each {
			t.Errorf("%+v: want %d", s, each)
		}
	}
	d = until(t, tight, count)
	var placed uint64
	for _, s := range d.Sites {
		placed += s.Packets
	}
	if d.Packets != count || d.Lost == 0 || placed+d.Lost != count {
		t.Errorf("%d drops, %d of them at sites, %d lost; want %d in all", d.Packets, placed, d.Lost, count)
	}
}
