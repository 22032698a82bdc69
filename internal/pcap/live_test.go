//go:build linux

package pcap_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/testutil"
)

func need(t *testing.T) {
	t.Helper()
	t.Parallel() // they wait most of the time
	testutil.NeedRoot(t)
	for _, program := range []string{"nft", "conntrack", "tcpdump"} {
		testutil.NeedProgram(t, program)
	}
}

// play lets the clients take turns; the second or the third batch meets timestamps
// that are ahead of its own.
func (g *gateway) play(t *testing.T) *pcap.Report {
	t.Helper()
	done := g.capture(t)
	for i, client := range []int{0, 1, 0} {
		if i > 0 {
			g.forget(t)
		}
		if failed := g.batch(client); failed > 0 {
			t.Logf("batch %d: %d connections failed", i, failed)
		}
	}
	file := done()
	report, err := pcap.Read(bytes.NewReader(file), pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestRejectedSYNsAsCounted compares with the server's own count.
func TestRejectedSYNsAsCounted(t *testing.T) {
	need(t)
	g := newGateway(t)
	before := g.paws(t)
	report := g.play(t)
	counted := g.paws(t) - before
	if counted == 0 {
		t.Fatal("the server rejected nothing: no fault to be found")
	}
	named := 0
	for _, i := range report.Incidents {
		for _, syn := range i.SYNs {
			if syn.Verdict == pcap.RejectedPAWS {
				named++
			}
		}
	}
	t.Logf("counted %d, reported %d, named %d; kinds %+v; reuse %+v", counted, report.RejectedByPAWS, named, report.Kinds, report.Reuse)
	if report.RejectedByPAWS != counted || int64(named) != counted {
		t.Errorf("the server counted %d, the report has %d and names %d", counted, report.RejectedByPAWS, named)
	}
	for _, pair := range report.Clocks {
		t.Logf("clocks %+v", pair)
		if pair.Source.String() == "198.19.0.1" && pair.Count != 2 && !pair.PerConnection {
			t.Errorf("%d clocks behind the NAT, want those of 2 clients, or one of each tuple", pair.Count)
		}
	}
}

// TestCaptureBegunLater begins a capture for each batch: the connections of the batch before are in
// TIME_WAIT, and not in the capture. SYNs that a slow machine reads within 0.5 s get one answer,
// and of the others it is not known what rejected them.
func TestCaptureBegunLater(t *testing.T) {
	need(t)
	g := newGateway(t)
	before, reported, unanswered := g.paws(t), int64(0), int64(0)
	for i, client := range []int{0, 1, 0} {
		if i > 0 {
			g.forget(t)
		}
		done := g.capture(t)
		g.batch(client)
		report, err := pcap.Read(bytes.NewReader(done()), pcap.Options{})
		if err != nil {
			t.Fatal(err)
		}
		reported += report.RejectedByPAWS
		unanswered += report.Connections.Pending
		for _, incident := range report.Incidents {
			for _, syn := range incident.SYNs {
				if syn.Verdict == pcap.Unanswered {
					unanswered++
				}
			}
		}
		for _, k := range report.Kinds {
			if k.Count > 0 && (k.Kind == pcap.SYNOnOpen || k.Kind == pcap.SYNOnFormer) {
				t.Errorf("batch %d: %d of %s: all connections were closed", i, k.Count, k.Kind)
			}
		}
	}
	if counted := g.paws(t) - before; reported == 0 || reported > counted || reported+unanswered < counted {
		t.Errorf("the server counted %d, the reports have %d and %d without an answer", counted, reported, unanswered)
	}
}

// TestOpenBeforeTheCapture: the client and the NAT forget connections that the server still has
// open, the capture begins, and other connections reuse their ports.
func TestOpenBeforeTheCapture(t *testing.T) {
	need(t)
	g := newGateway(t)
	g.hold(t)
	for range ports {
		if err := g.clients[0].Do(func() error { return dialAndForget(time.Minute) }); err != nil {
			t.Fatal(err)
		}
	}
	testutil.Run(t, g.nat, "", "conntrack", "-F")
	done := g.capture(t)
	for range ports / 4 { // those that meet an open connection may fail
		_ = g.clients[1].Do(func() error { return dialAndForget(5 * time.Second) })
	}
	report, err := pcap.Read(bytes.NewReader(done()), pcap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	open := int64(0)
	for _, k := range report.Kinds {
		switch k.Kind {
		case pcap.SYNOnOpen:
			open = k.Count
		case pcap.SYNRejectedPAWS, pcap.SYNRejectedSeq, pcap.SYNOnFormer:
			if k.Count > 0 {
				t.Errorf("%d of %s: no connection was closed", k.Count, k.Kind)
			}
		}
	}
	if open == 0 {
		t.Errorf("no SYN met an open connection: %+v", report.Kinds)
	}
}

// TestOneClock lets both clients have timestamps without an offset: they are of one
// machine.
func TestOneClock(t *testing.T) {
	need(t)
	g := newGateway(t)
	for _, ns := range []*netns.Handle{g.clients[0], g.clients[1], g.server} {
		testutil.Run(t, ns, "", "sh", "-c", "echo 2 >/proc/sys/net/ipv4/tcp_timestamps")
	}
	report := g.play(t)
	for _, pair := range report.Clocks {
		t.Logf("clocks %+v", pair)
		if pair.Count != 1 || pair.PerConnection || len(pair.Clocks) != 1 {
			t.Errorf("%d clocks, want the one of the machine", pair.Count)
			continue
		}
		if hz := pair.Clocks[0].Hz; !pair.Clocks[0].Exact || hz < 990 || hz > 1010 {
			t.Errorf("%g Hz, want about 1000", hz)
		}
	}
	if len(report.Clocks) != 2 || report.RejectedByPAWS+report.RejectedBySequence != 0 {
		t.Errorf("%d pairs of addresses, %d rejected SYNs", len(report.Clocks), report.RejectedByPAWS+report.RejectedBySequence)
	}
}

// TestRejectedSYNsWithoutTimestamps is the same without a counter that shows it.
func TestRejectedSYNsWithoutTimestamps(t *testing.T) {
	need(t)
	g := newGateway(t)
	testutil.Run(t, g.server, "", "sh", "-c", "echo 0 >/proc/sys/net/ipv4/tcp_timestamps")
	report := g.play(t)
	t.Logf("kinds %+v; reuse %+v", report.Kinds, report.Reuse)
	if report.RejectedBySequence == 0 || report.RejectedByPAWS != 0 {
		t.Errorf("%d rejected by sequence, %d by PAWS; want some and none", report.RejectedBySequence, report.RejectedByPAWS)
	}
}
