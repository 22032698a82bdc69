package snapshot

// Drops is what the kernel dropped while natkit listened at skb:kfree_skb.
type Drops struct {
	Seconds float64 `json:"seconds"`
	// Source is the kind of program that counted: "tp_btf" or "raw_tracepoint".
	Source string `json:"source"`
	// Packets is the number of drops, those of Sites' rest included.
	Packets uint64 `json:"packets"`
	// Sites are sorted by their packets, most first.
	Sites []DropSite `json:"sites"`
	// Flows are those seen dropped, most first: one in FlowSample drops was looked
	// at (1: every one). They are not scaled.
	Flows      []DropFlow `json:"flows,omitempty"`
	FlowSample int        `json:"flow_sample,omitempty"`
	// Harmless counts the frees that are no drops; they are in nothing else.
	Harmless uint64 `json:"harmless"`
	// Lost counts what was dropped while natkit's own tables were full: it is in
	// Packets where that could be told, and in no site or flow.
	Lost uint64 `json:"lost"`
	// LostFlows are flows that made room for others, or found none.
	LostFlows uint64 `json:"lost_flows,omitempty"`
	// Stacks are the calls that led to a drop, most first: one in StackSample drops
	// was looked at. LostStacks found no room.
	Stacks      []DropStack `json:"stacks,omitempty"`
	StackSample int         `json:"stack_sample,omitempty"`
	LostStacks  uint64      `json:"lost_stacks,omitempty"`
	// LostEvents are drops that were counted but not shown one by one.
	LostEvents uint64 `json:"lost_events,omitempty"`
	// NAT says how drops in nf_hook_slow were told apart: "fexit" (the return
	// values of conntrack's and NAT's functions) or "counters" (what conntrack's
	// counters grew by over the same seconds); empty where neither could be had.
	NAT string `json:"nat_told_by,omitempty"`
	// Causes are the drops of conntrack and NAT by their cause.
	Causes []DropCause `json:"nat_causes,omitempty"`
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
	// Source is the function or the counter that told.
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
