package snapshot

import "time"

// PacketPath is the way of one packet through the kernel.
type PacketPath struct {
	// Number counts the packets of a run, from 1.
	Number int       `json:"packet"`
	Time   time.Time `json:"time"` // of the first step
	// Steps are in the order of time; those of the packet's clones are among them.
	Steps   []PathStep  `json:"steps"`
	Verdict PathVerdict `json:"verdict"`
	// Incomplete says that events were lost while this packet was followed.
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
	StepFreed    = "freed"    // Buffer was freed, the kernel did not say why
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
