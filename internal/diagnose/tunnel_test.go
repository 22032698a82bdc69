package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/snapshot"
)

// TestTunnelLoss: a tunnel is at fault where nothing comes of it, nobody has the address of its far end, or that refuses
// its datagrams; not where others come of it.
func TestTunnelLoss(t *testing.T) {
	end := netip.MustParseAddr("198.51.100.40")
	refused := left(snapshot.StepUnreachable, "198.51.100.2:40000", "198.51.100.40:4789", "", "", "wan0", snapshot.FailedPlace{})
	refused.In, refused.Failed.By, refused.Failed.ICMPType, refused.Failed.ICMPCode, refused.Protocol = "", end, 3, 3, "udp"
	masked := &snapshot.RulePlace{Text: "iptables -t nat -A POSTROUTING -s 192.168.1.0/24 -j MASQUERADE"}
	for name, c := range map[string]struct {
		received  uint64
		neighbour string
		more      []snapshot.FollowedService
		masked    *snapshot.RulePlace
		why       string
	}{
		"nothing comes of it":              {0, "", nil, nil, "tun0 sent 60 packets in 5.0 s and received none"},
		"others come of it":                {9, "", nil, nil, ""},
		"a rule translates what enters it": {0, "", nil, masked, ""},
		"nobody has the address":           {9, snapshot.NeighbourFailed, nil, nil, "nobody answers for 198.51.100.40"},
		"translated, and nobody has it":    {9, snapshot.NeighbourFailed, nil, masked, "nobody answers for 198.51.100.40"},
		"it refuses the datagrams":         {9, "", []snapshot.FollowedService{refused}, nil, "198.51.100.40 refuses its datagrams (ICMP: port unreachable)"},
	} {
		given := map[bool]string{true: "10.255.0.1"}[c.masked != nil]
		s := left(snapshot.StepNoAnswer, pc, "10.20.0.10:1433", "", given, "tun0", snapshot.FailedPlace{Out: "tun0", Translates: c.masked, Tunnel: &snapshot.Tunnel{Kind: "vxlan", Remote: end, Port: 4789, Neighbour: c.neighbour}})
		rec := household(append([]snapshot.FollowedService{s}, c.more...)...)
		before, after := *rec.Last(), *rec.Last()
		before.Links = &snapshot.Links{All: []snapshot.Link{{Name: "tun0", TXPackets: 40, RXPackets: 1}}}
		after.Links = &snapshot.Links{All: []snapshot.Link{{Name: "tun0", TXPackets: 100, RXPackets: 1 + c.received}}}
		after.UptimeSeconds = before.UptimeSeconds + 5
		rec.Snapshots = []*snapshot.Snapshot{&before, &after}
		r := rows(rec)[0]
		if why := r.tunnelLoss(); !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %q", name, why)
		}
		if got := followedOnes(rec); c.why != "" && (len(got) == 0 || got[0].place != "it leaves by tun0, a tunnel (vxlan) to 198.51.100.40, and nothing comes back through it" || got[0].severity != Warning || !strings.Contains(got[0].advice.Title, "bridge fdb show dev tun0")) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
