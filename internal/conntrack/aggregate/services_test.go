package aggregate

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/natkit/natkit/internal/conntrack"
	"github.com/natkit/natkit/internal/snapshot"
	"github.com/natkit/natkit/internal/unix"
)

const both = conntrack.SeenReply | conntrack.Assured

// published is a connection to 203.0.113.1:80 that leads to 192.168.1.10:8080.
func published(port uint16, state conntrack.TCPState, left uint32, status conntrack.Status) conntrack.Entry {
	e := entry(unix.IPPROTO_TCP, "198.18.0.1:1024", "203.0.113.1:80")
	e.Orig.SrcPort, e.Reply.DstPort = port, port
	e.Reply.Src, e.Reply.SrcPort = netip.MustParseAddr("192.168.1.10"), 8080
	e.TCPState, e.Timeout, e.Status, e.ID = state, left, status|conntrack.Confirmed, uint32(port)
	return e
}

// outcomesOf dumps a table twice, 2 s apart; before are the entries of the first dump.
func outcomesOf(before, after []conntrack.Entry) []snapshot.Service {
	b := NewFlowEstimator(1)
	for i := range before {
		b.First(&before[i])
	}
	b.EndFirst(true)
	b.BeginSecond(Gap{Seconds: 2, Sysctls: timeouts("tcp_timeout_syn_sent", 120, "tcp_timeout_syn_recv", 60, "tcp_timeout_established", 432000,
		"tcp_timeout_time_wait", 120, "tcp_timeout_close", 10, "tcp_timeout_fin_wait", 120, "tcp_timeout_close_wait", 60, "gre_timeout", 30, "udp_timeout", 30, "udp_timeout_stream", 120, "icmp_timeout", 30)})
	for i := range after {
		b.Second(&after[i])
	}
	return b.Flows(2, int64(len(after)), true).Services.All
}

