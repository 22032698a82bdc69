package snapshot

import "slices"

// Sysctls of IPVS, the kernel's load balancer (Documentation/networking/ipvs-sysctl.rst).
const (
	// IPVSPrefix is what the names of all of them begin with.
	IPVSPrefix = "net.ipv4.vs."
	// IPVSReuse decides what becomes of a new connection on a tuple that has an entry
	// still: 0 keeps the entry and its server, bit 0 gives one in TIME_WAIT a new one, bit
	// 1 one in FIN_WAIT whose answers pass by. The default is 1; a kernel without it
	// behaves as with 0.
	IPVSReuse = "net.ipv4.vs.conn_reuse_mode"
	// IPVSExpireNoDest is 1 where an entry whose server was removed goes with the next
	// packet, 0 where packets are dropped until it expires.
	IPVSExpireNoDest = "net.ipv4.vs.expire_nodest_conn"
)

// IPVS is the kernel's load balancer in this namespace; nil where there is none.
type IPVS struct {
	// Version is the kernel module's own, such as 1.2.1; Buckets is the size of the
	// hash table of connections.
	Version  string        `json:"version"`
	Buckets  int64         `json:"buckets"`
	Services []IPVSService `json:"services"`
	// Stats are the totals since IPVS began; nil where they could not be read.
	Stats *IPVSStats `json:"stats,omitempty"`
	// Timeouts are nil where they could not be read (needs CAP_NET_ADMIN).
	Timeouts *IPVSTimeouts `json:"timeouts,omitempty"`
	// Connections is nil where the table of connections could not be read.
	Connections *IPVSConnections `json:"connections,omitempty"`
}

// IPVSService is a virtual service.
type IPVSService struct {
	// Protocol is tcp, udp or sctp, empty for a service that a firewall mark chooses.
	Protocol string `json:"protocol,omitempty"`
	// Address is an address with port, or "fwmark N".
	Address   string `json:"address"`
	Scheduler string `json:"scheduler"`
	// OnePacket services keep no connections (UDP only).
	OnePacket bool `json:"one_packet,omitempty"`
	// Persistent services keep a client on its server because that was configured. For
	// how long is in ticks of a kernel whose HZ is not known here.
	Persistent bool         `json:"persistent,omitempty"`
	Servers    []IPVSServer `json:"servers"`
}

// IPVSServer is a real server of a service.
type IPVSServer struct {
	Address string `json:"address"`
	// Forward is Masq, Route, Tunnel or Local.
	Forward string `json:"forward"`
	Weight  int64  `json:"weight"`
	// Active connections are established or being set up, Inactive ones all others.
	Active   int64 `json:"active"`
	Inactive int64 `json:"inactive"`
}

// IPVSStats are counters.
type IPVSStats struct {
	// Connections counts new entries: a connection on a tuple that has one is not in it.
	Connections uint64 `json:"connections"`
	InPackets   uint64 `json:"in_packets"`
	OutPackets  uint64 `json:"out_packets"`
	InBytes     uint64 `json:"in_bytes"`
	OutBytes    uint64 `json:"out_bytes"`
}

// IPVSTimeouts are those that can be configured (ipvsadm --set), in seconds. TIME_WAIT
// is none of them: it takes 120 s.
type IPVSTimeouts struct {
	TCP    int64 `json:"tcp_seconds"`
	TCPFin int64 `json:"tcp_fin_seconds"`
	UDP    int64 `json:"udp_seconds"`
}

// IPVSConnections summarises the table of connections. Numbers count the Sampled
// entries.
type IPVSConnections struct {
	Sampled int64 `json:"sampled"`
	// Complete is true where the whole table was read. The file lists it in the order of
	// a keyed hash, so that its beginning is a fair sample.
	Complete bool `json:"complete"`
	// Templates are entries of persistence, which are not among the others.
	Templates int64 `json:"templates"`
	// ByState counts by protocol and state: tcp/TIME_WAIT.
	ByState map[string]int64 `json:"by_state"`
	// TimeoutSeconds is the longest time left of an entry by protocol and state: with
	// some traffic it is the state's timeout.
	TimeoutSeconds map[string]int64 `json:"timeout_seconds"`
	// Services are those with the most entries first; ServicesTotal is how many there are.
	Services      []IPVSUse `json:"services"`
	ServicesTotal int64     `json:"services_total"`
	// Seconds lie between this reading and the former one that it was compared with; 0
	// where there was none. Then the numbers of used tuples below are 0, too.
	Seconds float64 `json:"seconds"`
	// NewKnown is whether IPVSUse.New is known: both tables were complete.
	NewKnown bool `json:"new_known"`
	// Compared entries were in both tables.
	Compared int64 `json:"compared"`
}

