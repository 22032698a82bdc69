// Package snapshot holds what was observed of one network namespace, as plain
// data: one instant (Snapshot) and several with what happened between them
// (Recording). It reads nothing itself; absence is data.
package snapshot

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Schema names the JSON form of a Snapshot.
const Schema = "natkit.snapshot/1"

// Snapshot is one instant of one network namespace. A part that could not be
// read is nil or empty, and Parts says why.
type Snapshot struct {
	Schema  string    `json:"schema"`
	TakenAt time.Time `json:"taken_at"`
	// UptimeSeconds is CLOCK_MONOTONIC, the clock of the kernel log.
	UptimeSeconds float64         `json:"uptime_seconds"`
	Kernel        Kernel          `json:"kernel"`
	Netns         Netns           `json:"netns"`
	Memory        *Memory         `json:"memory,omitempty"`
	Sysctls       Sysctls         `json:"sysctls,omitempty"`
	ConntrackStat *ConntrackStat  `json:"conntrack_stat,omitempty"`
	ConntrackSize *ConntrackSize  `json:"conntrack_size,omitempty"`
	TCP           *TCP            `json:"tcp,omitempty"`
	Table         *ConntrackTable `json:"conntrack_table,omitempty"`
	NATRules      *NATRules       `json:"nat_rules,omitempty"`
	Ports         *Ports          `json:"ports,omitempty"`
	IPVS          *IPVS           `json:"ipvs,omitempty"`
	Neighbours    *Neighbours     `json:"neighbours,omitempty"`
	DNATTargets   *DNATTargets    `json:"dnat_targets,omitempty"`
	Audit         *Audit          `json:"audit,omitempty"`
	Ways          *Ways           `json:"ways,omitempty"`
	Programs      *Programs       `json:"gateway_programs,omitempty"`
	Softnet       *Softnet        `json:"softnet,omitempty"`
	Links         *Links          `json:"links,omitempty"`
	// IPsecPolicies are there where IPsec dropped anything so far, some at most.
	IPsecPolicies []IPsecPolicy `json:"ipsec_policies,omitempty"`
	// OwnPorts are the ports that own connections use up.
	OwnPorts *OwnPorts `json:"own_ports,omitempty"`
	// AcceptQueues are the TCP listeners with connections that wait for accept(2), the
	// fullest first, some at most.
	AcceptQueues []AcceptQueue `json:"accept_queues,omitempty"`
	// EventListeners are the sockets that conntrack sends its events to; nil where that was
	// not read.
	EventListeners []EventListener `json:"event_listeners,omitempty"`
	// ReversePaths are the interfaces whose strict reverse path filter drops packets.
	ReversePaths []ReversePath `json:"reverse_paths,omitempty"`
	// ICMPErrors is what rules do to an ICMP error that this machine sends; nil where it had
	// no packet to send one for, or the rules are not known.
	ICMPErrors *Filter `json:"icmp_errors,omitempty"`
	// Names are what the host calls addresses; nil where that was not asked for.
	Names     *Names    `json:"names,omitempty"`
	KernelLog []LogLine `json:"kernel_log,omitempty"`
	// KernelLogNext is the sequence number that the kernel's next log record gets;
	// 0 where the log could not be read.
	KernelLogNext uint64 `json:"kernel_log_next,omitempty"`
	Parts         []Part `json:"parts"`
}

// Part is how the reading of one source went.
type Part struct {
	Name            string  `json:"name"`
	DurationSeconds float64 `json:"duration_seconds"`
	// Error is empty where the part was read. It names the object, the cause
	// and, where there is one, the missing capability or kernel option.
	Error string `json:"error,omitempty"`
	// Unavailable is true where it cannot be read here at all, as without a privilege or the device; false where reading failed
	// this time.
	Unavailable bool `json:"unavailable,omitempty"`
}

// PartKernelLog is the name of the part that Snapshot.KernelLog is.
const PartKernelLog = "kernel_log"

