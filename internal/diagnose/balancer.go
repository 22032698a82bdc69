package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/ipvs"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// fewestReused are the connections on used tuples, within a recording, from which
	// something can be said of them.
	fewestReused = 20

	connSource  = "/proc/net/ip_vs_conn, twice"
	ipvsSource  = "/proc/net/ip_vs"
	statsSource = "/proc/net/ip_vs_stats"
)

// balancer is what a recording has of IPVS.
type balancer struct {
	rec  *snapshot.Recording
	ipvs *snapshot.IPVS
}

// readBalancer gives the check that ends a rule where there is nothing to look at.
func readBalancer(rec *snapshot.Recording) (*balancer, Check) {
	last := rec.Last()
	switch v := last.IPVS; {
	case v == nil && last.PartError("ipvs") != "":
		return nil, Check{State: NotChecked, Why: last.PartError("ipvs")}
	case v == nil:
		return nil, Check{State: OK, Why: "no IPVS here", Absent: true}
	case len(v.Services) == 0:
		return nil, Check{State: OK, Why: "IPVS has no service", Absent: true}
	case v.Connections == nil:
		return nil, Check{State: NotChecked, Why: "the connections of IPVS could not be read: " + last.PartError("ipvs_connections")}
	case v.Connections.Seconds <= 0:
		return nil, Check{State: NotChecked, Why: "the connections of IPVS were read once only: there is nothing to compare with"}
	}
	return &balancer{rec: rec, ipvs: last.IPVS}, Check{}
}

func (b *balancer) service(u *snapshot.IPVSUse) *snapshot.IPVSService {
	return ipvs.ServiceOf(b.ipvs, u)
}

func (b *balancer) hold(s *snapshot.IPVSService) int64 { return ipvs.Hold(b.ipvs, s) }

// byAddress are the schedulers that keep a client, or what it asks for, on one server.
var byAddress = []string{"sh", "dh", "mh", "lblc", "lblcr"}

// wanted says why connections of a client stay on one server on purpose; empty where
// nothing speaks for it.
func (b *balancer) wanted(s *snapshot.IPVSService) string {
	switch {
	case s == nil && slices.ContainsFunc(b.ipvs.Services, func(s snapshot.IPVSService) bool {
		return strings.HasPrefix(s.Address, "fwmark") && b.wanted(&s) != ""
	}):
		return "a service by firewall mark keeps clients on their server"
	case s == nil:
		return ""
	case s.Persistent:
		return "persistence is configured"
	case slices.Contains(byAddress, s.Scheduler):
		return "the scheduler " + s.Scheduler + " chooses by address"
	}
	return ""
}

// reuseMode is net.ipv4.vs.conn_reuse_mode; false where the kernel has none, which then
// behaves as with 0.
func (b *balancer) reuseMode() (int64, bool) {
	return b.rec.Last().Sysctls.Int(snapshot.IPVSReuse)
}

// sessions is how many connections the balancer counted between the two readings.
func (b *balancer) sessions() (int64, bool) {
	first := b.rec.First().IPVS
	if first == nil || first.Stats == nil || b.ipvs.Stats == nil || b.ipvs.Stats.Connections < first.Stats.Connections {
		return 0, false
	}
	return int64(b.ipvs.Stats.Connections - first.Stats.Connections), true
}

// span is the time between the two readings, for evidence.
func (b *balancer) span() string { return fmt.Sprintf("in %.1f s", b.ipvs.Connections.Seconds) }

func useName(u *snapshot.IPVSUse) string { return u.Protocol + " " + u.Address }

// clientEvidence tells from how few addresses the connections come, and what that allows.
func (b *balancer) clientEvidence(u *snapshot.IPVSUse, s *snapshot.IPVSService) []Evidence {
	e := []Evidence{{What: "client addresses", Value: u.Clients, Source: "/proc/net/ip_vs_conn"}}
	if len(u.TopClients) == 0 {
		return e
	}
	c := &u.TopClients[0]
	e = append(e, Evidence{What: "ports of " + c.Address + " with an entry", Value: c.Ports,
		Unit: fmt.Sprintf("from %d to %d", c.FirstPort, c.LastPort), Source: "/proc/net/ip_vs_conn"})
	if seconds, ok := ipvs.ReuseInterval(c, b.ipvs.Connections); ok {
		e = append(e, Evidence{What: "a port is used again after", Value: round1(seconds), Unit: "s, about", Source: "ports / connections per second"})
	}
	return append(e, Evidence{What: "new sessions at most", Value: round1(ipvs.MostSessions(b.ipvs, s, c)),
		Unit: "/s per client address", Source: fmt.Sprintf("%s ports / %d s that an entry stays", units.Count(ipvs.Ports(c)), b.hold(s))})
}