// IPVSUse is what the table of connections has of one service.
type IPVSUse struct {
	Protocol string `json:"protocol"`
	// Address is the one that clients ask for.
	Address string `json:"address"`
	Entries int64  `json:"entries"`
	// Ended entries belong to TCP connections that were closed.
	Ended int64 `json:"ended"`
	// Clients is the number of different addresses; TopClients those with most entries.
	Clients    int64        `json:"clients"`
	TopClients []IPVSClient `json:"top_clients"`
	// Servers are those that entries lead to, the most entries first.
	Servers []IPVSServerUse `json:"servers"`
	// New entries since the former reading, and TCP entries of closed connections that
	// were used again since. SameServer of these kept their real server.
	New        int64 `json:"new"`
	UsedAgain  int64 `json:"used_again"`
	SameServer int64 `json:"same_server"`
}

// IPVSClient is one client address of a service, each entry of which has a port of its
// own.
type IPVSClient struct {
	Address string `json:"address"`
	Ports   int64  `json:"ports"`
	// FirstPort and LastPort bound the ports that were seen.
	FirstPort uint16 `json:"first_port"`
	LastPort  uint16 `json:"last_port"`
	UsedAgain int64  `json:"used_again"`
	New       int64  `json:"new"`
}

// IPVSServerUse is one real server of a service, as the table of connections has it.
type IPVSServerUse struct {
	Address   string `json:"address"`
	Entries   int64  `json:"entries"`
	New       int64  `json:"new"`
	UsedAgain int64  `json:"used_again"`
}

// IPVSTimeWait is the timeout of TIME_WAIT, in seconds, which cannot be configured
// (tcp_timeouts, net/netfilter/ipvs/ip_vs_proto_tcp.c).
const IPVSTimeWait = 120

// unprivilegedPorts are those from 1024 on, of which clients and NATs take theirs.
const unprivilegedPorts = 64512

// PassesBy reports whether answers of a service do not pass the balancer, so that closed
// connections stay in FIN_WAIT: direct routing and tunnels.
func (s *IPVSService) PassesBy() bool {
	return s != nil && slices.ContainsFunc(s.Servers, func(r IPVSServer) bool {
		return r.Forward == "Route" || r.Forward == "Tunnel"
	})
}

// Hold returns how long the entry of a closed TCP connection stays, in seconds.
func (v *IPVS) Hold(s *IPVSService) int64 {
	switch {
	case !s.PassesBy():
		return IPVSTimeWait
	case v.Timeouts != nil && v.Timeouts.TCPFin > 0:
		return v.Timeouts.TCPFin
	case v.Connections != nil && v.Connections.TimeoutSeconds["tcp/FIN_WAIT"] > 0:
		return v.Connections.TimeoutSeconds["tcp/FIN_WAIT"]
	}
	return IPVSTimeWait // the default of FIN_WAIT, too
}

// Span returns the number of ports a client has: those between its lowest and its highest one
// where most of them have an entry, else all from 1024 on.
func (c *IPVSClient) Span() int64 {
	span := int64(c.LastPort) - int64(c.FirstPort) + 1
	if 2*c.Ports >= span {
		return span
	}
	return unprivilegedPorts
}

// MostSessions is the rate of connections of one client address beyond which ports come
// again while their entries are there: from then on IPVS counts no more new ones.
func (v *IPVS) MostSessions(s *IPVSService, c *IPVSClient) float64 {
	return float64(c.Span()) / float64(v.Hold(s))
}

// ReuseInterval is the time from one connection of a port to its next one, on average, in
// seconds; false where it is not known, or no port came again.
func (of *IPVSConnections) ReuseInterval(c *IPVSClient) (float64, bool) {
	n := c.New + c.UsedAgain
	if c.UsedAgain == 0 || of.Seconds <= 0 || !of.NewKnown {
		return 0, false
	}
	return float64(c.Ports) * of.Seconds / float64(n), true
}

// ServiceOf is the configuration of a service that connections were seen of; nil where
// there is none: a firewall mark chose it, or it was removed.
func (v *IPVS) ServiceOf(u *IPVSUse) *IPVSService {
	for i := range v.Services {
		if s := &v.Services[i]; s.Protocol == u.Protocol && s.Address == u.Address {
			return s
		}
	}
	return nil
}

// UseOf returns the connection table's use by a service; nil where it has nothing, or
// too little to be listed.
func (v *IPVS) UseOf(s *IPVSService) *IPVSUse {
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
