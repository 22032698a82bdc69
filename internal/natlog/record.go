// Package natlog is about logs of translations: what a record is, its forms as a JSON line, in syslog (RFC 5424) and in
// IPFIX (RFC 7011, RFC 8158), and who had an address and a port by such a log, by a gateway's rules or by the kernel's
// table.
package natlog

import (
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
)

// Schema names the form of a JSON line.
const Schema = "natkit.nat-log/1"

// Kind is what a record is about.
type Kind string

// The kinds. Begin and Stop are the first and the last record of a run.
const (
	Start Kind = "start"
	End   Kind = "end"
	// Lost are records that could not be kept: Count of them, for Reason.
	Lost  Kind = "lost"
	Begin Kind = "begin"
	Stop  Kind = "stop"
	// Alive says that the log is written, and complete, until its time, where nothing else was to be written for a while.
	Alive Kind = "alive"
	// Listed says that all connections that were there when the run, or its file, began have a start in it: until then, and
	// without it, some may be missing.
	Listed Kind = "listed"
	// Continue is the first record of each file of a run but the first one. It repeats what Begin says of the run.
	Continue Kind = "continue"
)

// Record is one line of a log.
type Record struct {
	Kind Kind
	// Time is when it happened; of differences of two readings the time of the second.
	Time time.Time
	// Node and Netns are where: the host and its network namespace.
	Node, Netns string
	// Protocol is IP's number. Of ICMP the ports are identifiers.
	Protocol uint8
	// Src is who sent the first packet, Dst whom it was for.
	Src, Dst netip.AddrPort
	// NAT is the source as the other side sees it; the zero value where that was not translated.
	NAT netip.AddrPort
	// Server is who answers, where the destination was translated.
	Server netip.AddrPort
	// Zone and ReplyZone are the conntrack zones of the two directions, 0 for the default one. NAT is the source in the second.
	Zone, ReplyZone uint16
	// Before, of Start: the connection was there when the log began. Time is then when it is known to have been there, Started
	// when it began, where the kernel says it.
	Before bool
	// Started and Ended are zero where they are not known, or not yet. Started of Continue is when the run began.
	Started, Ended time.Time
	// Within is how much earlier Time may have been: the time between two readings of the table; 0 where it is exact. Begin and
	// Continue have the least time between two, Alive the one before it. StartedWithin is how much earlier Started may have been.
	Within, StartedWithin time.Duration
	// Count and Reason are of Lost; Reason of Begin as well: what the log is made from, and what that misses.
	Count  uint64
	Reason string
	// Without, of Begin, is what the run has no records of, so that its connections are not found while they last.
	Without Without
	// Part, of Continue, is the number of the file in the run; Begin is in the first.
	Part int
}

// Without is what is left out of a run.
type Without string

// What may be left out: the starts of connections that were there when it began, or all starts.
const (
	WithoutPresent Without = "present"
	WithoutStarts  Without = "starts"
)

// Of is the record of an entry of the connection table, without its times.
func Of(kind Kind, e *conntrack.Entry) Record {
	r := Record{Kind: kind, Protocol: e.Orig.Proto, Zone: e.Zone, ReplyZone: e.ReplyZone, Src: netip.AddrPortFrom(e.Orig.Src, e.Orig.SrcPort), Dst: netip.AddrPortFrom(e.Orig.Dst, e.Orig.DstPort)}
	given := netip.AddrPortFrom(e.Reply.Dst, e.Reply.DstPort)
	server := netip.AddrPortFrom(e.Reply.Src, e.Reply.SrcPort)
	if nat.IsICMP(r.Protocol) {
		r.Src = netip.AddrPortFrom(e.Orig.Src, e.Orig.ICMPID)
		given = netip.AddrPortFrom(e.Reply.Dst, e.Reply.ICMPID)
		server = netip.AddrPortFrom(e.Reply.Src, 0)
	}
	if given != r.Src {
		r.NAT = given
	}
	if server != r.Dst {
		r.Server = server
	}
	return r
}

// IsTranslated reports whether there is something to log.
func (r *Record) IsTranslated() bool { return r.NAT.IsValid() || r.Server.IsValid() }

// IsSession reports whether it is the start or the end of a connection.
func (r *Record) IsSession() bool { return r.Kind == Start || r.Kind == End }

// session is what the start and the end of one connection share.
type session struct {
	protocol              uint8
	src, dst, nat, server netip.AddrPort
	node, netns           string
	zone, replyZone       uint16
}

func (r *Record) session() session {
	return session{r.Protocol, r.Src, r.Dst, r.NAT, r.Server, r.Node, r.Netns, r.Zone, r.ReplyZone}
}

// Connection is what tells a connection from others in one network namespace at one time; it is comparable.
type Connection struct{ session }

// Connection returns that of a record.
func (r *Record) Connection() Connection {
	return Connection{session{protocol: r.Protocol, src: r.Src, dst: r.Dst, nat: r.NAT, server: r.Server, zone: r.Zone, replyZone: r.ReplyZone}}
}
