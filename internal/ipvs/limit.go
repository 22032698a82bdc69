package ipvs

import (
	"slices"

	"github.com/natkit/natkit/internal/snapshot"
)

// TimeWait is the timeout of TIME_WAIT, in seconds, which cannot be configured
// (tcp_timeouts, net/netfilter/ipvs/ip_vs_proto_tcp.c).
const TimeWait = 120

// allPorts are those from 1024 on, of which clients and NATs take theirs.
const allPorts = 64512

// PassesBy reports whether answers of a service do not pass the balancer, so that closed
// connections stay in FIN_WAIT: direct routing and tunnels.
func PassesBy(s *snapshot.IPVSService) bool {
	return s != nil && slices.ContainsFunc(s.Servers, func(r snapshot.IPVSServer) bool {
		return r.Forward == "Route" || r.Forward == "Tunnel"
	})
}

// Hold is how long the entry of a closed TCP connection stays, in seconds.
func Hold(v *snapshot.IPVS, s *snapshot.IPVSService) int64 {
	switch {
	case !PassesBy(s):
		return TimeWait
	case v.Timeouts != nil && v.Timeouts.TCPFin > 0:
		return v.Timeouts.TCPFin
	case v.Connections != nil && v.Connections.TimeoutSeconds["tcp/FIN_WAIT"] > 0:
		return v.Connections.TimeoutSeconds["tcp/FIN_WAIT"]
	}
	return TimeWait // the default of FIN_WAIT, too
}

// Ports is how many ports a client has: those between its lowest and its highest one
// where most of them have an entry, else all from 1024 on.
func Ports(c *snapshot.IPVSClient) int64 {
	span := int64(c.LastPort) - int64(c.FirstPort) + 1
	if 2*c.Ports >= span {
		return span
	}
	return allPorts
}

// MostSessions is the rate of connections of one client address beyond which ports come
// again while their entries are there: from then on IPVS counts no more new ones.
func MostSessions(v *snapshot.IPVS, s *snapshot.IPVSService, c *snapshot.IPVSClient) float64 {
	return float64(Ports(c)) / float64(Hold(v, s))
}

// ReuseInterval is the time from one connection of a port to its next one, on average, in
// seconds; false where it is not known, or no port came again.
func ReuseInterval(c *snapshot.IPVSClient, of *snapshot.IPVSConnections) (float64, bool) {
	n := c.New + c.UsedAgain
	if c.UsedAgain == 0 || of.Seconds <= 0 || !of.NewKnown {
		return 0, false
	}
	return float64(c.Ports) * of.Seconds / float64(n), true
}

// ServiceOf is the configuration of a service that connections were seen of; nil where
// there is none: a firewall mark chose it, or it was removed.
func ServiceOf(v *snapshot.IPVS, u *snapshot.IPVSUse) *snapshot.IPVSService {
	for i := range v.Services {
		if s := &v.Services[i]; s.Protocol == u.Protocol && s.Address == u.Address {
			return s
		}
	}
	return nil
}

// UseOf is what the table of connections has of a service; nil where it has nothing, or
// too little to be listed.
func UseOf(v *snapshot.IPVS, s *snapshot.IPVSService) *snapshot.IPVSUse {
	if v.Connections == nil {
		return nil
	}
	for i := range v.Connections.Services {
		if u := &v.Connections.Services[i]; s.Protocol == u.Protocol && s.Address == u.Address {
			return u
		}
	}
	return nil
}