// PartError is why a part could not be read; empty where it was, or was not tried.
func (s *Snapshot) PartError(name string) string {
	for _, p := range s.Parts {
		if p.Name == name {
			return p.Error
		}
	}
	return ""
}

// Kernel identifies the running kernel and machine.
type Kernel struct {
	Release string `json:"release"`
	Arch    string `json:"arch"`
	// BootID is /proc/sys/kernel/random/boot_id: new at each boot.
	BootID string `json:"boot_id"`
	CPUs   int    `json:"cpus"`
}

// Before reports whether the release, such as 6.1.0-13-amd64, is older than a version;
// false where it is not known.
func (k Kernel) Before(major, minor int) bool {
	var a, b int
	n, _ := fmt.Sscanf(k.Release, "%d.%d", &a, &b)
	return n == 2 && (a < major || a == major && b < minor)
}

// Netns identifies the namespace that was read.
type Netns struct {
	Inode uint64 `json:"inode"`
	Name  string `json:"name,omitempty"`
}

// Memory is the machine's, from /proc/meminfo.
type Memory struct {
	TotalBytes     uint64 `json:"total_bytes"`
	AvailableBytes uint64 `json:"available_bytes"`
}

// Neighbours are the kernel's neighbour tables, which all network namespaces share; nil
// outside the initial one, where the kernel does not show them.
type Neighbours struct {
	// ARP and NDisc are nil where the kernel has none (NDisc without IPv6).
	ARP   *NeighbourTable `json:"arp,omitempty"`
	NDisc *NeighbourTable `json:"ndisc,omitempty"`
}

// NeighbourTable is one of them: its entries now, and what it counted since boot.
type NeighbourTable struct {
	Entries uint64 `json:"entries"`
	Lookups uint64 `json:"lookups"`
	Hits    uint64 `json:"hits"`
	// ResolutionsFailed are neighbours that did not answer, UnresolvedDiscards packets that
	// were dropped while their neighbour was resolved (unres_qlen_bytes, or no answer).
	ResolutionsFailed  uint64 `json:"resolutions_failed"`
	UnresolvedDiscards uint64 `json:"unresolved_discards_packets"`
	// GCRuns are those that gc_thresh2 or gc_thresh3 forced, TableFulls entries that were
	// refused at gc_thresh3 (Linux 4.3).
	GCRuns     uint64 `json:"forced_gc_runs"`
	TableFulls uint64 `json:"table_fulls"`
}

// Softnet is what the CPUs of the machine took from their queues of received packets since
// boot, in packets. The kernel has 32 bits for each CPU, and so have the sums: they wrap.
type Softnet struct {
	Processed uint32 `json:"processed_packets"`
	// Dropped were refused by a queue of net.core.netdev_max_backlog packets.
	Dropped uint32 `json:"dropped_packets"`
}

// OwnPorts is how far this host's own connections use up the ports of ip_local_port_range; nil
// where it has too few sockets for that.
type OwnPorts struct {
	// Ports are those of the range without ip_local_reserved_ports.
	Ports int64 `json:"ports"`
	// Uses are the most used pairs of an own address and a destination, the worst first.
	Uses []OwnPortUse `json:"uses"`
}

// OwnPortUse is the ports of Local towards one destination: each connection needs another one
// (__inet_hash_connect, net/ipv4/inet_hashtables.c).
type OwnPortUse struct {
	Local       netip.Addr     `json:"local"`
	Destination netip.AddrPort `json:"destination"`
	// Used are ports of the range, TimeWait those of them in TIME_WAIT.
	Used     int64 `json:"used"`
	TimeWait int64 `json:"time_wait"`
}

// AcceptQueue is the queue of a listening TCP socket: Waiting connections are established, and
// the kernel drops what would add one to more than Limit (listen(2), net.core.somaxconn).
type AcceptQueue struct {
	Socket  netip.AddrPort `json:"socket"`
	Waiting uint32         `json:"waiting_connections"`
	Limit   uint32         `json:"limit_connections"`
}

