package lab

import (
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/snapshot"
)

// Names of counters that tell what became of a SYN, as nstat prints them.
const (
	counterActiveOpens  = "TcpActiveOpens"
	counterPassiveOpens = "TcpPassiveOpens"
	counterOutRsts      = "TcpOutRsts"
	counterSynRetrans   = "TcpExtTCPSynRetrans"
	counterPAWSTimewait = "TcpExtPAWSTimewait"
	counterPAWSEstab    = "TcpExtPAWSEstab"
)

// Handshakes is what became of a stage's new TCP connections, by the counters of the
// node that they come from and of the server.
type Handshakes struct {
	// Opened is how many connections the client began (TcpActiveOpens), Accepted how
	// many the server took (TcpPassiveOpens).
	Opened   uint64 `json:"opened"`
	Accepted uint64 `json:"accepted"`
	// Late took a second or more: a SYN was sent again.
	Late int64 `json:"late"`
	// SYNRetransmits are the client's (TcpExtTCPSynRetrans).
	SYNRetransmits uint64 `json:"syn_retransmits"`
	// Rejected SYNs met a socket in TIME_WAIT and an older timestamp, by the server's
	// counter of the name RejectedBy: TcpExtPAWSTimewait, or TcpExtPAWSEstab where the
	// kernel has not got that.
	Rejected   uint64 `json:"rejected_syns"`
	RejectedBy string `json:"rejected_by"`
	// RejectRate is Rejected by Accepted.
	RejectRate float64 `json:"reject_rate"`
	// Reset is how often the client answered with RST (TcpOutRsts): what it got for its
	// SYN was the ACK of another connection, rejected by whatever test.
	Reset uint64 `json:"resets_by_client"`
	// TimeWait is how many sockets the server had in TIME_WAIT at the end.
	TimeWait int64 `json:"server_time_wait_sockets"`
	// PerSecond is the rate of accepted connections, pauses between batches included.
	PerSecond float64 `json:"accepted_per_second"`
}

// RejectedSYNsOnly: the counter of Rejected counts nothing else, but for late duplicates
// of closed connections; TcpExtPAWSEstab has late segments of open ones, too.
func (h *Handshakes) RejectedSYNsOnly() bool { return h.RejectedBy == counterPAWSTimewait }

// HandshakesOf reads what the counters of client and server grew by. server is how
// the server's TCP stands at the end: its counters say which of them the kernel has.
func HandshakesOf(client, grown snapshot.Counters, server *snapshot.TCP, r *load.Result) *Handshakes {
	h := &Handshakes{
		Opened: client[counterActiveOpens], Accepted: grown[counterPassiveOpens],
		Late: r.ConnectLate, SYNRetransmits: client[counterSynRetrans], Reset: client[counterOutRsts],
		RejectedBy: counterPAWSEstab,
	}
	if _, has := server.Counters[counterPAWSTimewait]; has {
		h.RejectedBy = counterPAWSTimewait
	}
	h.Rejected = grown[h.RejectedBy]
	if server.Sockets != nil {
		h.TimeWait = server.Sockets.TimeWait
	}
	if h.Accepted > 0 {
		h.RejectRate = float64(h.Rejected) / float64(h.Accepted)
	}
	if r.Seconds > 0 {
		h.PerSecond = float64(h.Accepted) / r.Seconds
	}
	return h
}
