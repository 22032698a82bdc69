package table

import (
	"math"
	"net/netip"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/unix"
)

// EntryRows makes rows of entries of one table.
type EntryRows struct {
	// Head is that of all rows.
	Head
	// Idle returns for how many seconds an entry had no packet; false where that is not known. Nil: never known.
	Idle func(*conntrack.Entry) (int64, bool)

	addresses map[netip.Addr]string
	numbers   []int64
}

// Bounds of what rows have in common.
const (
	mostAddresses = 1 << 16
	numbersAtOnce = 1 << 12
)

// Row is that of an entry, and holds nothing of it.
func (r *EntryRows) Row(e *conntrack.Entry) Entry {
	row := Entry{Head: r.Head, Family: "ipv4", Protocol: nat.ProtocolName(e.Orig.Proto), State: e.StateName(), Zone: int32(e.Zone),
		Src: r.address(e.Orig.Src), Dst: r.address(e.Orig.Dst),
		SNAT: e.IsSNAT(), DNAT: e.IsDNAT(), Assured: e.Status.Has(conntrack.Assured), Replied: e.Status.Has(conntrack.SeenReply)}
	if e.Family == unix.AF_INET6 {
		row.Family = "ipv6"
	}
	row.ReplySrc, row.ReplyDst = row.Dst, row.Src
	if e.Reply.Src != e.Orig.Dst {
		row.ReplySrc = r.address(e.Reply.Src)
	}
	if e.Reply.Dst != e.Orig.Src {
		row.ReplyDst = r.address(e.Reply.Dst)
	}
	row.Sport, row.Dport = portsOf(&e.Orig)
	row.ReplySport, row.ReplyDport = portsOf(&e.Reply)
	row.Server, row.ServerPort = row.ReplySrc, row.ReplySport
	if nat.IsICMP(e.Orig.Proto) { // its identifier is the client's, whichever way
		row.Dport, row.ReplyDport = 0, row.ReplySport
		row.ReplySport, row.ServerPort = 0, 0
	}
	if row.SNAT {
		row.NATAddress, row.NATPort = row.ReplyDst, row.ReplyDport
	}
	r.count(e, &row)
	return row
}

// count fills in the numbers that may not be known.
func (r *EntryRows) count(e *conntrack.Entry, row *Entry) {
	if !e.Fields.Has(conntrack.NoMark) {
		row.Mark = r.number(int64(e.Mark))
	}
	if e.Fields.Has(conntrack.HasCounters) {
		row.OrigPackets, row.OrigBytes = r.number(signed(e.Sent.Packets)), r.number(signed(e.Sent.Bytes))
		row.ReplyPackets, row.ReplyBytes = r.number(signed(e.Received.Packets)), r.number(signed(e.Received.Bytes))
	}
	if !e.Fields.Has(conntrack.NoTimeout) {
		row.TimeoutS = r.number(int64(e.Timeout))
		if r.Idle != nil {
			if idle, known := r.Idle(e); known {
				row.IdleS = r.number(idle)
			}
		}
	}
	const microsecond = 1000
	switch {
	case e.Start != 0:
		row.Started = Time(e.Start / microsecond)
	case e.Fields.Has(conntrack.HasDeltaTime) && e.DeltaTime < math.MaxInt32: // a text has whole seconds of age
		row.Started = row.Time - Time(e.DeltaTime)*1e6
	}
}

// portsOf are the ports of a tuple, of ICMP its identifier as both.
func portsOf(t *conntrack.Tuple) (from, to int32) {
	if nat.IsICMP(t.Proto) {
		return int32(t.ICMPID), int32(t.ICMPID)
	}
	return int32(t.SrcPort), int32(t.DstPort)
}

// address is the text of an address, which is the same for rows with the same one.
func (r *EntryRows) address(a netip.Addr) string {
	if text, ok := r.addresses[a]; ok {
		return text
	}
	if len(r.addresses) >= mostAddresses || r.addresses == nil {
		r.addresses = make(map[netip.Addr]string, 1024)
	}
	text := addressOf(a)
	r.addresses[a] = text
	return text
}

// number is a number that a row points to. Many are allocated at once, and freed when no row has any of them.
func (r *EntryRows) number(n int64) *int64 {
	if len(r.numbers) == cap(r.numbers) {
		r.numbers = make([]int64, 0, numbersAtOnce)
	}
	r.numbers = append(r.numbers, n)
	return &r.numbers[len(r.numbers)-1]
}

// addressOf is the text of an address; empty, which is null, of none.
func addressOf(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// signed is a count of the kernel's, which could be larger than SQL's numbers.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
