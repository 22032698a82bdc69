// Package conntrack holds what the kernel's connection tracker knows of a
// connection: the entry, its form on the ctnetlink wire (decoded and encoded
// here without a socket), and summaries over many entries. The sockets are in
// the dump package.
package conntrack

import "net/netip"

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
	// TCPState is TCPNone where the entry is not TCP's.
	TCPState TCPState
	// Timeout is the number of seconds until the entry expires if no packet comes.
	Timeout uint32
	// Zone is the conntrack zone of both directions, or of the original one where
	// only that has one; 0 is the default zone.
	Zone uint16
	Mark uint32
	// ID tells entries apart that have the same tuples one after the other. Since
	// Linux 5.3 it is a keyed hash of the entry's address and tuples, before that
	// the address (nf_ct_get_id, net/netfilter/nf_conntrack_core.c).
	ID uint32
	// Start is when the entry was made, in nanoseconds since 1970; 0 unless
	// net.netfilter.nf_conntrack_timestamp was on then.
	Start uint64
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

// Has tells whether all of bits are set.
func (s Status) Has(bits Status) bool { return s&bits == bits }

// IsSNAT tells whether the source that the other side sees is not the one that
// sent: an answer goes to another address or port than Orig's source.
func (e *Entry) IsSNAT() bool {
	return e.Reply.Dst != e.Orig.Src || e.Reply.DstPort != e.Orig.SrcPort
}

// IsDNAT tells whether an answer comes from another address or port than the
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
