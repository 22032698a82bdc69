package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Drops is what the kernel dropped while natkit listened at skb:kfree_skb.
type Drops struct {
	Seconds float64 `json:"seconds"`
	// Source is the kind of program that counted: "tp_btf" or "raw_tracepoint".
	Source string `json:"source"`
	// Packets is the number of drops, those of Sites' rest included.
	Packets uint64 `json:"packets"`
	// Sites are sorted by their packets, most first.
	Sites []DropSite `json:"sites"`
	// Flows are those seen dropped, most first: one in FlowSample drops was read
	// (1: every one). They are not scaled.
	Flows      []DropFlow `json:"flows,omitempty"`
	FlowSample int        `json:"flow_sample,omitempty"`
	// Harmless counts the frees that are no drops; they are in nothing else.
	Harmless uint64 `json:"harmless"`
	// Lost counts what was dropped while natkit's own tables were full: it is in
	// Packets where that is known, and in no site or flow.
	Lost uint64 `json:"lost"`
	// LostFlows are flows that made room for others, or found none.
	LostFlows uint64 `json:"lost_flows,omitempty"`
	// Stacks are the calls that led to a drop, most first: one in StackSample drops
	// was read. LostStacks found no room.
	Stacks      []DropStack `json:"stacks,omitempty"`
	StackSample int         `json:"stack_sample,omitempty"`
	LostStacks  uint64      `json:"lost_stacks,omitempty"`
	// LostEvents are drops that were counted but not shown one by one.
	LostEvents uint64 `json:"lost_events,omitempty"`
	// NAT is how drops in nf_hook_slow were attributed: "fexit" (the return
	// values of conntrack's and NAT's functions) or "counters" (what conntrack's
	// counters grew by over the same seconds); empty where neither could be had.
	NAT string `json:"nat_told_by,omitempty"`
	// Causes are the drops of conntrack and NAT by their cause.
	Causes []DropCause `json:"nat_causes,omitempty"`
	// Programs are what the eBPF programs of gateways dropped, by reason. The kernel frees these packets at skb:kfree_skb,
	// too: they are in Packets, and in the sites of TC_INGRESS and TC_EGRESS.
	Programs []ProgramDrop `json:"gateway_programs,omitempty"`
}

