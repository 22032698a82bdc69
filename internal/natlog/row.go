package natlog

import (
	"net/netip"
	"time"

	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/table"
)

// Row returns the row of the table nat_log for the start or the end of a connection. head has the host and its kernel.
func (r *Record) Row(head table.Head) table.NATLog {
	given := r.NAT
	if !given.IsValid() { // others see the client's own
		given = r.Src
	}
	head.Netns, head.Time = r.Netns, table.TimeOf(r.Time)
	row := table.NATLog{Head: head,
		Event: string(r.Kind), Protocol: nat.ProtocolName(r.Protocol), Src: r.Src.Addr().String(), Sport: int32(r.Src.Port()),
		NATAddress: given.Addr().String(), NATPort: int32(given.Port()), NATPortLast: int32(given.Port()), Zone: int32(r.Zone), ReplyZone: int32(r.ReplyZone),
		Dst: r.Dst.Addr().String(), Dport: int32(r.Dst.Port()), Started: table.TimeOf(r.Started), Ended: table.TimeOf(r.Ended)}
	if r.Server.IsValid() {
		row.Server, row.ServerPort = r.Server.Addr().String(), int32(r.Server.Port())
	}
	return row
}

// OfRow is the inverse of Row, but for Within, which a row does not have. It reports whether the row is of a connection. A start that
// was there before has no column of its own: any other one has as Started its Time.
func OfRow(row *table.NATLog) (r Record, ok bool) {
	protocol, err := nat.ParseProtocol(row.Protocol)
	r = Record{Kind: Kind(row.Event), Time: timeOf(row.Time), Node: row.Node, Netns: row.Netns, Protocol: protocol,
		Src: endOf(row.Src, row.Sport), NAT: endOf(row.NATAddress, row.NATPort), Dst: endOf(row.Dst, row.Dport), Server: endOf(row.Server, row.ServerPort),
		Zone: uint16(row.Zone), ReplyZone: uint16(row.ReplyZone), Started: timeOf(row.Started), Ended: timeOf(row.Ended)}
	r.Before = r.Kind == Start && !r.Started.Equal(r.Time) // also where it began before
	if r.NAT == r.Src {                                    // the destination alone is translated
		r.NAT = netip.AddrPort{}
	}
	return r, err == nil && r.IsSession() && r.Src.IsValid()
}

// timeOf is zero for none.
func timeOf(t table.Time) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return t.Time()
}

func endOf(text string, port int32) netip.AddrPort {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, uint16(port))
}
