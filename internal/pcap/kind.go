package pcap

import (
	"fmt"
	"time"
)

// Kind is the kind of an incident. Its text is stable.
type Kind string

// The kinds, the most serious first.
const (
	// SYNRejectedPAWS is a SYN on a tuple whose former connection the server has in
	// TIME_WAIT, with a timestamp behind the former one's (RFC 7323, section 5).
	SYNRejectedPAWS Kind = "syn-rejected-paws"
	// SYNRejectedSeq is the same without timestamps, or with ones that are not behind
	// nor ahead: the initial sequence number is not after the former one's end.
	SYNRejectedSeq Kind = "syn-rejected-seq"
	// SYNOnOpen is a SYN that met a connection which is open at the server; it answered
	// with a challenge ACK (RFC 5961, section 4).
	SYNOnOpen Kind = "syn-on-open-connection"
	// SYNUnanswered is a SYN without any answer.
	SYNUnanswered Kind = "syn-unanswered"
	// RSTOutOfWindow is an RST that its receiver ignores.
	RSTOutOfWindow Kind = "rst-out-of-window"
	// RetransmissionBackoff is a segment that was sent three times or more.
	RetransmissionBackoff Kind = "retransmission-backoff"
	// ICMPErrorKind is an ICMP error message about a connection of the capture.
	ICMPErrorKind Kind = "icmp-error"
	// SYNRefused is a SYN answered by RST.
	SYNRefused Kind = "syn-refused"
	// TimestampBack is a tuple used again with a timestamp behind the former one's,
	// which was accepted.
	TimestampBack Kind = "timestamp-back-accepted"
)

// Kinds are all of them, the most serious first.
var Kinds = []Kind{SYNRejectedPAWS, SYNRejectedSeq, SYNOnOpen, SYNUnanswered, RSTOutOfWindow, RetransmissionBackoff, ICMPErrorKind, SYNRefused, TimestampBack}

// Verdict is what became of a SYN. Its text is stable.
type Verdict string

// The verdicts.
const (
	RejectedPAWS     Verdict = "rejected-paws"
	RejectedSequence Verdict = "rejected-seq"
	Challenged       Verdict = "challenged"
	Unanswered       Verdict = "unanswered"
	Accepted         Verdict = "accepted"
	Refused          Verdict = "refused"
)

// Outcome is how an attempt to connect ended. Its text is stable.
type Outcome string

// The outcomes.
const (
	Connected Outcome = "connected"
	Failed    Outcome = "failed"
	// Moved is an attempt whose SYN came again from another port; see Continued.
	Moved       Outcome = "moved"
	OutcomeOpen Outcome = "open-at-end" // the capture or the memory of it ended before
)

// Closed tells how far a connection was closed. Its text is stable.
type Closed string

// The ways.
const (
	ClosedByServer Closed = "server-first" // TIME_WAIT is the server's
	ClosedByClient Closed = "client-first"
	ClosedByReset  Closed = "reset"
	HalfClosed     Closed = "half-closed" // one FIN is in the capture
	NotClosed      Closed = "open"
)

// Role is what a packet of a ladder is to its incident. Its text is stable.
type Role string

// The roles.
const (
	RoleFormer     Role = "former"     // belongs to the connection before
	RoleSYN        Role = "syn"        // the new SYN
	RoleOldACK     Role = "old-ack"    // the former connection's ACK
	RoleReset      Role = "reset"      // the RST that follows, or is the incident
	RoleSYNACK     Role = "syn-ack"    // the new connection is accepted
	RoleRetransmit Role = "retransmit" // sent before
)

// Options of Read. The zero value means the usual ones.
type Options struct {
	// Memory bounds what is kept of connections and clocks, in bytes; 256 MiB.
	Memory int64
	// Incidents bounds how many are kept of each kind; all are counted; 10,000.
	Incidents int
	// TimeWait is how long a server that closed first remembers a connection; 60 s,
	// as Linux has it (TCP_TIMEWAIT_LEN). It is used only where a SYN has no answer.
	TimeWait time.Duration
	// Only chooses the packets whose connections are followed; nil is all. The
	// statistics of the file are of all packets.
	Only func(*Packet) bool
}

// Bounds of Options.
const (
	MinMemory        = 4 << 20
	DefaultMemory    = 256 << 20
	defaultIncidents = 10_000
	defaultTimeWait  = 60 * time.Second
)

func (o Options) withDefaults() (Options, error) {
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	if o.Incidents == 0 {
		o.Incidents = defaultIncidents
	}
	if o.TimeWait == 0 {
		o.TimeWait = defaultTimeWait
	}
	if o.Memory < MinMemory {
		return o, fmt.Errorf("read capture: memory of %d bytes: %d are the least", o.Memory, MinMemory)
	}
	if o.Incidents < 0 || o.TimeWait < 0 {
		return o, fmt.Errorf("read capture: bounds must not be negative: %d incidents, TIME_WAIT of %v", o.Incidents, o.TimeWait)
	}
	return o, nil
}