// EventListener is a netlink socket that subscribed to events of conntrack.
type EventListener struct {
	// PortID is the socket's address, for a process's first socket its PID.
	PortID uint32 `json:"port_id"`
	Inode  uint64 `json:"inode"`
	// Drops are messages for which the socket's buffer had no room.
	Drops uint64 `json:"drops_messages"`
}

// IPsecPolicy is a policy of xfrm in words of ip-xfrm(8); Blocks is true where its action is block.
type IPsecPolicy struct {
	Text   string `json:"text"`
	Blocks bool   `json:"blocks,omitempty"`
}

// ReversePath is an interface with net.ipv4.conf.*.rp_filter = 1, its own or all's.
type ReversePath struct {
	Interface string `json:"interface"`
	// Default is whether a default route leads out of it, for its own address.
	Default bool `json:"default_route"`
	// Selected is the routing rule by whose table alone a default route leads out of it, for packets of a mark or
	// that come in by an interface: the filter does not ask that table for the way back. Empty where Default.
	Selected string `json:"selected_by,omitempty"`
}

// PartOwnPorts is the name of the part that Snapshot.OwnPorts is.
const PartOwnPorts = "own_ports"

// PartDNATTargets is the name of the part that Snapshot.DNATTargets is.
const PartDNATTargets = "dnat_targets"

// DNATTargets are where the rules that translate destinations lead; nil where the rules are
// not known.
type DNATTargets struct {
	Targets []DNATTarget `json:"targets"`
	// PolicyRouting is true where there are routing rules beside the default ones: what is
	// forwarded may take another route than what this machine sends.
	PolicyRouting bool `json:"policy_routing,omitempty"`
	// TooMany is true where the filters have too many rules to ask about all targets.
	TooMany bool `json:"too_many,omitempty"`
}

// DNATTarget is one address that a rule leads to, with what the kernel has of it.
type DNATTarget struct {
	// Rule is an index in NATRules.Rules: the first rule that leads there.
	Rule     int    `json:"rule"`
	Protocol string `json:"protocol,omitempty"`
	// Beside is true of one for another protocol of the same rule, of which filters alone are asked.
	Beside bool `json:"beside,omitempty"`
	// OfSeveral is true of one for a single port of a rule for several, of which filters alone are asked.
	OfSeveral bool `json:"of_several,omitempty"`
	// Address is not valid for redirect; Port is 0 where it is not constant.
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	// NoRoute is the kernel's error where no route leads there, or one that refuses.
	NoRoute string `json:"no_route,omitempty"`
	// NextHop is the neighbour that packets are sent to, the target itself where it is on
	// the link of Interface; Neighbour is the state of its entry, empty where there is none.
	NextHop   netip.Addr `json:"next_hop,omitzero"`
	Interface string     `json:"interface,omitempty"`
	Neighbour string     `json:"neighbour,omitempty"`
	// Sublink is a hardware address that Interface takes frames for besides its own, of a macvlan in another network
	// namespace, where the neighbour does not answer.
	Sublink string `json:"sublink,omitempty"`
	// Broken is why nothing gets through Interface; empty where nothing is known.
	Broken string `json:"broken,omitempty"`
	// Ports are those of Interface, a bridge, that forward nothing, where the neighbour does not answer.
	Ports []string `json:"ports,omitempty"`
	// Local targets are of this machine. Listening is whether a socket takes what comes
	// there; nil where that is not known.
	Local bool `json:"local,omitempty"`
	// Martian is true where the kernel drops what comes in for it: a loopback address, and
	// net.ipv4.conf.*.route_localnet is 0.
	Martian   bool  `json:"martian,omitempty"`
	Listening *bool `json:"listening,omitempty"`
	// Loopback is true where a socket that listens on that port does so on a loopback address alone.
	Loopback bool `json:"loopback_only,omitempty"`
	// Refused is an example of a client whose packets the kernel does not lead there, though a route
	// leads there; nil where none is known.
	Refused *Routes `json:"refused,omitempty"`
	// NotForwarded is the sysctl by which this machine does not forward to it; empty where it
	// does, or where it is Local.
	NotForwarded string `json:"not_forwarded,omitempty"`
	// Filter is what rules do to the first packet of a connection to it; nil where they were
	// not asked, as where they and the targets are very many.
	Filter *Filter `json:"filter,omitempty"`
	// AnswerFilter is what they do to its answer, of which the destination is not known.
	AnswerFilter *Filter `json:"answer_filter,omitempty"`
	// LaterFilter is what rules do to the packets that follow these, both ways: its drops are those
	// that are certain, or a part.
	LaterFilter *Filter `json:"later_filter,omitempty"`
	// Programs is true where eBPF programs of a gateway send connections on to it, past all filters. These are nil then,
	// and Bypassed is the first of them that would drop something.
	Programs bool    `json:"by_programs,omitempty"`
	Bypassed *Filter `json:"bypassed_filter,omitempty"`
}