// ProgramDrop is what the eBPF programs of one network namespace's gateway dropped for one reason.
type ProgramDrop struct {
	Reason  string `json:"reason"`
	Netns   uint64 `json:"netns"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// GrownPrograms is what was dropped since before. Programs that were exchanged meanwhile count from 0.
func GrownPrograms(now, before []ProgramDrop) (grown []ProgramDrop) {
	for _, p := range now {
		i := slices.IndexFunc(before, func(b ProgramDrop) bool { return b.Reason == p.Reason && b.Netns == p.Netns })
		if i >= 0 && before[i].Packets <= p.Packets && before[i].Bytes <= p.Bytes {
			p.Packets, p.Bytes = p.Packets-before[i].Packets, p.Bytes-before[i].Bytes
		}
		if p.Packets > 0 {
			grown = append(grown, p)
		}
	}
	return grown
}

// DropSite is a place in the kernel where packets of one kind are dropped.
type DropSite struct {
	// Function and Offset are the place; Module is empty for the kernel proper.
	Function string `json:"function"`
	Offset   uint64 `json:"offset_bytes"`
	Module   string `json:"module,omitempty"`
	// Reason is the name in the running kernel's enum skb_drop_reason without
	// SKB_DROP_REASON_; empty where the kernel has none (before 5.17).
	Reason string `json:"reason,omitempty"`
	// Protocol is "tcp", "udp", "icmp", "icmp6", "arp", …; "ip proto N" or
	// "ethertype 0x…" where it has no name here, "-" where there is none.
	Protocol string `json:"protocol"`
	// Netns is the inode of the network namespace; 0 where the packet had none.
	Netns   uint64 `json:"netns"`
	Packets uint64 `json:"packets"`
}

// Place is the function with the offset and the module.
func (s DropSite) Place() string {
	if strings.HasPrefix(s.Function, "0x") {
		return s.Function // an address that has no name
	}
	text := fmt.Sprintf("%s+%#x", s.Function, s.Offset)
	if s.Module != "" {
		text += " [" + s.Module + "]"
	}
	return text
}

// DropFlow is packets of one direction of one connection, dropped in one place.
type DropFlow struct {
	Function    string `json:"function"`
	Reason      string `json:"reason,omitempty"`
	Protocol    string `json:"protocol"`
	Source      string `json:"source"`      // address, and port where there is one
	Destination string `json:"destination"` // the same
	Interface   string `json:"interface,omitempty"`
	Netns       uint64 `json:"netns"`
	Packets     uint64 `json:"packets"`
}

// DropStack is the calls that led to drops, the innermost first.
type DropStack struct {
	Functions []string `json:"functions"` // function+offset
	Reason    string   `json:"reason,omitempty"`
	Protocol  string   `json:"protocol"`
	Netns     uint64   `json:"netns"`
	Packets   uint64   `json:"packets"`
}

// Names of DropCause.Cause.
const (
	CauseTableFull = "connection table full"
	// insert_failed: its address and port are taken (NAT that finds no free ones
	// shows here only), or its hash chain is too long.
	CauseNotInserted = "connection not inserted"
	CauseNATFailed   = "address translation failed" // such as masquerading by an interface without an address
	CauseRule        = "rule"                       // an iptables or nftables rule dropped it
	CauseInvalid     = "not valid for its connection"
)

// DropCause is why conntrack, NAT or a rule dropped packets of a namespace.
type DropCause struct {
	Cause   string `json:"cause"`
	Netns   uint64 `json:"netns"`
	Packets uint64 `json:"packets"`
	// Source is the function or the counter that reported it.
	Source string `json:"source"`
}

// Profile is where the CPUs spent their time.
type Profile struct {
	Seconds float64 `json:"seconds"`
	// Hz is the samples taken per second of each of CPUs processors.
	Hz   int `json:"hz"`
	CPUs int `json:"cpus"`
	// Event is "cpu-cycles" or "cpu-clock".
	Event string `json:"event"`
	// Samples are those of CPUs that were not idle, Idle those of idle ones. Lost
	// were taken, and are in neither.
	Samples uint64 `json:"samples"`
	Idle    uint64 `json:"idle_samples"`
	Lost    uint64 `json:"lost"`
	// Receive are the samples in packet receive; the classes with Receive set sum
	// up to it, all classes to Samples.
	Receive   uint64          `json:"receive_samples"`
	Classes   []ProfileClass  `json:"classes"`
	Functions []ProfileSymbol `json:"functions"`
}

// ProfileClass is one kind of work: "conntrack lookup", "conntrack insert", "NAT
// setup", "NAT rewrite", "rules", "bridge netfilter", "routing", …
type ProfileClass struct {
	Name    string `json:"name"`
	Receive bool   `json:"receive"`
	Samples uint64 `json:"samples"`
}

// ProfileSymbol is a function with the samples in itself, and those in it or
// in what it called.
type ProfileSymbol struct {
	Function string `json:"function"`
	Module   string `json:"module,omitempty"`
	Class    string `json:"class"`
	Self     uint64 `json:"self_samples"`
	Total    uint64 `json:"total_samples"`
}

// Share is samples as a part of all CPU time of the profile, idle time included:
// 1 is all CPUs busy with it.
func (p *Profile) Share(samples uint64) float64 {
	all := p.Seconds * float64(p.Hz) * float64(p.CPUs)
	if all <= 0 {
		return 0
	}
	return float64(samples) / all
}

// Trace is what was recorded between two instants beside them, and how that went.
type Trace struct {
	Drops   *Drops   `json:"drops,omitempty"`
	Profile *Profile `json:"profile,omitempty"`
	SYNs    *SYNs    `json:"syns,omitempty"`
	// Followed is nil in traces of a natkit that did not follow connections.
	Followed *Followed `json:"followed,omitempty"`
	// Parts are named PartDrops, PartProfile, PartSYNs and PartFollowed: those that were asked for.
	Parts []Part `json:"parts"`
}

// Names of a trace's parts.
const (
	PartDrops   = "drops"
	PartProfile = "profile"
)

// Traced reports whether a part of that name was tried, and why it was not had;
// empty where it was.
func (s *Snapshot) Traced(name string) (tried bool, why string) {
	for _, p := range s.Parts {
		if p.Name == name {
			return true, p.Error
		}
	}
	return false, ""
}

// SourceAddress is the source without its port.
func (f DropFlow) SourceAddress() string { return addressOf(f.Source) }

// DestinationAddress is the destination without its port.
func (f DropFlow) DestinationAddress() string { return addressOf(f.Destination) }

func addressOf(end string) string {
	if ap, err := netip.ParseAddrPort(end); err == nil {
		return ap.Addr().String()
	}
	return end
}

// DropEvent is one dropped packet.
type DropEvent struct {
	Time time.Time `json:"time"`
	// Function and Offset are the place in the kernel, Module its module.
	Function string `json:"function"`
	Offset   uint64 `json:"offset_bytes"`
	Module   string `json:"module,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Protocol string `json:"protocol"`
	// Cause is one of DropCause's, if return values identify it.
	Cause string `json:"nat_cause,omitempty"`
	// Source and Destination are addresses, with the port where there is one.
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	// TCPFlags is such as "SYN,ACK".
	TCPFlags string `json:"tcp_flags,omitempty"`
	// Length is the IP packet's, or else that of the skb.
	Length    uint32 `json:"length_bytes"`
	Interface string `json:"interface,omitempty"`
	Netns     uint64 `json:"netns"`
}

