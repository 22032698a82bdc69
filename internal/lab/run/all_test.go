package run

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/build"
	"github.com/natkit/natkit/internal/testutil"
)

func reuse(t *testing.T) *lab.Scenario {
	t.Helper()
	testutil.NeedRoot(t)
	text, err := os.ReadFile("testdata/reuse.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sc, err := lab.Parse("reuse.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	return sc
}

// TestPortReuse: what the counters of client and server say of the same SYNs agrees,
// and each remedy does what it must on every kernel.
func TestPortReuse(t *testing.T) {
	testutil.NeedProgram(t, "nginx")
	hostUnchanged(t)
	r, err := Run(t.Context(), reuse(t), options(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Verdict {
		if !v.Met {
			t.Errorf("%s: %s", v.Expected, v.Seen)
		}
	}
	fault := r.Stage("fault").Handshakes
	if fault.Rejected == 0 || fault.SYNRetransmits == 0 || fault.RejectRate == 0 || fault.Opened != 108 || fault.TimeWait == 0 || fault.TimeWait > 40 {
		t.Errorf("fault: %+v", fault)
	}
	// Each rejected SYN is answered with an ACK, and that with a reset; the last one of a
	// client that gave up may be missing, and its end may be a reset. Late segments are counted,
	// too: none is a SYN where none is sent again.
	exact := fault.RejectedBy == "TcpExtPAWSTimewait"
	if failed := uint64(r.Stage("fault").Failed); exact && (fault.Reset > fault.Rejected+failed || fault.Reset+failed < fault.Rejected) {
		t.Errorf("the server rejected %d SYNs, the clients sent %d resets, and %d gave up", fault.Rejected, fault.Reset, failed)
	}
	if h := r.Stage("healthy").Handshakes; h.SYNRetransmits > 0 || h.TimeWait > 40 {
		t.Errorf("healthy: %+v", h)
	}
	if h := r.Stage("addresses").Handshakes; h.TimeWait <= 40 {
		t.Errorf("with four addresses toward two there are only %d sockets in TIME_WAIT: %+v", h.TimeWait, h)
	}
	if h := r.Stage("client-closes").Handshakes; h.TimeWait > 0 {
		t.Errorf("the client closes, and the server has %d sockets in TIME_WAIT", h.TimeWait)
	}
	if h := r.Stage("impatient").Handshakes; h.Opened > 12 {
		t.Errorf("108 requests, 20 for each of 4 connections at once, took %d connections", h.Opened)
	}
	checkBatches(t, r)
	for _, node := range []string{"client", "gateway", "server"} {
		if _, there := r.Stage("fault").TCP[node]; !there {
			t.Errorf("no TCP counters of %s", node)
		}
	}
}

// checkBatches: they began when the gateway had forgotten the last ones, which takes a second.
func checkBatches(t *testing.T, r *lab.Report) {
	t.Helper()
	for _, s := range r.Stages {
		b := s.Batches
		if b == nil || b.Count != 3 || b.Requests != 36 {
			t.Errorf("%s: batches %+v", s.Name, b)
			continue
		}
		patient := b.OutOfPatience == 0 && b.WaitedSeconds >= 1
		if want := s.Name != "impatient"; patient != want {
			t.Errorf("%s: waited %.2f s, out of patience %d times", s.Name, b.WaitedSeconds, b.OutOfPatience)
		}
	}
}

// TestApartFails: one stage that cannot be run ends all, is named, and leaves nothing.
func TestApartFails(t *testing.T) {
	hostUnchanged(t)
	sc := reuse(t)
	sc.Stages[1].Sysctls = map[string]map[string]string{"client": {"net.ipv4.no_such_value": "1"}}
	o := options(t)
	o.Server = build.Builtin
	if r, err := Run(t.Context(), sc, o); r != nil || err == nil || !strings.Contains(err.Error(), "stage fault: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%+v, error %v", r, err)
	}
}

func TestApartIsInterrupted(t *testing.T) {
	hostUnchanged(t)
	ctx, cancel := context.WithCancel(t.Context())
	o := options(t)
	o.Server = build.Builtin
	o.Progress = func(text string) {
		if strings.Contains(text, "has forgotten") {
			cancel()
		}
	}
	if r, err := Run(ctx, reuse(t), o); r != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, error %v", r, err)
	}
}
