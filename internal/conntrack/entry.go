// Package conntrack holds what the kernel's connection tracker knows of a
// connection: the entry, its form on the ctnetlink wire (decoded and encoded
// here without a socket), and summaries over many entries. The sockets are in
// the dump package.
package conntrack

import (
	"bytes"
	"net/netip"

	"github.com/natkit/natkit/internal/unix"
)

// Tuple is one direction of a connection, as the tracker keys it
// (include/net/netfilter/nf_conntrack_tuple.h).
type Tuple struct {
	Src, Dst netip.Addr
	// Proto is the IP protocol number.
	Proto uint8
	// SrcPort and DstPort are the ports of TCP, UDP, UDP-Lite, SCTP and DCCP and
	// the two keys of GRE; 0 for other protocols.
	SrcPort, DstPort uint16
	// ICMPID, ICMPType and ICMPCode are those of ICMP and ICMPv6.
	ICMPID             uint16
	ICMPType, ICMPCode uint8
}

// Entry is one tracked connection.
type Entry struct {
	// Family is unix.AF_INET or unix.AF_INET6.
	Family uint8
	// Orig is the direction of the first packet, Reply what an answer looks like
	// where it enters the machine: the mirror of Orig unless NAT changed it.
	Orig, Reply Tuple
	Status      Status
	// TCPState, SCTPState and DCCPState are zero where the entry is not that
	// protocol's.
	TCPState  TCPState
	SCTPState uint8
	DCCPState uint8
	// ClientClosed: the first FIN of the TCP connection was the client's. Texts do not
	// say it, and Equal does not look at it.
	ClientClosed bool
	// Fields distinguishes a zero value from a missing one.
	Fields Fields
	// Zone and ReplyZone are the conntrack zones of the two directions; 0 is the
	// default zone. Where the kernel has one for both, both have it.
	Zone, ReplyZone uint16
	// Timeout is the number of seconds until the entry expires if no packet comes.
	Timeout uint32
	Mark    uint32
	// Use is the kernel's count of references to the entry, 0 where not known.
	Use uint32
	// ID distinguishes successive entries with the same tuples. Since
	// Linux 5.3 it is a keyed hash of the entry's address and tuples, before that
	// the address (nf_ct_get_id, net/netfilter/nf_conntrack_core.c).
	ID uint32
	// Start is when the entry was made, in nanoseconds since 1970; 0 unless
	// net.netfilter.nf_conntrack_timestamp was on then.
	Start uint64
	// Stop is when the entry ended, likewise; only an event of its end has it.
	Stop uint64
	// DeltaTime is how many seconds the entry had lived when it was printed; of
	// texts, which have it without Start.
	DeltaTime uint64
	// What passed in each direction; where Fields has Counters.
	Sent, Received Counters
	// Helper is the name of the helper, SecCtx the security context, Labels a bit
	// set in the kernel's byte order (struct nf_conn_labels). All three point into
	// what was decoded and hold until that memory is used again: for longer, copy
	// them (Clone).
	Helper, SecCtx, Labels []byte
}

// Counters are what passed in one direction since the entry was made or its
// counters were reset.
type Counters struct{ Packets, Bytes uint64 }

// Fields is a set of remarks on fields of an entry whose zero has a meaning.
type Fields uint8

// The remarks. A zero set is right for an entry as the kernel lists it, with
// net.netfilter.nf_conntrack_acct off.
const (
	// NoTimeout: there was none, as with offloaded entries, which do not expire.
	NoTimeout Fields = 1 << iota
	// NoState: the protocol has states, and there was none.
	NoState
	// NoMark: there was no mark; the kernel may be built without.
	NoMark
	// HasCounters: Sent and Received were there.
	HasCounters
	// HasDeltaTime: DeltaTime was there.
	HasDeltaTime
)

// Has reports whether all of bits are set.
func (f Fields) Has(bits Fields) bool { return f&bits == bits }

// Clone copies e with what it points to.
func (e *Entry) Clone() Entry {
	c := *e
	c.Helper, c.SecCtx, c.Labels = bytes.Clone(e.Helper), bytes.Clone(e.SecCtx), bytes.Clone(e.Labels)
	return c
}

// Equal reports whether both have the same content.
func (e *Entry) Equal(o *Entry) bool {
	return e.Orig == o.Orig && e.Reply == o.Reply && e.Family == o.Family &&
		e.Status == o.Status && e.Fields == o.Fields && e.Timeout == o.Timeout &&
		e.TCPState == o.TCPState && e.SCTPState == o.SCTPState && e.DCCPState == o.DCCPState &&
		e.Zone == o.Zone && e.ReplyZone == o.ReplyZone &&
		e.Mark == o.Mark && e.Use == o.Use && e.ID == o.ID &&
		e.Start == o.Start && e.Stop == o.Stop && e.DeltaTime == o.DeltaTime &&
		e.Sent == o.Sent && e.Received == o.Received &&
		bytes.Equal(e.Helper, o.Helper) && bytes.Equal(e.SecCtx, o.SecCtx) && bytes.Equal(e.Labels, o.Labels)
}

// Status is the set of IPS_ bits of an entry
// (include/uapi/linux/netfilter/nf_conntrack_common.h).
type Status uint32

