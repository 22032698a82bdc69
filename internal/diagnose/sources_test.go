package diagnose

import (
	"net/netip"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestJudgeInside: a server inside that answers another network nothing is reported where it is there, and others
// beside it answer.
func TestJudgeInside(t *testing.T) {
	question := snapshot.Route{Out: "lan0", NextHop: netip.MustParseAddr(inside[:len(inside)-1]), Neighbour: snapshot.NeighbourReachable}
	s := snapshot.Service{Kind: snapshot.ServiceUntranslated, Protocol: "tcp", Service: netip.MustParseAddrPort(inside + "445"), Target: netip.MustParseAddrPort("192.168.1.0:0"),
		Given: netip.MustParseAddr("10.8.0.0"), Unanswered: 20, Failing: 20, SilentSeconds: -1, Clients: []netip.Addr{netip.MustParseAddr("10.8.0.6")}}
	for name, c := range map[string]struct {
		change func(*snapshot.Service, *snapshot.Route)
		more   []snapshot.Service
		want   bool
	}{
		"it is there":          {func(*snapshot.Service, *snapshot.Route) {}, nil, true},
		"none answers there":   {func(*snapshot.Service, *snapshot.Route) {}, []snapshot.Service{{Kind: snapshot.ServiceUntranslated, Protocol: "tcp", Target: s.Target, Given: s.Given}}, false},
		"it is gone":           {func(_ *snapshot.Service, q *snapshot.Route) { q.Neighbour = snapshot.NeighbourFailed }, nil, false},
		"behind a router":      {func(_ *snapshot.Service, q *snapshot.Route) { q.NextHop = netip.MustParseAddr("192.168.1.254") }, nil, false},
		"by the same way back": {func(_ *snapshot.Service, q *snapshot.Route) { q.Out = "tun0" }, nil, false},
		"few":                  {func(s *snapshot.Service, _ *snapshot.Route) { s.Unanswered, s.Failing = 4, 4 }, nil, false},
		"half open":            {func(s *snapshot.Service, _ *snapshot.Route) { s.HalfOpen = 3 }, nil, false},
	} {
		one, q := s, question
		c.change(&one, &q)
		one.Routes = &snapshot.Routes{In: "tun0", Client: s.Clients[0], Question: &q}
		rec := household()
		rec.Flows = &snapshot.Flows{Services: &snapshot.Services{Seconds: 30, All: append(c.more, one)}}
		if got := (failing{}).judgeInside(rec, &one); (got.how != "") != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
