package attribute

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/status"
)

// outbound is a connection from inside, translated to an address and answered.
func outbound(from, to, remote string, packets uint64) *conntrack.Entry {
	addr := netip.MustParseAddr
	return &conntrack.Entry{
		Orig:   conntrack.Tuple{Src: addr(from), Dst: addr(remote), Proto: 6, SrcPort: 4000, DstPort: 443},
		Reply:  conntrack.Tuple{Src: addr(remote), Dst: addr(to), Proto: 6, SrcPort: 443, DstPort: 4000},
		Status: conntrack.SeenReply | conntrack.SrcNAT, Sent: conntrack.Counters{Packets: packets, Bytes: 100 * packets},
	}
}

func TestTally(t *testing.T) {
	prefix := netip.MustParsePrefix
	snat, masquerade := gateway.Ref{List: "nat", Index: 2, Kind: "snat"}, gateway.Ref{List: "nat", Kind: "masquerade"}
	p := &gateway.Plan{Sources: []gateway.Source{
		{Rule: snat, From: []netip.Prefix{prefix("10.0.0.0/8")}, To: []gateway.Range{{First: netip.MustParseAddr("203.0.113.7"), Last: netip.MustParseAddr("203.0.113.9")}}},
		{Rule: masquerade, Masquerade: true, From: []netip.Prefix{prefix("192.168.0.0/24")}},
		{Rule: masquerade, Masquerade: true, From: []netip.Prefix{prefix("192.168.8.0/24")}},
	}}
	tally := NewTally(p, []netip.Addr{netip.MustParseAddr("203.0.113.1")})
	unanswered := outbound("192.168.8.2", "203.0.113.1", "198.51.100.9", 1)
	unanswered.Status = conntrack.SrcNAT
	plain := outbound("10.0.0.5", "10.0.0.5", "198.51.100.9", 5)
	plain.Status = conntrack.SeenReply
	for _, e := range []*conntrack.Entry{
		outbound("10.0.0.5", "203.0.113.8", "198.51.100.9", 10),
		outbound("192.168.0.2", "203.0.113.1", "198.51.100.9", 2),
		outbound("192.168.0.2", "203.0.113.250", "198.51.100.9", 3), // an address that went
		unanswered, plain,
		outbound("172.16.0.2", "203.0.113.1", "198.51.100.9", 4), // Docker's
	} {
		tally.Add(e)
	}
	usage := tally.Usage(1)
	if got := usage[snat]; got != (status.Usage{Flows: 1, Packets: 10, Bytes: 1000}) {
		t.Errorf("snat %+v", got)
	}
	if got := usage[masquerade]; got != (status.Usage{Flows: 3, Packets: 6, Bytes: 600, Unanswered: 1}) {
		t.Errorf("masquerade %+v", got)
	}
	if n, at := tally.Stale(1); n != 1 || !slices.Equal(at, []netip.Addr{netip.MustParseAddr("203.0.113.250")}) {
		t.Errorf("stale %d, %v", n, at)
	}
	if tally.Seen() != 6 || tally.Strangers(1) != 1 || tally.Strangers(10) != 10 || tally.Usage(10)[snat].Packets != 100 {
		t.Errorf("seen %d, strangers %d", tally.Seen(), tally.Strangers(1))
	}
}
