package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/load"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/units"
)

// Exchange holds the details of a load of kind exchange: connections or datagrams that a server
// answers with the address and port that it saw.
type Exchange struct {
	// Name is what the report calls the load: "static, from outside".
	Name string `yaml:"name" check:"required label"`
	// Protocol is tcp or udp; tcp where empty.
	Protocol string `yaml:"protocol" check:"protocol"`
	// Server is where it listens: what is sent to Load.To has to arrive there.
	Server ServerAt `yaml:"server"`
	// Seen are the addresses that the server has to see; the clients' own where empty.
	Seen Addresses `yaml:"seen" check:"lab"`
	// SeenPorts bound the ports that the server has to see. KeptPorts: each client's own.
	SeenPorts Ports `yaml:"seen_ports"`
	KeptPorts bool  `yaml:"kept_ports"`
	// Untracked: the gateway must have no entry of it; else it must have one of each, as far as
	// netfilter is the engine.
	Untracked bool `yaml:"untracked"`
}

// ServerAt is a node, and the port there; where that is 0, the one that clients ask for.
// A server of datagrams at a node with several addresses needs the one that it is asked
// at: its answers would come from another one.
type ServerAt struct {
	Node    string     `yaml:"node" check:"required node"`
	Port    uint16     `yaml:"port"`
	Address netip.Addr `yaml:"address" check:"lab"`
}

// Listens returns where the server of an exchange listens; any address of its node where it
// is not valid.
func (l Load) Listens() (netip.Addr, uint16) {
	s := l.Exchange.Server
	return s.Address, cmp.Or(s.Port, l.To.Port())
}

// ExchangeReport is what the far end saw of a load.
type ExchangeReport struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	// Server is the node that answered.
	Server string `json:"server"`
	// Seen are the clients' addresses as the server saw them, and how often.
	Seen []SeenAddress `json:"seen,omitempty"`
	// FirstPort and LastPort bound the ports that it saw; KeptPorts of them were the
	// client's own.
	FirstPort uint16 `json:"first_port,omitempty"`
	LastPort  uint16 `json:"last_port,omitempty"`
	KeptPorts int64  `json:"kept_ports"`
	// Entries are those of the gateway's connection table that are of it.
	Entries int64 `json:"entries"`
	// Faults lists the deviations from what the scenario expects.
	Faults []string `json:"faults,omitempty"`
}

// SeenAddress is a client's address as the server saw it.
type SeenAddress struct {
	Address netip.Addr `json:"address"`
	Count   int64      `json:"count"`
}

// Exchanged is one exchange that was answered: what the client had, and the server saw.
type Exchanged struct{ Own, Seen netip.AddrPort }

// Judge makes the report of what was exchanged, of asked ones, through a gateway with rules of several engines or, where
// carriers is empty, of netfilter.
func (e *Exchange) Judge(done []Exchanged, asked, entries int64, carriers []gateway.Carrier) *ExchangeReport {
	programs, netfilter := hasEngine(carriers, gateway.EngineEBPF), len(carriers) == 0 || hasEngine(carriers, gateway.EngineNetfilter)
	r := &ExchangeReport{Name: e.Name, Protocol: e.protocol(), Server: e.Server.Node, Entries: entries}
	// The kernel may reuse a port; the tracker has one entry then.
	own := map[netip.AddrPort]bool{}
	for _, x := range done {
		r.add(x)
		own[x.Own] = true
	}
	slices.SortFunc(r.Seen, func(a, b SeenAddress) int { return a.Address.Compare(b.Address) })
	if failed := asked - int64(len(done)); failed > 0 {
		r.fault("%s of %s failed", units.Count(failed), units.Count(asked))
	}
	if i := slices.IndexFunc(done, e.otherAddress); i >= 0 {
		r.fault("%s was seen as %s", done[i].Own.Addr(), done[i].Seen.Addr())
	}
	if i := slices.IndexFunc(done, e.otherPort); i >= 0 {
		r.fault("port %d was seen as %d", done[i].Own.Port(), done[i].Seen.Port())
	}
	switch {
	case (e.Untracked || !netfilter) && entries != 0:
		r.fault("the gateway tracked %s", units.Count(entries))
	case !e.Untracked && !programs && entries < int64(len(own)):
		r.fault("the gateway tracked %s of %s", units.Count(entries), units.Count(len(own)))
	}
	return r
}

func hasEngine(all []gateway.Carrier, e gateway.Engine) bool {
	return slices.ContainsFunc(all, func(c gateway.Carrier) bool { return c.Engine == e })
}

func (e *Exchange) otherAddress(x Exchanged) bool {
	if len(e.Seen) == 0 {
		return x.Seen.Addr() != x.Own.Addr()
	}
	return !slices.Contains(e.Seen, x.Seen.Addr())
}

func (e *Exchange) otherPort(x Exchanged) bool {
	return e.SeenPorts != (Ports{}) && !nat.Ports(e.SeenPorts).Contains(x.Seen.Port()) || e.KeptPorts && x.Seen.Port() != x.Own.Port()
}

func (e *Exchange) protocol() string { return cmp.Or(e.Protocol, "tcp") }

func (r *ExchangeReport) add(x Exchanged) {
	i := slices.IndexFunc(r.Seen, func(s SeenAddress) bool { return s.Address == x.Seen.Addr() })
	if i < 0 {
		i, r.Seen = len(r.Seen), append(r.Seen, SeenAddress{Address: x.Seen.Addr()})
	}
	r.Seen[i].Count++
	port := x.Seen.Port()
	r.FirstPort, r.LastPort = min(cmp.Or(r.FirstPort, port), port), max(r.LastPort, port)
	if port == x.Own.Port() {
		r.KeptPorts++
	}
}

func (r *ExchangeReport) fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

// Names of counters of SYNs, as nstat prints them.
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