// Filter is what the chains of filters do to a packet of which the client, and often the interface
// on its side, is not known.
type Filter struct {
	// Passes is true where it passes, or may.
	Passes bool `json:"passes"`
	// Drops are the places that drop it, or may.
	Drops []RulePlace `json:"drops,omitempty"`
	// At is the interface that it was taken to come in by, where the rule that translates names none.
	At string `json:"at,omitempty"`
	// Accepts is a rule below the one that certainly drops it that would let it pass.
	Accepts *RulePlace `json:"accepts,omitempty"`
	// AcceptsBefore is a rule of the same way that would let it pass with the destination that it had before its
	// translation, which it no longer has there.
	AcceptsBefore *RulePlace `json:"accepts_before,omitempty"`
	// AcceptsOthers is a rule that would let it pass if it came from a source that the rule is for.
	AcceptsOthers *RulePlace `json:"accepts_others,omitempty"`
}

// RulePlace is a rule, or the policy of a chain, that drops packets.
type RulePlace struct {
	// Text is the rule in the words of the program that keeps it, Owner that program where it
	// is known: "docker".
	Text   string `json:"text"`
	Owner  string `json:"owner,omitempty"`
	Handle uint64 `json:"handle,omitempty"`
	// Rejects is true where it answers.
	Rejects bool `json:"rejects,omitempty"`
	// Packets are those that it decided on so far, if Counted.
	Packets uint64 `json:"packets,omitempty"`
	Counted bool   `json:"counted,omitempty"`
	// Unsure is true where more would have to be known of the packets than their kind, Part where it
	// drops some packets of a connection and others not: by their length, or by chance (Random).
	Unsure bool `json:"unsure,omitempty"`
	Part   bool `json:"part,omitempty"`
	Random bool `json:"random,omitempty"`
	// Limits is true where it drops what is too many or too fast, Named where it depends on where
	// packets come from, ForPort where the rule itself is for some ports.
	Limits  bool `json:"limits,omitempty"`
	Named   bool `json:"named,omitempty"`
	ForPort bool `json:"for_port,omitempty"`
	// Limit is the rule before that lets pass what is not too many, where Limits is not of its own.
	Limit string `json:"limit,omitempty"`
	// Early is true where it sees packets before their destination is translated.
	Early bool `json:"early,omitempty"`
}

// States of a neighbour: it is being asked for, did not answer, or did so a short while ago.
const (
	NeighbourIncomplete = "INCOMPLETE"
	NeighbourFailed     = "FAILED"
	NeighbourReachable  = "REACHABLE"
)

// Names of the sysctls that give the size of the connection table: its limit, its
// entries in this namespace, and its hash buckets.
const (
	ConntrackMax     = "net.netfilter.nf_conntrack_max"
	ConntrackCount   = "net.netfilter.nf_conntrack_count"
	ConntrackBuckets = "net.netfilter.nf_conntrack_buckets"
	// NotLoaded ends the reason why none of these could be read, where there are none.
	NotLoaded = "connection tracking (nf_conntrack) is not loaded"
	// IPVSConntrack is 1 where IPVS translates tracked connections, without a rule.
	IPVSConntrack = "net.ipv4.vs.conntrack"
)

