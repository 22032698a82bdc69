package gateway

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/natkit/natkit/internal/conntrack"
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
	p := &Plan{Sources: []Source{
		{Rule: Ref{"nat", 2, "snat"}, From: []netip.Prefix{prefix("10.0.0.0/8")}, To: []Range{{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.9")}}},
		{Rule: Ref{"nat", 0, "masquerade"}, Masquerade: true, From: []netip.Prefix{prefix("192.168.0.0/24")}},
		{Rule: Ref{"nat", 0, "masquerade"}, Masquerade: true, From: []netip.Prefix{prefix("192.168.8.0/24")}},
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
	if got := usage[Ref{"nat", 2, "snat"}]; got != (Usage{Flows: 1, Packets: 10, Bytes: 1000}) {
		t.Errorf("snat %+v", got)
	}
	if got := usage[Ref{"nat", 0, "masquerade"}]; got != (Usage{Flows: 3, Packets: 6, Bytes: 600, Unanswered: 1}) {
		t.Errorf("masquerade %+v", got)
	}
	if n, at := tally.Stale(1); n != 1 || !slices.Equal(at, []netip.Addr{netip.MustParseAddr("203.0.113.250")}) {
		t.Errorf("stale %d, %v", n, at)
	}
	if tally.Seen() != 6 || tally.Strangers(1) != 1 || tally.Strangers(10) != 10 || tally.Usage(10)[Ref{"nat", 2, "snat"}].Packets != 100 {
		t.Errorf("seen %d, strangers %d", tally.Seen(), tally.Strangers(1))
	}
}

func TestRefsAreInTheFilesOrder(t *testing.T) {
	p := &Plan{
		Sources:      []Source{{Rule: Ref{"ipv6", 0, "masquerade"}}, {Rule: Ref{"nat", 1, "static"}}, {Rule: Ref{"nat", 1, "static"}}},
		Destinations: []Destination{{Rule: Ref{"nat", 10, "dnat"}}, {Rule: Ref{"nat", 1, "static"}}},
		Waiting:      []Waiting{{Rule: Ref{"nat", 3, "dnat"}, Interface: "ppp0"}},
	}
	var got []string
	for _, r := range p.Refs() {
		got = append(got, r.Rule.String())
	}
	if want := []string{"nat[1] static", "nat[3] dnat", "nat[10] dnat", "ipv6[0] masquerade"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	hairpin := Source{Rule: Ref{"nat", 0, "snat"}, Masquerade: true, Hairpin: HairpinOf{Prefix: netip.MustParsePrefix("0.0.0.0/0")}}
	plain := Source{Rule: Ref{"nat", 0, "snat"}, Masquerade: true}
	if r := (&Plan{Sources: []Source{hairpin, plain}}).Refs(); len(r) != 1 || r[0].Text != plain.String() || r[0].More != 1 {
		t.Errorf("a rule with an entry for what comes back: %+v", r)
	}
	if more := p.Refs()[0].More; more != 2 {
		t.Errorf("%d more entries", more)
	}
}

func TestParseRef(t *testing.T) {
	for _, r := range []Ref{{"nat", 0, "snat"}, {"ipv6", 123, "netmap"}} {
		if got, ok := ParseRef(r.String()); !ok || got != r {
			t.Errorf("%v: %v, %v", r, got, ok)
		}
	}
	for _, text := range []string{"", "nat", "nat[1]", "nat[x] snat", "nat[01] snat", "nat[-1 snat", "10 entries of @snat"} {
		if got, ok := ParseRef(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestBusiestHaveThoseThatLoseConnections(t *testing.T) {
	few, many := uint64(1), uint64(9)
	rules := []RuleStatus{
		{Rule: Ref{Index: 0}, Usage: Usage{Flows: 5}},
		{Rule: Ref{Index: 1}, New: &few},
		{Rule: Ref{Index: 2}, Usage: Usage{Flows: 7}},
		{Rule: Ref{Index: 3}, Dropped: &few},
		{Rule: Ref{Index: 4}, New: &many},
	}
	for n, want := range [][]int{{}, {3}, {2, 3}, {0, 2, 3}, {0, 2, 3, 4}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}} {
		var got []int
		for _, r := range Busiest(rules, n) {
			got = append(got, r.Rule.Index)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d: %v, want %v", n, got, want)
		}
	}
}
