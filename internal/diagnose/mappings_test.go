package diagnose

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestExpiredMappings: phones call out, and calls to their mappings are dropped, as UDP is kept for less than their
// keepalives need.
func TestExpiredMappings(t *testing.T) {
	out := failed(snapshot.StepLostHere, "udp", "lan0", pc, outside+"5071", snapshot.FailedPlace{})
	out.Failed, out.Given, out.Steps = nil, netip.MustParseAddr("203.0.113.1"), map[snapshot.Step]uint64{snapshot.StepAnswered: 1}
	drop := func(from, port string) snapshot.DropFlow {
		return snapshot.DropFlow{Function: "nft_do_chain", Protocol: "udp", Source: from, Destination: "203.0.113.1:" + port, Packets: 1}
	}
	first, second := drop(outside+"5072", "5062"), drop(outside+"5073", "5063")
	for name, c := range map[string]struct {
		timeout string
		rows    []snapshot.FollowedService
		drops   []snapshot.DropFlow
		want    int
	}{
		"short timeouts":            {"4", []snapshot.FollowedService{out}, []snapshot.DropFlow{first, second}, 1},
		"the kernel's timeouts":     {"120", []snapshot.FollowedService{out}, []snapshot.DropFlow{first, second}, 0},
		"one port":                  {"4", []snapshot.FollowedService{out}, []snapshot.DropFlow{first, first}, 0},
		"strangers":                 {"4", []snapshot.FollowedService{out}, []snapshot.DropFlow{drop(stranger, "5062"), drop(stranger, "5063")}, 0},
		"nobody calls out":          {"4", nil, []snapshot.DropFlow{first, second}, 0},
		"late answers of resolvers": {"4", []snapshot.FollowedService{out}, []snapshot.DropFlow{drop(outside+"53", "5062"), drop(outside+"53", "5063")}, 0},
	} {
		rec := household(c.rows...)
		rec.Last().Sysctls, rec.Drops = snapshot.Sysctls{"net.netfilter.nf_conntrack_udp_timeout_stream": c.timeout}, &snapshot.Drops{Flows: c.drops}
		if got := expiredMappings(rec); len(got) != c.want || c.want > 0 && (!got[0].decided || got[0].advice == nil) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
