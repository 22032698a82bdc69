package ruleset

import (
	"testing"

	"github.com/natkit/natkit/internal/unix"
)

// TestIsIn: a lookup is written as nft does, with the fields that are asked for.
func TestIsIn(t *testing.T) {
	source := content{from: payload, base: unix.NFT_PAYLOAD_NETWORK_HEADER, offset: 12, length: 4}
	port := content{from: payload, base: unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset: 2, length: 2}
	mark := content{from: metaData, key: unix.NFT_META_MARK}
	all := []interval{{first: []byte{0, 0, 0, 0}, last: []byte{255, 255, 255, 255}}}
	for want, c := range map[string]struct {
		set      string
		fields   []content
		elements []interval
		inverted bool
	}{
		"ip saddr @banned":                {"banned", []content{source}, nil, false},
		"ip saddr != @open":               {"open", []content{source}, nil, true},
		"ip saddr . tcp dport @pairs":     {"pairs", []content{source, port}, nil, false},
		"tcp dport { … }":                 {"__set3", []content{port}, nil, false},
		"ip saddr @any of most addresses": {"any", []content{source}, all, false},
		inSet:                             {"marks", []content{mark}, nil, false},
	} {
		m := &machine{family: "ip", regs: map[uint32]content{}, sets: map[string][]interval{}}
		m.rule.Match.Protocol = unix.IPPROTO_TCP
		if c.elements != nil {
			m.sets[c.set] = c.elements
		}
		for i, f := range c.fields {
			m.regs[4+uint32(i)] = f
		}
		if got := m.isIn(c.set, 4, c.inverted); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
