// Package state is what natkit knows of a host at one moment, ready to be shown: the exporter keeps it, its metrics and
// its page read it. Each part has the time at which it was read, as they are read at different intervals; a part that
// could not be read is nil, and Unread has the reason.
package state

import (
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/snapshot"
)

// Schema names the JSON form of a State.
const Schema = "natkit.state/1"

// State is a host, by the network namespaces that are watched.
type State struct {
	Schema string `json:"schema"`
	// At is when it was asked for; ages are up to then.
	At      time.Time `json:"time"`
	Started time.Time `json:"started"`
	// Version is that of natkit.
	Version string          `json:"version"`
	Kernel  snapshot.Kernel `json:"kernel"`
	// EverySeconds is the time from one reading of the counters to the next.
	EverySeconds float64 `json:"every_seconds"`
	// Namespaces are in the order in which they were named, or found.
	Namespaces []Namespace `json:"namespaces"`
	// LeftOut is how many network namespaces there are besides that are not watched, as they are too many or could not
	// be entered; 0 where one was chosen.
	LeftOut int  `json:"namespaces_left_out,omitempty"`
	Self    Self `json:"self"`
}

// Self is what the exporter itself uses.
type Self struct {
	// CPUSeconds is the CPU time of the process since it started, TableCPUSeconds of it that of reading connection tables.
	CPUSeconds      float64 `json:"cpu_seconds"`
	TableCPUSeconds float64 `json:"table_cpu_seconds"`
	// Readings are the CPU times, in seconds, of reading one namespace: its counters, or an examination, with the table where
	// that was read.
	Readings map[string]Histogram `json:"readings"`
}

// Names of Self.Readings.
const (
	ReadingCounters    = "counters"
	ReadingExamination = "examination"
)

// Namespace is one network namespace.
type Namespace struct {
	// Name is that of 'ip netns list', or "pid N"; empty for the one that natkit runs in.
	Name  string `json:"netns,omitempty"`
	Inode uint64 `json:"netns_inode"`
	// Owner is whose it is, where all were to be found.
	Owner *snapshot.Owner `json:"owner,omitempty"`

	Counters *Counters `json:"counters,omitempty"`
	Table    *Table    `json:"table,omitempty"`
	Services *Services `json:"services,omitempty"`
	Ports    *Ports    `json:"ports,omitempty"`
	Drops    *Drops    `json:"drops,omitempty"`
	Stack    *Stack    `json:"stack,omitempty"`
	Findings *Findings `json:"findings,omitempty"`
	// Unread is what could not be read, and why.
	Unread  []Unread `json:"unread"`
	History History  `json:"history"`
}

// Reading is when a part was read.
type Reading struct {
	At time.Time `json:"time"`
	// AgeSeconds is how long ago that was at State.At.
	AgeSeconds float64 `json:"age_seconds"`
}

// Unread is a part that could not be read.
type Unread struct {
	Part string `json:"part"`
	Why  string `json:"why"`
	// Unavailable is true of one that cannot be read here at all, as without a privilege or the device.
	Unavailable bool `json:"unavailable,omitempty"`
}

// Counters is what costs little to read: it is the newest part.
type Counters struct {
	Reading
	// Entries of the connection table, Limit and Buckets of it (net.netfilter.nf_conntrack_count, _max, _buckets). All
	// network namespaces have one limit, with which the kernel compares the entries of each. Limit 0 is not known.
	Entries int64 `json:"entries"`
	Limit   int64 `json:"limit_entries,omitempty"`
	Buckets int64 `json:"buckets,omitempty"`
	// Conntrack are conntrack's counters, summed over the CPUs, by the kernel's names. Unlike the kernel's, which are of
	// 32 bits, they do not wrap: they are what the kernel had when natkit started, and what it counted since.
	Conntrack map[string]uint64 `json:"conntrack"`
	// PerSecond is how fast these grew from the reading before to this one.
	PerSecond map[string]float64 `json:"conntrack_per_second"`
}

// Used is the share of the table that is in use; false where the limit is not known.
func (c *Counters) Used() (float64, bool) {
	if c == nil || c.Limit <= 0 {
		return 0, false
	}
	return float64(c.Entries) / float64(c.Limit), true
}

