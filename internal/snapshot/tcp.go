package snapshot

import "math"

// PartTCP is the name of the part that Snapshot.TCP is.
const PartTCP = "tcp"

// Names of sysctls that decide what becomes of a SYN on a tuple that is in TIME_WAIT.
const (
	TCPTimestamps   = "net.ipv4.tcp_timestamps"
	TCPTWReuse      = "net.ipv4.tcp_tw_reuse"
	TCPTWRecycle    = "net.ipv4.tcp_tw_recycle" // removed in Linux 4.12
	TCPMaxTWBuckets = "net.ipv4.tcp_max_tw_buckets"
	TCPRFC1337      = "net.ipv4.tcp_rfc1337"
)

// TCP is what the namespace's own TCP has counted and holds.
type TCP struct {
	// Counters are those of /proc/net/snmp and /proc/net/netstat in the groups Tcp
	// and TcpExt. One that this kernel does not have is absent.
	Counters Counters `json:"counters"`
	// Sockets is nil where /proc/net/sockstat could not be read.
	Sockets *TCPSockets `json:"sockets,omitempty"`
}

// TCPSockets are the numbers of /proc/net/sockstat and sockstat6.
type TCPSockets struct {
	InUse  int64 `json:"in_use"`
	InUse6 int64 `json:"in_use_ipv6"`
	// TimeWait counts IPv4 and IPv6, and FIN_WAIT2 once the process has closed; it is
	// of all namespaces in Linux 4.9 and older.
	TimeWait int64 `json:"time_wait"`
	// Orphans and MemoryPages are of all namespaces.
	Orphans     int64 `json:"orphans"`
	MemoryPages int64 `json:"memory_pages"`
}

// Counters maps names as nstat prints them ("TcpRetransSegs", "TcpExtPAWSEstab") to
// values since the namespace was made.
type Counters map[string]uint64

// Delta is how much a counter grew since before; false where one of the two does not
// have it. A kernel of 32 bits keeps it in as many, and it wraps.
func (c Counters) Delta(before Counters, name string) (uint64, bool) {
	now, ok := c[name]
	then, okThen := before[name]
	switch {
	case !ok || !okThen:
		return 0, false
	case now >= then:
		return now - then, true
	case then <= math.MaxUint32:
		return uint64(uint32(now) - uint32(then)), true
	}
	return 0, false
}

// Grown are the counters that are not what they were before, with how much they grew:
// those that go up and down (TcpCurrEstab) and settings (TcpRtoMin) are not in it.
func (c Counters) Grown(before Counters) Counters {
	grown := Counters{}
	for name := range c {
		if d, ok := c.Delta(before, name); ok && d > 0 && !gauges[name] {
			grown[name] = d
		}
	}
	return grown
}

// gauges are in /proc/net/snmp and do not count (RFC 4022).
var gauges = map[string]bool{
	"TcpCurrEstab": true, "TcpRtoAlgorithm": true, "TcpRtoMin": true, "TcpRtoMax": true, "TcpMaxConn": true,
}
