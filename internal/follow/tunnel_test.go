package follow

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestTunnelDatagrams: those of a VXLAN of this host get no answer of their own; what a rule drops, what is refused and
// what passes on its way is lost as others are.
func TestTunnelDatagrams(t *testing.T) {
	k := &places{links: map[int]netlink.Link{1: &netlink.Vxlan{Port: 4789}}}
	local := &snapshot.FailedPlace{Local: true, Filter: &snapshot.Filter{Passes: true}}
	for name, c := range map[string]struct {
		step  snapshot.Step
		in    string
		port  string
		place *snapshot.FailedPlace
		want  bool
	}{
		"it comes in":        {snapshot.StepLostHere, "wan0", "4789", local, true},
		"it leaves":          {snapshot.StepNoAnswer, "", "4789", &snapshot.FailedPlace{}, true},
		"a rule drops it":    {snapshot.StepLostHere, "wan0", "4789", &snapshot.FailedPlace{Local: true, Filter: &snapshot.Filter{Drops: []snapshot.RulePlace{{Text: "drop"}}}}, false},
		"of another host":    {snapshot.StepNoAnswer, "lan0", "4789", &snapshot.FailedPlace{}, false},
		"another port":       {snapshot.StepLostHere, "wan0", "500", local, false},
		"the end refuses":    {snapshot.StepUnreachable, "", "4789", &snapshot.FailedPlace{}, false},
		"its way is another": {snapshot.StepLostHere, "wan0", "4789", &snapshot.FailedPlace{Local: true, ReversePath: true, Filter: &snapshot.Filter{Passes: true}}, false},
	} {
		s := &snapshot.FollowedService{Protocol: "udp", In: c.in, Service: netip.MustParseAddrPort("198.51.100.2:" + c.port), Steps: map[snapshot.Step]uint64{c.step: 9, snapshot.StepWaiting: 1}, Failed: &snapshot.FailedConnection{Step: c.step, Place: c.place}}
		k.settleTunnel(s)
		if is := s.Steps[snapshot.StepOneWay] == 9; is != c.want || (s.Failed == nil) != c.want || s.Count() != 10 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