// Table is what the entries of the connection table are. Numbers are of the whole table: scaled where a sample was read.
type Table struct {
	Reading
	// Sampled entries were read; Complete is true where that was all.
	Sampled  int64 `json:"sampled_entries"`
	Complete bool  `json:"complete"`
	// Entries had the table then.
	Entries   int64            `json:"entries"`
	Protocols map[string]int64 `json:"by_protocol"`
	TCPStates map[string]int64 `json:"by_tcp_state"`
	Assured   int64            `json:"assured"`
	Unreplied int64            `json:"unreplied"`
	SNAT      int64            `json:"snat"`
	DNAT      int64            `json:"dnat"`
	Offloaded int64            `json:"offloaded"`
	// IdleLong are established TCP connections that had no packet for snapshot.IdleLong seconds; -1 where that is not known.
	IdleLong int64 `json:"idle_long"`
	// TopSources and TopServices have most entries, the most first.
	TopSources  []Talker `json:"top_sources"`
	TopServices []Talker `json:"top_services"`
	// Flows is nil until the table was read twice.
	Flows *Flows `json:"flows,omitempty"`
	// Memory is what the table takes; nil where the number of its entries is not known.
	Memory *TableMemory `json:"memory,omitempty"`
}

// TableMemory is what the entries of the namespace take, by the sizes of the kernel's objects, and the buckets, which all
// namespaces share. Limit… are of as many entries as the limit allows; 0 where it is not known.
type TableMemory struct {
	EntriesBytes         int64 `json:"entries_bytes"`
	ExtensionsBytes      int64 `json:"extensions_bytes"`
	BucketsBytes         int64 `json:"buckets_bytes"`
	LimitEntriesBytes    int64 `json:"limit_entries_bytes,omitempty"`
	LimitExtensionsBytes int64 `json:"limit_extensions_bytes,omitempty"`
	// SlabBytes is what the kernel holds for entries of all namespaces, free ones included; 0 where that is not known.
	SlabBytes uint64 `json:"slab_bytes,omitempty"`
	// Source is where the size of an entry was read, or "assumed".
	Source string `json:"source"`
}

// Talker is an address, or a service (protocol, address and port), with its entries.
type Talker struct {
	Who     string  `json:"who"`
	Entries int64   `json:"entries"`
	Share   float64 `json:"share"`
}

// Flows are new connections, as snapshot.Flows has them.
type Flows struct {
	NewPerSecond           float64            `json:"new_per_second"`
	StandardErrorPerSecond float64            `json:"standard_error_per_second"`
	ByClass                map[string]float64 `json:"new_per_second_by_class"`
	// UnansweredSources have most new entries without an answer.
	UnansweredSources []snapshot.Rate `json:"unanswered_sources,omitempty"`
}

// Services is what became of connections that NAT translates, by service, those that fail most first.
type Services struct {
	Reading
	// WindowSeconds is how far back connections count.
	WindowSeconds float64 `json:"window_seconds"`
	// Complete is true where the whole table was read.
	Complete bool `json:"complete"`
	// All are the first ones, of Total.
	All   []Service `json:"services"`
	Total int       `json:"services_total"`
	// Answered and Failed are of all services, AnsweredShare is Answered of both; -1 where there were none.
	Answered      int64   `json:"answered"`
	Failed        int64   `json:"failed"`
	AnsweredShare float64 `json:"answered_share"`
}

// Service is connections that are translated alike (snapshot.Service). Its numbers are of the entries that were read.
type Service struct {
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	Protocol string `json:"protocol"`
	// Service is what clients ask for, Target where that leads, Given what their source becomes; each may be empty.
	Service string `json:"service,omitempty"`
	Target  string `json:"target,omitempty"`
	Given   string `json:"given,omitempty"`
	// Answered connections began or ended lately; Unanswered had no answer in time, HalfOpen none from their client.
	Answered   int64 `json:"answered"`
	Unanswered int64 `json:"unanswered"`
	HalfOpen   int64 `json:"half_open"`
	// Waiting are too young to judge, Open are older ones, Stalled were answered and then no longer, Reset ended by a RST.
	Waiting int64 `json:"waiting"`
	Open    int64 `json:"open"`
	Stalled int64 `json:"stalled"`
	Reset   int64 `json:"reset"`
	// NewPerSecond is -1 where it is not known: where a sample was read.
	NewPerSecond float64 `json:"new_per_second"`
	// AnsweredShare is Answered of those that were answered or failed; -1 where there were none.
	AnsweredShare float64 `json:"answered_share"`
}

// Ports is how far the ports of the addresses that NAT gives are used up, the most pressed address first.
type Ports struct {
	Reading
	Complete  bool      `json:"complete"`
	Addresses []Address `json:"addresses"`
	// Pools is how many pairs of an address and a destination there are.
	Pools int64 `json:"pools_total"`
}

