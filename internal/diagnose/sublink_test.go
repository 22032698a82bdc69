package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestSublink: a server that does not answer may be on a macvlan of the interface, which this host does not reach by it.
func TestSublink(t *testing.T) {
	server := netip.MustParseAddr("192.168.1.60")
	for sublink, want := range map[string]string{"": "is that host up", "02:00:00:00:00:60": "'ip route add 192.168.1.60/32 dev shim0'"} {
		target := snapshot.DNATTarget{Address: server, NextHop: server, Interface: "lan0", Neighbour: snapshot.NeighbourFailed, Sublink: sublink}
		s := &snapshot.Snapshot{}
		rec := &snapshot.Recording{Snapshots: []*snapshot.Snapshot{s, s}}
		u := unreachableOf(rec, target, map[hop]bool{hopOf(target): true})
		if !strings.Contains(u.advice, want) || strings.Contains(u.problem, "macvlan") != (sublink != "") {
			t.Errorf("%q: %+v", sublink, u)
		}
	}
}