// Sysctls maps a sysctl's dotted name to its text.
type Sysctls map[string]string

// BridgeCalls4 and BridgeCalls6 send what bridges pass on through the rules of IP; they are there with br_netfilter.
const (
	BridgeCalls4 = "net.bridge.bridge-nf-call-iptables"
	BridgeCalls6 = "net.bridge.bridge-nf-call-ip6tables"
)

// Int is a sysctl's value; false where it is absent or no number.
func (s Sysctls) Int(name string) (int64, bool) {
	v, err := strconv.ParseInt(s[name], 10, 64)
	return v, err == nil
}

// ClassTimeout returns what an entry of a class, as in Flows.PerSecond, has after a packet, in
// seconds; 0 where that is not known. The class "" is that of protocols without one of their own.
func (s Sysctls) ClassTimeout(class string) uint32 {
	n, ok := s.Int(TimeoutOf(class))
	if !ok || n < 0 || n > math.MaxUint32 {
		return 0
	}
	return uint32(n)
}

// TimeoutOf is the sysctl that ClassTimeout reads.
func TimeoutOf(class string) string {
	name := classTimeouts[class]
	if state, ok := strings.CutPrefix(class, "tcp/"); ok && name == "" {
		name = "tcp_timeout_" + strings.ToLower(state)
	}
	return "net.netfilter.nf_conntrack_" + name
}

// classTimeouts name the sysctls of classes that are not named after a state of TCP.
var classTimeouts = map[string]string{
	"tcp/SYN_SENT2": "tcp_timeout_syn_sent", "udp/unreplied": "udp_timeout", "udp/stream": "udp_timeout_stream",
	"icmp": "icmp_timeout", "icmpv6": "icmpv6_timeout", "gre": "gre_timeout", "": "generic_timeout",
}

// LogLine is one line of the kernel log that concerns NAT.
type LogLine struct {
	// Seq numbers the records of the kernel log since boot.
	Seq uint64 `json:"seq"`
	// UptimeSeconds is the kernel's time stamp. Its clock is not disciplined and
	// drifts from Snapshot.UptimeSeconds over days; Recording.NewLogLines
	// compares numbers instead.
	UptimeSeconds float64 `json:"uptime_seconds"`
	Text          string  `json:"text"`
	// Netns is the inode that the line names ("in netns N", since 6.18); 0 where
	// it names none.
	Netns uint64 `json:"netns,omitempty"`
	// Suppressed counts the lines that the kernel's rate limit kept back
	// ("net_ratelimit: N callbacks suppressed"); then Text is that line.
	Suppressed uint64 `json:"suppressed,omitempty"`
}

// RecordingSchema names the JSON form of a Recording.
const RecordingSchema = "natkit.recording/1"

