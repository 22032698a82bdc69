package collect

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/ruleset"
	"github.com/natkit/natkit/internal/snapshot"
)

// TestUnseen: filters are asked about what is INVALID of what leaves by the interface that it came in by.
func TestUnseen(t *testing.T) {
	drop := &ruleset.Rule{Match: ruleset.Match{Conn: []ruleset.ConnCondition{{Any: ruleset.ConnInvalid}}}, Target: ruleset.Target{Kind: ruleset.Drop}}
	k := &router{world: &kernelWorld{}, known: map[string]snapshot.Route{}, tables: []*ruleset.Table{{
		Family: "inet", Name: "fw", Chains: []*ruleset.Chain{{Name: "forward", Hook: "forward", Type: "filter", Policy: "accept", Rules: []*ruleset.Rule{drop}}},
	}}}
	f := flow{protocol: unix.IPPROTO_TCP, from: netip.MustParseAddrPort("192.168.1.20:0"), to: netip.MustParseAddrPort("10.50.0.10:1433"), in: "lan0"}
	for name, c := range map[string]struct {
		out, next string
		asked     bool
	}{
		"by another router there": {"lan0", "192.168.1.2", true},
		"to the server itself":    {"lan0", "10.50.0.10", false},
		"by another interface":    {"wan0", "192.168.1.2", false},
	} {
		q := snapshot.Route{Out: c.out, NextHop: netip.MustParseAddr(c.next)}
		if k.unseen(f, &q); (q.Unseen != nil) != c.asked {
			t.Errorf("%s: %+v", name, q.Unseen)
		} else if c.asked && (q.Unseen.Passes || k.known[f.String()].Unseen != q.Unseen) {
			t.Errorf("%s: %+v, known as %+v", name, q.Unseen, k.known[f.String()])
		}
	}
}