// The bits of Status.
const (
	Expected     Status = 1 << 0
	SeenReply    Status = 1 << 1
	Assured      Status = 1 << 2
	Confirmed    Status = 1 << 3
	SrcNAT       Status = 1 << 4
	DstNAT       Status = 1 << 5
	SeqAdjust    Status = 1 << 6
	SrcNATDone   Status = 1 << 7
	DstNATDone   Status = 1 << 8
	Dying        Status = 1 << 9
	FixedTimeout Status = 1 << 10
	Template     Status = 1 << 11
	Untracked    Status = 1 << 12
	Helper       Status = 1 << 13
	Offload      Status = 1 << 14
	HWOffload    Status = 1 << 15
)

// Has reports whether all of bits are set.
func (s Status) Has(bits Status) bool { return s&bits == bits }

// IsSNAT reports whether the source that the other side sees is not the one that
// sent: an answer goes to another address or port than Orig's source.
func (e *Entry) IsSNAT() bool {
	return e.Reply.Dst != e.Orig.Src || e.Reply.DstPort != e.Orig.SrcPort
}

// IsDNAT reports whether an answer comes from another address or port than the
// one that was asked.
func (e *Entry) IsDNAT() bool {
	return e.Reply.Src != e.Orig.Dst || e.Reply.SrcPort != e.Orig.DstPort
}

// Check is nil where both tuples have addresses of one family, without which an
// entry has no form on the wire.
func (e *Entry) Check() error {
	if !e.Orig.complete() || !e.Reply.complete() {
		return errNoTuple
	}
	return nil
}

// Mirror is the tuple of answers where no NAT changes them.
func (t Tuple) Mirror() Tuple {
	t.Src, t.Dst = t.Dst, t.Src
	t.SrcPort, t.DstPort = t.DstPort, t.SrcPort
	if reply, ok := icmpReply(t.Proto, t.ICMPType); ok {
		t.ICMPType = reply
	}
	return t
}

// TCPState is the tracker's idea of a TCP connection's state, enum tcp_conntrack
// (include/uapi/linux/netfilter/nf_conntrack_tcp.h).
type TCPState uint8

// The states that an entry can be in.
const (
	TCPNone TCPState = iota
	TCPSynSent
	TCPSynRecv
	TCPEstablished
	TCPFinWait
	TCPCloseWait
	TCPLastAck
	TCPTimeWait
	TCPClose
	// TCPSynSent2 is a simultaneous open; the number was once LISTEN's.
	TCPSynSent2
	// TCPStates is their number.
	TCPStates
)

var tcpStateNames = [TCPStates]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT",
	"CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// String is the name that conntrack(8) prints.
func (s TCPState) String() string { return StateName(unix.IPPROTO_TCP, uint8(s)) }

// The kernel's names of states: enum sctp_conntrack (include/uapi/linux/netfilter/nf_conntrack_sctp.h),
// enum ct_dccp_states (nf_conntrack_dccp.h); Linux 6.16 and later do not track DCCP.
var (
	sctpStateNames = [...]string{
		"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED",
		"SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED",
	}
	dccpStateNames = [...]string{
		"NONE", "REQUEST", "RESPOND", "PARTOPEN", "OPEN", "CLOSEREQ", "CLOSING", "TIMEWAIT", "IGNORE", "INVALID",
	}
)

func stateNames(proto uint8) []string {
	switch proto {
	case unix.IPPROTO_TCP:
		return tcpStateNames[:]
	case unix.IPPROTO_SCTP:
		return sctpStateNames[:]
	case unix.IPPROTO_DCCP:
		return dccpStateNames[:]
	}
	return nil
}

// unknownState is the name of a number that is no state.
const unknownState = "UNKNOWN"

// StateName is the name of a protocol's state.
func StateName(proto, state uint8) string {
	if names := stateNames(proto); int(state) < len(names) {
		return names[state]
	}
	return unknownState
}

// ParseState returns the number of a protocol's state, 255 where it has none of this name.
func ParseState(proto uint8, name []byte) (state uint8, known bool) {
	for n, known := range stateNames(proto) {
		if known == string(name) {
			return uint8(n), true
		}
	}
	if proto == unix.IPPROTO_TCP && string(name) == "LISTEN" { // until 2009 the number's name, and still conntrack(8)'s
		return uint8(TCPSynSent2), true
	}
	return 255, false
}

// State points to the state of the entry's protocol; it is nil for one without states.
func (e *Entry) State() *uint8 {
	switch e.Orig.Proto {
	case unix.IPPROTO_TCP:
		return (*uint8)(&e.TCPState)
	case unix.IPPROTO_SCTP:
		return &e.SCTPState
	case unix.IPPROTO_DCCP:
		return &e.DCCPState
	}
	return nil
}

// StateName is empty where the protocol has no states or none is known.
func (e *Entry) StateName() string {
	if s := e.State(); s != nil && !e.Fields.Has(NoState) {
		return StateName(e.Orig.Proto, *s)
	}
	return ""
}

// icmpReply is the type of the answer to an ICMP query of the tracked kinds
// (invmap in net/netfilter/nf_conntrack_proto_icmp.c and _icmpv6.c).
func icmpReply(proto, typ uint8) (uint8, bool) {
	switch proto {
	case unix.IPPROTO_ICMP:
		switch typ {
		case 8, 13, 15, 17: // echo, timestamp, information, address mask
			if typ == 8 {
				return 0, true
			}
			return typ + 1, true
		case 0:
			return 8, true
		case 14, 16, 18:
			return typ - 1, true
		}
	case unix.IPPROTO_ICMPV6:
		switch typ {
		case 128, 139: // echo, node information
			return typ + 1, true
		case 129, 140:
			return typ - 1, true
		}
	}
	return 0, false
}