// Since returns the drops after an earlier reading of the same tracer: sites, counts and
// those of programs, not flows, stacks and causes.
func (d *Drops) Since(before *Drops) *Drops {
	had := make(map[DropSite]uint64, len(before.Sites))
	for _, s := range before.Sites {
		packets := s.Packets
		s.Packets = 0
		had[s] = packets
	}
	later := &Drops{
		Seconds: d.Seconds - before.Seconds, Source: d.Source, Packets: d.Packets - before.Packets,
		Harmless: d.Harmless - before.Harmless, Lost: d.Lost - before.Lost, LostEvents: d.LostEvents - before.LostEvents,
		Programs: GrownPrograms(d.Programs, before.Programs),
	}
	for _, s := range d.Sites {
		packets := s.Packets
		s.Packets = 0
		if s.Packets = packets - had[s]; s.Packets > 0 {
			later.Sites = append(later.Sites, s)
		}
	}
	SortSites(later.Sites)
	return later
}

// SortSites puts those with most packets first.
func SortSites(sites []DropSite) {
	slices.SortFunc(sites, func(a, b DropSite) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Function, b.Function), cmp.Compare(a.Offset, b.Offset),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Netns, b.Netns))
	})
}

// PacketPath is the way of one packet through the kernel.
type PacketPath struct {
	// Number counts the packets of a run, from 1.
	Number int       `json:"packet"`
	Time   time.Time `json:"time"` // of the first step
	// Steps are in the order of time; those of the packet's clones are among them.
	Steps   []PathStep  `json:"steps"`
	Verdict PathVerdict `json:"verdict"`
	// Incomplete is set if events were lost while this packet was followed.
	Incomplete bool `json:"incomplete,omitempty"`
}

// PathStep is a function that got the packet, or something that happened to it.
type PathStep struct {
	// Nanoseconds since the first step.
	Nanoseconds uint64 `json:"at_ns"`
	// Event is what happened, a Step… name.
	Event string `json:"event"`
	// Function is where; Module is empty for the kernel proper. Offset is how far
	// behind its start, where it is not the start.
	Function string `json:"function,omitempty"`
	Module   string `json:"module,omitempty"`
	Offset   uint64 `json:"offset_bytes,omitempty"`
	// Depth is how many functions that had the packet had not returned yet, by the
	// stack pointer.
	Depth int `json:"depth"`
	// Buffer numbers the sk_buffs of the packet: 1 is the first, others are copies.
	Buffer int `json:"buffer"`
	CPU    int `json:"cpu"`
	// What the packet was at that time.
	Netns     uint64 `json:"netns,omitempty"` // inode
	NetnsName string `json:"netns_name,omitempty"`
	Interface string `json:"interface,omitempty"`
	Mark      uint32 `json:"mark,omitempty"`
	Length    int    `json:"length_bytes"` // skb->len: with the headers not yet taken off
	PathAddresses
	// Returned is what the function returned, where that decides about packets:
	// "ACCEPT", "DROP", "STOLEN", "QUEUE", …; Hook is the hook it was called for.
	Returned string `json:"returned,omitempty"`
	Hook     string `json:"hook,omitempty"`
	// Reason of a drop: a name of the running kernel's enum skb_drop_reason.
	Reason string `json:"reason,omitempty"`
}

// PathAddresses are what NAT changes of a packet, and by what a person knows it.
type PathAddresses struct {
	Protocol    string `json:"protocol,omitempty"`
	Source      string `json:"source,omitempty"` // address, and port where there is one
	Destination string `json:"destination,omitempty"`
	TCPFlags    string `json:"tcp_flags,omitempty"`
	TTL         int    `json:"ttl,omitempty"`
}

