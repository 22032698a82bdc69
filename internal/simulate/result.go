package simulate

// Schema names the JSON form of a Result.
const Schema = "natkit.simulate/1"

// Result is what a simulation came to.
type Result struct {
	// Config is what was simulated, with the defaults filled in.
	Config Config `json:"config"`
	// Seconds is the simulated time until the last event, those after the last
	// arrival included.
	Seconds float64 `json:"simulated_s"`
	Totals  Counts  `json:"totals"`
	// Servers are the groups of Config.Servers, in their order.
	Servers []ServerResult `json:"servers"`
	// Batches are those of Config.Batches, in their order.
	Batches []BatchResult `json:"batches,omitempty"`
	// IntervalSeconds is the distance of the points of Curve. It is a multiple of
	// Config.Interval where that makes too many.
	IntervalSeconds float64 `json:"interval_s"`
	Curve           []Point `json:"curve"`
	// Incidents are what began and ended, in the order of time.
	Incidents []Incident `json:"incidents"`
	// ConnectDelay says how long clients waited for a connection.
	ConnectDelay Delay `json:"connect_delay"`
}

// Counts add up, over the simulation, an interval, a batch, or a group of servers.
//
// Connections = Accepted + Delayed + Failed + those still under way (0 in totals).
type Counts struct {
	// Connections that clients began.
	Connections int64 `json:"connections"`
	// Accepted are those whose first SYN was.
	Accepted int64 `json:"accepted"`
	// Delayed were accepted after the SYN was repeated.
	Delayed int64 `json:"delayed"`
	// Failed were given up.
	Failed int64 `json:"failed"`
	// NoPort are SYNs that the NAT dropped, as it had no port for them.
	NoPort int64 `json:"no_port"`
	// SYNs that reached a server, repetitions (SYNRetransmits) among them.
	SYNs           int64 `json:"syns"`
	SYNRetransmits int64 `json:"syn_retransmits"`
	// Of the SYNs that met a TIME_WAIT: Reused it (TCP_TW_SYN), or were answered with
	// its ACK, as the timestamp went back (PAWSRejects) or, without that, as the
	// sequence number did (SequenceRejects).
	Reused          int64 `json:"time_wait_reused"`
	PAWSRejects     int64 `json:"paws_rejects"`
	SequenceRejects int64 `json:"sequence_rejects"`
	// Resets are the RSTs that answered those ACKs and ended a TIME_WAIT.
	Resets int64 `json:"time_wait_reset"`
	// Sessions that the balancer made, SessionsReused that were there.
	Sessions       int64 `json:"balancer_sessions_new"`
	SessionsReused int64 `json:"balancer_sessions_reused"`
	// Closed connections that TIME_WAIT was made for, and those that found no place
	// (tcp_max_tw_buckets).
	TimeWaits        int64 `json:"time_waits"`
	TimeWaitOverflow int64 `json:"time_wait_overflow"`
}

// Rejects are the SYNs that were answered with a former connection's ACK.
func (c *Counts) Rejects() int64 { return c.PAWSRejects + c.SequenceRejects }

// ServerResult is a group of servers.
type ServerResult struct {
	Name   string `json:"name"`
	Kernel string `json:"kernel"`
	Totals Counts `json:"totals"`
	// Life is how long TIME_WAITs stood whose time ran out.
	Life Life `json:"time_wait_life"`
}

// Life is the least, the mean and the longest.
type Life struct {
	MinSeconds  float64 `json:"min_s"`
	MeanSeconds float64 `json:"mean_s"`
	MaxSeconds  float64 `json:"max_s"`
	Count       int64   `json:"count"`
}

// BatchResult is what became of a batch.
type BatchResult struct {
	Name         string  `json:"name,omitempty"`
	StartSeconds float64 `json:"start_s"`
	EndSeconds   float64 `json:"end_s"`
	Counts       Counts  `json:"counts"`
	ConnectDelay Delay   `json:"connect_delay"`
}

// Point is one interval.
type Point struct {
	// StartSeconds is since the beginning.
	StartSeconds float64 `json:"start_s"`
	Counts       Counts  `json:"counts"`
	// TimeWait, PortsTaken and SessionsOpen are at the interval's end.
	TimeWait     int64 `json:"time_wait"`
	PortsTaken   int64 `json:"ports_taken"`
	SessionsOpen int64 `json:"balancer_sessions"`
	// Servers are the groups.
	Servers []ServerPoint `json:"servers"`
}

// ServerPoint is one group in one interval.
type ServerPoint struct {
	// Connections that were accepted.
	Connections int64 `json:"connections"`
	Rejects     int64 `json:"rejects"`
	TimeWait    int64 `json:"time_wait"`
}

// Incident is something that began; StartSeconds since the beginning.
type Incident struct {
	// Kind is one of the Incident constants.
	Kind         string  `json:"kind"`
	StartSeconds float64 `json:"start_s"`
	// EndSeconds is when it was over, the simulation's end where it was not.
	EndSeconds float64 `json:"end_s"`
	// Rate is the connections per second when it began.
	Rate float64 `json:"connections_per_s"`
	// Count is how often it happened.
	Count int64 `json:"count"`
}

// What Incident.Kind may be.
const (
	// IncidentRejects: servers answered SYNs with a former connection's ACK.
	IncidentRejects = "rejects"
	// IncidentFailures: clients gave up.
	IncidentFailures = "failures"
	// IncidentSessions: the balancer made fewer sessions than there were
	// connections.
	IncidentSessions = "sessions-reused"
	// IncidentPorts: the NAT had no port.
	IncidentPorts = "no-port"
	// IncidentOverflow: a server had no place for a TIME_WAIT.
	IncidentOverflow = "time-wait-overflow"
)

// Delay is what clients waited until they were connected.
type Delay struct {
	MeanSeconds float64 `json:"mean_s"`
	P50Seconds  float64 `json:"p50_s"`
	P99Seconds  float64 `json:"p99_s"`
	MaxSeconds  float64 `json:"max_s"`
}

// Progress is how far a simulation is.
type Progress struct {
	// Seconds of Total are simulated.
	Seconds, Total float64
	Connections    int64
	Rejects        int64
}
