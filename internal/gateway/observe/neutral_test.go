package observe

import (
	"strings"
	"testing"
)

// TestExplainNoAddress: of an address whose words are all 0xffff NPTv6 has no other.
func TestExplainNoAddress(t *testing.T) {
	const pair = roles + "\n  ipv6:\n    - netmap: {inside: fd00:1::/64, outside: 2001:db8:5::/64, stateless: true}"
	for _, c := range []struct{ in, packet, hook string }{
		{"eth1", "tcp [fd00:1::ffff:ffff:ffff:ffff]:4000 -> [2001:db8:f::1]:443", "postrouting"},
		{"eth1", "tcp [fd00:1::ffff:ffff:ffff:ffff]:4000 -> [2001:db8:5::2]:443", "prerouting"},
		{"eth1", "tcp [fd00:1::5]:4000 -> [2001:db8:5:0:ffff:ffff:ffff:ffff]:443", "prerouting"},
		{"eth0", "tcp [2001:db8:f::1]:4000 -> [2001:db8:5:0:ffff:ffff:ffff:ffff]:443", "prerouting"},
	} {
		e := explainText(t, pair, router, c.in, c.packet)
		if last := e.Steps[len(e.Steps)-1]; e.Fate != Dropped || last.Hook != c.hook || last.Rule == nil || !strings.HasPrefix(last.Does, "dropped: ") || len(e.Reply) > 0 {
			t.Errorf("%s by %s:\n%s", c.packet, c.in, explained(e))
		}
	}
}
