package ruleset

import (
	"testing"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netlink"
)

// TestLimitBefore: what a rule drops behind one that accepts what is not too many names that rule; a list
// of addresses that came before (recent) limits nothing.
func TestLimitBefore(t *testing.T) {
	limited := func(name string) *Table {
		var m Match
		m.otherXT(name, 0, nil, false)
		accept := &Rule{Match: m, Target: Target{Kind: Accept}}
		return &Table{Family: "ip", Name: "filter", Chains: []*Chain{{
			Name: "FORWARD", Type: "filter", Hook: "forward", Rules: []*Rule{accept, {Target: Target{Kind: Drop}}},
		}}}
	}
	packet := &Packet{Conn: ConnNew, Packet: nat.Packet{Protocol: 17}}
	for name, want := range map[string]string{"limit": "iptables -t filter -A FORWARD (limit) -j ACCEPT", "hashlimit": "iptables -t filter -A FORWARD (hashlimit) -j ACCEPT", "recent": ""} {
		f := Filter([]*Table{limited(name)}, packet, "forward")
		if len(f.Drops) != 1 || f.Drops[0].Limit != want || f.Drops[0].Limits != (want != "") {
			t.Errorf("%s: %+v, want the limit %q", name, f.Drops, want)
		}
	}
}

// TestLimitOfHits: a list of addresses that is met from a number of packets on is a limit; one that is asked about, or
// written, is none.
func TestLimitOfHits(t *testing.T) {
	const check, set, update = 1, 2, 4
	for name, c := range map[string]struct {
		data []byte
		want bool
	}{
		"update": {[]byte{60, 0, 0, 0, 15, 0, 0, 0, update, 0}, true},
		"check":  {[]byte{60, 0, 0, 0, 15, 0, 0, 0, check, 0}, true},
		"set":    {[]byte{0, 0, 0, 0, 0, 0, 0, 0, set, 0}, false},
		"knock":  {[]byte{60, 0, 0, 0, 0, 0, 0, 0, check, 0}, false},
		"not":    {[]byte{60, 0, 0, 0, 15, 0, 0, 0, check, 1}, false},
	} {
		var m Match
		if m.otherXT("recent", 0, c.data, false); m.Limits != c.want || m.Part != c.want {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// TestLimitByName: a rule that refers to a limit by its name limits, one that refers to a counter has no condition more.
func TestLimitByName(t *testing.T) {
	for kind, limits := range map[uint32]bool{1: false, 2: true, 4: true, 5: true} {
		attrs, err := netlink.ParseAttrs(netlink.AppendU32(nil, 1, kind))
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{family: "ip"}
		if r := m.read(&KernelRule{Exprs: []KernelExpr{{Name: "objref", Data: attrs}}}); r.Match.Limits != limits || r.Match.Opaque || r.Match.Part != limits {
			t.Errorf("kind %d: %+v", kind, r.Match)
		}
	}
}