// Address is one address, protocol and range of ports, by its most pressed destination: two connections to one may not have the same
// port.
type Address struct {
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	// Range is what NAT may take there, Zone the zone of conntrack.
	Range nat.Ports `json:"range"`
	Zone  uint16    `json:"zone,omitempty"`
	// Destination is the one towards which most ports are in use, Used of Ports, and of these TimeWait in TIME_WAIT.
	Destination string  `json:"destination"`
	Used        int64   `json:"used_ports"`
	TimeWait    int64   `json:"time_wait_ports"`
	Ports       int64   `json:"ports"`
	UsedShare   float64 `json:"used_share"`
	// Fails is the chance that a new connection there finds no port; -1 where it is not known.
	Fails float64 `json:"new_connection_fails"`
	// SecondsLeft until all ports are in use at the present rate; -1 for never, or not known.
	SecondsLeft float64 `json:"seconds_left"`
	// NewPerSecond is -1 where it is not known.
	NewPerSecond float64 `json:"new_per_second"`
	// Exact is true where the ports were counted one by one though a sample of the table was read: insertions failed, and a rule
	// gives few.
	Exact bool `json:"exact,omitempty"`
}

// IsMapping reports whether the ports are no more than those of one program, which may all be in use.
func (a *Address) IsMapping() bool { return a.Ports < snapshot.FewestPorts }

// Stack is what the namespace's own IP and TCP count and hold.
type Stack struct {
	Reading
	// Counters are those of StackCounters that the kernel has, since the namespace was made.
	Counters map[string]uint64 `json:"counters"`
	// Sockets of TCP by state: in_use, time_wait, orphan; empty where they are not known.
	Sockets map[string]int64 `json:"tcp_sockets"`
}

// StackCounters are counters that rules of doctor look at, by the names of nstat: packets that are lost or refused outside of
// the connection tracker.
var StackCounters = []string{
	"IpForwDatagrams", "IpInHdrErrors", "IpInAddrErrors", "IpInDiscards", "IpOutDiscards", "IpOutNoRoutes", "IpReasmFails", "IpFragFails",
	"TcpActiveOpens", "TcpPassiveOpens", "TcpAttemptFails", "TcpEstabResets", "TcpRetransSegs", "TcpOutRsts",
	"TcpExtListenOverflows", "TcpExtListenDrops", "TcpExtTCPReqQFullDrop", "TcpExtPAWSEstab", "TcpExtPAWSActive", "TcpExtTSEcrRejected",
	"TcpExtTCPTimeWaitOverflow", "TcpExtIPReversePathFilter", "UdpNoPorts", "UdpRcvbufErrors",
	"Ip6OutForwDatagrams", "Ip6InHdrErrors", "Ip6InDiscards", "Ip6OutDiscards", "Ip6InNoRoutes", "Ip6OutNoRoutes", "Ip6ReasmFails",
}

// Drops is what the kernel has dropped since natkit began to count.
type Drops struct {
	Reading
	Since   time.Time `json:"since"`
	Packets uint64    `json:"packets"`
	// PerSecond is of the time since the reading before.
	PerSecond float64      `json:"packets_per_second"`
	Reasons   []DropReason `json:"reasons"`
	// Places have most drops, the most first.
	Places []DropPlace `json:"places"`
}

// DropReason is one reason of the kernel's (enum skb_drop_reason); empty before Linux 5.17, which has none.
type DropReason struct {
	Reason    string  `json:"reason"`
	Packets   uint64  `json:"packets"`
	PerSecond float64 `json:"packets_per_second"`
}

// DropPlace is a function of the kernel that drops packets.
type DropPlace struct {
	Function string `json:"function"`
	Reason   string `json:"reason"`
	Protocol string `json:"protocol"`
	Packets  uint64 `json:"packets"`
}

// Findings is what 'natkit doctor --watch' reports: a finding stays until several reports in succession are without it.
type Findings struct {
	Reading
	// WindowSeconds lie between the two readings that were compared.
	WindowSeconds float64   `json:"window_seconds"`
	All           []Finding `json:"findings"`
	// Checks counts the rules by the state of their check.
	Checks map[diagnose.State]int `json:"checks"`
	// Incomplete is why checks came to no result.
	Incomplete []diagnose.Missing `json:"incomplete"`
	Summary    *diagnose.Summary  `json:"summary,omitempty"`
	// Reports is how many there were so far.
	Reports int `json:"reports"`
}

// Finding is one that stands, with what the last report that had it says.
type Finding struct {
	diagnose.Standing
	Finding *diagnose.Finding `json:"finding,omitempty"`
}