// Recording is two or more instants of one namespace and what happened between the last
// two. Rates come from here only.
type Recording struct {
	Schema string `json:"schema"`
	// Owner is whose the namespace is, where all of them were read; nil of natkit's own.
	Owner     *Owner      `json:"owner,omitempty"`
	Snapshots []*Snapshot `json:"snapshots"`
	// CutShortOf is the time between the instants that was asked for, in seconds, where
	// an interrupt ended it; 0 elsewhere.
	CutShortOf float64 `json:"cut_short_of_seconds,omitempty"`
	// Elsewhere is true of a recording that was read from a file: the host may be another than this one.
	Elsewhere bool `json:"-"`
	// Bundle is the header of the bundle that it was read from.
	Bundle BundleHeader `json:"-"`
	// Lost is what a file that is truncated or damaged does not have.
	Lost []string `json:"lost,omitempty"`
	// SinceStart is true of a recording of one instant alone: the first one is then the start of the host or its
	// network namespace, when all counters were 0.
	SinceStart bool `json:"since_start,omitempty"`
	// SinceNstat is true where the counters of TCP, UDP and IP are from nstat without -a, which prints what came since it
	// ran before.
	SinceNstat bool `json:"since_nstat,omitempty"`
	// SomeSysctls is true of texts that have some of the host's sysctls only: one that is missing may be there.
	SomeSysctls bool `json:"some_sysctls,omitempty"`
	// NoUptime is true of texts that do not say for how long the host ran: how long ago a line was logged is not known.
	NoUptime bool   `json:"no_uptime,omitempty"`
	Flows    *Flows `json:"flows,omitempty"`
	// Drops, Profile, SYNs and Followed are of the time between the last two instants;
	// nil where they were not asked for, or could not be had: Parts of the last
	// instant say why.
	Drops    *Drops    `json:"drops,omitempty"`
	Profile  *Profile  `json:"profile,omitempty"`
	SYNs     *SYNs     `json:"syns,omitempty"`
	Followed *Followed `json:"followed,omitempty"`
	// Dropped is what the kernel dropped between the last two instants, by place and reason, as a flight recorder counts it: which of
	// conntrack, NAT and rules it was is not known, so rules go by Drops alone.
	Dropped *Drops `json:"dropped,omitempty"`
	// Others is nil where one namespace alone was asked for, as in bundles.
	Others *Others `json:"others,omitempty"`
	// Compared is which two snapshots of a flight recording these are; nil of anything else.
	Compared *Compared `json:"-"`
}

// Compared is which two snapshots of a flight recording were compared.
type Compared struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// RecordingTo is the time of the last snapshot of the recording.
	RecordingTo time.Time `json:"recording_to"`
	// NotNewest is true where the newest snapshots were asked for, and the last one cannot be compared: none is before it that it
	// follows, or it is damaged.
	NotNewest bool `json:"not_newest,omitempty"`
	// UptimeSeconds lie between both by the time that the host ran, UsualSeconds between two snapshots of the recording.
	UptimeSeconds float64 `json:"uptime_seconds"`
	UsualSeconds  float64 `json:"usual_seconds"`
	// FarApart is true where they lie further apart than usual, ClockJumped where the clock was set between them, or the host slept.
	FarApart    bool `json:"far_apart,omitempty"`
	ClockJumped bool `json:"clock_jumped,omitempty"`
}

// First is the instant that Last is compared with: the one before it, as flows and what was
// traced are of the time between both.
func (r *Recording) First() *Snapshot { return r.Snapshots[max(0, len(r.Snapshots)-2)] }

// Last is the newest instant.
func (r *Recording) Last() *Snapshot { return r.Snapshots[len(r.Snapshots)-1] }

// NewLogLines are the lines that were logged between the first and the last
// instant.
func (r *Recording) NewLogLines() []LogLine {
	first, last := r.First(), r.Last()
	var lines []LogLine
	for _, l := range last.KernelLog {
		isNew := l.UptimeSeconds >= first.UptimeSeconds
		if first.KernelLogNext > 0 && l.Seq > 0 {
			isNew = l.Seq >= first.KernelLogNext
		}
		if isNew {
			lines = append(lines, l)
		}
	}
	return lines
}

// ProtocolSpan is Span for the counters of TCP, UDP and IP.
func (r *Recording) ProtocolSpan() string {
	if r.SinceStart && r.SinceNstat {
		return "since nstat's last run"
	}
	return r.Span()
}

// Seconds is the time between the first and the last instant.
func (r *Recording) Seconds() float64 { return r.Last().UptimeSeconds - r.First().UptimeSeconds }

// Span is the time that counters grew in, in words: "in 5.0 s".
func (r *Recording) Span() string {
	switch s := r.Seconds(); {
	case r.SinceStart:
		return "since the start"
	case s > 0:
		return fmt.Sprintf("in %.1f s", s)
	}
	return "between the samples"
}