func TestServiceOutcomes(t *testing.T) {
	type counts struct{ Answered, Reset, Open, Unanswered, HalfOpen, Waiting, Failing, Silent int64 }
	sent := func(port uint16, ago uint32) conntrack.Entry {
		return published(port, conntrack.TCPSynSent, 120-ago, 0)
	}
	closed := func(port uint16, ago uint32) conntrack.Entry {
		return published(port, conntrack.TCPTimeWait, 120-ago, both)
	}
	for name, c := range map[string]struct {
		before, after []conntrack.Entry
		want          counts
	}{
		"nobody answers": {nil, []conntrack.Entry{sent(1, 3), sent(2, 10), sent(3, 30)}, counts{Unanswered: 3, Failing: 3, Silent: -1}},
		"long ago":       {nil, []conntrack.Entry{sent(1, 3), sent(2, 31), closed(3, 31)}, counts{Unanswered: 1, Failing: 1, Silent: -1}},
		"on its way":     {nil, []conntrack.Entry{sent(1, 0), sent(2, 1)}, counts{Waiting: 2, Silent: -1}},
		"all well":       {nil, []conntrack.Entry{closed(1, 1), closed(2, 20)}, counts{Answered: 2, Silent: 1}},
		"died 10 s ago":  {nil, []conntrack.Entry{closed(1, 10), closed(2, 11), sent(3, 9), sent(4, 5), sent(5, 12)}, counts{Answered: 2, Unanswered: 3, Failing: 2, Silent: 10}},
		"refuses in the middle": {nil, []conntrack.Entry{published(1, conntrack.TCPClose, 9, both)},
			counts{Answered: 1, Reset: 1, Silent: 1}},
		"answers do not arrive": {nil, []conntrack.Entry{published(1, conntrack.TCPSynRecv, 50, conntrack.SeenReply), published(2, conntrack.TCPSynRecv, 59, conntrack.SeenReply)},
			counts{HalfOpen: 1, Waiting: 1, Failing: 1, Silent: -1}},
		"old ones go on": {[]conntrack.Entry{published(1, conntrack.TCPEstablished, 431990, both)}, []conntrack.Entry{published(1, conntrack.TCPEstablished, 432000, both), sent(2, 4)},
			counts{Open: 1, Unanswered: 1, Failing: 1, Silent: -1}},
		"a new one is open":   {nil, []conntrack.Entry{published(1, conntrack.TCPEstablished, 432000, both), sent(2, 4)}, counts{Answered: 1, Unanswered: 1, Silent: 0}},
		"a client gave up":    {nil, []conntrack.Entry{published(1, conntrack.TCPClose, 5, 0)}, counts{Unanswered: 1, Failing: 1, Silent: -1}},
		"another timeout":     {nil, []conntrack.Entry{published(1, conntrack.TCPSynSent, 500, 0)}, counts{Waiting: 1, Silent: -1}},
		"offloaded":           {nil, []conntrack.Entry{published(1, conntrack.TCPEstablished, 86400, both|conntrack.Offload)}, counts{Answered: 1, Silent: 0}},
		"one of a helper":     {nil, []conntrack.Entry{sent(1, 5), published(2, conntrack.TCPSynSent, 100, conntrack.Expected)}, counts{Unanswered: 1, Failing: 1, Silent: -1}},
		"from the first dump": {[]conntrack.Entry{sent(1, 1)}, []conntrack.Entry{sent(1, 3)}, counts{Unanswered: 1, Failing: 1, Silent: -1}},
	} {
		all := outcomesOf(c.before, c.after)
		if len(all) != 1 || all[0].String() != "tcp 203.0.113.1:80 -> 192.168.1.10:8080" {
			t.Errorf("%s: %+v", name, all)
			continue
		}
		s := all[0]
		got := counts{s.Answered, s.Reset, s.Open, s.Unanswered, s.HalfOpen, s.Waiting, s.Failing, s.SilentSeconds}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestServiceKinds: what is translated in which way is told apart, and what is not is left out.
func TestServiceKinds(t *testing.T) {
	plain := entry(unix.IPPROTO_TCP, "198.18.0.1:1024", "203.0.113.1:443")
	plain.TCPState, plain.Timeout = conntrack.TCPSynSent, 100
	out := func(to string, port uint16) conntrack.Entry {
		e := entry(unix.IPPROTO_UDP, "192.168.1.2:53000", to)
		e.Orig.SrcPort, e.Reply.DstPort = port, port
		e.Reply.Dst, e.Timeout = netip.MustParseAddr("203.0.113.9"), 20
		return e
	}
	dead, other, syslog := out("198.51.100.1:53", 1), out("198.51.100.2:53", 2), out("198.51.100.3:514", 3)
	fine := out("198.51.100.4:53", 4)
	fine.Status = conntrack.SeenReply
	// What was answered before goes on, which need not be by an answer.
	goesOn := out("198.51.100.4:53", 5)
	goesOn.Status, goesOn.Timeout = conntrack.SeenReply|conntrack.Assured, 110
	after := goesOn
	after.Timeout = 119
	zoned := published(9, conntrack.TCPSynSent, 100, 0)
	zoned.Zone = 7
	// Syslog that is published on its own port, or leads to it, has no answer, and is not missed.
	report := published(10, 0, 20, 0)
	report.Orig.Proto, report.Reply.Proto, report.Orig.DstPort, report.Reply.SrcPort = unix.IPPROTO_UDP, unix.IPPROTO_UDP, 5140, 514
	type row struct {
		Name                       string
		Zone                       uint16
		Answered, Open, Unanswered int64
		Clients, Destinations      int
	}
	var got []row
	for _, s := range outcomesOf([]conntrack.Entry{goesOn}, []conntrack.Entry{plain, dead, other, syslog, fine, after, zoned, report}) {
		got = append(got, row{s.Kind + " " + s.String(), s.Zone, s.Answered, s.Open, s.Unanswered, len(s.Clients), len(s.Destinations)})
	}
	want := []row{
		{"snat udp from 203.0.113.9", 0, 1, 1, 2, 1, 2},
		{"destination udp 198.51.100.1:53 from 203.0.113.9", 0, 0, 0, 1, 1, 0},
		{"destination udp 198.51.100.2:53 from 203.0.113.9", 0, 0, 0, 1, 1, 0},
		{"dnat tcp 203.0.113.1:80 -> 192.168.1.10:8080", 7, 0, 0, 1, 1, 0},
		{"dnat udp 203.0.113.1:5140 -> 192.168.1.10:514", 0, 0, 0, 0, 0, 0},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestAnsweredByAnother: datagrams from another address to where the answers to a service would go.
func TestAnsweredByAnother(t *testing.T) {
	for name, c := range map[string]struct{ client, answer, want string }{
		"another address": {"198.51.100.10:40000", "198.51.100.10:40000", "192.168.1.10"},
		"another port":    {"198.51.100.10:40000", "198.51.100.10:40001", "invalid IP"},
		"peers":           {"198.51.100.10:1194", "198.51.100.10:1194", "invalid IP"},
	} {
		client, to := netip.MustParseAddrPort(c.client), netip.MustParseAddrPort(c.answer)
		server, public := netip.MustParseAddr("192.168.1.11"), netip.MustParseAddr("198.51.100.1")
		s := newServices()
		for _, e := range []conntrack.Entry{
			{Orig: conntrack.Tuple{Src: netip.MustParseAddr("192.168.1.10"), SrcPort: 1194, Dst: to.Addr(), DstPort: to.Port(), Proto: 17},
				Reply: conntrack.Tuple{Src: to.Addr(), SrcPort: to.Port(), Dst: public, DstPort: 1194, Proto: 17}, Status: conntrack.SrcNAT, Timeout: 25},
			{Orig: conntrack.Tuple{Src: client.Addr(), SrcPort: client.Port(), Dst: public, DstPort: 1194, Proto: 17},
				Reply: conntrack.Tuple{Src: server, SrcPort: 1194, Dst: client.Addr(), DstPort: client.Port(), Proto: 17}, Status: conntrack.DstNAT, Timeout: 25},
		} {
			s.add(&e, Gap{Sysctls: snapshot.Sysctls{"net.netfilter.nf_conntrack_udp_timeout": "30"}}.known(), past{isNew: true})
		}
		for _, got := range s.result(true).All {
			if got.Kind == snapshot.ServiceDNAT && got.AnsweredBy.String() != c.want {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if len(s.asked) == 0 && c.want != "invalid IP" {
			t.Errorf("%s: nothing asked", name)
		}
	}
}

// TestInsideAndOutside: of a published service it is known how many clients have private addresses.
func TestInsideAndOutside(t *testing.T) {
	inside := published(3, conntrack.TCPSynSent, 100, 0)
	inside.Orig.Src = netip.MustParseAddr("192.168.1.20")
	all := outcomesOf(nil, []conntrack.Entry{published(1, conntrack.TCPSynSent, 100, 0), published(2, conntrack.TCPSynSent, 100, 0), inside})
	if i := slices.IndexFunc(all, func(s snapshot.Service) bool { return s.Kind == snapshot.ServiceDNAT }); i < 0 || all[i].Inside != 1 || all[i].Outside != 2 {
		t.Errorf("%+v", all)
	}
}

// TestServicesAreBounded: a scan of translated addresses displaces no rule's own.
// TestPrivateToPrivate: what no rule translates is counted by both networks, and by one and the destination, and kept
// where all of it fails.
func TestPrivateToPrivate(t *testing.T) {
	sent := func(port uint16, to string, state conntrack.TCPState, left uint32, status conntrack.Status) conntrack.Entry {
		e := entry(unix.IPPROTO_TCP, "10.244.1.10:1024", to)
		e.Orig.SrcPort, e.Reply.DstPort, e.TCPState, e.Timeout, e.Status = port, port, state, left, status|conntrack.Confirmed
		return e
	}
	var entries []conntrack.Entry
	for port := range uint16(4) {
		entries = append(entries, sent(port+1, "10.50.0.10:5432", conntrack.TCPSynSent, 110, 0), sent(port+10, "10.60.0.10:80", conntrack.TCPSynSent, 110, 0))
	}
	entries = append(entries, sent(30, "10.60.0.11:80", conntrack.TCPTimeWait, 118, both))
	var got []string
	for _, s := range outcomesOf(nil, entries) {
		if got = append(got, s.String()); s.Unanswered != 4 {
			t.Errorf("%+v", s)
		}
	}
	want := []string{"tcp 10.50.0.10:5432 from 10.244.1.0/24, untranslated", "tcp 10.60.0.10:80 from 10.244.1.0/24, untranslated", "tcp from 10.244.1.0/24 to 10.50.0.0/24, untranslated"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestServicesAreBounded(t *testing.T) {
	var after []conntrack.Entry
	for i := range 3 * keptServices {
		e := entry(unix.IPPROTO_TCP, "192.168.1.2:1024", "198.51.100.1:80")
		e.Orig.Dst = netip.AddrFrom4([4]byte{198, 19, byte(i >> 8), byte(i)})
		e.Reply = e.Orig.Mirror()
		e.Reply.Dst, e.TCPState, e.Timeout = netip.MustParseAddr("203.0.113.9"), conntrack.TCPSynSent, 100
		after = append(after, e)
	}
	after = append(after, published(1, conntrack.TCPSynSent, 100, 0))
	all := outcomesOf(nil, after)
	kinds := map[string]int{}
	for _, s := range all {
		kinds[s.Kind]++
	}
	want := map[string]int{snapshot.ServiceDNAT: 1, snapshot.ServiceSNAT: 1, snapshot.ServiceDestination: shownServices}
	if d := cmp.Diff(want, kinds); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if snat := all[0]; snat.Unanswered != 3*keptServices || len(snat.Destinations) != namedClients {
		t.Errorf("%+v", snat)
	}
}

// TestStalled: what one side sent after the handshake is not acknowledged, and how what resembles that is
// told apart.
func TestStalled(t *testing.T) {
	type counts struct{ Answered, Busy, Open, Stalled int64 }
	open := func(left uint32) conntrack.Entry { return published(1, conntrack.TCPEstablished, left, both) }
	closing := func(state conntrack.TCPState, left uint32) conntrack.Entry { return published(1, state, left, both) }
	const finWait, closeWait = conntrack.TCPFinWait, conntrack.TCPCloseWait
	for name, c := range map[string]struct {
		before, after []conntrack.Entry
		want          counts
	}{
		"data waits for 5 s":              {nil, []conntrack.Entry{open(295)}, counts{Stalled: 1}},
		"so it did before":                {[]conntrack.Entry{open(299)}, []conntrack.Entry{open(297)}, counts{Stalled: 1}},
		"data was just sent":              {nil, []conntrack.Entry{open(299)}, counts{Answered: 1, Busy: 1}},
		"a transfer goes on":              {[]conntrack.Entry{open(300)}, []conntrack.Entry{open(300)}, counts{Open: 1}},
		"all is acknowledged":             {nil, []conntrack.Entry{open(431990)}, counts{Answered: 1}},
		"a policy has another timeout":    {[]conntrack.Entry{open(200)}, []conntrack.Entry{open(198)}, counts{Open: 1}},
		"a FIN waits":                     {nil, []conntrack.Entry{closing(finWait, 110)}, counts{Stalled: 1}},
		"a FIN is sent again":             {[]conntrack.Entry{closing(finWait, 119)}, []conntrack.Entry{closing(finWait, 120)}, counts{Stalled: 1}},
		"a FIN was just sent":             {nil, []conntrack.Entry{closing(finWait, 120)}, counts{Answered: 1, Busy: 1}},
		"the server repeats its answer":   {[]conntrack.Entry{closing(closeWait, 55)}, []conntrack.Entry{closing(closeWait, 57)}, counts{Stalled: 1}},
		"a server does not close":         {[]conntrack.Entry{closing(closeWait, 55)}, []conntrack.Entry{closing(closeWait, 53)}, counts{Answered: 1}},
		"a client closed its side before": {[]conntrack.Entry{closing(closeWait, 60)}, []conntrack.Entry{closing(closeWait, 60)}, counts{Answered: 1, Busy: 1}},
	} {
		s := outcomesOf(c.before, c.after)[0]
		if d := cmp.Diff(c.want, counts{s.Answered, s.Busy, s.Open, s.Stalled}); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestSendsAgain: where a server is known to repeat what it sent, others that send at the moment do so too.
func TestSendsAgain(t *testing.T) {
	closing := func(port uint16, left uint32) conntrack.Entry {
		return published(port, conntrack.TCPCloseWait, left, both)
	}
	before := []conntrack.Entry{closing(1, 55), closing(2, 55), closing(3, 55)}
	s := outcomesOf(before, []conntrack.Entry{closing(1, 57), closing(2, 60), closing(3, 53), closing(4, 60)})[0]
	if s.Stalled != 3 || s.Answered != 1 || s.Busy != 1 {
		t.Errorf("%+v", s)
	}
}

// TestGoesOnAsking: a client with one flow has one entry, whose time every question renews.
func TestGoesOnAsking(t *testing.T) {
	asks := func(proto uint8, left uint32) conntrack.Entry {
		e := published(443, 0, left, 0)
		e.Orig.Proto, e.Reply.Proto = proto, proto
		return e
	}
	for name, c := range map[string]struct {
		before, after     conntrack.Entry
		asking, waiting   int64
		unanswered, known bool
	}{
		"asks each second": {asks(unix.IPPROTO_UDP, 30), asks(unix.IPPROTO_UDP, 30), 1, 0, true, true},
		"asked once":       {asks(unix.IPPROTO_UDP, 30), asks(unix.IPPROTO_UDP, 27), 0, 0, true, true},
		"asks now":         {conntrack.Entry{}, asks(unix.IPPROTO_UDP, 30), 0, 1, false, false},
		"a tunnel":         {asks(unix.IPPROTO_GRE, 29), asks(unix.IPPROTO_GRE, 30), 1, 0, true, true},
		"SYN sent again":   {sentAgain(118), sentAgain(120), 0, 0, true, true},
	} {
		var before []conntrack.Entry
		if c.known {
			before = append(before, c.before)
		}
		s := outcomesOf(before, []conntrack.Entry{c.after})[0]
		if s.Asking != c.asking || s.Waiting != c.waiting || (s.Unanswered == 1) != c.unanswered {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func sentAgain(left uint32) conntrack.Entry { return published(1, conntrack.TCPSynSent, left, 0) }

// TestExpired: open connections that are gone in the second dump, and had no more time than lies between.
func TestExpired(t *testing.T) {
	open := func(port uint16, left uint32) conntrack.Entry {
		return published(port, conntrack.TCPEstablished, left, both)
	}
	s := outcomesOf([]conntrack.Entry{open(1, 1), open(2, 1), open(3, 5), open(4, 1)}, []conntrack.Entry{open(4, 2)})[0]
	if s.Expired != 2 {
		t.Errorf("%+v", s)
	}
}

// TestNetworks: one whose clients get no answer is listed where others do.
func TestNetworks(t *testing.T) {
	from := func(source string, port uint16, state conntrack.TCPState, given string) conntrack.Entry {
		e := published(port, state, 100, 0)
		e.Orig.Src, e.Reply.Dst = netip.MustParseAddr(source), netip.MustParseAddr(source)
		if given != "" {
			e.Orig.Dst, e.Orig.DstPort = e.Reply.Src, e.Reply.SrcPort
			e.Reply.Dst = netip.MustParseAddr(given)
		}
		if state == conntrack.TCPTimeWait {
			e.Status |= both
		}
		return e
	}
	const dead, fine = conntrack.TCPSynSent, conntrack.TCPTimeWait
	for name, c := range map[string]struct {
		after []conntrack.Entry
		want  []string
	}{
		"published":        {[]conntrack.Entry{from("198.18.0.1", 1, fine, ""), from("198.18.1.1", 2, dead, "")}, []string{"tcp 203.0.113.1:80 -> 192.168.1.10:8080 from 198.18.1.0/24"}},
		"leaving":          {[]conntrack.Entry{from("10.0.1.1", 1, fine, "203.0.113.9"), from("10.0.2.1", 2, dead, "203.0.113.9")}, []string{"tcp from 10.0.2.0/24"}},
		"all fail":         {[]conntrack.Entry{from("198.18.0.1", 1, dead, ""), from("198.18.1.1", 2, dead, "")}, nil},
		"a part of it":     {[]conntrack.Entry{from("198.18.0.1", 1, fine, ""), from("198.18.0.2", 2, dead, "")}, nil},
		"another protocol": {[]conntrack.Entry{from("10.0.1.1", 1, dead, "203.0.113.9")}, nil},
	} {
		var got []string
		for _, s := range outcomesOf(nil, c.after) {
			if s.Kind == snapshot.ServiceNetwork {
				got = append(got, s.String())
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