// Names of PathStep.Event.
const (
	StepCall     = "call"
	StepReturn   = "return"   // of a function whose call was not seen
	StepClone    = "clone"    // Buffer came to be
	StepDropped  = "dropped"  // Buffer was dropped, for Reason
	StepConsumed = "consumed" // Buffer was freed when all was done
	StepFreed    = "freed"    // Buffer was freed, the kernel gave no reason
)

// PathVerdict is what became of the packet.
type PathVerdict struct {
	// Result is a name below.
	Result string `json:"result"`
	// Function is the one that decided; for a drop where it happened.
	Function  string `json:"function,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Interface string `json:"interface,omitempty"` // of Sent
	Netns     uint64 `json:"netns,omitempty"`
	NetnsName string `json:"netns_name,omitempty"`
}

// Names of PathVerdict.Result.
const (
	PathDelivered = "delivered" // to a protocol of this machine
	PathSent      = "sent"      // handed to a device
	PathDropped   = "dropped"
	PathConsumed  = "consumed" // freed, and none of the above was seen
	PathOpen      = "open"     // still somewhere when natkit stopped looking
)

// PartSYNs is the name of a trace's part.
const PartSYNs = "syns"

// SYNs are the connection attempts that came to the namespace's listeners while natkit
// listened, and how it answered them. Numbers are those of the Sample, not scaled.
type SYNs struct {
	Seconds float64 `json:"seconds"`
	// PausedSeconds of them were not watched, as there were too many packets.
	PausedSeconds float64 `json:"paused_seconds,omitempty"`
	// Sample: the SYNs of one in Sample pairs of source address and port were recorded,
	// in the end; 1 is all.
	Sample int `json:"sample"`
	// SYNs to listeners. Repeated ones have the addresses and the sequence number of a
	// former one: the client had no answer, or none that it could use. Their port may be
	// another one, where a NAT has forgotten the former.
	SYNs     uint64 `json:"syns"`
	Repeated uint64 `json:"repeated"`
	// Late are the connections whose SYN came again LateSYN seconds or more after it came
	// first: they came about late, or not at all. LateKnown is false in recordings of a
	// natkit that did not record them.
	Late      uint64 `json:"late"`
	LateKnown bool   `json:"late_known,omitempty"`
	// Elsewhere counts SYNs to a port on which this namespace listens, but at another address.
	Elsewhere uint64 `json:"elsewhere"`
	// Lost segments, SYNs or answers, were not seen: there was no room for them.
	Lost uint64 `json:"lost"`
	// AnswersSeconds is for how long answers were recorded, too, without pauses: from the first
	// sign of a SYN that was not accepted. 0 where there was none.
	AnswersSeconds float64 `json:"answers_seconds"`
	// Sources are those with most rejected SYNs, then with most repeated ones, then
	// with most. MoreSources are not in it.
	Sources     []SYNSource `json:"sources"`
	MoreSources int64       `json:"more_sources,omitempty"`
}

// Watched is for how long SYNs were seen, in seconds.
func (s *SYNs) Watched() float64 { return s.Seconds - s.PausedSeconds }

// All reports whether every SYN to a listener was seen.
func (s *SYNs) All() bool { return s.Sample == 1 && s.Lost == 0 && s.PausedSeconds == 0 }

// LateSYN is longer than any client waits that sends its SYN again at once, as Linux does
// after a RST, and shorter than the time after which all others do.
const LateSYN = 0.5

// SYNSource is what one address asked one address of the namespace for.
type SYNSource struct {
	Source string `json:"source"`
	// Destination is without its port: clocks are of pairs of addresses.
	Destination string `json:"destination"`
	SYNs        uint64 `json:"syns"`
	Repeated    uint64 `json:"repeated"`
	// Late is as in SYNs.
	Late uint64 `json:"late,omitempty"`
	// Plain SYNs had no TCP timestamp.
	Plain uint64 `json:"without_timestamps"`
	// ByTimestamp and BySequence were answered by an ACK that does not acknowledge
	// them, as TIME_WAIT does: because their timestamp is behind the one in that ACK,
	// or because their sequence number is not after its acknowledgement number.
	ByTimestamp uint64 `json:"rejected_by_timestamp"`
	BySequence  uint64 `json:"rejected_by_sequence"`
	// TimeWait are those of them whose tuple the kernel had in TIME_WAIT (or
	// FIN_WAIT2) when it was asked at once; a client's RST may have removed it.
	TimeWait uint64 `json:"in_time_wait"`
	// Challenged SYNs met a connection that is not closed (RFC 5961); they are not in
	// ByTimestamp and BySequence.
	Challenged uint64 `json:"challenged"`
	// Clocks is how many timestamp clocks there are, at least; 0 where no timestamp
	// was seen. PerConnection: nearly each connection has an offset of its own, which
	// says nothing of the number of machines.
	Clocks        int  `json:"clocks"`
	PerConnection bool `json:"offset_per_connection,omitempty"`
}

// Rejected SYNs of all sources, by their timestamp and by their sequence number.
func (s *SYNs) Rejected() (byTimestamp, bySequence uint64) {
	for i := range s.Sources {
		byTimestamp += s.Sources[i].ByTimestamp
		bySequence += s.Sources[i].BySequence
	}
	return byTimestamp, bySequence
}

// Unanswered are the connections without an answer: TCP in SYN_SENT and UDP
// without a reply.
type Unanswered struct {
	TCP int64 `json:"tcp"`
	UDP int64 `json:"udp"`
	// Sources are those with most unanswered entries of one protocol, Services what
	// was asked for in vain.
	Sources  []UnansweredSource `json:"sources"`
	Services []Talker           `json:"services"`
}

// UnansweredSource is an address whose connections of one protocol were not answered.
type UnansweredSource struct {
	Who      string `json:"who"`
	Protocol string `json:"protocol"`
	// Entries have no answer, of OfEntries that the address has in all, whatever
	// the protocol.
	Entries   int64 `json:"entries"`
	OfEntries int64 `json:"of_entries"`
}

// IdleEstablished is for how long TCP connections in ESTABLISHED have been idle:
// the timeout less what is left of it. Offloaded entries have timeouts of their own
// and are not in it.
type IdleEstablished struct {
	// TimeoutSeconds is nf_conntrack_tcp_timeout_established. Entries that had their
	// last packet while it was another one seem as much more or less idle.
	TimeoutSeconds int64 `json:"timeout_seconds"`
	Entries        int64 `json:"entries"`
	// Bands are in order of time, each up to the next one.
	Bands []IdleBand `json:"bands"`
	// Sources and Services of the entries that are idle for IdleLong or more.
	Sources  []Talker `json:"sources"`
	Services []Talker `json:"services"`
}

// IdleLong is how long, in seconds, a connection may be idle without that being
// strange: RFC 5382 (REQ-5) lets no NAT forget it sooner, as hosts send TCP
// keepalives every two hours.
const IdleLong = 7440

// IdleBand counts entries that are idle for FromSeconds or more.
type IdleBand struct {
	FromSeconds int64 `json:"from_seconds"`
	Entries     int64 `json:"entries"`
}

// IdleFrom counts the entries idle for so long or more; seconds should be the
// beginning of a band.
func (i *IdleEstablished) IdleFrom(seconds int64) int64 {
	n := int64(0)
	for _, b := range i.Bands {
		if b.FromSeconds >= seconds {
			n += b.Entries
		}
	}
	return n
}

// OneWay is UDP of one service, translated in one way, whose clients sent packets
// between two dumps and had no answer, as far as is known: each packet keeps the entry,
// and with it the translation, for another timeout.
type OneWay struct {
	// Service is the destination that clients name, Target the one that their packets
	// are sent to: the same where it is not translated.
	Service netip.AddrPort `json:"service"`
	Target  netip.AddrPort `json:"target"`
	// Given is what their source becomes; not valid where it is not translated, or in bundles of older natkit.
	Given   netip.Addr `json:"given,omitzero"`
	Zone    uint16     `json:"zone,omitempty"`
	Entries int64      `json:"entries"`
	// OldestSeconds is the age of the oldest one, at least.
	OldestSeconds float64 `json:"oldest_seconds"`
	// Source is one of the clients.
	Source netip.Addr `json:"source"`
	// HadAnswers: there were answers at some time. Whether any came between the dumps is
	// known only where the kernel counts (nf_conntrack_acct): then Silent, none did. Kept
	// of what is translated only.
	HadAnswers bool `json:"had_answers,omitempty"`
	Silent     bool `json:"silent,omitempty"`
	// Routes are those of the packets of Source; nil where they were not asked for.
	Routes *Routes `json:"routes,omitempty"`
}

// Unanswered reports whether it is known that no answer comes.
func (o *OneWay) Unanswered() bool { return !o.HadAnswers || o.Silent }

// Translated reports whether packets go elsewhere than the client named.
func (o *OneWay) Translated() bool { return o.Service != o.Target }

// Rate is how many entries of one source are new per second.
type Rate struct {
	Who       string  `json:"who"`
	PerSecond float64 `json:"per_second"`
}