// AtStart returns what a snapshot would have had at the start of the host: what counts had counted nothing, what does
// not is as it is. What is only there once connections were compared is missing.
func (s *Snapshot) AtStart() *Snapshot {
	start := *s
	start.UptimeSeconds, start.Parts, start.KernelLog, start.KernelLogNext = 0, []Part{}, nil, min(s.KernelLogNext, 1)
	start.Table, start.Ports, start.NATRules, start.Audit = nil, nil, nil, nil
	if s.ConntrackStat != nil {
		start.ConntrackStat = &ConntrackStat{Source: s.ConntrackStat.Source}
		for _, cpu := range s.ConntrackStat.PerCPU {
			start.ConntrackStat.PerCPU = append(start.ConntrackStat.PerCPU, zeros(cpu))
		}
	}
	if s.TCP != nil {
		start.TCP = &TCP{Counters: zeros(s.TCP.Counters), Sockets: s.TCP.Sockets}
	}
	if s.Softnet != nil {
		start.Softnet = &Softnet{}
	}
	if s.Links != nil {
		start.Links = s.Links.atStart()
	}
	if n := s.Neighbours; n != nil {
		start.Neighbours = &Neighbours{}
		for _, t := range []struct{ from, to **NeighbourTable }{{&n.ARP, &start.Neighbours.ARP}, {&n.NDisc, &start.Neighbours.NDisc}} {
			if *t.from != nil {
				*t.to = &NeighbourTable{}
			}
		}
	}
	start.EventListeners = nil
	for _, l := range s.EventListeners {
		l.Drops = 0
		start.EventListeners = append(start.EventListeners, l)
	}
	return &start
}

// SinceStartOf makes the recording one of a snapshot alone, which is compared with the start of the host.
func (r *Recording) SinceStartOf(s *Snapshot) {
	r.Snapshots, r.SinceStart = []*Snapshot{s.AtStart(), s}, true
}

func zeros[M ~map[string]uint64](counters M) M {
	all := make(M, len(counters))
	for name := range counters {
		all[name] = 0
	}
	return all
}

// Flows is what became of connections between the last two dumps of the table, scaled to
// the whole table. The kernel has no counter of new entries.
type Flows struct {
	Seconds float64 `json:"seconds"`
	// Sampled entries of the later dump were compared with the earlier one.
	Sampled int64 `json:"sampled"`
	// PerSecond is the rate of new entries by class: tcp/STATE as the entry
	// stood in the later dump, or udp/unreplied, udp/stream, or the protocol.
	// udp/stream entries are assured and have the stream timeout; udp/unreplied
	// are all others, those answered once or twice included, as they have the
	// short one. A connection on a tuple that had an entry before counts where it
	// can be seen: by another ID, state or status, or, where the old one was closed,
	// by the time left. Connections that came and went between the dumps are not in
	// it, except TCP ones whose tuple was used again at once: those are estimated.
	// Where the table was sampled, the share of entries that have expired and are
	// not yet removed makes the rate too high by as much.
	PerSecond map[string]float64 `json:"per_second"`
	// TotalPerSecond is their sum.
	TotalPerSecond float64 `json:"total_per_second"`
	// StandardErrorPerSecond is that of TotalPerSecond: of sampling, and of
	// arrivals that are random.
	StandardErrorPerSecond float64 `json:"standard_error_per_second"`
	// Groups counts distinct (protocol, source, destination, destination port)
	// among the new entries seen; each can hold at most one entry per source
	// port. A lower bound where the table was sampled.
	Groups int64 `json:"groups"`
	// Unanswered are the sources with most new entries without an answer.
	Unanswered []Rate `json:"unanswered,omitempty"`
	// OneWay are the UDP services that clients go on asking in vain, the most entries
	// first. Where the table was sampled, their numbers are those of the sample.
	// OneWayKnown is false in recordings of a natkit that did not read them.
	OneWay      []OneWay `json:"one_way,omitempty"`
	OneWayKnown bool     `json:"one_way_known,omitempty"`
	// Services is nil in recordings of a natkit that did not count them.
	Services *Services `json:"services,omitempty"`
	// Expired are translated connections that nobody closed and that were forgotten between the dumps, by
	// their service, the most first, some at most; none where one of the dumps was not complete.
	Expired []Expired `json:"expired,omitempty"`
	// Controls are translated control connections of protocols that need a helper. ControlsKnown is
	// false in recordings of a natkit that did not look for them, or for Expired.
	Controls      []Control `json:"controls,omitempty"`
	ControlsKnown bool      `json:"controls_known,omitempty"`
}

