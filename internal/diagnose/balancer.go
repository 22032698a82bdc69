package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

const (
	// fewestReused are the connections on used tuples, within a recording, from which
	// something can be said of them.
	fewestReused = 20
	// ipvsTimeWait is the timeout of IPVS for TIME_WAIT, which cannot be configured
	// (tcp_timeouts, net/netfilter/ipvs/ip_vs_proto_tcp.c), in seconds.
	ipvsTimeWait = 120

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
		return nil, Check{State: OK, Why: "no IPVS here"}
	case len(v.Services) == 0:
		return nil, Check{State: OK, Why: "IPVS has no service"}
	case v.Connections == nil:
		return nil, Check{State: NotChecked, Why: "the connections of IPVS could not be read: " + last.PartError("ipvs_connections")}
	case v.Connections.Seconds <= 0:
		return nil, Check{State: NotChecked, Why: "the connections of IPVS were read once only: there is nothing to compare with"}
	}
	return &balancer{rec: rec, ipvs: last.IPVS}, Check{}
}

// service is the configuration of a service that connections were seen for; nil where a
// firewall mark chose it.
func (b *balancer) service(u *snapshot.IPVSUse) *snapshot.IPVSService {
	for i := range b.ipvs.Services {
		if s := &b.ipvs.Services[i]; s.Protocol == u.Protocol && s.Address == u.Address {
			return s
		}
	}
	return nil
}

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

// passesBy tells whether answers of a service do not pass the balancer, so that closed
// connections stay in FIN_WAIT.
func passesBy(s *snapshot.IPVSService) bool {
	return s != nil && slices.ContainsFunc(s.Servers, func(r snapshot.IPVSServer) bool {
		return r.Forward == "Route" || r.Forward == "Tunnel"
	})
}

// hold is how long an entry of a closed connection stays, in seconds.
func (b *balancer) hold(s *snapshot.IPVSService) int64 {
	if !passesBy(s) {
		return ipvsTimeWait
	}
	if t := b.ipvs.Timeouts; t != nil && t.TCPFin > 0 {
		return t.TCPFin
	}
	return max(1, b.ipvs.Connections.TimeoutSeconds["tcp/FIN_WAIT"])
}

// clientEvidence tells from how few addresses the connections come, and what that allows.
func (b *balancer) clientEvidence(u *snapshot.IPVSUse, s *snapshot.IPVSService) []Evidence {
	e := []Evidence{{What: "client addresses", Value: u.Clients, Source: "/proc/net/ip_vs_conn"}}
	if len(u.TopClients) == 0 {
		return e
	}
	c := &u.TopClients[0]
	e = append(e, Evidence{What: "ports of " + c.Address + " with an entry", Value: c.Ports,
		Unit: fmt.Sprintf("from %d to %d", c.FirstPort, c.LastPort), Source: "/proc/net/ip_vs_conn"})
	if seconds, ok := reuseInterval(c, b.ipvs.Connections); ok {
		e = append(e, Evidence{What: "a port is used again after", Value: round1(seconds), Unit: "s, about", Source: "ports / connections per second"})
	}
	ports := portsOf(c)
	return append(e, Evidence{What: "new sessions at most", Value: round1(float64(ports) / float64(b.hold(s))),
		Unit: "/s per client address", Source: fmt.Sprintf("%s ports / %d s that an entry stays", units.Count(ports), b.hold(s))})
}

// portsOf is how many ports a client has: those between the lowest and the highest one
// where most of them are in use, else all from 1024 on.
func portsOf(c *snapshot.IPVSClient) int64 {
	span := int64(c.LastPort) - int64(c.FirstPort) + 1
	if 2*c.Ports >= span {
		return span
	}
	return fullRange
}

// reuseInterval is the time from one connection of a port to its next one, on average.
func reuseInterval(c *snapshot.IPVSClient, of *snapshot.IPVSConnections) (float64, bool) {
	n := c.New + c.UsedAgain
	if n == 0 || c.UsedAgain == 0 || of.Seconds <= 0 || !of.NewKnown {
		return 0, false
	}
	return float64(c.Ports) * of.Seconds / float64(n), true
}
