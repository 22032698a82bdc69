package aggregate

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/natkit/natkit/internal/unix"

	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
)

var addresses = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})

// flowsOf compares two whole dumps that are 5 s apart.
func flowsOf(t *testing.T, before, after []conntrack.Entry) *snapshot.Flows {
	t.Helper()
	b := NewFlowEstimator(1)
	for i := range before {
		b.First(&before[i])
	}
	b.EndFirst(true)
	b.BeginSecond(Gap{Seconds: 5, Whole: 5.5, Sysctls: snapshot.Sysctls{
		"net.netfilter.nf_conntrack_tcp_timeout_established": "300", "net.netfilter.nf_conntrack_tcp_timeout_time_wait": "120",
	}})
	for i := range after {
		b.Second(&after[i])
	}
	return b.Flows(5, int64(len(after)), true)
}

// TestForgotten: an entry that was open, had no packet and is gone has expired; one that was closed, was used,
// or had more time left has not.
func TestForgotten(t *testing.T) {
	open := func(port uint16, left uint32) conntrack.Entry {
		return published(port, conntrack.TCPEstablished, left, both)
	}
	revived := open(4, 299)
	revived.ID = 77
	flows := flowsOf(t,
		[]conntrack.Entry{open(1, 2), open(2, 3), open(3, 1), open(4, 0), open(5, 40), published(6, conntrack.TCPTimeWait, 2, both)},
		[]conntrack.Entry{published(2, conntrack.TCPTimeWait, 119, both), open(3, 298), revived})
	want := []snapshot.Expired{{Class: "tcp/ESTABLISHED", Protocol: "tcp", Service: netip.MustParseAddrPort("203.0.113.1:80"), Entries: 1, Revived: 1, LongestLeft: 299}}
	if d := cmp.Diff(want, flows.Expired, addresses); d != "" {
		t.Error(d)
	}
}

// TestControls: translated control connections are counted, and those with a helper.
func TestControls(t *testing.T) {
	ftp := func(port uint16, helper string) conntrack.Entry {
		e := published(port, conntrack.TCPEstablished, 299, both)
		e.Orig.DstPort, e.Reply.SrcPort, e.Helper = 21, 2121, []byte(helper)
		return e
	}
	gre := conntrack.Entry{Orig: conntrack.Tuple{Src: netip.MustParseAddr("192.168.1.5"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: unix.IPPROTO_GRE}}
	gre.Reply = gre.Orig.Mirror()
	pptp := ftp(9, "")
	pptp.Orig.DstPort, pptp.Reply.SrcPort = 1723, 1723
	got := flowsOf(t, nil, []conntrack.Entry{ftp(1, ""), ftp(2, "ftp"), ftp(3, ""), pptp, gre, published(8, conntrack.TCPEstablished, 299, both)}).Controls
	want := []snapshot.Control{
		{Helper: "ftp", Protocol: "tcp", DNAT: true, Service: netip.MustParseAddrPort("203.0.113.1:21"), Target: netip.MustParseAddrPort("192.168.1.10:2121"), Connections: 3, Helped: 1, Answered: 3, GREUnanswered: true},
		{Helper: "pptp", Protocol: "tcp", DNAT: true, Service: netip.MustParseAddrPort("203.0.113.1:1723"), Target: netip.MustParseAddrPort("192.168.1.10:1723"), Connections: 1, Answered: 1, GREUnanswered: true},
	}
	want[0].GREUnanswered = true // to the same address
	if d := cmp.Diff(want, got, addresses); d != "" {
		t.Error(d)
	}
}

// TestManyTunnels: entries of GRE count for an end that was seen before there were too many.
func TestManyTunnels(t *testing.T) {
	c := newControls()
	gre := conntrack.Entry{Orig: conntrack.Tuple{Dst: netip.MustParseAddr("203.0.113.1"), Proto: unix.IPPROTO_GRE}}
	first := gre.Orig.Dst
	for range 2 * keptControls {
		c.add(&gre)
		gre.Orig.Dst = gre.Orig.Dst.Next()
	}
	gre.Orig.Dst, gre.Status = first, conntrack.SeenReply
	c.add(&gre)
	if len(c.gre) != keptControls || !c.gre[first] {
		t.Errorf("%d ends, the first one answered: %v", len(c.gre), c.gre[first])
	}
}

// TestLately: connections that began between the reading of the rules' counters and the first dump are in both
// dumps, and told from older ones by their last packet.
func TestLately(t *testing.T) {
	closed := func(port uint16, ago uint32) conntrack.Entry {
		return published(port, conntrack.TCPTimeWait, 120-ago, both)
	}
	services := flowsOf(t,
		[]conntrack.Entry{closed(1, 0), closed(2, 1), closed(3, 60)},
		[]conntrack.Entry{closed(1, 5), closed(2, 6), closed(3, 65), closed(4, 2)}).Services
	if len(services.All) != 1 || services.All[0].New != 1 || services.All[0].Lately != 2 {
		t.Errorf("%+v", services.All)
	}
}