// Expired is connections to a service that had no packet for the whole timeout of their class (as in
// Flows.PerSecond).
type Expired struct {
	Class    string         `json:"class"`
	Protocol string         `json:"protocol"`
	Service  netip.AddrPort `json:"service"`
	// Entries are gone, Revived were made anew by a later packet from the same port.
	Entries int64 `json:"entries"`
	Revived int64 `json:"revived,omitempty"`
	// LongestLeft is what the entries of the class to Service had left at most, in seconds: of
	// many about their timeout, which a rule may have set.
	LongestLeft uint32 `json:"longest_left_seconds,omitempty"`
}

// Control is control connections that are translated alike, of a protocol that Helper is for.
type Control struct {
	Helper   string `json:"helper"`
	Protocol string `json:"protocol"`
	// DNAT is true where the destination is translated: Service becomes Target.
	DNAT    bool           `json:"dnat,omitempty"`
	Service netip.AddrPort `json:"service"`
	Target  netip.AddrPort `json:"target"`
	// Connections were sampled; of them Helped have a helper, and Answered an answer.
	Connections int64 `json:"connections"`
	Helped      int64 `json:"helped,omitempty"`
	Answered    int64 `json:"answered,omitempty"`
	// GREUnanswered is true where GRE to the same address gets no answer.
	GREUnanswered bool `json:"gre_unanswered,omitempty"`
}

// PartTCP is the name of the part that Snapshot.TCP is.
const PartTCP = "tcp"

// Names of sysctls that decide what becomes of a SYN on a tuple that is in TIME_WAIT.
const (
	TCPTimestamps   = "net.ipv4.tcp_timestamps"
	TCPTWReuse      = "net.ipv4.tcp_tw_reuse"
	TCPTWRecycle    = "net.ipv4.tcp_tw_recycle" // removed in Linux 4.12
	TCPMaxTWBuckets = "net.ipv4.tcp_max_tw_buckets"
	TCPRFC1337      = "net.ipv4.tcp_rfc1337"
	// The sysctls that rules about the host's own limits refer to.
	SynCookies = "net.ipv4.tcp_syncookies"
	SoMaxConn  = "net.core.somaxconn"
	MaxBacklog = "net.core.netdev_max_backlog"
	// What bounds the fragments that wait for others, in bytes and in seconds.
	FragmentsMax  = "net.ipv4.ipfrag_high_thresh"
	FragmentsTime = "net.ipv4.ipfrag_time"
	// What decides whether packets are INVALID.
	BeLiberal  = "net.netfilter.nf_conntrack_tcp_be_liberal"
	Loose      = "net.netfilter.nf_conntrack_tcp_loose"
	Checksum   = "net.netfilter.nf_conntrack_checksum"
	LogInvalid = "net.netfilter.nf_conntrack_log_invalid"
	ARPMax     = "net.ipv4.neigh.default.gc_thresh3"
	NDiscMax   = "net.ipv6.neigh.default.gc_thresh3"
)

// TCP is what the namespace's own TCP has counted and holds.
type TCP struct {
	// Counters are those of /proc/net/snmp and /proc/net/netstat in the groups Tcp, TcpExt,
	// Ip, IpExt, Icmp and Udp, of /proc/net/snmp6 in Ip6 and Udp6, and those of
	// /proc/net/xfrm_stat. One that this kernel does not have is absent.
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

// Delta returns how much a counter grew since before; false where one of the two does not
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
	"IpForwarding": true, "IpDefaultTTL": true,
}
